//! Offsets by time: ListOffsets, sent to every partition's leader, tried again until a deadline.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use logcore_protocol::ErrorCode;

use crate::api::{self, Fields};
use crate::cluster::{Cluster, Target};
use crate::connections::Purpose;
use crate::error::{ClientError, Result, milliseconds};
use crate::reporter::Lasting;

/// The timestamp that stands for the end of the log (the last stable offset under `read_committed`).
pub const LATEST: i64 = -1;
/// The timestamp that stands for the beginning of the log.
pub const EARLIEST: i64 = -2;

/// A topic and one of its partitions.
pub type PartitionKey = (Arc<str>, i32);

/// An offset that ListOffsets found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListedOffset {
    /// -1 when there is no record at or after the time.
    pub offset: i64,
    /// The record's timestamp in milliseconds, -1 for the beginning and the end.
    pub timestamp: i64,
    /// -1 when unknown.
    pub leader_epoch: i32,
}

/// One answer per question.
pub type Answers = HashMap<PartitionKey, Result<ListedOffset>>;

/// Looks up the first offset at or after each timestamp (milliseconds, [`LATEST`] or [`EARLIEST`]). Failures
/// that may pass are tried again until `timeout`; then the answer is the last failure.
pub async fn list_offsets(
    cluster: &Arc<Cluster>,
    questions: Vec<(PartitionKey, i64)>,
    read_committed: bool,
    timeout: Duration,
) -> Answers {
    let deadline = Instant::now() + timeout;
    let mut answers = Answers::new();
    let mut open = questions;
    let mut lasting = Lasting::default();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        for (key, answer) in ask_once(cluster, open.clone(), read_committed, left).await {
            let timed_out = matches!(answer, Err(ClientError::TimedOut { .. }));
            if !timed_out || !answers.contains_key(&key) {
                answers.insert(key, answer);
            }
        }
        open.retain(|(key, _)| matches!(answers.get(key), Some(Err(error)) if error.is_retriable()));
        let now = Instant::now();
        if open.is_empty() || now >= deadline {
            return answers;
        }
        // A broken connection is reported by itself.
        let failed = open.iter().find_map(|(key, _)| match answers.get(key) {
            Some(Err(error)) if error.is_from_broker() => Some(error),
            _ => None,
        });
        if let Some(report) = failed.and_then(|error| lasting.tried_again("ListOffsets", error, now)) {
            cluster.reporter().report(report);
        }
        cluster.refresh_soon();
        tokio::time::sleep(cluster.config().retry_backoff).await;
    }
}

/// Looks up offsets as [`list_offsets`] does, with one attempt. Every question gets an answer.
pub(crate) async fn ask_once(
    cluster: &Arc<Cluster>,
    questions: Vec<(PartitionKey, i64)>,
    read_committed: bool,
    timeout: Duration,
) -> Answers {
    let round = ask_all(cluster, &questions, read_committed);
    let answered = tokio::time::timeout(timeout, round).await;
    let timed_out = answered.is_err();
    let mut answers = answered.unwrap_or_default();
    for (key, _) in questions {
        let (topic, partition) = (&key.0, key.1);
        let error = if timed_out {
            ClientError::TimedOut {
                what: format!("looking up an offset of {topic}-{partition}"),
                timeout_ms: milliseconds(timeout),
            }
        } else {
            ClientError::BadResponse {
                broker: format!("leader of {topic}-{partition}"),
                what: "its ListOffsets response does not name the partition".to_owned(),
            }
        };
        answers.entry(key).or_insert(Err(error));
    }
    answers
}

