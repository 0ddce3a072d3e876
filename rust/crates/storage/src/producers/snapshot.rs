//! The `.snapshot` file: the producers at an offset (`ProducerStateManager`, `ProducerSnapshot.json`).
//!
//! Its name has the offset of the first batch that it does not include. Layout, big-endian:
//!
//! ```text
//! 0  version      i16  1
//! 2  CRC-32C      u32  of everything that follows
//! 6  count        i32
//! then for each producer, 46 bytes:
//!    producer id  i64   last offset              i64  of the last batch, -1: none
//!    epoch        i16   offset delta             i32
//!    last sequence i32  timestamp                i64  ms since the epoch
//!                       coordinator epoch        i32
//!                       current txn first offset i64  -1: none
//! ```
//!
//! (in the order id, epoch, sequence, offset, delta, timestamp, coordinator epoch, transaction). Only the
//! last batch of a producer is in the file. A crash may leave a file cut short or with wrong bytes. The
//! checksum shows it, the file is removed, and an older snapshot with more batches replayed gives the same
//! state.

use std::collections::VecDeque;
use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;

use crate::error::{Result, StorageError};
use crate::files::disk;
use crate::files::{self, SNAPSHOT_SUFFIX, offset_of, segment_file};
use crate::producers::{BatchMetadata, ProducerEntry, ProducerState};

const VERSION: i16 = 1;
const ENTRIES_AT: usize = 6;
const ENTRY_SIZE: usize = 46;
/// Five million producers; a broker has far fewer.
const SIZE_MAX: u64 = 256 << 20;

/// The file's bytes.
pub(crate) fn encode(state: &ProducerState) -> Vec<u8> {
    let producers = state.sorted();
    let mut out = Vec::with_capacity(ENTRIES_AT + 4 + producers.len() * ENTRY_SIZE);
    out.extend(VERSION.to_be_bytes());
    out.extend([0; 4]);
    out.extend((producers.len() as i32).to_be_bytes());
    for (producer_id, entry) in producers {
        let last = entry.batches.back();
        out.extend(producer_id.to_be_bytes());
        out.extend(entry.epoch.to_be_bytes());
        out.extend(last.map_or(-1, |b| b.last_sequence).to_be_bytes());
        out.extend(last.map_or(-1, |b| b.last_offset).to_be_bytes());
        out.extend(last.map_or(0, |b| b.offset_delta).to_be_bytes());
        out.extend(entry.last_timestamp.to_be_bytes());
        out.extend(entry.coordinator_epoch.to_be_bytes());
        out.extend(entry.transaction_start.unwrap_or(-1).to_be_bytes());
    }
    let crc = logcore_records::crc32c(&out[ENTRIES_AT..]);
    out[2..ENTRIES_AT].copy_from_slice(&crc.to_be_bytes());
    out
}

/// The producers in a file's bytes; the error says what is wrong.
pub(crate) fn decode(bytes: &[u8]) -> Result<ProducerState, String> {
    let mut state = ProducerState::default();
    for (producer_id, entry) in decode_entries(bytes)? {
        state.restore(producer_id, entry);
    }
    Ok(state)
}

/// [`decode`] in the file's order.
fn decode_entries(bytes: &[u8]) -> Result<Vec<(i64, ProducerEntry)>, String> {
    let Some(front) = bytes.first_chunk::<{ ENTRIES_AT + 4 }>() else {
        return Err(format!("{} bytes are less than a header", bytes.len()));
    };
    let version = i16::from_be_bytes([front[0], front[1]]);
    if version != VERSION {
        return Err(format!("version {version} is not known, {VERSION} is"));
    }
    let stored = u32::from_be_bytes([front[2], front[3], front[4], front[5]]);
    let computed = logcore_records::crc32c(&bytes[ENTRIES_AT..]);
    if stored != computed {
        return Err(format!(
            "checksum {stored:#010x} is stored, {computed:#010x} computed"
        ));
    }
    let count = i32::from_be_bytes([front[6], front[7], front[8], front[9]]);
    let entries = &bytes[ENTRIES_AT + 4..];
    if usize::try_from(count)
        .ok()
        .and_then(|c| c.checked_mul(ENTRY_SIZE))
        != Some(entries.len())
    {
        return Err(format!("{count} producers do not take {} bytes", entries.len()));
    }
    let mut producers = Vec::with_capacity(entries.len() / ENTRY_SIZE);
    for bytes in entries.chunks_exact(ENTRY_SIZE) {
        let mut reader = Reader(bytes);
        let producer_id = reader.i64();
        let epoch = reader.i16();
        let last = BatchMetadata {
            last_sequence: reader.i32(),
            last_offset: reader.i64(),
            offset_delta: reader.i32(),
            timestamp: reader.i64(),
        };
        let entry = ProducerEntry {
            epoch,
            batches: if last.last_offset >= 0 {
                VecDeque::from([last])
            } else {
                VecDeque::new()
            },
            last_timestamp: last.timestamp,
            coordinator_epoch: reader.i32(),
            transaction_start: Some(reader.i64()).filter(|start| *start >= 0),
        };
        producers.push((producer_id, entry));
    }
    Ok(producers)
}

