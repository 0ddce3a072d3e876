//! Produce (key 0): record batches into logs.
//!
//! The request stays in the buffer it was read into. After its envelope is decoded, the log sets offsets,
//! epochs and timestamps in the buffer, and writes each partition's bytes once. Message sets of versions 0
//! to 2 are converted to batches first.
//!
//! A batch's header is parsed once, in [`batches`], and passed on. `batches` checks what depends on the
//! request's version. The log checks everything else. A long compressed batch waits for a permit to be
//! decompressed ([`crate::memory::decompression`]).
//!
//! With acks=all the response waits in the purgatory until the in-sync replicas have the records
//! (`DelayedProduce`). The next request of the connection waits as well, as in Kafka. [`answer`] builds the
//! response.

mod answer;
mod append;
mod batches;
mod verification;

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

use logcore_protocol::{RequestHeader, Struct, Value};
use logcore_records::is_transactional;
use logcore_storage::{RecordFaults, Verification};

use super::{Fields, Outcome, numbered};
use crate::apis;
use crate::log_lines::Level;
use crate::memory::frames::FramePermit;
use crate::metrics::Stages;
use crate::partitions::purgatory::{Attempt, NO_BYTES, Wait};
use crate::partitions::registry::{Leadership, Partition, TOPIC_NAME_MAX};
use crate::shared::Shared;
use append::{append_part, current_leader};
use logcore_protocol::ErrorCode;

pub(crate) const KEY: i16 = apis::PRODUCE;

/// The client id that may write internal topics (`AdminUtils.ADMIN_CLIENT_ID`).
const ADMIN_CLIENT_ID: &str = "__admin_client";

/// One partition of a request.
struct Part {
    /// Index into the request's topics.
    topic: usize,
    index: i32,
    partition: Option<Arc<Partition>>,
    /// The position of its records in the frame.
    records: Range<usize>,
}

struct Request {
    acks: i16,
    timeout: Duration,
    transactional_id: Option<String>,
    may_write_internal: bool,
    topics: Vec<String>,
    parts: Vec<Part>,
}

impl Request {
    /// The memory that the request uses until its response, without the frame.
    fn kept_bytes(&self) -> usize {
        let names: usize = self.topics.iter().map(String::len).sum();
        let topics = self.topics.capacity() * size_of::<String>() + names;
        let parts = self.parts.capacity() * size_of::<Part>();
        let results = self.parts.len() * size_of::<Result<Done>>();
        topics + parts + results
    }

    /// Keeps only the last part of a partition that the request repeats, as in Kafka (`handleProduceRequest`
    /// puts the parts into a map).
    fn remove_repeated(&mut self) {
        let number_of = numbered(self.topics.iter().map(String::as_str));
        let mut seen = HashSet::with_capacity(self.parts.len());
        let mut last = vec![false; self.parts.len()];
        for (part, last) in self.parts.iter().zip(&mut last).rev() {
            *last = seen.insert((number_of[part.topic], part.index));
        }
        let mut last = last.into_iter();
        self.parts.retain(|_| last.next().unwrap_or(true));
    }
}

/// The `acks` for all in-sync replicas.
const ALL: i16 = -1;

/// The most bad records, or partitions, that a message names.
const SHOWN: usize = 3;

/// The result of one partition's append.
struct Done {
    base_offset: i64,
    last_offset: i64,
    log_append_time: i64,
    log_start_offset: i64,
    /// [`Partition::led_since`] at the append.
    led_since: i32,
    /// With acks=all: `None` until the in-sync replicas have the records, or never will.
    acknowledged: Option<std::result::Result<(), ErrorCode>>,
    /// The current leader, if it changed while the request waited.
    leader: Option<Leadership>,
}

impl Done {
    /// For an empty part, which versions before 3 allow.
    fn of_nothing(log_start_offset: i64) -> Self {
        Self {
            base_offset: -1,
            last_offset: -2,
            log_append_time: -1,
            log_start_offset,
            led_since: -1,
            acknowledged: None,
            leader: None,
        }
    }

    fn has_records(&self) -> bool {
        self.last_offset >= self.base_offset
    }

    fn records(&self) -> u64 {
        (self.last_offset - self.base_offset + 1).unsigned_abs()
    }
}

