//! The transaction index of a segment: the aborted transactions that ended in it (`TransactionIndex`,
//! KIP-98).
//!
//! A reader of committed records leaves out the records of aborted transactions; this file names them.
//! Layout, big-endian, one entry for each transaction whose abort marker is in the segment, in the order of
//! the markers:
//!
//! ```text
//! 0   version             i16   0
//! 2   producer id         i64
//! 10  first offset        i64   of the transaction's first batch, which may be in an earlier segment
//! 18  last offset         i64   of the abort marker
//! 26  last stable offset  i64   of the log when the marker was written
//! ```
//!
//! Most segments have no such file: the first entry creates it. Appends happen with the log's writer lock;
//! readers take the entries of that moment. Recovery rebuilds the file from the batches and the producers'
//! state before them. It is checked when a log is opened after a clean close. A missing file is rebuilt when
//! the transactions of the segment are first read, if a producer at its end has ended any.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use parking_lot::RwLock;

use crate::error::{Result, StorageError};
use crate::files::disk;
use crate::files::{self, LOG_SUFFIX};

/// Bytes of an entry.
pub(crate) const ENTRY_SIZE: usize = 34;
const VERSION: i16 = 0;
const LOG_SIZE_MAX: u64 = i32::MAX as u64;

/// A transaction that was aborted (`AbortedTxn`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AbortedTxn {
    pub producer_id: i64,
    /// The first offset of the transaction's first batch.
    pub first_offset: i64,
    /// The offset of its abort marker.
    pub last_offset: i64,
    /// The log's last stable offset when the marker was written.
    pub last_stable_offset: i64,
}

impl AbortedTxn {
    pub(crate) fn encode(&self) -> [u8; ENTRY_SIZE] {
        let mut out = [0; ENTRY_SIZE];
        out[..2].copy_from_slice(&VERSION.to_be_bytes());
        let fields = [
            self.producer_id,
            self.first_offset,
            self.last_offset,
            self.last_stable_offset,
        ];
        for (field, slot) in fields.iter().zip(out[2..].chunks_exact_mut(8)) {
            slot.copy_from_slice(&field.to_be_bytes());
        }
        out
    }

    /// Decodes one entry; the error says what is wrong with it.
    pub(crate) fn decode(bytes: &[u8; ENTRY_SIZE]) -> Result<Self, String> {
        let version = i16::from_be_bytes([bytes[0], bytes[1]]);
        if version != VERSION {
            return Err(format!("version {version} is not known, {VERSION} is"));
        }
        let field = |number: usize| {
            let mut field = [0; 8];
            field.copy_from_slice(&bytes[2 + 8 * number..10 + 8 * number]);
            i64::from_be_bytes(field)
        };
        let entry = Self {
            producer_id: field(0),
            first_offset: field(1),
            last_offset: field(2),
            last_stable_offset: field(3),
        };
        if entry.first_offset < 0 || entry.last_offset < entry.first_offset {
            return Err(format!(
                "a transaction cannot run from offset {} to {}",
                entry.first_offset, entry.last_offset
            ));
        }
        Ok(entry)
    }
}

/// Decodes a file's bytes. The error has the position and the reason.
pub(crate) fn decode(bytes: &[u8]) -> Result<Vec<AbortedTxn>, (usize, String)> {
    let mut entries: Vec<AbortedTxn> = Vec::with_capacity(bytes.len() / ENTRY_SIZE);
    let (whole, rest) = bytes.as_chunks::<ENTRY_SIZE>();
    for (number, chunk) in whole.iter().enumerate() {
        let position = number * ENTRY_SIZE;
        let entry = AbortedTxn::decode(chunk).map_err(|reason| (position, reason))?;
        if entries
            .last()
            .is_some_and(|last| entry.last_offset <= last.last_offset)
        {
            let reason = format!("offset {} does not follow the last", entry.last_offset);
            return Err((position, reason));
        }
        entries.push(entry);
    }
    if rest.is_empty() {
        Ok(entries)
    } else {
        let reason = format!("{} bytes are no whole entry", rest.len());
        Err((whole.len() * ENTRY_SIZE, reason))
    }
}

/// The most bytes a file can have: each entry's abort marker is in the segment and is larger than the entry.
fn size_max(path: &Path) -> u64 {
    let log = path.with_extension(&LOG_SUFFIX[1..]);
    std::fs::metadata(log).map_or(LOG_SIZE_MAX, |log| log.len())
}

/// The entries of a file; none when it does not exist.
///
/// Errors: [`StorageError::Corrupt`].
pub(crate) fn read(path: &Path) -> Result<Vec<AbortedTxn>> {
    let bytes = files::read_small(path, size_max(path))?.unwrap_or_default();
    decode(&bytes).map_err(|(position, reason)| StorageError::Corrupt {
        path: path.to_path_buf(),
        position: position as u64,
        reason,
    })
}

