//! Keeps assigned partitions filled: looks up where to start, fetches ahead of the application. One task decides, one
//! per question waits for its answer, all on the client's background thread. At most two Fetches per broker are on their
//! way, each on a connection of its own: the first may wait at the broker for new records, the second is for partitions
//! that surely have some, or were just sought, and must not wait behind it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use logcore_protocol::{ErrorCode, Struct, Value};
use parking_lot::Mutex;

use super::decode::{Aborted, Chunk};
use super::state::{PartitionState, Phase, Waiting};
use super::{Event, Shared};
use crate::api::{self, Fields};
use crate::cluster::{Purpose, Target};
use crate::error::{ClientError, Result};
use crate::offsets::{PartitionKey, list_offsets};

/// How long nothing can happen without the task being woken.
const IDLE: Duration = Duration::from_secs(60);
/// How long the second Fetch to a broker may wait there: its partitions shall soon join the first.
const SECOND_WAIT: Duration = Duration::from_millis(20);
/// How long the lookup of a start may take before its failure is told.
const LOCATE_TIMEOUT: Duration = Duration::from_secs(30);

/// One partition of a Fetch request.
#[derive(Debug)]
struct Wanted {
    key: PartitionKey,
    generation: u64,
    offset: i64,
    leader_epoch: i32,
}

/// A broker, and which of its two Fetch connections.
type Line = (i32, Purpose);

/// One Fetch request.
#[derive(Debug)]
struct Question {
    partitions: Vec<Wanted>,
    wait: Duration,
}

