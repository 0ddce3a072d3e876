//! The state that a host's calls and its tasks share.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};

use super::options::Options;
use super::queue::EventQueue;
use crate::files::OpenError;
use crate::files::directory::DirectoryReader;
use crate::files::identity::DirectoryIdentity;
use crate::files::snapshots::{SnapshotDir, SnapshotFile};
use crate::flushes::Flushes;
use crate::proposals::Proposals;
use crate::raft::member::Member;
use crate::raft::state_machine::Feed;
use crate::raft::types::{OnTokio, Snapshot};
use crate::servers::{MemberId, Server};
use crate::transport::handshake::Identity;
use crate::transport::links::TcpLinks;

/// The interval at which tasks check conditions that have no notification.
pub(super) const TICK: Duration = Duration::from_millis(100);

/// A member that has started, and its connections. A clone is the same.
#[derive(Clone)]
pub(super) struct Node {
    pub(super) id: MemberId,
    pub(super) member: Member<OnTokio, DirectoryReader, Arc<SnapshotDir>>,
    pub(super) links: TcpLinks<OnTokio>,
}

/// A barrier's number and deadline.
pub(super) type Barrier = (u64, Instant);

pub(super) struct Shared {
    pub(super) options: Options,
    /// The line of this server.
    pub(super) me: Server,
    /// The id of the ensemble that the servers of the file found.
    pub(super) founding_id: [u8; 16],
    pub(super) identity: Mutex<DirectoryIdentity>,
    /// Notified when the directory becomes a member, or the first state is on disk.
    pub(super) decided: Notify,
    /// The log had no more than a first membership when it was opened.
    pub(super) was_fresh: bool,
    /// The ensemble that this member founds begins with a state, which is not in place yet.
    pub(super) awaits_state: AtomicBool,
    /// That state, once it is on disk.
    pub(super) first_state: Mutex<Option<Snapshot<SnapshotFile>>>,
    pub(super) snapshots: Arc<SnapshotDir>,
    pub(super) feed: Arc<Feed<SnapshotFile>>,
    /// Notified when the feed has more.
    pub(super) more: Arc<Notify>,
    pub(super) proposals: Arc<Proposals>,
    pub(super) events: Arc<EventQueue>,
    /// Set once there is a log.
    pub(super) flushes: OnceLock<Arc<Flushes>>,
    pub(super) node: Mutex<Option<Node>>,
    /// When a leader was last heard from, and its term.
    pub(super) contact: Mutex<Option<(Instant, u64)>>,
    /// When the leader of a term was last asked for a majority that it then had.
    confirmed: Mutex<Option<(Instant, u64)>>,
    pub(super) confirmed_more: Notify,
    /// The barriers for which the leader was not asked yet.
    pub(super) barriers: Mutex<Vec<Barrier>>,
    pub(super) barriers_more: Notify,
    pub(super) next_number: AtomicU64,
    /// Rounds of renewals that are on their way.
    pub(super) renewals: AtomicUsize,
    /// Whether a snapshot is being written.
    pub(super) saving: AtomicBool,
    pub(super) joins: mpsc::Sender<(MemberId, Server)>,
    /// The servers that the configuration shall list, and the term whose leader makes that change.
    pub(super) target: Mutex<Option<(u64, Vec<Server>)>>,
    pub(super) target_set: Notify,
    /// Connections that failed, and the last reason.
    pub(super) refused: Mutex<(u64, String)>,
}

/// The parts that a [`Shared`] is made of.
pub(super) struct NewShared {
    pub(super) options: Options,
    pub(super) me: Server,
    pub(super) founding_id: [u8; 16],
    pub(super) identity: DirectoryIdentity,
    pub(super) was_fresh: bool,
    pub(super) awaits_state: bool,
    pub(super) snapshots: Arc<SnapshotDir>,
    pub(super) events: Arc<EventQueue>,
    pub(super) joins: mpsc::Sender<(MemberId, Server)>,
}

