//! One partition's log (`UnifiedLog`, `LocalLog`): its segments, its offsets, and the one writer lock.
//!
//! Owns the order of an append's effects: bytes are written, indexes follow, the tail is published, then the
//! log end and the high watermark move.
//!
//! | module | concept |
//! |---|---|
//! | `loader`, `replay` | opening, recovery, rebuilding producers' state |
//! | `append`, `follow`, `splits` | appends of a leader and of a follower; splitting a log for readers |
//! | `durability` | flushing and closing |
//! | `watermark` | the high watermark and the last stable offset |
//! | `read`, `time_search` | reading by offset and by timestamp |
//! | `truncate` | truncation of a follower |
//! | `maintain`, `cleaning` | retention and background work; the log's part in compaction |
//! | `foreign` | reading a log that another process writes |
//!
//! Threads: a `Log` is shared freely. Appending, rolling, deleting and closing take the writer lock. Readers
//! never do: they take the current list of segments. A segment that is deleted meanwhile stays readable
//! through its open file. Flushing has a lock of its own, so an fsync blocks no append.
//!
//! A full disk refuses appends and nothing else. What the refused append wrote is cut off, reads go on, and
//! appends work again once there is space. A log can be opened on a full disk: indexes, a snapshot and epochs
//! that do not fit are kept in memory, and written before the next append or by [`Log::maintain`].
//!
//! Failures: any other failed write or fsync takes the log and its whole directory offline, because the disk
//! is the same. The operation is not tried again: after a failed fsync the kernel may have dropped the pages,
//! and a second fsync would report success. Nothing more is acknowledged. What was published stays readable.
//! The directory must be opened again, which recovers it.
//!
//! A crash: see [`crate::log::loader`].

mod append;
pub(crate) mod cleaning;
mod durability;
mod follow;
mod foreign;
pub mod loader;
mod maintain;
mod read;
pub(crate) mod replay;
mod splits;
#[cfg(test)]
mod tests;
mod time_search;
mod truncate;
mod watermark;

use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};

use crate::clock::system_now_ms;
use crate::config::LogConfig;
use crate::error::{Result, StorageError};
use crate::files::failure::DirFailure;
use crate::files::flushed_mark::FlushedMark;
use crate::leader_epochs::SharedEpochs;
use crate::log::cleaning::gate::Cleaning;
use crate::producers::verification::Verifications;
use crate::producers::{ActiveProducer, ProducerState};
use crate::segment::{Access, OpenSegment, Segment};

pub use append::ProduceOptions;
use foreign::{DirIdentity, ForeignTransactions};
use loader::{LastKnown, LoadProgress, Loaded, Recovery};
pub use maintain::Retention;
pub use time_search::{Searched, TimeSearch};
pub use truncate::TruncationPoint;
use truncate::Truncations;
pub use watermark::IsolationLevel;
use watermark::Unstable;

/// What the logs of a directory share.
#[derive(Debug, Default)]
pub(crate) struct DirState {
    pub(crate) failure: Arc<DirFailure>,
    pub(crate) progress: Arc<LoadProgress>,
}

/// One partition's log. See the module.
#[derive(Debug)]
pub struct Log {
    dir: PathBuf,
    access: Access,
    config: RwLock<LogConfig>,
    /// Sorted by base offset, never empty, replaced whole.
    segments: RwLock<Arc<Vec<Arc<Segment>>>>,
    writer: Mutex<Writer>,
    epochs: SharedEpochs,
    log_start: AtomicI64,
    log_end: AtomicI64,
    high_watermark: AtomicI64,
    unstable: Mutex<Unstable>,
    /// [`Unstable::first`], for readers.
    first_unstable: AtomicI64,
    /// [`Unstable::tracks_log_end`], for appends.
    tracks_log_end: AtomicBool,
    recovery_point: AtomicI64,
    /// Where the recovery point is noted, if it is noted.
    flushed_mark: OnceLock<FlushedMark>,
    flushing: Mutex<()>,
    truncations: Truncations,
    cleaning: Cleaning,
    foreign: Mutex<ForeignTransactions>,
    /// Identifies the directory of a log that was opened read-only.
    dir_identity: DirIdentity,
    /// Why this log alone is offline.
    failure: OnceLock<String>,
    /// Why its directory is offline.
    dir_failure: Arc<DirFailure>,
    closed: AtomicBool,
    /// [`Log::is_about_to_move`].
    about_to_move: AtomicBool,
    /// The directory does not belong to this log any more, so an error there does not mean that the disk
    /// failed.
    gone: AtomicBool,
    recovery: Recovery,
    /// Recovery may have found an end that a truncation before the crash made and did not flush. It must be
    /// flushed before a new epoch begins: otherwise a power loss could bring back what was cut off, as
    /// batches of the new epoch.
    end_unsynced: AtomicBool,
    /// The disk was full when the log was opened: see [`Log::complete`].
    incomplete: AtomicBool,
}

