//! Tests of a directory of logs.

use logcore_records::{BatchBuilder, Compression};

use super::*;
use crate::standalone::StandaloneLog;

fn open(path: &Path) -> Result<LogDir> {
    LogDir::open(path, 1, Some("cluster-a"), &|_| LogConfig::default())
}

fn append(log: &Log, value: &[u8]) {
    let mut builder = BatchBuilder::new(Compression::None, None);
    builder.append(1, None, Some(value), &[]).unwrap();
    log.append_as_leader(&mut builder.build().unwrap(), 0, 1)
        .unwrap();
}

fn read(path: &Path, name: &str) -> String {
    fs::read_to_string(path.join(name)).unwrap()
}

// Broken if it failed: partitions would be lost over a restart, or Kafka not understand what we left.
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
    assert!(
        read(path, "meta.properties").contains("broker.id=1\ncluster.id=cluster-a\nversion=0\n")
    );

    let logs = open(path).unwrap();
    assert!(logs.had_clean_shutdown() && logs.failures().is_empty());
    assert!(!path.join(".kafka_cleanshutdown").exists());
    let found: Vec<_> = logs
        .partitions()
        .iter()
        .map(|p| {
            (
                p.topic.clone(),
                p.partition,
                p.topic_id,
                p.log.log_end_offset(),
            )
        })
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
    assert_eq!(
        logs.get("user-activity", 0).unwrap().log.log_end_offset(),
        1
    );
    assert_eq!(
        logs.get("user-activity", 2).unwrap().log.log_start_offset(),
        1
    );
}

// Broken if it failed: a deleted topic would come back, or take what a consumer is reading with it.
#[test]
fn deleting() {
    let dir = tempfile::tempdir().unwrap();
    let logs = open(dir.path()).unwrap();
    let created = logs.create("t", 0, [7; 16], LogConfig::default()).unwrap();
    append(&created.log, b"v");
    let slice = created.log.read(0, 1000, 1, true).unwrap();
    let bytes = slice.read_to_vec().unwrap();
    logs.delete("t", 0).unwrap();
    assert!(matches!(
        logs.delete("t", 0),
        Err(StorageError::NotFound { .. })
    ));
    assert!(logs.get("t", 0).is_none());
    assert!(matches!(
        created.log.read(0, 1, 1, true),
        Err(StorageError::Closed { .. })
    ));
    assert_eq!(slice.read_to_vec().unwrap(), bytes);
    assert!(partition_dirs(dir.path()).unwrap().is_empty());
    let created = logs.create("t", 0, [8; 16], LogConfig::default()).unwrap();
    assert_eq!(created.log.log_end_offset(), 0);
    logs.close().unwrap();
    // A deletion that a crash interrupted.
    fs::rename(
        dir.path().join("t-0"),
        dir.path()
            .join(names::with_suffix("t", 0, Kind::Deleted).unwrap()),
    )
    .unwrap();
    let logs = open(dir.path()).unwrap();
    assert!(logs.partitions().is_empty());
    assert!(
        fs::read_dir(dir.path())
            .unwrap()
            .all(|e| !e.unwrap().path().is_dir())
    );
}

// Broken if it failed: two brokers, or two clusters, would write into one directory.
#[test]
fn another_ones_directory() {
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

// Broken if it failed: one damaged log would keep all others from being served, or be marked as whole.
#[test]
fn one_bad_log() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let logs = open(path).unwrap();
    for partition in 0..2 {
        let created = logs
            .create("t", partition, [7; 16], LogConfig::default())
            .unwrap();
        for _ in 0..3 {
            append(&created.log, b"v");
        }
        created.log.flush().unwrap();
    }
    logs.checkpoint().unwrap();
    drop(logs);
    let file = path.join("t-0/00000000000000000000.log");
    let mut bytes = fs::read(&file).unwrap();
    bytes[65] ^= 1;
    fs::write(&file, bytes).unwrap();
    let logs = open(path).unwrap();
    assert_eq!(logs.failures().len(), 1);
    assert!(logs.failures()[0].0.ends_with("t-0"));
    assert!(logs.get("t", 0).is_none());
    append(&logs.get("t", 1).unwrap().log, b"v");
    logs.close().unwrap();
    assert!(!path.join(".kafka_cleanshutdown").exists());
    // What is known of the damaged one is kept.
    assert_eq!(
        read(path, "recovery-point-offset-checkpoint"),
        "0\n2\nt 0 3\nt 1 4\n"
    );
}

