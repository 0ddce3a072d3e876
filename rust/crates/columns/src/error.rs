//! What can go wrong between a partition's bytes and its columns.

use std::path::PathBuf;

use arrow_schema::DataType;
use logcore_records::RecordError;
use logcore_storage::StorageError;

use crate::schema::Column;

/// Why rows could not be read, or not be made into batches.
#[derive(Debug, thiserror::Error)]
pub enum ColumnsError {
    /// The projection names a column the Kafka source does not have.
    #[error("there is no column {name:?}; the columns are {}", Column::ALL.map(Column::name).join(", "))]
    UnknownColumn { name: String },
    /// The projection is empty.
    #[error("no column was asked for; name at least one")]
    NoColumns,
    /// The projection names a column twice.
    #[error("column {name:?} is asked for twice")]
    DuplicateColumn { name: &'static str },
    /// The range ends before it starts, or starts below zero.
    #[error("offsets [{start}, {end}) are no range")]
    BadRange { start: i64, end: i64 },
    /// The time range ends before it starts.
    #[error("times [{start}, {end}) are no range")]
    BadTimes { start: i64, end: i64 },
    /// A range is to be divided into no pieces.
    #[error("a partition cannot be split into 0 ranges; ask for at least one")]
    NoParts,
    /// The range lies outside what the log holds.
    #[error(
        "offsets [{start}, {end}) are not in {}, which has [{earliest}, {latest})", path.display()
    )]
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
    /// Bytes of a segment are not what the log wrote.
    #[error("{}: the batch with offset {offset}, at position {position} of its segment, is corrupt: {reason}", path.display())]
    CorruptSegment {
        path: PathBuf,
        offset: i64,
        position: u64,
        reason: String,
    },
    /// A batch that the log counts ends before its last byte.
    #[error("{}: the batch with offset {offset} is cut off", path.display())]
    CutOff { path: PathBuf, offset: i64 },
    /// A batch of fetched bytes is not what the broker's log holds.
    #[error("corrupt batch at byte {position} of the fetched records of {topic}-{partition}: {reason}")]
    CorruptFetch {
        topic: String,
        partition: i32,
        position: u64,
        reason: String,
    },
    /// A single record does not fit the 32-bit offsets of Arrow's plain binary.
    #[error("a record of {bytes} bytes is larger than an Arrow binary column can hold")]
    RecordTooLarge { bytes: usize },
    /// Kafka's milliseconds of any 64 bits, as Arrow's microseconds of 64 bits.
    #[error(
        "the record with offset {offset} has the timestamp {timestamp} ms, more than the column timestamp can hold (microseconds in 64 bits); read it without that column"
    )]
    TimestampTooLarge { offset: i64, timestamp: i64 },
    /// A table without a column that a record could be made of.
    #[error("a table to append needs a column key or a column value, and has neither")]
    NothingToAppend,
    /// A column to append whose type has no place in a record.
    #[error("column {name} has the type {found}; {wanted} is needed")]
    ColumnType {
        name: &'static str,
        found: DataType,
        wanted: &'static str,
    },
    /// A row that cannot be a record.
    #[error("row {row} cannot be appended: {reason}")]
    BadRow { row: usize, reason: &'static str },
    /// A row that does not fit a batch.
    #[error(transparent)]
    Encode(#[from] RecordError),
    /// Arrow refused what was built, a mistake of this crate.
    #[error("Arrow refused the built columns: {0}")]
    Arrow(#[from] arrow_schema::ArrowError),
}
