//! A log directory: the logs of many partitions, the broker that it belongs to, and its checkpoints
//! (`LogManager`).
//!
//! Owns the lock on the directory, `meta.properties`, the clean shutdown marker, the four checkpoint files,
//! and the names of the partitions' directories. It has no thread: one thread of the caller calls
//! [`LogDir::maintain`] regularly; any thread calls the rest.
//!
//! A crash: the marker is removed before the first write, and written back last by a clean [`LogDir::close`].
//! An opening without it recovers every log from its recovery point. Directories of deleted logs (`-delete`)
//! are removed when they are due, future logs (`-future`) are opened apart, and strays are left alone.
//!
//! A failed write or fsync takes the directory and all its logs offline ([`LogDir::failure`]): what was
//! published stays readable, nothing more is written.

mod deletions;
mod found;
mod futures;
mod loading;
mod moves;

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::config::LogConfig;
use crate::error::{Result, StorageError, unless_full};
use crate::files;
use crate::files::checkpoints::{
    CLEANER_FILE, HIGH_WATERMARK_FILE, LOG_START_FILE, Offsets, RECOVERY_POINT_FILE, read_offsets,
    write_offsets,
};
use crate::files::disk;
use crate::files::lock::DirLock;
use crate::files::metadata::{self, META_PROPERTIES_FILE, MetaProperties};
use crate::files::partition_dir::{Key, Kind, parse_partition_dir};
use crate::files::single_log::forget_own_start;
use crate::files::uuid::{self, TopicId};
use crate::log::loader::LastKnown;
use crate::log::{DirState, Log, Retention};

pub use found::check_duplicates;
use found::{Found, lock_members, partition_dirs, skip_foreign_dirs, take_own_starts};
pub use loading::{Opening, Progress};
pub use moves::{Move, Moved, finish_moves};

/// The longest topic name.
const TOPIC_NAME_MAX: usize = 249;
/// One partition in a log directory.
#[derive(Debug)]
pub struct Partition {
    pub topic: String,
    pub partition: i32,
    /// `None` when the directory has no id.
    pub topic_id: Option<TopicId>,
    pub log: Arc<Log>,
}

/// A partition and the offset to which it will be truncated.
type Cut<'a> = (&'a str, i32, i64);
type Logs = BTreeMap<Key, Arc<Partition>>;

/// A log directory (one of `log.dirs`), locked.
#[derive(Debug)]
pub struct LogDir {
    path: PathBuf,
    cluster_id: String,
    clean: bool,
    replicated: bool,
    partitions: RwLock<Logs>,
    futures: RwLock<Logs>,
    strays: Vec<PathBuf>,
    failures: Vec<(PathBuf, StorageError)>,
    /// The checkpoint files have entries of removed partitions, which a new partition of the same name must
    /// not inherit.
    checkpoints_stale: AtomicBool,
    warnings: Vec<String>,
    bytes_checked: u64,
    /// Directories of deleted logs, and when to remove them.
    deletions: Mutex<Vec<(i64, PathBuf)>>,
    dir_state: DirState,
    /// The threads that load and close logs.
    threads: Option<NonZeroUsize>,
    /// Held for each change of the set of partitions and of the checkpoint files.
    changing: Mutex<()>,
    /// The directory's lock, and those of partitions that are elsewhere and have only a link here.
    locks: Mutex<Option<Vec<DirLock>>>,
}

impl LogDir {
    /// Opens the directory, creates it if it is missing, and loads every log in it, several at a time. Waits
    /// for all.
    ///
    /// `cluster_id`: checked against `meta.properties`; `None` takes the id there, or makes one. `config_for`
    /// gives the settings of a topic's logs.
    ///
    /// Errors: [`StorageError::Locked`], [`StorageError::Mismatch`] for another broker's or cluster's
    /// directory, [`StorageError::WrongDirectory`] for that of a single log, the disk's. A log that cannot be
    /// loaded is in [`LogDir::failures`].
    pub fn open(
        path: &Path,
        broker_id: i32,
        cluster_id: Option<&str>,
        config_for: &(dyn Fn(&str) -> LogConfig + Sync),
    ) -> Result<Self> {
        Self::open_with(path, broker_id, cluster_id, &Opening::new(config_for))
    }

