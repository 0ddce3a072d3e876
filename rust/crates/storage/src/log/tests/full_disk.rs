//! A disk without space: appends are refused, nothing else is, and all is well once there is space again.

use std::io;
use std::sync::atomic::AtomicUsize;

use super::*;
use crate::disk::Change;
use crate::disk::watch::{Watcher, watch};

/// Takes so many more changes that need space, and then none.
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

// Broken if it failed: a full disk would stop a log until somebody restarts it, lose what was acknowledged, or leave half
// a batch in the middle of a file.
#[test]
fn appends_are_refused_until_there_is_space() {
    let dir = tempfile::tempdir().unwrap();
    let space = Space::unlimited();
    let _watching = watch(dir.path(), space.clone());
    let log = open(dir.path());
    let mut acknowledged = 0;
    for round in 0..60 {
        // The disk fills up at another place of an append each time, also while a segment is rolled.
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
        assert_eq!(
            (log.failure(), log.log_end_offset()),
            (None, acknowledged as i64)
        );
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

// Broken if it failed: records of an epoch would be on disk that `leader-epoch-checkpoint` does not know.
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

// Broken if it failed: a disk that is full of old records would stay so, because deleting them needs space.
#[test]
fn retention_makes_space_on_a_full_disk() {
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
    assert!(
        !names(dir.path())
            .iter()
            .any(|name| name.ends_with(".deleted"))
    );
    assert!(log.delete_old_segments(100_000).unwrap_err().is_disk_full());
    space.leave(usize::MAX);
    assert_eq!(log.delete_old_segments(100_000).unwrap(), 1);
    assert_eq!(log.log_start_offset(), 60);
    fill(&log, 1);
}

// Broken if it failed: a failed fsync would be tried again and lie, whatever its reason.
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

// Broken if it failed: a marker, or what a follower fetches, that meets a full disk would stop the log, or leave an aborted
// transaction that is not.
#[test]
fn markers_and_followers_wait_for_space() {
    let dir = tempfile::tempdir().unwrap();
    let space = Space::unlimited();
    let _watching = watch(dir.path(), space.clone());
    let log = Log::open(dir.path(), transactions::keeps_producers(), false, 0).unwrap();
    for producer in 0..4 {
        transactions::begin(&log, producer, 0, 1);
    }
    for (number, producer) in (0..4).enumerate() {
        // The index's file finds none, its entry, the marker itself.
        for left in 0..3 {
            space.leave(left);
            let error = transactions::try_end(&log, producer, false).unwrap_err();
            assert!(error.is_disk_full(), "{error}");
            assert_eq!(
                (log.failure(), log.log_end_offset()),
                (None, 4 + number as i64)
            );
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
