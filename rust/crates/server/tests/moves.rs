//! Requests of operators for logs: moves between directories, deletion of records, descriptions.
#![allow(clippy::unwrap_used)] // a test may panic

mod common;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use common::{
    Fetch, SetOnDrop, TIMEOUT, TestServer, batch, check_log, fetched, int, partition, produce, produced,
    properties, records, replica,
};
use logcore_protocol::Value;
use logcore_server::{ErrorCode, LogDirMove, PartitionSpec, ReplicaDescription, Server};

/// A server with `t-0` and `t-1`, and two log directories.
fn two_disks(config: &[(&str, &str)]) -> TestServer {
    TestServer::start_on(tempfile::tempdir().unwrap(), &["one", "two"], config)
}

/// The indexes of the directories with a replica of a partition, and whether it is a future one.
fn dirs_of(server: &Server, topic: &str, index: i32) -> Vec<(usize, bool)> {
    let dirs = server.describe_log_dirs().unwrap();
    let is_it = |replica: &&ReplicaDescription| replica.topic == topic && replica.partition == index;
    let found = dirs.iter().enumerate().flat_map(|(number, dir)| {
        let found = dir.replicas.iter().filter(is_it);
        found.map(move |replica| (number, replica.is_future))
    });
    found.collect()
}

fn dir_path(server: &Server, number: usize) -> String {
    server.describe_log_dirs().unwrap()[number].path.clone()
}

fn move_to(server: &Server, topic: &str, index: i32, destination: &str) -> ErrorCode {
    let wanted = LogDirMove {
        topic: topic.to_owned(),
        partition: index,
        destination: destination.to_owned(),
    };
    server.alter_replica_log_dirs(&[wanted]).unwrap()[0]
}

/// A Fetch of `t-0` that waits at `offset` for longer than the test.
fn poll(offset: i64) -> Fetch {
    Fetch {
        offset,
        wait_ms: 600_000,
        ..Fetch::default()
    }
}

// If this failed, a partition that moves would refuse or lose writes, or return wrong records.
#[test]
fn a_partition_moves_while_it_is_written_and_read() {
    // The records have old timestamps.
    let server = two_disks(&[("log.retention.ms", "-1")]);
    let [(from, false)] = dirs_of(&server.server, "t", 0)[..] else {
        panic!("it is not in one directory");
    };
    for _ in 0..60 {
        server.server.append("t", 0, &batch(&[&[b'v'; 50_000]])).unwrap();
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut next = 60;
            while !done.load(Ordering::SeqCst) {
                let value = next.to_string();
                let at = server.server.append("t", 0, &batch(&[value.as_bytes()])).unwrap();
                assert_eq!(at, next);
                next += 1;
            }
            next
        });
        let reader = scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                let end = server.server.offsets("t", 0).unwrap().high_watermark;
                let last = server.server.read("t", 0, end - 1, 1).unwrap();
                assert!(!last.is_empty(), "nothing before {end}");
            }
        });
        let ending = SetOnDrop(&done);
        for round in 0..3 {
            let to = if round % 2 == 0 { 1 - from } else { from };
            let destination = dir_path(&server.server, to);
            assert_eq!(move_to(&server.server, "t", 0, &destination), ErrorCode::NONE);
            server.wait_for_line("t-0 was moved to");
            assert_eq!(dirs_of(&server.server, "t", 0), [(to, false)]);
        }
        drop(ending);
        reader.join().unwrap();
        let end = writer.join().unwrap();
        assert_eq!(server.server.offsets("t", 0).unwrap().log_end, end);
    });
    let mut offset = 60;
    while offset < server.server.offsets("t", 0).unwrap().log_end {
        let bytes = server.server.read("t", 0, offset, 1).unwrap();
        let value = offset.to_string();
        let is_there = bytes.windows(value.len()).any(|part| part == value.as_bytes());
        assert!(is_there, "offset {offset} has something else");
        offset += 7;
    }
}

// If this failed, a consumer that waits for records would get an error after a move, or wait for ever.
#[test]
fn long_polls_survive_a_move() {
    let server = two_disks(&[]);
    let [(from, false)] = dirs_of(&server.server, "t", 0)[..] else {
        panic!("it is not in one directory");
    };
    let mut client = server.client();
    client.send(1, 12, poll(0).message());
    server.wait_for_gauge("delayed_fetches", 1);
    let destination = dir_path(&server.server, 1 - from);
    assert_eq!(move_to(&server.server, "t", 0, &destination), ErrorCode::NONE);
    server.wait_for_line("t-0 was moved to");
    server.server.append("t", 0, &batch(&[b"after"])).unwrap();
    let part = &fetched(&client.receive(1, 12).1)[0];
    assert_eq!(int(part, "error_code"), 0);
    assert!(!records(part).is_empty());
}

