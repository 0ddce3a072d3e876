//! Decodes batches of bytes, in order, into the columns.
//!
//! A batch is processed in this order, so that unwanted batches cost little: header, offset range, checksum,
//! control flag, decompression, records. Messages of the formats 0 and 1 in old logs are decoded by a
//! function of their own into the same rows. An incomplete batch at the end of the bytes is left to the
//! caller.

use std::collections::VecDeque;
use std::path::PathBuf;

use arrow_array::RecordBatch;
use logcore_records::{Batch, BatchHeader, Headers, LOG_OVERHEAD, RecordError, TimestampType, legacy};

use logcore_storage::IsolationLevel;

use crate::aborted::{Aborted, AbortedTransaction};
use crate::error::ColumnsError;
use crate::rows::{Row, Rows, header_bytes};
use crate::schema::Projection;

/// Most bytes that one batch may decompress to. Kafka's consumers have no limit. This one keeps a forged
/// batch from using up the machine's memory, and is far above what `max.request.size` lets a producer send.
const DECOMPRESSED_LIMIT: usize = 1 << 30;

/// The position of the magic byte, in record batches and in the older messages.
const MAGIC_AT: usize = 16;

/// Which rows to build, with which columns.
#[derive(Debug, Clone)]
pub struct DecodeOptions {
    pub projection: Projection,
    pub topic: String,
    pub partition: i32,
    /// First offset wanted.
    pub start: i64,
    /// The offset after the last one wanted.
    pub end: i64,
    /// The earliest time wanted, in milliseconds since the epoch. Every record's time is checked, because
    /// times need not rise with offsets.
    pub start_time: i64,
    /// The time after the last one wanted; `None` for no end.
    pub end_time: Option<i64>,
    /// Rows of an Arrow batch. The last batch may have fewer, and so may one that reached `batch_bytes`.
    pub batch_rows: usize,
    /// Most bytes of keys, values and headers in an Arrow batch, unless one record is larger; at most 64 MiB.
    pub batch_bytes: usize,
    /// Transactions whose records are left out.
    pub aborted: Vec<AbortedTransaction>,
    /// Whether a scan ends at the last stable offset and leaves out the transactions that the log knows as
    /// aborted. Of no effect on fetched batches, whose aborted transactions are in `aborted`.
    pub isolation: IsolationLevel,
}

impl DecodeOptions {
    /// The default number of rows of an Arrow batch.
    pub const BATCH_ROWS: usize = 65_536;

    /// The default for the bytes of an Arrow batch. Larger batches take new memory from the kernel each time:
    /// 64 MiB were half as fast.
    pub const BATCH_BYTES: usize = 4 << 20;

    /// Options for all records of a partition.
    pub fn new(projection: Projection, topic: &str, partition: i32) -> Self {
        Self {
            projection,
            topic: topic.to_owned(),
            partition,
            start: 0,
            end: i64::MAX,
            start_time: i64::MIN,
            end_time: None,
            batch_rows: Self::BATCH_ROWS,
            batch_bytes: Self::BATCH_BYTES,
            aborted: Vec::new(),
            isolation: IsolationLevel::ReadUncommitted,
        }
    }

    /// Whether there is a limit on times.
    pub(crate) fn has_times(&self) -> bool {
        self.start_time > i64::MIN || self.end_time.is_some()
    }

    pub(crate) fn check(&self) -> Result<(), ColumnsError> {
        if self.start < 0 || self.end < self.start {
            return Err(ColumnsError::BadRange {
                start: self.start,
                end: self.end,
            });
        }
        if let Some(end) = self.end_time.filter(|end| *end < self.start_time) {
            return Err(ColumnsError::BadTimes {
                start: self.start_time,
                end,
            });
        }
        Ok(())
    }
}

/// The rows of some fetched bytes.
#[derive(Debug)]
pub struct Decoded {
    pub batches: Vec<RecordBatch>,
    /// The offset to fetch from next: the one after the last whole batch, or `start` when there was none.
    pub next_offset: i64,
}

/// Decodes the records field of a Fetch response: whole batches, perhaps followed by a part of one.
///
/// # Errors
/// A damaged batch, named by its position in `bytes`; an invalid range.
pub fn decode_batches(bytes: &[u8], options: &DecodeOptions) -> Result<Decoded, ColumnsError> {
    options.check()?;
    let origin = Origin::Fetch {
        topic: options.topic.clone(),
        partition: options.partition,
    };
    let mut decoder = Decoder::new(options, origin);
    decoder.feed(bytes, 0)?;
    decoder.flush()?;
    Ok(Decoded {
        batches: decoder.finished.into(),
        next_offset: decoder.next_offset,
    })
}

