//! Defects that the histories have found, each as a short test.

mod followers;

use std::fs;
use std::path::Path;

use super::faulty_disk::FaultyDisk;
use crate::config::LogConfig;
use crate::error::StorageError;
use crate::files::{INDEX_SUFFIX, LOG_SUFFIX, SNAPSHOT_SUFFIX, TIME_INDEX_SUFFIX, file_names, segment_file};
use crate::log::Log;
use crate::log_dir::LogDir;
use crate::testing::{batch_of, flip, scratch};

/// Small segments, and an index entry for every second batch.
fn small() -> LogConfig {
    LogConfig {
        segment_bytes: 1000,
        index_interval_bytes: 100,
        segment_index_bytes: 4096,
        producer_id_expiration_ms: i64::MAX,
        retention_ms: -1,
        ..LogConfig::default()
    }
}

/// A batch of one record of 100 bytes; of a producer unless its id is -1.
fn batch(timestamp: i64, producer_id: i64, sequence: i32) -> Vec<u8> {
    let producer = (producer_id >= 0).then_some((producer_id, sequence));
    batch_of(&[(timestamp, &[b'v'; 100])], producer)
}

fn fill(log: &Log, batches: i64) {
    let from = log.log_end_offset();
    for number in 0..batches {
        log.append_as_leader(&mut batch(1000 + from + number, -1, 0), 0, 5000)
            .unwrap();
    }
}

fn open_dir(path: &Path) -> LogDir {
    LogDir::open(path, 1, Some("cluster"), &|_: &str| small()).unwrap()
}

/// A disk, and an empty directory for what a power loss leaves of it.
fn disks() -> (tempfile::TempDir, FaultyDisk, tempfile::TempDir) {
    let before = scratch();
    let disk = FaultyDisk::new(before.path(), 1);
    (before, disk, scratch())
}

// Broken if it failed: a new partition's flushed records would be lost with its directory.
#[test]
fn the_first_flush_makes_the_directory_certain() {
    let (before, disk, after) = disks();
    let logs = open_dir(before.path());
    let log = logs.create("t", 0, [7; 16], small()).unwrap().log.clone();
    fill(&log, 3);
    log.flush().unwrap();
    disk.lose_all_but_the_certain(after.path());
    let logs = open_dir(after.path());
    assert_eq!(logs.get("t", 0).unwrap().log.log_end_offset(), 3);
}

// Broken if it failed: because of a lost page of a time index, retention would delete a segment that is not
// old, and searches by timestamp would skip it.
#[test]
fn a_time_index_of_zeros_is_not_believed() {
    let dir = scratch();
    let log = Log::open(dir.path(), small(), true, 0).unwrap();
    fill(&log, 1);
    log.roll(0).unwrap();
    fill(&log, 1);
    log.close().unwrap();
    let path = segment_file(dir.path(), 0, TIME_INDEX_SUFFIX);
    assert_eq!(fs::metadata(&path).unwrap().len(), 12);
    fs::write(&path, [0; 12]).unwrap();
    let config = LogConfig {
        retention_ms: 500,
        ..small()
    };
    let log = Log::open(dir.path(), config, true, 0).unwrap();
    assert_eq!(log.delete_old_segments(1400).unwrap(), 0);
    assert_eq!(log.offset_for_timestamp(999).unwrap().unwrap().offset, 0);
}

// Broken if it failed: the last entry of a segment's time index would not be its newest record's when one
// append has more batches than the index has free entries, and searches by timestamp would skip the segment.
#[test]
fn the_last_place_in_a_time_index_is_for_the_newest_record() {
    let dir = scratch();
    let config = LogConfig {
        segment_bytes: 3000,
        index_interval_bytes: 0,
        segment_index_bytes: 36,
        ..small()
    };
    let log = Log::open(dir.path(), config.clone(), true, 0).unwrap();
    let many: Vec<u8> = (0..8).flat_map(|n| batch(1000 + n, -1, 0)).collect();
    log.append_as_leader(&mut many.clone(), 0, 5000).unwrap();
    log.roll(0).unwrap();
    log.close().unwrap();
    let log = Log::open(dir.path(), config, true, 0).unwrap();
    assert_eq!(log.max_timestamp().unwrap().unwrap().offset, 7);
    assert_eq!(log.offset_for_timestamp(1007).unwrap().unwrap().offset, 7);
}

fn send(log: &Log, sequence: i32) -> bool {
    log.append_as_leader(&mut batch(1000, 9, sequence), 0, 5000)
        .unwrap()
        .duplicate
}

