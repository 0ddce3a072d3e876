//! One partition's directory used without a broker: what `import logcore` opens.
//!
//! Owns the locks, and knows whether the directory was closed cleanly. A partition's directory by itself has
//! its own `.lock` and `.kafka_cleanshutdown`. Inside a broker's log directory (one with `meta.properties`)
//! the broker's lock is taken, too, so that the two never write at once. The broker's clean shutdown marker
//! is removed while the log is open, so the next opening after a crash recovers the log. A log start offset
//! that was moved, and the offset of the last compaction, are in the broker's `log-start-offset-checkpoint`
//! and `cleaner-offset-checkpoint`, or in the directory's own.
//!
//! Only the process that opened the log may write it. In a forked child, appending is
//! [`StorageError::Forked`].
//!
//! A crash: recovery begins at the last segment, because each segment is flushed when the next begins
//! ([`LogConfig::flush_on_roll`]). Inside a broker's directory it begins at the broker's recovery point.
//! Damage below an offset that was known to be on disk (also by [`StandaloneLog::note_flushes`]) stops the
//! start.

use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;

use crate::cleaner::{CleanerConfig, CleanerStats};
use crate::clock::system_now_ms;
use crate::config::LogConfig;
use crate::error::{Result, StorageError, unless_full};
use crate::files;
use crate::files::checkpoints::{
    CLEANER_FILE, LOG_START_FILE, Offsets, RECOVERY_POINT_FILE, read_offsets, write_offsets,
};
use crate::files::disk;
use crate::files::flushed_mark::{self, FLUSHED_FILE};
use crate::files::lock::DirLock;
use crate::files::metadata::{self, META_PROPERTIES_FILE};
use crate::files::partition_dir::{check_not_moved, parse_partition_dir};
use crate::files::single_log::{self, forget_own_start, own_log_start, own_recovery_point};
use crate::log::Log;
use crate::log::loader::LastKnown;
use crate::process::Owner;
use crate::slice::Appended;

/// A [`Log`] with the locks on its directory, or one opened for reading only, without locks.
#[derive(Debug)]
pub struct StandaloneLog {
    log: Log,
    /// Locked over every change that is written to the checkpoints, so that they are written in order. `None`
    /// when closed or read-only.
    locked: Mutex<Option<Locked>>,
    owner: Owner,
}

#[derive(Debug)]
struct Locked {
    /// Where to put the clean shutdown marker; `None` if there was none at the opening.
    mark_clean: Option<PathBuf>,
    _locks: Vec<DirLock>,
}

impl Deref for StandaloneLog {
    type Target = Log;

    fn deref(&self) -> &Log {
        &self.log
    }
}