// If this failed, a move would make records visible, and acknowledge them, that only one replica has.
#[test]
fn a_move_does_not_advance_the_high_watermark() {
    let server = two_disks(&[]);
    let replicated = PartitionSpec {
        replicas: vec![replica(1, true), replica(2, true)],
        ..partition("t", 0)
    };
    server.server.create_partition(&replicated).unwrap();
    let follow = |offset| Fetch {
        replica: 2,
        offset,
        leader_epoch: 3,
        version: 17,
        ..Fetch::default()
    };
    let (mut producer, mut follower) = (server.client(), server.client());
    producer.call(0, 9, produce("t", 1, &[(0, &batch(&[b"a", b"b"]))]));
    follow(2).call(&mut follower);
    let mut wanting_all = produce("t", -1, &[(0, &batch(&[b"c"]))]);
    wanting_all.set("timeout_ms", 600_000);
    producer.send(0, 9, wanting_all);
    server.wait_for_gauge("delayed_produces", 1);
    let watermark = || server.server.offsets("t", 0).unwrap().high_watermark;
    assert_eq!(watermark(), 2);
    let [(from, false)] = dirs_of(&server.server, "t", 0)[..] else {
        panic!("it is not in one directory");
    };
    let destination = dir_path(&server.server, 1 - from);
    assert_eq!(move_to(&server.server, "t", 0, &destination), ErrorCode::NONE);
    server.wait_for_line("t-0 was moved to");
    assert_eq!(watermark(), 2);
    server.wait_for_gauge("delayed_produces", 1);
    let seen = Fetch::default().call(&mut server.client());
    let seen = records(&fetched(&seen)[0]);
    assert_eq!(seen.len(), batch(&[b"a", b"b"]).len());
    // The producer waits until the follower has the record.
    follow(2).call(&mut follower);
    assert_eq!(watermark(), 2);
    server.wait_for_gauge("delayed_produces", 1);
    follow(3).call(&mut follower);
    let answer = produced(&producer.receive(0, 9).1);
    assert_eq!((int(&answer, "error_code"), int(&answer, "base_offset")), (0, 2));
    assert_eq!(watermark(), 3);
}

// If this failed, a mistyped directory would be created. Or a partition that is created later would go to
// another directory than the operator chose.
#[test]
fn moves_are_refused_or_remembered() {
    let server = two_disks(&[]);
    let code = |topic: &str, index, path: &str| move_to(&server.server, topic, index, path);
    let one = dir_path(&server.server, 0);
    assert_eq!(code("t", 0, "/no/such/directory"), ErrorCode::LOG_DIR_NOT_FOUND);
    assert_eq!(code("t", 0, &format!("{one}/")), ErrorCode::LOG_DIR_NOT_FOUND);
    assert_eq!(
        code(&"t".repeat(240), 0, &one),
        ErrorCode::INVALID_TOPIC_EXCEPTION
    );
    let [(here, false)] = dirs_of(&server.server, "t", 0)[..] else {
        panic!("it is not in one directory");
    };
    let path = dir_path(&server.server, here);
    assert_eq!(code("t", 0, &path), ErrorCode::NONE);
    assert_eq!(dirs_of(&server.server, "t", 0), [(here, false)]);
    for index in 0..4 {
        assert_eq!(code("later", index, &path), ErrorCode::REPLICA_NOT_AVAILABLE);
        server
            .server
            .create_partition(&partition("later", index))
            .unwrap();
        assert_eq!(dirs_of(&server.server, "later", index), [(here, false)]);
    }
}

