//! The server's interface to its owner: open, start, change, stop.
//!
//! All methods may be called from any thread. Those that may block say so. The connections run on the
//! server's own runtime, whose threads end with it.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use logcore_protocol::ErrorCode;
use logcore_storage::LogConfig;
use parking_lot::{Mutex, RwLock};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};

use crate::config::{DynamicConfig, Properties, ServerConfig, ServerOptions};
use crate::connections::listener::{self, ListenerSpec};
use crate::control::facts::{ReplicaFact, ReplicaFacts};
use crate::control::failures::{Failed, Failures};
use crate::control::replicated::ReplicatedAppends;
use crate::control::requests::{ControlQueue, ControlRequest};
use crate::control::verifications::{VerificationQuestion, Verifications};
use crate::descriptors::{Descriptors, logs_left_by_mappings, mapping_limit};
use crate::error::{Result, ServerError};
use crate::features::Features;
use crate::housekeeping::Housekeeping;
use crate::housekeeping::moves::Moves;
use crate::log_lines::{LogLine, LogLines};
use crate::measurements::Measurements;
use crate::memory::Budgets;
use crate::memory::frames::FrameMemory;
use crate::metrics::{Idle, Metrics};
use crate::net::busy_poll::BusyPoll;
use crate::partitions::fetch_session::FetchSessions;
use crate::partitions::logs::{Logs, offline};
use crate::partitions::purgatory::{HasWaiters, Purgatory};
use crate::partitions::registry::{Leadership, Partition, Registry, TopicId};
use crate::partitions::replicas::{Assignment, Isr, Replica, ReplicaRules};
use crate::quotas::{ClientQuota, ClientQuotas, ConnectionQuotas, ReplicationQuotas, is_throttled};
use crate::replication::{BrokerAddress, Fetchers};
use crate::shared::Shared;
use logcore_wake::WakeFd;

mod own_records;

const RUNTIME_TIMEOUT: Duration = Duration::from_secs(1);

/// A partition to register with [`Server::create_partition`].
#[derive(Debug, Clone)]
pub struct PartitionSpec {
    /// The topic's name.
    pub topic: String,
    /// The topic's id.
    pub topic_id: TopicId,
    /// The partition's index.
    pub partition: i32,
    /// The leader's epoch.
    pub leader_epoch: i32,
    /// The leader's id. This server serves the partition if it is its own id.
    pub leader_id: i32,
    /// The version of the ISR among `replicas`, -1 if it is not known. An older one than that of
    /// [`Server::set_isr`] changes nothing in the same leader epoch.
    pub partition_epoch: i32,
    /// All replicas, this server's own included. If it is empty, the leader is the only one.
    pub replicas: Vec<Replica>,
    /// The topic's own settings. All others have the broker's defaults.
    pub config: Properties,
    /// The partition is new to the cluster. While a log directory is offline, only logs of new partitions are
    /// created: the records of an existing partition may be in that directory.
    pub new: bool,
}

impl PartitionSpec {
    /// Whether the server `node_id` has a replica that another broker leads.
    fn follows(&self, node_id: i32) -> bool {
        let is_replica = self.replicas.iter().any(|replica| replica.id == node_id);
        is_replica && self.leader_id >= 0 && self.leader_id != node_id
    }
}

/// The offsets of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offsets {
    /// The first offset that the log still has.
    pub log_start: i64,
    /// The first offset that consumers do not see.
    pub high_watermark: i64,
    /// The offset of the next record.
    pub log_end: i64,
}

struct Running {
    runtime: Runtime,
    /// Closes with the last connection.
    alive: mpsc::Receiver<()>,
}

enum State {
    Opened,
    Running(Running),
    Stopped,
}