/// The file of one segment, and its entries, which are few and kept in memory.
#[derive(Debug)]
pub(crate) struct TxnIndex {
    path: PathBuf,
    state: RwLock<State>,
}

#[derive(Debug, Default)]
struct State {
    entries: Vec<AbortedTxn>,
    /// How many of them are in the file; fewer when the disk was full while the log was opened.
    saved: usize,
    /// Open after the first append.
    file: Option<File>,
}

impl TxnIndex {
    /// An index without entries; an existing file is removed.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        files::remove_if_exists(path)?;
        Ok(Self::with(path, Vec::new()))
    }

    /// Opens a file; an index without entries when it does not exist.
    ///
    /// Errors: [`StorageError::Corrupt`].
    pub(crate) fn open(path: &Path) -> Result<Self> {
        Ok(Self::with(path, read(path)?))
    }

    /// The entries of a file that another process may be writing. The last may be incomplete.
    pub(crate) fn copy(path: &Path) -> Result<Self> {
        let mut bytes = files::read_small(path, size_max(path))?.unwrap_or_default();
        bytes.truncate(bytes.len() / ENTRY_SIZE * ENTRY_SIZE);
        let entries = decode(&bytes).map_err(|(position, reason)| StorageError::Corrupt {
            path: path.to_path_buf(),
            position: position as u64,
            reason,
        })?;
        Ok(Self::with(path, entries))
    }

    /// Entries that are never written, because another process owns the file.
    pub(crate) fn kept(path: &Path, entries: &[AbortedTxn]) -> Self {
        Self::with(path, entries.to_vec())
    }

    fn with(path: &Path, entries: Vec<AbortedTxn>) -> Self {
        Self {
            path: path.to_path_buf(),
            state: RwLock::new(State {
                saved: entries.len(),
                entries,
                file: None,
            }),
        }
    }

    /// Allocates disk space for `entries` more entries.
    pub(crate) fn reserve(&self, entries: usize) -> Result<()> {
        let mut state = self.state.write();
        self.save_all(&mut state)?;
        let file = self.file(&mut state)?;
        let position = (state.entries.len() * ENTRY_SIZE) as u64;
        disk::allocate(&file, &self.path, position, (entries * ENTRY_SIZE) as u64)
            .map_err(StorageError::io("allocate", &self.path))?;
        state.file = Some(file);
        Ok(())
    }

    /// Appends an entry in memory and to the file.
    pub(crate) fn append(&self, entry: AbortedTxn) -> Result<()> {
        let mut state = self.state.write();
        self.save_all(&mut state)?;
        let file = self.file(&mut state)?;
        self.write(&file, state.entries.len(), &entry.encode())?;
        state.file = Some(file);
        state.entries.push(entry);
        state.saved = state.entries.len();
        Ok(())
    }

    /// [`TxnIndex::append`] that a full disk does not refuse: the entry stays in memory until
    /// [`TxnIndex::save`].
    pub(crate) fn append_or_keep(&self, entry: AbortedTxn) -> Result<()> {
        match self.append(entry) {
            Err(error) if error.is_disk_full() => {
                self.state.write().entries.push(entry);
                Ok(())
            }
            appended => appended,
        }
    }

    /// True when entries are missing in the file.
    pub(crate) fn is_unsaved(&self) -> bool {
        let state = self.state.read();
        state.saved < state.entries.len()
    }

    /// Writes the entries that are missing in the file.
    pub(crate) fn save(&self) -> Result<()> {
        self.save_all(&mut self.state.write())
    }

    fn save_all(&self, state: &mut State) -> Result<()> {
        if state.saved == state.entries.len() {
            return Ok(());
        }
        let rest = state.entries[state.saved..].iter();
        let bytes: Vec<u8> = rest.flat_map(AbortedTxn::encode).collect();
        let file = self.file(state)?;
        self.write(&file, state.saved, &bytes)?;
        state.file = Some(file);
        state.saved = state.entries.len();
        Ok(())
    }

    /// Takes the open file out of `state`, so that it is opened again after an error.
    fn file(&self, state: &mut State) -> Result<File> {
        match state.file.take() {
            Some(file) => Ok(file),
            None => disk::open(&self.path).map_err(StorageError::io("open", &self.path)),
        }
    }

    fn write(&self, file: &File, number: usize, bytes: &[u8]) -> Result<()> {
        disk::write_all_at(file, &self.path, bytes, (number * ENTRY_SIZE) as u64)
            .map_err(StorageError::io("append to", &self.path))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.state.read().entries.is_empty()
    }

    pub(crate) fn entries(&self) -> Vec<AbortedTxn> {
        self.state.read().entries.clone()
    }

    /// Adds to `found` the aborted transactions that a reader of `[from, upper_bound)` may meet in this
    /// segment. True when no later segment has more of them (`collectAbortedTxns`).
    pub(crate) fn collect(&self, from: i64, upper_bound: i64, found: &mut Vec<AbortedTxn>) -> bool {
        for entry in &self.state.read().entries {
            if entry.last_offset >= from && entry.first_offset < upper_bound {
                found.push(*entry);
            }
            if entry.last_stable_offset >= upper_bound {
                return true;
            }
        }
        false
    }

    /// Removes transactions whose marker is at or after `offset`, also from the file, and flushes that.
    pub(crate) fn truncate_to(&self, offset: i64) -> Result<()> {
        let mut state = self.state.write();
        let kept = state.entries.partition_point(|entry| entry.last_offset < offset);
        if kept == state.entries.len() {
            return Ok(());
        }
        if kept < state.saved {
            OpenOptions::new()
                .write(true)
                .open(&self.path)
                .and_then(|file| {
                    disk::set_len(&file, &self.path, (kept * ENTRY_SIZE) as u64)?;
                    disk::sync(&file, &self.path)
                })
                .map_err(StorageError::io("truncate", &self.path))?;
            state.saved = kept;
        }
        state.entries.truncate(kept);
        Ok(())
    }

    pub(crate) fn flush(&self) -> Result<()> {
        self.save()?;
        match File::open(&self.path) {
            Ok(file) => disk::sync(&file, &self.path).map_err(StorageError::io("fsync", &self.path)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(StorageError::io("open", &self.path)(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aborted(producer_id: i64, first: i64, last: i64, stable: i64) -> AbortedTxn {
        AbortedTxn {
            producer_id,
            first_offset: first,
            last_offset: last,
            last_stable_offset: stable,
        }
    }

    // Broken if it failed: Kafka would read other transactions from our file, or we from Kafka's.
    #[test]
    fn golden_bytes() {
        let mut golden = vec![0, 0];
        for field in [0x1122i64, 5, 9, 3] {
            golden.extend(field.to_be_bytes());
        }
        let entry = aborted(0x1122, 5, 9, 3);
        assert_eq!(entry.encode(), golden[..]);
        assert_eq!(decode(&golden).unwrap(), [entry]);
        assert_eq!(decode(&golden[..33]).unwrap_err().0, 0);
        let twice = [&golden[..], &golden[..]].concat();
        assert_eq!(decode(&twice).unwrap_err().0, 34);
        golden[1] = 1;
        assert!(decode(&golden).is_err());
    }

    // Broken if it failed: a reader of committed records would get aborted ones after a restart or a
    // truncation.
    #[test]
    fn entries_are_kept_and_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("00000000000000000000.txnindex");
        let index = TxnIndex::create(&path).unwrap();
        index.flush().unwrap();
        assert!(!path.exists());
        let entries = [
            aborted(1, 0, 10, 2),
            aborted(2, 2, 20, 16),
            aborted(3, 16, 30, 31),
        ];
        for entry in entries {
            index.append(entry).unwrap();
        }
        index.flush().unwrap();
        let index = TxnIndex::open(&path).unwrap();
        assert_eq!(index.entries(), entries);
        let collect = |from, upper_bound| {
            let mut found = Vec::new();
            let complete = index.collect(from, upper_bound, &mut found);
            (found, complete)
        };
        assert_eq!(collect(0, 100), (entries.to_vec(), false));
        assert_eq!(collect(11, 17), (entries[1..].to_vec(), true));
        assert_eq!(collect(0, 2), (entries[..1].to_vec(), true));
        index.truncate_to(20).unwrap();
        assert_eq!(TxnIndex::open(&path).unwrap().entries(), entries[..1]);
        index.append(entries[1]).unwrap();
        assert_eq!(TxnIndex::open(&path).unwrap().entries(), entries[..2]);
    }

    // Broken if it failed: a segment with many aborted transactions could not be opened, or a huge foreign
    // file would be read whole.
    #[test]
    fn as_many_entries_as_the_segment_has_markers() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("00000000000000000000.txnindex");
        let bytes: Vec<u8> = (0..2_100_000)
            .flat_map(|n| aborted(7, n, n, n).encode())
            .collect();
        assert!(bytes.len() > 64 << 20);
        std::fs::write(&path, &bytes).unwrap();
        let log = File::create(dir.path().join("00000000000000000000.log")).unwrap();
        log.set_len(2 * bytes.len() as u64).unwrap();
        assert_eq!(TxnIndex::open(&path).unwrap().entries().len(), 2_100_000);
        log.set_len(bytes.len() as u64 - 1).unwrap();
        assert!(matches!(TxnIndex::open(&path), Err(StorageError::Corrupt { .. })));
    }
}
