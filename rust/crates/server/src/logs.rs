//! The log directories of one server, as one.
//!
//! Opened once, closed once; in between Python creates and deletes partitions and the housekeeping thread maintains them.
//! What a crash does to a directory, and how it is recovered, is the storage crate's.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use logcore_storage::{LogConfig, LogDir, Opening, Partition, Progress, StorageError};
use parking_lot::Mutex;

use crate::descriptors::advice;
use crate::error::{Result, ServerError};
use crate::lines::{Level, LogLines};
use crate::registry::TopicId;

/// How many logs a line names.
const NAMES_SHOWN: usize = 20;
/// How often the progress of an opening is told.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// Tells in the log how far the opening of a directory is.
struct Teller<'a> {
    path: &'a str,
    lines: &'a LogLines,
    began: Instant,
    told: Mutex<Instant>,
}

impl<'a> Teller<'a> {
    fn new(path: &'a str, lines: &'a LogLines) -> Self {
        let began = Instant::now();
        Self {
            path,
            lines,
            began,
            told: Mutex::new(began),
        }
    }

    /// One more log is loaded: what was cut from it is told, and now and then how many are.
    fn tell(&self, progress: &Progress<'_>) {
        if let Ok(recovery) = progress.outcome
            && let Some(reason) = &recovery.reason
        {
            self.lines.warning(format!(
                "the log in {} was not closed: {} bytes and {} later segments after its last whole batch are cut off: {reason}",
                progress.dir.display(),
                recovery.truncated_bytes,
                recovery.segments_removed,
            ));
        }
        let mut told = self.told.lock();
        if told.elapsed() >= TELL_EVERY {
            *told = Instant::now();
            self.lines.push(
                Level::Info,
                format!(
                    "{} of {} logs of {} are loaded, {} bytes checked",
                    progress.logs_done, progress.logs_total, self.path, progress.bytes_checked,
                ),
            );
        }
    }

    fn summarise(&self, dir: &LogDir) {
        for warning in dir.warnings() {
            self.lines.warning(warning.clone());
        }
        for stray in dir.strays() {
            self.lines.warning(format!(
                "{} is a log that no topic knows; it is kept, remove it when it is not needed",
                stray.display()
            ));
        }
        if dir.partitions().is_empty() && dir.failures().is_empty() {
            return;
        }
        let how = if dir.had_clean_shutdown() {
            "after a clean shutdown".to_owned()
        } else {
            format!("by recovery: {} bytes were checked", dir.bytes_checked())
        };
        self.lines.push(
            Level::Info,
            format!(
                "{} logs of {} are loaded in {} ms {how}",
                dir.partitions().len(),
                self.path,
                self.began.elapsed().as_millis(),
            ),
        );
    }
}

/// The directories.
pub(crate) struct Logs {
    dirs: Vec<Arc<LogDir>>,
    /// Logs that could not be loaded, and why: their data is still there and no empty log may take their place.
    offline: Vec<(PathBuf, String)>,
}

impl Logs {
    /// Opens every directory and recovers what is in it. Logs that cannot be loaded are reported and stay out.
    ///
    /// # Errors
    /// When a directory itself cannot be used: missing rights, in use, another broker's or cluster's.
    pub(crate) fn open(
        paths: &[String],
        node_id: i32,
        cluster_id: &str,
        defaults: &LogConfig,
        lines: &LogLines,
    ) -> Result<Self> {
        if paths.is_empty() {
            return Err(ServerError::NoLogDirs);
        }
        let mut dirs = Vec::with_capacity(paths.len());
        let mut offline = Vec::new();
        for path in paths {
            let teller = Teller::new(path, lines);
            let opening = Opening {
                config_for: &|_: &str| defaults.clone(),
                replicated: false,
                on_log: &|progress| teller.tell(progress),
            };
            let dir = LogDir::open_with(Path::new(path), node_id, Some(cluster_id), &opening)?;
            teller.summarise(&dir);
            for (log, error) in dir.failures() {
                let advice = match error {
                    StorageError::Io { source, .. } => advice(source),
                    _ => "",
                };
                lines.error(format!(
                    "the log in {} stays offline: {error}{advice}",
                    log.display()
                ));
                offline.push((log.clone(), error.to_string()));
            }
            dirs.push(Arc::new(dir));
        }
        Ok(Self { dirs, offline })
    }

