//! A follower copies its leader.

use crate::cluster::{Cluster, led_by};

// If this failed, a replica would differ from its leader, or acks=all would wait for ever.
#[test]
fn a_follower_copies_its_leader_byte_for_byte() {
    let cluster = Cluster::start(3, &[("log.segment.bytes", "2000")]);
    cluster.decide("t", 0, &led_by(1, 5, 3));
    for round in 0..40 {
        let value = vec![b'v'; 10 * round];
        let offset = cluster.produce(1, -1, &[&value, b"second"]);
        assert_eq!(offset, 2 * round as i64);
    }
    assert_eq!(cluster.server(1).offsets("t", 0).unwrap().high_watermark, 80);
    cluster.wait_until_equal();
    assert!(cluster.gauge(2, "replication_bytes_in") > 10_000);
    assert!(cluster.gauge(1, "replication_bytes_out") > 20_000);
    cluster.wait_until("no lag", || cluster.gauge(2, "replica_max_lag") == 0);
    assert_eq!(cluster.gauge(2, "replica_failed_partitions"), 0);
    assert_eq!(cluster.lines(), "");
}

// If this failed, a replica whose broker was restarted would lose what it had, or not go on.
#[test]
fn a_restarted_follower_goes_on_where_it_was() {
    let mut cluster = Cluster::start(2, &[]);
    let decision = led_by(1, 5, 2);
    cluster.decide("t", 0, &decision);
    cluster.produce(1, -1, &[b"before"]);
    cluster.stop_broker(2);
    cluster.produce(1, 1, &[b"meanwhile"]);
    cluster.start_broker(2, 0);
    let offsets = cluster.server(2).offsets("t", 0).unwrap();
    assert_eq!((offsets.log_end, offsets.high_watermark <= 1), (1, true));
    cluster.introduce();
    cluster.decide("t", 0, &decision);
    cluster.produce(1, -1, &[b"after"]);
    assert_eq!(cluster.end(2), 3);
    cluster.wait_until_equal();
}
