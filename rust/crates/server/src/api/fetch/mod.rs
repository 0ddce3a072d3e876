//! Fetch (key 1): record batches out of logs.
//!
//! This file is the wire: what a request says, which partitions its session adds, what the response looks like. Looking
//! into the logs and waiting for more is [`look`]'s, older formats for older clients are [`old`]'s. The file ranges found are
//! sent by the connection with `sendfile`.
//! Source of the rules: `KafkaApis.handleFetchRequest`, `FetchResponse`.

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

use self::look::{Found, Look, Refused, Terms};
use super::{Fields, Outcome, response_message};
use crate::apis;
use crate::codes::{ErrorCode, for_version};
use crate::control::requests::ConnectionInfo;
use crate::memory::budget::Permit;
use crate::memory::{MANY_PARTITIONS, WAITING_CONVERSION};
use crate::metrics::Stages;
use crate::net::response::Response;
use crate::partitions::fetch_session::{NO_SESSION, SessionRequest, Told, Wanted};
use crate::partitions::registry::TopicRef;
use crate::quotas::Meter;
use crate::shared::Shared;

const _: () = assert!(std::mem::size_of::<Wanted>() + std::mem::size_of::<Look>() <= WAITING_CONVERSION);

pub(crate) const KEY: i16 = apis::FETCH;

/// The first versions with topic ids, with the replica's id in a structure, and with the leader's identity in errors.
const TOPIC_IDS_SINCE: i16 = 13;
const REPLICA_STATE_SINCE: i16 = 15;
const LEADER_SINCE: i16 = 16;

/// Bytes in front of a response that tell its size.
const SIZE_PREFIX: u64 = 4;

/// Looks, waits if need be, and answers.
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
    let mut terms = parse_terms(header.api_version, request, Arc::clone(connection));
    terms.limit(shared.config.fetch_bytes_max);
    if versions::is_old(terms.version) {
        terms.limit(old::RESPONSE_MAX);
    }
    let is_follower = terms.is_follower();
    // Replicas are no clients.
    if is_follower {
        meter.exempt();
    } else {
        terms.limit(meter.fetch_bytes_max());
    }
    let named = request.each("topics").map(|topic| count_of(topic, "partitions"));
    let named = named.sum();
    let session = at_leisure(named, || parse_session(shared, header.api_version, request));
    // A long poll may wait for minutes: it keeps nothing of the frame, nor what it had for it.
    drop(message);
    let (mut work, most) = permit_for_work(shared, named, &session).await;
    drop(decoded);
    let uses_topic_ids = session.uses_topic_ids;
    let context = match at_leisure(most, || shared.sessions.begin(session)) {
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
    let (work, mut looks) = terms.look_or_wait(shared, wanted, work, stages).await;
    let conversion = old::permit_to_wait(shared, terms.version, &mut looks);
    let bytes = || {
        at_leisure(wanted.len(), || {
            let told: Vec<Told<'_>> = looks.iter().map(tell).collect();
            let must = shared.sessions.must_tell(&context, &told);
            size_of(header, &answer(header, NO_SESSION, wanted, &looks, &must))
        })
    };
    if !is_follower && !meter.fetched(bytes) {
        let session = shared.sessions.still(&context);
        return answer_throttled(header, session, context.session_id());
    }
    let finished = at_leisure(wanted.len(), || {
        count(shared, &terms, wanted, &looks);
        let told: Vec<Told<'_>> = looks.iter().map(tell).collect();
        let sessions = &shared.sessions;
        sessions.finish(&context, uses_topic_ids, is_follower, &told)
    });
    match finished {
        Ok((id, must)) => {
            let told = respond(shared, header, (id, wanted, &must), looks, (work, conversion)).await;
            told.unwrap_or_else(Outcome::Close)
        }
        Err(code) => answer_error(header, code, context.session_id()),
    }
}

/// A permit for all partitions that a request may be answered for: those it names and those of its session. Also their number.
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

