//! ListOffsets (key 2): where a log begins and ends, and the first record at or after a time. KIP-79, KIP-734.
//!
//! Version 0 asks for where segments begin that were last written before a time (`UnifiedLog.legacyFetchOffsetsBefore`).

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use logcore_protocol::{RequestHeader, Struct, Value};
use logcore_storage::StorageError;

use super::{Fields, Outcome, response_message};
use crate::codes::ErrorCode;
use crate::registry::{Leadership, Partition};
use crate::response::Response;
use crate::shared::{Shared, now_ms};

pub(crate) const KEY: i16 = 2;
pub(crate) const VERSIONS: RangeInclusive<i16> = 0..=9;

/// The replica id of a consumer, and that of a tool, which may ask any replica.
const CONSUMER: i32 = -1;
const DEBUGGING_CONSUMER: i32 = -2;

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

/// On what terms a request asks.
struct Terms {
    version: i16,
    replica_id: i32,
    /// Only records below the last stable offset.
    committed: bool,
}

impl Terms {
    fn of(version: i16, request: &Struct) -> Self {
        Self {
            version,
            replica_id: request.int32("replica_id"),
            committed: request.int8("isolation_level") == 1,
        }
    }

    /// Replicas and tools see the whole log.
    fn is_consumer(&self) -> bool {
        self.replica_id == CONSUMER
    }
}

/// Answers. A lookup by time reads the log and may wait for the disk: it runs where blocking is allowed.
pub(crate) fn handle(shared: &Shared, header: &RequestHeader, request: &Struct) -> Outcome {
    let terms = Terms::of(header.api_version, request);
    let twice = match terms.version {
        0 => HashSet::new(),
        _ => asked_twice(request),
    };
    let mut message = response_message(KEY);
    let empty_topic = message.element("topics");
    let empty_partition = empty_topic.element("partitions");
    let mut topics = Vec::new();
    for topic in request.each("topics") {
        let name = topic.text("name");
        let mut partitions = Vec::new();
        for partition in topic.each("partitions") {
            let index = partition.int32("partition_index");
            let mut answer = empty_partition.clone();
            answer.set("partition_index", index);
            let found = if twice.contains(&(name, index)) {
                Err(ErrorCode::INVALID_REQUEST)
            } else if terms.version == 0 {
                find_segments(shared, &terms, name, partition)
                    .map(|offsets| fill_segments(&mut answer, &offsets))
            } else {
                find(shared, &terms, name, partition).map(|found| fill(&mut answer, &terms, &found))
            };
            if let Err(code) = found {
                answer.set("error_code", code.0);
            }
            partitions.push(Value::Struct(answer));
        }
        let mut answer = empty_topic.clone();
        answer.set("name", name).set("partitions", partitions);
        topics.push(Value::Struct(answer));
    }
    message.set("topics", topics);
    Response::new(header, &message.into()).into()
}

/// The partitions that a request names more than once: none of their answers could be told from the other.
fn asked_twice(request: &Struct) -> HashSet<(&str, i32)> {
    let mut seen = HashSet::new();
    let mut twice = HashSet::new();
    for topic in request.each("topics") {
        for partition in topic.each("partitions") {
            let key = (topic.text("name"), partition.int32("partition_index"));
            if !seen.insert(key) {
                twice.insert(key);
            }
        }
    }
    twice
}

fn fill(answer: &mut Struct, terms: &Terms, found: &Found) {
    answer
        .set("timestamp", found.timestamp)
        .set("offset", found.offset);
    if terms.version >= 4 {
        answer.set("leader_epoch", found.leader_epoch);
    }
}

fn fill_segments(answer: &mut Struct, offsets: &[i64]) {
    let offsets = offsets.iter().copied().map(Value::from);
    answer.set("old_style_offsets", offsets.collect::<Vec<_>>());
}

fn find(shared: &Shared, terms: &Terms, topic: &str, request: &Struct) -> Result<Found, ErrorCode> {
    let timestamp = request.int64("timestamp");
    check_version(timestamp, terms.version)?;
    let (place, leadership) = locate(shared, terms, topic, request)?;
    look_up(shared, terms, &place, leadership, timestamp)
}

