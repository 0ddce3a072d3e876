//! The parts of a running server that all connections share: one value behind an `Arc`, used from every
//! thread.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use logcore_storage::{Log, StorageError};
use parking_lot::RwLock;
use tokio::sync::watch;

use crate::config::{DynamicConfig, ServerConfig};
use crate::control::facts::{ReplicaFact, ReplicaFactKind, ReplicaFacts};
use crate::control::failures::Failures;
use crate::control::replicated::ReplicatedAppends;
use crate::control::requests::ControlQueue;
use crate::control::verifications::Verifications;
use crate::features::Features;
use crate::log_lines::{Level, LogLines};
use crate::memory::Budgets;
use crate::memory::frames::FrameMemory;
use crate::metrics::Metrics;
use crate::net::busy_poll::BusyPoll;
use crate::partitions::fetch_session::FetchSessions;
use crate::partitions::logs::Logs;
use crate::partitions::purgatory::{HasWaiters, Purgatory};
use crate::partitions::registry::{Partition, Registry};
use crate::partitions::replicas::ReplicaRules;
use crate::quotas::{ClientQuotas, ConnectionQuotas, ReplicationQuotas};
use logcore_protocol::ErrorCode;

pub(crate) struct Shared {
    pub(crate) node_id: i32,
    pub(crate) config: ServerConfig,
    /// The settings that can change while the server runs. They are read when logs are created or changed,
    /// not by requests.
    pub(crate) dynamic: RwLock<Arc<DynamicConfig>>,
    pub(crate) features: RwLock<Features>,
    pub(crate) connections: ConnectionQuotas,
    pub(crate) quotas: Arc<ClientQuotas>,
    pub(crate) replication_quotas: ReplicationQuotas,
    pub(crate) logs: Logs,
    pub(crate) registry: Registry,
    pub(crate) budgets: Arc<Budgets>,
    pub(crate) frames: Arc<FrameMemory>,
    pub(crate) control: ControlQueue,
    pub(crate) sessions: FetchSessions,
    pub(crate) busy_poll: BusyPoll,
    pub(crate) lines: Arc<LogLines>,
    pub(crate) failures: Failures,
    pub(crate) metrics: Metrics,
    pub(crate) purgatory: Purgatory,
    pub(crate) replica_rules: ReplicaRules,
    pub(crate) replica_facts: ReplicaFacts,
    pub(crate) replicated_appends: ReplicatedAppends,
    pub(crate) verifications: Verifications,
    /// This broker's epoch for its leaders, -1 until Python sets it.
    pub(crate) broker_epoch: AtomicI64,
    /// Becomes true once, when the server stops.
    pub(crate) stopping: watch::Sender<bool>,
}

impl Shared {
    pub(crate) fn broker_epoch(&self) -> i64 {
        self.broker_epoch.load(Ordering::Relaxed)
    }

    /// Notes an append of `bytes` as the partition's leader. To be called while it leads.
    pub(crate) fn note_append(&self, partition: &Partition, log: &Log, bytes: u64) {
        if partition.replicas.note_append(log, &self.replica_rules) {
            partition.waiters().wake_all();
        } else {
            partition.waiters().appended(bytes);
        }
    }

    /// Raises high watermarks that wait for a follower that is not alive or not close any more.
    pub(crate) fn raise_high_watermarks(&self) {
        for partition in self.registry.all() {
            if partition.replicas.raise(&partition.log, &self.replica_rules) {
                partition.waiters().wake_all();
            }
        }
    }

    /// Reports to Python the members of ISRs that fell behind.
    pub(crate) fn report_fallen_behind(&self) {
        let mut facts = Vec::new();
        for partition in self.registry.all() {
            let log = &partition.log;
            let (leader_epoch, behind) = partition.replicas.fallen_behind(log, &self.replica_rules);
            facts.extend(behind.into_iter().map(|broker| ReplicaFact {
                topic: partition.topic.to_string(),
                partition: partition.index,
                leader_epoch,
                broker,
                kind: ReplicaFactKind::FellBehind,
            }));
        }
        self.replica_facts.add(facts);
    }

    /// The code for an error of a log or its directory. A failure of the disk is also logged, at most once a
    /// minute.
    pub(crate) fn storage_error(
        &self,
        what: fmt::Arguments<'_>,
        partition: Option<&Partition>,
        error: &StorageError,
    ) -> ErrorCode {
        if error.is_storage_failure() {
            let key = format!("{what} {:?}", std::mem::discriminant(error));
            let fields = || partition.map(Partition::fields).unwrap_or_default();
            let text = format!("{what}: {error}");
            self.lines.push_limited_with(Level::Error, &key, text, fields);
        }
        if let Some(partition) = partition {
            self.report_failure_of(partition);
        }
        ErrorCode(error.kafka_code())
    }

    /// Whether the in-sync replicas have the records up to `last_offset`. `None` while they lack some.
    /// `led_since`: [`Partition::led_since`] when records were appended. Source:
    /// `Partition.checkEnoughReplicasReachOffset`.
    pub(crate) fn replicated(
        &self,
        partition: &Partition,
        last_offset: i64,
        led_since: Option<i32>,
    ) -> Option<std::result::Result<(), ErrorCode>> {
        // Before the checks below: if this server still leads then, the records were never truncated.
        let is_replicated = partition.log.high_watermark() > last_offset;
        if let Err(code) = partition.lead(self.node_id, -1) {
            return Some(Err(code));
        }
        if led_since.is_some_and(|epoch| epoch != partition.led_since()) {
            // Another broker led in between, so this log may have been truncated and written again.
            return Some(Err(ErrorCode::NOT_LEADER_OR_FOLLOWER));
        }
        if !is_replicated {
            // The log may have moved to another directory.
            let moved = self.registry.moved(partition)?;
            return self.replicated(&moved, last_offset, led_since);
        }
        Some(if partition.replicas.has_min_in_sync(&partition.log) {
            Ok(())
        } else {
            Err(ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        })
    }

    /// Reports to Python at once if the partition's log is offline, instead of in the next round of
    /// housekeeping.
    pub(crate) fn report_failure_of(&self, partition: &Partition) {
        if partition.is_newly_offline() {
            self.report_failures();
        }
    }

    /// Reports to Python the logs that went offline since the last call. Requests that wait for their records
    /// look again.
    pub(crate) fn report_failures(&self) {
        let offline = self.registry.newly_offline();
        let names = offline
            .iter()
            .map(|partition| (partition.topic.to_string(), partition.index));
        self.failures.add(names.collect(), self.logs.none_left());
        for partition in offline {
            partition.waiters().wake_all();
        }
    }
}

pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |duration| {
        i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
    })
}
