//! Looking into the logs for a Fetch, and waiting until there are enough records.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use logcore_records::Compression;
use logcore_storage::{AbortedTxn, Log, LogSlice, StorageError};

use super::offload_if_long;
use super::versions::{FOLLOWERS_SINCE, ZSTD_SINCE, has_hard_limit, is_old};
use crate::control::facts::{ReplicaFact, ReplicaFactKind};
use crate::control::requests::ConnectionInfo;
use crate::log_lines::Level;
use crate::memory::budget::Permit;
use crate::metrics::Stages;
use crate::partitions::fetch_session::Wanted;
use crate::partitions::purgatory::{Attempt, HasWaiters, Wait};
use crate::partitions::registry::{Leadership, Partition, TopicRef};
use crate::partitions::replicas::FollowerFetch;
use crate::shared::Shared;
use logcore_protocol::ErrorCode;

/// The replica id of a consumer. Tools have other negative ids. Only replicas may read above the high
/// watermark.
pub(super) const CONSUMER: i32 = -1;

/// A Fetch that names more bytes of unknown partitions does not wait for records.
const UNKNOWN_BYTES_MAX: usize = 64 << 10;
/// The bytes of an unknown partition in a response, without its topic's name.
const UNKNOWN_EACH: usize = 64;

pub(super) struct Parameters {
    pub(super) version: i16,
    pub(super) replica_id: i32,
    /// The consumer's rack. Empty if it does not say.
    pub(super) rack: String,
    pub(super) connection: Arc<ConnectionInfo>,
    /// How long it may wait for `bytes_min`.
    pub(super) wait: Duration,
    pub(super) bytes_min: u64,
    /// For all partitions together. The first batch is sent whole even if it is larger (KIP-74).
    pub(super) bytes_max: u64,
    pub(super) committed: bool,
}

/// The result of a look at one partition.
pub(super) struct Found {
    pub(super) partition: Arc<Partition>,
    pub(super) high_watermark: i64,
    pub(super) last_stable_offset: i64,
    pub(super) log_start_offset: i64,
    log_end_offset: i64,
    /// The epoch in which this server answers.
    leader_epoch: i32,
    /// Never empty.
    pub(super) slice: Option<LogSlice>,
    /// The converted messages, for a client that knows no batches.
    pub(super) messages: Option<Bytes>,
    /// The replica from which the consumer should read instead.
    pub(super) preferred: Option<i32>,
    /// A later segment has more records, which this read does not include.
    is_behind: bool,
    /// The point at which the client's log diverged from this one: the largest common epoch, and its end here
    /// (KIP-595).
    pub(super) diverging: Option<(i32, i64)>,
    /// For a reader of committed records, the aborted transactions that may be in the slice. An empty list
    /// differs from none.
    pub(super) aborted: Option<Vec<AbortedTxn>>,
}

pub(super) struct Refused {
    pub(super) code: ErrorCode,
    /// The current leader, if that is the reason.
    pub(super) leader: Option<Leadership>,
}

impl Refused {
    /// Whether this broker does not know the partition. In a response these come last, as in Kafka.
    pub(super) fn is_unknown(&self) -> bool {
        matches!(
            self.code,
            ErrorCode::UNKNOWN_TOPIC_OR_PARTITION | ErrorCode::UNKNOWN_TOPIC_ID
        )
    }
}

impl From<ErrorCode> for Refused {
    fn from(code: ErrorCode) -> Self {
        Self { code, leader: None }
    }
}

pub(super) type Look = Result<Found, Refused>;

impl Parameters {
    /// Reduces the bytes to read, and the bytes to wait for.
    pub(super) fn limit(&mut self, bytes_max: u64) {
        self.bytes_max = self.bytes_max.min(bytes_max);
        self.bytes_min = self.bytes_min.min(self.bytes_max);
    }

