//! A log that follows another, the high watermark, and appends that share an fsync.

use std::io;

use parking_lot::Condvar;

use super::transactions::{begin, end, keeps_producers};
use super::*;
use crate::files::disk::Change;
use crate::files::disk::watch::{Watcher, watch};

/// Copies what `follower` lacks, fetch by fetch, with cut-off batches at the end as in a fetch.
fn catch_up(leader: &Log, follower: &Log, max_bytes: u64) {
    while follower.log_end_offset() < leader.log_end_offset() {
        let from = follower.log_end_offset();
        let slice = leader.read(from, max_bytes, i64::MAX, true).unwrap();
        let appended = follower
            .append_as_follower(&slice.read_to_vec().unwrap(), 0)
            .unwrap();
        assert_eq!(appended.first_offset, from);
        assert_eq!(appended.last_offset + 1, follower.log_end_offset());
    }
}

fn assert_same(leader: &Log, follower: &Log) {
    let end = leader.log_end_offset();
    assert_eq!(follower.log_end_offset(), end);
    let bytes = |log: &Log| {
        let mut bytes = Vec::new();
        let mut offset = 0;
        while offset < end {
            let slice = log.read(offset, 1 << 20, i64::MAX, true).unwrap();
            let part = slice.read_whole_batches().unwrap();
            offset = batches(&part).last().unwrap().unwrap().header.next_offset();
            bytes.extend(part);
        }
        bytes
    };
    assert!(bytes(leader) == bytes(follower), "the records differ");
    assert_eq!(
        leader.aborted_transactions(0, end).unwrap(),
        follower.aborted_transactions(0, end).unwrap()
    );
    assert_eq!(leader.producer_count(), follower.producer_count());
    for epoch in 0..5 {
        assert_eq!(leader.epoch_end_offset(epoch), follower.epoch_end_offset(epoch));
    }
}

// Broken if it failed: a replica would differ from its leader, or lack state when it leads.
#[test]
fn a_follower_becomes_its_leader() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let leader = Log::open(dirs[0].path(), keeps_producers(), false, 0).unwrap();
    let follower = Log::open(dirs[1].path(), keeps_producers(), false, 0).unwrap();
    follower.set_replicated(0);
    for round in 0..30 {
        begin(&leader, 1, round * 2, 2);
        begin(&leader, 2, round, 1);
        leader
            .append_as_leader(&mut batch_at(round.into(), &[b"v"]), round / 8, 0)
            .unwrap();
        end(&leader, 2, round % 3 > 0);
        end(&leader, 1, round % 2 > 0);
        if round % 4 == 0 {
            catch_up(&leader, &follower, 333);
        }
    }
    begin(&leader, 1, 60, 2);
    catch_up(&leader, &follower, 4000);
    assert_same(&leader, &follower);
    assert!(follower.segment_count() > 3);
    // Appending does not move the high watermark.
    assert_eq!((follower.high_watermark(), follower.last_stable_offset()), (0, 0));
    let stable = leader.last_stable_offset();
    assert_eq!(follower.set_high_watermark(i64::MAX), leader.log_end_offset());
    assert_eq!(follower.last_stable_offset(), stable);
    drop(follower);
    let follower = Log::open(dirs[1].path(), keeps_producers(), false, 0).unwrap();
    assert_same(&leader, &follower);
    assert_eq!(follower.last_stable_offset(), stable);
    end(&follower, 1, true);
    assert_eq!(follower.last_stable_offset(), follower.log_end_offset());
    // The old leader follows now.
    let end = leader.log_end_offset();
    leader
        .append_as_leader(&mut batch_at(1, &[b"never replicated"]), 3, 0)
        .unwrap();
    leader.set_replicated(end);
    assert_eq!(leader.truncate_to(end).unwrap(), end);
    catch_up(&follower, &leader, 1 << 20);
    assert_same(&follower, &leader);
}

fn at_offset(mut bytes: Vec<u8>, offset: i64, epoch: i32) -> Vec<u8> {
    logcore_records::set_offsets_in_place(&mut bytes, offset, epoch);
    bytes
}