// If this failed, a failed disk would stop all moves, even of the log that was moving to that disk.
#[test]
fn logs_move_between_the_other_disks_when_one_fails() {
    let rate = "replica.alter.log.dirs.io.max.bytes.per.second";
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start_on(dir, &["one", "two", "three"], &[(rate, "1")]);
    server.server.create_partition(&partition("u", 0)).unwrap();
    let [from, failed, other] = [("t", 0), ("t", 1), ("u", 0)].map(|(topic, index)| {
        let [(dir, false)] = dirs_of(&server.server, topic, index)[..] else {
            panic!("it is not in one directory");
        };
        dir
    });
    assert_eq!(from + failed + other, 3, "each is in its own directory");
    for _ in 0..3 {
        let value = batch(&[&[b'v'; 5000]]);
        server.server.append("t", 0, &value).unwrap();
    }
    let paths = [0, 1, 2].map(|number| dir_path(&server.server, number));
    let code = |topic: &str, index, to: usize| move_to(&server.server, topic, index, &paths[to]);
    assert_eq!(code("t", 0, failed), ErrorCode::NONE);
    // A rename is atomic. The move creates files in the directory, so a removal could fail.
    std::fs::rename(&paths[failed], format!("{}-gone", paths[failed])).unwrap();
    // The server writes a checkpoint there, and notices the failure.
    let on_it = [("t".to_owned(), 1, -1)];
    server.server.delete_records(&on_it).unwrap();
    assert_eq!(code("u", 0, failed), ErrorCode::KAFKA_STORAGE_ERROR);
    assert_eq!(code("t", 1, other), ErrorCode::KAFKA_STORAGE_ERROR);
    assert_eq!(code("u", 0, from), ErrorCode::NONE);
    assert_eq!(code("t", 0, other), ErrorCode::NONE);
    let mut both = vec![(from, false), (other, true)];
    both.sort_unstable();
    assert_eq!(dirs_of(&server.server, "t", 0), both);
    server.server.update_config(&properties(&[])).unwrap();
    server.wait_for_line("t-0 was moved to");
    assert_eq!(dirs_of(&server.server, "t", 0), [(other, false)]);
    assert_eq!(server.server.offsets("t", 0).unwrap().log_end, 3);
}

// If this failed, a slow move could not be cancelled, would outlive its topic, or be lost by a restart.
#[test]
fn a_slow_move_is_described_cancelled_and_resumed() {
    let rate = [("replica.alter.log.dirs.io.max.bytes.per.second", "1")];
    let server = two_disks(&rate);
    let [(from, false)] = dirs_of(&server.server, "t", 0)[..] else {
        panic!("it is not in one directory");
    };
    for _ in 0..3 {
        server.server.append("t", 0, &batch(&[&[b'v'; 5000]])).unwrap();
    }
    let paths = [0, 1].map(|number| dir_path(&server.server, number));
    let both = |from: usize| {
        let mut both = vec![(from, false), (1 - from, true)];
        both.sort();
        both
    };
    let move_away = || move_to(&server.server, "t", 0, &paths[1 - from]);
    assert_eq!(move_away(), ErrorCode::NONE);
    assert_eq!(move_away(), ErrorCode::NONE);
    assert_eq!(dirs_of(&server.server, "t", 0), both(from));
    let dirs = server.server.describe_log_dirs().unwrap();
    let future = dirs[1 - from].replicas.iter().find(|replica| replica.is_future);
    assert!((1..=3).contains(&future.unwrap().lag), "{future:?}");
    // A move to the directory of the log cancels the other move.
    assert_eq!(move_to(&server.server, "t", 0, &paths[from]), ErrorCode::NONE);
    assert_eq!(dirs_of(&server.server, "t", 0), [(from, false)]);
    assert_eq!(move_away(), ErrorCode::NONE);
    let dir = server.stop();
    let server = TestServer::start_on(dir, &["one", "two"], &[]);
    server.wait_for_line("t-0 was moved to");
    assert_eq!(dirs_of(&server.server, "t", 0), [(1 - from, false)]);
    assert_eq!(server.server.offsets("t", 0).unwrap().log_end, 3);
    let dir = server.stop();
    let server = TestServer::start_on(dir, &["one", "two"], &rate);
    assert_eq!(move_to(&server.server, "t", 0, &paths[from]), ErrorCode::NONE);
    server.server.delete_topic("t").unwrap();
    assert_eq!(dirs_of(&server.server, "t", 0), []);
}