// Broken if it failed: a script and a broker would write to the same files.
#[test]
fn a_standalone_log_in_a_brokers_directory() {
    let dir = tempfile::tempdir().unwrap();
    let logs = open(dir.path()).unwrap();
    append(
        &logs
            .create("t", 0, [7; 16], LogConfig::default())
            .unwrap()
            .log,
        b"v",
    );
    let partition = dir.path().join("t-0");
    let config = LogConfig::default();
    assert!(matches!(
        StandaloneLog::open(&partition, false, config.clone()),
        Err(StorageError::Locked { .. })
    ));
    let reader = StandaloneLog::open_read_only(&partition).unwrap();
    assert_eq!(reader.log_end_offset(), 1);
    logs.close().unwrap();
    let log = StandaloneLog::open(&partition, false, config).unwrap();
    assert!(matches!(open(dir.path()), Err(StorageError::Locked { .. })));
    assert!(!dir.path().join(".kafka_cleanshutdown").exists());
    append(&log, b"w");
    log.close().unwrap();
    let logs = open(dir.path()).unwrap();
    assert!(logs.had_clean_shutdown());
    assert_eq!(logs.get("t", 0).unwrap().log.log_end_offset(), 2);
}

#[test]
fn a_standalone_log_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events");
    let config = LogConfig::default();
    assert!(matches!(
        StandaloneLog::open(&path, false, config.clone()),
        Err(StorageError::NotFound { .. })
    ));
    assert!(!path.exists());
    let log = StandaloneLog::open(&path, true, config.clone()).unwrap();
    append(&log, b"v");
    assert!(matches!(
        StandaloneLog::open(&path, true, config.clone()),
        Err(StorageError::Locked { .. })
    ));
    // As after SIGKILL, then cleanly.
    drop(log);
    let log = StandaloneLog::open(&path, true, config.clone()).unwrap();
    assert_eq!(log.recovery().segments_checked, 1);
    log.close().unwrap();
    let log = StandaloneLog::open(&path, false, config).unwrap();
    assert_eq!(log.recovery().segments_checked, 0);
    assert_eq!(log.log_end_offset(), 1);
}

// Broken if it failed: a topic's name could make files outside of the directory.
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
    let name = names::with_suffix(&long, 11, Kind::Deleted).unwrap();
    assert!(name.len() == names::NAME_MAX && name.contains("t-11.") && name.ends_with("-delete"));
}

// Broken if it failed: after a crash that follows a truncation, a torn tail would be taken for damage and the log stay
// offline, or the log's new records be thrown away because it once began behind them.
#[test]
fn a_truncation_lowers_the_checkpoints_first() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let logs = open(path).unwrap();
    let log = logs
        .create("t", 0, [7; 16], LogConfig::default())
        .unwrap()
        .log
        .clone();
    for _ in 0..20 {
        append(&log, b"v");
    }
    log.flush().unwrap();
    log.advance_log_start_offset(15).unwrap();
    logs.checkpoint().unwrap();
    assert_eq!(logs.truncate_to("t", 0, 10).unwrap(), 10);
    for file in [
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
        "log-start-offset-checkpoint",
    ] {
        assert_eq!(read(path, file), "0\n1\nt 0 10\n", "{file}");
    }
    for _ in 0..3 {
        append(&log, b"w");
    }
    drop((log, logs));
    let segment = path.join("t-0/00000000000000000000.log");
    let mut bytes = fs::read(&segment).unwrap();
    bytes.pop();
    fs::write(&segment, bytes).unwrap();
    let logs = open(path).unwrap();
    assert!(logs.failures().is_empty(), "{:?}", logs.failures());
    let log = logs.get("t", 0).unwrap().log.clone();
    assert_eq!((log.log_start_offset(), log.log_end_offset()), (10, 12));

    logs.truncate_fully_and_start_at("t", 0, 5, None).unwrap();
    assert_eq!(
        read(path, "recovery-point-offset-checkpoint"),
        "0\n1\nt 0 5\n"
    );
    append(&log, b"x");
    drop((log, logs));
    let logs = open(path).unwrap();
    let log = logs.get("t", 0).unwrap().log.clone();
    assert_eq!((log.log_start_offset(), log.log_end_offset()), (5, 6));
    assert!(matches!(
        logs.truncate_to("t", 1, 0),
        Err(StorageError::NotFound { .. })
    ));
}

