//! The log directories of one server, as one.
//!
//! Opened once, closed once; in between Python creates and deletes partitions and the housekeeping thread maintains them.
//! What a crash does to a directory, and how it is recovered, is the storage crate's.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use logcore_storage::{LogConfig, LogDir, Partition, StorageError};

use crate::descriptors::advice;
use crate::error::{Result, ServerError};
use crate::lines::{Level, LogLines};
use crate::registry::TopicId;

/// How many logs a line names.
const NAMES_SHOWN: usize = 20;

/// The directories.
pub(crate) struct Logs {
    dirs: Vec<LogDir>,
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
        let config_for = |_: &str| defaults.clone();
        let mut dirs = Vec::with_capacity(paths.len());
        let mut offline = Vec::new();
        for path in paths {
            let dir = LogDir::open(Path::new(path), node_id, Some(cluster_id), &config_for)?;
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
            dirs.push(dir);
        }
        Ok(Self { dirs, offline })
    }

    /// Every partition found or created.
    pub(crate) fn partitions(&self) -> impl Iterator<Item = Arc<Partition>> {
        self.dirs.iter().flat_map(LogDir::partitions)
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
