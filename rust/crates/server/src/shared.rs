//! What every part of a running server reaches: one value behind an `Arc`, read from every thread.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use logcore_storage::StorageError;
use parking_lot::RwLock;
use tokio::sync::watch;

use crate::codes::ErrorCode;
use crate::config::{DynamicConfig, ServerConfig};
use crate::control::failures::Failures;
use crate::control::requests::ControlQueue;
use crate::log_lines::{Level, LogLines};
use crate::memory::Budgets;
use crate::memory::frames::FrameMemory;
use crate::memory::unpacking::Unpacking;
use crate::metrics::Metrics;
use crate::net::busy_poll::Vigil;
use crate::partitions::fetch_session::FetchSessions;
use crate::partitions::logs::Logs;
use crate::partitions::purgatory::{HasWaitingRoom, Purgatory};
use crate::partitions::registry::{Partition, Registry};
use crate::quotas::{ClientQuotas, ConnectionQuotas};

pub(crate) struct Shared {
    pub(crate) node_id: i32,
    pub(crate) config: ServerConfig,
    /// What can be replaced while the server runs. No request waits for it: it is read when logs are made or changed.
    pub(crate) dynamic: RwLock<Arc<DynamicConfig>>,
    pub(crate) connections: ConnectionQuotas,
    pub(crate) quotas: Arc<ClientQuotas>,
    pub(crate) logs: Logs,
    pub(crate) registry: Registry,
    pub(crate) budgets: Arc<Budgets>,
    pub(crate) frames: Arc<FrameMemory>,
    pub(crate) control: ControlQueue,
    pub(crate) sessions: FetchSessions,
    pub(crate) unpacking: Unpacking,
    pub(crate) vigil: Vigil,
    pub(crate) lines: Arc<LogLines>,
    pub(crate) failures: Failures,
    pub(crate) metrics: Metrics,
    pub(crate) purgatory: Purgatory,
    /// Becomes true once, when the server stops.
    pub(crate) stopping: watch::Sender<bool>,
}

impl Shared {
    /// The code for an error of a log or its directory; a disk's fault is told to the operator as well, now and then.
    pub(crate) fn storage_error(
        &self,
        what: fmt::Arguments<'_>,
        place: Option<&Partition>,
        error: &StorageError,
    ) -> ErrorCode {
        if error.is_storage_failure() {
            let key = format!("{what} {:?}", std::mem::discriminant(error));
            let fields = || place.map(Partition::fields).unwrap_or_default();
            let text = format!("{what}: {error}");
            self.lines.seldom_with(Level::Error, &key, text, fields);
        }
        if let Some(place) = place {
            self.look_for_failure_of(place);
        }
        ErrorCode(error.kafka_code())
    }

    /// Has Python told at once if an error of the partition took its log offline, and not by the next round of housekeeping.
    pub(crate) fn look_for_failure_of(&self, place: &Partition) {
        if place.is_newly_offline() {
            self.tell_failures();
        }
    }

    /// Has Python told which logs went offline since the last call. Whoever waits for their records looks again.
    pub(crate) fn tell_failures(&self) {
        let offline = self.registry.newly_offline();
        let names = offline.iter().map(|place| (place.topic.to_string(), place.index));
        self.failures.add(names.collect(), self.logs.none_left());
        for place in offline {
            place.waiting_room().wake_all();
        }
    }
}

/// Milliseconds since the epoch by the system's clock.
pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |duration| {
        i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
    })
}