/// A broker's data plane.
pub struct Server {
    pub(crate) shared: Arc<Shared>,
    wake: Arc<WakeFd>,
    state: Mutex<State>,
    housekeeping: Mutex<Option<Housekeeping>>,
    idle: Idle,
    /// The topics' own settings. The lock serialises changes of partitions, because disk and registry change
    /// together.
    changes: Mutex<HashMap<String, Properties>>,
    pub(crate) moves: Arc<Moves>,
    fetchers: Fetchers,
    /// The process that opened the server. A fork has none of its threads.
    owner: u32,
}

impl Server {
    /// Opens and recovers the log directories, and registers the partitions found, without leaders. Blocks.
    ///
    /// # Errors
    /// For an invalid setting and for a directory that cannot be used.
    pub fn open(options: &ServerOptions) -> Result<Self> {
        let os = |action| move |source| ServerError::Os { action, source };
        let config = ServerConfig::new(&options.properties)?;
        let dynamic = DynamicConfig::new(&options.properties)?;
        let wake = Arc::new(WakeFd::new().map_err(os("create an eventfd"))?);
        let lines = Arc::new(LogLines::new(Arc::clone(&wake)));
        let logs = Logs::open(options, &config, &dynamic.until_configured(), &lines)?;
        let registry = Registry::default();
        for found in logs.partitions() {
            let id = found.topic_id.unwrap_or_default();
            let log = Arc::clone(&found.log);
            registry.insert(Arc::new(Partition::new(
                found.topic.as_str().into(),
                id,
                found.partition,
                log,
            )));
        }
        let budgets = Arc::new(Budgets::new(config.request_memory, config.request_bytes_max));
        let shared = Arc::new(Shared {
            node_id: options.node_id,
            logs,
            registry,
            frames: Arc::new(FrameMemory::new(Arc::clone(&budgets))),
            budgets,
            control: ControlQueue::new(config.queued_requests_max, Arc::clone(&wake)),
            sessions: FetchSessions::new(config.fetch_sessions_max),
            failures: Failures::new(Arc::clone(&wake)),
            lines,
            busy_poll: BusyPoll::default(),
            metrics: Metrics::default(),
            purgatory: Purgatory::default(),
            replica_rules: ReplicaRules::new(config.replica.lag_max),
            replica_facts: ReplicaFacts::new(Arc::clone(&wake)),
            replicated_appends: ReplicatedAppends::new(Arc::clone(&wake)),
            verifications: Verifications::new(Arc::clone(&wake)),
            broker_epoch: AtomicI64::new(-1),
            stopping: watch::Sender::new(false),
            connections: ConnectionQuotas::new(&config, dynamic.connections.clone()),
            quotas: Arc::new(ClientQuotas::new(config.quota_window)),
            replication_quotas: ReplicationQuotas::new(
                config.replication_quota_window,
                config.moves_quota_window,
                &dynamic.replication_rates,
            ),
            dynamic: RwLock::new(Arc::new(dynamic)),
            features: RwLock::default(),
            config,
        });
        let moves = Arc::<Moves>::default();
        moves.resume(&shared.logs, &shared.lines);
        let housekeeping = Housekeeping::start(Arc::clone(&shared), Arc::clone(&moves))?;
        let fetchers = Fetchers::new(Arc::clone(&shared), Arc::clone(&moves));
        Ok(Self {
            fetchers,
            shared,
            wake,
            state: Mutex::new(State::Opened),
            housekeeping: Mutex::new(Some(housekeeping)),
            idle: Idle::new(),
            changes: Mutex::default(),
            moves,
            owner: std::process::id(),
        })
    }

