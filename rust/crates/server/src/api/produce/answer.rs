//! The response to a Produce request, with Kafka's messages for bad records.

use logcore_protocol::{RequestHeader, Struct, Value};
use logcore_storage::{Fault, RecordFault, RecordFaults};

use super::{Done, KEY, Refused, Request, Result, SHOWN};
use crate::api::{Fields, Outcome, response_message};
use crate::net::response::Response;
use crate::partitions::registry::Leadership;

pub(super) fn response(header: &RequestHeader, request: &Request, results: &[Result<Done>]) -> Outcome {
    let version = header.api_version;
    let mut message = response_message(KEY);
    let empty_topic = message.element("responses");
    let empty_partition = empty_topic.element("partition_responses");
    let mut topics: Vec<Vec<Value>> = request.topics.iter().map(|_| Vec::new()).collect();
    for (part, result) in request.parts.iter().zip(results) {
        let mut answer = empty_partition.clone();
        answer.set("index", part.index);
        match result {
            Ok(done) => acknowledge(&mut answer, version, done),
            Err(refused) => {
                let topic = &request.topics[part.topic];
                refuse(&mut answer, version, refused, topic);
            }
        }
        topics[part.topic].push(Value::Struct(answer));
    }
    let topics = request.topics.iter().zip(topics);
    let topics = topics.filter(|(_, partitions)| !partitions.is_empty());
    let topics = topics.map(|(name, partitions)| {
        let topic = empty_topic.clone();
        Value::Struct(
            topic
                .with("name", name.as_str())
                .with("partition_responses", partitions),
        )
    });
    message.set("responses", topics.collect::<Vec<_>>());
    Response::new(header, &message.into()).into()
}

/// The response has the offsets even if the replicas did not acknowledge the append.
fn acknowledge(answer: &mut Struct, version: i16, done: &Done) {
    answer
        .set("base_offset", done.base_offset)
        .set("log_append_time_ms", done.log_append_time)
        .set("log_start_offset", done.log_start_offset);
    if let Some(Err(code)) = done.acknowledged {
        answer.set("error_code", code.for_version(version > 3).0);
        set_leader(answer, version, done.leader);
    }
}

fn refuse(answer: &mut Struct, version: i16, refused: &Refused, topic: &str) {
    answer
        .set("error_code", refused.code.for_version(version > 3).0)
        .set("base_offset", -1i64)
        .set("log_start_offset", refused.log_start_offset)
        .set("error_message", refused.message.as_deref());
    if let Some(faults) = &refused.faults {
        let partition = format!("{topic}-{}", answer.int32("index"));
        set_faults(answer, faults, &partition);
    }
    set_leader(answer, version, refused.leader);
}

fn set_leader(answer: &mut Struct, version: i16, leader: Option<Leadership>) {
    if let (Some(leader), 10..) = (leader, version) {
        let current = answer
            .element("current_leader")
            .with("leader_id", leader.leader_id)
            .with("leader_epoch", leader.epoch);
        answer.set("current_leader", current);
    }
}

/// Sets the bad records and the message, as `LogValidator` does (KIP-467).
fn set_faults(answer: &mut Struct, faults: &RecordFaults, partition: &str) {
    let texts = faults
        .first()
        .iter()
        .map(|one| (one.index, fault_text(one, faults.compressed, partition)));
    let texts: Vec<(i32, String)> = texts.collect();
    let message = if faults.is_about_time() {
        "One or more records have been rejected due to invalid timestamp".to_owned()
    } else {
        let shown = texts.iter().take(SHOWN);
        let shown: Vec<String> = shown
            .map(|(index, text)| format!("RecordError(batchIndex={index}, message='{text}')"))
            .collect();
        format!(
            "One or more records have been rejected due to {} record errors in total, and only showing \
             the first three errors at most: [{}]",
            faults.count(),
            shown.join(", ")
        )
    };
    let errors = texts.into_iter().map(|(index, text)| {
        let error = answer.element("record_errors").with("batch_index", index);
        Value::Struct(error.with("batch_index_error_message", text.as_str()))
    });
    let mut errors: Vec<Value> = errors.collect();
    // To a producer, records that are not named are good.
    errors.extend(
        faults
            .rest()
            .iter()
            .map(|index| Value::Struct(answer.element("record_errors").with("batch_index", *index))),
    );
    answer
        .set("record_errors", errors)
        .set("error_message", message.as_str());
}

fn fault_text(fault: &RecordFault, compressed: bool, partition: &str) -> String {
    match fault.fault {
        Fault::Keyless => {
            format!("Compacted topic cannot accept message without key in topic partition {partition}")
        }
        Fault::Time {
            timestamp,
            offset,
            earliest,
            latest,
        } => format!(
            "Timestamp {timestamp} of message with offset {offset} is out of range. The timestamp should be \
             within [{earliest}, {latest}]"
        ),
        Fault::AppendTime {
            timestamp,
            offset,
            key_bytes,
            value_bytes,
        } => {
            // Java's two classes of records print the length of null differently.
            let (kind, null) = if compressed { ("Partial", "-1") } else { ("", "0") };
            let size = |bytes: Option<usize>| bytes.map_or(null.to_owned(), |n| n.to_string());
            let (key, value) = (size(key_bytes), size(value_bytes));
            format!(
                "Invalid timestamp type in message {kind}DefaultRecord(offset={offset}, \
                 timestamp={timestamp}, key={key} bytes, value={value} bytes). \
                 Producer should not set timestamp type to LogAppendTime."
            )
        }
    }
}