/// Reads big-endian integers of an entry, whose size was checked.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let (front, rest) = self.0.split_at(N);
        out.copy_from_slice(front);
        self.0 = rest;
        out
    }

    fn i16(&mut self) -> i16 {
        i16::from_be_bytes(self.take())
    }

    fn i32(&mut self) -> i32 {
        i32::from_be_bytes(self.take())
    }

    fn i64(&mut self) -> i64 {
        i64::from_be_bytes(self.take())
    }
}

/// Writes the snapshot at `offset`. With `sync` it is on disk when this returns.
pub(crate) fn write(dir: &Path, offset: i64, state: &ProducerState, sync: bool) -> Result<()> {
    let path = segment_file(dir, offset, SNAPSHOT_SUFFIX);
    if sync {
        return files::replace_file(&path, &encode(state));
    }
    disk::create(&path)
        .and_then(|file| disk::write_all_at(&file, &path, &encode(state), 0))
        .map_err(StorageError::io("write", &path))
}

/// The producers in a snapshot's file; `None` when it does not exist.
///
/// Errors: [`StorageError::Corrupt`].
pub(crate) fn read(path: &Path) -> Result<Option<ProducerState>> {
    read_with(path, decode)
}

/// [`read`] in the file's order.
pub(crate) fn read_entries(path: &Path) -> Result<Option<Vec<(i64, ProducerEntry)>>> {
    read_with(path, decode_entries)
}

fn read_with<T>(path: &Path, decode: impl FnOnce(&[u8]) -> Result<T, String>) -> Result<Option<T>> {
    let Some(bytes) = files::read_small(path, SIZE_MAX)? else {
        return Ok(None);
    };
    decode(&bytes).map(Some).map_err(|reason| StorageError::Corrupt {
        path: path.to_path_buf(),
        position: 0,
        reason,
    })
}