// If this failed, a move would take the end of any segment for that of the log. It would then copy the rest
// while producers and a stop wait.
#[test]
fn a_log_of_many_segments_moves_while_producers_write() {
    let segments = [("log.segment.bytes", "20000"), ("log.retention.ms", "-1")];
    // A segment a second.
    let rate = ("replica.alter.log.dirs.io.max.bytes.per.second", "25000");
    let slow: Vec<_> = segments.into_iter().chain([rate]).collect();
    let server = two_disks(&slow);
    let [(from, false)] = dirs_of(&server.server, "t", 0)[..] else {
        panic!("it is not in one directory");
    };
    let value = [b'v'; 6000];
    let count = 150;
    for _ in 0..count {
        server.server.append("t", 0, &batch(&[&value])).unwrap();
    }
    let mut both = [(from, false), (1 - from, true)];
    both.sort();
    let destination = dir_path(&server.server, 1 - from);
    assert_eq!(move_to(&server.server, "t", 0, &destination), ErrorCode::NONE);
    let copied = |server: &Server| {
        let dirs = server.describe_log_dirs().unwrap();
        let replicas = dirs.into_iter().flat_map(|dir| dir.replicas);
        let futures = replicas.filter(|replica| replica.is_future);
        futures.map(|replica| replica.size).sum::<u64>()
    };
    let produced_at = |client: &mut common::Client, offset| {
        let answer = client.call(0, 9, produce("t", 1, &[(0, &batch(&[b"beside"]))]));
        let answer = produced(&answer);
        assert_eq!(
            (int(&answer, "error_code"), int(&answer, "base_offset")),
            (0, offset)
        );
    };
    let mut client = server.client();
    let mut next = count;
    // More than one segment was copied, so the move has reached the end of one.
    let begun = Instant::now();
    while copied(&server.server) <= 20_000 {
        assert!(begun.elapsed() < TIMEOUT, "nothing is copied");
        produced_at(&mut client, next);
        next += 1;
        assert_eq!(dirs_of(&server.server, "t", 0), both);
    }
    assert_eq!(dirs_of(&server.server, "t", 0), both);
    drop(client);
    // The server stops during the move.
    let dir = server.stop();
    let future = dir.path().join(["one", "two"][1 - from]);
    let mut names = std::fs::read_dir(future).unwrap();
    assert!(names.any(|name| {
        let name = name.unwrap().file_name().into_string().unwrap();
        name.starts_with("t-0.") && name.ends_with("-future")
    }));
    let server = TestServer::start_on(dir, &["one", "two"], &segments);
    let done = AtomicBool::new(false);
    let end = std::thread::scope(|scope| {
        let producer = scope.spawn(|| {
            let (mut client, mut next) = (server.client(), next);
            while !done.load(Ordering::SeqCst) {
                produced_at(&mut client, next);
                next += 1;
            }
            next
        });
        let ending = SetOnDrop(&done);
        server.wait_for_line("t-0 was moved to");
        drop(ending);
        producer.join().unwrap()
    });
    assert_eq!(dirs_of(&server.server, "t", 0), [(1 - from, false)]);
    assert_eq!(check_log(&server, "t", 0), end);
}

// If this failed, a move would keep a low rate for up to an hour after the setting changed.
#[test]
fn a_running_move_uses_a_new_rate() {
    let server = two_disks(&[("replica.alter.log.dirs.io.max.bytes.per.second", "1")]);
    let from = dirs_of(&server.server, "t", 0)[0].0;
    for _ in 0..3 {
        server.server.append("t", 0, &batch(&[&[b'v'; 50_000]])).unwrap();
    }
    let to = dir_path(&server.server, 1 - from);
    assert_eq!(move_to(&server.server, "t", 0, &to), ErrorCode::NONE);
    let copied = || {
        let dirs = server.server.describe_log_dirs().unwrap();
        let future = dirs[1 - from].replicas.iter().find(|it| it.is_future);
        future.is_some_and(|future| future.lag < 3)
    };
    server.wait_until("a copy", copied);
    server.server.update_config(&properties(&[])).unwrap();
    server.wait_for_line("t-0 was moved to");
    assert_eq!(dirs_of(&server.server, "t", 0), [(1 - from, false)]);
}

