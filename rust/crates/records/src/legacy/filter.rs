//! Writing one entry of a message set v0 or v1 anew with only some of its messages, as the log cleaner does.
//!
//! The format stays what it was, as in Kafka's cleaner. A message that is no wrapper stays or goes, and is never written. A wrapper that loses messages is
//! compressed anew; its offset becomes that of the last message left, and in v1 the offsets inside count from the first
//! one left. There is no place for a delete horizon in these formats. An lz4 frame gets the right header checksum, which
//! Kafka's readers of v0 take as well as the wrong one.

use super::{CODEC_MASK, LOG_APPEND_TIME_FLAG, LegacyMessage, Outer, for_each, frame};
use crate::compression::{self, Compression};
use crate::error::RecordError;
use crate::filter::{Entry, Filtered, Left};
use crate::header::{MAGIC_AT, TimestampType};

/// Calls `keep` with each message of the entry at the front of `bytes`, which is all of them, and appends to `out` the
/// entry with those that stay, unless all stay. Wrappers decompress to at most `limit` bytes.
///
/// Errors: as [`for_each`]; `out` is as before then.
pub fn filter(
    bytes: &[u8],
    limit: usize,
    mut keep: impl FnMut(Entry<'_>) -> bool,
    out: &mut Vec<u8>,
) -> Result<Filtered, RecordError> {
    let outer = Outer::take(&mut { bytes })?;
    let mut inner = Vec::new();
    let (mut read, mut kept) = (0, 0);
    let (mut first, mut last, mut newest) = (0, 0, -1);
    for_each(frame(bytes)?, limit, |message| {
        read += 1;
        let entry = Entry {
            offset: message.offset,
            key: message.key,
            has_value: message.value.is_some(),
        };
        if !keep(entry) {
            return Ok(());
        }
        if kept == 0 {
            first = message.offset;
        }
        kept += 1;
        last = message.offset;
        newest = newest.max(message.timestamp);
        if outer.codec != Compression::None {
            let base = if outer.magic == 1 { first } else { 0 };
            write(outer.magic, Compression::None, base, &message, &mut inner)?;
        }
        Ok(())
    })?;
    let left = match kept {
        0 => Left::Nothing,
        _ if kept == read => Left::Whole,
        _ => Left::Rewritten,
    };
    if left == Left::Rewritten {
        let mut value = Vec::new();
        compression::compress(outer.codec, None, &inner, &mut value)?;
        let append_time = outer.message.timestamp_type == TimestampType::LogAppendTime;
        let wrapper = LegacyMessage {
            offset: last,
            timestamp: if append_time {
                outer.message.timestamp
            } else {
                newest
            },
            timestamp_type: outer.message.timestamp_type,
            key: None,
            value: Some(&value),
            // Computed as it is written.
            crc: 0,
        };
        write(outer.magic, outer.codec, 0, &wrapper, out)?;
    }
    Ok(Filtered {
        left,
        read,
        kept,
        max_timestamp: newest,
    })
}

/// Appends one message; its offset is counted from `base`.
fn write(
    magic: u8,
    codec: Compression,
    base: i64,
    message: &LegacyMessage<'_>,
    out: &mut Vec<u8>,
) -> Result<(), RecordError> {
    let length = |bytes: Option<&[u8]>| bytes.map_or(0, <[u8]>::len);
    let timestamp_size = if magic == 1 { 8 } else { 0 };
    let size = 14 + timestamp_size + length(message.key) + length(message.value);
    let size_field = i32::try_from(size).map_err(|_| RecordError::TooLarge {
        what: "legacy message",
        size,
    })?;
    let mut attributes = codec.code() & CODEC_MASK;
    if magic == 1 && message.timestamp_type == TimestampType::LogAppendTime {
        attributes |= LOG_APPEND_TIME_FLAG;
    }
    let start = out.len();
    out.extend_from_slice(&message.offset.wrapping_sub(base).to_be_bytes());
    out.extend_from_slice(&size_field.to_be_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&[magic, attributes]);
    if magic == 1 {
        out.extend_from_slice(&message.timestamp.to_be_bytes());
    }
    for bytes in [message.key, message.value] {
        // The sum was checked to fit.
        out.extend_from_slice(&bytes.map_or(-1, |bytes| bytes.len() as i32).to_be_bytes());
        out.extend_from_slice(bytes.unwrap_or_default());
    }
    let crc = crc32fast::hash(&out[start + MAGIC_AT..]);
    out[start + 12..start + MAGIC_AT].copy_from_slice(&crc.to_be_bytes());
    Ok(())
}