    /// [`LogDir::open`] with options.
    pub fn open_with(
        path: &Path,
        broker_id: i32,
        cluster_id: Option<&str>,
        opening: &Opening<'_>,
    ) -> Result<Self> {
        disk::create_dir_all(path).map_err(StorageError::io("create", path))?;
        let path = path.canonicalize().map_err(StorageError::io("resolve", path))?;
        if files::has_segments(&path)? {
            return Err(StorageError::WrongDirectory {
                path,
                reason: "has segments of its own: it is a log, not a directory of logs; \
                         open it as a log, or move its segments out"
                    .to_owned(),
            });
        }
        let mut locks = vec![DirLock::acquire(&path)?];
        let mut found = partition_dirs(&path)?;
        drop(lock_members(&found)?);
        let cluster_id = claim(&path, broker_id, cluster_id)?;
        // Again: a process that opens one from here on sees that it is in a log directory.
        locks.extend(lock_members(&found)?);
        let clean = metadata::take_clean_shutdown(&path)?;
        let mut warnings = Vec::new();
        let mut read = |file: &str| read_or_reset(&path.join(file), &mut warnings);
        let recovery_points = read(RECOVERY_POINT_FILE)?;
        let mut log_starts = read(LOG_START_FILE)?;
        let watermarks = read(HIGH_WATERMARK_FILE)?;
        let first_dirty = read(CLEANER_FILE)?;
        let newcomers = take_own_starts(&found, &mut log_starts);
        let offset = |offsets: &Offsets, key: &Key| offsets.get(key).copied().unwrap_or(0);
        let known = |key: &Key| LastKnown {
            clean_shutdown: clean,
            recovery_point: offset(&recovery_points, key),
            log_start_offset: offset(&log_starts, key),
            high_watermark: opening.replicated.then(|| offset(&watermarks, key)),
        };
        let deletions = deletions::take(&mut found, opening, &mut warnings)?;
        if !opening.takes_all {
            skip_foreign_dirs(&mut found, &mut warnings);
        }
        let gone = |key: &Key| found.binary_search_by(|dir| dir.key.cmp(key)).is_err();
        let checkpoints_stale = [&recovery_points, &log_starts, &watermarks, &first_dirty]
            .into_iter()
            .any(|offsets| offsets.keys().any(gone));
        let (strays, found): (Vec<_>, Vec<_>) = found.into_iter().partition(|dir| dir.kind == Kind::Stray);
        let dir_state = DirState {
            failure: Arc::default(),
            progress: opening.progress.clone(),
        };
        let loaded = loading::load_all(found, &known, opening, &dir_state);
        for (key, offset) in first_dirty {
            if let Some(partition) = loaded.partitions.get(&key) {
                partition.log.cleaning().set_first_dirty(offset);
            }
        }
        let loaded_logs = loaded.partitions.values().chain(loaded.futures.values());
        let above_end = loaded_logs.into_iter().any(|one| {
            let key = (one.topic.clone(), one.partition);
            offset(&recovery_points, &key) > one.log.recovery_point()
        });
        let opened = Self {
            path,
            cluster_id,
            clean,
            replicated: opening.replicated,
            partitions: RwLock::new(loaded.partitions),
            futures: RwLock::new(loaded.futures),
            strays: strays.into_iter().map(|stray| stray.dir).collect(),
            failures: loaded.failures,
            warnings,
            bytes_checked: loaded.bytes_checked,
            deletions: Mutex::new(deletions),
            dir_state,
            threads: opening.threads,
            checkpoints_stale: AtomicBool::new(checkpoints_stale),
            changing: Mutex::new(()),
            locks: Mutex::new(Some(locks)),
        };
        if above_end {
            // The next append there is not on disk, whatever the checkpoints said: torn, it would be taken
            // for damage. On a full disk nothing is appended, and the next checkpoint is right.
            unless_full(opened.write_checkpoints(None))?;
        }
        opened.move_starts_to_checkpoint(&newcomers);
        Ok(opened)
    }

