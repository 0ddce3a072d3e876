//! One member of an ensemble: openraft with its log, its state machine and its connections.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::select;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{InitializeError, RaftError};
use openraft::impls::ProgressResponder;
use openraft::type_config::TypeConfigExt;
use openraft::{AsyncRuntime, Config, Precondition, Raft, RaftTypeConfig, ReadPolicy, SnapshotPolicy};
use parking_lot::Mutex;

use super::members::Change;
use super::metrics::{Metrics, Watch};
use super::network::Network;
use super::requests::{Links, Request, RequestError, Response};
use super::sending::{Local, Sending};
use super::state_machine::{Feed, Machine, Snapshots};
use super::store::{DiskReader, LogStore};
use super::types::{Term, Types};
use crate::commands::Commands;
use crate::proposals::Proposals;
use crate::servers::{MemberId, Server};

/// The times of an ensemble, in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timing {
    /// The interval of the leader's heartbeats.
    pub heartbeat: u64,
    /// A member that heard from no leader for `election_max` waits a random time between the two and asks for
    /// votes.
    pub election_min: u64,
    pub election_max: u64,
    /// The time in which a snapshot must reach another member.
    pub snapshot: u64,
    /// The time without a majority after which a leader is silent for as long. The members that it still
    /// reaches then elect another.
    pub probe: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            heartbeat: 60,
            election_min: 200,
            election_max: 300,
            snapshot: 20_000,
            probe: 700,
        }
    }
}

fn config(timing: &Timing, entries_kept: u64) -> Result<Config, String> {
    let config = Config {
        cluster_name: "ensemble".to_owned(),
        heartbeat_interval: timing.heartbeat,
        election_timeout_min: timing.election_min,
        election_timeout_max: timing.election_max,
        install_snapshot_timeout: timing.snapshot,
        max_payload_entries: 64,
        max_append_entries: Some(1024),
        // The application decides when to make a snapshot.
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: entries_kept,
        purge_batch_size: entries_kept.div_ceil(8).max(1),
        backoff: "50ms".to_owned(),
        enable_pre_vote: Some(true),
        // A member that starts does not lead by its earlier vote, so that a term is one life of one leader.
        enable_leader_restore: Some(false),
        quorum_loss_probe_interval: Some(timing.probe),
        // A disk may lose what it reported as written: by a backup that was restored, or by a power loss when
        // it ignored the flush. The leader then sends the entries again. Without this it would send nothing
        // and count the member for its majority.
        allow_log_reversion: Some(true),
        ..Config::default()
    };
    config.validate().map_err(|error| error.to_string())
}

/// One member. A clone is the same member.
pub struct Member<C: Types, R, S: Snapshots> {
    id: MemberId,
    raft: Raft<C, Machine<S>>,
    store: LogStore<C, R>,
    snapshots: Arc<S>,
    feed: Arc<Feed<S::Data>>,
    proposals: Arc<Proposals>,
    sending: Arc<Mutex<Option<Task<C>>>>,
}

/// A task on the member's runtime.
pub type Task<C> = <<C as RaftTypeConfig>::AsyncRuntime as AsyncRuntime>::JoinHandle<()>;

impl<C: Types, R, S: Snapshots> Clone for Member<C, R, S> {
    fn clone(&self) -> Self {
        Self {
            id: self.id,
            raft: self.raft.clone(),
            store: self.store.clone(),
            snapshots: self.snapshots.clone(),
            feed: self.feed.clone(),
            proposals: self.proposals.clone(),
            sending: self.sending.clone(),
        }
    }
}

/// The parts of a member that starts.
pub struct Parts<C: Types, R, S: Snapshots, L> {
    pub id: MemberId,
    pub timing: Timing,
    /// The number of entries that stay in the log after a snapshot.
    pub entries_kept: u64,
    pub links: L,
    pub store: LogStore<C, R>,
    pub snapshots: Arc<S>,
    pub feed: Arc<Feed<S::Data>>,
    pub proposals: Arc<Proposals>,
    /// The clock of this member's proposals, in milliseconds since 1970.
    pub clock: fn() -> i64,
}

