//! Walking over the batches of a segment file, by headers alone or with every byte checked.
//!
//! Reads v2 batches and the entries of legacy message sets (v0, v1), which old directories may have. Reads
//! the file with `pread` through a window: small for headers, large for recovery. Owns no file and writes
//! nothing. Any thread may scan up to a published size.

use std::fs::File;
use std::io;

use logcore_records::{Batch, BatchHeader, HEADER_SIZE, LOG_OVERHEAD, MAGIC_V2};

use crate::slice::read_at_most;

/// Enough for a few small batches, or the header of a large one.
const HEADER_WINDOW: usize = 4096;
/// For scans of every byte.
const FULL_WINDOW: usize = 1 << 20;
/// The end of the magic byte, which every format has at the same position.
const MAGIC_END: usize = 17;
const LEGACY_V0_OVERHEAD: i32 = 14;
const LEGACY_V1_OVERHEAD: i32 = 22;

/// One batch, or one legacy entry, in a segment file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredBatch {
    /// Its position in the file.
    pub(crate) position: u64,
    /// Bytes, header included.
    pub(crate) size: u64,
    /// The first offset. A compressed legacy entry has its last offset here: its first is not known.
    pub(crate) base_offset: i64,
    pub(crate) last_offset: i64,
    /// Milliseconds since the epoch, -1 when there is none.
    pub(crate) max_timestamp: i64,
    pub(crate) leader_epoch: i32,
    pub(crate) magic: i8,
    /// The header, of a v2 batch.
    pub(crate) header: Option<BatchHeader>,
}

impl StoredBatch {
    /// The position of the next one.
    pub(crate) fn end(&self) -> u64 {
        self.position + self.size
    }

    /// Reads the header of the entry at `position` of the file from its first bytes.
    pub(crate) fn parse(bytes: &[u8], position: u64) -> Result<Self, String> {
        let Some(front) = bytes.first_chunk::<MAGIC_END>() else {
            return Err(format!("{} bytes are less than a header", bytes.len()));
        };
        let base_offset = i64::from_be_bytes(array(front, 0));
        // `i64::MAX` is not an offset: the next offset would overflow.
        if !(0..i64::MAX).contains(&base_offset) {
            return Err(format!("base offset {base_offset} is invalid"));
        }
        let length = i32::from_be_bytes(array(front, 8));
        match front[MAGIC_END - 1] as i8 {
            MAGIC_V2 => {
                let header = BatchHeader::parse(bytes).map_err(|e| e.to_string())?;
                if header.last_offset_delta < 0 || !(base_offset..i64::MAX).contains(&header.last_offset()) {
                    let delta = header.last_offset_delta;
                    return Err(format!("last offset delta {delta} is invalid"));
                }
                Ok(Self {
                    position,
                    size: header.size() as u64,
                    base_offset,
                    last_offset: header.last_offset(),
                    max_timestamp: header.max_timestamp,
                    leader_epoch: header.partition_leader_epoch,
                    magic: MAGIC_V2,
                    header: Some(header),
                })
            }
            magic @ 0..=1 => {
                let least = if magic == 0 {
                    LEGACY_V0_OVERHEAD
                } else {
                    LEGACY_V1_OVERHEAD
                };
                if length < least {
                    return Err(format!("message size {length} is less than {least}"));
                }
                let timestamp = match bytes.get(18..26) {
                    Some(_) if magic == 1 => i64::from_be_bytes(array(bytes, 18)),
                    _ => -1,
                };
                Ok(Self {
                    position,
                    size: LOG_OVERHEAD as u64 + length as u64,
                    base_offset,
                    last_offset: base_offset,
                    max_timestamp: timestamp,
                    leader_epoch: -1,
                    magic,
                    header: None,
                })
            }
            magic => Err(format!("magic byte {magic} is not a record format")),
        }
    }

    /// [`StoredBatch::verify`] for bytes that may have been cut short.
    pub(crate) fn verify_exact(&self, bytes: &[u8]) -> Result<(), String> {
        verify_whole(self, bytes)
    }

    /// Checks the checksum over `bytes`, which are exactly this entry.
    pub(crate) fn verify(&self, bytes: &[u8]) -> Result<(), String> {
        if self.header.is_some() {
            return Batch::parse(bytes)
                .and_then(|batch| batch.verify_crc())
                .map_err(|e| e.to_string());
        }
        let stored = u32::from_be_bytes(array(bytes, LOG_OVERHEAD));
        let computed = crc32fast::hash(&bytes[LOG_OVERHEAD + 4..]);
        if stored == computed {
            Ok(())
        } else {
            Err(format!(
                "checksum {stored:#010x} is stored, {computed:#010x} computed"
            ))
        }
    }
}

/// `N` bytes at `at`; the caller has checked that they exist.
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

/// The next step of a scan.
#[derive(Debug)]
pub(crate) enum Next {
    Batch(StoredBatch),
    /// The range ends after the last batch.
    End,
    /// The bytes here are no whole batch; the reason.
    Torn(String),
}

/// A walk over a range of a file that starts at a batch.
pub(crate) struct Scanner<'a> {
    file: &'a File,
    position: u64,
    end: u64,
    check: bool,
    window: Vec<u8>,
    window_at: u64,
    window_size: usize,
}

impl<'a> Scanner<'a> {
    /// Reads headers only.
    pub(crate) fn headers(file: &'a File, position: u64, end: u64) -> Self {
        Self::new(file, position, end, false, HEADER_WINDOW)
    }

    /// Reads headers only, of a long range.
    pub(crate) fn all_headers(file: &'a File, position: u64, end: u64) -> Self {
        Self::new(file, position, end, false, 16 * HEADER_WINDOW)
    }

