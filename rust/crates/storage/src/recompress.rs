//! Giving batches the codec their topic asks for (`compression.type`), as the leader does before it appends them.
//!
//! Pure. A topic that leaves the codec to its producers never gets here with anything to do; of the others, a batch that
//! has the codec already stays as it is, whatever level its producer chose. Source: `LogValidator`.

use logcore_records::{Batch, BatchBuilder, BatchHeader, Compression, RecordError, Records};

use crate::config::LogConfig;
use crate::error::{Result, StorageError};
use crate::validator::{Checked, check_size};

/// The batches with the topic's codec, and `checked` brought up to them; `None` when they have it already.
///
/// Errors: a batch that decompresses to more than `decompressed_max` bytes or cannot be decompressed, or is larger than `max.message.bytes` then.
pub(crate) fn recompress(
    batches: &[u8],
    checked: &mut Checked,
    config: &LogConfig,
    decompressed_max: usize,
) -> Result<Option<Vec<u8>>> {
    let Some(target) = config.compression else {
        return Ok(None);
    };
    if !checked.headers.iter().any(|header| differs(header, target)) {
        return Ok(None);
    }
    let mut out = Vec::with_capacity(batches.len());
    let mut position = 0;
    for header in &mut checked.headers {
        let size = header.size();
        let bytes = &batches[position..position + size];
        if differs(header, target) {
            let start = out.len();
            let mut builder = builder(header, target, config, size);
            let refused = |error: RecordError| StorageError::from_record(position, &error);
            let batch = Batch::parse(bytes).and_then(|batch| batch.records(decompressed_max));
            gather(&batch.map_err(refused)?, &mut builder, config, refused)?;
            builder.build_into(&mut out).map_err(refused)?;
            *header = BatchHeader::parse(&out[start..]).map_err(refused)?;
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
    config
        .compression
        .is_some_and(|target| differs(header, target))
}

/// Markers stay as their coordinator wrote them.
fn differs(header: &BatchHeader, target: Compression) -> bool {
    !header.is_control() && header.compression() != Ok(target)
}

fn builder(
    header: &BatchHeader,
    target: Compression,
    config: &LogConfig,
    capacity: usize,
) -> BatchBuilder {
    let level = config.compression_level(target);
    let mut builder = BatchBuilder::with_capacity(target, level, capacity);
    builder.set_producer_state(
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
    );
    builder.set_transactional(header.is_transactional());
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