    /// Looks at every partition. If there is too little and no error, waits for appends and looks again. It
    /// needs the permit `work` for a look and its result, and another one to wait. A request keeps its
    /// unknown names while it waits, so one with many of them does not wait.
    pub(super) async fn look_or_wait(
        &self,
        shared: &Shared,
        wanted: &[Wanted],
        work: Permit,
        stages: &mut Stages,
    ) -> (Permit, Vec<Look>) {
        let looks = self.look(shared, wanted);
        self.note_fetches(shared, wanted, &looks);
        let unknown = count_unknown(&looks);
        if self.wait.is_zero()
            || unknown == wanted.len()
            || unknown_bytes(wanted, &looks) > UNKNOWN_BYTES_MAX
            || self.missing(&looks, unknown).is_none()
        {
            return (work, looks);
        }
        let waiting = match shared.budgets.fetch_purgatory.acquire_or_refuse(wanted.len()) {
            Ok(permit) => permit,
            Err(reason) => {
                let key = "fetches that cannot wait";
                shared.lines.push_limited(Level::Warning, key, reason);
                return (work, looks);
            }
        };
        drop((looks, work));
        let partitions = wanted
            .iter()
            .filter_map(|wanted| shared.registry.resolve(&wanted.topic, wanted.index).ok());
        let wait = Wait {
            kind: &shared.purgatory.fetch,
            timeout: self.wait,
            bytes: self.bytes_min,
            stopping: shared.stopping.subscribe(),
        };
        let look = || {
            let result = self.look(shared, wanted);
            let missing = self.missing(&result, unknown);
            Attempt { result, missing }
        };
        let work = || shared.budgets.fetch_work.acquire(wanted.len());
        let began = Instant::now();
        let found = wait.until_in(work, partitions.collect(), look).await;
        stages.remote = began.elapsed();
        drop(waiting);
        found
    }

    pub(super) fn is_follower(&self) -> bool {
        self.replica_id >= 0
    }

    /// A follower's fetch offset shows its position, so the high watermark may rise.
    fn note_fetches(&self, shared: &Shared, wanted: &[Wanted], looks: &[Look]) {
        if !self.is_follower() {
            return;
        }
        let at = Instant::now();
        let mut facts = Vec::new();
        for (wanted, look) in wanted.iter().zip(looks) {
            let Ok(Found {
                diverging: None,
                partition,
                leader_epoch,
                log_end_offset,
                ..
            }) = look
            else {
                continue;
            };
            let fetch = FollowerFetch {
                id: self.replica_id,
                leader_epoch: *leader_epoch,
                offset: wanted.offset,
                log_start: wanted.log_start_offset,
                leader_end: *log_end_offset,
                at,
            };
            let rules = &shared.replica_rules;
            let noted = partition.replicas.note_fetch(&fetch, &partition.log, rules);
            if noted.raised {
                partition.waiters().wake_all();
            }
            if noted.caught_up {
                facts.push(ReplicaFact {
                    topic: partition.topic.to_string(),
                    partition: partition.index,
                    leader_epoch: *leader_epoch,
                    broker: self.replica_id,
                    kind: ReplicaFactKind::CaughtUp,
                });
            }
        }
        shared.replica_facts.add(facts);
    }

    /// The missing bytes. `None` if the response can be sent. As in Kafka, partitions that were `unknown` at
    /// first do not end the wait; otherwise a client that requests them again and again would never wait.
    fn missing(&self, looks: &[Look], unknown: usize) -> Option<u64> {
        let mut bytes = 0;
        if unknown > 0 && count_unknown(looks) > unknown {
            return None;
        }
        for look in looks {
            match look {
                Ok(Found {
                    diverging: None,
                    preferred: None,
                    is_behind: false,
                    slice,
                    ..
                }) => bytes += slice.as_ref().map_or(0, |slice| slice.len),
                Err(refused) if unknown > 0 && refused.is_unknown() => {}
                _ => return None,
            }
        }
        self.bytes_min.checked_sub(bytes).filter(|missing| *missing > 0)
    }

    fn look(&self, shared: &Shared, wanted: &[Wanted]) -> Vec<Look> {
        offload_if_long(wanted.len(), || self.look_at_each(shared, wanted))
    }

    fn look_at_each(&self, shared: &Shared, wanted: &[Wanted]) -> Vec<Look> {
        let mut left = self.bytes_max;
        let mut nothing_yet = true;
        let mut others = wanted.len() as u64;
        let look = |wanted: &Wanted| {
            // Clients before KIP-74 always list the partitions in one order, so each partition gets a part.
            let (part, min_one) = if has_hard_limit(self.version) {
                (left / others.max(1), left > 0)
            } else {
                (left, nothing_yet)
            };
            others -= 1;
            let look = self.look_at(shared, wanted, part, min_one);
            if let Ok(Found {
                slice: Some(slice), ..
            }) = &look
            {
                left = left.saturating_sub(slice.len);
                nothing_yet = false;
            }
            look
        };
        wanted.iter().map(look).collect()
    }

    fn look_at(&self, shared: &Shared, wanted: &Wanted, left: u64, min_one: bool) -> Look {
        let partition = resolve(shared, wanted)?;
        let look = self.look_into(shared, &partition, wanted, left, min_one);
        look.or_else(|refused| match shared.registry.moved(&partition) {
            // The log was moved to another directory in between.
            Some(moved) => self.look_into(shared, &moved, wanted, left, min_one),
            None => Err(refused),
        })
    }

