//! Fetch (key 1): record batches out of logs.
//!
//! This file parses the request, adds the partitions of its session, and builds the response. [`look`] looks
//! into the logs and waits for records. [`old`] converts batches for old clients. The connection sends the
//! file ranges with `sendfile`. Source: `KafkaApis.handleFetchRequest`, `FetchResponse`.

mod look;
mod old;
mod versions;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::block_in_place;

use logcore_protocol::{RequestHeader, Struct, Value, encode_response_with_gaps};

use self::look::{Found, Look, Parameters, Refused};
use super::{Fields, Outcome, response_message};
use crate::apis;
use crate::control::requests::ConnectionInfo;
use crate::memory::budget::Permit;
use crate::memory::{MANY_PARTITIONS, WAITING_CONVERSION};
use crate::metrics::Stages;
use crate::net::response::Response;
use crate::partitions::fetch_session::{NO_SESSION, PartitionData, SessionRequest, Wanted};
use crate::partitions::registry::TopicRef;
use crate::quotas::Meter;
use crate::shared::Shared;
use logcore_protocol::ErrorCode;

const _: () = assert!(std::mem::size_of::<Wanted>() + std::mem::size_of::<Look>() <= WAITING_CONVERSION);

pub(crate) const KEY: i16 = apis::FETCH;

/// The first versions with topic ids, with the replica id in a structure, and with the current leader in
/// errors.
const TOPIC_IDS_SINCE: i16 = 13;
const REPLICA_STATE_SINCE: i16 = 15;
const LEADER_SINCE: i16 = 16;

/// The bytes of a response's size prefix.
const SIZE_PREFIX: u64 = 4;

/// Looks into the logs, waits if necessary, and answers.
pub(crate) async fn handle(
    shared: &Shared,
    connection: &Arc<ConnectionInfo>,
    header: &RequestHeader,
    (message, decoded): (Value, Permit),
    meter: &Meter<'_>,
    stages: &mut Stages,
) -> Outcome {
    let Some(request) = message.as_struct() else {
        unreachable!("a decoded request is a struct");
    };
    let mut parameters = parse_terms(header.api_version, request, Arc::clone(connection));
    parameters.limit(shared.config.fetch_bytes_max);
    if versions::is_old(parameters.version) {
        parameters.limit(old::RESPONSE_MAX);
    }
    let is_follower = parameters.is_follower();
    // Quotas are for clients, and not for replicas.
    if is_follower {
        meter.exempt();
    } else {
        parameters.limit(meter.fetch_bytes_max());
    }
    let named = request.each("topics").map(|topic| count_of(topic, "partitions"));
    let named = named.sum();
    let session = offload_if_long(named, || parse_session(shared, header.api_version, request));
    // A long poll may wait for minutes, so it gives back the memory of its frame and of the decoded request.
    drop(message);
    let (mut work, most) = permit_for_work(shared, named, &session).await;
    drop(decoded);
    let uses_topic_ids = session.uses_topic_ids;
    let context = match offload_if_long(most, || shared.sessions.begin(session)) {
        Ok(context) => context,
        Err(code) => {
            let error = error_message(code, NO_SESSION);
            if !is_follower {
                meter.fetched(|| size_of(header, &error));
            }
            return Response::new(header, &error).into();
        }
    };
    stages.from_follower = is_follower;
    let wanted = context.wanted();
    if wanted.len() > most {
        // Another request of its session began in between.
        drop(work);
        work = shared.budgets.fetch_work.acquire(wanted.len()).await;
    }
    let (work, mut looks) = parameters.look_or_wait(shared, wanted, work, stages).await;
    let conversion = old::permit_to_wait(shared, parameters.version, &mut looks);
    let bytes = || {
        offload_if_long(wanted.len(), || {
            let data: Vec<PartitionData<'_>> = looks.iter().map(partition_data).collect();
            let included = shared.sessions.included(&context, &data);
            size_of(
                header,
                &response_body(header, NO_SESSION, wanted, &looks, &included),
            )
        })
    };
    if !is_follower && !meter.fetched(bytes) {
        let session = shared.sessions.still(&context);
        return answer_throttled(header, session, context.session_id());
    }
    let finished = offload_if_long(wanted.len(), || {
        count(shared, &parameters, wanted, &looks);
        let data: Vec<PartitionData<'_>> = looks.iter().map(partition_data).collect();
        let sessions = &shared.sessions;
        sessions.finish(&context, uses_topic_ids, is_follower, &data)
    });
    match finished {
        Ok((id, included)) => {
            let responded = respond(shared, header, (id, wanted, &included), looks, (work, conversion));
            responded.await.unwrap_or_else(Outcome::Close)
        }
        Err(code) => answer_error(header, code, context.session_id()),
    }
}

