//! One partition's log (`UnifiedLog`, `LocalLog`): its segments, its offsets, and the one writer lock.
//!
//! Owns the order in which things become true: bytes are written, indexes follow, the tail is published, then the log's
//! end and high watermark move. Reading is in [`mod@read`], retention and background work in [`mod@maintain`],
//! reading a directory that another process writes in [`mod@foreign`].
//!
//! Threads: a `Log` is shared freely. Appending, rolling, deleting and closing take the writer lock. Readers never do:
//! they take the list of segments as it is at that moment, and a segment that is deleted under them stays readable
//! through its open file. Flushing takes a lock of its own, so an fsync holds up nobody.
//!
//! Failures: when a write or an fsync fails, the log is offline from then on. What failed is not tried again, for after
//! a failed fsync the kernel may have dropped the pages and a second one would lie; nothing is acknowledged any more;
//! what was published before stays readable. The directory has to be opened anew, which recovers it.
//!
//! A crash: see [`crate::loader`].

mod foreign;
mod maintain;
mod read;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use logcore_records::{BatchHeader, TimestampType};
use parking_lot::{Mutex, RwLock};

use crate::config::LogConfig;
use crate::error::{Result, StorageError};
use crate::files;
use crate::leader_epochs::LeaderEpochs;
use crate::loader::{self, LastKnown, Loaded, Recovery};
use crate::producer_snapshot;
use crate::producer_state::{Duplicate, ProducerState, Staged};
use crate::segment::{Access, Segment};
use crate::slice::Appended;
use crate::validator;

/// No transaction is open.
const STABLE: i64 = i64::MAX;

/// One partition's log. See the module.
#[derive(Debug)]
pub struct Log {
    dir: PathBuf,
    access: Access,
    config: RwLock<Arc<LogConfig>>,
    /// In order of base offsets, never empty; replaced whole.
    segments: RwLock<Arc<Vec<Arc<Segment>>>>,
    writer: Mutex<Writer>,
    epochs: RwLock<LeaderEpochs>,
    log_start: AtomicI64,
    log_end: AtomicI64,
    high_watermark: AtomicI64,
    /// Where the oldest open transaction began, [`STABLE`] without one.
    first_undecided: AtomicI64,
    recovery_point: AtomicI64,
    flushing: Mutex<()>,
    failure: OnceLock<String>,
    closed: AtomicBool,
    recovery: Recovery,
}

/// What only the holder of the writer lock may touch.
#[derive(Debug)]
struct Writer {
    producers: ProducerState,
    snapshot_offset: i64,
    /// Records appended since the last flush, and when the first of them was.
    unflushed: i64,
    unflushed_since_ms: Option<i64>,
    /// Files to remove, and when.
    deletions: Vec<(i64, Vec<PathBuf>)>,
}

/// Milliseconds since the epoch, by the system's clock.
pub(crate) fn system_now_ms() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| {
            i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
        })
}

impl Log {
    /// Opens the log in `dir` for reading and appending, creating it when missing. The caller holds the lock on the
    /// directory ([`crate::LogDir`] or [`crate::StandaloneLog`] do).
    ///
    /// `clean_shutdown`: the log was closed and nothing needs to be checked. Otherwise everything from the segment
    /// with `recovery_point` on is checked and the log cut after the last whole batch.
    ///
    /// Errors: the disk's, and [`StorageError::Corrupt`] for damage before the recovery point.
    pub fn open(
        dir: &Path,
        config: LogConfig,
        clean_shutdown: bool,
        recovery_point: i64,
    ) -> Result<Self> {
        let known = LastKnown {
            clean_shutdown,
            recovery_point,
            log_start_offset: 0,
        };
        Self::open_with(dir, config, known)
    }

    /// [`Log::open`] for a log whose start was moved.
    pub fn open_with(dir: &Path, config: LogConfig, known: LastKnown) -> Result<Self> {
        let loaded = loader::load(dir, &config, known, system_now_ms())?;
        Ok(Self::new(dir, config, Access::Owned, loaded))
    }

