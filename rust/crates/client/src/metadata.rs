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
    /// Another one once the topic is deleted and made anew. `None` from a broker that has no ids.
    pub id: Option<[u8; 16]>,
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
    /// broker that lags behind: the partition stays as it was, unless the topic was made anew
    /// (`Metadata.updateLatestMetadata`).
    pub(crate) fn merge(&mut self, newer: Self) {
        self.cluster_id = newer.cluster_id.or_else(|| self.cluster_id.take());
        self.controller = newer.controller;
        if !newer.brokers.is_empty() {
            self.brokers = newer.brokers;
        }
        for (name, mut topic) in newer.topics {
            if let Some(known) = self.topics.get(&name)
                && known.partitions.len() == topic.partitions.len()
                && (known.id.is_none() || topic.id.is_none() || known.id == topic.id)
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
        id: topic.field("topic_id").as_uuid().filter(|id| *id != [0; 16]),
        internal: topic.field("is_internal").as_bool().unwrap_or_default(),
        partitions,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_topic(id: Option<[u8; 16]>, leader: i32, leader_epoch: i32) -> Metadata {
        let partition = Partition {
            error: 0,
            id: 0,
            leader,
            leader_epoch,
            replicas: vec![1, 2],
            isr: vec![1, 2],
        };
        let topic = Topic {
            error: 0,
            name: Arc::from("t"),
            id,
            internal: false,
            partitions: vec![partition],
        };
        Metadata {
            topics: HashMap::from([(Arc::clone(&topic.name), Arc::new(topic))]),
            ..Metadata::default()
        }
    }

    /// The leader that is known after two answers.
    fn leader_after(first: Metadata, second: Metadata) -> Option<(i32, i32)> {
        let mut metadata = first;
        metadata.merge(second);
        metadata.leader("t", 0)
    }

    #[test]
    fn a_broker_that_lags_behind_does_not_bring_an_old_leader_back() {
        let id = Some([1; 16]);
        for (one, other) in [(id, id), (None, id), (id, None), (None, None)] {
            let newer = leader_after(with_topic(one, 1, 5), with_topic(other, 2, 6));
            assert_eq!(newer, Some((2, 6)));
            let older = leader_after(with_topic(one, 1, 5), with_topic(other, 2, 4));
            assert_eq!(older, Some((1, 5)));
        }
    }

    /// If this failed, a long-lived producer would go on asking the leader of a deleted topic.
    #[test]
    fn a_topic_that_was_made_anew_begins_with_the_first_leader_epoch() {
        let found = leader_after(with_topic(Some([1; 16]), 1, 5), with_topic(Some([2; 16]), 2, 0));
        assert_eq!(found, Some((2, 0)));
    }
}
