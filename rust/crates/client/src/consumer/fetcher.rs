//! Keeps assigned partitions filled: looks up where to start, and fetches ahead of the application.
//!
//! One task decides what to ask, and one task per request waits for its answer, all on the client's
//! background thread. At most two Fetch requests per broker are under way, each on its own connection. The
//! first may wait at the broker for new records. The second is for partitions that have records or were just
//! sought, which must not wait behind it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use logcore_protocol::{ErrorCode, Struct, Value};
use parking_lot::Mutex;

use super::decode::{Aborted, Chunk};
use super::state::{PartitionState, Phase, Waiting};
use super::{Event, Shared};
use crate::api::{self, Fields};
use crate::cluster::Target;
use crate::config::ConsumerConfig;
use crate::connections::Purpose;
use crate::error::{ClientError, Result};
use crate::metadata::Metadata;
use crate::offsets::{PartitionKey, ask_once};

/// The longest time without a look at the partitions. Each change also wakes the task.
const IDLE: Duration = Duration::from_secs(60);
/// How long the second Fetch to a broker may wait there, before its partitions join the first.
const SECOND_WAIT: Duration = Duration::from_millis(20);
/// How long one lookup of an offset to start at may take.
const LOCATE_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause before partitions whose Fetch failed as a whole are fetched again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// One partition of a Fetch request.
#[derive(Debug)]
struct FetchPartition {
    key: PartitionKey,
    generation: u64,
    offset: i64,
    leader_epoch: i32,
}

/// A broker, and which of its two Fetch connections.
type Channel = (i32, Purpose);

#[derive(Debug)]
struct FetchRequest {
    partitions: Vec<FetchPartition>,
    wait: Duration,
    /// Its partition's response was too long; no other one joins the request.
    alone: bool,
}

/// The deciding task. Ends when the client's thread stops.
pub(super) async fn run(shared: Arc<Shared>) {
    let fetching: Arc<Mutex<HashSet<Channel>>> = Arc::default();
    let mut metadata_changed = shared.cluster.watch_metadata();
    loop {
        metadata_changed.mark_unchanged();
        let now = Instant::now();
        let mut next = now + IDLE;
        let located = to_locate(&shared, now, &mut next);
        if !located.is_empty() {
            tokio::spawn(locate(Arc::clone(&shared), located));
        }
        let requests = to_fetch(&shared, &fetching.lock(), now, &mut next);
        for (channel, request) in requests {
            fetching.lock().insert(channel);
            let (shared, fetching) = (Arc::clone(&shared), Arc::clone(&fetching));
            tokio::spawn(async move {
                let answer = fetch(&shared, channel, &request).await;
                take_answer(&shared, request, answer);
                fetching.lock().remove(&channel);
                shared.wake.notify_one();
            });
        }
        tokio::select! {
            () = shared.wake.notified() => {}
            _ = metadata_changed.changed() => {}
            () = tokio::time::sleep_until(next.into()) => {}
        }
    }
}

/// Whether a partition may be asked about now; otherwise lowers `next` to the time when it may.
fn is_due(partition: &PartitionState, now: Instant, next: &mut Instant) -> bool {
    if partition.busy || partition.paused {
        return false;
    }
    match partition.not_before {
        Some(not_before) if not_before > now => {
            *next = not_before.min(*next);
            false
        }
        _ => true,
    }
}

/// A partition to look up: its key and generation, and the timestamp to ask with.
type Locating = (PartitionKey, u64, i64);

fn to_locate(shared: &Shared, now: Instant, next: &mut Instant) -> Vec<Locating> {
    let mut state = shared.state.lock();
    let mut found = Vec::new();
    for partition in &mut state.partitions {
        if let Phase::Locating(timestamp) = partition.phase
            && is_due(partition, now, next)
        {
            partition.busy = true;
            found.push((partition.key.clone(), partition.generation, timestamp));
        }
    }
    found
}

