//! Scans a partition's log from one offset to another, and answers questions about a partition's offsets.
//!
//! The caller has the log open already, or the scan opens it read-only: no lock, no recovery, no write.
//! Appends may go on meanwhile; the end is fixed when the scan begins. A scan's memory does not depend on the
//! partition's size: it is one piece of a segment ([`READ_BYTES`]), one decompressed batch and the Arrow
//! batch being built.

use std::path::Path;
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use logcore_storage::{IsolationLevel, Log};

use crate::aborted::AbortedTransaction;
use crate::decode::{DecodeOptions, Decoder, Origin};
use crate::error::ColumnsError;

/// Bytes read from a segment at a time, unless a single batch is larger.
const READ_BYTES: u64 = 2 << 20;

/// An object that keeps a log open.
pub trait LogSource: Send + Sync {
    /// The log.
    fn log(&self) -> &Log;
}

impl LogSource for Log {
    fn log(&self) -> &Log {
        self
    }
}

/// Arrow batches of the records `[start, end)` of one partition, in order. An iterator that ends after its
/// first error.
pub struct PartitionScan {
    source: Arc<dyn LogSource>,
    decoder: Decoder,
    /// Records before this offset are too old.
    seek: i64,
    schema: SchemaRef,
    buffer: Vec<u8>,
    /// The log's end when the scan began.
    latest: i64,
    ended: bool,
}

impl PartitionScan {
    /// Opens the partition in `directory`. `options.topic` and `options.partition` only fill their columns.
    /// An `options.end` of `i64::MAX` stands for the present end of the log.
    ///
    /// # Errors
    /// An invalid range, one outside the log, a directory that cannot be read or has no log.
    pub fn open(directory: &Path, options: &DecodeOptions) -> Result<Self, ColumnsError> {
        options.check()?;
        Self::over(Arc::new(Log::open_read_only(directory)?), options)
    }

    /// [`PartitionScan::open`] for a log that is open already.
    ///
    /// # Errors
    /// As [`PartitionScan::open`].
    pub fn over(source: Arc<dyn LogSource>, options: &DecodeOptions) -> Result<Self, ColumnsError> {
        options.check()?;
        let log = source.log();
        let mut options = options.clone();
        let (earliest, mut latest) = (log.log_start_offset(), log.log_end_offset());
        if options.end == i64::MAX {
            options.end = latest;
        }
        if options.start < earliest || options.end > latest || options.start > options.end {
            return Err(ColumnsError::OutOfRange {
                path: log.dir(),
                start: options.start,
                end: options.end,
                earliest,
                latest,
            });
        }
        if options.isolation == IsolationLevel::ReadCommitted {
            latest = log.find_last_stable_offset()?;
            options.end = options.end.min(latest);
            let aborted = log.aborted_transactions(options.start, options.end)?;
            let aborted = aborted.into_iter().map(AbortedTransaction::from);
            options.aborted.extend(aborted);
        }
        let seek = first_of_time(log, &options)?;
        Ok(Self {
            decoder: Decoder::new(&options, Origin::Directory(log.dir())),
            seek,
            schema: Arc::clone(options.projection.schema()),
            latest,
            source,
            buffer: Vec::new(),
            ended: false,
        })
    }

