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
use self::api::{API_KEYS, slot};
pub(crate) use self::api::{Apis, STAGE_NAMES};
pub(crate) use self::errors::ErrorCounts;
pub use self::histogram::HistogramValues;
pub(crate) use self::histogram::{SIZE_BOUNDS, TIME_BOUNDS_MS};
pub(crate) use self::idle::Idle;
pub(crate) use self::stages::{Crossing, Stages};
pub(crate) use self::topic::{TOPIC_COUNTER_NAMES, TOPIC_COUNTERS, TopicCounts, add};

/// Totals since the server was opened.
pub(crate) struct Metrics {
    /// Bytes of request frames, size prefixes included.
    pub(crate) network_bytes_in: Counter,
    /// Bytes of responses, size prefixes included.
    pub(crate) network_bytes_out: Counter,
    /// Bytes of record batches appended by Produce requests.
    pub(crate) produced_bytes: Counter,
    /// Records appended by Produce requests.
    pub(crate) produced_records: Counter,
    /// Bytes of record batches sent in Fetch responses.
    pub(crate) fetched_bytes: Counter,
    /// Partitions of Produce requests that were refused.
    pub(crate) failed_produces: Counter,
    /// Partitions of Fetch requests that were refused.
    pub(crate) failed_fetches: Counter,
    /// Connections accepted.
    pub(crate) connections_accepted: Counter,
    /// Connections closed by the server because of what they sent.
    pub(crate) connections_refused: Counter,
    /// Connections open now.
    pub(crate) connections: Counter,
    /// Requests that are over, by API.
    pub(crate) apis: Apis,
    requests: [AtomicU64; API_KEYS],
}

/// One counter.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    pub(crate) fn subtract(&self, amount: u64) {
        self.0.fetch_sub(amount, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            network_bytes_in: Counter::default(),
            network_bytes_out: Counter::default(),
            produced_bytes: Counter::default(),
            produced_records: Counter::default(),
            fetched_bytes: Counter::default(),
            failed_produces: Counter::default(),
            failed_fetches: Counter::default(),
            connections_accepted: Counter::default(),
            connections_refused: Counter::default(),
            connections: Counter::default(),
            apis: Apis::default(),
            requests: [const { AtomicU64::new(0) }; API_KEYS],
        }
    }
}

impl Metrics {
    /// Counts a request by its API.
    pub(crate) fn request(&self, api_key: i16) {
        self.requests[slot(api_key)].fetch_add(1, Ordering::Relaxed);
    }

    /// What was produced and fetched, whatever of it is counted by topic as well.
    pub(crate) fn totals(&self) -> [(&'static str, u64); 5] {
        [
            ("produced_bytes", self.produced_bytes.get()),
            ("produced_records", self.produced_records.get()),
            ("fetched_bytes", self.fetched_bytes.get()),
            ("failed_produces", self.failed_produces.get()),
            ("failed_fetches", self.failed_fetches.get()),
        ]
    }

    /// How many requests of each API came, by key; APIs never asked for are left out.
    pub(crate) fn requests(&self) -> Vec<(i16, u64)> {
        let counts = self.requests.iter().enumerate();
        counts
            .map(|(key, count)| (key as i16, count.load(Ordering::Relaxed)))
            .filter(|(_, count)| *count > 0)
            .collect()
    }
}