// Broken if it failed: what is appended after a cut inside of a batch would be gone after a crash, because the log is said to
// begin behind it.
#[test]
fn a_truncation_inside_of_a_batch_lowers_the_checkpoints_to_its_front() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let logs = open(path).unwrap();
    let created = logs.create("t", 0, [7; 16], LogConfig::default()).unwrap();
    let mut builder = BatchBuilder::new(Compression::None, None);
    for _ in 0..10 {
        builder.append(1, None, Some(b"v"), &[]).unwrap();
    }
    let mut batch = builder.build().unwrap();
    created.log.append_as_leader(&mut batch, 0, 1).unwrap();
    created.log.advance_log_start_offset(5).unwrap();
    logs.checkpoint().unwrap();
    assert_eq!(logs.truncate_to("t", 0, 7).unwrap(), 0);
    assert_eq!(read(path, "log-start-offset-checkpoint"), "0\n1\nt 0 0\n");
    append(&created.log, b"w");
    drop((created, logs));
    let logs = open(path).unwrap();
    let log = &logs.get("t", 0).unwrap().log;
    assert_eq!((log.log_start_offset(), log.log_end_offset()), (0, 1));
}

// Broken if it failed: a program that cuts a log in a broker's directory would leave the broker one it cannot recover.
#[test]
fn a_standalone_truncation_lowers_the_brokers_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let logs = open(path).unwrap();
    let log = &logs
        .create("t", 0, [7; 16], LogConfig::default())
        .unwrap()
        .log;
    for _ in 0..20 {
        append(log, b"v");
    }
    logs.close().unwrap();
    let log = StandaloneLog::open(&path.join("t-0"), false, LogConfig::default()).unwrap();
    assert_eq!(log.truncate_to(10).unwrap(), 10);
    assert_eq!(
        read(path, "recovery-point-offset-checkpoint"),
        "0\n1\nt 0 10\n"
    );
    drop(log);
    let log = StandaloneLog::open(&path.join("t-0"), false, LogConfig::default()).unwrap();
    assert_eq!(log.log_end_offset(), 10);
    log.truncate_fully_and_start_at(0).unwrap();
    log.close().unwrap();
    assert!(matches!(
        log.truncate_to(0),
        Err(StorageError::Closed { .. })
    ));
    let logs = open(path).unwrap();
    assert_eq!(logs.get("t", 0).unwrap().log.log_end_offset(), 0);
}

/// A directory's name, whether it was loaded, how many of how many, bytes checked.
type Told = (String, bool, usize, usize, u64);

fn open_noting(path: &Path, replicated: bool) -> (LogDir, Vec<Told>) {
    let seen = Mutex::new(Vec::new());
    let opening = Opening {
        config_for: &|_| LogConfig::default(),
        replicated,
        on_log: &|progress| {
            seen.lock().push((
                progress
                    .dir
                    .file_name()
                    .unwrap()
                    .to_string_lossy()
                    .into_owned(),
                progress.outcome.is_ok(),
                progress.logs_done,
                progress.logs_total,
                progress.bytes_checked,
            ));
        },
    };
    let logs = LogDir::open_with(path, 1, Some("cluster-a"), &opening).unwrap();
    let mut seen = seen.into_inner();
    seen.sort_by_key(|(_, _, done, _, _)| *done);
    (logs, seen)
}

