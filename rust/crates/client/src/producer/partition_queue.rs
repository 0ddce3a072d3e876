//! One partition's batches: which may be sent, in what order, and under which producer id and sequence
//! numbers.

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
    /// The leader that the batches in flight were sent to. A new leader gets nothing before they are back.
    pub(super) leader: i32,
    /// A batch failed: nothing is sent until no batch is in flight.
    pub(super) muted: bool,
    pub(super) not_before: Option<Instant>,
    /// The sequence of the next new batch; `None` until there is a producer id.
    next: Option<Sequence>,
    /// The sequence numbers have a gap: a new producer id is needed.
    pub(super) needs_new_id: bool,
    /// The producer id of the last batch that was written.
    written: Option<ProducerId>,
    /// Failures since the last batch that was written.
    pub(super) lasting: Lasting,
    /// Whether the partition is in the transaction. Always outside without transactions.
    pub(super) standing: Standing,
}

/// A partition and the producer's transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Standing {
    #[default]
    Outside,
    /// It was asked for, and the coordinator has not confirmed it.
    Asked,
    Inside,
}

impl<T> Default for PartitionQueue<T> {
    fn default() -> Self {
        Self {
            batches: VecDeque::new(),
            in_flight: 0,
            leader: -1,
            muted: false,
            not_before: None,
            next: None,
            needs_new_id: false,
            written: None,
            lasting: Lasting::default(),
            standing: Standing::default(),
        }
    }
}

impl<T> PartitionQueue<T> {
    /// Whether this partition may send its oldest batch; otherwise lowers `next` to the time when it may.
    pub(super) fn may_send(
        &mut self,
        now: Instant,
        in_flight_max: usize,
        next: &mut Option<Instant>,
    ) -> bool {
        if self.batches.is_empty() || self.muted || self.in_flight >= in_flight_max {
            return false;
        }
        if self.in_flight > 0 && (self.needs_new_id || self.is_first_under_its_id()) {
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

    /// Whether no batch was written under the present producer id.
    ///
    /// A broker that does not know the id takes any sequence on a log that is not empty. If it refused the
    /// first batch and took the second, the first could only be written behind it.
    fn is_first_under_its_id(&self) -> bool {
        self.next.is_some_and(|next| self.written != Some(next.producer))
    }

    /// Notes that a batch was written.
    pub(super) fn note_written(&mut self, batch: &Batch<T>) {
        self.written = batch.sequence.map(|sequence| sequence.producer);
        self.lasting.passed();
    }

    /// Makes sure that the partition has a usable producer id; `false` when there is none.
    pub(super) fn number(&mut self, newest: Option<ProducerId>) -> bool {
        let Some(newest) = newest else { return false };
        if self.needs_new_id {
            if self.next.is_some_and(|next| next.producer == newest) {
                return false;
            }
            self.needs_new_id = false;
            let mut sequence = Sequence {
                producer: newest,
                base: 0,
            };
            for batch in self
                .batches
                .iter_mut()
                .take_while(|batch| batch.sequence.is_some())
            {
                batch.renumber(sequence);
                sequence = sequence.after(batch.count);
            }
            self.next = Some(sequence);
        }
        self.next.get_or_insert(Sequence {
            producer: newest,
            base: 0,
        });
        true
    }

    /// Numbers from 0 under a new producer id. No batch may wait or be in flight.
    pub(super) fn number_anew(&mut self) {
        self.needs_new_id = false;
        self.next = None;
        self.written = None;
    }

    /// Takes the oldest batch out to be sent.
    pub(super) fn take(&mut self, idempotent: bool) -> Option<Batch<T>> {
        let mut batch = self.batches.pop_front()?;
        if idempotent
            && batch.sequence.is_none()
            && let Some(next) = self.next
        {
            batch.sequence = Some(next);
            self.next = Some(next.after(batch.count));
        }
        batch.attempts += 1;
        self.in_flight += 1;
        Some(batch)
    }

    /// Whether a failed batch shall be sent again.
    pub(super) fn may_retry(&mut self, batch: &Batch<T>, error: &ClientError, transactional: bool) -> bool {
        if error.is_retriable() {
            return true;
        }
        let unordered = error.is_answer(ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER)
            || error.is_answer(ErrorCode::UNKNOWN_PRODUCER_ID);
        let behind = self
            .batches
            .front()
            .is_some_and(|first| first.order < batch.order);
        if unordered && (self.muted || self.needs_new_id || behind) {
            // Out of order because an older batch failed; it is sent again after that one.
            return true;
        }
        if unordered && batch.attempts == 1 && !transactional {
            // The broker has lost the producer's state. It has not written the batch, and no other attempt
            // was made, so sending it under a new producer id cannot write it twice.
            self.needs_new_id = true;
            return true;
        }
        false
    }

    /// Puts a failed batch back in its order. Nothing is sent until the others in flight are back.
    pub(super) fn put_back(&mut self, batch: Batch<T>, not_before: Option<Instant>) {
        let index = self.batches.partition_point(|other| other.order < batch.order);
        self.batches.insert(index, batch);
        self.muted = self.in_flight > 0;
        self.not_before = not_before;
    }
}

/// The earlier of two times, where there are any.
pub(super) fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
