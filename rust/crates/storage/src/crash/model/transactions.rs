//! The transactions in the records and batches of a log.

use std::collections::{BTreeMap, BTreeSet};

use super::{Batches, Rec, What, Written};
use crate::index::transactions::AbortedTxn;

/// A decided transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::crash) struct Decided {
    pub(in crate::crash) producer: i64,
    pub(in crate::crash) first: i64,
    pub(in crate::crash) marker: i64,
    pub(in crate::crash) committed: bool,
    /// The last stable offset after the marker.
    pub(in crate::crash) stable: i64,
}

impl Decided {
    /// Its entry in the transaction index.
    pub(in crate::crash) fn as_aborted(&self) -> AbortedTxn {
        AbortedTxn {
            producer_id: self.producer,
            first_offset: self.first,
            last_offset: self.marker,
            last_stable_offset: self.stable,
        }
    }
}

/// Open transactions by first offset, and the others in the order of their markers.
#[derive(Debug, Default)]
pub(in crate::crash) struct Transactions {
    pub(in crate::crash) open: BTreeMap<i64, i64>,
    pub(in crate::crash) decided: Vec<Decided>,
}

impl Transactions {
    /// The transactions in the batches from `start` on.
    pub(in crate::crash) fn of(batches: &Batches, start: i64) -> Self {
        let mut found = Self::default();
        for (base, batch) in batches.range(start..) {
            found.take(*base, batch);
        }
        found
    }

    fn take(&mut self, base: i64, batch: &Written) {
        let first = self.open.iter().find(|(_, p)| **p == batch.producer);
        match (batch.what, first.map(|(first, _)| *first)) {
            (What::Transactional(producer), None) => {
                self.open.insert(base, producer);
            }
            (What::Marker { producer, committed }, Some(first)) => {
                self.open.remove(&first);
                let stable = self.open.keys().next().copied();
                self.decided.push(Decided {
                    producer,
                    first,
                    marker: base,
                    committed,
                    stable: stable.unwrap_or(base + 1),
                });
            }
            _ => {}
        }
    }

    /// The last stable offset of a log with this start and high watermark.
    pub(in crate::crash) fn stable(&self, start: i64, high_watermark: i64) -> i64 {
        let unreplicated = self.decided.iter().filter(|d| d.marker >= high_watermark);
        let firsts = unreplicated.map(|d| d.first).chain(self.open.keys().copied());
        firsts.min().unwrap_or(i64::MAX).max(start).min(high_watermark)
    }
}

/// Records that a reader of committed records gets, and those of aborted transactions. Other records are
/// open, or markers.
#[derive(Debug, Default)]
pub(in crate::crash) struct Fates {
    pub(in crate::crash) committed: BTreeSet<i64>,
    pub(in crate::crash) aborted: BTreeSet<i64>,
}

impl Fates {
    pub(in crate::crash) fn of<'a>(records: impl DoubleEndedIterator<Item = (&'a i64, &'a Rec)>) -> Self {
        let mut fates = Self::default();
        let mut decisions: BTreeMap<i64, bool> = BTreeMap::new();
        for (offset, record) in records.rev() {
            let committed = match record.what {
                What::Plain => Some(true),
                What::Transactional(producer) => decisions.get(&producer).copied(),
                What::Marker { producer, committed } => {
                    decisions.insert(producer, committed);
                    None
                }
            };
            match committed {
                Some(true) => fates.committed.insert(*offset),
                Some(false) => fates.aborted.insert(*offset),
                None => false,
            };
        }
        fates
    }
}
