//! ListOffsets (key 2): where a log begins and ends, and the first record at or after a time. KIP-79, KIP-734.

use std::ops::RangeInclusive;

use logcore_protocol::{RequestHeader, Struct, Value};

use super::{Fields, Outcome, response_message};
use crate::codes::ErrorCode;
use crate::lines::Level;
use crate::registry::Partition;
use crate::response::Response;
use crate::shared::Shared;

pub(crate) const KEY: i16 = 2;
/// Version 0 listed segments (`max_num_offsets`); no client of the last years sends it.
pub(crate) const VERSIONS: RangeInclusive<i16> = 1..=9;

const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
const MAX_TIMESTAMP: i64 = -3;
const EARLIEST_LOCAL: i64 = -4;
const LATEST_TIERED: i64 = -5;
const UNKNOWN: i64 = -1;

/// What was found: nothing has -1 everywhere.
struct Found {
    timestamp: i64,
    offset: i64,
    leader_epoch: i32,
}

const NOTHING: Found = Found {
    timestamp: UNKNOWN,
    offset: UNKNOWN,
    leader_epoch: -1,
};

/// Answers. A lookup by time reads the log and may wait for the disk: it runs where blocking is allowed.
pub(crate) fn handle(shared: &Shared, header: &RequestHeader, request: &Struct) -> Outcome {
    let committed = request.int8("isolation_level") == 1;
    let is_debug = request.int32("replica_id") == -2;
    let mut message = response_message(KEY);
    let empty_topic = message.element("topics");
    let empty_partition = empty_topic.element("partitions");
    let mut topics = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for topic in request.each("topics") {
        let name = topic.text("name");
        let mut partitions = Vec::new();
        for partition in topic.each("partitions") {
            let index = partition.int32("partition_index");
            let mut answer = empty_partition.clone();
            answer.set("partition_index", index);
            let found = if seen.insert((name, index)) {
                let known_epoch = partition.int32("current_leader_epoch");
                let timestamp = partition.int64("timestamp");
                let place = shared
                    .registry
                    .find(name, index)
                    .ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
                place.and_then(|place| {
                    place.lead(shared.node_id, known_epoch)?;
                    check_version(timestamp, header.api_version)?;
                    look_up(shared, &place, timestamp, committed, is_debug)
                })
            } else {
                Err(ErrorCode::INVALID_REQUEST)
            };
            match found {
                Ok(found) => answer
                    .set("timestamp", found.timestamp)
                    .set("offset", found.offset)
                    .set(
                        "leader_epoch",
                        if header.api_version >= 4 {
                            found.leader_epoch
                        } else {
                            -1
                        },
                    ),
                Err(code) => answer.set("error_code", code.0),
            };
            partitions.push(Value::Struct(answer));
        }
        let mut answer = empty_topic.clone();
        answer.set("name", name).set("partitions", partitions);
        topics.push(Value::Struct(answer));
    }
    message.set("topics", topics);
    Response::new(header, &message.into()).into()
}

fn check_version(timestamp: i64, version: i16) -> Result<(), ErrorCode> {
    let since = match timestamp {
        MAX_TIMESTAMP => 7,
        EARLIEST_LOCAL => 8,
        LATEST_TIERED => 9,
        i64::MIN..LATEST_TIERED => i16::MAX,
        _ => 1,
    };
    if version < since {
        Err(ErrorCode::UNSUPPORTED_VERSION)
    } else {
        Ok(())
    }
}

fn look_up(
    shared: &Shared,
    place: &Partition,
    timestamp: i64,
    committed: bool,
    is_debug: bool,
) -> Result<Found, ErrorCode> {
    let log = &place.log;
    let end = match (is_debug, committed) {
        (true, _) => log.log_end_offset(),
        (false, true) => log.last_stable_offset(),
        (false, false) => log.high_watermark(),
    };
    let at = |offset: i64, leader_epoch: i32| Found {
        timestamp: UNKNOWN,
        offset,
        leader_epoch,
    };
    let found = match timestamp {
        LATEST => return Ok(at(end, log.latest_epoch().unwrap_or(-1))),
        EARLIEST | EARLIEST_LOCAL => {
            return Ok(at(
                log.log_start_offset(),
                log.epoch_of(log.log_start_offset()).unwrap_or(-1),
            ));
        }
        LATEST_TIERED => return Ok(NOTHING),
        MAX_TIMESTAMP => {
            tokio::task::block_in_place(|| shared.registry.read(place, |log| log.max_timestamp()))
        }
        _ => tokio::task::block_in_place(|| {
            shared
                .registry
                .read(place, |log| log.offset_for_timestamp(timestamp))
        }),
    };
    let found = found.map_err(|error| {
        let partition = format!("{}-{}", place.topic, place.index);
        shared.lines.seldom(
            Level::Error,
            &format!("list {partition} {:?}", std::mem::discriminant(&error)),
            format!("ListOffsets of {partition}: {error}"),
        );
        ErrorCode(error.kafka_code())
    })?;
    Ok(found
        .filter(|found| found.offset < end)
        .map_or(NOTHING, |found| Found {
            timestamp: found.timestamp,
            offset: found.offset,
            leader_epoch: found.leader_epoch,
        }))
}
