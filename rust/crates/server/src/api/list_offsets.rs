//! ListOffsets (key 2): where a log begins and ends, and the first record at or after a time. KIP-79, KIP-734.
//!
//! Version 0 asks for where segments begin that were last written before a time (`UnifiedLog.legacyFetchOffsetsBefore`).
//!
//! A batch that has to be decompressed on the way to a time waits for its turn ([`crate::memory::unpacking`]), each anew, so that a
//! lookup with a long way keeps nobody else from theirs, and ends with its client. By then nothing is left of the message but
//! what its partitions ask for, of which all large requests together may have so much (the budget `list_offsets`); one that comes too much is
//! told REQUEST_TIMED_OUT, after which clients ask again.

use std::collections::HashSet;
use std::sync::Arc;

use logcore_protocol::{RequestHeader, Struct, Value};
use logcore_storage::{Searched, StorageError, TimeSearch, TimestampOffset};
use tokio::task::{block_in_place, yield_now};

use super::{Fields, Outcome, numbered, response_message};
use crate::apis;
use crate::codes::ErrorCode;
use crate::memory::budget::Permit;
use crate::memory::frames::FramePermit;
use crate::memory::unpacking::{DecompressionPermit, Unpacking};
use crate::net::response::Response;
use crate::partitions::registry::{Leadership, Partition};
use crate::shared::{Shared, now_ms};

pub(crate) const KEY: i16 = apis::LIST_OFFSETS;

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

/// What is asked of one partition.
struct Asked {
    index: i32,
    known_epoch: i32,
    timestamp: i64,
    /// How many offsets version 0 wants.
    count: i32,
    is_repeated: bool,
}

impl Asked {
    /// Whether records are looked for, and not an end of the log.
    fn searches(&self, version: i16) -> bool {
        let ends = [LATEST, EARLIEST, EARLIEST_LOCAL, LATEST_TIERED];
        version > 0 && !ends.contains(&self.timestamp)
    }
}

/// What one partition is told: a record or an end, or in version 0 where segments begin.
enum Told {
    One(Found),
    Segments(Vec<i64>),
}

struct Request {
    terms: Terms,
    topics: Vec<(String, Vec<Asked>)>,
}

impl Request {
    fn searches(&self) -> bool {
        let mut asked = self.topics.iter().flat_map(|(_, asked)| asked);
        asked.any(|asked| asked.searches(self.terms.version))
    }

    fn of(version: i16, message: &Struct) -> Self {
        let terms = Terms::of(version, message);
        let numbers = numbered(message.each("topics").map(|topic| topic.text("name")));
        let twice = asked_twice(message, &numbers);
        let topics = message.each("topics").zip(numbers).map(|(topic, number)| {
            let asked = topic.each("partitions").map(|partition| {
                let index = partition.int32("partition_index");
                Asked {
                    index,
                    known_epoch: partition.int32("current_leader_epoch"),
                    timestamp: partition.int64("timestamp"),
                    count: partition.int32("max_num_offsets"),
                    is_repeated: twice.contains(&(number, index)),
                }
            });
            (topic.text("name").to_owned(), asked.collect())
        });
        Self {
            terms,
            topics: topics.collect(),
        }
    }
}

/// Answers. A lookup by time reads the log and may wait for the disk: it runs where blocking is allowed. It may take its time, so
/// it has nothing then of the memory for frames (`charge`, of a body of `size` bytes).
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
    let mut told = Vec::new();
    for (topic, partitions) in &request.topics {
        for asked in partitions {
            told.push(tell(shared, &request.terms, topic, asked, may_search).await);
        }
    }
    match (answer(header, &request, told), memory) {
        (Outcome::Respond(response), Some(memory)) if memory.is_some() => {
            Outcome::Respond(response.with_permits([memory, Permit::default()]))
        }
        (outcome, _) => outcome,
    }
}

async fn tell(
    shared: &Shared,
    terms: &Terms,
    topic: &str,
    asked: &Asked,
    may_search: Result<(), ErrorCode>,
) -> Result<Told, ErrorCode> {
    if asked.is_repeated {
        return Err(ErrorCode::INVALID_REQUEST);
    }
    check_version(asked.timestamp, terms.version)?;
    let (place, leadership) = locate(shared, terms, topic, asked)?;
    if asked.searches(terms.version) {
        may_search?;
    }
    if terms.version == 0 {
        return find_segments(shared, terms, &place, asked).map(Told::Segments);
    }
    look_up(shared, terms, &place, leadership, asked.timestamp)
        .await
        .map(Told::One)
}

