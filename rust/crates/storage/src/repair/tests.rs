//! Repairs of directories with one fault: what is changed, what stays, what the backup keeps.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::TempDir;

use super::{Action, Repair, RepairOptions, repair};
use crate::StorageError;
use crate::config::LogConfig;
use crate::files::disk::{Change, watch};
use crate::log_dir::LogDir;
use crate::standalone::StandaloneLog;
use crate::verify::tests::{batch, copy_of_kafka_log, set_epoch, write_log};
use crate::verify::{Finding, Kind, VerifyOptions, verify};

fn run_repair(path: &Path, apply: bool, cut_at_corruption: bool) -> Repair {
    let options = RepairOptions {
        apply,
        cut_at_corruption,
        ..RepairOptions::default()
    };
    repair(path, &options, &mut |_| true).unwrap()
}

/// Every file below a directory except the lock, by its relative path.
fn contents(path: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut dirs = Vec::from_iter(path.exists().then(|| path.to_path_buf()));
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap().path();
            if entry.is_dir() {
                dirs.push(entry);
            } else if !entry.ends_with(".lock") {
                let name = entry.strip_prefix(path).unwrap().to_path_buf();
                found.insert(name, fs::read(entry).unwrap());
            }
        }
    }
    found
}

fn names(repair: &Repair) -> Vec<(&'static str, String)> {
    let name = |action: &Action| {
        let file = action.path().file_name().unwrap();
        (action.name(), file.to_str().unwrap().to_owned())
    };
    repair.actions.iter().map(name).collect()
}

fn ours(batches: i64) -> (TempDir, PathBuf) {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("ours-0");
    write_log(&dir, batches);
    (parent, dir)
}

const FIRST: &str = "00000000000000000000.log";

// Broken if it failed: a directory without a fault would be changed.
#[test]
fn a_clean_directory_is_not_changed() {
    for (_parent, dir) in [ours(20), copy_of_kafka_log()] {
        let before = contents(&dir);
        let done = run_repair(&dir, true, true);
        assert_eq!(done.actions, []);
        assert!(!done.applied && done.backup_dir.is_none());
        assert_eq!(contents(&dir), before);
    }
}

// Broken if it failed: a plan would change something, a torn tail would stay, or its bytes would be lost.
#[test]
fn a_torn_tail_is_planned_then_cut() {
    let (parent, dir) = ours(3);
    let path = dir.join(FIRST);
    let mut bytes = fs::read(&path).unwrap();
    let size = bytes.len();
    bytes.truncate(size - 5);
    fs::write(&path, &bytes).unwrap();
    let before = contents(&dir);

    let planned = run_repair(&dir, false, false);
    assert!(!planned.applied && planned.refused.is_empty());
    assert_eq!(contents(&dir), before);
    assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1);

    let done = run_repair(&dir, true, false);
    assert_eq!(done.actions, planned.actions);
    assert_eq!(done.findings, []);
    let cut = size / 3 * 2;
    assert!(done.actions.iter().any(|action| matches!(
        action,
        Action::Cut { position, offset: 20, records: 0, .. } if *position == cut as u64
    )));
    assert_eq!(fs::read(&path).unwrap(), bytes[..cut]);
    let backup = done.backup_dir.unwrap();
    assert!(
        backup
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .starts_with("ours-0.repair-2")
    );
    let kept = fs::read(backup.join(format!("{FIRST}.from-{cut}"))).unwrap();
    assert_eq!(kept, bytes[cut..]);
    let manifest = fs::read_to_string(backup.join("manifest.json")).unwrap();
    assert!(manifest.contains(&format!("\"position\": {cut}, \"offset\": 20")));
    let log = StandaloneLog::open(&dir, false, LogConfig::default()).unwrap();
    assert_eq!(log.log_end_offset(), 20);
    assert_eq!(log.append(&mut batch(0..1)).unwrap().first_offset, 20);
}

