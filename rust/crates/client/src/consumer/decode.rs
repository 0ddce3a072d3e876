//! From fetched bytes to messages, one batch at a time and only when the application asks.
//!
//! A message keeps ranges into its batch's buffer (the response, or the decompressed records) and shares the
//! buffer, so no key or value is copied. Control batches are skipped, and under `read_committed` the batches
//! of aborted transactions (KIP-98).

use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use logcore_records::{Batch, Record, RecordError, TimestampType, legacy};

use crate::error::{ClientError, Result};

/// A batch that decompresses to more is refused as damaged.
const BATCH_BYTES_MAX: usize = 1 << 30;
/// The type of an abort marker, in a control record's key.
const ABORT_MARKER: i16 = 0;

/// What the messages of one batch share.
#[derive(Debug)]
pub struct FetchedBatch {
    pub topic: Arc<str>,
    pub partition: i32,
    /// -1 when unknown.
    pub leader_epoch: i32,
    /// Whether timestamps are the broker's append time.
    pub append_time: bool,
    buffer: Bytes,
}

type Span = Range<u32>;
type HeaderSpans = Box<[(Span, Option<Span>)]>;

/// One message. Cheap to clone; keeps its batch's buffer alive.
#[derive(Debug, Clone)]
pub struct Message {
    pub batch: Arc<FetchedBatch>,
    pub offset: i64,
    /// Milliseconds since the epoch, -1 for none.
    pub timestamp: i64,
    key: Option<Span>,
    value: Option<Span>,
    headers: Option<HeaderSpans>,
}

impl Message {
    /// The key's bytes.
    #[must_use]
    pub fn key(&self) -> Option<&[u8]> {
        self.key.as_ref().map(|span| self.bytes(span))
    }

    /// The value's bytes; `None` is a tombstone.
    #[must_use]
    pub fn value(&self) -> Option<&[u8]> {
        self.value.as_ref().map(|span| self.bytes(span))
    }

    /// The headers in their order.
    pub fn headers(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        let headers = self.headers.as_deref().unwrap_or_default().iter();
        headers.map(|(key, value)| (self.bytes(key), value.as_ref().map(|span| self.bytes(span))))
    }

    fn bytes(&self, span: &Span) -> &[u8] {
        self.batch
            .buffer
            .get(span.start as usize..span.end as usize)
            .unwrap_or_default()
    }
}

/// An aborted transaction in a Fetch response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Aborted {
    pub(crate) producer_id: i64,
    pub(crate) first_offset: i64,
}

/// The bytes of one partition of one Fetch response, read batch by batch.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) topic: Arc<str>,
    pub(crate) partition: i32,
    bytes: Bytes,
    /// The messages of a message set (v0 or v1), copied when it arrived.
    old: Option<VecDeque<Message>>,
    /// The offset asked for. Its batch may begin before it; those records are left out.
    from: i64,
    check_crcs: bool,
    /// Aborted transactions that begin later, by first offset; empty unless `read_committed`.
    aborted: VecDeque<Aborted>,
    /// Producers whose current transaction is aborted.
    aborting: HashSet<i64>,
}

impl Chunk {
    pub(crate) fn new(
        topic: Arc<str>,
        partition: i32,
        bytes: Bytes,
        from: i64,
        check_crcs: bool,
        mut aborted: Vec<Aborted>,
    ) -> Result<Self> {
        let mut old = None;
        let mut bytes = bytes;
        if legacy::is_legacy(&bytes) {
            old = Some(read_old(&topic, partition, &bytes, from)?);
            bytes = Bytes::new();
        }
        aborted.sort_unstable_by_key(|aborted| aborted.first_offset);
        let aborted = aborted.into();
        Ok(Self {
            topic,
            partition,
            bytes,
            old,
            from,
            check_crcs,
            aborted,
            aborting: HashSet::new(),
        })
    }

    /// Drops the batches that were not read yet.
    pub(crate) fn discard(&mut self) {
        self.bytes = Bytes::new();
        self.old = None;
    }

    /// Bytes not read yet.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The offset after the last whole batch; `None` when there is none.
    pub(crate) fn next_offset(&self) -> Option<i64> {
        if let Some(old) = &self.old {
            return old.back().map(|message| message.offset + 1);
        }
        let batches = logcore_records::batches(&self.bytes);
        batches
            .map_while(std::result::Result::ok)
            .last()
            .map(|batch| batch.header.next_offset())
    }

    /// The messages of the next batch that has any; `None` at the end.
    ///
    /// # Errors
    /// [`ClientError::BadData`], naming the offset of the batch that is damaged.
    pub(crate) fn next_batch(&mut self) -> Option<Result<VecDeque<Message>>> {
        if let Some(old) = self.old.take() {
            return (!old.is_empty()).then_some(Ok(old));
        }
        loop {
            let bytes = self.bytes.clone();
            let batch = match logcore_records::batches(&bytes).next()? {
                Ok(batch) => batch,
                Err(error) => {
                    // Nothing says where the next batch begins.
                    self.discard();
                    return Some(Err(self.damaged(self.from, &error)));
                }
            };
            self.bytes = self.bytes.slice(batch.bytes.len()..);
            match self.read(&bytes, &batch) {
                Ok(messages) if messages.is_empty() => {}
                Ok(messages) => return Some(Ok(messages)),
                Err(error) => return Some(Err(self.damaged(batch.header.base_offset, &error))),
            }
        }
    }

    fn damaged(&self, offset: i64, error: &RecordError) -> ClientError {
        let what = format!(
            "{}-{}: the batch at offset {offset} is damaged: {error}",
            self.topic, self.partition
        );
        ClientError::BadData { what }
    }

