//! One partition's log (`UnifiedLog`, `LocalLog`): its segments, its offsets, and the one writer lock.
//!
//! Owns the order in which things become true: bytes are written, indexes follow, the tail is published, then the log's
//! end and high watermark move. Appending is in `append` and `follow`, flushing and closing in `durability`, how far readers may go in
//! `watermark`, reading in `read`, looking for times in `time_search`, cutting the end off in `truncate`, retention and background work in `maintain`, compaction
//! in `compaction`, reading a directory that another process writes in `foreign`.
//!
//! Threads: a `Log` is shared freely. Appending, rolling, deleting and closing take the writer lock. Readers never do:
//! they take the list of segments as it is at that moment, and a segment that is deleted under them stays readable
//! through its open file. Flushing takes a lock of its own, so an fsync holds up nobody.
//!
//! A full disk refuses appends and nothing else: what the refused append wrote is cut off again, reads go on, and appends
//! work again once there is space. A log is opened on a full disk, too: what has no room of its indexes, its snapshot and its
//! epochs is kept in memory, and written before the next append or by [`Log::maintain`].
//!
//! Failures: when a write or an fsync fails otherwise, the log is offline from then on. What failed is not tried again, for after
//! a failed fsync the kernel may have dropped the pages and a second one would lie; nothing is acknowledged any more;
//! what was published before stays readable. So are the other logs of its directory, for it is one disk's. The directory has
//! to be opened anew, which recovers it.
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
pub(crate) struct Surroundings {
    pub(crate) failure: Arc<DirFailure>,
    pub(crate) progress: Arc<LoadProgress>,
}

/// One partition's log. See the module.
#[derive(Debug)]
pub struct Log {
    dir: PathBuf,
    access: Access,
    config: RwLock<LogConfig>,
    /// In order of base offsets, never empty; replaced whole.
    segments: RwLock<Arc<Vec<Arc<Segment>>>>,
    writer: Mutex<Writer>,
    epochs: SharedEpochs,
    log_start: AtomicI64,
    log_end: AtomicI64,
    high_watermark: AtomicI64,
    unstable: Mutex<Unstable>,
    /// [`Unstable::first`], for readers.
    first_unstable: AtomicI64,
    /// [`Unstable::follows_freely`], for appends.
    follows_freely: AtomicBool,
    recovery_point: AtomicI64,
    /// Where that is noted, if it is.
    flushed_mark: OnceLock<FlushedMark>,
    flushing: Mutex<()>,
    truncations: Truncations,
    cleaning: Cleaning,
    foreign: Mutex<ForeignTransactions>,
    /// The directory that was opened read-only.
    dir_identity: DirIdentity,
    /// Why this log is offline by itself.
    failure: OnceLock<String>,
    /// Why its directory is.
    dir_failure: Arc<DirFailure>,
    closed: AtomicBool,
    /// [`Log::is_about_to_move`].
    about_to_move: AtomicBool,
    /// The directory is not this log's any more: what fails there says nothing of the disk.
    gone: AtomicBool,
    recovery: Recovery,
    /// Where recovery found the end a truncation may have cut it, which is not on disk: what it cut off must not come back to
    /// be taken for a later epoch's.
    end_unsynced: AtomicBool,
    /// The disk was full when the log was opened: see [`Log::complete`].
    incomplete: AtomicBool,
}

/// What only the holder of the writer lock may touch.
#[derive(Debug)]
struct Writer {
    producers: ProducerState,
    /// When was last looked whether any of them is idle.
    producers_checked_ms: Option<i64>,
    /// The active segment as the last append left it; `None` when another became the active one since, or it was cut.
    active: Option<OpenSegment>,
    snapshot_offset: i64,
    /// What the active segment's part of `segment.jitter.ms` is taken from.
    roll_random: u32,
    /// Records appended since the last flush, and when the first of them was.
    unflushed: i64,
    unflushed_since_ms: Option<i64>,
    /// The end of the last append that is acknowledged only once it is on disk. Those after it are, too, once that one is.
    sync_end: i64,
    /// Files to remove, and when.
    deletions: Vec<(i64, Vec<PathBuf>)>,
}

/// A number for jitter: each of the standard library's hashers has other keys.
fn random() -> u32 {
    RandomState::new().hash_one(()) as u32
}

impl Log {
    /// Opens the log in `dir` for reading and appending, creating it when missing. The caller holds the lock on the
    /// directory ([`crate::LogDir`] or [`crate::StandaloneLog`] do).
    ///
    /// `clean_shutdown`: the log was closed and nothing needs to be checked. Otherwise everything from the segment
    /// with `recovery_point` on is checked and the log cut after the last whole batch.
    ///
    /// Errors: the disk's, and [`StorageError::Corrupt`] for damage before the recovery point.
    pub fn open(dir: &Path, config: LogConfig, clean_shutdown: bool, recovery_point: i64) -> Result<Self> {
        let known = LastKnown {
            clean_shutdown,
            recovery_point,
            ..LastKnown::default()
        };
        Self::open_with(dir, config, known)
    }

    /// [`Log::open`] for a log whose start was moved.
    pub fn open_with(dir: &Path, config: LogConfig, known: LastKnown) -> Result<Self> {
        Self::open_in(dir, config, known, &Surroundings::default())
    }