/// State that only the holder of the writer lock accesses.
#[derive(Debug)]
struct Writer {
    producers: ProducerState,
    verifications: Verifications,
    /// The time of the last check for idle producers.
    producers_checked_ms: Option<i64>,
    /// The active segment as the last append left it; `None` after a roll or a truncation.
    active: Option<OpenSegment>,
    snapshot_offset: i64,
    /// The source of the active segment's part of `segment.jitter.ms`.
    roll_random: u32,
    /// Records since the last flush, and the time of the first of them.
    unflushed: i64,
    unflushed_since_ms: Option<i64>,
    /// The end of the last append that is acknowledged only once it is on disk. Later appends wait for it,
    /// too.
    sync_end: i64,
    /// Files to remove, and the time to do so.
    deletions: Vec<(i64, Vec<PathBuf>)>,
}

/// A number for jitter. Each hasher of the standard library has other keys.
fn random() -> u32 {
    RandomState::new().hash_one(()) as u32
}

impl Log {
    /// Opens the log in `dir` for reading and appending; creates it if it is missing. The caller has the lock
    /// of the directory, as [`crate::LogDir`] and [`crate::StandaloneLog`] do.
    ///
    /// `clean_shutdown`: the log was closed, so nothing is checked. Otherwise everything from the segment
    /// with `recovery_point` on is checked, and the log is cut after the last whole batch.
    ///
    /// Errors: the disk's, and [`StorageError::Corrupt`] for damage below the recovery point.
    pub fn open(dir: &Path, config: LogConfig, clean_shutdown: bool, recovery_point: i64) -> Result<Self> {
        let known = LastKnown {
            clean_shutdown,
            recovery_point,
            ..LastKnown::default()
        };
        Self::open_with(dir, config, known)
    }

    /// [`Log::open`] with what the checkpoints say of the log.
    pub fn open_with(dir: &Path, config: LogConfig, known: LastKnown) -> Result<Self> {
        Self::open_in(dir, config, known, &DirState::default())
    }

    /// [`Log::open_with`] for a log of a directory.
    pub(crate) fn open_in(
        dir: &Path,
        config: LogConfig,
        known: LastKnown,
        dir_state: &DirState,
    ) -> Result<Self> {
        let progress = &dir_state.progress;
        let loaded = loader::load(dir, &config, known, system_now_ms(), progress)?;
        let failure = dir_state.failure.clone();
        let log = Self::new(dir, config, Access::Owned, loaded, failure);
        if let Some(high_watermark) = known.high_watermark {
            log.set_replicated(high_watermark);
        }
        Ok(log)
    }

    fn new(
        dir: &Path,
        config: LogConfig,
        access: Access,
        loaded: Loaded,
        dir_failure: Arc<DirFailure>,
    ) -> Self {
        let undecided = loaded.producers.first_undecided_offset();
        let unstable = Unstable::new(undecided, &loaded.unreplicated);
        Self {
            dir: dir.to_path_buf(),
            access,
            config: RwLock::new(config),
            segments: RwLock::new(Arc::new(loaded.segments)),
            writer: Mutex::new(Writer {
                verifications: Verifications::default(),
                producers: loaded.producers,
                producers_checked_ms: None,
                active: None,
                snapshot_offset: loaded.snapshot_offset,
                roll_random: random(),
                // Also what an earlier process did not flush.
                unflushed: loaded.log_end - loaded.recovery_point,
                sync_end: 0,
                unflushed_since_ms: None,
                deletions: Vec::new(),
            }),
            epochs: SharedEpochs::new(loaded.epochs),
            log_start: AtomicI64::new(loaded.log_start),
            log_end: AtomicI64::new(loaded.log_end),
            high_watermark: AtomicI64::new(loaded.log_end),
            first_unstable: AtomicI64::new(unstable.first()),
            tracks_log_end: AtomicBool::new(unstable.tracks_log_end()),
            unstable: Mutex::new(unstable),
            recovery_point: AtomicI64::new(loaded.recovery_point),
            flushed_mark: OnceLock::new(),
            flushing: Mutex::new(()),
            truncations: Truncations::default(),
            cleaning: Cleaning::default(),
            foreign: Mutex::default(),
            dir_identity: DirIdentity::default(),
            failure: OnceLock::new(),
            dir_failure,
            closed: AtomicBool::new(false),
            about_to_move: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            end_unsynced: AtomicBool::new(loaded.recovery.segments_checked > 0),
            recovery: loaded.recovery,
            incomplete: AtomicBool::new(loaded.incomplete),
        }
    }

    pub fn dir(&self) -> PathBuf {
        self.dir.clone()
    }

    /// The current settings.
    pub fn config(&self) -> LogConfig {
        self.config.read().clone()
    }

