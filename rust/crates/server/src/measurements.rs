//! All counters and measurements, read at once. Called for a scrape, from any thread.
//!
//! It reads atomics, and a few numbers of each log under short locks, so no request waits for it. The
//! registry is locked only while its partitions are listed.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::metrics::{
    ApiMeasurements, SIZE_BOUNDS, STAGE_NAMES, TIME_BOUNDS_MS, TOPIC_COUNTER_NAMES, TOPIC_COUNTERS, add,
};
use crate::partitions::registry::Partition;
use crate::shared::Shared;

/// The measurements. Counters begin with the server and never decrease.
#[derive(Debug, Clone, PartialEq)]
pub struct Measurements {
    /// The upper bounds of the buckets of times, in milliseconds. One more bucket has no bound.
    pub time_bounds: Vec<f64>,
    /// The upper bounds of the buckets of sizes, in bytes. One more bucket has no bound.
    pub size_bounds: Vec<u64>,
    /// The names of the stages in [`ApiMeasurements::times`].
    pub stages: Vec<&'static str>,
    /// By API.
    pub apis: Vec<ApiMeasurements>,
    /// The names of the counters in [`Self::topics`] and [`Self::all_topics`].
    pub topic_counters: Vec<&'static str>,
    /// By topic.
    pub topics: Vec<(String, Vec<u64>)>,
    /// Of all topics, deleted ones included.
    pub all_topics: Vec<u64>,
    /// By partition.
    pub partitions: Vec<PartitionMeasurements>,
    /// Open connections, by listener.
    pub connections: Vec<(String, u64)>,
    /// Connections that authenticated themselves and that failed to, by listener.
    pub authentications: Vec<(String, u64, u64)>,
    /// The numbers of the whole server, by name.
    pub gauges: Vec<(&'static str, f64)>,
}

/// The measurements of one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionMeasurements {
    /// The topic's name.
    pub topic: Arc<str>,
    /// The partition's index.
    pub partition: i32,
    /// The bytes of its segments, without indexes.
    pub size_bytes: u64,
    /// The number of its segments.
    pub segments: u64,
    /// The first offset that the log still has.
    pub log_start_offset: i64,
    /// The offset of the next record.
    pub log_end_offset: i64,
    /// Whether this server leads it.
    pub leads: bool,
    /// Whether its log or its directory failed.
    pub offline: bool,
}

impl Measurements {
    /// Reads everything except the gauges of the network threads, which the server adds.
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
        ("replication_bytes_in", metrics.replication_bytes_in.get()),
        ("replication_bytes_out", metrics.replication_bytes_out.get()),
    ];
    let gauges = gauges.into_iter().chain(replica_gauges(shared));
    gauges.map(|(name, number)| (name, number as f64)).collect()
}

/// The led partitions with fewer in-sync replicas than replicas, with fewer than `min.insync.replicas`, and
/// with just as many as that.
fn replica_gauges(shared: &Shared) -> [(&'static str, u64); 3] {
    let (mut under_replicated, mut under_min_isr, mut at_min_isr) = (0, 0, 0);
    for partition in shared.registry.all() {
        if partition.leadership().leader_id != shared.node_id {
            continue;
        }
        let (all, in_sync) = partition.replicas.in_sync();
        under_replicated += u64::from(in_sync < all);
        under_min_isr += u64::from(!partition.replicas.has_min_in_sync(&partition.log));
        at_min_isr += u64::from(partition.replicas.is_at_min_in_sync(&partition.log));
    }
    [
        ("under_replicated_partitions", under_replicated),
        ("under_min_isr_partitions", under_min_isr),
        ("at_min_isr_partitions", at_min_isr),
    ]
}
