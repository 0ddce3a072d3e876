//! Produce (key 0): record batches into logs.
//!
//! The request stays in the buffer it was read into. Its envelope is decoded, then the buffer is taken back for writing:
//! the log sets offsets, epochs and timestamps in place and writes each partition's bytes once. Message sets of the
//! versions 0-2 are converted to batches first. What a batch must look like is checked here as far as the request's
//! version decides it (`ProduceRequest.validateRecords`), everything else by the log.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use logcore_protocol::{RequestHeader, Struct, Value};
use logcore_records::{BatchHeader, Compression, MAGIC_V2, RecordError, batches, legacy};
use logcore_storage::StorageError;

use super::{Fields, Outcome, response_message};
use crate::codes::ErrorCode;
use crate::lines::Level;
use crate::purgatory::HasWaitingRoom;
use crate::registry::{Leadership, Partition};
use crate::response::Response;
use crate::shared::{Shared, now_ms};

pub(crate) const KEY: i16 = 0;
pub(crate) const VERSIONS: RangeInclusive<i16> = 0..=11;

/// Topics that only the coordinators write (`Topic.isInternal`).
const INTERNAL_TOPICS: [&str; 2] = ["__consumer_offsets", "__transaction_state"];

/// Where the magic byte is in every format.
const MAGIC_POSITION: usize = 16;

/// One partition of a request.
struct Part {
    /// Index into the request's topics.
    topic: usize,
    index: i32,
    place: Option<Arc<Partition>>,
    /// Where its records are in the frame.
    records: Range<usize>,
}

struct Request {
    acks: i16,
    transactional_id: Option<String>,
    topics: Vec<String>,
    parts: Vec<Part>,
}

/// What became of one partition.
struct Done {
    records: u64,
    base_offset: i64,
    log_append_time: i64,
    log_start_offset: i64,
}

struct Refused {
    code: ErrorCode,
    /// For the client to read; absent when it would say no more than the code.
    message: Option<String>,
    /// Who leads, when it is not this server.
    leader: Option<Leadership>,
}

impl From<ErrorCode> for Refused {
    fn from(code: ErrorCode) -> Self {
        Self {
            code,
            message: None,
            leader: None,
        }
    }
}

impl Refused {
    fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            message: Some(message.into()),
            ..code.into()
        }
    }
}

type Result<T> = std::result::Result<T, Refused>;

/// Appends and answers; gives the frame's memory back to be read into again.
pub(crate) fn handle(
    shared: &Shared,
    header: &RequestHeader,
    message: Value,
    frame: Bytes,
) -> (Outcome, Option<BytesMut>) {
    let request = parse(shared, &message, &frame);
    drop(message);
    // Nobody shares the frame any more, so this copies nothing; were it shared, the copy would still be right.
    let mut memory = frame
        .try_into_mut()
        .unwrap_or_else(|shared| BytesMut::from(&shared[..]));
    let refused = refuse_whole(&request, &memory);
    let mut append = |part: &Part| match refused {
        Some(code) => Err(code.into()),
        None => append_counted(
            shared,
            header.api_version,
            part,
            &mut memory[part.records.clone()],
        ),
    };
    let results: Vec<Result<Done>> = request.parts.iter().map(&mut append).collect();
    let failed = results.iter().filter(|result| result.is_err()).count();
    shared.metrics.failed_produces.add(failed as u64);
    let outcome = if request.acks == 0 {
        without_answer(&request, &results)
    } else {
        answer(header, &request, &results)
    };
    (outcome, Some(memory))
}

fn parse(shared: &Shared, message: &Value, frame: &Bytes) -> Request {
    let Some(message) = message.as_struct() else {
        unreachable!("a decoded request is a struct");
    };
    let mut request = Request {
        acks: message.int16("acks"),
        transactional_id: message
            .get("transactional_id")
            .and_then(Value::as_str)
            .map(str::to_owned),
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
                place: shared.registry.find(name, index),
                records: range_in(frame, partition),
            });
        }
        request.topics.push(name.to_owned());
    }
    request
}

/// Where in the frame the partition's records are; null records are an empty range.
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

