//! The operations on logs for operators: deleting records, describing directories and producers, moving logs.
//!
//! Each call is for many partitions and returns an error code for each. Python makes the responses. All calls
//! may access files, and block. Source: `ReplicaManager.deleteRecords`, `.describeLogDirs`,
//! `.alterReplicaLogDirs`, `.activeProducerState`.

use std::path::Path;
use std::sync::Arc;

use logcore_storage::{ActiveProducer, Log, LogDir, StorageError, future_dir_name_len};

use crate::error::Result;
use crate::partitions::purgatory::HasWaiters;
use crate::partitions::registry::Partition;
use crate::server::Server;
use logcore_protocol::ErrorCode;

/// The offset of DeleteRecords that stands for the high watermark (`DeleteRecordsRequest.HIGH_WATERMARK`).
const HIGH_WATERMARK: i64 = -1;
const FILE_NAME_MAX: usize = 255;

/// The result for one partition of [`Server::delete_records`]: the new start of its log.
pub type RecordsDeleted = Result<i64, ErrorCode>;

/// One of `log.dirs`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogDirDescription {
    /// Absolute, as it was configured.
    pub path: String,
    /// `None` for a directory that is offline, which has no replicas here.
    pub space: Option<Space>,
    /// By topic and partition, logs before copies that are moving here.
    pub replicas: Vec<ReplicaDescription>,
}

/// The bytes of a directory's file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    pub total: u64,
    /// For other users than root.
    pub usable: u64,
}

/// One log in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaDescription {
    pub topic: String,
    pub partition: i32,
    /// Bytes of its segments.
    pub size: u64,
    /// The offsets by which a copy is behind its log's end, or a log behind its high watermark.
    pub lag: i64,
    /// It is a copy that will replace the log in another directory.
    pub is_future: bool,
}

/// One partition of [`Server::alter_replica_log_dirs`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogDirMove {
    pub topic: String,
    pub partition: i32,
    /// One of `log.dirs`, absolute.
    pub destination: String,
}

impl Server {
    /// Moves the starts of logs forward; -1 stands for the high watermark. Reported deletions survive a
    /// crash. Blocks.
    ///
    /// # Errors
    /// [`crate::ServerError::Forked`]. Errors of partitions are in the result.
    pub fn delete_records(&self, wanted: &[(String, i32, i64)]) -> Result<Vec<RecordsDeleted>> {
        self.check_process()?;
        let mut deleted: Vec<_> = wanted
            .iter()
            .map(|(topic, partition, offset)| self.delete_until(topic, *partition, *offset))
            .collect();
        for dir in self.shared.logs.dirs() {
            let is_there = |(topic, partition, _): &&(String, i32, i64)| dir.get(topic, *partition).is_some();
            if !wanted.iter().any(|one| is_there(&one)) {
                continue;
            }
            if let Err(error) = dir.checkpoint() {
                let failed = wanted.iter().zip(&mut deleted);
                for (_, result) in failed.filter(|(one, _)| is_there(one)) {
                    *result = result.and(Err(self.code_of("DeleteRecords", &error)));
                }
            }
        }
        Ok(deleted)
    }

    fn delete_until(&self, topic: &str, partition: i32, offset: i64) -> RecordsDeleted {
        let partition = self.replica(topic, partition)?;
        partition.lead(self.shared.node_id, -1)?;
        let advance = |log: &Log| {
            if !log.config().cleanup_delete {
                return Ok(Err(ErrorCode::POLICY_VIOLATION));
            }
            match offset {
                HIGH_WATERMARK => log.advance_log_start_offset(log.high_watermark()).map(Ok),
                0.. => log.advance_log_start_offset(offset).map(Ok),
                _ => Ok(Err(ErrorCode::OFFSET_OUT_OF_RANGE)),
            }
        };
        let advanced = self.shared.registry.append(&partition, advance);
        let start = advanced.map_err(|error| self.code_of("DeleteRecords", &error))??;
        // A consumer that waits below the start must get an error.
        partition.waiters().wake_all();
        Ok(start)
    }

    /// Every log directory with its replicas. Blocks.
    ///
    /// # Errors
    /// [`crate::ServerError::Forked`].
    pub fn describe_log_dirs(&self) -> Result<Vec<LogDirDescription>> {
        self.check_process()?;
        let configured = self.shared.logs.configured().iter();
        Ok(configured
            .map(|(path, dir)| {
                let online = dir.as_ref().filter(|dir| dir.failure().is_none());
                let found = online.and_then(|dir| Some((space_of(dir.path())?, dir)));
                LogDirDescription {
                    path: path.to_string_lossy().into_owned(),
                    space: found.map(|(space, _)| space),
                    replicas: found.map_or_else(Vec::new, |(_, dir)| self.replicas_in(dir)),
                }
            })
            .collect())
    }

