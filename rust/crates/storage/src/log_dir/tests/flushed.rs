//! The flushed offset that a standalone log saves, and its use at the next start.

use super::*;
use crate::files::flushed_mark;
use crate::repair::{RepairOptions, repair};
use crate::standalone::StandaloneLog;
use crate::testing::flip;
use crate::verify::{Kind, VerifyOptions, verify};

/// A log of a few flushed batches, one record each, that was not closed.
fn killed_after_flushes(path: &Path, batches: usize) -> StandaloneLog {
    let log = open_log(path);
    log.note_flushes().unwrap();
    for _ in 0..batches {
        append(&log, b"value");
        log.flush().unwrap();
    }
    log
}

fn open_log(path: &Path) -> StandaloneLog {
    StandaloneLog::open(path, true, LogConfig::default()).unwrap()
}

fn log_file(path: &Path) -> PathBuf {
    path.join("00000000000000000000.log")
}

fn refused(path: &Path) -> String {
    let opened = StandaloneLog::open(path, true, LogConfig::default());
    let error = opened.err().unwrap();
    assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");
    error.to_string()
}

// Broken if it failed: records that were acknowledged as flushed would be gone after a start, and without an
// error.
#[test]
fn damage_below_the_flushed_offset_stops_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    drop(killed_after_flushes(&path, 10));
    let file = log_file(&path);
    let whole = fs::read(&file).unwrap();
    flip(&file, whole.len() / 2, 1);
    assert!(refused(&path).contains("corrupt at byte"));
    assert_eq!(fs::read(&file).unwrap().len(), whole.len(), "nothing is cut");
    // Damage in the last batch counts too.
    fs::write(&file, &whole).unwrap();
    flip(&file, whole.len() - 1, 1);
    refused(&path);
    // A missing batch counts too.
    let each = whole.len() / 10;
    fs::write(&file, &whole[..each * 9]).unwrap();
    assert!(refused(&path).contains("ends at offset 9, and everything before 10"));
    fs::write(&file, &whole).unwrap();
    let log = open_log(&path);
    assert_eq!(log.log_end_offset(), 10);
    assert_eq!(log.recovery_point(), 10);
    log.close().unwrap();
    assert!(!path.join("flushed").exists());
}

// Broken if it failed: a crash during a write would keep its server from starting.
#[test]
fn a_torn_tail_above_the_flushed_offset_is_cut() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let log = killed_after_flushes(&path, 3);
    for _ in 0..3 {
        append(&log, b"value");
    }
    drop(log);
    let file = log_file(&path);
    let whole = fs::read(&file).unwrap();
    flip(&file, whole.len() * 4 / 6 - 1, 1);
    let log = open_log(&path);
    assert_eq!(log.log_end_offset(), 3);
    // The log goes on, and so does its flushed offset.
    log.note_flushes().unwrap();
    append(&log, b"value");
    log.flush().unwrap();
    drop(log);
    flip(&file, whole.len() * 4 / 6 - 1, 1);
    refused(&path);
}

// Broken if it failed: a log truncated for a new leader would not open again, or would open without records
// that were flushed after the truncation.
#[test]
fn a_truncation_lowers_the_flushed_offset_and_later_flushes_raise_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let log = killed_after_flushes(&path, 10);
    log.truncate_to(6).unwrap();
    assert_eq!(flushed_mark::read(&path), Some(6));
    append(&log, b"value");
    assert_eq!(flushed_mark::read(&path), Some(6));
    drop(log);
    // Records appended after the truncation are not certainly on disk.
    let file = log_file(&path);
    flip(&file, fs::metadata(&file).unwrap().len() as usize - 1, 1);
    let log = open_log(&path);
    assert_eq!(log.log_end_offset(), 6);
    log.note_flushes().unwrap();
    append(&log, b"value");
    log.flush().unwrap();
    assert_eq!(flushed_mark::read(&path), Some(7));
    log.truncate_fully_and_start_at(100).unwrap();
    assert!(flushed_mark::read(&path).unwrap() <= 100);
    log.truncate_fully_and_start_at(3).unwrap();
    assert!(flushed_mark::read(&path).unwrap() <= 3);
    log.truncate_fully_and_start_at(100).unwrap();
    append(&log, b"value");
    log.flush().unwrap();
    assert_eq!(flushed_mark::read(&path), Some(101));
    drop(log);
    assert_eq!(open_log(&path).log_end_offset(), 101);
}

// Broken if it failed: truncating a log that another process left would keep a flushed offset above its end,
// and the next start would be refused.
#[test]
fn a_truncation_corrects_a_flushed_offset_left_by_another_process() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    drop(killed_after_flushes(&path, 10));
    let log = open_log(&path);
    log.truncate_to(6).unwrap();
    assert_eq!(flushed_mark::read(&path), Some(6));
    drop(log);
    assert_eq!(open_log(&path).log_end_offset(), 6);
}

// Broken if it failed: a damaged log could not be used after a repair that cuts it.
#[test]
fn a_repair_that_cuts_removes_the_flushed_offset() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    drop(killed_after_flushes(&path, 10));
    let file = log_file(&path);
    let middle = fs::metadata(&file).unwrap().len() as usize / 2;
    flip(&file, middle, 1);
    refused(&path);
    let options = RepairOptions {
        apply: true,
        cut_at_corruption: true,
        ..RepairOptions::default()
    };
    repair(&path, &options, &mut |_| true).unwrap();
    assert_eq!(open_log(&path).log_end_offset(), 5);
}

// Broken if it failed: an outdated flushed offset would stop a broker's start.
#[test]
fn a_broker_directory_has_no_flushed_offset() {
    let dir = tempfile::tempdir().unwrap();
    drop(killed_after_flushes(&dir.path().join("log"), 2));
    let root = dir.path().join("root");
    let logs = open(&root).unwrap();
    logs.close().unwrap();
    let path = root.join("t-0");
    fs::rename(dir.path().join("log"), &path).unwrap();
    let log = open_log(&path);
    log.note_flushes().unwrap();
    assert!(!path.join("flushed").exists());
}

// Broken if it failed: `verify` would call a log intact that the next start refuses because its end is
// missing, and `repair` would not help.
#[test]
fn a_missing_end_is_reported_by_verify_and_accepted_by_repair() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    drop(killed_after_flushes(&path, 10));
    let found = || verify(&path, &VerifyOptions::default(), &mut |_| true).unwrap();
    assert!(found().findings.is_empty());
    let file = log_file(&path);
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() / 10 * 9]).unwrap();
    refused(&path);
    let findings = found().findings;
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(findings[0].kind, Kind::MissingOffsets);
    assert_eq!(findings[0].offset, Some(9));
    let mut options = RepairOptions {
        apply: true,
        ..RepairOptions::default()
    };
    let done = repair(&path, &options, &mut |_| true).unwrap();
    assert_eq!((done.actions.len(), done.refused.len()), (0, 1));
    refused(&path);
    options.cut_at_corruption = true;
    let done = repair(&path, &options, &mut |_| true).unwrap();
    assert_eq!((done.actions.len(), done.refused.len()), (1, 0));
    assert_eq!(open_log(&path).log_end_offset(), 9);
    assert!(found().findings.is_empty());
}
