//! What a leader accepts, and what it writes into the batches (`LogValidator`,
//! `UnifiedLog.analyzeAndValidateRecords`).
//!
//! Pure: reads bytes, changes them in place, does no I/O. The checks run before the writer lock is taken. The
//! header of a batch is parsed once, into [`ParsedBatches`]; every later step, from here to the indexes, uses
//! that header. The records of a batch are read once. The largest timestamp of a batch is then that of its
//! records, whatever its header says.

pub(crate) mod recompress;
mod record_check;

use logcore_records::{
    Batch, BatchHeader, Compression, EndTxnMarker, Limits, Offload, RecordError, TimestampType, batches,
    max_timestamp_of, set_create_time_in_place, set_log_append_time_in_place, set_max_timestamp_in_place,
    set_offsets_in_place,
};
use smallvec::SmallVec;

use crate::clock::Now;
use crate::config::{DECOMPRESSED_MAX, LogConfig};
use crate::error::{Result, StorageError};
use crate::producers::Origin;
use crate::producers::verification::Verification;

type Headers = SmallVec<[BatchHeader; 1]>;

/// The headers of whole v2 batches that follow each other in memory. Nothing is checked yet but their lengths
/// and magic bytes.
#[derive(Debug, Clone, Default)]
pub struct ParsedBatches {
    headers: Headers,
    size: usize,
}

impl ParsedBatches {
    /// Parses all of `bytes`.
    ///
    /// Errors: [`StorageError::CorruptBatch`], also for bytes that are no whole batch, and
    /// [`StorageError::UnsupportedFormat`].
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut parsed = Self::default();
        for batch in batches(bytes) {
            let batch = batch.map_err(|error| StorageError::from_record(parsed.size, &error))?;
            parsed.push(batch.header);
        }
        if parsed.size == bytes.len() {
            return Ok(parsed);
        }
        Err(StorageError::CorruptBatch {
            position: parsed.size,
            reason: format!("{} bytes are no whole batch", bytes.len() - parsed.size),
        })
    }

    /// Adds the header of the next batch.
    pub fn push(&mut self, header: BatchHeader) {
        self.size += header.size();
        self.headers.push(header);
    }

    pub fn headers(&self) -> &[BatchHeader] {
        &self.headers
    }

    /// Bytes of all batches.
    pub fn size(&self) -> usize {
        self.size
    }
}

/// How the batches of an append are checked.
#[derive(Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) origin: Origin,
    pub(crate) now: Now,
    /// Read the records of compressed batches, too. Without it they are read only where the topic's settings
    /// need it.
    pub(crate) check_compressed: bool,
    /// The most memory to decompress one batch with.
    pub(crate) buffer_max: usize,
    pub(crate) offload: Offload,
    pub(crate) verification: Verification,
}

impl Rules {
    /// The rules for a caller with no limit on memory or time.
    pub(crate) fn of(origin: Origin) -> Self {
        Self {
            origin,
            now: Now::System,
            check_compressed: true,
            buffer_max: DECOMPRESSED_MAX,
            offload: |work| work(),
            verification: Verification::Off,
        }
    }
}

/// The batches of an append after the checks.
#[derive(Debug, Default)]
pub(crate) struct CheckedBatches {
    pub(crate) headers: Headers,
    /// The transaction markers, by the index of their batch.
    pub(crate) markers: Vec<(usize, EndTxnMarker)>,
    /// The indexes of batches whose records do not count their offsets from 0. The leader corrects them.
    pub(crate) misnumbered: Vec<usize>,
}

impl CheckedBatches {
    /// The marker in batch `index`, if it is one.
    pub(crate) fn marker(&self, index: usize) -> Option<EndTxnMarker> {
        let found = self.markers.iter().find(|(at, _)| *at == index);
        found.map(|(_, marker)| *marker)
    }
}

impl LogConfig {
    /// Whether the leader decompresses this batch to check it.
    pub fn decompresses(&self, header: &BatchHeader, check_compressed: bool) -> bool {
        header.compression() != Ok(Compression::None) && (check_compressed || self.judges_records(header))
    }

    /// Whether the leader compresses this batch anew, with the codec of its topic.
    pub fn recompresses(&self, header: &BatchHeader) -> bool {
        let differs = |target| header.compression() != Ok(target);
        // Markers stay as their coordinator wrote them.
        !header.is_control() && self.compression.is_some_and(differs)
    }

