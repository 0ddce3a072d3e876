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

use logcore_records::BatchBuilder;

use super::batch::{Batch, ProducerId, Report, Sequence, Tracked};
use super::partitioner::Dice;
use crate::config::ProducerConfig;
use crate::error::{ClientError, Result, broker};
use crate::metadata::{Metadata, Topic};

/// A record's headers, borrowed.
pub type HeaderSlice<'a> = &'a [(&'a [u8], Option<&'a [u8]>)];

/// A record to produce, borrowed from the caller.
#[derive(Debug, Clone, Copy)]
pub struct NewRecord<'a> {
    /// `None`: the partitioner chooses.
    pub partition: Option<i32>,
    pub key: Option<&'a [u8]>,
    pub value: Option<&'a [u8]>,
    pub headers: HeaderSlice<'a>,
    /// Milliseconds since the epoch.
    pub timestamp: i64,
}

/// A record of a topic whose partitions are not known yet.
#[derive(Debug)]
struct Unplaced<T> {
    partition: Option<i32>,
    key: Option<Box<[u8]>>,
    value: Option<Box<[u8]>>,
    headers: Box<[OwnedHeader]>,
    timestamp: i64,
    context: Option<T>,
    since: Instant,
}

type OwnedHeader = (Box<[u8]>, Option<Box<[u8]>>);

#[derive(Debug)]
struct PartitionQueue<T> {
    /// Oldest first; only the last may be open.
    batches: VecDeque<Batch<T>>,
    in_flight: usize,
    /// Whom the batches in flight were sent to; a new leader gets nothing before they have come back.
    leader: i32,
    /// A batch failed: nothing is sent until `in_flight` is 0.
    muted: bool,
    not_before: Option<Instant>,
    producer: Option<ProducerId>,
    next_sequence: i32,
    /// A gap in the numbers: a fresh producer id is needed.
    broken: bool,
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
        }
    }
}

#[derive(Debug)]
struct TopicQueue<T> {
    name: Arc<str>,
    partitions: Vec<PartitionQueue<T>>,
    unplaced: VecDeque<Unplaced<T>>,
    /// Why records of this topic are refused, and since when the cluster has said so.
    missing: Option<(ClientError, Instant)>,
    sticky: Option<(i32, Instant)>,
}

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
    pub(crate) fn new(
        config: ProducerConfig,
        propagation: Duration,
        retry_backoff: Duration,
    ) -> Self {
        Self {
            config,
            propagation,
            topics: HashMap::new(),
            broker_in_flight: HashMap::new(),
            producer: None,
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
        self.topics
            .get_key_value(topic)
            .map(|(name, _)| Arc::clone(name))
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
            queue
                .unplaced
                .push_back(Unplaced::copy(record, context, now));
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
        if messages >= self.config.queue_messages_max
            || self.bytes + size > self.config.queue_bytes_max
        {
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
                queue.note_missing(topic, now);
                continue;
            }
            queue.missing = None;
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
                    reports.extend(report);
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
    }

    /// Takes out what can be sent now, and gives up what is too old.
    pub(crate) fn drain(&mut self, metadata: &Metadata, now: Instant) -> Drained<T> {
        let mut drained = Drained {
            requests: Vec::new(),
            next: None,
            needs_metadata: false,
            needs_producer_id: false,
            reports: Vec::new(),
        };
        self.expire(now, &mut drained);
        let mut open: HashMap<i32, (usize, Vec<Outgoing<T>>)> = HashMap::new();
        for queue in self.topics.values_mut() {
            drained.needs_metadata |= !queue.unplaced.is_empty();
            for (index, partition) in queue.partitions.iter_mut().enumerate() {
                let id = index as i32;
                if !partition.may_send(now, self.config.in_flight_max, &mut drained.next) {
                    continue;
                }
                let ready = partition.batches.len() > 1 || self.flushing > 0 || {
                    partition
                        .batches
                        .front()
                        .is_some_and(|batch| self.config.is_ready(batch, now))
                };
                if !ready {
                    let due = partition
                        .batches
                        .front()
                        .map(|batch| batch.begun + self.config.linger);
                    drained.next = earlier(drained.next, due);
                    continue;
                }
                let Some((leader, _)) = metadata.leader(&queue.name, id) else {
                    drained.needs_metadata = true;
                    continue;
                };
                if partition.in_flight > 0 && partition.leader != leader {
                    continue;
                }
                let busy = self
                    .broker_in_flight
                    .get(&leader)
                    .copied()
                    .unwrap_or_default();
                if busy >= self.config.in_flight_max {
                    continue;
                }
                if self.config.idempotence && !partition.number(self.producer) {
                    drained.needs_producer_id = true;
                    continue;
                }
                let (size, batches) = open.entry(leader).or_default();
                let Some(next_size) = partition.batches.front().map(|batch| batch.bytes) else {
                    continue;
                };
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
                        partition: id,
                        batch,
                    });
                }
            }
        }
        for (leader, (_, batches)) in open {
            if !batches.is_empty() {
                *self.broker_in_flight.entry(leader).or_default() += 1;
                drained.requests.push((leader, batches));
            }
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
                    None => delivery_timed_out(timeout, None),
                };
                freed = (freed.0 + 1, freed.1 + waiting.size());
                drained.reports.extend(waiting.refused(&queue.name, error));
            }
            let waits = queue
                .unplaced
                .front()
                .map(|waiting| waiting.since + timeout);
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
                    let error = delivery_timed_out(timeout, batch.last_failure.as_ref());
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
            Outcome::Failed(error) if is_duplicate(&error) => Ok((-1, -1)),
            Outcome::Failed(error) => {
                let spent = batch.attempts > self.config.retries
                    || now.duration_since(batch.begun) >= self.config.delivery_timeout;
                if !spent && partition.may_retry(&batch, &error) {
                    batch.last_failure = Some(error);
                    partition.give_back(batch, now + self.retry_backoff);
                    return None;
                }
                // Whatever follows in flight will be refused as out of order and numbered anew.
                partition.broken |= batch.sequence.is_some();
                partition.muted |= partition.in_flight > 0;
                Err(if spent && error.is_retriable() {
                    delivery_timed_out(self.config.delivery_timeout, Some(&error))
                } else {
                    error
                })
            }
        };
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

