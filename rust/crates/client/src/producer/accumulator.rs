//! The records that are not acknowledged yet, by topic and partition: taken in, purged, counted.
//!
//! Pure; its callers pass the time. One lock around it, held for microseconds, by `produce` and the sender.
//! The other half is [`super::dispatch`]: how batches are sent, and what an answer does to them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::batch::ProducerId;
use super::partition_queue::PartitionQueue;
use super::record::{NewRecord, PendingRecord};
use super::report::Report;
use super::topic_queue::{Appender, Refused, TopicQueue};
use super::transaction::{self, Failures, Transaction};
use crate::config::ProducerConfig;
use crate::error::{ClientError, Result};
use crate::metadata::Metadata;
use crate::partitioner::Random;
use crate::reporter::Lasting;

/// See the module.
#[derive(Debug)]
pub(crate) struct Accumulator<T> {
    pub(super) config: ProducerConfig,
    pub(super) propagation: Duration,
    pub(super) topics: HashMap<Arc<str>, TopicQueue<T>>,
    /// Requests in flight by broker.
    pub(super) broker_in_flight: HashMap<i32, usize>,
    pub(super) producer: Option<ProducerId>,
    /// Of a transactional producer.
    pub(super) transaction: Option<Transaction>,
    /// Records that were not written since [`Accumulator::take_failures`].
    pub(super) failures: Failures,
    /// Why there is no producer id.
    pub(super) producer_id_failure: Option<ClientError>,
    producer_id_lasting: Lasting,
    /// Failures that have lasted, for the sender to report.
    pub(super) lasting: Vec<ClientError>,
    /// Records whose outcome the application does not know yet.
    messages: usize,
    /// Bytes of the records that wait or are in flight.
    bytes: usize,
    /// The number of calls of `flush` under way.
    pub(super) flushing: usize,
    next_batch: u64,
    pub(super) retry_backoff: Duration,
    random: Random,
}

/// What settled records free of the queue's limits.
#[derive(Debug, Default)]
pub(super) struct Freed {
    messages: usize,
    bytes: usize,
}

impl Freed {
    /// Adds `count` records. Those in the report count until the application takes it.
    pub(super) fn add<T>(
        &mut self,
        count: usize,
        bytes: usize,
        report: Option<Report<T>>,
    ) -> Option<Report<T>> {
        let reported = report.as_ref().map_or(0, |report| report.records.len());
        self.messages += count.saturating_sub(reported);
        self.bytes += bytes;
        report
    }
}

/// What the caller of `append` does once it has released the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wake {
    /// Nothing: the sender has a timer for this batch.
    No,
    /// Wakes the sender.
    Sender,
    /// Asks for the metadata of a new topic, and wakes the sender.
    Metadata,
}

impl<T> Accumulator<T> {
    pub(crate) fn new(config: ProducerConfig, propagation: Duration, retry_backoff: Duration) -> Self {
        let transaction = config.transactional_id.as_ref().map(|_| Transaction::default());
        Self {
            config,
            propagation,
            topics: HashMap::new(),
            broker_in_flight: HashMap::new(),
            producer: None,
            transaction,
            failures: Failures::default(),
            producer_id_failure: None,
            producer_id_lasting: Lasting::default(),
            lasting: Vec::new(),
            messages: 0,
            bytes: 0,
            flushing: 0,
            next_batch: 0,
            retry_backoff,
            random: Random::new(),
        }
    }

    /// Records that wait, are in flight, or are in a report that the application has not taken.
    pub(crate) fn messages(&self) -> usize {
        self.messages
    }

    /// The application has taken the report of so many records.
    pub(crate) fn reported(&mut self, messages: usize) {
        self.messages = self.messages.saturating_sub(messages);
    }

    /// So many records of a report were put back.
    pub(crate) fn not_reported(&mut self, messages: usize) {
        self.messages += messages;
    }

    /// The records that were not written since the last call, with or without a report.
    pub(crate) fn take_failures(&mut self) -> Failures {
        std::mem::take(&mut self.failures)
    }

    /// The accumulator's own copy of a topic's name.
    pub(crate) fn topic_name(&self, topic: &str) -> Option<Arc<str>> {
        self.topics.get_key_value(topic).map(|(name, _)| Arc::clone(name))
    }

    /// While flushing, batches do not wait for more records. Calls nest.
    pub(crate) fn set_flushing(&mut self, on: bool) {
        self.flushing = if on {
            self.flushing + 1
        } else {
            self.flushing.saturating_sub(1)
        };
    }

