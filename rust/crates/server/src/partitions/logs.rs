//! The log directories of one server.
//!
//! They are opened once and closed once. In between, Python creates and deletes partitions, and the
//! housekeeping thread maintains them. The storage crate recovers a directory after a crash.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use logcore_storage::{
    LogConfig, LogDir, Opening, Partition, Progress, Retention, StorageError, check_duplicates, finish_moves,
};
use parking_lot::Mutex;

use crate::config::{ServerConfig, ServerOptions};
use crate::descriptors::advice_for;
use crate::error::{Result, ServerError};
use crate::log_lines::{Level, LogLines};
use crate::partitions::registry::TopicId;

/// The most directories that are remembered for partitions to be created. A client can name any number.
const PREFERRED_MAX: usize = 10_000;
/// The most logs that one message names.
const NAMES_SHOWN: usize = 20;

/// Logs the findings of opening a directory. [`ServerOptions::progress`] shows how far it is.
struct Reporter<'a> {
    path: &'a str,
    lines: &'a LogLines,
    began: Instant,
}

impl<'a> Reporter<'a> {
    fn new(path: &'a str, lines: &'a LogLines) -> Self {
        let began = Instant::now();
        Self { path, lines, began }
    }

    /// Logs what was cut from a log that was loaded.
    fn loaded(&self, progress: &Progress<'_>) {
        if let Ok(recovery) = progress.outcome
            && let Some(reason) = &recovery.reason
        {
            self.lines.warning(format!(
                "the log in {} was not closed: {} bytes and {} later segments after its last whole batch are \
                 cut off: {reason}",
                progress.dir.display(),
                recovery.truncated_bytes,
                recovery.segments_removed,
            ));
        }
    }