/// What is wrong with the request as a whole.
fn refuse_whole(request: &Request, frame: &[u8]) -> Option<ErrorCode> {
    if !(-1..=1).contains(&request.acks) {
        return Some(ErrorCode::INVALID_REQUIRED_ACKS);
    }
    let is_transactional = |part: &Part| {
        BatchHeader::parse(&frame[part.records.clone()]).is_ok_and(|batch| batch.is_transactional())
    };
    if !request.parts.iter().any(is_transactional) {
        return None;
    }
    // No producer is given a transaction here, so a transactional batch belongs to none.
    Some(match request.transactional_id {
        Some(_) => ErrorCode::INVALID_TXN_STATE,
        None => ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    })
}

/// Appends, and counts what became of it.
fn append_counted(shared: &Shared, version: i16, part: &Part, records: &mut [u8]) -> Result<Done> {
    let done = append_part(shared, version, part, records);
    if let Some(place) = &part.place {
        let bytes = records.len() as u64;
        place.counts.total_produce_requests.add(1);
        match &done {
            Ok(done) => place.counts.produced(done.records, bytes),
            Err(refused) => place.counts.produce_refused(refused.code, bytes),
        }
    }
    done
}

fn append_part(shared: &Shared, version: i16, part: &Part, records: &mut [u8]) -> Result<Done> {
    let place = part
        .place
        .as_ref()
        .ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?;
    if INTERNAL_TOPICS.contains(&&*place.topic) {
        return Err(ErrorCode::INVALID_TOPIC_EXCEPTION.into());
    }
    let leadership = place.lead(shared.node_id, -1).map_err(|code| Refused {
        leader: Some(place.leadership()),
        ..code.into()
    })?;
    if version < 3 && records.get(MAGIC_POSITION) != Some(&(MAGIC_V2 as u8)) {
        let mut converted = convert(shared, records)?;
        let done = write(shared, place, leadership, &mut converted)?;
        let count = &place.counts.produce_message_conversions;
        count.add(done.records);
        return Ok(done);
    }
    let size = check_shape(version, records)?;
    write(shared, place, leadership, &mut records[..size])
}

/// Message sets v0 and v1 to batches. What they decompress to may be as large as the largest request.
fn convert(shared: &Shared, records: &[u8]) -> Result<Vec<u8>> {
    legacy::to_v2(records, shared.config.request_bytes_max).map_err(|error| from_record(&error))
}

/// The size of the batch, or before version 3 the batches, that the request has for a partition. Bytes of an incomplete
/// further batch are not counted: they are dropped, as Kafka does.
fn check_shape(version: i16, records: &[u8]) -> Result<usize> {
    if records
        .get(MAGIC_POSITION)
        .is_some_and(|magic| *magic != MAGIC_V2 as u8)
    {
        return Err(invalid(format!(
            "a Produce request of version {version} must have record batches of format v2"
        )));
    }
    let mut iterator = batches(records);
    let mut count = 0;
    for batch in iterator.by_ref() {
        count += 1;
        check_header(version, &batch.map_err(|error| from_record(&error))?.header)?;
    }
    if count == 0 || (version >= 3 && count > 1) {
        return Err(invalid(format!(
            "a Produce request of version {version} has {count} whole record batches for one partition; one is needed"
        )));
    }
    Ok(iterator.valid_bytes())
}

fn check_header(version: i16, batch: &BatchHeader) -> Result<()> {
    if batch.is_control() {
        return Err(invalid("clients may not write control records"));
    }
    if batch.base_offset != 0 {
        return Err(invalid(format!(
            "the base offset of a produced batch should be 0, it is {}",
            batch.base_offset
        )));
    }
    if version < 7 && matches!(batch.compression(), Ok(Compression::Zstd)) {
        return Err(ErrorCode::UNSUPPORTED_COMPRESSION_TYPE.into());
    }
    Ok(())
}

fn invalid(message: impl Into<String>) -> Refused {
    Refused::new(ErrorCode::INVALID_RECORD, message)
}

fn from_record(error: &RecordError) -> Refused {
    let code = match error {
        RecordError::UnknownCompression(_) => ErrorCode::UNSUPPORTED_COMPRESSION_TYPE,
        RecordError::DecompressedTooLarge { .. } | RecordError::TooLarge { .. } => {
            ErrorCode::MESSAGE_TOO_LARGE
        }
        error if error.is_corruption() => ErrorCode::CORRUPT_MESSAGE,
        _ => ErrorCode::INVALID_RECORD,
    };
    Refused::new(code, error.to_string())
}