    /// Binds the listeners and serves the APIs of the table ([`crate::apis`]). Returns the ports, in the
    /// listeners' order.
    ///
    /// # Errors
    /// If an address cannot be bound, or the server was started before.
    pub fn start(&self, listeners: &[ListenerSpec]) -> Result<Vec<u16>> {
        self.check_process()?;
        let mut state = self.state.lock();
        if !matches!(*state, State::Opened) {
            return Err(ServerError::WrongState("was started or stopped before"));
        }
        let runtime = runtime(self.shared.config.network_threads)?;
        let entered = runtime.enter();
        let bound = listeners
            .iter()
            .map(|spec| listener::bind(spec, self.shared.config.listen_backlog));
        let bound = bound.collect::<Result<Vec<_>>>()?;
        let ports = bound
            .iter()
            .map(|listener| listener.local_addr().map(|address| address.port()));
        let ports = ports
            .collect::<std::io::Result<Vec<_>>>()
            .map_err(|source| ServerError::Os {
                action: "read a listener's port",
                source,
            })?;
        drop(entered);
        for spec in listeners {
            self.shared.connections.add_listener(&spec.name);
        }
        let (sender, alive) = mpsc::channel(1);
        for (spec, listener) in listeners.iter().zip(bound) {
            runtime.spawn(listener::accept(
                Arc::clone(&self.shared),
                listener,
                spec.clone(),
                sender.clone(),
            ));
        }
        *state = State::Running(Running { runtime, alive });
        Ok(ports)
    }

    /// Stops accepting, waits up to `grace` for the responses to requests that have begun, and closes the
    /// logs cleanly. Long polls are answered at once. Blocks. A second call does nothing.
    ///
    /// # Errors
    /// If a log cannot be closed cleanly. It will be recovered when it is opened again.
    pub fn stop(&self, grace: Duration) -> Result<()> {
        self.check_process()?;
        let state = std::mem::replace(&mut *self.state.lock(), State::Stopped);
        self.shared.stopping.send_replace(true);
        match state {
            State::Stopped => return Ok(()),
            State::Opened => {}
            State::Running(Running { runtime, mut alive }) => {
                let ended = async { tokio::time::timeout(grace, alive.recv()).await };
                if runtime.block_on(ended).is_err() {
                    self.shared
                        .lines
                        .warning("stopping with unanswered requests: their handlers did not finish in time");
                }
                self.shared.control.close();
                runtime.shutdown_timeout(RUNTIME_TIMEOUT);
            }
        }
        let _changes = self.changes.lock();
        self.fetchers.stop_all();
        if let Some(housekeeping) = self.housekeeping.lock().take() {
            housekeeping.stop();
        }
        self.shared.logs.close()
    }

    /// A descriptor that is readable while requests, failures or log lines wait.
    pub fn wake_fd(&self) -> RawFd {
        self.wake.raw()
    }

    /// Takes the oldest waiting requests: at most `max`, and at most a few hundred. Never blocks.
    pub fn take_requests(&self, max: usize) -> Vec<ControlRequest> {
        self.shared.control.take(max)
    }

    /// The ids of connections that ended since the last call while their JoinGroup or SyncGroup waited. To be
    /// called after [`Self::take_requests`].
    pub fn take_gone(&self) -> Vec<String> {
        self.shared.control.take_gone()
    }

    /// The logs that went offline since the last call. To be called after [`Self::take_requests`].
    pub fn take_failed(&self) -> Failed {
        self.shared.failures.take()
    }

    /// What this server found out about followers of its partitions since the last call. To be called after
    /// [`Self::take_requests`]. Each is reported once until Python answers with [`Self::set_isr`] or
    /// [`Self::create_partition`].
    pub fn take_replica_facts(&self) -> Vec<ReplicaFact> {
        self.shared.replica_facts.take()
    }

    /// Sets the ISR of a partition that this server leads in `leader_epoch`. `isr` is committed. `pending`
    /// are replicas that an AlterPartition under way adds: the high watermark waits for them, too, and
    /// `min.insync.replicas` does not count them. They stay pending until the next call, a newer partition
    /// epoch or a new leader epoch. Waiting requests look again.
    ///
    /// Returns false, and changes nothing, if this server does not lead in that epoch, or an ISR of a newer
    /// partition epoch was set.
    ///
    /// # Errors
    /// [`ServerError::UnknownPartition`].
    pub fn set_isr(
        &self,
        topic: &str,
        partition: i32,
        leader_epoch: i32,
        isr: &[i32],
        pending: &[i32],
        partition_epoch: i32,
    ) -> Result<bool> {
        let partition = self.find(topic, partition)?;
        let isr = Isr {
            leader_epoch,
            partition_epoch,
            members: isr,
            joining: pending,
        };
        let is_set = partition
            .replicas
            .set_isr(&isr, &partition.log, &self.shared.replica_rules);
        if is_set {
            partition.waiters().wake_all();
        }
        Ok(is_set)
    }

