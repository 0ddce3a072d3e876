//! Copies of logs that are to move here from another directory (`-future`, KIP-113).
//!
//! A future log is a log like any other, but nobody reads it: whoever moves a partition appends to it as a follower until it
//! has caught up, deletes the log in the other directory and promotes this one. A crash leaves it a future log until its
//! directory has been renamed, and the log after.

use std::sync::Arc;

use super::names::{self, Kind};
use super::{Key, LogDir, Partition, partition_path};
use crate::config::LogConfig;
use crate::disk;
use crate::error::{Result, StorageError};
use crate::files;
use crate::loader::LastKnown;
use crate::log::Log;
use crate::uuid::TopicId;

impl LogDir {
    /// All future logs here, in order of topic and number.
    pub fn futures(&self) -> Vec<Arc<Partition>> {
        self.futures.read().values().cloned().collect()
    }

    /// One future log.
    pub fn future(&self, topic: &str, partition: i32) -> Option<Arc<Partition>> {
        let key = (topic.to_owned(), partition);
        self.futures.read().get(&key).cloned()
    }

    /// Creates an empty future log.
    ///
    /// Errors: [`StorageError::AlreadyExists`] when this directory has the partition, or a future log of it.
    pub fn create_future(
        &self,
        topic: &str,
        partition: i32,
        topic_id: TopicId,
        config: LogConfig,
    ) -> Result<Arc<Partition>> {
        let _changing = self.changing.lock();
        self.check_usable()?;
        let key = (topic.to_owned(), partition);
        self.check_absent(&key)?;
        if let Some(there) = self.futures.read().get(&key) {
            return Err(StorageError::AlreadyExists {
                path: there.log.dir(),
            });
        }
        let name = names::with_suffix(topic, partition, Kind::Future)?;
        let created = self.create_log(&self.path.join(name), key.clone(), topic_id, config)?;
        self.futures.write().insert(key, created.clone());
        Ok(created)
    }

    /// Deletes a future log: the partition stays where it is.
    pub fn delete_future(&self, topic: &str, partition: i32) -> Result<()> {
        let _changing = self.changing.lock();
        self.check_usable()?;
        let key = (topic.to_owned(), partition);
        let removed = self.futures.write().remove(&key);
        let removed = removed.ok_or_else(|| self.no_future(&key))?;
        self.remove(&removed)
    }

    /// Makes a future log the partition's log. The log in the other directory has been deleted before.
    pub fn promote_future(
        &self,
        topic: &str,
        partition: i32,
        config: LogConfig,
    ) -> Result<Arc<Partition>> {
        let _changing = self.changing.lock();
        self.check_usable()?;
        let key = (topic.to_owned(), partition);
        self.check_absent(&key)?;
        let future = self.futures.read().get(&key).cloned();
        let future = future.ok_or_else(|| self.no_future(&key))?;
        // Its files know where they are, so it is closed and opened again under its new name.
        future.log.close()?;
        let (from, to) = (future.log.dir(), partition_path(&self.path, &key));
        disk::rename(&from, &to)
            .map_err(StorageError::io("rename", &from))
            .and_then(|()| files::sync_dir(&self.path))
            .map_err(|error| self.fail(error))?;
        self.futures.write().remove(&key);
        let known = LastKnown {
            clean_shutdown: true,
            recovery_point: future.log.recovery_point(),
            log_start_offset: future.log.log_start_offset(),
            high_watermark: self.replicated.then(|| future.log.high_watermark()),
        };
        let promoted = Arc::new(Partition {
            topic: key.0.clone(),
            partition,
            topic_id: future.topic_id,
            log: Arc::new(Log::open_in(&to, config, known, &self.surroundings)?),
        });
        self.partitions.write().insert(key, promoted.clone());
        Ok(promoted)
    }

    fn check_absent(&self, key: &Key) -> Result<()> {
        let path = partition_path(&self.path, key);
        if self.partitions.read().contains_key(key) || path.exists() {
            return Err(StorageError::AlreadyExists { path });
        }
        Ok(())
    }

    fn no_future(&self, key: &Key) -> StorageError {
        StorageError::NotFound {
            path: self.path.join(format!("{}-{}.*-future", key.0, key.1)),
        }
    }
}
