//! Changes of leaders: logs that differ become equal, and what was acknowledged by all stays.

use std::collections::{BTreeMap, BTreeSet};

use logcore_records::batches;
use logcore_server::{PartitionSpec, ReplicaFactKind};

use crate::cluster::{Cluster, Decision, led_by};
use crate::common::{Client, batch, int, produce, produced};
use crate::support::for_each_seed;
use crate::support::random::Random;

/// The records of partition 0 of `t` by offset.
fn records(cluster: &Cluster, id: i32) -> BTreeMap<i64, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut offset = 0;
    while offset < cluster.server(id).offsets("t", 0).unwrap().high_watermark {
        let bytes = cluster.server(id).read("t", 0, offset, 1 << 20).unwrap();
        for batch in batches(&bytes) {
            let batch = batch.unwrap();
            for record in batch.records(1 << 20).unwrap().iter() {
                let record = record.unwrap();
                all.insert(record.offset, record.value.unwrap().to_vec());
            }
            offset = batch.header.last_offset() + 1;
        }
    }
    all
}

// If this failed, two replicas would have different records at one offset for ever, or a record that all had
// would be lost with a change of leaders.
#[test]
fn a_deposed_leader_takes_over_what_its_successor_wrote() {
    let cluster = Cluster::start(3, &[]);
    cluster.decide("t", 0, &led_by(1, 5, 3));
    cluster.produce(1, -1, &[b"all"]);
    // 1 writes what nobody fetches, in two epochs.
    for id in [2, 3] {
        cluster.server(id).stop_partition("t", 0, false).unwrap();
    }
    cluster.produce(1, 1, &[b"1 in 5", b"1 in 5"]);
    let still = led_by(1, 6, 3);
    cluster.server(1).create_partition(&still.spec("t", 0)).unwrap();
    cluster.produce(1, 1, &[b"1 in 6"]);
    // 2 leads and writes other records at the same offsets, also in two epochs.
    for epoch in [7, 9] {
        let next = led_by(2, epoch, 3);
        cluster.server(2).create_partition(&next.spec("t", 0)).unwrap();
        cluster.produce(2, 1, &[format!("2 in {epoch}").as_bytes()]);
    }
    // 3 leads in between, and writes nothing.
    cluster
        .server(3)
        .create_partition(&led_by(3, 8, 3).spec("t", 0))
        .unwrap();
    cluster.decide("t", 0, &led_by(2, 9, 3));
    cluster.produce(2, -1, &[b"end"]);
    cluster.wait_until_equal();
    let values: Vec<_> = records(&cluster, 1).into_values().collect();
    assert_eq!(values, [&b"all"[..], b"2 in 7", b"2 in 9", b"end"]);
    let lines = cluster.lines();
    assert!(
        lines.contains("1: t-0 is truncated from offset 4 to 1"),
        "{lines}"
    );
}

// If this failed, a producer would get an acknowledgement for a record that a leader in between removed.
#[test]
fn acks_all_is_not_acknowledged_after_another_leader() {
    let cluster = Cluster::start(1, &[]);
    let leads = led_by(1, 5, 2);
    cluster.decide("t", 0, &leads);
    let mut producer = cluster.brokers[&1].client();
    send(&mut producer, -1, b"waits");
    cluster.wait_until("a waiting Produce", || cluster.gauge(1, "delayed_produces") == 1);
    cluster.decide("t", 0, &led_by(2, 6, 2));
    let alone = Decision {
        isr: vec![1],
        ..led_by(1, 7, 2)
    };
    cluster.decide("t", 0, &alone);
    let (code, _) = receive(producer).unwrap();
    assert_eq!(code, 6);
}

fn send(client: &mut Client, acks: i16, value: &[u8]) {
    let mut message = produce("t", acks, &[(0, &batch(&[value]))]);
    message.set("timeout_ms", 20_000);
    client.send(0, 9, message);
}

/// The error code and the offset; `None` if the connection ended.
fn receive(mut client: Client) -> Option<(i64, i64)> {
    if !matches!(client.stream.peek(&mut [0]), Ok(1)) {
        return None;
    }
    let answer = produced(&client.receive(0, 9).1);
    Some((int(&answer, "error_code"), int(&answer, "base_offset")))
}

/// What the controller of a random history has decided.
struct Controller<'a> {
    cluster: Cluster,
    random: &'a mut Random,
    leader: i32,
    epoch: i32,
    partition_epoch: i32,
    isr: Vec<i32>,
    /// The brokers that have not heard of the last decision.
    to_tell: BTreeSet<i32>,
    /// Produces with acks=all, and their values.
    waiting: Vec<(Client, String)>,
    /// The values that were acknowledged, by offset.
    acknowledged: BTreeMap<i64, String>,
    values: u32,
}

const BROKERS: i32 = 3;

