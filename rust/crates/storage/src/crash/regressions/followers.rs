//! Logs with transactions, followers, and compaction.

use std::io;
use std::sync::Arc;

use logcore_records::{BatchBuilder, Compression, EndTxnMarker, end_txn_marker, set_offsets_in_place};

use super::*;
use crate::files::checkpoints::HIGH_WATERMARK_FILE;
use crate::files::disk::Change;
use crate::files::disk::watch::{Watcher, watch};
use crate::log::loader::LastKnown;
use crate::log_dir::Opening;

/// A batch of one record with a key; in a transaction unless the producer id is -1.
fn keyed(producer_id: i64, sequence: i32) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Compression::None, None);
    if producer_id >= 0 {
        builder.set_producer_state(producer_id, 0, sequence);
        builder.set_transactional(true);
    }
    builder.append(1000, Some(b"k"), Some(b"v"), &[]).unwrap();
    builder.build().unwrap()
}

fn write(log: &Log, producer_id: i64, sequence: i32) {
    let mut batch = keyed(producer_id, sequence);
    log.append_as_leader(&mut batch, 0, 5000).unwrap();
}

fn end(log: &Log, producer_id: i64, committed: bool) {
    let marker = EndTxnMarker {
        committed,
        coordinator_epoch: 0,
    };
    let mut batch = end_txn_marker(producer_id, 0, marker, 1000).unwrap();
    log.append_as_coordinator(&mut batch, 0, 5000).unwrap();
}

/// A batch of another log.
fn led(offset: i64, epoch: i32) -> Vec<u8> {
    let mut batch = batch(1000, -1, 0);
    set_offsets_in_place(&mut batch, offset, epoch);
    batch
}

// Broken if it failed: after a truncation, readers of committed records would wait for ever for a transaction
// whose marker is below the log start.
#[test]
fn a_marker_before_the_logs_start_ends_its_transaction() {
    let dir = scratch();
    let log = Log::open(dir.path(), small(), true, 0).unwrap();
    write(&log, 7, 0);
    // The snapshot has the transaction as open.
    log.roll(0).unwrap();
    end(&log, 7, true);
    fill(&log, 4);
    log.advance_log_start_offset(4).unwrap();
    log.truncate_to(5).unwrap();
    assert_eq!((log.log_end_offset(), log.last_stable_offset()), (5, 5));
    drop(log);
    let known = LastKnown {
        log_start_offset: 4,
        ..LastKnown::default()
    };
    let log = Log::open_with(dir.path(), small(), known).unwrap();
    assert_eq!(log.last_stable_offset(), 5);
}

// Broken if it failed: after a power loss a committed transaction would be aborted, because a truncated
// marker aborted it.
#[test]
fn what_was_cut_from_a_transaction_index_stays_so() {
    let (before, disk, after) = disks();
    let path = before.path().join("t-0");
    let log = Log::open(&path, small(), true, 0).unwrap();
    write(&log, 7, 0);
    end(&log, 7, false);
    log.roll(0).unwrap();
    log.flush().unwrap();
    log.truncate_to(1).unwrap();
    end(&log, 7, true);
    log.roll(0).unwrap();
    log.flush().unwrap();
    disk.lose_all_but_the_certain(after.path());
    let log = Log::open(&after.path().join("t-0"), small(), false, 2).unwrap();
    assert_eq!(log.log_end_offset(), 2);
    assert_eq!(log.aborted_transactions(0, 2).unwrap(), []);
}

// Broken if it failed: a reader of committed records would get aborted ones after a power loss that follows a
// rebuild of the segment's indexes.
#[test]
fn a_transaction_index_built_anew_is_on_disk() {
    let (before, after) = (scratch(), scratch());
    let path = before.path().join("t-0");
    let log = Log::open(&path, small(), true, 0).unwrap();
    write(&log, 7, 0);
    end(&log, 7, false);
    log.roll(0).unwrap();
    log.close().unwrap();
    drop(log);
    fs::remove_file(segment_file(&path, 0, INDEX_SUFFIX)).unwrap();
    let disk = FaultyDisk::new(before.path(), 1);
    let aborted = |path: &Path| {
        let log = Log::open(path, small(), false, 2).unwrap();
        log.aborted_transactions(0, 2).unwrap().len()
    };
    assert_eq!(aborted(&path), 1);
    disk.lose_all_but_the_certain(after.path());
    assert_eq!(aborted(&after.path().join("t-0")), 1);
}

// Broken if it failed: after a restart or a truncation, a follower would show the records of a transaction
// whose decision may still be lost with its leader.
#[test]
fn a_decision_that_is_not_replicated_keeps_readers_back() {
    let dir = scratch();
    let log = Log::open(dir.path(), small(), true, 0).unwrap();
    log.set_replicated(0);
    write(&log, 7, 0);
    end(&log, 7, true);
    fill(&log, 2);
    log.set_high_watermark(1);
    assert_eq!(log.last_stable_offset(), 0);
    log.truncate_to(3).unwrap();
    assert_eq!(log.last_stable_offset(), 0);
    log.close().unwrap();
    for clean_shutdown in [true, false] {
        let known = LastKnown {
            clean_shutdown,
            high_watermark: Some(1),
            ..LastKnown::default()
        };
        let log = Log::open_with(dir.path(), small(), known).unwrap();
        assert_eq!((log.high_watermark(), log.last_stable_offset()), (1, 0));
        log.set_high_watermark(2);
        assert_eq!(log.last_stable_offset(), 2);
    }
}