impl StandaloneLog {
    /// Opens for reading and appending; `create` makes a missing directory.
    ///
    /// Errors: [`StorageError::Locked`], [`StorageError::NotFound`], [`StorageError::WrongDirectory`] for a
    /// directory of logs and for a directory with other files, and those of [`Log::open`].
    pub fn open(dir: &Path, create: bool, config: LogConfig) -> Result<Self> {
        let given = dir;
        let location = Location::find(given)?;
        let mut dir = location.dir;
        let mut locks = Vec::new();
        if let Some(parent) = &location.broker_dir {
            // Taken before anything is created in the directory.
            locks.push(DirLock::acquire(parent)?);
        }
        check_kind(&dir, create)?;
        if create {
            disk::create_dir_all(&dir).map_err(StorageError::io("create", &dir))?;
        }
        if location.broker_dir.is_none() {
            dir = dir.canonicalize().map_err(StorageError::io("resolve", &dir))?;
        }
        locks.push(DirLock::acquire(&dir)?);
        if Location::find(given)?.broker_dir != location.broker_dir {
            // A broker is opening the directory around this one. It checks this lock after it has written
            // meta.properties.
            return Err(StorageError::Locked { dir });
        }
        check_not_moved(&dir)?;
        let broker_dir = location.broker_dir.as_deref();
        let first_dirty = first_dirty(&dir);
        let (known, mark_clean) = match broker_dir {
            Some(parent) => {
                let clean = metadata::take_clean_shutdown(parent)?;
                (
                    in_broker_dir(&dir, parent, clean)?,
                    clean.then(|| parent.to_path_buf()),
                )
            }
            None => (by_itself(&dir)?, Some(dir.clone())),
        };
        let config = LogConfig {
            flush_on_roll: true,
            ..config
        };
        let log = Log::open_with(&dir, config, known)?;
        match (broker_dir, flushed_mark::read(&dir)) {
            (None, Some(mark)) if mark > log.log_end_offset() => {
                return Err(StorageError::Corrupt {
                    path: dir.clone(),
                    position: 0,
                    reason: format!(
                        "the log ends at offset {}, and everything before {mark} was on disk: its files \
                         were cut or replaced (the file {FLUSHED_FILE} has the offset)",
                        log.log_end_offset()
                    ),
                });
            }
            // The mark must stay true from here on.
            (None, Some(_)) => unless_full(log.note_flushes())?,
            // The mark is from the time before the log was put into the broker's directory.
            (Some(_), Some(_)) => flushed_mark::remove(&dir)?,
            _ => {}
        }
        if broker_dir.is_some() && own_log_start(&dir).is_some() {
            note(&dir, LOG_START_FILE, log.log_start_offset())?;
            forget_own_start(&dir)?;
        }
        if let Some(offset) = first_dirty {
            log.cleaning().set_first_dirty(offset);
        }
        let opened = Self {
            log,
            locked: Mutex::new(Some(Locked {
                mark_clean,
                _locks: locks,
            })),
            owner: Owner::this(),
        };
        let end = opened.log.log_end_offset();
        if known.recovery_point > end {
            // The next append there is not on disk, whatever the checkpoints say. On a full disk nothing is
            // appended.
            unless_full(opened.lower_checkpoints(opened.locked.lock().as_ref(), end))?;
        }
        Ok(opened)
    }

    /// Opens for reading only, beside a process that writes; see [`Log::open_read_only`].
    pub fn open_read_only(dir: &Path) -> Result<Self> {
        Ok(Self {
            log: Log::open_read_only(dir)?,
            locked: Mutex::new(None),
            owner: Owner::this(),
        })
    }

    /// Appends whole v2 batches at the system's time, as the leader that wrote last.
    pub fn append(&self, batches: &mut [u8]) -> Result<Appended> {
        self.check_process()?;
        self.log.append_as_last_leader(batches, false)
    }

    /// [`StandaloneLog::append`] of batches that this process built: they are not decompressed to be checked.
    pub fn append_built(&self, batches: &mut [u8]) -> Result<Appended> {
        self.check_process()?;
        self.log.append_as_last_leader(batches, true)
    }

    /// [`Log::truncate_to`]. Checkpoints are lowered first, so that the log can be recovered after a crash.
    pub fn truncate_to(&self, offset: i64) -> Result<i64> {
        self.check_process()?;
        self.log.check_truncation(offset)?;
        let locked = self.locked.lock();
        self.lower_checkpoints(locked.as_ref(), self.log.end_if_truncated(offset)?)?;
        self.log.truncate_to(offset)
    }

    /// [`Log::truncate_fully_and_start_at`], likewise.
    pub fn truncate_fully_and_start_at(&self, offset: i64) -> Result<()> {
        self.check_process()?;
        self.log.check_truncation(offset)?;
        let locked = self.locked.lock();
        self.lower_checkpoints(locked.as_ref(), offset)?;
        self.log.truncate_fully_and_start_at(offset, None)
    }

    /// [`Log::advance_log_start_offset`], with the new offset in the checkpoint.
    pub fn advance_log_start_offset(&self, offset: i64) -> Result<i64> {
        self.check_process()?;
        let locked = self.locked.lock();
        let start = self.log.advance_log_start_offset(offset)?;
        if locked.is_some() {
            note(&self.log.dir(), LOG_START_FILE, start)?;
        }
        Ok(start)
    }

