//! A full disk: appends are refused and nothing else, and everything works once there is space.

use std::io;
use std::sync::atomic::AtomicUsize;

use super::*;
use crate::files::disk::Change;
use crate::files::disk::watch::{Watcher, watch};
use crate::files::segment_file;

/// Lets so many more changes have space, and then none.
struct Space(AtomicUsize);

impl Space {
    fn unlimited() -> Arc<Self> {
        Arc::new(Self(AtomicUsize::new(usize::MAX)))
    }

    fn leave(&self, changes: usize) {
        self.0.store(changes, Ordering::Relaxed);
    }
}

impl Watcher for Space {
    fn before(&self, change: Change<'_>) -> io::Result<Option<(usize, io::Error)>> {
        let full = || io::Error::from(rustix::io::Errno::NOSPC);
        let part = match change {
            Change::Create { .. } | Change::Open { .. } | Change::Allocate { .. } => None,
            Change::Write { bytes, .. } => Some(bytes.len() / 2),
            _ => return Ok(None),
        };
        let left = self.0.load(Ordering::Relaxed);
        if left > 0 {
            self.leave(left - 1);
            return Ok(None);
        }
        part.map_or_else(|| Err(full()), |part| Ok(Some((part, full()))))
    }
}

// Broken if it failed: a full disk would stop a log until a restart, lose acknowledged records, or leave half
// a batch inside a file.
#[test]
fn appends_are_refused_until_there_is_space() {
    let dir = tempfile::tempdir().unwrap();
    let space = Space::unlimited();
    let _watching = watch(dir.path(), space.clone());
    let log = open(dir.path());
    let mut acknowledged = 0;
    for round in 0..60 {
        // The disk is full at another step of an append each time, also during a roll.
        space.leave(round % 7);
        let refused = (0..40).find_map(|_| {
            let value = [b'v'; 300];
            let appended = log.append_as_leader(&mut batch_at(5, &[&value]), 0, 5);
            acknowledged += usize::from(appended.is_ok());
            appended.err()
        });
        let error = refused.expect("a full disk refuses");
        assert!(error.is_disk_full(), "{error}");
        assert_eq!(error.kafka_code(), 56);
        assert_eq!((log.failure(), log.log_end_offset()), (None, acknowledged as i64));
        assert_eq!(values_from(&log, 0).len(), acknowledged);
        space.leave(usize::MAX);
        fill(&log, 1);
        acknowledged += 1;
    }
    assert!(log.segment_count() > 5);
    drop(log);
    let log = open(dir.path());
    assert_eq!(values_from(&log, 0).len(), acknowledged);
    assert_eq!(log.recovery().truncated_bytes, 0);
    log.close().unwrap();
    assert_eq!(
        values_from(&Log::open(dir.path(), small(), true, 0).unwrap(), 0).len(),
        acknowledged
    );
}

// Broken if it failed: records of an epoch would be on disk that `leader-epoch-checkpoint` does not have.
#[test]
fn an_epoch_that_found_no_space_is_saved_later() {
    let dir = tempfile::tempdir().unwrap();
    let space = Space::unlimited();
    let _watching = watch(dir.path(), space.clone());
    let log = open(dir.path());
    fill(&log, 1);
    space.leave(0);
    let append = || log.append_as_leader(&mut batch_at(1, &[b"v"]), 4, 5);
    append().unwrap_err();
    space.leave(usize::MAX);
    append().unwrap();
    let file = std::fs::read(dir.path().join("leader-epoch-checkpoint")).unwrap();
    assert_eq!(file, b"0\n2\n0 0\n4 1\n");
}