    fn summarise(&self, dir: &LogDir) {
        for warning in dir.warnings() {
            self.lines.warning(warning.clone());
        }
        for stray in dir.strays() {
            self.lines.warning(format!(
                "{} is a log of no known topic; it is kept, remove it when it is not needed",
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
    /// `log.dirs` as clients see them, in that order, with the opened directories.
    configured: Vec<(PathBuf, Option<Arc<LogDir>>)>,
    /// The directories for partitions that are not here yet (AlterReplicaLogDirs).
    preferred: Mutex<HashMap<(String, i32), Arc<LogDir>>>,
    /// Directories that could not be opened, and the reasons.
    unusable: Vec<(PathBuf, String)>,
    /// Logs that could not be loaded, and the reasons. Their data is still there, so no empty log may replace
    /// them.
    offline: Vec<(PathBuf, String)>,
}

impl Logs {
    /// Opens and recovers every directory. Logs that cannot be loaded are reported and stay offline. So do
    /// directories whose disk fails, if there is another one.
    ///
    /// # Errors
    /// If no directory can be used, if one is in use or belongs to another broker or cluster, and if two have
    /// the same partition.
    pub(crate) fn open(
        options: &ServerOptions,
        config: &ServerConfig,
        until_configured: &LogConfig,
        lines: &LogLines,
    ) -> Result<Self> {
        let paths: Vec<_> = options.log_dirs.iter().map(PathBuf::from).collect();
        for moved in finish_moves(&paths)? {
            lines.info(format!(
                "{} was moved there when the broker ended; the move is finished",
                moved.display()
            ));
        }
        check_duplicates(&paths)?;
        let mut logs = Self {
            dirs: Vec::with_capacity(paths.len()),
            configured: Vec::with_capacity(paths.len()),
            preferred: Mutex::default(),
            unusable: Vec::new(),
            offline: Vec::new(),
        };
        let mut first = None;
        for path in &options.log_dirs {
            match logs.open_one(path, options, config, until_configured, lines) {
                Ok(()) => {
                    let opened = logs.dirs.last().cloned();
                    logs.configured.push((absolute(path), opened));
                }
                Err(error) if error.is_directory_failure() || error.is_disk_full() => {
                    let advice = advice_for(&error);
                    lines.error(format!("the log directory {path} is offline: {error}{advice}"));
                    logs.unusable.push((path.into(), error.to_string()));
                    logs.configured.push((absolute(path), None));
                    first.get_or_insert(error);
                }
                Err(error) => return Err(error.into()),
            }
        }
        match first {
            _ if !logs.dirs.is_empty() => Ok(logs),
            Some(error) => Err(error.into()),
            None => Err(ServerError::NoLogDirs),
        }
    }

    fn open_one(
        &mut self,
        path: &str,
        options: &ServerOptions,
        config: &ServerConfig,
        until_configured: &LogConfig,
        lines: &LogLines,
    ) -> Result<(), StorageError> {
        let reporter = Reporter::new(path, lines);
        let config_for = |_: &str| until_configured.clone();
        let opening = Opening {
            on_log: &|progress| reporter.loaded(progress),
            takes_all: true,
            // Until Python says that a log has no other replicas, records above the checkpointed high
            // watermark may be on this broker alone.
            replicated: true,
            threads: config.recovery_threads,
            progress: Arc::clone(&options.progress),
            ..Opening::new(&config_for)
        };
        let cluster_id = Some(options.cluster_id.as_str());
        let dir = LogDir::open_with(Path::new(path), options.node_id, cluster_id, &opening)?;
        reporter.summarise(&dir);
        for (log, error) in dir.failures() {
            let advice = advice_for(error);
            lines.error(format!(
                "the log in {} stays offline: {error}{advice}",
                log.display()
            ));
            self.offline.push((log.clone(), error.to_string()));
        }
        self.dirs.push(Arc::new(dir));
        Ok(())
    }

    /// `log.dirs` as clients see them, with the opened directories.
    pub(crate) fn configured(&self) -> &[(PathBuf, Option<Arc<LogDir>>)] {
        &self.configured
    }

    /// The directory a partition's log is in.
    pub(crate) fn holder(&self, topic: &str, partition: i32) -> Option<Arc<LogDir>> {
        let holds = |dir: &&Arc<LogDir>| dir.get(topic, partition).is_some();
        self.dirs.iter().find(holds).cloned()
    }

    /// Whether the partition's log is here and could not be loaded.
    pub(crate) fn is_offline(&self, topic: &str, partition: i32) -> bool {
        self.offline_log(topic, partition).is_some()
    }

    /// The directory and the failure of a log that could not be loaded.
    pub(crate) fn offline_log(&self, topic: &str, partition: i32) -> Option<&(PathBuf, String)> {
        let name = format!("{topic}-{partition}");
        self.offline
            .iter()
            .find(|(path, _)| path.file_name().is_some_and(|found| found == &*name))
    }

    /// Remembers the directory for a partition that is not here yet. If there are too many, it is dropped: it
    /// is only a preference.
    pub(crate) fn prefer(&self, topic: &str, partition: i32, dir: &Arc<LogDir>) {
        let mut preferred = self.preferred.lock();
        let key = (topic.to_owned(), partition);
        if preferred.len() < PREFERRED_MAX || preferred.contains_key(&key) {
            preferred.insert(key, Arc::clone(dir));
        }
    }

    pub(crate) fn partitions(&self) -> impl Iterator<Item = Arc<Partition>> {
        self.dirs.iter().flat_map(|dir| dir.partitions())
    }

    pub(crate) fn dirs(&self) -> &[Arc<LogDir>] {
        &self.dirs
    }

    /// The number of logs that could not be loaded, or whose disk failed since.
    pub(crate) fn offline_count(&self) -> usize {
        let failed = self.partitions().filter(|one| one.log.failure().is_some());
        self.offline.len() + failed.count()
    }

    /// The number of directories that could not be opened, or whose disk failed since.
    pub(crate) fn offline_dirs_count(&self) -> usize {
        let failed = self.dirs.iter().filter(|dir| dir.failure().is_some());
        self.unusable.len() + failed.count()
    }

    /// Every directory and why it is offline, if none is online.
    pub(crate) fn none_left(&self) -> Option<String> {
        let failed = self.dirs.iter().map(|dir| {
            let reason = dir.failure()?;
            Some(format!("{}: {reason}", dir.path().display()))
        });
        let failed: Vec<String> = failed.collect::<Option<_>>()?;
        let unusable = self.unusable.iter();
        let unusable = unusable.map(|(path, reason)| format!("{}: {reason}", path.display()));
        Some(failed.into_iter().chain(unusable).collect::<Vec<_>>().join("; "))
    }

    /// The bytes that recovery read and checked.
    pub(crate) fn bytes_checked(&self) -> u64 {
        self.dirs.iter().map(|dir| dir.bytes_checked()).sum()
    }

    /// Creates a partition's log in the online directory with the fewest logs. While a directory is offline,
    /// only a `new` partition is created, because the log of another one may be in that directory.
    ///
    /// # Errors
    /// If there is a log already, even an offline one, or the directory cannot be written.
    pub(crate) fn create(
        &self,
        topic: &str,
        partition: i32,
        topic_id: TopicId,
        config: LogConfig,
        new: bool,
    ) -> Result<Arc<Partition>> {
        if let Some((path, reason)) = self.offline_log(topic, partition) {
            return Err(offline(path, reason));
        }
        if let Some(copy) = self.dirs.iter().find_map(|dir| dir.future(topic, partition)) {
            return Err(offline(
                &copy.log.dir(),
                "it is a copy of a log that no directory has",
            ));
        }
        let failed = || {
            let failed = |dir: &Arc<LogDir>| Some(offline(dir.path(), dir.failure()?));
            self.dirs.iter().find_map(failed)
        };
        let unusable = || {
            let first = self.unusable.first();
            first.map(|(path, reason)| offline(path, reason))
        };
        if !new && let Some(error) = unusable().or_else(failed) {
            return Err(error);
        }
        let online = self.dirs.iter().filter(|dir| dir.failure().is_none());
        let preferred = self.preferred.lock().remove(&(topic.to_owned(), partition));
        if let Some(dir) = preferred.filter(|dir| dir.failure().is_none()) {
            return Ok(dir.create(topic, partition, topic_id, config)?);
        }
        match online.min_by_key(|dir| dir.partitions().len()) {
            Some(dir) => Ok(dir.create(topic, partition, topic_id, config)?),
            None => Err(failed().unwrap_or(ServerError::NoLogDirs)),
        }
    }

    /// Deletes a partition's log and its copy in another directory. Reads that have begun can finish.
    pub(crate) fn delete(&self, topic: &str, partition: i32) -> Result<()> {
        let mut result = Ok(());
        for dir in &self.dirs {
            if dir.get(topic, partition).is_some() {
                result = result.and(dir.delete(topic, partition));
            }
            if dir.future(topic, partition).is_some() {
                result = result.and(dir.delete_future(topic, partition));
            }
        }
        Ok(result?)
    }

    /// Flushes, applies retention if it is due, removes deleted files and writes checkpoints, in every
    /// directory.
    pub(crate) fn maintain(&self, now_ms: i64, retention: Retention, lines: &LogLines) {
        for dir in &self.dirs {
            let maintained = dir.maintain_with(now_ms, retention);
            let path = dir.path().display();
            if let Some(reason) = dir.failure() {
                lines.push_limited(
                    Level::Error,
                    &format!("offline {path}"),
                    format!(
                        "the log directory {path} is offline with its {} logs since its disk failed: \
                         {reason}; repair the disk and restart the broker",
                        dir.partitions().len()
                    ),
                );
            } else if let Err(error) = maintained {
                lines.push_limited(
                    Level::Error,
                    &format!("maintain {path}"),
                    format!("maintenance of {path}: {error}"),
                );
            }
        }
    }

    /// Closes all directories, and marks the shutdown as clean where it was.
    ///
    /// # Errors
    /// [`ServerError::NotClosed`] names the logs that were not closed cleanly. All others were.
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

/// A directory as clients see it: absolute, and otherwise as configured (`File.getAbsolutePath`).
fn absolute(path: &str) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.into())
}

pub(crate) fn offline(path: &Path, reason: &str) -> ServerError {
    ServerError::Storage(StorageError::Offline {
        dir: path.to_path_buf(),
        reason: reason.to_owned(),
    })
}

/// The message for logs that were not closed, with the reason of the first.
fn not_closed(names: &[String], reason: &str) -> String {
    let (count, shown) = (names.len(), names.len().min(NAMES_SHOWN));
    let logs = if count == 1 { "log was" } else { "logs were" };
    let more = match count - shown {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "{count} {logs} not closed cleanly and will be recovered at the next start: {}{more} (the first: \
         {reason}); every other log was closed",
        names[..shown].join(", ")
    )
}
