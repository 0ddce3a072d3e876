//! Log compaction: of each key only the last record stays (`LogCleaner`, `Cleaner`).
//!
//! A cleaning first reads the dirty part of a log and maps each key to its last offset, as far as its buffer
//! goes. Then it copies all segments up to there without superseded records, expired tombstones and markers,
//! and records of aborted transactions. Small segments are joined. The copies replace the originals in one
//! step that a crash cannot split ([`crate::log::cleaning`]). Offsets, the log start, leader epochs and
//! producers' state stay. The last batch of each active producer stays, if need be without records.
//!
//! Stricter than Kafka in two things. The dirty part is flushed before anything that it supersedes is
//! removed. A wrong checksum ends the cleaning; Kafka writes a new checksum over the damage.
//!
//! | module | concept |
//! |---|---|
//! | `now` | compacting one log in the caller's thread |
//! | `offset_map` | key to last offset, in bounded memory |
//! | `pass` | building the map; copying a group of segments |
//! | `transactions` | aborted batches and markers |
//! | `output` | the `.cleaned` files |
//! | `throttle` | the rate of all threads together |
//! | `threads` | [`Cleaner`]: threads that clean the dirtiest log first |
//!
//! What to clean is decided in [`crate::log::cleaning`].
//!
//! Threads: a cleaning reads sealed segments beside appends and reads, and takes the log's writer lock for
//! the swap. A crash leaves the old segments or the new ones.

mod now;
mod offset_map;
mod output;
mod pass;
mod threads;
mod throttle;
mod transactions;

#[cfg(test)]
mod tests;

pub use pass::CleanerStats;
pub use threads::{Cleaner, CleanerEvent};

use crate::error::{Result, StorageError};

/// The cleaner's settings (`CleanerConfig`). The field's doc names the property.
#[derive(Debug, Clone, PartialEq)]
pub struct CleanerConfig {
    /// `log.cleaner.enable`
    pub enabled: bool,
    /// `log.cleaner.threads`
    pub threads: usize,
    /// `log.cleaner.dedupe.buffer.size`: bytes of all threads' maps together.
    pub dedupe_buffer_bytes: u64,
    /// `log.cleaner.io.buffer.load.factor`: the largest filled part of a map, 0 to 1.
    pub load_factor: f64,
    /// `log.cleaner.io.buffer.size`: bytes of all threads' buffers together.
    pub io_buffer_bytes: usize,
    /// `log.cleaner.io.max.bytes.per.second`: bytes read and written by all threads together.
    pub io_max_bytes_per_second: f64,
    /// `log.cleaner.backoff.ms`: the pause of a thread when no log is due.
    pub backoff_ms: u64,
}

impl Default for CleanerConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            threads: 1,
            dedupe_buffer_bytes: 128 << 20,
            load_factor: 0.9,
            io_buffer_bytes: 512 << 10,
            io_max_bytes_per_second: f64::MAX,
            backoff_ms: 15_000,
        }
    }
}

/// The smallest buffer to read a log through.
const IO_BUFFER_MIN: usize = 16 << 10;

impl CleanerConfig {
    /// Bytes for one thread's map.
    pub(crate) fn dedupe_bytes_per_thread(&self) -> u64 {
        self.dedupe_buffer_bytes / self.threads.max(1) as u64
    }

    /// Bytes of one thread's read buffer, and of its write buffer.
    pub(crate) fn io_bytes_per_thread(&self) -> usize {
        (self.io_buffer_bytes / self.threads.max(1) / 2).max(IO_BUFFER_MIN)
    }

    /// Checks that a cleaner with these settings can work.
    ///
    /// Errors: [`StorageError::InvalidConfig`].
    pub fn check(&self) -> Result<()> {
        let invalid = |name, value: String, reason| Err(StorageError::InvalidConfig { name, value, reason });
        if !(self.load_factor > 0.0 && self.load_factor <= 1.0) {
            return invalid(
                "log.cleaner.io.buffer.load.factor",
                self.load_factor.to_string(),
                "a number above 0 and at most 1 is needed",
            );
        }
        if self.io_max_bytes_per_second.is_nan() || self.io_max_bytes_per_second <= 0.0 {
            return invalid(
                "log.cleaner.io.max.bytes.per.second",
                self.io_max_bytes_per_second.to_string(),
                "a number above 0 is needed",
            );
        }
        if offset_map::capacity(self.dedupe_bytes_per_thread(), self.load_factor) < 2 {
            return invalid(
                "log.cleaner.dedupe.buffer.size",
                self.dedupe_buffer_bytes.to_string(),
                "it is too small to hold a key for each of log.cleaner.threads",
            );
        }
        Ok(())
    }
}

/// The cleaning was stopped, or the log changed meanwhile. Segments that were not swapped yet are unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Aborted;

/// Why a cleaning ended early.
#[derive(Debug)]
pub(crate) enum CleanError {
    Aborted,
    Storage(StorageError),
}

impl From<Aborted> for CleanError {
    fn from(_: Aborted) -> Self {
        Self::Aborted
    }
}

impl From<StorageError> for CleanError {
    fn from(error: StorageError) -> Self {
        match error {
            // The log was closed or deleted meanwhile.
            StorageError::Closed { .. } => Self::Aborted,
            error => Self::Storage(error),
        }
    }
}
