//! Checks index files against the batches, entry by entry, while the walk reads the `.log` file.
//!
//! The files are read in small pieces, so an index of any size takes little memory. Each check keeps the
//! first fault only, because the file is rebuilt as a whole. Preallocation leaves zeros after the last entry;
//! the caller says whether zeros are allowed.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use crate::error::{Result, StorageError};
use crate::segment::scan::StoredBatch;

/// The fault of an index file, and its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) position: u64,
    pub(super) what: String,
}

/// What the end of the file may look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ending {
    /// Another process may be renaming the segment's files, one after another.
    pub(super) missing_allowed: bool,
    /// The file may be preallocated: its segment is the last one and was not closed.
    pub(super) zeros_allowed: bool,
    /// All of the `.log` file was read and is whole, so an entry without a batch is wrong.
    pub(super) log_whole: bool,
    /// Nothing is appended to the segment any more.
    pub(super) sealed: bool,
}

/// Reads a file's entries of `N` bytes.
struct Entries<const N: usize> {
    file: BufReader<File>,
    size: u64,
    position: u64,
}

impl<const N: usize> Entries<N> {
    fn open(path: &Path) -> Result<Option<Self>> {
        let Some(file) = super::open_if_exists(path)? else {
            return Ok(None);
        };
        let size = file.metadata().map_err(StorageError::io("read", path))?.len();
        Ok(Some(Self {
            file: BufReader::with_capacity(64 << 10, file),
            size,
            position: 0,
        }))
    }