    /// Whether a single record can be against the topic's settings.
    fn judges_records(&self, header: &BatchHeader) -> bool {
        let limits_times = self.timestamp_type == TimestampType::CreateTime
            && self.timestamp_limits_ms() != (i64::MAX, i64::MAX);
        self.cleanup_compact || limits_times || header.timestamp_type() == TimestampType::LogAppendTime
    }
}

/// Checks the batches of an append: size, checksum, header, records.
pub(crate) fn check(
    bytes: &[u8],
    parsed: &ParsedBatches,
    config: &LogConfig,
    rules: &Rules,
) -> Result<CheckedBatches> {
    if parsed.headers.is_empty() {
        return Err(StorageError::CorruptBatch {
            position: 0,
            reason: "there is no batch".to_owned(),
        });
    }
    let mut checked = CheckedBatches::default();
    let mut position = 0;
    for (index, header) in parsed.headers.iter().enumerate() {
        let end = position + header.size();
        let mut batch = Batch {
            header: header.clone(),
            bytes: &bytes[position..end],
        };
        check_size(batch.bytes.len(), config)?;
        let refused = |error: RecordError| StorageError::from_record(position, &error);
        batch.verify_crc().map_err(refused)?;
        if rules.origin == Origin::Client {
            batch.check_sequence().map_err(refused)?;
        }
        let codec = batch.check_header().map_err(refused)?;
        if header.is_control() {
            let marker = check_marker(&batch, rules.origin, position)?;
            checked.markers.push((index, marker));
        }
        if codec == Compression::None || config.decompresses(header, rules.check_compressed) {
            let limits = Limits {
                output_max: DECOMPRESSED_MAX,
                buffer_max: rules.buffer_max,
                offload: rules.offload,
            };
            let summary = record_check::check(&batch, config, rules.now, &limits, position)?;
            batch.header.max_timestamp = summary.max_timestamp;
            if !summary.in_order {
                checked.misnumbered.push(index);
            }
        }
        checked.headers.push(batch.header);
        position = end;
    }
    Ok(checked)
}

fn check_marker(batch: &Batch<'_>, origin: Origin, position: usize) -> Result<EndTxnMarker> {
    let invalid = |reason: &str| StorageError::InvalidRecord {
        position,
        reason: reason.to_owned(),
    };
    if origin == Origin::Client {
        return Err(invalid("clients may not write control batches"));
    }
    let marker = EndTxnMarker::of(batch).map_err(|error| StorageError::from_record(position, &error))?;
    marker
        .filter(|_| batch.header.is_transactional())
        .ok_or_else(|| invalid("the control batch is no transaction marker"))
}

/// Checks a batch against `max.message.bytes`.
pub(crate) fn check_size(size: usize, config: &LogConfig) -> Result<()> {
    let (size, limit) = (size as u64, u64::from(config.max_message_bytes));
    if size > limit {
        return Err(StorageError::RecordTooLarge { size, limit });
    }
    Ok(())
}

/// Sets offsets, leader epoch and, with `log_append_time`, timestamp in the headers. Returns the offset that
/// follows.
pub(crate) fn assign(
    headers: &mut [BatchHeader],
    first_offset: i64,
    leader_epoch: i32,
    log_append_time: Option<i64>,
) -> i64 {
    let mut offset = first_offset;
    for header in headers {
        header.base_offset = offset;
        header.partition_leader_epoch = leader_epoch;
        header.max_timestamp = log_append_time.unwrap_or(header.max_timestamp);
        offset = header.next_offset();
    }
    offset
}

/// Writes what [`assign`] decided into the batches themselves.
pub(crate) fn write_assigned(bytes: &mut [u8], headers: &[BatchHeader], log_append_time: bool) {
    let mut position = 0;
    for header in headers {
        let size = header.size();
        let batch = &mut bytes[position..position + size];
        set_offsets_in_place(batch, header.base_offset, header.partition_leader_epoch);
        if log_append_time {
            set_log_append_time_in_place(batch, header.max_timestamp);
        } else if header.timestamp_type() == TimestampType::LogAppendTime {
            // Only a broker may claim append time, so the records get back their own times.
            set_create_time_in_place(batch, header.max_timestamp);
        } else if header.max_timestamp != max_timestamp_of(batch) {
            set_max_timestamp_in_place(batch, header.max_timestamp);
        }
        position += size;
    }
}