// If this failed, a consumer would wait for deleted records, or records of compacted topics could be deleted.
#[test]
fn records_are_deleted() {
    let server = two_disks(&[]);
    let compacted = PartitionSpec {
        config: properties(&[("cleanup.policy", "compact")]),
        ..partition("compacted", 0)
    };
    let elsewhere = PartitionSpec {
        leader_id: 2,
        ..partition("elsewhere", 0)
    };
    server.server.create_partition(&compacted).unwrap();
    server.server.create_partition(&elsewhere).unwrap();
    for _ in 0..5 {
        server.server.append("t", 0, &batch(&[b"v"])).unwrap();
    }
    let delete = |wanted: &[(&str, i32, i64)]| {
        let wanted: Vec<_> = wanted
            .iter()
            .map(|(topic, index, offset)| ((*topic).to_owned(), *index, *offset))
            .collect();
        server.server.delete_records(&wanted).unwrap()
    };
    assert_eq!(
        delete(&[
            ("t", 0, 2),
            ("t", 0, 6),
            ("t", 0, -2),
            ("t", 0, 1),
            ("t", 1, -1),
            ("t", 9, 0),
            ("compacted", 0, 0),
            ("elsewhere", 0, 0),
        ]),
        [
            Ok(2),
            Err(ErrorCode::OFFSET_OUT_OF_RANGE),
            Err(ErrorCode::OFFSET_OUT_OF_RANGE),
            Ok(2),
            Ok(0),
            Err(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION),
            Err(ErrorCode::POLICY_VIOLATION),
            Err(ErrorCode::NOT_LEADER_OR_FOLLOWER),
        ]
    );
    // The poll waits at the end of the log. The deletion of all records wakes it, and it waits again.
    let mut client = server.client();
    client.send(1, 12, poll(5).message());
    server.wait_for_gauge("delayed_fetches", 1);
    assert_eq!(delete(&[("t", 0, -1)]), [Ok(5)]);
    server.server.append("t", 0, &batch(&[b"w"])).unwrap();
    let code = |answer: &Value| int(&fetched(answer)[0], "error_code");
    assert_eq!(code(&client.receive(1, 12).1), 0);
    assert_eq!(
        code(&poll(4).call(&mut server.client())),
        i64::from(ErrorCode::OFFSET_OUT_OF_RANGE.0)
    );
    // The checkpoint is on disk before the server stops.
    let file = PathBuf::from(dir_path(&server.server, dirs_of(&server.server, "t", 0)[0].0));
    let starts = std::fs::read_to_string(file.join("log-start-offset-checkpoint")).unwrap();
    assert!(starts.contains("t 0 5\n"), "{starts}");
}

// If this failed, an operator could not find the producer of a hanging transaction.
#[test]
fn producers_are_described() {
    let server = two_disks(&[]);
    let mut builder = logcore_records::BatchBuilder::new(logcore_records::Compression::None, None);
    builder.set_producer_state(77, 2, 0);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.unwrap().as_millis() as i64;
    for _ in 0..3 {
        builder.append(now, None, Some(b"v"), &[]).unwrap();
    }
    server.server.append("t", 0, &builder.build().unwrap()).unwrap();
    let found = server.server.describe_producers("t", 0).unwrap().unwrap();
    let [one] = found[..] else {
        panic!("{found:?}");
    };
    assert_eq!((one.producer_id, one.epoch, one.last_sequence), (77, 2, 2));
    assert_eq!((one.last_timestamp, one.coordinator_epoch), (now, -1));
    assert_eq!(one.transaction_start, None);
    assert_eq!(
        server.server.describe_producers("t", 9).unwrap(),
        Err(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)
    );
}

// If this failed, a failed disk would be described as an empty one.
#[test]
fn directories_are_described() {
    let server = two_disks(&[]);
    server.server.append("t", 0, &batch(&[b"v"])).unwrap();
    let dirs = server.server.describe_log_dirs().unwrap();
    assert!(dirs.iter().all(|dir| {
        dir.space
            .is_some_and(|space| 0 < space.usable && space.usable <= space.total)
    }));
    let sizes: Vec<_> = dirs
        .iter()
        .flat_map(|dir| &dir.replicas)
        .map(|replica| (replica.partition, replica.size > 0, replica.lag))
        .collect();
    assert_eq!(sizes.len(), 2);
    assert!(sizes.contains(&(0, true, 0)) && sizes.contains(&(1, false, 0)));
    let failed = dirs_of(&server.server, "t", 0)[0].0;
    std::fs::remove_dir_all(&dirs[failed].path).unwrap();
    // The server writes a checkpoint there, and notices the failure.
    server.server.delete_records(&[("t".to_owned(), 0, -1)]).unwrap();
    let dirs = server.server.describe_log_dirs().unwrap();
    assert!(dirs[failed].space.is_none() && dirs[failed].replicas.is_empty());
    assert!(dirs[1 - failed].space.is_some());
    let other = dirs[1 - failed].path.clone();
    assert_eq!(
        (
            move_to(&server.server, "t", 0, &other),
            move_to(&server.server, "t", 1, &dirs[failed].path)
        ),
        (ErrorCode::KAFKA_STORAGE_ERROR, ErrorCode::KAFKA_STORAGE_ERROR)
    );
}
