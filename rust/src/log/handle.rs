//! An open log behind Python's objects: a standalone log, or a partition of a directory of logs. Wakes the
//! threads that wait for it to grow.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use logcore_columns::LogSource;
use logcore_records::batches;
use logcore_storage::log_dir::{LogDir, Partition};
use logcore_storage::process::Owner;
use logcore_storage::watch::{Signal, Watch};
use logcore_storage::{Appended, CleanerConfig, CleanerStats, Log, StandaloneLog, StorageError};

use super::encode::system_now_ms;

/// An open log, shared by its Python objects, scans, appenders and watches.
pub(crate) struct Handle {
    kind: Kind,
    /// The process that opened the log. In a forked child the log never grows and must not be written.
    owner: Owner,
    grown: Signal,
}

enum Kind {
    Alone(StandaloneLog),
    ReadOnly(StandaloneLog),
    /// A partition of a directory, which opens and closes the log.
    Member {
        dir: Arc<LogDir>,
        partition: Arc<Partition>,
    },
}

impl Handle {
    pub(super) fn alone(log: StandaloneLog, readonly: bool) -> Self {
        Self::new(if readonly {
            Kind::ReadOnly(log)
        } else {
            Kind::Alone(log)
        })
    }

    /// A log in a directory of logs that `owner` opened.
    pub(super) fn member(dir: Arc<LogDir>, partition: Arc<Partition>, owner: Owner) -> Self {
        Self {
            owner,
            ..Self::new(Kind::Member { dir, partition })
        }
    }

    fn new(kind: Kind) -> Self {
        Self {
            kind,
            owner: Owner::this(),
            grown: Signal::default(),
        }
    }

    /// Whether the handle is for `partition` itself, not for a deleted partition of the same name.
    pub(super) fn is_of(&self, partition: &Arc<Partition>) -> bool {
        matches!(&self.kind, Kind::Member { partition: own, .. } if Arc::ptr_eq(own, partition))
    }

    pub(super) fn is_readonly(&self) -> bool {
        matches!(self.kind, Kind::ReadOnly(_))
    }

    /// Appends v2 batches at the current time with the epoch of the last leader. Batches that the caller
    /// built itself are not decompressed to be checked.
    pub(super) fn append(&self, batches: &mut [u8], built: bool) -> Result<Appended, StorageError> {
        let appended = match &self.kind {
            Kind::Alone(log) | Kind::ReadOnly(log) if built => log.append_built(batches)?,
            Kind::Alone(log) | Kind::ReadOnly(log) => log.append(batches)?,
            Kind::Member { partition, .. } => {
                self.check_process()?;
                partition.log.append_as_last_leader(batches, built)?
            }
        };
        self.notify();
        Ok(appended)
    }

    /// The largest batch that the log accepts.
    pub(super) fn batch_bytes(&self) -> usize {
        let config = self.log().config();
        (config.max_message_bytes as usize).min(config.segment_bytes as usize)
    }

    /// Appends batches, a segment's worth at a time. Appends none when the log would refuse one.
    pub(super) fn append_in_segments(&self, bytes: &mut [u8]) -> Result<(i64, i64), StorageError> {
        let limit = self.log().config().segment_bytes as usize;
        if bytes.len() > limit {
            self.log().check_append(bytes)?;
        }
        let mut range: Option<(i64, i64)> = None;
        let mut rest = bytes;
        while !rest.is_empty() {
            let mut end = 0;
            for batch in batches(rest) {
                let size = match batch {
                    Ok(batch) => batch.bytes.len(),
                    Err(_) => break,
                };
                if end > 0 && end + size > limit {
                    break;
                }
                end += size;
            }
            // The append refuses invalid bytes.
            let (part, after) = rest.split_at_mut(if end == 0 { rest.len() } else { end });
            let appended = self.append(part, true)?;
            range = Some((
                range.map_or(appended.first_offset, |(first, _)| first),
                appended.last_offset,
            ));
            rest = after;
        }
        Ok(range.unwrap_or((-1, -1)))
    }

    /// Applies retention and periodic flushes.
    pub(super) fn maintain(&self) -> Result<(), StorageError> {
        self.check_process()?;
        self.log().maintain(system_now_ms())
    }

    /// Closes the active segment and begins a new one, unless it is empty.
    pub(super) fn roll(&self) -> Result<(), StorageError> {
        self.check_process()?;
        self.log().roll(system_now_ms())
    }

    /// Removes the batches with offsets from `offset` on. Returns the new end offset.
    pub(super) fn truncate_to(&self, offset: i64) -> Result<i64, StorageError> {
        self.check_process()?;
        let end = match &self.kind {
            Kind::Alone(log) | Kind::ReadOnly(log) => log.truncate_to(offset)?,
            Kind::Member { dir, partition } => dir.truncate_log_to(partition, offset)?,
        };
        self.notify();
        Ok(end)
    }

