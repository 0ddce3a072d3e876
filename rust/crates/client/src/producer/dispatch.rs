//! Batches on their way out and back: which requests are sent now, and what an answer does to its batches.
//!
//! The sender calls this part of [`Accumulator`], under the accumulator's lock. A partition's batches are
//! sent oldest first, up to `max.in.flight` at once; the first batch of a producer id goes alone. After a
//! failure that may pass, the batch returns to its position, and the partition sends nothing until all
//! batches in flight are back; then it goes on from the oldest. An idempotent batch keeps its sequence, so
//! the broker drops a repeated one. A batch that is given up leaves a gap in the sequence: the partition
//! takes a new producer id and numbers the rest from 0. A batch that is too large is split (KIP-126).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use logcore_protocol::ErrorCode;

use super::accumulator::{Accumulator, Freed};
use super::batch::{Batch, ProducerId};
use super::partition_queue::{PartitionQueue, Standing, earlier};
use super::report::Report;
use super::topic_queue::{Missing, TopicQueue};
use super::transaction::{self, Transaction};
use crate::config::ProducerConfig;
use crate::error::{ClientError, milliseconds};
use crate::metadata::Metadata;

/// A batch taken out to be sent.
#[derive(Debug)]
pub(crate) struct Outgoing<T> {
    pub(crate) topic: Arc<str>,
    pub(crate) partition: i32,
    pub(crate) batch: Batch<T>,
}

/// What the sender shall do now.
#[derive(Debug)]
pub(crate) struct Drained<T> {
    /// One request each: the leader and its batches.
    pub(crate) requests: Vec<(i32, Vec<Outgoing<T>>)>,
    /// When to drain again if nothing happens before.
    pub(crate) next: Option<Instant>,
    /// A partition has no known leader.
    pub(crate) needs_metadata: bool,
    /// A partition has batches to send, and no usable producer id.
    pub(crate) needs_producer_id: bool,
    /// Partitions are to be added to the transaction.
    pub(crate) adds_partitions: bool,
    /// Batches given up while draining.
    pub(crate) reports: Vec<Report<T>>,
    /// Failures that are tried again and have lasted.
    pub(crate) lasting: Vec<ClientError>,
}

/// A broker's answer for one batch.
pub(crate) enum Outcome {
    /// Base offset and append time (-1: create time).
    Written(i64, i64),
    Failed(ClientError),
}

/// The largest request of several batches. A batch that does not fit waits for the next request.
const REQUEST_BYTES_MAX: usize = 8 << 20;

impl<T> Accumulator<T> {
    /// Takes out what can be sent now, and gives up what is too old.
    pub(crate) fn drain(&mut self, metadata: &Metadata, now: Instant) -> Drained<T> {
        let mut drained = Drained {
            requests: Vec::new(),
            next: None,
            needs_metadata: false,
            needs_producer_id: false,
            adds_partitions: false,
            reports: Vec::new(),
            lasting: std::mem::take(&mut self.lasting),
        };
        self.expire(now, &mut drained);
        if self.transaction_failed() {
            // It can only be aborted: its other records need not be written.
            drained.reports.extend(self.give_up(&ClientError::Purged));
        }
        let mut round = Round {
            config: &self.config,
            metadata,
            broker_in_flight: &self.broker_in_flight,
            producer: self.producer,
            transaction: self.transaction.as_mut(),
            flushing: self.flushing > 0,
            now,
        };
        let mut open: HashMap<i32, (usize, Vec<Outgoing<T>>)> = HashMap::new();
        for queue in self.topics.values_mut() {
            drained.needs_metadata |= !queue.pending.is_empty();
            for index in 0..queue.partitions.len() {
                let Some(leader) = round.leader_for(queue, index, &mut drained) else {
                    continue;
                };
                let partition = &mut queue.partitions[index];
                let (size, batches) = open.entry(leader).or_default();
                let next_size = partition.batches.front().map_or(0, |batch| batch.bytes);
                if !batches.is_empty() && *size + next_size > REQUEST_BYTES_MAX {
                    // The request is full; the next round, at once, takes this partition.
                    drained.next = Some(now);
                    continue;
                }
                if let Some(batch) = partition.take(self.config.idempotence) {
                    partition.leader = leader;
                    *size += next_size;
                    batches.push(Outgoing {
                        topic: Arc::clone(&queue.name),
                        partition: index as i32,
                        batch,
                    });
                }
            }
        }
        for (leader, (_, batches)) in open {
            *self.broker_in_flight.entry(leader).or_default() += 1;
            drained.requests.push((leader, batches));
        }
        drained
    }

