//! Giving batches the codec their topic asks for (`compression.type`), and records their offsets, as the leader does before it
//! appends them.
//!
//! Pure. A batch that has the codec, or whose topic leaves that to its producers, stays as it is, whatever level its producer
//! chose; unless its records were seen not to count their offsets from 0. Source: `LogValidator`, which takes such a batch, too, but
//! leaves the records as they are where there is no codec, and fails where there is.

use logcore_records::{Batch, BatchBuilder, BatchHeader, Compression, RecordError, Records, TimestampType};

use crate::config::LogConfig;
use crate::error::{Result, StorageError};
use crate::validation::{Checked, check_size};

/// The batches with the topic's codec and right offsets, and `checked` brought up to them; `None` when they have both already.
///
/// Errors: a batch that decompresses to more than `decompressed_max` bytes or cannot be decompressed, or is larger than
/// `max.message.bytes` then.
pub(crate) fn recompress(
    batches: &[u8],
    checked: &mut Checked,
    config: &LogConfig,
    decompressed_max: usize,
) -> Result<Option<Vec<u8>>> {
    let differs = |header: &BatchHeader| applies(header, config);
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
            // Where the codec stays, Kafka leaves the records as they are, and with them their times.
            let claim = (!differs(header) && header.timestamp_type() == TimestampType::LogAppendTime)
                .then_some(header.max_timestamp);
            if claim.is_some() {
                batch.header.set_create_time();
            }
            let records = batch.records(decompressed_max).map_err(refused)?;
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

/// Whether the batch gets another codec in this log.
pub(crate) fn applies(header: &BatchHeader, config: &LogConfig) -> bool {
    let differs = |target| header.compression() != Ok(target);
    // Markers stay as their coordinator wrote them.
    !header.is_control() && config.compression.is_some_and(differs)
}

fn builder(header: &BatchHeader, target: Compression, config: &LogConfig, capacity: usize) -> BatchBuilder {
    let level = config.compression_level(target);
    let mut builder = BatchBuilder::with_capacity(target, level, capacity);
    builder.set_producer_state(header.producer_id, header.producer_epoch, header.base_sequence);
    builder.set_transactional(header.is_transactional());
    builder.set_control(header.is_control());
    builder
}

/// Encodes the records anew. A batch without a codec is as large as they are, so it ends where that is too large.
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
