//! The errors of reading a partition into columns, and of encoding columns as records.

use std::path::PathBuf;

use arrow_schema::DataType;
use logcore_records::RecordError;
use logcore_storage::StorageError;

/// Why records could not be read into rows, or rows not be encoded as batches.
#[derive(Debug, thiserror::Error)]
pub enum ColumnsError {
    /// The projection names a column that Spark's Kafka source does not have.
    #[error("there is no column {name:?}; the columns are {known}")]
    UnknownColumn { name: String, known: String },
    /// The projection is empty.
    #[error("no column was asked for; name at least one")]
    NoColumns,
    /// The projection names a column twice.
    #[error("column {name:?} is asked for twice")]
    DuplicateColumn { name: &'static str },
    /// The range ends before it starts, or starts below zero.
    #[error("offsets [{start}, {end}) are not a range: 0 <= start <= end must hold")]
    BadRange { start: i64, end: i64 },
    /// The time range ends before it starts.
    #[error("times [{start}, {end}) are not a range: start <= end must hold")]
    BadTimes { start: i64, end: i64 },
    /// A partition is to be split into 0 ranges.
    #[error("a partition cannot be split into 0 ranges; ask for at least one")]
    NoParts,
    /// The range lies outside what the log holds.
    #[error("offsets [{start}, {end}) are not in {}, which has [{earliest}, {latest})", path.display())]
    OutOfRange {
        path: PathBuf,
        start: i64,
        end: i64,
        earliest: i64,
        latest: i64,
    },
    /// The log's files could not be opened or read.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// A batch of a segment is damaged.
    #[error(
        "{}: the batch with offset {offset}, at position {position} of its segment, is corrupt: {reason}",
        path.display()
    )]
    CorruptSegment {
        path: PathBuf,
        offset: i64,
        position: u64,
        reason: String,
    },
    /// The log's index leads to a batch that is incomplete in the file.
    #[error("{}: the batch with offset {offset} is cut off", path.display())]
    CutOff { path: PathBuf, offset: i64 },
    /// A batch of fetched bytes is damaged.
    #[error("corrupt batch at byte {position} of the fetched records of {topic}-{partition}: {reason}")]
    CorruptFetch {
        topic: String,
        partition: i32,
        position: u64,
        reason: String,
    },
    /// A single record is too large for the 32-bit offsets of Arrow's plain binary type.
    #[error("a record of {bytes} bytes is larger than an Arrow binary column can hold")]
    RecordTooLarge { bytes: usize },
    /// A timestamp of milliseconds is too large for a column of microseconds, both with 64 bits.
    #[error(
        "the record with offset {offset} has the timestamp {timestamp} ms, more than the column timestamp \
         can hold (microseconds in 64 bits); read it without that column"
    )]
    TimestampTooLarge { offset: i64, timestamp: i64 },
    /// A table to append has neither keys nor values.
    #[error("a table to append needs a column key or a column value, and has neither")]
    NothingToAppend,
    /// A column to append has a type that cannot be a part of a record.
    #[error("column {name} has the type {found}; {wanted} is needed")]
    ColumnType {
        name: &'static str,
        found: DataType,
        wanted: &'static str,
    },
    /// A row to append cannot be a record.
    #[error("row {row} cannot be appended: {reason}")]
    BadRow { row: usize, reason: &'static str },
    /// A row to append does not fit a batch.
    #[error(transparent)]
    Encode(#[from] RecordError),
    /// Values cannot be decoded into the column that was asked for.
    #[error("no typed column: {reason}")]
    Typed { reason: String },
    /// Arrow refused the columns that this crate built, which is a defect of this crate.
    #[error("Arrow refused the built columns: {0}")]
    Arrow(#[from] arrow_schema::ArrowError),
}