    /// Verifies checksums; a batch with a wrong checksum is `Torn`.
    pub(crate) fn checked(file: &'a File, position: u64, end: u64) -> Self {
        Self::new(file, position, end, true, FULL_WINDOW)
    }

    /// [`Scanner::checked`] with a window of `window_size` bytes, or of the size of a larger batch.
    pub(crate) fn checked_through(file: &'a File, position: u64, end: u64, window_size: usize) -> Self {
        Self::new(file, position, end, true, window_size)
    }

    /// Reads headers, for a caller that reads and verifies every batch's bytes itself.
    pub(crate) fn whole(file: &'a File, position: u64, end: u64) -> Self {
        Self::new(file, position, end, false, FULL_WINDOW)
    }

    fn new(file: &'a File, position: u64, end: u64, check: bool, window_size: usize) -> Self {
        Self {
            file,
            position,
            end,
            check,
            window: Vec::new(),
            window_at: position,
            window_size,
        }
    }

    /// The position of the walk. Everything before it was whole.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// The next batch, or why there is none. `End` and `Torn` do not move the walk.
    pub(crate) fn next(&mut self) -> io::Result<Next> {
        let remaining = self.end.saturating_sub(self.position);
        if remaining == 0 {
            return Ok(Next::End);
        }
        let wanted = remaining.min(HEADER_SIZE as u64) as usize;
        let position = self.position;
        let batch = match StoredBatch::parse(self.fill(position, wanted)?, position) {
            Ok(batch) if batch.size <= remaining => batch,
            Ok(batch) => {
                return Ok(Next::Torn(format!(
                    "a batch of {} bytes begins but only {remaining} bytes remain",
                    batch.size
                )));
            }
            Err(reason) => return Ok(Next::Torn(reason)),
        };
        if self.check {
            let bytes = self.fill(position, batch.size as usize)?;
            if let Err(reason) = verify_whole(&batch, bytes) {
                return Ok(Next::Torn(reason));
            }
        }
        self.position = batch.end();
        Ok(Next::Batch(batch))
    }

    /// All bytes of a batch from this scan; fewer when the file was cut since.
    pub(crate) fn bytes(&mut self, batch: &StoredBatch) -> io::Result<&[u8]> {
        self.fill(batch.position, batch.size as usize)
    }

    /// `length` bytes at `position`, through the window. They are inside the range.
    fn fill(&mut self, position: u64, length: usize) -> io::Result<&[u8]> {
        let have = self.window_at..self.window_at + self.window.len() as u64;
        if position < have.start || position + length as u64 > have.end {
            let remaining = self.end.saturating_sub(position);
            let size = (self.window_size as u64).max(length as u64).min(remaining) as usize;
            self.window.resize(size, 0);
            self.window_at = position;
            let filled = read_at_most(self.file, &mut self.window, position)?;
            self.window.truncate(filled);
        }
        let from = (position - self.window_at) as usize;
        let to = (from + length).min(self.window.len());
        Ok(&self.window[from..to])
    }
}

fn verify_whole(batch: &StoredBatch, bytes: &[u8]) -> Result<(), String> {
    if (bytes.len() as u64) < batch.size {
        return Err("the file ends inside the batch".to_owned());
    }
    batch.verify(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file_of(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    /// A legacy message v1, from the layout.
    fn legacy(offset: i64, timestamp: i64, value: &[u8]) -> Vec<u8> {
        let mut body = vec![1, 0];
        body.extend(timestamp.to_be_bytes());
        body.extend((-1i32).to_be_bytes());
        body.extend((value.len() as i32).to_be_bytes());
        body.extend(value);
        let mut out = offset.to_be_bytes().to_vec();
        out.extend((body.len() as i32 + 4).to_be_bytes());
        out.extend(crc32fast::hash(&body).to_be_bytes());
        out.extend(body);
        out
    }

    // Broken if it failed: a directory with old message formats could not be opened, or its damage would not
    // be seen.
    #[test]
    fn legacy_entries() {
        let mut bytes = legacy(5, 1000, b"a");
        bytes.extend(legacy(6, 2000, &[7; 9000]));
        let file = file_of(&bytes);
        let mut scan = Scanner::checked(&file, 0, bytes.len() as u64);
        for (offset, timestamp) in [(5, 1000), (6, 2000)] {
            let Next::Batch(batch) = scan.next().unwrap() else {
                panic!("no batch")
            };
            assert_eq!((batch.last_offset, batch.max_timestamp), (offset, timestamp));
        }
        assert!(matches!(scan.next().unwrap(), Next::End));

        *bytes.last_mut().unwrap() ^= 1;
        let file = file_of(&bytes);
        let mut scan = Scanner::checked(&file, 0, bytes.len() as u64);
        assert!(matches!(scan.next().unwrap(), Next::Batch(_)));
        assert!(matches!(scan.next().unwrap(), Next::Torn(_)));
    }

    // Broken if it failed: random bytes in a file would panic, allocate without bound, or be read as a batch.
    #[test]
    fn rubbish_is_torn() {
        for bytes in [vec![0; 100], vec![0xff; 100], b"short".to_vec(), {
            let mut huge = vec![0; 61];
            huge[8..12].copy_from_slice(&i32::MAX.to_be_bytes());
            huge[16] = 2;
            huge
        }] {
            let file = file_of(&bytes);
            let mut scan = Scanner::checked(&file, 0, bytes.len() as u64);
            assert!(matches!(scan.next().unwrap(), Next::Torn(_)));
            assert_eq!(scan.position(), 0);
        }
    }
}
