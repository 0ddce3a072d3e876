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
use crate::producer_state::CompletedTxn;

/// No transaction keeps readers back.
pub(super) const STABLE: i64 = i64::MAX;

/// The transactions that keep the last stable offset back.
#[derive(Debug, Default)]
pub(super) struct Unstable {
    /// Where the oldest open one began.
    undecided: Option<i64>,
    /// Those whose marker the high watermark has not passed: first offset to the marker's.
    unreplicated: BTreeMap<i64, i64>,
}

impl Unstable {
    pub(super) fn new(undecided: Option<i64>) -> Self {
        Self {
            undecided,
            unreplicated: BTreeMap::new(),
        }
    }

    /// The oldest offset that is not stable.
    pub(super) fn first(&self) -> i64 {
        let unreplicated = self.unreplicated.keys().next().copied();
        [self.undecided, unreplicated]
            .into_iter()
            .flatten()
            .fold(STABLE, i64::min)
    }
}

impl Log {
    /// The offset before which records are on all replicas: with one replica, the log's end.
    pub fn high_watermark(&self) -> i64 {
        self.high_watermark.load(Ordering::Acquire)
    }

    /// The offset before which every transaction is decided, at most the high watermark.
    pub fn last_stable_offset(&self) -> i64 {
        // In this order: an append lowers what is stable before it raises the high watermark, and raises it after.
        let high_watermark = self.high_watermark();
        let first_unstable = self.first_unstable.load(Ordering::Acquire);
        // A transaction that lost its beginning to retention keeps nobody before the log's start.
        first_unstable
            .max(self.log_start_offset())
            .min(high_watermark)
    }

    /// Takes in what an append did to transactions, before the high watermark may pass it.
    pub(super) fn note_transactions(&self, completed: &[CompletedTxn], undecided: Option<i64>) {
        let mut unstable = self.unstable.lock();
        for completed in completed {
            unstable
                .unreplicated
                .insert(completed.first_offset, completed.last_offset);
        }
        unstable.undecided = undecided;
        self.first_unstable
            .store(unstable.first(), Ordering::Release);
    }

    /// Moves the high watermark to `offset` unless it is there or beyond.
    pub(super) fn raise_high_watermark(&self, offset: i64) {
        let mut unstable = self.unstable.lock();
        let high_watermark = self
            .high_watermark
            .fetch_max(offset, Ordering::AcqRel)
            .max(offset);
        if !unstable.unreplicated.is_empty() {
            unstable
                .unreplicated
                .retain(|_, marker| *marker >= high_watermark);
            self.first_unstable
                .store(unstable.first(), Ordering::Release);
        }
    }
}
