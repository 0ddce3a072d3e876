//! What a read returns: a range of one segment file, for `sendfile` or `pread`.
//!
//! A slice holds its file open, so it stays readable after its segment was deleted. It holds no lock. The bytes of a
//! slice never change: a log only appends, and what is truncated was never visible to a reader.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::buffer::spare_capacity;
use rustix::io::{Errno, pread};

use crate::error::{Result, StorageError};

/// A range of bytes in a segment file. It begins with a whole batch; the last batch may be cut off by the size asked
/// for, as Kafka's fetch responses are, and readers ignore what is cut.
#[derive(Debug, Clone)]
pub struct LogSlice {
    /// The segment's file.
    pub file: Arc<File>,
    /// Where the slice begins in the file, in bytes.
    pub position: u64,
    /// Bytes in the slice; 0 when there is nothing (yet) at the offset asked for.
    pub len: u64,
    /// The base offset of the first batch, which may be lower than the offset asked for. The offset asked for when the
    /// slice is empty.
    pub base_offset: i64,
    /// Bytes of the first batch, 0 when the slice is empty.
    pub first_batch_len: u64,
    pub(crate) path: Arc<PathBuf>,
}

impl LogSlice {
    /// True when there is nothing to read.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Fills `out` from the front of the slice; returns how many bytes there were.
    pub fn read_into(&self, out: &mut [u8]) -> Result<usize> {
        let wanted = usize::try_from(self.len).unwrap_or(usize::MAX).min(out.len());
        read_at_most(&self.file, &mut out[..wanted], self.position)
            .map_err(StorageError::io("read", self.path.as_path()))
    }

    /// The bytes, as they are: the last batch may be cut off. The kernel writes them where they stay; nothing is zeroed
    /// or copied besides.
    pub fn read_to_vec(&self) -> Result<Vec<u8>> {
        let wanted = usize::try_from(self.len).unwrap_or(usize::MAX);
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact(wanted)
            .map_err(|_| StorageError::io("read", self.path.as_path())(io::ErrorKind::OutOfMemory.into()))?;
        while bytes.len() < wanted {
            let position = self.position + bytes.len() as u64;
            match pread(&*self.file, spare_capacity(&mut bytes), position) {
                Ok(0) => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => {
                    return Err(StorageError::io("read", self.path.as_path())(errno.into()));
                }
            }
        }
        // There may be more room than was asked for.
        bytes.truncate(wanted);
        Ok(bytes)
    }

    /// The bytes of the batches that are whole in the slice.
    pub fn read_whole_batches(&self) -> Result<Vec<u8>> {
        let mut bytes = self.read_to_vec()?;
        bytes.truncate(whole_batches(&bytes));
        Ok(bytes)
    }
}

/// How many bytes at the front are whole batches, of any format; looks at lengths only.
pub fn whole_batches(bytes: &[u8]) -> usize {
    let mut end = 0;
    while let Some(batch) = first_batch(&bytes[end..]) {
        end += batch.len();
    }
    end
}

/// The batch at the front, of any format, if it is whole; looks at its length only.
pub fn first_batch(bytes: &[u8]) -> Option<&[u8]> {
    let length = bytes.get(8..12)?;
    let length = i32::from_be_bytes([length[0], length[1], length[2], length[3]]);
    let length = usize::try_from(length).ok()?;
    bytes.get(..logcore_records::LOG_OVERHEAD + length)
}

/// `pread` until `out` is full or the file ends.
pub(crate) fn read_at_most(file: &File, out: &mut [u8], position: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < out.len() {
        match file.read_at(&mut out[filled..], position + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// What an append did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// The offset of the first record.
    pub first_offset: i64,
    /// The offset of the last record.
    pub last_offset: i64,
    /// The broker's time given to the records, -1 when they keep their own.
    pub log_append_time: i64,
    /// The log's start when the append was done.
    pub log_start_offset: i64,
    /// Every batch was there already: a retry of an idempotent producer. Nothing was written; the offsets are those
    /// of the first time.
    pub duplicate: bool,
    /// Bytes written; 0 when there was nothing to write.
    pub bytes: u64,
}

/// A record found by time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimestampOffset {
    /// Milliseconds since the epoch.
    pub timestamp: i64,
    pub offset: i64,
    /// The epoch of the leader that wrote it, -1 when not known.
    pub leader_epoch: i32,
}