// Broken if it failed: a producer's flushed batch would be written twice after a power loss that follows a
// clean shutdown right after a roll.
#[test]
fn a_clean_shutdown_brings_the_snapshot_of_a_roll_to_disk() {
    let (before, disk, after) = disks();
    let path = before.path().join("t-0");
    let log = Log::open(&path, small(), true, 0).unwrap();
    send(&log, 0);
    log.roll(0).unwrap();
    log.close().unwrap();
    disk.lose_all_but_the_certain(after.path());
    let log = Log::open(&after.path().join("t-0"), small(), true, 0).unwrap();
    assert!(send(&log, 0));
}

// Broken if it failed: with a damaged snapshot a log would take its producers for new ones.
#[test]
fn producers_are_found_again_without_their_snapshot() {
    let dir = scratch();
    let log = Log::open(dir.path(), small(), true, 0).unwrap();
    send(&log, 0);
    log.close().unwrap();
    fs::write(segment_file(dir.path(), 1, SNAPSHOT_SUFFIX), b"damaged").unwrap();
    let log = Log::open(dir.path(), small(), true, 0).unwrap();
    assert!(send(&log, 0));
}

// Broken if it failed: a snapshot of truncated records could come back after other records took their
// offsets.
#[test]
fn a_snapshot_that_was_removed_stays_so() {
    let (before, disk, after) = disks();
    let path = before.path().join("t-0");
    let log = Log::open(&path, small(), false, 0).unwrap();
    send(&log, 0);
    log.close().unwrap();
    let stale = fs::read(segment_file(&path, 1, SNAPSHOT_SUFFIX)).unwrap();
    fs::write(segment_file(&path, 0, LOG_SUFFIX), b"").unwrap();
    fs::write(segment_file(&path, 1, SNAPSHOT_SUFFIX), stale).unwrap();
    let log = Log::open(&path, small(), false, 0).unwrap();
    assert_eq!(log.log_end_offset(), 0);
    disk.lose_all_but_the_certain(after.path());
    let names = file_names(&after.path().join("t-0")).unwrap();
    assert!(!names.iter().any(|n| n.ends_with(SNAPSHOT_SUFFIX)), "{names:?}");
}

// Broken if it failed: a partition that is created again would begin where the deleted one did, or lose its
// first records in the next crash.
#[test]
fn a_partition_created_again_inherits_nothing() {
    let dir = scratch();
    let logs = open_dir(dir.path());
    let log = logs.create("t", 0, [7; 16], small()).unwrap().log.clone();
    fill(&log, 20);
    log.flush().unwrap();
    log.advance_log_start_offset(10).unwrap();
    logs.checkpoint().unwrap();
    logs.delete("t", 0).unwrap();
    let log = logs.create("t", 0, [8; 16], small()).unwrap().log.clone();
    fill(&log, 3);
    drop((log, logs));
    let log = open_dir(dir.path()).get("t", 0).unwrap().log.clone();
    assert_eq!((log.log_start_offset(), log.log_end_offset()), (0, 3));
}

// Broken if it failed: the same, when the process ends between the deletion and the checkpoints.
#[test]
fn a_partition_created_after_a_crash_inherits_nothing() {
    let dir = scratch();
    let logs = open_dir(dir.path());
    let log = logs.create("t", 0, [7; 16], small()).unwrap().log.clone();
    fill(&log, 20);
    log.advance_log_start_offset(10).unwrap();
    logs.checkpoint().unwrap();
    drop((log, logs));
    fs::remove_dir_all(dir.path().join("t-0")).unwrap();
    let logs = open_dir(dir.path());
    let log = logs.create("t", 0, [8; 16], small()).unwrap().log.clone();
    fill(&log, 3);
    drop((log, logs));
    let log = open_dir(dir.path()).get("t", 0).unwrap().log.clone();
    assert_eq!((log.log_start_offset(), log.log_end_offset()), (0, 3));
}

// Broken if it failed: a producer whose records retention deleted would be new after a power loss, and its
// retry be written twice.
#[test]
fn retention_keeps_the_producers_of_what_it_deletes() {
    let (before, disk, after) = disks();
    let path = before.path().join("t-0");
    let log = Log::open(&path, small(), false, 0).unwrap();
    send(&log, 0);
    log.roll(0).unwrap();
    fill(&log, 1);
    log.flush().unwrap();
    log.advance_log_start_offset(1).unwrap();
    assert_eq!(log.delete_old_segments(5000).unwrap(), 1);
    disk.lose_all_but_the_certain(after.path());
    let log = Log::open(&after.path().join("t-0"), small(), false, 2).unwrap();
    assert_eq!((log.log_start_offset(), log.log_end_offset()), (1, 2));
    assert!(send(&log, 0));
}

