//! Moving a partition's log to another log directory while it is served (KIP-113,
//! `ReplicaAlterLogDirsThread`).
//!
//! A [`Move`] copies the log into a future log in the other directory, as a follower does. Once the copy has
//! caught up, it takes the place of the log (`LogManager.replaceCurrentWithFutureLog`). One thread of the
//! caller runs moves. Readers and writers of the log go on meanwhile and wait only for the last step.
//! Compaction of the log waits for the end of the move; otherwise the copy could keep a value whose tombstone
//! it never saw.
//!
//! The copy is flushed as it grows ([`UNFLUSHED_BYTES`]), so closing the directories and the last step have
//! little to flush. The last step, without appends, is not begun while more than [`HAND_OVER_BYTES`] are
//! missing on the other disk:
//!
//! 1. The rest is copied, and the copy and the other directory's checkpoints are flushed. After a crash the
//!    log is where it was, and the copy is a future log.
//! 2. `logcore-moved` is written to the log's directory, with the name of the copy's directory, and flushed.
//!    From here on a crash ends in the other directory: [`finish_moves`] does the next steps. A third
//!    directory may also have a copy, which an earlier move left when its disk failed.
//! 3. The future log gets the partition's name, and is opened under it. Readers and writers get it.
//! 4. The old directory is renamed to that of a deleted log, and removed later.
//!
//! A disk that fails before the end of step 2 stops only the move, as does a failure of the other directory
//! in step 3: the mark is removed before the next append. If the old directory cannot be renamed, its disk
//! failed after the log has left it. So the two directories never both take records.
//!
//! Apache Kafka ignores the mark. After a crash before step 3 it goes on copying. After a crash between steps
//! 3 and 4 it reports a duplicate partition, as after its own crash at that point.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::MutexGuard;

use super::deletions::rename_deleted;
use super::{Found, LogDir, Partition, partition_dirs, partition_path};
use crate::clock::system_now_ms;
use crate::error::{Result, StorageError};
use crate::files;
use crate::files::disk;
use crate::files::lock::DirLock;
use crate::files::metadata::MOVED_FILE;
use crate::files::partition_dir::{Key, Kind, NAME_MAX};
use crate::producers::ProducerState;

/// Bytes that the last step copies at once.
const PIECE_BYTES: u64 = 1 << 20;
/// The most bytes that the last step copies and flushes. A disk that is faster than the producers gets below
/// it with each flush, also when a flush takes 30 ms and producers write 100 MB/s.
const HAND_OVER_BYTES: u64 = 4 << 20;
/// About the most bytes of a copy that are not flushed.
const UNFLUSHED_BYTES: u64 = 32 << 20;

/// A log that moves from one directory to another.
#[derive(Debug)]
pub struct Move {
    from: Arc<LogDir>,
    to: Arc<LogDir>,
    current: Arc<Partition>,
    future: Arc<Partition>,
    /// Bytes copied since the last flush.
    unflushed: AtomicU64,
}

/// A finished move.
#[derive(Debug)]
pub struct Moved {
    pub partition: Arc<Partition>,
    /// Why the old directory could not be removed; the next opening does it.
    pub left_behind: Option<StorageError>,
}

impl Move {
    /// Begins a move, or continues one whose future log exists, after cutting off what the log does not have.
    /// A log that is served waits only for the end of a compaction.
    ///
    /// Errors: [`StorageError::NotFound`] when `from` does not have the partition; an error of `to` when it
    /// cannot create the future log.
    pub fn begin(from: &Arc<LogDir>, to: &Arc<LogDir>, topic: &str, partition: i32) -> Result<Self> {
        let current = from.get(topic, partition);
        let current = current.ok_or_else(|| StorageError::NotFound {
            path: partition_path(&from.path, &(topic.to_owned(), partition)),
        })?;
        let future = match to.future(topic, partition) {
            Some(future) if future.log.is_closed() => {
                // The last step failed with this future log.
                to.delete_future(topic, partition)?;
                None
            }
            found => found,
        };
        let future = match future {
            Some(future) => future,
            None => to.create_future(topic, partition, current.topic_id, current.log.config())?,
        };
        current.log.cleaning().pause_until_release();
        let begun = Self {
            from: Arc::clone(from),
            to: Arc::clone(to),
            current,
            future,
            unflushed: AtomicU64::new(0),
        };
        {
            let _changing = begun.to.changing.lock();
            begun.cut_what_differs()?;
        }
        Ok(begun)
    }