// Broken if it failed: intact records would be cut off without permission, or the backup would lack them.
#[test]
fn corruption_in_the_middle_is_cut_only_when_allowed() {
    let (_parent, dir) = ours(60);
    let path = dir.join(FIRST);
    let mut bytes = fs::read(&path).unwrap();
    let size = batch(0..10).len();
    bytes[size + 100] ^= 1;
    fs::write(&path, &bytes).unwrap();
    // The second epoch is of a leader that has not written yet.
    let epochs = dir.join("leader-epoch-checkpoint");
    fs::write(&epochs, "0\n2\n0 0\n4 600\n").unwrap();
    let before = contents(&dir);

    let refused = run_repair(&dir, true, false);
    assert_eq!(refused.actions, []);
    assert!(matches!(
        refused.refused[..],
        [Action::Cut {
            records: 580,
            offset: 10,
            ..
        }]
    ));
    assert_eq!(refused.findings[0].kind, Kind::CorruptBatch);
    assert_eq!(contents(&dir), before);

    let done = run_repair(&dir, true, true);
    assert_eq!(done.findings, []);
    assert!(done.refused.is_empty());
    assert_eq!(fs::read(&epochs).unwrap(), b"0\n1\n0 0\n");
    let backup = contents(&done.backup_dir.unwrap());
    let after = contents(&dir);
    for (name, bytes) in before {
        let kept = backup.get(&name);
        if name.ends_with(FIRST) {
            assert_eq!(after[&name], bytes[..size]);
            let rest = &backup[Path::new(&format!("{FIRST}.from-{size}"))];
            assert_eq!(*rest, bytes[size..]);
        } else {
            assert!(
                after.get(&name) == Some(&bytes) || kept == Some(&bytes),
                "{name:?}"
            );
        }
    }
    let log = StandaloneLog::open(&dir, false, LogConfig::default()).unwrap();
    assert_eq!((log.log_end_offset(), log.segment_count()), (10, 1));
}

// Broken if it failed: a file that can be rebuilt would stay wrong, or differ from what Kafka wrote.
#[test]
fn files_of_kafka_are_rebuilt_from_the_batches() {
    let (_parent, original) = copy_of_kafka_log();
    let original = contents(&original);
    for (name, exactly) in [
        ("00000000000000000000.index", false),
        ("00000000000000000132.timeindex", false),
        ("00000000000000000161.txnindex", true),
        ("00000000000000000164.snapshot", true),
        ("leader-epoch-checkpoint", true),
        ("partition.metadata", false),
    ] {
        for gone in [false, true] {
            let (_parent, dir) = copy_of_kafka_log();
            let path = dir.join(name);
            if gone {
                fs::remove_file(&path).unwrap();
            } else {
                fs::write(&path, b"0\nrubbish\n").unwrap();
            }
            let found = verify(&dir, &VerifyOptions::default(), &mut |_| true).unwrap();
            let done = run_repair(&dir, true, false);
            assert_eq!(done.applied, !found.findings.is_empty(), "{name}");
            assert_eq!(done.findings, [], "{name}: {:#?}", done.actions);
            if exactly && done.applied {
                assert_eq!(fs::read(&path).unwrap(), original[Path::new(name)], "{name}");
            }
            for (file, bytes) in &original {
                if file.extension().is_some_and(|suffix| suffix == "log") {
                    assert_eq!(fs::read(dir.join(file)).unwrap(), *bytes);
                }
            }
        }
    }
}

// Broken if it failed: one flipped bit in a batch's leader epoch would get into the epoch file and fence
// every leader.
#[test]
fn a_flipped_epoch_does_not_get_into_the_epoch_file() {
    for (number, epoch, left) in [
        (2, 1 << 30, Kind::EpochOrder),
        (0, 1 << 30, Kind::EpochOrder),
        (5, 1 << 30, Kind::LeaderEpochs),
        (2, -5, Kind::EpochOrder),
    ] {
        let (_parent, dir) = ours(6);
        set_epoch(&dir.join(FIRST), number, epoch);
        let before = contents(&dir);
        let done = run_repair(&dir, true, true);
        assert_eq!(done.actions, [], "batch {number}");
        assert_eq!(done.findings.len(), 1);
        assert_eq!(done.findings[0].kind, left);
        assert_eq!(contents(&dir), before);
    }
}

