//! The offset index of a segment: where in the `.log` file an offset is, about (`OffsetIndex`).
//!
//! File layout, big-endian, entries in strictly increasing order of both fields:
//!
//! ```text
//! 0  relative offset  i32   the last offset of a batch, less the segment's base offset
//! 4  position         i32   where that batch begins in the .log file
//! ```
//!
//! Guarantee: every batch before `position` ends before the entry's offset. Sparse: one entry for
//! `index.interval.bytes` of log. Threads and crashes as [`crate::index_file`] says. It is a hint: a lookup is checked
//! against the batch it leads to, and the file can always be built again from the `.log` file.

use std::path::Path;

use crate::error::Result;
use crate::index_file::IndexFile;

/// Bytes of an entry.
pub(crate) const ENTRY_SIZE: u64 = 8;

#[derive(Debug)]
pub(crate) struct OffsetIndex {
    base_offset: i64,
    file: IndexFile<2>,
}

/// An entry: a batch's last offset and where the batch begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OffsetPosition {
    pub(crate) offset: i64,
    pub(crate) position: u64,
}

impl OffsetIndex {
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

    fn entry(&self, [relative, position]: [u32; 2]) -> OffsetPosition {
        OffsetPosition {
            offset: self.base_offset + i64::from(relative),
            position: u64::from(position),
        }
    }

    /// Where to begin looking for `offset` in the first `end` bytes of the log: the last entry at or before it, or the
    /// front of the segment.
    pub(crate) fn lookup(&self, offset: i64, end: u64) -> OffsetPosition {
        let relative = offset - self.base_offset;
        let before = |[found, position]: [u32; 2]| i64::from(found) <= relative && u64::from(position) < end;
        match self.file.partition_point(before) {
            0 => OffsetPosition {
                offset: self.base_offset,
                position: 0,
            },
            count => self.entry(self.file.get(count - 1)),
        }
    }

    /// An offset behind all batches that begin before `position`: that of the first entry there or behind.
    pub(crate) fn upper_bound(&self, position: u64) -> Option<i64> {
        let before = self
            .file
            .partition_point(|[_, entry]| u64::from(entry) < position);
        (before < self.file.len()).then(|| self.entry(self.file.get(before)).offset)
    }

    /// The last entry for a batch that begins at or before `position`.
    pub(crate) fn at_position(&self, position: u64) -> Option<OffsetPosition> {
        let count = self
            .file
            .partition_point(|[_, found]| u64::from(found) <= position);
        (count > 0).then(|| self.entry(self.file.get(count - 1)))
    }

    /// The last entry, if there is any.
    pub(crate) fn last(&self) -> Option<OffsetPosition> {
        let count = self.file.len();
        (count > 0).then(|| self.entry(self.file.get(count - 1)))
    }

    /// Appends an entry for the batch at `position` that ends with `offset`. No room, or an offset too far from the
    /// base, leaves it out: the caller rolls before that.
    pub(crate) fn append(&self, offset: i64, position: u64) -> Result<()> {
        let (Ok(relative), Ok(position)) =
            (i32::try_from(offset - self.base_offset), i32::try_from(position))
        else {
            return Ok(());
        };
        self.file.push([relative as u32, position as u32]).map(|_| ())
    }

    /// Appends to `other` the entries for what lies before `next_offset` and in the first `size` bytes.
    pub(crate) fn copy_to(&self, other: &Self, next_offset: i64, size: u64) -> Result<()> {
        let entries = (0..self.file.len()).map(|number| self.entry(self.file.get(number)));
        for entry in entries.take_while(|e| e.offset < next_offset && e.position < size) {
            other.append(entry.offset, entry.position)?;
        }
        Ok(())
    }

    pub(crate) fn is_full(&self) -> bool {
        self.file.room() == 0
    }

    /// True when the entries can belong to a segment whose offsets end before `next_offset` and whose `.log` file has
    /// `log_size` bytes. Looks at every entry.
    pub(crate) fn is_sane(&self, next_offset: i64, log_size: u64) -> bool {
        let mut last = OffsetPosition {
            offset: self.base_offset - 1,
            // The first batch never gets an entry.
            position: 0,
        };
        for number in 0..self.file.len() {
            let entry = self.entry(self.file.get(number));
            if entry.offset <= last.offset || entry.position <= last.position {
                return false;
            }
            last = entry;
        }
        self.file.len() == 0 || (last.offset < next_offset && last.position < log_size)
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

    // Broken if it failed: kafka-dump-log or a broker would read other positions from our index than we wrote.
    #[test]
    fn golden_bytes_preallocated_then_trimmed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("i");
        let index = OffsetIndex::create(&path, 100, 10 << 20).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 10 << 20);
        index.append(104, 4200).unwrap();
        index.append(0x0102_0304 + 100, 0x0506_0708).unwrap();
        assert_eq!(
            index.lookup(105, u64::MAX),
            OffsetPosition {
                offset: 104,
                position: 4200
            }
        );
        assert_eq!(index.lookup(103, u64::MAX).position, 0);
        index.flush().unwrap();
        index.trim().unwrap();
        assert_eq!(
            std::fs::read(&path).unwrap(),
            [0, 0, 0, 4, 0, 0, 0x10, 0x68, 1, 2, 3, 4, 5, 6, 7, 8]
        );
        // Still readable after trimming, and full.
        assert_eq!(index.lookup(i64::MAX / 2, u64::MAX).position, 0x0506_0708);
        assert!(index.is_full());
        drop(index);
        let index = OffsetIndex::open_active(&path, 100, 64).unwrap();
        assert_eq!(index.last().unwrap().offset, 0x0102_0304 + 100);
        assert!(index.is_sane(0x0102_0304 + 101, 0x0506_0709));
        assert!(!index.is_sane(0x0102_0304 + 100, 0x0506_0709));
        assert!(!index.is_sane(0x0102_0304 + 101, 0x0506_0708));
    }

    // Broken if it failed: an index with rubbish or the zeros of a lost page would be believed.
    #[test]
    fn rubbish_is_not_sane() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("i");
        for bad in [
            &[0u8; 8][..],
            &[0, 0, 0, 4, 0, 0, 0x10, 0x68, 0, 0, 0, 0, 0, 0, 0, 0],
            &[0, 0, 0, 9, 0, 0, 0x10, 0x68, 0, 0, 0, 8, 0, 0, 0x20, 0],
            &[0xff; 16],
        ] {
            std::fs::write(&path, bad).unwrap();
            let index = OffsetIndex::open_sealed(&path, 0).unwrap();
            assert!(!index.is_sane(1000, 1 << 20), "{bad:?}");
        }
        std::fs::write(&path, [1; 9]).unwrap();
        assert!(OffsetIndex::open_sealed(&path, 0).is_err());
    }

    // Broken if it failed: a reader beside a live broker would take the preallocated zeros for entries.
    #[test]
    fn a_copy_stops_at_the_preallocated_part() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("i");
        let index = OffsetIndex::create(&path, 0, 1 << 20).unwrap();
        for number in 1..=700u32 {
            index
                .append(i64::from(number) * 10, u64::from(number) * 5000)
                .unwrap();
        }
        let copy = OffsetIndex::copy(&path, 0).unwrap();
        assert_eq!(copy.last(), index.last());
        assert_eq!(copy.lookup(345, u64::MAX), index.lookup(345, u64::MAX));
        std::fs::write(&path, b"").unwrap();
        assert_eq!(OffsetIndex::copy(&path, 0).unwrap().last(), None);
        assert_eq!(OffsetIndex::open_sealed(&path, 0).unwrap().last(), None);
    }
}