/// Where bytes came from, for messages.
pub(crate) enum Origin {
    Fetch { topic: String, partition: i32 },
    Directory(PathBuf),
}

impl Origin {
    fn corrupt(&self, offset: i64, position: u64, error: &RecordError) -> ColumnsError {
        let reason = error.to_string();
        match self {
            Origin::Fetch { topic, partition } => ColumnsError::CorruptFetch {
                topic: topic.clone(),
                partition: *partition,
                position,
                reason,
            },
            Origin::Directory(path) => ColumnsError::CorruptSegment {
                path: path.clone(),
                offset,
                position,
                reason,
            },
        }
    }
}

/// The times wanted, `[start, end)`. Without an end, the largest time is wanted too.
#[derive(Debug, Clone, Copy)]
struct Times {
    start: i64,
    end: Option<i64>,
}

impl Times {
    fn contains(self, timestamp: i64) -> bool {
        timestamp >= self.start && self.end.is_none_or(|end| timestamp < end)
    }
}

/// Turns bytes, given piece by piece, into finished Arrow batches.
pub(crate) struct Decoder {
    rows: Rows,
    end: i64,
    times: Times,
    aborted: Aborted,
    scratch: Vec<u8>,
    origin: Origin,
    /// Records below this offset were decoded already, or are not wanted.
    pub(crate) next_offset: i64,
    pub(crate) finished: VecDeque<RecordBatch>,
}

impl Decoder {
    pub(crate) fn new(options: &DecodeOptions, origin: Origin) -> Self {
        Self {
            rows: Rows::new(
                options.projection.clone(),
                &options.topic,
                options.partition,
                options.batch_rows,
                options.batch_bytes,
            ),
            end: options.end,
            times: Times {
                start: options.start_time,
                end: options.end_time,
            },
            aborted: Aborted::new(&options.aborted),
            scratch: Vec::new(),
            origin,
            next_offset: options.start,
            finished: VecDeque::new(),
        }
    }

    /// Whether nothing more is wanted.
    pub(crate) fn is_done(&self) -> bool {
        self.next_offset >= self.end
    }

    /// Decodes the whole batches at the front of `bytes` and returns their size. `bytes` lie at `position` of
    /// their origin.
    pub(crate) fn feed(&mut self, bytes: &[u8], position: u64) -> Result<usize, ColumnsError> {
        let mut consumed = 0;
        while !self.is_done() {
            let rest = &bytes[consumed..];
            match self.feed_entry(rest) {
                Ok(Some(size)) => consumed += size,
                Ok(None) => break,
                Err(Failure::Columns(error)) => return Err(error),
                Err(Failure::Record(error)) => {
                    let position = position + consumed as u64;
                    return Err(self.origin.corrupt(self.next_offset, position, &error));
                }
            }
        }
        Ok(consumed)
    }

    /// Finishes a batch of the rows decoded so far, if there are any.
    pub(crate) fn flush(&mut self) -> Result<(), ColumnsError> {
        if self.rows.len() > 0 {
            let batch = self.rows.take()?;
            self.finished.push_back(batch);
        }
        Ok(())
    }

