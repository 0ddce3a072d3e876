//! The partitions of this server, by topic name and by topic id, with their leaders.
//!
//! Every Produce and Fetch reads the registry. Only Python's decisions change it. A reader holds the lock for
//! one lookup and gets an `Arc`. A partition that is deleted meanwhile refuses later requests itself. Nothing
//! is on disk: after a crash the loader finds the logs, and Python registers the leaders again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use parking_lot::RwLock;

use logcore_storage::{Log, StorageError};

use crate::log_lines::Fields;
use crate::metrics::{TOPIC_COUNTERS, TopicCounts};
use crate::partitions::purgatory::{HasWaiters, Waiters};
use crate::partitions::replicas::{Assignment, ReplicaRules, Replicas};
use logcore_protocol::ErrorCode;

/// A topic's id (KIP-516), all zeros if it has none.
pub type TopicId = [u8; 16];

/// The longest topic name (`Topic.MAX_NAME_LENGTH`).
pub(crate) const TOPIC_NAME_MAX: usize = 249;

/// How a request names a topic.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TopicRef {
    Name(Arc<str>),
    Id(TopicId),
}

/// The leader of a partition, and its epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leadership {
    /// -1 until Python sets it.
    pub(crate) leader_id: i32,
    pub(crate) epoch: i32,
}

impl Leadership {
    const UNKNOWN: Self = Self {
        leader_id: -1,
        epoch: -1,
    };

    fn pack(self) -> u64 {
        u64::from(self.leader_id as u32) << 32 | u64::from(self.epoch as u32)
    }

    fn unpack(packed: u64) -> Self {
        Self {
            leader_id: (packed >> 32) as i32,
            epoch: packed as u32 as i32,
        }
    }
}

/// One replica on this server.
pub(crate) struct Partition {
    pub(crate) topic: Arc<str>,
    pub(crate) topic_id: TopicId,
    pub(crate) index: i32,
    pub(crate) log: Arc<Log>,
    pub(crate) counts: Arc<TopicCounts>,
    pub(crate) replicas: Arc<Replicas>,
    leadership: Arc<AtomicU64>,
    /// Held by appends of the leader, and to change the leadership.
    role: Arc<RwLock<()>>,
    /// The epoch since which this server leads without interruption. Meaningless while it does not lead.
    led_since: Arc<AtomicI32>,
    /// See [`Partition::set_throttled`].
    throttled: Arc<[AtomicBool; 2]>,
    waiters: Arc<Waiters>,
    /// Its last append as the leader was refused for lack of space.
    lacks_space: Arc<AtomicBool>,
    is_reported_offline: AtomicBool,
}

impl Partition {
    pub(crate) fn new(topic: Arc<str>, topic_id: TopicId, index: i32, log: Arc<Log>) -> Self {
        Self {
            topic,
            topic_id,
            index,
            log,
            counts: Arc::default(),
            replicas: Arc::default(),
            leadership: Arc::new(AtomicU64::new(Leadership::UNKNOWN.pack())),
            role: Arc::default(),
            led_since: Arc::default(),
            throttled: Arc::default(),
            waiters: Arc::default(),
            lacks_space: Arc::default(),
            is_reported_offline: AtomicBool::default(),
        }
    }

    /// The partition with the log that replaces its own in another directory. Its waiters go on waiting.
    pub(crate) fn with_log(&self, log: Arc<Log>) -> Self {
        Self { log, ..self.share() }
    }

    /// The partition with an id, which it did not have yet.
    pub(crate) fn with_id(&self, topic_id: TopicId) -> Self {
        Self {
            topic_id,
            ..self.share()
        }
    }

    fn share(&self) -> Self {
        Self {
            topic: Arc::clone(&self.topic),
            topic_id: self.topic_id,
            index: self.index,
            log: Arc::clone(&self.log),
            counts: Arc::clone(&self.counts),
            replicas: Arc::clone(&self.replicas),
            leadership: Arc::clone(&self.leadership),
            role: Arc::clone(&self.role),
            led_since: Arc::clone(&self.led_since),
            throttled: Arc::clone(&self.throttled),
            waiters: Arc::clone(&self.waiters),
            lacks_space: Arc::clone(&self.lacks_space),
            is_reported_offline: AtomicBool::default(),
        }
    }

    /// Whether this server's replica is throttled as the leader, and as a follower (KIP-73).
    pub(crate) fn set_throttled(&self, (as_leader, as_follower): (bool, bool)) {
        self.throttled[0].store(as_leader, Ordering::Relaxed);
        self.throttled[1].store(as_follower, Ordering::Relaxed);
    }

    pub(crate) fn is_throttled_leader(&self) -> bool {
        self.throttled[0].load(Ordering::Relaxed)
    }

