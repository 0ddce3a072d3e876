//! Crashes and write errors between every two changes that a compaction makes to the disk.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::error::StorageError;
use crate::files::disk::Change;
use crate::files::disk::watch::{Watcher, watch};

/// Lets `changes` changes through, then refuses one, or all that follow.
struct Until {
    left: AtomicUsize,
    for_good: bool,
}

impl Watcher for Until {
    fn before(&self, change: Change<'_>) -> io::Result<Option<(usize, io::Error)>> {
        let before = self
            .left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                if left == 0 && self.for_good {
                    None
                } else {
                    Some(left.wrapping_sub(1))
                }
            });
        let refused = || io::Error::from(io::ErrorKind::Other);
        match before {
            Ok(0) | Err(_) => match change {
                // Half of the bytes are written.
                Change::Write { bytes, .. } => Ok(Some((bytes.len() / 2, refused()))),
                _ => Err(refused()),
            },
            Ok(_) => Ok(None),
        }
    }
}

/// A log of several segments with keys, a tombstone that expires, and transactions.
fn write_log(dir: &Path, config: LogConfig) -> Log {
    let mut writer = Writer::new(dir);
    writer.plain(&[(b"a", Some(b"1")), (b"b", Some(b"1")), (b"gone", Some(b"1"))]);
    writer.batch(Some(9), false, &[(b"a", Some(b"2"))]);
    writer.roll();
    writer.batch(Some(7), true, &[(b"b", Some(b"aborted"))]);
    writer.marker(7, false);
    writer.roll();
    writer.plain(&[(b"gone", None)]);
    writer.roll();
    writer.batch(Some(7), true, &[(b"c", Some(b"1"))]);
    writer.marker(7, true);
    writer.plain(&[(b"a", Some(b"3")), (b"d", Some(b"1"))]);
    writer.open(config)
}

/// Two configurations: all segments are merged into one, or each is cleaned alone, even when it becomes
/// empty.
fn joining() -> [LogConfig; 2] {
    let alone = LogConfig {
        segment_bytes: 100,
        ..config()
    };
    [config(), alone]
}

const ABORTED: [i64; 1] = [4];

/// The last value of each key that a reader of committed records sees.
fn state(log: &Log) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut state = BTreeMap::new();
    for record in read_all(log) {
        if record.control || ABORTED.contains(&record.offset) {
            continue;
        }
        let key = record.key.unwrap();
        match record.value {
            Some(value) => state.insert(key, value),
            None => state.remove(&key),
        };
    }
    state
}

fn run(for_good: bool, rounds: i64, config: &LogConfig) -> usize {
    let mut step = 0;
    loop {
        let dir = tempfile::tempdir().unwrap();
        let log = write_log(dir.path(), config.clone());
        // The first round keeps the tombstone, the second removes it, the third removes the abort marker.
        for round in 0..rounds - 1 {
            log.cleaning().set_first_dirty(0);
            log.compact_now(NOW + round * 1000).unwrap();
        }
        log.cleaning().set_first_dirty(0);
        let expected = state(&log);
        assert_eq!(expected.len(), 5);
        let old = read_all(&log);
        let watcher = Arc::new(Until {
            left: AtomicUsize::new(step),
            for_good,
        });
        let watching = watch(dir.path(), watcher);
        let result = log.compact_now(NOW + rounds * 1000);
        assert_eq!(state(&log), expected, "readers at step {step}");
        drop(log);
        drop(watching);

        let log = reopen(dir.path(), config.clone());
        assert_aborted_have_markers(&log);
        assert_eq!(state(&log), expected, "after a restart at step {step}");
        let left = names(dir.path());
        let ended = |name: &&String| {
            [".cleaned", ".swap", ".deleted"]
                .iter()
                .any(|s| name.ends_with(s))
        };
        assert_eq!(left.iter().find(ended), None, "step {step}");
        let (old_bytes, new) = (old.len(), read_all(&log));
        assert!(new.iter().all(|record| old.contains(record)), "step {step}");
        assert!(new.len() <= old_bytes);
        // The next compaction completes.
        log.cleaning().set_first_dirty(0);
        log.compact_now(NOW + rounds * 1000).unwrap();
        assert_eq!(state(&log), expected, "compacted at last, step {step}");
        drop(log);
        assert_eq!(state(&reopen(dir.path(), config.clone())), expected);
        if result.is_ok() {
            return step;
        }
        step += 1;
    }
}

// Broken if it failed: a crash during a compaction would lose records, or bring deleted ones back.
#[test]
fn a_crash_at_every_step_leaves_the_same_values() {
    for config in joining() {
        for rounds in 1..=3 {
            let steps = run(true, rounds, &config);
            assert!(steps > 15, "too few steps were seen: {steps}");
        }
    }
}

// Broken if it failed: one passing write error would lose records, or bring deleted ones back.
#[test]
fn a_fault_at_every_step_leaves_the_same_values() {
    for config in joining() {
        for rounds in 1..=3 {
            run(false, rounds, &config);
        }
    }
}

// Broken if it failed: a disk that is full for a while would take a log offline although only the cleaner
// writes.
#[test]
fn a_fault_before_the_swap_leaves_the_log_online() {
    struct Full;
    impl Watcher for Full {
        fn before(&self, change: Change<'_>) -> io::Result<Option<(usize, io::Error)>> {
            match change {
                Change::Write { path, .. } if path.to_string_lossy().ends_with(".cleaned") => {
                    Ok(Some((1, io::ErrorKind::StorageFull.into())))
                }
                _ => Ok(None),
            }
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let log = write_log(dir.path(), config());
    let before = read_all(&log);
    let watching = watch(dir.path(), Arc::new(Full));
    assert!(matches!(log.compact_now(NOW), Err(StorageError::Io { .. })));
    drop(watching);
    assert_eq!((log.failure(), read_all(&log)), (None, before));
    assert!(!names(dir.path()).iter().any(|name| name.ends_with(".cleaned")));
    log.compact_now(NOW).unwrap();
}
