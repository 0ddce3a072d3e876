//! What can go wrong between a caller and a log on disk.
//!
//! One enum for the crate. A variant is one of two kinds: a request was refused (nothing was written, the log
//! is as before), or the disk or the directory failed. [`StorageError::kafka_code`] gives the protocol's
//! number.

use std::io;
use std::path::{Path, PathBuf};

use logcore_protocol::ErrorCode;
use logcore_records::RecordError;

use crate::record_faults::RecordFaults;

/// No file descriptor left in the process or in the system; no mapping or no memory left. Linux numbers.
const EMFILE: i32 = 24;
const ENFILE: i32 = 23;
const ENOMEM: i32 = 12;

#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    // ---- refused requests ----
    /// Bytes that are no whole, intact batches (CORRUPT_MESSAGE).
    #[error("corrupt batch at byte {position} of the append: {reason}")]
    CorruptBatch { position: usize, reason: String },

    /// A compressed batch that cannot be decompressed (UNKNOWN_SERVER_ERROR, as Kafka's).
    #[error("the batch at byte {position} of the append cannot be decompressed: {reason}")]
    Undecodable { position: usize, reason: String },

    /// One batch is larger than `max.message.bytes` (MESSAGE_TOO_LARGE).
    #[error(
        "a batch of {size} bytes exceeds the limit of {limit} bytes (max.message.bytes); send smaller \
         batches or raise the limit"
    )]
    RecordTooLarge { size: u64, limit: u64 },

    /// One batch decompresses to more than the limit (MESSAGE_TOO_LARGE).
    #[error(
        "the batch at byte {position} of the append needs more than the limit of {limit} bytes to be \
         decompressed; send smaller batches"
    )]
    DecompressedTooLarge { position: usize, limit: usize },

    /// All batches of one append are larger than a segment (RECORD_LIST_TOO_LARGE).
    #[error("an append of {size} bytes does not fit into a segment of {limit} bytes (segment.bytes)")]
    AppendTooLarge { size: u64, limit: u64 },

    /// An intact batch with content that is not allowed (INVALID_RECORD).
    #[error("invalid record batch at byte {position} of the append: {reason}")]
    InvalidRecord { position: usize, reason: String },

    /// Records of an intact batch that are not allowed (`RecordValidationException`): INVALID_TIMESTAMP when
    /// a timestamp is the reason, else INVALID_RECORD.
    #[error("{0}")]
    InvalidRecords(RecordFaults),

    /// A record format that cannot be appended (UNSUPPORTED_FOR_MESSAGE_FORMAT).
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

    /// A producer with a newer epoch has written (INVALID_PRODUCER_EPOCH).
    #[error("producer {producer_id} has epoch {found} but epoch {current} has already written")]
    InvalidProducerEpoch {
        producer_id: i64,
        found: i16,
        current: i16,
    },

    /// The log has no state of this producer (UNKNOWN_PRODUCER_ID).
    #[error("producer {producer_id} is not known to this log")]
    UnknownProducer { producer_id: i64 },

    /// A newer coordinator has ended a transaction of the producer (TRANSACTION_COORDINATOR_FENCED).
    #[error(
        "a marker for producer {producer_id} comes from a coordinator of epoch {found}, but one of epoch \
         {current} has already written"
    )]
    TransactionCoordinatorFenced {
        producer_id: i64,
        found: i32,
        current: i32,
    },

    /// A batch without a transaction while the producer's transaction is open (INVALID_TXN_STATE).
    #[error("producer {producer_id} has an open transaction but the batch is not transactional")]
    InvalidTxnState { producer_id: i64 },

    /// The leader epoch is older than one in the log (FENCED_LEADER_EPOCH).
    #[error("leader epoch {found} is older than epoch {current}, in which this log was written")]
    FencedLeaderEpoch { found: i32, current: i32 },

    /// An offset before the log's start or after its end (OFFSET_OUT_OF_RANGE).
    #[error("offset {requested} is outside the log's range {log_start}..{log_end}")]
    OffsetOutOfRange {
        requested: i64,
        log_start: i64,
        log_end: i64,
    },

    /// A setting with an invalid value (INVALID_CONFIG).
    #[error("{name}={value} is not allowed: {reason}")]
    InvalidConfig {
        name: &'static str,
        value: String,
        reason: &'static str,
    },

    // ---- failures of the disk and the directory ----
    /// An operation of the operating system failed (KAFKA_STORAGE_ERROR).
    #[error("cannot {action} {path}: {source}", path = path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },

    /// A file has bytes that it cannot have (KAFKA_STORAGE_ERROR).
    #[error("{path} is corrupt at byte {position}: {reason}", path = path.display())]
    Corrupt {
        path: PathBuf,
        position: u64,
        reason: String,
    },

    /// An earlier write or fsync failed. Nothing is accepted until the directory is opened again
    /// (KAFKA_STORAGE_ERROR).
    #[error("{dir} is offline since a disk failure: {reason}", dir = dir.display())]
    Offline { dir: PathBuf, reason: String },

    /// The log was truncated while an append waited for the disk: another broker leads now
    /// (NOT_LEADER_OR_FOLLOWER).
    #[error(
        "the log in {} was truncated while the append waited for the disk; it may be lost, send it again",
        dir.display()
    )]
    Truncated { dir: PathBuf },

    /// The leader's batches do not continue this log (UNKNOWN_SERVER_ERROR; only followers get it).
    #[error("batches from offset {first_offset} to {last_offset} do not follow the log's end {log_end}")]
    UnexpectedAppendOffset {
        first_offset: i64,
        last_offset: i64,
        log_end: i64,
    },

    /// The log was closed, or its directory deleted (NOT_LEADER_OR_FOLLOWER).
    #[error("the log in {dir} is closed", dir = dir.display())]
    Closed { dir: PathBuf },

    /// A forked child used what its parent opened (NOT_LEADER_OR_FOLLOWER).
    #[error(
        "{} was opened before this process was forked, and only the process that opened it may write it: \
         write it there, or open another one here",
        dir.display()
    )]
    Forked { dir: PathBuf },

    /// A write to a log that was opened for reading only (POLICY_VIOLATION; no client gets it).
    #[error("the log in {dir} was opened read-only", dir = dir.display())]
    ReadOnly { dir: PathBuf },

    /// Another process, or another opening in this process, has the lock of the directory
    /// (KAFKA_STORAGE_ERROR).
    #[error("{dir} is in use by another process or another opening; stop that first", dir = dir.display())]
    Locked { dir: PathBuf },

    /// A log or file that should be created exists already (TOPIC_ALREADY_EXISTS).
    #[error("{path} exists already", path = path.display())]
    AlreadyExists { path: PathBuf },

    /// A log that should be opened does not exist (UNKNOWN_TOPIC_OR_PARTITION).
    #[error("there is no log at {path}", path = path.display())]
    NotFound { path: PathBuf },

    /// A directory of another kind than the one that should be opened (INCONSISTENT_CLUSTER_ID; it stops the
    /// start).
    #[error("{path} {reason}", path = path.display())]
    WrongDirectory { path: PathBuf, reason: String },

    /// One partition in two log directories. The operator must decide which one to keep (it stops the start).
    #[error(
        "duplicate log directories for {topic}-{partition} are found in both {one} and {other}; remove \
         one, most likely the one on the disk that failed last",
        one = one.display(),
        other = other.display()
    )]
    Duplicate {
        topic: String,
        partition: i32,
        one: PathBuf,
        other: PathBuf,
    },

    /// The directory belongs to another broker, cluster or topic (INCONSISTENT_CLUSTER_ID; it stops the
    /// start).
    #[error(
        "{} says {field} is {found}, but {expected} was expected: the directory belongs to another one",
        path.display()
    )]
    Mismatch {
        path: PathBuf,
        field: &'static str,
        expected: String,
        found: String,
    },
}

