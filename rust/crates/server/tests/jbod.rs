//! A server with several log directories, when one of them fails.
#![allow(clippy::unwrap_used)] // a test may panic

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use common::gauge;
use common::{
    Client, Fetch, TestServer, batch, fetched, int, is_readable, only_part, partition, produce, produced,
    properties, request,
};
use logcore_protocol::{Struct, Value};
use logcore_server::{Failed, PartitionSpec, Server, ServerError, ServerOptions};

/// Temporary directories that stand for disks.
struct Disks {
    _temporary: tempfile::TempDir,
    paths: Vec<PathBuf>,
}

impl Disks {
    fn new(count: usize) -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let root = temporary.path().canonicalize().unwrap();
        let paths = (0..count).map(|n| root.join(format!("disk{n}"))).collect();
        Self {
            _temporary: temporary,
            paths,
        }
    }

    fn open(&self) -> Result<Server, ServerError> {
        self.open_with(&[("segment.bytes", "1000")])
    }

    fn open_with(&self, config: &[(&str, &str)]) -> Result<Server, ServerError> {
        let text = |path: &PathBuf| path.to_string_lossy().into_owned();
        Server::open(&ServerOptions {
            node_id: 1,
            cluster_id: "abcdefghijklmnopqrstug".to_owned(),
            log_dirs: self.paths.iter().map(text).collect(),
            properties: properties(config),
            progress: Arc::default(),
        })
    }
}

/// Segments are so small that each append begins a new one.
fn small(topic: &str, index: i32) -> PartitionSpec {
    PartitionSpec {
        config: properties(&[("segment.bytes", "300")]),
        ..partition(topic, index)
    }
}

fn append(server: &Server, topic: &str, index: i32) -> Result<i64, ServerError> {
    server.append(topic, index, &batch(&[&[b'v'; 200]]))
}

fn logs_in(path: &Path) -> usize {
    let entries = std::fs::read_dir(path).unwrap();
    entries
        .filter(|entry| entry.as_ref().unwrap().path().is_dir())
        .count()
}

fn lines(server: &Server) -> String {
    let lines = server.take_log_lines();
    let lines: Vec<_> = lines.into_iter().map(|line| line.message).collect();
    lines.join("\n")
}

/// The error codes of Produce, Fetch, ListOffsets and OffsetForLeaderEpoch for a partition of `t`.
fn codes(client: &mut Client, index: i32) -> [i64; 4] {
    let wanted = |key: i16, name: &str, field: &str| -> Struct {
        let message = request(key);
        let topic = message.element("topics").with(name, "t");
        let part = topic.element("partitions").with(field, index);
        let part = match key {
            2 => part.with("timestamp", -1i64),
            _ => part.with("leader_epoch", 3),
        };
        let topic = topic.with("partitions", vec![Value::Struct(part)]);
        message.with("topics", vec![Value::Struct(topic)])
    };
    let written = client.call(0, 9, produce("t", 1, &[(index, &batch(&[&[b'v'; 600]]))]));
    let read = Fetch {
        partitions: vec![index],
        ..Fetch::default()
    };
    let read = fetched(&read.call(client))[0].clone();
    let listed = wanted(2, "name", "partition_index").with("replica_id", -1);
    let ended = wanted(23, "topic", "partition");
    [
        int(&produced(&written), "error_code"),
        int(&read, "error_code"),
        int(&only_part(&client.call(2, 9, listed)), "error_code"),
        int(&only_part(&client.call(23, 4, ended)), "error_code"),
    ]
}

/// Takes a directory away from a running server. A rename is atomic, unlike a removal.
fn fail_disk(path: &Path) {
    std::fs::rename(path, path.with_extension("gone")).unwrap();
}

/// Waits for failures, and returns them as Python gets them.
fn failed(server: &Server) -> Failed {
    loop {
        assert!(is_readable(server.wake_fd()), "no failure is reported");
        assert!(server.take_requests(usize::MAX).is_empty());
        let failed = server.take_failed();
        if failed != Failed::default() {
            return failed;
        }
        server.take_log_lines();
    }
}