impl<C: Types, R: DiskReader, S: Snapshots> Member<C, R, S> {
    /// Starts with the content of the store and the snapshots.
    ///
    /// Errors: times, or files, that do not fit together; files that cannot be read.
    pub async fn start(parts: Parts<C, R, S, impl Links<C, S::Data>>) -> Result<Self, String> {
        let config = config(&parts.timing, parts.entries_kept)
            .map_err(|error| format!("the ensemble's times do not fit together: {error}"))?;
        let network = Network::new(parts.id, parts.links.clone());
        let machine = Machine::new(parts.snapshots.clone(), parts.feed.clone());
        let store = parts.store.clone();
        let raft = Raft::new(parts.id, Arc::new(config), network, store, machine)
            .await
            .map_err(|error| format!("the ensemble's log cannot be opened: {error}"))?;
        let sending = Sending {
            me: parts.id,
            proposals: parts.proposals.clone(),
            links: parts.links,
            local: OwnRaft(raft.clone()),
            clock: parts.clock,
        };
        let sending = C::spawn(sending.run::<C, S::Data>(Watch(raft.server_metrics())));
        Ok(Self {
            id: parts.id,
            raft,
            store: parts.store,
            snapshots: parts.snapshots,
            feed: parts.feed,
            proposals: parts.proposals,
            sending: Arc::new(Mutex::new(Some(sending))),
        })
    }

    /// Ends openraft. Its tasks end with it.
    pub async fn shutdown(&self) -> Result<(), String> {
        self.raft.shutdown().await.map_err(|error| error.to_string())
    }

    /// The task that sends the proposals, so that the caller can notice a panic. It ends with openraft.
    pub fn sending(&self) -> Option<Task<C>> {
        self.sending.lock().take()
    }

    /// openraft's handle, for tests.
    pub fn raft(&self) -> &Raft<C, Machine<S>> {
        &self.raft
    }

    pub fn store(&self) -> &LogStore<C, R> {
        &self.store
    }

    pub fn snapshots(&self) -> &S {
        &self.snapshots
    }

    /// What is committed.
    pub fn feed(&self) -> &Feed<S::Data> {
        &self.feed
    }

    pub fn proposals(&self) -> &Proposals {
        &self.proposals
    }

    pub fn is_leader(&self) -> bool {
        self.raft.is_leader()
    }

    pub fn metrics(&self) -> Metrics<C> {
        Metrics(self.raft.metrics().borrow_watched().clone())
    }

    pub fn watch(&self) -> Watch<C> {
        Watch(self.raft.server_metrics())
    }

