//! The file behind an index: fixed-size entries of 32-bit words, big-endian, memory-mapped.
//!
//! An active segment's file is preallocated to `segment.index.bytes` as a hole (Kafka's `AbstractIndex`).
//! Zeros follow its entries. It is trimmed to its entries when the segment is sealed or the log is closed.
//!
//! One thread appends, with the log's writer lock. Any number of threads read, and none waits: an entry's
//! words are stored first, then the count of entries is published. The words are atomics, so there is no data
//! race.
//!
//! Faults. Access to a mapping past the file's end, or a store into a hole on a full disk, is SIGBUS.
//! Therefore only our own files are mapped (a read-only log copies its indexes into memory), a page is
//! allocated before the first store into it, files are never trimmed below their published entries, and
//! nothing past those is accessed after trimming. A crash may leave any subset of the pages written. The
//! loader checks or rebuilds an index.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use memmap2::{Advice, MmapOptions, MmapRaw};

use crate::error::{MAP, Result, StorageError};
use crate::files::disk;
use crate::slice::read_at_most;

const PAGE: u64 = 4096;

static MAPPINGS: AtomicU64 = AtomicU64::new(0);

/// How many index files this process has mapped. The system has a limit (`vm.max_map_count`). A segment that
/// is written to has two, any other segment that was read from at most two.
pub fn mappings() -> u64 {
    MAPPINGS.load(Ordering::Relaxed)
}

/// A mapping that is counted in [`MAPPINGS`].
#[derive(Debug)]
struct Mapping(MmapRaw);

