//! OffsetForLeaderEpoch (key 23): the end of an epoch in a log. KIP-101, KIP-279, KIP-320.

use logcore_protocol::{RequestHeader, Struct, Value};

use super::{Fields, Outcome, response_message};
use crate::apis;
use crate::net::response::Response;
use crate::shared::Shared;
use logcore_protocol::ErrorCode;

pub(crate) const KEY: i16 = apis::OFFSET_FOR_LEADER_EPOCH;

/// Answers a request. Accesses no file.
pub(crate) fn handle(shared: &Shared, header: &RequestHeader, request: &Struct) -> Outcome {
    let mut message = response_message(KEY);
    let empty_topic = message.element("topics");
    let empty_partition = empty_topic.element("partitions");
    let mut topics = Vec::new();
    for topic in request.each("topics") {
        let name = topic.text("topic");
        let mut partitions = Vec::new();
        for partition in topic.each("partitions") {
            let index = partition.int32("partition");
            let mut answer = empty_partition.clone();
            answer.set("partition", index);
            match end_offset(shared, name, partition) {
                Ok((epoch, end)) => answer.set("leader_epoch", epoch).set("end_offset", end),
                Err(code) => answer.set("error_code", code.0),
            };
            partitions.push(Value::Struct(answer));
        }
        let mut answer = empty_topic.clone();
        answer.set("topic", name).set("partitions", partitions);
        topics.push(Value::Struct(answer));
    }
    message.set("topics", topics);
    Response::new(header, &message.into()).into()
}

/// The largest epoch up to the requested one, and its end. Both are -1 if the log has none.
fn end_offset(shared: &Shared, topic: &str, request: &Struct) -> Result<(i32, i64), ErrorCode> {
    let index = request.int32("partition");
    let found = shared
        .registry
        .find(topic, index)
        .ok_or_else(|| shared.registry.absence(topic, index))?;
    // Replicas and consumers (`replica_id`) must both ask the leader.
    found.lead(shared.node_id, request.int32("current_leader_epoch"))?;
    let epoch = request.int32("leader_epoch");
    Ok(found.log.epoch_end_offset(epoch).unwrap_or((-1, -1)))
}
