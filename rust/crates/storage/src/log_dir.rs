//! A log directory: many partitions' logs, whose directory it is, and its checkpoints (`LogManager`).
//!
//! Owns the lock on the directory, `meta.properties`, the clean shutdown marker, the four checkpoint files and the
//! names of the partitions' directories. Does not run anything by itself: [`LogDir::maintain`] is called now and then
//! by one thread; everything else from any thread.
//!
//! A crash: the marker is taken away before anything is written and put back as the last thing of a clean
//! [`LogDir::close`], so an opening without it recovers every log from its recovery point. Directories that were being
//! deleted (`-delete`) are removed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::checkpoints::{
    CLEANER_FILE, HIGH_WATERMARK_FILE, LOG_START_FILE, Offsets, RECOVERY_POINT_FILE, read_offsets,
    write_offsets,
};
use crate::config::LogConfig;
use crate::disk;
use crate::error::{Result, StorageError};
use crate::files;
use crate::loader::LastKnown;
use crate::lock::DirLock;
use crate::log::Log;
use crate::metadata::{self, META_PROPERTIES_FILE, MetaProperties};
use crate::uuid::{self, TopicId};

/// What a deleted partition's directory ends in (`LocalLog.DeleteDirSuffix`).
const DELETE_SUFFIX: &str = "-delete";
/// The longest name of a file.
const NAME_MAX: usize = 255;
/// The longest topic name.
const TOPIC_NAME_MAX: usize = 249;
/// Threads that load logs; loading waits for the disk more than it computes.
const LOADERS_MAX: usize = 8;

/// One partition in a log directory.
#[derive(Debug)]
pub struct Partition {
    pub topic: String,
    pub partition: i32,
    /// `None` when the directory does not say.
    pub topic_id: Option<TopicId>,
    pub log: Arc<Log>,
}

type Key = (String, i32);

/// A log directory (one of `log.dirs`), locked.
#[derive(Debug)]
pub struct LogDir {
    path: PathBuf,
    cluster_id: String,
    clean: bool,
    partitions: RwLock<BTreeMap<Key, Arc<Partition>>>,
    failures: Vec<(PathBuf, StorageError)>,
    /// One change of the set of partitions, or of the checkpoint files, at a time.
    changing: Mutex<()>,
    lock: Mutex<Option<DirLock>>,
}

impl LogDir {
    /// Takes the directory, which is created when missing, and loads every log in it, several at a time. Waits until all
    /// are loaded.
    ///
    /// `cluster_id`: checked against `meta.properties`; `None` takes the one that is there, or makes one. `config_for`
    /// gives the settings of a topic's logs.
    ///
    /// Errors: [`StorageError::Locked`], [`StorageError::Mismatch`] for another broker's or cluster's directory, the
    /// disk's. A log that cannot be loaded is no error here but one of [`LogDir::failures`].
    pub fn open(
        path: &Path,
        broker_id: i32,
        cluster_id: Option<&str>,
        config_for: &(dyn Fn(&str) -> LogConfig + Sync),
    ) -> Result<Self> {
        disk::create_dir_all(path).map_err(StorageError::io("create", path))?;
        let path = path
            .canonicalize()
            .map_err(StorageError::io("resolve", path))?;
        let lock = DirLock::acquire(&path)?;
        let cluster_id = claim(&path, broker_id, cluster_id)?;
        let clean = metadata::take_clean_shutdown(&path)?;
        let recovery_points = read_offsets(&path.join(RECOVERY_POINT_FILE))?;
        let log_starts = read_offsets(&path.join(LOG_START_FILE))?;
        let known = |key: &Key| LastKnown {
            clean_shutdown: clean,
            recovery_point: recovery_points.get(key).copied().unwrap_or(0),
            log_start_offset: log_starts.get(key).copied().unwrap_or(0),
        };
        let found = partition_dirs(&path)?;
        let (partitions, failures) = load_all(found, &known, config_for);
        for (key, offset) in read_offsets(&path.join(CLEANER_FILE))? {
            if let Some(partition) = partitions.get(&key) {
                partition.log.cleaning().set_first_dirty(offset);
            }
        }
        Ok(Self {
            path,
            cluster_id,
            clean,
            partitions: RwLock::new(partitions),
            failures,
            changing: Mutex::new(()),
            lock: Mutex::new(Some(lock)),
        })
    }

    /// The directory, resolved.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The cluster this directory belongs to.
    pub fn cluster_id(&self) -> &str {
        &self.cluster_id
    }

    /// True when nothing needed to be recovered.
    pub fn had_clean_shutdown(&self) -> bool {
        self.clean
    }

    /// Partitions that could not be loaded, by directory, and why.
    pub fn failures(&self) -> &[(PathBuf, StorageError)] {
        &self.failures
    }

