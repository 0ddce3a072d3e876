//! What members ask each other, and the trait of the connections that carry it.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use thiserror::Error;

use super::state_machine::Data;
use super::types::{Snapshot, Types, Vote};
use crate::commands::Commands;
use crate::servers::{MemberId, Server};

/// What one member asks another.
#[derive(Clone)]
pub enum Request<C: Types, D: Data> {
    /// Appends entries, or none: a heartbeat.
    Append(AppendEntriesRequest<C>),
    Vote(VoteRequest<C>),
    /// Asks whether the other would vote for this member.
    PreVote(VoteRequest<C>),
    /// Installs a snapshot.
    Snapshot(Vote, Snapshot<D>),
    /// Asks the other to become the leader.
    Transfer(TransferLeaderRequest<C>),
    /// Proposes commands, if the other leads in this term.
    Propose(u64, Commands),
    /// Asks the leader for the index up to which to read.
    ReadIndex,
    /// Renews sessions at the leader. Holds the server whose clients they are, and the sessions' ids. The
    /// response follows once a majority has confirmed the leader.
    RenewSessions(u16, Bytes),
    /// Asks which member of which ensemble the other is.
    Identify,
    /// Binds the other to the founding of this ensemble, and of no other.
    Bind([u8; 16]),
    /// Asks the leader to make this member one of the ensemble, in place of its server's earlier member.
    Join(MemberId, Server),
}

impl<C: Types, D: Data> Request<C, D> {
    /// The term of the leader that sends the request; `None` for requests that any member may send.
    pub(crate) fn leader_term(&self) -> Option<u64> {
        match self {
            Self::Append(append) => Some(append.vote.leader_id.term),
            Self::Snapshot(vote, _) => Some(vote.leader_id.term),
            _ => None,
        }
    }
}

/// The response to a [`Request`].
#[derive(Debug, Clone)]
pub enum Response<C: Types> {
    Append(AppendEntriesResponse<C>),
    Vote(VoteResponse<C>),
    Snapshot(SnapshotResponse<C>),
    Transfer(TransferLeaderResponse<C>),
    /// The leader has the commands, and may still lose them.
    Proposed,
    /// Everything that was committed before the request has an index up to this one.
    ReadIndex(u64),
    SessionsRenewed,
    Identity(MemberInfo),
    /// The leader will add the member, if it goes on to lead.
    Joining,
}

impl<C: Types> Response<C> {
    /// Whether the response refuses a leader, because a later one is known.
    pub(crate) fn refuses_leader(&self) -> bool {
        matches!(self, Self::Append(AppendEntriesResponse::HigherVote(_)))
    }
}

/// What a member says about itself to one without data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberInfo {
    /// 0 if its directory belongs to no ensemble yet.
    pub member: MemberId,
    /// The ensemble that it belongs to, or would found.
    pub ensemble: [u8; 16],
    /// It knows of no committed entry.
    pub fresh: bool,
    /// It has a state with which its ensemble is to begin.
    pub has_state: bool,
    /// The server of the leader.
    pub leader: Option<Server>,
    /// The ensemble's members, as far as it knows.
    pub members: Vec<MemberId>,
}

/// Why a request has no response.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RequestError {
    /// No connection can be made.
    #[error("{0}")]
    Unreachable(String),
    /// The connection broke, or the other refused. The request may have been carried out.
    #[error("{0}")]
    Broken(String),
    /// The request may have been carried out.
    #[error("it does not answer")]
    TimedOut,
}

impl RequestError {
    pub(crate) fn broken(why: impl std::fmt::Display) -> Self {
        Self::Broken(why.to_string())
    }

    /// The other sent a response of another kind.
    pub(crate) fn unexpected() -> Self {
        Self::Broken("it sent a response that does not fit the request".to_owned())
    }
}

/// The connections to the other members.
pub trait Links<C: Types, D: Data>: Clone + Send + Sync + 'static {
    /// Sends a request to a member and waits for the response.
    fn request(
        &self,
        member: MemberId,
        server: &Server,
        request: Request<C, D>,
        timeout: Duration,
    ) -> impl Future<Output = Result<Response<C>, RequestError>> + Send;
}