async fn locate(shared: Arc<Shared>, questions: Vec<Locating>) {
    let asked = questions
        .iter()
        .map(|(key, _, timestamp)| (key.clone(), *timestamp))
        .collect();
    let (read_committed, since) = (shared.read_committed, Instant::now());
    let mut answers = ask_once(&shared.cluster, asked, read_committed, LOCATE_TIMEOUT).await;
    let (mut reports, now) = (Vec::new(), Instant::now());
    let mut stale = false;
    let mut state = shared.state.lock();
    let (backoff, pause) = (state.config.error_backoff, shared.cluster.config().retry_backoff);
    for (key, generation, _) in questions {
        let Some(answer) = answers.remove(&key) else {
            continue;
        };
        let Some(partition) = state.current(&key, generation) else {
            continue;
        };
        partition.busy = false;
        match answer {
            Ok(listed) => partition.located(listed.offset),
            Err(error) => {
                let passes = error.is_retriable();
                stale |= passes;
                partition.not_before = Some(now + if passes { pause } else { backoff });
                reports.extend(partition.failed_since(since, "ListOffsets", error, now));
            }
        }
    }
    drop(state);
    shared.report(reports);
    if stale {
        shared.cluster.refresh_soon();
    }
    shared.arrived.notify_all();
    shared.wake.notify_one();
}

/// The next request of each free channel, for the partitions that have not reached their budget.
fn to_fetch(
    shared: &Shared,
    fetching: &HashSet<Channel>,
    now: Instant,
    next: &mut Instant,
) -> Vec<(Channel, FetchRequest)> {
    let metadata = shared.cluster.metadata();
    let mut state = shared.state.lock();
    let (budget, wait) = (state.partition_budget(), state.config.fetch_wait);
    let mut requests: HashMap<Channel, FetchRequest> = HashMap::new();
    let mut leaderless = false;
    let mut reports = Vec::new();
    let count = state.partitions.len();
    // The broker fills a response in the request's order, so each request begins with another partition.
    let first = shared.rotate(count);
    for step in 0..count {
        let partition = &mut state.partitions[(first + step) % count];
        let Phase::Fetching(offset) = partition.phase else {
            continue;
        };
        if !is_due(partition, now, next) || partition.buffered >= budget {
            continue;
        }
        let Some((leader, leader_epoch)) = metadata.leader(&partition.key.0, partition.key.1) else {
            leaderless = true;
            if let Some(error) = why_leaderless(&metadata, &partition.key) {
                reports.extend(partition.failed("Metadata", error, now));
            }
            continue;
        };
        let preferred = partition.preferred(now);
        let broker = preferred
            .filter(|id| metadata.broker(*id).is_some())
            .unwrap_or(leader);
        let (waiting, second) = ((broker, Purpose::Fetch), (broker, Purpose::SecondFetch));
        let (channel, wait) = if !fetching.contains(&waiting) {
            (waiting, wait)
        } else if !partition.at_end && !fetching.contains(&second) {
            (second, wait.min(SECOND_WAIT))
        } else {
            continue;
        };
        if requests
            .get(&channel)
            .is_some_and(|request| request.alone || partition.fetch_alone)
        {
            continue;
        }
        partition.busy = true;
        let request = requests.entry(channel).or_insert(FetchRequest {
            partitions: Vec::new(),
            wait,
            alone: partition.fetch_alone,
        });
        request.partitions.push(FetchPartition {
            key: partition.key.clone(),
            generation: partition.generation,
            offset,
            leader_epoch,
        });
    }
    drop(state);
    shared.report(reports);
    if leaderless {
        shared.cluster.refresh_soon();
    }
    requests.into_iter().collect()
}

/// Why a partition has no leader; `None` before the first metadata of its topic.
fn why_leaderless(metadata: &Metadata, (topic, id): &PartitionKey) -> Option<ClientError> {
    let found = metadata.topics.get(topic)?;
    let code = match (found.error, found.partition(*id)) {
        (0, Some(_)) => ErrorCode::LEADER_NOT_AVAILABLE.0,
        (0, None) => ErrorCode::UNKNOWN_TOPIC_OR_PARTITION.0,
        (code, _) => code,
    };
    let what = format!("{topic}-{id} has no leader");
    Some(ClientError::Broker { code, what })
}