// Broken if it failed: a wrong epoch file would stay, or be rebuilt from batches that contradict each other.
#[test]
fn a_wrong_epoch_file_is_rebuilt_unless_batches_contradict() {
    let path = |dir: &Path| dir.join("leader-epoch-checkpoint");
    for (text, repaired) in [
        ("0\n1\n1 0\n", "0\n1\n0 0\n"),
        // The epoch of a leader that has not written yet stays; an epoch after the log's end goes.
        ("0\n2\n1 0\n4 60\n", "0\n2\n0 0\n4 60\n"),
        ("0\n2\n0 0\n4 61\n", "0\n1\n0 0\n"),
        ("garbage\n0\n", "0\n1\n0 0\n"),
    ] {
        let (_parent, dir) = ours(6);
        fs::write(path(&dir), text).unwrap();
        let done = run_repair(&dir, true, true);
        assert_eq!(fs::read_to_string(path(&dir)).unwrap(), repaired, "{text:?}");
        assert_eq!(done.findings, [], "{text:?}");
    }
    for text in ["0\n1\n1 0\n", "garbage\n0\n"] {
        let (_parent, dir) = ours(6);
        set_epoch(&dir.join(FIRST), 3, 1 << 30);
        fs::write(path(&dir), text).unwrap();
        let done = run_repair(&dir, true, true);
        assert_eq!(done.actions, [], "{text:?}");
        assert_eq!(fs::read_to_string(path(&dir)).unwrap(), text);
        let reported = done.findings.iter().any(|f| f.kind == Kind::EpochOrder);
        assert!(reported, "{text:?}: {:#?}", done.findings);
    }
}

// Broken if it failed: a directory could be repaired while another owner writes it.
#[test]
fn a_directory_in_use_is_refused() {
    let (_parent, dir) = ours(3);
    let log = StandaloneLog::open(&dir, false, LogConfig::default()).unwrap();
    let result = repair(&dir, &RepairOptions::default(), &mut |_| true);
    assert!(matches!(result, Err(StorageError::Locked { .. })));
    log.close().unwrap();
    run_repair(&dir, false, false);
}

fn broker_directory() -> TempDir {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("data");
    let config = |_: &str| LogConfig::default();
    let logs = LogDir::open(&path, 1, None, &config).unwrap();
    for topic in ["a", "b"] {
        let created = logs.create(topic, 0, [7; 16], LogConfig::default()).unwrap();
        let now = crate::clock::system_now_ms();
        for number in 0..3 {
            let mut batch = batch(number * 10..number * 10 + 10);
            created.log.append_as_leader(&mut batch, 0, now).unwrap();
        }
    }
    logs.close().unwrap();
    parent
}

// Broken if it failed: a broker would not start on the repaired directory, or would assume records that are
// gone.
#[test]
fn a_broker_starts_on_a_repaired_log_directory() {
    let parent = broker_directory();
    let path = parent.path().join("data");
    let log = path.join("a-0").join(FIRST);
    let bytes = fs::read(&log).unwrap();
    fs::write(&log, &bytes[..bytes.len() - 1]).unwrap();
    // The recovery point says that these bytes were on disk, so the end is not a torn tail.
    let refused = run_repair(&path, true, false);
    assert!(matches!(refused.refused[..], [Action::Cut { .. }]));
    assert!(!refused.applied);

    let done = run_repair(&path, true, true);
    assert_eq!(done.findings, []);
    let rebuilt = |name: &str| names(&done).contains(&("rebuild", name.to_owned()));
    assert!(rebuilt("recovery-point-offset-checkpoint"));
    assert!(rebuilt("replication-offset-checkpoint"));
    let backup = done.backup_dir.clone().unwrap();
    assert_eq!(
        backup.parent(),
        Some(parent.path().canonicalize().unwrap().as_path())
    );
    assert!(backup.join("a-0").is_dir());
    let config = |_: &str| LogConfig::default();
    let logs = LogDir::open(&path, 1, None, &config).unwrap();
    assert!(logs.had_clean_shutdown() && logs.failures().is_empty());
    assert_eq!(logs.get("a", 0).unwrap().log.log_end_offset(), 20);
    assert_eq!(logs.get("b", 0).unwrap().log.log_end_offset(), 30);
    assert!(matches!(
        repair(&path.join("b-0"), &RepairOptions::default(), &mut |_| true),
        Err(StorageError::Locked { .. })
    ));
}

