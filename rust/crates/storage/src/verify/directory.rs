//! What there is to verify at a path, and what stands beside the partitions in a log directory.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Result, StorageError};
use crate::files::checkpoints::{
    CLEANER_FILE, HIGH_WATERMARK_FILE, LOG_START_FILE, Offsets, RECOVERY_POINT_FILE, read_offsets,
};
use crate::files::flushed_mark;
use crate::files::lock::{self, LOCK_FILE};
use crate::files::metadata::{CLEAN_SHUTDOWN_FILE, META_PROPERTIES_FILE, MetaProperties};
use crate::files::partition_dir::parse_partition_dir;
use crate::files::single_log::own_recovery_point;
use crate::files::{self, LOG_SUFFIX, offset_of};

use super::findings::Findings;
use super::partition::PartitionCheck;
use super::{Finding, Kind};

/// One partition's directory and what its surroundings say about it.
#[derive(Debug, Clone)]
pub(crate) struct Partition {
    pub(crate) dir: PathBuf,
    /// What the checkpoints that tell of it call it; `None` for a copy that is being moved, of which they do not tell.
    pub(crate) key: Option<(String, i32)>,
    /// Bytes of its `.log` files.
    pub(crate) bytes: u64,
    /// Somebody holds the lock.
    pub(crate) live: bool,
    /// It was closed.
    pub(crate) clean: bool,
    /// Everything before this offset was known to be on disk.
    pub(crate) recovery_point: i64,
    /// Where the checkpoints are that tell of it.
    pub(crate) checkpoints: PathBuf,
}

impl Partition {
    /// The cleaner has been over everything before this offset, as is known now.
    pub(super) fn cleaned_to(&self) -> i64 {
        offset_in(&self.checkpoints, CLEANER_FILE, self.key.as_ref())
    }

    /// Everything before this offset was on disk, as a log by itself noted that is not open now.
    pub(super) fn flushed(&self) -> Option<i64> {
        let is_by_itself = self.checkpoints == self.dir;
        flushed_mark::read(&self.dir).filter(|_| is_by_itself && !self.live)
    }
}

/// What is at a path.
#[derive(Debug)]
pub(crate) struct Target {
    /// Resolved.
    pub(crate) path: PathBuf,
    /// The log directory the partitions are in, if they are in one; `path` itself or its parent.
    pub(crate) log_dir: Option<PathBuf>,
    /// In order of their directories.
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
            // By itself, a log has its own checkpoints, in which it has this name.
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
                // A partition that a program opened by itself has a lock of its own.
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

    /// The same with nobody but the caller there, who holds the locks.
    pub(crate) fn owned(mut self) -> Self {
        self.live = false;
        for partition in &mut self.partitions {
            partition.live = false;
        }
        self
    }

    /// Where the checkpoints are that tell of the partitions.
    pub(crate) fn checkpoint_dir(&self) -> &Path {
        self.log_dir.as_deref().unwrap_or(&self.path)
    }

    /// One partition of a log directory, whose files are not of this partition alone.
    pub(crate) fn is_one_of_many(&self) -> bool {
        self.log_dir.as_ref().is_some_and(|dir| *dir != self.path)
    }

    /// Checks the files and names beside the partitions, when all of a log directory is verified, and the checkpoints of
    /// a log that is by itself.
    pub(crate) fn check_beside(&self, checks: &[Option<PartitionCheck>], findings: &mut Findings) {
        if self.log_dir.as_deref() == Some(&self.path) {
            self.check_names(findings);
            let path = self.path.join(META_PROPERTIES_FILE);
            if let Err(error) = MetaProperties::read(&self.path) {
                let remedy = "write it again: broker.id, cluster.id and version=0";
                findings.error(Kind::MetaProperties, &path, &error, remedy);
            }
        } else if self.is_one_of_many() {
            return;
        }
        self.check_checkpoints(&self.ends(checks), findings);
    }

    fn check_checkpoints(&self, ends: &HashMap<(String, i32), i64>, findings: &mut Findings) {
        for (name, what) in [
            (RECOVERY_POINT_FILE, "everything before it was on disk"),
            (HIGH_WATERMARK_FILE, "everything before it had been acknowledged"),
            (LOG_START_FILE, "the log begins there"),
            (CLEANER_FILE, "the cleaner has been over everything before it"),
        ] {
            let path = self.checkpoint_dir().join(name);
            match read_offsets(&path) {
                Ok(_) if self.live => {}
                Ok(offsets) => compare_ends(&path, &offsets, ends, what, findings),
                Err(error) => {
                    let remedy = "`logcore repair --apply` puts it aside; without it, every log is recovered from its front";
                    findings.error(Kind::Checkpoint, &path, &error, remedy);
                }
            }
        }
    }

