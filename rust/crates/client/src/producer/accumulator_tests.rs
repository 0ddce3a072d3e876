//! If these fail, a retried record may be written twice, lost, or written out of order.
//!
//! The accumulator runs against a small model of a broker, which checks sequence numbers and the size of
//! batches as Kafka does. The connection breaks at any point: requests are lost, or their answers.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use logcore_protocol::ErrorCode;
use proptest::prelude::*;

use super::accumulator::Accumulator;
use super::batch::ProducerId;
use super::dispatch::{Outcome, Outgoing};
use super::record::NewRecord;
use crate::config::ProducerConfig;
use crate::error::ClientError;
use crate::metadata::{Metadata, Partition, Topic};

const LEADER: i32 = 7;
const BACKOFF: Duration = Duration::from_millis(100);

fn metadata(partitions: i32, leader: i32) -> Metadata {
    let partition = |id| Partition {
        error: 0,
        id,
        leader,
        leader_epoch: 0,
        replicas: vec![leader],
        isr: vec![leader],
    };
    let name: Arc<str> = Arc::from("t");
    let topic = Topic {
        error: 0,
        name: Arc::clone(&name),
        id: None,
        internal: false,
        partitions: (0..partitions).map(partition).collect(),
    };
    let mut metadata = Metadata::default();
    metadata.topics.insert(name, Arc::new(topic));
    metadata
}

fn config() -> ProducerConfig {
    ProducerConfig {
        batch_messages: 3,
        linger: Duration::ZERO,
        ..ProducerConfig::default()
    }
}

fn accumulator(config: ProducerConfig) -> Accumulator<u64> {
    Accumulator::new(config, Duration::from_secs(30), BACKOFF)
}

fn record(value: &[u8], partition: i32) -> NewRecord<'_> {
    NewRecord {
        partition: Some(partition),
        key: None,
        value: Some(value),
        headers: &[],
        timestamp: 1,
    }
}

/// The bytes of a batch with one, two or three of these tests' records.
const BATCH_BYTES: [usize; 3] = [76, 91, 106];

/// A record of another producer.
const OLD: u64 = u64::MAX;

/// One partition of a broker: its records, and the last five batches of each producer (KIP-98).
#[derive(Default)]
struct Log {
    /// max.message.bytes; 0 is no limit.
    batch_bytes_max: usize,
    values: Vec<u64>,
    producers: HashMap<i64, VecDeque<(i32, i32, i64)>>,
}

impl Log {
    fn append(&mut self, bytes: &[u8]) -> Outcome {
        if self.batch_bytes_max > 0 && bytes.len() > self.batch_bytes_max {
            return Outcome::Failed(ClientError::Broker {
                code: ErrorCode::MESSAGE_TOO_LARGE.0,
                what: format!("{} bytes", bytes.len()),
            });
        }
        let batch = logcore_records::batches(bytes)
            .next()
            .expect("one batch")
            .expect("whole");
        batch.verify_crc().expect("a valid checksum");
        let header = batch.header.clone();
        let (first, last) = (header.base_sequence, header.last_sequence());
        let known = self.producers.entry(header.producer_id).or_default();
        if let Some((_, _, offset)) = known.iter().find(|seen| (seen.0, seen.1) == (first, last)) {
            return Outcome::Written(*offset, -1);
        }
        // Without state of the producer, only an empty log needs the sequence to begin at 0.
        let unknown = if self.values.is_empty() { 0 } else { first };
        let expected = known.back().map_or(unknown, |seen| seen.1 + 1);
        if first != expected {
            let code = ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER.0;
            return Outcome::Failed(ClientError::Broker {
                code,
                what: format!("{first}, not {expected}"),
            });
        }
        let offset = self.values.len() as i64;
        known.push_back((first, last, offset));
        if known.len() > 5 {
            known.pop_front();
        }
        for record in &batch.records(1 << 20).expect("records") {
            let value = record.expect("a record").value.expect("a value");
            self.values
                .push(u64::from_be_bytes(value.try_into().expect("eight bytes")));
        }
        Outcome::Written(offset, -1)
    }
}

/// An accumulator, a broker and the requests between them.
struct World {
    accumulator: Accumulator<u64>,
    metadata: Metadata,
    now: Instant,
    wire: VecDeque<Vec<Outgoing<u64>>>,
    logs: HashMap<i32, Log>,
    produced: HashMap<i32, Vec<u64>>,
    reported: Vec<(u64, bool)>,
    /// Batches that the broker refused.
    refusals: usize,
    /// What error_cb is called with.
    alarms: Vec<ClientError>,
    next_value: u64,
    next_producer: i64,
}

