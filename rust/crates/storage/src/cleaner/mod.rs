//! Log compaction: of each key, only the last record stays (`LogCleaner`, `Cleaner`).
//!
//! A cleaning first walks over the part of a log that was not cleaned before and maps each key to its last offset, as far
//! as its buffer goes. Then it copies all segments up to there, leaving out what the map says is superseded, tombstones
//! and markers whose time is over, and what aborted transactions wrote. Segments that have become small are joined. What
//! was copied replaces what it was made from in one step that a crash cannot halve ([`crate::log`]'s swap, and
//! `finish_interrupted` of the loader). Offsets, the log's start, leader epochs and producers' state stay as they are: of
//! each active producer the last batch stays, if need be without records.
//!
//! Stricter than Kafka in two things: what the map was built from is on disk before anything it supersedes goes, and a
//! checksum that is wrong ends the cleaning instead of being covered up by a new one.
//!
//! | module | concept |
//! |---|---|
//! | `plan` | what is dirty, what may be cleaned, whether it is worth it, which segments are joined |
//! | `offset_map` | key to last offset, in bounded memory |
//! | `pass` | building the map; copying a group of segments |
//! | `transactions` | aborted batches and markers |
//! | `output` | the `.cleaned` files |
//! | `gate` | one cleaning a log at a time, and how it is made to end |
//! | `throttle` | the rate of all threads together |
//! | `threads` | [`Cleaner`]: threads that clean the filthiest log first |
//!
//! Threads: a cleaning reads sealed segments only, beside appends and reads, and takes the log's writer lock for the
//! swap. A crash at any point leaves the old segments or the new ones.

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
    /// `log.cleaner.io.buffer.load.factor`: how full a map may become, 0 to 1.
    pub load_factor: f64,
    /// `log.cleaner.io.buffer.size`: bytes of all threads' buffers together.
    pub io_buffer_bytes: usize,
    /// `log.cleaner.io.max.bytes.per.second`: read and written, of all threads together.
    pub io_max_bytes_per_second: f64,
    /// `log.cleaner.backoff.ms`: how long a thread rests when nothing is to be cleaned.
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

/// Less than this is no buffer to read a log through.
const IO_BUFFER_MIN: usize = 16 << 10;

impl CleanerConfig {
    /// What one of the threads may use for its map.
    pub(crate) fn dedupe_bytes_per_thread(&self) -> u64 {
        self.dedupe_buffer_bytes / self.threads.max(1) as u64
    }

    /// What one of the threads may use to read, and again to write.
    pub(crate) fn io_bytes_per_thread(&self) -> usize {
        (self.io_buffer_bytes / self.threads.max(1) / 2).max(IO_BUFFER_MIN)
    }

    /// Checks that a cleaner with these settings would get anywhere.
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

/// The cleaning was told to end, or the log changed under it. Nothing of the log was changed by what it had not swapped
/// yet.
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
            // It was closed or deleted in the meantime.
            StorageError::Closed { .. } => Self::Aborted,
            error => Self::Storage(error),
        }
    }
}