impl Controller<'_> {
    fn spec(&self) -> PartitionSpec {
        let decision = Decision {
            isr: self.isr.clone(),
            ..led_by(self.leader, self.epoch, BROKERS)
        };
        PartitionSpec {
            partition_epoch: self.partition_epoch,
            ..decision.spec("t", 0)
        }
    }

    fn tell(&mut self, id: i32) {
        if self.to_tell.remove(&id) {
            self.cluster.server(id).create_partition(&self.spec()).unwrap();
        }
    }

    fn one_of(&mut self, ids: &[i32]) -> i32 {
        *self.random.pick(ids)
    }

    /// Any member of the ISR may lead next. It has all that was acknowledged.
    fn change_leader(&mut self) {
        let isr = self.isr.clone();
        self.leader = self.one_of(&isr);
        (self.epoch, self.partition_epoch) = (self.epoch + 1, self.partition_epoch + 1);
        self.to_tell = (1..=BROKERS).collect();
    }

    /// The leader hears of it later, or never. Until then it waits for more replicas than it must.
    fn shrink(&mut self) {
        let gone = self.one_of(&[1, 2, 3]);
        if gone != self.leader && self.isr.contains(&gone) {
            self.isr.retain(|id| *id != gone);
            self.partition_epoch += 1;
            self.to_tell.insert(self.leader);
        }
    }

    fn expand(&mut self) {
        let leader = self.cluster.server(self.leader);
        for fact in leader.take_replica_facts() {
            let (broker, epoch) = (fact.broker, self.epoch);
            let is_current = fact.kind == ReplicaFactKind::CaughtUp && fact.leader_epoch == epoch;
            if !is_current || self.isr.contains(&broker) {
                continue;
            }
            // The leader waits for the replica before the controller counts it.
            let before = self.partition_epoch;
            if leader
                .set_isr("t", 0, epoch, &self.isr, &[broker], before)
                .unwrap()
            {
                self.isr.push(broker);
                self.partition_epoch += 1;
                let isr = self.isr.clone();
                if self.random.below(4) > 0 {
                    leader.set_isr("t", 0, epoch, &isr, &[], before + 1).unwrap();
                }
            }
        }
    }

    /// To the leader, or to one that may believe that it leads.
    fn produce(&mut self) {
        self.values += 1;
        let value = format!("{} in {}", self.values, self.epoch);
        let to = match self.random.below(4) {
            0 => self.one_of(&[1, 2, 3]),
            _ => self.leader,
        };
        let mut client = self.cluster.brokers[&to].client();
        if self.random.below(2) == 0 {
            send(&mut client, -1, value.as_bytes());
            self.waiting.push((client, value));
        } else {
            send(&mut client, 1, value.as_bytes());
            receive(client);
        }
    }

    fn restart(&mut self) {
        let id = self.one_of(&[1, 2, 3]);
        self.cluster.stop_broker(id);
        self.cluster.start_broker(id, 0);
        self.cluster.introduce();
        self.to_tell.insert(id);
        if self.random.below(2) == 0 {
            self.tell(id);
        }
    }

    fn run(&mut self) {
        for _ in 0..60 {
            match self.random.below(12) {
                0 => self.change_leader(),
                1 => self.shrink(),
                2 | 3 => self.expand(),
                4 => self.restart(),
                5..8 => {
                    let id = self.one_of(&[1, 2, 3]);
                    self.tell(id);
                }
                _ => self.produce(),
            }
        }
        self.epoch += 1;
        self.isr = vec![1, 2, 3];
        // Only the leader's log counts now, as after the last change.
        self.to_tell = (1..=BROKERS).collect();
        for id in 1..=BROKERS {
            self.tell(id);
        }
        self.cluster.produce(self.leader, -1, &[b"end"]);
        for (client, value) in std::mem::take(&mut self.waiting) {
            if let Some((0, offset)) = receive(client) {
                let twice = self.acknowledged.insert(offset, value);
                assert_eq!(twice, None, "offset {offset} was acknowledged twice");
            }
        }
        self.cluster.wait_until_equal();
        let records = records(&self.cluster, self.leader);
        for (offset, value) in &self.acknowledged {
            let found = records.get(offset).map(|found| String::from_utf8_lossy(found));
            assert_eq!(
                found.as_deref(),
                Some(&**value),
                "offset {offset}\n{}",
                self.cluster.lines()
            );
        }
        let offsets: Vec<i64> = records.keys().copied().collect();
        assert_eq!(
            offsets,
            (0..records.len() as i64).collect::<Vec<_>>(),
            "offsets have a hole"
        );
        for id in 1..=BROKERS {
            assert_eq!(
                self.cluster.gauge(id, "replica_failed_partitions"),
                0,
                "{}",
                self.cluster.lines()
            );
        }
    }
}

/// Histories of a normal run.
const SEEDS: u64 = 12;

// If this failed, some order of leader changes, ISR changes, restarts and appends would lose an acknowledged
// record, or leave replicas that differ.
#[test]
fn random_histories_end_with_equal_logs_and_all_acknowledged_records() {
    for_each_seed(SEEDS, |random| {
        let config = [("log.segment.bytes", "600"), ("replica.fetch.wait.max.ms", "20")];
        let cluster = Cluster::start(BROKERS, &config);
        let mut controller = Controller {
            cluster,
            random,
            leader: 1,
            epoch: 0,
            partition_epoch: 0,
            isr: vec![1, 2, 3],
            to_tell: (1..=BROKERS).collect(),
            waiting: Vec::new(),
            acknowledged: BTreeMap::new(),
            values: 0,
        };
        for id in 1..=BROKERS {
            controller.tell(id);
        }
        controller.run();
    });
}
