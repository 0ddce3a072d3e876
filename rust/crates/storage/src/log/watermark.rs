//! How far readers may go: the high watermark and the last stable offset.
//!
//! An offset is stable when no transaction from before it is open, and none was decided by a marker that the high watermark
//! has not passed: until then the decision could be lost with its leader (`ProducerStateManager.firstUnstableOffset`).
//!
//! Moved by whoever appends, under a small lock of its own; read by anybody without one. Nothing of it is on disk but
//! what [`crate::LogDir::checkpoint`] writes of the high watermark.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use super::Log;
use crate::error::Result;
use crate::producers::CompletedTxn;

/// No transaction keeps readers back.
pub(super) const STABLE: i64 = i64::MAX;

/// What a reader sees of transactions (`isolation.level`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum IsolationLevel {
    /// All records up to the high watermark.
    #[default]
    ReadUncommitted,
    /// Records up to the last stable offset, without those of aborted transactions.
    ReadCommitted,
}

/// The transactions that keep the last stable offset back.
#[derive(Debug, Default)]
pub(super) struct Unstable {
    /// Where the oldest open one began.
    undecided: Option<i64>,
    /// Those whose marker the high watermark has not passed: first offset to the marker's.
    unreplicated: BTreeMap<i64, i64>,
    /// The high watermark does not follow the log's end.
    replicated: bool,
}

impl Unstable {
    pub(super) fn new(undecided: Option<i64>, unreplicated: &[CompletedTxn]) -> Self {
        let mut unstable = Self {
            undecided,
            ..Self::default()
        };
        unstable.add(unreplicated);
        unstable
    }

    fn add(&mut self, completed: &[CompletedTxn]) {
        let bounds = completed.iter().map(|t| (t.first_offset, t.last_offset));
        self.unreplicated.extend(bounds);
    }

    /// The oldest offset that is not stable.
    pub(super) fn first(&self) -> i64 {
        let unreplicated = self.unreplicated.keys().next().copied();
        [self.undecided, unreplicated]
            .into_iter()
            .flatten()
            .fold(STABLE, i64::min)
    }

    /// The high watermark is the log's end, and moving it has no consequences.
    pub(super) fn follows_freely(&self) -> bool {
        !self.replicated && self.unreplicated.is_empty()
    }
}

impl Log {
    /// The offset before which records are on all replicas: with one replica, the log's end.
    pub fn high_watermark(&self) -> i64 {
        self.high_watermark.load(Ordering::Acquire)
    }

    /// Whether the high watermark is told by others, and does not follow the log's end.
    pub(crate) fn is_replicated(&self) -> bool {
        self.unstable.lock().replicated
    }

    /// The offset before which every transaction is decided, at most the high watermark.
    pub fn last_stable_offset(&self) -> i64 {
        // In this order: an append lowers what is stable before it raises the high watermark, and raises it after.
        let high_watermark = self.high_watermark();
        let first_unstable = self.first_unstable.load(Ordering::Acquire);
        // A transaction that lost its beginning to retention keeps nobody before the log's start.
        first_unstable.max(self.log_start_offset()).min(high_watermark)
    }

    /// The offset before which a reader may read: the high watermark, or the last stable offset.
    ///
    /// Errors: those of [`Log::find_last_stable_offset`].
    pub fn readable_end(&self, isolation: IsolationLevel) -> Result<i64> {
        match isolation {
            IsolationLevel::ReadUncommitted => Ok(self.high_watermark()),
            IsolationLevel::ReadCommitted => self.find_last_stable_offset(),
        }
    }

    /// Takes in what an append did to transactions, before the high watermark may pass it.
    pub(super) fn note_transactions(&self, completed: &[CompletedTxn], undecided: Option<i64>) {
        let mut unstable = self.unstable.lock();
        unstable.add(completed);
        unstable.undecided = undecided;
        self.publish_unstable(&unstable);
    }

    fn publish_unstable(&self, unstable: &Unstable) {
        self.first_unstable.store(unstable.first(), Ordering::Release);
        self.follows_freely
            .store(unstable.follows_freely(), Ordering::Release);
    }

