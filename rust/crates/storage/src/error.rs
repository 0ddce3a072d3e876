//! What can go wrong between a caller and a log on disk.
//!
//! One enum for the crate. Variants fall in two groups: what a client sent is refused (nothing was written, the log is
//! as before), and what happened to the disk or the directory. [`StorageError::kafka_code`] gives the protocol's number.

use std::io;
use std::path::{Path, PathBuf};

use logcore_protocol::ErrorCode;
use logcore_records::RecordError;

use crate::record_faults::RecordFaults;

/// No descriptor left in the process, or in the system; no mapping left, or no memory. The numbers are the same on every Unix.
const EMFILE: i32 = 24;
const ENFILE: i32 = 23;
const ENOMEM: i32 = 12;

/// Every way an operation of this crate can fail.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    // ---- what was sent ----
    /// Bytes that are not whole, intact batches (CORRUPT_MESSAGE).
    #[error("corrupt batch at byte {position} of the append: {reason}")]
    CorruptBatch { position: usize, reason: String },

    /// One batch is larger than `max.message.bytes` (MESSAGE_TOO_LARGE).
    #[error(
        "a batch of {size} bytes exceeds the limit of {limit} bytes (max.message.bytes); send smaller batches or raise the limit"
    )]
    RecordTooLarge { size: u64, limit: u64 },

    /// One batch decompresses to more than is looked into (MESSAGE_TOO_LARGE).
    #[error(
        "the batch at byte {position} of the append decompresses to more than {limit} bytes, which is the most that is looked into; send smaller batches"
    )]
    DecompressedTooLarge { position: usize, limit: usize },

    /// All batches of one append are larger than a segment (RECORD_LIST_TOO_LARGE).
    #[error("an append of {size} bytes does not fit into a segment of {limit} bytes (segment.bytes)")]
    AppendTooLarge { size: u64, limit: u64 },

    /// An intact batch that says something not allowed (INVALID_RECORD).
    #[error("invalid record batch at byte {position} of the append: {reason}")]
    InvalidRecord { position: usize, reason: String },

    /// Records of an intact batch that are not allowed (`RecordValidationException`): INVALID_TIMESTAMP when the time of
    /// any is why, INVALID_RECORD otherwise.
    #[error("{0}")]
    InvalidRecords(RecordFaults),

    /// A record format this operation does not take (UNSUPPORTED_FOR_MESSAGE_FORMAT).
    #[error(
        "record format v{magic} cannot be appended as it is; convert the message set to v2 batches first"
    )]
    UnsupportedFormat { magic: i8 },

    /// A producer's sequence number does not follow the last one (OUT_OF_ORDER_SEQUENCE_NUMBER).
    #[error(
        "out of order sequence number for producer {producer_id}: {found} arrived, {expected} was expected"
    )]
    OutOfOrderSequence {
        producer_id: i64,
        expected: i64,
        found: i32,
    },

    /// A producer with a newer epoch has written since (INVALID_PRODUCER_EPOCH).
    #[error("producer {producer_id} has epoch {found} but epoch {current} has already written")]
    InvalidProducerEpoch {
        producer_id: i64,
        found: i16,
        current: i16,
    },

    /// State of a producer is asked for that this log does not have (UNKNOWN_PRODUCER_ID).
    #[error("producer {producer_id} is not known to this log")]
    UnknownProducer { producer_id: i64 },

    /// A newer coordinator has ended a transaction of the producer since (TRANSACTION_COORDINATOR_FENCED).
    #[error(
        "a marker for producer {producer_id} comes from a coordinator of epoch {found}, but one of epoch {current} has already written"
    )]
    TransactionCoordinatorFenced {
        producer_id: i64,
        found: i32,
        current: i32,
    },

    /// A plain write inside an open transaction (INVALID_TXN_STATE).
    #[error("producer {producer_id} has an open transaction but the batch is not transactional")]
    InvalidTxnState { producer_id: i64 },

    /// The leader epoch given is older than one already in the log (FENCED_LEADER_EPOCH).
    #[error("leader epoch {found} is older than epoch {current}, in which this log was written")]
    FencedLeaderEpoch { found: i32, current: i32 },

    /// An offset before the log's start or after its end (OFFSET_OUT_OF_RANGE).
    #[error("offset {requested} is outside the log's range {log_start}..{log_end}")]
    OffsetOutOfRange {
        requested: i64,
        log_start: i64,
        log_end: i64,
    },

    /// A setting with a value that cannot be (INVALID_CONFIG).
    #[error("{name}={value} is not allowed: {reason}")]
    InvalidConfig {
        name: &'static str,
        value: String,
        reason: &'static str,
    },

    // ---- the disk and the directory ----
    /// The operating system refused (KAFKA_STORAGE_ERROR).
    #[error("cannot {action} {path}: {source}", path = path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },

    /// A file of ours holds bytes it cannot hold (KAFKA_STORAGE_ERROR).
    #[error("{path} is corrupt at byte {position}: {reason}", path = path.display())]
    Corrupt {
        path: PathBuf,
        position: u64,
        reason: String,
    },

    /// An earlier write or fsync failed; nothing more is accepted until the directory is opened anew
    /// (KAFKA_STORAGE_ERROR).
    #[error("{dir} is offline since a disk failure: {reason}", dir = dir.display())]
    Offline { dir: PathBuf, reason: String },

    /// The log was cut while an append waited for the disk: another leads now (NOT_LEADER_OR_FOLLOWER).
    #[error("the log in {dir} was cut while the append waited for the disk; it may be gone, send it again", dir = dir.display())]
    Truncated { dir: PathBuf },

    /// What a leader sent does not continue this log (UNKNOWN_SERVER_ERROR: no client gets here).
    #[error("batches from offset {first_offset} to {last_offset} do not follow the log's end {log_end}")]
    UnexpectedAppendOffset {
        first_offset: i64,
        last_offset: i64,
        log_end: i64,
    },

    /// The log was closed or its directory deleted (NOT_LEADER_OR_FOLLOWER).
    #[error("the log in {dir} is closed", dir = dir.display())]
    Closed { dir: PathBuf },

    /// A write to a log that was opened for reading only (POLICY_VIOLATION: no client gets here).
    #[error("the log in {dir} was opened read-only", dir = dir.display())]
    ReadOnly { dir: PathBuf },

    /// Another process, or another opening in this one, holds the directory (KAFKA_STORAGE_ERROR).
    #[error("{dir} is in use by another process or another opening; stop that first", dir = dir.display())]
    Locked { dir: PathBuf },

    /// Something to create exists already (TOPIC_ALREADY_EXISTS).
    #[error("{path} exists already", path = path.display())]
    AlreadyExists { path: PathBuf },

    /// Something to open is not there (UNKNOWN_TOPIC_OR_PARTITION).
    #[error("there is no log at {path}", path = path.display())]
    NotFound { path: PathBuf },

    /// A directory that is none of what was to be opened (INCONSISTENT_CLUSTER_ID for the wire; it stops the start).
    #[error("{path} {reason}", path = path.display())]
    WrongDirectory { path: PathBuf, reason: String },

    /// One partition in two log directories: which of the two is right is not for a program to decide (it stops the start).
    #[error(
        "duplicate log directories for {topic}-{partition} are found in both {one} and {other}; remove the one that is not to be kept, most likely that of the disk that failed last",
        one = one.display(),
        other = other.display()
    )]
    Duplicate {
        topic: String,
        partition: i32,
        one: PathBuf,
        other: PathBuf,
    },

    /// The directory belongs to another broker, cluster or topic (INCONSISTENT_CLUSTER_ID for the wire; it stops
    /// the start).
    #[error("{path} says {field} is {found}, but {expected} was expected: this is another one's directory", path = path.display())]
    Mismatch {
        path: PathBuf,
        field: &'static str,
        expected: String,
        found: String,
    },
}

