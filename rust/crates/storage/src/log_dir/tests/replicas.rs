//! Replicated logs: high watermarks, truncations, and copies that are being moved.

use logcore_records::{BatchBuilder, Compression};

use super::*;

// Broken if it failed: after a restart a replica would serve records that are not on all replicas.
#[test]
fn replicated_logs_begin_at_their_high_watermark() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let (logs, _) = open_reporting(path, true);
    let log = &logs.create("t", 0, [7; 16], LogConfig::default()).unwrap().log;
    for _ in 0..10 {
        append(log, b"v");
    }
    assert_eq!(log.high_watermark(), 0);
    log.set_high_watermark(6);
    logs.checkpoint().unwrap();
    drop(logs);
    for _ in 0..2 {
        let (logs, _) = open_reporting(path, true);
        let log = &logs.get("t", 0).unwrap().log;
        assert_eq!((log.high_watermark(), log.log_end_offset()), (6, 10));
        logs.close().unwrap();
        assert_eq!(read(path, "replication-offset-checkpoint"), "0\n1\nt 0 6\n");
    }
    let log = &open(path).unwrap().get("t", 0).unwrap().log.clone();
    assert_eq!(log.high_watermark(), 10);
}

// Broken if it failed: after a truncation and a crash, a torn tail would count as damage and take the log
// offline, or the log's new records would be dropped because its saved start lies above them.
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
    assert_eq!(read(path, "recovery-point-offset-checkpoint"), "0\n1\nt 0 5\n");
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

// Broken if it failed: records appended after a truncation inside a batch would be lost after a crash,
// because the saved start lies above them.
#[test]
fn a_truncation_inside_a_batch_lowers_the_checkpoints_to_its_first_offset() {
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