    /// Gives up records that have waited for the delivery timeout.
    fn expire(&mut self, now: Instant, drained: &mut Drained<T>) {
        let timeout = self.config.delivery_timeout;
        let mut freed = Freed::default();
        for queue in self.topics.values_mut() {
            let is_final = |missing: &Missing| missing.is_final(now, self.propagation);
            let refused = queue.missing.as_ref().is_some_and(is_final);
            while queue
                .pending
                .front()
                .is_some_and(|pending| refused || now.duration_since(pending.since) >= timeout)
            {
                let Some(pending) = queue.pending.pop_front() else {
                    break;
                };
                let error = match &queue.missing {
                    Some(missing) => missing.error.clone(),
                    None => delivery_timed_out(timeout, None, "the topic's partitions are not known"),
                };
                transaction::note_failure(&mut self.failures, &mut self.transaction, &error, 1);
                let (size, report) = (pending.size(), pending.refused(&queue.name, error));
                drained.reports.extend(freed.add(1, size, report));
            }
            let due = queue.pending.front().map(|pending| pending.since + timeout);
            drained.next = earlier(drained.next, due);
            if let (Some(missing), false) = (&queue.missing, queue.pending.is_empty()) {
                drained.next = earlier(drained.next, Some(missing.since + self.propagation));
            }
            for (index, partition) in queue.partitions.iter_mut().enumerate() {
                while partition
                    .batches
                    .front()
                    .is_some_and(|batch| now.duration_since(batch.begun) >= timeout)
                {
                    let Some(batch) = partition.batches.pop_front() else {
                        break;
                    };
                    partition.needs_new_id |= batch.sequence.is_some();
                    let (count, bytes) = (batch.count as usize, batch.bytes);
                    let last = batch.last_failure.as_ref().or(self.producer_id_failure.as_ref());
                    let otherwise = if partition.standing == Standing::Asked {
                        "the coordinator has not added its partition to the transaction"
                    } else {
                        "its partition has no leader"
                    };
                    let error = delivery_timed_out(timeout, last, otherwise);
                    transaction::note_failure(&mut self.failures, &mut self.transaction, &error, count);
                    let report = batch.report(&queue.name, index as i32, Err(error));
                    drained.reports.extend(freed.add(count, bytes, report));
                }
                let due = partition.batches.front().map(|batch| batch.begun + timeout);
                drained.next = earlier(drained.next, due);
            }
        }
        self.release(freed);
    }

    /// A request to `leader` has ended.
    pub(crate) fn request_done(&mut self, leader: i32) {
        if let Some(requests) = self.broker_in_flight.get_mut(&leader) {
            *requests = requests.saturating_sub(1);
        }
    }

    /// A batch came back. `None` when it is sent again, or nothing of it is to be reported.
    pub(crate) fn batch_done(
        &mut self,
        outgoing: Outgoing<T>,
        outcome: Outcome,
        now: Instant,
    ) -> Option<Report<T>> {
        let Outgoing {
            topic,
            partition: id,
            mut batch,
        } = outgoing;
        let transaction_failed = self.transaction_failed();
        let queue = self.topics.get_mut(&topic)?;
        let partition = queue.partitions.get_mut(usize::try_from(id).ok()?)?;
        partition.in_flight = partition.in_flight.saturating_sub(1);
        let expired = now.duration_since(batch.begun) >= self.config.delivery_timeout;
        let outcome = match outcome {
            Outcome::Written(base_offset, append_time) => Ok((base_offset, append_time)),
            Outcome::Failed(error) if error.is_answer(ErrorCode::DUPLICATE_SEQUENCE_NUMBER) => Ok((-1, -1)),
            Outcome::Failed(error) if is_too_large(&error) && batch.count > 1 && !expired => {
                match batch.split(&self.config) {
                    Ok([front, back]) => {
                        let largest = front.bytes.max(back.bytes);
                        partition.put_back(back, None);
                        partition.put_back(front, None);
                        queue.limit.refused(largest);
                        return None;
                    }
                    Err((unsplit, error)) => {
                        batch = *unsplit;
                        Err(error)
                    }
                }
            }
            Outcome::Failed(error) => {
                let spent = expired || batch.attempts > self.config.retries;
                let may_wait = !spent && !transaction_failed;
                if may_wait && partition.may_retry(&batch, &error, self.transaction.is_some()) {
                    // A broken connection is reported by itself.
                    if error.is_from_broker() {
                        let report = partition.lasting.tried_again("Produce", &error, now);
                        self.lasting.extend(report);
                    }
                    batch.last_failure = Some(error);
                    partition.put_back(batch, Some(now + self.retry_backoff));
                    return None;
                }
                Err(if transaction_failed && error.is_retriable() {
                    ClientError::Purged
                } else if spent && error.is_retriable() {
                    delivery_timed_out(self.config.delivery_timeout, Some(&error), "")
                } else {
                    error
                })
            }
        };
        if let Err(error) = &outcome {
            transaction::note_failure(
                &mut self.failures,
                &mut self.transaction,
                error,
                batch.count as usize,
            );
            // The batches behind it are refused as out of order, and then numbered anew.
            partition.needs_new_id |= batch.sequence.is_some();
            partition.muted = true;
        } else {
            partition.note_written(&batch);
            queue.limit.written(batch.bytes);
        }
        partition.muted &= partition.in_flight > 0;
        let (count, bytes) = (batch.count as usize, batch.bytes);
        let mut freed = Freed::default();
        let report = freed.add(count, bytes, batch.report(&topic, id, outcome));
        self.release(freed);
        report
    }
}

