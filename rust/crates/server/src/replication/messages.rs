//! Requests of a follower to its leader, and their responses: Fetch and ListOffsets.
//!
//! Bytes only. Source: `RemoteLeaderEndPoint`.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use bytes::Bytes;
use logcore_client::api::Api;
use logcore_protocol::{Direction, ErrorCode, ProtocolError, Struct, Value, decode_response, schema};

use super::session::{Key, Turn};
use crate::api::Fields;
use crate::apis;
use crate::config::ReplicaConfig;
use crate::partitions::registry::TopicRef;

/// Fetch. Version 12 is the first that finds where two logs diverge (KIP-595).
pub(super) const FETCH: Api = Api {
    key: apis::FETCH,
    first: WITHOUT_IDS,
    last: 17,
};
/// ListOffsets. Version 4 is the first with the leader's epoch.
pub(super) const LIST_OFFSETS: Api = Api {
    key: apis::LIST_OFFSETS,
    first: 4,
    last: 9,
};
/// The last version of Fetch with topic names.
pub(super) const WITHOUT_IDS: i16 = 12;
/// The first version of Fetch with the replica's id in a structure.
const REPLICA_STATE_SINCE: i16 = 15;

/// The timestamps of ListOffsets that stand for the end and the start of a log.
pub(super) const LATEST: i64 = -1;
pub(super) const EARLIEST: i64 = -2;

/// Which replica asks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Replica {
    pub(super) id: i32,
    /// -1 if it is not known.
    pub(super) broker_epoch: i64,
}

/// The answer for one partition.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) code: ErrorCode,
    pub(super) high_watermark: i64,
    pub(super) log_start: i64,
    /// The largest epoch that both logs may have, and where it ends in the leader's.
    pub(super) diverging: Option<(i32, i64)>,
    pub(super) records: Bytes,
}

#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) code: ErrorCode,
    pub(super) session_id: i32,
    pub(super) partitions: Vec<(Key, Answer)>,
}

fn request(key: i16) -> Struct {
    match schema(key, Direction::Request) {
        Some(schema) => schema.message(),
        None => unreachable!("the message table has API {key}"),
    }
}

/// The Fetch of a session's turn. Without new records it is answered after `wait`.
pub(super) fn fetch(
    version: i16,
    replica: Replica,
    config: &ReplicaConfig,
    turn: &Turn,
    wait: Duration,
) -> Value {
    let mut message = request(FETCH.key);
    if version >= REPLICA_STATE_SINCE {
        let state = message.element("replica_state").with("replica_id", replica.id);
        let state = state.with("replica_epoch", replica.broker_epoch);
        message.set("replica_state", state);
    } else {
        message.set("replica_id", replica.id);
    }
    let wait_ms = i32::try_from(wait.as_millis()).unwrap_or(i32::MAX);
    message
        .set("max_wait_ms", wait_ms)
        .set("min_bytes", config.bytes_min)
        .set("max_bytes", config.response_bytes_max)
        .set("session_id", turn.id)
        .set("session_epoch", turn.epoch);
    let wanted = turn
        .wanted
        .iter()
        .map(|((topic, index), asked)| (topic, (*index, asked)));
    for (topic, partitions) in grouped(wanted) {
        let mut entry = message.element("topics");
        set_topic(&mut entry, topic);
        for (index, asked) in partitions {
            let partition = entry
                .element("partitions")
                .with("partition", index)
                .with("current_leader_epoch", asked.leader_epoch)
                .with("fetch_offset", asked.offset)
                .with("last_fetched_epoch", asked.last_epoch)
                .with("log_start_offset", asked.log_start)
                .with("partition_max_bytes", config.fetch_bytes_max);
            entry.push("partitions", partition);
        }
        message.push("topics", entry);
    }
    let forgotten = turn.forgotten.iter().map(|(topic, index)| (topic, *index));
    for (topic, partitions) in grouped(forgotten) {
        let mut entry = message.element("forgotten_topics_data");
        set_topic(&mut entry, topic);
        for index in partitions {
            entry.push("partitions", index);
        }
        message.push("forgotten_topics_data", entry);
    }
    message.into()
}

fn set_topic(entry: &mut Struct, topic: &TopicRef) {
    match topic {
        TopicRef::Name(name) => entry.set("topic", &**name),
        TopicRef::Id(id) => entry.set("topic_id", *id),
    };
}

/// The partitions by topic, in the order of each topic's first one.
fn grouped<'a, K: Eq + Hash + ?Sized, T>(all: impl Iterator<Item = (&'a K, T)>) -> Vec<(&'a K, Vec<T>)> {
    let mut positions: HashMap<&K, usize> = HashMap::new();
    let mut groups: Vec<(&K, Vec<T>)> = Vec::new();
    for (topic, partition) in all {
        let position = *positions.entry(topic).or_insert(groups.len());
        if position == groups.len() {
            groups.push((topic, Vec::new()));
        }
        groups[position].1.push(partition);
    }
    groups
}

