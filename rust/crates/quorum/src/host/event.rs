//! What a host reports to the application.

use bytes::Bytes;
use thiserror::Error;

use crate::files::snapshots::SnapshotSource;
use crate::flushes::Flush;
use crate::reader::DeliveredEntry;

/// What happened, in order.
#[derive(Debug)]
pub enum Event {
    /// Committed entries: each once, in order, without a gap.
    Entries(Vec<DeliveredEntry>),
    /// Replace the whole state by this snapshot. Commands of this member that it contains are not delivered;
    /// their tickets are below `my_next`.
    Install { source: SnapshotSource, my_next: u64 },
    /// The role of this member. It comes after everything that was committed before.
    Role(Role),
    /// This member leads in this term. All entries of earlier terms, and one of this term, were delivered.
    Leading { term: u64 },
    /// At the leader: another server renewed these sessions.
    SessionsRenewed { server: u16, sessions: Bytes },
    /// The leader has this round of renewals, and a majority confirmed the leader after that.
    RenewalAck { round: u64 },
    /// With `ok`, everything was delivered that was committed when the barrier was asked for.
    Barrier { number: u64, ok: bool },
    /// The snapshot up to this entry is on disk, or failed.
    Snapshot { index: u64, error: Option<String> },
    /// Measurements of the log's disk since the last time. They come together with another event.
    Flushed(Vec<Flush>),
    /// A message for the operator.
    Warning(String),
    /// The member failed. This is the last event.
    Failed(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoleKind {
    Leader,
    Follower,
    Observer,
    /// No leader is known.
    Looking,
}

/// The role of a member in its ensemble.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Role {
    pub kind: RoleKind,
    pub term: u64,
    /// The leader's server, or 0.
    pub leader: u16,
    /// At the leader: a majority confirmed it lately. Elsewhere: the leader was heard from lately, and had a
    /// majority.
    pub in_contact: bool,
}

impl Role {
    pub(super) const LOOKING: Self = Self {
        kind: RoleKind::Looking,
        term: 0,
        leader: 0,
        in_contact: false,
    };
}

/// The member has stopped, or was never started.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct Stopped(pub String);

/// A call that does not fit what the application took or applied before: an error in the application.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct OutOfOrder(pub String);
