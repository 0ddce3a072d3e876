//! The state of idempotent and transactional producers of one log (`ProducerStateManager`, KIP-98).
//!
//! For each producer id: its epoch and its last five batches. A batch that is sent again after a lost
//! response gets the offsets of the first time, and a batch after a gap is refused. For each open
//! transaction: its first offset, at which readers of committed records stop. A marker of the transaction
//! coordinator ends it. The caller writes aborted transactions to the segment's transaction index.
//!
//! Guarded by the log's writer lock. The state is in memory, and in a snapshot file that is written when a
//! segment is rolled and when the log is closed ([`crate::producers::snapshot`]). After a crash the latest
//! snapshot is read and the batches after it are replayed, so no acknowledged batch is lost.

pub(crate) mod snapshot;
pub(crate) mod verification;

use std::collections::{BTreeMap, HashMap, VecDeque};

use logcore_records::{BatchHeader, EndTxnMarker};

use crate::error::{Result, StorageError};
use crate::index::transactions::AbortedTxn;

/// How many batches of a producer are kept (`ProducerStateEntry.NUM_BATCHES_TO_RETAIN`): as many as a
/// producer may have in flight.
const BATCHES_RETAINED: usize = 5;

/// The source of an append, which decides what is checked (`AppendOrigin`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A producer: epoch and sequence must be right, markers are refused.
    Client,
    /// The group or transaction coordinator: epochs must be right, a sequence is optional.
    Coordinator,
    /// The leader has checked everything.
    Replication,
}

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

/// A transaction that a marker has ended (`CompletedTxn`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CompletedTxn {
    pub(crate) producer_id: i64,
    /// The first offset of the transaction's first batch.
    pub(crate) first_offset: i64,
    /// The offset of the marker.
    pub(crate) last_offset: i64,
    pub(crate) committed: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProducerEntry {
    pub(crate) epoch: i16,
    /// Oldest first.
    pub(crate) batches: VecDeque<BatchMetadata>,
    pub(crate) coordinator_epoch: i32,
    pub(crate) last_timestamp: i64,
    pub(crate) transaction_start: Option<i64>,
}

/// A producer for DescribeProducers (`DescribeProducersResponse.ProducerState`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActiveProducer {
    pub producer_id: i64,
    pub epoch: i16,
    /// -1 after a marker of a new epoch, which has no sequence.
    pub last_sequence: i32,
    /// Milliseconds since the epoch, -1 when unknown.
    pub last_timestamp: i64,
    /// The epoch of the transaction coordinator that wrote the last marker, -1 without one.
    pub coordinator_epoch: i32,
    /// The first offset of its open transaction.
    pub transaction_start: Option<i64>,
}

