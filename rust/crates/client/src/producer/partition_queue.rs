//! One partition's batches: which may be sent, in what order, and under which producer id and sequence numbers.

use std::collections::VecDeque;
use std::time::Instant;

use logcore_protocol::ErrorCode;

use super::batch::{Batch, ProducerId, Sequence};
use crate::error::ClientError;
use crate::reporter::Lasting;

/// See the module.
#[derive(Debug)]
pub(super) struct PartitionQueue<T> {
    /// Oldest first; only the last may be open.
    pub(super) batches: VecDeque<Batch<T>>,
    pub(super) in_flight: usize,
    /// Whom the batches in flight were sent to; a new leader gets nothing before they have come back.
    pub(super) leader: i32,
    /// A batch failed: nothing is sent until `in_flight` is 0.
    pub(super) muted: bool,
    pub(super) not_before: Option<Instant>,
    pub(super) producer: Option<ProducerId>,
    pub(super) next_sequence: i32,
    /// A gap in the numbers: a fresh producer id is needed.
    pub(super) broken: bool,
    /// Failures since the last batch that was written.
    pub(super) lasting: Lasting,
}

impl<T> Default for PartitionQueue<T> {
    fn default() -> Self {
        Self {
            batches: VecDeque::new(),
            in_flight: 0,
            leader: -1,
            muted: false,
            not_before: None,
            producer: None,
            next_sequence: 0,
            broken: false,
            lasting: Lasting::default(),
        }
    }
}

impl<T> PartitionQueue<T> {
    /// Whether the oldest batch may be sent as far as this partition goes; otherwise `next` learns when.
    pub(super) fn may_send(
        &mut self,
        now: Instant,
        in_flight_max: usize,
        next: &mut Option<Instant>,
    ) -> bool {
        if self.batches.is_empty() || self.muted || self.in_flight >= in_flight_max {
            return false;
        }
        if self.broken && self.in_flight > 0 {
            return false;
        }
        match self.not_before {
            Some(not_before) if not_before > now => {
                *next = earlier(*next, Some(not_before));
                false
            }
            _ => {
                self.not_before = None;
                true
            }
        }
    }

    /// Makes sure that the partition has a usable producer id; `false` when there is none.
    pub(super) fn number(&mut self, newest: Option<ProducerId>) -> bool {
        let Some(newest) = newest else { return false };
        if self.broken {
            if self.producer == Some(newest) {
                return false;
            }
            self.producer = Some(newest);
            self.broken = false;
            self.next_sequence = 0;
            for batch in self
                .batches
                .iter_mut()
                .take_while(|batch| batch.sequence.is_some())
            {
                batch.renumber(Sequence {
                    producer: newest,
                    base: self.next_sequence,
                });
                self.next_sequence = next_sequence(self.next_sequence, batch.count);
            }
        }
        self.producer.get_or_insert(newest);
        true
    }

    pub(super) fn take(&mut self, idempotent: bool) -> Option<Batch<T>> {
        let mut batch = self.batches.pop_front()?;
        if idempotent
            && batch.sequence.is_none()
            && let Some(producer) = self.producer
        {
            batch.sequence = Some(Sequence {
                producer,
                base: self.next_sequence,
            });
            self.next_sequence = next_sequence(self.next_sequence, batch.count);
        }
        batch.attempts += 1;
        self.in_flight += 1;
        Some(batch)
    }

    /// Whether a failed batch shall be sent again.
    pub(super) fn may_retry(&mut self, batch: &Batch<T>, error: &ClientError) -> bool {
        if error.is_retriable() {
            return true;
        }
        let unordered = error.is_answer(ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER)
            || error.is_answer(ErrorCode::UNKNOWN_PRODUCER_ID);
        let older = self.batches.front().is_some_and(|first| first.id < batch.id);
        if unordered && (self.muted || self.broken || older) {
            // Out of order because an older batch failed: its turn comes again after that one.
            return true;
        }
        if unordered && batch.attempts == 1 {
            // The broker has lost what it knew of this producer. It has not written the batch, and no other attempt
            // at it was made: under a fresh producer id it can be sent again without a doubt.
            self.broken = true;
            return true;
        }
        false
    }

    pub(super) fn give_back(&mut self, batch: Batch<T>, not_before: Instant) {
        let place = self.batches.partition_point(|other| other.id < batch.id);
        self.batches.insert(place, batch);
        self.muted = self.in_flight > 0;
        self.not_before = Some(not_before);
    }
}

/// Sequence numbers go from 0 to `i32::MAX` and around.
fn next_sequence(sequence: i32, count: u32) -> i32 {
    ((i64::from(sequence) + i64::from(count)) % (1 << 31)) as i32
}

/// The earlier of two moments, where there are any.
pub(super) fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