fn write(
    shared: &Shared,
    place: &Partition,
    leadership: Leadership,
    records: &mut [u8],
) -> Result<Done> {
    let mut append = || {
        place
            .log
            .append_as_leader(records, leadership.epoch, now_ms())
    };
    // A write goes to the page cache; one that is synced at once waits for the disk, and others must not wait with it.
    let syncs = place.log.config().flush_messages != i64::MAX;
    let appended = if syncs {
        tokio::task::block_in_place(append)
    } else {
        append()
    };
    let appended = appended.map_err(|error| from_storage(shared, place, &error))?;
    let records = (appended.last_offset - appended.first_offset + 1).unsigned_abs();
    if !appended.duplicate {
        place.waiting_room().appended(appended.bytes);
        shared.metrics.produced_bytes.add(appended.bytes);
        shared.metrics.produced_records.add(records);
    }
    Ok(Done {
        records,
        base_offset: appended.first_offset,
        log_append_time: appended.log_append_time,
        log_start_offset: appended.log_start_offset,
    })
}

fn from_storage(shared: &Shared, place: &Partition, error: &StorageError) -> Refused {
    let code = ErrorCode(error.kafka_code());
    let partition = format!("{}-{}", place.topic, place.index);
    let text = format!("Produce to {partition} refused: {error}");
    if error.is_storage_failure() {
        // Where the files are is the operator's business, not the client's.
        shared.lines.seldom(Level::Error, &text.clone(), text);
        return code.into();
    }
    if code == ErrorCode::CORRUPT_MESSAGE {
        // The text tells a position, so it is not the key.
        let key = format!("corrupt {partition}");
        shared.lines.seldom(Level::Warning, &key, text);
    }
    Refused::new(code, error.to_string())
}

/// With acks=0 the client hears nothing, so an error can only be told by closing the connection.
fn without_answer(request: &Request, results: &[Result<Done>]) -> Outcome {
    let errors: Vec<String> = request
        .parts
        .iter()
        .zip(results)
        .filter_map(|(part, result)| {
            let refused = result.as_ref().err()?;
            Some(format!(
                "{}-{}: {}",
                request.topics[part.topic],
                part.index,
                refused.code.name()
            ))
        })
        .collect();
    if errors.is_empty() {
        Outcome::Silent
    } else {
        Outcome::Close(format!(
            "a Produce request with acks=0 failed: {}",
            errors.join(", ")
        ))
    }
}

fn answer(header: &RequestHeader, request: &Request, results: &[Result<Done>]) -> Outcome {
    let version = header.api_version;
    let mut message = response_message(KEY);
    let empty_topic = message.element("responses");
    let empty_partition = empty_topic.element("partition_responses");
    let mut topics: Vec<Vec<Value>> = request.topics.iter().map(|_| Vec::new()).collect();
    for (part, result) in request.parts.iter().zip(results) {
        let mut answer = empty_partition.clone();
        answer.set("index", part.index);
        match result {
            Ok(done) => {
                answer
                    .set("base_offset", done.base_offset)
                    .set("log_append_time_ms", done.log_append_time)
                    .set("log_start_offset", done.log_start_offset);
            }
            Err(refused) => refuse(&mut answer, version, refused),
        }
        topics[part.topic].push(Value::Struct(answer));
    }
    let topics = request.topics.iter().zip(topics).map(|(name, partitions)| {
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

fn refuse(answer: &mut Struct, version: i16, refused: &Refused) {
    // Clients of the first versions do not know that a disk can fail; they look for the leader anew instead.
    let code = match refused.code {
        ErrorCode::KAFKA_STORAGE_ERROR if version <= 3 => ErrorCode::NOT_LEADER_OR_FOLLOWER,
        code => code,
    };
    answer
        .set("error_code", code.0)
        .set("base_offset", -1i64)
        .set("error_message", refused.message.as_deref());
    if let (Some(leader), 10..) = (refused.leader, version) {
        let current = answer
            .element("current_leader")
            .with("leader_id", leader.leader_id)
            .with("leader_epoch", leader.epoch);
        answer.set("current_leader", current);
    }
}
