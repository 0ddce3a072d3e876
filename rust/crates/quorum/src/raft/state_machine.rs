//! What is committed, for the application that applies it.
//!
//! openraft's state machine here applies nothing itself: it notes how far the log is committed. The
//! application looks at the [`Feed`] and reads the entries from the store, at its own speed. A slow
//! application therefore delays nobody. The log's front is removed only up to a snapshot, and a snapshot
//! contains only what was applied; so no entry is removed before it was read.

use std::future::Future;
use std::io;
use std::sync::Arc;

use futures_util::{Stream, StreamExt};
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::{OptionalSend, RaftSnapshotBuilder};
use parking_lot::Mutex;

use super::types::{LogId, Payload, Snapshot, SnapshotMeta, StoredMembership, Types};
use crate::delivery::Delivery;

/// A way to a snapshot's bytes, not the bytes.
pub trait Data: Clone + Send + Sync + 'static {}

impl<D: Clone + Send + Sync + 'static> Data for D {}

/// The snapshots of a member.
pub trait Snapshots: Send + Sync + 'static {
    type Data: Data;

    /// The newest snapshot that is whole and on disk.
    fn newest(&self) -> Option<Snapshot<Self::Data>>;

    /// The delivery at the end of a snapshot.
    fn delivery(&self, data: &Self::Data) -> Delivery;

    /// Makes a snapshot the newest. It is on disk when this returns.
    fn keep(&self, snapshot: &Snapshot<Self::Data>) -> impl Future<Output = io::Result<()>> + Send;
}

/// What there is to apply.
#[derive(Debug)]
pub enum Available<D: Data> {
    /// A snapshot that replaces the whole state.
    Install(Snapshot<D>),
    /// Committed entries, with indexes below this one.
    Entries { before: u64 },
}

/// Tells the application what is committed, and wakes it.
pub struct Feed<D: Data> {
    progress: Mutex<Progress<D>>,
    wake: Box<dyn Fn() + Send + Sync>,
}

struct Progress<D: Data> {
    committed: Option<LogId>,
    installed: Option<Snapshot<D>>,
}

impl<D: Data> Feed<D> {
    /// `wake` is called whenever there is more to apply.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            progress: Mutex::new(Progress {
                committed: None,
                installed: None,
            }),
            wake: Box::new(wake),
        }
    }

    /// What there is for an application that has applied all entries with indexes below `next`.
    pub fn available(&self, next: u64) -> Option<Available<D>> {
        let mut progress = self.progress.lock();
        if let Some(snapshot) = progress.installed.take()
            && snapshot.meta.last_log_id.is_some_and(|last| last.index >= next)
        {
            return Some(Available::Install(snapshot));
        }
        let before = progress.committed.map_or(0, |last| last.index + 1);
        (before > next).then_some(Available::Entries { before })
    }

    /// Whether a snapshot waits to be installed.
    pub(crate) fn has_installed(&self) -> bool {
        self.progress.lock().installed.is_some()
    }

    /// Entries with indexes below this one are committed.
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

/// The state machine that openraft sees.
pub struct Machine<S: Snapshots> {
    snapshots: Arc<S>,
    feed: Arc<Feed<S::Data>>,
    applied: Option<LogId>,
    membership: StoredMembership,
}

impl<S: Snapshots> Machine<S> {
    /// A state machine that has applied nothing. openraft installs the newest snapshot first.
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
        // At a start, openraft installs the newest snapshot, which needs no second copy.
        let is_newest = |newest: &Snapshot<S::Data>| newest.meta == *meta;
        if !self.snapshots.newest().as_ref().is_some_and(is_newest) {
            self.snapshots.keep(&snapshot).await?;
        }
        // The bytes of a kept snapshot may have moved.
        let installed = self.snapshots.newest().filter(is_newest).unwrap_or(snapshot);
        self.applied = meta.last_log_id;
        self.membership = meta.last_membership.clone();
        self.feed.installed(installed);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot<S::Data>>> {
        Ok(self.snapshots.newest())
    }
}

/// Answers openraft's request to build a snapshot with the newest one. The application makes snapshots, and
/// then has openraft ask for them.
pub struct Newest<S>(Arc<S>);

impl<C: Types, S: Snapshots> RaftSnapshotBuilder<C> for Newest<S> {
    type SnapshotData = S::Data;

    async fn build_snapshot(&mut self) -> io::Result<Snapshot<S::Data>> {
        self.0.newest().ok_or_else(|| {
            io::Error::other(
                "the log's front was removed and there is no snapshot: a file of this member is missing",
            )
        })
    }
}