impl ProducerConfig {
    fn is_full<T>(&self, batch: &Batch<T>) -> bool {
        batch.bytes >= self.batch_bytes || batch.count as usize >= self.batch_messages
    }

    fn is_ready<T>(&self, batch: &Batch<T>, now: Instant) -> bool {
        !batch.is_open() || self.is_full(batch) || now.duration_since(batch.begun) >= self.linger
    }
}

/// What placing a record in a partition needs besides the topic.
struct Place<'a> {
    config: &'a ProducerConfig,
    dice: &'a mut Dice,
    next_id: &'a mut u64,
}

impl Place<'_> {
    /// Appends to the partition's open batch; `true` when the sender must hear of it: a batch was begun or is full.
    fn append<T>(
        self,
        topic: &mut TopicQueue<T>,
        record: &NewRecord<'_>,
        context: Option<T>,
        size: usize,
        now: Instant,
    ) -> std::result::Result<bool, (ClientError, Option<T>)> {
        let count = topic.partitions.len() as i32;
        let id = match record.partition {
            Some(id) => id,
            None => match self.config.partitioner.partition(record.key, count) {
                Some(id) => id,
                None => topic.stick(self.dice, count, self.config.sticky_linger, now),
            },
        };
        let partition = usize::try_from(id)
            .ok()
            .and_then(|index| topic.partitions.get_mut(index));
        let Some(partition) = partition else {
            let topic = topic.name.to_string();
            return Err((
                ClientError::UnknownPartition {
                    topic,
                    partition: id,
                },
                context,
            ));
        };
        let mut begun = false;
        let fits = partition.batches.back().is_some_and(|batch| {
            batch.is_open()
                && batch.bytes + size <= self.config.batch_bytes
                && (batch.count as usize) < self.config.batch_messages
        });
        if !fits {
            let builder = BatchBuilder::new(self.config.compression, self.config.compression_level);
            *self.next_id += 1;
            partition
                .batches
                .push_back(Batch::new(*self.next_id, builder, now));
            begun = true;
        }
        let Some(batch) = partition.batches.back_mut() else {
            return Ok(false);
        };
        let appended = match batch.open() {
            Some(builder) => {
                builder.append(record.timestamp, record.key, record.value, record.headers)
            }
            None => Ok(0),
        };
        match appended {
            Ok(index) => {
                batch.count += 1;
                batch.bytes += size;
                if let Some(context) = context {
                    let index = index.unsigned_abs();
                    batch.tracked.push(Tracked {
                        index,
                        timestamp: record.timestamp,
                        context,
                    });
                }
                Ok(begun || self.config.is_full(batch))
            }
            Err(error) => {
                let what = format!("encoding a record: {error}");
                if batch.count == 0 {
                    partition.batches.pop_back();
                }
                Err((ClientError::BadData { what }, context))
            }
        }
    }
}

impl<T> TopicQueue<T> {
    /// Where records without a key go for now.
    fn stick(&mut self, dice: &mut Dice, count: i32, linger: Duration, now: Instant) -> i32 {
        match self.sticky {
            Some((id, until)) if now < until && id < count => id,
            _ => {
                let id = dice.below(count);
                self.sticky = Some((id, now + linger));
                id
            }
        }
    }

    fn note_missing(&mut self, topic: &Topic, now: Instant) {
        let error = match topic.error {
            broker::UNKNOWN_TOPIC_OR_PARTITION => ClientError::UnknownTopic(self.name.to_string()),
            // In creation: nothing to hold against it.
            0 => return,
            code if broker::is_retriable(code) => return,
            code => ClientError::Broker {
                code,
                what: format!("topic {:?}", &*self.name),
            },
        };
        let since = match (&self.missing, topic.error) {
            (Some((_, since)), _) => *since,
            (None, _) => now,
        };
        self.missing = Some((error, since));
    }
}

