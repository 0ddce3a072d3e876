//! What a host starts with, what it reports of itself, and its errors.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use super::event::{OutOfOrder, Role, Stopped};
use crate::files::OpenError;
use crate::proposals::Full;
use crate::raft::member::Timing;
use crate::raft::types::StoredMembership;
use crate::servers::{MemberId, Server};

/// What a host starts with.
#[derive(Debug, Clone)]
pub struct Options {
    /// The member's own directory. It is made when it is missing.
    pub data_dir: PathBuf,
    pub server_id: u16,
    /// The servers of the configuration file, this one among them. They found the ensemble if there is none
    /// yet.
    pub servers: Vec<Server>,
    pub timing: Timing,
    /// The time after which a read barrier is refused.
    pub sync_limit: Duration,
    /// An unlisted member that was silent for this time is removed.
    pub absence_limit: Duration,
    /// The application has a state with which a new ensemble is to begin. It gives the state to
    /// [`super::Host::first_state`] if [`super::Host::awaits_state`].
    pub has_state: bool,
    /// Servers that the configuration does not list receive the log, so that they can be added.
    pub reconfigurable: bool,
    /// The number of entries that stay in the log after a snapshot.
    pub entries_kept: u64,
    /// Listen on all addresses of the machine, not only on those of this server's line.
    pub listen_on_all: bool,
}

/// Why a host cannot be opened or started, or refuses a call.
#[derive(Debug, Error)]
pub enum HostError {
    /// The named servers cannot be an ensemble.
    #[error("the ensemble's servers: {0}")]
    Servers(String),
    #[error(transparent)]
    Open(#[from] OpenError),
    /// An error of the operating system.
    #[error("{what}: {error}")]
    Os { what: String, error: io::Error },
    #[error(transparent)]
    Full(#[from] Full),
    #[error("{count} {what} wait: wait until there are fewer")]
    Busy { what: &'static str, count: usize },
    /// A command, or a round of renewals, is larger than a message may be.
    #[error("{what} of {bytes} bytes; the limit is {limit}")]
    TooLarge {
        what: &'static str,
        bytes: usize,
        limit: usize,
    },
    #[error(transparent)]
    OutOfOrder(#[from] OutOfOrder),
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

pub(super) fn stopped(why: &str) -> HostError {
    HostError::Stopped(Stopped(why.to_owned()))
}

/// The state of a host.
#[derive(Debug, Clone)]
pub struct Status {
    pub role: Role,
    /// This member; 0 as long as its directory belongs to no ensemble.
    pub member: MemberId,
    pub ensemble: [u8; 16],
    pub membership: Option<StoredMembership>,
    pub last_index: Option<u64>,
    pub committed: Option<u64>,
    pub applied: Option<u64>,
    pub snapshot: Option<u64>,
    pub purged: Option<u64>,
    /// At the leader: how long ago a majority confirmed it.
    pub quorum_ack: Option<Duration>,
    /// Commands that were proposed and not delivered.
    pub outstanding: usize,
    /// The number of connections that were refused or failed, and the last reason.
    pub refused: u64,
    pub last_refused: String,
}