// Broken if it failed: one damaged log would keep a broker from serving the others, be served itself, or be replaced by an
// empty one; and nobody could tell how far a long recovery is.
#[test]
fn a_damaged_log_stays_offline_and_the_others_open() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let logs = open(path).unwrap();
    for partition in 0..4 {
        let created = logs
            .create("t", partition, [7; 16], LogConfig::default())
            .unwrap();
        for _ in 0..10 {
            append(&created.log, b"value");
        }
        created.log.flush().unwrap();
    }
    let size = logs.get("t", 0).unwrap().log.size_bytes();
    logs.checkpoint().unwrap();
    drop(logs);
    let segment = path.join("t-2/00000000000000000000.log");
    let mut bytes = fs::read(&segment).unwrap();
    bytes[100] ^= 1;
    fs::write(&segment, &bytes).unwrap();

    let (logs, seen) = open_noting(path, false);
    assert_eq!(logs.partitions().len(), 3);
    let [(failed, error)] = logs.failures() else {
        panic!("{:?}", logs.failures())
    };
    assert!(failed.ends_with("t-2"));
    let text = error.to_string();
    assert!(
        text.contains("t-2/00000000000000000000.log is corrupt at byte"),
        "{text}"
    );
    assert_eq!(fs::read(&segment).unwrap(), bytes, "left for a repair");
    let numbers: Vec<_> = seen
        .iter()
        .map(|(_, _, done, of, _)| (*done, *of))
        .collect();
    assert_eq!(numbers, [(1, 4), (2, 4), (3, 4), (4, 4)]);
    let offline: Vec<_> = seen
        .iter()
        .filter(|(_, ok, ..)| !ok)
        .map(|(name, ..)| name)
        .collect();
    assert_eq!(offline, ["t-2"]);
    assert_eq!(logs.bytes_checked(), 3 * size);
    assert_eq!(seen.iter().map(|(.., bytes)| *bytes).max(), Some(3 * size));
    append(&logs.get("t", 3).unwrap().log, b"served");
    assert!(matches!(
        logs.create("t", 2, [7; 16], LogConfig::default()),
        Err(StorageError::AlreadyExists { .. })
    ));
    // What is known of it stays in the checkpoints, and the shutdown is not called clean.
    logs.close().unwrap();
    assert!(read(path, "recovery-point-offset-checkpoint").contains("t 2 10\n"));
    assert!(!path.join(".kafka_cleanshutdown").exists());
    bytes[100] ^= 1;
    fs::write(&segment, &bytes).unwrap();
    let (logs, _) = open_noting(path, false);
    assert_eq!((logs.failures().len(), logs.partitions().len()), (0, 4));
}

// Broken if it failed: a checkpoint that a crash or a bad disk spoilt would keep a whole directory from opening.
#[test]
fn a_damaged_checkpoint_is_begun_anew() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let logs = open(path).unwrap();
    let created = logs.create("t", 0, [7; 16], LogConfig::default()).unwrap();
    append(&created.log, b"v");
    created.log.flush().unwrap();
    drop((created, logs));
    fs::write(
        path.join("recovery-point-offset-checkpoint"),
        "0\n5\nrubbish",
    )
    .unwrap();
    let logs = open(path).unwrap();
    assert_eq!(logs.get("t", 0).unwrap().log.log_end_offset(), 1);
    let [warning] = logs.warnings() else {
        panic!("{:?}", logs.warnings())
    };
    assert!(
        warning.contains("recovery-point-offset-checkpoint is corrupt"),
        "{warning}"
    );
    logs.checkpoint().unwrap();
    drop(logs);
    assert!(open(path).unwrap().warnings().is_empty());
}

// Broken if it failed: after a restart a replica would show records that are not on all replicas.
#[test]
fn replicated_logs_begin_at_their_high_watermark() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let (logs, _) = open_noting(path, true);
    let log = &logs
        .create("t", 0, [7; 16], LogConfig::default())
        .unwrap()
        .log;
    for _ in 0..10 {
        append(log, b"v");
    }
    assert_eq!(log.high_watermark(), 0);
    log.set_high_watermark(6);
    logs.checkpoint().unwrap();
    drop(logs);
    for _ in 0..2 {
        let (logs, _) = open_noting(path, true);
        let log = &logs.get("t", 0).unwrap().log;
        assert_eq!((log.high_watermark(), log.log_end_offset()), (6, 10));
        logs.close().unwrap();
        assert_eq!(read(path, "replication-offset-checkpoint"), "0\n1\nt 0 6\n");
    }
    let log = &open(path).unwrap().get("t", 0).unwrap().log.clone();
    assert_eq!(log.high_watermark(), 10);
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

