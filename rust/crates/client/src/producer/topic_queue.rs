//! One topic's partitions: where a record goes, and what is known of a topic that is missing.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use logcore_protocol::ErrorCode;
use logcore_records::BatchBuilder;

use super::batch::{Batch, Tracked};
use super::partition_queue::PartitionQueue;
use super::partitioner::Dice;
use super::record::{NewRecord, Unplaced};
use crate::config::ProducerConfig;
use crate::error::ClientError;
use crate::metadata::Topic;
use crate::reporter::Lasting;

/// See the module.
#[derive(Debug)]
pub(super) struct TopicQueue<T> {
    pub(super) name: Arc<str>,
    pub(super) partitions: Vec<PartitionQueue<T>>,
    pub(super) unplaced: VecDeque<Unplaced<T>>,
    /// Why records of this topic are refused, and since when the cluster has said so.
    pub(super) missing: Option<(ClientError, Instant)>,
    pub(super) lasting: Lasting,
    pub(super) sticky: Option<(i32, Instant)>,
}

impl ProducerConfig {
    pub(super) fn is_full<T>(&self, batch: &Batch<T>) -> bool {
        batch.bytes >= self.batch_bytes || batch.count as usize >= self.batch_messages
    }

    pub(super) fn is_ready<T>(&self, batch: &Batch<T>, now: Instant) -> bool {
        !batch.is_open() || self.is_full(batch) || now.duration_since(batch.begun) >= self.linger
    }
}

/// What placing a record in a partition needs besides the topic.
pub(super) struct Place<'a> {
    pub(super) config: &'a ProducerConfig,
    pub(super) dice: &'a mut Dice,
    pub(super) next_id: &'a mut u64,
}

impl Place<'_> {
    /// Appends to the partition's open batch; `true` when the sender must hear of it: a batch was begun or is full.
    pub(super) fn append<T>(
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
            return Err((ClientError::UnknownPartition { topic, partition: id }, context));
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
            Some(builder) => builder.append(record.timestamp, record.key, record.value, record.headers),
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
    /// The partition that records without a key go to, until `linger` has passed and another is drawn.
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
                let lasts = self.lasting.failed(&answered, now);
                return lasts.then(|| self.lasting.report("Metadata", answered));
            }
            _ => answered,
        };
        let since = match (&self.missing, topic.error) {
            (Some((_, since)), _) => *since,
            (None, _) => now,
        };
        self.missing = Some((error, since));
        None
    }
}

/// Whether a missing topic's records are refused.
pub(super) trait GivenUp {
    fn is_given_up(&self, now: Instant, propagation: Duration) -> bool;
}

impl GivenUp for Option<(ClientError, Instant)> {
    /// A missing topic may still be on its way to the broker asked; an error that does not pass counts at once.
    fn is_given_up(&self, now: Instant, propagation: Duration) -> bool {
        self.as_ref().is_some_and(|(error, since)| {
            !matches!(error, ClientError::UnknownTopic(_)) || now.duration_since(*since) >= propagation
        })
    }
}