    /// The outcomes of [`Self::append_and_report`] since the last call: the number and the error code. To be
    /// called after [`Self::take_requests`].
    pub fn take_replicated(&self) -> Vec<(u64, ErrorCode)> {
        self.shared.replicated_appends.take()
    }

    /// The questions about transactions since the last call, each to be answered with [`Self::verified`]. To
    /// be called after [`Self::take_requests`].
    pub fn take_verifications(&self) -> Vec<VerificationQuestion> {
        self.shared.verifications.take()
    }

    /// The transaction coordinator's answer to a question.
    pub fn verified(&self, number: u64, code: ErrorCode) {
        self.shared.verifications.answer(number, code);
    }

    /// The features that clients are told of.
    pub fn set_features(&self, features: Features) {
        *self.shared.features.write() = features;
    }

    /// The log lines since the last call.
    pub fn take_log_lines(&self) -> Vec<LogLine> {
        self.shared.lines.take()
    }

    /// Replaces the addresses of the brokers that are alive. Fetching from a leader begins, or goes on
    /// elsewhere, with its address.
    pub fn set_brokers(&self, brokers: &[BrokerAddress]) {
        let alive = brokers.iter().map(|broker| broker.id).collect();
        if self.shared.replica_rules.set_alive(alive) {
            self.shared.raise_high_watermarks();
        }
        self.fetchers.set_brokers(brokers);
    }

    /// Sets this broker's epoch, which its fetches tell the leaders.
    pub fn set_broker_epoch(&self, epoch: i64) {
        self.shared.broker_epoch.store(epoch, Ordering::Relaxed);
    }

    /// Registers a partition, and creates its log if there is none. A registered partition gets the leader,
    /// epoch and settings. If this server is a replica and another broker leads, the partition is fetched
    /// from there; a new epoch begins with a comparison of the logs. Blocks.
    ///
    /// # Errors
    /// If the name belongs to a topic with another id, a setting is invalid, or the log cannot be created or
    /// is offline.
    pub fn create_partition(&self, spec: &PartitionSpec) -> Result<()> {
        self.check_process()?;
        let mut overrides = self.changes.lock();
        let config = self.dynamic().topic(&spec.config)?;
        self.check_topic_id(&spec.topic, spec.topic_id)?;
        let follows = spec.follows(self.shared.node_id);
        if !follows || self.is_new_epoch(spec) {
            // Before the lock below, which a fetcher that truncates needs.
            self.fetchers.stop(&spec.topic, spec.partition);
        }
        let _moves = self.moves.lock();
        let registered = self.shared.registry.find(&spec.topic, spec.partition);
        let partition = match registered {
            Some(partition) => {
                partition.log.update_config(config);
                if let Some(reason) = partition.log.failure() {
                    return Err(offline(&partition.log.dir(), reason));
                }
                if partition.topic_id == spec.topic_id {
                    partition
                } else {
                    Arc::new(partition.with_id(spec.topic_id))
                }
            }
            None => {
                if self.partitions_left() == 0 {
                    return Err(ServerError::TooManyPartitions {
                        files: Descriptors::now().limit,
                        mappings: mapping_limit(),
                    });
                }
                let created =
                    self.shared
                        .logs
                        .create(&spec.topic, spec.partition, spec.topic_id, config, spec.new)?;
                let log = Arc::clone(&created.log);
                let name = self.shared.registry.name(&spec.topic);
                Arc::new(Partition::new(name, spec.topic_id, spec.partition, log))
            }
        };
        let leadership = Leadership {
            leader_id: spec.leader_id,
            epoch: spec.leader_epoch,
        };
        let assignment = Assignment {
            replicas: &spec.replicas,
            node_id: self.shared.node_id,
            leads: spec.leader_id == self.shared.node_id,
            leader_epoch: spec.leader_epoch,
            partition_epoch: spec.partition_epoch,
        };
        partition.set_throttled(is_throttled(&spec.config, self.shared.node_id, spec.partition));
        partition.set_leadership(leadership, &assignment, &self.shared.replica_rules);
        self.shared.registry.insert(Arc::clone(&partition));
        overrides.insert(spec.topic.clone(), spec.config.clone());
        if follows {
            self.fetchers
                .follow(&partition, spec.leader_id, spec.leader_epoch)?;
        }
        Ok(())
    }