/// Flushes the snapshot at `offset`, if it exists. The caller flushes the directory.
pub(crate) fn sync(dir: &Path, offset: i64) -> Result<()> {
    let path = segment_file(dir, offset, SNAPSHOT_SUFFIX);
    match File::open(&path) {
        Ok(file) => disk::sync(&file, &path).map_err(StorageError::io("fsync", &path)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(StorageError::io("open", &path)(error)),
    }
}

/// The latest snapshot of a directory.
#[derive(Debug)]
pub(crate) enum Latest {
    /// The producers at an offset.
    At(i64, ProducerState),
    /// There is no snapshot.
    None,
    /// No snapshot is intact.
    Damaged,
}

/// Reads the latest intact snapshot at or before `end`. Damaged snapshots and those after `end`, which
/// include batches that are gone, are removed before other batches get those offsets.
pub(crate) fn load_latest(dir: &Path, end: i64) -> Result<Latest> {
    let offsets = list(dir)?;
    let found = latest_of(dir, &offsets, end);
    let kept = found.as_ref().map_or(-1, |(offset, _)| *offset);
    let mut removed = false;
    for offset in offsets.into_iter().filter(|offset| *offset > kept) {
        removed |= files::remove_if_exists(&segment_file(dir, offset, SNAPSHOT_SUFFIX))?;
    }
    if removed {
        files::sync_dir(dir)?;
    }
    Ok(match found {
        Some((offset, state)) => Latest::At(offset, state),
        None if removed => Latest::Damaged,
        None => Latest::None,
    })
}

/// [`load_latest`] that removes nothing.
pub(crate) fn find_latest(dir: &Path, end: i64) -> Result<Option<(i64, ProducerState)>> {
    Ok(latest_of(dir, &list(dir)?, end))
}

fn latest_of(dir: &Path, offsets: &[i64], end: i64) -> Option<(i64, ProducerState)> {
    let candidates = offsets.iter().rev().filter(|offset| **offset <= end);
    candidates.copied().find_map(|offset| {
        let path = segment_file(dir, offset, SNAPSHOT_SUFFIX);
        let bytes = files::read_small(&path, SIZE_MAX).ok()??;
        Some((offset, decode(&bytes).ok()?))
    })
}

/// Offsets of all snapshots in a directory, in order.
pub(crate) fn list(dir: &Path) -> Result<Vec<i64>> {
    let names = files::file_names(dir)?;
    Ok(names
        .iter()
        .filter_map(|name| offset_of(name, SNAPSHOT_SUFFIX))
        .collect())
}

/// Removes snapshots that belong to no segment, except the latest if it is after all segments
/// (`removeStraySnapshots`). A snapshot before the first segment does not tell how its transactions ended.
pub(crate) fn remove_stray(dir: &Path, segment_bases: &[i64]) -> Result<()> {
    let offsets = list(dir)?;
    let last_base = segment_bases.last();
    let latest = offsets
        .last()
        .copied()
        .filter(|at| last_base.is_none_or(|base| at > base));
    for offset in offsets {
        if segment_bases.binary_search(&offset).is_err() && Some(offset) != latest {
            files::remove_if_exists(&segment_file(dir, offset, SNAPSHOT_SUFFIX))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> ProducerState {
        let mut state = ProducerState::default();
        state.restore(
            0x1122,
            ProducerEntry {
                epoch: 3,
                batches: VecDeque::from([BatchMetadata {
                    last_sequence: 19,
                    last_offset: 119,
                    offset_delta: 9,
                    timestamp: 1_000_000,
                }]),
                coordinator_epoch: -1,
                last_timestamp: 1_000_000,
                transaction_start: None,
            },
        );
        state
    }

    // Broken if it failed: Kafka would drop our snapshots, or we Kafka's, and retries would be written twice.
    #[test]
    fn golden_bytes() {
        let body: &[u8] = &[
            0, 0, 0, 1, // one producer
            0, 0, 0, 0, 0, 0, 0x11, 0x22, // producer id
            0, 3, // epoch
            0, 0, 0, 19, // last sequence
            0, 0, 0, 0, 0, 0, 0, 119, // last offset
            0, 0, 0, 9, // offset delta
            0, 0, 0, 0, 0, 0x0f, 0x42, 0x40, // timestamp
            0xff, 0xff, 0xff, 0xff, // coordinator epoch
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, // no transaction
        ];
        let mut golden = vec![0, 1];
        golden.extend(logcore_records::crc32c(body).to_be_bytes());
        golden.extend(body);
        assert_eq!(encode(&sample()), golden);
        let state = decode(&golden).unwrap();
        assert_eq!(state.sorted(), sample().sorted());

        for at in 0..golden.len() {
            let mut damaged = golden.clone();
            damaged[at] ^= 0x10;
            assert!(decode(&damaged).is_err(), "byte {at}");
            assert!(decode(&golden[..at]).is_err(), "cut at {at}");
        }
    }

    // Broken if it failed: a snapshot after the log end, or a torn one, would be believed.
    #[test]
    fn the_latest_intact_one_counts() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert!(matches!(load_latest(dir, 100).unwrap(), Latest::None));
        write(dir, 10, &ProducerState::default(), false).unwrap();
        write(dir, 20, &sample(), true).unwrap();
        std::fs::write(segment_file(dir, 30, SNAPSHOT_SUFFIX), b"torn").unwrap();
        write(dir, 40, &sample(), false).unwrap();
        let Latest::At(offset, state) = load_latest(dir, 35).unwrap() else {
            panic!("there is one")
        };
        assert_eq!((offset, state.len()), (20, 1));
        assert_eq!(list(dir).unwrap(), [10, 20]);
        remove_stray(dir, &[0, 20]).unwrap();
        assert_eq!(list(dir).unwrap(), [20]);
        remove_stray(dir, &[0, 10]).unwrap();
        assert_eq!(list(dir).unwrap(), [20]);
        remove_stray(dir, &[30]).unwrap();
        assert_eq!(list(dir).unwrap(), []);
    }
}
