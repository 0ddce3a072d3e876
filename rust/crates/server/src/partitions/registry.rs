//! Which partitions this server has, by name and by topic id, and who leads them.
//!
//! Read by every Produce and Fetch, changed only when Python decides so. Readers take the lock for one lookup and leave
//! with an `Arc`: a partition that is deleted meanwhile refuses what comes later by itself. Nothing here is on disk;
//! after a crash the loader finds the logs and Python registers the leaders again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::RwLock;

use logcore_storage::{Log, StorageError};

use crate::codes::ErrorCode;
use crate::log_lines::Fields;
use crate::metrics::{TOPIC_COUNTERS, TopicCounts};
use crate::partitions::purgatory::{HasWaitingRoom, WaitingRoom};
use crate::partitions::replicas::{Replica, Replicas};

/// A topic's id (KIP-516); all zeros when it has none.
pub type TopicId = [u8; 16];

/// The longest name a topic can have (`Topic.MAX_NAME_LENGTH`).
pub(crate) const TOPIC_NAME_MAX: usize = 249;

/// How a request names a topic.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TopicRef {
    Name(Arc<str>),
    Id(TopicId),
}

/// Who leads, and since which epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leadership {
    /// -1: nobody said yet.
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
    /// What goes in and out.
    pub(crate) counts: Arc<TopicCounts>,
    pub(crate) replicas: Arc<Replicas>,
    leadership: Arc<AtomicU64>,
    room: Arc<WaitingRoom>,
    /// Python was told that its log is offline.
    is_told_offline: AtomicBool,
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
            room: Arc::default(),
            is_told_offline: AtomicBool::default(),
        }
    }

    /// The same partition with another log: the one it had was moved to another directory. Who waits for it goes on waiting.
    pub(crate) fn with_log(&self, log: Arc<Log>) -> Self {
        Self { log, ..self.again() }
    }

    /// The same partition, which had no id yet.
    pub(crate) fn with_id(&self, topic_id: TopicId) -> Self {
        Self {
            topic_id,
            ..self.again()
        }
    }

    /// Shares everything.
    fn again(&self) -> Self {
        Self {
            topic: Arc::clone(&self.topic),
            topic_id: self.topic_id,
            index: self.index,
            log: Arc::clone(&self.log),
            counts: Arc::clone(&self.counts),
            replicas: Arc::clone(&self.replicas),
            leadership: Arc::clone(&self.leadership),
            room: Arc::clone(&self.room),
            is_told_offline: AtomicBool::default(),
        }
    }

    /// Whether its log is offline, and Python does not know yet.
    pub(crate) fn is_newly_offline(&self) -> bool {
        self.log.failure().is_some() && !self.is_told_offline.load(Ordering::Relaxed)
    }

    /// What a log line about it tells a machine.
    pub(crate) fn fields(&self) -> Fields {
        vec![
            ("topic", self.topic.to_string()),
            ("partition", self.index.to_string()),
        ]
    }

    pub(crate) fn leadership(&self) -> Leadership {
        Leadership::unpack(self.leadership.load(Ordering::Acquire))
    }

    /// Takes what Python says: who leads, and who the replicas are, of which `node_id` is this server. Whoever waits looks again.
    pub(crate) fn set_leadership(&self, leadership: Leadership, replicas: &[Replica], node_id: i32) {
        let leads = leadership.leader_id == node_id;
        if leads && leadership.epoch > self.leadership().epoch {
            self.log.begin_epoch(leadership.epoch);
        }
        self.replicas
            .set(replicas, node_id, leads, leadership.epoch, &self.log);
        self.leadership.store(leadership.pack(), Ordering::Release);
        self.room.wake_all();
    }

    /// Nobody leads it here any more: it was deleted.
    fn retire(&self) {
        let unknown = Leadership::UNKNOWN.pack();
        self.leadership.store(unknown, Ordering::Release);
        self.room.wake_all();
    }

    /// The leadership, if it is this server's and the caller knows of no other epoch (-1: it does not know any).
    ///
    /// # Errors
    /// KAFKA_STORAGE_ERROR of a log that is offline (`HostedPartition.Offline`); FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH or
    /// NOT_LEADER_OR_FOLLOWER, checked in Kafka's order (KIP-320).
    pub(crate) fn lead(&self, node_id: i32, known_epoch: i32) -> Result<Leadership, ErrorCode> {
        let leadership = self.serve(known_epoch)?;
        if leadership.leader_id == node_id {
            Ok(leadership)
        } else {
            Err(ErrorCode::NOT_LEADER_OR_FOLLOWER)
        }
    }

    /// [`Partition::lead`] for whoever may read from a follower, too (KIP-392).
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

/// As in a directory's name and in log lines.
impl fmt::Display for Partition {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}-{}", self.topic, self.index)
    }
}

impl HasWaitingRoom for Partition {
    fn waiting_room(&self) -> &WaitingRoom {
        &self.room
    }
}

struct Topic {
    id: TopicId,
    partitions: BTreeMap<i32, Arc<Partition>>,
}

/// What Python told of a topic that has partitions which are not here.
struct Elsewhere {
    id: TopicId,
    /// How many partitions it has in the cluster: their indexes are below.
    count: i32,
    /// Those that are this server's, whose logs could not be opened.
    offline: BTreeSet<i32>,
}

