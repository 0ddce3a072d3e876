//! Logs and checkpoints that are damaged.

use super::*;

// Broken if it failed: one damaged log would keep all others from opening, or be marked as intact.
#[test]
fn one_damaged_log_is_reported_and_the_others_open() {
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
    // The damaged log's checkpoint entries are kept.
    assert_eq!(
        read(path, "recovery-point-offset-checkpoint"),
        "0\n2\nt 0 3\nt 1 4\n"
    );
}

// Broken if it failed: one damaged log would keep a broker from serving the others, be served itself, or be
// replaced by an empty one, or the progress of a long recovery would not be reported.
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

    let (logs, seen) = open_reporting(path, false);
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
    let numbers: Vec<_> = seen.iter().map(|(_, _, done, of, _)| (*done, *of)).collect();
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
    // The damaged log's checkpoint entries stay, and the shutdown does not count as clean.
    logs.close().unwrap();
    assert!(read(path, "recovery-point-offset-checkpoint").contains("t 2 10\n"));
    assert!(!path.join(".kafka_cleanshutdown").exists());
    bytes[100] ^= 1;
    fs::write(&segment, &bytes).unwrap();
    let (logs, _) = open_reporting(path, false);
    assert_eq!((logs.failures().len(), logs.partitions().len()), (0, 4));
}

// Broken if it failed: a checkpoint damaged by a crash or a bad disk would keep a whole directory from
// opening.
#[test]
fn a_damaged_checkpoint_is_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let logs = open(path).unwrap();
    let created = logs.create("t", 0, [7; 16], LogConfig::default()).unwrap();
    append(&created.log, b"v");
    created.log.flush().unwrap();
    drop((created, logs));
    fs::write(path.join("recovery-point-offset-checkpoint"), "0\n5\nrubbish").unwrap();
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
