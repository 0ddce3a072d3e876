//! Changes of leaders: logs that differ become equal, and what was acknowledged by all stays.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use logcore_records::batches;
use logcore_server::{ErrorCode, LogDirMove, PartitionSpec, ReplicaFactKind};

use crate::cluster::{Cluster, Decision, assert_same_files, led_by};
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

// If this failed, a log that moves to another directory would bring back what its leader never had.
#[test]
fn a_log_is_truncated_while_it_moves() {
    let rate = ("replica.alter.log.dirs.io.max.bytes.per.second", "1000");
    let cluster = Cluster::start_on(2, 2, &[rate]);
    cluster.decide("t", 0, &led_by(1, 5, 2));
    cluster.produce(1, -1, &[b"both"]);
    cluster
        .server(2)
        .create_partition(&led_by(2, 6, 2).spec("t", 0))
        .unwrap();
    // Two seconds each to copy.
    for _ in 0..10 {
        cluster.produce(2, 1, &[&[2; 2000]]);
    }
    let begun = cluster.server(2).alter_replica_log_dirs(&[LogDirMove {
        topic: "t".to_owned(),
        partition: 0,
        destination: cluster.log_dir(2, 1),
    }]);
    assert_eq!(begun.unwrap(), [ErrorCode::NONE]);
    cluster.wait_until("a copy of what only 2 has", || {
        let dirs = cluster.server(2).describe_log_dirs().unwrap();
        dirs[1].replicas.iter().any(|one| one.is_future && one.lag < 10)
    });
    cluster.decide("t", 0, &led_by(1, 7, 2));
    cluster.produce(1, -1, &[b"end"]);
    cluster.wait_for_line("2: t-0 was moved to");
    assert_eq!(cluster.end(2), 2);
    let moved = Path::new(&cluster.log_dir(2, 1)).join("t-0");
    assert_same_files(&cluster.dir(1).join("t-0"), &moved);
    cluster.produce(1, -1, &[b"after"]);
    assert_same_files(&cluster.dir(1).join("t-0"), &moved);
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
    /// The replica that the leader's request under way adds to the ISR of this partition epoch.
    joining: Option<(i32, i32)>,
    /// The brokers that have not heard of the last decision.
    to_tell: BTreeSet<i32>,
    /// Produces with acks=all, and their values.
    waiting: Vec<(Client, String)>,
    /// The values that were acknowledged, by offset.
    acknowledged: BTreeMap<i64, String>,
    values: u32,
    /// What a consumer could have read, by offset.
    seen: BTreeMap<i64, Vec<u8>>,
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
        self.joining = None;
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

    /// The leader asks the controller to add a replica that has caught up.
    fn ask_to_expand(&mut self) {
        let leader = self.cluster.server(self.leader);
        for fact in leader.take_replica_facts() {
            let is_current = fact.kind == ReplicaFactKind::CaughtUp && fact.leader_epoch == self.epoch;
            if !is_current || self.isr.contains(&fact.broker) || self.joining.is_some() {
                continue;
            }
            let joining = [fact.broker];
            let set = leader.set_isr("t", 0, self.epoch, &self.isr, &joining, self.partition_epoch);
            let asked = (fact.broker, self.partition_epoch);
            self.joining = set.unwrap().then_some(asked);
        }
    }

    /// The controller agrees, unless the ISR changed since. The leader may hear of it later.
    fn expand(&mut self) {
        if let Some((joining, asked)) = self.joining.take() {
            if asked == self.partition_epoch {
                self.isr.push(joining);
                self.partition_epoch += 1;
            }
            self.to_tell.insert(self.leader);
        }
    }

    /// A broker hears nothing from leaders until it is told again.
    fn cut(&mut self) {
        let id = self.one_of(&[1, 2, 3]);
        if id != self.leader {
            self.cluster.server(id).stop_partition("t", 0, false).unwrap();
            self.to_tell.insert(id);
        }
    }

    /// What any broker shows to consumers never changes.
    fn look(&mut self) {
        let id = self.one_of(&[1, 2, 3]);
        for (offset, value) in records(&self.cluster, id) {
            let seen = self.seen.entry(offset).or_insert_with(|| value.clone());
            let text = String::from_utf8_lossy(&value);
            assert!(
                *seen == value,
                "broker {id} shows {text:?} at {offset}\n{}",
                self.cluster.lines()
            );
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
        for _ in 0..120 {
            match self.random.below(24) {
                0 | 1 => self.change_leader(),
                2 => self.shrink(),
                3..6 => self.ask_to_expand(),
                6 | 7 => self.expand(),
                8 => self.restart(),
                9 | 10 => self.cut(),
                11..15 => {
                    let id = self.one_of(&[1, 2, 3]);
                    self.tell(id);
                }
                15 => self.look(),
                _ => self.produce(),
            }
        }
        self.epoch += 1;
        self.partition_epoch += 1;
        self.isr = vec![1, 2, 3];
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
        self.look();
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
            joining: None,
            seen: BTreeMap::new(),
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
