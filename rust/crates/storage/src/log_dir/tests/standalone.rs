//! A log by itself, and one in a broker's directory.

use super::*;
use crate::standalone::StandaloneLog;

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