/// The newest segments' first offsets, the newest first; a consumer is told nothing above the high watermark.
fn find_segments(
    shared: &Shared,
    terms: &Terms,
    topic: &str,
    request: &Struct,
) -> Result<Vec<i64>, ErrorCode> {
    let timestamp = request.int64("timestamp");
    check_version(timestamp, terms.version)?;
    let (place, _) = locate(shared, terms, topic, request)?;
    let count = usize::try_from(request.int32("max_num_offsets"))
        .map_err(|_| ErrorCode::UNKNOWN_SERVER_ERROR)?;
    let found = tokio::task::block_in_place(|| {
        shared.registry.read(&place, |log| match timestamp {
            LATEST => log.segment_starts(i64::MAX, now_ms(), count),
            EARLIEST => Ok(vec![log.log_start_offset(); count.min(1)]),
            _ => log.segment_starts(timestamp, now_ms(), count),
        })
    });
    let mut found = found.map_err(|error| failed(shared, &place, &error))?;
    let end = place.log.high_watermark();
    if terms.is_consumer() && found.iter().any(|offset| *offset > end) {
        found.retain(|offset| *offset <= end);
        found.insert(0, end);
    }
    Ok(found)
}

fn locate(
    shared: &Shared,
    terms: &Terms,
    topic: &str,
    request: &Struct,
) -> Result<(Arc<Partition>, Leadership), ErrorCode> {
    let place = shared
        .registry
        .find(topic, request.int32("partition_index"))
        .ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?;
    let known_epoch = request.int32("current_leader_epoch");
    let leadership = if terms.replica_id == DEBUGGING_CONSUMER {
        place.serve(known_epoch)?
    } else {
        place.lead(shared.node_id, known_epoch)?
    };
    Ok((place, leadership))
}

fn check_version(timestamp: i64, version: i16) -> Result<(), ErrorCode> {
    let since = match timestamp {
        MAX_TIMESTAMP => 7,
        EARLIEST_LOCAL => 8,
        LATEST_TIERED => 9,
        i64::MIN..LATEST_TIERED => i16::MAX,
        _ => 0,
    };
    if version < since {
        Err(ErrorCode::UNSUPPORTED_VERSION)
    } else {
        Ok(())
    }
}

fn look_up(
    shared: &Shared,
    terms: &Terms,
    place: &Partition,
    leadership: Leadership,
    timestamp: i64,
) -> Result<Found, ErrorCode> {
    let log = &place.log;
    let end = match (terms.is_consumer(), terms.committed) {
        (false, _) => log.log_end_offset(),
        (true, true) => log.last_stable_offset(),
        (true, false) => log.high_watermark(),
    };
    let at = |offset: i64, leader_epoch: i32| Found {
        timestamp: UNKNOWN,
        offset,
        leader_epoch,
    };
    let found = match timestamp {
        LATEST => {
            check_available(terms, place, leadership)?;
            return Ok(at(end, leadership.epoch));
        }
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
    let found = found.map_err(|error| failed(shared, place, &error))?;
    match found.filter(|found| found.offset < end) {
        Some(found) => Ok(Found {
            timestamp: found.timestamp,
            offset: found.offset,
            leader_epoch: found.leader_epoch,
        }),
        None => check_available(terms, place, leadership).map(|()| NOTHING),
    }
}

/// A new leader does not know yet how far its followers had come: what it would answer could go back (KIP-207).
fn check_available(
    terms: &Terms,
    place: &Partition,
    leadership: Leadership,
) -> Result<(), ErrorCode> {
    let begun = place.log.epoch_start(leadership.epoch);
    let lags = begun.is_some_and(|begun| begun > place.log.high_watermark());
    match terms.version {
        _ if !lags || !terms.is_consumer() => Ok(()),
        ..5 => Err(ErrorCode::LEADER_NOT_AVAILABLE),
        5.. => Err(ErrorCode::OFFSET_NOT_AVAILABLE),
    }
}

fn failed(shared: &Shared, place: &Partition, error: &StorageError) -> ErrorCode {
    let what = format_args!("ListOffsets of {place} failed");
    shared.storage_error(what, Some(place), error)
}
