//! Tests of a directory of logs.

mod damage;
mod faults;
mod flushed;
mod kinds;
mod moves;
mod replicas;
mod standalone;

use std::fs;

use super::*;
use crate::files::partition_dir;
use crate::testing::batch_of;

fn open(path: &Path) -> Result<LogDir> {
    LogDir::open(path, 1, Some("cluster-a"), &|_| LogConfig::default())
}

fn append(log: &Log, value: &[u8]) {
    log.append_as_leader(&mut batch_of(&[(1, value)], None), 0, 1)
        .unwrap();
}

fn read(path: &Path, name: &str) -> String {
    fs::read_to_string(path.join(name)).unwrap()
}

/// A directory's name, whether it was loaded, how many of how many, bytes checked.
type Loaded = (String, bool, usize, usize, u64);

fn open_reporting(path: &Path, replicated: bool) -> (LogDir, Vec<Loaded>) {
    let seen = Mutex::new(Vec::new());
    let opening = Opening {
        replicated,
        on_log: &|progress| {
            seen.lock().push((
                progress.dir.file_name().unwrap().to_string_lossy().into_owned(),
                progress.outcome.is_ok(),
                progress.logs_done,
                progress.logs_total,
                progress.bytes_checked,
            ));
        },
        ..Opening::new(&|_| LogConfig::default())
    };
    let logs = LogDir::open_with(path, 1, Some("cluster-a"), &opening).unwrap();
    let mut seen = seen.into_inner();
    seen.sort_by_key(|(_, _, done, _, _)| *done);
    (logs, seen)
}

fn subdirectories(path: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_type().unwrap().is_dir())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

// Broken if it failed: partitions would be lost over a restart, or Kafka could not read the directory.
#[test]
fn a_directory_over_its_life() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let logs = open(path).unwrap();
    assert_eq!(
        (logs.had_clean_shutdown(), logs.cluster_id()),
        (false, "cluster-a")
    );
    for partition in 0..3 {
        let created = logs
            .create("user-activity", partition, [7; 16], LogConfig::default())
            .unwrap();
        for _ in 0..partition {
            append(&created.log, b"v");
        }
    }
    assert!(matches!(
        logs.create("user-activity", 0, [7; 16], LogConfig::default()),
        Err(StorageError::AlreadyExists { .. })
    ));
    assert!(matches!(open(path), Err(StorageError::Locked { .. })));
    logs.checkpoint().unwrap();
    assert_eq!(
        read(path, "recovery-point-offset-checkpoint"),
        "0\n3\nuser-activity 0 0\nuser-activity 1 0\nuser-activity 2 0\n"
    );
    assert_eq!(
        read(path, "replication-offset-checkpoint"),
        "0\n3\nuser-activity 0 0\nuser-activity 1 1\nuser-activity 2 2\n"
    );
    assert_eq!(read(path, "log-start-offset-checkpoint"), "0\n0\n");
    assert!(!path.join(".kafka_cleanshutdown").exists());
    logs.close().unwrap();
    logs.close().unwrap();
    assert_eq!(
        read(path, ".kafka_cleanshutdown"),
        r#"{"version":0,"brokerEpoch":-1}"#
    );
    assert_eq!(
        read(path, "recovery-point-offset-checkpoint"),
        "0\n3\nuser-activity 0 0\nuser-activity 1 1\nuser-activity 2 2\n"
    );
    assert!(read(path, "meta.properties").contains("broker.id=1\ncluster.id=cluster-a\nversion=0\n"));

    let logs = open(path).unwrap();
    assert!(logs.had_clean_shutdown() && logs.failures().is_empty());
    assert!(!path.join(".kafka_cleanshutdown").exists());
    let found: Vec<_> = logs
        .partitions()
        .iter()
        .map(|p| (p.topic.clone(), p.partition, p.topic_id, p.log.log_end_offset()))
        .collect();
    let expected: Vec<_> = (0..3)
        .map(|n| ("user-activity".to_owned(), n, Some([7; 16]), i64::from(n)))
        .collect();
    assert_eq!(found, expected);
    append(&logs.get("user-activity", 0).unwrap().log, b"w");
    logs.get("user-activity", 2)
        .unwrap()
        .log
        .advance_log_start_offset(1)
        .unwrap();
    logs.maintain(1).unwrap();
    assert_eq!(
        read(path, "log-start-offset-checkpoint"),
        "0\n1\nuser-activity 2 1\n"
    );
    // As after SIGKILL.
    drop(logs);
    let logs = open(path).unwrap();
    assert!(!logs.had_clean_shutdown());
    assert_eq!(logs.get("user-activity", 0).unwrap().log.log_end_offset(), 1);
    assert_eq!(logs.get("user-activity", 2).unwrap().log.log_start_offset(), 1);
}