#[derive(Default)]
struct Tables {
    topics: HashMap<Arc<str>, Topic>,
    names: HashMap<TopicId, Arc<str>>,
    /// Topics all of whose partitions are here are not in it.
    elsewhere: HashMap<Arc<str>, Elsewhere>,
    /// Names of those by id.
    names_elsewhere: HashMap<TopicId, Arc<str>>,
    /// What the partitions counted that are gone.
    gone: TopicCounts,
}

impl Tables {
    /// A name that is too long for a topic is not looked up: a request may repeat it for every partition.
    fn topic(&self, name: &str) -> Option<&Topic> {
        if name.len() > TOPIC_NAME_MAX {
            return None;
        }
        self.topics.get(name)
    }

    /// Why a partition is not here.
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

/// The tables.
#[derive(Default)]
pub(crate) struct Registry(RwLock<Tables>);

impl Registry {
    /// A partition by its topic's name.
    pub(crate) fn find(&self, topic: &str, index: i32) -> Option<Arc<Partition>> {
        self.0.read().topic(topic)?.partitions.get(&index).cloned()
    }

    /// Why there is no partition to be found: UNKNOWN_TOPIC_OR_PARTITION; of one that the cluster has, KAFKA_STORAGE_ERROR if its log
    /// here could not be opened, NOT_LEADER_OR_FOLLOWER otherwise (`ReplicaManager.getPartitionOrError`).
    pub(crate) fn absence(&self, topic: &str, index: i32) -> ErrorCode {
        self.0.read().absence(topic, index)
    }

    /// Takes what the cluster has of a topic: so many partitions, and of this server's those whose logs could not be opened. What
    /// there is here was inserted before.
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

    /// The cluster has the topic no longer.
    pub(crate) fn forget_known(&self, topic: &str) {
        self.0.write().forget_elsewhere(topic);
    }

    /// A partition the way a request names it.
    ///
    /// # Errors
    /// Those of [`Registry::absence`], or UNKNOWN_TOPIC_ID for an id without a topic.
    pub(crate) fn resolve(&self, topic: &TopicRef, index: i32) -> Result<Arc<Partition>, ErrorCode> {
        let tables = self.0.read();
        let name = match topic {
            TopicRef::Name(name) => name,
            TopicRef::Id(id) => match tables.names.get(id) {
                Some(name) => name,
                None => {
                    // What is here by its name, if anything, is another topic's.
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

    /// The partition as it is now, if its log was moved to another directory since `place` was looked up.
    pub(crate) fn moved(&self, place: &Partition) -> Option<Arc<Partition>> {
        let found = self.find(&place.topic, place.index)?;
        let is_moved = !Arc::ptr_eq(&found.log, &place.log) && found.topic_id == place.topic_id;
        is_moved.then_some(found)
    }

    /// What `append` gives on a partition's log, or, when that was moved meanwhile, on the one that took its place.
    pub(crate) fn append<T>(
        &self,
        place: &Partition,
        mut append: impl FnMut(&Log) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        match append(&place.log) {
            // Nothing was written.
            Err(error @ StorageError::Closed { .. }) => match self.moved(place) {
                Some(moved) => append(&moved.log),
                None => Err(error),
            },
            done => done,
        }
    }

    /// Likewise what `read` gives.
    pub(crate) fn read<T>(
        &self,
        place: &Partition,
        read: impl Fn(&Log) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        read(&place.log).or_else(|error| match self.moved(place) {
            Some(moved) => read(&moved.log),
            None => Err(error),
        })
    }

    /// The id of a topic that has partitions here.
    pub(crate) fn topic_id(&self, topic: &str) -> Option<TopicId> {
        self.0.read().topics.get(topic).map(|topic| topic.id)
    }

    /// The topic's name as its partitions share it.
    pub(crate) fn name(&self, topic: &str) -> Arc<str> {
        let tables = self.0.read();
        let known = tables.topics.get_key_value(topic);
        known.map_or_else(|| Arc::from(topic), |(name, _)| Arc::clone(name))
    }

    /// Adds a partition. The caller has made sure that the topic has no other id.
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
        // It had none while its directories were those of an older Kafka.
        if topic.id == TopicId::default() {
            topic.id = partition.topic_id;
        }
        let before = topic.partitions.insert(partition.index, Arc::clone(&partition));
        // One whose log was moved goes on counting where it was.
        if let Some(before) = before.filter(|it| !Arc::ptr_eq(&it.counts, &partition.counts)) {
            partition.counts.absorb(&before.counts);
        }
    }

    /// Removes a topic and returns its partitions; long polls on them are woken.
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
            partition.retire();
        }
        Some(partitions)
    }

    /// The partitions of one topic, by rising index.
    pub(crate) fn topic(&self, topic: &str) -> Option<Vec<Arc<Partition>>> {
        let tables = self.0.read();
        Some(tables.topics.get(topic)?.partitions.values().cloned().collect())
    }

    /// Every partition, in no particular order of topics.
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
        let told = |place: &Arc<Partition>| place.is_told_offline.swap(true, Ordering::Relaxed);
        all.filter(|place| place.is_newly_offline() && !told(place))
            .cloned()
            .collect()
    }

    /// Every partition as above, and what those counted that are gone: together they never go back.
    pub(crate) fn all_and_gone(&self) -> (Vec<Arc<Partition>>, [u64; TOPIC_COUNTERS]) {
        let tables = self.0.read();
        let topics = tables.topics.values();
        let all = topics.flat_map(|topic| topic.partitions.values().cloned());
        (all.collect(), tables.gone.values())
    }
}