    /// Replaces the settings. Index settings apply to segments created from now on.
    pub fn update_config(&self, config: LogConfig) {
        *self.config.write() = config;
    }

    pub fn log_start_offset(&self) -> i64 {
        self.log_start.load(Ordering::Acquire)
    }

    /// The offset of the next record.
    pub fn log_end_offset(&self) -> i64 {
        self.log_end.load(Ordering::Acquire)
    }

    /// Everything below this offset is on disk.
    pub fn recovery_point(&self) -> i64 {
        self.recovery_point.load(Ordering::Acquire)
    }

    /// What the opening found and did.
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// Bytes of all segments, indexes not counted.
    pub fn size_bytes(&self) -> u64 {
        self.segments().iter().map(|segment| segment.size()).sum()
    }

    pub fn segment_count(&self) -> usize {
        self.segments().len()
    }

    /// The state of each idempotent or transactional producer, by id.
    pub fn active_producers(&self) -> Vec<ActiveProducer> {
        let writer = self.writer.lock();
        let producers = writer.producers.sorted();
        producers.into_iter().map(ActiveProducer::from).collect()
    }

    /// The number of idempotent and transactional producers.
    pub fn producer_count(&self) -> usize {
        self.writer.lock().producers.len()
    }

    /// The epoch of the leader that wrote last.
    pub fn latest_epoch(&self) -> Option<i32> {
        self.epochs.read().latest()
    }

    /// Whether `epoch` is the latest and in the log's file. Otherwise the next append writes it there first,
    /// and waits for the disk unless it is the log's first epoch.
    pub fn has_saved_epoch(&self, epoch: i32) -> bool {
        self.epochs.saved_latest() == Some(epoch)
    }

    /// The epoch of the leader that wrote `offset`.
    pub fn epoch_of(&self, offset: i64) -> Option<i32> {
        self.epochs.read().epoch_of(offset)
    }

    /// A leader of `epoch` begins at the log's end (`Partition.makeLeader`). Only in memory; the first append
    /// of the epoch writes it to the file.
    pub fn begin_epoch(&self, epoch: i32) {
        let _writer = self.writer.lock();
        let end = self.log_end_offset();
        self.epochs.change(|epochs| epochs.assign(epoch, end));
    }

    /// The first offset of the latest epoch, if that is `epoch`.
    pub fn epoch_start(&self, epoch: i32) -> Option<i64> {
        self.epochs.read().start_of_latest(epoch)
    }

    /// The largest epoch that is at most `epoch`, and its end offset, as in OffsetForLeaderEpoch. `None` when
    /// the log has no such epoch.
    pub fn epoch_end_offset(&self, epoch: i32) -> Option<(i32, i64)> {
        self.epochs.read().end_offset(epoch, self.log_end_offset())
    }

    /// The base offset of the oldest segment.
    pub fn first_segment_offset(&self) -> i64 {
        self.segments().first().map_or(0, |first| first.base_offset)
    }

    /// Why the log, or its directory, is offline.
    pub fn failure(&self) -> Option<&str> {
        let own = self.failure.get().map(String::as_str);
        own.or_else(|| self.dir_failure.reason())
    }

    fn segments(&self) -> Arc<Vec<Arc<Segment>>> {
        self.segments.read().clone()
    }

    fn active(&self) -> Arc<Segment> {
        let segments = self.segments.read();
        match segments.last() {
            Some(active) => active.clone(),
            None => unreachable!("a log always has a segment"),
        }
    }

    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.access == Access::Foreign {
            return Err(StorageError::ReadOnly { dir: self.dir() });
        }
        self.check_open()?;
        self.check_online()
    }

    fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(StorageError::Closed { dir: self.dir() });
        }
        Ok(())
    }

    fn check_online(&self) -> Result<()> {
        match self.failure() {
            None => Ok(()),
            Some(reason) => Err(StorageError::Offline {
                dir: self.dir(),
                reason: reason.to_owned(),
            }),
        }
    }

    /// [`Log::fail`] for an operation that left the log as it was: a full disk and a lack of descriptors are
    /// no failures.
    fn fail_unless_full(&self, error: StorageError) -> StorageError {
        if error.is_disk_full() {
            error
        } else {
            self.fail_unless_out_of_files(error)
        }
    }

    /// [`Log::fail`] for an fsync. A full disk may have lost data here.
    fn fail_unless_out_of_files(&self, error: StorageError) -> StorageError {
        if error.is_out_of_files() {
            error
        } else {
            self.fail(error)
        }
    }

    /// Takes the log offline for a failure of the disk, and its directory for a failure of the whole disk.
    fn fail(&self, error: StorageError) -> StorageError {
        let is_ours = self.access == Access::Owned && !self.gone.load(Ordering::Acquire);
        if error.is_storage_failure() && is_ours {
            let _first_reason_stays = self.failure.set(error.to_string());
            self.dir_failure.note(&error);
        }
        error
    }
}