    fn look_into(
        &self,
        shared: &Shared,
        partition: &Arc<Partition>,
        wanted: &Wanted,
        left: u64,
        min_one: bool,
    ) -> Look {
        if let Some(preferred) = self.preferred(shared, partition, wanted)? {
            return Ok(Found {
                preferred: Some(preferred),
                ..found_nothing(Arc::clone(partition))
            });
        }
        let leadership = self.check(shared, partition, wanted)?;
        if let Some(diverging) = diverging(partition, wanted)? {
            return Ok(Found {
                diverging: Some(diverging),
                ..found_nothing(Arc::clone(partition))
            });
        }
        let mut found = self.read(shared, Arc::clone(partition), wanted, left, min_one)?;
        if self.is_held_back(shared, partition) {
            (found.slice, found.is_behind) = (None, false);
        }
        Ok(Found {
            leader_epoch: leadership.epoch,
            ..found
        })
    }

    /// Whether a throttled follower gets no records now (`ReplicaManager.shouldLeaderThrottle`).
    fn is_held_back(&self, shared: &Shared, partition: &Partition) -> bool {
        self.is_follower()
            && partition.is_throttled_leader()
            && shared.replication_quotas.leader.exceeded_for().is_some()
            && !partition.replicas.is_in_sync(self.replica_id)
    }

    /// The replica from which the consumer should read instead, if this server leads and another replica is
    /// nearer.
    fn preferred(
        &self,
        shared: &Shared,
        partition: &Partition,
        wanted: &Wanted,
    ) -> Result<Option<i32>, Refused> {
        let asks = self.version >= FOLLOWERS_SINCE && !self.is_follower();
        if !asks || self.rack.is_empty() || !shared.config.rack_aware_selector {
            return Ok(None);
        }
        if partition.leadership().leader_id != shared.node_id {
            return Ok(None);
        }
        let listener = &self.connection.listener;
        let replicas = &partition.replicas;
        let Some(preferred) = replicas.preferred(&self.rack, listener, wanted.offset) else {
            return Ok(None);
        };
        let epoch = wanted.current_leader_epoch;
        partition.serve(epoch).map_err(|code| refused(partition, code))?;
        Ok(Some(preferred))
    }

    /// Whether this server may answer. Consumers since version 11 may read from followers, all others from
    /// the leader only.
    fn check(&self, shared: &Shared, partition: &Partition, wanted: &Wanted) -> Result<Leadership, Refused> {
        let epoch = wanted.current_leader_epoch;
        let from_leader = self.is_follower() || self.version < FOLLOWERS_SINCE;
        let served = if from_leader {
            partition.lead(shared.node_id, epoch)
        } else {
            partition.serve(epoch)
        };
        let leadership = served.map_err(|code| refused(partition, code))?;
        if self.is_follower() && !partition.replicas.is_follower(self.replica_id) {
            // The other broker or this one has an old list of replicas. With the same epoch, it is this one.
            return Err(if epoch >= 0 {
                ErrorCode::UNKNOWN_LEADER_EPOCH.into()
            } else {
                refused(partition, ErrorCode::NOT_LEADER_OR_FOLLOWER)
            });
        }
        if self.version < ZSTD_SINCE && partition.log.config().compression == Some(Compression::Zstd) {
            return Err(ErrorCode::UNSUPPORTED_COMPRESSION_TYPE.into());
        }
        let converted = is_old(self.version) && !self.is_follower();
        if converted && !partition.log.config().downconversion {
            return Err(ErrorCode::UNSUPPORTED_VERSION.into());
        }
        Ok(leadership)
    }

    fn read(
        &self,
        shared: &Shared,
        partition: Arc<Partition>,
        wanted: &Wanted,
        left: u64,
        min_one: bool,
    ) -> Look {
        let log = &partition.log;
        let (high_watermark, last_stable_offset) = (log.high_watermark(), log.last_stable_offset());
        let log_end_offset = log.log_end_offset();
        let upper_bound = match (self.is_follower(), self.committed) {
            (true, _) => log_end_offset,
            (false, true) => last_stable_offset,
            (false, false) => high_watermark,
        };
        let bytes_max = wanted.bytes_max.min(left);
        let find = || log.read(wanted.offset, bytes_max, upper_bound, min_one);
        // An index may have to be opened or rebuilt, which is offloaded.
        let at_hand = wanted.offset >= upper_bound || log.has_open_index(wanted.offset);
        let slice = if at_hand {
            find()
        } else {
            tokio::task::block_in_place(find)
        };
        let slice = slice.map_err(|error| failed(shared, &partition, &error))?;
        // A part of a batch is useless.
        let slice = Some(slice).filter(|slice| !slice.is_empty() && slice.len >= slice.first_batch_len);
        let committed = self.committed && !self.is_follower();
        let aborted = match &slice {
            Some(slice) if committed => {
                let aborted = aborted_in(log, wanted.offset, slice);
                Some(aborted.map_err(|error| failed(shared, &partition, &error))?)
            }
            // For a batch that does not fit, Kafka leaves out the transactions, too
            // (`ReplicaManager.readFromLog`).
            _ if wanted.offset < upper_bound && bytes_max > 0 => None,
            _ => committed.then(Vec::new),
        };
        let bytes = slice.as_ref().map_or(0, |slice| slice.len);
        Ok(Found {
            high_watermark,
            last_stable_offset,
            log_start_offset: log.log_start_offset(),
            log_end_offset,
            leader_epoch: -1,
            is_behind: bytes < self.bytes_min && log.is_in_older_segment(wanted.offset, upper_bound),
            slice,
            messages: None,
            preferred: None,
            diverging: None,
            aborted,
            partition,
        })
    }
}