impl World {
    fn new(partitions: i32) -> Self {
        let mut world = Self {
            accumulator: accumulator(config()),
            metadata: metadata(partitions, LEADER),
            now: Instant::now(),
            wire: VecDeque::new(),
            logs: HashMap::new(),
            produced: HashMap::new(),
            reported: Vec::new(),
            refusals: 0,
            alarms: Vec::new(),
            next_value: 0,
            next_producer: 0,
        };
        world.produce(0);
        world.accumulator.on_metadata(&world.metadata, world.now);
        world
    }

    fn produce(&mut self, partition: i32) {
        let value = self.next_value;
        self.next_value += 1;
        let bytes = value.to_be_bytes();
        let taken = self
            .accumulator
            .append("t", &record(&bytes, partition), Some(value), self.now);
        assert!(taken.is_ok());
        self.produced.entry(partition).or_default().push(value);
    }

    fn send(&mut self) {
        loop {
            let drained = self.accumulator.drain(&self.metadata, self.now);
            assert!(drained.reports.is_empty(), "nothing is old enough to be given up");
            self.alarms.extend(drained.lasting);
            let idle = drained.requests.is_empty();
            self.wire
                .extend(drained.requests.into_iter().map(|(_, batches)| batches));
            if drained.needs_producer_id {
                self.next_producer += 1;
                self.accumulator.set_producer_id(ProducerId {
                    id: self.next_producer,
                    epoch: 0,
                });
            } else if idle {
                return;
            }
        }
    }

    /// The oldest request reaches the broker, and its answer comes back.
    fn answer(&mut self) {
        let Some(batches) = self.wire.pop_front() else {
            return;
        };
        self.accumulator.request_done(LEADER);
        for mut outgoing in batches {
            let bytes = outgoing.batch.encode().expect("encodes");
            let outcome = self.logs.entry(outgoing.partition).or_default().append(&bytes);
            self.refusals += usize::from(matches!(outcome, Outcome::Failed(_)));
            self.settle(outgoing, outcome);
        }
    }

    /// The broker refuses the oldest request; an attempt that may have been written before is answered.
    fn refuse(&mut self, code: ErrorCode) {
        let Some(batches) = self.wire.pop_front() else {
            return;
        };
        self.accumulator.request_done(LEADER);
        for mut outgoing in batches {
            let outcome = if outgoing.batch.attempts == 1 {
                let what = "refused".to_owned();
                Outcome::Failed(ClientError::Broker { code: code.0, what })
            } else {
                let bytes = outgoing.batch.encode().expect("encodes");
                self.logs.entry(outgoing.partition).or_default().append(&bytes)
            };
            self.settle(outgoing, outcome);
        }
    }

    /// The connection breaks: the broker gets the first `reached` requests, the client no answer to any.
    fn lose(&mut self, reached: usize) {
        for (index, batches) in std::mem::take(&mut self.wire).into_iter().enumerate() {
            self.accumulator.request_done(LEADER);
            for mut outgoing in batches {
                if index < reached {
                    let bytes = outgoing.batch.encode().expect("encodes");
                    self.logs.entry(outgoing.partition).or_default().append(&bytes);
                }
                let what = "reset".to_owned();
                let error = ClientError::Transport {
                    broker: "b".to_owned(),
                    what,
                };
                self.settle(outgoing, Outcome::Failed(error));
            }
        }
    }

    fn settle(&mut self, outgoing: Outgoing<u64>, outcome: Outcome) {
        if let Some(report) = self.accumulator.batch_done(outgoing, outcome, self.now) {
            let written = report.error.is_none();
            self.accumulator.reported(report.records.len());
            for tracked in report.records {
                if report.base_offset >= 0 {
                    let offset = report.base_offset as usize + tracked.index as usize;
                    assert_eq!(self.logs[&report.partition].values[offset], tracked.context);
                }
                self.reported.push((tracked.context, written));
            }
        }
    }

    /// 9,000 records, three at a time.
    fn produce_many(&mut self) {
        for _ in 0..3000 {
            for _ in 0..3 {
                self.produce(0);
            }
            self.run_to_the_end();
        }
    }

    /// The values of the records that were reported as failed.
    fn failed(&self) -> Vec<u64> {
        let failed = self.reported.iter().filter(|(_, written)| !written);
        failed.map(|(value, _)| *value).collect()
    }

    fn run_to_the_end(&mut self) {
        for _ in 0..10_000 {
            self.now += BACKOFF;
            self.send();
            if self.wire.is_empty() && self.accumulator.messages() == 0 {
                return;
            }
            self.answer();
        }
        panic!("{} records never settle", self.accumulator.messages());
    }
}