    pub(crate) fn is_throttled_follower(&self) -> bool {
        self.throttled[1].load(Ordering::Relaxed)
    }

    /// Whether its log is offline and that was not reported yet.
    pub(crate) fn is_newly_offline(&self) -> bool {
        self.log.failure().is_some() && !self.is_reported_offline.load(Ordering::Relaxed)
    }

    pub(crate) fn set_lacks_space(&self, lacks: bool) {
        self.lacks_space.store(lacks, Ordering::Relaxed);
    }

    pub(crate) fn lacks_space(&self) -> bool {
        self.lacks_space.load(Ordering::Relaxed)
    }

    pub(crate) fn fields(&self) -> Fields {
        vec![
            ("topic", self.topic.to_string()),
            ("partition", self.index.to_string()),
        ]
    }

    pub(crate) fn leadership(&self) -> Leadership {
        Leadership::unpack(self.leadership.load(Ordering::Acquire))
    }

    /// Sets the leader and the replicas. Waits for appends that have begun. Waiting requests look again.
    pub(crate) fn set_leadership(
        &self,
        leadership: Leadership,
        assignment: &Assignment<'_>,
        rules: &ReplicaRules,
    ) {
        let role = self.role.write();
        let before = self.leadership();
        let leads = assignment.leads;
        if leads && leadership.epoch > before.epoch {
            self.log.begin_epoch(leadership.epoch);
        }
        if leads && before.leader_id != assignment.node_id {
            self.led_since.store(leadership.epoch, Ordering::Release);
        }
        self.replicas.set(assignment, &self.log, rules);
        self.leadership.store(leadership.pack(), Ordering::Release);
        drop(role);
        self.waiters.wake_all();
    }

    /// The partition has no leader here any more: it was deleted, or this server stopped serving it.
    pub(crate) fn retire(&self, epoch: i32) {
        let role = self.role.write();
        let leadership = Leadership {
            epoch,
            ..Leadership::UNKNOWN
        };
        self.leadership.store(leadership.pack(), Ordering::Release);
        drop(role);
        self.waiters.wake_all();
    }

    /// Calls `append` if this server still has this leadership, which does not change meanwhile.
    pub(crate) fn while_leading<T>(&self, leadership: Leadership, append: impl FnOnce() -> T) -> Option<T> {
        let _role = self.role.read();
        (self.leadership() == leadership).then(append)
    }

    /// The epoch since which this server leads without interruption. A record that was appended under another
    /// one may have been truncated since.
    pub(crate) fn led_since(&self) -> i32 {
        self.led_since.load(Ordering::Acquire)
    }

    /// The leadership, if this server leads and the client knows the same epoch, or none (-1).
    ///
    /// # Errors
    /// KAFKA_STORAGE_ERROR if the log is offline (`HostedPartition.Offline`); else FENCED_LEADER_EPOCH,
    /// UNKNOWN_LEADER_EPOCH or NOT_LEADER_OR_FOLLOWER, in Kafka's order (KIP-320).
    pub(crate) fn lead(&self, node_id: i32, known_epoch: i32) -> Result<Leadership, ErrorCode> {
        let leadership = self.serve(known_epoch)?;
        if leadership.leader_id == node_id {
            Ok(leadership)
        } else {
            Err(ErrorCode::NOT_LEADER_OR_FOLLOWER)
        }
    }

    /// As [`Partition::lead`], for clients that may also read from a follower (KIP-392).
    pub(crate) fn serve(&self, known_epoch: i32) -> Result<Leadership, ErrorCode> {
        let leadership = self.leadership();
        if self.log.failure().is_some() {
            Err(ErrorCode::KAFKA_STORAGE_ERROR)
        } else if known_epoch >= 0 && known_epoch < leadership.epoch {
            Err(ErrorCode::FENCED_LEADER_EPOCH)
        } else if known_epoch >= 0 && known_epoch > leadership.epoch {
            Err(ErrorCode::UNKNOWN_LEADER_EPOCH)
        } else if leadership.epoch < 0 {
            Err(ErrorCode::NOT_LEADER_OR_FOLLOWER)
        } else {
            Ok(leadership)
        }
    }
}

/// As in the names of directories and in log lines.
impl fmt::Display for Partition {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}-{}", self.topic, self.index)
    }
}

impl HasWaiters for Partition {
    fn waiters(&self) -> &Waiters {
        &self.waiters
    }
}

struct Topic {
    id: TopicId,
    partitions: BTreeMap<i32, Arc<Partition>>,
}

/// A topic with partitions that are not here.
struct Elsewhere {
    id: TopicId,
    count: i32,
    /// This server's partitions whose logs could not be opened.
    offline: BTreeSet<i32>,
}

