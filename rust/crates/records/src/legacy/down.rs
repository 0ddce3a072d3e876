//! Batches as message sets of an older format, for consumers that know no newer one (KIP-31, KIP-98).
//!
//! Source: `RecordsUtil.downConvert`. Headers, producers, transactions and leader epochs have no place in the old formats and
//! are left out, markers as a whole; so an aborted transaction's records are there like others. Offsets stay what they are,
//! with the gaps that compaction and markers leave. What is compressed is compressed again with the same codec.

use super::write::EntryWriter;
use super::{LegacyMessage, Outer, for_each, is_legacy};
use crate::batch::Batch;
use crate::compression::Compression;
use crate::error::RecordError;
use crate::header::MAGIC_AT;

/// Appends to `out` the messages of the batch at the front of `bytes`, which is all of them, in the format `magic`, 0 or 1; a
/// batch in that format or an older one as it is. Of a batch that is not compressed the records below `from` are left out.
/// Returns how many records were converted.
///
/// It decompresses to at most `limit` bytes. Errors: what is wrong with the batch, or [`RecordError::UnknownToFormat`] for
/// zstd; `out` is as before then.
pub fn down_convert(
    bytes: &[u8],
    magic: u8,
    from: i64,
    limit: usize,
    out: &mut Vec<u8>,
) -> Result<u64, RecordError> {
    let start = out.len();
    let target = Target { magic, from, limit };
    let converted = match bytes.get(MAGIC_AT) {
        Some(found) if *found <= magic => {
            out.extend_from_slice(bytes);
            Ok(0)
        }
        _ if is_legacy(bytes) => target.of_legacy(bytes, out),
        _ => target.of_batch(bytes, out),
    };
    if converted.is_err() {
        out.truncate(start);
    }
    converted
}

/// What is wanted: see [`down_convert`].
struct Target {
    magic: u8,
    from: i64,
    limit: usize,
}

impl Target {
    fn of_legacy(&self, bytes: &[u8], out: &mut Vec<u8>) -> Result<u64, RecordError> {
        let outer = Outer::take(&mut { bytes })?;
        let timestamp_type = outer.message.timestamp_type;
        let mut writer = EntryWriter::new(self.magic, outer.codec, timestamp_type);
        let mut converted = 0;
        for_each(bytes, self.limit, |message| {
            if self.skips(outer.codec, message.offset) {
                return Ok(());
            }
            converted += 1;
            writer.push(&message, out)
        })?;
        writer.finish(out)?;
        Ok(converted)
    }

    fn of_batch(&self, bytes: &[u8], out: &mut Vec<u8>) -> Result<u64, RecordError> {
        let batch = Batch::parse(bytes)?;
        batch.verify_crc()?;
        if batch.header.is_control() {
            return Ok(0);
        }
        let (codec, magic) = (batch.header.compression()?, self.magic);
        if codec == Compression::Zstd {
            return Err(RecordError::UnknownToFormat { codec, magic });
        }
        let timestamp_type = batch.header.timestamp_type();
        let mut writer = EntryWriter::new(magic, codec, timestamp_type);
        let mut converted = 0;
        for record in batch.records(self.limit)?.iter() {
            let record = record?;
            if self.skips(codec, record.offset) {
                continue;
            }
            converted += 1;
            let message = LegacyMessage {
                offset: record.offset,
                timestamp: record.timestamp,
                timestamp_type,
                key: record.key,
                value: record.value,
                // Computed as it is written.
                crc: 0,
            };
            writer.push(&message, out)?;
        }
        writer.finish(out)?;
        Ok(converted)
    }

    fn skips(&self, codec: Compression, offset: i64) -> bool {
        codec == Compression::None && offset < self.from
    }
}