    /// Removes all records. The next record gets `offset`.
    pub(super) fn truncate_fully_and_start_at(&self, offset: i64) -> Result<(), StorageError> {
        self.check_process()?;
        match &self.kind {
            Kind::Alone(log) | Kind::ReadOnly(log) => log.truncate_fully_and_start_at(offset)?,
            Kind::Member { dir, partition } => {
                dir.truncate_log_fully_and_start_at(partition, offset)?;
            }
        }
        self.notify();
        Ok(())
    }

    /// Moves the log's start to `offset`, or to the high watermark if it is -1, and saves it. Returns the
    /// start.
    pub(super) fn delete_records(&self, offset: i64) -> Result<i64, StorageError> {
        /// `DeleteRecordsRequest.HIGH_WATERMARK`.
        const HIGH_WATERMARK: i64 = -1;
        self.check_process()?;
        let log = self.log();
        // A closed log is reported first.
        log.refresh()?;
        if !log.config().cleanup_delete {
            // `Partition.deleteRecordsOnLeader` refuses it, too.
            return Err(StorageError::InvalidConfig {
                name: "cleanup.policy",
                value: "compact".to_owned(),
                reason: "to have records deleted, a log has to be opened with delete, or compact,delete",
            });
        }
        let offset = match offset {
            HIGH_WATERMARK => log.high_watermark(),
            0.. => offset,
            _ => {
                return Err(StorageError::OffsetOutOfRange {
                    requested: offset,
                    log_start: log.log_start_offset(),
                    log_end: log.high_watermark(),
                });
            }
        };
        match &self.kind {
            Kind::Alone(log) | Kind::ReadOnly(log) => log.advance_log_start_offset(offset),
            Kind::Member { dir, partition } => {
                let start = partition.log.advance_log_start_offset(offset)?;
                dir.checkpoint()?;
                Ok(start)
            }
        }
    }

    /// Compacts the log until done or until `stop` is set, and saves the first dirty offset.
    pub(super) fn compact_until(&self, stop: &AtomicBool) -> Result<CleanerStats, StorageError> {
        self.check_process()?;
        // A closed log is reported first.
        self.log().refresh()?;
        if !self.is_readonly() && !self.log().config().cleanup_compact {
            return Err(StorageError::InvalidConfig {
                name: "cleanup.policy",
                value: "delete".to_owned(),
                reason: "open the log with compact=True to compact it; records without a key are lost",
            });
        }
        match &self.kind {
            Kind::Alone(log) | Kind::ReadOnly(log) => log.compact_until(stop),
            Kind::Member { dir, partition } => {
                let config = CleanerConfig::default();
                let stats = partition.log.compact_until(stop, &config, system_now_ms())?;
                dir.checkpoint()?;
                Ok(stats)
            }
        }
    }

    /// Flushes the log, closes it and releases its lock, and wakes its waiters. A log of a directory is
    /// flushed but stays open. Does nothing in a forked child: the parent closes the log.
    pub(super) fn close(&self) -> Result<(), StorageError> {
        if !self.owner.is_this() {
            return Ok(());
        }
        let closed = match &self.kind {
            Kind::Alone(log) | Kind::ReadOnly(log) => log.close(),
            Kind::Member { partition, .. } => match partition.log.flush() {
                // The directory was closed before.
                Err(StorageError::Closed { .. }) => Ok(()),
                flushed => flushed,
            },
        };
        self.notify();
        closed
    }

    /// Wakes the threads that wait for growth.
    pub(super) fn notify(&self) {
        self.grown.notify();
    }

    /// Begins to save a standalone log's flushed offset: [`StandaloneLog::note_flushes`].
    pub(super) fn note_flushes(&self) -> Result<(), StorageError> {
        match &self.kind {
            Kind::Alone(log) => log.note_flushes(),
            Kind::ReadOnly(_) | Kind::Member { .. } => Ok(()),
        }
    }

    /// Watches the log grow from now on.
    pub(super) fn watch(&self) -> Result<Watch, StorageError> {
        let dir = self.log().dir();
        if self.is_readonly() {
            return Watch::directory(&dir);
        }
        self.check_process()?;
        self.grown.watch(&dir)
    }

    /// Flushes everything to disk.
    pub(super) fn flush(&self) -> Result<(), StorageError> {
        self.check_process()?;
        self.log().flush()
    }

    /// Errors: [`StorageError::Forked`] in a forked child. A read-only log may be used there.
    pub(super) fn check_process(&self) -> Result<(), StorageError> {
        if self.is_readonly() {
            return Ok(());
        }
        self.owner.check(|| self.log().dir())
    }
}

impl LogSource for Handle {
    fn log(&self) -> &Log {
        match &self.kind {
            Kind::Alone(log) | Kind::ReadOnly(log) => log,
            Kind::Member { partition, .. } => &partition.log,
        }
    }
}