#[derive(Default)]
struct Tables {
    topics: HashMap<Arc<str>, Topic>,
    names: HashMap<TopicId, Arc<str>>,
    /// Without the topics that have all their partitions here.
    elsewhere: HashMap<Arc<str>, Elsewhere>,
    /// Their names by id.
    names_elsewhere: HashMap<TopicId, Arc<str>>,
    /// The counts of deleted partitions.
    gone: TopicCounts,
}

impl Tables {
    /// A name that is too long for a topic is not hashed: a request may repeat it for every partition.
    fn topic(&self, name: &str) -> Option<&Topic> {
        if name.len() > TOPIC_NAME_MAX {
            return None;
        }
        self.topics.get(name)
    }

    fn absence(&self, topic: &str, index: i32) -> ErrorCode {
        let known = match topic.len() {
            ..=TOPIC_NAME_MAX => self.elsewhere.get(topic),
            _ => None,
        };
        match known {
            Some(topic) if topic.offline.contains(&index) => ErrorCode::KAFKA_STORAGE_ERROR,
            Some(topic) if (0..topic.count).contains(&index) => ErrorCode::NOT_LEADER_OR_FOLLOWER,
            _ => ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
        }
    }

    fn forget_elsewhere(&mut self, topic: &str) {
        if let Some(known) = self.elsewhere.remove(topic) {
            self.names_elsewhere.remove(&known.id);
        }
    }
}

#[derive(Default)]
pub(crate) struct Registry(RwLock<Tables>);

impl Registry {
    pub(crate) fn find(&self, topic: &str, index: i32) -> Option<Arc<Partition>> {
        self.0.read().topic(topic)?.partitions.get(&index).cloned()
    }

    /// The error code for a partition that is not here (`ReplicaManager.getPartitionOrError`). For a
    /// partition of the cluster it is KAFKA_STORAGE_ERROR if its log here could not be opened, and
    /// NOT_LEADER_OR_FOLLOWER otherwise. For any other partition it is UNKNOWN_TOPIC_OR_PARTITION.
    pub(crate) fn absence(&self, topic: &str, index: i32) -> ErrorCode {
        self.0.read().absence(topic, index)
    }

    /// Sets the number of a topic's partitions, and those of this server whose logs could not be opened. To
    /// be called after the partitions here were inserted.
    pub(crate) fn set_known(&self, topic: &str, id: TopicId, count: i32, offline: BTreeSet<i32>) {
        let mut tables = self.0.write();
        tables.forget_elsewhere(topic);
        let here = tables
            .topic(topic)
            .map_or(0, |topic| topic.partitions.range(0..count.max(0)).count());
        if usize::try_from(count).is_ok_and(|count| here == count) {
            return;
        }
        let name = match tables.topics.get_key_value(topic) {
            Some((name, _)) => Arc::clone(name),
            None => Arc::from(topic),
        };
        if id != TopicId::default() {
            tables.names_elsewhere.insert(id, Arc::clone(&name));
        }
        let known = Elsewhere { id, count, offline };
        tables.elsewhere.insert(name, known);
    }

    pub(crate) fn forget_known(&self, topic: &str) {
        self.0.write().forget_elsewhere(topic);
    }

    /// A partition by a request's topic name or id.
    ///
    /// # Errors
    /// As [`Registry::absence`], or UNKNOWN_TOPIC_ID for an unknown id.
    pub(crate) fn resolve(&self, topic: &TopicRef, index: i32) -> Result<Arc<Partition>, ErrorCode> {
        let tables = self.0.read();
        let name = match topic {
            TopicRef::Name(name) => name,
            TopicRef::Id(id) => match tables.names.get(id) {
                Some(name) => name,
                None => {
                    // A partition of this name here would be another topic's.
                    let name = tables.names_elsewhere.get(id);
                    let name = name.ok_or(ErrorCode::UNKNOWN_TOPIC_ID)?;
                    return Err(tables.absence(name, index));
                }
            },
        };
        tables
            .topic(name)
            .and_then(|topic| topic.partitions.get(&index))
            .cloned()
            .ok_or_else(|| tables.absence(name, index))
    }

    /// The current partition, if its log was moved to another directory since `partition` was found.
    pub(crate) fn moved(&self, partition: &Partition) -> Option<Arc<Partition>> {
        let found = self.find(&partition.topic, partition.index)?;
        let is_moved = !Arc::ptr_eq(&found.log, &partition.log) && found.topic_id == partition.topic_id;
        is_moved.then_some(found)
    }