    fn is_new_epoch(&self, spec: &PartitionSpec) -> bool {
        let found = self.shared.registry.find(&spec.topic, spec.partition);
        found.is_none_or(|found| found.leadership().epoch != spec.leader_epoch)
    }

    /// Sets the number of a topic's partitions in the cluster, and those of this server's partitions whose
    /// logs could not be created. They decide the error for a partition that is not here. Call it after this
    /// server's partitions were created.
    pub fn know_topic(&self, topic: &str, id: TopicId, count: i32, offline: &[i32]) {
        let offline = offline.iter().copied().collect();
        self.shared.registry.set_known(topic, id, count, offline);
    }

    /// The topic was deleted from the cluster.
    pub fn forget_topic(&self, topic: &str) {
        self.shared.registry.forget_known(topic);
    }

    /// How many more partitions can be created before the limit of open files or of mappings is near.
    pub fn partitions_left(&self) -> u64 {
        let by_files = Descriptors::now().logs_left(self.wake.borrowed());
        by_files.min(logs_left_by_mappings())
    }

    /// Deletes a topic and its logs. Reads that have begun can finish. Later requests get
    /// UNKNOWN_TOPIC_OR_PARTITION. Blocks.
    ///
    /// # Errors
    /// [`ServerError::UnknownTopic`], or if a directory cannot be renamed.
    pub fn delete_topic(&self, topic: &str) -> Result<()> {
        self.check_process()?;
        let mut overrides = self.changes.lock();
        for partition in self.shared.registry.topic(topic).unwrap_or_default() {
            self.fetchers.stop(topic, partition.index);
        }
        let _moves = self.moves.lock();
        overrides.remove(topic);
        let partitions = self.shared.registry.remove_topic(topic);
        let partitions = partitions.ok_or_else(|| ServerError::UnknownTopic(topic.to_owned()))?;
        let mut result = Ok(());
        for partition in partitions {
            self.moves.forget(topic, partition.index);
            result = result.and(self.shared.logs.delete(topic, partition.index));
        }
        result
    }

    /// Stops serving one partition, as leader or follower: waiting requests are answered, and nothing is
    /// written to its log any more. With `delete` its log is deleted; requests then get
    /// UNKNOWN_TOPIC_OR_PARTITION. Without, [`Self::create_partition`] serves it again. A partition that is
    /// not here is fine. Blocks.
    ///
    /// # Errors
    /// If the log is offline or its directory cannot be renamed.
    pub fn stop_partition(&self, topic: &str, partition: i32, delete: bool) -> Result<()> {
        self.check_process()?;
        let mut overrides = self.changes.lock();
        self.fetchers.stop(topic, partition);
        let found = self.shared.registry.find(topic, partition);
        if !delete {
            if let Some(found) = found {
                found.retire(found.leadership().epoch);
            }
            return Ok(());
        }
        if let Some((path, reason)) = self.shared.logs.offline_log(topic, partition) {
            return Err(offline(path, reason));
        }
        let _moves = self.moves.lock();
        if self.shared.registry.remove_partition(topic, partition) {
            overrides.remove(topic);
        }
        self.moves.forget(topic, partition);
        self.shared.logs.delete(topic, partition)
    }