/// The deciding task. Ends when the client's thread stops.
pub(super) async fn run(shared: Arc<Shared>) {
    let fetching: Arc<Mutex<HashSet<Line>>> = Arc::default();
    let mut metadata_changed = shared.cluster.watch_metadata();
    loop {
        metadata_changed.mark_unchanged();
        let now = Instant::now();
        let mut next = now + IDLE;
        let located = to_locate(&shared, now, &mut next);
        if !located.is_empty() {
            tokio::spawn(locate(Arc::clone(&shared), located));
        }
        let questions = to_fetch(&shared, &fetching.lock(), now, &mut next);
        for (line, question) in questions {
            fetching.lock().insert(line);
            let (shared, fetching) = (Arc::clone(&shared), Arc::clone(&fetching));
            tokio::spawn(async move {
                let answer = fetch(&shared, line, &question).await;
                take_answer(&shared, question, answer);
                fetching.lock().remove(&line);
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

/// Whether a partition may be asked about now; otherwise `next` learns when.
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

/// A partition to look up: which, of which generation, the timestamp to ask with.
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
    let read_committed = shared.read_committed;
    let mut answers = list_offsets(&shared.cluster, asked, read_committed, LOCATE_TIMEOUT).await;
    let mut state = shared.state.lock();
    let backoff = state.config.error_backoff;
    for (key, generation, _) in questions {
        let answer = answers.remove(&key);
        let Some(partition) = state.current(&key, generation) else {
            continue;
        };
        partition.busy = false;
        match answer {
            Some(Ok(listed)) => partition.located(listed.offset),
            Some(Err(error)) => {
                partition.not_before = Some(Instant::now() + backoff);
                partition.tell(error);
            }
            None => partition.not_before = Some(Instant::now() + backoff),
        }
    }
    drop(state);
    shared.arrived.notify_all();
    shared.wake.notify_one();
}

/// A question for each line that has none open, for the partitions that have room.
fn to_fetch(
    shared: &Shared,
    fetching: &HashSet<Line>,
    now: Instant,
    next: &mut Instant,
) -> Vec<(Line, Question)> {
    let metadata = shared.cluster.metadata();
    let mut state = shared.state.lock();
    let (budget, wait) = (state.partition_budget(), state.config.fetch_wait);
    let mut questions: HashMap<Line, Question> = HashMap::new();
    let mut leaderless = false;
    let count = state.partitions.len();
    // A response is filled in the order of the request: begin elsewhere each time.
    let offset_in_turn = shared.rotate(count);
    for step in 0..count {
        let partition = &mut state.partitions[(offset_in_turn + step) % count];
        let Phase::Fetching(offset) = partition.phase else {
            continue;
        };
        if !is_due(partition, now, next) || partition.buffered >= budget {
            continue;
        }
        let Some((leader, leader_epoch)) = metadata.leader(&partition.key.0, partition.key.1) else {
            leaderless = true;
            continue;
        };
        let (first, second) = ((leader, Purpose::Fetch), (leader, Purpose::SecondFetch));
        let (line, wait) = if !fetching.contains(&first) {
            (first, wait)
        } else if !partition.at_end && !fetching.contains(&second) {
            (second, wait.min(SECOND_WAIT))
        } else {
            continue;
        };
        partition.busy = true;
        let wanted = Wanted {
            key: partition.key.clone(),
            generation: partition.generation,
            offset,
            leader_epoch,
        };
        let question = questions.entry(line).or_insert(Question {
            partitions: Vec::new(),
            wait,
        });
        question.partitions.push(wanted);
    }
    drop(state);
    if leaderless {
        shared.cluster.refresh_soon();
    }
    questions.into_iter().collect()
}

async fn fetch(shared: &Shared, (leader, purpose): Line, question: &Question) -> Result<Value> {
    let connection = shared.cluster.connection(Target::Broker(leader), purpose).await?;
    let version = connection.version(api::FETCH)?;
    let message = {
        let state = shared.state.lock();
        let config = &state.config;
        let mut message = api::request(api::FETCH);
        message
            .set(
                "max_wait_ms",
                i32::try_from(question.wait.as_millis()).unwrap_or(i32::MAX),
            )
            .set("min_bytes", config.fetch_bytes_min)
            .set("max_bytes", config.fetch_bytes_max)
            .set("isolation_level", i8::from(config.read_committed));
        for topic in by_topic(&question.partitions) {
            let mut element = message.element("topics").with("topic", &*topic[0].key.0);
            for wanted in topic {
                let partition = element
                    .element("partitions")
                    .with("partition", wanted.key.1)
                    .with("current_leader_epoch", wanted.leader_epoch)
                    .with("fetch_offset", wanted.offset)
                    .with("partition_max_bytes", config.partition_bytes_max);
                element.push("partitions", partition);
            }
            message.push("topics", element);
        }
        message
    };
    shared
        .cluster
        .call(&connection, api::FETCH, version, message, question.wait)
        .await
}

/// Groups of one topic each, in the order of their first partition.
fn by_topic(partitions: &[Wanted]) -> Vec<Vec<&Wanted>> {
    let mut order: HashMap<&str, usize> = HashMap::new();
    let mut groups: Vec<Vec<&Wanted>> = Vec::new();
    for wanted in partitions {
        let at = *order.entry(&wanted.key.0).or_insert(groups.len());
        if at == groups.len() {
            groups.push(Vec::new());
        }
        groups[at].push(wanted);
    }
    groups
}

fn take_answer(shared: &Shared, question: Question, answer: Result<Value>) {
    let mut wanted: HashMap<PartitionKey, Wanted> = question
        .partitions
        .into_iter()
        .map(|wanted| (wanted.key.clone(), wanted))
        .collect();
    let mut stale = false;
    let mut state = shared.state.lock();
    let backoff = state.config.error_backoff;
    if let Ok(response) = &answer {
        for topic in response.field("responses").structs() {
            let name: Arc<str> = Arc::from(topic.text("topic"));
            for answer in topic.field("partitions").structs() {
                let key = (Arc::clone(&name), answer.i32("partition_index"));
                let Some(wanted) = wanted.remove(&key) else {
                    continue;
                };
                let config = state.config.clone();
                if let Some(partition) = state.current(&wanted.key, wanted.generation) {
                    partition.busy = false;
                    stale |= take_partition(partition, &config, &wanted, answer);
                }
            }
        }
        if response.i16("error_code") != 0 {
            stale = true;
        }
    }
    // Partitions the answer does not name, or all of them when there is none.
    for wanted in wanted.into_values() {
        if let Some(partition) = state.current(&wanted.key, wanted.generation) {
            partition.busy = false;
            partition.not_before = Some(Instant::now() + backoff.min(Duration::from_millis(100)));
        }
    }
    if let Err(error) = answer {
        stale = true;
        if !error.is_retriable() {
            state.errors.push_back(error);
        }
    }
    drop(state);
    if stale {
        shared.cluster.refresh_soon();
    }
    shared.arrived.notify_all();
}

/// Takes one partition's answer; `true` when metadata should be refreshed.
fn take_partition(
    partition: &mut PartitionState,
    config: &crate::config::ConsumerConfig,
    wanted: &Wanted,
    answer: &Struct,
) -> bool {
    let code = ErrorCode(answer.i16("error_code"));
    match code {
        ErrorCode::NONE => {
            partition.told = None;
            partition.high_watermark = answer.i64("high_watermark");
            partition.log_start = answer.i64("log_start_offset");
            if let Err(error) = take_records(partition, config, wanted, answer) {
                partition.not_before = Some(Instant::now() + config.error_backoff);
                partition.tell(error);
            }
            return false;
        }
        ErrorCode::OFFSET_OUT_OF_RANGE => {
            let why = format!("offset {} is out of range", wanted.offset);
            partition.reset(config.offset_reset, &why);
        }
        _ => {
            partition.not_before = Some(Instant::now() + config.error_backoff);
            if !code.is_retriable() {
                let what = format!("{}-{}: Fetch", wanted.key.0, wanted.key.1);
                partition.tell(ClientError::Broker { code: code.0, what });
            }
        }
    }
    code.needs_metadata()
}

fn take_records(
    partition: &mut PartitionState,
    config: &crate::config::ConsumerConfig,
    wanted: &Wanted,
    answer: &Struct,
) -> Result<()> {
    let mut end = wanted.offset;
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
        let (topic, id) = (Arc::clone(&wanted.key.0), wanted.key.1);
        let chunk = Chunk::new(
            topic,
            id,
            records.clone(),
            wanted.offset,
            config.check_crcs,
            aborted,
        )?;
        end = match chunk.next_offset() {
            Some(next) => next.max(wanted.offset),
            None => {
                let what = format!(
                    "{}-{}: no whole batch at offset {end}",
                    wanted.key.0, wanted.key.1
                );
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
    if config.partition_eof && end >= visible && partition.eof_told != Some(end) {
        partition.eof_told = Some(end);
        partition
            .waiting
            .push_back(Waiting::Event(Event::End(wanted.key.clone(), end)));
    }
    Ok(())
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