    /// Offsets that are not copied yet.
    pub fn lag(&self) -> i64 {
        self.current.log.log_end_offset() - self.future.log.log_end_offset()
    }

    /// Bytes that are not copied yet, in all segments.
    ///
    /// Errors: as [`Move::copy`].
    pub fn bytes_left(&self) -> Result<u64> {
        let end = self.future.log.log_end_offset();
        self.current.log.bytes_from(end)
    }

    /// Copies about `bytes_max` bytes of one segment, at least one batch; returns the number of bytes, 0 at
    /// the end. Flushes the copy when much of it is not flushed.
    ///
    /// Errors: [`StorageError::Closed`] when one of the logs was deleted or closed; the disk's, of either
    /// side.
    pub fn copy(&self, bytes_max: u64) -> Result<u64> {
        loop {
            let copied = {
                let _changing = self.to.changing.lock();
                self.to.check_usable()?;
                self.follow_start()
            }
            .and_then(|()| self.copy_on(bytes_max));
            match copied {
                // Retention moved the log start.
                Err(StorageError::OffsetOutOfRange { .. }) if self.ends_before_start() => {}
                copied => {
                    let copied = copied?;
                    let before = self.unflushed.fetch_add(copied, Ordering::Relaxed);
                    if before + copied >= UNFLUSHED_BYTES {
                        self.flush()?;
                    }
                    return Ok(copied);
                }
            }
        }
    }

    fn flush(&self) -> Result<()> {
        self.unflushed.store(0, Ordering::Relaxed);
        self.future.log.flush()
    }

    /// Announces the last step to appends ([`Log::is_about_to_move`]) and flushes the copy, while only the
    /// caller waits. Appends that did not see the announcement have ended when this returns.
    ///
    /// Errors: as [`Move::copy`].
    ///
    /// [`Log::is_about_to_move`]: crate::Log::is_about_to_move
    pub fn prepare(&self) -> Result<()> {
        self.current.log.set_about_to_move(true);
        self.flush()
    }

    /// Puts the copy into the log's place. `publish` gives it to readers and writers, and runs while nothing
    /// is appended. Call it when little is left to copy, after [`Move::prepare`]. Blocks for the fsyncs of
    /// both disks. `None`: too much is missing on the other disk; the log goes on, and copying must continue.
    ///
    /// Errors: as [`Move::copy`]. The log then stays where it is and goes on.
    pub fn finish(&self, publish: impl FnOnce(&Arc<Partition>)) -> Result<Option<Moved>> {
        let _changing = self.lock_both();
        self.from.check_usable()?;
        self.to.check_usable()?;
        self.check_current()?;
        let current = &self.current.log;
        let handed_over = current.hand_over(|producers| {
            if current.bytes_from(self.future.log.recovery_point())? > HAND_OVER_BYTES {
                return Ok(None);
            }
            let promoted = self.replace(producers)?;
            publish(&promoted);
            Ok(Some(promoted))
        })?;
        let Some(partition) = handed_over else {
            current.set_about_to_move(false);
            return Ok(None);
        };
        self.from.partitions.write().remove(&self.key());
        let left_behind = self.from.remove(&self.current).err();
        Ok(Some(Moved {
            partition,
            left_behind,
        }))
    }

    fn key(&self) -> Key {
        (self.current.topic.clone(), self.current.partition)
    }

    /// Locks the partitions of both directories, in the same order for a move in the other direction.
    fn lock_both(&self) -> (MutexGuard<'_, ()>, MutexGuard<'_, ()>) {
        let (one, other) = if self.from.path < self.to.path {
            (&self.from, &self.to)
        } else {
            (&self.to, &self.from)
        };
        (one.changing.lock(), other.changing.lock())
    }

    /// Checks that neither log was deleted, or deleted and created again.
    fn check_current(&self) -> Result<()> {
        let key = self.key();
        let is = |found: Option<&Arc<Partition>>, one: &Arc<Partition>| {
            found.is_some_and(|found| Arc::ptr_eq(found, one))
        };
        if is(self.from.partitions.read().get(&key), &self.current)
            && is(self.to.futures.read().get(&key), &self.future)
        {
            return Ok(());
        }
        Err(StorageError::Closed {
            dir: self.current.log.dir(),
        })
    }