impl StorageError {
    /// Wraps an error of the operating system with what was done to which file.
    pub(crate) fn io(action: &'static str, path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Self {
        // The path is copied only when there is an error to tell.
        move |source| Self::Io {
            action,
            path: path.as_ref().to_path_buf(),
            source,
        }
    }

    /// Refuses bytes of an append: damage is told from an intact batch that is not allowed.
    pub(crate) fn from_record(position: usize, error: &RecordError) -> Self {
        match error {
            RecordError::UnsupportedMagic(magic @ 0..=1) => Self::UnsupportedFormat { magic: *magic },
            RecordError::DecompressedTooLarge { limit, .. } => Self::DecompressedTooLarge {
                position,
                limit: *limit,
            },
            error if error.is_corruption() => Self::CorruptBatch {
                position,
                reason: error.to_string(),
            },
            error => Self::InvalidRecord {
                position,
                reason: error.to_string(),
            },
        }
    }

    /// Kafka's error code (`logcore_protocol::ErrorCode`).
    pub fn kafka_code(&self) -> i16 {
        let code = match self {
            Self::OffsetOutOfRange { .. } => ErrorCode::OFFSET_OUT_OF_RANGE,
            Self::CorruptBatch { .. } => ErrorCode::CORRUPT_MESSAGE,
            Self::NotFound { .. } => ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
            Self::UnexpectedAppendOffset { .. } => ErrorCode::UNKNOWN_SERVER_ERROR,
            Self::Closed { .. } | Self::Truncated { .. } => ErrorCode::NOT_LEADER_OR_FOLLOWER,
            Self::RecordTooLarge { .. } | Self::DecompressedTooLarge { .. } => ErrorCode::MESSAGE_TOO_LARGE,
            Self::AppendTooLarge { .. } => ErrorCode::RECORD_LIST_TOO_LARGE,
            Self::InvalidRecords(faults) if faults.is_about_time() => ErrorCode::INVALID_TIMESTAMP,
            Self::AlreadyExists { .. } => ErrorCode::TOPIC_ALREADY_EXISTS,
            Self::InvalidConfig { .. } => ErrorCode::INVALID_CONFIG,
            Self::UnsupportedFormat { .. } => ErrorCode::UNSUPPORTED_FOR_MESSAGE_FORMAT,
            Self::ReadOnly { .. } => ErrorCode::POLICY_VIOLATION,
            Self::OutOfOrderSequence { .. } => ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER,
            Self::InvalidProducerEpoch { .. } => ErrorCode::INVALID_PRODUCER_EPOCH,
            Self::InvalidTxnState { .. } => ErrorCode::INVALID_TXN_STATE,
            Self::TransactionCoordinatorFenced { .. } => ErrorCode::TRANSACTION_COORDINATOR_FENCED,
            Self::Io { .. } | Self::Corrupt { .. } | Self::Offline { .. } | Self::Locked { .. } => {
                ErrorCode::KAFKA_STORAGE_ERROR
            }
            Self::UnknownProducer { .. } => ErrorCode::UNKNOWN_PRODUCER_ID,
            Self::FencedLeaderEpoch { .. } => ErrorCode::FENCED_LEADER_EPOCH,
            Self::InvalidRecord { .. } | Self::InvalidRecords(_) => ErrorCode::INVALID_RECORD,
            Self::Mismatch { .. } | Self::WrongDirectory { .. } | Self::Duplicate { .. } => {
                ErrorCode::INCONSISTENT_CLUSTER_ID
            }
        };
        code.0
    }