    /// [`Log::open_with`] for one of the logs of a directory.
    pub(crate) fn open_in(
        dir: &Path,
        config: LogConfig,
        known: LastKnown,
        surroundings: &Surroundings,
    ) -> Result<Self> {
        let progress = &surroundings.progress;
        let loaded = loader::load(dir, &config, known, system_now_ms(), progress)?;
        let failure = surroundings.failure.clone();
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
                producers: loaded.producers,
                producers_checked_ms: None,
                active: None,
                snapshot_offset: loaded.snapshot_offset,
                roll_random: random(),
                // What a process before this one has left to be flushed counts, too.
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
            follows_freely: AtomicBool::new(unstable.follows_freely()),
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

    /// The directory.
    pub fn dir(&self) -> PathBuf {
        self.dir.clone()
    }

    /// The settings as they are now.
    pub fn config(&self) -> LogConfig {
        self.config.read().clone()
    }

    /// Replaces the settings. Index settings apply to segments created from now on.
    pub fn update_config(&self, config: LogConfig) {
        *self.config.write() = config;
    }

    /// The first offset that can be read.
    pub fn log_start_offset(&self) -> i64 {
        self.log_start.load(Ordering::Acquire)
    }

    /// The offset the next record gets.
    pub fn log_end_offset(&self) -> i64 {
        self.log_end.load(Ordering::Acquire)
    }

    /// Everything before this offset is on disk for certain.
    pub fn recovery_point(&self) -> i64 {
        self.recovery_point.load(Ordering::Acquire)
    }

    /// What opening found and did.
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// Bytes of all segments, indexes not counted.
    pub fn size_bytes(&self) -> u64 {
        self.segments().iter().map(|segment| segment.size()).sum()
    }

    /// How many segments there are.
    pub fn segment_count(&self) -> usize {
        self.segments().len()
    }

    /// What is known of each idempotent or transactional producer, in order of their ids.
    pub fn active_producers(&self) -> Vec<ActiveProducer> {
        let writer = self.writer.lock();
        let producers = writer.producers.sorted();
        producers.into_iter().map(ActiveProducer::from).collect()
    }

    /// Idempotent and transactional producers known.
    pub fn producer_count(&self) -> usize {
        self.writer.lock().producers.len()
    }

    /// The epoch of the last leader that wrote here.
    pub fn latest_epoch(&self) -> Option<i32> {
        self.epochs.read().latest()
    }

    /// Whether the latest epoch is this one and in the log's file. Otherwise the next append writes it there first, and waits
    /// for the disk unless it is the log's first.
    pub fn has_saved_epoch(&self, epoch: i32) -> bool {
        self.epochs.saved_latest() == Some(epoch)
    }

    /// The epoch of the leader that wrote `offset`, when known.
    pub fn epoch_of(&self, offset: i64) -> Option<i32> {
        self.epochs.read().epoch_of(offset)
    }

    /// A leader of `epoch` begins: what it will write begins at the log's end (`Partition.makeLeader`). Noted in memory; the file
    /// has it from its first append on.
    pub fn begin_epoch(&self, epoch: i32) {
        let _writer = self.writer.lock();
        let end = self.log_end_offset();
        self.epochs.change(|epochs| epochs.assign(epoch, end));
    }

    /// Where the records of the latest epoch begin, if it is `epoch`.
    pub fn epoch_start(&self, epoch: i32) -> Option<i64> {
        self.epochs.read().start_of_latest(epoch)
    }

    /// The largest epoch not after the one asked for and the offset its records end before, as OffsetForLeaderEpoch
    /// answers; `None` when there is no such epoch here.
    pub fn epoch_end_offset(&self, epoch: i32) -> Option<(i32, i64)> {
        self.epochs.read().end_offset(epoch, self.log_end_offset())
    }

    /// The base offset of the oldest segment.
    pub fn first_segment_offset(&self) -> i64 {
        self.segments().first().map_or(0, |first| first.base_offset)
    }

    /// Why the log is offline, if it is: by itself, or with the directory it is in.
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

    /// Like [`Log::fail`] for what left the log as it was: neither a full disk is a reason to stop, nor a file that could
    /// not be opened for want of a descriptor.
    fn fail_unless_full(&self, error: StorageError) -> StorageError {
        if error.is_disk_full() {
            error
        } else {
            self.fail_unless_out_of_files(error)
        }
    }

    /// Like [`Log::fail`] for an fsync, which a full disk does fail for good: what was to be brought to disk may be lost.
    fn fail_unless_out_of_files(&self, error: StorageError) -> StorageError {
        if error.is_out_of_files() {
            error
        } else {
            self.fail(error)
        }
    }

    /// Takes the log offline if `error` is the disk's fault, and its directory if that is.
    fn fail(&self, error: StorageError) -> StorageError {
        let is_ours = self.access == Access::Owned && !self.gone.load(Ordering::Acquire);
        if error.is_storage_failure() && is_ours {
            let _first_reason_stays = self.failure.set(error.to_string());
            self.dir_failure.note(&error);
        }
        error
    }
}