    fn replicas_in(&self, dir: &LogDir) -> Vec<ReplicaDescription> {
        let describe = |replica: &logcore_storage::Partition, is_future, lag| ReplicaDescription {
            topic: replica.topic.clone(),
            partition: replica.partition,
            size: replica.log.size_bytes(),
            lag,
            is_future,
        };
        let mut replicas = Vec::new();
        for replica in dir.partitions() {
            let log = &replica.log;
            let lag = log.high_watermark() - log.log_end_offset();
            replicas.push(describe(&replica, false, lag.max(0)));
        }
        for future in dir.futures() {
            let current = self.shared.registry.find(&future.topic, future.partition);
            let lag = current.map_or(-1, |current| {
                current.log.log_end_offset() - future.log.log_end_offset()
            });
            replicas.push(describe(&future, true, lag));
        }
        replicas
    }

    /// Begins to move logs to other directories. A move to another directory ends. A partition that is not
    /// here yet will be created there, and gets REPLICA_NOT_AVAILABLE. Blocks.
    ///
    /// # Errors
    /// [`crate::ServerError::Forked`]. Errors of partitions are in the result.
    pub fn alter_replica_log_dirs(&self, wanted: &[LogDirMove]) -> Result<Vec<ErrorCode>> {
        self.check_process()?;
        let _exchange = self.moves.lock();
        Ok(wanted
            .iter()
            .map(|one| self.alter_log_dir(one).err().unwrap_or(ErrorCode::NONE))
            .collect())
    }

    fn alter_log_dir(&self, wanted: &LogDirMove) -> Result<(), ErrorCode> {
        let (topic, partition) = (&*wanted.topic, wanted.partition);
        if future_dir_name_len(topic, partition) > FILE_NAME_MAX {
            return Err(ErrorCode::INVALID_TOPIC_EXCEPTION);
        }
        let to = self.destination(&wanted.destination)?;
        let from = self.shared.logs.holder(topic, partition);
        let is_dead = |dir: &Arc<LogDir>| dir.failure().is_some();
        if self.shared.logs.is_offline(topic, partition) || from.as_ref().is_some_and(is_dead) {
            return Err(ErrorCode::KAFKA_STORAGE_ERROR);
        }
        let code_of = |error: StorageError| self.code_of("AlterReplicaLogDirs", &error);
        for dir in self.shared.logs.dirs() {
            if !Arc::ptr_eq(dir, &to) && dir.future(topic, partition).is_some() {
                self.moves.forget(topic, partition);
                // A copy on a failed disk stays there, as in Kafka.
                if !is_dead(dir) {
                    dir.delete_future(topic, partition).map_err(code_of)?;
                }
            }
        }
        let Some(from) = from else {
            self.shared.logs.prefer(topic, partition, &to);
            return Err(ErrorCode::REPLICA_NOT_AVAILABLE);
        };
        if Arc::ptr_eq(&from, &to) {
            return Ok(());
        }
        self.moves.begin(&from, &to, topic, partition).map_err(code_of)
    }

    fn destination(&self, path: &str) -> Result<Arc<LogDir>, ErrorCode> {
        let mut configured = self.shared.logs.configured().iter();
        let found = configured.find(|(known, _)| known.as_os_str() == path);
        let (_, dir) = found.ok_or(ErrorCode::LOG_DIR_NOT_FOUND)?;
        let online = dir.clone().filter(|dir| dir.failure().is_none());
        online.ok_or(ErrorCode::KAFKA_STORAGE_ERROR)
    }

    /// The producers in the state of a partition's log, by id.
    ///
    /// # Errors
    /// [`crate::ServerError::Forked`].
    pub fn describe_producers(
        &self,
        topic: &str,
        partition: i32,
    ) -> Result<Result<Vec<ActiveProducer>, ErrorCode>> {
        self.check_process()?;
        Ok(self
            .replica(topic, partition)
            .map(|partition| partition.log.active_producers()))
    }

    /// A partition whose log is here and online.
    fn replica(&self, topic: &str, partition: i32) -> Result<Arc<Partition>, ErrorCode> {
        match self.shared.registry.find(topic, partition) {
            Some(partition) if partition.log.failure().is_none() => Ok(partition),
            Some(_) => Err(ErrorCode::KAFKA_STORAGE_ERROR),
            None if self.shared.logs.is_offline(topic, partition) => Err(ErrorCode::KAFKA_STORAGE_ERROR),
            None => Err(self.shared.registry.absence(topic, partition)),
        }
    }

    fn code_of(&self, request: &str, error: &StorageError) -> ErrorCode {
        let what = format_args!("{request} failed");
        self.shared.storage_error(what, None, error)
    }
}

/// `None` if the file system does not tell.
fn space_of(path: &Path) -> Option<Space> {
    let found = rustix::fs::statvfs(path).ok()?;
    Some(Space {
        total: found.f_blocks.saturating_mul(found.f_frsize),
        usable: found.f_bavail.saturating_mul(found.f_frsize),
    })
}