fn answer(header: &RequestHeader, request: &Request, told: Vec<Result<Told, ErrorCode>>) -> Outcome {
    let mut message = response_message(KEY);
    let empty_topic = message.element("topics");
    let empty_partition = empty_topic.element("partitions");
    let mut told = told.into_iter();
    let topics = request.topics.iter().map(|(name, asked)| {
        let partitions = asked.iter().zip(&mut told).map(|(asked, told)| {
            let mut answer = empty_partition.clone();
            answer.set("partition_index", asked.index);
            match told {
                Ok(Told::One(found)) => fill(&mut answer, &request.terms, &found),
                Ok(Told::Segments(offsets)) => fill_segments(&mut answer, &offsets),
                Err(code) => {
                    answer.set("error_code", code.0);
                }
            }
            Value::Struct(answer)
        });
        let partitions: Vec<_> = partitions.collect();
        let mut answer = empty_topic.clone();
        answer.set("name", name.as_str()).set("partitions", partitions);
        Value::Struct(answer)
    });
    let topics: Vec<_> = topics.collect();
    message.set("topics", topics);
    Response::new(header, &message.into()).into()
}

/// The partitions that a request names more than once: none of their answers could be told from the other. Kafka answers each in
/// version 0, which tells of so many segments that a short request would have a very long answer.
fn asked_twice(request: &Struct, numbers: &[usize]) -> HashSet<(usize, i32)> {
    let mut seen = HashSet::new();
    let mut twice = HashSet::new();
    for (topic, number) in request.each("topics").zip(numbers) {
        for partition in topic.each("partitions") {
            let key = (*number, partition.int32("partition_index"));
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

/// The newest segments' first offsets, the newest first; a consumer is told nothing above the high watermark.
fn find_segments(
    shared: &Shared,
    terms: &Terms,
    place: &Partition,
    asked: &Asked,
) -> Result<Vec<i64>, ErrorCode> {
    let count = usize::try_from(asked.count).map_err(|_| ErrorCode::UNKNOWN_SERVER_ERROR)?;
    let found = block_in_place(|| {
        shared.registry.read(place, |log| match asked.timestamp {
            LATEST => log.segment_starts(i64::MAX, now_ms(), count),
            EARLIEST => Ok(vec![log.log_start_offset(); count.min(1)]),
            until_ms => log.segment_starts(until_ms, now_ms(), count),
        })
    });
    let mut found = found.map_err(|error| failed(shared, place, &error))?;
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
    asked: &Asked,
) -> Result<(Arc<Partition>, Leadership), ErrorCode> {
    let place = shared
        .registry
        .find(topic, asked.index)
        .ok_or_else(|| shared.registry.absence(topic, asked.index))?;
    let leadership = if terms.replica_id == DEBUGGING_CONSUMER {
        place.serve(asked.known_epoch)?
    } else {
        place.lead(shared.node_id, asked.known_epoch)?
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

async fn look_up(
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
    let search = match timestamp {
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
        MAX_TIMESTAMP => TimeSearch::newest(),
        _ => TimeSearch::first_at(timestamp),
    };
    // Rare beside the log's ends, so it is not a part of every connection's memory.
    let found = Box::pin(search_through(shared, place, search)).await?;
    match found.filter(|found| found.offset < end) {
        Some(found) => Ok(Found {
            timestamp: found.timestamp,
            offset: found.offset,
            leader_epoch: found.leader_epoch,
        }),
        None => check_available(terms, place, leadership).map(|()| NOTHING),
    }
}

/// Searches to the end, or until the server stops: who looks far would keep it from that, and finds another leader.
async fn search_through(
    shared: &Shared,
    place: &Partition,
    mut search: TimeSearch,
) -> Result<Option<TimestampOffset>, ErrorCode> {
    let mut stopping = shared.stopping.subscribe();
    let mut turn = None;
    loop {
        let room = turn
            .as_ref()
            .map_or(0, |turn: &DecompressionPermit<'_>| turn.buffer_max);
        let searched = block_in_place(|| step(shared, place, &mut search, room));
        match searched.map_err(|error| failed(shared, place, &error))? {
            Searched::Found(found) => return Ok(found),
            Searched::Further => turn = None,
            Searched::Packed(bytes) => {
                tokio::select! {
                    biased;
                    _ = stopping.wait_for(|stops| *stops) => {
                        return Err(ErrorCode::NOT_LEADER_OR_FOLLOWER);
                    }
                    next = next_turn(&shared.unpacking, turn, bytes) => turn = next,
                }
            }
        }
        // Others have their turn, and a client that is gone is seen.
        yield_now().await;
    }
}

fn step(
    shared: &Shared,
    place: &Partition,
    search: &mut TimeSearch,
    room: usize,
) -> Result<Searched, StorageError> {
    let (next, searched) = shared.registry.read(place, |log| {
        let mut next = *search;
        let searched = log.search_time(&mut next, room)?;
        Ok((next, searched))
    })?;
    *search = next;
    Ok(searched)
}

/// The turn of a batch of so many bytes, with more room if it had one.
async fn next_turn<'a>(
    unpacking: &'a Unpacking,
    turn: Option<DecompressionPermit<'a>>,
    bytes: usize,
) -> Option<DecompressionPermit<'a>> {
    match turn {
        Some(turn) => unpacking.acquire_larger(turn).await,
        None => Some(unpacking.acquire(bytes).await),
    }
}

/// A new leader does not know yet how far its followers had come: what it would answer could go back (KIP-207).
fn check_available(terms: &Terms, place: &Partition, leadership: Leadership) -> Result<(), ErrorCode> {
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
