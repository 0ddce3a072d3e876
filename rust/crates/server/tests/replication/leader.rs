//! A leader with followers, seen through Produce, Fetch and ListOffsets: acks=all, the high watermark, reads
//! from followers. The followers are clients that send a broker's id.

use std::cell::RefCell;
use std::time::Duration;

use crate::common::{
    Client, Fetch, TestServer, batch, current_leader, fetched, int, only_part, partition, produce, produced,
    records, replica, request,
};
use logcore_protocol::{ErrorCode, Struct};
use logcore_server::{PartitionSpec, Replica};

/// Partition 0 of `t`, which this server, 1, leads in epoch 3. Replica 2 is in sync, replica 3 if `third` is
/// true.
fn replicated(third: bool) -> PartitionSpec {
    PartitionSpec {
        replicas: vec![replica(1, true), replica(2, true), replica(3, third)],
        ..partition("t", 0)
    }
}

fn start(config: &[(&str, &str)]) -> TestServer {
    let server = TestServer::start(config);
    server.server.create_partition(&replicated(false)).unwrap();
    server
}

fn follow(id: i32, offset: i64) -> Fetch {
    Fetch {
        version: 17,
        replica: id,
        offset,
        leader_epoch: 3,
        ..Fetch::default()
    }
}

fn produce_acks_all(timeout_ms: i32) -> Struct {
    let mut message = produce("t", -1, &[(0, &batch(&[b"a", b"b"]))]);
    message.set("timeout_ms", timeout_ms);
    message
}

fn code_and_offset(answer: &Struct) -> (i64, i64) {
    (int(answer, "error_code"), int(answer, "base_offset"))
}

fn code_of_fetch(fetch: &Fetch, client: &mut Client) -> i64 {
    int(&fetched(&fetch.call(client))[0], "error_code")
}

// If this failed, records on one replica alone would be acknowledged, or a consumer would see them.
#[test]
fn acks_all_waits_for_the_replicas_in_sync() {
    let server = start(&[]);
    let (mut producer, mut follower, mut consumer) = (server.client(), server.client(), server.client());
    producer.send(0, 9, produce_acks_all(60_000));
    producer.send(18, 0, request(18));
    server.wait_for_gauge("delayed_produces", 1);
    let response = Fetch::default().call(&mut consumer);
    assert!(records(&fetched(&response)[0]).is_empty());
    let response = follow(2, 0).call(&mut follower);
    let part = &fetched(&response)[0];
    assert_eq!((int(part, "error_code"), int(part, "high_watermark")), (0, 0));
    assert!(
        !records(part).is_empty(),
        "a follower reads above the high watermark"
    );
    // A replica that is not in sync does not count.
    follow(3, 2).call(&mut follower);
    let poll = Fetch {
        wait_ms: 60_000,
        ..Fetch::default()
    };
    consumer.send(1, poll.version, poll.message());
    server.wait_for_gauge("delayed_fetches", 1);
    assert_eq!(server.server.offsets("t", 0).unwrap().high_watermark, 0);
    follow(2, 2).call(&mut follower);
    let (_, body) = producer.receive(0, 9);
    assert_eq!(code_and_offset(&produced(&body)), (0, 0));
    producer.receive(18, 0);
    let (_, body) = consumer.receive(1, poll.version);
    let part = &fetched(&body)[0];
    assert_eq!(int(part, "high_watermark"), 2);
    assert!(!records(part).is_empty());
    server.wait_for_gauge("delayed_produces", 0);
    // A Produce with acks=1 does not wait.
    let body = producer.call(0, 9, produce("t", 1, &[(0, &batch(&[b"c"]))]));
    assert_eq!(code_and_offset(&produced(&body)), (0, 2));
}

