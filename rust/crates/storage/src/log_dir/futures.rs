//! Copies of logs that will move here from another directory (`-future`, KIP-113).
//!
//! A future log has no readers. A [`super::Move`] appends to it as a follower until it has caught up, and
//! then puts it into the place of the log in the other directory. A crash before that leaves it a future log.

use std::sync::Arc;

use super::{LogDir, Partition, partition_path};
use crate::config::LogConfig;
use crate::error::{Result, StorageError};
use crate::files;
use crate::files::disk;
use crate::files::partition_dir::{self, Key, Kind};
use crate::files::uuid::TopicId;
use crate::log::Log;
use crate::log::loader::LastKnown;

impl LogDir {
    /// All future logs here, by topic and partition.
    pub fn futures(&self) -> Vec<Arc<Partition>> {
        self.futures.read().values().cloned().collect()
    }

    pub fn future(&self, topic: &str, partition: i32) -> Option<Arc<Partition>> {
        let key = (topic.to_owned(), partition);
        self.futures.read().get(&key).cloned()
    }

    /// Creates an empty future log.
    ///
    /// Errors: [`StorageError::AlreadyExists`] when this directory has the partition or a future log of it.
    pub fn create_future(
        &self,
        topic: &str,
        partition: i32,
        topic_id: Option<TopicId>,
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
        self.refresh_checkpoints()?;
        let name = partition_dir::with_suffix(topic, partition, Kind::Future)?;
        let created = self.create_log(&self.path.join(name), key.clone(), topic_id, config)?;
        self.futures.write().insert(key, created.clone());
        Ok(created)
    }

    /// Deletes a future log; the partition stays in its directory.
    pub fn delete_future(&self, topic: &str, partition: i32) -> Result<()> {
        let _changing = self.changing.lock();
        self.check_usable()?;
        let key = (topic.to_owned(), partition);
        let removed = self.futures.write().remove(&key);
        let removed = removed.ok_or_else(|| self.no_future(&key))?;
        self.remove(&removed)
    }

    /// Makes a closed future log the partition's log, in place of `current`. The directory's checkpoints have
    /// its entries already.
    ///
    /// Errors: the disk's, after which it is a future log again if possible.
    pub(super) fn promote(&self, future: &Partition, current: &Log) -> Result<Arc<Partition>> {
        let key = (future.topic.clone(), future.partition);
        self.check_absent(&key)?;
        // Its files have their paths, so it is opened again under the new name.
        let (from, to) = (future.log.dir(), partition_path(&self.path, &key));
        let known = LastKnown {
            clean_shutdown: true,
            recovery_point: future.log.recovery_point(),
            log_start_offset: future.log.log_start_offset(),
            high_watermark: current.is_replicated().then(|| current.high_watermark()),
        };
        let config = current.config();
        let log = disk::rename(&from, &to)
            .map_err(StorageError::io("rename", &from))
            .and_then(|()| files::sync_dir(&self.path))
            .and_then(|()| Log::open_in(&to, config, known, &self.dir_state))
            .inspect_err(|_| {
                let _as_far_as_can_be = disk::rename(&to, &from);
                let _as_far_as_can_be = files::sync_dir(&self.path);
            })
            .map_err(|error| self.fail(error))?;
        let promoted = Arc::new(Partition {
            topic: key.0.clone(),
            partition: key.1,
            topic_id: future.topic_id,
            log: Arc::new(log),
        });
        self.futures.write().remove(&key);
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