// Broken if it failed: a replica would append batches that do not continue its log, or damaged ones.
#[test]
fn a_follower_refuses_what_does_not_continue_its_log() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let at = |offset, epoch| at_offset(batch_at(1, &[b"a", b"b"]), offset, epoch);
    assert_eq!(log.append_as_follower(b"", 0).unwrap().last_offset, -1);
    assert_eq!(log.append_as_follower(&at(0, 0)[..60], 0).unwrap().bytes, 0);
    // A compacted leader has gaps.
    log.append_as_follower(&at(5, 2), 0).unwrap();
    assert_eq!((log.log_end_offset(), log.latest_epoch()), (7, Some(2)));
    let refused = |bytes: &[u8]| {
        let error = log.append_as_follower(bytes, 0).unwrap_err();
        assert_eq!((log.log_end_offset(), log.failure()), (7, None), "{error}");
        error
    };
    assert!(matches!(
        refused(&at(6, 2)),
        StorageError::UnexpectedAppendOffset {
            first_offset: 6,
            last_offset: 7,
            log_end: 7,
        }
    ));
    let back = [at(9, 2), at(10, 2)].concat();
    assert!(matches!(
        refused(&back),
        StorageError::InvalidRecord { position: 70.., .. }
    ));
    assert!(matches!(refused(&at(7, 1)), StorageError::InvalidRecord { .. }));
    let mut damaged = at(7, 2);
    *damaged.last_mut().unwrap() ^= 1;
    assert!(matches!(refused(&damaged), StorageError::CorruptBatch { .. }));
    assert!(matches!(refused(&[0xff; 100]), StorageError::CorruptBatch { .. }));
    let large = at_offset(batch_at(1, &[&[0; 3000]]), 7, 2);
    assert!(matches!(refused(&large), StorageError::AppendTooLarge { .. }));
    // More than a segment, of batches that fit; and offsets that are too far apart for one.
    let many: Vec<u8> = (0..60).flat_map(|n| at(7 + 2 * n, 2)).collect();
    log.append_as_follower(&many, 0).unwrap();
    assert_eq!(log.log_end_offset(), 127);
    let far = [at(1 << 40, 3), at(1 << 41, 4)].concat();
    log.append_as_follower(&far, 0).unwrap();
    assert_eq!(log.first_segment_offset(), 0);
    let whole = log.size_bytes();
    drop(log);
    let log = open(dir.path());
    assert_eq!(
        (log.log_end_offset(), log.recovery().truncated_bytes),
        ((1 << 41) + 2, 0)
    );
    assert_eq!(log.size_bytes(), whole);
    assert_eq!(log.read(127, 1, i64::MAX, true).unwrap().base_offset, 1 << 40);
    assert_eq!(log.epoch_end_offset(3), Some((3, 1 << 41)));
}

// Broken if it failed: consumers would see records that may be lost with their leader, or none.
#[test]
fn the_high_watermark_is_set_by_the_leader() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    fill(&log, 10);
    assert_eq!(log.high_watermark(), 10);
    log.set_replicated(4);
    fill(&log, 10);
    assert_eq!(log.high_watermark(), 4);
    assert_eq!(log.set_high_watermark(15), 15);
    assert_eq!(log.set_high_watermark(12), 15);
    assert_eq!(log.set_high_watermark(21), 20);
    begin(&log, 1, 0, 2);
    end(&log, 1, false);
    log.set_high_watermark(21);
    assert_eq!(log.last_stable_offset(), 20);
    // The marker is in the log, but not on all replicas.
    log.set_high_watermark(22);
    assert_eq!(log.last_stable_offset(), 20);
    log.set_high_watermark(23);
    assert_eq!(log.last_stable_offset(), 23);
    assert!(log.advance_log_start_offset(24).is_err());
    fill(&log, 1);
    assert_eq!(log.high_watermark(), 23);
    log.truncate_to(21).unwrap();
    assert_eq!((log.high_watermark(), log.last_stable_offset()), (20, 20));
    fill(&log, 1);
    assert_eq!(log.high_watermark(), 20);
    log.set_unreplicated();
    assert_eq!(log.high_watermark(), 21);
    fill(&log, 1);
    assert_eq!(log.high_watermark(), 22);
}

/// Blocks every fsync of a `.log` file until it is released, and counts them.
#[derive(Default)]
struct SlowDisk {
    state: Mutex<Syncs>,
    changed: Condvar,
}

#[derive(Default)]
struct Syncs {
    begun: usize,
    release: usize,
    fail: bool,
}

impl SlowDisk {
    fn wait_for(&self, begun: usize) {
        let mut state = self.state.lock();
        while state.begun < begun {
            self.changed.wait(&mut state);
        }
    }

    fn release(&self, count: usize) {
        self.state.lock().release += count;
        self.changed.notify_all();
    }
}

impl Watcher for SlowDisk {
    fn before(&self, change: Change<'_>) -> io::Result<Option<(usize, io::Error)>> {
        let Change::Sync { path } = change else {
            return Ok(None);
        };
        if path.extension().is_none_or(|extension| extension != "log") {
            return Ok(None);
        }
        let mut state = self.state.lock();
        state.begun += 1;
        let mine = state.begun;
        self.changed.notify_all();
        while state.release < mine {
            self.changed.wait(&mut state);
        }
        if state.fail {
            return Err(io::Error::other("the disk is broken"));
        }
        Ok(None)
    }
}