    /// The next whole entry and its position.
    fn next(&mut self) -> std::io::Result<Option<(u64, [u8; N])>> {
        let at = self.position;
        if at + N as u64 > self.size {
            return Ok(None);
        }
        let mut entry = [0; N];
        match self.file.read_exact(&mut entry) {
            Ok(()) => {
                self.position += N as u64;
                Ok(Some((at, entry)))
            }
            // The file was trimmed meanwhile.
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                self.size = at;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// An entry of either index.
trait Entry: Sized {
    fn offset(&self) -> i64;
}

#[derive(Debug, Clone, Copy)]
pub(super) struct OffsetEntry {
    at: u64,
    offset: i64,
    position: u64,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct TimestampEntry {
    at: u64,
    timestamp: i64,
    offset: i64,
}

impl Entry for OffsetEntry {
    fn offset(&self) -> i64 {
        self.offset
    }
}

impl Entry for TimestampEntry {
    fn offset(&self) -> i64 {
        self.offset
    }
}

/// The part both checks share: the file, its next entry, the first fault.
struct Cursor<const N: usize, E> {
    path: PathBuf,
    entries: Option<Entries<N>>,
    parse: fn(u64, [u8; N], i64) -> E,
    base_offset: i64,
    pending: Option<E>,
    /// Position of the first zeros.
    zeros_at: Option<u64>,
    count: u64,
    fault: Option<Fault>,
}

impl<const N: usize, E: Entry + Copy> Cursor<N, E> {
    fn open(path: &Path, base_offset: i64, parse: fn(u64, [u8; N], i64) -> E) -> Result<Self> {
        let mut cursor = Self {
            path: path.to_path_buf(),
            entries: Entries::open(path)?,
            parse,
            base_offset,
            pending: None,
            zeros_at: None,
            count: 0,
            fault: None,
        };
        cursor.advance()?;
        Ok(cursor)
    }

    fn blame(&mut self, position: u64, what: String) {
        self.fault.get_or_insert(Fault { position, what });
        self.pending = None;
    }

    /// Reads the next entry of the file.
    fn advance(&mut self) -> Result<()> {
        self.pending = None;
        let Some(entries) = &mut self.entries else {
            return Ok(());
        };
        while let Some((at, bytes)) = entries.next().map_err(StorageError::io("read", &self.path))? {
            let zero = bytes.iter().all(|byte| *byte == 0);
            if zero {
                self.zeros_at.get_or_insert(at);
                continue;
            }
            if let Some(zeros_at) = self.zeros_at {
                self.blame(zeros_at, "an entry of zeros has others after it".to_owned());
                return Ok(());
            }
            self.count += 1;
            let entry = (self.parse)(at, bytes, self.base_offset);
            if entry.offset() < self.base_offset {
                self.blame(at, "the offset is below the segment's base offset".to_owned());
                return Ok(());
            }
            self.pending = Some(entry);
            return Ok(());
        }
        let rest = entries.size % N as u64;
        if rest != 0 {
            let at = entries.size - rest;
            self.blame(at, format!("{rest} bytes at the end are not a whole entry"));
        }
        Ok(())
    }

    /// The fault, after all of the `.log` file was read. `left` describes an entry whose batch was not met.
    fn finish(mut self, ending: Ending, left: impl Fn(&E) -> (u64, String)) -> Option<Fault> {
        if self.entries.is_none() {
            let what = "the file is missing".to_owned();
            return (!ending.missing_allowed).then_some(Fault { position: 0, what });
        }
        if let Some(entry) = self.pending
            && ending.log_whole
        {
            let (at, what) = left(&entry);
            self.blame(at, what);
        }
        if let Some(at) = self.zeros_at
            && !ending.zeros_allowed
        {
            self.blame(at, "zeros follow the last entry".to_owned());
        }
        self.fault
    }
}

fn word(bytes: &[u8], at: usize) -> i32 {
    i32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Checks the `.index` file. [`crate::index::sparse`] has its format.
///
/// An entry points to a batch, and all earlier batches end before the entry's offset. The offset is the
/// batch's last one. When several batches were appended at once, it is the last offset of all of them.
pub(super) struct OffsetIndexCheck {
    cursor: Cursor<8, OffsetEntry>,
    last: Option<OffsetEntry>,
}

impl OffsetIndexCheck {
    pub(super) fn open(path: &Path, base_offset: i64) -> Result<Self> {
        let parse = |at, bytes: [u8; 8], base| OffsetEntry {
            at,
            offset: base + i64::from(word(&bytes, 0)),
            position: i64::from(word(&bytes, 4)).try_into().unwrap_or(u64::MAX),
        };
        Cursor::open(path, base_offset, parse).map(|cursor| Self { cursor, last: None })
    }

    /// Compares the entries up to a batch with it. `ended` is the last offset before the batch.
    pub(super) fn batch(&mut self, batch: &StoredBatch, ended: i64) -> Result<()> {
        while let Some(entry) = self.cursor.pending {
            if entry.position > batch.position {
                return Ok(());
            }
            if let Some(what) = self.judge(&entry, batch, ended) {
                self.cursor.blame(entry.at, what);
                return Ok(());
            }
            self.last = Some(entry);
            self.cursor.advance()?;
        }
        Ok(())
    }

    fn judge(&self, entry: &OffsetEntry, batch: &StoredBatch, ended: i64) -> Option<String> {
        let (offset, position) = (entry.offset, entry.position);
        if let Some(last) = self.last
            && (offset <= last.offset || position <= last.position)
        {
            return Some(format!(
                "offset {offset} at byte {position} does not follow offset {} at byte {}",
                last.offset, last.position
            ));
        }
        if position < batch.position {
            return Some(format!("no batch starts at byte {position} of the log"));
        }
        if offset < batch.last_offset || offset <= ended {
            return Some(format!(
                "the index has offset {offset} at byte {position}, but the batch there ends with offset {}",
                batch.last_offset
            ));
        }
        None
    }

    /// The first fault, after everything was read. `last_offset` is the segment's last offset.
    pub(super) fn finish(self, ending: Ending, last_offset: i64) -> Option<Fault> {
        let last = self.last;
        let fault = self.cursor.finish(ending, |entry| {
            let position = entry.position;
            (entry.at, format!("no batch starts at byte {position} of the log"))
        });
        fault.or_else(|| {
            let last = last.filter(|last| ending.log_whole && last.offset > last_offset)?;
            Some(Fault {
                position: last.at,
                what: format!(
                    "offset {} is after the segment's last offset, {last_offset}",
                    last.offset
                ),
            })
        })
    }
}

/// Checks the `.timeindex` file. [`crate::index::sparse`] has its format.
///
/// The entry's timestamp is the largest one of the batch with the entry's offset. No earlier batch has a
/// larger one.
pub(super) struct TimeIndexCheck {
    cursor: Cursor<12, TimestampEntry>,
    last: Option<TimestampEntry>,
    /// The largest timestamp so far, -1 before the first batch.
    largest: i64,
}

impl TimeIndexCheck {
    pub(super) fn open(path: &Path, base_offset: i64) -> Result<Self> {
        let parse = |at, bytes: [u8; 12], base| TimestampEntry {
            at,
            timestamp: i64::from(word(&bytes, 0)) << 32 | i64::from(word(&bytes, 4) as u32),
            offset: base + i64::from(word(&bytes, 8)),
        };
        Ok(Self {
            cursor: Cursor::open(path, base_offset, parse)?,
            last: None,
            largest: -1,
        })
    }

    /// Compares the entries up to a batch's last offset with the batch.
    pub(super) fn batch(&mut self, batch: &StoredBatch) -> Result<()> {
        while let Some(entry) = self.cursor.pending {
            if entry.offset > batch.last_offset {
                break;
            }
            if let Some(what) = self.judge(&entry, batch) {
                self.cursor.blame(entry.at, what);
                break;
            }
            self.last = Some(entry);
            self.cursor.advance()?;
        }
        self.largest = self.largest.max(batch.max_timestamp);
        Ok(())
    }

    fn judge(&self, entry: &TimestampEntry, batch: &StoredBatch) -> Option<String> {
        let TimestampEntry {
            timestamp, offset, ..
        } = *entry;
        if let Some(last) = self.last
            && (timestamp <= last.timestamp || offset < last.offset)
        {
            return Some(format!(
                "timestamp {timestamp} at offset {offset} does not follow timestamp {} at offset {}",
                last.timestamp, last.offset
            ));
        }
        if timestamp != batch.max_timestamp {
            return Some(format!(
                "the index has timestamp {timestamp} at offset {offset}, but the batch's largest is {}",
                batch.max_timestamp
            ));
        }
        (self.largest > timestamp).then(|| {
            format!(
                "timestamp {} comes before offset {offset}, the first to reach {timestamp} by the index",
                self.largest
            )
        })
    }

    /// The first fault, after everything was read.
    pub(super) fn finish(self, ending: Ending) -> Option<Fault> {
        let (last, largest) = (self.last, self.largest);
        let fault = self.cursor.finish(ending, |entry| {
            (entry.at, format!("offset {} is not in the segment", entry.offset))
        });
        // Retention takes the age of a sealed segment from its last entry.
        let reached = last.map_or(-1, |last| last.timestamp);
        fault.or_else(|| {
            (ending.sealed && ending.log_whole && reached < largest).then(|| Fault {
                position: last.map_or(0, |last| last.at),
                what: format!(
                    "the last entry is for timestamp {reached}, the segment's largest is {largest}"
                ),
            })
        })
    }
}