/// A permit for all partitions that a request may be answered for: those it names and those of its session.
/// Also their number.
async fn permit_for_work(shared: &Shared, named: usize, session: &SessionRequest) -> (Permit, usize) {
    let all = || named + shared.sessions.partitions_of(session);
    let mut most = all();
    loop {
        let work = shared.budgets.fetch_work.acquire(most).await;
        // Other requests of the session may have begun during the wait.
        let now = all();
        if now <= most {
            return (work, most);
        }
        most = now;
    }
}

/// The response, with its permits until it is sent.
async fn respond(
    shared: &Shared,
    header: &RequestHeader,
    (id, wanted, included): (i32, &[Wanted], &[bool]),
    mut looks: Vec<Look>,
    (mut work, conversion): (Permit, Permit),
) -> std::result::Result<Outcome, String> {
    let budgets = &shared.budgets;
    // Names of unknown partitions can be most of it, and need a permit before the response is made.
    let unknown_bytes = look::unknown_bytes(wanted, &looks);
    let unknown = budgets.fetch_responses.acquire_or_refuse(unknown_bytes)?;
    let mut rest = Permit::default();
    if versions::is_old(header.api_version) && size(&looks) > 0 {
        drop(work);
        rest = old::convert(shared, header.api_version, wanted, &mut looks).await;
        work = budgets.fetch_work.acquire(wanted.len()).await;
    }
    drop(conversion);
    let make = || {
        let message = response_body(header, id, wanted, &looks, included);
        let included = looks.into_iter().zip(included).filter(|(_, included)| **included);
        let slices = included.filter_map(|(look, _)| look.ok()?.slice);
        Response::with_slices(header, &message, slices.collect())
    };
    let response = offload_if_long(wanted.len(), make);
    drop(work);
    let Ok(response) = response else {
        return Ok(response.into());
    };
    // If messages were converted, they are nearly all of it and are counted already.
    if !rest.is_some() {
        let uncounted = response.size().saturating_sub(unknown.count());
        rest = budgets.fetch_responses.acquire_or_refuse(uncounted)?;
    }
    Ok(Outcome::Respond(response.with_permits([rest, unknown])))
}

/// Works on so many partitions. With many it takes milliseconds, and is offloaded.
fn offload_if_long<R>(partitions: usize, work: impl FnOnce() -> R) -> R {
    if partitions > MANY_PARTITIONS {
        block_in_place(work)
    } else {
        work()
    }
}

fn parse_terms(version: i16, request: &Struct, connection: Arc<ConnectionInfo>) -> Parameters {
    let replica_id = if version >= REPLICA_STATE_SINCE {
        let state = request.get("replica_state").and_then(Value::as_struct);
        state.map_or(look::CONSUMER, |state| state.int32("replica_id"))
    } else {
        request.int32("replica_id")
    };
    Parameters {
        version,
        replica_id,
        rack: request.text("rack_id").to_owned(),
        connection,
        wait: Duration::from_millis(unsigned(request.int32("max_wait_ms"))),
        bytes_min: unsigned(request.int32("min_bytes")),
        bytes_max: unsigned(request.int32("max_bytes")),
        committed: request.int8("isolation_level") == 1,
    }
}

fn parse_session(shared: &Shared, version: i16, request: &Struct) -> SessionRequest {
    let uses_topic_ids = version >= TOPIC_IDS_SINCE;
    let topic_ref = |topic: &Struct| {
        if uses_topic_ids {
            TopicRef::Id(topic.uuid("topic_id"))
        } else {
            // A request may repeat a topic's name for each partition and then wait, so the name is shared.
            TopicRef::Name(shared.registry.name(topic.text("topic")))
        }
    };
    let mut wanted = Vec::new();
    for topic in request.each("topics") {
        let topic_ref = topic_ref(topic);
        wanted.extend(topic.each("partitions").map(|partition| Wanted {
            topic: topic_ref.clone(),
            name: None,
            index: partition.int32("partition"),
            offset: partition.int64("fetch_offset"),
            current_leader_epoch: partition.int32("current_leader_epoch"),
            last_fetched_epoch: partition.int32("last_fetched_epoch"),
            log_start_offset: partition.int64("log_start_offset"),
            bytes_max: unsigned(partition.int32("partition_max_bytes")),
        }));
    }
    let mut forgotten = Vec::new();
    for topic in request.each("forgotten_topics_data") {
        let name = topic_ref(topic);
        let partitions = topic
            .get("partitions")
            .and_then(Value::as_array)
            .unwrap_or_default();
        let indexes = partitions.iter().filter_map(Value::as_i32);
        forgotten.extend(indexes.map(|index| (name.clone(), index)));
    }
    SessionRequest {
        id: request.int32("session_id"),
        epoch: request.int32("session_epoch"),
        uses_topic_ids,
        wanted: once_each(wanted),
        forgotten,
    }
}