    fn ends_before_start(&self) -> bool {
        self.future.log.log_end_offset() < self.current.log.log_start_offset()
    }

    /// Starts again at the log start when the log has nothing of the copied part any more.
    fn follow_start(&self) -> Result<()> {
        if !self.ends_before_start() {
            return Ok(());
        }
        let base = self.first_base(self.current.log.log_start_offset())?;
        if self.future.log.log_end_offset() < base {
            self.to.restart(&self.future, base, None)?;
        }
        Ok(())
    }

    /// The base offset of the batch that has `start`.
    fn first_base(&self, start: i64) -> Result<i64> {
        let log = &self.current.log;
        let slice = log.read(start, 1, log.log_end_offset(), true)?;
        let bytes = slice.read_to_vec()?;
        let base = bytes.first_chunk();
        Ok(base.map_or(start, |base| i64::from_be_bytes(*base).min(start)))
    }

    fn copy_on(&self, bytes_max: u64) -> Result<u64> {
        let (current, future) = (&self.current.log, &self.future.log);
        future.update_config(current.config());
        let (start, end) = (current.log_start_offset(), current.log_end_offset());
        // The log start may be inside the next batch.
        let from = future.log_end_offset().max(start);
        let slice = current.read(from, bytes_max, end, true)?;
        let batches = slice.read_whole_batches()?;
        if !batches.is_empty() {
            future.append_as_follower(&batches, system_now_ms())?;
        }
        let high_watermark = future.set_high_watermark(current.high_watermark());
        if start > future.log_start_offset() {
            future.advance_log_start_offset(start.min(high_watermark))?;
        }
        Ok(batches.len() as u64)
    }

    /// Steps 1 to 3, without appends.
    fn replace(&self, producers: &ProducerState) -> Result<Arc<Partition>> {
        self.follow_start()?;
        while self.copy_on(PIECE_BYTES)? > 0 {}
        self.copy_end()?;
        let (current, future) = (&self.current.log, &self.future.log);
        // The producers' state is copied, because of some producers no batch may be left to copy.
        future.set_producers(producers.clone());
        future.close()?;
        self.to.write_checkpoints(None)?;
        let dir = current.dir();
        let promoted = self
            .mark()
            .and_then(|()| self.to.promote(&self.future, current))
            .inspect_err(|_| {
                // Before the next append here. If that fails, nothing is appended.
                if let Err(error) = unmark(&dir) {
                    self.from.fail(error);
                }
            })?;
        // A snapshot has only the last batch of a producer, which may send its last five again.
        promoted.log.set_producers(future.take_producers());
        promoted.log.cleaning().take_over(current.cleaning());
        if let Some(epoch) = current.latest_epoch() {
            // The epoch may have begun without a record.
            promoted.log.begin_epoch(epoch);
        }
        Ok(promoted)
    }

    /// Moves the copy's end to the log end. With an empty active segment, compaction may have removed the
    /// log's last batches.
    fn copy_end(&self) -> Result<()> {
        let (end, future) = (self.current.log.log_end_offset(), &self.future.log);
        if future.log_end_offset() < end {
            if future.size_bytes() == 0 {
                self.to.restart(&self.future, end, None)?;
            } else {
                future.skip_to(end, system_now_ms())?;
            }
            future.set_high_watermark(self.current.log.high_watermark());
        }
        if future.log_end_offset() == end {
            return Ok(());
        }
        Err(StorageError::UnexpectedAppendOffset {
            first_offset: end,
            last_offset: end,
            log_end: future.log_end_offset(),
        })
    }

    /// Step 2.
    fn mark(&self) -> Result<()> {
        let dir = self.current.log.dir();
        let copy = self.future.log.dir();
        let name = copy.file_name().unwrap_or_default();
        let path = dir.join(MOVED_FILE);
        let named = files::replace_file(&path, name.as_encoded_bytes());
        named
            .or_else(|error| {
                if !error.is_disk_full() {
                    return Err(error);
                }
                // A log may be moved to free space. A mark without a name needs none.
                disk::create(&path)
                    .map_err(StorageError::io("create", &path))
                    .and_then(|_| files::sync_dir(&dir))
            })
            .map_err(|error| self.from.fail(error))
    }