// Broken if it failed: a partition that is created again would show records that are not on all replicas,
// because the deleted one had a higher high watermark.
#[test]
fn a_partition_created_again_inherits_no_high_watermark() {
    let dir = scratch();
    let open = || {
        let opening = Opening {
            replicated: true,
            ..Opening::new(&|_: &str| small())
        };
        LogDir::open_with(dir.path(), 1, Some("cluster"), &opening).unwrap()
    };
    drop(open());
    // The process ended between the checkpoints of a deletion.
    fs::write(dir.path().join(HIGH_WATERMARK_FILE), "0\n1\nt 0 77\n").unwrap();
    let logs = open();
    let log = logs.create("t", 0, [7; 16], small()).unwrap().log.clone();
    fill(&log, 3);
    drop((log, logs));
    let log = open().get("t", 0).unwrap().log.clone();
    assert_eq!((log.high_watermark(), log.log_end_offset()), (0, 3));
}

// Broken if it failed: after a full disk, a follower could not follow a leader with an epoch below that of
// the refused batches.
#[test]
fn a_refused_append_leaves_no_epoch() {
    let (before, disk, _after) = disks();
    let log = Log::open(&before.path().join("t-0"), small(), true, 0).unwrap();
    log.append_as_follower(&led(0, 1), 5000).unwrap();
    // The epochs' file is written, the records are not.
    let watching = watch(&log.dir(), Arc::new(NoSpace(LOG_SUFFIX)));
    drop(disk);
    let error = log.append_as_follower(&led(1, 4), 5000).unwrap_err();
    assert!(error.is_disk_full(), "{error}");
    drop(watching);
    log.append_as_follower(&led(1, 3), 5000).unwrap();
    assert_eq!(log.latest_epoch(), Some(3));
    assert_eq!(log.epoch_end_offset(3), Some((3, 2)));
}

/// A disk that is full for files with this suffix; their names can be created.
struct NoSpace(&'static str);

impl Watcher for NoSpace {
    fn before(&self, change: Change<'_>) -> io::Result<Option<(usize, io::Error)>> {
        let refused = match change {
            Change::Write { path, .. } | Change::SetLen { path, .. } => path,
            _ => return Ok(None),
        };
        if refused.to_string_lossy().ends_with(self.0) {
            return Err(rustix::io::Errno::NOSPC.into());
        }
        Ok(None)
    }
}

// Broken if it failed: the file of a segment that did not fit on a full disk would fix the end of the segment
// before it, after that was truncated and written again.
#[test]
fn a_segment_that_could_not_be_created_leaves_no_file() {
    let dir = scratch();
    let log = Log::open(dir.path(), small(), true, 0).unwrap();
    fill(&log, 3);
    let watching = watch(dir.path(), Arc::new(NoSpace(INDEX_SUFFIX)));
    log.roll(0).unwrap_err();
    drop(watching);
    log.truncate_to(1).unwrap();
    fill(&log, 4);
    log.close().unwrap();
    let log = Log::open(dir.path(), small(), true, 5).unwrap();
    assert_eq!((log.log_end_offset(), log.segment_count()), (5, 1));
    let slice = log.read(4, 1000, i64::MAX, true).unwrap();
    assert_eq!(slice.base_offset, 4);
}

// Broken if it failed: a segment for offsets after a gap would come before the one with the offsets that were
// written instead, and these could not be read after a restart.
#[test]
fn a_segment_begins_where_the_log_ends() {
    let dir = scratch();
    let log = Log::open(dir.path(), small(), true, 0).unwrap();
    while log.segment_count() == 1 {
        let end = log.log_end_offset();
        let watching = watch(dir.path(), Arc::new(NoSpace(LOG_SUFFIX)));
        log.append_as_follower(&led(end + 5, 0), 5000).unwrap_err();
        drop(watching);
        log.roll(0).unwrap();
        log.append_as_follower(&led(end, 0), 5000).unwrap();
        for offset in end + 1..end + 6 {
            log.append_as_follower(&led(offset, 0), 5000).unwrap();
        }
    }
    let end = log.log_end_offset();
    log.close().unwrap();
    let log = Log::open(dir.path(), small(), true, end).unwrap();
    for offset in 0..end {
        let slice = log.read(offset, 1, i64::MAX, true).unwrap();
        assert_eq!(slice.base_offset, offset);
    }
}

// Broken if it failed: a value that was on disk would be lost with the power, because a compaction removed it
// for a later one whose transaction is not known to be committed any more.
#[test]
fn what_a_compaction_goes_by_is_on_disk() {
    let (before, disk, after) = disks();
    let path = before.path().join("t-0");
    let log = Log::open(&path, small(), true, 0).unwrap();
    write(&log, -1, 0);
    log.flush().unwrap();
    write(&log, 7, 0);
    log.roll(0).unwrap();
    end(&log, 7, true);
    log.compact_now(5000).unwrap();
    let first = log.read(0, 1000, i64::MAX, true).unwrap().base_offset;
    assert_eq!(first, 1, "the first value is superseded");
    disk.lose_all_but_the_certain(after.path());
    let log = Log::open(&after.path().join("t-0"), small(), false, 0).unwrap();
    assert_eq!((log.log_end_offset(), log.last_stable_offset()), (3, 3));
}