    /// Begins an empty log with these voters. Does nothing when the log is not empty.
    pub async fn initialize(&self, voters: BTreeMap<MemberId, Server>) -> Result<(), String> {
        match self.raft.initialize(voters).await {
            Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Changes the membership, if this member leads in this term. Returns once the change is committed.
    pub async fn change_members(&self, term: u64, change: Change) -> Result<(), String> {
        let fence = Precondition::CommittedLeaderId {
            committed_leader_id: Term::new(term),
        };
        let changed = self
            .raft
            .change_membership_if(change.members, change.retain, [fence]);
        changed.await.map(|_| ()).map_err(|error| error.to_string())
    }

    /// Has openraft take the newest snapshot of [`Snapshots`], and remove the log's front up to it.
    pub async fn take_snapshot(&self) {
        // A member that failed has nothing to remove.
        let _ = self.raft.trigger().snapshot().await;
    }

    /// Hands leadership to the voter with the longest log among those that were heard from within `heard`.
    /// Waits at most `timeout` for it. Does nothing where this member does not lead or no such voter exists.
    pub async fn hand_over(&self, heard: Duration, timeout: Duration) {
        if !self.is_leader() {
            return;
        }
        let metrics = self.metrics();
        let others = metrics.membership().membership().voter_ids();
        // A leader that hands over to itself would take no more commands.
        let others = others.filter(|id| *id != self.id);
        let alive = others.filter(|id| metrics.heard(*id).is_some_and(|ago| ago < heard));
        let Some(best) = alive.max_by_key(|id| metrics.matched(*id)) else {
            return;
        };
        if self.raft.trigger().transfer_leader(best).await.is_err() {
            return;
        }
        let mut watch = self.watch();
        let replaced = async {
            while watch.leader().is_some_and(|leader| leader.member == self.id) {
                if watch.changed().await.is_err() {
                    return;
                }
            }
        };
        // After the timeout the others elect a leader themselves.
        let _ = select(pin!(replaced), pin!(C::sleep(timeout))).await;
    }

    /// Answers another member's request.
    pub async fn answer(&self, request: Request<C, S::Data>) -> Result<Response<C>, RequestError> {
        let raft = &self.raft;
        match request {
            Request::Append(request) => {
                let response = raft.append_entries(request).await;
                response.map(Response::Append).map_err(RequestError::broken)
            }
            Request::Vote(request) => {
                let response = raft.vote(request).await;
                response.map(Response::Vote).map_err(RequestError::broken)
            }
            Request::PreVote(request) => {
                let response = raft.pre_vote(request).await;
                response.map(Response::Vote).map_err(RequestError::broken)
            }
            Request::Snapshot(vote, snapshot) => {
                let response = raft.install_full_snapshot(vote, snapshot).await;
                response.map(Response::Snapshot).map_err(RequestError::broken)
            }
            Request::Propose(term, commands) => {
                let proposed = propose(raft, term, commands).await;
                proposed.map(|()| Response::Proposed)
            }
            Request::Transfer(request) => {
                let response = raft.handle_transfer_leader(request).await;
                response.map(Response::Transfer).map_err(RequestError::broken)
            }
            Request::ReadIndex => self.confirm().await.map(Response::ReadIndex),
            Request::RenewSessions(..) | Request::Identify | Request::Bind(_) | Request::Join(..) => {
                Err(RequestError::broken("the host answers this request"))
            }
        }
    }

    /// Has a majority confirm, after this call, that this member leads. Returns the index up to which to
    /// read: everything that was committed before the call has an index up to it.
    ///
    /// Errors: this member does not lead, or no majority confirms it in time.
    pub async fn confirm(&self) -> Result<u64, RequestError> {
        let confirmed = self.raft.get_read_linearizer(ReadPolicy::ReadIndex).await;
        confirmed
            .map(|confirmed| confirmed.read_log_id().index())
            .map_err(RequestError::broken)
    }

    /// Like [`Member::confirm`] at any member: asks the leader (Raft, §6.4).
    ///
    /// Errors: no leader is known; the leader did not answer in time, or no longer leads.
    pub async fn read_index(
        &self,
        links: &impl Links<C, S::Data>,
        timeout: Duration,
    ) -> Result<u64, RequestError> {
        let Some(leader) = self.watch().leader() else {
            return Err(RequestError::broken("no leader is known"));
        };
        if leader.member == self.id {
            return self.confirm().await;
        }
        let asked = links.request(leader.member, &leader.server, Request::ReadIndex, timeout);
        match asked.await? {
            Response::ReadIndex(index) => Ok(index),
            _ => Err(RequestError::unexpected()),
        }
    }
}

/// This member's openraft, for its own proposals.
struct OwnRaft<C: Types, S: Snapshots>(Raft<C, Machine<S>>);

impl<C: Types, S: Snapshots> Local for OwnRaft<C, S> {
    async fn propose(&self, term: u64, commands: Commands) -> Result<(), RequestError> {
        propose(&self.0, term, commands).await
    }
}

/// Gives commands to openraft. The log shows later whether they are committed.
///
/// Errors: this member does not lead in this term, or was just elected and no majority has followed it yet.
async fn propose<C: Types, S: Snapshots>(
    raft: &Raft<C, Machine<S>>,
    term: u64,
    commands: Commands,
) -> Result<(), RequestError> {
    let (responder, _, completed) = ProgressResponder::new();
    let written = raft
        .write(commands)
        .with_leader(Term::new(term))
        .responder(responder);
    written.await.map_err(RequestError::broken)?;
    // openraft handles calls in order. When this one returns, a refusal of the write is known.
    raft.with_raft_state(|_| ()).await.map_err(RequestError::broken)?;
    match completed.now_or_never() {
        Some(Ok(Err(refused))) => Err(RequestError::broken(refused)),
        // It is committed, or not committed yet.
        Some(Ok(Ok(_)) | Err(_)) | None => Ok(()),
    }
}
