//! Kafka's log on disk: segments, indexes, recovery, producers, retention, and directories of logs.
//!
//! Owns the files of a log directory as Apache Kafka 3.9 writes them (in ZooKeeper mode), byte for byte, so that either
//! can start on what the other left. Does not own the bytes inside a batch (`logcore-records`), sockets, or decisions:
//! who leads and what is replicated is told from outside.
//!
//! | module | concept |
//! |---|---|
//! | [`mod@log`] | one partition's log: append, read, roll, flush, close |
//! | [`log_dir`] | a broker's directory of logs, locked, with its checkpoints |
//! | [`standalone`] | one partition's directory used without a broker |
//! | [`loader`] | opening and recovery |
//! | `segment`, `offset_index`, `time_index`, `txn_index`, `index_file`, `scan` | one segment and the ways into it |
//! | [`cleaner`] | compaction: of each key only the last record stays |
//! | `failure` | why a directory is offline |
//! | `disk` | every change to a disk, one function each |
//! | `validator` | what an append must be |
//! | `producer_state`, `producer_snapshot` | idempotent and transactional producers |
//! | `leader_epochs`, [`checkpoints`], [`metadata`], [`lock`], [`uuid`] | the small files |
//! | [`segment_file`] | one file of a segment, to look at |
//! | [`verify`] | reading everything and saying what is wrong |
//! | [`repair`] | mending it: cutting and rebuilding, with what was there kept aside |
//! | [`mod@slice`] | what reads and appends return |
//! | [`small_file`] | small files of others, replaced whole |
//! | [`process`] | which process this is |
//! | [`watch`] | waiting for a log to change |
//! | [`config`], [`error`] | settings, and everything that can go wrong |
//!
//! Use: open a [`LogDir`] (a server) or a [`StandaloneLog`] (a library), or [`Log::open_read_only`] beside whoever
//! writes. Only a [`Cleaner`] starts threads that outlive a call: somebody calls [`LogDir::maintain`] every few seconds.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod checkpoints;
pub mod cleaner;
pub mod config;
#[cfg(test)]
mod crash;
mod disk;
pub mod disk_pace;
mod epoch_runs;
pub mod error;
mod failure;
mod files;
mod flushed_mark;
#[cfg(test)]
mod fuzz;
mod index_file;
mod leader_epochs;
pub mod loader;
pub mod lock;
pub mod log;
pub mod log_dir;
pub mod metadata;
mod offset_index;
pub mod process;
mod producer_snapshot;
mod producer_state;
mod recompress;
pub mod record_faults;
pub mod repair;
mod replay;
mod scan;
mod segment;
pub mod segment_file;
pub mod slice;
pub mod small_file;
pub mod standalone;
#[cfg(test)]
#[path = "../../records/tests/support/mod.rs"]
mod support;
#[cfg(test)]
mod testing;
mod time_index;
mod txn_index;
pub mod uuid;
mod validator;
pub mod verify;
pub mod watch;

pub use cleaner::{Cleaner, CleanerConfig, CleanerEvent, CleanerStats, CleaningPaused};
pub use config::{LogConfig, TimestampType};
pub use error::{Result, StorageError};
pub use index_file::mappings;
pub use loader::{LastKnown, LoadProgress, Recovery};
pub use log::{IsolationLevel, Log, Retention, Searched, TimeSearch, TruncationPoint, Wait};
pub use log_dir::{
    LogDir, Move, Moved, Opening, Partition, Progress, check_duplicates, finish_moves, future_dir_name_len,
    parse_partition_dir,
};
pub use producer_state::ActiveProducer;
pub use record_faults::{Fault, RecordFault, RecordFaults};
pub use slice::{Appended, LogSlice, TimestampOffset, first_batch, whole_batches};
pub use standalone::StandaloneLog;
pub use txn_index::AbortedTxn;
pub use uuid::TopicId;
pub use validator::DECOMPRESSED_MAX;