    /// Truncates the future log to a prefix of the log: a crash may have kept more of it than of the log
    /// (KIP-101, KIP-279).
    fn cut_what_differs(&self) -> Result<()> {
        let (current, future) = (&self.current.log, &self.future.log);
        while let Some(latest) = future.latest_epoch() {
            let known = match current.latest_epoch() {
                // The log has no answer about an epoch that it never had.
                Some(newest) if newest < latest => current.epoch_end_offset(newest),
                _ => current.epoch_end_offset(latest),
            };
            let Some((epoch, end)) = known else {
                let base = self.first_base(current.log_start_offset())?;
                return self.to.restart(&self.future, base, None);
            };
            let point = future.truncation_point(epoch, end);
            self.to.truncate(&self.future, point.offset)?;
            if point.complete {
                break;
            }
        }
        // Message formats without epochs.
        let end = current.log_end_offset();
        if future.log_end_offset() > end {
            self.to.truncate(&self.future, end)?;
        }
        Ok(())
    }
}

impl Drop for Move {
    fn drop(&mut self) {
        self.current.log.set_about_to_move(false);
        self.current.log.cleaning().release();
    }
}

fn unmark(dir: &Path) -> Result<()> {
    if files::remove_if_exists(&dir.join(MOVED_FILE))? {
        files::sync_dir(dir)?;
    }
    Ok(())
}

/// Finishes moves between these log directories that a crash interrupted in their last step. Call it before
/// any of them is opened. A directory that cannot be listed is skipped: its opening reports the error.
/// Returns the logs' directories.
///
/// Errors: [`StorageError::Locked`]; the disk's.
pub fn finish_moves(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut finished = Vec::new();
    // The end of one move may be the start of another.
    loop {
        let more = finish_some(paths)?;
        if more.is_empty() {
            return Ok(finished);
        }
        finished.extend(more);
    }
}

fn finish_some(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut found: Vec<Found> = Vec::new();
    for path in paths.iter().filter_map(|path| path.canonicalize().ok()) {
        found.extend(partition_dirs(&path).unwrap_or_default());
    }
    let is_moved = |one: &&Found| one.kind == Kind::Current && one.dir.join(MOVED_FILE).exists();
    let mut finished = Vec::new();
    for old in found.iter().filter(is_moved) {
        let mark = files::read_small(&old.dir.join(MOVED_FILE), NAME_MAX as u64);
        let copy = match mark {
            Err(error) if error.is_directory_failure() => continue,
            mark => mark?.unwrap_or_default(),
        };
        let new = found.iter().find(|one| {
            let is_it = match one.kind {
                Kind::Current => !is_moved(one),
                Kind::Future => is_named(&one.dir, &copy),
                Kind::Deleted | Kind::Stray => false,
            };
            is_it && one.key == old.key && one.dir.parent() != old.dir.parent()
        });
        if let Some(new) = new {
            match finish_one(old, new) {
                // The opening of that directory reports the error. The mark keeps the old log from being
                // opened.
                Err(error) if error.is_directory_failure() || error.is_disk_full() => {}
                done => finished.push(done?),
            }
        }
    }
    Ok(finished)
}

/// Early marks had no name.
fn is_named(dir: &Path, name: &[u8]) -> bool {
    let found = dir.file_name().unwrap_or_default();
    name.is_empty() || found.as_encoded_bytes() == name
}

fn finish_one(old: &Found, new: &Found) -> Result<PathBuf> {
    let _from = DirLock::acquire(root(&old.dir))?;
    let _to = DirLock::acquire(root(&new.dir))?;
    let dir = partition_path(root(&new.dir), &new.key);
    if new.kind == Kind::Future {
        disk::rename(&new.dir, &dir).map_err(StorageError::io("rename", &new.dir))?;
    }
    files::sync_parent(&dir)?;
    rename_deleted(&old.dir, &old.key)?;
    Ok(dir)
}

fn root(dir: &Path) -> &Path {
    dir.parent().unwrap_or(dir)
}
