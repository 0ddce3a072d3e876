//! The two sparse indexes of a segment: by offset (`OffsetIndex`) and by timestamp (`TimeIndex`, KIP-33).
//!
//! Both files are big-endian, with entries in increasing order of both fields. An `.index` entry has 8 bytes:
//!
//! ```text
//! 0  relative offset  i32   the last offset of a batch, less the segment's base offset
//! 4  position         i32   where that batch begins in the .log file
//! ```
//!
//! A `.timeindex` entry has 12 bytes:
//!
//! ```text
//! 0  timestamp        i64   the largest timestamp so far, ms since the epoch
//! 8  relative offset  i32   the last offset of the batch that has it, less the segment's base offset
//! ```
//!
//! Guarantee of the offset index: every batch before `position` ends before the entry's offset. Guarantee of
//! the time index: no record before the entry's batch has a larger timestamp. Both get one entry for
//! `index.interval.bytes` of log. The time index gets one more for the segment's largest timestamp when the
//! segment is sealed or the log is closed.
//!
//! Threads and crashes: see [`super::file`]. An index is a hint: a lookup is checked against the batch it
//! leads to, and both files can be rebuilt from the `.log` file.

use std::marker::PhantomData;
use std::path::Path;

use super::file::IndexFile;
use crate::error::Result;

/// The `.index` file of a segment.
pub(crate) type OffsetIndex = SparseIndex<OffsetEntry, 2>;
/// The `.timeindex` file of a segment.
pub(crate) type TimeIndex = SparseIndex<TimeEntry, 3>;

/// A batch's last offset and the position of its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OffsetEntry {
    pub(crate) offset: i64,
    pub(crate) position: u64,
}

/// A timestamp and the last offset of the batch that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimeEntry {
    pub(crate) timestamp: i64,
    pub(crate) offset: i64,
}

/// What an index stores: an entry of `WORDS` 32-bit words.
pub(crate) trait Entry<const WORDS: usize>: Copy {
    /// Entries kept free for the sealing of the segment.
    const RESERVED: usize;

    fn decode(words: [u32; WORDS], base_offset: i64) -> Self;

    /// `None` when a field does not fit: the entry is left out, because the segment is rolled before that.
    fn encode(self, base_offset: i64) -> Option<[u32; WORDS]>;

    /// Whether this entry may follow `last`, or may be the first.
    fn follows(self, last: Option<Self>, base_offset: i64) -> bool;
}

impl Entry<2> for OffsetEntry {
    const RESERVED: usize = 0;

    fn decode([relative, position]: [u32; 2], base_offset: i64) -> Self {
        Self {
            offset: base_offset + i64::from(relative),
            position: u64::from(position),
        }
    }

    fn encode(self, base_offset: i64) -> Option<[u32; 2]> {
        let relative = i32::try_from(self.offset - base_offset).ok()?;
        let position = i32::try_from(self.position).ok()?;
        Some([relative as u32, position as u32])
    }

    fn follows(self, last: Option<Self>, base_offset: i64) -> bool {
        // The first batch of a segment never gets an entry, so no entry has position 0.
        let (offset, position) = last.map_or((base_offset - 1, 0), |last| (last.offset, last.position));
        self.offset > offset && self.position > position
    }
}

impl Entry<3> for TimeEntry {
    const RESERVED: usize = 1;

    fn decode([high, low, relative]: [u32; 3], base_offset: i64) -> Self {
        Self {
            timestamp: (u64::from(high) << 32 | u64::from(low)) as i64,
            offset: base_offset + i64::from(relative),
        }
    }

    fn encode(self, base_offset: i64) -> Option<[u32; 3]> {
        let relative = i32::try_from(self.offset - base_offset).ok()?;
        let timestamp = u64::try_from(self.timestamp).ok()?;
        Some([(timestamp >> 32) as u32, timestamp as u32, relative as u32])
    }

    fn follows(self, last: Option<Self>, base_offset: i64) -> bool {
        let (timestamp, offset) = last.map_or((-1, base_offset), |last| (last.timestamp, last.offset));
        self.timestamp > timestamp && self.offset >= offset
    }
}