    /// From here on every flush notes in the directory up to where the log is on disk, for a caller that
    /// acknowledges what it flushed. Damage below that offset, or a log that ends below it, stops the next
    /// start. A torn tail above it is cut. Inside a broker's directory the broker's recovery point is used
    /// instead; on a full disk nothing is noted.
    ///
    /// Errors: the disk's.
    pub fn note_flushes(&self) -> Result<()> {
        self.check_process()?;
        if self.log.is_noting_flushes() || broker_dir(&self.log.dir()).is_some() {
            return Ok(());
        }
        unless_full(self.log.note_flushes())
    }

    fn lower_checkpoints(&self, locked: Option<&Locked>, end: i64) -> Result<()> {
        if locked.is_none() {
            // Closed or read-only: the log's own checks refuse the call.
            return Ok(());
        }
        let (dir, key) = checkpoints_of(&self.log.dir());
        for file in [RECOVERY_POINT_FILE, LOG_START_FILE, CLEANER_FILE] {
            let path = dir.join(file);
            let mut offsets = read_or_empty(&path)?;
            if let Some(offset) = offsets.get_mut(&key).filter(|offset| **offset > end) {
                *offset = end;
                write_offsets(&path, &offsets)?;
            }
        }
        Ok(())
    }

    /// [`Log::compact_now`] at the system's time with the default buffers; the result is written to the
    /// checkpoint.
    pub fn compact_now(&self) -> Result<CleanerStats> {
        self.compact_until(&AtomicBool::new(false))
    }

    /// [`StandaloneLog::compact_now`] that ends early, as [`Log::compact_until`].
    pub fn compact_until(&self, stop: &AtomicBool) -> Result<CleanerStats> {
        self.check_process()?;
        let config = CleanerConfig::default();
        let stats = self.log.compact_until(stop, &config, system_now_ms())?;
        let locked = self.locked.lock();
        if locked.is_some() {
            self.note_first_dirty()?;
        }
        Ok(stats)
    }

    fn note_first_dirty(&self) -> Result<()> {
        match self.log.first_dirty_offset() {
            Some(offset) => note(&self.log.dir(), CLEANER_FILE, offset),
            None => Ok(()),
        }
    }

    /// Closes the log, marks it as clean and frees the locks. Closing again does nothing.
    pub fn close(&self) -> Result<()> {
        self.check_process()?;
        let mut locked = self.locked.lock();
        let result = self.log.close();
        let Some(locked) = locked.take() else {
            return result;
        };
        result?;
        self.note_first_dirty()?;
        flushed_mark::remove(&self.log.dir())?;
        match locked.mark_clean {
            Some(dir) => metadata::write_clean_shutdown(&dir),
            None => Ok(()),
        }
    }

    fn check_process(&self) -> Result<()> {
        self.owner.check(|| self.log.dir())
    }
}

/// The location of a log.
struct Location {
    /// Resolved. Inside a broker's directory the last part is not resolved, because a partition may be a
    /// link.
    dir: PathBuf,
    broker_dir: Option<PathBuf>,
}

impl Location {
    fn find(dir: &Path) -> Result<Self> {
        let absolute = std::path::absolute(dir).map_err(StorageError::io("resolve", dir))?;
        let beside = absolute.parent().and_then(|parent| parent.canonicalize().ok());
        if let (Some(parent), Some(name)) = (beside, absolute.file_name()) {
            let dir = parent.join(name);
            if broker_dir(&dir).is_some() {
                return Ok(Self {
                    dir,
                    broker_dir: Some(parent),
                });
            }
        }
        let dir = match absolute.canonicalize() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => absolute,
            resolved => resolved.map_err(StorageError::io("resolve", dir))?,
        };
        Ok(Self {
            broker_dir: broker_dir(&dir).map(Path::to_path_buf),
            dir,
        })
    }
}