// If this failed, the server would go on leading partitions on a failed disk, and consumers would wait there.
// Python would not elect other leaders, or stop a broker without disks.
#[test]
fn a_failed_disk_is_reported_to_clients_and_to_python() {
    let root = tempfile::tempdir().unwrap();
    let (one, two) = (root.path().join("one"), root.path().join("two"));
    let test = TestServer::start_on(root, &["one", "two"], &[("log.segment.bytes", "1000")]);
    let server = &test.server;
    let mut client = test.client();
    let lost = i32::from(!one.join("t-0").exists());
    let kept = 1 - lost;
    assert_eq!(codes(&mut client, lost), [0; 4]);
    assert_eq!(codes(&mut client, kept), [0; 4]);
    assert_eq!(server.take_failed(), Failed::default());
    let mut waiting = test.client();
    let poll = Fetch {
        partitions: vec![lost],
        offset: 1,
        wait_ms: 600_000,
        ..Fetch::default()
    };
    waiting.send(1, 12, poll.message());
    test.wait_for_gauge("delayed_fetches", 1);

    fail_disk(&one);
    assert_eq!(codes(&mut client, lost), [56; 4]);
    let (_, answer) = waiting.receive(1, 12);
    assert_eq!(int(&fetched(&answer)[0], "error_code"), 56);
    assert_eq!(codes(&mut client, kept), [0; 4]);
    let reported = failed(server);
    assert_eq!(reported.partitions, [("t".to_owned(), lost)]);
    assert_eq!(reported.every_dir, None);
    // Opening it again, as after a lost session, fails.
    let error = server.create_partition(&partition("t", lost)).unwrap_err();
    assert!(error.to_string().contains("is offline"), "{error}");

    fail_disk(&two);
    assert_eq!(codes(&mut client, kept), [56; 4]);
    let reported = failed(server);
    assert_eq!(reported.partitions, [("t".to_owned(), kept)]);
    let every = reported.every_dir.unwrap();
    for path in [&one, &two] {
        assert!(every.contains(&*path.to_string_lossy()), "{every}");
    }
}

// If this failed, a failed disk without requests for it would not be reported.
#[test]
fn housekeeping_finds_a_failed_disk() {
    let disks = Disks::new(1);
    let interval = "log.flush.offset.checkpoint.interval.ms";
    let server = disks.open_with(&[(interval, "10")]).unwrap();
    server.create_partition(&small("t", 0)).unwrap();
    fail_disk(&disks.paths[0]);
    let reported = failed(&server);
    assert_eq!(reported.partitions, [("t".to_owned(), 0)]);
    assert!(reported.every_dir.is_some());
}

// If this failed, every new partition would go to a failed disk, which has the fewest logs. Or no metric
// would show it.
#[test]
fn a_failed_disk_has_offline_logs_and_gets_no_new_ones() {
    let disks = Disks::new(2);
    let server = disks.open().unwrap();
    for index in 0..4 {
        server.create_partition(&small("t", index)).unwrap();
        append(&server, "t", index).unwrap();
    }
    let (failed_dir, other_dir) = (&disks.paths[0], &disks.paths[1]);
    assert_eq!((logs_in(failed_dir), logs_in(other_dir)), (2, 2));
    let is_lost = |index| failed_dir.join(format!("t-{index}")).exists();
    let (lost, kept): (Vec<i32>, Vec<i32>) = (0..4).partition(|index| is_lost(*index));
    std::fs::remove_dir_all(failed_dir).unwrap();
    append(&server, "t", lost[0]).unwrap_err();
    // The other log there had no write since, and is offline with its directory.
    let error = append(&server, "t", lost[1]).unwrap_err();
    assert!(error.to_string().contains("is offline"), "{error}");
    for index in &kept {
        append(&server, "t", *index).unwrap();
    }
    for index in 0..3 {
        server.create_partition(&small("u", index)).unwrap();
        append(&server, "u", index).unwrap();
    }
    assert_eq!(logs_in(other_dir), 5);
    // A partition that is not new may be on the failed disk.
    let known = PartitionSpec {
        new: false,
        ..small("v", 0)
    };
    let error = server.create_partition(&known).unwrap_err();
    assert!(error.to_string().contains("is offline"), "{error}");
    assert_eq!(
        (gauge(&server, "offline_logs"), gauge(&server, "offline_log_dirs")),
        (2, 1)
    );
    server.delete_topic("u").unwrap();
    assert!(server.stop(Duration::ZERO).is_err());
    assert!(other_dir.join(".kafka_cleanshutdown").exists());
    assert!(!failed_dir.exists());
}

