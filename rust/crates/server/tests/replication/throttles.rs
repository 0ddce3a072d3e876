//! Throttled replication (KIP-73) between two servers.

use crate::cluster::{Cluster, Decision, led_by};
use crate::common::properties;
use logcore_server::PartitionSpec;

/// Broker 1 leads, and broker 2 is not in sync.
fn behind() -> Decision {
    Decision {
        isr: vec![1],
        ..led_by(1, 1, 2)
    }
}

/// Gives `t`, whose replicas are throttled, to both brokers.
fn decide(cluster: &Cluster, decision: &Decision, config: &[(&str, &str)]) {
    let spec = PartitionSpec {
        config: properties(config),
        ..decision.spec("t", 0)
    };
    for broker in cluster.brokers.values() {
        broker.server.create_partition(&spec).unwrap();
    }
}

/// Waits for a round trip of the follower: what was in the leader's log before is copied unless it is held
/// back.
fn replicate_another(cluster: &Cluster, count: i64) {
    let (code, _) = cluster.try_produce(1, ("u", 0), 1, &[b"u"]);
    assert_eq!(code, 0);
    cluster.wait_until("a record of u", || {
        cluster.server(2).offsets("u", 0).unwrap().log_end == count
    });
}

// If this failed, an operator who throttles a reassignment would slow nothing, or also the replicas in sync.
#[test]
fn a_leader_holds_throttled_replicas_back_until_they_are_in_sync() {
    let cluster = Cluster::start(2, &[("leader.replication.throttled.rate", "1")]);
    let throttled = [("leader.replication.throttled.replicas", "0:1")];
    decide(&cluster, &behind(), &throttled);
    cluster.decide("u", 0, &behind());
    cluster.produce(1, 1, &[b"a"]);
    cluster.wait_until("the first record", || cluster.end(2) == 1);
    cluster.produce(1, 1, &[b"b"]);
    replicate_another(&cluster, 1);
    assert_eq!(cluster.end(2), 1, "the rate is exceeded");
    let in_sync = led_by(1, 2, 2);
    decide(&cluster, &in_sync, &throttled);
    cluster.wait_until("a replica in sync", || cluster.end(2) == 2);
    decide(&cluster, &Decision { epoch: 3, ..behind() }, &throttled);
    cluster.produce(1, 1, &[b"c"]);
    replicate_another(&cluster, 2);
    assert_eq!(cluster.end(2), 2);
    cluster.server(1).update_config(&properties(&[])).unwrap();
    cluster.wait_until("no throttle", || cluster.end(2) == 3);
}

// If this failed, a broker that gets many new replicas could not be protected from their traffic.
#[test]
fn a_follower_fetches_throttled_replicas_slowly() {
    let config = [
        ("follower.replication.throttled.rate", "1"),
        ("replica.fetch.max.bytes", "1"),
    ];
    let cluster = Cluster::start(2, &config);
    let alone = Decision {
        replicas: vec![1],
        ..behind()
    };
    cluster.server(1).create_partition(&alone.spec("t", 0)).unwrap();
    for _ in 0..3 {
        cluster.produce(1, 1, &[b"a"]);
    }
    let throttled = [("follower.replication.throttled.replicas", "*")];
    decide(&cluster, &Decision { epoch: 2, ..behind() }, &throttled);
    cluster.wait_until("the first record", || cluster.end(2) == 1);
    cluster.decide("u", 0, &behind());
    replicate_another(&cluster, 1);
    assert_eq!(cluster.end(2), 1, "the rate is exceeded");
    let none = [("follower.replication.throttled.replicas", "")];
    cluster
        .server(2)
        .update_topic_config("t", &properties(&none))
        .unwrap();
    cluster.wait_until("no throttle", || cluster.end(2) == 3);
}