    /// Replaces a topic's own settings; those not named go back to the broker's defaults.
    ///
    /// # Errors
    /// [`ServerError::UnknownTopic`], or for a bad value, in which case nothing changes.
    pub fn update_topic_config(&self, topic: &str, overrides: &Properties) -> Result<()> {
        self.check_process()?;
        let mut all = self.changes.lock();
        let _moves = self.moves.lock();
        let config = self.dynamic().topic(overrides)?;
        let partitions = self.shared.registry.topic(topic);
        for partition in partitions.ok_or_else(|| ServerError::UnknownTopic(topic.to_owned()))? {
            partition.log.update_config(config.clone());
            partition.set_throttled(is_throttled(overrides, self.shared.node_id, partition.index));
        }
        all.insert(topic.to_owned(), overrides.clone());
        Ok(())
    }

    /// Whether [`Server::update_config`] would take these settings; nothing changes.
    ///
    /// # Errors
    /// For the first value that is invalid, alone or together with a topic's own settings;
    /// [`ServerError::Forked`].
    pub fn check_config(&self, properties: &Properties) -> Result<()> {
        self.check_process()?;
        let dynamic = DynamicConfig::new(properties)?;
        self.configs_by_topic(&dynamic, &self.changes.lock())?;
        Ok(())
    }

    /// Replaces the settings that can change while the server runs: limits on connections, the cleaner's, and
    /// the defaults of topics' settings. All others keep the values the server was opened with. Waits for a
    /// compaction to pause if the cleaner's settings change.
    ///
    /// # Errors
    /// For a bad value, in which case nothing changes.
    pub fn update_config(&self, properties: &Properties) -> Result<()> {
        self.check_process()?;
        let dynamic = Arc::new(DynamicConfig::new(properties)?);
        let overrides = self.changes.lock();
        let of_topics = self.configs_by_topic(&dynamic, &overrides)?;
        if let Some(housekeeping) = &mut *self.housekeeping.lock() {
            housekeeping.update_cleaner(&self.shared, &dynamic.cleaner)?;
        }
        // No log moves to another directory with its old settings.
        let moves = self.moves.lock();
        for (partition, config) in of_topics {
            let moved = self.shared.registry.moved(&partition);
            moved.unwrap_or(partition).log.update_config(config);
        }
        drop(moves);
        self.shared.connections.update(dynamic.connections.clone());
        self.shared.replication_quotas.update(&dynamic.replication_rates);
        *self.shared.dynamic.write() = dynamic;
        self.moves.rate_changed();
        Ok(())
    }

    fn configs_by_topic(
        &self,
        dynamic: &DynamicConfig,
        overrides: &HashMap<String, Properties>,
    ) -> Result<Vec<(Arc<Partition>, LogConfig)>> {
        let all = self.shared.registry.all().into_iter();
        all.map(|partition| {
            let config = match overrides.get(&*partition.topic) {
                Some(own) => dynamic.topic(own)?,
                None => dynamic.until_configured(),
            };
            Ok((partition, config))
        })
        .collect()
    }

    /// Replaces all client quotas.
    ///
    /// # Errors
    /// [`ServerError::Forked`], and for an unknown or invalid quota. Then nothing changes.
    pub fn set_client_quotas(&self, quotas: &[ClientQuota]) -> Result<()> {
        self.check_process()?;
        self.shared.quotas.replace(quotas)
    }

    /// Replaces the rates, in connections a second, at which addresses may connect. A rate without an address
    /// is for all others.
    ///
    /// # Errors
    /// [`ServerError::Forked`], and for an invalid address or rate. Then nothing changes.
    pub fn set_ip_quotas(&self, quotas: &[(Option<String>, f64)]) -> Result<()> {
        self.check_process()?;
        self.shared.connections.update_ip_rates(quotas)
    }