// Broken if it failed: a deleted topic would come back, or a consumer would lose what it is reading.
#[test]
fn deleting() {
    let dir = tempfile::tempdir().unwrap();
    let logs = open(dir.path()).unwrap();
    let created = logs.create("t", 0, [7; 16], LogConfig::default()).unwrap();
    append(&created.log, b"v");
    let slice = created.log.read(0, 1000, 1, true).unwrap();
    let bytes = slice.read_to_vec().unwrap();
    logs.delete("t", 0).unwrap();
    assert!(matches!(logs.delete("t", 0), Err(StorageError::NotFound { .. })));
    assert!(logs.get("t", 0).is_none());
    assert!(matches!(
        created.log.read(0, 1, 1, true),
        Err(StorageError::Closed { .. })
    ));
    assert_eq!(slice.read_to_vec().unwrap(), bytes);
    let deleted = || {
        let mut found = partition_dirs(dir.path()).unwrap();
        found.retain(|one| one.kind == Kind::Deleted);
        found.len()
    };
    assert_eq!((partition_dirs(dir.path()).unwrap().len(), deleted()), (1, 1));
    let created = logs.create("t", 0, [8; 16], LogConfig::default()).unwrap();
    assert_eq!(created.log.log_end_offset(), 0);
    // The files are removed after `file.delete.delay.ms`.
    let now = crate::clock::system_now_ms();
    logs.maintain(now).unwrap();
    assert_eq!(deleted(), 1);
    let delay = LogConfig::default().file_delete_delay_ms;
    logs.maintain(now + delay + 60_000).unwrap();
    assert_eq!((partition_dirs(dir.path()).unwrap().len(), deleted()), (1, 0));

    // After a crash before that, the next opening waits as long.
    logs.delete("t", 0).unwrap();
    drop(logs);
    let logs = open(dir.path()).unwrap();
    assert_eq!((logs.partitions().len(), deleted()), (0, 1));
    logs.maintain(now).unwrap();
    assert_eq!(deleted(), 1);
    logs.maintain(now + delay + 60_000).unwrap();
    assert_eq!(deleted(), 0);

    // Closing does not wait.
    logs.create("t", 0, [7; 16], LogConfig::default()).unwrap();
    logs.delete("t", 0).unwrap();
    logs.close().unwrap();
    assert!(partition_dirs(dir.path()).unwrap().is_empty());
}

