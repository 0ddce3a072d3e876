//! What openraft is told of. Generic over the runtime: tokio's to serve, a simulated one in tests.

use openraft::RaftTypeConfig;
use openraft::impls::{ProgressResponder, leader_id_std};
use openraft::raft::ClientWriteResult;
use openraft::vote::RaftLeaderId;

use crate::entry::Commands;

/// Names a member in the log: the id of a server in its upper 16 bits, below it which of that server's directories this is.
/// A server whose directory was lost comes back as another member, for it has forgotten what it voted for.
///
/// A number below 2¹⁶ is the server's own: whichever of its members is there.
pub type MemberId = u64;

const INCARNATION_BITS: u32 = 48;

/// The member that this directory of a server is; `incarnation` is below 2⁴⁸.
pub const fn member_id(server: u16, incarnation: u64) -> MemberId {
    ((server as u64) << INCARNATION_BITS) | incarnation
}

/// The server that a member is, or was.
pub const fn server_of(member: MemberId) -> u16 {
    (member >> INCARNATION_BITS) as u16
}

/// One leader a term (Raft, figure 3.2), so that a term names its leader.
pub type LeaderId = leader_id_std::LeaderId<u64, MemberId>;
/// The term that an entry was proposed in.
pub type Term = <LeaderId as RaftLeaderId>::Committed;
/// Term and index of an entry.
pub type LogId = openraft::LogId<Term>;
/// Whom a member voted for, and whether a majority did.
pub type Vote = openraft::Vote<LeaderId>;
/// Who votes, who listens, and where they are.
pub type Membership = openraft::Membership<MemberId, Server>;
/// A membership and the entry it is of.
pub type StoredMembership = openraft::StoredMembership<Term, MemberId, Server>;
/// Nothing, commands or a membership.
pub type Payload = openraft::EntryPayload<Commands, MemberId, Server>;
/// What the log consists of.
pub type Entry = openraft::Entry<Term, Payload>;
/// Up to where a snapshot reaches.
pub type SnapshotMeta = openraft::SnapshotMeta<Term, MemberId, Server>;

/// A `RaftTypeConfig` with this crate's types and any runtime.
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

/// One server of an ensemble, as a line `server.N=…` of its configuration says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Server {
    /// N, 1 to 255 in ZooKeeper.
    pub id: u16,
    /// Where the log comes in; more than one for a server with several ways to it.
    pub quorum: Vec<Address>,
    /// Where votes and heartbeats come in.
    pub election: Vec<Address>,
    /// Where clients are served.
    pub client: Option<Address>,
    /// Listens and never votes.
    pub observer: bool,
}

/// A host's name or address, and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Up to 255 bytes.
    pub host: String,
    /// 1 to 65535.
    pub port: u16,
}
