//! Reads a log as a consumer does: fetch by fetch, checking every checksum.

use std::collections::BTreeSet;

use logcore_records::{Batch, BatchHeader, legacy};

use super::model::{Found, Rec, What, Written, own};
use crate::index::transactions::AbortedTxn;
use crate::log::Log;

/// The records before the damage, and the damage.
pub(super) type Damaged = (Found, String);

/// All records from `start` up to `end`.
pub(super) fn read_from(log: &Log, start: i64, end: i64, max_bytes: u64) -> Result<Found, Damaged> {
    let mut found = Found::default();
    let mut next = start;
    while next < end {
        match fetch(log, next, end, max_bytes) {
            // Everything from here on was lost before a flush, or compacted away. The model decides whether
            // that may be.
            Ok((_, after)) if after == next => break,
            Ok((fetched, after)) => {
                found.records.extend(fetched.records.range(next..).map(own));
                found.batches.extend(fetched.batches);
                next = after;
            }
            Err(damage) => return Err((found, damage)),
        }
    }
    Ok(found)
}

/// The record at one offset.
pub(super) fn read_one(log: &Log, offset: i64) -> Result<Rec, String> {
    let (mut found, _) = fetch(log, offset, log.log_end_offset(), 1)?;
    let record = found.records.remove(&offset);
    record.ok_or_else(|| format!("offset {offset} is not in what is read there"))
}

/// The records of one fetch and the offset after them; the first batch may begin before the offset.
fn fetch(log: &Log, offset: i64, end: i64, max_bytes: u64) -> Result<(Found, i64), String> {
    let slice = log
        .read(offset, max_bytes, end, true)
        .map_err(|error| error.to_string())?;
    let bytes = slice.read_whole_batches().map_err(|e| e.to_string())?;
    let mut found = Found::default();
    let mut after = offset;
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        let size = 12 + i32::from_be_bytes(rest[8..12].try_into().unwrap()) as usize;
        let (batch, remaining) = rest.split_at(size);
        after = one_batch(batch, &mut found)?;
        rest = remaining;
    }
    Ok((found, after))
}

/// Adds the records of a batch, or of a legacy message; returns the offset after it.
fn one_batch(bytes: &[u8], found: &mut Found) -> Result<i64, String> {
    if legacy::is_legacy(bytes) {
        let mut after = 0;
        let mut taken = Ok(());
        legacy::for_each(bytes, 1 << 20, |message| {
            let record = Rec {
                timestamp: message.timestamp,
                key: message.key.map(<[u8]>::to_vec),
                value: message.value.map(<[u8]>::to_vec),
                epoch: -1,
                what: What::Plain,
            };
            after = message.offset + 1;
            taken = std::mem::replace(&mut taken, Ok(())).and(take(found, message.offset, record));
            Ok(())
        })
        .map_err(|error| error.to_string())?;
        return taken.map(|()| after);
    }
    let batch = Batch::parse(bytes).map_err(|e| e.to_string())?;
    batch.verify_crc().map_err(|e| e.to_string())?;
    let header = &batch.header;
    let mut what = what_of(header);
    let records = batch.records(1 << 20).map_err(|e| e.to_string())?;
    for record in records.iter() {
        let record = record.map_err(|e| e.to_string())?;
        if let What::Marker { committed, .. } = &mut what {
            *committed = record.key == Some(&[0, 0, 0, 1]);
        }
        let read = Rec {
            timestamp: record.timestamp,
            key: record.key.map(<[u8]>::to_vec),
            value: record.value.map(<[u8]>::to_vec),
            epoch: header.partition_leader_epoch,
            what,
        };
        take(found, record.offset, read)?;
    }
    if header.has_producer_id() {
        let written = Written {
            last: header.last_offset(),
            producer: header.producer_id,
            first_sequence: header.base_sequence,
            what,
        };
        found.batches.insert(header.base_offset, written);
    }
    Ok(header.next_offset())
}

fn what_of(header: &BatchHeader) -> What {
    let producer = header.producer_id;
    match (header.is_control(), header.is_transactional()) {
        (true, _) => What::Marker {
            producer,
            committed: false,
        },
        (false, true) => What::Transactional(producer),
        (false, false) => What::Plain,
    }
}

fn take(found: &mut Found, offset: i64, record: Rec) -> Result<(), String> {
    if let Some((last, _)) = found.records.last_key_value()
        && *last >= offset
    {
        return Err(format!("offset {offset} follows {last}"));
    }
    found.records.insert(offset, record);
    Ok(())
}

/// The offsets that a consumer of committed records delivers, from what it fetched and the aborted
/// transactions it got (`Fetcher`'s rule).
pub(super) fn committed_of(found: &Found, end: i64, mut aborted: Vec<AbortedTxn>) -> BTreeSet<i64> {
    aborted.sort_by_key(|transaction| std::cmp::Reverse(transaction.first_offset));
    let mut aborting = BTreeSet::new();
    let mut committed = BTreeSet::new();
    for (offset, record) in found.records.range(..end) {
        while aborted.last().is_some_and(|t| t.first_offset <= *offset) {
            aborting.extend(aborted.pop().map(|t| t.producer_id));
        }
        match record.what {
            What::Marker {
                producer,
                committed: false,
            } => {
                aborting.remove(&producer);
            }
            What::Marker { .. } => {}
            What::Transactional(producer) if aborting.contains(&producer) => {}
            What::Transactional(_) | What::Plain => {
                committed.insert(*offset);
            }
        }
    }
    committed
}
