//! Message sets v0 and v1, the formats before record batches.
//!
//! Old producers send them (Produce v0 to v2), and old log directories hold them. [`to_v2`] converts a set to
//! one batch v2. [`down_convert`] writes them for old consumers (Fetch v0 to v3). [`filter`] removes messages
//! for the log cleaner.
//!
//! Layout of a message (`LegacyRecord`; KIP-31, KIP-32), big-endian:
//!
//! ```text
//!  0  offset         i64
//!  8  size           i32   bytes that follow
//! 12  CRC-32         u32   of everything from the magic byte on
//! 16  magic          i8    0 or 1
//! 17  attributes     i8    bits 0-2 codec (not zstd), bit 3 timestamp type (v1)
//! 18  timestamp      i64   v1 only; ms since the epoch
//!     key length     i32   -1: null;  key
//!     value length   i32   -1: null;  value
//! ```
//!
//! A message with a codec is a wrapper: its value is a compressed message set with the actual messages. In v0
//! these carry their own offsets. In v1 they count from the first, and the wrapper carries the offset of the
//! last (some producers set 0). The messages inside have the wrapper's magic and are not wrappers.

mod down;
mod filter;
mod write;

use crate::builder::BatchBuilder;
use crate::compression::{self, Compression};
use crate::error::RecordError;
use crate::header::{MAGIC_AT, TimestampType, array_at};

pub use down::down_convert;
pub use filter::filter;

/// Bytes of the offset and the size.
const FRAME: usize = 12;
/// The smallest valid size field: checksum, magic, attributes and two lengths.
const MINIMUM_SIZE: usize = 14;
const CODEC_MASK: u8 = 0x07;
const LOG_APPEND_TIME_FLAG: u8 = 0x08;

/// One message, taken out of its wrapper if it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LegacyMessage<'a> {
    pub offset: i64,
    /// The message's own checksum, verified.
    pub crc: u32,
    /// Milliseconds since the epoch, -1 for none (always in v0).
    pub timestamp: i64,
    pub timestamp_type: TimestampType,
    pub key: Option<&'a [u8]>,
    pub value: Option<&'a [u8]>,
}

/// True when the batch at the front of `bytes` is a message v0 or v1 (by its magic byte).
pub fn is_legacy(bytes: &[u8]) -> bool {
    matches!(bytes.get(MAGIC_AT), Some(0 | 1))
}

/// Converts a whole message set to one batch v2 with the base offset 0, compressed with its first wrapper's
/// codec.
///
/// All wrappers together decompress to at most `limit` bytes. `timestamp_type` is the log's. Errors: a
/// message cut short, a wrong checksum, a wrapper that breaks the rules above, messages of both formats, no
/// messages; in a log with create time, a message that claims append time; a negative timestamp
/// (`LogValidator.validateTimestamp`, `MemoryRecordsBuilder`).
pub fn to_v2(bytes: &[u8], timestamp_type: TimestampType, limit: usize) -> Result<Vec<u8>, RecordError> {
    let codec = codec(bytes)?;
    let mut builder = BatchBuilder::with_capacity(codec, None, bytes.len());
    for_each(bytes, limit, |message| {
        let has_time = timestamp_type == TimestampType::CreateTime && message.timestamp != -1;
        if message.timestamp_type == TimestampType::LogAppendTime && !has_time {
            return Err(RecordError::ClaimedAppendTime);
        }
        if message.timestamp < -1 {
            return Err(RecordError::NegativeTimestamp(message.timestamp));
        }
        builder.append(message.timestamp, message.key, message.value, &[])?;
        Ok(())
    })?;
    builder.build()
}

/// The checks before decompression: valid checksums, and a wrapper is the set's only message
/// (`LogValidator.getFirstBatchAndMaybeValidateNoMoreBatches`).
pub fn validate(bytes: &[u8]) -> Result<(), RecordError> {
    let (mut rest, mut count, mut wrapped) = (bytes, 0, false);
    while !rest.is_empty() {
        wrapped |= Outer::take(&mut rest)?.codec != Compression::None;
        count += 1;
    }
    if wrapped && count > 1 {
        return Err(RecordError::MessagesBesideWrapper);
    }
    Ok(())
}

