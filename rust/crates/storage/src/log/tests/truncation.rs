//! Truncation: what is left, what a reader sees, what a crash leaves.

use std::io;
use std::sync::atomic::AtomicUsize;

use super::transactions::{begin, end, keeps_producers};
use super::*;
use crate::files::disk::Change;
use crate::files::disk::watch::{Watcher, watch};
use crate::log::TruncationPoint;

fn offsets(log: &Log) -> (i64, i64, i64, i64) {
    (
        log.log_start_offset(),
        log.recovery_point(),
        log.high_watermark(),
        log.log_end_offset(),
    )
}

// Broken if it failed: a follower would keep records that its leader does not have, or lose some that it has.
#[test]
fn a_truncated_log_is_a_prefix() {
    let dir = tempfile::tempdir().unwrap();
    for target in (0..100).step_by(13) {
        let log = open(dir.path());
        log.truncate_fully_and_start_at(0, None).unwrap();
        fill(&log, 100);
        log.flush().unwrap();
        let before = values_from(&log, 0);
        assert_eq!(log.truncate_to(target).unwrap(), target);
        assert_eq!(offsets(&log), (0, target, target, target));
        assert_eq!(values_from(&log, 0), before[..target as usize]);
        let newest = log.max_timestamp().unwrap().map(|found| found.offset);
        assert_eq!(newest, (target > 0).then_some(target - 1));
        assert!(log.read(target + 1, 10, i64::MAX, true).is_err());
        fill(&log, 100);
        let all = values_from(&log, 0);
        assert_eq!(all.len() as i64, target + 100);
        for offset in 0..target {
            let found = log.offset_for_timestamp(1000 + offset).unwrap().unwrap();
            assert!(found.offset <= offset);
        }
        assert_eq!(
            log.max_timestamp().unwrap().unwrap().timestamp,
            1099.max(999 + target)
        );
        drop(log);
        let again = open(dir.path());
        assert_eq!(again.recovery().reason, None);
        assert_eq!(values_from(&again, 0), all);
        again.close().unwrap();
        drop(again);
        let again = Log::open(dir.path(), small(), true, 0).unwrap();
        assert_eq!(values_from(&again, 0), all);
        again.close().unwrap();
    }
}

// Broken if it failed: a part of a batch would stay, or its offsets would be lost.
#[test]
fn a_batch_is_truncated_whole() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    for _ in 0..3 {
        log.append_as_leader(&mut batch_at(1, &[b"a", b"b", b"c", b"d"]), 0, 0)
            .unwrap();
    }
    assert_eq!(log.truncate_to(7).unwrap(), 4);
    assert_eq!(values_from(&log, 0).len(), 4);
    assert_eq!(log.truncate_to(4).unwrap(), 4);
    assert_eq!(log.truncate_to(400).unwrap(), 4);
    assert!(log.truncate_to(-1).is_err());
    assert_eq!(log.failure(), None);
    // Below the log's first segment: nothing is left, and the log continues there.
    log.truncate_fully_and_start_at(50, None).unwrap();
    fill(&log, 3);
    assert_eq!(log.truncate_to(20).unwrap(), 20);
    assert_eq!(offsets(&log).0, 20);
    fill(&log, 1);
    assert_eq!(values_from(&log, 20).len(), 1);
    log.truncate_fully_and_start_at(70, Some(60)).unwrap();
    assert_eq!(offsets(&log), (60, 0, 70, 70));
}