// Broken if it failed: the deletion of a large topic would take a disk's time for each partition, or a new
// log would lose records after a crash, because it was taken for the deleted one of its name.
#[test]
fn a_deletion_leaves_the_checkpoints_to_the_next_log_of_any_name() {
    let dir = tempfile::tempdir().unwrap();
    let logs = open(dir.path()).unwrap();
    for partition in 0..2 {
        let log = &logs
            .create("t", partition, [7; 16], LogConfig::default())
            .unwrap()
            .log;
        for _ in 0..3 {
            append(log, b"v");
        }
        log.advance_log_start_offset(2).unwrap();
        log.flush().unwrap();
    }
    logs.checkpoint().unwrap();
    let starts = || read(dir.path(), "log-start-offset-checkpoint");
    let before = starts();
    logs.delete("t", 0).unwrap();
    assert_eq!(starts(), before);
    let created = logs.create("t", 0, [8; 16], LogConfig::default()).unwrap();
    assert_eq!(starts(), "0\n1\nt 1 2\n");
    append(&created.log, b"w");
    drop((created, logs));
    let logs = open(dir.path()).unwrap();
    let log = &logs.get("t", 0).unwrap().log;
    assert_eq!((log.log_start_offset(), log.log_end_offset()), (0, 1));
    // A log that moves here begins without the entries too.
    logs.delete("t", 1).unwrap();
    logs.create_future("t", 1, None, LogConfig::default()).unwrap();
    assert!(!read(dir.path(), "recovery-point-offset-checkpoint").contains("t 1 3"));
}

// Broken if it failed: two brokers, or two clusters, would write into one directory.
#[test]
fn a_foreign_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()).unwrap());
    let config = |_: &str| LogConfig::default();
    for (broker, cluster) in [(2, Some("cluster-a")), (1, Some("cluster-b"))] {
        let error = LogDir::open(dir.path(), broker, cluster, &config).unwrap_err();
        assert!(matches!(error, StorageError::Mismatch { .. }), "{error}");
    }
    let logs = LogDir::open(dir.path(), 1, None, &config).unwrap();
    assert_eq!(logs.cluster_id(), "cluster-a");
    let other = tempfile::tempdir().unwrap();
    let logs = LogDir::open(other.path(), 1, None, &config).unwrap();
    assert_eq!(logs.cluster_id().len(), 22);
}

// Broken if it failed: a topic's name could create files outside of the directory.
#[test]
fn bad_topics() {
    let dir = tempfile::tempdir().unwrap();
    let logs = open(&dir.path().join("logs")).unwrap();
    for topic in ["", ".", "..", "../x", "a/b", "a b", "\0", &"t".repeat(250)] {
        let created = logs.create(topic, 0, [7; 16], LogConfig::default());
        assert!(
            matches!(created, Err(StorageError::InvalidConfig { .. })),
            "{topic:?}"
        );
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn names() {
    assert_eq!(
        parse_partition_dir("user-activity-12"),
        Some(("user-activity".into(), 12))
    );
    for name in [
        "t",
        "t-",
        "-1",
        "t-x",
        "t-0.0123-delete",
        "t-99999999999",
        "t-+1",
        "t-0.x-future",
    ] {
        assert_eq!(parse_partition_dir(name), None, "{name}");
    }
    let long = "t".repeat(249);
    let name = partition_dir::with_suffix(&long, 11, Kind::Deleted).unwrap();
    assert!(name.len() == partition_dir::NAME_MAX && name.contains("t-11.") && name.ends_with("-delete"));
}

// Broken if it failed: a stray that Kafka keeps for the operator, or a foreign directory, would be served or
// removed.
#[test]
fn other_directories() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let logs = open(path).unwrap();
    logs.create("t", 0, [7; 16], LogConfig::default()).unwrap();
    logs.close().unwrap();
    drop(logs);
    let id = "0123456789abcdef0123456789abcdef";
    let names = [
        format!("t-1.{id}-stray"),
        format!("t-2.{id}-delete"),
        "notes-delete".to_owned(),
    ];
    for name in &names {
        fs::create_dir(path.join(name)).unwrap();
        fs::write(path.join(name).join("00000000000000000000.log"), b"").unwrap();
    }
    let logs = open(path).unwrap();
    assert_eq!((logs.partitions().len(), logs.failures().len()), (1, 0));
    assert_eq!(logs.strays(), [logs.path().join(&names[0])]);
    logs.close().unwrap();
    assert_eq!(subdirectories(path), ["notes-delete", "t-0", &*names[0]]);
}