async fn fetch(shared: &Shared, (broker, purpose): Channel, request: &FetchRequest) -> Result<Value> {
    let connection = shared.cluster.connection(Target::Broker(broker), purpose).await?;
    let version = connection.version(api::FETCH)?;
    let message = {
        let state = shared.state.lock();
        let config = &state.config;
        let mut message = api::request(api::FETCH);
        message
            .set(
                "max_wait_ms",
                i32::try_from(request.wait.as_millis()).unwrap_or(i32::MAX),
            )
            .set("min_bytes", config.fetch_bytes_min)
            .set("max_bytes", config.fetch_bytes_max)
            .set("isolation_level", i8::from(config.read_committed))
            .set("rack_id", &*config.rack);
        for topic in by_topic(&request.partitions) {
            let mut element = message.element("topics").with("topic", &*topic[0].key.0);
            for asked in topic {
                let partition = element
                    .element("partitions")
                    .with("partition", asked.key.1)
                    .with("current_leader_epoch", asked.leader_epoch)
                    .with("fetch_offset", asked.offset)
                    .with("partition_max_bytes", config.partition_bytes_max);
                element.push("partitions", partition);
            }
            message.push("topics", element);
        }
        message
    };
    shared
        .cluster
        .call(&connection, api::FETCH, version, message, request.wait)
        .await
}

/// Groups of one topic each, in the order of their first partition.
fn by_topic(partitions: &[FetchPartition]) -> Vec<Vec<&FetchPartition>> {
    let mut order: HashMap<&str, usize> = HashMap::new();
    let mut groups: Vec<Vec<&FetchPartition>> = Vec::new();
    for asked in partitions {
        let at = *order.entry(&asked.key.0).or_insert(groups.len());
        if at == groups.len() {
            groups.push(Vec::new());
        }
        groups[at].push(asked);
    }
    groups
}

fn take_answer(shared: &Shared, request: FetchRequest, answer: Result<Value>) {
    let alone = request.partitions.len() == 1;
    let metadata = shared.cluster.metadata();
    let mut unanswered: HashMap<PartitionKey, FetchPartition> = request
        .partitions
        .into_iter()
        .map(|asked| (asked.key.clone(), asked))
        .collect();
    let (mut stale, mut reports, now) = (answer.is_err(), Vec::new(), Instant::now());
    let mut state = shared.state.lock();
    if let Ok(response) = &answer {
        for topic in response.field("responses").structs() {
            let name: Arc<str> = Arc::from(topic.text("topic"));
            for answer in topic.field("partitions").structs() {
                let key = (Arc::clone(&name), answer.i32("partition_index"));
                let Some(asked) = unanswered.remove(&key) else {
                    continue;
                };
                let config = state.config.clone();
                let read_until = now + shared.cluster.config().metadata_refresh;
                if let Some(partition) = state.current(&asked.key, asked.generation) {
                    partition.busy = false;
                    stale |= ErrorCode(answer.i16("error_code")).needs_metadata();
                    if let Some(broker) = preferred(answer) {
                        partition.prefer(broker, read_until);
                        if metadata.broker(broker).is_none() {
                            // It is not known yet. Until then the leader would name it again and again.
                            stale = true;
                            partition.not_before = Some(now + RETRY_PAUSE);
                        }
                        continue;
                    }
                    reports.extend(take_partition(partition, &config, &asked, answer, now));
                }
            }
        }
        stale |= response.i16("error_code") != 0;
    }
    let (backoff, pause) = (
        state.config.error_backoff,
        state.config.error_backoff.min(RETRY_PAUSE),
    );
    for asked in unanswered.into_values() {
        let Some(partition) = state.current(&asked.key, asked.generation) else {
            continue;
        };
        partition.busy = false;
        partition.not_before = Some(now + pause);
        // Another follower or the leader may be reachable.
        partition.prefer_leader();
        match &answer {
            Err(ClientError::ResponseTooLarge { .. }) if !alone => {
                // One of them has a batch that is too long. Fetched alone, the others are read on.
                partition.fetch_alone = true;
            }
            Err(ClientError::ResponseTooLarge { size, limit, .. }) => {
                partition.not_before = Some(now + backoff);
                let error = ClientError::BatchTooLarge {
                    topic: asked.key.0.to_string(),
                    partition: asked.key.1,
                    offset: asked.offset,
                    size: *size,
                    limit: *limit,
                };
                reports.extend(partition.failed("Fetch", error, now));
            }
            // The connection reports it: it concerns all partitions of the broker.
            Err(error) if error.is_retriable() => {}
            Err(error) => reports.extend(partition.failed("Fetch", error.clone(), now)),
            Ok(response) => {
                let error = not_named(&asked.key, response.i16("error_code"));
                reports.extend(partition.failed("Fetch", error, now));
            }
        }
    }
    drop(state);
    shared.report(reports);
    if stale {
        shared.cluster.refresh_soon();
    }
    shared.arrived.notify_all();
}