    /// Every partition found or created.
    pub(crate) fn partitions(&self) -> impl Iterator<Item = Arc<Partition>> {
        self.dirs.iter().flat_map(|dir| dir.partitions())
    }

    /// The directories, for those who look after them.
    pub(crate) fn dirs(&self) -> &[Arc<LogDir>] {
        &self.dirs
    }

    /// Logs that could not be loaded.
    pub(crate) fn offline_count(&self) -> usize {
        self.offline.len()
    }

    /// Bytes that were read and checked because the directories had not been closed.
    pub(crate) fn bytes_checked(&self) -> u64 {
        self.dirs.iter().map(|dir| dir.bytes_checked()).sum()
    }

    /// Creates a partition's log in the directory that has the fewest.
    ///
    /// # Errors
    /// When there is one already, also one that is offline, or the directory cannot be written to.
    pub(crate) fn create(
        &self,
        topic: &str,
        partition: i32,
        topic_id: TopicId,
        config: LogConfig,
    ) -> Result<Arc<Partition>> {
        let name = format!("{topic}-{partition}");
        let is_same =
            |(path, _): &&(PathBuf, String)| path.file_name().is_some_and(|found| found == &*name);
        if let Some((path, reason)) = self.offline.iter().find(is_same) {
            return Err(ServerError::Storage(StorageError::Offline {
                dir: path.clone(),
                reason: reason.clone(),
            }));
        }
        let dir = self.dirs.iter().min_by_key(|dir| dir.partitions().len());
        let dir = dir.ok_or(ServerError::NoLogDirs)?;
        Ok(dir.create(topic, partition, topic_id, config)?)
    }

    /// Deletes a partition's log; who reads from it may finish.
    pub(crate) fn delete(&self, topic: &str, partition: i32) -> Result<()> {
        for dir in &self.dirs {
            if dir.get(topic, partition).is_some() {
                dir.delete(topic, partition)?;
            }
        }
        Ok(())
    }

    /// Flushes, applies retention, removes deleted files and writes checkpoints, in every directory.
    pub(crate) fn maintain(&self, now_ms: i64, lines: &LogLines) {
        for dir in &self.dirs {
            if let Err(error) = dir.maintain(now_ms) {
                let path = dir.path().display();
                lines.seldom(
                    Level::Error,
                    &format!("maintain {path}"),
                    format!("maintenance of {path}: {error}"),
                );
            }
        }
    }

    /// Closes everything and marks the shutdown as clean where it was.
    ///
    /// # Errors
    /// [`ServerError::NotClosed`] names the logs that were not closed cleanly; all others are.
    pub(crate) fn close(&self) -> Result<()> {
        let mut failed = Vec::new();
        let mut first = None;
        for dir in &self.dirs {
            let closed = dir.close();
            let before = failed.len();
            for partition in dir.partitions() {
                if let Some(reason) = partition.log.failure() {
                    failed.push(format!("{}-{}", partition.topic, partition.partition));
                    first.get_or_insert_with(|| reason.to_owned());
                }
            }
            if let Err(error) = closed
                && failed.len() == before
            {
                failed.push(dir.path().display().to_string());
                first.get_or_insert_with(|| error.to_string());
            }
        }
        for (path, reason) in &self.offline {
            let name = path.file_name().map(|name| name.to_string_lossy());
            failed.push(name.unwrap_or_default().into_owned());
            first.get_or_insert_with(|| reason.clone());
        }
        match first {
            None => Ok(()),
            Some(reason) => Err(ServerError::NotClosed(not_closed(&failed, &reason))),
        }
    }
}

/// The names of logs, and why the first of them is one.
fn not_closed(names: &[String], reason: &str) -> String {
    let (count, shown) = (names.len(), names.len().min(NAMES_SHOWN));
    let logs = if count == 1 { "log was" } else { "logs were" };
    let more = match count - shown {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "{count} {logs} not closed cleanly and will be recovered at the next start: {}{more} (the first: {reason}); every other log was closed",
        names[..shown].join(", ")
    )
}
