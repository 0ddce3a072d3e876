//! Reads a log as a consumer does: fetch by fetch, checking every checksum.

use logcore_records::{Batch, legacy};

use super::model::{Rec, Records};
use crate::log::Log;

/// What was read before damage was met, and the damage.
pub(super) type Damaged = (Records, String);

/// All records from `start` to the high watermark.
pub(super) fn read_from(log: &Log, start: i64, max_bytes: u64) -> Result<Records, Damaged> {
    let mut found = Records::new();
    let mut next = start;
    while next < log.high_watermark() {
        match fetch(log, next, max_bytes) {
            // Everything from here on was lost before it was brought to disk; the model knows whether it may be.
            Ok((_, after)) if after == next => break,
            Ok((records, after)) => {
                found.extend(records.into_iter().filter(|(offset, _)| *offset >= next));
                next = after;
            }
            Err(damage) => return Err((found, damage)),
        }
    }
    Ok(found)
}

/// The record at one offset.
pub(super) fn read_one(log: &Log, offset: i64) -> Result<Rec, String> {
    let (records, _) = fetch(log, offset, 1)?;
    let found = records.into_iter().find(|(at, _)| *at == offset);
    found
        .map(|(_, record)| record)
        .ok_or_else(|| format!("offset {offset} is not in what is read there"))
}

type Fetched = (Vec<(i64, Rec)>, i64);

/// The records of one fetch and the offset after them; the first batch may begin earlier than asked for.
fn fetch(log: &Log, offset: i64, max_bytes: u64) -> Result<Fetched, String> {
    let slice = log
        .read(offset, max_bytes, log.high_watermark(), true)
        .map_err(|error| error.to_string())?;
    let bytes = slice.read_whole_batches().map_err(|e| e.to_string())?;
    let mut records: Vec<(i64, Rec)> = Vec::new();
    let mut after = offset;
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        let size = 12 + i32::from_be_bytes(rest[8..12].try_into().unwrap()) as usize;
        let before = records.len();
        after = one_batch(&rest[..size], &mut records)?;
        let (old, new) = records.split_at(before);
        let rises = old.last().is_none_or(|(last, _)| new[0].0 > *last);
        assert!(rises, "offsets do not rise behind {:?}", old.last());
        rest = &rest[size..];
    }
    Ok((records, after))
}

/// Adds the records of a batch, or of a legacy message; returns the offset after it.
fn one_batch(bytes: &[u8], records: &mut Vec<(i64, Rec)>) -> Result<i64, String> {
    if legacy::is_legacy(bytes) {
        legacy::for_each(bytes, 1 << 20, |message| {
            let record = Rec {
                timestamp: message.timestamp,
                key: message.key.map(<[u8]>::to_vec),
                value: message.value.unwrap_or_default().to_vec(),
                epoch: -1,
            };
            records.push((message.offset, record));
            Ok(())
        })
        .map_err(|error| error.to_string())?;
        return Ok(records.last().map_or(0, |(offset, _)| offset + 1));
    }
    let batch = Batch::parse(bytes).map_err(|e| e.to_string())?;
    batch.verify_crc().map_err(|e| e.to_string())?;
    for record in batch.records(1 << 20).map_err(|e| e.to_string())?.iter() {
        let record = record.map_err(|e| e.to_string())?;
        let read = Rec {
            timestamp: record.timestamp,
            key: record.key.map(<[u8]>::to_vec),
            value: record.value.unwrap_or_default().to_vec(),
            epoch: batch.header.partition_leader_epoch,
        };
        records.push((record.offset, read));
    }
    Ok(batch.header.next_offset())
}
