//! Records that the server's owner appends and reads itself, for the logs of its coordinators.

use std::sync::Arc;
use std::time::Duration;

use logcore_protocol::ErrorCode;
use logcore_storage::{Appended, Log};

use super::{Running, Server, State};
use crate::error::{Result, ServerError};
use crate::partitions::logs::offline;
use crate::partitions::purgatory::{Attempt, NO_BYTES, Wait};
use crate::partitions::registry::Partition;
use crate::shared::now_ms;

impl Server {
    /// Appends a coordinator's whole batches as the partition's leader, transaction markers too, and returns
    /// the offset of the first record. Blocks.
    ///
    /// # Errors
    /// As Produce with acks=all would answer.
    pub fn append(&self, topic: &str, partition: i32, batches: &[u8]) -> Result<i64> {
        let (_, appended, _) = self.append_as_leader(topic, partition, batches)?;
        Ok(appended.first_offset)
    }

    /// As [`Self::append`]. Returns whether every in-sync replica has the records. If not,
    /// [`Self::take_replicated`] reports `number` once they have, with the error code that Produce with
    /// acks=all would answer: also if this server does not lead any more, or after `timeout`.
    ///
    /// # Errors
    /// As [`Self::append`]; nothing is reported then.
    pub fn append_and_report(
        &self,
        topic: &str,
        partition: i32,
        batches: &[u8],
        number: u64,
        timeout: Duration,
    ) -> Result<bool> {
        let state = self.state.lock();
        let State::Running(Running { runtime, .. }) = &*state else {
            return Err(ServerError::WrongState("is not running"));
        };
        let runtime = runtime.handle().clone();
        drop(state);
        let (partition, appended, led_since) = self.append_as_leader(topic, partition, batches)?;
        let shared = Arc::clone(&self.shared);
        let last_offset = appended.last_offset;
        if shared.replicated(&partition, last_offset, Some(led_since)) == Some(Ok(())) {
            return Ok(true);
        }
        runtime.spawn(async move {
            let wait = Wait {
                kind: &shared.purgatory.produce,
                timeout,
                bytes: NO_BYTES,
                stopping: shared.stopping.subscribe(),
            };
            let look = || {
                let result = shared.replicated(&partition, last_offset, Some(led_since));
                let missing = result.is_none().then_some(NO_BYTES);
                Attempt { result, missing }
            };
            let outcome = wait.until(vec![Arc::clone(&partition)], look).await;
            let code = outcome.unwrap_or(Err(ErrorCode::REQUEST_TIMED_OUT)).err();
            shared
                .replicated_appends
                .add(number, code.unwrap_or(ErrorCode::NONE));
        });
        Ok(false)
    }

    /// Also returns [`Partition::led_since`].
    fn append_as_leader(
        &self,
        topic: &str,
        partition: i32,
        batches: &[u8],
    ) -> Result<(Arc<Partition>, Appended, i32)> {
        let found = self.find(topic, partition)?;
        if let Some(reason) = found.log.failure() {
            return Err(offline(&found.log.dir(), reason));
        }
        let not_leader = || ServerError::NotLeader {
            topic: topic.to_owned(),
            partition,
        };
        let leadership = found.lead(self.shared.node_id, -1);
        let leadership = leadership.map_err(|_| not_leader())?;
        if !found.replicas.has_min_in_sync(&found.log) {
            return Err(ServerError::NotEnoughReplicas {
                topic: topic.to_owned(),
                partition,
            });
        }
        let mut batches = batches.to_vec();
        let append = || {
            let appended = self.shared.registry.append(&found, |log| {
                let appended = log.append_as_coordinator(&mut batches, leadership.epoch, now_ms())?;
                self.shared.note_append(&found, log, appended.bytes);
                Ok(appended)
            });
            (appended, found.led_since())
        };
        let appended = found.while_leading(leadership, append).ok_or_else(not_leader)?;
        let (appended, led_since) = appended;
        let appended = appended.inspect_err(|_| self.shared.report_failure_of(&found))?;
        Ok((found, appended, led_since))
    }

    /// Whole batches from the one with `offset` up to the high watermark, at least one if there is any.
    /// Blocks.
    ///
    /// # Errors
    /// If there is no such partition or offset, or the disk fails.
    pub fn read(&self, topic: &str, partition: i32, offset: i64, bytes_max: u64) -> Result<Vec<u8>> {
        self.read_below(topic, partition, offset, bytes_max, Log::high_watermark)
    }

    /// As [`Self::read`], up to the end of the log. For a coordinator that loads its state as a new leader:
    /// the high watermark may not have come to all that was acknowledged yet (`GroupMetadataManager`).
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_to_end(&self, topic: &str, partition: i32, offset: i64, bytes_max: u64) -> Result<Vec<u8>> {
        self.read_below(topic, partition, offset, bytes_max, Log::log_end_offset)
    }

    fn read_below(
        &self,
        topic: &str,
        partition: i32,
        offset: i64,
        bytes_max: u64,
        end: fn(&Log) -> i64,
    ) -> Result<Vec<u8>> {
        let partition = self.find(topic, partition)?;
        let read = |log: &Log| log.read(offset, bytes_max, end(log), true);
        let slice = self.shared.registry.read(&partition, read)?;
        Ok(slice.read_whole_batches()?)
    }
}