fn syncs_every(flush_messages: i64, dir: &Path) -> Log {
    let config = LogConfig {
        flush_messages,
        ..small()
    };
    Log::open(dir, config, false, 0).unwrap()
}

fn syncs_each(dir: &Path) -> Log {
    syncs_every(1, dir)
}

// Broken if it failed: with `flush.messages=1`, records that a power loss can remove would be acknowledged or
// shown, or each append would wait for all earlier fsyncs.
#[test]
fn appends_that_wait_share_an_fsync() {
    let dir = tempfile::tempdir().unwrap();
    let log = syncs_each(dir.path());
    let disk = Arc::new(SlowDisk::default());
    let _watching = watch(dir.path(), disk.clone());
    let acknowledged = AtomicI64::new(0);
    std::thread::scope(|scope| {
        let append = || {
            log.append_as_leader(&mut batch_at(1, &[b"v"]), 0, 0).unwrap();
            acknowledged.fetch_add(1, Ordering::AcqRel);
        };
        scope.spawn(append);
        disk.wait_for(1);
        for _ in 0..6 {
            scope.spawn(append);
        }
        // They are in the log while the first waits for the disk, so the lock is free.
        while log.log_end_offset() < 7 {
            std::thread::yield_now();
        }
        assert_eq!(acknowledged.load(Ordering::Acquire), 0);
        assert_eq!((log.high_watermark(), log.recovery_point()), (0, 0));
        disk.release(1);
        disk.wait_for(2);
        assert!(log.recovery_point() < 7);
        disk.release(1);
    });
    assert_eq!(acknowledged.load(Ordering::Acquire), 7);
    assert_eq!(disk.state.lock().begun, 2);
    assert_eq!((log.high_watermark(), log.recovery_point()), (7, 7));
}

// Broken if it failed: with a larger `flush.messages`, any number of records that a power loss can remove
// would be acknowledged while one fsync runs, or each append would wait for its own fsync.
#[test]
fn an_append_waits_with_an_earlier_one_that_waits_for_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let log = syncs_every(3, dir.path());
    let disk = Arc::new(SlowDisk::default());
    let _watching = watch(dir.path(), disk.clone());
    let acknowledged = AtomicI64::new(0);
    std::thread::scope(|scope| {
        let append = || {
            log.append_as_leader(&mut batch_at(1, &[b"v"]), 0, 0).unwrap();
            acknowledged.fetch_add(1, Ordering::AcqRel);
        };
        append();
        append();
        assert_eq!((log.high_watermark(), log.recovery_point()), (2, 0));
        scope.spawn(append);
        disk.wait_for(1);
        for _ in 0..2 {
            scope.spawn(append);
        }
        while log.log_end_offset() < 5 {
            std::thread::yield_now();
        }
        // An append that need not wait has shown its records before it gives up the lock.
        drop(log.writer.lock());
        let seen = (log.high_watermark(), acknowledged.load(Ordering::Acquire));
        disk.release(1);
        assert_eq!(seen, (2, 2));
    });
    // Those two were too few for an fsync.
    assert_eq!((log.high_watermark(), log.recovery_point()), (5, 3));
    assert_eq!(disk.state.lock().begun, 1);
    disk.release(1);
    fill(&log, 1);
    assert_eq!((log.high_watermark(), log.recovery_point()), (6, 6));
}

// Broken if it failed: a process that restarts again and again could leave any number of acknowledged records
// unflushed.
#[test]
fn records_that_an_earlier_process_did_not_flush_count() {
    let dir = tempfile::tempdir().unwrap();
    for end in 1..=2 {
        let log = syncs_every(3, dir.path());
        fill(&log, 1);
        assert_eq!((log.log_end_offset(), log.recovery_point()), (end, 0));
    }
    let log = syncs_every(3, dir.path());
    fill(&log, 1);
    assert_eq!(log.recovery_point(), 3);
}