// Broken if it failed: a partition that moves between directories would be lost, served before it has caught up, or twice.
#[test]
fn future_logs() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let logs = open(path).unwrap();
    let future = logs
        .create_future("t", 3, [7; 16], LogConfig::default())
        .unwrap();
    let name = future
        .log
        .dir()
        .file_name()
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned();
    assert!(
        name.starts_with("t-3.") && name.ends_with("-future"),
        "{name}"
    );
    for _ in 0..3 {
        append(&future.log, b"v");
    }
    assert!(logs.get("t", 3).is_none() && logs.partitions().is_empty());
    assert!(matches!(
        logs.create_future("t", 3, [7; 16], LogConfig::default()),
        Err(StorageError::AlreadyExists { .. })
    ));
    logs.maintain(0).unwrap();
    assert_eq!(read(path, "replication-offset-checkpoint"), "0\n1\nt 3 3\n");
    assert_eq!(logs.truncate_to("t", 3, 2).unwrap(), 2);
    append(&future.log, b"v");
    drop((future, logs));

    // After a crash it is still a future log.
    let logs = open(path).unwrap();
    let future = logs.future("t", 3).unwrap();
    assert_eq!((logs.futures().len(), logs.partitions().len()), (1, 0));
    assert_eq!(
        (future.log.log_end_offset(), future.topic_id),
        (3, Some([7; 16]))
    );
    let current = logs.promote_future("t", 3, LogConfig::default()).unwrap();
    append(&current.log, b"w");
    assert!(matches!(
        future.log.append_as_follower(&[], 0),
        Err(StorageError::Closed { .. })
    ));
    assert_eq!(subdirectories(path), ["t-3"]);
    assert!(logs.futures().is_empty());
    assert!(matches!(
        logs.promote_future("t", 3, LogConfig::default()),
        Err(StorageError::AlreadyExists { .. })
    ));
    assert!(
        logs.create_future("t", 3, [7; 16], LogConfig::default())
            .is_err()
    );
    logs.create_future("t", 4, [7; 16], LogConfig::default())
        .unwrap();
    logs.delete_future("t", 4).unwrap();
    assert!(matches!(
        logs.delete_future("t", 4),
        Err(StorageError::NotFound { .. })
    ));
    logs.close().unwrap();
    let logs = open(path).unwrap();
    assert!(logs.had_clean_shutdown());
    assert_eq!(logs.get("t", 3).unwrap().log.log_end_offset(), 4);
}

// Broken if it failed: what Kafka keeps for the operator would be served or removed, or somebody's own directory.
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
    assert_eq!(subdirectories(path), ["notes-delete", "t-0", &*names[0]]);
}

// Broken if it failed: records that were deleted would be back after the program was started anew, or after a crash.
#[test]
fn a_standalone_log_remembers_its_start() {
    let dir = tempfile::tempdir().unwrap();
    let broker = dir.path().join("broker");
    let logs = open(&broker).unwrap();
    logs.create("t", 0, [7; 16], LogConfig::default()).unwrap();
    logs.close().unwrap();
    drop(logs);
    for path in [dir.path().join("itself"), broker.join("t-0")] {
        let start = |clean| {
            let log = StandaloneLog::open(&path, true, LogConfig::default()).unwrap();
            let beside = Log::open_read_only(&path).unwrap();
            assert_eq!(beside.log_start_offset(), log.log_start_offset());
            if clean {
                log.close().unwrap();
            }
            log.log_start_offset()
        };
        let log = StandaloneLog::open(&path, true, LogConfig::default()).unwrap();
        for _ in 0..10 {
            append(&log, b"v");
        }
        assert_eq!(log.advance_log_start_offset(6).unwrap(), 6);
        assert_eq!(log.advance_log_start_offset(4).unwrap(), 6);
        assert!(log.advance_log_start_offset(11).is_err());
        drop(log);
        assert_eq!([start(false), start(true), start(true)], [6, 6, 6]);
        let log = StandaloneLog::open(&path, true, LogConfig::default()).unwrap();
        log.truncate_to(3).unwrap();
        append(&log, b"new");
        drop(log);
        assert_eq!([start(false), start(true)], [3, 3]);
    }
    assert!(read(&broker, "log-start-offset-checkpoint").contains("t 0 3\n"));
}