    /// Where each log that is whole ends.
    fn ends(&self, checks: &[Option<PartitionCheck>]) -> HashMap<(String, i32), i64> {
        let whole = self.partitions.iter().zip(checks);
        whole
            .filter(|(partition, _)| !partition.live)
            .filter_map(|(partition, check)| {
                let check = check.as_ref().filter(|check| check.cut.is_none())?;
                Some((partition.key.clone()?, check.log_end))
            })
            .collect()
    }

    fn check_names(&self, findings: &mut Findings) {
        let entries = match fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(error) => {
                let error = StorageError::io("list", &self.path)(error);
                findings.error(Kind::Unreadable, &self.path, &error, "");
                return;
            }
        };
        for entry in entries.flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_dir = files::is_dir(&entry);
            if is_dir && partition_key(&name).is_some() || is_known(&name) {
                continue;
            }
            if name.ends_with(".tmp") || (is_dir && name.ends_with("-delete")) {
                if !self.live {
                    findings.file(
                        Kind::Unfinished,
                        &path,
                        "left by a step that was interrupted",
                        "the next start removes or replaces it",
                    );
                }
                continue;
            }
            // `LogManager.loadLogs` takes every directory for a partition's, and passes over files.
            let (what, remedy) = if is_dir {
                (
                    "no partition's directory has this name",
                    "move it out: Apache Kafka does not start beside a directory it does not know",
                )
            } else {
                (
                    "no file of a Kafka log directory has this name",
                    "Apache Kafka passes over it; move it out if nothing else needs it here",
                )
            };
            findings.file(Kind::StrayName, &path, what, remedy);
        }
    }
}

fn compare_ends(
    path: &Path,
    offsets: &Offsets,
    ends: &HashMap<(String, i32), i64>,
    what: &str,
    findings: &mut Findings,
) {
    const SET_RIGHT: &str = "set the offset right with `logcore repair --apply`";
    let is_cleaners = path.ends_with(CLEANER_FILE);
    for (key, offset) in offsets {
        let (topic, partition) = key;
        let (what, remedy) = if *offset < 0 {
            let what = format!("offset {offset} of {topic}-{partition} cannot be");
            (what, SET_RIGHT.to_owned())
        } else if let Some(end) = ends.get(key).filter(|end| *offset > **end) {
            let what = format!("{topic}-{partition} ends at offset {end}, but {what}: offset {offset}");
            let remedy = if is_cleaners {
                "the cleaner begins at the log's start again".to_owned()
            } else {
                format!(
                    "records at the log's end are gone: take the partition from another replica, or {SET_RIGHT}"
                )
            };
            (what, remedy)
        } else {
            continue;
        };
        findings.push(Finding {
            kind: if is_cleaners {
                Kind::CleanerCheckpoint
            } else {
                Kind::Checkpoint
            },
            path: path.to_path_buf(),
            position: None,
            offset: Some(*offset),
            what,
            remedy,
        });
    }
}

/// Topic and partition of a directory, also of one that a replica is being moved to (`-future`).
fn partition_key(name: &str) -> Option<(String, i32)> {
    match name.strip_suffix("-future") {
        Some(rest) => parse_partition_dir(rest.rsplit_once('.')?.0),
        None => parse_partition_dir(name),
    }
}

fn is_future(dir: &Path) -> bool {
    dir.to_str().is_some_and(|dir| dir.ends_with("-future"))
}

/// Names in a log directory that are not a partition's. The last four are Kafka's in KRaft mode and with remote storage,
/// our broker's for its session with the coordinator, and the file system's.
fn is_known(name: &str) -> bool {
    [
        META_PROPERTIES_FILE,
        RECOVERY_POINT_FILE,
        HIGH_WATERMARK_FILE,
        LOG_START_FILE,
        CLEANER_FILE,
        CLEAN_SHUTDOWN_FILE,
        LOCK_FILE,
        "bootstrap.checkpoint",
        "remote-log-index-cache",
        "coordinator-session",
        "lost+found",
    ]
    .contains(&name)
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

/// Bytes of the `.log` files; what cannot be asked counts as none, and is found later.
fn log_bytes(dir: &Path) -> u64 {
    files::file_names(dir)
        .unwrap_or_default()
        .iter()
        .filter(|name| offset_of(name, LOG_SUFFIX).is_some())
        .map(|name| fs::metadata(dir.join(name)).map_or(0, |metadata| metadata.len()))
        .sum()
}

/// What a checkpoint says of a log; 0 when it says nothing.
fn offset_in(dir: &Path, name: &str, key: Option<&(String, i32)>) -> i64 {
    let offsets = read_offsets(&dir.join(name)).unwrap_or_default();
    key.and_then(|key| offsets.get(key).copied()).unwrap_or(0)
}