    /// The checkpoint takes over the log starts of logs that were used without a broker. On a full disk their
    /// own files stay.
    fn move_starts_to_checkpoint(&self, newcomers: &[PathBuf]) {
        let opened = self.all();
        let is_open = |dir: &PathBuf| opened.iter().any(|one| one.log.dir() == *dir);
        let newcomers: Vec<_> = newcomers.iter().filter(|dir| is_open(dir)).collect();
        if !newcomers.is_empty() && self.write_checkpoints(None).is_ok() {
            for dir in newcomers {
                // A file that stays is read again at the next opening.
                let _ = forget_own_start(dir);
            }
        }
    }

    /// The resolved path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The id of the cluster.
    pub fn cluster_id(&self) -> &str {
        &self.cluster_id
    }

    /// True when no log needed recovery.
    pub fn had_clean_shutdown(&self) -> bool {
        self.clean
    }

    /// Why the directory is offline; `None` when it is not.
    pub fn failure(&self) -> Option<&str> {
        self.dir_state.failure.reason()
    }

    /// Directories of partitions that could not be loaded, and why.
    pub fn failures(&self) -> &[(PathBuf, StorageError)] {
        &self.failures
    }

    /// All partitions, by topic and number.
    pub fn partitions(&self) -> Vec<Arc<Partition>> {
        self.partitions.read().values().cloned().collect()
    }

    /// Logs and future logs. A directory never has both for one partition.
    fn all(&self) -> Vec<Arc<Partition>> {
        let mut all = self.partitions();
        all.extend(self.futures());
        all
    }

    /// Directories of logs that the cluster does not know any more (`-stray`). They are neither opened nor
    /// removed.
    pub fn strays(&self) -> &[PathBuf] {
        &self.strays
    }

    /// Damage that was found at the opening and is not needed to go on.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Bytes that the opening read and checked.
    pub fn bytes_checked(&self) -> u64 {
        self.bytes_checked
    }

    pub fn get(&self, topic: &str, partition: i32) -> Option<Arc<Partition>> {
        self.partitions
            .read()
            .get(&(topic.to_owned(), partition))
            .cloned()
    }

    /// Creates an empty log.
    ///
    /// Errors: [`StorageError::AlreadyExists`] when the partition or a directory of its name exists;
    /// [`StorageError::Offline`].
    pub fn create(
        &self,
        topic: &str,
        partition: i32,
        topic_id: TopicId,
        config: LogConfig,
    ) -> Result<Arc<Partition>> {
        let _changing = self.changing.lock();
        self.check_usable()?;
        self.refresh_checkpoints()?;
        let key = (topic.to_owned(), partition);
        let dir = partition_path(&self.path, &key);
        let created = self.create_log(&dir, key.clone(), Some(topic_id), config)?;
        if self.replicated {
            created.log.set_replicated(0);
        }
        self.partitions.write().insert(key, created.clone());
        Ok(created)
    }

    /// [`Log::truncate_to`] of a log or a future log. The checkpoints are lowered before, so that a crash at
    /// any moment leaves a log that can be recovered.
    pub fn truncate_to(&self, topic: &str, partition: i32, offset: i64) -> Result<i64> {
        let _changing = self.changing.lock();
        self.truncate(&*self.find(topic, partition)?, offset)
    }

    /// [`LogDir::truncate_to`] of exactly this log, not of one that got its name after a deletion.
    pub fn truncate_log_to(&self, partition: &Partition, offset: i64) -> Result<i64> {
        let _changing = self.changing.lock();
        self.check_open()?;
        self.truncate(partition, offset)
    }

    fn truncate(&self, partition: &Partition, offset: i64) -> Result<i64> {
        let log = &partition.log;
        log.check_truncation(offset)?;
        if offset < log.log_end_offset() {
            let end = log.end_if_truncated(offset)?;
            self.write_checkpoints(Some((&partition.topic, partition.partition, end)))?;
        }
        log.truncate_to(offset)
    }