    /// All partitions in order of topic and number.
    pub fn partitions(&self) -> Vec<Arc<Partition>> {
        self.partitions.read().values().cloned().collect()
    }

    /// One partition.
    pub fn get(&self, topic: &str, partition: i32) -> Option<Arc<Partition>> {
        self.partitions
            .read()
            .get(&(topic.to_owned(), partition))
            .cloned()
    }

    /// Creates an empty log.
    ///
    /// Errors: [`StorageError::AlreadyExists`] when the partition, or a directory of its name, is there.
    pub fn create(
        &self,
        topic: &str,
        partition: i32,
        topic_id: TopicId,
        config: LogConfig,
    ) -> Result<Arc<Partition>> {
        let _changing = self.changing.lock();
        self.check_open()?;
        check_topic(topic)?;
        let path = self.path.join(format!("{topic}-{partition}"));
        disk::create_dir(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => StorageError::AlreadyExists { path: path.clone() },
            _ => StorageError::io("create", &path)(error),
        })?;
        metadata::write_topic_id(&path, &topic_id)?;
        let log = Log::open_with(
            &path,
            config,
            LastKnown {
                clean_shutdown: true,
                ..LastKnown::default()
            },
        )?;
        let created = Arc::new(Partition {
            topic: topic.to_owned(),
            partition,
            topic_id: Some(topic_id),
            log: Arc::new(log),
        });
        self.partitions
            .write()
            .insert((topic.to_owned(), partition), created.clone());
        Ok(created)
    }

    /// Deletes a log: no more appends and reads, the directory renamed so that a crash cannot bring it back, then removed.
    /// Slices taken before stay readable.
    pub fn delete(&self, topic: &str, partition: i32) -> Result<()> {
        let _changing = self.changing.lock();
        self.check_open()?;
        let key = (topic.to_owned(), partition);
        let removed = self.partitions.write().remove(&key);
        let path = self.path.join(format!("{topic}-{partition}"));
        let Some(removed) = removed else {
            return Err(StorageError::NotFound { path });
        };
        removed.log.abandon();
        let renamed = self.path.join(deleted_name(topic, partition)?);
        disk::rename(&path, &renamed).map_err(StorageError::io("rename", &path))?;
        files::sync_dir(&self.path)?;
        if removed.log.first_dirty_offset().is_some() {
            // Another log of this name will not be clean up to there.
            self.write_cleaner_checkpoint()?;
        }
        disk::remove_dir_all(&renamed).map_err(StorageError::io("remove", &renamed))
    }

    /// Writes the recovery points, high watermarks and log starts of all logs.
    pub fn checkpoint(&self) -> Result<()> {
        let _changing = self.changing.lock();
        self.check_open()?;
        self.write_checkpoints()
    }

    fn write_checkpoints(&self) -> Result<()> {
        let (mut recovery, mut watermarks, mut starts) =
            (Offsets::new(), Offsets::new(), Offsets::new());
        for (key, partition) in self.partitions.read().iter() {
            let log = &partition.log;
            recovery.insert(key.clone(), log.recovery_point());
            watermarks.insert(key.clone(), log.high_watermark());
            // As Kafka does: only a start that is not simply the first segment's.
            if log.log_start_offset() > log.first_segment_offset() {
                starts.insert(key.clone(), log.log_start_offset());
            }
        }
        self.write_cleaner_checkpoint()?;
        self.keep_entries_of_failures(&mut recovery, RECOVERY_POINT_FILE)?;
        self.keep_entries_of_failures(&mut starts, LOG_START_FILE)?;
        write_offsets(&self.path.join(RECOVERY_POINT_FILE), &recovery)?;
        write_offsets(&self.path.join(LOG_START_FILE), &starts)?;
        write_offsets(&self.path.join(HIGH_WATERMARK_FILE), &watermarks)
    }

    /// Writes up to where each log has been compacted, as the cleaner does after each.
    pub(crate) fn checkpoint_cleaner(&self) -> Result<()> {
        let _changing = self.changing.lock();
        self.check_open()?;
        self.write_cleaner_checkpoint()
    }

    fn write_cleaner_checkpoint(&self) -> Result<()> {
        let path = self.path.join(CLEANER_FILE);
        let mut offsets = Offsets::new();
        for (key, partition) in self.partitions.read().iter() {
            if let Some(offset) = partition.log.first_dirty_offset() {
                offsets.insert(key.clone(), offset);
            }
        }
        self.keep_entries_of_failures(&mut offsets, CLEANER_FILE)?;
        if offsets.is_empty() && !path.exists() {
            return Ok(());
        }
        write_offsets(&path, &offsets)
    }

    /// A log that could not be loaded keeps what is known of it, for when somebody has mended it.
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

    /// [`Log::maintain`] on every log, then [`LogDir::checkpoint`]. Every log gets its turn.
    ///
    /// Errors: the first there was.
    pub fn maintain(&self, now_ms: i64) -> Result<()> {
        let mut first = Ok(());
        for partition in self.partitions() {
            match partition.log.maintain(now_ms) {
                // Closed: deleted since the list was taken.
                Ok(()) | Err(StorageError::Closed { .. }) => {}
                Err(error) => first = first.and(Err(error)),
            }
        }
        first.and(self.checkpoint())
    }

    /// Closes all logs, writes the checkpoints, marks the shutdown as clean if every log could be closed, frees the
    /// lock. Closing again does nothing.
    ///
    /// Errors: the first there was; everything else is closed all the same.
    pub fn close(&self) -> Result<()> {
        let _changing = self.changing.lock();
        let Some(lock) = self.lock.lock().take() else {
            return Ok(());
        };
        let mut result = Ok(());
        for partition in self.partitions() {
            result = result.and(partition.log.close());
        }
        result = result.and(self.write_checkpoints());
        if result.is_ok() && self.failures.is_empty() {
            result = metadata::write_clean_shutdown(&self.path);
        }
        drop(lock);
        result
    }

    fn check_open(&self) -> Result<()> {
        match *self.lock.lock() {
            Some(_) => Ok(()),
            None => Err(StorageError::Closed {
                dir: self.path.clone(),
            }),
        }
    }
}

