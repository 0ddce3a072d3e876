//! Batches whose header and records do not agree, and unreadable records: they may cost their producer an
//! error, and other clients nothing.

use logcore_records::{HEADER_SIZE, crc32c, max_timestamp_of, set_max_timestamp_in_place};

use super::*;
use crate::config::DECOMPRESSED_MAX;
use crate::log::{Searched, TimeSearch};
use crate::record_faults::Fault;

fn compressed(timestamp: i64, value: &[u8]) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Compression::Gzip, None);
    builder.append(timestamp, Some(b"k"), Some(value), &[]).unwrap();
    builder.build().unwrap()
}

/// A batch with a right checksum and records that are no gzip.
fn unreadable(timestamp: i64) -> Vec<u8> {
    let mut batch = compressed(timestamp, &[7; 100]);
    batch[HEADER_SIZE..].fill(0x55);
    let crc = crc32c(&batch[21..]);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
    batch
}

fn with_max_timestamp(mut batch: Vec<u8>, max_timestamp: i64) -> Vec<u8> {
    set_max_timestamp_in_place(&mut batch, max_timestamp);
    batch
}

fn limited() -> LogConfig {
    LogConfig {
        timestamp_after_max_ms: 1000,
        ..small()
    }
}

// Broken if it failed: one batch with a timestamp in the year 200,000 would keep retention from a log for
// ever.
#[test]
fn the_largest_timestamp_is_that_of_the_records() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let mut batch = with_max_timestamp(batch_at(50, &[b"a", b"b"]), i64::MAX / 2);
    let appended = log.append_as_leader(&mut batch, 0, 60).unwrap();
    assert_eq!(appended.bytes, batch.len() as u64);
    assert_eq!(max_timestamp_of(&batch), 50);
    Batch::parse(&batch).unwrap().verify_crc().unwrap();
    assert_eq!(log.max_timestamp().unwrap().unwrap().timestamp, 50);
    assert_eq!(log.offset_for_timestamp(51).unwrap(), None);
    // A smaller timestamp in the header would hide the records from searches.
    let mut batch = with_max_timestamp(batch_at(70, &[b"c"]), 1);
    log.append_as_leader(&mut batch, 0, 60).unwrap();
    assert_eq!(log.offset_for_timestamp(70).unwrap().unwrap().offset, 2);
    // Without a timestamp there is none to set.
    let mut batch = with_max_timestamp(batch_at(-1, &[b"d"]), 90);
    log.append_as_leader(&mut batch, 0, 60).unwrap();
    assert_eq!(log.max_timestamp().unwrap().unwrap().timestamp, 70);
}

// Broken if it failed: a header or compression could circumvent message.timestamp.after.max.ms.
#[test]
fn timestamp_limits_apply_to_the_records() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), limited(), false, 0).unwrap();
    for batch in [
        batch_at(2000, &[b"a"]),
        with_max_timestamp(batch_at(2000, &[b"a"]), 10),
        with_max_timestamp(compressed(2000, b"a"), 10),
    ] {
        let error = log.append_as_leader(&mut batch.clone(), 0, 10).unwrap_err();
        assert!(
            matches!(&error, StorageError::InvalidRecords(faults)
                if matches!(faults.first()[0].fault, Fault::Time { timestamp: 2000, .. })),
            "{error}"
        );
    }
    log.append_as_leader(&mut with_max_timestamp(compressed(1000, b"a"), 2000), 0, 10)
        .unwrap();
    assert_eq!(log.max_timestamp().unwrap().unwrap().timestamp, 1000);
    // Unreadable records cannot be checked.
    log.append_as_leader(&mut unreadable(5), 0, 10).unwrap_err();
    assert_eq!((log.log_end_offset(), log.failure()), (1, None));
}