// Broken if it failed: a disk that is full of old records would stay full, because deleting them needs space.
#[test]
fn retention_frees_space_on_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let space = Space::unlimited();
    let _watching = watch(dir.path(), space.clone());
    let log = open(dir.path());
    fill(&log, 60);
    log.update_config(LogConfig {
        retention_ms: 10,
        file_delete_delay_ms: 0,
        ..small()
    });
    let segments = log.segment_count();
    space.leave(0);
    log.maintain(100_000).unwrap();
    assert_eq!(log.segment_count(), 1);
    assert!(segments > 2 && log.log_start_offset() > 0);
    assert!(!names(dir.path()).iter().any(|name| name.ends_with(".deleted")));
    assert!(log.delete_old_segments(100_000).unwrap_err().is_disk_full());
    space.leave(usize::MAX);
    assert_eq!(log.delete_old_segments(100_000).unwrap(), 1);
    assert_eq!(log.log_start_offset(), 60);
    fill(&log, 1);
}

// Broken if it failed: the first append to each new partition would wait for the disk, or a log would lose
// its first epoch or its first segment's name, and keep later ones.
#[test]
fn a_first_epoch_is_flushed_before_what_comes_after_it() {
    #[derive(Default)]
    struct Syncs(Mutex<Vec<String>>);
    impl Watcher for Syncs {
        fn before(&self, change: Change<'_>) -> io::Result<Option<(usize, io::Error)>> {
            if let Change::Sync { path } | Change::SyncDir { path } = change {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                self.0.lock().push(name.into_owned());
            }
            Ok(None)
        }
    }
    let parent = tempfile::tempdir().unwrap();
    let epochs = "leader-epoch-checkpoint".to_owned();
    for rolls in [false, true] {
        let dir = parent.path().join(format!("t-{}", i32::from(rolls)));
        let log = open(&dir);
        let syncs = Arc::new(Syncs::default());
        let _watching = watch(parent.path(), syncs.clone());
        log.append_as_leader(&mut batch_at(1, &[b"v"]), 4, 1).unwrap();
        assert!(log.has_saved_epoch(4));
        assert_eq!(*syncs.0.lock(), [""; 0]);
        let file = std::fs::read(dir.join(&epochs)).unwrap();
        assert_eq!(file, b"0\n1\n4 0\n");
        if rolls {
            log.roll(2).unwrap();
        } else {
            log.flush().unwrap();
        }
        let name = dir.file_name().unwrap().to_string_lossy().into_owned();
        assert_eq!(syncs.0.lock()[..2], [epochs.clone(), name]);
        // Another leader's epoch is on disk before its records.
        syncs.0.lock().clear();
        log.append_as_leader(&mut batch_at(1, &[b"v"]), 5, 1).unwrap();
        assert_eq!(syncs.0.lock()[0], format!("{epochs}.tmp"));
    }
}

