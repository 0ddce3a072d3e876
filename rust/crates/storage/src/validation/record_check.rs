//! X

use logcore_records::{Batch, Looked, Record, RecordError, TimestampType};

use crate::config::LogConfig;
use crate::record_faults::{Fault, RecordFaults};

/// The timestamp of a record without one.
const NO_TIME: i64 = -1;

/// Looks at each record of a batch, decompressing to at most `limit` bytes (`LogValidator.validateRecord`).
pub(crate) fn find(
    batch: &Batch<'_>,
    config: &LogConfig,
    now_ms: i64,
    limit: usize,
) -> Result<(Option<RecordFaults>, Looked), RecordError> {
    let mut faults = RecordFaults::new(batch.header.compression()? != logcore_records::Compression::None);
    let appended = batch.header.timestamp_type() == TimestampType::LogAppendTime;
    let mut looked = Looked::NOTHING;
    for (index, record) in batch.records(limit)?.iter().enumerate() {
        let record = record?;
        let delta = record.offset.wrapping_sub(batch.header.base_offset);
        looked.add(record.timestamp, delta == index as i64);
        if let Some(fault) = fault_of(&record, appended, config, now_ms) {
            faults.note(index, fault);
        }
    }
    Ok(((faults.count() > 0).then_some(faults), looked))
}

fn fault_of(record: &Record<'_>, appended: bool, config: &LogConfig, now_ms: i64) -> Option<Fault> {
    let (timestamp, offset) = (record.timestamp, record.offset);
    if config.cleanup_compact && record.key.is_none() {
        return Some(Fault::Keyless);
    }
    if config.timestamp_type == TimestampType::CreateTime && timestamp != NO_TIME {
        let (before_max, after_max) = config.timestamp_limits_ms();
        return is_outside(timestamp, config, now_ms).then(|| Fault::Time {
            timestamp,
            offset,
            earliest: now_ms.wrapping_sub(before_max),
            latest: now_ms.wrapping_add(after_max),
        });
    }
    appended.then(|| Fault::AppendTime {
        timestamp,
        offset,
        key_bytes: record.key.map(<[u8]>::len),
        value_bytes: record.value.map(<[u8]>::len),
    })
}

/// Whether a create time is too far from the broker's time.
pub(crate) fn is_outside(timestamp: i64, config: &LogConfig, now_ms: i64) -> bool {
    let (before_max, after_max) = config.timestamp_limits_ms();
    timestamp != NO_TIME
        && (now_ms.saturating_sub(timestamp) > before_max || timestamp.saturating_sub(now_ms) > after_max)
}