    /// [`Log::truncate_fully_and_start_at`]; the checkpoints are lowered before.
    pub fn truncate_fully_and_start_at(
        &self,
        topic: &str,
        partition: i32,
        offset: i64,
        log_start: Option<i64>,
    ) -> Result<()> {
        let _changing = self.changing.lock();
        self.restart(&*self.find(topic, partition)?, offset, log_start)
    }

    /// [`LogDir::truncate_fully_and_start_at`] of exactly this log.
    pub fn truncate_log_fully_and_start_at(&self, partition: &Partition, offset: i64) -> Result<()> {
        let _changing = self.changing.lock();
        self.check_open()?;
        self.restart(partition, offset, None)
    }

    fn restart(&self, partition: &Partition, offset: i64, log_start: Option<i64>) -> Result<()> {
        partition.log.check_truncation(offset)?;
        self.write_checkpoints(Some((&partition.topic, partition.partition, offset)))?;
        partition.log.truncate_fully_and_start_at(offset, log_start)
    }

    fn find(&self, topic: &str, partition: i32) -> Result<Arc<Partition>> {
        self.check_open()?;
        let found = self
            .get(topic, partition)
            .or_else(|| self.future(topic, partition));
        found.ok_or_else(|| StorageError::NotFound {
            path: self.path.join(format!("{topic}-{partition}")),
        })
    }

    /// Writes the recovery points, high watermarks and log starts of all logs.
    pub fn checkpoint(&self) -> Result<()> {
        let _changing = self.changing.lock();
        self.check_usable()?;
        self.write_checkpoints(None)
    }

    /// Writes the checkpoints if they may have entries of logs that are gone.
    fn refresh_checkpoints(&self) -> Result<()> {
        if self.checkpoints_stale.load(Ordering::Relaxed) {
            self.write_checkpoints(None)?;
        }
        Ok(())
    }

    /// Writes the checkpoints, with no entry of the partition in `cut` above its offset.
    fn write_checkpoints(&self, cut: Option<Cut<'_>>) -> Result<()> {
        self.dir_state.failure.check(&self.path)?;
        self.replace_checkpoints(cut).map_err(|error| self.fail(error))
    }