// Broken if it failed: a checkpoint that stops a broker's start would stay.
#[test]
fn an_unreadable_checkpoint_is_removed() {
    let parent = broker_directory();
    let path = parent.path().join("data");
    let checkpoint = path.join("recovery-point-offset-checkpoint");
    fs::write(&checkpoint, "0\n5\nrubbish").unwrap();
    // A repair of one partition leaves it, because it has other partitions too.
    assert_eq!(run_repair(&path.join("a-0"), true, false).actions, []);
    let done = run_repair(&path, true, false);
    assert_eq!(
        names(&done),
        [("remove", "recovery-point-offset-checkpoint".to_owned())]
    );
    assert_eq!(done.findings, []);
    assert!(!checkpoint.exists());
    let kept = done.backup_dir.unwrap().join("recovery-point-offset-checkpoint");
    assert_eq!(fs::read(kept).unwrap(), b"0\n5\nrubbish");
}

// Broken if it failed: a standalone log that begins after its end, so has nothing to read, would be called
// whole.
#[test]
fn a_log_start_after_the_end_is_set_to_the_end() {
    let (_parent, dir) = ours(3);
    let checkpoint = dir.join("log-start-offset-checkpoint");
    fs::write(&checkpoint, "0\n1\nlog 0 20\n").unwrap();
    assert_eq!(run_repair(&dir, true, false).actions, []);
    fs::write(&checkpoint, "0\n1\nlog 0 31\n").unwrap();
    let done = run_repair(&dir, true, false);
    let rebuilt = ("rebuild", "log-start-offset-checkpoint".to_owned());
    assert_eq!(names(&done), [rebuilt]);
    assert_eq!(done.findings, []);
    assert_eq!(fs::read(&checkpoint).unwrap(), b"0\n1\nlog 0 30\n");
}

// Broken if it failed: the backup would land where Kafka does not start, or overwrite files.
#[test]
fn a_backup_inside_the_directory_or_in_a_used_one_is_refused() {
    let (parent, dir) = ours(3);
    fs::write(dir.join("leader-epoch-checkpoint"), "garbage\n1\n").unwrap();
    let options = |backup_dir: PathBuf| RepairOptions {
        apply: true,
        backup_dir: Some(backup_dir),
        ..RepairOptions::default()
    };
    let dir = dir.canonicalize().unwrap();
    let inside = repair(&dir, &options(dir.join("kept")), &mut |_| true);
    assert!(matches!(inside, Err(StorageError::InvalidConfig { .. })));
    let used = parent.path().join("used");
    fs::create_dir(&used).unwrap();
    fs::write(used.join("mine"), b"").unwrap();
    let taken = repair(&dir, &options(used), &mut |_| true);
    assert!(matches!(taken, Err(StorageError::AlreadyExists { .. })));
    let own = parent.path().join("own");
    let done = repair(&dir, &options(own.clone()), &mut |_| true).unwrap();
    assert!(done.findings.is_empty() && own.join("manifest.json").exists());
}

/// Fails the change to the disk with this number.
struct FailOne {
    at: usize,
    seen: AtomicUsize,
}

impl watch::Watcher for FailOne {
    fn before(&self, _: Change<'_>) -> io::Result<Option<(usize, io::Error)>> {
        if self.seen.fetch_add(1, Ordering::Relaxed) == self.at {
            return Err(io::Error::other("injected"));
        }
        Ok(None)
    }
}

