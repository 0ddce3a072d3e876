//! A partition's directory written by Apache Kafka 3.9.1 (`fixtures/kafka-3.9.1`).
#![allow(clippy::unwrap_used)] // a test may panic

use std::fs;
use std::path::{Path, PathBuf};

use logcore_records::batches;
use logcore_storage::{Log, LogConfig};

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kafka-3.9.1/golden-0")
}

fn copy() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture()).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    dir
}

/// Contents of all files whose name ends in one of `suffixes`.
fn files(dir: &Path, suffixes: &[&str]) -> Vec<(String, Vec<u8>)> {
    let mut found: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), entry.path()))
        .filter(|(name, _)| suffixes.iter().any(|suffix| name.ends_with(suffix)))
        .map(|(name, path)| (name, fs::read(path).unwrap()))
        .collect();
    found.sort();
    found
}

/// The settings of the broker that wrote it; its producers are years old and never expire here.
fn config() -> LogConfig {
    LogConfig {
        segment_bytes: 8000,
        index_interval_bytes: 500,
        producer_id_expiration_ms: i64::MAX,
        ..LogConfig::default()
    }
}

/// Key, value and timestamp of every record, by offset; control records are left out.
fn records(log: &Log) -> Vec<(i64, Vec<u8>, Vec<u8>, i64)> {
    let mut found = Vec::new();
    let mut offset = log.log_start_offset();
    while offset < log.log_end_offset() {
        let slice = log.read(offset, 1 << 20, i64::MAX, true).unwrap();
        for batch in batches(&slice.read_whole_batches().unwrap()) {
            let batch = batch.unwrap();
            batch.verify_crc().unwrap();
            offset = batch.header.next_offset();
            if batch.header.is_control() {
                continue;
            }
            for record in batch.records(1 << 20).unwrap().iter() {
                let record = record.unwrap();
                found.push((
                    record.offset,
                    record.key.unwrap_or_default().to_vec(),
                    record.value.unwrap_or_default().to_vec(),
                    record.timestamp,
                ));
            }
        }
    }
    found
}

fn check_records(log: &Log) {
    assert_eq!((log.log_start_offset(), log.log_end_offset()), (0, 164));
    let found = records(log);
    assert_eq!(found.len(), 162);
    for (number, (offset, key, value, _)) in found[..160].iter().enumerate() {
        assert_eq!(*offset, number as i64);
        assert_eq!(key, format!("key {}", number % 7).as_bytes());
        assert!(value.starts_with(format!("value {number:04} ").as_bytes()));
    }
    let transactions: Vec<_> = found[160..].iter().map(|r| (r.0, &r.2[..])).collect();
    assert_eq!(transactions, [(160, &b"txn0"[..]), (162, b"txn1")]);
    for target in (1_699_999_990_000..1_700_000_200_002).step_by(499) {
        // Transaction markers have the time at which they were written.
        let expected = found
            .iter()
            .find(|record| record.3 >= target)
            .map(|record| record.0);
        assert_eq!(
            log.offset_for_timestamp(target).unwrap().unwrap().offset,
            expected.unwrap()
        );
    }
}

// Broken if it failed: a log written by Kafka could not be read.
#[test]
fn kafkas_records_are_read() {
    let log = Log::open_read_only(&fixture()).unwrap();
    check_records(&log);
    assert_eq!(log.latest_epoch(), Some(0));
}

// Broken if it failed: a user could not change from Kafka to this broker, or back.
#[test]
fn kafkas_directory_is_opened_and_closed_unchanged() {
    let everything = &[
        ".log",
        ".index",
        ".timeindex",
        ".txnindex",
        ".snapshot",
        "checkpoint",
        "metadata",
    ];
    let dir = copy();
    let log = Log::open(dir.path(), config(), true, 164).unwrap();
    check_records(&log);
    assert_eq!(log.producer_count(), 6);
    assert_eq!(log.last_stable_offset(), 164);
    log.close().unwrap();
    assert_eq!(files(dir.path(), everything), files(&fixture(), everything));
}

// Broken if it failed: rebuilt indexes and snapshots would differ from those that Kafka makes of the same
// log.
#[test]
fn recovery_writes_the_same_bytes_as_kafka() {
    let dir = copy();
    for suffix in [".index", ".timeindex", ".snapshot", "-checkpoint"] {
        for (name, _) in files(dir.path(), &[suffix]) {
            fs::remove_file(dir.path().join(name)).unwrap();
        }
    }
    let log = Log::open(dir.path(), config(), false, 0).unwrap();
    check_records(&log);
    assert_eq!(log.recovery().truncated_bytes, 0);
    log.close().unwrap();
    let rebuilt = &[
        ".log",
        ".index",
        ".timeindex",
        "00164.snapshot",
        "leader-epoch-checkpoint",
    ];
    assert_eq!(files(dir.path(), rebuilt), files(&fixture(), rebuilt));
}