#[derive(Debug)]
pub(crate) struct SparseIndex<E, const WORDS: usize> {
    base_offset: i64,
    file: IndexFile<WORDS>,
    entry: PhantomData<E>,
}

impl<E: Entry<WORDS>, const WORDS: usize> SparseIndex<E, WORDS> {
    /// Bytes of an entry.
    pub(crate) const ENTRY_SIZE: u64 = IndexFile::<WORDS>::ENTRY_SIZE;

    /// A new, empty, preallocated file for an active segment.
    pub(crate) fn create(path: &Path, base_offset: i64, max_bytes: u32) -> Result<Self> {
        IndexFile::create(path, max_bytes).map(|file| Self::of(file, base_offset))
    }

    /// The file of a segment that becomes active again.
    pub(crate) fn open_active(path: &Path, base_offset: i64, max_bytes: u32) -> Result<Self> {
        IndexFile::open_active(path, max_bytes).map(|file| Self::of(file, base_offset))
    }

    /// The trimmed file of a sealed segment, for reading only.
    pub(crate) fn open_sealed(path: &Path, base_offset: i64) -> Result<Self> {
        IndexFile::open_sealed(path).map(|file| Self::of(file, base_offset))
    }

    /// A copy in memory of a file that another process may be writing.
    pub(crate) fn copy(path: &Path, base_offset: i64) -> Result<Self> {
        IndexFile::copy(path).map(|file| Self::of(file, base_offset))
    }

    /// An index without a file, for `entries` entries. Used when the disk has no space for a file.
    pub(crate) fn unsaved(path: &Path, base_offset: i64, entries: usize) -> Self {
        Self::of(IndexFile::unsaved(path, entries), base_offset)
    }

    /// An index without entries and without a file.
    pub(crate) fn none(path: &Path, base_offset: i64) -> Self {
        Self::of(IndexFile::none(path), base_offset)
    }

    fn of(file: IndexFile<WORDS>, base_offset: i64) -> Self {
        Self {
            base_offset,
            file,
            entry: PhantomData,
        }
    }

    /// True when the index has no file.
    pub(crate) fn is_unsaved(&self) -> bool {
        self.file.is_unsaved()
    }

    /// True when only the reserved entries are free.
    pub(crate) fn is_full(&self) -> bool {
        self.file.free() <= E::RESERVED
    }

    fn get(&self, number: usize) -> E {
        E::decode(self.file.get(number), self.base_offset)
    }

    fn entries(&self) -> impl Iterator<Item = E> + '_ {
        (0..self.file.len()).map(|number| self.get(number))
    }

    /// How many of the first entries satisfy `holds`, which must hold for a prefix only.
    fn partition_point(&self, holds: impl Fn(E) -> bool) -> usize {
        self.file
            .partition_point(|words| holds(E::decode(words, self.base_offset)))
    }

    /// The last of the first entries that satisfy `holds`.
    fn last_where(&self, holds: impl Fn(E) -> bool) -> Option<E> {
        let count = self.partition_point(holds);
        (count > 0).then(|| self.get(count - 1))
    }

    pub(crate) fn last(&self) -> Option<E> {
        let count = self.file.len();
        (count > 0).then(|| self.get(count - 1))
    }

    fn push(&self, entry: E) -> Result<()> {
        match entry.encode(self.base_offset) {
            Some(words) => self.file.push(words).map(|_| ()),
            None => Ok(()),
        }
    }

    /// True when the entries are in order and `is_inside` holds for the last. Reads every entry.
    fn is_ordered(&self, is_inside: impl Fn(E) -> bool) -> bool {
        let mut last = None;
        for entry in self.entries() {
            if !entry.follows(last, self.base_offset) {
                return false;
            }
            last = Some(entry);
        }
        last.is_none_or(is_inside)
    }

    /// Allocates disk blocks for the next `entries` entries, as far as the file has space for them.
    pub(crate) fn reserve(&self, entries: usize) -> Result<()> {
        self.file.reserve(entries)
    }

    /// Cuts the preallocated file to its entries.
    pub(crate) fn trim(&self) -> Result<()> {
        self.file.trim()
    }

    pub(crate) fn flush(&self) -> Result<()> {
        self.file.flush()
    }
}