impl Mapping {
    fn new(map: MmapRaw) -> Self {
        MAPPINGS.fetch_add(1, Ordering::Relaxed);
        Self(map)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        MAPPINGS.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
enum Memory {
    Mapped(Mapping),
    Heap(Vec<AtomicU32>),
    /// Entries without a file, because the disk had no space for one.
    Unsaved(Vec<AtomicU32>),
}

/// Entries of `WORDS` 32-bit words each.
#[derive(Debug)]
pub(crate) struct IndexFile<const WORDS: usize> {
    path: PathBuf,
    memory: Memory,
    entries: AtomicUsize,
    capacity: AtomicUsize,
    /// Bytes at the front of the file that have disk blocks. Only the appending thread uses it.
    allocated: AtomicU64,
}

impl<const WORDS: usize> IndexFile<WORDS> {
    pub(crate) const ENTRY_SIZE: u64 = 4 * WORDS as u64;

    /// A new, empty file for an active segment; an existing file is emptied.
    pub(crate) fn create(path: &Path, max_bytes: u32) -> Result<Self> {
        Self::map(path, true, max_bytes)
    }

    /// A trimmed file, to append to it again.
    pub(crate) fn open_active(path: &Path, max_bytes: u32) -> Result<Self> {
        Self::map(path, false, max_bytes)
    }

    fn map(path: &Path, truncate: bool, max_bytes: u32) -> Result<Self> {
        let opened = if truncate {
            disk::create(path)
        } else {
            disk::open(path)
        };
        let file = opened.map_err(StorageError::io("open", path))?;
        let used = Self::whole_entries(path, &file)?;
        let capacity = (u64::from(max_bytes) / Self::ENTRY_SIZE).max(1).max(used);
        let size = capacity * Self::ENTRY_SIZE;
        disk::set_len(&file, path, size).map_err(StorageError::io("preallocate", path))?;
        let map = MmapOptions::new()
            .len(size as usize)
            .map_raw(&file)
            .and_then(read_at_random)
            .map_err(StorageError::io(MAP, path))?;
        Ok(Self {
            path: path.to_path_buf(),
            memory: Memory::Mapped(Mapping::new(map)),
            entries: AtomicUsize::new(used as usize),
            capacity: AtomicUsize::new(capacity as usize),
            allocated: AtomicU64::new(used * Self::ENTRY_SIZE),
        })
    }

    /// The trimmed file of a sealed segment, for reading only.
    pub(crate) fn open_sealed(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(StorageError::io("open", path))?;
        let used = Self::whole_entries(path, &file)?;
        let memory = if used == 0 {
            // A mapping cannot be empty.
            Memory::Heap(Vec::new())
        } else {
            let map = MmapOptions::new()
                .len((used * Self::ENTRY_SIZE) as usize)
                .map_raw_read_only(&file)
                .and_then(read_at_random)
                .map_err(StorageError::io(MAP, path))?;
            Memory::Mapped(Mapping::new(map))
        };
        Ok(Self::fixed(path, memory, used as usize))
    }

    /// A copy in memory of a file that another process may be writing: the entries up to the first that is
    /// all zeros.
    pub(crate) fn copy(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(StorageError::io("open", path))?;
        let total = Self::whole_entries(path, &file)?;
        let entry = |number: u64| -> Result<bool> {
            let mut bytes = [0; 16];
            let bytes = &mut bytes[..Self::ENTRY_SIZE as usize];
            let filled = read_at_most(&file, bytes, number * Self::ENTRY_SIZE)
                .map_err(StorageError::io("read", path))?;
            Ok(filled == bytes.len() && bytes.iter().any(|byte| *byte != 0))
        };
        // Entries are written in order, so the used ones are a prefix.
        let (mut low, mut high) = (0, total);
        while low < high {
            let middle = low + (high - low) / 2;
            if entry(middle)? {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let mut bytes = vec![0; (low * Self::ENTRY_SIZE) as usize];
        let filled = read_at_most(&file, &mut bytes, 0).map_err(StorageError::io("read", path))?;
        let used = filled / Self::ENTRY_SIZE as usize;
        let words = bytes[..used * Self::ENTRY_SIZE as usize]
            .chunks_exact(4)
            .map(|word| AtomicU32::new(u32::from_ne_bytes([word[0], word[1], word[2], word[3]])))
            .collect();
        Ok(Self::fixed(path, Memory::Heap(words), used))
    }

    /// An index without entries and without a file: searches scan the log.
    pub(crate) fn none(path: &Path) -> Self {
        Self::fixed(path, Memory::Heap(Vec::new()), 0)
    }

    /// An index without a file, for `entries` entries, when the disk has no space for a file.
    pub(crate) fn unsaved(path: &Path, entries: usize) -> Self {
        let words = (0..entries * WORDS).map(|_| AtomicU32::new(0)).collect();
        let index = Self::fixed(path, Memory::Unsaved(words), 0);
        index.capacity.store(entries, Ordering::Relaxed);
        index
    }

    /// True for an index without a file.
    pub(crate) fn is_unsaved(&self) -> bool {
        matches!(self.memory, Memory::Unsaved(_))
    }

    fn fixed(path: &Path, memory: Memory, entries: usize) -> Self {
        Self {
            path: path.to_path_buf(),
            memory,
            entries: AtomicUsize::new(entries),
            capacity: AtomicUsize::new(entries),
            allocated: AtomicU64::new(0),
        }
    }

    fn whole_entries(path: &Path, file: &File) -> Result<u64> {
        let size = file.metadata().map_err(StorageError::io("read", path))?.len();
        if size % Self::ENTRY_SIZE == 0 && size <= i32::MAX as u64 {
            return Ok(size / Self::ENTRY_SIZE);
        }
        Err(StorageError::Corrupt {
            path: path.to_path_buf(),
            position: size,
            reason: format!("{size} bytes are not whole entries of {} bytes", Self::ENTRY_SIZE),
        })
    }

    fn words(&self) -> &[AtomicU32] {
        match &self.memory {
            Memory::Heap(words) | Memory::Unsaved(words) => words,
            // SAFETY: the mapping lives as long as `self`, begins on a page, and has the length that it
            // states. AtomicU32 has the size and alignment of u32, and any bits are valid. All access in this
            // process is through these atomics. Pages past the file's end, after trimming, are never loaded:
            // see `get`.
            Memory::Mapped(Mapping(map)) => unsafe {
                std::slice::from_raw_parts(map.as_mut_ptr().cast::<AtomicU32>(), map.len() / 4)
            },
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.load(Ordering::Acquire)
    }

    /// How many more entries fit.
    pub(crate) fn free(&self) -> usize {
        self.capacity.load(Ordering::Relaxed).saturating_sub(self.len())
    }

    /// Entry `number`, which must be below a length that was read before.
    pub(crate) fn get(&self, number: usize) -> [u32; WORDS] {
        debug_assert!(number < self.len());
        let words = &self.words()[number * WORDS..(number + 1) * WORDS];
        std::array::from_fn(|i| u32::from_be(words[i].load(Ordering::Relaxed)))
    }

    /// How many of the first entries satisfy `holds`, which must hold for a prefix only.
    pub(crate) fn partition_point(&self, holds: impl Fn([u32; WORDS]) -> bool) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if holds(self.get(middle)) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Appends an entry; false when the file is full. One thread at a time.
    pub(crate) fn push(&self, entry: [u32; WORDS]) -> Result<bool> {
        if self.free() == 0 {
            return Ok(false);
        }
        let number = self.len();
        self.allocate((number as u64 + 1) * Self::ENTRY_SIZE)?;
        let words = &self.words()[number * WORDS..(number + 1) * WORDS];
        for (word, value) in words.iter().zip(entry) {
            word.store(value.to_be(), Ordering::Relaxed);
        }
        self.entries.store(number + 1, Ordering::Release);
        Ok(true)
    }

    /// Allocates disk blocks for the next `entries` entries, as far as they fit. One thread at a time.
    pub(crate) fn reserve(&self, entries: usize) -> Result<()> {
        match self.free().min(entries) {
            0 => Ok(()),
            entries => self.allocate((self.len() + entries) as u64 * Self::ENTRY_SIZE),
        }
    }

    /// Allocates disk blocks up to `end`, so that a store into the mapping cannot fail.
    fn allocate(&self, end: u64) -> Result<()> {
        let allocated = self.allocated.load(Ordering::Relaxed);
        if end <= allocated || self.is_unsaved() {
            return Ok(());
        }
        let target = end.next_multiple_of(PAGE);
        let file = OpenOptions::new()
            .write(true)
            .open(&self.path)
            .map_err(StorageError::io("open", &self.path))?;
        disk::allocate(&file, &self.path, allocated, target - allocated)
            .map_err(StorageError::io("allocate", &self.path))?;
        self.allocated.store(target, Ordering::Relaxed);
        Ok(())
    }

    /// Cuts the file to its entries. Nothing can be appended afterwards.
    pub(crate) fn trim(&self) -> Result<()> {
        let entries = self.len();
        self.capacity.store(entries, Ordering::Relaxed);
        if self.is_unsaved() {
            return Ok(());
        }
        OpenOptions::new()
            .write(true)
            .open(&self.path)
            .and_then(|file| disk::set_len(&file, &self.path, entries as u64 * Self::ENTRY_SIZE))
            .map_err(StorageError::io("trim", &self.path))
    }

    pub(crate) fn flush(&self) -> Result<()> {
        let bytes = self.len() * Self::ENTRY_SIZE as usize;
        match &self.memory {
            Memory::Mapped(Mapping(map)) if bytes > 0 => {
                disk::sync_map(map, &self.path, bytes).map_err(StorageError::io("flush", &self.path))
            }
            Memory::Mapped(_) | Memory::Heap(_) | Memory::Unsaved(_) => Ok(()),
        }
    }
}

/// Turns off read-ahead. With it, the first store into a page of the hole makes the kernel create as many
/// pages of zeros as `read_ahead_kb` says, possibly all. A search does not use the next pages either.
fn read_at_random(map: MmapRaw) -> io::Result<MmapRaw> {
    map.advise(Advice::Random)?;
    Ok(map)
}

/// True when an index file exists with a plausible size. Does not open it.
pub(crate) fn looks_whole(path: &Path, entry_size: u64) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.len() % entry_size == 0)
}