/// Batches that are sent again behind a split or failed one are no failure for error_cb.
fn no_alarm(world: &World) {
    assert!(world.alarms.is_empty(), "{:?}", world.alarms);
}

#[derive(Debug, Clone)]
enum Step {
    Produce(i32),
    Send,
    Answer,
    /// NOT_ENOUGH_REPLICAS, which may pass.
    Refuse,
    /// INVALID_RECORD: the records of the batch fail.
    Fail,
    Lose(usize),
    Wait,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..2).prop_map(Step::Produce),
        3 => Just(Step::Send),
        3 => Just(Step::Answer),
        1 => Just(Step::Refuse),
        1 => Just(Step::Fail),
        1 => (0usize..5).prop_map(Step::Lose),
        1 => Just(Step::Wait),
    ]
}

proptest! {
    #[test]
    fn every_record_is_written_once_and_in_order(
        steps in prop::collection::vec(step(), 1..200),
        limit in prop::sample::select(&[0, BATCH_BYTES[0], BATCH_BYTES[1], BATCH_BYTES[2]][..]),
        old in prop::collection::vec(Just(OLD), 0..2),
    ) {
        let mut world = World::new(2);
        for partition in 0..2 {
            let log = world.logs.entry(partition).or_default();
            log.batch_bytes_max = limit;
            log.values.clone_from(&old);
        }
        for step in steps {
            match step {
                Step::Produce(partition) => world.produce(partition),
                Step::Send => world.send(),
                Step::Answer => world.answer(),
                Step::Refuse => world.refuse(ErrorCode::NOT_ENOUGH_REPLICAS),
                Step::Fail => world.refuse(ErrorCode::INVALID_RECORD),
                Step::Lose(reached) => world.lose(reached),
                Step::Wait => world.now += BACKOFF,
            }
        }
        world.run_to_the_end();
        let failed = world.failed();
        for (partition, produced) in &world.produced {
            let delivered = produced.iter().filter(|value| !failed.contains(value));
            let expected: Vec<u64> = old.iter().chain(delivered).copied().collect();
            prop_assert_eq!(&world.logs[partition].values, &expected);
        }
        prop_assert_eq!(world.reported.len() as u64, world.next_value);
    }
}

#[test]
fn a_new_producers_first_batch_is_split_before_the_second_is_sent() {
    // Otherwise the broker, which does not know the producer, takes the second batch and refuses the halves.
    let mut world = World::new(1);
    let log = world.logs.entry(0).or_default();
    (log.batch_bytes_max, log.values) = (BATCH_BYTES[1], vec![OLD]);
    for _ in 0..8 {
        world.produce(0);
    }
    world.send();
    assert_eq!(world.wire.len(), 1);
    world.run_to_the_end();
    assert_eq!(world.logs[&0].values[1..], world.produced[&0]);
    // The broker knows the producer: the next batches are in flight together, and under the same id.
    for _ in 0..6 {
        world.produce(0);
    }
    world.send();
    assert!(world.wire.len() > 1);
    world.run_to_the_end();
    assert_eq!(world.next_producer, 1);
    no_alarm(&world);
}

#[test]
fn a_batch_above_the_topics_limit_is_split_until_its_parts_fit() {
    let mut world = World::new(1);
    world.run_to_the_end();
    world.logs.entry(0).or_default().batch_bytes_max = BATCH_BYTES[0];
    for _ in 0..30 {
        world.produce(0);
    }
    world.run_to_the_end();
    assert_eq!(world.logs[&0].values, world.produced[&0]);
    assert!(world.reported.iter().all(|(_, written)| *written));
    // Later batches are small from the beginning: none of them is refused.
    world.produce(0);
    world.produce(0);
    world.send();
    assert!(
        world
            .wire
            .iter()
            .flatten()
            .all(|outgoing| outgoing.batch.count == 1)
    );
    world.run_to_the_end();
    no_alarm(&world);
}

#[test]
fn batches_grow_again_when_the_topics_limit_is_raised_and_are_seldom_refused_when_it_is_not() {
    let mut world = World::new(1);
    world.logs.entry(0).or_default().batch_bytes_max = BATCH_BYTES[0];
    world.produce_many();
    let refusals = world.refusals;
    assert!(
        (2..30).contains(&refusals),
        "{refusals} of {} batches",
        world.next_value
    );
    world.logs.entry(0).or_default().batch_bytes_max = 0;
    world.produce_many();
    assert_eq!(world.refusals, refusals);
    for _ in 0..3 {
        world.produce(0);
    }
    world.send();
    let counts = world.wire.iter().flatten().map(|outgoing| outgoing.batch.count);
    assert_eq!(counts.collect::<Vec<_>>(), [3]);
    world.run_to_the_end();
    assert_eq!(world.logs[&0].values, world.produced[&0]);
}