trait GivenUp {
    fn is_given_up(&self, now: Instant, propagation: Duration) -> bool;
}

impl GivenUp for Option<(ClientError, Instant)> {
    /// A missing topic may still be on its way to the broker asked; an error that does not pass counts at once.
    fn is_given_up(&self, now: Instant, propagation: Duration) -> bool {
        self.as_ref().is_some_and(|(error, since)| {
            !matches!(error, ClientError::UnknownTopic(_))
                || now.duration_since(*since) >= propagation
        })
    }
}

impl<T> PartitionQueue<T> {
    /// Whether the oldest batch may be sent as far as this partition goes; otherwise `next` learns when.
    fn may_send(&mut self, now: Instant, in_flight_max: usize, next: &mut Option<Instant>) -> bool {
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
    fn number(&mut self, newest: Option<ProducerId>) -> bool {
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

    fn take(&mut self, idempotent: bool) -> Option<Batch<T>> {
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
    fn may_retry(&self, batch: &Batch<T>, error: &ClientError) -> bool {
        if error.is_retriable() {
            return true;
        }
        // Out of order because an older batch failed: its turn comes again after that one. The same for a broker
        // that forgot this producer id after the partition's log was emptied.
        let unordered = matches!(
            error,
            ClientError::Broker {
                code: broker::OUT_OF_ORDER_SEQUENCE_NUMBER | broker::UNKNOWN_PRODUCER_ID,
                ..
            }
        );
        unordered
            && (self.muted
                || self.broken
                || self
                    .batches
                    .front()
                    .is_some_and(|first| first.id < batch.id))
    }

    fn give_back(&mut self, batch: Batch<T>, not_before: Instant) {
        let place = self.batches.partition_point(|other| other.id < batch.id);
        self.batches.insert(place, batch);
        self.muted = self.in_flight > 0;
        self.not_before = Some(not_before);
    }
}

impl<T> Unplaced<T> {
    fn copy(record: &NewRecord<'_>, context: Option<T>, since: Instant) -> Self {
        let headers = record.headers.iter();
        Self {
            partition: record.partition,
            key: record.key.map(Box::from),
            value: record.value.map(Box::from),
            headers: headers
                .map(|(key, value)| (Box::from(*key), value.map(Box::from)))
                .collect(),
            timestamp: record.timestamp,
            context,
            since,
        }
    }

    fn with_record<R>(&self, then: impl FnOnce(&NewRecord<'_>) -> R) -> R {
        let headers: Vec<(&[u8], Option<&[u8]>)> = self
            .headers
            .iter()
            .map(|(key, value)| (&**key, value.as_deref()))
            .collect();
        then(&NewRecord {
            partition: self.partition,
            key: self.key.as_deref(),
            value: self.value.as_deref(),
            headers: &headers,
            timestamp: self.timestamp,
        })
    }

    fn size(&self) -> usize {
        self.with_record(|record| {
            BatchBuilder::record_size_bound(record.key, record.value, record.headers)
        })
    }

    /// Moves the record to its partition; the report of its failure otherwise.
    fn place(
        mut self,
        topic: &mut TopicQueue<T>,
        place: Place<'_>,
        size: usize,
    ) -> std::result::Result<(), Option<Report<T>>> {
        let context = self.context.take();
        // The wait for metadata is part of the delivery timeout.
        let placed =
            self.with_record(|record| place.append(topic, record, context, size, self.since));
        match placed {
            Ok(_) => Ok(()),
            Err((error, context)) => {
                self.context = context;
                let name = Arc::clone(&topic.name);
                Err(self.refused(&name, error))
            }
        }
    }

    fn refused(self, topic: &Arc<str>, error: ClientError) -> Option<Report<T>> {
        let context = self.context?;
        Some(Report {
            topic: Arc::clone(topic),
            partition: self.partition.unwrap_or(-1),
            base_offset: -1,
            append_time: -1,
            error: Some(error),
            begun: self.since,
            records: vec![Tracked {
                index: 0,
                timestamp: self.timestamp,
                context,
            }]
            .into_iter(),
        })
    }
}

/// Sequence numbers go from 0 to `i32::MAX` and around.
fn next_sequence(sequence: i32, count: u32) -> i32 {
    ((i64::from(sequence) + i64::from(count)) % (1 << 31)) as i32
}

fn is_duplicate(error: &ClientError) -> bool {
    matches!(
        error,
        ClientError::Broker {
            code: broker::DUPLICATE_SEQUENCE_NUMBER,
            ..
        }
    )
}

fn delivery_timed_out(timeout: Duration, last: Option<&ClientError>) -> ClientError {
    ClientError::DeliveryTimedOut {
        timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
        last: last.map_or_else(
            || "no leader could be asked".to_owned(),
            ToString::to_string,
        ),
    }
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
