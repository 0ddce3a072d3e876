//! Standalone logs, alone and in a broker's directory.

use super::*;
use crate::standalone::StandaloneLog;

// Broken if it failed: a script and a broker would write to the same files.
#[test]
fn a_standalone_log_in_a_brokers_directory_locks_it() {
    let dir = tempfile::tempdir().unwrap();
    let logs = open(dir.path()).unwrap();
    append(
        &logs.create("t", 0, [7; 16], LogConfig::default()).unwrap().log,
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

// Broken if it failed: a program that truncates a log in a broker's directory would leave checkpoints with
// which the broker cannot recover it.
#[test]
fn a_standalone_truncation_lowers_the_brokers_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let logs = open(path).unwrap();
    let log = &logs.create("t", 0, [7; 16], LogConfig::default()).unwrap().log;
    for _ in 0..20 {
        append(log, b"v");
    }
    logs.close().unwrap();
    let log = StandaloneLog::open(&path.join("t-0"), false, LogConfig::default()).unwrap();
    assert_eq!(log.truncate_to(10).unwrap(), 10);
    assert_eq!(read(path, "recovery-point-offset-checkpoint"), "0\n1\nt 0 10\n");
    drop(log);
    let log = StandaloneLog::open(&path.join("t-0"), false, LogConfig::default()).unwrap();
    assert_eq!(log.log_end_offset(), 10);
    log.truncate_fully_and_start_at(0).unwrap();
    log.close().unwrap();
    assert!(matches!(log.truncate_to(0), Err(StorageError::Closed { .. })));
    let logs = open(path).unwrap();
    assert_eq!(logs.get("t", 0).unwrap().log.log_end_offset(), 0);
}

// Broken if it failed: deleted records would reappear after a restart or a crash of the program.
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

// Broken if it failed: two writers would acknowledge records at the same offsets.
#[test]
fn a_directory_cannot_open_a_log_that_is_open_standalone() {
    let dir = tempfile::tempdir().unwrap();
    let config = LogConfig::default();
    let log = StandaloneLog::open(&dir.path().join("t-0"), true, config.clone()).unwrap();
    append(&log, b"v");
    assert!(matches!(open(dir.path()), Err(StorageError::Locked { .. })));
    assert!(!dir.path().join("meta.properties").exists());
    log.close().unwrap();
    open(dir.path()).unwrap().close().unwrap();

    // The same log by its real path, and through a link in a directory of logs.
    let elsewhere = tempfile::tempdir().unwrap();
    let real = elsewhere.path().join("real");
    std::fs::rename(dir.path().join("t-0"), &real).unwrap();
    std::os::unix::fs::symlink(&real, dir.path().join("t-0")).unwrap();
    let logs = open(dir.path()).unwrap();
    assert_eq!(logs.get("t", 0).unwrap().log.log_end_offset(), 1);
    assert!(matches!(
        StandaloneLog::open(&real, false, config.clone()),
        Err(StorageError::Locked { .. })
    ));
    logs.close().unwrap();
    let log = StandaloneLog::open(&real, false, config).unwrap();
    assert!(matches!(open(dir.path()), Err(StorageError::Locked { .. })));
    log.close().unwrap();
    open(dir.path()).unwrap();
}

// Broken if it failed: records deleted from a standalone log would reappear when a broker's directory takes
// it.
#[test]
fn a_standalone_log_brings_its_start_offset_into_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let config = LogConfig::default();
    let elsewhere = tempfile::tempdir().unwrap();
    for (name, start) in [("t-0", 2), ("t-1", 0)] {
        let log = StandaloneLog::open(&elsewhere.path().join(name), true, config.clone()).unwrap();
        for _ in 0..3 {
            append(&log, b"v");
        }
        log.advance_log_start_offset(start).unwrap();
        log.close().unwrap();
    }
    open(dir.path()).unwrap().close().unwrap();
    std::fs::rename(elsewhere.path().join("t-0"), dir.path().join("t-0")).unwrap();
    let start = |logs: &LogDir| logs.get("t", 0).unwrap().log.log_start_offset();
    let logs = open(dir.path()).unwrap();
    assert_eq!(start(&logs), 2);
    // From now on the directory's checkpoint counts: a later truncation is not undone by the log's own.
    logs.truncate_fully_and_start_at("t", 0, 1, None).unwrap();
    append(&logs.get("t", 0).unwrap().log, b"w");
    logs.close().unwrap();
    let logs = open(dir.path()).unwrap();
    assert_eq!(
        (start(&logs), logs.get("t", 0).unwrap().log.log_end_offset()),
        (1, 2)
    );
    logs.close().unwrap();

    // The same when the log is opened there standalone.
    let log = StandaloneLog::open(&elsewhere.path().join("t-1"), false, config.clone()).unwrap();
    log.advance_log_start_offset(1).unwrap();
    log.close().unwrap();
    std::fs::rename(elsewhere.path().join("t-1"), dir.path().join("t-1")).unwrap();
    let log = StandaloneLog::open(&dir.path().join("t-1"), false, config).unwrap();
    assert_eq!(log.log_start_offset(), 1);
    log.close().unwrap();
    let logs = open(dir.path()).unwrap();
    assert_eq!(logs.get("t", 1).unwrap().log.log_start_offset(), 1);
}

// Broken if it failed: a truncation below the deleted records would leave a start above the log's end, and
// the next opening would delete all records.
#[test]
fn truncations_and_deletions_run_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t");
    for _ in 0..40 {
        let log = StandaloneLog::open(&path, true, LogConfig::default()).unwrap();
        log.truncate_fully_and_start_at(0).unwrap();
        for _ in 0..30 {
            append(&log, b"v");
        }
        let barrier = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                barrier.wait();
                // Either may come first; the other finds the new state.
                let _ = log.advance_log_start_offset(25);
            });
            barrier.wait();
            let _ = log.truncate_fully_and_start_at(0);
        });
        let end = log.log_end_offset();
        append(&log, b"w");
        log.close().unwrap();
        let log = StandaloneLog::open(&path, true, LogConfig::default()).unwrap();
        assert_eq!(log.log_end_offset(), end + 1);
        assert!(log.log_start_offset() <= end);
        log.close().unwrap();
    }
}

// Broken if it failed: offsets would become negative, and the log could not be opened any more.
#[test]
fn the_largest_offset_is_the_last_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t");
    let log = StandaloneLog::open(&path, true, LogConfig::default()).unwrap();
    log.truncate_fully_and_start_at(i64::MAX - 1).unwrap();
    append(&log, b"v");
    assert_eq!(log.log_end_offset(), i64::MAX);
    let refused = log.append(&mut batch_of(&[(1, b"w")], None));
    assert!(matches!(refused, Err(StorageError::InvalidRecord { .. })));
    log.close().unwrap();
    let log = StandaloneLog::open(&path, true, LogConfig::default()).unwrap();
    assert_eq!(log.log_end_offset(), i64::MAX);
}
