//! Directories opened as the wrong kind, foreign files, links, and foreign names.

use std::os::unix::fs::symlink;

use super::*;
use crate::files::is_of_partition;
use crate::standalone::StandaloneLog;
use crate::verify::{VerifyOptions, verify};

fn entries(path: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn open_log(path: &Path) -> Result<StandaloneLog> {
    StandaloneLog::open(path, true, LogConfig::default())
}

// Broken if it failed: a directory opened as the wrong kind would be marked as closed cleanly, and a torn log
// in it not be noticed at the next start.
#[test]
fn a_directory_of_the_wrong_kind_is_refused_and_not_marked() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    let logs = open(&root).unwrap();
    append(
        &logs.create("t", 0, [7; 16], LogConfig::default()).unwrap().log,
        b"v",
    );
    logs.checkpoint().unwrap();
    // As after SIGKILL.
    drop(logs);
    let before = entries(&root);
    for create in [true, false] {
        let error = StandaloneLog::open(&root, create, LogConfig::default()).unwrap_err();
        assert!(error.to_string().contains("open_dir"), "{error}");
    }
    assert_eq!(entries(&root), before);
    assert!(!open(&root).unwrap().had_clean_shutdown());

    let single = dir.path().join("single");
    let log = open_log(&single).unwrap();
    append(&log, b"v");
    drop(log);
    let before = entries(&single);
    let error = open(&single).unwrap_err();
    assert!(matches!(error, StorageError::WrongDirectory { .. }), "{error}");
    assert_eq!(entries(&single), before);
    let log = open_log(&single).unwrap();
    assert_eq!((log.log_end_offset(), log.recovery().segments_checked), (1, 1));
}

const FOREIGN: [&str; 5] = [
    "report.tmp",
    "mail.deleted",
    "data.cleaned",
    "x.swap",
    "notes.index",
];

// Broken if it failed: opening a log would delete foreign files.
#[test]
fn foreign_files_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    for name in FOREIGN {
        fs::write(path.join(name), name).unwrap();
    }
    let before = entries(path);
    let error = open_log(path).unwrap_err();
    assert!(
        error.to_string().contains("is not empty and is no log"),
        "{error}"
    );
    assert_eq!(entries(path), before);

    // Next to a log they are accepted.
    let log = path.join("log");
    open_log(&log).unwrap().close().unwrap();
    for name in FOREIGN {
        fs::write(log.join(name), name).unwrap();
    }
    for left in ["00000000000000000007.log.deleted", "leader-epoch-checkpoint.tmp"] {
        fs::write(log.join(left), "x").unwrap();
    }
    open_log(&log).unwrap().close().unwrap();
    for name in FOREIGN {
        assert_eq!(fs::read_to_string(log.join(name)).unwrap(), name);
    }
    let foreign = entries(&log).into_iter().filter(|name| !is_of_partition(name));
    assert_eq!(foreign.count(), FOREIGN.len());
    assert!(
        !entries(&log)
            .iter()
            .any(|name| name.contains("0007") || name.contains("point.tmp"))
    );
    // `lost+found` belongs to the file system.
    fs::create_dir_all(path.join("disk/lost+found")).unwrap();
    open_log(&path.join("disk")).unwrap();
}

// Broken if it failed: a program that opens a directory would write into, or delete, foreign directories
// whose names look like partitions.
#[test]
fn foreign_directories_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let deleted = format!("x-1.{}-delete", "0".repeat(32));
    for name in ["backup-2024", &deleted] {
        fs::create_dir(path.join(name)).unwrap();
        for file in FOREIGN {
            fs::write(path.join(name).join(file), "mine").unwrap();
        }
    }
    let before = entries(&path.join("backup-2024"));
    let logs = open(path).unwrap();
    assert_eq!((logs.partitions().len(), logs.failures().len()), (0, 0));
    assert_eq!(logs.warnings().len(), 2, "{:?}", logs.warnings());
    logs.maintain(i64::MAX).unwrap();
    logs.close().unwrap();
    for name in ["backup-2024", &deleted] {
        assert_eq!(entries(&path.join(name)), before, "{name}");
    }
    // A broker takes a directory with a partition's name, as Kafka does, but keeps the files in it.
    let opening = Opening {
        takes_all: true,
        ..Opening::new(&|_| LogConfig::default())
    };
    let logs = LogDir::open_with(path, 1, None, &opening).unwrap();
    assert!(logs.get("backup", 2024).is_some());
    logs.close().unwrap();
    let left = entries(&path.join("backup-2024"));
    assert!(before.iter().all(|name| left.contains(name)), "{left:?}");
    assert_eq!(entries(&path.join(&deleted)), before);
}

