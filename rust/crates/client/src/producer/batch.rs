//! A batch on its way: records gathered, encoded once, sent until acknowledged or given up.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use logcore_records::{BatchBuilder, set_producer_state_in_place};

use crate::error::{ClientError, Result};

/// The identity of an idempotent producer (KIP-98).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProducerId {
    pub(crate) id: i64,
    pub(crate) epoch: i16,
}

/// A producer's identity and the number of a batch's first record under it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sequence {
    pub(crate) producer: ProducerId,
    pub(crate) base: i32,
}

/// A record whose fate someone wants to know.
#[derive(Debug)]
pub struct Tracked<T> {
    /// Position in its batch.
    pub index: u32,
    /// Create time in milliseconds since the epoch.
    pub timestamp: i64,
    /// What the caller attached.
    pub context: T,
}

/// What became of the records of one batch (or of some of them) that someone wants to know about.
#[derive(Debug)]
pub struct Report<T> {
    pub topic: Arc<str>,
    pub partition: i32,
    /// Offset of the batch's first record; negative when unknown.
    pub base_offset: i64,
    /// The broker's append time in milliseconds, -1 when the records keep their own.
    pub append_time: i64,
    /// Why the records were not written; `None` when they were.
    pub error: Option<ClientError>,
    /// When the batch was begun.
    pub begun: Instant,
    pub records: std::vec::IntoIter<Tracked<T>>,
}

/// How far a batch's records have come towards the wire.
#[derive(Debug)]
enum Content {
    Open(BatchBuilder),
    Encoded(Bytes),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Batch<T> {
    /// Grows with every batch of a producer; says which of two batches of a partition is older.
    pub(crate) id: u64,
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
    pub(crate) fn new(id: u64, builder: BatchBuilder, now: Instant) -> Self {
        Self {
            id,
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

    /// The builder, while nothing of the batch was encoded yet.
    pub(crate) fn open(&mut self) -> Option<&mut BatchBuilder> {
        match &mut self.content {
            Content::Open(builder) => Some(builder),
            Content::Encoded(_) => None,
        }
    }

    /// Whether records may still join: nobody has tried to send the batch, so its count is in no sequence number.
    pub(crate) fn is_open(&self) -> bool {
        self.attempts == 0 && matches!(self.content, Content::Open(_))
    }

    /// The bytes to send. Compresses at the first call; a sequence given anew is written into the bytes already made.
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

    /// Gives an attempted batch to another producer identity (or the same with another sequence).
    pub(crate) fn renumber(&mut self, sequence: Sequence) {
        self.sequence = Some(sequence);
        if let Content::Encoded(bytes) = &mut self.content {
            let mut batch = Vec::from(std::mem::take(bytes));
            let producer = sequence.producer;
            set_producer_state_in_place(&mut batch, producer.id, producer.epoch, sequence.base);
            *bytes = Bytes::from(batch);
        }
    }

    /// The report for those who asked; `None` when nobody did.
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