impl From<(i64, &ProducerEntry)> for ActiveProducer {
    fn from((producer_id, entry): (i64, &ProducerEntry)) -> Self {
        Self {
            producer_id,
            epoch: entry.epoch,
            last_sequence: entry.batches.back().map_or(-1, |last| last.last_sequence),
            last_timestamp: entry.last_timestamp,
            coordinator_epoch: entry.coordinator_epoch,
            transaction_start: entry.transaction_start,
        }
    }
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
            batch.first_sequence() == header.base_sequence && batch.last_sequence == header.last_sequence()
        })
    }

    fn check(&self, header: &BatchHeader, origin: Origin) -> Result<()> {
        self.check_epoch(header)?;
        if origin == Origin::Client {
            self.check_sequence(header)?;
        }
        if self.transaction_start.is_some() && !header.is_transactional() {
            return Err(StorageError::InvalidTxnState {
                producer_id: header.producer_id,
            });
        }
        Ok(())
    }

    fn check_epoch(&self, header: &BatchHeader) -> Result<()> {
        if header.producer_epoch < self.epoch {
            return Err(StorageError::InvalidProducerEpoch {
                producer_id: header.producer_id,
                found: header.producer_epoch,
                current: self.epoch,
            });
        }
        Ok(())
    }

    fn check_sequence(&self, header: &BatchHeader) -> Result<()> {
        let out_of_order = |expected: i64| {
            Err(StorageError::OutOfOrderSequence {
                producer_id: header.producer_id,
                expected,
                found: header.base_sequence,
            })
        };
        if self.epoch < 0 {
            // The state of the producer may have expired, or retention deleted its records, so it may
            // continue with any sequence. On a log that never had a record the producer is new, and its first
            // batch is still on the way. If a later batch were appended first, the first one would be refused
            // for ever (KAFKA-15591).
            let is_first_record = header.base_offset == 0;
            return if is_first_record && header.base_sequence != 0 {
                out_of_order(0)
            } else {
                Ok(())
            };
        }
        if header.producer_epoch != self.epoch {
            return if header.base_sequence == 0 {
                Ok(())
            } else {
                out_of_order(0)
            };
        }
        // After a marker of a new epoch there is no last batch, and sequences start at 0 again.
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

    fn check_marker(&self, header: &BatchHeader, marker: EndTxnMarker) -> Result<()> {
        self.check_epoch(header)?;
        if marker.coordinator_epoch < self.coordinator_epoch {
            return Err(StorageError::TransactionCoordinatorFenced {
                producer_id: header.producer_id,
                found: marker.coordinator_epoch,
                current: self.coordinator_epoch,
            });
        }
        Ok(())
    }

    fn move_to_epoch(&mut self, epoch: i16) {
        if self.epoch != epoch {
            self.batches.clear();
            self.epoch = epoch;
        }
    }

    /// Adds a batch of records; returns the first offset of the transaction if the batch begins one.
    fn add(&mut self, header: &BatchHeader) -> Option<i64> {
        self.move_to_epoch(header.producer_epoch);
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
            return self.transaction_start;
        }
        None
    }

    /// Adds a marker; returns the transaction that it ends, if one was open.
    fn end_transaction(&mut self, header: &BatchHeader, marker: EndTxnMarker) -> Option<CompletedTxn> {
        self.move_to_epoch(header.producer_epoch);
        self.coordinator_epoch = marker.coordinator_epoch;
        self.last_timestamp = header.max_timestamp;
        self.transaction_start.take().map(|start| CompletedTxn {
            producer_id: header.producer_id,
            first_offset: start,
            last_offset: header.base_offset,
            committed: marker.committed,
        })
    }
}

/// The result of the first time, for a repeated batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Duplicate {
    pub(crate) first_offset: i64,
    pub(crate) last_offset: i64,
    pub(crate) timestamp: i64,
}

/// Changes by one append. They are committed once its bytes are written.
#[derive(Debug, Default)]
pub(crate) struct Staged {
    entries: HashMap<i64, ProducerEntry>,
    /// First offset and producer of the transactions that begin in this append.
    started: Vec<(i64, i64)>,
    completed: Vec<CompletedTxn>,
}

impl Staged {
    /// True when a transaction begins or ends in this append.
    pub(crate) fn has_transactions(&self) -> bool {
        !(self.started.is_empty() && self.completed.is_empty())
    }

    /// The transactions that end in this append, in the order of their markers.
    pub(crate) fn completed(&self) -> &[CompletedTxn] {
        &self.completed
    }
}

/// All producers of a log.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct ProducerState {
    producers: HashMap<i64, ProducerEntry>,
    /// The producers of the open transactions, by first offset.
    transactions: BTreeMap<i64, i64>,
}

impl ProducerState {
    /// The batch that this one repeats.
    pub(crate) fn duplicate_of(&self, header: &BatchHeader) -> Option<Duplicate> {
        if !header.has_producer_id() {
            return None;
        }
        let batch = self.producers.get(&header.producer_id)?.find_duplicate(header)?;
        Some(Duplicate {
            first_offset: batch.first_offset(),
            last_offset: batch.last_offset,
            timestamp: batch.timestamp,
        })
    }

    /// The producer has an open transaction in this epoch.
    pub(crate) fn is_open(&self, producer_id: i64, epoch: i16) -> bool {
        self.producers
            .get(&producer_id)
            .is_some_and(|entry| entry.epoch == epoch && entry.transaction_start.is_some())
    }