    fn read(
        &mut self,
        bytes: &Bytes,
        batch: &Batch<'_>,
    ) -> std::result::Result<VecDeque<Message>, RecordError> {
        let header = &batch.header;
        if self.check_crcs {
            batch.verify_crc()?;
        }
        while let Some(aborted) = self
            .aborted
            .pop_front_if(|aborted| aborted.first_offset <= header.last_offset())
        {
            self.aborting.insert(aborted.producer_id);
        }
        if header.is_control() {
            if is_abort_marker(batch)? {
                self.aborting.remove(&header.producer_id);
            }
            return Ok(VecDeque::new());
        }
        if header.is_transactional() && self.aborting.contains(&header.producer_id) {
            return Ok(VecDeque::new());
        }
        let mut decompressed = Vec::new();
        let count = usize::try_from(header.record_count).unwrap_or_default();
        // The count is the producer's word; reading refuses a wrong one.
        let mut raw = VecDeque::with_capacity(count.min(1 << 16));
        for record in batch.records_in(&mut decompressed, BATCH_BYTES_MAX)? {
            let record = record?;
            if record.offset >= self.from {
                raw.push_back(Raw::of(&record));
            }
        }
        let buffer = if decompressed.is_empty() {
            bytes.slice(..batch.bytes.len())
        } else {
            Bytes::from(decompressed)
        };
        let batch = Arc::new(FetchedBatch {
            topic: Arc::clone(&self.topic),
            partition: self.partition,
            leader_epoch: header.partition_leader_epoch,
            append_time: header.timestamp_type() == TimestampType::LogAppendTime,
            buffer,
        });
        Ok(raw.into_iter().map(|raw| raw.into_message(&batch)).collect())
    }
}

/// The address and the number of bytes.
type Address = (usize, usize);

/// A record by the addresses of its parts, until its buffer can be shared.
struct Raw {
    offset: i64,
    timestamp: i64,
    key: Option<Address>,
    value: Option<Address>,
    headers: Vec<(Address, Option<Address>)>,
}

fn address(bytes: &[u8]) -> Address {
    (bytes.as_ptr() as usize, bytes.len())
}

impl Raw {
    fn of(record: &Record<'_>) -> Self {
        let headers = record.headers();
        let headers = if headers.is_empty() {
            Vec::new()
        } else {
            headers
                .map(|(key, value)| (address(key), value.map(address)))
                .collect()
        };
        Self {
            offset: record.offset,
            timestamp: record.timestamp,
            key: record.key.map(address),
            value: record.value.map(address),
            headers,
        }
    }

    /// Turns addresses into ranges of the batch's buffer. A range outside of the buffer reads as empty.
    fn into_message(self, batch: &Arc<FetchedBatch>) -> Message {
        let base = batch.buffer.as_ptr() as usize;
        let span = |(start, len): Address| {
            let start = start.wrapping_sub(base) as u32;
            start..start.wrapping_add(len as u32)
        };
        let headers = (!self.headers.is_empty()).then(|| {
            let headers = self.headers.into_iter();
            headers
                .map(|(key, value)| (span(key), value.map(span)))
                .collect::<HeaderSpans>()
        });
        Message {
            batch: Arc::clone(batch),
            offset: self.offset,
            timestamp: self.timestamp,
            key: self.key.map(span),
            value: self.value.map(span),
            headers,
        }
    }
}

/// A control record's key has a version and a type, two bytes each.
fn is_abort_marker(batch: &Batch<'_>) -> std::result::Result<bool, RecordError> {
    let records = batch.records(BATCH_BYTES_MAX)?;
    let Some(record) = records.iter().next() else {
        return Ok(false);
    };
    let key = record?.key.unwrap_or_default();
    Ok(key.get(2..4) == Some(&ABORT_MARKER.to_be_bytes()))
}

/// Reads a message set of version 0 or 1. Copies its messages, because each compressed one has its own
/// buffer.
fn read_old(topic: &Arc<str>, partition: i32, bytes: &[u8], from: i64) -> Result<VecDeque<Message>> {
    type Part = Option<(usize, usize)>;
    let mut buffer = Vec::new();
    let mut parts: Vec<(i64, i64, bool, Part, Part)> = Vec::new();
    let mut copy = |bytes: Option<&[u8]>| {
        bytes.map(|bytes| {
            buffer.extend_from_slice(bytes);
            (buffer.len() - bytes.len(), buffer.len())
        })
    };
    legacy::for_each(bytes, BATCH_BYTES_MAX, |message| {
        if message.offset >= from {
            let append_time = message.timestamp_type == TimestampType::LogAppendTime;
            let (key, value) = (copy(message.key), copy(message.value));
            parts.push((message.offset, message.timestamp, append_time, key, value));
        }
        Ok(())
    })
    .map_err(|error| ClientError::BadData {
        what: format!("{topic}-{partition}: an old message set: {error}"),
    })?;
    let append_time = parts.iter().any(|part| part.2);
    let batch = Arc::new(FetchedBatch {
        topic: Arc::clone(topic),
        partition,
        leader_epoch: -1,
        append_time,
        buffer: Bytes::from(buffer),
    });
    let span = |(start, end): (usize, usize)| start as u32..end as u32;
    let messages = parts
        .into_iter()
        .map(|(offset, timestamp, _, key, value)| Message {
            batch: Arc::clone(&batch),
            offset,
            timestamp,
            key: key.map(span),
            value: value.map(span),
            headers: None,
        });
    Ok(messages.collect())
}