/// Calls `visit` with each message in order. Verifies all checksums, inner ones too. Errors: see [`to_v2`].
pub fn for_each(
    bytes: &[u8],
    limit: usize,
    mut visit: impl FnMut(LegacyMessage<'_>) -> Result<(), RecordError>,
) -> Result<(), RecordError> {
    let mut rest = bytes;
    let mut allowance = limit;
    let mut scratch = Vec::new();
    while !rest.is_empty() {
        let outer = Outer::take(&mut rest)?;
        if outer.codec == Compression::None {
            visit(outer.message)?;
            continue;
        }
        outer.decompress(allowance, &mut scratch)?;
        allowance -= scratch.len();
        visit_inner(&outer, &scratch, &mut visit)?;
    }
    Ok(())
}

/// Visits the messages in `set`, the decompressed content of the wrapper `outer`.
fn visit_inner(
    outer: &Outer<'_>,
    set: &[u8],
    visit: &mut impl FnMut(LegacyMessage<'_>) -> Result<(), RecordError>,
) -> Result<(), RecordError> {
    let base = if outer.magic == 1 && outer.message.offset != 0 {
        outer.message.offset.wrapping_sub(last_inner_offset(set)?)
    } else {
        0
    };
    if base < 0 {
        return Err(RecordError::InvalidLegacy(
            "a wrapper's offset is less than its last inner one",
        ));
    }
    let mut rest = set;
    let mut empty = true;
    while !rest.is_empty() {
        let inner = Outer::take(&mut rest)?;
        if inner.magic != outer.magic {
            return Err(RecordError::InvalidLegacy(
                "a message's magic differs from its wrapper's",
            ));
        }
        if inner.codec != Compression::None {
            return Err(RecordError::InvalidLegacy("a wrapper inside a wrapper"));
        }
        let mut message = inner.message;
        message.offset = message.offset.wrapping_add(base);
        if outer.message.timestamp_type == TimestampType::LogAppendTime {
            message.timestamp = outer.message.timestamp;
            message.timestamp_type = TimestampType::LogAppendTime;
        }
        visit(message)?;
        empty = false;
    }
    if empty {
        return Err(RecordError::InvalidLegacy("a wrapper without messages"));
    }
    Ok(())
}

fn last_inner_offset(set: &[u8]) -> Result<i64, RecordError> {
    let mut rest = set;
    let mut last = 0;
    while !rest.is_empty() {
        last = i64::from_be_bytes(array_at(frame(rest)?, 0));
        rest = &rest[frame(rest)?.len()..];
    }
    Ok(last)
}

/// The codec of the first wrapper, `None` without a wrapper. Errors if the messages differ in format.
pub fn codec(bytes: &[u8]) -> Result<Compression, RecordError> {
    let mut rest = bytes;
    let mut found = Compression::None;
    while !rest.is_empty() {
        let message = frame(rest)?;
        if message[MAGIC_AT] != bytes[MAGIC_AT] {
            return Err(RecordError::InvalidLegacy(
                "a message's magic differs from the first one's",
            ));
        }
        if found == Compression::None {
            found = Compression::from_code(message[MAGIC_AT + 1] & CODEC_MASK)?;
        }
        rest = &rest[message.len()..];
    }
    Ok(found)
}

/// The first message of `bytes` with its offset and size. Only the size has been checked.
fn frame(bytes: &[u8]) -> Result<&[u8], RecordError> {
    let truncated = |needed| RecordError::Truncated {
        what: "legacy message",
        needed,
        available: bytes.len(),
    };
    if bytes.len() < FRAME {
        return Err(truncated(FRAME));
    }
    let size = i32::from_be_bytes(array_at(bytes, 8));
    if size < MINIMUM_SIZE as i32 {
        return Err(RecordError::InvalidLength {
            what: "legacy message",
            length: i64::from(size),
            minimum: MINIMUM_SIZE as i64,
        });
    }
    let needed = FRAME + size as usize;
    bytes.get(..needed).ok_or_else(|| truncated(needed))
}

/// A message of a set, a wrapper or not.
struct Outer<'a> {
    magic: u8,
    codec: Compression,
    message: LegacyMessage<'a>,
}

impl<'a> Outer<'a> {
    /// Takes the message at the front of `rest` and verifies its checksum.
    fn take(rest: &mut &'a [u8]) -> Result<Self, RecordError> {
        let bytes = frame(rest)?;
        *rest = &rest[bytes.len()..];
        let magic = bytes[MAGIC_AT];
        if magic > 1 {
            return Err(RecordError::UnsupportedMagic(magic as i8));
        }
        let stored = u32::from_be_bytes(array_at(bytes, FRAME));
        let computed = crc32fast::hash(&bytes[MAGIC_AT..]);
        if stored != computed {
            return Err(RecordError::CrcMismatch { stored, computed });
        }
        let attributes = bytes[MAGIC_AT + 1];
        let mut body = &bytes[MAGIC_AT + 2..];
        let timestamp = match magic {
            0 => -1,
            _ => i64::from_be_bytes(take_array(&mut body)?),
        };
        let append_time = magic == 1 && attributes & LOG_APPEND_TIME_FLAG != 0;
        let key = take_nullable(&mut body)?;
        let value = take_nullable(&mut body)?;
        if !body.is_empty() {
            return Err(RecordError::InvalidLegacy("bytes remain after a message's value"));
        }
        Ok(Self {
            magic,
            codec: Compression::from_code(attributes & CODEC_MASK)?,
            message: LegacyMessage {
                offset: i64::from_be_bytes(array_at(bytes, 0)),
                crc: stored,
                timestamp,
                timestamp_type: if append_time {
                    TimestampType::LogAppendTime
                } else {
                    TimestampType::CreateTime
                },
                key,
                value,
            },
        })
    }

    /// Decompresses a wrapper's value into `scratch`.
    fn decompress(&self, limit: usize, scratch: &mut Vec<u8>) -> Result<(), RecordError> {
        let value = self
            .message
            .value
            .ok_or(RecordError::InvalidLegacy("a wrapper with a null value"))?;
        match self.codec {
            Compression::Zstd => Err(RecordError::InvalidLegacy("a wrapper compressed by zstd")),
            Compression::Lz4 => compression::decompress_lz4_legacy(value, limit, scratch),
            codec => compression::decompress(codec, value, limit, scratch),
        }
    }
}

fn take_array<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], RecordError> {
    let (array, after) = rest
        .split_first_chunk::<N>()
        .ok_or(RecordError::InvalidLegacy("a message is cut short"))?;
    *rest = after;
    Ok(*array)
}

fn take_nullable<'a>(rest: &mut &'a [u8]) -> Result<Option<&'a [u8]>, RecordError> {
    let length = i32::from_be_bytes(take_array(rest)?);
    if length < 0 {
        return Ok(None);
    }
    let (bytes, after) = rest
        .split_at_checked(length as usize)
        .ok_or(RecordError::InvalidLegacy(
            "a key or value is longer than its message",
        ))?;
    *rest = after;
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests;
