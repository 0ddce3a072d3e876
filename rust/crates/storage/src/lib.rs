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

pub mod cleaner;
mod clock;
pub mod config;
#[cfg(test)]
mod crash;
pub mod disk_pace;
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
pub use record_faults::{Fault, RecordFault, RecordFaults};
pub use slice::{Appended, LogSlice, TimestampOffset, first_batch, whole_batches};
pub use standalone::StandaloneLog;
pub use validation::ParsedBatches;
