//! A batch of records: gathered, encoded once, sent until acknowledged or given up; split when it is too
//! large.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use logcore_records::{Batch as EncodedBatch, BatchBuilder, RecordError, set_producer_state_in_place};

use super::record::NewRecord;
use super::report::{Report, Tracked};
use crate::config::ProducerConfig;
use crate::error::{ClientError, Result};

/// The identity of an idempotent producer (KIP-98).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProducerId {
    pub(crate) id: i64,
    pub(crate) epoch: i16,
}

/// A producer's identity, and the number of a batch's first record under it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sequence {
    pub(crate) producer: ProducerId,
    pub(crate) base: i32,
}

impl Sequence {
    /// The sequence of the record after `count` others. Numbers go from 0 to `i32::MAX` and around.
    pub(crate) fn after(self, count: u32) -> Self {
        let base = ((i64::from(self.base) + i64::from(count)) % (1 << 31)) as i32;
        Self { base, ..self }
    }
}

/// More than any batch of a producer has before compression.
const DECOMPRESSED_MAX: usize = 1 << 30;

#[derive(Debug)]
enum Content {
    Open(BatchBuilder),
    Encoded(Bytes),
}

/// Orders the batches of a partition: the number of the batch that the records were gathered in, and the
/// position of the first one in it. The second tells the parts of a split batch apart.
pub(crate) type BatchOrder = (u64, u32);

/// See the module.
#[derive(Debug)]
pub(crate) struct Batch<T> {
    pub(crate) order: BatchOrder,
    pub(crate) begun: Instant,
    pub(crate) attempts: u32,
    pub(crate) sequence: Option<Sequence>,
    pub(crate) count: u32,
    /// Bytes of its records, for the queue's limit.
    pub(crate) bytes: usize,
    pub(crate) tracked: Vec<Tracked<T>>,
    pub(crate) last_failure: Option<ClientError>,
    content: Content,
}

impl<T> Batch<T> {
    pub(crate) fn new(number: u64, builder: BatchBuilder, now: Instant) -> Self {
        Self {
            order: (number, 0),
            begun: now,
            attempts: 0,
            sequence: None,
            count: 0,
            bytes: 0,
            tracked: Vec::new(),
            last_failure: None,
            content: Content::Open(builder),
        }
    }

    /// Whether records may still join. Once sending was tried, its sequence counts its records.
    pub(crate) fn is_open(&self) -> bool {
        self.attempts == 0 && matches!(self.content, Content::Open(_))
    }

    /// The bytes to send. The first call compresses them.
    pub(crate) fn encode(&mut self) -> Result<Bytes> {
        if let Content::Open(builder) = &mut self.content {
            if let Some(sequence) = self.sequence {
                let producer = sequence.producer;
                builder.set_producer_state(producer.id, producer.epoch, sequence.base);
            }
            let batch = builder.build().map_err(|error| ClientError::BadData {
                what: format!("building a batch: {error}"),
            })?;
            self.content = Content::Encoded(Bytes::from(batch));
        }
        match &self.content {
            Content::Encoded(bytes) => Ok(bytes.clone()),
            Content::Open(_) => Ok(Bytes::new()),
        }
    }

    /// Gives the batch another sequence, in its encoded bytes as well.
    pub(crate) fn renumber(&mut self, sequence: Sequence) {
        self.sequence = Some(sequence);
        if let Content::Encoded(bytes) = &mut self.content {
            let mut batch = Vec::from(std::mem::take(bytes));
            let producer = sequence.producer;
            set_producer_state_in_place(&mut batch, producer.id, producer.epoch, sequence.base);
            *bytes = Bytes::from(batch);
        }
    }

    /// Splits a batch that the broker refused as too large (KIP-126) into two of about equal bytes.
    ///
    /// The parts keep the batch's sequence numbers, so that the broker sees no gap. A batch that was tried
    /// several times may have been written by an earlier attempt; its parts keep the count, which rules out a
    /// new producer id.
    ///
    /// # Errors
    /// The batch, and why its bytes do not decode: a fault of this program.
    pub(crate) fn split(
        mut self,
        config: &ProducerConfig,
    ) -> std::result::Result<[Self; 2], (Box<Self>, ClientError)> {
        let (mut front, mut back) = match self.split_records(config) {
            Ok(parts) => parts,
            Err(error) => return Err((Box::new(self), error)),
        };
        for mut tracked in self.tracked {
            if tracked.index < front.count {
                front.tracked.push(tracked);
            } else {
                tracked.index -= front.count;
                back.tracked.push(tracked);
            }
        }
        Ok([front, back])
    }

    /// The two parts, without the tracked records.
    fn split_records(&mut self, config: &ProducerConfig) -> Result<(Self, Self)> {
        let encoded = self.encode()?;
        let failed = |error| ClientError::BadData {
            what: format!("splitting a batch: {error}"),
        };
        let batch = EncodedBatch::parse(&encoded).map_err(failed)?;
        let mut decompressed = Vec::new();
        let half = self.bytes / 2;
        let (mut front, mut back) = (self.empty_part(config), self.empty_part(config));
        for record in batch
            .records_in(&mut decompressed, DECOMPRESSED_MAX)
            .map_err(failed)?
        {
            let record = record.map_err(failed)?;
            let headers: Vec<_> = record.headers().collect();
            let record = NewRecord {
                partition: None,
                key: record.key,
                value: record.value,
                headers: &headers,
                timestamp: record.timestamp,
            };
            // Each part gets a record at least.
            let fits = front.bytes + record.size() <= half && front.count + 1 < self.count;
            if back.count == 0 && (front.count == 0 || fits) {
                front.append(&record).map_err(failed)?;
            } else {
                back.append(&record).map_err(failed)?;
            }
        }
        back.order.1 += front.count;
        front.sequence = self.sequence;
        back.sequence = self.sequence.map(|sequence| sequence.after(front.count));
        // Encoded now, so that no record joins them.
        front.encode()?;
        back.encode()?;
        Ok((front, back))
    }

    fn empty_part(&self, config: &ProducerConfig) -> Self {
        let mut part = Self::new(self.order.0, config.batch_builder(), self.begun);
        part.order = self.order;
        part.attempts = if self.attempts > 1 { self.attempts } else { 0 };
        part.last_failure.clone_from(&self.last_failure);
        part
    }

    /// Appends to an open batch; returns the record's position.
    pub(super) fn append(&mut self, record: &NewRecord<'_>) -> std::result::Result<u32, RecordError> {
        let Content::Open(builder) = &mut self.content else {
            return Ok(0);
        };
        let index = builder.append(record.timestamp, record.key, record.value, record.headers)?;
        self.count += 1;
        self.bytes += record.size();
        Ok(index.unsigned_abs())
    }

    /// The report of the tracked records; `None` when there are none.
    pub(crate) fn report(
        self,
        topic: &Arc<str>,
        partition: i32,
        outcome: std::result::Result<(i64, i64), ClientError>,
    ) -> Option<Report<T>> {
        if self.tracked.is_empty() {
            return None;
        }
        let (base_offset, append_time, error) = match outcome {
            Ok((base_offset, append_time)) => (base_offset, append_time, None),
            Err(error) => (-1, -1, Some(error)),
        };
        Some(Report {
            topic: Arc::clone(topic),
            partition,
            base_offset,
            append_time,
            error,
            begun: self.begun,
            records: self.tracked.into_iter(),
        })
    }
}
