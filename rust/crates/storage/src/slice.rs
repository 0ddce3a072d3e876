//! What a read returns: a range of one segment file, for `sendfile` or `pread`.
//!
//! A slice has its file open, so it stays readable after its segment was deleted. It has no lock. Its bytes
//! never change: a log only appends, and a reader never sees what is truncated later.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::buffer::spare_capacity;
use rustix::io::{Errno, pread};

use crate::error::{Result, StorageError};

/// A range of bytes in a segment file. It begins with a whole batch. The last batch may be cut off by the
/// size that was asked for, as in Kafka's fetch responses; readers ignore it.
#[derive(Debug, Clone)]
pub struct LogSlice {
    /// The segment's file.
    pub file: Arc<File>,
    /// The position of the slice in the file, in bytes.
    pub position: u64,
    /// Bytes in the slice; 0 when the log has no record at the offset that was asked for.
    pub len: u64,
    /// The base offset of the first batch, which may be lower than the offset that was asked for. Of an empty
    /// slice: the offset that was asked for.
    pub base_offset: i64,
    /// Bytes of the first batch, 0 when the slice is empty.
    pub first_batch_len: u64,
    pub(crate) path: Arc<PathBuf>,
}

impl LogSlice {
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Fills `out` from the start of the slice; returns the number of bytes.
    pub fn read_into(&self, out: &mut [u8]) -> Result<usize> {
        let wanted = usize::try_from(self.len).unwrap_or(usize::MAX).min(out.len());
        read_at_most(&self.file, &mut out[..wanted], self.position)
            .map_err(StorageError::io("read", self.path.as_path()))
    }

    /// The bytes; the last batch may be cut off. The kernel writes into the result directly: nothing is
    /// zeroed first.
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
        // The allocation may be larger than requested.
        bytes.truncate(wanted);
        Ok(bytes)
    }

    /// The bytes of the whole batches.
    pub fn read_whole_batches(&self) -> Result<Vec<u8>> {
        let mut bytes = self.read_to_vec()?;
        bytes.truncate(whole_batches(&bytes));
        Ok(bytes)
    }
}

/// Bytes of the whole batches at the front, of any format; reads lengths only.
pub fn whole_batches(bytes: &[u8]) -> usize {
    let mut end = 0;
    while let Some(batch) = first_batch(&bytes[end..]) {
        end += batch.len();
    }
    end
}

/// The batch at the front, of any format, if it is whole; reads its length only.
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

/// The result of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// The offset of the first record.
    pub first_offset: i64,
    /// The offset of the last record.
    pub last_offset: i64,
    /// The broker's time that the records got, -1 when they keep their own.
    pub log_append_time: i64,
    /// The log start offset after the append.
    pub log_start_offset: i64,
    /// All batches were in the log already: a retry of an idempotent producer. Nothing was written. The
    /// offsets are those of the first time.
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
    /// The epoch of the leader that wrote it, -1 when unknown.
    pub leader_epoch: i32,
}