// Broken if it failed: a flipped bit in a batch's base offset, which no checksum covers, would make recovery
// cut off all later batches, which were certainly on disk.
#[test]
fn records_known_to_be_on_disk_are_not_cut_for_a_wrong_offset() {
    for (at, mask) in [(7, 4), (6, 1)] {
        let dir = scratch();
        let log = Log::open(dir.path(), small(), true, 0).unwrap();
        fill(&log, 4);
        log.flush().unwrap();
        drop(log);
        let path = segment_file(dir.path(), 0, LOG_SUFFIX);
        let second = fs::metadata(&path).unwrap().len() as usize / 4;
        flip(&path, second + at, mask);
        let bytes = fs::read(&path).unwrap();
        let error = Log::open(dir.path(), small(), false, 4).unwrap_err();
        assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");
        assert_eq!(fs::read(&path).unwrap(), bytes, "nothing was cut");
    }
}

// Broken if it failed: a batch that lost only its base offset with its first sector would be taken for damage
// to flushed data, and its log would not open.
#[test]
fn a_batch_torn_inside_its_base_offset_is_cut() {
    let dir = scratch();
    let log = Log::open(dir.path(), small(), true, 0).unwrap();
    fill(&log, 4);
    log.flush().unwrap();
    fill(&log, 1);
    drop(log);
    let path = segment_file(dir.path(), 0, LOG_SUFFIX);
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() / 5 * 4;
    bytes[last..last + 8].fill(0);
    fs::write(&path, bytes).unwrap();
    let log = Log::open(dir.path(), small(), false, 4).unwrap();
    assert_eq!(log.log_end_offset(), 4);
}

// Broken if it failed: a flipped bit in the last batch's base offset would become the new log end, and new
// records would get offsets far from the old ones.
#[test]
fn an_end_far_from_its_segment_is_not_believed() {
    for high in [0x7f, 0x01] {
        let dir = scratch();
        let log = Log::open(dir.path(), small(), true, 0).unwrap();
        fill(&log, 1);
        log.close().unwrap();
        let path = segment_file(dir.path(), 0, LOG_SUFFIX);
        let mut bytes = fs::read(&path).unwrap();
        bytes[..8].fill(0xff);
        bytes[0] = high;
        fs::write(&path, &bytes).unwrap();
        let error = Log::open(dir.path(), small(), true, 1).unwrap_err();
        assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");
    }
}

// Broken if it failed: deleted records would be back after a power loss.
#[test]
fn deleted_segments_stay_deleted() {
    let (before, disk, after) = disks();
    let logs = open_dir(before.path());
    let log = logs.create("t", 0, [7; 16], small()).unwrap().log.clone();
    fill(&log, 30);
    log.flush().unwrap();
    log.update_config(LogConfig {
        retention_ms: 0,
        ..small()
    });
    log.delete_old_segments(100_000).unwrap();
    assert_eq!(log.log_start_offset(), 30);
    logs.checkpoint().unwrap();
    disk.lose_all_but_the_certain(after.path());
    let log = open_dir(after.path()).get("t", 0).unwrap().log.clone();
    assert_eq!((log.log_start_offset(), log.log_end_offset()), (30, 30));
}

// Broken if it failed: half of a batch that a full disk refused would come back in a closed log, and stop it
// from opening.
#[test]
fn a_refused_batch_does_not_come_back() {
    let (before, disk, after) = disks();
    let path = before.path().join("t-0");
    let log = Log::open(&path, small(), false, 0).unwrap();
    fill(&log, 3);
    log.flush().unwrap();
    disk.fill_up();
    let error = log.append_as_leader(&mut batch(1, -1, 0), 0, 5000).unwrap_err();
    assert!(error.is_disk_full(), "{error}");
    assert!(disk.is_certain(&segment_file(&path, 0, LOG_SUFFIX)));
    disk.free_space();
    log.close().unwrap();
    disk.lose_all_but_the_certain(after.path());
    let log = Log::open(&after.path().join("t-0"), small(), true, 3).unwrap();
    assert_eq!(log.log_end_offset(), 3);
}

// Broken if it failed: a consumer would wait for ever at a damaged batch instead of getting an error.
#[test]
fn a_batch_that_claims_offsets_beyond_its_segment_is_reported() {
    let dir = scratch();
    let log = Log::open(dir.path(), small(), true, 0).unwrap();
    fill(&log, 3);
    log.roll(0).unwrap();
    fill(&log, 1);
    log.close().unwrap();
    let path = segment_file(dir.path(), 0, LOG_SUFFIX);
    let mut bytes = fs::read(&path).unwrap();
    // The last offset delta of the last of three batches.
    let at = bytes.len() / 3 * 2 + 24;
    bytes[at] ^= 1;
    fs::write(&path, bytes).unwrap();
    let log = Log::open(dir.path(), small(), true, 4).unwrap();
    let error = log.read(2, 1000, i64::MAX, true).unwrap_err();
    assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");
}
