//! The start of a server after a crash or a disk fault, and the settings of its logs then.
#![allow(clippy::unwrap_used)] // a test may panic

mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{batch, gauge, partition, properties};
use logcore_server::{PartitionSpec, Server, ServerOptions};

fn open(dir: &Path) -> Server {
    open_with(dir, &[])
}

fn open_with(dir: &Path, config: &[(&str, &str)]) -> Server {
    Server::open(&ServerOptions {
        node_id: 1,
        cluster_id: "abcdefghijklmnopqrstug".to_owned(),
        log_dirs: vec![dir.to_string_lossy().into_owned()],
        properties: properties(config),
        progress: Arc::default(),
    })
    .unwrap()
}

fn lines(server: &Server) -> String {
    let lines = server.take_log_lines();
    let lines: Vec<_> = lines.into_iter().map(|line| line.message).collect();
    lines.join("\n")
}

// If this failed, a damaged log would stop the start, be served, or be replaced by an empty one. Or the log
// lines would not say where the damage is and what was cut off.
#[test]
fn a_damaged_log_stays_offline_and_the_others_are_served() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path();
    let server = open(dir);
    for index in 0..3 {
        server.create_partition(&partition("t", index)).unwrap();
        for _ in 0..5 {
            server.append("t", index, &batch(&[b"value"])).unwrap();
        }
    }
    server.stop(Duration::ZERO).unwrap();
    assert_eq!(lines(&server), "", "a new directory logs nothing");
    drop(server);
    // As after a kill when all data was on disk. Then one log has a flipped bit, another a torn end.
    std::fs::remove_file(dir.join(".kafka_cleanshutdown")).unwrap();
    let damaged = dir.join("t-1/00000000000000000000.log");
    let mut bytes = std::fs::read(&damaged).unwrap();
    bytes[90] ^= 1;
    std::fs::write(&damaged, &bytes).unwrap();
    let torn = dir.join("t-2/00000000000000000000.log");
    let mut longer = std::fs::read(&torn).unwrap();
    longer.extend([1; 10]);
    std::fs::write(&torn, &longer).unwrap();

    let server = open(dir);
    let text = lines(&server);
    assert!(
        text.contains("t-1 stays offline")
            && text.contains("t-1/00000000000000000000.log is corrupt at byte"),
        "{text}"
    );
    assert!(text.contains("10 bytes and 0 later segments"), "{text}");
    assert!(
        text.contains("2 logs of") && text.contains("by recovery"),
        "{text}"
    );
    let kept = std::fs::metadata(dir.join("t-0/00000000000000000000.log"))
        .unwrap()
        .len();
    assert_eq!(gauge(&server, "offline_logs"), 1);
    assert_eq!(gauge(&server, "recovered_bytes"), 2 * kept + 10);
    for index in [0, 2] {
        server.create_partition(&partition("t", index)).unwrap();
        assert_eq!(server.append("t", index, &batch(&[b"next"])).unwrap(), 5);
    }
    let error = server.create_partition(&partition("t", 1)).unwrap_err();
    assert!(error.to_string().contains("is offline"), "{error}");
    assert!(server.append("t", 1, &batch(&[b"lost"])).is_err());
    assert_eq!(std::fs::read(&damaged).unwrap(), bytes);
    let error = server.stop(Duration::ZERO).unwrap_err().to_string();
    assert!(
        error.contains("1 log was not closed cleanly") && error.contains("t-1"),
        "{error}"
    );
}

// If this failed, a mistaken retention.ms would delete records at once, before an operator can correct it.
#[test]
fn retention_runs_at_its_interval() {
    const TIMEOUT: Duration = Duration::from_secs(60);
    // Housekeeping writes a checkpoint in each round, and checks retention once an hour.
    let settings = [
        ("log.retention.check.interval.ms", "3600000"),
        ("log.flush.offset.checkpoint.interval.ms", "1"),
        ("log.retention.ms", "1000"),
        ("log.segment.bytes", "100"),
    ];
    let temporary = tempfile::tempdir().unwrap();
    let server = open_with(temporary.path(), &settings);
    server.create_partition(&partition("t", 0)).unwrap();
    let checkpoint = temporary.path().join("replication-offset-checkpoint");
    let begun = Instant::now();
    for end in 1..=3 {
        server.append("t", 0, &batch(&[b"value"])).unwrap();
        let line = format!("t 0 {end}\n");
        while !std::fs::read_to_string(&checkpoint).is_ok_and(|text| text.ends_with(&line)) {
            assert!(begun.elapsed() < TIMEOUT, "no round of housekeeping");
            std::thread::yield_now();
        }
    }
    let offsets = server.offsets("t", 0).unwrap();
    assert_eq!((offsets.log_start, offsets.log_end), (0, 3));
    server.stop(Duration::ZERO).unwrap();
}

// If this failed, each start would delete or compact records that a topic's own settings keep, because the
// broker's defaults would apply until these settings arrive.
#[test]
fn a_log_loses_no_records_before_its_settings_arrive() {
    const KEPT: &str = "kept";
    const TIMEOUT: Duration = Duration::from_secs(60);
    // The records are old, each in a segment of its own.
    let defaults = [
        ("log.retention.check.interval.ms", "1"),
        ("log.cleaner.backoff.ms", "1"),
        ("log.cleanup.policy", "compact,delete"),
        ("log.retention.ms", "1000"),
        ("log.segment.bytes", "100"),
    ];
    let keeps = properties(&[("retention.ms", "-1"), ("cleanup.policy", "delete")]);
    let temporary = tempfile::tempdir().unwrap();
    let server = open(temporary.path());
    for topic in [KEPT, "t"] {
        let mut spec = partition(topic, 0);
        spec.config = keeps.clone();
        server.create_partition(&spec).unwrap();
        for _ in 0..5 {
            server.append(topic, 0, &batch(&[b"value"])).unwrap();
        }
    }
    server.stop(Duration::ZERO).unwrap();
    drop(server);

    let server = open_with(temporary.path(), &defaults);
    // Broker settings that were changed at run time arrive before those of topics.
    server.update_config(&properties(&defaults)).unwrap();
    // The other topic has the defaults. Once its records are deleted, all logs were checked.
    let other = partition("t", 0);
    server
        .create_partition(&PartitionSpec { new: false, ..other })
        .unwrap();
    let begun = Instant::now();
    while server.offsets("t", 0).unwrap().log_start < 4 {
        assert!(begun.elapsed() < TIMEOUT, "the defaults are not applied");
        std::thread::yield_now();
    }
    let mut spec = partition(KEPT, 0);
    (spec.new, spec.config) = (false, keeps);
    server.create_partition(&spec).unwrap();
    let offsets = server.offsets(KEPT, 0).unwrap();
    assert_eq!((offsets.log_start, offsets.log_end), (0, 5));
    let read = server.read(KEPT, 0, 0, 1 << 20).unwrap();
    assert!(read.starts_with(&0i64.to_be_bytes()));
    server.stop(Duration::ZERO).unwrap();
}
