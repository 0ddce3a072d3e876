//! Writing one entry of a message set v0 or v1 anew with only some of its messages, as the log cleaner does.
//!
//! The format stays what it was, as in Kafka's cleaner. A message that is no wrapper stays or goes, and is never written. A
//! wrapper that loses messages is compressed anew; its offset becomes that of the last message left, and in v1 the offsets
//! inside count from the first one left. There is no place for a delete horizon in these formats.

use super::write::EntryWriter;
use super::{Outer, for_each, frame};
use crate::compression::Compression;
use crate::error::RecordError;
use crate::filter::{Entry, Filtered, Left};

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
