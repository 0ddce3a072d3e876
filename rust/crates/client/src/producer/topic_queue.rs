//! One topic's partitions with their batches: which partition a record goes to, and why a topic is missing.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use logcore_protocol::ErrorCode;

use super::batch::Batch;
use super::partition_queue::PartitionQueue;
use super::record::{NewRecord, PendingRecord};
use super::report::Tracked;
use crate::config::ProducerConfig;
use crate::error::ClientError;
use crate::metadata::Topic;
use crate::partitioner::Random;
use crate::reporter::Lasting;

/// See the module.
#[derive(Debug)]
pub(super) struct TopicQueue<T> {
    pub(super) name: Arc<str>,
    pub(super) partitions: Vec<PartitionQueue<T>>,
    /// Records that wait for the partitions to be known.
    pub(super) pending: VecDeque<PendingRecord<T>>,
    pub(super) missing: Option<Missing>,
    /// Failures of the topic that are tried again.
    pub(super) lasting: Lasting,
    /// The partition that records without a key go to, and until when.
    sticky: Option<(i32, Instant)>,
    pub(super) limit: BatchLimit,
}

/// The size of a topic's new batches: `batch.size`, or less once the broker has refused a batch.
///
/// Doubles after every `grow_after` acknowledged batches of about that size, because `max.message.bytes` may
/// have been raised. A refused growth doubles `grow_after`, so that refusals become rare.
#[derive(Debug)]
pub(super) struct BatchLimit {
    bytes: usize,
    bytes_max: usize,
    /// Batches of about this size that were acknowledged.
    written: u32,
    grow_after: u32,
    /// The last change was a growth.
    grown: bool,
}

/// Acknowledged batches before the limit doubles, at first and at most.
const GROW_AFTER: u32 = 50;
const GROW_AFTER_MAX: u32 = 50 << 5;

impl BatchLimit {
    fn new(bytes_max: usize) -> Self {
        Self {
            bytes: bytes_max,
            bytes_max,
            written: 0,
            grow_after: GROW_AFTER,
            grown: false,
        }
    }

    /// The broker has refused a batch: new ones are not larger than `bytes`, the larger one of its halves.
    pub(super) fn refused(&mut self, bytes: usize) {
        if self.grown {
            self.grow_after = (self.grow_after * 2).min(GROW_AFTER_MAX);
        }
        self.bytes = self.bytes.min(bytes.max(1));
        self.written = 0;
        self.grown = false;
    }

    /// A batch of so many bytes was written.
    pub(super) fn written(&mut self, bytes: usize) {
        if self.bytes >= self.bytes_max || bytes < self.bytes / 2 {
            return;
        }
        self.written += 1;
        if self.written >= self.grow_after {
            if self.grown {
                // The last growth was not refused.
                self.grow_after = GROW_AFTER;
            }
            self.bytes = (self.bytes * 2).min(self.bytes_max);
            self.written = 0;
            self.grown = true;
        }
    }
}

/// Why records of a topic are refused.
#[derive(Debug)]
pub(super) struct Missing {
    pub(super) error: ClientError,
    /// Since when the cluster has said so.
    pub(super) since: Instant,
}

impl Missing {
    /// Whether records are refused now. A topic that was just created may not be known to every broker yet,
    /// so an unknown one has `propagation` to appear.
    pub(super) fn is_final(&self, now: Instant, propagation: Duration) -> bool {
        !matches!(self.error, ClientError::UnknownTopic(_)) || now.duration_since(self.since) >= propagation
    }
}

/// What appending a record needs besides its topic.
pub(super) struct Appender<'a> {
    pub(super) config: &'a ProducerConfig,
    pub(super) random: &'a mut Random,
    pub(super) next_batch: &'a mut u64,
}

/// Why a record was not taken, with its context.
pub(super) type Refused<T> = (ClientError, Option<T>);

impl<T> TopicQueue<T> {
    pub(super) fn new(name: Arc<str>, config: &ProducerConfig) -> Self {
        Self {
            name,
            partitions: Vec::new(),
            pending: VecDeque::new(),
            missing: None,
            lasting: Lasting::default(),
            sticky: None,
            limit: BatchLimit::new(config.batch_bytes),
        }
    }

    /// Appends to the partition's open batch. `true` when the sender must look: a batch was begun, or is
    /// full.
    pub(super) fn append(
        &mut self,
        appender: Appender<'_>,
        record: &NewRecord<'_>,
        context: Option<T>,
        now: Instant,
    ) -> std::result::Result<bool, Refused<T>> {
        let Appender {
            config,
            random,
            next_batch,
        } = appender;
        let (size, batch_bytes) = (record.size(), self.limit.bytes);
        let id = self.choose_partition(config, random, record, now);
        let partition = usize::try_from(id)
            .ok()
            .and_then(|index| self.partitions.get_mut(index));
        let Some(partition) = partition else {
            let topic = self.name.to_string();
            return Err((ClientError::UnknownPartition { topic, partition: id }, context));
        };
        let fits = partition.batches.back().is_some_and(|batch| {
            batch.is_open()
                && batch.bytes + size <= batch_bytes
                && (batch.count as usize) < config.batch_messages
        });
        if !fits {
            *next_batch += 1;
            partition
                .batches
                .push_back(Batch::new(*next_batch, config.batch_builder(), now));
        }
        let Some(batch) = partition.batches.back_mut() else {
            return Ok(false);
        };
        match batch.append(record) {
            Ok(index) => {
                if let Some(context) = context {
                    batch.tracked.push(Tracked {
                        index,
                        timestamp: record.timestamp,
                        context,
                    });
                }
                Ok(!fits || is_full(batch, config, batch_bytes))
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

    fn choose_partition(
        &mut self,
        config: &ProducerConfig,
        random: &mut Random,
        record: &NewRecord<'_>,
        now: Instant,
    ) -> i32 {
        let count = self.partitions.len() as i32;
        if let Some(id) = record.partition {
            return id;
        }
        if let Some(id) = config.partitioner.partition(record.key, count) {
            return id;
        }
        match self.sticky {
            Some((id, until)) if now < until && id < count => id,
            _ => {
                let id = random.below(count);
                self.sticky = Some((id, now + config.sticky_linger));
                id
            }
        }
    }

    /// Whether a batch need not wait for more records.
    pub(super) fn is_ready(&self, batch: &Batch<T>, config: &ProducerConfig, now: Instant) -> bool {
        !batch.is_open()
            || is_full(batch, config, self.limit.bytes)
            || now.duration_since(batch.begun) >= config.linger
    }

    /// Notes why the topic has no partitions; returns the failure once it lasts.
    pub(super) fn note_missing(&mut self, topic: &Topic, now: Instant) -> Option<ClientError> {
        let code = topic.error;
        let answered = ClientError::Broker {
            code,
            what: format!("topic {:?}", &*self.name),
        };
        let error = match ErrorCode(code) {
            ErrorCode::UNKNOWN_TOPIC_OR_PARTITION => ClientError::UnknownTopic(self.name.to_string()),
            // In creation.
            ErrorCode::NONE => return None,
            code if code.is_retriable() => {
                return self.lasting.tried_again("Metadata", &answered, now);
            }
            _ => answered,
        };
        let since = self.missing.as_ref().map_or(now, |missing| missing.since);
        self.missing = Some(Missing { error, since });
        None
    }
}

fn is_full<T>(batch: &Batch<T>, config: &ProducerConfig, batch_bytes: usize) -> bool {
    batch.bytes >= batch_bytes || batch.count as usize >= config.batch_messages
}
