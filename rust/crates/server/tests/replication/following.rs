//! A follower copies its leader, through restarts, deletions and damage.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::cluster::{Cluster, assert_same_files, led_by};
use crate::common::SetOnDrop;

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

// If this failed, a broker with a new disk could not become a replica again.
#[test]
fn a_follower_with_an_empty_disk_copies_everything() {
    let mut cluster = Cluster::start(2, &[("log.segment.bytes", "2000")]);
    let decision = led_by(1, 5, 2);
    cluster.decide("t", 0, &decision);
    for _ in 0..20 {
        cluster.produce(1, -1, &[&[b'v'; 300]]);
    }
    cluster.stop_broker(2);
    std::fs::remove_dir_all(cluster.dir(2)).unwrap();
    cluster.start_broker(2, 0);
    cluster.introduce();
    cluster.decide("t", 0, &decision);
    cluster.produce(1, -1, &[b"last"]);
    cluster.wait_until_equal();
}

// If this failed, a leader that restarts, or moves to another machine, would have no followers any more.
#[test]
fn a_leader_comes_back_at_its_address_and_at_another() {
    let mut cluster = Cluster::start(2, &[]);
    let decision = led_by(1, 5, 2);
    cluster.decide("t", 0, &decision);
    cluster.produce(1, -1, &[b"first"]);
    let port = cluster.stop_broker(1);
    cluster.wait_for_line("broker 1 leads 1 partitions that cannot be fetched from it now");
    cluster.start_broker(1, port);
    // The follower hears nothing of it.
    cluster
        .server(1)
        .create_partition(&decision.spec("t", 0))
        .unwrap();
    cluster.produce(1, -1, &[b"same address"]);
    cluster.stop_broker(1);
    cluster.start_broker(1, 0);
    assert_ne!(cluster.brokers[&1].port, port);
    cluster
        .server(1)
        .create_partition(&decision.spec("t", 0))
        .unwrap();
    cluster.introduce();
    cluster.produce(1, -1, &[b"another address"]);
    assert_eq!(cluster.end(2), 3);
    cluster.wait_until_equal();
}

// If this failed, a follower that was away for longer than the retention would never come back, or would have
// a log that begins in the middle of nothing.
#[test]
fn a_follower_behind_the_leaders_start_begins_there() {
    let cluster = Cluster::start(2, &[]);
    let decision = led_by(1, 5, 2);
    cluster.decide("t", 0, &decision);
    cluster.produce(1, -1, &[b"a", b"b", b"c"]);
    for (start, offset) in [(9, 9), (14, 12)] {
        cluster.server(2).stop_partition("t", 0, false).unwrap();
        let end = cluster.end(2);
        assert!(
            cluster
                .server(1)
                .set_isr("t", 0, 5, &[1], &[], start as i32)
                .unwrap()
        );
        for _ in 0..2 {
            cluster.produce(1, 1, &[b"d", b"e", b"f"]);
        }
        cluster.server(1).set_brokers(&[]);
        let deleted = cluster
            .server(1)
            .delete_records(&[("t".to_owned(), 0, start)])
            .unwrap();
        assert_eq!(deleted, [Ok(start)]);
        assert!(end < offset);
        cluster
            .server(2)
            .create_partition(&decision.spec("t", 0))
            .unwrap();
        // The second start is within a batch, which the follower needs whole.
        cluster.wait_until("the leader's end", || cluster.end(2) == cluster.end(1));
        cluster.wait_for_line(&format!("t-0 begins anew at offset {start}"));
        let found = cluster.server(2).offsets("t", 0).unwrap();
        assert_eq!(found.log_start, start);
        let read = |id| cluster.server(id).read("t", 0, start, 1 << 20).unwrap();
        cluster.wait_until("equal records", || read(1) == read(2));
        assert!(!read(1).is_empty() || found.log_end == start);
        cluster.introduce();
    }
}