    fn replace_checkpoints(&self, cut: Option<Cut<'_>>) -> Result<()> {
        let (mut recovery, mut watermarks, mut starts) = (Offsets::new(), Offsets::new(), Offsets::new());
        for partition in self.all() {
            let key = (partition.topic.clone(), partition.partition);
            let log = &partition.log;
            // With two logs of one partition here, recovery begins where both need it.
            recovery
                .entry(key.clone())
                .and_modify(|offset: &mut i64| *offset = log.recovery_point().min(*offset))
                .or_insert_with(|| log.recovery_point());
            watermarks.insert(key.clone(), log.high_watermark());
            // As in Kafka: only a start that is not the first segment's. The directory of an offline log may
            // still have segments that it was about to delete.
            if log.log_start_offset() > log.first_segment_offset() || log.failure().is_some() {
                starts.insert(key, log.log_start_offset());
            }
        }
        if let Some((topic, partition, end)) = cut {
            let key = (topic.to_owned(), partition);
            for offsets in [&mut recovery, &mut watermarks, &mut starts] {
                offsets.entry(key.clone()).and_modify(|o| *o = end.min(*o));
            }
        }
        self.write_cleaner_checkpoint(cut)?;
        self.keep_entries_of_failures(&mut recovery, RECOVERY_POINT_FILE)?;
        self.keep_entries_of_failures(&mut starts, LOG_START_FILE)?;
        self.keep_entries_of_failures(&mut watermarks, HIGH_WATERMARK_FILE)?;
        write_offsets(&self.path.join(RECOVERY_POINT_FILE), &recovery)?;
        write_offsets(&self.path.join(LOG_START_FILE), &starts)?;
        write_offsets(&self.path.join(HIGH_WATERMARK_FILE), &watermarks)?;
        self.checkpoints_stale.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Writes the first dirty offsets of all logs. The cleaner calls it after each cleaning.
    pub(crate) fn checkpoint_cleaner(&self) -> Result<()> {
        let _changing = self.changing.lock();
        self.check_usable()?;
        self.write_cleaner_checkpoint(None)
            .map_err(|error| self.fail(error))
    }

    fn write_cleaner_checkpoint(&self, cut: Option<Cut<'_>>) -> Result<()> {
        let path = self.path.join(CLEANER_FILE);
        let mut offsets = Offsets::new();
        for (key, partition) in self.partitions.read().iter() {
            if let Some(offset) = partition.log.first_dirty_offset() {
                let cut = cut.filter(|(topic, number, _)| (*topic, *number) == (&key.0, key.1));
                let end = cut.map_or(i64::MAX, |(_, _, end)| end);
                offsets.insert(key.clone(), offset.min(end));
            }
        }
        self.keep_entries_of_failures(&mut offsets, CLEANER_FILE)?;
        if offsets.is_empty() && !path.exists() {
            return Ok(());
        }
        write_offsets(&path, &offsets)
    }

    /// Keeps the entries of logs that could not be loaded, for when they are repaired.
    fn keep_entries_of_failures(&self, offsets: &mut Offsets, file: &str) -> Result<()> {
        if self.failures.is_empty() {
            return Ok(());
        }
        let before = read_offsets(&self.path.join(file))?;
        for (dir, _) in &self.failures {
            let key = dir
                .file_name()
                .and_then(|name| parse_partition_dir(name.to_str()?));
            if let Some(key) = key
                && let Some(offset) = before.get(&key)
            {
                offsets.insert(key, *offset);
            }
        }
        Ok(())
    }

    /// Calls [`Log::maintain`] on every log, removes deleted logs that are due, then calls
    /// [`LogDir::checkpoint`].
    ///
    /// Errors: the first one; the other logs are maintained all the same.
    pub fn maintain(&self, now_ms: i64) -> Result<()> {
        self.maintain_with(now_ms, Retention::Due)
    }

    /// [`LogDir::maintain`], with or without retention.
    pub fn maintain_with(&self, now_ms: i64, retention: Retention) -> Result<()> {
        self.check_usable()?;
        let mut first = Ok(());
        for partition in self.all() {
            match partition.log.maintain_with(now_ms, retention) {
                // Deleted since the list was taken.
                Ok(()) | Err(StorageError::Closed { .. }) => {}
                Err(error) => first = first.and(Err(error)),
            }
        }
        first.and(self.remove_deleted(now_ms)).and(self.checkpoint())
    }

    /// Closes all logs, removes deleted ones, writes the checkpoints, marks the shutdown as clean if every
    /// log was closed, and frees the lock. Closing again does nothing.
    ///
    /// Errors: the first one; everything else is closed all the same.
    pub fn close(&self) -> Result<()> {
        let _changing = self.changing.lock();
        let Some(locks) = self.locks.lock().take() else {
            return Ok(());
        };
        // In several threads, because each log waits for the disk.
        let first = Mutex::new(None);
        loading::for_each(&self.all(), self.threads, |partition| {
            if let Err(error) = partition.log.close() {
                first.lock().get_or_insert(error);
            }
        });
        let mut result = first.into_inner().map_or(Ok(()), Err);
        // The next opening removes what stays.
        let _left = self.remove_deleted(i64::MAX);
        result = result.and(self.write_checkpoints(None));
        if result.is_ok() && self.failures.is_empty() {
            result = metadata::write_clean_shutdown(&self.path);
        }
        drop(locks);
        result
    }

    fn create_log(
        &self,
        dir: &Path,
        (topic, partition): Key,
        topic_id: Option<TopicId>,
        config: LogConfig,
    ) -> Result<Arc<Partition>> {
        check_topic(&topic)?;
        check_number(partition)?;
        let create = || {
            disk::create_dir(dir).map_err(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => StorageError::AlreadyExists {
                    path: dir.to_path_buf(),
                },
                _ => StorageError::io("create", dir)(error),
            })?;
            if let Some(id) = topic_id {
                metadata::write_topic_id(dir, &id)?;
            }
            let known = LastKnown {
                clean_shutdown: true,
                ..LastKnown::default()
            };
            Log::open_in(dir, config, known, &self.dir_state)
        };
        let log = create().map_err(|error| self.fail(error))?;
        Ok(Arc::new(Partition {
            topic,
            partition,
            topic_id,
            log: Arc::new(log),
        }))
    }

