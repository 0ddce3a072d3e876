//! The records not yet acknowledged, by topic and partition: who may be sent next, and what a failure does to the order.
//!
//! Pure but for the clock it is handed; one lock around it, held for microseconds, taken by `produce` and the sender.
//!
//! Order. A partition's batches are sent oldest first, up to `max.in.flight` at once. When one fails in a way that may
//! pass, it returns to its place in the queue and the partition sends nothing until all batches in flight have come
//! back; then it goes on from the oldest. With idempotence each batch keeps its sequence number through that, so the
//! broker drops what it already has. A batch that is given up leaves a gap in the numbers; the partition then takes a
//! fresh producer id and numbers what is left from 0.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use logcore_protocol::ErrorCode;
use logcore_records::BatchBuilder;

use super::batch::{Batch, ProducerId, Report};
use super::partition_queue::{PartitionQueue, earlier};
use super::partitioner::Dice;
use super::record::{NewRecord, Unplaced};
use super::topic_queue::{GivenUp, Place, TopicQueue};
use crate::config::ProducerConfig;
use crate::error::{ClientError, Result, milliseconds};
use crate::metadata::Metadata;
use crate::reporter::Lasting;

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
    /// When to look again if nothing happens before.
    pub(crate) next: Option<Instant>,
    /// Some partition has no known leader.
    pub(crate) needs_metadata: bool,
    /// Some partition has batches to send and no usable producer id. The id that is used up, if any.
    pub(crate) needs_producer_id: bool,
    /// Batches given up while draining.
    pub(crate) reports: Vec<Report<T>>,
    /// Failures that are tried again and have lasted.
    pub(crate) lasting: Vec<ClientError>,
}

/// What the broker said about a batch.
pub(crate) enum Outcome {
    /// Base offset and append time (-1: create time).
    Written(i64, i64),
    Failed(ClientError),
}

/// A request is not made longer than this by adding another partition's batch to it.
const REQUEST_BYTES_MAX: usize = 8 << 20;

/// See the module.
#[derive(Debug)]
pub(crate) struct Accumulator<T> {
    config: ProducerConfig,
    propagation: Duration,
    topics: HashMap<Arc<str>, TopicQueue<T>>,
    /// Requests in flight by broker.
    broker_in_flight: HashMap<i32, usize>,
    producer: Option<ProducerId>,
    /// Why there is no producer id.
    producer_id_failure: Option<ClientError>,
    producer_id_lasting: Lasting,
    /// Failures that have lasted, for the next [`Drained`].
    lasting: Vec<ClientError>,
    messages: usize,
    bytes: usize,
    flushing: usize,
    next_batch_id: u64,
    retry_backoff: Duration,
    dice: Dice,
}

/// What `produce` tells the caller's thread to do after the lock is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wake {
    /// Nothing: the sender already has a timer for this batch.
    No,
    /// Wake the sender.
    Sender,
    /// A topic nobody asked about yet: fetch its metadata, then as `Sender`.
    Metadata,
}

impl<T> Accumulator<T> {
    pub(crate) fn new(config: ProducerConfig, propagation: Duration, retry_backoff: Duration) -> Self {
        Self {
            config,
            propagation,
            topics: HashMap::new(),
            broker_in_flight: HashMap::new(),
            producer: None,
            producer_id_failure: None,
            producer_id_lasting: Lasting::default(),
            lasting: Vec::new(),
            messages: 0,
            bytes: 0,
            flushing: 0,
            next_batch_id: 0,
            retry_backoff,
            dice: Dice::new(),
        }
    }

    /// Records waiting or in flight.
    pub(crate) fn messages(&self) -> usize {
        self.messages
    }

    /// The name as the accumulator keeps it, to share.
    pub(crate) fn topic_name(&self, topic: &str) -> Option<Arc<str>> {
        self.topics.get_key_value(topic).map(|(name, _)| Arc::clone(name))
    }

    /// While flushing, batches do not wait for company.
    pub(crate) fn set_flushing(&mut self, on: bool) {
        self.flushing = if on {
            self.flushing + 1
        } else {
            self.flushing.saturating_sub(1)
        };
    }