impl Shared {
    pub(super) fn new(new: NewShared) -> Self {
        let more = Arc::new(Notify::new());
        let wake = more.clone();
        let (member, starts) = (new.identity.member.unwrap_or(0), new.identity.starts);
        Self {
            options: new.options,
            me: new.me,
            founding_id: new.founding_id,
            identity: Mutex::new(new.identity),
            decided: Notify::new(),
            was_fresh: new.was_fresh,
            awaits_state: AtomicBool::new(new.awaits_state),
            first_state: Mutex::default(),
            snapshots: new.snapshots,
            feed: Arc::new(Feed::new(move || wake.notify_one())),
            more,
            proposals: Arc::new(Proposals::new(member, starts)),
            events: new.events,
            flushes: OnceLock::new(),
            node: Mutex::new(None),
            contact: Mutex::new(None),
            confirmed: Mutex::new(None),
            confirmed_more: Notify::new(),
            barriers: Mutex::default(),
            barriers_more: Notify::new(),
            next_number: AtomicU64::new(1),
            renewals: AtomicUsize::new(0),
            saving: AtomicBool::new(false),
            joins: new.joins,
            target: Mutex::default(),
            target_set: Notify::new(),
            refused: Mutex::default(),
        }
    }

    pub(super) fn node(&self) -> Option<Node> {
        self.node.lock().clone()
    }

    /// This member, as it identifies itself to others.
    pub(super) fn identity(&self) -> Identity {
        let identity = *self.identity.lock();
        Identity {
            ensemble: identity.ensemble,
            member: identity.member.unwrap_or(0),
            server: identity.server,
        }
    }

    /// Notes that the leader of a term, asked at this time, had a majority.
    pub(super) fn leader_confirmed(&self, asked: Instant, term: u64) {
        let mut confirmed = self.confirmed.lock();
        if confirmed.is_none_or(|(when, known)| (known, when) < (term, asked)) {
            *confirmed = Some((asked, term));
            self.confirmed_more.notify_one();
        }
    }

    /// How long ago the leader of a term was asked and had a majority.
    pub(super) fn leader_confirmed_before(&self, term: u64) -> Option<Duration> {
        let confirmed = *self.confirmed.lock();
        confirmed
            .filter(|(_, known)| *known == term)
            .map(|(when, _)| when.elapsed())
    }

    /// Whether this member knows of no committed entry.
    pub(super) fn is_fresh(&self) -> bool {
        match self.node() {
            None => self.was_fresh,
            Some(node) => node.member.metrics().last_index().is_none_or(|last| last == 0),
        }
    }

    /// Makes the directory a member, unless it is one. This is on disk when it returns.
    pub(super) fn become_member(&self, ensemble: [u8; 16], member: MemberId) -> Result<(), OpenError> {
        let mut identity = self.identity.lock();
        match identity.member {
            None => self.change_identity(&mut identity, ensemble, member),
            Some(_) => Ok(()),
        }
    }

    pub(super) fn change_identity(
        &self,
        identity: &mut DirectoryIdentity,
        ensemble: [u8; 16],
        member: MemberId,
    ) -> Result<(), OpenError> {
        let decided = DirectoryIdentity {
            ensemble,
            member: Some(member),
            ..*identity
        };
        if decided != *identity {
            decided.save(&self.options.data_dir)?;
            *identity = decided;
            self.decided.notify_one();
        }
        Ok(())
    }

    /// The servers of the file that vote.
    pub(super) fn voters(&self) -> impl Iterator<Item = &Server> {
        self.options.servers.iter().filter(|server| !server.observer)
    }

    /// All servers but this one: those of the ensemble with their latest known addresses, and those of the
    /// file.
    pub(super) fn others(&self) -> Vec<Server> {
        let mut servers: Vec<Server> = Vec::new();
        if let Some(node) = self.node() {
            let stored = node.member.watch().membership();
            servers.extend(stored.membership().nodes().map(|(_, server)| server.clone()));
        }
        servers.extend(self.options.servers.iter().cloned());
        let mut seen = BTreeSet::from([self.me.id]);
        servers.retain(|server| seen.insert(server.id));
        servers
    }
}