    fn new(dir: &Path, config: LogConfig, access: Access, loaded: Loaded) -> Self {
        let undecided = loaded.producers.first_undecided_offset();
        Self {
            dir: dir.to_path_buf(),
            access,
            config: RwLock::new(Arc::new(config)),
            segments: RwLock::new(Arc::new(loaded.segments)),
            writer: Mutex::new(Writer {
                producers: loaded.producers,
                snapshot_offset: loaded.snapshot_offset,
                unflushed: 0,
                unflushed_since_ms: None,
                deletions: Vec::new(),
            }),
            epochs: RwLock::new(loaded.epochs),
            log_start: AtomicI64::new(loaded.log_start),
            log_end: AtomicI64::new(loaded.log_end),
            high_watermark: AtomicI64::new(loaded.log_end),
            first_undecided: AtomicI64::new(undecided.unwrap_or(STABLE)),
            recovery_point: AtomicI64::new(loaded.recovery_point),
            flushing: Mutex::new(()),
            failure: OnceLock::new(),
            closed: AtomicBool::new(false),
            recovery: loaded.recovery,
        }
    }

    // ---- appending ----

    /// Appends whole v2 batches, with one write. Offsets, leader epoch and, where the topic says so, the broker's time
    /// are set in `batches` itself.
    ///
    /// Batches that an idempotent producer sends again are not written again: when all are such, the answer is
    /// `duplicate` with their first offsets; when only the first few are (a retry after a crash that cut the rest),
    /// the rest is written.
    ///
    /// Errors: see [`StorageError`]; unless it is a storage failure nothing was written and the log is as before.
    /// After an error `batches` may have been changed only if it is a storage failure.
    pub fn append_as_leader(
        &self,
        batches: &mut [u8],
        leader_epoch: i32,
        now_ms: i64,
    ) -> Result<Appended> {
        self.check_writable()?;
        let config = self.config();
        let mut headers = validator::check(batches, &config, now_ms)?;
        let log_append_time =
            (config.timestamp_type == TimestampType::LogAppendTime).then_some(now_ms);

        let mut writer = self.writer.lock();
        self.check_writable()?;
        if let Some(current) = self
            .latest_epoch()
            .filter(|current| leader_epoch < *current)
        {
            return Err(StorageError::FencedLeaderEpoch {
                found: leader_epoch,
                current,
            });
        }
        let repeated: Vec<Duplicate> = headers
            .iter()
            .map_while(|header| writer.producers.duplicate_of(header))
            .collect();
        if let (Some(first), Some(last)) = (repeated.first(), repeated.last())
            && repeated.len() == headers.len()
        {
            return Ok(Appended {
                first_offset: first.first_offset,
                last_offset: last.last_offset,
                log_append_time: log_append_time.map_or(-1, |_| last.timestamp),
                log_start_offset: self.log_start_offset(),
                duplicate: true,
                batches: Vec::new(),
            });
        }
        let skipped: usize = headers
            .drain(..repeated.len())
            .map(|header| header.size())
            .sum();
        let first_written = self.write(
            &mut writer,
            &config,
            &mut batches[skipped..],
            &mut headers,
            leader_epoch,
            now_ms,
        )?;
        Ok(Appended {
            first_offset: repeated
                .first()
                .map_or(first_written, |first| first.first_offset),
            last_offset: self.log_end_offset() - 1,
            log_append_time: log_append_time.unwrap_or(-1),
            log_start_offset: self.log_start_offset(),
            duplicate: false,
            batches: headers,
        })
    }