// Broken if it failed: a failed fsync would be tried again, and report success.
#[test]
fn an_fsync_without_space_takes_the_log_offline() {
    struct NoSync;
    impl Watcher for NoSync {
        fn before(&self, change: Change<'_>) -> io::Result<Option<(usize, io::Error)>> {
            match change {
                Change::Sync { .. } => Err(rustix::io::Errno::NOSPC.into()),
                _ => Ok(None),
            }
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    fill(&log, 1);
    let _watching = watch(dir.path(), Arc::new(NoSync));
    log.flush().unwrap_err();
    assert!(log.failure().is_some());
}

// Broken if it failed: a marker or a follower's append on a full disk would take the log offline, or leave an
// aborted transaction that is not.
#[test]
fn markers_and_followers_work_again_with_space() {
    let dir = tempfile::tempdir().unwrap();
    let space = Space::unlimited();
    let _watching = watch(dir.path(), space.clone());
    let log = Log::open(dir.path(), transactions::keeps_producers(), false, 0).unwrap();
    for producer in 0..4 {
        transactions::begin(&log, producer, 0, 1);
    }
    for (number, producer) in (0..4).enumerate() {
        // There is no space for the index's file, for its entry, for the marker.
        for left in 0..3 {
            space.leave(left);
            let error = transactions::try_end(&log, producer, false).unwrap_err();
            assert!(error.is_disk_full(), "{error}");
            assert_eq!((log.failure(), log.log_end_offset()), (None, 4 + number as i64));
            assert_eq!(log.active().txn_index().unwrap().entries().len(), number);
        }
        space.leave(usize::MAX);
        transactions::end(&log, producer, false);
    }
    assert_eq!(log.active().txn_index().unwrap().entries().len(), 4);
    let bytes = log
        .read(0, 1 << 20, i64::MAX, true)
        .unwrap()
        .read_to_vec()
        .unwrap();
    log.close().unwrap();
    let reopened = Log::open(dir.path(), transactions::keeps_producers(), true, 8).unwrap();
    assert_eq!(reopened.active().txn_index().unwrap().entries().len(), 4);

    let replica = tempfile::tempdir().unwrap();
    let _watching = watch(replica.path(), space.clone());
    let follower = open(replica.path());
    for left in 0..3 {
        space.leave(left);
        let error = follower.append_as_follower(&bytes, 5).unwrap_err();
        assert!(error.is_disk_full(), "{error}");
        assert_eq!((follower.failure(), follower.log_end_offset()), (None, 0));
    }
    space.leave(usize::MAX);
    follower.append_as_follower(&bytes, 5).unwrap();
    assert_eq!(follower.log_end_offset(), 8);
    assert_eq!(follower.active().txn_index().unwrap().entries().len(), 4);
}

// Broken if it failed: a leader on a full disk that becomes a follower would lose its log until a restart, or
// keep epochs of records that it cut off.
#[test]
fn a_truncation_needs_no_space_for_the_epochs() {
    struct NoEpochs;
    impl Watcher for NoEpochs {
        fn before(&self, change: Change<'_>) -> io::Result<Option<(usize, io::Error)>> {
            let is_epochs = change
                .path()
                .to_string_lossy()
                .contains("leader-epoch-checkpoint");
            if is_epochs && matches!(change, Change::Create { .. } | Change::Write { .. }) {
                return Err(rustix::io::Errno::NOSPC.into());
            }
            Ok(None)
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    for epoch in [1, 2, 3] {
        append_in(&log, epoch);
    }
    let full = watch(dir.path(), Arc::new(NoEpochs));
    assert_eq!(log.truncate_to(1).unwrap(), 1);
    assert_eq!((log.failure(), log.latest_epoch()), (None, Some(1)));
    log.truncate_to(7).unwrap();
    let refused = log.append_as_leader(&mut batch_at(5, &[b"value"]), 4, 5);
    assert!(refused.unwrap_err().is_disk_full());
    drop(full);
    append_in(&log, 5);
    let file = std::fs::read(dir.path().join("leader-epoch-checkpoint")).unwrap();
    assert_eq!(file, b"0\n2\n1 0\n5 1\n");
}

/// A closed log of several segments, with producers, an aborted transaction in a segment before the last, and
/// several epochs. Returns its values, and the results of searches by timestamp.
fn of_everything(dir: &Path) -> (Vec<(i64, Vec<u8>)>, Option<i64>) {
    let log = Log::open(dir, transactions::keeps_producers(), false, 0).unwrap();
    transactions::begin(&log, 7, 0, 2);
    transactions::end(&log, 7, false);
    for epoch in [1, 1, 4] {
        for _ in 0..4 {
            append_in(&log, epoch);
        }
        log.roll(5).unwrap();
    }
    log.append_as_leader(&mut producer_batch(9, 0, 0, 2), 4, 5)
        .unwrap();
    assert!(log.segment_count() > 3);
    let found = (values_from(&log, 0), by_time(&log));
    log.close().unwrap();
    found
}

fn by_time(log: &Log) -> Option<i64> {
    let found = log.offset_for_timestamp(5).unwrap();
    found.map(|found| found.offset)
}

fn append_in(log: &Log, epoch: i32) {
    log.append_as_leader(&mut batch_at(5, &[b"value"]), epoch, 5)
        .unwrap();
}

fn copy_of(dir: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for name in names(dir) {
        std::fs::copy(dir.join(&name), copy.path().join(&name)).unwrap();
    }
    copy
}

// Broken if it failed: a log whose process died on a full disk could not be read, nor free space, until an
// operator made space.
#[test]
fn a_log_is_opened_on_a_full_disk() {
    let original = tempfile::tempdir().unwrap();
    let (values, found) = of_everything(original.path());
    let aborted = |log: &Log| log.aborted_transactions(0, i64::MAX).unwrap().len();
    // All files that can be rebuilt are missing, as after a crash before they were flushed; or only the index
    // files are.
    for (clean, lost) in [
        (
            false,
            &[".index", ".timeindex", ".txnindex", ".snapshot", "checkpoint"][..],
        ),
        (false, &[]),
        (true, &[".index", ".timeindex", ".txnindex"]),
        (true, &[]),
    ] {
        for left in 0..12 {
            let dir = copy_of(original.path());
            let path = dir.path();
            for name in names(path) {
                if lost.iter().any(|suffix| name.ends_with(suffix)) {
                    std::fs::remove_file(path.join(name)).unwrap();
                }
            }
            let space = Space::unlimited();
            let _watching = watch(path, space.clone());
            space.leave(left);
            let log = Log::open(path, transactions::keeps_producers(), clean, 0).unwrap();
            let end = log.log_end_offset();
            assert_eq!((values_from(&log, 0), aborted(&log)), (values.clone(), 1));
            assert_eq!(by_time(&log), found);
            space.leave(0);
            let error = log.append_as_leader(&mut batch_at(5, &[b"v"]), 4, 5).unwrap_err();
            assert!(error.is_disk_full(), "{error}");
            assert_eq!((log.failure(), log.log_end_offset()), (None, end));

            // The process may end before there is space; the recovery point is unchanged.
            let log = if left % 2 == 0 {
                log
            } else {
                drop(log);
                let point = if clean { end } else { 0 };
                let log = Log::open(path, transactions::keeps_producers(), false, point).unwrap();
                assert_eq!((values_from(&log, 0), aborted(&log)), (values.clone(), 1));
                log
            };
            space.leave(usize::MAX);
            log.maintain(5).unwrap();
            // The producer and its last batch are known.
            let again = log
                .append_as_leader(&mut producer_batch(9, 0, 0, 2), 4, 5)
                .unwrap();
            assert!(again.duplicate);
            append_in(&log, 4);
            let expected = values_from(&log, 0);
            assert_eq!(expected.len(), values.len() + 1);
            for number in 0..log.segment_count() {
                let base = log.segments()[number].base_offset;
                assert!(segment_file(path, base, ".index").exists(), "{base} of {left}");
            }
            log.close().unwrap();
            drop(log);
            for clean in [true, false] {
                let log = Log::open(path, transactions::keeps_producers(), clean, 0).unwrap();
                assert_eq!((values_from(&log, 0), aborted(&log)), (expected.clone(), 1));
                assert_eq!((log.latest_epoch(), log.epoch_of(0)), (Some(4), Some(0)));
            }
        }
    }
}

// Broken if it failed: a disk that is full of old records at the start would stay full.
#[test]
fn retention_frees_space_in_a_log_that_was_opened_full() {
    let dir = tempfile::tempdir().unwrap();
    let (values, _) = of_everything(dir.path());
    let space = Space::unlimited();
    let _watching = watch(dir.path(), space.clone());
    space.leave(0);
    let log = Log::open(dir.path(), transactions::keeps_producers(), false, 0).unwrap();
    let segments = log.segment_count();
    log.update_config(LogConfig {
        retention_ms: 10,
        file_delete_delay_ms: 0,
        ..transactions::keeps_producers()
    });
    assert!(log.maintain(100_000).unwrap_err().is_disk_full());
    assert!(
        segments > 2 && log.segment_count() == 1,
        "{}",
        log.segment_count()
    );
    assert!(!names(dir.path()).iter().any(|name| name.ends_with(".deleted")));
    assert_eq!(log.failure(), None);
    space.leave(usize::MAX);
    log.maintain(100_000).unwrap();
    append_in(&log, 4);
    assert!(log.log_end_offset() > values.len() as i64);
    log.close().unwrap();
}