struct Refused {
    code: ErrorCode,
    /// The bad records.
    faults: Option<RecordFaults>,
    /// The message for the client, in cases in which Kafka sends one.
    message: Option<String>,
    /// -1 in cases in which Kafka does not send it.
    log_start_offset: i64,
    /// The current leader, if it is another broker.
    leader: Option<Leadership>,
}

impl From<ErrorCode> for Refused {
    fn from(code: ErrorCode) -> Self {
        Self {
            code,
            faults: None,
            message: None,
            log_start_offset: -1,
            leader: None,
        }
    }
}

type Result<T> = std::result::Result<T, Refused>;

/// Appends the records, waits for the replicas with acks=all, and builds the response. Returns the frame's
/// buffer and `permit` for the next frame. A request that had to wait gave them back before the wait.
pub(crate) async fn handle(
    shared: &Shared,
    header: &RequestHeader,
    message: Value,
    frame: Bytes,
    permit: FramePermit,
    stages: &mut Stages,
) -> (Outcome, Option<(BytesMut, FramePermit)>) {
    let request = parse(shared, header, &message, &frame);
    drop(message);
    // The frame is not shared any more, so this copies nothing.
    let mut memory = frame
        .try_into_mut()
        .unwrap_or_else(|shared| BytesMut::from(&shared[..]));
    let kept_bytes = shared.budgets.produce.acquire_or_refuse(request.kept_bytes());
    let mut results = match &kept_bytes {
        Ok(_) => append_all(shared, header.api_version, &request, &mut memory).await,
        Err(reason) => {
            let key = "produces that cannot wait";
            shared.lines.push_limited(Level::Warning, key, reason.clone());
            refuse_all(&request, ErrorCode::REQUEST_TIMED_OUT)
        }
    };
    let mut kept = Some((memory, permit));
    if request.acks == ALL && !check_replicas(shared, &request, &mut results) {
        kept = None;
        let began = Instant::now();
        // The future is boxed, so that it is not a part of every connection's memory.
        Box::pin(wait_for_replicas(shared, &request, &mut results)).await;
        stages.remote = began.elapsed();
    }
    let outcome = if request.acks == 0 {
        without_response(&request, &results)
    } else {
        answer::response(header, &request, &results)
    };
    (outcome, kept)
}

async fn append_all(
    shared: &Shared,
    version: i16,
    request: &Request,
    memory: &mut [u8],
) -> Vec<Result<Done>> {
    if let Some(code) = refuse_whole(request, memory) {
        return refuse_all(request, code);
    }
    let verified = verification::verify(shared, version, request, memory).await;
    let mut results = Vec::with_capacity(request.parts.len());
    for (part, verified) in request.parts.iter().zip(verified) {
        let verified = match verified.transpose() {
            Ok(verified) => verified,
            Err(code) => {
                results.push(Err(code.into()));
                continue;
            }
        };
        let how = verified
            .as_ref()
            .map_or(Verification::Off, |verified| verified.verification);
        let records = &mut memory[part.records.clone()];
        results.push(append_part(shared, version, request, part, records, how).await);
    }
    results
}

fn refuse_all(request: &Request, code: ErrorCode) -> Vec<Result<Done>> {
    request.parts.iter().map(|_| Err(code.into())).collect()
}

/// The error of one partition.
fn code_of(result: &Result<Done>) -> Option<ErrorCode> {
    match result {
        Ok(done) => done.acknowledged.and_then(std::result::Result::err),
        Err(refused) => Some(refused.code),
    }
}

/// Acknowledges the partitions whose in-sync replicas have the records. Returns whether none is left.
fn check_replicas(shared: &Shared, request: &Request, results: &mut [Result<Done>]) -> bool {
    let mut all = true;
    for (part, result) in request.parts.iter().zip(results) {
        if let (Some(partition), Ok(done)) = (&part.partition, result)
            && done.acknowledged.is_none()
        {
            done.acknowledged = acknowledgement(shared, partition, done);
            all &= done.acknowledged.is_some();
        }
    }
    all
}