/// What one drain depends on.
struct Round<'a> {
    config: &'a ProducerConfig,
    metadata: &'a Metadata,
    broker_in_flight: &'a HashMap<i32, usize>,
    producer: Option<ProducerId>,
    transaction: Option<&'a mut Transaction>,
    flushing: bool,
    now: Instant,
}

impl Round<'_> {
    /// The leader that the partition's oldest batch can be sent to now. Otherwise notes in `drained` what is
    /// missing, or when to drain again.
    fn leader_for<T>(
        &mut self,
        queue: &mut TopicQueue<T>,
        index: usize,
        drained: &mut Drained<T>,
    ) -> Option<i32> {
        let partition = queue.partitions.get_mut(index)?;
        if !self.is_in_transaction(&queue.name, index, partition, drained) {
            return None;
        }
        if !partition.may_send(self.now, self.config.in_flight_max, &mut drained.next) {
            return None;
        }
        let partition = queue.partitions.get(index)?;
        let oldest = partition.batches.front()?;
        let ready =
            self.flushing || partition.batches.len() > 1 || queue.is_ready(oldest, self.config, self.now);
        if !ready {
            drained.next = earlier(drained.next, Some(oldest.begun + self.config.linger));
            return None;
        }
        let leader = self.metadata.leader(&queue.name, index as i32);
        let name = &queue.name;
        let partition = queue.partitions.get_mut(index)?;
        let Some((leader, _)) = leader else {
            drained.needs_metadata = true;
            let what = format!("{name}-{index} has no leader");
            let ErrorCode(code) = ErrorCode::LEADER_NOT_AVAILABLE;
            let error = ClientError::Broker { code, what };
            let report = partition.lasting.tried_again("Metadata", &error, self.now);
            drained.lasting.extend(report);
            return None;
        };
        self.may_send_to(leader, partition, drained).then_some(leader)
    }

    /// Whether the partition's batches may be sent as to its transaction. Asks for the partition to be added
    /// while its first batch still waits for more records.
    fn is_in_transaction<T>(
        &mut self,
        topic: &Arc<str>,
        index: usize,
        partition: &mut PartitionQueue<T>,
        drained: &mut Drained<T>,
    ) -> bool {
        let Some(transaction) = &mut self.transaction else {
            return true;
        };
        if partition.standing == Standing::Outside && !partition.batches.is_empty() {
            partition.standing = Standing::Asked;
            transaction.add_later(topic, index as i32);
            drained.adds_partitions = true;
        }
        partition.standing == Standing::Inside
    }

    fn may_send_to<T>(
        &self,
        leader: i32,
        partition: &mut PartitionQueue<T>,
        drained: &mut Drained<T>,
    ) -> bool {
        // The batches in flight to an old leader come back before the new one gets any.
        if partition.in_flight > 0 && partition.leader != leader {
            return false;
        }
        let requests = self.broker_in_flight.get(&leader).copied().unwrap_or_default();
        if requests >= self.config.in_flight_max {
            return false;
        }
        if self.config.idempotence && !partition.number(self.producer) {
            drained.needs_producer_id = true;
            return false;
        }
        true
    }
}

/// Whether the batch is above the topic's `max.message.bytes` or `segment.bytes`.
fn is_too_large(error: &ClientError) -> bool {
    error.is_answer(ErrorCode::MESSAGE_TOO_LARGE) || error.is_answer(ErrorCode::RECORD_LIST_TOO_LARGE)
}

fn delivery_timed_out(timeout: Duration, last: Option<&ClientError>, otherwise: &str) -> ClientError {
    ClientError::DeliveryTimedOut {
        timeout_ms: milliseconds(timeout),
        last: last.map_or_else(|| otherwise.to_owned(), ToString::to_string),
    }
}