impl OffsetIndex {
    /// Where to start a search for `offset` in the first `end` bytes of the log: the last entry at or before
    /// it, or the start of the segment.
    pub(crate) fn lookup(&self, offset: i64, end: u64) -> OffsetEntry {
        self.last_where(|entry| entry.offset <= offset && entry.position < end)
            .unwrap_or(OffsetEntry {
                offset: self.base_offset,
                position: 0,
            })
    }

    /// The offset of the first entry at or after `position`. It is larger than every offset before that
    /// position.
    pub(crate) fn upper_bound(&self, position: u64) -> Option<i64> {
        let before = self.partition_point(|entry| entry.position < position);
        (before < self.file.len()).then(|| self.get(before).offset)
    }

    /// The last entry for a batch that begins at or before `position`.
    pub(crate) fn at_position(&self, position: u64) -> Option<OffsetEntry> {
        self.last_where(|entry| entry.position <= position)
    }

    /// Appends an entry. A full file or a field that does not fit leaves it out.
    pub(crate) fn append(&self, offset: i64, position: u64) -> Result<()> {
        self.push(OffsetEntry { offset, position })
    }

    /// Appends to `other` the entries for offsets below `next_offset` in the first `size` bytes.
    pub(crate) fn copy_to(&self, other: &Self, next_offset: i64, size: u64) -> Result<()> {
        self.entries()
            .take_while(|entry| entry.offset < next_offset && entry.position < size)
            .try_for_each(|entry| other.push(entry))
    }

    /// True when the entries fit a segment whose offsets end before `next_offset` and whose `.log` file has
    /// `log_size` bytes.
    pub(crate) fn is_sane(&self, next_offset: i64, log_size: u64) -> bool {
        self.is_ordered(|last| last.offset < next_offset && last.position < log_size)
    }
}

impl TimeIndex {
    /// The last entry at or before `timestamp` with an offset below `next_offset`.
    pub(crate) fn lookup(&self, timestamp: i64, next_offset: i64) -> Option<TimeEntry> {
        self.last_where(|entry| entry.timestamp <= timestamp && entry.offset < next_offset)
    }

    /// Appends the largest timestamp so far. A timestamp that is no larger than the last entry's is left out.
    pub(crate) fn append(&self, entry: TimeEntry) -> Result<()> {
        if self.last().is_some_and(|last| entry.timestamp <= last.timestamp) {
            return Ok(());
        }
        self.push(entry)
    }

    /// Appends to `other` the entries for offsets below `next_offset`.
    pub(crate) fn copy_to(&self, other: &Self, next_offset: i64) -> Result<()> {
        self.entries()
            .take_while(|entry| entry.offset < next_offset)
            .try_for_each(|entry| other.append(entry))
    }

    /// True when the entries fit a segment whose offsets end before `next_offset`.
    pub(crate) fn is_sane(&self, next_offset: i64) -> bool {
        self.is_ordered(|last| last.offset < next_offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Broken if it failed: kafka-dump-log or a broker would read other positions from our index than we
    // wrote.
    #[test]
    fn an_offset_index_has_kafkas_bytes_and_is_trimmed_to_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("i");
        let index = OffsetIndex::create(&path, 100, 10 << 20).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 10 << 20);
        index.append(104, 4200).unwrap();
        index.append(0x0102_0304 + 100, 0x0506_0708).unwrap();
        assert_eq!(
            index.lookup(105, u64::MAX),
            OffsetEntry {
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

    // Broken if it failed: an index with random bytes, or with the zeros of a lost page, would be believed.
    #[test]
    fn random_bytes_are_not_sane() {
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

    // Broken if it failed: Kafka would read other timestamps from our index than we wrote.
    #[test]
    fn a_time_index_has_kafkas_bytes() {
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

    // Broken if it failed: a sealed segment could lose its largest timestamp, and lookups by time would skip
    // it.
    #[test]
    fn one_entry_of_a_time_index_is_kept_for_sealing() {
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
