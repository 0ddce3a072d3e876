//! What is counted while requests are served, for Python to read. Relaxed atomics: they order nothing and cost next to nothing.
//!
//! | room | what |
//! |---|---|
//! | `stages` | where one request's time goes; carried by its connection |
//! | `api` | requests, errors and times by API |
//! | `topic` | what goes in and out by topic; hangs on each partition |
//! | `histogram`, `errors` | fixed buckets; the error codes in a response |
//! | `idle` | how busy the network threads are |
//!
//! Source of the names and of what they mean: `RequestMetrics`, `BrokerTopicMetrics`. A crash loses it all, as a restart of
//! Kafka does.

mod api;
mod errors;
mod histogram;
mod idle;
mod stages;
mod topic;

use std::sync::atomic::{AtomicU64, Ordering};

pub use self::api::ApiMeasurements;
pub(crate) use self::api::{ApiMetrics, STAGE_NAMES};
pub(crate) use self::errors::ErrorCounts;
pub use self::histogram::HistogramValues;
pub(crate) use self::histogram::{SIZE_BOUNDS, TIME_BOUNDS_MS};
pub(crate) use self::idle::Idle;
pub(crate) use self::stages::{Crossing, Stages};
pub(crate) use self::topic::{TOPIC_COUNTER_NAMES, TOPIC_COUNTERS, TopicCounts, add};

/// Totals since the server was opened.
#[derive(Default)]
pub(crate) struct Metrics {
    /// Bytes of request frames, size prefixes included.
    pub(crate) network_bytes_in: Counter,
    /// Bytes of responses, size prefixes included.
    pub(crate) network_bytes_out: Counter,
    /// Connections accepted.
    pub(crate) connections_accepted: Counter,
    /// Connections closed by the server because of what they sent.
    pub(crate) connections_refused: Counter,
    /// Requests by API.
    pub(crate) apis: ApiMetrics,
}

/// One counter.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
