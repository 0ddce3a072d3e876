//! The time index of a segment: by which offset a timestamp was reached (`TimeIndex`, KIP-33).
//!
//! File layout, big-endian, entries in increasing order of both fields:
//!
//! ```text
//! 0  timestamp        i64   the largest timestamp so far, ms since the epoch
//! 8  relative offset  i32   the last offset of the batch that has it, less the segment's base offset
//! ```
//!
//! Guarantee: no record before the entry's batch is younger than `timestamp`. Entries come with those of the offset
//! index, and one for the segment's largest timestamp when it is sealed or the log closed. Threads and crashes as
//! [`crate::index_file`] says; a hint like the offset index.

use std::path::Path;

use crate::error::Result;
use crate::index_file::IndexFile;

/// Bytes of an entry.
pub(crate) const ENTRY_SIZE: u64 = 12;

#[derive(Debug)]
pub(crate) struct TimeIndex {
    base_offset: i64,
    file: IndexFile<3>,
}

/// An entry: a timestamp and the last offset of its batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimeEntry {
    pub(crate) timestamp: i64,
    pub(crate) offset: i64,
}

impl TimeIndex {
    pub(crate) fn create(path: &Path, base_offset: i64, max_bytes: u32) -> Result<Self> {
        IndexFile::create(path, max_bytes).map(|file| Self { base_offset, file })
    }

    pub(crate) fn open_active(path: &Path, base_offset: i64, max_bytes: u32) -> Result<Self> {
        IndexFile::open_active(path, max_bytes).map(|file| Self { base_offset, file })
    }

    pub(crate) fn open_sealed(path: &Path, base_offset: i64) -> Result<Self> {
        IndexFile::open_sealed(path).map(|file| Self { base_offset, file })
    }

    pub(crate) fn copy(path: &Path, base_offset: i64) -> Result<Self> {
        IndexFile::copy(path).map(|file| Self { base_offset, file })
    }

    /// One in memory for so many entries.
    pub(crate) fn unsaved(path: &Path, base_offset: i64, entries: usize) -> Self {
        let file = IndexFile::unsaved(path, entries);
        Self { base_offset, file }
    }

    pub(crate) fn is_unsaved(&self) -> bool {
        self.file.is_unsaved()
    }

    pub(crate) fn none(path: &Path, base_offset: i64) -> Self {
        let file = IndexFile::none(path);
        Self { base_offset, file }
    }

    fn timestamp([high, low, _]: [u32; 3]) -> i64 {
        (u64::from(high) << 32 | u64::from(low)) as i64
    }

    fn entry(&self, words: [u32; 3]) -> TimeEntry {
        TimeEntry {
            timestamp: Self::timestamp(words),
            offset: self.base_offset + i64::from(words[2]),
        }
    }

    /// The last entry at or before `timestamp` for an offset before `next_offset`, if there is any.
    pub(crate) fn lookup(&self, timestamp: i64, next_offset: i64) -> Option<TimeEntry> {
        let relative = next_offset - self.base_offset;
        let count = self
            .file
            .partition_point(|words| Self::timestamp(words) <= timestamp && i64::from(words[2]) < relative);
        (count > 0).then(|| self.entry(self.file.get(count - 1)))
    }

    /// The last entry, if there is any.
    pub(crate) fn last(&self) -> Option<TimeEntry> {
        let count = self.file.len();
        (count > 0).then(|| self.entry(self.file.get(count - 1)))
    }

    /// Appends the largest timestamp so far; leaves it out when it is no larger than the last entry's.
    pub(crate) fn append(&self, entry: TimeEntry) -> Result<()> {
        let Ok(relative) = i32::try_from(entry.offset - self.base_offset) else {
            return Ok(());
        };
        if entry.timestamp < 0 || self.last().is_some_and(|last| entry.timestamp <= last.timestamp) {
            return Ok(());
        }
        let timestamp = entry.timestamp as u64;
        self.file
            .push([(timestamp >> 32) as u32, timestamp as u32, relative as u32])
            .map(|_| ())
    }

    /// Appends to `other` the entries for what lies before `next_offset`.
    pub(crate) fn copy_to(&self, other: &Self, next_offset: i64) -> Result<()> {
        let entries = (0..self.file.len()).map(|number| self.entry(self.file.get(number)));
        for entry in entries.take_while(|entry| entry.offset < next_offset) {
            other.append(entry)?;
        }
        Ok(())
    }

    /// Full but for the one entry a segment gets when it is sealed.
    pub(crate) fn is_full(&self) -> bool {
        self.file.room() <= 1
    }

    /// True when the entries can belong to a segment whose offsets end before `next_offset`. Looks at every entry.
    pub(crate) fn is_sane(&self, next_offset: i64) -> bool {
        let mut last = TimeEntry {
            timestamp: -1,
            offset: self.base_offset,
        };
        for number in 0..self.file.len() {
            let entry = self.entry(self.file.get(number));
            if entry.timestamp <= last.timestamp || entry.offset < last.offset {
                return false;
            }
            last = entry;
        }
        self.file.len() == 0 || last.offset < next_offset
    }

    /// Gives the next `entries` entries their place on disk, as far as there is room for them.
    pub(crate) fn reserve(&self, entries: usize) -> Result<()> {
        self.file.reserve(entries)
    }

    pub(crate) fn trim(&self) -> Result<()> {
        self.file.trim()
    }

    pub(crate) fn flush(&self) -> Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Broken if it failed: Kafka would read other times from our index than we wrote.
    #[test]
    fn golden_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        let index = TimeIndex::create(&path, 50, 1200).unwrap();
        let at = |timestamp, offset| TimeEntry { timestamp, offset };
        index.append(at(0x0102_0304_0506_0708, 52)).unwrap();
        // Not larger: left out.
        index.append(at(7, 60)).unwrap();
        index.append(at(0x0102_0304_0506_0709, 61)).unwrap();
        index.trim().unwrap();
        assert_eq!(
            std::fs::read(&path).unwrap(),
            [
                1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 2, //
                1, 2, 3, 4, 5, 6, 7, 9, 0, 0, 0, 11
            ]
        );
        assert_eq!(index.lookup(7, 62), None);
        assert_eq!(index.lookup(i64::MAX, 62), Some(at(0x0102_0304_0506_0709, 61)));
        assert!(index.is_sane(62) && !index.is_sane(61));
    }

    // Broken if it failed: a sealed segment could lose its largest timestamp, and lookups by time would skip it.
    #[test]
    fn one_entry_is_kept_for_sealing() {
        let dir = tempfile::tempdir().unwrap();
        let index = TimeIndex::create(&dir.path().join("t"), 0, 36).unwrap();
        let mut timestamp = 0;
        while !index.is_full() {
            timestamp += 1;
            index
                .append(TimeEntry {
                    timestamp,
                    offset: timestamp,
                })
                .unwrap();
        }
        let last = TimeEntry {
            timestamp: 100,
            offset: 100,
        };
        index.append(last).unwrap();
        assert_eq!(index.last(), Some(last));
    }
}
