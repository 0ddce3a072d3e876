//! Writes one entry of a message set v0 or v1 again with only some of its messages, for the log cleaner.
//!
//! The format stays, as in Kafka's cleaner. A message without a wrapper is kept or removed, never rewritten.
//! A wrapper that loses messages is compressed again: its offset becomes that of the last kept message, and
//! in v1 the offsets inside count from the first kept one. These formats cannot store a delete horizon.

use super::write::EntryWriter;
use super::{Outer, for_each, frame};
use crate::compression::Compression;
use crate::error::RecordError;
use crate::filter::{Entry, Filtered, Left};

/// Calls `keep` with each message of `bytes`, exactly one entry, and appends to `out` the entry with the kept
/// messages, unless all are kept. Wrappers decompress to at most `limit` bytes.
///
/// Errors: as [`for_each`]. `out` is unchanged then.
pub fn filter(
    bytes: &[u8],
    limit: usize,
    mut keep: impl FnMut(Entry<'_>) -> bool,
    out: &mut Vec<u8>,
) -> Result<Filtered, RecordError> {
    let outer = Outer::take(&mut { bytes })?;
    let is_wrapper = outer.codec != Compression::None;
    let mut writer = EntryWriter::new(outer.magic, outer.codec, outer.message.timestamp_type);
    let (mut read, mut kept, mut newest) = (0, 0, -1);
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
        kept += 1;
        newest = newest.max(message.timestamp);
        if is_wrapper {
            writer.push(&message, out)?;
        }
        Ok(())
    })?;
    let left = match kept {
        0 => Left::Nothing,
        _ if kept == read => Left::Whole,
        _ => Left::Rewritten,
    };
    if left == Left::Rewritten {
        writer.finish(out)?;
    }
    Ok(Filtered {
        left,
        read,
        kept,
        max_timestamp: newest,
    })
}
