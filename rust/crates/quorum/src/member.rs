//! One member of an ensemble: openraft, its store, its way to the others.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::Fatal;
use openraft::impls::ProgressResponder;
use openraft::type_config::TypeConfigExt;
use openraft::{AsyncRuntime, Config, ConfigError, Raft, RaftTypeConfig, ReadPolicy, SnapshotPolicy};
use parking_lot::Mutex;

use crate::entry::Commands;
use crate::machine::{Feed, Machine, Snapshots};
use crate::network::{Answer, Links, Network, NoAnswer, Request};
use crate::proposals::Proposals;
use crate::sending::{self, Local, Sending};
use crate::store::{DiskReader, LogStore};
use crate::types::{MemberId, Term, Types};

/// How long things take in an ensemble, in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timing {
    /// How often a leader is heard from.
    pub heartbeat: u64,
    /// A member that has not heard from a leader for the longer one waits for a random time between the two and asks for votes.
    pub election_min: u64,
    pub election_max: u64,
    /// What a snapshot may take from one member to another.
    pub snapshot: u64,
    /// A leader that lost its majority for so long is silent for as long, so that those it still reaches vote for another.
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

/// openraft's settings. A snapshot is made when whoever applies entries has made one; a member that starts anew never leads
/// by a vote of before, so that a term is one life of one leader.
///
/// Errors: times that do not fit together.
pub fn config(ensemble: &str, timing: &Timing, entries_kept: u64) -> Result<Config, ConfigError> {
    Config {
        cluster_name: ensemble.to_owned(),
        heartbeat_interval: timing.heartbeat,
        election_timeout_min: timing.election_min,
        election_timeout_max: timing.election_max,
        install_snapshot_timeout: timing.snapshot,
        max_payload_entries: 64,
        max_append_entries: Some(1024),
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: entries_kept,
        purge_batch_size: entries_kept.div_ceil(8).max(1),
        backoff: "50ms".to_owned(),
        enable_pre_vote: Some(true),
        enable_leader_restore: Some(false),
        quorum_loss_probe_interval: Some(timing.probe),
        // A disk that was put back to an older state, from a backup or by a power loss that it lied about: what it had told to have
        // is sent to it again. Without this the leader sends it nothing, and counts it as there.
        allow_log_reversion: Some(true),
        ..Config::default()
    }
    .validate()
}

/// One member. A clone is the same.
pub struct Member<C: Types, R, S: Snapshots> {
    raft: Raft<C, Machine<S>>,
    store: LogStore<C, R>,
    snapshots: Arc<S>,
    feed: Arc<Feed<S::Data>>,
    proposals: Arc<Proposals>,
    sending: Arc<Mutex<Option<Task<C>>>>,
}

/// A task of this member.
pub type Task<C> = <<C as RaftTypeConfig>::AsyncRuntime as AsyncRuntime>::JoinHandle<()>;

impl<C: Types, R, S: Snapshots> Clone for Member<C, R, S> {
    fn clone(&self) -> Self {
        Self {
            raft: self.raft.clone(),
            store: self.store.clone(),
            snapshots: self.snapshots.clone(),
            feed: self.feed.clone(),
            proposals: self.proposals.clone(),
            sending: self.sending.clone(),
        }
    }
}

/// What a member starts with.
pub struct Parts<C: Types, R, S: Snapshots, L> {
    pub id: MemberId,
    pub config: Arc<Config>,
    pub links: L,
    pub store: LogStore<C, R>,
    pub snapshots: Arc<S>,
    pub feed: Arc<Feed<S::Data>>,
    pub proposals: Arc<Proposals>,
    /// Milliseconds since 1970: the time that proposals have.
    pub clock: fn() -> i64,
}

impl<C: Types, R: DiskReader, S: Snapshots> Member<C, R, S> {
    /// Starts with what is in the store and the snapshots.
    ///
    /// Errors: they do not fit together, or cannot be read.
    pub async fn start(parts: Parts<C, R, S, impl Links<C, S::Data>>) -> Result<Self, Fatal<C>> {
        let network = Network::new(parts.id, parts.links.clone());
        let machine = Machine::new(parts.snapshots.clone(), parts.feed.clone());
        let store = parts.store.clone();
        let raft = Raft::new(parts.id, parts.config, network, store, machine).await?;
        let sending = Sending {
            me: parts.id,
            proposals: parts.proposals.clone(),
            links: parts.links,
            local: Itself(raft.clone()),
            clock: parts.clock,
            _types: PhantomData,
        };
        // It ends when openraft does.
        let sending = C::spawn(sending.run::<S::Data>(raft.server_metrics()));
        Ok(Self {
            raft,
            store: parts.store,
            snapshots: parts.snapshots,
            feed: parts.feed,
            proposals: parts.proposals,
            sending: Arc::new(Mutex::new(Some(sending))),
        })
    }