// Broken if it failed: a retry would be acknowledged while a power loss can still remove the first append.
#[test]
fn a_retry_waits_for_the_first_append() {
    let dir = tempfile::tempdir().unwrap();
    let log = syncs_each(dir.path());
    let disk = Arc::new(SlowDisk::default());
    let _watching = watch(dir.path(), disk.clone());
    let retrying = AtomicBool::new(false);
    let append = || {
        let appended = log.append_as_leader(&mut producer_batch(1, 0, 0, 2), 0, 0);
        assert!(log.recovery_point() >= 2, "acknowledged too early");
        appended.unwrap()
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(append);
        disk.wait_for(1);
        let retry = scope.spawn(|| {
            retrying.store(true, Ordering::Release);
            append()
        });
        // Taking the lock after the retry has begun gives it time to be acknowledged too early.
        while !retrying.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let other = scope.spawn(|| log.append_as_leader(&mut batch_at(1, &[b"other"]), 0, 0));
        while log.log_end_offset() < 3 {
            std::thread::yield_now();
        }
        disk.release(usize::MAX / 2);
        assert!(!first.join().unwrap().duplicate);
        let retry = retry.join().unwrap();
        assert_eq!((retry.first_offset, retry.duplicate), (0, true));
        other.join().unwrap().unwrap();
    });
    // What is on disk is acknowledged again without an fsync.
    let begun = disk.state.lock().begun;
    assert!(append().duplicate);
    assert_eq!(disk.state.lock().begun, begun);
}

// Broken if it failed: a second fsync after a failed one would be believed, and lost records be acknowledged.
#[test]
fn a_failed_fsync_fails_all_appends_that_wait() {
    let dir = tempfile::tempdir().unwrap();
    let log = syncs_each(dir.path());
    fill(&log, 3);
    let disk = Arc::new(SlowDisk::default());
    let _watching = watch(dir.path(), disk.clone());
    std::thread::scope(|scope| {
        let append = || log.append_as_leader(&mut batch_at(1, &[b"v"]), 0, 0).unwrap_err();
        scope.spawn(append);
        disk.wait_for(1);
        for _ in 0..4 {
            scope.spawn(append);
        }
        while log.log_end_offset() < 8 {
            std::thread::yield_now();
        }
        disk.state.lock().fail = true;
        disk.release(1);
    });
    assert_eq!(disk.state.lock().begun, 1);
    assert_eq!((log.high_watermark(), log.recovery_point()), (3, 3));
    assert!(log.failure().is_some());
}

// Broken if it failed: an append would be acknowledged after a new leader truncated it.
#[test]
fn an_append_that_is_truncated_while_it_waits_is_not_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let log = syncs_each(dir.path());
    fill(&log, 3);
    let disk = Arc::new(SlowDisk::default());
    let watching = watch(dir.path(), disk.clone());
    let results = std::thread::scope(|scope| {
        let append = || log.append_as_leader(&mut batch_at(1, &[b"v"]), 0, 0);
        let first = scope.spawn(append);
        disk.wait_for(1);
        let second = scope.spawn(append);
        while log.log_end_offset() < 5 {
            std::thread::yield_now();
        }
        let cut = scope.spawn(|| log.truncate_to(3));
        // Whichever of the two comes first: the other fsyncs are released.
        disk.release(usize::MAX / 2);
        cut.join().unwrap().unwrap();
        [first.join().unwrap(), second.join().unwrap()]
    });
    drop(watching);
    for result in results {
        match result {
            // On disk, and truncated after that.
            Ok(_) => {}
            Err(StorageError::Truncated { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(
        (log.log_end_offset(), log.high_watermark(), log.recovery_point()),
        (3, 3, 3)
    );
    fill(&log, 1);
    assert_eq!((log.log_end_offset(), log.high_watermark()), (4, 4));
}

proptest::proptest! {
    // Broken if it failed: batches of a defective or hostile leader would cause a panic, or a log that cannot
    // be opened.
    #[test]
    fn whatever_a_leader_sends(
        at in proptest::collection::vec(
            (proptest::prelude::any::<u16>(), proptest::prelude::any::<u8>()), 0..4,
        ),
        offset in proptest::prop_oneof![0i64..20, i64::MAX - 3..=i64::MAX],
        cut in 0usize..300,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let log = open(dir.path());
        let mut bytes = at_offset(producer_batch(1, 0, 0, 2), offset, 1);
        bytes.extend(at_offset(batch_at(5, &[b"x", b"y"]), offset.saturating_add(2), 1));
        for (position, change) in at {
            let position = usize::from(position) % bytes.len();
            bytes[position] ^= change;
        }
        bytes.truncate(bytes.len() - cut.min(bytes.len()));
        let result = log.append_as_follower(&bytes, 0);
        let end = log.log_end_offset();
        if let Ok(appended) = result {
            assert_eq!(appended.last_offset + 1, end);
        } else {
            assert_eq!((end, log.failure()), (0, None));
        }
        drop(log);
        let log = open(dir.path());
        assert_eq!((log.log_end_offset(), &log.recovery().reason), (end, &None));
    }
}