/// Refuses other directories before anything is written there.
fn check_kind(dir: &Path, create: bool) -> Result<()> {
    let wrong = |reason: String| {
        Err(StorageError::WrongDirectory {
            path: dir.to_path_buf(),
            reason,
        })
    };
    if dir.join(META_PROPERTIES_FILE).exists() {
        return wrong(
            "is a directory of logs, not a log (it has meta.properties): open it with open_dir, or name \
             the directory of one partition in it"
                .to_owned(),
        );
    }
    if has_segments(dir) {
        return Ok(());
    }
    if !create {
        return Err(StorageError::NotFound {
            path: dir.to_path_buf(),
        });
    }
    match files::first_foreign_name(dir) {
        Ok(Some(name)) => wrong(format!(
            "is not empty and is no log ({:?} is no file of a log): choose an empty directory, or one that \
             does not exist",
            name.display()
        )),
        // The next step reports a directory that cannot be listed.
        Ok(None) | Err(_) => Ok(()),
    }
}

fn has_segments(dir: &Path) -> bool {
    files::has_segments(dir).unwrap_or(false)
}

/// The broker's log directory that `dir` is in.
fn broker_dir(dir: &Path) -> Option<&Path> {
    dir.parent()
        .filter(|parent| parent.join(META_PROPERTIES_FILE).exists())
}

fn partition_of(dir: &Path) -> Option<(String, i32)> {
    parse_partition_dir(dir.file_name()?.to_str()?)
}

/// Where a log's checkpoints are, and its key in them.
fn checkpoints_of(dir: &Path) -> (PathBuf, (String, i32)) {
    match broker_dir(dir).zip(partition_of(dir)) {
        Some((parent, key)) => (parent.to_path_buf(), key),
        None => (dir.to_path_buf(), (single_log::TOPIC.to_owned(), 0)),
    }
}

fn by_itself(dir: &Path) -> Result<LastKnown> {
    Ok(LastKnown {
        clean_shutdown: metadata::take_clean_shutdown(dir)?,
        recovery_point: own_recovery_point(dir)?,
        log_start_offset: own_log_start(dir).unwrap_or(0),
        high_watermark: None,
    })
}

fn in_broker_dir(dir: &Path, parent: &Path, clean_shutdown: bool) -> Result<LastKnown> {
    let log_start_offset = read_offset(dir, parent, LOG_START_FILE)?;
    Ok(LastKnown {
        clean_shutdown,
        recovery_point: read_offset(dir, parent, RECOVERY_POINT_FILE)?.unwrap_or(0),
        // The log's own is from the time before it was put here.
        log_start_offset: log_start_offset.max(own_log_start(dir)).unwrap_or(0),
        high_watermark: None,
    })
}

/// The offset of the log in a checkpoint file of the broker.
fn read_offset(dir: &Path, parent: &Path, file: &str) -> Result<Option<i64>> {
    let offsets = read_offsets(&parent.join(file))?;
    Ok(partition_of(dir).and_then(|key| offsets.get(&key).copied()))
}

/// The offset up to which a log was compacted. With a damaged file the log is compacted from its start.
fn first_dirty(dir: &Path) -> Option<i64> {
    let (checkpoints, key) = checkpoints_of(dir);
    let offsets = read_offsets(&checkpoints.join(CLEANER_FILE)).ok()?;
    offsets.get(&key).copied()
}

/// A checkpoint's entries. A damaged file counts as empty, as at the opening.
fn read_or_empty(path: &Path) -> Result<Offsets> {
    match read_offsets(path) {
        Err(StorageError::Corrupt { .. }) => Ok(Offsets::new()),
        read => read,
    }
}

/// Writes an offset of the log in `dir` to a checkpoint file, unless it is there already.
fn note(dir: &Path, file: &str, offset: i64) -> Result<()> {
    let (checkpoints, key) = checkpoints_of(dir);
    let path = checkpoints.join(file);
    let mut offsets = read_or_empty(&path)?;
    if offsets.insert(key, offset) != Some(offset) {
        write_offsets(&path, &offsets)?;
    }
    Ok(())
}