/// Makes the directory this broker's, or checks that it is; returns the cluster's id.
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
        // A file of version 1 says `node.id`, and stays of version 1.
        if !(key == "broker.id" && meta.get("node.id").is_some()) {
            meta.properties.entry(key).or_insert(value);
        }
    }
    if meta != before {
        meta.write(path)?;
    }
    Ok(cluster_id)
}

/// The partitions' directories; those half deleted are removed now.
fn partition_dirs(path: &Path) -> Result<Vec<(Key, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path).map_err(StorageError::io("list", path))? {
        let entry = entry.map_err(StorageError::io("list", path))?;
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let dir = entry.path();
        if name.ends_with(DELETE_SUFFIX) {
            disk::remove_dir_all(&dir).map_err(StorageError::io("remove", &dir))?;
        } else if let Some(key) = parse_partition_dir(&name) {
            found.push((key, dir));
        }
    }
    found.sort();
    Ok(found)
}

type Opened = (BTreeMap<Key, Arc<Partition>>, Vec<(PathBuf, StorageError)>);

fn load_all(
    found: Vec<(Key, PathBuf)>,
    known: &(dyn Fn(&Key) -> LastKnown + Sync),
    config_for: &(dyn Fn(&str) -> LogConfig + Sync),
) -> Opened {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(found.len()));
    let load = || {
        while let Some((key, dir)) = found.get(next.fetch_add(1, Ordering::Relaxed)) {
            let result = load_one(key, dir, known(key), config_for(&key.0));
            results.lock().push((key.clone(), dir.clone(), result));
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = LOADERS_MAX.min(cores * 2).min(found.len());
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(load);
        }
        load();
    });
    let mut partitions = BTreeMap::new();
    let mut failures = Vec::new();
    for (key, dir, result) in results.into_inner() {
        match result {
            Ok(partition) => {
                partitions.insert(key, Arc::new(partition));
            }
            Err(error) => failures.push((dir, error)),
        }
    }
    failures.sort_by(|(one, _), (other, _)| one.cmp(other));
    (partitions, failures)
}

fn load_one(key: &Key, dir: &Path, known: LastKnown, config: LogConfig) -> Result<Partition> {
    Ok(Partition {
        topic: key.0.clone(),
        partition: key.1,
        topic_id: metadata::read_topic_id(dir)?,
        log: Arc::new(Log::open_with(dir, config, known)?),
    })
}

/// Topic and partition of a directory's name, `user_activity-0`; `None` for other names, also of directories that are
/// being deleted or moved (`-delete`, `-future`, `-stray`).
pub fn parse_partition_dir(name: &str) -> Option<(String, i32)> {
    let (topic, number) = name.rsplit_once('-')?;
    let digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    if topic.is_empty() || !digits {
        return None;
    }
    Some((topic.to_owned(), number.parse().ok()?))
}

/// Kafka's rule for topic names (`Topic.validate`): what passes cannot lead out of the directory.
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

/// `user_activity-0.<32 hex digits>-delete`, cut to what a file's name may have (`LocalLog.logDeleteDirName`).
fn deleted_name(topic: &str, partition: i32) -> Result<String> {
    let id: String = uuid::random()?
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let suffix = format!("-{partition}.{id}{DELETE_SUFFIX}");
    let mut end = topic.len().min(NAME_MAX - suffix.len());
    while !topic.is_char_boundary(end) {
        end -= 1;
    }
    Ok(format!("{}{suffix}", &topic[..end]))
}

#[cfg(test)]
mod tests;
