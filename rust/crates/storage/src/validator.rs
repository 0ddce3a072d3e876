//! What a leader accepts and how it completes it (`LogValidator`, `UnifiedLog.analyzeAndValidateRecords`).
//!
//! Pure: looks at bytes, changes them in place, does no I/O. Checking runs before the writer lock is taken. Nothing is
//! decompressed unless the topic is compacted, where every record must have a key.

use logcore_records::{
    Batch, BatchHeader, EndTxnMarker, RecordError, TimestampType, batches,
    set_log_append_time_in_place, set_offsets_in_place,
};

use crate::config::LogConfig;
use crate::error::{Result, StorageError};
use crate::producer_state::Origin;
use crate::scan::StoredBatch;

/// How much a batch may decompress to while keys are looked for.
const DECOMPRESSED_MAX: usize = 256 << 20;

/// The batches of an append.
#[derive(Debug, Default)]
pub(crate) struct Checked {
    pub(crate) headers: Vec<BatchHeader>,
    /// What the control batches say, by their number in the append.
    pub(crate) markers: Vec<(usize, EndTxnMarker)>,
}

impl Checked {
    /// What batch `number` says if it is a transaction's marker.
    pub(crate) fn marker(&self, number: usize) -> Option<EndTxnMarker> {
        let found = self.markers.iter().find(|(at, _)| *at == number);
        found.map(|(_, marker)| *marker)
    }
}

/// Checks the batches of an append: size, checksum, shape, times. Returns them as they were sent.
pub(crate) fn check(
    bytes: &[u8],
    config: &LogConfig,
    origin: Origin,
    now_ms: i64,
) -> Result<Checked> {
    let mut found = Checked::default();
    let mut iterator = batches(bytes);
    loop {
        let position = iterator.valid_bytes();
        let Some(batch) = iterator.next() else { break };
        let batch = batch.map_err(|e| StorageError::from_record(position, &e))?;
        if batch.bytes.len() as u64 > u64::from(config.max_message_bytes) {
            return Err(StorageError::RecordTooLarge {
                size: batch.bytes.len() as u64,
                limit: u64::from(config.max_message_bytes),
            });
        }
        let refused = |e: RecordError| StorageError::from_record(position, &e);
        batch
            .verify_crc()
            .and_then(|()| check_shape(&batch, origin))
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
        if batch.header.timestamp_type() == TimestampType::LogAppendTime {
            return Err(invalid("only the broker may set the log append time flag"));
        }
        check_times(&batch.header, config, now_ms)?;
        if config.cleanup_compact
            && batch
                .has_keyless_record(DECOMPRESSED_MAX)
                .map_err(refused)?
        {
            return Err(invalid(
                "a compacted topic does not accept records without a key",
            ));
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

fn check_shape(batch: &Batch<'_>, origin: Origin) -> Result<(), RecordError> {
    if origin == Origin::Client {
        batch.validate()
    } else {
        batch.validate_unsequenced()
    }
}

fn check_times(header: &BatchHeader, config: &LogConfig, now_ms: i64) -> Result<()> {
    if config.timestamp_type == TimestampType::LogAppendTime {
        return Ok(());
    }
    for timestamp in [header.base_timestamp, header.max_timestamp] {
        let outside = timestamp >= 0
            && (now_ms.saturating_sub(timestamp) > config.timestamp_before_max_ms
                || timestamp.saturating_sub(now_ms) > config.timestamp_after_max_ms);
        if outside {
            return Err(StorageError::InvalidTimestamp { timestamp, now_ms });
        }
    }
    Ok(())
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

/// Writes what [`assign`] decided into the batches themselves. Returns how they will stand in a file, with positions
/// relative to the front of `bytes`.
pub(crate) fn place(
    bytes: &mut [u8],
    headers: &[BatchHeader],
    log_append_time: bool,
) -> Vec<StoredBatch> {
    let mut position = 0;
    let mut placed = Vec::with_capacity(headers.len());
    for header in headers {
        let size = header.size();
        let batch = &mut bytes[position..position + size];
        set_offsets_in_place(batch, header.base_offset, header.partition_leader_epoch);
        if log_append_time {
            set_log_append_time_in_place(batch, header.max_timestamp);
        }
        placed.push(StoredBatch {
            position: position as u64,
            size: size as u64,
            base_offset: header.base_offset,
            last_offset: header.last_offset(),
            max_timestamp: header.max_timestamp,
            leader_epoch: header.partition_leader_epoch,
            magic: header.magic,
            header: None,
        });
        position += size;
    }
    placed
}