/// Reads a Fetch response.
///
/// # Errors
/// If the bytes are no such response.
pub(super) fn fetched(version: i16, body: &Bytes) -> Result<Fetched, ProtocolError> {
    let response = decode_response(FETCH.key, version, body)?;
    let mut fetched = Fetched {
        code: ErrorCode::NONE,
        session_id: 0,
        partitions: Vec::new(),
    };
    let Some(response) = response.as_struct() else {
        return Ok(fetched);
    };
    fetched.code = ErrorCode(response.int16("error_code"));
    fetched.session_id = response.int32("session_id");
    for topic in response.each("responses") {
        let topic_ref = if version > WITHOUT_IDS {
            TopicRef::Id(topic.uuid("topic_id"))
        } else {
            TopicRef::Name(topic.text("topic").into())
        };
        for partition in topic.each("partitions") {
            let key = (topic_ref.clone(), partition.int32("partition_index"));
            fetched.partitions.push((key, answer(partition)));
        }
    }
    Ok(fetched)
}

fn answer(partition: &Struct) -> Answer {
    let diverging = partition.get("diverging_epoch").and_then(Value::as_struct);
    let diverging = diverging.map(|diverging| (diverging.int32("epoch"), diverging.int64("end_offset")));
    let records = partition.get("records").and_then(Value::as_bytes);
    Answer {
        code: ErrorCode(partition.int16("error_code")),
        high_watermark: partition.int64("high_watermark"),
        log_start: partition.int64("log_start_offset"),
        diverging: diverging.filter(|(epoch, _)| *epoch >= 0),
        records: records.cloned().unwrap_or_default(),
    }
}

/// A question to the leader about one partition: topic, index and the leader's epoch.
pub(super) type Question<'a> = (&'a str, i32, i32);

/// ListOffsets of these partitions, for [`LATEST`] or [`EARLIEST`].
pub(super) fn list_offsets<'a>(
    replica: Replica,
    timestamp: i64,
    wanted: impl Iterator<Item = Question<'a>>,
) -> Value {
    let mut message = request(LIST_OFFSETS.key);
    message.set("replica_id", replica.id);
    for (topic, partitions) in grouped(wanted.map(|(topic, index, epoch)| (topic, (index, epoch)))) {
        let mut entry = message.element("topics").with("name", topic);
        for (index, epoch) in partitions {
            let partition = entry
                .element("partitions")
                .with("partition_index", index)
                .with("current_leader_epoch", epoch)
                .with("timestamp", timestamp);
            entry.push("partitions", partition);
        }
        message.push("topics", entry);
    }
    message.into()
}

/// The offset or the error of each topic and index.
type Listed = HashMap<(String, i32), Result<i64, ErrorCode>>;

/// Reads a ListOffsets response.
///
/// # Errors
/// If the bytes are no such response.
pub(super) fn listed(version: i16, body: &Bytes) -> Result<Listed, ProtocolError> {
    let response = decode_response(LIST_OFFSETS.key, version, body)?;
    let mut listed = HashMap::new();
    for topic in response
        .as_struct()
        .into_iter()
        .flat_map(|all| all.each("topics"))
    {
        for partition in topic.each("partitions") {
            let key = (topic.text("name").to_owned(), partition.int32("partition_index"));
            let answer = match ErrorCode(partition.int16("error_code")) {
                ErrorCode::NONE => Ok(partition.int64("offset")),
                code => Err(code),
            };
            listed.insert(key, answer);
        }
    }
    Ok(listed)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::ServerConfig;
    use crate::replication::session::Asked;

    // If this failed, a follower could not ask a broker of an older Kafka, or a request of a new kind could
    // not be encoded.
    #[test]
    fn every_version_can_be_encoded() {
        let config = ServerConfig::new(&Default::default()).unwrap().replica;
        let asked = Asked {
            offset: 5,
            last_epoch: 1,
            leader_epoch: 2,
            log_start: 0,
        };
        let replica = Replica {
            id: 3,
            broker_epoch: 77,
        };
        for version in FETCH.first..=FETCH.last {
            let topic = |number: u8| match version {
                WITHOUT_IDS => TopicRef::Name(Arc::from(number.to_string())),
                _ => TopicRef::Id([number; 16]),
            };
            let wanted = [(1, 0), (2, 0), (1, 1)];
            let turn = Turn {
                id: 9,
                epoch: 4,
                wanted: wanted
                    .map(|(number, index)| ((topic(number), index), asked))
                    .to_vec(),
                forgotten: vec![(topic(3), 0)],
                opens_session: false,
            };
            let message = fetch(version, replica, &config, &turn, config.wait_max);
            let topics: Vec<_> = message.get("topics").unwrap().structs().collect();
            let counts = topics.iter().map(|topic| topic.each("partitions").count());
            assert_eq!(counts.collect::<Vec<_>>(), [2, 1]);
            logcore_protocol::encode_request(FETCH.key, version, &message, &mut Vec::new()).unwrap();
        }
        for version in LIST_OFFSETS.first..=LIST_OFFSETS.last {
            let message = list_offsets(replica, LATEST, [("t", 0, 2), ("t", 1, 2)].into_iter());
            logcore_protocol::encode_request(LIST_OFFSETS.key, version, &message, &mut Vec::new()).unwrap();
        }
    }
}