    /// The task that sends what is proposed, for one who watches over it. It ends when openraft does.
    pub fn sending(&self) -> Option<Task<C>> {
        self.sending.lock().take()
    }

    /// openraft's handle.
    pub fn raft(&self) -> &Raft<C, Machine<S>> {
        &self.raft
    }

    /// The log.
    pub fn store(&self) -> &LogStore<C, R> {
        &self.store
    }

    /// What the log's front came to.
    pub fn snapshots(&self) -> &S {
        &self.snapshots
    }

    /// What was agreed on.
    pub fn feed(&self) -> &Feed<S::Data> {
        &self.feed
    }

    /// What this member proposes.
    pub fn proposals(&self) -> &Proposals {
        &self.proposals
    }

    /// Does what another member asks.
    pub async fn answer(&self, request: Request<C, S::Data>) -> Result<Answer<C>, NoAnswer> {
        let raft = &self.raft;
        match request {
            Request::Append(request) => {
                let answer = raft.append_entries(request).await;
                answer.map(Answer::Append).map_err(broken)
            }
            Request::Vote(request) => raft.vote(request).await.map(Answer::Vote).map_err(broken),
            Request::PreVote(request) => {
                let answer = raft.pre_vote(request).await;
                answer.map(Answer::Vote).map_err(broken)
            }
            Request::Snapshot(vote, snapshot) => {
                let answer = raft.install_full_snapshot(vote, snapshot).await;
                answer.map(Answer::Snapshot).map_err(broken)
            }
            Request::Propose(term, commands) => {
                let proposed = put_before(raft, Term::new(term), commands).await;
                proposed.map(|()| Answer::Proposed)
            }
            Request::Transfer(request) => {
                let answer = raft.handle_transfer_leader(request).await;
                answer.map(Answer::Transfer).map_err(broken)
            }
            Request::ReadIndex => confirm(raft).await.map(Answer::ReadIndex),
            Request::Touch(..) | Request::Whois | Request::Found(_) | Request::Join(..) => {
                Err(broken("this is asked of its host"))
            }
        }
    }
}

/// Has a majority say that it follows this leader, after this was called, and says up to where to read then: what was agreed on
/// before is in it.
///
/// Errors: this member does not lead, or no majority says so in time.
pub async fn confirm<C: Types, S: Snapshots>(raft: &Raft<C, Machine<S>>) -> Result<u64, NoAnswer> {
    let confirmed = raft.get_read_linearizer(ReadPolicy::ReadIndex).await;
    confirmed
        .map(|confirmed| confirmed.read_log_id().index())
        .map_err(broken)
}

/// Up to where to read at any member, so that what was agreed on before this was called is read (Raft, §6.4): asks the leader.
///
/// Errors: nobody is known to lead; the leader did not answer in time, or does not lead any more.
pub async fn read_index<C: Types, S: Snapshots>(
    me: MemberId,
    raft: &Raft<C, Machine<S>>,
    links: &impl Links<C, S::Data>,
    patience: Duration,
) -> Result<u64, NoAnswer> {
    let leader = sending::leader_of::<C>(&raft.server_metrics().borrow_watched());
    let Some(leader) = leader else {
        return Err(broken("nobody is known to lead"));
    };
    if leader.member == me {
        return confirm(raft).await;
    }
    let asked = links.ask(leader.member, &leader.server, Request::ReadIndex, patience);
    match asked.await? {
        Answer::ReadIndex(index) => Ok(index),
        _ => Err(broken("it answered something else")),
    }
}

/// This member's openraft, for its own proposals.
struct Itself<C: Types, S: Snapshots>(Raft<C, Machine<S>>);

impl<C: Types, S: Snapshots> Local for Itself<C, S> {
    async fn propose(&self, term: Term, commands: Commands) -> Result<(), NoAnswer> {
        put_before(&self.0, term, commands).await
    }
}

/// Puts commands before openraft. Whether it goes on to lead shows in what is agreed on.
///
/// Errors: it does not lead in this term, or no majority follows it at the moment, as when it was just elected.
async fn put_before<C: Types, S: Snapshots>(
    raft: &Raft<C, Machine<S>>,
    term: Term,
    commands: Commands,
) -> Result<(), NoAnswer> {
    let (responder, _, completed) = ProgressResponder::new();
    let written = raft.write(commands).with_leader(term).responder(responder);
    written.await.map_err(broken)?;
    // What was asked before has been looked at when this returns: a refusal is there then.
    raft.with_raft_state(|_| ()).await.map_err(broken)?;
    match completed.now_or_never() {
        Some(Ok(Err(refused))) => Err(broken(refused)),
        // Agreed on already, or not yet.
        Some(Ok(Ok(_)) | Err(_)) | None => Ok(()),
    }
}

fn broken(error: impl std::fmt::Display) -> NoAnswer {
    NoAnswer::Broken(error.to_string())
}