    /// True when there was no space, or no quota, for what was to be written: nothing is broken, and the same works once
    /// there is space again.
    pub fn is_disk_full(&self) -> bool {
        matches!(
            self,
            Self::Io { source, .. }
                if matches!(
                    source.kind(),
                    io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
                )
        )
    }

    /// True when the process, or the system, had no file descriptor left, or no mapping for an index: nothing is broken, and
    /// the same works once other files are closed.
    pub fn is_out_of_files(&self) -> bool {
        let Self::Io { action, source, .. } = self else {
            return false;
        };
        match source.raw_os_error() {
            Some(EMFILE | ENFILE) => true,
            // Of memory there is enough, as a rule, and vm.max_map_count is reached.
            Some(ENOMEM) => *action == MAP,
            _ => false,
        }
    }

    /// True for what takes a whole log directory offline: the operating system refused, and not for want of space or
    /// descriptors. A file that is shorter than it was is damage to that file, and one that may not grow says nothing of others.
    pub fn is_directory_failure(&self) -> bool {
        let of_one_file = |kind| matches!(kind, io::ErrorKind::UnexpectedEof | io::ErrorKind::FileTooLarge);
        matches!(self, Self::Io { source, .. } if !of_one_file(source.kind()))
            && !self.is_disk_full()
            && !self.is_out_of_files()
    }

    /// True when the disk or the directory failed, false when what was sent was refused.
    pub fn is_storage_failure(&self) -> bool {
        matches!(
            self,
            Self::Io { .. } | Self::Corrupt { .. } | Self::Offline { .. }
        )
    }
}

/// The action of [`StorageError::Io`] when an index is mapped into memory.
pub(crate) const MAP: &str = "map";

/// Results of this crate.
pub type Result<T, E = StorageError> = std::result::Result<T, E>;

/// What a full disk refuses, and what is done later, is done as far as it can be.
pub(crate) fn unless_full(done: Result<()>) -> Result<()> {
    match done {
        Err(error) if error.is_disk_full() => Ok(()),
        done => done,
    }
}