    /// Places, writes and publishes batches that were checked; returns the first offset.
    fn write(
        &self,
        writer: &mut Writer,
        config: &LogConfig,
        bytes: &mut [u8],
        headers: &mut [BatchHeader],
        leader_epoch: i32,
        now_ms: i64,
    ) -> Result<i64> {
        let size = bytes.len() as u64;
        if size > config.segment_bytes {
            return Err(StorageError::AppendTooLarge {
                size,
                limit: config.segment_bytes,
            });
        }
        let first_offset = self.log_end_offset();
        let log_append_time =
            (config.timestamp_type == TimestampType::LogAppendTime).then_some(now_ms);
        let end = validator::assign(headers, first_offset, leader_epoch, log_append_time);
        let mut staged = Staged::default();
        for header in headers.iter() {
            writer.producers.stage(&mut staged, header)?;
        }

        // From here on nothing is refused: what fails is the disk.
        let newest = headers
            .iter()
            .map(|header| header.max_timestamp)
            .max()
            .unwrap_or(-1);
        let active = self
            .active_for(writer, config, size, newest, end - 1, now_ms)
            .map_err(|e| self.fail(e))?;
        self.assign_epoch(leader_epoch, first_offset)
            .map_err(|e| self.fail(e))?;
        let placed = validator::place(bytes, headers, log_append_time.is_some());
        let tail = active.append(bytes, &placed).map_err(|e| self.fail(e))?;
        writer.unflushed += end - first_offset;
        writer.unflushed_since_ms.get_or_insert(now_ms);
        if writer.unflushed >= config.flush_messages {
            self.flush_through(&active).map_err(|e| self.fail(e))?;
            writer.unflushed = 0;
            writer.unflushed_since_ms = None;
        }
        active.publish(tail);
        writer.producers.commit(staged);
        let undecided = writer.producers.first_undecided_offset();
        self.first_undecided
            .store(undecided.unwrap_or(STABLE), Ordering::Release);
        self.log_end.store(end, Ordering::Release);
        self.high_watermark.store(end, Ordering::Release);
        if writer.unflushed == 0 {
            self.recovery_point.fetch_max(end, Ordering::AcqRel);
        }
        Ok(first_offset)
    }

    fn assign_epoch(&self, epoch: i32, offset: i64) -> Result<()> {
        if self.latest_epoch() == Some(epoch) {
            return Ok(());
        }
        let mut epochs = self.epochs.write();
        epochs.assign(epoch, offset);
        epochs.save()
    }

    /// The segment that takes the next `size` bytes: the active one, or a new one when that is full or old.
    fn active_for(
        &self,
        writer: &mut Writer,
        config: &LogConfig,
        size: u64,
        newest: i64,
        last_offset: i64,
        now_ms: i64,
    ) -> Result<Arc<Segment>> {
        let active = self.active();
        let filled = active.size();
        if filled == 0 && active.can_hold(last_offset) {
            return Ok(active);
        }
        let full = filled + size > config.segment_bytes
            || !active.can_hold(last_offset)
            || active.indexes()?.is_full()
            || active.age_ms(now_ms, newest)? > config.segment_ms;
        if full {
            self.roll_locked(writer, config, now_ms)
        } else {
            Ok(active)
        }
    }

    /// Ends the active segment and begins a new one, unless the active one is empty.
    pub fn roll(&self, now_ms: i64) -> Result<()> {
        let mut writer = self.writer.lock();
        self.check_writable()?;
        let config = self.config();
        self.roll_locked(&mut writer, &config, now_ms)
            .map(|_| ())
            .map_err(|e| self.fail(e))
    }

    fn roll_locked(
        &self,
        writer: &mut Writer,
        config: &LogConfig,
        now_ms: i64,
    ) -> Result<Arc<Segment>> {
        let active = self.active();
        let base = self.log_end_offset();
        if active.base_offset == base {
            return Ok(active);
        }
        self.snapshot_producers(writer, false)?;
        active.seal()?;
        if config.flush_on_roll {
            self.flush_through(&active)?;
            self.recovery_point.fetch_max(base, Ordering::AcqRel);
        }
        let next = Arc::new(Segment::create(
            &self.dir,
            base,
            loader::settings(config),
            now_ms,
        )?);
        let mut segments = self.segments.write();
        let mut list = segments.to_vec();
        list.push(next.clone());
        *segments = Arc::new(list);
        Ok(next)
    }

    /// Writes the producers' state at the log's end, once per offset.
    fn snapshot_producers(&self, writer: &mut Writer, sync: bool) -> Result<()> {
        let end = self.log_end_offset();
        if end > writer.snapshot_offset {
            producer_snapshot::write(&self.dir, end, &writer.producers, sync)?;
            writer.snapshot_offset = end;
        }
        Ok(())
    }

    // ---- durability ----

    /// Brings everything appended so far to disk. When this returns, a power loss costs none of it.
    ///
    /// Errors: an fsync that failed, after which the log is offline.
    pub fn flush(&self) -> Result<()> {
        self.check_writable()?;
        let active = self.active();
        let end = active.next_offset();
        self.flush_through(&active).map_err(|e| self.fail(e))?;
        self.recovery_point.fetch_max(end, Ordering::AcqRel);
        if let Some(mut writer) = self.writer.try_lock()
            && self.log_end_offset() == end
        {
            // An append that came in between has its own count to go by.
            writer.unflushed = 0;
            writer.unflushed_since_ms = None;
        }
        Ok(())
    }

