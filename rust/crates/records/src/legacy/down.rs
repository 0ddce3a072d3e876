//! Converts batches to message sets of an older format, for old consumers (KIP-31, KIP-98).
//!
//! Source: `RecordsUtil.downConvert`. The old formats cannot store headers, producers, transactions and
//! leader epochs. Markers are left out, so records of aborted transactions look like others. Offsets stay,
//! with the gaps of compaction and markers. Compressed batches are compressed again with the same codec.

use super::write::EntryWriter;
use super::{LegacyMessage, Outer, for_each, is_legacy};
use crate::batch::Batch;
use crate::compression::Compression;
use crate::error::RecordError;
use crate::header::MAGIC_AT;

/// Appends to `out` the messages of `bytes`, exactly one batch, in the format `magic` (0 or 1). A batch in
/// that format or an older one is copied. Records of an uncompressed batch with offsets below `from` are left
/// out. Returns the number of converted records.
///
/// Decompresses to at most `limit` bytes. Errors: an invalid batch, or [`RecordError::UnknownToFormat`] for
/// zstd. `out` is unchanged then.
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

/// The wanted format and start; see [`down_convert`].
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
                // Computed when the message is written.
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
