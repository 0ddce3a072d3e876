//! What there is to verify at a path: one partition, or a log directory with its partitions.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Result, StorageError};
use crate::files::checkpoints::{CLEANER_FILE, RECOVERY_POINT_FILE, read_offsets};
use crate::files::flushed_mark;
use crate::files::lock;
use crate::files::metadata::{CLEAN_SHUTDOWN_FILE, META_PROPERTIES_FILE};
use crate::files::partition_dir::parse_partition_dir;
use crate::files::single_log::own_recovery_point;
use crate::files::{self, LOG_SUFFIX, offset_of};

/// One partition's directory, with what its lock files and checkpoints say.
#[derive(Debug, Clone)]
pub(crate) struct Partition {
    pub(crate) dir: PathBuf,
    /// Its topic and index in the checkpoints. `None` for a copy that is being moved: no checkpoint has it.
    pub(crate) key: Option<(String, i32)>,
    /// Bytes of its `.log` files.
    pub(crate) bytes: u64,
    /// A process holds its lock, or that of its log directory.
    pub(crate) live: bool,
    /// The log was closed cleanly.
    pub(crate) clean: bool,
    /// Everything before this offset was on disk.
    pub(crate) recovery_point: i64,
    /// The directory of the checkpoints that have it.
    pub(crate) checkpoints: PathBuf,
}

impl Partition {
    /// The cleaner has cleaned everything before this offset. Reads the checkpoint again.
    pub(super) fn cleaned_to(&self) -> i64 {
        offset_in(&self.checkpoints, CLEANER_FILE, self.key.as_ref())
    }

    /// Everything before this offset was on disk, by the note of a standalone log that is not open now.
    pub(super) fn flushed(&self) -> Option<i64> {
        let is_standalone = self.checkpoints == self.dir;
        flushed_mark::read(&self.dir).filter(|_| is_standalone && !self.live)
    }
}

/// The partitions at a path.
#[derive(Debug)]
pub(crate) struct Target {
    /// Without symbolic links.
    pub(crate) path: PathBuf,
    /// The log directory of the partitions: `path` itself or its parent. `None` for a standalone log.
    pub(crate) log_dir: Option<PathBuf>,
    /// Sorted by directory.
    pub(crate) partitions: Vec<Partition>,
    pub(crate) live: bool,
}

impl Target {
    /// Errors: [`StorageError::NotFound`] when there is no log.
    pub(crate) fn find(path: &Path) -> Result<Self> {
        let missing = || StorageError::NotFound {
            path: path.to_path_buf(),
        };
        let resolved = path.canonicalize().map_err(|_| missing())?;
        if !resolved.is_dir() {
            return Err(missing());
        }
        let key = resolved
            .file_name()
            .and_then(|name| partition_key(name.to_str()?));
        if files::has_segments(&resolved)? {
            return Self::partition(resolved, key);
        }
        let found = partition_dirs(&resolved)?;
        if !found.is_empty() || resolved.join(META_PROPERTIES_FILE).exists() {
            return Ok(Self::log_directory(resolved, found));
        }
        if key.is_some() {
            return Self::partition(resolved, key);
        }
        Err(missing())
    }

    fn partition(path: PathBuf, key: Option<(String, i32)>) -> Result<Self> {
        let log_dir = path
            .parent()
            .filter(|parent| parent.join(META_PROPERTIES_FILE).exists())
            .map(Path::to_path_buf);
        let live = lock::is_held(&path) || log_dir.as_deref().is_some_and(lock::is_held);
        let marked = log_dir.as_deref().unwrap_or(&path);
        let key = match &log_dir {
            Some(_) => key.filter(|_| !is_future(&path)),
            // The checkpoints of a standalone log call it so.
            None => Some(("log".to_owned(), 0)),
        };
        let partition = Partition {
            clean: marked.join(CLEAN_SHUTDOWN_FILE).exists(),
            recovery_point: match log_dir.as_deref() {
                Some(dir) => offset_in(dir, RECOVERY_POINT_FILE, key.as_ref()),
                None => own_recovery_point(&path).unwrap_or(0),
            },
            checkpoints: marked.to_path_buf(),
            bytes: log_bytes(&path),
            dir: path.clone(),
            key,
            live,
        };
        Ok(Self {
            path,
            log_dir,
            partitions: vec![partition],
            live,
        })
    }

    fn log_directory(path: PathBuf, found: Vec<(PathBuf, (String, i32))>) -> Self {
        let live = lock::is_held(&path);
        let clean = path.join(CLEAN_SHUTDOWN_FILE).exists();
        let points = read_offsets(&path.join(RECOVERY_POINT_FILE)).unwrap_or_default();
        let partitions = found
            .into_iter()
            .map(|(dir, key)| Partition {
                bytes: log_bytes(&dir),
                // A program that opens a partition as a standalone log locks the partition's directory.
                live: live || lock::is_held(&dir),
                clean,
                recovery_point: points.get(&key).copied().unwrap_or(0),
                checkpoints: path.clone(),
                key: Some(key).filter(|_| !is_future(&dir)),
                dir,
            })
            .collect();
        Self {
            log_dir: Some(path.clone()),
            path,
            partitions,
            live,
        }
    }

    /// Clears `live`: the caller holds the locks itself.
    pub(crate) fn owned(mut self) -> Self {
        self.live = false;
        for partition in &mut self.partitions {
            partition.live = false;
        }
        self
    }

    /// The directory of the checkpoints that have the partitions.
    pub(crate) fn checkpoint_dir(&self) -> &Path {
        self.log_dir.as_deref().unwrap_or(&self.path)
    }

    /// True for one partition of a log directory, whose checkpoints have other partitions too.
    pub(crate) fn is_one_of_many(&self) -> bool {
        self.log_dir.as_ref().is_some_and(|dir| *dir != self.path)
    }
}

/// Topic and partition of a directory's name. Takes the name of a copy that is being moved (`-future`) too.
pub(super) fn partition_key(name: &str) -> Option<(String, i32)> {
    match name.strip_suffix("-future") {
        Some(rest) => parse_partition_dir(rest.rsplit_once('.')?.0),
        None => parse_partition_dir(name),
    }
}

fn is_future(dir: &Path) -> bool {
    dir.to_str().is_some_and(|dir| dir.ends_with("-future"))
}

fn partition_dirs(path: &Path) -> Result<Vec<(PathBuf, (String, i32))>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path).map_err(StorageError::io("list", path))? {
        let entry = entry.map_err(StorageError::io("list", path))?;
        if files::is_dir(&entry)
            && let Ok(name) = entry.file_name().into_string()
            && let Some(key) = partition_key(&name)
        {
            found.push((entry.path(), key));
        }
    }
    found.sort();
    Ok(found)
}

/// Bytes of the `.log` files. A file without a readable size counts as none; the walk reports it.
fn log_bytes(dir: &Path) -> u64 {
    files::file_names(dir)
        .unwrap_or_default()
        .iter()
        .filter(|name| offset_of(name, LOG_SUFFIX).is_some())
        .map(|name| fs::metadata(dir.join(name)).map_or(0, |metadata| metadata.len()))
        .sum()
}

/// A log's offset in a checkpoint; 0 when the checkpoint does not have the log.
fn offset_in(dir: &Path, name: &str, key: Option<&(String, i32)>) -> i64 {
    let offsets = read_offsets(&dir.join(name)).unwrap_or_default();
    key.and_then(|key| offsets.get(key).copied()).unwrap_or(0)
}
