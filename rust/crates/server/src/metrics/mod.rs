//! The counters of requests, for Python to read. They are relaxed atomics: they order nothing and cost very
//! little.
//!
//! | module | what |
//! |---|---|
//! | `stages` | the times of one request; its connection carries them |
//! | `api` | requests, errors and times by API |
//! | `topic` | records and bytes by topic; each partition has its counters |
//! | `histogram`, `errors` | fixed buckets; the error codes of a response |
//! | `idle` | how busy the network threads are |
//!
//! Source of names and meanings: `RequestMetrics`, `BrokerTopicMetrics`. A crash loses all counts, as in
//! Kafka.

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

#[derive(Default)]
pub(crate) struct Metrics {
    pub(crate) network_bytes_in: Counter,
    pub(crate) network_bytes_out: Counter,
    pub(crate) connections_accepted: Counter,
    /// Connections that the server refused, or closed for bad input.
    pub(crate) connections_refused: Counter,
    /// Bytes of records that were appended as a follower, and that followers fetched.
    pub(crate) replication_bytes_in: Counter,
    pub(crate) replication_bytes_out: Counter,
    pub(crate) apis: ApiMetrics,
}

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