/// Of a repeated partition, the last request counts, in the position of the first (`FetchRequest.fetchData`).
fn once_each(wanted: Vec<Wanted>) -> Vec<Wanted> {
    if wanted.len() < 2 {
        return wanted;
    }
    let mut positions = HashMap::with_capacity(wanted.len());
    let mut kept: Vec<Wanted> = Vec::with_capacity(wanted.len());
    for wanted in wanted {
        match positions.entry((wanted.topic.clone(), wanted.index)) {
            Entry::Occupied(position) => kept[*position.get()] = wanted,
            Entry::Vacant(position) => {
                position.insert(kept.len());
                kept.push(wanted);
            }
        }
    }
    kept
}

fn count_of(message: &Struct, field: &str) -> usize {
    let array = message.get(field).and_then(Value::as_array);
    array.map_or(0, <[Value]>::len)
}

/// A size or a time. Negative ones count as zero.
fn unsigned(number: i32) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

fn size(looks: &[Look]) -> u64 {
    let found = looks.iter().flatten();
    let slices = found.filter_map(|found| found.slice.as_ref());
    slices.map(|slice| slice.len).sum()
}

/// Counts the partitions by topic. The bytes of followers do not count as sent to clients.
fn count(shared: &Shared, parameters: &Parameters, wanted: &[Wanted], looks: &[Look]) {
    for (wanted, look) in wanted.iter().zip(looks) {
        match look {
            Ok(found) => {
                let bytes = found.slice.as_ref().map_or(0, |slice| slice.len);
                found.partition.counts.fetched(bytes, parameters.is_follower());
                if parameters.is_follower() {
                    shared.metrics.replication_bytes_out.add(bytes);
                    if found.partition.is_throttled_leader() {
                        shared.replication_quotas.leader.record(bytes);
                    }
                }
            }
            Err(refused) => {
                if let Ok(partition) = shared.registry.resolve(&wanted.topic, wanted.index) {
                    partition.counts.fetch_refused(refused.code);
                }
            }
        }
    }
}

fn partition_data(look: &Look) -> PartitionData<'_> {
    match look {
        Ok(found) => PartitionData {
            topic: Some(&found.partition.topic),
            high_watermark: found.high_watermark,
            log_start_offset: found.log_start_offset,
            is_news: found.slice.is_some() || found.diverging.is_some() || found.preferred.is_some(),
            is_error: false,
            is_unknown: false,
            has_records: found.slice.is_some(),
        },
        Err(refused) => PartitionData {
            topic: None,
            high_watermark: -1,
            log_start_offset: -1,
            is_news: true,
            is_error: true,
            is_unknown: refused.is_unknown(),
            has_records: false,
        },
    }
}

/// A client above its quota gets an empty response (KIP-219).
fn answer_throttled(header: &RequestHeader, session: Result<i32, ErrorCode>, session_id: i32) -> Outcome {
    match session {
        Ok(id) => {
            let mut message = response_message(KEY);
            message.set("session_id", id);
            Response::new(header, &message.into()).into()
        }
        Err(code) => answer_error(header, code, session_id),
    }
}

/// A response about the session, with no partition in it.
fn answer_error(header: &RequestHeader, code: ErrorCode, session_id: i32) -> Outcome {
    Response::new(header, &error_message(code, session_id)).into()
}

fn error_message(code: ErrorCode, session_id: i32) -> Value {
    let mut message = response_message(KEY);
    message.set("error_code", code.0).set("session_id", session_id);
    message.into()
}

/// The bytes of a response for quotas: with its size prefix and its records, without its header
/// (`FetchResponse.sizeOf`).
fn size_of(header: &RequestHeader, message: &Value) -> u64 {
    let mut bytes = Vec::new();
    let gaps = encode_response_with_gaps(KEY, header.api_version, message, &mut bytes);
    let records = gaps.iter().flatten().map(|gap| u64::from(gap.length));
    SIZE_PREFIX + bytes.len() as u64 + records.sum::<u64>()
}

