//! What a leader tells its owner about followers, and what another ISR changes.

use logcore_server::{ReplicaFact, ReplicaFactKind};

use crate::cluster::{Cluster, Decision, led_by};
use crate::common::{Client, batch, int, is_readable, produce, produced};

/// The next facts of broker 1.
fn facts(cluster: &Cluster) -> Vec<ReplicaFact> {
    let server = cluster.server(1);
    loop {
        assert!(is_readable(server.wake_fd()), "no fact:\n{}", cluster.lines());
        server.take_requests(usize::MAX);
        let facts = server.take_replica_facts();
        if !facts.is_empty() {
            return facts;
        }
    }
}

fn fact(broker: i32, kind: ReplicaFactKind) -> ReplicaFact {
    ReplicaFact {
        topic: "t".to_owned(),
        partition: 0,
        leader_epoch: 5,
        broker,
        kind,
    }
}

fn send_acks_all(client: &mut Client) {
    let mut message = produce("t", -1, &[(0, &batch(&[b"v"]))]);
    message.set("timeout_ms", 20_000);
    client.send(0, 9, message);
}

// If this failed, a dead follower would stop acks=all for ever, or a follower that came back would never
// count again.
#[test]
fn a_follower_falls_behind_and_catches_up() {
    let mut cluster = Cluster::start(2, &[("replica.lag.time.max.ms", "300")]);
    let decision = led_by(1, 5, 2);
    cluster.decide("t", 0, &decision);
    cluster.produce(1, -1, &[b"both"]);
    let port = cluster.stop_broker(2);
    let mut producer = cluster.brokers[&1].client();
    send_acks_all(&mut producer);
    assert_eq!(facts(&cluster), [fact(2, ReplicaFactKind::FellBehind)]);
    assert_eq!(cluster.server(1).offsets("t", 0).unwrap().high_watermark, 1);
    assert!(cluster.server(1).set_isr("t", 0, 5, &[1], &[], 1).unwrap());
    assert_eq!(cluster.gauge(1, "under_replicated_partitions"), 1);
    // The follower may have been close until now. The high watermark rises once it is not.
    let (_, body) = producer.receive(0, 9);
    assert_eq!(int(&produced(&body), "error_code"), 0);
    assert!(cluster.server(1).take_replica_facts().is_empty());
    cluster.start_broker(2, port);
    cluster.introduce();
    let alone = Decision {
        isr: vec![1],
        ..decision
    };
    cluster.server(2).create_partition(&alone.spec("t", 0)).unwrap();
    assert_eq!(facts(&cluster), [fact(2, ReplicaFactKind::CaughtUp)]);
    let leader = cluster.server(1);
    assert!(leader.set_isr("t", 0, 5, &[1], &[2], 1).unwrap());
    assert!(!leader.set_isr("t", 0, 5, &[1], &[], 0).unwrap(), "an older ISR");
    assert!(!leader.set_isr("t", 0, 4, &[1], &[], 2).unwrap(), "another epoch");
    assert!(leader.set_isr("t", 0, 5, &[1, 2], &[], 2).unwrap());
    assert!(leader.set_isr("u", 0, 5, &[1], &[], 0).is_err());
    assert!(
        !cluster.server(2).set_isr("t", 0, 5, &[1], &[], 2).unwrap(),
        "no leader"
    );
    assert_eq!(cluster.gauge(1, "under_replicated_partitions"), 0);
    cluster.produce(1, -1, &[b"again"]);
    assert_eq!(cluster.end(2), 3);
    cluster.wait_until_equal();
}

// If this failed, the controller's request for an ISR, which may be late, would undo a newer one.
#[test]
fn an_older_partition_epoch_does_not_replace_the_isr() {
    let cluster = Cluster::start(2, &[]);
    let decision = led_by(1, 5, 2);
    cluster.decide("t", 0, &decision);
    let leader = cluster.server(1);
    assert!(leader.set_isr("t", 0, 5, &[1], &[], 3).unwrap());
    for (partition_epoch, under_replicated) in [(2, 1), (3, 0)] {
        let mut spec = decision.spec("t", 0);
        spec.partition_epoch = partition_epoch;
        leader.create_partition(&spec).unwrap();
        assert_eq!(cluster.gauge(1, "under_replicated_partitions"), under_replicated);
    }
}