/// Why a Fetch response does not name a partition.
fn not_named((topic, id): &PartitionKey, code: i16) -> ClientError {
    if code == 0 {
        ClientError::BadResponse {
            broker: format!("leader of {topic}-{id}"),
            what: "its Fetch response does not name the partition".to_owned(),
        }
    } else {
        let what = format!("{topic}-{id}: Fetch");
        ClientError::Broker { code, what }
    }
}

/// Takes one partition's answer; returns what is to be reported.
fn take_partition(
    partition: &mut PartitionState,
    config: &ConsumerConfig,
    asked: &FetchPartition,
    answer: &Struct,
    now: Instant,
) -> Option<ClientError> {
    let code = ErrorCode(answer.i16("error_code"));
    if code != ErrorCode::NONE && partition.prefer_leader() && code == ErrorCode::OFFSET_OUT_OF_RANGE {
        // The leader knows whether that is so; a follower may be behind.
        return None;
    }
    match code {
        ErrorCode::NONE => {
            partition.high_watermark = answer.i64("high_watermark");
            partition.log_start = answer.i64("log_start_offset");
            match take_records(partition, config, asked, answer) {
                Ok(()) => {
                    partition.passed();
                    None
                }
                Err(error) => {
                    partition.not_before = Some(now + config.error_backoff);
                    partition.failed("Fetch", error, now)
                }
            }
        }
        ErrorCode::OFFSET_OUT_OF_RANGE => partition.out_of_range(asked.offset, config, now),
        ErrorCode(code) => {
            partition.not_before = Some(now + config.error_backoff);
            let what = format!("{}-{}: Fetch", asked.key.0, asked.key.1);
            partition.failed("Fetch", ClientError::Broker { code, what }, now)
        }
    }
}

fn take_records(
    partition: &mut PartitionState,
    config: &ConsumerConfig,
    asked: &FetchPartition,
    answer: &Struct,
) -> Result<()> {
    let mut end = asked.offset;
    partition.at_end = true;
    if let Some(records) = answer
        .field("records")
        .as_bytes()
        .filter(|records| !records.is_empty())
    {
        let aborted = if config.read_committed {
            aborted(answer)
        } else {
            Vec::new()
        };
        let (topic, id) = (Arc::clone(&asked.key.0), asked.key.1);
        let chunk = Chunk::new(
            topic,
            id,
            records.clone(),
            asked.offset,
            config.check_crcs,
            aborted,
        )?;
        end = match chunk.next_offset() {
            Some(next) => next.max(asked.offset),
            None => {
                let what = format!("{}-{}: no whole batch at offset {end}", asked.key.0, asked.key.1);
                return Err(ClientError::BadData { what });
            }
        };
        partition.at_end = false;
        partition.buffered += chunk.len();
        partition.waiting.push_back(Waiting::Data(chunk));
        partition.phase = Phase::Fetching(end);
    }
    let visible = if config.read_committed {
        answer.i64("last_stable_offset")
    } else {
        -1
    };
    let visible = if visible >= 0 {
        visible
    } else {
        partition.high_watermark
    };
    if config.partition_eof && end >= visible && partition.eof_reported != Some(end) {
        partition.eof_reported = Some(end);
        partition
            .waiting
            .push_back(Waiting::Event(Event::End(asked.key.clone(), end)));
    }
    Ok(())
}

/// The replica that the leader names to read from. Before version 11 there is none.
fn preferred(answer: &Struct) -> Option<i32> {
    let id = answer.field("preferred_read_replica").as_i32();
    id.filter(|id| *id >= 0)
}

fn aborted(answer: &Struct) -> Vec<Aborted> {
    let aborted = answer.field("aborted_transactions").structs();
    aborted
        .map(|aborted| Aborted {
            producer_id: aborted.i64("producer_id"),
            first_offset: aborted.i64("first_offset"),
        })
        .collect()
}