/// The body of the response, with gaps for the slices, in their order. Consecutive partitions of one topic
/// are together. Unknown partitions come last.
fn response_body(
    header: &RequestHeader,
    session_id: i32,
    wanted: &[Wanted],
    looks: &[Look],
    included: &[bool],
) -> Value {
    let mut message = response_message(KEY);
    if header.api_version >= 7 {
        message.set("session_id", session_id);
    }
    let empty_topic = message.element("responses");
    let empty_partition = empty_topic.element("partitions");
    let mut topics: Vec<(&TopicRef, Vec<Value>)> = Vec::new();
    let mut unknown = Vec::new();
    let all = wanted.iter().zip(looks).zip(included);
    for ((wanted, look), _) in all.filter(|(_, included)| **included) {
        let mut entry = empty_partition.clone();
        entry.set("partition_index", wanted.index);
        match look {
            Ok(found) => fill_found(&mut entry, found),
            Err(refused) => {
                fill_refused(&mut entry, header.api_version, refused);
                if refused.is_unknown() {
                    unknown.push((&wanted.topic, entry));
                    continue;
                }
            }
        }
        add(&mut topics, &wanted.topic, entry);
    }
    for (topic, entry) in unknown {
        add(&mut topics, topic, entry);
    }
    let topics = topics.into_iter().map(|(topic, partitions)| {
        let mut entry = empty_topic.clone();
        match topic {
            TopicRef::Name(name) => entry.set("topic", &**name),
            TopicRef::Id(id) => entry.set("topic_id", *id),
        };
        Value::Struct(entry.with("partitions", partitions))
    });
    message.set("responses", topics.collect::<Vec<_>>());
    message.into()
}

fn add<'a>(topics: &mut Vec<(&'a TopicRef, Vec<Value>)>, topic: &'a TopicRef, entry: Struct) {
    match topics.last_mut() {
        Some((last, partitions)) if *last == topic => partitions.push(Value::Struct(entry)),
        _ => topics.push((topic, vec![Value::Struct(entry)])),
    }
}

fn fill_found(entry: &mut Struct, found: &Found) {
    entry
        .set("high_watermark", found.high_watermark)
        .set("last_stable_offset", found.last_stable_offset)
        .set("log_start_offset", found.log_start_offset)
        .set("preferred_read_replica", found.preferred.unwrap_or(-1));
    let aborted = found.aborted.as_ref().map(|aborted| {
        let transactions = aborted.iter().map(|transaction| {
            let element = entry.element("aborted_transactions");
            let element = element.with("producer_id", transaction.producer_id);
            Value::Struct(element.with("first_offset", transaction.first_offset))
        });
        transactions.collect::<Vec<Value>>()
    });
    entry.set("aborted_transactions", aborted);
    if let Some((epoch, end)) = found.diverging {
        let diverging = entry
            .element("diverging_epoch")
            .with("epoch", epoch)
            .with("end_offset", end);
        entry.set("diverging_epoch", diverging);
    }
    // A slice is no longer than the request's int32 limit or one batch, whose length is an int32, too.
    let gap = found
        .slice
        .as_ref()
        .and_then(|slice| u32::try_from(slice.len).ok());
    let messages = Value::Bytes(found.messages.clone().unwrap_or_default());
    entry.set("records", gap.map_or(messages, Value::Gap));
}

fn fill_refused(entry: &mut Struct, version: i16, refused: &Refused) {
    entry
        .set("error_code", refused.code.for_version(version > 5).0)
        .set("high_watermark", -1i64)
        .set("last_stable_offset", -1i64)
        .set("log_start_offset", -1i64)
        .set("preferred_read_replica", -1);
    // Kafka distinguishes three forms of an empty partition.
    let is_unsupported = matches!(
        refused.code,
        ErrorCode::UNSUPPORTED_COMPRESSION_TYPE | ErrorCode::UNSUPPORTED_VERSION
    );
    if !refused.is_unknown() && !is_unsupported {
        entry.set("aborted_transactions", Value::Null);
    }
    if !is_unsupported {
        entry.set("records", Bytes::new());
    }
    if let (Some(leader), LEADER_SINCE..) = (refused.leader, version) {
        let current = entry
            .element("current_leader")
            .with("leader_id", leader.leader_id)
            .with("leader_epoch", leader.epoch);
        entry.set("current_leader", current);
    }
}
