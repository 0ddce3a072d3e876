//! If these fail, a record is written outside of its transaction, or a transaction that lost a record can be
//! committed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use logcore_protocol::ErrorCode;

use super::accumulator::Accumulator;
use super::batch::ProducerId;
use super::dispatch::{Drained, Outcome, Outgoing};
use super::record::NewRecord;
use crate::config::ProducerConfig;
use crate::error::{ClientError, local};
use crate::metadata::{Metadata, Partition, Topic};

const FIRST: ProducerId = ProducerId { id: 9, epoch: 0 };
const SECOND: ProducerId = ProducerId { id: 9, epoch: 1 };

struct World {
    accumulator: Accumulator<u64>,
    metadata: Metadata,
    now: Instant,
}

impl World {
    /// A producer in its first transaction, with a topic of two partitions.
    fn new() -> Self {
        let config = ProducerConfig {
            batch_messages: 2,
            linger: Duration::ZERO,
            transactional_id: Some("copier".to_owned()),
            ..ProducerConfig::default()
        };
        let partition = |id| Partition {
            error: 0,
            id,
            leader: 1,
            leader_epoch: 0,
            replicas: vec![1],
            isr: vec![1],
        };
        let name: Arc<str> = Arc::from("t");
        let topic = Topic {
            error: 0,
            name: Arc::clone(&name),
            id: None,
            internal: false,
            partitions: (0..2).map(partition).collect(),
        };
        let mut metadata = Metadata::default();
        metadata.topics.insert(name, Arc::new(topic));
        let accumulator = Accumulator::new(config, Duration::from_secs(30), Duration::from_millis(100));
        let mut world = Self {
            accumulator,
            metadata,
            now: Instant::now(),
        };
        world.accumulator.number_anew(FIRST);
        world.accumulator.begin_transaction();
        world
    }

    fn produce(&mut self, partition: i32) -> Result<(), ClientError> {
        let record = NewRecord {
            partition: Some(partition),
            key: None,
            value: Some(b"v"),
            headers: &[],
            timestamp: 1,
        };
        let result = self.accumulator.append("t", &record, Some(1), self.now);
        self.accumulator.on_metadata(&self.metadata, self.now);
        result.map(|_| ()).map_err(|(error, _)| error)
    }

    fn drain(&mut self) -> Drained<u64> {
        self.accumulator.drain(&self.metadata, self.now)
    }

    fn add_partitions(&mut self) -> Vec<i32> {
        let mut added = Vec::new();
        for (topic, partition) in self.accumulator.take_partitions_to_add() {
            self.accumulator.partition_added(&topic, partition);
            added.push(partition);
        }
        added.sort_unstable();
        added
    }

    fn answer(&mut self, outgoing: Outgoing<u64>, outcome: Outcome) -> Option<ClientError> {
        self.accumulator.request_done(1);
        let report = self.accumulator.batch_done(outgoing, outcome, self.now);
        report.and_then(|report| report.error)
    }
}

fn sent(drained: Drained<u64>) -> Vec<Outgoing<u64>> {
    drained
        .requests
        .into_iter()
        .flat_map(|(_, batches)| batches)
        .collect()
}

fn answered(code: ErrorCode) -> Outcome {
    Outcome::Failed(ClientError::Broker {
        code: code.0,
        what: "t-0".to_owned(),
    })
}

/// The producer, its base sequence and whether the batch is transactional.
fn header(outgoing: &mut Outgoing<u64>) -> (i64, i16, i32, bool) {
    let bytes = outgoing.batch.encode().expect("encodes");
    let batch = logcore_records::Batch::parse(&bytes).expect("a batch");
    let header = &batch.header;
    let sequence = (header.producer_id, header.producer_epoch, header.base_sequence);
    (sequence.0, sequence.1, sequence.2, header.is_transactional())
}