// Broken if it failed: a follower of a compacted topic whose log was truncated between two batches, and whose
// next batch a power loss tore, would report damage.
#[test]
fn a_torn_batch_after_a_gap_is_cut() {
    for first in [0, 5] {
        let dir = tempfile::tempdir().unwrap();
        let log = open(dir.path());
        let at = |offset| {
            let mut bytes = batch_at(1, &[b"a"]);
            logcore_records::set_offsets_in_place(&mut bytes, offset, 0);
            bytes
        };
        if first > 0 {
            log.append_as_follower(&at(first - 1), 0).unwrap();
        }
        log.append_as_follower(&at(30), 0).unwrap();
        log.flush().unwrap();
        assert_eq!(log.truncate_to(20).unwrap(), 20);
        assert_eq!((log.recovery_point(), log.log_end_offset()), (20, 20));
        log.append_as_follower(&at(20), 0).unwrap();
        drop(log);
        let path = files::segment_file(dir.path(), 20, files::LOG_SUFFIX);
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        file.set_len(40).unwrap();
        let again = Log::open(dir.path(), small(), false, 20).unwrap();
        assert_eq!(again.recovery().truncated_bytes, 40);
        assert_eq!((again.log_start_offset(), again.log_end_offset()), (0, 20));
        again.append_as_follower(&at(20), 0).unwrap();
        let found = again.read(first, 500, i64::MAX, true).unwrap();
        assert_eq!((found.base_offset, found.len), (20, at(20).len() as u64));
    }
}

// Broken if it failed: after a truncation, producers would have batches that are gone, epochs would belong to
// leaders that wrote nothing, and transactions would stay open or aborted.
#[test]
fn producers_epochs_and_transactions_are_truncated_too() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), keeps_producers(), false, 0).unwrap();
    begin(&log, 1, 0, 1);
    begin(&log, 2, 0, 1);
    end(&log, 2, false);
    end(&log, 1, false);
    begin(&log, 1, 1, 2);
    log.roll(0).unwrap();
    log.append_as_leader(&mut producer_batch(3, 0, 0, 1), 4, 0)
        .unwrap();
    end(&log, 1, false);
    begin(&log, 2, 1, 1);
    log.close().unwrap();
    drop(log);
    let log = Log::open(dir.path(), keeps_producers(), true, 0).unwrap();
    assert_eq!((log.log_end_offset(), log.last_stable_offset()), (9, 8));
    let found = log.aborted_transactions(0, 9).unwrap();
    assert_eq!(found.len(), 3);
    assert_eq!(log.truncate_to(7).unwrap(), 7);
    assert_eq!(log.last_stable_offset(), 4);
    assert_eq!(log.aborted_transactions(0, 9).unwrap(), found[..2]);
    assert_eq!((log.producer_count(), log.latest_epoch()), (3, Some(4)));
    assert_eq!(log.truncate_to(6).unwrap(), 6);
    assert_eq!((log.producer_count(), log.latest_epoch()), (2, Some(0)));
    assert_eq!(log.truncate_to(3).unwrap(), 3);
    assert_eq!(log.last_stable_offset(), 0);
    assert_eq!(log.aborted_transactions(0, 9).unwrap(), found[..1]);
    let kept = names(dir.path());
    assert!(!kept.iter().any(|name| name.ends_with(".snapshot")), "{kept:?}");
    // The retry of a truncated batch is no duplicate.
    assert!(
        !log.append_as_leader(&mut producer_batch(3, 0, 0, 1), 4, 0)
            .unwrap()
            .duplicate
    );
    end(&log, 1, true);
    assert_eq!(log.last_stable_offset(), 5);
    // An epoch in which nothing was written.
    assert_eq!(log.truncate_to(100).unwrap(), 5);
    log.truncate_fully_and_start_at(9, None).unwrap();
    assert_eq!((log.producer_count(), log.latest_epoch()), (0, None));
    assert_eq!(log.last_stable_offset(), 9);
}

