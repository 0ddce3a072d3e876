//! Moving a partition's log to another log directory while it is served (KIP-113, `ReplicaAlterLogDirsThread`).
//!
//! A [`Move`] copies the log into a future log in the other directory, as a follower does, and puts that into its place once it
//! has caught up (`LogManager.replaceCurrentWithFutureLog`). Whoever moves logs calls it from one thread; readers and writers
//! of the log go on beside it, and wait only for the last step. Compaction of the log waits for the end of the move: a copy
//! could otherwise keep a value whose tombstone it never saw.
//!
//! What is copied is brought to disk as it comes ([`UNFLUSHED_BYTES`]), so neither closing the directories nor the last step has
//! much to wait for. The last step, while nobody appends, is not begun while more than [`HAND_OVER_BYTES`] are not on the other
//! disk:
//!
//! 1. What was appended since the last look is copied, all of the copy brought to disk, and the other directory's checkpoints.
//!    A crash: the log is where it was, and the copy a future log.
//! 2. `logcore-moved` is put into the log's directory, with the name of the copy's, and brought to disk. From here on a crash
//!    ends in the other directory: [`finish_moves`] takes the steps below. A third may have a copy too, which an earlier move
//!    left there when its disk failed.
//! 3. The future log gets the partition's name, and is opened under it. Readers and writers are given it.
//! 4. The old directory is renamed as that of a deleted log, and removed later.
//!
//! A disk that fails before step 2 is over stops the move and nothing else, and so does that of the other directory in step 3:
//! the mark is taken away before anybody appends again. When the old directory cannot be renamed, its disk failed and the log
//! has just left it. So at no moment do both directories take records. Apache Kafka does not know the mark: started on what a
//! crash left it goes on copying before step 3, and between 3 and 4 says that the partition is there twice, as after its own
//! crash there.

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

/// What the last step copies at once.
const PIECE_BYTES: u64 = 1 << 20;
/// How much the last step copies and brings to disk at most. A disk that writes faster than producers do comes below it with each
/// flush, also when a flush takes 30 ms and they write 100 MB a second.
const HAND_OVER_BYTES: u64 = 4 << 20;
/// How much of a copy is not on disk at most, about.
const UNFLUSHED_BYTES: u64 = 32 << 20;

/// A log on its way from one directory to another.
#[derive(Debug)]
pub struct Move {
    from: Arc<LogDir>,
    to: Arc<LogDir>,
    current: Arc<Partition>,
    future: Arc<Partition>,
    /// Bytes copied since the last flush.
    unflushed: AtomicU64,
}

/// A log that is where it was to be.
#[derive(Debug)]
pub struct Moved {
    pub partition: Arc<Partition>,
    /// Why the old directory could not be removed, if so: the next opening does that.
    pub left_behind: Option<StorageError>,
}

