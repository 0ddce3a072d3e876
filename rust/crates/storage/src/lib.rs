//! Kafka's log on disk: segments, indexes, recovery, producers, retention, and directories of logs.
//!
//! Owns the files of a log directory as Apache Kafka 3.9 writes them in ZooKeeper mode, byte for byte: each
//! can start on what the other left. Does not own the bytes inside a batch (`logcore-records`), sockets, or
//! the decisions about leaders and replicas.
//!
//! The modules, from the lowest to the highest. No module imports one that stands below it in this table.
//!
//! | module | concept |
//! |---|---|
//! | [`error`], [`record_faults`], [`config`], `clock`, [`process`] | errors, settings, time, forks |
//! | [`mod@slice`], [`watch`] | what reads return; waiting for a log to change |
//! | [`files`] | names and small files: checkpoints, lock, ids; every change to a disk |
//! | `index` | the indexes of a segment: by offset, by timestamp, of aborted transactions |
//! | `leader_epochs`, `producers` | leader epochs; idempotent and transactional producers |
//! | `segment` | one segment: append, search, scan, repair |
//! | `validation` | the checks before an append |
//! | [`mod@log`] | one partition's log: load, append, read, truncate, retention |
//! | [`cleaner`] | compaction |
//! | [`log_dir`], [`standalone`] | a broker's directory of logs; one log used without a broker |
//! | [`verify`], [`repair`] | finding damage, and repairing it |
//! | [`segment_file`] | the content of one file, for dumps |
//!
//! Use: open a [`LogDir`] (a server), a [`StandaloneLog`] (a library), or [`Log::open_read_only`] beside
//! another process that writes. Only a [`Cleaner`] has threads that outlive a call. The caller calls
//! [`LogDir::maintain`] every few seconds.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod cleaner;
mod clock;
pub mod config;
#[cfg(test)]
mod crash;
pub mod error;
pub mod files;
mod index;
mod leader_epochs;
pub mod log;
pub mod log_dir;
pub mod process;
mod producers;
pub mod record_faults;
pub mod repair;
mod segment;
pub mod segment_file;
pub mod slice;
/// Small files that other crates keep beside a log.
pub mod small_file {
    pub use crate::files::{read_small as read, replace_file as replace};
}
pub mod standalone;
#[cfg(test)]
#[path = "../../records/tests/support/mod.rs"]
mod support;
#[cfg(test)]
mod testing;
mod validation;
pub mod verify;
pub mod watch;

pub use cleaner::{Cleaner, CleanerConfig, CleanerEvent, CleanerStats};
pub use config::{DECOMPRESSED_MAX, LogConfig, TimestampType};
pub use error::{Result, StorageError};
pub use files::partition_dir::{future_dir_name_len, parse_partition_dir};
pub use files::uuid::TopicId;
pub use files::{checkpoints, lock, metadata, uuid};
pub use index::file::mappings;
pub use index::transactions::AbortedTxn;
pub use log::cleaning::gate::CleaningPaused;
pub use log::loader::{LastKnown, LoadProgress, Recovery};
pub use log::{IsolationLevel, Log, ProduceOptions, Retention, Searched, TimeSearch, TruncationPoint};
pub use log_dir::{LogDir, Move, Moved, Opening, Partition, Progress, check_duplicates, finish_moves};
pub use producers::ActiveProducer;
pub use producers::verification::Verification;
pub use record_faults::{Fault, RecordFault, RecordFaults};
pub use slice::{Appended, LogSlice, TimestampOffset, first_batch, whole_batches};
pub use standalone::StandaloneLog;
pub use validation::ParsedBatches;