// Broken if it failed: a partition or segment that an operator moved to another disk and linked would be
// ignored, and an empty log or a gap would replace it. Kafka follows links.
#[test]
fn links_are_followed() {
    let (dir, far) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = dir.path();
    let logs = open(path).unwrap();
    let config = LogConfig {
        segment_bytes: 100,
        ..LogConfig::default()
    };
    let log = &logs.create("t", 0, [7; 16], config).unwrap().log;
    for _ in 0..5 {
        append(log, &[b'v'; 20]);
    }
    assert!(log.segment_count() > 2);
    logs.close().unwrap();
    let target = far.path().join("elsewhere");
    fs::rename(path.join("t-0"), &target).unwrap();
    symlink(&target, path.join("t-0")).unwrap();
    let segment = "00000000000000000001.log";
    fs::rename(target.join(segment), far.path().join(segment)).unwrap();
    symlink(far.path().join(segment), target.join(segment)).unwrap();

    let values = |log: &Log| {
        let mut offset = 0;
        while offset < log.log_end_offset() {
            let slice = log.read(offset, 1, i64::MAX, true).unwrap();
            assert!(!slice.read_to_vec().unwrap().is_empty());
            offset += 1;
        }
        offset
    };
    let logs = open(path).unwrap();
    assert_eq!(values(&logs.get("t", 0).unwrap().log), 5);
    // The directory's lock covers the target of a link.
    let taken = open_log(&path.join("t-0")).unwrap_err();
    assert!(matches!(taken, StorageError::Locked { .. }), "{taken}");
    logs.close().unwrap();
    let log = open_log(&path.join("t-0")).unwrap();
    assert_eq!(values(&log), 5);
    log.close().unwrap();
    let report = verify(path, &VerifyOptions::default(), &mut |_| true).unwrap();
    assert_eq!((report.partitions, report.findings.len()), (1, 0), "{report:?}");
    // Deleting a linked log removes the link, not its target.
    let logs = open(path).unwrap();
    logs.delete("t", 0).unwrap();
    logs.close().unwrap();
    assert!(target.join("00000000000000000000.log").exists());
}

// Broken if it failed: `create("x", -1)` would make `x--1`, which the next opening reads as partition 1 of
// `x-`.
#[test]
fn negative_partition_numbers_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let logs = open(dir.path()).unwrap();
    for number in [-1, i32::MIN] {
        let error = logs
            .create("x", number, [7; 16], LogConfig::default())
            .unwrap_err();
        assert!(matches!(error, StorageError::InvalidConfig { .. }), "{error}");
        logs.create_future("x", number, Some([7; 16]), LogConfig::default())
            .unwrap_err();
    }
    assert!(partition_dirs(dir.path()).unwrap().is_empty());
}

// Broken if it failed: a typo next to a running broker would leave a directory that its next start loads as a
// log.
#[test]
fn a_directory_in_use_gets_no_new_files() {
    let dir = tempfile::tempdir().unwrap();
    let logs = open(dir.path()).unwrap();
    let before = entries(dir.path());
    let error = open_log(&dir.path().join("typo-0")).unwrap_err();
    assert!(matches!(error, StorageError::Locked { .. }), "{error}");
    assert_eq!(entries(dir.path()), before);
    drop(logs);
    open_log(&dir.path().join("typo-0")).unwrap();
}