    /// Calls `append` on the partition's log, or on its replacement if the log was moved meanwhile.
    pub(crate) fn append<T>(
        &self,
        partition: &Partition,
        mut append: impl FnMut(&Log) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        match append(&partition.log) {
            // Nothing was written.
            Err(error @ StorageError::Closed { .. }) => match self.moved(partition) {
                Some(moved) => append(&moved.log),
                None => Err(error),
            },
            done => done,
        }
    }

    /// Calls `read` on the partition's log, or on its replacement if the log was moved meanwhile.
    pub(crate) fn read<T>(
        &self,
        partition: &Partition,
        read: impl Fn(&Log) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        read(&partition.log).or_else(|error| match self.moved(partition) {
            Some(moved) => read(&moved.log),
            None => Err(error),
        })
    }

    pub(crate) fn topic_id(&self, topic: &str) -> Option<TopicId> {
        self.0.read().topics.get(topic).map(|topic| topic.id)
    }

    pub(crate) fn name(&self, topic: &str) -> Arc<str> {
        let tables = self.0.read();
        let known = tables.topics.get_key_value(topic);
        known.map_or_else(|| Arc::from(topic), |(name, _)| Arc::clone(name))
    }

    /// Adds a partition. The caller has checked that the topic has no other id.
    pub(crate) fn insert(&self, partition: Arc<Partition>) {
        let mut tables = self.0.write();
        if partition.topic_id != TopicId::default() {
            tables
                .names
                .insert(partition.topic_id, Arc::clone(&partition.topic));
        }
        let topic = tables
            .topics
            .entry(Arc::clone(&partition.topic))
            .or_insert(Topic {
                id: partition.topic_id,
                partitions: BTreeMap::new(),
            });
        // The directories of an older Kafka have no topic id.
        if topic.id == TopicId::default() {
            topic.id = partition.topic_id;
        }
        let before = topic.partitions.insert(partition.index, Arc::clone(&partition));
        // A partition whose log was moved shares its counters.
        if let Some(before) = before.filter(|it| !Arc::ptr_eq(&it.counts, &partition.counts)) {
            partition.counts.absorb(&before.counts);
        }
    }

    /// Removes a topic, wakes the waiters of its partitions, and returns them.
    pub(crate) fn remove_topic(&self, topic: &str) -> Option<Vec<Arc<Partition>>> {
        let mut tables = self.0.write();
        let removed = tables.topics.remove(topic)?;
        tables.names.remove(&removed.id);
        for partition in removed.partitions.values() {
            tables.gone.absorb(&partition.counts);
        }
        drop(tables);
        let partitions: Vec<_> = removed.partitions.into_values().collect();
        for partition in &partitions {
            partition.retire(Leadership::UNKNOWN.epoch);
        }
        Some(partitions)
    }

    /// Removes a partition and wakes its waiters. Returns whether its topic has none left here.
    pub(crate) fn remove_partition(&self, topic: &str, index: i32) -> bool {
        let mut tables = self.0.write();
        let Some(found) = tables.topics.get_mut(topic) else {
            return true;
        };
        let removed = found.partitions.remove(&index);
        let (id, is_last) = (found.id, found.partitions.is_empty());
        if is_last {
            tables.topics.remove(topic);
            tables.names.remove(&id);
        }
        if let Some(removed) = &removed {
            tables.gone.absorb(&removed.counts);
        }
        drop(tables);
        if let Some(removed) = removed {
            removed.retire(Leadership::UNKNOWN.epoch);
        }
        is_last
    }

    pub(crate) fn topic(&self, topic: &str) -> Option<Vec<Arc<Partition>>> {
        let tables = self.0.read();
        Some(tables.topics.get(topic)?.partitions.values().cloned().collect())
    }

    pub(crate) fn all(&self) -> Vec<Arc<Partition>> {
        let tables = self.0.read();
        let topics = tables.topics.values();
        topics
            .flat_map(|topic| topic.partitions.values().cloned())
            .collect()
    }

    /// The partitions whose logs went offline since the last call.
    pub(crate) fn newly_offline(&self) -> Vec<Arc<Partition>> {
        let tables = self.0.read();
        let topics = tables.topics.values();
        let all = topics.flat_map(|topic| topic.partitions.values());
        let was_reported =
            |partition: &Arc<Partition>| partition.is_reported_offline.swap(true, Ordering::Relaxed);
        all.filter(|partition| partition.is_newly_offline() && !was_reported(partition))
            .cloned()
            .collect()
    }

    /// Every partition, and the counts of deleted ones. Their sum never decreases.
    pub(crate) fn all_and_gone(&self) -> (Vec<Arc<Partition>>, [u64; TOPIC_COUNTERS]) {
        let tables = self.0.read();
        let topics = tables.topics.values();
        let all = topics.flat_map(|topic| topic.partitions.values().cloned());
        (all.collect(), tables.gone.values())
    }
}