/// `None` while in-sync replicas lack the records.
fn acknowledgement(
    shared: &Shared,
    partition: &Partition,
    done: &mut Done,
) -> Option<std::result::Result<(), ErrorCode>> {
    let led_since = done.has_records().then_some(done.led_since);
    let replicated = shared.replicated(partition, done.last_offset, led_since)?;
    if replicated.is_err()
        && let Err(code) = partition.lead(shared.node_id, -1)
    {
        done.leader = current_leader(partition, code);
    }
    Some(replicated)
}

async fn wait_for_replicas(shared: &Shared, request: &Request, results: &mut [Result<Done>]) {
    let missing = |(part, result): (&Part, &Result<Done>)| match result {
        Ok(done) if done.acknowledged.is_none() => part.partition.clone(),
        _ => None,
    };
    let partitions = request.parts.iter().zip(&*results).filter_map(missing);
    let partitions: Vec<_> = partitions.collect();
    let wait = Wait {
        kind: &shared.purgatory.produce,
        timeout: request.timeout,
        bytes: NO_BYTES,
        stopping: shared.stopping.subscribe(),
    };
    let attempt = || Attempt {
        result: (),
        missing: (!check_replicas(shared, request, results)).then_some(NO_BYTES),
    };
    wait.until(partitions, attempt).await;
    for done in results.iter_mut().flatten() {
        done.acknowledged.get_or_insert(Err(ErrorCode::REQUEST_TIMED_OUT));
    }
}

fn parse(shared: &Shared, header: &RequestHeader, message: &Value, frame: &Bytes) -> Request {
    let Some(message) = message.as_struct() else {
        unreachable!("a decoded request is a struct");
    };
    let mut request = Request {
        acks: message.int16("acks"),
        timeout: Duration::from_millis(u64::try_from(message.int32("timeout_ms")).unwrap_or(0)),
        transactional_id: message
            .get("transactional_id")
            .and_then(Value::as_str)
            .map(str::to_owned),
        may_write_internal: header.client_id.as_deref() == Some(ADMIN_CLIENT_ID),
        topics: Vec::new(),
        parts: Vec::new(),
    };
    for topic in message.each("topic_data") {
        let name = topic.text("name");
        for partition in topic.each("partition_data") {
            let index = partition.int32("index");
            request.parts.push(Part {
                topic: request.topics.len(),
                index,
                partition: shared.registry.find(name, index),
                records: range_in(frame, partition),
            });
        }
        request.topics.push(name.to_owned());
    }
    if request.parts.len() > 1 {
        request.remove_repeated();
    }
    request
}

/// The position of the partition's records in the frame. For null records it is empty.
fn range_in(frame: &Bytes, partition: &Struct) -> Range<usize> {
    match partition.get("records").and_then(Value::as_bytes) {
        // Records are slices of the frame, so the difference of their addresses is a position in it.
        Some(records) if !records.is_empty() => {
            let start = records.as_ptr() as usize - frame.as_ptr() as usize;
            start..start + records.len()
        }
        _ => 0..0,
    }
}

/// The error for all partitions of a request.
fn refuse_whole(request: &Request, frame: &[u8]) -> Option<ErrorCode> {
    let has_transactional = |part: &Part| is_transactional(&frame[part.records.clone()]);
    (request.transactional_id.is_none() && request.parts.iter().any(has_transactional))
        .then_some(ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
}

/// With acks=0 there is no response, so an error closes the connection. The log line about it names only the
/// first partitions and cuts their names, because the client chooses both.
fn without_response(request: &Request, results: &[Result<Done>]) -> Outcome {
    let failed = request.parts.iter().zip(results);
    let mut failed = failed.filter_map(|(part, result)| Some((part, code_of(result)?)));
    let named = failed.by_ref().take(SHOWN).map(|(part, code)| {
        let topic = &request.topics[part.topic];
        let topic = &topic[..topic.floor_char_boundary(TOPIC_NAME_MAX)];
        format!("{topic}-{}: {}", part.index, code.name())
    });
    let named: Vec<String> = named.collect();
    if named.is_empty() {
        return Outcome::Silent;
    }
    let more = match failed.count() {
        0 => String::new(),
        more => format!(" and {more} partitions more"),
    };
    Outcome::Close(format!(
        "a Produce request with acks=0 failed: {}{more}",
        named.join(", ")
    ))
}