    /// Takes the directory offline if `error` is a failure of its disk.
    fn fail(&self, error: StorageError) -> StorageError {
        self.dir_state.failure.note(&error);
        error
    }

    /// Errors: closed, or offline.
    fn check_usable(&self) -> Result<()> {
        self.check_open()?;
        self.dir_state.failure.check(&self.path)
    }

    fn check_open(&self) -> Result<()> {
        match *self.locks.lock() {
            Some(_) => Ok(()),
            None => Err(StorageError::Closed {
                dir: self.path.clone(),
            }),
        }
    }
}

/// Assigns the directory to this broker, or checks that it is this broker's; returns the cluster's id.
fn claim(path: &Path, broker_id: i32, cluster_id: Option<&str>) -> Result<String> {
    let mismatch = |field, expected: &str, found: &str| StorageError::Mismatch {
        path: path.join(META_PROPERTIES_FILE),
        field,
        expected: expected.to_owned(),
        found: found.to_owned(),
    };
    let mut meta = MetaProperties::read(path)?.unwrap_or_default();
    if let Some(found) = meta.broker_id()
        && found != broker_id.to_string()
    {
        return Err(mismatch("broker.id", &broker_id.to_string(), found));
    }
    let cluster_id = match (meta.cluster_id(), cluster_id) {
        (Some(found), Some(expected)) if found != expected => {
            return Err(mismatch("cluster.id", expected, found));
        }
        (Some(found), _) => found.to_owned(),
        (None, Some(given)) => given.to_owned(),
        (None, None) => uuid::encode(&uuid::random()?),
    };
    let before = meta.clone();
    for (key, value) in MetaProperties::new(broker_id, &cluster_id).properties {
        // A file of version 1 has `node.id`, and stays at version 1.
        if !(key == "broker.id" && meta.get("node.id").is_some()) {
            meta.properties.entry(key).or_insert(value);
        }
    }
    if meta != before {
        meta.write(path)?;
    }
    Ok(cluster_id)
}

/// A checkpoint's entries. A damaged file counts as empty, as in Kafka: recovery then reads more than
/// necessary.
fn read_or_reset(path: &Path, warnings: &mut Vec<String>) -> Result<Offsets> {
    match read_offsets(path) {
        Err(error @ StorageError::Corrupt { .. }) => {
            warnings.push(format!("{error}; it is begun anew"));
            Ok(Offsets::new())
        }
        other => other,
    }
}

fn partition_path(path: &Path, (topic, partition): &Key) -> PathBuf {
    path.join(format!("{topic}-{partition}"))
}

/// Kafka's rule for topic names (`Topic.validate`). A valid name cannot lead out of the directory.
fn check_topic(topic: &str) -> Result<()> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if (1..=TOPIC_NAME_MAX).contains(&topic.len())
        && topic.bytes().all(legal)
        && topic != "."
        && topic != ".."
    {
        return Ok(());
    }
    Err(StorageError::InvalidConfig {
        name: "topic",
        value: topic.to_owned(),
        reason: "a name of 1 to 249 letters, digits, '.', '_' and '-' is needed",
    })
}

fn check_number(partition: i32) -> Result<()> {
    if partition >= 0 {
        return Ok(());
    }
    Err(StorageError::InvalidConfig {
        name: "partition",
        value: partition.to_string(),
        reason: "partitions are numbered from 0",
    })
}

#[cfg(test)]
mod tests;