/// The aborted transactions of a slice. Reading them from the disk is offloaded.
fn aborted_in(log: &Log, offset: i64, slice: &LogSlice) -> Result<Vec<AbortedTxn>, StorageError> {
    let aborted = || log.aborted_in(offset, slice);
    if log.has_aborted_in_memory(offset, slice) {
        aborted()
    } else {
        tokio::task::block_in_place(aborted)
    }
}

fn count_unknown(looks: &[Look]) -> usize {
    let unknown = |look: &&Look| look.as_ref().is_err_and(Refused::is_unknown);
    looks.iter().filter(unknown).count()
}

/// Roughly the bytes of unknown partitions in a response.
pub(super) fn unknown_bytes(wanted: &[Wanted], looks: &[Look]) -> usize {
    let all = wanted.iter().zip(looks);
    let unknown = all.filter(|(_, look)| look.as_ref().is_err_and(Refused::is_unknown));
    let bytes = unknown.map(|(wanted, _)| match &wanted.topic {
        TopicRef::Name(name) => UNKNOWN_EACH + name.len(),
        TopicRef::Id(_) => UNKNOWN_EACH,
    });
    bytes.sum()
}

/// The partition. If the topic of a session was deleted and created again, its old id gets
/// INCONSISTENT_TOPIC_ID.
fn resolve(shared: &Shared, wanted: &Wanted) -> Result<Arc<Partition>, ErrorCode> {
    let found = shared.registry.resolve(&wanted.topic, wanted.index);
    match (&wanted.topic, &wanted.name, found) {
        (TopicRef::Id(_), Some(name), Err(ErrorCode::UNKNOWN_TOPIC_ID)) => {
            Err(match shared.registry.find(name, wanted.index) {
                Some(_) => ErrorCode::INCONSISTENT_TOPIC_ID,
                None => shared.registry.absence(name, wanted.index),
            })
        }
        (_, _, found) => found,
    }
}

/// A result with the offsets and no records.
fn found_nothing(partition: Arc<Partition>) -> Found {
    let log = &partition.log;
    Found {
        high_watermark: log.high_watermark(),
        last_stable_offset: log.last_stable_offset(),
        log_start_offset: log.log_start_offset(),
        log_end_offset: log.log_end_offset(),
        leader_epoch: -1,
        slice: None,
        messages: None,
        preferred: None,
        is_behind: false,
        diverging: None,
        aborted: None,
        partition,
    }
}

/// The refusal, with the current leader if the client asked another broker or knows an older leader.
fn refused(partition: &Partition, code: ErrorCode) -> Refused {
    let has_leader = matches!(
        code,
        ErrorCode::NOT_LEADER_OR_FOLLOWER | ErrorCode::FENCED_LEADER_EPOCH
    );
    Refused {
        code,
        leader: has_leader.then(|| partition.leadership()),
    }
}

/// Whether the client's last record is not in this log.
fn diverging(partition: &Partition, wanted: &Wanted) -> Result<Option<(i32, i64)>, Refused> {
    if wanted.last_fetched_epoch < 0 {
        return Ok(None);
    }
    let end = partition.log.epoch_end_offset(wanted.last_fetched_epoch);
    let (epoch, end) = end.ok_or(ErrorCode::OFFSET_OUT_OF_RANGE)?;
    if wanted.offset < partition.log.log_start_offset() {
        return Err(ErrorCode::OFFSET_OUT_OF_RANGE.into());
    }
    Ok((epoch < wanted.last_fetched_epoch || end < wanted.offset).then_some((epoch, end)))
}

fn failed(shared: &Shared, partition: &Partition, error: &StorageError) -> Refused {
    let what = format_args!("Fetch of {partition} failed");
    shared.storage_error(what, Some(partition), error).into()
}