impl StorageError {
    /// Adds to an error of the operating system what was done to which file.
    pub(crate) fn io(action: &'static str, path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Self {
        // The path is copied only when there is an error.
        move |source| Self::Io {
            action,
            path: path.as_ref().to_path_buf(),
            source,
        }
    }

    /// Maps an error in a batch at `position` of an append. Damage and disallowed content have different
    /// codes.
    pub(crate) fn from_record(position: usize, error: &RecordError) -> Self {
        match error {
            RecordError::UnsupportedMagic(magic @ 0..=1) => Self::UnsupportedFormat { magic: *magic },
            RecordError::DecompressedTooLarge { limit, .. } => Self::DecompressedTooLarge {
                position,
                limit: *limit,
            },
            RecordError::Codec { .. } => Self::Undecodable {
                position,
                reason: error.to_string(),
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
            Self::UnexpectedAppendOffset { .. } | Self::Undecodable { .. } => ErrorCode::UNKNOWN_SERVER_ERROR,
            Self::Closed { .. } | Self::Forked { .. } | Self::Truncated { .. } => {
                ErrorCode::NOT_LEADER_OR_FOLLOWER
            }
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

    /// True when there was no space or no quota. Nothing is broken, and the operation works once there is
    /// space.
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

    /// True when there was no file descriptor or no mapping left. Nothing is broken, and the operation works
    /// once other files are closed.
    pub fn is_out_of_files(&self) -> bool {
        let Self::Io { action, source, .. } = self else {
            return false;
        };
        match source.raw_os_error() {
            Some(EMFILE | ENFILE) => true,
            // Memory is rarely short. Mostly vm.max_map_count is reached.
            Some(ENOMEM) => *action == MAP,
            _ => false,
        }
    }

    /// True for a failure that takes a log directory offline: the operating system refused, and not for want
    /// of space or descriptors. A file that became shorter, or that may not grow, is damage to that file
    /// alone.
    pub fn is_directory_failure(&self) -> bool {
        let of_one_file = |kind| matches!(kind, io::ErrorKind::UnexpectedEof | io::ErrorKind::FileTooLarge);
        matches!(self, Self::Io { source, .. } if !of_one_file(source.kind()))
            && !self.is_disk_full()
            && !self.is_out_of_files()
    }

    /// True when the disk or the directory failed, false when a request was refused.
    pub fn is_storage_failure(&self) -> bool {
        matches!(
            self,
            Self::Io { .. } | Self::Corrupt { .. } | Self::Offline { .. }
        )
    }
}

/// The action of [`StorageError::Io`] when an index is mapped into memory.
pub(crate) const MAP: &str = "map";

pub type Result<T, E = StorageError> = std::result::Result<T, E>;

/// Ignores a full disk, for work that [`crate::Log::maintain`] does again.
pub(crate) fn unless_full(done: Result<()>) -> Result<()> {
    match done {
        Err(error) if error.is_disk_full() => Ok(()),
        done => done,
    }
}