// If this failed, a producer would wait longer than its timeout, or would not learn to ask the new leader.
#[test]
fn acks_all_ends_at_its_timeout_and_with_its_leader_and_the_server() {
    let server = start(&[]);
    let mut producer = server.client();
    let body = producer.call(0, 9, produce_acks_all(50));
    assert_eq!(code_and_offset(&produced(&body)), (7, 0));
    producer.send(0, 10, produce_acks_all(60_000));
    server.wait_for_gauge("delayed_produces", 1);
    let moved = PartitionSpec {
        leader_id: 2,
        leader_epoch: 4,
        ..replicated(false)
    };
    server.server.create_partition(&moved).unwrap();
    let answer = produced(&producer.receive(0, 10).1);
    assert_eq!(code_and_offset(&answer), (6, 2));
    assert_eq!(current_leader(&answer), (2, 4));
    let back = PartitionSpec {
        leader_epoch: 5,
        ..replicated(false)
    };
    server.server.create_partition(&back).unwrap();
    producer.send(0, 9, produce_acks_all(60_000));
    server.wait_for_gauge("delayed_produces", 1);
    server.server.delete_topic("t").unwrap();
    assert_eq!(code_and_offset(&produced(&producer.receive(0, 9).1)), (6, 4));
    server.server.create_partition(&replicated(false)).unwrap();
    producer.send(0, 9, produce_acks_all(60_000));
    server.wait_for_gauge("delayed_produces", 1);
    server.server.stop(std::time::Duration::from_secs(20)).unwrap();
    assert_eq!(code_and_offset(&produced(&producer.receive(0, 9).1)), (7, 0));
}

// If this failed, a producer that needs two replicas would get an acknowledgement for one.
#[test]
fn too_few_replicas_in_sync_refuse_acks_all() {
    let server = start(&[("min.insync.replicas", "2")]);
    let mut producer = server.client();
    producer.send(0, 9, produce_acks_all(200));
    server.wait_for_gauge("delayed_produces", 1);
    // The ISR shrinks after the append: all replicas in sync have the records, but these are too few.
    let mut alone = replicated(false);
    alone.replicas[1].in_sync = false;
    server.server.create_partition(&alone).unwrap();
    assert_eq!(code_and_offset(&produced(&producer.receive(0, 9).1)), (7, 0));
    assert_eq!(server.server.offsets("t", 0).unwrap().high_watermark, 0);
    assert_eq!(server.gauge("under_min_isr_partitions"), 1);
    let answer = produced(&producer.call(0, 9, produce_acks_all(1000)));
    assert_eq!(
        (code_and_offset(&answer), int(&answer, "log_start_offset")),
        ((19, -1), 0)
    );
    let body = producer.call(0, 9, produce("t", 1, &[(0, &batch(&[b"c"]))]));
    assert_eq!(code_and_offset(&produced(&body)), (0, 2));
    // min.insync.replicas is at most the number of replicas.
    let body = producer.call(0, 9, produce("t", -1, &[(1, &batch(&[b"c"]))]));
    assert_eq!(code_and_offset(&produced(&body)), (0, 0));
}

// If this failed, a broker that is not a replica could move a high watermark, or a replica could not follow.
#[test]
fn only_replicas_can_follow() {
    let server = start(&[]);
    let mut client = server.client();
    for (fetch, expected) in [
        (follow(2, 0), 0),
        (follow(9, 0), 75),
        (
            Fetch {
                leader_epoch: -1,
                ..follow(9, 0)
            },
            6,
        ),
        (
            Fetch {
                leader_epoch: 2,
                ..follow(2, 0)
            },
            74,
        ),
        (
            Fetch {
                leader_epoch: 4,
                ..follow(2, 0)
            },
            75,
        ),
        (
            Fetch {
                version: 12,
                ..follow(2, 0)
            },
            0,
        ),
    ] {
        assert_eq!(code_of_fetch(&fetch, &mut client), expected);
    }
    let mut elsewhere = replicated(false);
    elsewhere.leader_id = 2;
    server.server.create_partition(&elsewhere).unwrap();
    assert_eq!(code_of_fetch(&follow(3, 0), &mut client), 6);
}