    /// Fsyncs all segments up to and including `last` that have bytes after the recovery point.
    fn flush_through(&self, last: &Segment) -> Result<()> {
        let _one_at_a_time = self.flushing.lock();
        let flushed = self.recovery_point();
        let segments = self.segments();
        let mut new_entries = false;
        for segment in segments
            .iter()
            .filter(|s| s.base_offset <= last.base_offset)
        {
            if segment.next_offset() <= flushed && segment.base_offset != last.base_offset {
                continue;
            }
            segment.flush()?;
            new_entries |= !segment.directory_synced.swap(true, Ordering::AcqRel);
        }
        if new_entries {
            files::sync_dir(&self.dir)
        } else {
            Ok(())
        }
    }

    /// Flushes, gives the files their final size, writes the producers' snapshot. Appends and reads after this fail;
    /// slices taken before stay readable. Closing again does nothing.
    ///
    /// Errors: when something could not be brought to disk, or could not before: the shutdown is not clean then.
    pub fn close(&self) -> Result<()> {
        let mut writer = self.writer.lock();
        if self.closed.swap(true, Ordering::AcqRel) || self.access == Access::Foreign {
            return Ok(());
        }
        self.check_online()?;
        let closed = (|| {
            let active = self.active();
            active.seal()?;
            if self.recovery_point() < self.log_end_offset() {
                self.flush_through(&active)?;
            }
            self.recovery_point
                .fetch_max(self.log_end_offset(), Ordering::AcqRel);
            self.snapshot_producers(&mut writer, true)?;
            self.remove_deleted(&mut writer, i64::MAX);
            self.epochs.write().save()
        })();
        closed.map_err(|e| self.fail(e))
    }

    /// Ends all use without bringing anything to disk: the directory is about to be deleted.
    pub(crate) fn abandon(&self) {
        let _writer = self.writer.lock();
        self.closed.store(true, Ordering::Release);
    }

    // ---- state ----

    /// The directory.
    pub fn dir(&self) -> PathBuf {
        self.dir.clone()
    }

    /// The settings as they are now.
    pub fn config(&self) -> Arc<LogConfig> {
        self.config.read().clone()
    }

    /// Replaces the settings. Index settings apply to segments created from now on.
    pub fn update_config(&self, config: LogConfig) {
        *self.config.write() = Arc::new(config);
    }

    /// The first offset that can be read.
    pub fn log_start_offset(&self) -> i64 {
        self.log_start.load(Ordering::Acquire)
    }

    /// The offset the next record gets.
    pub fn log_end_offset(&self) -> i64 {
        self.log_end.load(Ordering::Acquire)
    }

    /// The offset before which records are on all replicas: with one replica, the log's end.
    pub fn high_watermark(&self) -> i64 {
        self.high_watermark.load(Ordering::Acquire)
    }

    /// The offset before which no transaction is open.
    pub fn last_stable_offset(&self) -> i64 {
        self.high_watermark()
            .min(self.first_undecided.load(Ordering::Acquire))
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

    /// Idempotent and transactional producers known.
    pub fn producer_count(&self) -> usize {
        self.writer.lock().producers.len()
    }

    /// The epoch of the last leader that wrote here.
    pub fn latest_epoch(&self) -> Option<i32> {
        self.epochs.read().latest()
    }

    /// The epoch of the leader that wrote `offset`, when known.
    pub fn epoch_of(&self, offset: i64) -> Option<i32> {
        self.epochs.read().epoch_of(offset)
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

    /// Why the log is offline, if it is.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
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

    fn check_writable(&self) -> Result<()> {
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
        match self.failure.get() {
            None => Ok(()),
            Some(reason) => Err(StorageError::Offline {
                dir: self.dir(),
                reason: reason.clone(),
            }),
        }
    }

    /// Takes the log offline if `error` is the disk's fault.
    fn fail(&self, error: StorageError) -> StorageError {
        if error.is_storage_failure() && self.access == Access::Owned {
            let _first_reason_stays = self.failure.set(error.to_string());
        }
        error
    }
}
