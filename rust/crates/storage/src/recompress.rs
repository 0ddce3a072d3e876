//! Giving batches the codec their topic asks for (`compression.type`), as the leader does before it appends them.
//!
//! Pure. A topic that leaves the codec to its producers never gets here with anything to do; of the others, a batch that
//! has the codec already stays as it is, whatever level its producer chose. Source: `LogValidator`.

use logcore_records::{Batch, BatchBuilder, BatchHeader, Compression, RecordError};

use crate::config::LogConfig;
use crate::error::{Result, StorageError};
use crate::validator::{Checked, DECOMPRESSED_MAX, check_size};

/// The batches with the topic's codec, and `checked` brought up to them; `None` when they have it already.
///
/// Errors: a batch that cannot be decompressed within bounds, or is larger than `max.message.bytes` then.
pub(crate) fn recompress(
    batches: &[u8],
    checked: &mut Checked,
    config: &LogConfig,
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
            *header = rebuild(bytes, header, target, config, &mut out)
                .and_then(|()| BatchHeader::parse(&out[start..]))
                .map_err(|error| StorageError::from_record(position, &error))?;
            check_size(header.size(), config)?;
        } else {
            out.extend_from_slice(bytes);
        }
        position += size;
    }
    Ok(Some(out))
}

/// Markers stay as their coordinator wrote them.
fn differs(header: &BatchHeader, target: Compression) -> bool {
    !header.is_control() && header.compression() != Ok(target)
}

fn rebuild(
    bytes: &[u8],
    header: &BatchHeader,
    target: Compression,
    config: &LogConfig,
    out: &mut Vec<u8>,
) -> Result<(), RecordError> {
    let level = config.compression_level(target);
    let mut builder = BatchBuilder::with_capacity(target, level, bytes.len());
    builder.set_producer_state(
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
    );
    builder.set_transactional(header.is_transactional());
    let mut headers = Vec::new();
    for record in Batch::parse(bytes)?.records(DECOMPRESSED_MAX)?.iter() {
        let record = record?;
        headers.clear();
        headers.extend(record.headers());
        builder.append(record.timestamp, record.key, record.value, &headers)?;
    }
    builder.build_into(out)
}
