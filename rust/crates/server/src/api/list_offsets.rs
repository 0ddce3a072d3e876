//! ListOffsets (key 2): the start and end of a log, and the first record at or after a time. KIP-79, KIP-734.
//!
//! Version 0 requests the first offsets of segments that were last written before a time
//! (`UnifiedLog.legacyFetchOffsetsBefore`).
//!
//! A search by time may have to decompress batches. Each waits for a permit
//! ([`crate::memory::decompression`]), so a long search does not block others, and ends with its client. A
//! searching request keeps only its parsed form; long ones share a budget (`list_offsets`). At the bound a
//! request gets REQUEST_TIMED_OUT, and its client tries again.

use std::collections::HashSet;
use std::sync::Arc;

use logcore_protocol::{RequestHeader, Struct, Value};
use logcore_storage::{Searched, StorageError, TimeSearch, TimestampOffset};
use tokio::task::{block_in_place, yield_now};

use super::{Fields, Outcome, numbered, response_message};
use crate::apis;
use crate::memory::Budgets;
use crate::memory::budget::Permit;
use crate::memory::decompression::DecompressionPermit;
use crate::memory::frames::FramePermit;
use crate::net::response::Response;
use crate::partitions::registry::{Leadership, Partition};
use crate::shared::{Shared, now_ms};
use logcore_protocol::ErrorCode;

pub(crate) const KEY: i16 = apis::LIST_OFFSETS;

/// The replica ids of consumers, and of tools, which may ask any replica.
const CONSUMER: i32 = -1;
const DEBUGGING_CONSUMER: i32 = -2;

const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
const MAX_TIMESTAMP: i64 = -3;
const EARLIEST_LOCAL: i64 = -4;
const LATEST_TIERED: i64 = -5;
const UNKNOWN: i64 = -1;

/// A record or an end that was found. All fields are -1 if there is none.
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

struct Parameters {
    version: i16,
    replica_id: i32,
    committed: bool,
}

impl Parameters {
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

struct Asked {
    index: i32,
    known_epoch: i32,
    timestamp: i64,
    /// The most offsets of version 0.
    count: i32,
    is_repeated: bool,
}

impl Asked {
    /// Whether it searches for a record, instead of the log's start or end.
    fn searches(&self, version: i16) -> bool {
        let ends = [LATEST, EARLIEST, EARLIEST_LOCAL, LATEST_TIERED];
        version > 0 && !ends.contains(&self.timestamp)
    }
}

/// The answer for one partition: a record or an end, or in version 0 the first offsets of segments.
enum Answer {
    One(Found),
    Segments(Vec<i64>),
}

struct Request {
    parameters: Parameters,
    topics: Vec<(String, Vec<Asked>)>,
}

impl Request {
    fn searches(&self) -> bool {
        let mut asked = self.topics.iter().flat_map(|(_, asked)| asked);
        asked.any(|asked| asked.searches(self.parameters.version))
    }

