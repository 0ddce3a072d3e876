//! Writes message sets v0 and v1, for [`super::filter`] and [`super::down_convert`].

use super::{CODEC_MASK, LOG_APPEND_TIME_FLAG, LegacyMessage};
use crate::compression::{self, Compression};
use crate::error::RecordError;
use crate::header::{MAGIC_AT, TimestampType};

/// Writes the messages of one batch: one by one, or in a wrapper when they are to be compressed.
///
/// The wrapper has the offset of its last message. In v1 the offsets inside count from the first (KIP-31),
/// and the wrapper has the newest timestamp inside.
pub(super) struct EntryWriter {
    magic: u8,
    codec: Compression,
    timestamp_type: TimestampType,
    /// The content of the wrapper.
    inner: Vec<u8>,
    first: Option<i64>,
    last: i64,
    newest: i64,
}

impl EntryWriter {
    pub(super) fn new(magic: u8, codec: Compression, timestamp_type: TimestampType) -> Self {
        Self {
            magic,
            codec,
            timestamp_type,
            inner: Vec::new(),
            first: None,
            last: -1,
            newest: -1,
        }
    }

    /// Adds a message to the wrapper, or to `out` if it is not to be compressed.
    pub(super) fn push(&mut self, message: &LegacyMessage<'_>, out: &mut Vec<u8>) -> Result<(), RecordError> {
        let first = *self.first.get_or_insert(message.offset);
        self.last = message.offset;
        self.newest = self.newest.max(message.timestamp);
        if self.codec == Compression::None {
            return write(self.magic, Compression::None, 0, message, out);
        }
        let base = if self.magic == 1 { first } else { 0 };
        write(self.magic, Compression::None, base, message, &mut self.inner)
    }

    /// Writes the wrapper to `out`, if there is one.
    pub(super) fn finish(self, out: &mut Vec<u8>) -> Result<(), RecordError> {
        if self.codec == Compression::None || self.first.is_none() {
            return Ok(());
        }
        let mut value = Vec::new();
        if (self.codec, self.magic) == (Compression::Lz4, 0) {
            compression::compress_lz4_legacy(&self.inner, &mut value)?;
        } else {
            compression::compress(self.codec, None, &self.inner, &mut value)?;
        }
        let wrapper = LegacyMessage {
            offset: self.last,
            timestamp: self.newest,
            timestamp_type: self.timestamp_type,
            key: None,
            value: Some(&value),
            // Computed when the message is written.
            crc: 0,
        };
        write(self.magic, self.codec, 0, &wrapper, out)
    }
}

/// Appends one message with the offset relative to `base`.
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
        // The sum fits, as checked above.
        out.extend_from_slice(&bytes.map_or(-1, |bytes| bytes.len() as i32).to_be_bytes());
        out.extend_from_slice(bytes.unwrap_or_default());
    }
    let crc = crc32fast::hash(&out[start + MAGIC_AT..]);
    out[start + 12..start + MAGIC_AT].copy_from_slice(&crc.to_be_bytes());
    Ok(())
}
