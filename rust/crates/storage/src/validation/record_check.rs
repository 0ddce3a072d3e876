//! The rules for a single record (`LogValidator.validateRecord`): a key on a compacted topic, a timestamp
//! within limits, and no append time that a producer claims.

use logcore_records::{Batch, CheckedRecord, Compression, Limits, RecordSummary, TimestampType};

use crate::clock::Now;
use crate::config::LogConfig;
use crate::error::{Result, StorageError};
use crate::record_faults::{Fault, RecordFaults};

/// The timestamp of a record without one.
const NO_TIMESTAMP: i64 = -1;

/// Reads the records of the batch at `position` of an append and checks each.
///
/// Errors: [`StorageError::InvalidRecords`] names the records against a rule; the others are about the batch
/// as a whole.
pub(super) fn check(
    batch: &Batch<'_>,
    config: &LogConfig,
    now: Now,
    limits: &Limits,
    position: usize,
) -> Result<RecordSummary> {
    let header = &batch.header;
    let checked = if config.judges_records(header) {
        let compressed = header.compression() != Ok(Compression::None);
        let mut faults = RecordFaults::new(compressed);
        let append_time = header.timestamp_type() == TimestampType::LogAppendTime;
        let now_ms = now.ms();
        let checked = batch.check_records(limits, |record| {
            if let Some(fault) = fault_of(record, append_time, config, now_ms) {
                faults.note(record.index, fault);
            }
        });
        if checked.is_ok() && faults.count() > 0 {
            return Err(StorageError::InvalidRecords(faults));
        }
        checked
    } else {
        batch.check_records(limits, |_| {})
    };
    checked.map_err(|error| StorageError::from_record(position, &error))
}

fn fault_of(record: &CheckedRecord, append_time: bool, config: &LogConfig, now_ms: i64) -> Option<Fault> {
    let (timestamp, offset) = (record.timestamp, record.offset);
    if config.cleanup_compact && record.key_size.is_none() {
        return Some(Fault::Keyless);
    }
    if config.timestamp_type == TimestampType::CreateTime && timestamp != NO_TIMESTAMP {
        let (before_max, after_max) = config.timestamp_limits_ms();
        let is_outside =
            now_ms.saturating_sub(timestamp) > before_max || timestamp.saturating_sub(now_ms) > after_max;
        return is_outside.then(|| Fault::Time {
            timestamp,
            offset,
            earliest: now_ms.wrapping_sub(before_max),
            latest: now_ms.wrapping_add(after_max),
        });
    }
    append_time.then_some(Fault::AppendTime {
        timestamp,
        offset,
        key_bytes: record.key_size,
        value_bytes: record.value_size,
    })
}
