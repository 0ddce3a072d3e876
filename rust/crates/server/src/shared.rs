//! What every part of a running server reaches: one value behind an `Arc`, read from every thread.

use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::watch;

use crate::api::api_versions::ApiTable;
use crate::config::ServerConfig;
use crate::control::ControlQueue;
use crate::fetch_session::FetchSessions;
use crate::lines::LogLines;
use crate::logs::Logs;
use crate::metrics::Metrics;
use crate::purgatory::Purgatory;
use crate::registry::Registry;

pub(crate) struct Shared {
    pub(crate) node_id: i32,
    pub(crate) config: ServerConfig,
    pub(crate) logs: Logs,
    pub(crate) registry: Registry,
    pub(crate) control: ControlQueue,
    pub(crate) sessions: FetchSessions,
    pub(crate) lines: std::sync::Arc<LogLines>,
    pub(crate) metrics: Metrics,
    pub(crate) purgatory: Purgatory,
    /// Set when the server starts, before the first connection.
    pub(crate) apis: OnceLock<ApiTable>,
    /// Becomes true once, when the server stops.
    pub(crate) stopping: watch::Sender<bool>,
}

/// Milliseconds since the epoch by the system's clock.
pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |duration| {
        i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
    })
}