    /// [`Log::follow_end`] for whoever holds the writer lock. Only with that lock does a log stop to follow freely, and
    /// nobody else knows an offset as high as `end` yet, so that most appends can do without the small lock.
    pub(super) fn follow_end_locked(&self, end: i64) {
        if self.follows_freely.load(Ordering::Acquire) {
            self.high_watermark.store(end, Ordering::Release);
        } else {
            self.follow_end(end);
        }
    }

    /// Moves the high watermark of a log that has no other replicas to the end of what was appended.
    pub(super) fn follow_end(&self, end: i64) {
        let mut unstable = self.unstable.lock();
        if !unstable.replicated {
            self.raise_high_watermark(&mut unstable, end);
        }
    }

    /// Moves the high watermark to `offset`, at most to the log's end; it never goes back. Returns where it is then.
    pub fn set_high_watermark(&self, offset: i64) -> i64 {
        self.raise_high_watermark(&mut self.unstable.lock(), offset)
    }

    /// The log has other replicas: from now on its high watermark is `high_watermark`, within the log's bounds, and moves only
    /// when [`Log::set_high_watermark`] says so.
    pub fn set_replicated(&self, high_watermark: i64) {
        let _writer = self.writer.lock();
        let mut unstable = self.unstable.lock();
        unstable.replicated = true;
        self.publish_unstable(&unstable);
        let (start, end) = (self.log_start_offset(), self.log_end_offset());
        let offset = high_watermark.max(start).min(end);
        self.high_watermark.store(offset, Ordering::Release);
    }

    /// [`Log::set_replicated`] with the high watermark where it is.
    pub fn hold_high_watermark(&self) {
        let _writer = self.writer.lock();
        let mut unstable = self.unstable.lock();
        unstable.replicated = true;
        self.publish_unstable(&unstable);
    }

    /// The log is the only replica, as it is before anybody says otherwise: its high watermark is its end.
    pub fn set_unreplicated(&self) {
        let mut unstable = self.unstable.lock();
        unstable.replicated = false;
        self.publish_unstable(&unstable);
        self.raise_high_watermark(&mut unstable, self.log_end_offset());
    }

    fn raise_high_watermark(&self, unstable: &mut Unstable, offset: i64) -> i64 {
        // Truncations lower both with the lock held; an append may raise both without it.
        let offset = offset.min(self.log_end_offset());
        let high_watermark = self
            .high_watermark
            .fetch_max(offset, Ordering::AcqRel)
            .max(offset);
        if !unstable.unreplicated.is_empty() {
            unstable
                .unreplicated
                .retain(|_, marker| *marker >= high_watermark);
            self.publish_unstable(unstable);
        }
        high_watermark
    }

    /// The log ends at `end` now, and all that is known of it does.
    pub(super) fn lower_end(&self, end: i64) {
        let _unstable = self.unstable.lock();
        self.recovery_point.fetch_min(end, Ordering::AcqRel);
        self.high_watermark.fetch_min(end, Ordering::AcqRel);
        self.log_start.fetch_min(end, Ordering::AcqRel);
        self.log_end.fetch_min(end, Ordering::AcqRel);
    }

    /// The log is empty and goes on at `end`.
    pub(super) fn restart_at(&self, log_start: i64, end: i64) {
        let _unstable = self.unstable.lock();
        self.log_start.store(log_start, Ordering::Release);
        self.log_end.store(end, Ordering::Release);
        self.high_watermark.store(end, Ordering::Release);
    }

    /// Forgets the transactions that the log, as it ends now, does not have; of those that are open the oldest began at
    /// `undecided`.
    pub(super) fn forget_transactions(&self, undecided: Option<i64>) {
        let mut unstable = self.unstable.lock();
        let end = self.log_end_offset();
        unstable.undecided = undecided;
        unstable.unreplicated.retain(|_, marker| *marker < end);
        self.publish_unstable(&unstable);
    }
}
