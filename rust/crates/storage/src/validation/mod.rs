//! What a leader accepts and how it completes it (`LogValidator`, `UnifiedLog.analyzeAndValidateRecords`).
//!
//! Pure: looks at bytes, changes them in place, does no I/O. Checking runs before the writer lock is taken. Nothing is
//! decompressed unless the topic is compacted, where every record must have a key, or limits its records' times, or has a
//! codec of its own, which is [`crate::validation::recompress`]'s, or the batch claims times that it cannot have ([`unpacks`]). The largest
//! timestamp of a batch whose records were looked at is theirs, whatever its header says.

pub(crate) mod recompress;
mod record_check;

use logcore_records::{
    Batch, BatchHeader, Compression, EndTxnMarker, Looked, RecordError, TimestampType, batches,
    max_timestamp_of, set_create_time_in_place, set_log_append_time_in_place, set_max_timestamp_in_place,
    set_offsets_in_place,
};

use smallvec::SmallVec;

use crate::clock::Now;
use crate::config::LogConfig;
use crate::error::{Result, StorageError};
use crate::producers::Origin;

/// The batches of an append.
#[derive(Debug, Default)]
pub(crate) struct Checked {
    pub(crate) headers: SmallVec<[BatchHeader; 1]>,
    /// What the control batches say, by their number in the append.
    pub(crate) markers: Vec<(usize, EndTxnMarker)>,
    /// The numbers of those whose records do not count their offsets from 0, which is for the leader to set right.
    pub(crate) misnumbered: Vec<usize>,
}

impl Checked {
    /// What batch `number` says if it is a transaction's marker.
    pub(crate) fn marker(&self, number: usize) -> Option<EndTxnMarker> {
        let found = self.markers.iter().find(|(at, _)| *at == number);
        found.map(|(_, marker)| *marker)
    }
}

impl LogConfig {
    /// Whether appending a batch takes decompressing it, or compressing, which is many times the work of a write: whoever has
    /// others to serve lets them go on meanwhile, and bounds how many do so at once.
    pub fn unpacks(&self, batch: &BatchHeader) -> bool {
        unpacks(batch, self)
    }
}

/// See [`LogConfig::unpacks`].
pub(crate) fn unpacks(header: &BatchHeader, config: &LogConfig) -> bool {
    let is_looked_into = config.cleanup_compact || limits_times(config) || is_append_time(header);
    let is_compressed = header.compression() != Ok(Compression::None);
    let is_looked_into = is_looked_into || has_impossible_time(header, config);
    (is_compressed && is_looked_into) || recompress::applies(header, config)
}

/// Whether a batch cannot have the largest timestamp it says: it is before that of the first record. Sarama 1.45.0 says -1
/// of each batch that it compresses.
fn has_impossible_time(header: &BatchHeader, config: &LogConfig) -> bool {
    config.timestamp_type == TimestampType::CreateTime && header.max_timestamp < header.base_timestamp
}

fn is_append_time(header: &BatchHeader) -> bool {
    header.timestamp_type() == TimestampType::LogAppendTime
}