    fn of(version: i16, message: &Struct) -> Self {
        let parameters = Parameters::of(version, message);
        let numbers = numbered(message.each("topics").map(|topic| topic.text("name")));
        let repeated = repeated_partitions(message, &numbers);
        let topics = message.each("topics").zip(numbers).map(|(topic, number)| {
            let asked = topic.each("partitions").map(|partition| {
                let index = partition.int32("partition_index");
                Asked {
                    index,
                    known_epoch: partition.int32("current_leader_epoch"),
                    timestamp: partition.int64("timestamp"),
                    count: partition.int32("max_num_offsets"),
                    is_repeated: repeated.contains(&(number, index)),
                }
            });
            (topic.text("name").to_owned(), asked.collect())
        });
        Self {
            parameters,
            topics: topics.collect(),
        }
    }
}

/// Answers a request with a body of `size` bytes. A search by time reads the log and may wait for the disk,
/// so it is offloaded. It may take long, so it gives back its frame's memory (`permit`).
pub(crate) async fn handle(
    shared: &Shared,
    header: &RequestHeader,
    message: Value,
    (permit, size): (&mut FramePermit, usize),
) -> Outcome {
    let Some(request) = message.as_struct() else {
        unreachable!("a decoded request is a struct");
    };
    let request = Request::of(header.api_version, request);
    drop(message);
    let mut memory = Some(Permit::default());
    if request.searches() {
        memory = shared.budgets.list_offsets.try_acquire(size);
        *permit = FramePermit::default();
    }
    let may_search = match memory {
        Some(_) => Ok(()),
        None => Err(ErrorCode::REQUEST_TIMED_OUT),
    };
    let mut answers = Vec::new();
    for (topic, partitions) in &request.topics {
        for asked in partitions {
            answers.push(answer(shared, &request.parameters, topic, asked, may_search).await);
        }
    }
    match (respond(header, &request, answers), memory) {
        (Outcome::Respond(response), Some(memory)) if memory.is_some() => {
            Outcome::Respond(response.with_permits([memory, Permit::default()]))
        }
        (outcome, _) => outcome,
    }
}

async fn answer(
    shared: &Shared,
    parameters: &Parameters,
    topic: &str,
    asked: &Asked,
    may_search: Result<(), ErrorCode>,
) -> Result<Answer, ErrorCode> {
    if asked.is_repeated {
        return Err(ErrorCode::INVALID_REQUEST);
    }
    check_version(asked.timestamp, parameters.version)?;
    let (partition, leadership) = locate(shared, parameters, topic, asked)?;
    if asked.searches(parameters.version) {
        may_search?;
    }
    if parameters.version == 0 {
        return find_segments(shared, parameters, &partition, asked).map(Answer::Segments);
    }
    look_up(shared, parameters, &partition, leadership, asked.timestamp)
        .await
        .map(Answer::One)
}

fn respond(header: &RequestHeader, request: &Request, answers: Vec<Result<Answer, ErrorCode>>) -> Outcome {
    let mut message = response_message(KEY);
    let empty_topic = message.element("topics");
    let empty_partition = empty_topic.element("partitions");
    let mut answers = answers.into_iter();
    let topics = request.topics.iter().map(|(name, asked)| {
        let partitions = asked.iter().zip(&mut answers).map(|(asked, answer)| {
            let mut entry = empty_partition.clone();
            entry.set("partition_index", asked.index);
            match answer {
                Ok(Answer::One(found)) => fill(&mut entry, &request.parameters, &found),
                Ok(Answer::Segments(offsets)) => fill_segments(&mut entry, &offsets),
                Err(code) => {
                    entry.set("error_code", code.0);
                }
            }
            Value::Struct(entry)
        });
        let partitions: Vec<_> = partitions.collect();
        let mut entry = empty_topic.clone();
        entry.set("name", name.as_str()).set("partitions", partitions);
        Value::Struct(entry)
    });
    let topics: Vec<_> = topics.collect();
    message.set("topics", topics);
    Response::new(header, &message.into()).into()
}

/// The partitions that a request names more than once. They are refused, because their answers could not be
/// distinguished. In version 0 Kafka answers each, but a short request could then have a very long response.
fn repeated_partitions(request: &Struct, numbers: &[usize]) -> HashSet<(usize, i32)> {
    let mut seen = HashSet::new();
    let mut repeated = HashSet::new();
    for (topic, number) in request.each("topics").zip(numbers) {
        for partition in topic.each("partitions") {
            let key = (*number, partition.int32("partition_index"));
            if !seen.insert(key) {
                repeated.insert(key);
            }
        }
    }
    repeated
}

fn fill(entry: &mut Struct, parameters: &Parameters, found: &Found) {
    entry
        .set("timestamp", found.timestamp)
        .set("offset", found.offset);
    if parameters.version >= 4 {
        entry.set("leader_epoch", found.leader_epoch);
    }
}

fn fill_segments(entry: &mut Struct, offsets: &[i64]) {
    let offsets = offsets.iter().copied().map(Value::from);
    entry.set("old_style_offsets", offsets.collect::<Vec<_>>());
}

/// The first offsets of the newest segments, the newest first. A consumer gets none above the high watermark.
fn find_segments(
    shared: &Shared,
    parameters: &Parameters,
    partition: &Partition,
    asked: &Asked,
) -> Result<Vec<i64>, ErrorCode> {
    let count = usize::try_from(asked.count).map_err(|_| ErrorCode::UNKNOWN_SERVER_ERROR)?;
    let found = block_in_place(|| {
        shared.registry.read(partition, |log| match asked.timestamp {
            LATEST => log.segment_starts(i64::MAX, now_ms(), count),
            EARLIEST => Ok(vec![log.log_start_offset(); count.min(1)]),
            until_ms => log.segment_starts(until_ms, now_ms(), count),
        })
    });
    let mut found = found.map_err(|error| failed(shared, partition, &error))?;
    let end = partition.log.high_watermark();
    if parameters.is_consumer() && found.iter().any(|offset| *offset > end) {
        found.retain(|offset| *offset <= end);
        found.insert(0, end);
    }
    Ok(found)
}

fn locate(
    shared: &Shared,
    parameters: &Parameters,
    topic: &str,
    asked: &Asked,
) -> Result<(Arc<Partition>, Leadership), ErrorCode> {
    let partition = shared
        .registry
        .find(topic, asked.index)
        .ok_or_else(|| shared.registry.absence(topic, asked.index))?;
    let leadership = if parameters.replica_id == DEBUGGING_CONSUMER {
        partition.serve(asked.known_epoch)?
    } else {
        partition.lead(shared.node_id, asked.known_epoch)?
    };
    Ok((partition, leadership))
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

async fn look_up(
    shared: &Shared,
    parameters: &Parameters,
    partition: &Partition,
    leadership: Leadership,
    timestamp: i64,
) -> Result<Found, ErrorCode> {
    let log = &partition.log;
    let end = match (parameters.is_consumer(), parameters.committed) {
        (false, _) => log.log_end_offset(),
        (true, true) => log.last_stable_offset(),
        (true, false) => log.high_watermark(),
    };
    let at = |offset: i64, leader_epoch: i32| Found {
        timestamp: UNKNOWN,
        offset,
        leader_epoch,
    };
    let search = match timestamp {
        LATEST => {
            check_available(parameters, partition)?;
            return Ok(at(end, leadership.epoch));
        }
        EARLIEST | EARLIEST_LOCAL => {
            return Ok(at(
                log.log_start_offset(),
                log.epoch_of(log.log_start_offset()).unwrap_or(-1),
            ));
        }
        LATEST_TIERED => return Ok(NOTHING),
        MAX_TIMESTAMP => TimeSearch::newest(),
        _ => TimeSearch::first_at(timestamp),
    };
    // Searches are rare: the future is boxed, so that it is not part of every connection's memory.
    let found = Box::pin(search_through(shared, partition, search)).await?;
    match found.filter(|found| found.offset < end) {
        Some(found) => Ok(Found {
            timestamp: found.timestamp,
            offset: found.offset,
            leader_epoch: found.leader_epoch,
        }),
        None => check_available(parameters, partition).map(|()| NOTHING),
    }
}

/// Searches to the end, or until the server stops: a long search must not delay that, and the client finds
/// another leader.
async fn search_through(
    shared: &Shared,
    partition: &Partition,
    mut search: TimeSearch,
) -> Result<Option<TimestampOffset>, ErrorCode> {
    let mut stopping = shared.stopping.subscribe();
    let mut permit = None;
    loop {
        let buffer_max = permit
            .as_ref()
            .map_or(0, |permit: &DecompressionPermit| permit.buffer_max);
        let searched = block_in_place(|| step(shared, partition, &mut search, buffer_max));
        match searched.map_err(|error| failed(shared, partition, &error))? {
            Searched::Found(found) => return Ok(found),
            Searched::Further => permit = None,
            Searched::Compressed(bytes) => {
                tokio::select! {
                    biased;
                    _ = stopping.wait_for(|stops| *stops) => {
                        return Err(ErrorCode::NOT_LEADER_OR_FOLLOWER);
                    }
                    next = next_permit(&shared.budgets, permit, bytes) => permit = next,
                }
            }
        }
        // The thread's other connections run, and a closed connection is noticed.
        yield_now().await;
    }
}

fn step(
    shared: &Shared,
    partition: &Partition,
    search: &mut TimeSearch,
    buffer_max: usize,
) -> Result<Searched, StorageError> {
    let (next, searched) = shared.registry.read(partition, |log| {
        let mut next = *search;
        let searched = log.search_time(&mut next, buffer_max)?;
        Ok((next, searched))
    })?;
    *search = next;
    Ok(searched)
}

/// A permit to decompress a batch of so many bytes: a larger one if there was one already.
async fn next_permit(
    budgets: &Budgets,
    permit: Option<DecompressionPermit>,
    bytes: usize,
) -> Option<DecompressionPermit> {
    match permit {
        Some(permit) => budgets.larger_decompression(permit).await,
        None => Some(budgets.decompression(bytes).await),
    }
}

/// A new leader does not know its followers' positions yet, so its answer could go back (KIP-207).
fn check_available(parameters: &Parameters, partition: &Partition) -> Result<(), ErrorCode> {
    let lags = partition.replicas.begun_at() > partition.log.high_watermark();
    match parameters.version {
        _ if !lags || !parameters.is_consumer() => Ok(()),
        ..5 => Err(ErrorCode::LEADER_NOT_AVAILABLE),
        5.. => Err(ErrorCode::OFFSET_NOT_AVAILABLE),
    }
}

fn failed(shared: &Shared, partition: &Partition, error: &StorageError) -> ErrorCode {
    let what = format_args!("ListOffsets of {partition} failed");
    shared.storage_error(what, Some(partition), error)
}
