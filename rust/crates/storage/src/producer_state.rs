//! What idempotent and transactional producers have written to one log (`ProducerStateManager`, KIP-98).
//!
//! For each producer id: its epoch and its last five batches, so that a batch sent again after a lost answer gets its
//! first offsets instead of a second place in the log, and a batch that skips one is refused. For each open
//! transaction: where it began, below which readers of committed records stay.
//!
//! Guarded by the log's writer lock. Kept in memory; written to a snapshot file when a segment is rolled and when the
//! log is closed ([`crate::producer_snapshot`]). After a crash the latest snapshot is read and the batches behind it
//! are replayed, so nothing that was acknowledged is forgotten.

use std::collections::{BTreeMap, HashMap, VecDeque};

use logcore_records::BatchHeader;

use crate::error::{Result, StorageError};

/// How many batches of a producer are remembered (`ProducerStateEntry.NUM_BATCHES_TO_RETAIN`): as many as a producer
/// may have in flight.
const BATCHES_RETAINED: usize = 5;

/// A batch as it is remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchMetadata {
    pub(crate) last_sequence: i32,
    pub(crate) last_offset: i64,
    pub(crate) offset_delta: i32,
    pub(crate) timestamp: i64,
}

impl BatchMetadata {
    pub(crate) fn first_sequence(&self) -> i32 {
        // Sequences wrap from i32::MAX to 0.
        let first = i64::from(self.last_sequence) - i64::from(self.offset_delta);
        (first & i64::from(i32::MAX)) as i32
    }

    fn first_offset(&self) -> i64 {
        self.last_offset - i64::from(self.offset_delta)
    }
}

/// One producer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProducerEntry {
    pub(crate) epoch: i16,
    /// Oldest first.
    pub(crate) batches: VecDeque<BatchMetadata>,
    pub(crate) coordinator_epoch: i32,
    pub(crate) last_timestamp: i64,
    pub(crate) transaction_start: Option<i64>,
}

impl ProducerEntry {
    fn new() -> Self {
        Self {
            epoch: -1,
            batches: VecDeque::new(),
            coordinator_epoch: -1,
            last_timestamp: -1,
            transaction_start: None,
        }
    }

    fn find_duplicate(&self, header: &BatchHeader) -> Option<&BatchMetadata> {
        if header.producer_epoch != self.epoch {
            return None;
        }
        self.batches.iter().find(|batch| {
            batch.first_sequence() == header.base_sequence
                && batch.last_sequence == header.last_sequence()
        })
    }

    fn check(&self, header: &BatchHeader) -> Result<()> {
        let producer_id = header.producer_id;
        if header.producer_epoch < self.epoch {
            return Err(StorageError::InvalidProducerEpoch {
                producer_id,
                found: header.producer_epoch,
                current: self.epoch,
            });
        }
        if self.transaction_start.is_some() && !header.is_transactional() {
            return Err(StorageError::InvalidTxnState { producer_id });
        }
        let out_of_order = |expected: i64| {
            Err(StorageError::OutOfOrderSequence {
                producer_id,
                expected,
                found: header.base_sequence,
            })
        };
        if self.epoch < 0 {
            // Not seen before, or forgotten since: any sequence may be the first.
            return Ok(());
        }
        if header.producer_epoch != self.epoch {
            return if header.base_sequence == 0 {
                Ok(())
            } else {
                out_of_order(0)
            };
        }
        // After a transaction's marker there is no last batch; sequences then begin anew.
        let expected = match self.batches.back() {
            Some(last) if last.last_sequence == i32::MAX => 0,
            Some(last) => i64::from(last.last_sequence) + 1,
            None => 0,
        };
        if i64::from(header.base_sequence) == expected {
            Ok(())
        } else {
            out_of_order(expected)
        }
    }

    fn add(&mut self, header: &BatchHeader) {
        if self.epoch != header.producer_epoch {
            self.batches.clear();
            self.epoch = header.producer_epoch;
        }
        if self.batches.len() == BATCHES_RETAINED {
            self.batches.pop_front();
        }
        self.batches.push_back(BatchMetadata {
            last_sequence: header.last_sequence(),
            last_offset: header.last_offset(),
            offset_delta: header.last_offset_delta,
            timestamp: header.max_timestamp,
        });
        self.last_timestamp = header.max_timestamp;
        if header.is_transactional() && self.transaction_start.is_none() {
            self.transaction_start = Some(header.base_offset);
        }
    }
}