impl Move {
    /// Begins to move a log, or goes on with a move whose future log is there: cuts off what the log does not have. A log that
    /// is served waits for nothing here but a compaction that ends.
    ///
    /// Errors: [`StorageError::NotFound`] when `from` does not have the partition; when `to` cannot have a log more.
    pub fn begin(from: &Arc<LogDir>, to: &Arc<LogDir>, topic: &str, partition: i32) -> Result<Self> {
        let current = from.get(topic, partition);
        let current = current.ok_or_else(|| StorageError::NotFound {
            path: partition_path(&from.path, &(topic.to_owned(), partition)),
        })?;
        let future = match to.future(topic, partition) {
            Some(future) if future.log.is_closed() => {
                // The last step failed with it.
                to.delete_future(topic, partition)?;
                None
            }
            found => found,
        };
        let future = match future {
            Some(future) => future,
            None => to.create_future(topic, partition, current.topic_id, current.log.config())?,
        };
        current.log.cleaning().hold();
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

    /// Copies about `bytes_max` bytes of one segment, at least one batch; returns how many. 0: nothing is left. Brings the copy to
    /// disk when much of it is not.
    ///
    /// Errors: [`StorageError::Closed`] when one of the logs was deleted or closed meanwhile; the disk's, of either side.
    pub fn copy(&self, bytes_max: u64) -> Result<u64> {
        loop {
            let copied = {
                let _changing = self.to.changing.lock();
                self.to.check_usable()?;
                self.follow_start()
            }
            .and_then(|()| self.copy_on(bytes_max));
            match copied {
                // Retention was faster: the log begins elsewhere by now.
                Err(StorageError::OffsetOutOfRange { .. }) if self.is_behind_start() => {}
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

    /// Tells those who append that the last step is near ([`Log::is_about_to_move`]), and brings what was copied to disk, for
    /// which nobody waits but the caller. Those who did not see it have appended by then.
    ///
    /// Errors: as [`Move::copy`].
    ///
    /// [`Log::is_about_to_move`]: crate::Log::is_about_to_move
    pub fn prepare(&self) -> Result<()> {
        self.current.log.set_about_to_move(true);
        self.flush()
    }

    /// Puts the copy into the log's place; `publish` gives it to those who look for the log, and is called while nobody
    /// appends. Call it once little is left to copy, and after [`Move::prepare`]. Blocks for the fsyncs of both disks. `None`: too
    /// much of the log is not on the other disk for others to wait; the log goes on where it was, and is to be copied on.
    ///
    /// Errors: as [`Move::copy`]. The log is where it was then, and goes on.
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

    /// Changes of both directories' partitions, in an order that is the same for moves the other way.
    fn lock_both(&self) -> (MutexGuard<'_, ()>, MutexGuard<'_, ()>) {
        let (one, other) = if self.from.path < self.to.path {
            (&self.from, &self.to)
        } else {
            (&self.to, &self.from)
        };
        (one.changing.lock(), other.changing.lock())
    }

    /// Neither log was deleted, or deleted and created anew.
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

    fn is_behind_start(&self) -> bool {
        self.future.log.log_end_offset() < self.current.log.log_start_offset()
    }

    /// Begins again where the log does, if nothing of what was copied is there any more.
    fn follow_start(&self) -> Result<()> {
        if !self.is_behind_start() {
            return Ok(());
        }
        let base = self.first_base(self.current.log.log_start_offset())?;
        if self.future.log.log_end_offset() < base {
            self.to.restart(&self.future, base, None)?;
        }
        Ok(())
    }

    /// Where the batch begins that has `start`.
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
        // The log may begin inside of the next batch.
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

    /// Steps 1 to 3. Nobody appends.
    fn replace(&self, producers: &ProducerState) -> Result<Arc<Partition>> {
        self.follow_start()?;
        while self.copy_on(PIECE_BYTES)? > 0 {}
        self.copy_end()?;
        let (current, future) = (&self.current.log, &self.future.log);
        // Nothing that the log promised is forgotten: of some producers no batch may be left to copy.
        future.set_producers(producers.clone());
        future.close()?;
        self.to.write_checkpoints(None)?;
        let dir = current.dir();
        let promoted = self
            .mark()
            .and_then(|()| self.to.promote(&self.future, current))
            .inspect_err(|_| {
                // Before anybody appends here again. If that cannot be, nobody does.
                if let Err(error) = unmark(&dir) {
                    self.from.fail(error);
                }
            })?;
        // The snapshot has the last batch of each, they may send the last five again.
        promoted.log.set_producers(future.take_producers());
        promoted.log.cleaning().take_over(current.cleaning());
        if let Some(epoch) = current.latest_epoch() {
            // It may have begun without a record.
            promoted.log.begin_epoch(epoch);
        }
        Ok(promoted)
    }

    /// Compaction may have taken the log's last batches, when the active segment is empty.
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
                // A log is moved to make room, too: a mark without a name takes none.
                disk::create(&path)
                    .map_err(StorageError::io("create", &path))
                    .and_then(|_| files::sync_dir(&dir))
            })
            .map_err(|error| self.from.fail(error))
    }

    /// The future log becomes a front of the log: a crash may have left more of it than of the log (KIP-101, KIP-279).
    fn cut_what_differs(&self) -> Result<()> {
        let (current, future) = (&self.current.log, &self.future.log);
        while let Some(latest) = future.latest_epoch() {
            let known = match current.latest_epoch() {
                // Of an epoch it never had the log would say nothing.
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

/// Finishes the moves between these log directories that a crash interrupted in their last step. Call it before any of them is
/// opened. A directory that cannot be listed is passed over: opening it tells why. Returns the logs' directories.
///
/// Errors: [`StorageError::Locked`]; the disk's.
pub fn finish_moves(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut finished = Vec::new();
    // One that is finished may be where another one ended before.
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
                // Opening that directory tells why, and the other goes on; the mark keeps the old log out.
                Err(error) if error.is_directory_failure() || error.is_disk_full() => {}
                done => finished.push(done?),
            }
        }
    }
    Ok(finished)
}

/// Marks had no names once.
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
