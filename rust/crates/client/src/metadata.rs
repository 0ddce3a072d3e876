//! The brokers, topics and leaders that a client knows. Pure data.

use std::collections::HashMap;
use std::sync::Arc;

use logcore_protocol::{Struct, Value};

use crate::api::Fields;

/// Where a broker listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broker {
    pub id: i32,
    pub host: String,
    pub port: u16,
}

/// One partition in the last Metadata response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// The broker's error code, 0 for none.
    pub error: i16,
    pub id: i32,
    /// The leading broker's id, -1 for none.
    pub leader: i32,
    /// -1 from a broker whose version has none.
    pub leader_epoch: i32,
    pub replicas: Vec<i32>,
    pub isr: Vec<i32>,
}

/// One topic in the last Metadata response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    /// The broker's error code, 0 for none.
    pub error: i16,
    pub name: Arc<str>,
    pub internal: bool,
    /// Sorted by id; ids are 0 to n-1 when there is no error.
    pub partitions: Vec<Partition>,
}

impl Topic {
    /// One partition by id.
    #[must_use]
    pub fn partition(&self, id: i32) -> Option<&Partition> {
        let index = self
            .partitions
            .binary_search_by_key(&id, |partition| partition.id)
            .ok()?;
        self.partitions.get(index)
    }
}

/// The cache. A topic that does not exist is in it with its error, once it was asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metadata {
    pub cluster_id: Option<String>,
    pub controller: i32,
    pub brokers: Vec<Broker>,
    pub topics: HashMap<Arc<str>, Arc<Topic>>,
}

impl Metadata {
    /// Reads a Metadata response.
    pub(crate) fn from_response(response: &Value) -> Self {
        let brokers = response.field("brokers").structs().map(read_broker).collect();
        let topics = response.field("topics").structs().map(read_topic);
        Self {
            cluster_id: response.field("cluster_id").as_str().map(str::to_owned),
            controller: response.i32("controller_id"),
            brokers,
            topics: topics
                .map(|topic| (Arc::clone(&topic.name), Arc::new(topic)))
                .collect(),
        }
    }

    /// Merges a newer response; topics it does not name stay. A leader epoch that goes backwards comes from a
    /// broker that lags behind: the partition stays as it was.
    pub(crate) fn merge(&mut self, newer: Self) {
        self.cluster_id = newer.cluster_id.or_else(|| self.cluster_id.take());
        self.controller = newer.controller;
        if !newer.brokers.is_empty() {
            self.brokers = newer.brokers;
        }
        for (name, mut topic) in newer.topics {
            if let Some(known) = self.topics.get(&name)
                && known.partitions.len() == topic.partitions.len()
            {
                let topic = Arc::make_mut(&mut topic);
                for (partition, before) in topic.partitions.iter_mut().zip(&known.partitions) {
                    if partition.leader_epoch >= 0 && partition.leader_epoch < before.leader_epoch {
                        *partition = before.clone();
                    }
                }
            }
            self.topics.insert(name, topic);
        }
    }

    /// Where a broker listens.
    #[must_use]
    pub fn broker(&self, id: i32) -> Option<&Broker> {
        self.brokers.iter().find(|broker| broker.id == id)
    }

    /// The leader and its epoch, when there is one.
    #[must_use]
    pub fn leader(&self, topic: &str, partition: i32) -> Option<(i32, i32)> {
        let partition = self.topics.get(topic)?.partition(partition)?;
        (partition.leader >= 0).then_some((partition.leader, partition.leader_epoch))
    }
}

fn read_broker(broker: &Struct) -> Broker {
    Broker {
        id: broker.i32("node_id"),
        host: broker.text("host").to_owned(),
        port: u16::try_from(broker.i32("port")).unwrap_or_default(),
    }
}

fn read_topic(topic: &Struct) -> Topic {
    let mut partitions: Vec<Partition> = topic
        .field("partitions")
        .structs()
        .map(|partition| Partition {
            error: partition.i16("error_code"),
            id: partition.i32("partition_index"),
            leader: partition.i32("leader_id"),
            leader_epoch: partition.i32("leader_epoch"),
            replicas: partition.i32s("replica_nodes"),
            isr: partition.i32s("isr_nodes"),
        })
        .collect();
    partitions.sort_unstable_by_key(|partition| partition.id);
    Topic {
        error: topic.i16("error_code"),
        name: Arc::from(topic.text("name")),
        internal: topic.field("is_internal").as_bool().unwrap_or_default(),
        partitions,
    }
}