    /// Takes one record.
    ///
    /// `unreported` records finished but not yet reported count towards the limit as well.
    pub(crate) fn append(
        &mut self,
        topic: &str,
        record: &NewRecord<'_>,
        context: Option<T>,
        unreported: usize,
        now: Instant,
    ) -> std::result::Result<Wake, (ClientError, Option<T>)> {
        let size = BatchBuilder::record_size_bound(record.key, record.value, record.headers);
        if let Err(error) = self.check_room(size, unreported) {
            return Err((error, context));
        }
        if !self.topics.contains_key(topic) {
            let name: Arc<str> = Arc::from(topic);
            let queue = TopicQueue {
                name: Arc::clone(&name),
                partitions: Vec::new(),
                unplaced: VecDeque::new(),
                missing: None,
                lasting: Lasting::default(),
                sticky: None,
            };
            self.topics.insert(name, queue);
        }
        let Some(queue) = self.topics.get_mut(topic) else {
            return Ok(Wake::No);
        };
        if let Some((error, _)) = &queue.missing
            && queue.missing.is_given_up(now, self.propagation)
        {
            return Err((error.clone(), context));
        }
        if queue.partitions.is_empty() {
            queue.unplaced.push_back(Unplaced::copy(record, context, now));
            self.messages += 1;
            self.bytes += size;
            return Ok(if queue.unplaced.len() == 1 {
                Wake::Metadata
            } else {
                Wake::No
            });
        }
        let placed = Place {
            config: &self.config,
            dice: &mut self.dice,
            next_id: &mut self.next_batch_id,
        };
        let wake = placed.append(queue, record, context, size, now)?;
        self.messages += 1;
        self.bytes += size;
        Ok(if wake { Wake::Sender } else { Wake::No })
    }

    fn check_room(&self, size: usize, unreported: usize) -> Result<()> {
        if size > self.config.message_bytes_max {
            return Err(ClientError::MessageTooLarge {
                size,
                limit: self.config.message_bytes_max,
            });
        }
        let messages = self.messages + unreported;
        if messages >= self.config.queue_messages_max || self.bytes + size > self.config.queue_bytes_max {
            return Err(ClientError::QueueFull {
                messages,
                bytes: self.bytes,
            });
        }
        Ok(())
    }

    /// Takes over partitions and leaders' absence from fresh metadata; places records that waited for it.
    pub(crate) fn on_metadata(&mut self, metadata: &Metadata, now: Instant) -> Vec<Report<T>> {
        let mut reports = Vec::new();
        let mut freed = (0, 0);
        for queue in self.topics.values_mut() {
            let Some(topic) = metadata.topics.get(&queue.name) else {
                continue;
            };
            if topic.error != 0 || topic.partitions.is_empty() {
                self.lasting.extend(queue.note_missing(topic, now));
                continue;
            }
            queue.missing = None;
            queue.lasting.passed();
            while queue.partitions.len() < topic.partitions.len() {
                queue.partitions.push(PartitionQueue::default());
            }
            for waiting in std::mem::take(&mut queue.unplaced) {
                let place = Place {
                    config: &self.config,
                    dice: &mut self.dice,
                    next_id: &mut self.next_batch_id,
                };
                let size = waiting.size();
                if let Err(report) = waiting.place(queue, place, size) {
                    freed = (freed.0 + 1, freed.1 + size);
                    reports.extend(report.map(|report| *report));
                }
            }
        }
        self.release(freed.0, freed.1);
        reports
    }