// If this failed, consumers could not read from a follower, or would see records there that may be lost.
#[test]
fn consumers_read_from_followers_up_to_the_high_watermark() {
    let server = start(&[]);
    let mut client = server.client();
    client.call(0, 9, produce("t", 1, &[(0, &batch(&[b"a"]))]));
    follow(2, 1).call(&mut client);
    client.call(0, 9, produce("t", 1, &[(0, &batch(&[b"b"]))]));
    let mut elsewhere = replicated(false);
    (elsewhere.leader_id, elsewhere.leader_epoch) = (2, 4);
    server.server.create_partition(&elsewhere).unwrap();
    let reads = |version, leader_epoch, replica| Fetch {
        version,
        leader_epoch,
        replica,
        ..Fetch::default()
    };
    for (fetch, expected) in [
        (reads(10, -1, -1), 6),
        (reads(11, -1, -1), 0),
        (reads(17, 4, -1), 0),
        (reads(17, 3, -1), 74),
        (reads(17, 5, -1), 75),
        (reads(10, -1, -2), 6),
        (reads(11, -1, -2), 0),
    ] {
        assert_eq!(code_of_fetch(&fetch, &mut client), expected);
    }
    let response = reads(11, -1, -1).call(&mut client);
    let part = &fetched(&response)[0];
    let first = logcore_records::Batch::parse(&records(part)).unwrap().bytes.len();
    assert_eq!((int(part, "high_watermark"), records(part).len()), (1, first));
    assert_eq!(list(&mut client, 9, -1, -1), (6, -1, -1));
    assert_eq!(list(&mut client, 9, -2, -1), (0, 2, 4));
    // Without a known leader, the partition is not served.
    let unknown = PartitionSpec {
        leader_id: -1,
        leader_epoch: -1,
        ..partition("t", 0)
    };
    server.server.create_partition(&unknown).unwrap();
    assert_eq!(code_of_fetch(&reads(17, -1, -1), &mut client), 6);
}

// If this failed, consumers would read from another data centre (KIP-392), or from a replica without their
// offset.
#[test]
fn a_consumer_is_sent_to_the_replica_in_its_rack() {
    let selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector";
    let server = start(&[("replica.selector.class", selector)]);
    server.server.create_partition(&replicated(true)).unwrap();
    let mut client = server.client();
    client.call(0, 9, produce("t", 1, &[(0, &batch(&[b"a"]))]));
    follow(2, 1).call(&mut client);
    let mut ask = |version, rack, offset| {
        let fetch = Fetch {
            version,
            rack,
            offset,
            ..Fetch::default()
        };
        let response = fetch.call(&mut client);
        let part = fetched(&response)[0].clone();
        (int(&part, "preferred_read_replica"), records(&part).is_empty())
    };
    assert_eq!(ask(11, "rack2", 0), (2, true));
    assert_eq!(ask(17, "rack2", 1), (2, true));
    assert_eq!(ask(17, "rack1", 0).0, -1);
    assert_eq!(ask(17, "elsewhere", 0).0, -1);
    assert_eq!(ask(17, "", 0).0, -1);
    // Replica 3 has not fetched, so its end is not known.
    assert_eq!(ask(17, "rack3", 0).0, -1);
    // A Fetch of a session gets the preferred replica, too, without a wait.
    let fetch = Fetch {
        rack: "rack2",
        session: (0, 0),
        wait_ms: 60_000,
        ..Fetch::default()
    };
    let response = fetch.call(&mut client);
    assert_eq!(int(&fetched(&response)[0], "preferred_read_replica"), 2);
}

// If this failed, a consumer would be sent to a broker that it cannot reach, again and again, and never get a
// record.
#[test]
fn a_consumer_is_sent_only_to_a_replica_with_its_listener() {
    let selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector";
    let config = [("replica.selector.class", selector)];
    let server = TestServer::start_listening(&config, &["A", "B"]);
    let on = |id, listeners: &[&str]| Replica {
        listeners: listeners.iter().map(|name| (*name).to_owned()).collect(),
        rack: Some("near".to_owned()),
        ..replica(id, true)
    };
    let leader = replica(1, true);
    let spec = PartitionSpec {
        replicas: vec![leader, on(2, &["PLAINTEXT", "A"]), on(3, &["PLAINTEXT"])],
        ..partition("t", 0)
    };
    server.server.create_partition(&spec).unwrap();
    let mut client = server.client();
    client.call(0, 9, produce("t", 1, &[(0, &batch(&[b"a"]))]));
    follow(2, 1).call(&mut client);
    follow(3, 1).call(&mut client);
    let fetch = Fetch {
        rack: "near",
        ..Fetch::default()
    };
    let preferred_replicas = server.ports.iter().map(|port| {
        let response = fetch.call(&mut TestServer::client_of(*port));
        let part = fetched(&response)[0].clone();
        let preferred = int(&part, "preferred_read_replica");
        (preferred, records(&part).is_empty())
    });
    // Of two replicas with the same end, the one with the larger id is preferred. On B only the leader
    // listens.
    assert_eq!(
        preferred_replicas.collect::<Vec<_>>(),
        [(3, true), (2, true), (-1, false)]
    );
}

