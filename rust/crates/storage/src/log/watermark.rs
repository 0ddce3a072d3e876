//! The high watermark and the last stable offset, up to which readers may read.
//!
//! An offset is stable when no earlier transaction is open, and the high watermark has passed the markers of
//! all earlier transactions. Before that, a decision could be lost with its leader
//! (`ProducerStateManager.firstUnstableOffset`).
//!
//! Appends move both under a small lock of their own. Readers take no lock. On disk is only the high
//! watermark that [`crate::LogDir::checkpoint`] writes.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use super::Log;
use crate::error::Result;
use crate::producers::CompletedTxn;

/// No transaction limits readers.
pub(super) const STABLE: i64 = i64::MAX;

/// Which records of transactions a reader gets (`isolation.level`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum IsolationLevel {
    /// All records up to the high watermark.
    #[default]
    ReadUncommitted,
    /// Records up to the last stable offset, without those of aborted transactions.
    ReadCommitted,
}

/// The transactions that limit the last stable offset.
#[derive(Debug, Default)]
pub(super) struct Unstable {
    /// The first offset of the oldest open transaction.
    undecided: Option<i64>,
    /// Transactions whose marker the high watermark has not passed: first offset to the marker's offset.
    unreplicated: BTreeMap<i64, i64>,
    /// The log has other replicas, so the high watermark does not follow the log end.
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

    /// The lowest offset that is not stable.
    pub(super) fn first(&self) -> i64 {
        let unreplicated = self.unreplicated.keys().next().copied();
        [self.undecided, unreplicated]
            .into_iter()
            .flatten()
            .fold(STABLE, i64::min)
    }

    /// The high watermark is the log end, and moving it changes nothing else.
    pub(super) fn tracks_log_end(&self) -> bool {
        !self.replicated && self.unreplicated.is_empty()
    }
}

impl Log {
    /// The offset below which records are on all replicas. With one replica it is the log end.
    pub fn high_watermark(&self) -> i64 {
        self.high_watermark.load(Ordering::Acquire)
    }

    /// Whether the high watermark is set from outside, and does not follow the log end.
    pub(crate) fn is_replicated(&self) -> bool {
        self.unstable.lock().replicated
    }

    /// The offset below which every transaction is decided, at most the high watermark.
    pub fn last_stable_offset(&self) -> i64 {
        // In this order: an append lowers the first unstable offset before it raises the high watermark.
        let high_watermark = self.high_watermark();
        let first_unstable = self.first_unstable.load(Ordering::Acquire);
        // A transaction whose first records retention deleted does not limit readers below the log start.
        first_unstable.max(self.log_start_offset()).min(high_watermark)
    }

    /// The offset up to which a reader may read: the high watermark or the last stable offset.
    ///
    /// Errors: those of [`Log::find_last_stable_offset`].
    pub fn readable_end(&self, isolation: IsolationLevel) -> Result<i64> {
        match isolation {
            IsolationLevel::ReadUncommitted => Ok(self.high_watermark()),
            IsolationLevel::ReadCommitted => self.find_last_stable_offset(),
        }
    }

    /// Notes the transactions of an append, before the high watermark may pass it.
    pub(super) fn note_transactions(&self, completed: &[CompletedTxn], undecided: Option<i64>) {
        let mut unstable = self.unstable.lock();
        unstable.add(completed);
        unstable.undecided = undecided;
        self.publish_unstable(&unstable);
    }

    fn publish_unstable(&self, unstable: &Unstable) {
        self.first_unstable.store(unstable.first(), Ordering::Release);
        self.tracks_log_end
            .store(unstable.tracks_log_end(), Ordering::Release);
    }

    /// [`Log::follow_end`] with the writer lock. A log stops following freely only under that lock, and no
    /// other thread knows an offset as high as `end` yet, so most appends do not need the small lock.
    pub(super) fn follow_end_locked(&self, end: i64) {
        if self.tracks_log_end.load(Ordering::Acquire) {
            self.high_watermark.store(end, Ordering::Release);
        } else {
            self.follow_end(end);
        }
    }

    /// Moves the high watermark of a log without other replicas to the log end.
    pub(super) fn follow_end(&self, end: i64) {
        let mut unstable = self.unstable.lock();
        if !unstable.replicated {
            self.raise_high_watermark(&mut unstable, end);
        }
    }

    /// Moves the high watermark to `offset`, at most to the log end; never back. Returns it.
    pub fn set_high_watermark(&self, offset: i64) -> i64 {
        self.raise_high_watermark(&mut self.unstable.lock(), offset)
    }

    /// The log has other replicas: from now on its high watermark is `high_watermark`, within the log's
    /// bounds, and only [`Log::set_high_watermark`] moves it.
    pub fn set_replicated(&self, high_watermark: i64) {
        let _writer = self.writer.lock();
        let mut unstable = self.unstable.lock();
        unstable.replicated = true;
        self.publish_unstable(&unstable);
        let (start, end) = (self.log_start_offset(), self.log_end_offset());
        let offset = high_watermark.max(start).min(end);
        self.high_watermark.store(offset, Ordering::Release);
    }

    /// [`Log::set_replicated`] with the current high watermark.
    pub fn set_replicated_at_current(&self) {
        let _writer = self.writer.lock();
        let mut unstable = self.unstable.lock();
        unstable.replicated = true;
        self.publish_unstable(&unstable);
    }

    /// The log is the only replica, which is the default: its high watermark is its end.
    pub fn set_unreplicated(&self) {
        let mut unstable = self.unstable.lock();
        unstable.replicated = false;
        self.publish_unstable(&unstable);
        self.raise_high_watermark(&mut unstable, self.log_end_offset());
    }

    fn raise_high_watermark(&self, unstable: &mut Unstable, offset: i64) -> i64 {
        // Truncations lower both under the lock; an append may raise both without it.
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

    /// Lowers everything to the new log end.
    pub(super) fn lower_end(&self, end: i64) {
        let _unstable = self.unstable.lock();
        self.recovery_point.fetch_min(end, Ordering::AcqRel);
        self.high_watermark.fetch_min(end, Ordering::AcqRel);
        self.log_start.fetch_min(end, Ordering::AcqRel);
        self.log_end.fetch_min(end, Ordering::AcqRel);
    }

    /// The log is empty and continues at `end`.
    pub(super) fn restart_at(&self, log_start: i64, end: i64) {
        let _unstable = self.unstable.lock();
        self.log_start.store(log_start, Ordering::Release);
        self.log_end.store(end, Ordering::Release);
        self.high_watermark.store(end, Ordering::Release);
    }

    /// Removes transactions that the truncated log does not have. `undecided` is the first offset of the
    /// oldest open one.
    pub(super) fn forget_transactions(&self, undecided: Option<i64>) {
        let mut unstable = self.unstable.lock();
        let end = self.log_end_offset();
        unstable.undecided = undecided;
        unstable.unreplicated.retain(|_, marker| *marker < end);
        self.publish_unstable(&unstable);
    }
}