async fn ask_all(cluster: &Arc<Cluster>, questions: &[(PartitionKey, i64)], read_committed: bool) -> Answers {
    let mut answers = Answers::new();
    let mut by_leader: HashMap<i32, Vec<(PartitionKey, i64, i32)>> = HashMap::new();
    let mut metadata = cluster.metadata();
    if questions
        .iter()
        .any(|((topic, partition), _)| metadata.leader(topic, *partition).is_none())
    {
        let mut topics: Vec<Arc<str>> = questions
            .iter()
            .map(|((topic, _), _)| Arc::clone(topic))
            .collect();
        topics.sort_unstable();
        topics.dedup();
        match cluster.refresh(Some(&topics)).await {
            Ok(_) => metadata = cluster.metadata(),
            Err(error) => {
                let failed = questions.iter().map(|(key, _)| (key.clone(), Err(error.clone())));
                return failed.collect();
            }
        }
    }
    for (key, timestamp) in questions {
        let topic = metadata.topics.get(&key.0);
        match metadata.leader(&key.0, key.1) {
            Some((leader, epoch)) => {
                by_leader
                    .entry(leader)
                    .or_default()
                    .push((key.clone(), *timestamp, epoch));
            }
            None => {
                let gone = topic.is_some_and(|topic| topic.error == 0 && topic.partition(key.1).is_none());
                let error = if gone {
                    ClientError::UnknownPartition {
                        topic: key.0.to_string(),
                        partition: key.1,
                    }
                } else {
                    let code = topic.map(|topic| topic.error).filter(|code| *code != 0);
                    let code = code.unwrap_or(ErrorCode::LEADER_NOT_AVAILABLE.0);
                    ClientError::Broker {
                        code,
                        what: format!("{}-{} has no leader", key.0, key.1),
                    }
                };
                answers.insert(key.clone(), Err(error));
            }
        }
    }
    for (leader, questions) in by_leader {
        match ask_leader(cluster, leader, &questions, read_committed).await {
            Ok(fresh) => answers.extend(fresh),
            Err(error) => {
                answers.extend(questions.into_iter().map(|(key, _, _)| (key, Err(error.clone()))));
            }
        }
    }
    answers
}

async fn ask_leader(
    cluster: &Arc<Cluster>,
    leader: i32,
    questions: &[(PartitionKey, i64, i32)],
    read_committed: bool,
) -> Result<Answers> {
    let connection = cluster
        .connection(Target::Broker(leader), Purpose::General)
        .await?;
    let version = connection.version(api::LIST_OFFSETS)?;
    let mut message = api::request(api::LIST_OFFSETS).with("replica_id", -1);
    if version >= 2 {
        message.set("isolation_level", i8::from(read_committed));
    }
    let mut by_topic: HashMap<&Arc<str>, Vec<(i32, i64, i32)>> = HashMap::new();
    for ((topic, partition), timestamp, epoch) in questions {
        by_topic
            .entry(topic)
            .or_default()
            .push((*partition, *timestamp, *epoch));
    }
    for (name, partitions) in by_topic {
        let mut topic = message.element("topics").with("name", &**name);
        for (partition, timestamp, epoch) in partitions {
            let mut element = topic.element("partitions");
            element
                .set("partition_index", partition)
                .set("timestamp", timestamp);
            if version >= 4 {
                element.set("current_leader_epoch", epoch);
            }
            topic.push("partitions", element);
        }
        message.push("topics", topic);
    }
    let response = cluster
        .call(&connection, api::LIST_OFFSETS, version, message, Duration::ZERO)
        .await?;
    let mut answers = Answers::new();
    for topic in response.field("topics").structs() {
        let name: Arc<str> = Arc::from(topic.text("name"));
        for partition in topic.field("partitions").structs() {
            let key = (Arc::clone(&name), partition.i32("partition_index"));
            let answer = match partition.i16("error_code") {
                0 => Ok(ListedOffset {
                    offset: partition.i64("offset"),
                    timestamp: partition.i64("timestamp"),
                    leader_epoch: partition.i32("leader_epoch"),
                }),
                code => Err(ClientError::Broker {
                    code,
                    what: format!("{}-{}: ListOffsets", key.0, key.1),
                }),
            };
            answers.insert(key, answer);
        }
    }
    Ok(answers)
}