    /// The schema of every batch.
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
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
        let from = self.decoder.next_offset.max(self.seek);
        if from >= self.latest {
            return Ok(false);
        }
        let log = self.source.log();
        let slice = log.read(from, READ_BYTES, self.latest, true)?;
        if slice.is_empty() {
            return Ok(false);
        }
        let wanted = usize::try_from(slice.len).unwrap_or(usize::MAX);
        if self.buffer.len() < wanted {
            self.buffer.resize(wanted, 0);
        }
        let filled = slice.read_into(&mut self.buffer[..wanted])?;
        self.decoder.feed(&self.buffer[..filled], slice.position)?;
        if self.decoder.next_offset <= from {
            // `Log::read` returned a slice, so there should be a whole batch in it.
            return Err(ColumnsError::CutOff {
                path: log.dir(),
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

/// The offset of the first record at or after the start time, by the time index. Its batch is decoded from
/// its front, because the index has only the last record of an old compressed message set.
fn first_of_time(log: &Log, options: &DecodeOptions) -> Result<i64, ColumnsError> {
    if !options.has_times() || options.start_time == i64::MIN {
        return Ok(options.start);
    }
    let found = log.offset_for_timestamp(options.start_time)?;
    Ok(found.map_or(i64::MAX, |found| found.offset))
}

/// A scan as an Arrow `RecordBatchReader`, which can be exported as a C stream.
pub struct ScanReader(pub PartitionScan);

impl Iterator for ScanReader {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.0.next()?;
        Some(next.map_err(|error| ArrowError::ExternalError(Box::new(error))))
    }
}

impl RecordBatchReader for ScanReader {
    fn schema(&self) -> SchemaRef {
        self.0.schema()
    }
}

/// Splits `[start, end)` into at most `parts` ranges of about the same number of bytes, for readers that work
/// side by side. An `end` of `i64::MAX` stands for the log's end.
///
/// # Errors
/// 0 parts; an invalid range, or one outside the log.
pub fn split(log: &Log, parts: usize, start: i64, end: i64) -> Result<Vec<(i64, i64)>, ColumnsError> {
    if parts == 0 {
        return Err(ColumnsError::NoParts);
    }
    let (earliest, latest) = (log.log_start_offset(), log.log_end_offset());
    let end = if end == i64::MAX { latest } else { end };
    if start > end {
        return Err(ColumnsError::BadRange { start, end });
    }
    if start < earliest || end > latest {
        return Err(ColumnsError::OutOfRange {
            path: log.dir(),
            start,
            end,
            earliest,
            latest,
        });
    }
    let cuts = log.split_offsets(start, end, parts)?;
    let pairs = cuts.windows(2).map(|cut| (cut[0], cut[1]));
    Ok(pairs.filter(|(from, to)| from < to).collect())
}

/// [`split`] for the partition in a directory, from its earliest offset if `start` is `None`.
///
/// # Errors
/// As [`split`] and [`partition_offsets`].
pub fn partition_splits(
    directory: &Path,
    parts: usize,
    start: Option<i64>,
    end: i64,
) -> Result<Vec<(i64, i64)>, ColumnsError> {
    let log = Log::open_read_only(directory)?;
    let start = start.unwrap_or_else(|| log.log_start_offset());
    split(&log, parts, start, end)
}

/// The earliest offset in a partition's directory, and the offset after its last whole batch. With `readable`
/// the second is the end that such a reader may see ([`Log::find_readable_end`]).
///
/// # Errors
/// The directory cannot be read or has no log.
pub fn partition_offsets(
    directory: &Path,
    readable: Option<IsolationLevel>,
) -> Result<(i64, i64), ColumnsError> {
    let log = Log::open_read_only(directory)?;
    let end = match readable {
        Some(isolation) => log.find_readable_end(isolation)?,
        None => log.log_end_offset(),
    };
    Ok((log.log_start_offset(), end))
}

/// Whether the records `[start, end)`, which the partition's leader has declared readable, can be read from a
/// replica's directory. `leader_epoch` is the leader's latest one.
///
/// Records of the same epoch are the leader's own, so a replica whose latest epoch that is has no others. Of
/// any other replica only those up to its own high watermark are certain: the rest may yet be truncated.
///
/// # Errors
/// As [`partition_offsets`].
pub fn partition_covers(
    directory: &Path,
    (start, end): (i64, i64),
    leader_epoch: i32,
    isolation: IsolationLevel,
) -> Result<bool, ColumnsError> {
    let log = Log::open_read_only(directory)?;
    let same_epoch = log.latest_epoch() == Some(leader_epoch);
    // Its end is read after its epoch: what a truncation between the two left is the leader's.
    log.refresh()?;
    let readable = match isolation {
        IsolationLevel::ReadUncommitted if same_epoch => log.log_end_offset(),
        IsolationLevel::ReadCommitted if same_epoch => log.find_last_stable_offset()?,
        isolation => log.find_readable_end(isolation)?,
    };
    Ok(log.log_start_offset() <= start && end <= readable)
}

/// The offset of the first record at or after `timestamp` (milliseconds since the epoch), `None` when there
/// is none.
///
/// # Errors
/// As [`partition_offsets`].
pub fn partition_offset_for_timestamp(directory: &Path, timestamp: i64) -> Result<Option<i64>, ColumnsError> {
    let found = Log::open_read_only(directory)?.offset_for_timestamp(timestamp)?;
    Ok(found.map(|found| found.offset))
}
