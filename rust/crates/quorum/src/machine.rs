//! What was agreed on, for whoever applies it.
//!
//! openraft is told that an entry is applied as soon as it is known to be committed; nothing is handed over. Whoever applies
//! commands looks at the [`Feed`], reads the entries from the store at its own pace and can keep nobody waiting. A log's front
//! is removed up to a snapshot only, and a snapshot is of what was applied, so that nothing is removed before it was read.

use std::future::Future;
use std::io;
use std::sync::Arc;

use futures_util::{Stream, StreamExt};
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::{OptionalSend, RaftSnapshotBuilder, Snapshot as RaftSnapshot};
use parking_lot::Mutex;

use crate::delivery::Delivery;
use crate::types::{LogId, MemberId, Payload, Server, SnapshotMeta, StoredMembership, Term, Types};

/// A snapshot and up to where it reaches.
pub type Snapshot<D> = RaftSnapshot<Term, MemberId, Server, D>;

/// A way to a snapshot's bytes, not the bytes.
pub trait Data: Clone + Send + Sync + 'static {}

impl<D: Clone + Send + Sync + 'static> Data for D {}

/// Where a member keeps its snapshots.
pub trait Snapshots: Send + Sync + 'static {
    /// The way to one.
    type Data: Data;

    /// The newest that is whole and on disk.
    fn newest(&self) -> Option<Snapshot<Self::Data>>;

    /// Of the commands up to there, the last of each member that counted.
    fn delivery(&self, data: &Self::Data) -> Delivery;

    /// Makes one that another member sent the newest. It is on disk when this returns.
    fn keep(&self, snapshot: &Snapshot<Self::Data>) -> impl Future<Output = io::Result<()>> + Send;
}

/// What there is to apply.
#[derive(Debug)]
pub enum Told<D: Data> {
    /// Forget everything and begin with this.
    Install(Snapshot<D>),
    /// The entries with indexes below this one are agreed on.
    Entries { before: u64 },
}

/// Tells one who applies entries what was agreed on, and wakes it.
pub struct Feed<D: Data> {
    progress: Mutex<Progress<D>>,
    wake: Box<dyn Fn() + Send + Sync>,
}

struct Progress<D: Data> {
    committed: Option<LogId>,
    installed: Option<Snapshot<D>>,
}

impl<D: Data> Feed<D> {
    /// `wake` is called whenever there is more.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            progress: Mutex::new(Progress {
                committed: None,
                installed: None,
            }),
            wake: Box::new(wake),
        }
    }

    /// What there is for one who has applied all entries with indexes below `next`.
    pub fn look(&self, next: u64) -> Option<Told<D>> {
        let mut progress = self.progress.lock();
        if let Some(snapshot) = progress.installed.take()
            && snapshot.meta.last_log_id.is_some_and(|last| last.index >= next)
        {
            return Some(Told::Install(snapshot));
        }
        let before = progress.committed.map_or(0, |last| last.index + 1);
        (before > next).then_some(Told::Entries { before })
    }

    /// Whether there is a snapshot to begin anew with.
    pub(crate) fn has_installed(&self) -> bool {
        self.progress.lock().installed.is_some()
    }

    /// The entries with indexes below this one are agreed on.
    pub fn committed_before(&self) -> u64 {
        self.progress.lock().committed.map_or(0, |last| last.index + 1)
    }

    fn committed(&self, last: LogId) {
        self.progress.lock().committed = Some(last);
        (self.wake)();
    }

    fn installed(&self, snapshot: Snapshot<D>) {
        let mut progress = self.progress.lock();
        progress.committed = progress.committed.max(snapshot.meta.last_log_id);
        progress.installed = Some(snapshot);
        drop(progress);
        (self.wake)();
    }
}

/// The state machine as openraft sees it.
pub struct Machine<S: Snapshots> {
    snapshots: Arc<S>,
    feed: Arc<Feed<S::Data>>,
    applied: Option<LogId>,
    membership: StoredMembership,
}

impl<S: Snapshots> Machine<S> {
    /// One that has applied nothing: openraft begins with the newest snapshot.
    pub fn new(snapshots: Arc<S>, feed: Arc<Feed<S::Data>>) -> Self {
        Self {
            snapshots,
            feed,
            applied: None,
            membership: StoredMembership::default(),
        }
    }
}

impl<C: Types, S: Snapshots> RaftStateMachine<C> for Machine<S> {
    type SnapshotData = S::Data;
    type SnapshotBuilder = Newest<S>;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        Ok((self.applied, self.membership.clone()))
    }

    async fn apply<E>(&mut self, mut entries: E) -> io::Result<()>
    where
        E: Stream<Item = io::Result<EntryResponder<C>>> + Unpin + OptionalSend,
    {
        let mut last = None;
        while let Some(item) = entries.next().await {
            let (entry, responder) = item?;
            last = Some(entry.log_id);
            if let Payload::Membership(membership) = entry.payload {
                self.membership = StoredMembership::new(last, membership);
            }
            if let Some(responder) = responder {
                responder.send(());
            }
        }
        if let Some(last) = last {
            self.applied = Some(last);
            self.feed.committed(last);
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Newest<S> {
        Newest(self.snapshots.clone())
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, data: S::Data) -> io::Result<()> {
        let snapshot = Snapshot {
            meta: meta.clone(),
            snapshot: data,
        };
        // At a start it is the newest that is installed.
        let is_there = |newest: &Snapshot<S::Data>| newest.meta == *meta;
        if !self.snapshots.newest().as_ref().is_some_and(is_there) {
            self.snapshots.keep(&snapshot).await?;
        }
        // Its bytes may be somewhere else than they came in.
        let installed = self.snapshots.newest().filter(is_there).unwrap_or(snapshot);
        self.applied = meta.last_log_id;
        self.membership = meta.last_membership.clone();
        self.feed.installed(installed);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot<S::Data>>> {
        Ok(self.snapshots.newest())
    }
}

/// What openraft is given when it asks for a snapshot to be made: whoever applies entries makes them, and asks openraft to
/// come for them.
pub struct Newest<S>(Arc<S>);

impl<C: Types, S: Snapshots> RaftSnapshotBuilder<C> for Newest<S> {
    type SnapshotData = S::Data;

    async fn build_snapshot(&mut self) -> io::Result<Snapshot<S::Data>> {
        self.0.newest().ok_or_else(|| {
            io::Error::other(
                "the log's front is gone and there is no snapshot: a file of this member is missing",
            )
        })
    }
}
