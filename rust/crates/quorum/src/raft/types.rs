//! The types that openraft is used with. Generic over the runtime: tokio's in a process, a simulated one in
//! tests.

use openraft::RaftTypeConfig;
use openraft::impls::{ProgressResponder, leader_id_std};
use openraft::raft::ClientWriteResult;
use openraft::vote::RaftLeaderId;
use openraft_rt_tokio::TokioRuntime;

use crate::commands::Commands;
use crate::servers::{MemberId, Server};

/// One leader per term (Raft, figure 3.2), so that a term names its leader.
pub type LeaderId = leader_id_std::LeaderId<u64, MemberId>;
/// The term in which an entry was proposed.
pub type Term = <LeaderId as RaftLeaderId>::Committed;
/// Term and index of an entry.
pub type LogId = openraft::LogId<Term>;
/// The member that a member voted for, and whether a majority did.
pub type Vote = openraft::Vote<LeaderId>;
/// The voters, the members that only receive the log, and their addresses.
pub type Membership = openraft::Membership<MemberId, Server>;
/// A membership and the entry that set it.
pub type StoredMembership = openraft::StoredMembership<Term, MemberId, Server>;
/// Nothing, commands or a membership.
pub type Payload = openraft::EntryPayload<Commands, MemberId, Server>;
/// One entry of the log.
pub type Entry = openraft::Entry<Term, Payload>;
/// The last entry that a snapshot contains, and the membership at that point.
pub type SnapshotMeta = openraft::SnapshotMeta<Term, MemberId, Server>;
/// A snapshot's metadata and the way to its bytes.
pub type Snapshot<D> = openraft::Snapshot<Term, MemberId, Server, D>;

/// A `RaftTypeConfig` with these types and any runtime.
pub trait Types:
    RaftTypeConfig<
        D = Commands,
        R = (),
        NodeId = MemberId,
        Node = Server,
        Term = u64,
        LeaderId = LeaderId,
        Vote = Vote,
        Payload = Payload,
        Entry = Entry,
        Responder<ClientWriteResult<Self>> = ProgressResponder<Self, ClientWriteResult<Self>>,
    >
{
}

impl<C> Types for C where
    C: RaftTypeConfig<
            D = Commands,
            R = (),
            NodeId = MemberId,
            Node = Server,
            Term = u64,
            LeaderId = LeaderId,
            Vote = Vote,
            Payload = Payload,
            Entry = Entry,
            Responder<ClientWriteResult<C>> = ProgressResponder<C, ClientWriteResult<C>>,
        >
{
}

openraft::declare_raft_types!(
    /// These types on tokio's runtime.
    pub OnTokio:
        D = Commands,
        R = (),
        NodeId = MemberId,
        Node = Server,
        LeaderId = LeaderId,
        AsyncRuntime = TokioRuntime,
);

pub const fn log_id(term: u64, index: u64) -> LogId {
    LogId {
        leader_id: Term { term },
        index,
    }
}

pub fn vote(term: u64, voted_for: MemberId, committed: bool) -> Vote {
    Vote {
        leader_id: LeaderId::new(term, voted_for),
        committed,
    }
}