    /// Decodes one batch or old message; returns its size, or `None` when it is incomplete.
    fn feed_entry(&mut self, bytes: &[u8]) -> Result<Option<usize>, Failure> {
        if legacy::is_legacy(bytes) {
            return self.feed_legacy(bytes);
        }
        let batch = match Batch::parse(bytes) {
            Ok(batch) => batch,
            Err(RecordError::Truncated { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        self.feed_batch(&batch)?;
        Ok(Some(batch.bytes.len()))
    }

    fn feed_legacy(&mut self, bytes: &[u8]) -> Result<Option<usize>, Failure> {
        let Some(size) = legacy_size(bytes)? else {
            return Ok(None);
        };
        // Format 0 has no timestamps; Kafka calls the type "none".
        let untimed = bytes[MAGIC_AT] == 0;
        let wanted = self.next_offset..self.end;
        let times = self.times;
        let mut last = None;
        let mut failed = None;
        legacy::for_each(&bytes[..size], DECOMPRESSED_LIMIT, |message| {
            last = Some(message.offset);
            let wanted = wanted.contains(&message.offset) && times.contains(message.timestamp);
            if failed.is_none() && wanted {
                let row = Row {
                    offset: message.offset,
                    timestamp: message.timestamp,
                    timestamp_type: if untimed {
                        -1
                    } else {
                        timestamp_type_id(message.timestamp_type)
                    },
                    key: message.key,
                    value: message.value,
                };
                failed = self.push(&row, Headers::EMPTY).err();
            }
            Ok(())
        })?;
        if let Some(error) = failed {
            return Err(error.into());
        }
        if let Some(last) = last {
            self.next_offset = self.next_offset.max(last.saturating_add(1));
        }
        Ok(Some(size))
    }

    fn feed_batch(&mut self, batch: &Batch<'_>) -> Result<(), Failure> {
        let header = &batch.header;
        if header.last_offset() < self.next_offset {
            return Ok(());
        }
        if header.base_offset >= self.end {
            self.next_offset = self.end;
            return Ok(());
        }
        // Checked also when the batch is then left out: damage must not look like an absence of records.
        batch.verify_crc()?;
        if self.may_have_wanted(header) {
            let mut scratch = std::mem::take(&mut self.scratch);
            let fed = self.feed_records(batch, &mut scratch);
            self.scratch = scratch;
            fed?;
        }
        self.next_offset = header.last_offset().saturating_add(1);
        Ok(())
    }

    /// Whether the batch may have wanted records, by its header. Takes note of a marker, which is not a
    /// record.
    fn may_have_wanted(&mut self, header: &BatchHeader) -> bool {
        if header.is_control() {
            self.aborted.end_at_marker(header);
            return false;
        }
        header.max_timestamp >= self.times.start && !self.aborted.contains(header)
    }

    fn feed_records(&mut self, batch: &Batch<'_>, scratch: &mut Vec<u8>) -> Result<(), Failure> {
        let wanted = self.next_offset..self.end;
        let timestamp_type = timestamp_type_id(batch.header.timestamp_type());
        let mut records = batch.records_in(scratch, DECOMPRESSED_LIMIT)?;
        if !self.rows.wants_headers() {
            records = records.without_headers();
        }
        let times = self.times;
        for record in records {
            let record = record?;
            if wanted.contains(&record.offset) && times.contains(record.timestamp) {
                let row = Row {
                    offset: record.offset,
                    timestamp: record.timestamp,
                    timestamp_type,
                    key: record.key,
                    value: record.value,
                };
                self.push(&row, record.headers())?;
            }
        }
        Ok(())
    }

    fn push(&mut self, row: &Row<'_>, headers: Headers<'_>) -> Result<(), ColumnsError> {
        let mut row_bytes = row.key.map_or(0, <[u8]>::len) + row.value.map_or(0, <[u8]>::len);
        if self.rows.wants_headers() {
            row_bytes += headers
                .map(|(key, value)| header_bytes(key, value))
                .sum::<usize>();
        }
        if !self.rows.fits(row_bytes) {
            self.flush()?;
        }
        if self.rows.wants_headers() {
            for (key, value) in headers {
                self.rows.push_header(key, value)?;
            }
        }
        self.rows.push(row)
    }
}

/// Why a batch could not be decoded: its bytes are damaged, or its rows cannot be built.
enum Failure {
    Record(RecordError),
    Columns(ColumnsError),
}

impl From<RecordError> for Failure {
    fn from(error: RecordError) -> Self {
        Failure::Record(error)
    }
}

impl From<ColumnsError> for Failure {
    fn from(error: ColumnsError) -> Self {
        Failure::Columns(error)
    }
}

/// Kafka's `TimestampType.id`.
fn timestamp_type_id(timestamp_type: TimestampType) -> i32 {
    match timestamp_type {
        TimestampType::CreateTime => 0,
        TimestampType::LogAppendTime => 1,
    }
}

/// The size of the old message at the front: offset (8 bytes), size (4), then that many bytes. `None` when it
/// is incomplete.
fn legacy_size(bytes: &[u8]) -> Result<Option<usize>, RecordError> {
    let Some(field) = bytes.get(8..LOG_OVERHEAD).and_then(|b| b.first_chunk::<4>()) else {
        return Ok(None);
    };
    let length = i32::from_be_bytes(*field);
    // CRC, magic byte, attributes, and the lengths of key and value: `LegacyRecord.RECORD_OVERHEAD_V0`.
    const MINIMUM: i32 = 14;
    if length < MINIMUM {
        return Err(RecordError::InvalidLength {
            what: "message",
            length: i64::from(length),
            minimum: i64::from(MINIMUM),
        });
    }
    let size = LOG_OVERHEAD + length as usize;
    Ok((bytes.len() >= size).then_some(size))
}