/// ListOffsets of partition 0: error code, offset and epoch.
fn list(client: &mut Client, version: i16, replica: i32, timestamp: i64) -> (i64, i64, i64) {
    let mut message = request(2);
    message.set("replica_id", replica);
    let mut topic = message.element("topics").with("name", "t");
    let part = topic.element("partitions").with("timestamp", timestamp);
    topic.push("partitions", part.with("current_leader_epoch", -1));
    message.push("topics", topic);
    let body = client.call(2, version, message);
    let part = only_part(&body);
    (
        int(&part, "error_code"),
        int(&part, "offset"),
        int(&part, "leader_epoch"),
    )
}

// If this failed, the end that a consumer gets could go backwards after a change of leaders (KIP-207).
#[test]
fn a_new_leader_lists_no_end_before_its_high_watermark_is_known() {
    let server = start(&[]);
    let mut client = server.client();
    assert_eq!(list(&mut client, 9, -1, -1), (0, 0, 3));
    assert_eq!(list(&mut client, 9, -1, -2), (0, 0, 3));
    client.call(0, 9, produce("t", 1, &[(0, &batch(&[b"a"]))]));
    assert_eq!(list(&mut client, 9, -1, -1), (0, 0, 3));
    assert_eq!(list(&mut client, 9, 2, -1), (0, 1, 3));
    let new_epoch = PartitionSpec {
        leader_epoch: 4,
        ..replicated(false)
    };
    server.server.create_partition(&new_epoch).unwrap();
    assert_eq!(list(&mut client, 9, -1, -1), (78, -1, -1));
    assert_eq!(list(&mut client, 4, -1, -1), (5, -1, -1));
    assert_eq!(list(&mut client, 9, -1, 5), (78, -1, -1));
    assert_eq!(list(&mut client, 9, -1, -2), (0, 0, 3));
    assert_eq!(list(&mut client, 9, 2, -1), (0, 1, 4));
    let follower = Fetch {
        leader_epoch: 4,
        ..follow(2, 1)
    };
    assert_eq!(code_of_fetch(&follower, &mut client), 0);
    assert_eq!(list(&mut client, 9, -1, -1), (0, 1, 4));
}

// If this failed, a group's commit would wait for its timeout although every replica has it, or would never
// be answered after the group moved to another broker.
#[test]
fn an_append_of_python_is_reported_once_it_is_replicated() {
    let server = start(&[]);
    let append = |number, timeout_ms| {
        let timeout = Duration::from_millis(timeout_ms);
        let appended = server
            .server
            .append_and_report("t", 0, &batch(&[b"a"]), number, timeout);
        appended.unwrap()
    };
    let next = || {
        let taken = RefCell::new(Vec::new());
        server.wait_until("a report", || {
            taken.borrow_mut().extend(server.server.take_replicated());
            !taken.borrow().is_empty()
        });
        taken.into_inner()
    };
    assert!(!append(1, 60_000));
    assert_eq!(server.server.take_replicated(), []);
    follow(2, 1).call(&mut server.client());
    assert_eq!(next(), [(1, ErrorCode::NONE)]);
    assert!(!append(2, 10));
    assert_eq!(next(), [(2, ErrorCode::REQUEST_TIMED_OUT)]);
    assert!(!append(3, 60_000));
    let moved = PartitionSpec {
        leader_id: 2,
        leader_epoch: 4,
        ..replicated(false)
    };
    server.server.create_partition(&moved).unwrap();
    assert_eq!(next(), [(3, ErrorCode::NOT_LEADER_OR_FOLLOWER)]);
    let alone = PartitionSpec {
        leader_epoch: 5,
        replicas: vec![replica(1, true)],
        ..partition("t", 0)
    };
    server.server.create_partition(&alone).unwrap();
    assert!(append(4, 60_000), "there is no follower");
}