// Broken if it failed: one batch that cannot be decompressed would make searches of its partition fail.
#[test]
fn unreadable_records_are_found_as_a_whole() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    for (timestamp, batch) in [
        (10, batch_at(10, &[b"a"])),
        (20, unreadable(20)),
        (30, batch_at(30, &[b"b"])),
    ] {
        produce(&log, &mut batch.clone(), unchecked(timestamp)).unwrap();
    }
    for (timestamp, offset) in [(10, 0), (11, 1), (20, 1), (21, 2)] {
        let found = log.offset_for_timestamp(timestamp).unwrap().unwrap();
        assert_eq!(found.offset, offset, "{timestamp}");
    }
    log.advance_log_start_offset(2).unwrap();
    assert_eq!(log.offset_for_timestamp(15).unwrap().unwrap().offset, 2);
    assert_eq!(log.failure(), None);
    // The checksum shows damage.
    let path = files::segment_file(dir.path(), 0, files::LOG_SUFFIX);
    let mut bytes = std::fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    assert!(log.offset_for_timestamp(25).is_err());
    assert!(log.failure().is_some());
}

/// The steps of a search. Each may decompress as much as the one before asked for.
fn steps(log: &Log, mut search: TimeSearch) -> (Vec<Searched>, Option<i64>) {
    let mut steps = Vec::new();
    let mut limits = [0, 1000, DECOMPRESSED_MAX].into_iter();
    let mut limit = limits.next().unwrap();
    loop {
        let step = log.search_time(&mut search, limit).unwrap();
        steps.push(step);
        match step {
            Searched::Found(found) => return (steps, found.map(|found| found.offset)),
            Searched::Compressed(_) => limit = limits.next().unwrap(),
            Searched::Further => {
                limits = [0, 1000, DECOMPRESSED_MAX].into_iter();
                limit = limits.next().unwrap();
            }
        }
    }
}

// Broken if it failed: one search by timestamp would decompress any number of batches with wrong timestamps,
// without a memory limit.
#[test]
fn a_search_by_timestamp_decompresses_one_batch_at_a_time() {
    use Searched::{Compressed, Found, Further};
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    for mut batch in [
        with_max_timestamp(compressed(10, b"a"), 900),
        with_max_timestamp(compressed(20, &[0; 5000]), 900),
        batch_at(30, &[b"c"]),
        with_max_timestamp(compressed(40, b"d"), 900),
    ] {
        produce(&log, &mut batch, unchecked(0)).unwrap();
    }
    let (taken, found) = steps(&log, TimeSearch::first_at(30));
    assert!(
        matches!(
            taken[..],
            [
                Compressed(_),
                Further,
                Compressed(_),
                Compressed(_),
                Further,
                Found(Some(_))
            ]
        ),
        "{taken:?}"
    );
    assert_eq!(found, Some(2));
    assert_eq!(steps(&log, TimeSearch::first_at(35)).1, Some(3));
    let (taken, found) = steps(&log, TimeSearch::first_at(800));
    assert_eq!((taken.len(), found), (8, None), "{taken:?}");
    // Once for the timestamp that three headers state, once for the records'.
    let (taken, found) = steps(&log, TimeSearch::newest());
    assert_eq!(found, Some(3));
    let looked = taken.iter().filter(|step| **step == Further).count();
    assert_eq!(looked, 7, "{taken:?}");
    assert_eq!(log.max_timestamp().unwrap().unwrap().offset, 3);
    assert_eq!(log.offset_for_timestamp(800).unwrap(), None);
}

// Broken if it failed: the newest records of a compacted topic would be compacted only after segment.ms, a
// week.
#[test]
fn a_compacted_log_is_rolled_before_its_records_lag_too_far() {
    let dir = tempfile::tempdir().unwrap();
    let config = LogConfig {
        cleanup_compact: true,
        max_compaction_lag_ms: 1000,
        ..small()
    };
    let log = Log::open(dir.path(), config.clone(), false, 0).unwrap();
    let keyed = |timestamp| {
        let mut builder = BatchBuilder::new(Compression::None, None);
        builder.append(timestamp, Some(b"k"), Some(b"v"), &[]).unwrap();
        builder.build().unwrap()
    };
    for timestamp in [0, 1000, 1001] {
        log.append_as_leader(&mut keyed(timestamp), 0, timestamp).unwrap();
    }
    assert_eq!(log.segment_count(), 2);
    log.update_config(LogConfig {
        cleanup_compact: false,
        ..config
    });
    log.append_as_leader(&mut keyed(5000), 0, 5000).unwrap();
    assert_eq!(log.segment_count(), 2);
}