    /// Checks a batch of an append, after those already in `staged`, and adds it. `header` has its offsets;
    /// `marker` is the content of a control batch. A batch without a producer always passes.
    pub(crate) fn stage(
        &self,
        staged: &mut Staged,
        header: &BatchHeader,
        marker: Option<EndTxnMarker>,
        origin: Origin,
    ) -> Result<()> {
        if !header.has_producer_id() || (header.is_control() && marker.is_none()) {
            return Ok(());
        }
        let known = &self.producers;
        let entry = staged.entries.entry(header.producer_id).or_insert_with(|| {
            known
                .get(&header.producer_id)
                .cloned()
                .unwrap_or_else(ProducerEntry::new)
        });
        if let Some(marker) = marker {
            if origin != Origin::Replication {
                entry.check_marker(header, marker)?;
            }
            staged.completed.extend(entry.end_transaction(header, marker));
            return Ok(());
        }
        if origin != Origin::Replication {
            entry.check(header, origin)?;
        }
        let started = entry.add(header).map(|first| (first, header.producer_id));
        staged.started.extend(started);
        Ok(())
    }

    /// The transactions that `staged` aborts, each with the log's last stable offset at that moment.
    pub(crate) fn aborted_by(&self, staged: &Staged) -> Vec<AbortedTxn> {
        if staged.completed.iter().all(|completed| completed.committed) {
            return Vec::new();
        }
        let mut open = self.transactions.clone();
        open.extend(staged.started.iter().copied());
        let mut aborted = Vec::new();
        for completed in &staged.completed {
            if !completed.committed {
                aborted.push(aborted_txn(&open, completed));
            }
            open.remove(&completed.first_offset);
        }
        aborted
    }

    pub(crate) fn commit(&mut self, staged: Staged) {
        if staged.entries.is_empty() {
            return;
        }
        self.transactions.extend(staged.started);
        for completed in &staged.completed {
            self.transactions.remove(&completed.first_offset);
        }
        self.producers.extend(staged.entries);
    }

    /// Adds a batch that is in the log already, without checks. `marker` is the content of a control batch.
    /// Returns the transaction that the batch aborts.
    pub(crate) fn replay(
        &mut self,
        header: &BatchHeader,
        marker: Option<EndTxnMarker>,
    ) -> Option<AbortedTxn> {
        self.replay_ending(header, marker)?.1
    }

    /// [`ProducerState::replay`] that returns the transaction a marker ends, and its index entry if it was
    /// aborted.
    pub(crate) fn replay_ending(
        &mut self,
        header: &BatchHeader,
        marker: Option<EndTxnMarker>,
    ) -> Option<(CompletedTxn, Option<AbortedTxn>)> {
        if !header.has_producer_id() || (header.is_control() && marker.is_none()) {
            return None;
        }
        let entry = self
            .producers
            .entry(header.producer_id)
            .or_insert_with(ProducerEntry::new);
        let Some(marker) = marker else {
            if let Some(start) = entry.add(header) {
                self.transactions.insert(start, header.producer_id);
            }
            return None;
        };
        let completed = entry.end_transaction(header, marker)?;
        let aborted = (!completed.committed).then(|| aborted_txn(&self.transactions, &completed));
        self.transactions.remove(&completed.first_offset);
        Some((completed, aborted))
    }

    /// False when no known producer has ever ended a transaction here.
    pub(crate) fn has_ended_transactions(&self) -> bool {
        self.producers.values().any(|entry| entry.coordinator_epoch >= 0)
    }

    /// Adds a producer from a snapshot.
    pub(crate) fn restore(&mut self, producer_id: i64, entry: ProducerEntry) {
        if let Some(start) = entry.transaction_start {
            self.transactions.insert(start, producer_id);
        }
        self.producers.insert(producer_id, entry);
    }

    /// The first offset of the oldest open transaction.
    pub(crate) fn first_undecided_offset(&self) -> Option<i64> {
        self.transactions.keys().next().copied()
    }