// If this failed, a broker with many partitions would ask for each by itself, or name them all each time.
#[test]
fn two_hundred_partitions_share_a_session() {
    let cluster = Cluster::start(2, &[]);
    let decision = led_by(1, 5, 2);
    for index in 0..200 {
        cluster.decide("t", index, &decision);
    }
    for index in [0, 77, 199] {
        for round in 0..3 {
            let produced = cluster.try_produce(1, ("t", index), -1, &[b"v"]);
            assert_eq!(produced, (0, round));
        }
    }
    assert_eq!(cluster.gauge(1, "fetch_sessions"), 1);
    let fetches = |counts: Vec<(i16, u64)>| counts.iter().find(|(key, _)| *key == 1).unwrap().1;
    let before = fetches(cluster.server(1).requests_begun());
    for index in 0..200 {
        assert_eq!(cluster.try_produce(1, ("t", index), 1, &[b"w"]).0, 0);
    }
    cluster.wait_until("all partitions", || {
        let end = |id, index| cluster.server(id).offsets("t", index).unwrap().log_end;
        (0..200).all(|index| end(1, index) == end(2, index))
    });
    assert!(fetches(cluster.server(1).requests_begun()) - before <= 210);
    assert_eq!(cluster.lines(), "");
}

/// Flips a bit in the value of the only record of a segment.
fn flip(log_dir: &Path, position: u64) {
    let path = log_dir.join("00000000000000000000.log");
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, position).unwrap();
    file.write_all_at(&[byte[0] ^ 1], position).unwrap();
}

// If this failed, a damaged record of a leader would spread to its followers, or stop the replication of all
// other partitions.
#[test]
fn a_corrupt_batch_is_refused_and_named_and_stops_no_other_partition() {
    let cluster = Cluster::start(2, &[]);
    let decision = led_by(1, 5, 2);
    cluster.decide("t", 0, &decision);
    cluster.decide("t", 1, &decision);
    cluster.server(2).stop_partition("t", 0, false).unwrap();
    cluster.produce(1, 1, &[b"value"]);
    let damaged = cluster.dir(1).join("t-0");
    flip(&damaged, 69);
    cluster
        .server(2)
        .create_partition(&decision.spec("t", 0))
        .unwrap();
    let lines = cluster.wait_for_line("t-0: the records from offset 0 on that its leader, broker 1, sent");
    assert!(lines.contains("are not appended: corrupt batch"), "{lines}");
    assert_eq!(cluster.try_produce(1, ("t", 1), -1, &[b"v"]), (0, 0));
    assert_eq!(cluster.end(2), 0);
    assert_eq!(cluster.gauge(2, "replica_failed_partitions"), 0);
    // Once the leader's log is repaired, it goes on by itself.
    flip(&damaged, 69);
    cluster.produce(1, -1, &[b"next"]);
    cluster.wait_until_equal();
}

// If this failed, a deleted or stopped partition would come back, be written after that, or end the fetcher.
#[test]
fn partitions_are_deleted_and_stopped_while_they_are_fetched() {
    let cluster = Cluster::start(2, &[]);
    let decision = led_by(1, 5, 2);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = SetOnDrop(&ended);
        cluster.decide("t", 0, &decision);
        cluster.decide("t", 1, &decision);
        scope.spawn(|| {
            while !ended.load(Ordering::SeqCst) {
                cluster.try_produce(1, ("t", 0), 1, &[&[b'v'; 1000]]);
            }
        });
        for round in 0..10 {
            let before = cluster.gauge(2, "replication_bytes_in");
            cluster.wait_until("records", || cluster.gauge(2, "replication_bytes_in") > before);
            let follower = cluster.server(2);
            follower.stop_partition("t", 0, round % 2 == 0).unwrap();
            if round % 2 == 0 {
                assert!(follower.offsets("t", 0).is_err());
                assert!(!cluster.dir(2).join("t-0").exists());
            } else {
                let end = cluster.end(2);
                // The other partition is still fetched, by the same fetcher.
                assert_eq!(cluster.try_produce(1, ("t", 1), -1, &[b"v"]).0, 0);
                assert_eq!(cluster.end(2), end);
            }
            if round == 8 {
                follower.delete_topic("t").unwrap();
                follower.create_partition(&decision.spec("t", 1)).unwrap();
            }
            follower.create_partition(&decision.spec("t", 0)).unwrap();
        }
    });
    cluster.produce(1, -1, &[b"last"]);
    cluster.wait_until_equal();
    assert_eq!(cluster.try_produce(1, ("t", 1), -1, &[b"v"]).0, 0);
    assert_same_files(&cluster.dir(1).join("t-1"), &cluster.dir(2).join("t-1"));
    assert_eq!(cluster.gauge(2, "replica_failed_partitions"), 0);
    cluster.server(2).stop_partition("nothing", 0, true).unwrap();
    cluster.server(2).stop_partition("nothing", 0, false).unwrap();
}