#[test]
fn a_partition_is_sent_nothing_before_the_coordinator_has_added_it() {
    let mut world = World::new();
    world.produce(0).expect("taken");
    world.produce(1).expect("taken");
    let drained = world.drain();
    assert!(drained.adds_partitions);
    assert!(sent(drained).is_empty());
    assert!(!world.drain().adds_partitions, "asked twice");
    assert_eq!(world.add_partitions(), [0, 1]);
    let mut batches = sent(world.drain());
    assert_eq!(batches.len(), 2);
    for outgoing in &mut batches {
        assert_eq!(header(outgoing), (9, 0, 0, true));
    }
    // The next transaction asks anew, and goes on with the sequence.
    for outgoing in batches {
        assert_eq!(world.answer(outgoing, Outcome::Written(0, -1)), None);
    }
    world.accumulator.begin_transaction();
    world.produce(0).expect("taken");
    assert!(sent(world.drain()).is_empty());
    assert_eq!(world.add_partitions(), [0]);
    let mut batches = sent(world.drain());
    assert_eq!(header(&mut batches[0]), (9, 0, 1, true));
}

#[test]
fn records_are_taken_in_a_transaction_only() {
    let mut world = World::new();
    if let Some(transaction) = &mut world.accumulator.transaction {
        *transaction = super::transaction::Transaction::default();
    }
    assert_eq!(world.produce(0).expect_err("refused").code(), local::STATE);
    assert_eq!(world.accumulator.messages(), 0);
}

#[test]
fn a_record_that_fails_ends_the_transaction_and_the_rest_is_given_up() {
    let mut world = World::new();
    for _ in 0..3 {
        world.produce(0).expect("taken");
        world.produce(1).expect("taken");
    }
    world.drain();
    world.add_partitions();
    let mut batches = sent(world.drain());
    assert_eq!(batches.len(), 2);
    let (first, second) = (batches.remove(0), batches.remove(0));
    let failure = world.answer(first, answered(ErrorCode::INVALID_RECORD));
    assert_eq!(failure.map(|error| error.code()), Some(87));
    let drained = world.drain();
    assert_eq!(drained.reports.len(), 2);
    for report in &drained.reports {
        assert_eq!(report.error, Some(ClientError::Purged));
    }
    assert!(sent(drained).is_empty());
    assert_eq!(world.produce(0).expect_err("refused").code(), local::STATE);
    // A batch in flight that would be sent again is given up, too.
    let failure = world.answer(second, answered(ErrorCode::NOT_LEADER_OR_FOLLOWER));
    assert_eq!(failure, Some(ClientError::Purged));
    let transaction = world.accumulator.transaction.as_ref().expect("transactional");
    assert!(transaction.check_open().is_err());
    assert!(world.drain().requests.is_empty());
    // A gap is not closed by any producer id but the coordinator's.
    world.accumulator.number_anew(SECOND);
    world.accumulator.begin_transaction();
    world.produce(0).expect("taken");
    world.drain();
    world.add_partitions();
    let mut batches = sent(world.drain());
    assert_eq!(header(&mut batches[0]), (9, 1, 0, true));
}

#[test]
fn a_lost_sequence_fails_the_transaction_and_asks_for_no_producer_id() {
    let mut world = World::new();
    world.produce(0).expect("taken");
    world.drain();
    world.add_partitions();
    let batch = sent(world.drain()).remove(0);
    let failure = world.answer(batch, answered(ErrorCode::UNKNOWN_PRODUCER_ID));
    assert_eq!(failure.map(|error| error.code()), Some(59));
    assert!(world.accumulator.transaction_failed());
    assert!(!world.drain().needs_producer_id);
}

#[test]
fn a_record_that_waits_too_long_fails_the_transaction() {
    let mut world = World::new();
    world.produce(0).expect("taken");
    world.drain();
    world.now += Duration::from_secs(301);
    let drained = world.drain();
    let error = drained.reports[0].error.as_ref().expect("failed");
    assert_eq!(error.code(), local::MSG_TIMED_OUT);
    assert!(error.to_string().contains("coordinator"), "{error}");
    assert!(world.accumulator.transaction_failed());
}