/// Checks the batches of an append: size, checksum, shape, times. None may decompress to more than `decompressed_max` bytes.
/// Returns them as they were sent.
pub(crate) fn check(
    bytes: &[u8],
    config: &LogConfig,
    origin: Origin,
    now: Now,
    decompressed_max: usize,
) -> Result<Checked> {
    let mut found = Checked::default();
    let mut iterator = batches(bytes);
    loop {
        let position = iterator.valid_bytes();
        let Some(batch) = iterator.next() else { break };
        let batch = batch.map_err(|e| StorageError::from_record(position, &e))?;
        check_size(batch.bytes.len(), config)?;
        let mut batch = batch;
        let refused = |e: RecordError| StorageError::from_record(position, &e);
        let looked = batch
            .verify_crc()
            .and_then(|()| check_shape(&batch, config, origin, decompressed_max))
            .map_err(refused)?;
        let invalid = |reason: &str| StorageError::InvalidRecord {
            position,
            reason: reason.to_owned(),
        };
        if batch.header.is_control() {
            if origin == Origin::Client {
                return Err(invalid("clients may not write control batches"));
            }
            let marker = EndTxnMarker::of(&batch).map_err(refused)?;
            let marker = marker.filter(|_| batch.header.is_transactional());
            let marker = marker.ok_or_else(|| invalid("this is no transaction's marker"))?;
            found.markers.push((found.headers.len(), marker));
        }
        let looked = if has_to_look(&batch.header, looked, config, now) {
            Some(check_records(&batch, config, now, position, decompressed_max)?)
        } else {
            looked
        };
        if let Some(looked) = looked {
            batch.header.max_timestamp = looked.newest;
        }
        if looked.is_some_and(|looked| !looked.in_order) {
            found.misnumbered.push(found.headers.len());
        }
        found.headers.push(batch.header);
    }
    let valid = iterator.valid_bytes();
    if valid == bytes.len() && !found.headers.is_empty() {
        return Ok(found);
    }
    Err(StorageError::CorruptBatch {
        position: valid,
        reason: format!("{} bytes are no whole batch", bytes.len() - valid),
    })
}

/// Whether a batch is as small as the topic wants it.
pub(crate) fn check_size(size: usize, config: &LogConfig) -> Result<()> {
    let (size, limit) = (size as u64, u64::from(config.max_message_bytes));
    if size > limit {
        return Err(StorageError::RecordTooLarge { size, limit });
    }
    Ok(())
}

/// What the records say, when they were looked at.
fn check_shape(
    batch: &Batch<'_>,
    config: &LogConfig,
    origin: Origin,
    decompressed_max: usize,
) -> Result<Option<Looked>, RecordError> {
    let looked = if origin == Origin::Client {
        batch.validate()?
    } else {
        batch.validate_unsequenced()?
    };
    let has_to_look = limits_times(config) || has_impossible_time(&batch.header, config);
    if looked.is_none() && has_to_look {
        return batch.validate_deep(decompressed_max).map(Some);
    }
    Ok(looked)
}

fn limits_times(config: &LogConfig) -> bool {
    let limits = config.timestamp_limits_ms();
    config.timestamp_type == TimestampType::CreateTime && limits != (i64::MAX, i64::MAX)
}

/// Whether something may be wrong with a single record.
fn has_to_look(header: &BatchHeader, looked: Option<Looked>, config: &LogConfig, now: Now) -> bool {
    let is_outside = |looked| limits_times(config) && are_outside(looked, config, now);
    config.cleanup_compact || is_append_time(header) || looked.is_some_and(is_outside)
}

/// Looks at the records one by one.
fn check_records(
    batch: &Batch<'_>,
    config: &LogConfig,
    now: Now,
    position: usize,
    decompressed_max: usize,
) -> Result<Looked> {
    match record_check::find(batch, config, now.ms(), decompressed_max) {
        Ok((None, looked)) => Ok(looked),
        Ok((Some(faults), _)) => Err(StorageError::InvalidRecords(faults)),
        Err(error) => Err(StorageError::from_record(position, &error)),
    }
}

fn are_outside(looked: Looked, config: &LogConfig, now: Now) -> bool {
    let now_ms = now.ms();
    record_check::is_outside(looked.oldest, config, now_ms)
        || record_check::is_outside(looked.newest, config, now_ms)
}

/// Gives batches that were checked their places in the log; returns the offset that follows them.
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
pub(crate) fn place(bytes: &mut [u8], headers: &[BatchHeader], log_append_time: bool) {
    let mut position = 0;
    for header in headers {
        let size = header.size();
        let batch = &mut bytes[position..position + size];
        set_offsets_in_place(batch, header.base_offset, header.partition_leader_epoch);
        if log_append_time {
            set_log_append_time_in_place(batch, header.max_timestamp);
        } else if header.timestamp_type() == TimestampType::LogAppendTime {
            // A producer's claim that nobody makes here: its times are taken for its own.
            set_create_time_in_place(batch, header.max_timestamp);
        } else if header.max_timestamp != max_timestamp_of(batch) {
            set_max_timestamp_in_place(batch, header.max_timestamp);
        }
        position += size;
    }
}