// Broken if it failed: an interrupted repair would lose bytes, or leave a directory that cannot be repaired.
#[test]
fn a_repair_interrupted_at_any_step_loses_nothing() {
    for at in 0.. {
        let (parent, dir) = ours(25);
        let path = dir.join(FIRST);
        let mut bytes = fs::read(&path).unwrap();
        let size = batch(0..10).len();
        bytes[size + 100] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let before = contents(&dir);
        let backup = parent.path().join("kept");
        let options = RepairOptions {
            apply: true,
            cut_at_corruption: true,
            backup_dir: Some(backup.clone()),
            ..RepairOptions::default()
        };
        let watcher = Arc::new(FailOne {
            at,
            seen: AtomicUsize::new(0),
        });
        let watching = watch::watch(parent.path(), watcher.clone());
        let result = repair(&dir, &options, &mut |_| true);
        drop(watching);
        if watcher.seen.load(Ordering::Relaxed) <= at {
            assert!(result.unwrap().findings.is_empty());
            assert!(at > 20, "only {at} steps were seen");
            return;
        }
        assert!(result.is_err(), "step {at}");
        let (after, kept) = (contents(&dir), contents(&backup));
        for (name, bytes) in before {
            if after.get(&name) == Some(&bytes) || kept.get(&name) == Some(&bytes) {
                continue;
            }
            // The file was cut: the directory and the backup have its two parts.
            let rest = &kept[Path::new(&format!("{FIRST}.from-{size}"))];
            assert_eq!([&after[&name][..], rest].concat(), bytes, "step {at}: {name:?}");
        }
        let again = run_repair(&dir, true, true);
        // The next opening removes the `.tmp` of a file that was being replaced.
        let rest = again.findings.iter().find(|f| f.kind != Kind::Unfinished);
        assert_eq!(rest, None, "step {at}");
    }
}

/// Flips a bit in one file of a copy of Kafka's log, or tears that file. A repair must leave only findings
/// that need another replica.
fn damage_is_repaired(
    file: usize,
    at: usize,
    bit: u8,
    tear: bool,
) -> Result<(), proptest::test_runner::TestCaseError> {
    let (_parent, dir) = copy_of_kafka_log();
    let before = contents(&dir);
    let (name, bytes) = before.iter().nth(file % before.len()).unwrap();
    let mut bytes = bytes.clone();
    if bytes.is_empty() {
        return Ok(());
    }
    let position = at % bytes.len();
    if tear {
        bytes.truncate(position);
    } else {
        bytes[position] ^= 1 << bit;
    }
    fs::write(dir.join(name), bytes).unwrap();
    let done = run_repair(&dir, true, true);
    // What only another replica can repair: a leader epoch that contradicts another (no checksum covers it),
    // and the records of a file that ends too early but after a whole batch. A file without records looks
    // compacted.
    let is_log = name.extension().is_some_and(|suffix| suffix == "log");
    let others: &[Kind] = match (is_log, tear) {
        (true, true) if position == 0 => &[Kind::MissingOffsets, Kind::OffsetGap],
        (true, true) => &[Kind::MissingOffsets],
        (true, false) => &[Kind::EpochOrder, Kind::LeaderEpochs],
        (false, _) => &[],
    };
    let expected = |finding: &&Finding| others.contains(&finding.kind);
    let left = done.findings.iter().find(|finding| !expected(finding));
    proptest::prop_assert_eq!(left, None, "byte {} of {:?}: {:#?}", position, name, done.actions);
    for (name, bytes) in contents(&dir) {
        if name.extension().is_some_and(|suffix| suffix == "log") && done.applied {
            let original = &before[&name];
            // No checksum covers a batch's offset and epoch, so a flip there may stay.
            let flipped = bytes.iter().zip(original);
            let flipped = flipped.filter(|(one, other)| one != other).count();
            proptest::prop_assert!(bytes.len() <= original.len() && flipped <= 1);
        }
    }
    Ok(())
}

// Broken if it failed: a file that lost all its bytes could not be repaired.
#[test]
fn files_torn_to_nothing_are_repaired() {
    for file in 0..12 {
        damage_is_repaired(file, 0, 0, true).unwrap();
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]
    // Broken if it failed: some damage could not be repaired, or a repair would alter a record.
    #[test]
    fn any_damage_is_repaired(file in 0usize..12, at in 0usize..100_000, bit in 0u8..8, tear: bool) {
        damage_is_repaired(file, at, bit, tear)?;
    }
}
