//! Everything that is counted and measured, read at once. Called by whoever scrapes, from any thread.
//!
//! Reads atomics, and of each log a few numbers under locks nobody holds for long: no request waits for it. The registry is
//! locked only while its partitions are listed.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::metrics::{
    ApiMeasurements, SIZE_BOUNDS, STAGE_NAMES, TIME_BOUNDS_MS, TOPIC_COUNTER_NAMES, TOPIC_COUNTERS, add,
};
use crate::partitions::registry::Partition;
use crate::shared::Shared;

/// What was measured. Counters begin with the server and never go back.
#[derive(Debug, Clone, PartialEq)]
pub struct Measurements {
    /// The upper bounds of the times' buckets, in milliseconds; one more bucket has none.
    pub time_bounds: Vec<f64>,
    /// The upper bounds of the sizes' buckets, in bytes; one more bucket has none.
    pub size_bounds: Vec<u64>,
    /// The names of the stages in [`ApiMeasurements::times`].
    pub stages: Vec<&'static str>,
    /// By API.
    pub apis: Vec<ApiMeasurements>,
    /// The names of the counters in [`Self::topics`] and [`Self::all_topics`].
    pub topic_counters: Vec<&'static str>,
    /// By topic that is there.
    pub topics: Vec<(String, Vec<u64>)>,
    /// Of all topics there are or were.
    pub all_topics: Vec<u64>,
    /// By partition that is there.
    pub partitions: Vec<PartitionMeasurements>,
    /// Connections that are open, by listener.
    pub connections: Vec<(String, u64)>,
    /// Connections that authenticated themselves, and that failed to, by listener.
    pub authentications: Vec<(String, u64, u64)>,
    /// What is measured of the server as a whole, by name.
    pub gauges: Vec<(&'static str, f64)>,
}

/// One partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionMeasurements {
    /// The topic's name.
    pub topic: Arc<str>,
    /// The partition's index.
    pub partition: i32,
    /// Bytes of its segments, indexes not counted.
    pub size_bytes: u64,
    /// How many segments it has.
    pub segments: u64,
    /// The first record that is still there.
    pub log_start_offset: i64,
    /// The offset the next record gets.
    pub log_end_offset: i64,
    /// Whether this server leads it.
    pub leads: bool,
    /// Whether its log failed, by itself or with its directory.
    pub offline: bool,
}

impl Measurements {
    /// Reads everything but the gauges of the network, which the server adds.
    pub(crate) fn read(shared: &Shared) -> Self {
        let (partitions, mut all_topics) = shared.registry.all_and_gone();
        let mut topics: BTreeMap<&str, [u64; TOPIC_COUNTERS]> = BTreeMap::new();
        for partition in &partitions {
            let counts = partition.counts.values();
            add(topics.entry(&partition.topic).or_default(), &counts);
            add(&mut all_topics, &counts);
        }
        let topics = topics.into_iter();
        let mut measured: Vec<_> = partitions
            .iter()
            .map(|partition| PartitionMeasurements::read(shared.node_id, partition))
            .collect();
        measured.sort_by(|a, b| (&a.topic, a.partition).cmp(&(&b.topic, b.partition)));
        Self {
            time_bounds: TIME_BOUNDS_MS.to_vec(),
            size_bounds: SIZE_BOUNDS.to_vec(),
            stages: STAGE_NAMES.to_vec(),
            apis: shared.metrics.apis.read(),
            topic_counters: TOPIC_COUNTER_NAMES.to_vec(),
            topics: topics
                .map(|(name, counts)| (name.to_owned(), counts.to_vec()))
                .collect(),
            all_topics: all_topics.to_vec(),
            partitions: measured,
            connections: shared.connections.open(),
            authentications: shared.connections.authentications(),
            gauges: gauges(shared),
        }
    }
}

impl PartitionMeasurements {
    fn read(node_id: i32, partition: &Partition) -> Self {
        let log = &partition.log;
        Self {
            topic: Arc::clone(&partition.topic),
            partition: partition.index,
            size_bytes: log.size_bytes(),
            segments: log.segment_count() as u64,
            log_start_offset: log.log_start_offset(),
            log_end_offset: log.log_end_offset(),
            leads: partition.leadership().leader_id == node_id,
            offline: log.failure().is_some(),
        }
    }
}

fn gauges(shared: &Shared) -> Vec<(&'static str, f64)> {
    let metrics = &shared.metrics;
    let gauges = [
        ("connections_accepted", metrics.connections_accepted.get()),
        ("connections_refused", metrics.connections_refused.get()),
        ("network_bytes_in", metrics.network_bytes_in.get()),
        ("network_bytes_out", metrics.network_bytes_out.get()),
        ("request_queue_size", shared.control.len() as u64),
        ("delayed_fetches", shared.purgatory.fetch.len()),
        ("delayed_produces", shared.purgatory.produce.len()),
        ("fetch_sessions", shared.sessions.len() as u64),
        ("offline_logs", shared.logs.offline_count() as u64),
        ("offline_log_dirs", shared.logs.offline_dirs_count() as u64),
        ("recovered_bytes", shared.logs.bytes_checked()),
    ];
    gauges.map(|(name, number)| (name, number as f64)).to_vec()
}