// If this failed, a broker would not start when one of its disks is not mounted. Or it would create an empty
// log for one on that disk.
#[test]
fn a_server_starts_without_a_directory_that_cannot_be_used() {
    let mut disks = Disks::new(2);
    let server = disks.open().unwrap();
    for index in 0..2 {
        server.create_partition(&small("t", index)).unwrap();
    }
    server.stop(Duration::ZERO).unwrap();
    drop(server);
    let good = disks.paths[1].clone();
    let there = i32::from(good.join("t-1").exists());
    let lost = 1 - there;
    // A directory cannot be created below a file.
    let file = disks.paths[0].join("meta.properties");
    disks.paths[0] = file.join("none");

    let server = disks.open().unwrap();
    let text = lines(&server);
    assert!(text.contains("none is offline: "), "{text}");
    assert_eq!(
        (gauge(&server, "offline_logs"), gauge(&server, "offline_log_dirs")),
        (0, 1)
    );
    let known = |index| PartitionSpec {
        new: false,
        ..small("t", index)
    };
    server.create_partition(&known(there)).unwrap();
    append(&server, "t", there).unwrap();
    let error = server.create_partition(&known(lost)).unwrap_err();
    assert!(error.to_string().contains("is offline"), "{error}");
    server.create_partition(&small("u", 0)).unwrap();
    server.stop(Duration::ZERO).unwrap();
    drop(server);

    disks.paths = vec![disks.paths[0].clone()];
    let error = disks.open().err().unwrap().to_string();
    assert!(error.contains("none"), "{error}");
}

// If this failed, the server would serve one of two copies of a partition by chance.
#[test]
fn two_copies_stop_the_start() {
    let mut disks = Disks::new(2);
    for number in 0..2 {
        let both = disks.paths.clone();
        disks.paths = vec![both[number].clone()];
        let server = disks.open().unwrap();
        server.create_partition(&small("t", 0)).unwrap();
        server.stop(Duration::ZERO).unwrap();
        disks.paths = both;
    }
    let error = disks.open().err().unwrap().to_string();
    assert!(error.contains("duplicate log directories for t-0"), "{error}");
    for path in &disks.paths {
        assert!(path.join("t-0").exists() && path.join(".kafka_cleanshutdown").exists());
    }
}

// If this failed, a bad number of recovery threads would be accepted.
#[test]
fn recovery_threads_are_a_number() {
    let disks = Disks::new(1);
    let setting = "num.recovery.threads.per.data.dir";
    disks
        .open_with(&[(setting, "3")])
        .unwrap()
        .stop(Duration::ZERO)
        .unwrap();
    let error = disks.open_with(&[(setting, "0")]).err().unwrap();
    assert!(error.to_string().contains(setting), "{error}");
}

/// The error code of a Fetch that names the topic by its id.
fn code_by_id(client: &mut Client, topic_id: [u8; 16], index: i32) -> i64 {
    let mut message = Fetch::default().message();
    message.set("topics", Vec::<Value>::new());
    let topic = message.element("topics").with("topic_id", topic_id);
    let part = topic.element("partitions").with("partition", index);
    let topic = topic.with("partitions", vec![Value::Struct(part)]);
    message.push("topics", topic);
    int(&fetched(&client.call(1, 13, message))[0], "error_code")
}

// If this failed, a client would get UNKNOWN_TOPIC_OR_PARTITION for a partition of another broker, or one
// whose log could not be opened. It would take the topic for deleted, where Kafka lets it look for the leader
// again.
#[test]
fn partitions_of_the_cluster_that_are_not_here_have_their_own_errors() {
    let test = TestServer::start(&[]);
    let mut client = test.client();
    let id = [7; 16];
    assert_eq!(codes(&mut client, 2), [3; 4]);
    assert_eq!(code_by_id(&mut client, [9; 16], 0), 100);

    // The topic has four partitions, of which 0 and 1 are here and the log of 3 could not be opened.
    test.server.know_topic("t", id, 4, &[3]);
    for (index, code) in [(0, 0), (1, 0), (2, 6), (3, 56), (4, 3), (-1, 3)] {
        assert_eq!(codes(&mut client, index), [code; 4], "partition {index}");
        assert_eq!(code_by_id(&mut client, id, index), code, "{index} by id");
    }
    let described = |index| test.server.describe_producers("t", index).unwrap();
    assert_eq!(described(2).unwrap_err().0, 6);
    assert_eq!(described(3).unwrap_err().0, 56);
    // A topic without partitions here.
    test.server.know_topic("u", [9; 16], 2, &[1]);
    for (index, code) in [(0, 6), (1, 56), (2, 3)] {
        assert_eq!(code_by_id(&mut client, [9; 16], index), code);
    }

    // They are assigned to this server, or opened later.
    for index in 2..4 {
        test.server.create_partition(&partition("t", index)).unwrap();
    }
    test.server.know_topic("t", id, 4, &[]);
    for (index, code) in [(2, 0), (3, 0), (4, 3)] {
        assert_eq!(codes(&mut client, index), [code; 4], "partition {index}");
    }
    test.server.forget_topic("u");
    assert_eq!(code_by_id(&mut client, [9; 16], 0), 100);
}
