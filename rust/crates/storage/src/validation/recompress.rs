//! Encoding batches anew before a leader appends them: with the topic's codec (`compression.type`), or with
//! right offsets.
//!
//! Pure. Other batches stay as they are, whatever compression level their producer chose. Source:
//! `LogValidator`. A batch whose records do not count their offsets from 0 is corrected with and without a
//! codec; Kafka corrects it only with one.

use logcore_records::{Batch, BatchBuilder, BatchHeader, Compression, RecordError, Records, TimestampType};

use crate::config::LogConfig;
use crate::error::{Result, StorageError};
use crate::validation::{CheckedBatches, check_size};

/// Encodes batches anew where that is needed and updates their headers in `checked`. `None` when no batch
/// needs it.
///
/// Errors: [`StorageError::DecompressedTooLarge`] for a batch of more than `buffer_max` bytes of records; a
/// batch that cannot be decompressed, or is larger than `max.message.bytes` when it is encoded.
pub(crate) fn recompress(
    batches: &[u8],
    checked: &mut CheckedBatches,
    config: &LogConfig,
    buffer_max: usize,
) -> Result<Option<Vec<u8>>> {
    let differs = |header: &BatchHeader| config.recompresses(header);
    if checked.misnumbered.is_empty() && !checked.headers.iter().any(differs) {
        return Ok(None);
    }
    let mut out = Vec::with_capacity(batches.len());
    let mut position = 0;
    for (number, header) in checked.headers.iter_mut().enumerate() {
        let size = header.size();
        let bytes = &batches[position..position + size];
        if differs(header) || checked.misnumbered.contains(&number) {
            let start = out.len();
            let refused = |error: RecordError| StorageError::from_record(position, &error);
            let own = header.compression().map_err(refused)?;
            let target = config.compression.unwrap_or(own);
            let mut builder = builder(header, target, config, size);
            let mut batch = Batch::parse(bytes).map_err(refused)?;
            // Where the codec stays, Kafka leaves the records as they are, with their timestamps.
            let claim = (!differs(header) && header.timestamp_type() == TimestampType::LogAppendTime)
                .then_some(header.max_timestamp);
            if claim.is_some() {
                batch.header.set_create_time();
            }
            let records = batch.records(buffer_max).map_err(refused)?;
            gather(&records, &mut builder, config, refused)?;
            builder.build_into(&mut out).map_err(refused)?;
            *header = BatchHeader::parse(&out[start..]).map_err(refused)?;
            header.max_timestamp = claim.unwrap_or(header.max_timestamp);
            check_size(header.size(), config)?;
        } else {
            out.extend_from_slice(bytes);
        }
        position += size;
    }
    Ok(Some(out))
}

fn builder(header: &BatchHeader, target: Compression, config: &LogConfig, capacity: usize) -> BatchBuilder {
    let level = config.compression_level(target);
    let mut builder = BatchBuilder::with_capacity(target, level, capacity);
    builder.set_producer_state(header.producer_id, header.producer_epoch, header.base_sequence);
    builder.set_transactional(header.is_transactional());
    builder.set_control(header.is_control());
    builder
}

/// Encodes the records. Stops early when a batch without a codec becomes too large.
fn gather(
    records: &Records<'_>,
    builder: &mut BatchBuilder,
    config: &LogConfig,
    refused: impl Fn(RecordError) -> StorageError + Copy,
) -> Result<()> {
    let mut headers = Vec::new();
    for record in records {
        let record = record.map_err(refused)?;
        headers.clear();
        headers.extend(record.headers());
        builder
            .append(record.timestamp, record.key, record.value, &headers)
            .map_err(refused)?;
        if builder.compression() == Compression::None {
            check_size(builder.estimated_size(), config)?;
        }
    }
    Ok(())
}
