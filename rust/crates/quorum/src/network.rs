//! Requests to other members, for whatever carries them.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use openraft::errors::{
    NetworkError, RPCError, ReplicationClosed, StreamingError, Timeout, Unreachable,
};
use openraft::network::{RPCOption, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::{OptionalSend, RPCTypes, RaftNetworkV2};

use bytes::Bytes;

use crate::entry::Commands;
use crate::machine::{Data, Snapshot};
use crate::types::{MemberId, Server, Types, Vote};

/// What one member asks another.
#[derive(Clone)]
pub enum Request<C: Types, D: Data> {
    /// To append entries, or none: a heartbeat.
    Append(AppendEntriesRequest<C>),
    /// To vote for it.
    Vote(VoteRequest<C>),
    /// Whether it would vote for it.
    PreVote(VoteRequest<C>),
    /// To begin anew with a snapshot.
    Snapshot(Vote, Snapshot<D>),
    /// To lead.
    Transfer(TransferLeaderRequest<C>),
    /// To propose commands, if it leads in this term.
    Propose(u64, Commands),
    /// Up to where to read, if it leads.
    ReadIndex,
    /// From a server: it heard from these sessions; to be told once a majority follows whom it tells.
    Touch(u16, Bytes),
    /// Which member it is, and of what.
    Whois,
    /// To be a founder of this ensemble, and of no other: a majority of its servers has nothing yet.
    Found([u8; 16]),
    /// To make this member one of the ensemble, in the place of what its server was before.
    Join(MemberId, Server),
}

/// What the other says.
#[derive(Debug, Clone)]
pub enum Answer<C: Types> {
    Append(AppendEntriesResponse<C>),
    Vote(VoteResponse<C>),
    Snapshot(SnapshotResponse<C>),
    Transfer(TransferLeaderResponse<C>),
    /// They are before the leader, who may still lose them.
    Proposed,
    /// What is agreed on up to this index was agreed on when it was asked, and nothing after.
    ReadIndex(u64),
    Touched,
    Here(Here),
    /// It will be, if it lasts.
    Joining,
}

/// What a member says of itself to one that has nothing yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Here {
    /// 0 for one that has nothing yet either.
    pub member: MemberId,
    /// The ensemble that it is of, or would found.
    pub ensemble: [u8; 16],
    /// It knows of nothing that was agreed on.
    pub fresh: bool,
    /// It has a state that the ensemble it founds is to begin with.
    pub has_state: bool,
    /// Who leads.
    pub leader: Option<Server>,
    /// Whom it knows as the ensemble's members.
    pub members: Vec<MemberId>,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoAnswer {
    /// There is no way to it, and will be none soon.
    Unreachable(String),
    /// The way broke, or its owner refuses; what was asked may have been done.
    Broken(String),
    /// It took too long; what was asked may have been done.
    TimedOut,
}

/// The ways to the other members.
pub trait Links<C: Types, D: Data>: Clone + Send + Sync + 'static {
    /// Asks a member, and waits at most so long.
    fn ask(
        &self,
        member: MemberId,
        server: &Server,
        request: Request<C, D>,
        patience: Duration,
    ) -> impl Future<Output = Result<Answer<C>, NoAnswer>> + Send;
}

/// openraft's way to other members.
pub struct Network<L, D> {
    me: MemberId,
    links: L,
    _data: std::marker::PhantomData<fn() -> D>,
}

impl<L, D> Network<L, D> {
    pub fn new(me: MemberId, links: L) -> Self {
        Self {
            me,
            links,
            _data: std::marker::PhantomData,
        }
    }
}

/// openraft's way to one member.
pub struct Peer<L, D> {
    me: MemberId,
    member: MemberId,
    server: Server,
    links: L,
    _data: std::marker::PhantomData<fn() -> D>,
}

impl<C: Types, L: Links<C, D>, D: Data> RaftNetworkFactory<C> for Network<L, D> {
    type Network = Peer<L, D>;

    async fn new_client(&mut self, member: MemberId, server: &Server) -> Peer<L, D> {
        Peer {
            me: self.me,
            member,
            server: server.clone(),
            links: self.links.clone(),
            _data: std::marker::PhantomData,
        }
    }
}

impl<L, D: Data> Peer<L, D> {
    async fn ask<C: Types>(
        &self,
        kind: RPCTypes,
        request: Request<C, D>,
        option: &RPCOption,
    ) -> Result<Answer<C>, RPCError<C>>
    where
        L: Links<C, D>,
    {
        let patience = option.soft_ttl();
        let asked = self.links.ask(self.member, &self.server, request, patience);
        asked.await.map_err(|why| match why {
            NoAnswer::Unreachable(why) => RPCError::Unreachable(Unreachable::from_string(why)),
            NoAnswer::Broken(why) => RPCError::Network(NetworkError::from_string(why)),
            NoAnswer::TimedOut => RPCError::Timeout(Timeout {
                action: kind,
                id: self.me,
                target: self.member,
                timeout: patience,
            }),
        })
    }

    fn other<C: Types, T>(&self) -> Result<T, RPCError<C>> {
        Err(RPCError::Network(NetworkError::from_string(format!(
            "member {} answered something else than it was asked",
            self.member
        ))))
    }
}

impl<C: Types, L: Links<C, D>, D: Data> RaftNetworkV2<C> for Peer<L, D> {
    type SnapshotData = D;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<C>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<C>, RPCError<C>> {
        let request = Request::Append(request);
        match self.ask(RPCTypes::AppendEntries, request, &option).await? {
            Answer::Append(answer) => Ok(answer),
            _ => self.other(),
        }
    }

    async fn vote(
        &mut self,
        request: VoteRequest<C>,
        option: RPCOption,
    ) -> Result<VoteResponse<C>, RPCError<C>> {
        let request = Request::Vote(request);
        match self.ask(RPCTypes::Vote, request, &option).await? {
            Answer::Vote(answer) => Ok(answer),
            _ => self.other(),
        }
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<C>,
        option: RPCOption,
    ) -> Result<VoteResponse<C>, RPCError<C>> {
        let request = Request::PreVote(request);
        match self.ask(RPCTypes::Vote, request, &option).await? {
            Answer::Vote(answer) => Ok(answer),
            _ => self.other(),
        }
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot<D>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<C>, StreamingError<C>> {
        let request = Request::Snapshot(vote, snapshot);
        let sent = pin!(self.ask(RPCTypes::InstallSnapshot, request, &option));
        match select(sent, pin!(cancel)).await {
            Either::Left((answer, _)) => match answer? {
                Answer::Snapshot(answer) => Ok(answer),
                _ => Ok(self.other()?),
            },
            Either::Right((closed, _)) => Err(StreamingError::Closed(closed)),
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<C>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<C>, RPCError<C>> {
        let request = Request::Transfer(request);
        match self.ask(RPCTypes::TransferLeader, request, &option).await? {
            Answer::Transfer(answer) => Ok(answer),
            _ => self.other(),
        }
    }
}