    /// Takes one record.
    pub(crate) fn append(
        &mut self,
        topic: &str,
        record: &NewRecord<'_>,
        context: Option<T>,
        now: Instant,
    ) -> std::result::Result<Wake, Refused<T>> {
        let size = record.size();
        if let Some(transaction) = &self.transaction
            && let Err(error) = transaction.check_open()
        {
            return Err((error, context));
        }
        if let Err(error) = self.check_limits(size) {
            return Err((error, context));
        }
        if !self.topics.contains_key(topic) {
            let name: Arc<str> = Arc::from(topic);
            let queue = TopicQueue::new(Arc::clone(&name), &self.config);
            self.topics.insert(name, queue);
        }
        let Some(queue) = self.topics.get_mut(topic) else {
            return Ok(Wake::No);
        };
        if let Some(missing) = &queue.missing
            && missing.is_final(now, self.propagation)
        {
            return Err((missing.error.clone(), context));
        }
        let wake = if queue.partitions.is_empty() {
            queue.pending.push_back(PendingRecord::copy(record, context, now));
            if queue.pending.len() == 1 {
                Wake::Metadata
            } else {
                Wake::No
            }
        } else {
            let appender = Appender {
                config: &self.config,
                random: &mut self.random,
                next_batch: &mut self.next_batch,
            };
            if queue.append(appender, record, context, now)? {
                Wake::Sender
            } else {
                Wake::No
            }
        };
        self.messages += 1;
        self.bytes += size;
        Ok(wake)
    }

    fn check_limits(&self, size: usize) -> Result<()> {
        if size > self.config.message_bytes_max {
            return Err(ClientError::MessageTooLarge {
                size,
                limit: self.config.message_bytes_max,
            });
        }
        if self.messages >= self.config.queue_messages_max || self.bytes + size > self.config.queue_bytes_max
        {
            return Err(ClientError::QueueFull {
                messages: self.messages,
                bytes: self.bytes,
            });
        }
        Ok(())
    }

    /// Takes the partitions from new metadata, and appends the records that waited for them.
    pub(crate) fn on_metadata(&mut self, metadata: &Metadata, now: Instant) -> Vec<Report<T>> {
        let mut reports = Vec::new();
        let mut freed = Freed::default();
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
            for mut pending in std::mem::take(&mut queue.pending) {
                let appender = Appender {
                    config: &self.config,
                    random: &mut self.random,
                    next_batch: &mut self.next_batch,
                };
                let context = pending.context.take();
                // The wait for metadata is part of the delivery timeout.
                let since = pending.since;
                let appended = pending.with_record(|record| queue.append(appender, record, context, since));
                if let Err((error, context)) = appended {
                    transaction::note_failure(&mut self.failures, &mut self.transaction, &error, 1);
                    pending.context = context;
                    let (size, report) = (pending.size(), pending.refused(&queue.name, error));
                    reports.extend(freed.add(1, size, report));
                }
            }
        }
        self.release(freed);
        reports
    }

    /// Takes settled records off the queue's limits.
    pub(super) fn release(&mut self, freed: Freed) {
        self.messages = self.messages.saturating_sub(freed.messages);
        self.bytes = self.bytes.saturating_sub(freed.bytes);
    }

    /// A new producer id; partitions that need one take it.
    pub(crate) fn set_producer_id(&mut self, producer: ProducerId) {
        self.producer = Some(producer);
        self.producer_id_failure = None;
        self.producer_id_lasting.passed();
    }

    /// Asking for a producer id failed; it is tried again.
    pub(crate) fn producer_id_failed(&mut self, error: ClientError, now: Instant) {
        // A broken connection is reported by itself.
        if error.is_from_broker() {
            let report = self
                .producer_id_lasting
                .tried_again("InitProducerId", &error, now);
            self.lasting.extend(report);
        }
        self.producer_id_failure = Some(error);
    }

    /// Gives up everything that is not in flight, because of `error`.
    pub(crate) fn give_up(&mut self, error: &ClientError) -> Vec<Report<T>> {
        let mut reports = Vec::new();
        let mut freed = Freed::default();
        for queue in self.topics.values_mut() {
            for pending in std::mem::take(&mut queue.pending) {
                transaction::note_failure(&mut self.failures, &mut self.transaction, error, 1);
                let (size, report) = (pending.size(), pending.refused(&queue.name, error.clone()));
                reports.extend(freed.add(1, size, report));
            }
            for (index, partition) in queue.partitions.iter_mut().enumerate() {
                for batch in std::mem::take(&mut partition.batches) {
                    partition.needs_new_id |= batch.sequence.is_some();
                    let (count, bytes) = (batch.count as usize, batch.bytes);
                    transaction::note_failure(&mut self.failures, &mut self.transaction, error, count);
                    let report = batch.report(&queue.name, index as i32, Err(error.clone()));
                    reports.extend(freed.add(count, bytes, report));
                }
            }
        }
        self.release(freed);
        reports
    }
}