// Broken if it failed: two logs with different records at an offset would count as equal.
#[test]
fn the_truncation_point_follows_from_the_epochs() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    for epoch in [1, 1, 3, 3, 3, 5] {
        log.append_as_leader(&mut batch_at(1, &[b"v"]), epoch, 0).unwrap();
    }
    let point = |epoch, end| {
        let TruncationPoint { offset, complete } = log.truncation_point(epoch, end);
        (offset, complete)
    };
    assert_eq!(point(5, 9), (6, true));
    assert_eq!(point(3, 4), (4, true));
    assert_eq!(point(3, 9), (5, true));
    // This log does not have the leader's epoch: it goes back to the one before and asks again.
    assert_eq!(point(4, 5), (5, false));
    assert_eq!(point(2, 7), (2, false));
    assert_eq!(point(7, 4), (4, true));
}

// Broken if it failed: a truncation beside readers would crash the process, give them damage, or be taken for
// damage.
#[test]
fn readers_beside_truncations() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    fill(&log, 100);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for reader in 0..3 {
            let (log, done) = (&log, &done);
            scope.spawn(move || {
                let mut offset = reader * 31;
                while !done.load(Ordering::Acquire) {
                    offset = (offset + 7) % 110;
                    match log.read(offset, 700, i64::MAX, true) {
                        // What was truncated since may be missing: the read is short, without a panic.
                        Ok(slice) => {
                            assert!(slice.read_to_vec().unwrap().len() as u64 <= slice.len)
                        }
                        Err(StorageError::OffsetOutOfRange { .. }) => {}
                        Err(other) => panic!("{other}"),
                    }
                    log.offset_for_timestamp(1000 + offset).unwrap();
                    log.max_timestamp().unwrap();
                    if reader == 0 {
                        log.flush().unwrap();
                    }
                }
            });
        }
        for round in 0..60 {
            let target = 99 - round * 17 % 99;
            log.truncate_to(target).unwrap();
            assert!(log.recovery_point() <= target);
            fill(&log, 100 - target as usize);
        }
        done.store(true, Ordering::Release);
    });
    assert_eq!(log.failure(), None);
    assert_eq!(values_from(&log, 0).len(), 100);
}

/// Lets so many changes through and then none.
struct DiesAfter(AtomicUsize);

impl Watcher for DiesAfter {
    fn before(&self, _: Change<'_>) -> io::Result<Option<(usize, io::Error)>> {
        let left = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        left.map(|_| None)
            .map_err(|_| io::Error::other("the process is dead"))
    }
}

// Broken if it failed: a crash during a truncation would leave a gap, bring back truncated records among
// later ones, or leave a log that cannot be opened.
#[test]
fn a_crash_at_any_step_leaves_a_prefix_of_the_log() {
    let mut steps = 0;
    loop {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path(), keeps_producers(), false, 0).unwrap();
        begin(&log, 1, 0, 3);
        fill(&log, 60);
        end(&log, 1, false);
        fill(&log, 20);
        let values = values_of(&log);
        let target = 21;
        let watching = watch(dir.path(), Arc::new(DiesAfter(AtomicUsize::new(steps))));
        let result = log.truncate_to(target);
        drop(log);
        drop(watching);
        // The directory has lowered its recovery point before.
        let log = Log::open(dir.path(), keeps_producers(), false, target).unwrap();
        let end = log.log_end_offset();
        assert!(end >= target, "{steps}: {end}");
        assert_eq!(values_of(&log), values[..end as usize], "{steps}");
        let aborted = log.aborted_transactions(0, end).unwrap();
        assert_eq!(aborted.len(), usize::from(end > 63), "{steps}");
        if end <= 63 {
            assert_eq!(log.last_stable_offset(), 0, "{steps}");
        }
        fill(&log, 5);
        log.close().unwrap();
        let log = Log::open(dir.path(), keeps_producers(), true, 0).unwrap();
        assert_eq!(values_of(&log).len() as i64, end + 5, "{steps}");
        if result.is_ok() {
            assert_eq!(end, target);
            assert!(steps > 10, "{steps}");
            return;
        }
        steps += 1;
    }
}

/// [`values_from`] the start, with the values of markers.
fn values_of(log: &Log) -> Vec<(i64, Vec<u8>)> {
    values_from(log, 0)
}