/// What a duplicate got the first time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Duplicate {
    pub(crate) first_offset: i64,
    pub(crate) last_offset: i64,
    pub(crate) timestamp: i64,
}

/// Changes of one append that are made only once its bytes are written.
#[derive(Debug, Default)]
pub(crate) struct Staged {
    entries: HashMap<i64, ProducerEntry>,
}

/// All producers of a log.
#[derive(Debug, Default)]
pub(crate) struct ProducerState {
    producers: HashMap<i64, ProducerEntry>,
    /// First offset of each open transaction to its producer.
    transactions: BTreeMap<i64, i64>,
}

impl ProducerState {
    /// The batch this one repeats, if it does.
    pub(crate) fn duplicate_of(&self, header: &BatchHeader) -> Option<Duplicate> {
        if !header.has_producer_id() {
            return None;
        }
        let batch = self
            .producers
            .get(&header.producer_id)?
            .find_duplicate(header)?;
        Some(Duplicate {
            first_offset: batch.first_offset(),
            last_offset: batch.last_offset,
            timestamp: batch.timestamp,
        })
    }

    /// Checks a batch of an append, after those already in `staged`, and puts it there too. `header` has its offsets
    /// already. Batches without a producer always pass.
    pub(crate) fn stage(&self, staged: &mut Staged, header: &BatchHeader) -> Result<()> {
        if !header.has_producer_id() {
            return Ok(());
        }
        let known = &self.producers;
        let entry = staged.entries.entry(header.producer_id).or_insert_with(|| {
            known
                .get(&header.producer_id)
                .cloned()
                .unwrap_or_else(ProducerEntry::new)
        });
        entry.check(header)?;
        entry.add(header);
        Ok(())
    }

    /// Makes staged changes.
    pub(crate) fn commit(&mut self, staged: Staged) {
        for (producer_id, entry) in staged.entries {
            if let Some(start) = entry.transaction_start {
                self.transactions.insert(start, producer_id);
            }
            self.producers.insert(producer_id, entry);
        }
    }

    /// Takes in a batch that is in the log already: nothing is checked. `coordinator_epoch` is that of a control batch's
    /// marker, which ends its producer's transaction.
    pub(crate) fn replay(&mut self, header: &BatchHeader, coordinator_epoch: Option<i32>) {
        if !header.has_producer_id() {
            return;
        }
        let entry = self
            .producers
            .entry(header.producer_id)
            .or_insert_with(ProducerEntry::new);
        if !header.is_control() {
            entry.add(header);
            if let Some(start) = entry.transaction_start {
                self.transactions.insert(start, header.producer_id);
            }
            return;
        }
        if let Some(start) = entry.transaction_start.take() {
            self.transactions.remove(&start);
        }
        if entry.epoch != header.producer_epoch {
            entry.batches.clear();
            entry.epoch = header.producer_epoch;
        }
        entry.last_timestamp = header.max_timestamp;
        entry.coordinator_epoch = coordinator_epoch.unwrap_or(entry.coordinator_epoch);
    }

    /// Puts back a producer read from a snapshot.
    pub(crate) fn restore(&mut self, producer_id: i64, entry: ProducerEntry) {
        if let Some(start) = entry.transaction_start {
            self.transactions.insert(start, producer_id);
        }
        self.producers.insert(producer_id, entry);
    }

    /// Where the oldest open transaction began.
    pub(crate) fn first_undecided_offset(&self) -> Option<i64> {
        self.transactions.keys().next().copied()
    }

    /// Forgets producers idle for `expiration_ms` that have no open transaction.
    pub(crate) fn remove_expired(&mut self, now_ms: i64, expiration_ms: i64) {
        self.producers.retain(|_, entry| {
            entry.transaction_start.is_some()
                || now_ms.saturating_sub(entry.last_timestamp) < expiration_ms
        });
    }

    /// All producers in order of their ids.
    pub(crate) fn sorted(&self) -> Vec<(i64, &ProducerEntry)> {
        let mut producers: Vec<_> = self
            .producers
            .iter()
            .map(|(id, entry)| (*id, entry))
            .collect();
        producers.sort_unstable_by_key(|(id, _)| *id);
        producers
    }