    fn release(&mut self, messages: usize, bytes: usize) {
        self.messages = self.messages.saturating_sub(messages);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// A new identity from the broker; partitions that need one take it.
    pub(crate) fn set_producer_id(&mut self, producer: ProducerId) {
        self.producer = Some(producer);
        self.producer_id_failure = None;
        self.producer_id_lasting.passed();
    }

    /// There is no producer id yet, and it is asked for again.
    pub(crate) fn producer_id_failed(&mut self, error: ClientError, now: Instant) {
        if is_answer(&error) && self.producer_id_lasting.failed(&error, now) {
            let report = self.producer_id_lasting.report("InitProducerId", error.clone());
            self.lasting.push(report);
        }
        self.producer_id_failure = Some(error);
    }

    /// Takes out what can be sent now, and gives up what is too old.
    pub(crate) fn drain(&mut self, metadata: &Metadata, now: Instant) -> Drained<T> {
        let mut drained = Drained {
            requests: Vec::new(),
            next: None,
            needs_metadata: false,
            needs_producer_id: false,
            reports: Vec::new(),
            lasting: std::mem::take(&mut self.lasting),
        };
        self.expire(now, &mut drained);
        let round = Round {
            config: &self.config,
            metadata,
            broker_in_flight: &self.broker_in_flight,
            producer: self.producer,
            flushing: self.flushing > 0,
            now,
        };
        let mut open: HashMap<i32, (usize, Vec<Outgoing<T>>)> = HashMap::new();
        for queue in self.topics.values_mut() {
            drained.needs_metadata |= !queue.unplaced.is_empty();
            for (index, partition) in queue.partitions.iter_mut().enumerate() {
                let id = index as i32;
                let Some(leader) = round.leader_for(&queue.name, id, partition, &mut drained) else {
                    continue;
                };
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
                    let topic = Arc::clone(&queue.name);
                    batches.push(Outgoing {
                        topic,
                        partition: id,
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

    /// Gives up records that waited for longer than the delivery timeout.
    fn expire(&mut self, now: Instant, drained: &mut Drained<T>) {
        let timeout = self.config.delivery_timeout;
        let mut freed = (0, 0);
        for queue in self.topics.values_mut() {
            while queue.unplaced.front().is_some_and(|waiting| {
                now.duration_since(waiting.since) >= timeout
                    || queue.missing.is_given_up(now, self.propagation)
            }) {
                let Some(waiting) = queue.unplaced.pop_front() else {
                    break;
                };
                let error = match &queue.missing {
                    Some((error, _)) => error.clone(),
                    None => delivery_timed_out(timeout, None, "the topic's partitions are not known"),
                };
                freed = (freed.0 + 1, freed.1 + waiting.size());
                drained.reports.extend(waiting.refused(&queue.name, error));
            }
            let waits = queue.unplaced.front().map(|waiting| waiting.since + timeout);
            drained.next = earlier(drained.next, waits);
            if let (Some((_, since)), false) = (&queue.missing, queue.unplaced.is_empty()) {
                drained.next = earlier(drained.next, Some(*since + self.propagation));
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
                    partition.broken |= batch.sequence.is_some();
                    freed = (freed.0 + batch.count as usize, freed.1 + batch.bytes);
                    let last = batch.last_failure.as_ref().or(self.producer_id_failure.as_ref());
                    let error = delivery_timed_out(timeout, last, "its partition has no leader");
                    drained
                        .reports
                        .extend(batch.report(&queue.name, index as i32, Err(error)));
                }
                let due = partition.batches.front().map(|batch| batch.begun + timeout);
                drained.next = earlier(drained.next, due);
            }
        }
        self.release(freed.0, freed.1);
    }

    /// A request to `leader` came back, however it ended.
    pub(crate) fn request_done(&mut self, leader: i32) {
        if let Some(busy) = self.broker_in_flight.get_mut(&leader) {
            *busy = busy.saturating_sub(1);
        }
    }

    /// A batch came back. `None` when it will be sent again or nobody wants to know.
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
        let partition = self
            .topics
            .get_mut(&topic)?
            .partitions
            .get_mut(usize::try_from(id).ok()?)?;
        partition.in_flight = partition.in_flight.saturating_sub(1);
        let outcome = match outcome {
            Outcome::Written(base_offset, append_time) => Ok((base_offset, append_time)),
            Outcome::Failed(error) if error.is_answer(ErrorCode::DUPLICATE_SEQUENCE_NUMBER) => Ok((-1, -1)),
            Outcome::Failed(error) => {
                let spent = batch.attempts > self.config.retries
                    || now.duration_since(batch.begun) >= self.config.delivery_timeout;
                if !spent && partition.may_retry(&batch, &error) {
                    // A broken connection is reported by itself.
                    if is_answer(&error) && partition.lasting.failed(&error, now) {
                        self.lasting
                            .push(partition.lasting.report("Produce", error.clone()));
                    }
                    batch.last_failure = Some(error);
                    partition.give_back(batch, now + self.retry_backoff);
                    return None;
                }
                // Whatever follows in flight will be refused as out of order and numbered anew.
                partition.broken |= batch.sequence.is_some();
                partition.muted |= partition.in_flight > 0;
                Err(if spent && error.is_retriable() {
                    delivery_timed_out(self.config.delivery_timeout, Some(&error), "")
                } else {
                    error
                })
            }
        };
        if outcome.is_ok() {
            partition.lasting.passed();
        }
        if partition.in_flight == 0 {
            partition.muted = false;
        }
        self.release(batch.count as usize, batch.bytes);
        batch.report(&topic, id, outcome)
    }

    /// Gives up everything that is not in flight, because of `error`.
    pub(crate) fn give_up(&mut self, error: &ClientError) -> Vec<Report<T>> {
        let mut reports = Vec::new();
        let mut freed = (0, 0);
        for queue in self.topics.values_mut() {
            for waiting in std::mem::take(&mut queue.unplaced) {
                freed = (freed.0 + 1, freed.1 + waiting.size());
                reports.extend(waiting.refused(&queue.name, error.clone()));
            }
            for (index, partition) in queue.partitions.iter_mut().enumerate() {
                for batch in std::mem::take(&mut partition.batches) {
                    partition.broken |= batch.sequence.is_some();
                    freed = (freed.0 + batch.count as usize, freed.1 + batch.bytes);
                    reports.extend(batch.report(&queue.name, index as i32, Err(error.clone())));
                }
            }
        }
        self.release(freed.0, freed.1);
        reports
    }
}

/// What one look over the queues goes by.
struct Round<'a> {
    config: &'a ProducerConfig,
    metadata: &'a Metadata,
    broker_in_flight: &'a HashMap<i32, usize>,
    producer: Option<ProducerId>,
    flushing: bool,
    now: Instant,
}

impl Round<'_> {
    /// Whom the partition's oldest batch can be sent to now. Otherwise `drained` learns what is missing, or when to
    /// look again.
    fn leader_for<T>(
        &self,
        topic: &str,
        id: i32,
        partition: &mut PartitionQueue<T>,
        drained: &mut Drained<T>,
    ) -> Option<i32> {
        if !partition.may_send(self.now, self.config.in_flight_max, &mut drained.next) {
            return None;
        }
        let oldest = partition.batches.front()?;
        let ready = self.flushing || partition.batches.len() > 1 || self.config.is_ready(oldest, self.now);
        if !ready {
            drained.next = earlier(drained.next, Some(oldest.begun + self.config.linger));
            return None;
        }
        let Some((leader, _)) = self.metadata.leader(topic, id) else {
            drained.needs_metadata = true;
            let what = format!("{topic}-{id} has no leader");
            let ErrorCode(code) = ErrorCode::LEADER_NOT_AVAILABLE;
            let error = ClientError::Broker { code, what };
            if partition.lasting.failed(&error, self.now) {
                drained.lasting.push(partition.lasting.report("Metadata", error));
            }
            return None;
        };
        // Batches on their way to an old leader come back before the new one gets any.
        if partition.in_flight > 0 && partition.leader != leader {
            return None;
        }
        let busy = self.broker_in_flight.get(&leader).copied().unwrap_or_default();
        if busy >= self.config.in_flight_max {
            return None;
        }
        if self.config.idempotence && !partition.number(self.producer) {
            drained.needs_producer_id = true;
            return None;
        }
        Some(leader)
    }
}

/// Whether a broker answered, as opposed to a connection that broke.
fn is_answer(error: &ClientError) -> bool {
    matches!(error, ClientError::Broker { .. })
}

fn delivery_timed_out(timeout: Duration, last: Option<&ClientError>, otherwise: &str) -> ClientError {
    ClientError::DeliveryTimedOut {
        timeout_ms: milliseconds(timeout),
        last: last.map_or_else(|| otherwise.to_owned(), ToString::to_string),
    }
}