    /// Removes producers that were idle for `expiration_ms` and have no open transaction.
    pub(crate) fn remove_expired(&mut self, now_ms: i64, expiration_ms: i64) {
        self.producers.retain(|_, entry| {
            entry.transaction_start.is_some() || now_ms.saturating_sub(entry.last_timestamp) < expiration_ms
        });
    }

    /// All producers, by id.
    pub(crate) fn sorted(&self) -> Vec<(i64, &ProducerEntry)> {
        let mut producers: Vec<_> = self.producers.iter().map(|(id, entry)| (*id, entry)).collect();
        producers.sort_unstable_by_key(|(id, _)| *id);
        producers
    }

    pub(crate) fn len(&self) -> usize {
        self.producers.len()
    }
}

/// The index entry of a transaction. The log is stable up to the oldest transaction of another producer in
/// `open` (`ProducerStateManager.lastStableOffset`).
fn aborted_txn(open: &BTreeMap<i64, i64>, completed: &CompletedTxn) -> AbortedTxn {
    let other = open.iter().find(|(first, producer_id)| {
        **producer_id != completed.producer_id && **first < completed.last_offset
    });
    AbortedTxn {
        producer_id: completed.producer_id,
        first_offset: completed.first_offset,
        last_offset: completed.last_offset,
        last_stable_offset: other.map_or(completed.last_offset + 1, |(first, _)| *first),
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
        state.stage(&mut staged, header, None, Origin::Client)?;
        state.commit(staged);
        Ok(())
    }

    // Broken if it failed: a producer's retry would be written twice, or a gap in its batches be accepted.
    #[test]
    fn duplicates_and_gaps() {
        let mut state = ProducerState::default();
        for number in 0..7 {
            append(&mut state, &header(1, 0, number * 10, 10, i64::from(number) * 10)).unwrap();
        }
        let found = state.duplicate_of(&header(1, 0, 20, 10, 0)).unwrap();
        assert_eq!((found.first_offset, found.last_offset), (20, 29));
        // Not a repetition: older than the last five, another length, another epoch, another producer.
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
        append(&mut state, &header(1, 3, 500, 1, 7)).unwrap();
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

    // Broken if it failed: the second of a new producer's batches could be appended first, and the first be
    // refused for ever (KAFKA-15591); or a producer whose records retention deleted could not continue.
    #[test]
    fn a_log_that_never_had_a_record_takes_a_first_sequence_of_0_only() {
        let mut state = ProducerState::default();
        assert!(matches!(
            append(&mut state, &header(1, 0, 17, 5, 0)),
            Err(StorageError::OutOfOrderSequence {
                expected: 0,
                found: 17,
                ..
            })
        ));
        let follower = ProducerState::default();
        let mut staged = Staged::default();
        follower
            .stage(&mut staged, &header(1, 0, 17, 5, 0), None, Origin::Replication)
            .unwrap();
        append(&mut state, &header(1, 0, 0, 17, 0)).unwrap();
        append(&mut state, &header(1, 0, 17, 5, 17)).unwrap();
        append(&mut state, &header(2, 0, 9, 1, 22)).unwrap();
        state.remove_expired(1_000_000, 10);
        append(&mut state, &header(1, 0, 22, 5, 23)).unwrap();
    }

    // Broken if it failed: a long-lived producer would be stopped when its sequence wraps.
    #[test]
    fn sequences_wrap() {
        let mut state = ProducerState::default();
        append(&mut state, &header(1, 0, i32::MAX - 1, 4, 1)).unwrap();
        let found = state.duplicate_of(&header(1, 0, i32::MAX - 1, 4, 9)).unwrap();
        assert_eq!(found.first_offset, 1);
        append(&mut state, &header(1, 0, 2, 1, 5)).unwrap();
        append(&mut state, &header(2, 0, i32::MAX, 1, 5)).unwrap();
        append(&mut state, &header(2, 0, 0, 1, 6)).unwrap();
    }

    // Broken if it failed: read_committed readers would pass an open transaction, or stop at a decided one.
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
        let marker = control(transactional(header(1, 0, -1, 1, 20)));
        let abort = EndTxnMarker {
            committed: false,
            coordinator_epoch: 4,
        };
        let mut staged = Staged::default();
        state
            .stage(&mut staged, &marker, Some(abort), Origin::Coordinator)
            .unwrap();
        let aborted = AbortedTxn {
            producer_id: 1,
            first_offset: 10,
            last_offset: 20,
            // The other producer's transaction is open.
            last_stable_offset: 15,
        };
        assert_eq!(state.aborted_by(&staged), [aborted]);
        // Nothing changes before the commit.
        assert_eq!(state.first_undecided_offset(), Some(10));
        assert_eq!(
            state.replay(&marker, Some(abort)),
            Some(aborted),
            "recovery writes the same"
        );
        assert_eq!(state.first_undecided_offset(), Some(15));
        state.remove_expired(1_000_000, 10);
        assert_eq!(state.len(), 1);
    }

    fn control(mut header: BatchHeader) -> BatchHeader {
        header.attributes |= 0x20;
        header
    }

    // Broken if it failed: a coordinator or producer that was replaced could still decide a transaction.
    #[test]
    fn markers_are_checked() {
        let mut state = ProducerState::default();
        let mut end = |epoch, coordinator_epoch| {
            let marker = EndTxnMarker {
                committed: true,
                coordinator_epoch,
            };
            let header = control(header(1, epoch, -1, 1, 0));
            let mut staged = Staged::default();
            state.stage(&mut staged, &header, Some(marker), Origin::Coordinator)?;
            state.commit(staged);
            Ok::<_, StorageError>(())
        };
        end(3, 5).unwrap();
        end(3, 5).unwrap();
        assert!(matches!(
            end(3, 4),
            Err(StorageError::TransactionCoordinatorFenced {
                found: 4,
                current: 5,
                ..
            })
        ));
        assert!(matches!(
            end(2, 6),
            Err(StorageError::InvalidProducerEpoch { .. })
        ));
        end(4, 6).unwrap();
        // After a marker of a new epoch sequences begin at 0.
        assert!(append(&mut state, &header(1, 4, 7, 1, 9)).is_err());
        append(&mut state, &header(1, 4, 0, 1, 9)).unwrap();
    }

    // Broken if it failed: a follower's append that begins and ends transactions would leave them open, or
    // write other last stable offsets than the leader.
    #[test]
    fn transactions_within_one_append() {
        let transactional = |mut h: BatchHeader| {
            h.attributes |= 0x10;
            h
        };
        let marker = |committed| EndTxnMarker {
            committed,
            coordinator_epoch: 0,
        };
        let batches = [
            (transactional(header(1, 0, 0, 5, 0)), None),
            (transactional(header(2, 0, 0, 5, 5)), None),
            (control(header(1, 0, -1, 1, 10)), Some(marker(false))),
            (transactional(header(1, 0, 5, 5, 11)), None),
            (control(header(2, 0, -1, 1, 16)), Some(marker(false))),
            (control(header(1, 0, -1, 1, 17)), Some(marker(true))),
            (transactional(header(3, 0, 0, 1, 18)), None),
        ];
        let mut state = ProducerState::default();
        let mut staged = Staged::default();
        for (header, marker) in &batches {
            state
                .stage(&mut staged, header, *marker, Origin::Replication)
                .unwrap();
        }
        let aborted = state.aborted_by(&staged);
        assert_eq!(staged.completed().len(), 3);
        state.commit(staged);
        assert_eq!(state.first_undecided_offset(), Some(18));
        let bounds: Vec<_> = aborted
            .iter()
            .map(|a| (a.first_offset, a.last_offset, a.last_stable_offset))
            .collect();
        assert_eq!(bounds, [(0, 10, 5), (5, 16, 11)]);
        let mut replayed = ProducerState::default();
        let again: Vec<_> = batches
            .iter()
            .filter_map(|(header, marker)| replayed.replay(header, *marker))
            .collect();
        assert_eq!(again, aborted);
        assert_eq!(replayed.sorted(), state.sorted());
    }
}