/// The response, with the permits that it has until it is sent.
async fn respond(
    shared: &Shared,
    header: &RequestHeader,
    (id, wanted, must): (i32, &[Wanted], &[bool]),
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
    let answer = || {
        let message = answer(header, id, wanted, &looks, must);
        let told = looks.into_iter().zip(must).filter(|(_, must)| **must);
        let slices = told.filter_map(|(look, _)| look.ok()?.slice);
        Response::with_slices(header, &message, slices.collect())
    };
    let response = at_leisure(wanted.len(), answer);
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

/// Does something with so many partitions. With many it takes milliseconds: the thread's other connections move first.
fn at_leisure<R>(partitions: usize, work: impl FnOnce() -> R) -> R {
    if partitions > MANY_PARTITIONS {
        block_in_place(work)
    } else {
        work()
    }
}

fn parse_terms(version: i16, request: &Struct, connection: Arc<ConnectionInfo>) -> Terms {
    let replica_id = if version >= REPLICA_STATE_SINCE {
        let state = request.get("replica_state").and_then(Value::as_struct);
        state.map_or(look::CONSUMER, |state| state.int32("replica_id"))
    } else {
        request.int32("replica_id")
    };
    Terms {
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
            // A topic may be named anew for each of its partitions, and what is wanted may wait: it is had once.
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

/// Of a partition that is named more than once what is said last, where it is named first (`FetchRequest.fetchData`).
fn once_each(wanted: Vec<Wanted>) -> Vec<Wanted> {
    if wanted.len() < 2 {
        return wanted;
    }
    let mut places = HashMap::with_capacity(wanted.len());
    let mut kept: Vec<Wanted> = Vec::with_capacity(wanted.len());
    for wanted in wanted {
        match places.entry((wanted.topic.clone(), wanted.index)) {
            Entry::Occupied(place) => kept[*place.get()] = wanted,
            Entry::Vacant(place) => {
                place.insert(kept.len());
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

/// A size or time that makes no sense below zero.
fn unsigned(number: i32) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// Bytes of record batches.
fn size(looks: &[Look]) -> u64 {
    let found = looks.iter().flatten();
    let slices = found.filter_map(|found| found.slice.as_ref());
    slices.map(|slice| slice.len).sum()
}

/// Counts by topic what is answered; followers' bytes are not clients'.
fn count(shared: &Shared, terms: &Terms, wanted: &[Wanted], looks: &[Look]) {
    for (wanted, look) in wanted.iter().zip(looks) {
        match look {
            Ok(found) => {
                let bytes = found.slice.as_ref().map_or(0, |slice| slice.len);
                found.place.counts.fetched(bytes, terms.is_follower());
            }
            Err(refused) => {
                if let Ok(place) = shared.registry.resolve(&wanted.topic, wanted.index) {
                    place.counts.fetch_refused(refused.code);
                }
            }
        }
    }
}

fn tell(look: &Look) -> Told<'_> {
    match look {
        Ok(found) => Told {
            topic: Some(&found.place.topic),
            high_watermark: found.high_watermark,
            log_start_offset: found.log_start_offset,
            is_news: found.slice.is_some() || found.diverging.is_some() || found.preferred.is_some(),
            is_error: false,
            is_unknown: false,
            has_records: found.slice.is_some(),
        },
        Err(refused) => Told {
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

/// A client above its quota gets an empty response and may ask again later (KIP-219).
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

/// Bytes of a response without its header, as quotas count them: with its size in front and its records (`FetchResponse.sizeOf`).
fn size_of(header: &RequestHeader, message: &Value) -> u64 {
    let mut bytes = Vec::new();
    let gaps = encode_response_with_gaps(KEY, header.api_version, message, &mut bytes);
    let records = gaps.iter().flatten().map(|gap| u64::from(gap.length));
    SIZE_PREFIX + bytes.len() as u64 + records.sum::<u64>()
}

/// What the response says, with gaps for the slices found, in their order: consecutive partitions of one topic are told together,
/// and those that there are not come last.
fn answer(
    header: &RequestHeader,
    session_id: i32,
    wanted: &[Wanted],
    looks: &[Look],
    must: &[bool],
) -> Value {
    let mut message = response_message(KEY);
    if header.api_version >= 7 {
        message.set("session_id", session_id);
    }
    let empty_topic = message.element("responses");
    let empty_partition = empty_topic.element("partitions");
    let mut topics: Vec<(&TopicRef, Vec<Value>)> = Vec::new();
    let mut unknown = Vec::new();
    for ((wanted, look), _) in wanted.iter().zip(looks).zip(must).filter(|(_, must)| **must) {
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
    // A slice is never longer than the request's int32 limits or one batch, whose length is an int32 as well.
    let gap = found
        .slice
        .as_ref()
        .and_then(|slice| u32::try_from(slice.len).ok());
    let messages = Value::Bytes(found.messages.clone().unwrap_or_default());
    entry.set("records", gap.map_or(messages, Value::Gap));
}

fn fill_refused(entry: &mut Struct, version: i16, refused: &Refused) {
    entry
        .set("error_code", for_version(refused.code, version > 5).0)
        .set("high_watermark", -1i64)
        .set("last_stable_offset", -1i64)
        .set("log_start_offset", -1i64)
        .set("preferred_read_replica", -1);
    // Kafka has three ways to say that there is nothing.
    let is_beyond_client = matches!(
        refused.code,
        ErrorCode::UNSUPPORTED_COMPRESSION_TYPE | ErrorCode::UNSUPPORTED_VERSION
    );
    if !refused.is_unknown() && !is_beyond_client {
        entry.set("aborted_transactions", Value::Null);
    }
    if !is_beyond_client {
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