    pub(crate) fn len(&self) -> usize {
        self.producers.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(producer_id: i64, epoch: i16, sequence: i32, count: i32, offset: i64) -> BatchHeader {
        BatchHeader {
            base_offset: offset,
            batch_length: 49,
            partition_leader_epoch: 0,
            magic: 2,
            crc: 0,
            attributes: 0,
            last_offset_delta: count - 1,
            base_timestamp: 0,
            max_timestamp: 1000,
            producer_id,
            producer_epoch: epoch,
            base_sequence: sequence,
            record_count: count,
        }
    }

    fn append(state: &mut ProducerState, header: &BatchHeader) -> Result<()> {
        let mut staged = Staged::default();
        state.stage(&mut staged, header)?;
        state.commit(staged);
        Ok(())
    }

    // Broken if it failed: a producer's retry would be written twice, or a gap in its batches accepted.
    #[test]
    fn duplicates_and_gaps() {
        let mut state = ProducerState::default();
        for number in 0..7 {
            append(
                &mut state,
                &header(1, 0, number * 10, 10, i64::from(number) * 10),
            )
            .unwrap();
        }
        let found = state.duplicate_of(&header(1, 0, 20, 10, 0)).unwrap();
        assert_eq!((found.first_offset, found.last_offset), (20, 29));
        // The sixth last is no longer known, another length is another batch, another epoch too.
        assert_eq!(state.duplicate_of(&header(1, 0, 10, 10, 0)), None);
        assert_eq!(state.duplicate_of(&header(1, 0, 20, 9, 0)), None);
        assert_eq!(state.duplicate_of(&header(1, 1, 20, 10, 0)), None);
        assert_eq!(state.duplicate_of(&header(2, 0, 20, 10, 0)), None);
        for sequence in [10, 69, 71] {
            assert!(matches!(
                append(&mut state, &header(1, 0, sequence, 10, 70)),
                Err(StorageError::OutOfOrderSequence { expected: 70, .. })
            ));
        }
        append(&mut state, &header(1, 0, 70, 10, 70)).unwrap();
    }

    // Broken if it failed: a producer that was replaced could still write.
    #[test]
    fn epochs() {
        let mut state = ProducerState::default();
        append(&mut state, &header(1, 3, 500, 1, 0)).unwrap();
        assert!(matches!(
            append(&mut state, &header(1, 2, 501, 1, 1)),
            Err(StorageError::InvalidProducerEpoch {
                found: 2,
                current: 3,
                ..
            })
        ));
        assert!(matches!(
            append(&mut state, &header(1, 4, 501, 1, 1)),
            Err(StorageError::OutOfOrderSequence { expected: 0, .. })
        ));
        append(&mut state, &header(1, 4, 0, 1, 1)).unwrap();
        append(&mut state, &header(1, 4, 1, 1, 2)).unwrap();
    }

    // Broken if it failed: a long-lived producer would be stopped when its sequence wraps.
    #[test]
    fn sequences_wrap() {
        let mut state = ProducerState::default();
        append(&mut state, &header(1, 0, i32::MAX - 1, 4, 0)).unwrap();
        let found = state
            .duplicate_of(&header(1, 0, i32::MAX - 1, 4, 9))
            .unwrap();
        assert_eq!(found.first_offset, 0);
        append(&mut state, &header(1, 0, 2, 1, 4)).unwrap();
        append(&mut state, &header(2, 0, i32::MAX, 1, 5)).unwrap();
        append(&mut state, &header(2, 0, 0, 1, 6)).unwrap();
    }

    // Broken if it failed: read_committed would pass an open transaction, or stay behind a decided one.
    #[test]
    fn transactions() {
        let mut state = ProducerState::default();
        let transactional = |mut h: BatchHeader| {
            h.attributes |= 0x10;
            h
        };
        append(&mut state, &transactional(header(1, 0, 0, 5, 10))).unwrap();
        append(&mut state, &transactional(header(2, 0, 0, 5, 15))).unwrap();
        assert_eq!(state.first_undecided_offset(), Some(10));
        assert!(matches!(
            append(&mut state, &header(1, 0, 5, 5, 20)),
            Err(StorageError::InvalidTxnState { .. })
        ));
        let mut marker = transactional(header(1, 0, -1, 1, 20));
        marker.attributes |= 0x20;
        state.replay(&marker, Some(4));
        assert_eq!(state.first_undecided_offset(), Some(15));
        state.remove_expired(1_000_000, 10);
        assert_eq!(state.len(), 1);
    }
}
