//! A partition's directory, read from one offset to another.
//!
//! The log is opened read-only: no lock, no recovery, no write. A broker may append to the same directory meanwhile;
//! the end is fixed when the scan begins. Memory is one piece of a segment, one decompressed batch and the Arrow batch
//! being built, whatever the size of the partition.

use std::path::Path;

use arrow_array::RecordBatch;
use logcore_storage::Log;

use crate::decode::{DecodeOptions, Decoder, Origin};
use crate::error::ColumnsError;

/// Bytes read from a segment at a time, unless a single batch is larger.
const READ_BYTES: u64 = 2 << 20;

/// Arrow batches of the records [start, end) of one partition, in order. An iterator that ends after its first error.
pub struct PartitionScan {
    log: Log,
    decoder: Decoder,
    buffer: Vec<u8>,
    /// The log's end when the scan began.
    latest: i64,
    ended: bool,
}

impl PartitionScan {
    /// Opens the partition in `directory`. `options.topic` and `options.partition` only fill their columns.
    ///
    /// `options.end` may be `i64::MAX` for the end of the log as it is now.
    ///
    /// # Errors
    /// A range that is none or lies outside the log, a directory that cannot be read or holds no partition.
    pub fn open(directory: &Path, options: &DecodeOptions) -> Result<Self, ColumnsError> {
        options.check()?;
        let log = Log::open_read_only(directory)?;
        let mut options = options.clone();
        let (earliest, latest) = (log.log_start_offset(), log.log_end_offset());
        if options.end == i64::MAX {
            options.end = latest;
        }
        if options.start < earliest || options.end > latest || options.start > options.end {
            return Err(ColumnsError::OutOfRange {
                path: directory.to_path_buf(),
                start: options.start,
                end: options.end,
                earliest,
                latest,
            });
        }
        Ok(Self {
            decoder: Decoder::new(&options, Origin::Directory(directory.to_path_buf())),
            latest,
            log,
            buffer: Vec::new(),
            ended: false,
        })
    }

    fn advance(&mut self) -> Result<Option<RecordBatch>, ColumnsError> {
        loop {
            if let Some(batch) = self.decoder.finished.pop_front() {
                return Ok(Some(batch));
            }
            if self.ended {
                return Ok(None);
            }
            if self.decoder.is_done() || !self.read_piece()? {
                self.ended = true;
                self.decoder.flush()?;
            }
        }
    }

    /// Reads and decodes the next piece of a segment; false when the log has nothing more.
    fn read_piece(&mut self) -> Result<bool, ColumnsError> {
        let from = self.decoder.next_offset;
        let slice = self.log.read(from, READ_BYTES, self.latest, true)?;
        if slice.is_empty() {
            return Ok(false);
        }
        let wanted = usize::try_from(slice.len).unwrap_or(usize::MAX);
        if self.buffer.len() < wanted {
            self.buffer.resize(wanted, 0);
        }
        let filled = slice.read_into(&mut self.buffer[..wanted])?;
        self.decoder.feed(&self.buffer[..filled], slice.position)?;
        if self.decoder.next_offset == from {
            // The log said that a whole batch lies here.
            return Err(ColumnsError::CutOff {
                path: self.log.dir(),
                offset: from,
            });
        }
        Ok(true)
    }
}

impl Iterator for PartitionScan {
    type Item = Result<RecordBatch, ColumnsError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.advance();
        if next.is_err() {
            self.ended = true;
        }
        next.transpose()
    }
}

/// The earliest offset in a partition's directory, and the one after its last whole batch.
///
/// # Errors
/// The directory cannot be read or holds no partition.
pub fn partition_offsets(directory: &Path) -> Result<(i64, i64), ColumnsError> {
    let log = Log::open_read_only(directory)?;
    Ok((log.log_start_offset(), log.log_end_offset()))
}

/// The offset of the first record at or after `timestamp` (milliseconds since the epoch), `None` when none is.
///
/// # Errors
/// As [`partition_offsets`].
pub fn partition_offset_for_timestamp(
    directory: &Path,
    timestamp: i64,
) -> Result<Option<i64>, ColumnsError> {
    let found = Log::open_read_only(directory)?.offset_for_timestamp(timestamp)?;
    Ok(found.map(|found| found.offset))
}