    /// Every partition that was found or created, in order: topic, topic id (zeros if it has none) and index.
    pub fn partitions(&self) -> Vec<(String, TopicId, i32)> {
        let all = self.shared.registry.all();
        let mut all: Vec<_> = all
            .iter()
            .map(|partition| (partition.topic.to_string(), partition.topic_id, partition.index))
            .collect();
        all.sort();
        all
    }

    /// A partition's offsets.
    ///
    /// # Errors
    /// [`ServerError::UnknownPartition`].
    pub fn offsets(&self, topic: &str, partition: i32) -> Result<Offsets> {
        let log = &self.find(topic, partition)?.log;
        Ok(Offsets {
            log_start: log.log_start_offset(),
            high_watermark: log.high_watermark(),
            log_end: log.log_end_offset(),
        })
    }

    /// How many requests of each API have begun, by key. The measurements count the finished ones.
    pub fn requests_begun(&self) -> Vec<(i16, u64)> {
        self.shared.metrics.apis.begun()
    }

    /// All counters and measurements. It does not wait for requests, and requests do not wait for it.
    pub fn measurements(&self) -> Measurements {
        let mut measurements = Measurements::read(&self.shared);
        if let State::Running(Running { runtime, .. }) = &*self.state.lock() {
            let threads = runtime.metrics();
            let gauges = &mut measurements.gauges;
            gauges.push(("network_idle", self.idle.share(&threads)));
            gauges.push(("network_busy_seconds", Idle::busy(&threads).as_secs_f64()));
            gauges.push(("network_threads", threads.num_workers() as f64));
        }
        let gauges = &mut measurements.gauges;
        gauges.push(("replica_max_lag", self.fetchers.lag_max() as f64));
        gauges.push(("replica_failed_partitions", self.fetchers.failed_count() as f64));
        gauges.push(("replica_dead_threads", self.fetchers.dead_count() as f64));
        measurements
    }

    fn dynamic(&self) -> Arc<DynamicConfig> {
        Arc::clone(&self.shared.dynamic.read())
    }

    pub(crate) fn check_process(&self) -> Result<()> {
        if std::process::id() == self.owner {
            Ok(())
        } else {
            Err(ServerError::Forked { owner: self.owner })
        }
    }

    fn find(&self, topic: &str, partition: i32) -> Result<Arc<Partition>> {
        self.check_process()?;
        let found = self.shared.registry.find(topic, partition);
        found.ok_or_else(|| ServerError::UnknownPartition {
            topic: topic.to_owned(),
            partition,
        })
    }

    /// A topic without an id (zeros), in a directory of an older Kafka, takes the new one.
    fn check_topic_id(&self, topic: &str, id: TopicId) -> Result<()> {
        match self.shared.registry.topic_id(topic) {
            Some(known) if known != id && known != TopicId::default() => Err(ServerError::TopicId {
                topic: topic.to_owned(),
                found: hex(known),
                expected: hex(id),
            }),
            _ => Ok(()),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.check_process().is_err() {
            // Ending the runtime would wait for threads that this process does not have. The parent closes
            // the logs.
            std::mem::forget(std::mem::replace(self.state.get_mut(), State::Stopped));
            return;
        }
        // The error is lost. An owner that wants it calls `stop`.
        let _ = self.stop(Duration::ZERO);
    }
}

/// The runtime, with the configured number of threads or one for each core.
fn runtime(threads: Option<NonZeroUsize>) -> Result<Runtime> {
    let threads = threads.or_else(|| std::thread::available_parallelism().ok());
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads.map_or(1, NonZeroUsize::get))
        .thread_name("logcore-network")
        .enable_all()
        .build()
        .map_err(|source| ServerError::Os {
            action: "start the network threads",
            source,
        })
}

fn hex(id: TopicId) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}
