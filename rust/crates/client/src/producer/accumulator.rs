//! The records that are not acknowledged yet, by topic and partition: taken in, given up, counted.
//!
//! Pure; its callers pass the time. One lock around it, held for microseconds, by `produce` and the sender. The other half
//! is [`super::dispatch`]: how batches are sent, and what an answer does to them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::batch::{ProducerId, Report};
use super::dispatch::{Drained, delivery_timed_out, is_answer};
use super::partition_queue::{PartitionQueue, earlier};
use super::partitioner::Random;
use super::record::{NewRecord, PendingRecord};
use super::topic_queue::{Appender, Missing, Refused, TopicQueue};
use crate::config::ProducerConfig;
use crate::error::{ClientError, Result};
use crate::metadata::Metadata;
use crate::reporter::Lasting;

/// See the module.
#[derive(Debug)]
pub(crate) struct Accumulator<T> {
    pub(super) config: ProducerConfig,
    propagation: Duration,
    pub(super) topics: HashMap<Arc<str>, TopicQueue<T>>,
    /// Requests in flight by broker.
    pub(super) broker_in_flight: HashMap<i32, usize>,
    pub(super) producer: Option<ProducerId>,
    /// Why there is no producer id.
    producer_id_failure: Option<ClientError>,
    producer_id_lasting: Lasting,
    /// Failures that have lasted, for the next [`Drained`].
    pub(super) lasting: Vec<ClientError>,
    messages: usize,
    bytes: usize,
    /// The number of calls of `flush` under way.
    pub(super) flushing: usize,
    next_batch: u64,
    pub(super) retry_backoff: Duration,
    random: Random,
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
            next_batch: 0,
            retry_backoff,
            random: Random::new(),
        }
    }

    /// Records waiting or in flight.
    pub(crate) fn messages(&self) -> usize {
        self.messages
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

    /// Takes one record. The `unreported` records, settled but not reported yet, count towards the limit.
    pub(crate) fn append(
        &mut self,
        topic: &str,
        record: &NewRecord<'_>,
        context: Option<T>,
        unreported: usize,
        now: Instant,
    ) -> std::result::Result<Wake, Refused<T>> {
        let size = record.size();
        if let Err(error) = self.check_limits(size, unreported) {
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

    fn check_limits(&self, size: usize, unreported: usize) -> Result<()> {
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

    /// Takes the partitions from new metadata, and appends the records that waited for them.
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
                    pending.context = context;
                    freed = (freed.0 + 1, freed.1 + pending.size());
                    reports.extend(pending.refused(&queue.name, error));
                }
            }
        }
        self.release(freed.0, freed.1);
        reports
    }

    /// Takes settled records off the queue's limits.
    pub(super) fn release(&mut self, messages: usize, bytes: usize) {
        self.messages = self.messages.saturating_sub(messages);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// A new producer id; partitions that need one take it.
    pub(crate) fn set_producer_id(&mut self, producer: ProducerId) {
        self.producer = Some(producer);
        self.producer_id_failure = None;
        self.producer_id_lasting.passed();
    }

    /// Asking for a producer id failed; it is tried again.
    pub(crate) fn producer_id_failed(&mut self, error: ClientError, now: Instant) {
        if is_answer(&error) && self.producer_id_lasting.failed(&error, now) {
            let report = self.producer_id_lasting.report("InitProducerId", error.clone());
            self.lasting.push(report);
        }
        self.producer_id_failure = Some(error);
    }

    /// Gives up records that have waited for the delivery timeout.
    pub(super) fn expire(&mut self, now: Instant, drained: &mut Drained<T>) {
        let timeout = self.config.delivery_timeout;
        let mut freed = (0, 0);
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
                freed = (freed.0 + 1, freed.1 + pending.size());
                drained.reports.extend(pending.refused(&queue.name, error));
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

    /// Gives up everything that is not in flight, because of `error`.
    pub(crate) fn give_up(&mut self, error: &ClientError) -> Vec<Report<T>> {
        let mut reports = Vec::new();
        let mut freed = (0, 0);
        for queue in self.topics.values_mut() {
            for pending in std::mem::take(&mut queue.pending) {
                freed = (freed.0 + 1, freed.1 + pending.size());
                reports.extend(pending.refused(&queue.name, error.clone()));
            }
            for (index, partition) in queue.partitions.iter_mut().enumerate() {
                for batch in std::mem::take(&mut partition.batches) {
                    partition.needs_new_id |= batch.sequence.is_some();
                    freed = (freed.0 + batch.count as usize, freed.1 + batch.bytes);
                    reports.extend(batch.report(&queue.name, index as i32, Err(error.clone())));
                }
            }
        }
        self.release(freed.0, freed.1);
        reports
    }
}