#[test]
fn a_single_record_above_the_topics_limit_fails_alone() {
    let mut world = World::new(1);
    world.run_to_the_end();
    world.logs.entry(0).or_default().batch_bytes_max = 1;
    world.produce(0);
    world.produce(0);
    world.run_to_the_end();
    assert_eq!(world.failed(), [1, 2]);
    world.logs.entry(0).or_default().batch_bytes_max = 0;
    world.produce(0);
    world.run_to_the_end();
    assert_eq!(world.logs[&0].values, [0, 3]);
    no_alarm(&world);
}

#[test]
fn a_refused_batch_does_not_fail_the_ones_behind() {
    // The first of three batches in flight is refused for good; the others are out of order, and are then
    // sent anew.
    let mut world = World::new(1);
    world.run_to_the_end();
    for _ in 0..9 {
        world.produce(0);
    }
    world.send();
    assert!(world.wire.len() >= 3);
    world.refuse(ErrorCode::INVALID_RECORD);
    world.run_to_the_end();
    assert_eq!(world.failed(), [1, 2, 3]);
    assert_eq!(world.logs[&0].values, [0, 4, 5, 6, 7, 8, 9]);
    no_alarm(&world);
}

#[test]
fn a_broker_that_forgot_the_producer_gets_the_batch_under_a_new_id() {
    let mut world = World::new(1);
    world.run_to_the_end();
    // The log was deleted and made anew: a sequence above 0 is refused.
    world.logs.insert(0, Log::default());
    world.produce(0);
    world.run_to_the_end();
    assert_eq!(world.logs[&0].values, vec![1]);
    assert_eq!(world.next_producer, 2);
}

#[test]
fn records_are_given_up_when_no_leader_comes_within_the_delivery_timeout() {
    let timeout = Duration::from_secs(5);
    let mut accumulator = accumulator(ProducerConfig {
        delivery_timeout: timeout,
        ..config()
    });
    let start = Instant::now();
    accumulator
        .append("t", &record(b"v", 0), Some(1), start)
        .expect("the record is accepted");
    let leaderless = metadata(1, -1);
    accumulator.on_metadata(&leaderless, start);
    let drained = accumulator.drain(&leaderless, start);
    assert!(drained.needs_metadata && drained.reports.is_empty());
    assert_eq!(drained.next, Some(start + timeout));
    let drained = accumulator.drain(&leaderless, start + timeout);
    let [report] = &drained.reports[..] else {
        panic!("one report: {:?}", drained.reports)
    };
    assert!(matches!(report.error, Some(ClientError::DeliveryTimedOut { .. })));
    accumulator.reported(report.records.len());
    assert_eq!(accumulator.messages(), 0);
}

#[test]
fn a_full_queue_and_a_large_record_are_refused_at_once() {
    let limits = ProducerConfig {
        queue_messages_max: 2,
        message_bytes_max: 100,
        ..config()
    };
    let mut accumulator = accumulator(limits);
    let now = Instant::now();
    let refused = accumulator.append("t", &record(&[0; 200], 0), Some(1), now);
    assert!(matches!(
        refused,
        Err((ClientError::MessageTooLarge { .. }, Some(1)))
    ));
    for _ in 0..2 {
        accumulator
            .append("t", &record(b"a", 0), Some(1), now)
            .expect("the record is accepted");
    }
    let is_full = |accumulator: &mut Accumulator<u64>| {
        let refused = accumulator.append("t", &record(b"b", 0), None, now);
        matches!(refused, Err((ClientError::QueueFull { messages: 2, .. }, None)))
    };
    assert!(is_full(&mut accumulator));
    // Records count until the application takes their report.
    let reports = accumulator.give_up(&ClientError::Purged);
    assert!(is_full(&mut accumulator));
    accumulator.reported(reports.iter().map(|report| report.records.len()).sum());
    assert!(!is_full(&mut accumulator));
}

#[test]
fn a_partition_the_topic_lacks_is_reported() {
    let mut accumulator = accumulator(config());
    let now = Instant::now();
    accumulator
        .append("t", &record(b"a", 5), Some(1), now)
        .expect("not known yet");
    let reports = accumulator.on_metadata(&metadata(2, LEADER), now);
    assert!(
        matches!(&reports[..], [report] if matches!(report.error, Some(ClientError::UnknownPartition { .. })))
    );
    let refused = accumulator.append("t", &record(b"a", 5), Some(1), now);
    assert!(matches!(
        refused,
        Err((ClientError::UnknownPartition { partition: 5, .. }, Some(1)))
    ));
    accumulator.reported(1);
    assert_eq!(accumulator.messages(), 0);
}
