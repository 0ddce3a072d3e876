//! Tests of a log as its callers see it: appending, reading, rolling, producers, retention, reading beside a
//! writer.

mod content;
mod foreign;
mod full_disk;
mod model;
mod recovery;
mod replication;
mod slow_disk;
mod transaction_model;
mod transactions;
mod truncation;
mod validation;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use logcore_records::{Batch, BatchBuilder, Compression, TimestampType, batches};

use super::*;
use crate::files;
use crate::slice::{LogSlice, TimestampOffset};
use crate::testing::batch_of;
use crate::validation::ParsedBatches;

/// A batch with one record per value, `timestamp` for all.
pub(super) fn batch_at(timestamp: i64, values: &[&[u8]]) -> Vec<u8> {
    let records: Vec<(i64, &[u8])> = values.iter().map(|value| (timestamp, *value)).collect();
    batch_of(&records, None)
}

pub(super) fn producer_batch(producer_id: i64, epoch: i16, sequence: i32, count: usize) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Compression::None, None);
    builder.set_producer_state(producer_id, epoch, sequence);
    for _ in 0..count {
        builder.append(1000, None, Some(b"v"), &[]).unwrap();
    }
    builder.build().unwrap()
}

/// Small segments and dense indexes, so that little data exercises everything.
pub(super) fn small() -> LogConfig {
    LogConfig {
        segment_bytes: 2000,
        index_interval_bytes: 100,
        segment_index_bytes: 4096,
        retention_ms: -1,
        ..LogConfig::default()
    }
}

pub(super) fn open(dir: &Path) -> Log {
    Log::open(dir, small(), false, 0).unwrap()
}

/// All values from `offset` on, read as a consumer does: fetch by fetch.
pub(super) fn values_from(log: &Log, mut offset: i64) -> Vec<(i64, Vec<u8>)> {
    let mut found = Vec::new();
    while offset < log.log_end_offset() {
        let slice = log.read(offset, 500, log.high_watermark(), true).unwrap();
        let bytes = slice.read_whole_batches().unwrap();
        assert!(!bytes.is_empty(), "nothing at {offset}");
        assert!(slice.base_offset <= offset);
        for batch in batches(&bytes) {
            let batch = batch.unwrap();
            batch.verify_crc().unwrap();
            for record in batch.records(1 << 20).unwrap().iter() {
                let record = record.unwrap();
                if record.offset >= offset {
                    assert_eq!(record.offset, offset);
                    found.push((offset, record.value.unwrap_or_default().to_vec()));
                    offset += 1;
                }
            }
        }
    }
    found
}

/// Appends a batch as a producer's, with other options than [`Log::append_as_leader`] has.
fn produce(log: &Log, batch: &mut [u8], options: ProduceOptions) -> Result<crate::Appended> {
    log.append_produced(batch, &ParsedBatches::parse(batch)?, options)
}

/// Options of a broker that does not check compressed batches.
fn unchecked(now_ms: i64) -> ProduceOptions {
    ProduceOptions {
        check_compressed: false,
        ..ProduceOptions::new(0, now_ms)
    }
}

fn fill(log: &Log, batches: usize) {
    for number in 0..batches {
        let value = format!("value {number:04}, long enough to fill a segment after some of them");
        log.append_as_leader(&mut batch_at(1000 + number as i64, &[value.as_bytes()]), 0, 5000)
            .unwrap();
    }
}

fn names(dir: &Path) -> Vec<String> {
    files::file_names(dir).unwrap()
}

// Broken if it failed: records would not be at the offsets of the result, or come back changed.
#[test]
fn appended_records_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let mut two = batch_at(1, &[b"a", b"b"]);
    two.extend(batch_at(2, &[b"c"]));
    let appended = log.append_as_leader(&mut two, 3, 9).unwrap();
    assert_eq!((appended.first_offset, appended.last_offset), (0, 2));
    assert_eq!((appended.log_append_time, appended.duplicate), (-1, false));
    assert_eq!(appended.bytes, two.len() as u64);
    let written = log.read(0, 1 << 20, 3, true).unwrap().read_to_vec();
    assert_eq!(written.unwrap(), two);
    assert_eq!(Batch::parse(&two).unwrap().header.partition_leader_epoch, 3);
    let appended = log.append_as_leader(&mut batch_at(3, &[b"d"]), 3, 9).unwrap();
    assert_eq!((appended.first_offset, appended.last_offset), (3, 3));
    let expected: Vec<_> = [b"a", b"b", b"c", b"d"]
        .iter()
        .enumerate()
        .map(|(offset, value)| (offset as i64, value.to_vec()))
        .collect();
    assert_eq!(values_from(&log, 0), expected);
    assert_eq!(values_from(&log, 2), expected[2..]);
    assert_eq!((log.latest_epoch(), log.high_watermark()), (Some(3), 4));
    // As in Kafka, a retry has its own timestamp.
    let mut builder = BatchBuilder::new(Compression::None, None);
    builder.set_producer_state(7, 0, 0);
    builder.append(5, None, Some(b"e"), &[]).unwrap();
    let sent = builder.build().unwrap();
    for time in [-1, 5] {
        let appended = log.append_as_leader(&mut sent.clone(), 3, 9);
        assert_eq!(appended.unwrap().log_append_time, time);
    }
}

// Broken if it failed: a consumer could see records above the high watermark, get stuck at a large batch, or
// get the wrong batch.
#[test]
fn a_read_keeps_its_bounds() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    fill(&log, 100);
    let one = log.read(0, 1, i64::MAX, true).unwrap();
    assert_eq!((one.len, one.base_offset), (one.first_batch_len, 0));
    assert!(log.read(0, 1, i64::MAX, false).unwrap().is_empty());
    for upper in 0..=100 {
        for offset in 0..=upper {
            let slice = log.read(offset, 1 << 30, upper, true).unwrap();
            assert_eq!(slice.is_empty(), offset == upper, "{offset}..{upper}");
            let bytes = slice.read_to_vec().unwrap();
            let headers: Vec<_> = batches(&bytes).map(|b| b.unwrap().header).collect();
            assert!(headers.iter().all(|h| h.last_offset() < upper));
            assert!(headers.first().is_none_or(|h| h.base_offset == offset));
        }
    }
    assert!(log.read(100, 10, i64::MAX, true).unwrap().is_empty());
    for offset in [-1, 101, i64::MAX] {
        assert!(matches!(
            log.read(offset, 10, i64::MAX, true),
            Err(StorageError::OffsetOutOfRange {
                log_start: 0,
                log_end: 100,
                ..
            })
        ));
    }
}

// Broken if it failed: segments would grow without bound, or Kafka would not find a segment's files.
#[test]
fn a_full_segment_is_rolled() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    fill(&log, 40);
    assert!(log.segment_count() > 2);
    let bases: Vec<i64> = names(dir.path())
        .iter()
        .filter_map(|name| files::offset_of(name, files::LOG_SUFFIX))
        .collect();
    for base in &bases {
        let size = |suffix| {
            std::fs::metadata(files::segment_file(dir.path(), *base, suffix))
                .unwrap()
                .len()
        };
        assert!(size(".log") <= 2000);
        if base == bases.last().unwrap() {
            assert_eq!((size(".index"), size(".timeindex")), (4096, 4092));
        } else {
            // Trimmed to its entries; the time index has one more for the newest record.
            assert!(size(".index") < 4096 && size(".index") % 8 == 0);
            assert!(size(".timeindex") / 12 >= size(".index") / 8);
        }
        // Each segment except the first has a snapshot.
        assert_eq!(
            names(dir.path()).contains(&format!("{base:020}.snapshot")),
            *base > 0
        );
    }
    assert_eq!(values_from(&log, 0).len(), 40);
    let count = log.segment_count();
    log.roll(0).unwrap();
    log.roll(0).unwrap();
    assert_eq!(log.segment_count(), count + 1);
}

// Broken if it failed: a segment would stay active longer than `segment.ms`, and retention could not delete
// it.
#[test]
fn a_segment_is_rolled_by_the_age_of_its_records() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    log.update_config(LogConfig {
        segment_ms: 1000,
        ..small()
    });
    log.append_as_leader(&mut batch_at(5000, &[b"a"]), 0, 0).unwrap();
    log.append_as_leader(&mut batch_at(6000, &[b"b"]), 0, 0).unwrap();
    assert_eq!(log.segment_count(), 1);
    log.append_as_leader(&mut batch_at(6001, &[b"c"]), 0, 0).unwrap();
    assert_eq!(log.segment_count(), 2);
}

// Broken if it failed: all segments that began together would be rolled together, or later than `segment.ms`.
#[test]
fn a_roll_by_age_has_jitter() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    log.update_config(LogConfig {
        segment_ms: 1000,
        segment_jitter_ms: 400,
        ..small()
    });
    let rolls_after = |random: u32, age: i64| {
        log.writer.lock().roll_random = random << 1;
        let end = log.log_end_offset() + 10_000;
        log.truncate_fully_and_start_at(end, None).unwrap();
        for timestamp in [5000, 5000 + age, 5001 + age] {
            log.append_as_leader(&mut batch_at(timestamp, &[b"v"]), 0, 0)
                .unwrap();
        }
        log.segment_count() == 2 && log.active().base_offset == end + 2
    };
    for (random, jitter) in [(0, 0), (1, 1), (399, 399), (400, 0), (1234, 34)] {
        assert!(rolls_after(random, 1000 - jitter), "{random}");
    }
    // Each segment gets its own part.
    let drawn: std::collections::HashSet<u32> = (0..20)
        .map(|_| {
            fill(&log, 1);
            log.roll(0).unwrap();
            log.writer.lock().roll_random
        })
        .collect();
    assert!(drawn.len() > 10, "{drawn:?}");
}

// Broken if it failed: bytes that are no batch, or a batch with a wrong header, would get into the log.
#[test]
fn an_invalid_append_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    log.update_config(LogConfig {
        max_message_bytes: 200,
        timestamp_after_max_ms: 100,
        ..small()
    });
    let good = batch_at(10, &[b"a", b"b"]);
    let refused = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        log.append_as_leader(&mut bytes, 0, 50).unwrap_err().kafka_code()
    };
    assert_eq!(refused(&|b| b.clear()), 2);
    assert_eq!(refused(&|b| b.truncate(60)), 2);
    assert_eq!(refused(&|b| b.push(0)), 2);
    assert_eq!(refused(&|b| *b.last_mut().unwrap() ^= 1), 2);
    assert_eq!(refused(&|b| b[16] = 1), 43);
    assert_eq!(refused(&|b| b[16] = 9), 2);
    assert_eq!(refused(&|b| *b = batch_at(10, &[&[0; 300]])), 10);
    assert_eq!(refused(&|b| *b = batch_at(151, &[b"a"])), 32);
    assert_eq!(
        refused(&|b| {
            let mut control = BatchBuilder::new(Compression::None, None);
            control.set_control(true);
            control.append(1, None, None, &[]).unwrap();
            *b = control.build().unwrap();
        }),
        87
    );
    log.update_config(LogConfig {
        cleanup_compact: true,
        segment_bytes: 100,
        ..small()
    });
    assert_eq!(refused(&|_| ()), 87);
    log.update_config(LogConfig {
        segment_bytes: 70,
        ..small()
    });
    assert_eq!(refused(&|_| ()), 18);
    log.update_config(small());
    assert_eq!(log.log_end_offset(), 0);
    log.append_as_leader(&mut good.clone(), 1, 50).unwrap();
    assert_eq!(
        log.append_as_leader(&mut good.clone(), 0, 50)
            .unwrap_err()
            .kafka_code(),
        74
    );
}

// Broken if it failed: records of a topic with append time would have the producers' timestamps.
#[test]
fn log_append_time_is_set() {
    let dir = tempfile::tempdir().unwrap();
    let config = LogConfig {
        timestamp_type: TimestampType::LogAppendTime,
        ..small()
    };
    let log = Log::open(dir.path(), config, false, 0).unwrap();
    let appended = log
        .append_as_leader(&mut batch_at(7, &[b"a", b"b"]), 0, 777)
        .unwrap();
    assert_eq!(appended.log_append_time, 777);
    let bytes = log.read(0, 1 << 20, 2, true).unwrap().read_to_vec().unwrap();
    let batch = batches(&bytes).next().unwrap().unwrap();
    batch.verify_crc().unwrap();
    for record in batch.records(1000).unwrap().iter() {
        assert_eq!(record.unwrap().timestamp, 777);
    }
    // A retry gets the timestamp of the first time.
    log.append_as_leader(&mut producer_batch(1, 0, 0, 1), 0, 800)
        .unwrap();
    let again = log
        .append_as_leader(&mut producer_batch(1, 0, 0, 1), 0, 900)
        .unwrap();
    assert_eq!((again.duplicate, again.log_append_time), (true, 800));
}

// Broken if it failed: a retry would be written twice, or a batch that must be refused be accepted.
#[test]
fn an_idempotent_producer_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let append = |mut bytes: Vec<u8>| log.append_as_leader(&mut bytes, 0, 0);
    append(batch_at(1, &[b"other"])).unwrap();
    for sequence in 0..6 {
        append(producer_batch(9, 0, sequence * 2, 2)).unwrap();
    }
    let again = append(producer_batch(9, 0, 4, 2)).unwrap();
    assert_eq!(
        (again.first_offset, again.last_offset, again.duplicate),
        (5, 6, true)
    );
    assert_eq!(log.log_end_offset(), 13);
    assert_eq!(append(producer_batch(9, 0, 0, 2)).unwrap_err().kafka_code(), 45);
    assert_eq!(append(producer_batch(9, 0, 14, 2)).unwrap_err().kafka_code(), 45);
    append(producer_batch(9, 1, 0, 1)).unwrap();
    assert_eq!(append(producer_batch(9, 0, 12, 2)).unwrap_err().kafka_code(), 47);
    // After a failed second batch the first is not there either.
    let mut two = producer_batch(9, 1, 1, 1);
    two.extend(producer_batch(9, 1, 3, 1));
    assert_eq!(append(two).unwrap_err().kafka_code(), 45);
    let mut two = producer_batch(9, 1, 1, 1);
    two.extend(producer_batch(9, 1, 2, 1));
    assert_eq!(append(two.clone()).unwrap().last_offset, 15);
    assert!(append(two).unwrap().duplicate);
    // The first half of a retry is in the log, the second is not: the rest is written.
    let mut two = producer_batch(9, 1, 2, 1);
    two.extend(producer_batch(9, 1, 3, 1));
    let rest = append(two).unwrap();
    assert_eq!(
        (rest.first_offset, rest.last_offset, rest.duplicate),
        (15, 16, false)
    );
    assert_eq!(log.log_end_offset(), 17);
}

// Broken if it failed: a search by timestamp would miss records.
#[test]
fn records_are_found_by_timestamp() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    assert_eq!(log.offset_for_timestamp(0).unwrap(), None);
    assert_eq!(log.max_timestamp().unwrap(), None);
    // Out of order, with repetitions, over several segments.
    let times: Vec<i64> = (0..200).map(|n: i64| 10_000 + (n * 37) % 101 * 10 + n).collect();
    for (number, time) in times.iter().enumerate() {
        let value = [b'x'; 50];
        log.append_as_leader(&mut batch_at(*time, &[&value]), 7, 0)
            .unwrap();
        if number == 100 {
            log.roll(0).unwrap();
        }
    }
    assert!(log.segment_count() > 5);
    let check = |log: &Log| {
        for target in (9_990..11_400).step_by(3) {
            let expected = times.iter().position(|time| *time >= target);
            let found = log.offset_for_timestamp(target).unwrap();
            assert_eq!(
                found,
                expected.map(|offset| TimestampOffset {
                    timestamp: times[offset],
                    offset: offset as i64,
                    leader_epoch: 7,
                }),
                "{target}"
            );
        }
        let newest = *times.iter().max().unwrap();
        let at = times.iter().position(|time| *time == newest).unwrap() as i64;
        assert_eq!(log.max_timestamp().unwrap().unwrap().offset, at);
    };
    check(&log);
    log.close().unwrap();
    check(&Log::open(dir.path(), small(), true, 0).unwrap());
    check(&Log::open_read_only(dir.path()).unwrap());
}

/// Makes every further write to `file` fail, as on a disk that became read-only.
fn break_writes(file: &std::fs::File) {
    let read_only = std::fs::File::open("/dev/null").unwrap();
    // SAFETY: the descriptor belongs to `file`, which outlives this; it is not closed here because of
    // ManuallyDrop.
    let mut target = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(file.as_raw_fd()) });
    rustix::io::dup2(&read_only, &mut target).unwrap();
}

// Broken if it failed: a record that is not on disk would be acknowledged.
#[test]
fn a_failed_write_takes_the_log_offline() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    fill(&log, 3);
    break_writes(log.active().file());
    let error = log
        .append_as_leader(&mut batch_at(1, &[b"lost"]), 0, 0)
        .unwrap_err();
    assert!(matches!(error, StorageError::Io { .. }), "{error}");
    for _ in 0..2 {
        let error = log
            .append_as_leader(&mut batch_at(1, &[b"lost"]), 0, 0)
            .unwrap_err();
        assert!(matches!(error, StorageError::Offline { .. }), "{error}");
        assert_eq!(error.kafka_code(), 56);
    }
    assert!(matches!(log.flush(), Err(StorageError::Offline { .. })));
    assert!(matches!(log.close(), Err(StorageError::Offline { .. })));
    assert_eq!(log.log_end_offset(), 3);
    let again = open(dir.path());
    assert_eq!(values_from(&again, 0).len(), 3);
}

// Broken if it failed: `flush.messages=1` would not flush, or recovery would begin too late.
#[test]
fn flushing_moves_the_recovery_point() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    fill(&log, 2);
    assert_eq!(log.recovery_point(), 0);
    log.flush().unwrap();
    assert_eq!(log.recovery_point(), 2);
    log.update_config(LogConfig {
        flush_messages: 2,
        ..small()
    });
    fill(&log, 1);
    assert_eq!(log.recovery_point(), 2);
    fill(&log, 1);
    assert_eq!(log.recovery_point(), 4);
    log.update_config(LogConfig {
        flush_ms: 10,
        ..small()
    });
    fill(&log, 1);
    log.maintain(5009).unwrap();
    assert_eq!(log.recovery_point(), 4);
    log.maintain(5010).unwrap();
    assert_eq!(log.recovery_point(), 5);
    // Rolled segments are flushed in the background.
    log.update_config(small());
    fill(&log, 1);
    log.roll(0).unwrap();
    fill(&log, 1);
    log.maintain(5000).unwrap();
    assert_eq!(log.recovery_point(), 6);
}

// Broken if it failed: the disk would fill up, records that must stay would be deleted, or a reader would
// lose the records that it reads.
#[test]
fn retention_deletes_old_segments() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    fill(&log, 100);
    let before = log.segment_count();
    let slice: LogSlice = log.read(0, 1 << 20, i64::MAX, true).unwrap();
    let bytes = slice.read_to_vec().unwrap();
    assert_eq!(log.delete_old_segments(i64::MAX).unwrap(), 0);

    log.update_config(LogConfig {
        retention_bytes: 5000,
        ..small()
    });
    let gone = log.delete_old_segments(0).unwrap();
    assert!(gone > 0 && log.segment_count() == before - gone);
    assert!(log.size_bytes() >= 5000 && log.size_bytes() < 7000);
    let start = log.log_start_offset();
    assert_eq!(start, log.first_segment_offset());
    assert!(matches!(
        log.read(start - 1, 10, i64::MAX, true),
        Err(StorageError::OffsetOutOfRange { .. })
    ));
    assert_eq!(values_from(&log, start).len() as i64, 100 - start);
    assert!(names(dir.path()).contains(&"00000000000000000000.log.deleted".to_owned()));
    assert_eq!(slice.read_to_vec().unwrap(), bytes);
    log.maintain(60_000).unwrap();
    assert!(!names(dir.path()).iter().any(|name| name.ends_with(".deleted")));
    assert_eq!(slice.read_to_vec().unwrap(), bytes);

    // Everything is old: the active segment is deleted, too, and the log continues at its end.
    log.update_config(LogConfig {
        retention_ms: 10,
        ..small()
    });
    log.delete_old_segments(100_000).unwrap();
    assert_eq!((log.log_start_offset(), log.log_end_offset()), (100, 100));
    fill(&log, 1);
    assert_eq!(log.log_end_offset(), 101);
}

// Broken if it failed: DeleteRecords would delete nothing, or records above the high watermark.
#[test]
fn the_log_start_advances() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    fill(&log, 100);
    assert_eq!(log.advance_log_start_offset(50).unwrap(), 50);
    assert_eq!(log.advance_log_start_offset(40).unwrap(), 50);
    assert!(log.advance_log_start_offset(101).is_err());
    assert!(log.delete_old_segments(0).unwrap() > 0);
    assert!(log.first_segment_offset() <= 50);
    assert_eq!(values_from(&log, 50).len(), 50);
    assert!(log.read(49, 10, i64::MAX, true).is_err());
    assert_eq!(log.offset_for_timestamp(0).unwrap().unwrap().offset, 50);
}

// Broken if it failed: a reader would see half of an append, wait for the writer, or find a gap.
#[test]
fn readers_run_concurrently_with_a_writer() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| fill(&log, 2000));
        for _ in 0..2 {
            scope.spawn(|| {
                let mut offset = 0;
                while offset < 2000 {
                    let slice = log.read(offset, 3000, log.log_end_offset(), true).unwrap();
                    for batch in batches(&slice.read_whole_batches().unwrap()) {
                        let batch = batch.unwrap();
                        batch.verify_crc().unwrap();
                        assert_eq!(batch.header.base_offset, offset);
                        offset = batch.header.next_offset();
                    }
                    std::thread::yield_now();
                }
            });
        }
        scope.spawn(|| {
            while log.log_end_offset() < 2000 {
                log.flush().unwrap();
                log.maintain(5000).unwrap();
            }
        });
        writer.join().unwrap();
    });
}

// Broken if it failed: a closed log could still be written, or a slice of it not be read.
#[test]
fn a_closed_log_is_complete_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    fill(&log, 5);
    log.close().unwrap();
    log.close().unwrap();
    assert!(matches!(
        log.append_as_leader(&mut batch_at(0, &[b"x"]), 0, 0),
        Err(StorageError::Closed { .. })
    ));
    assert!(matches!(
        log.read(0, 1, 1, true),
        Err(StorageError::Closed { .. })
    ));
    assert_eq!(
        names(dir.path()),
        [
            "00000000000000000000.index",
            "00000000000000000000.log",
            "00000000000000000000.timeindex",
            "00000000000000000005.snapshot",
            "leader-epoch-checkpoint",
        ]
    );
    let log = Log::open(dir.path(), small(), true, 0).unwrap();
    assert_eq!(log.recovery_point(), 5);
    fill(&log, 5);
    assert_eq!(values_from(&log, 0).len(), 10);
}

// Broken if it failed: a search for the newest record would find none after the record with the largest
// timestamp was deleted or compacted away.
#[test]
fn the_newest_record_is_one_that_still_exists() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    // The first record of each batch is older by one.
    for time in [500, 900, 700, 700, 600] {
        let mut builder = BatchBuilder::new(Compression::None, None);
        for at in [time - 1, time] {
            builder.append(at, Some(b"k"), Some(b"v"), &[]).unwrap();
        }
        log.append_as_leader(&mut builder.build().unwrap(), 0, 0).unwrap();
    }
    let newest = |log: &Log| {
        let found = log.max_timestamp().unwrap();
        found.map(|found| (found.offset, found.timestamp))
    };
    let check = |log: &Log| {
        for (start, expected) in [
            (0, (3, 900)),
            (3, (3, 900)),
            (4, (5, 700)),
            (6, (7, 700)),
            (8, (9, 600)),
            (9, (9, 600)),
        ] {
            log.log_start.store(start, Ordering::Release);
            assert_eq!(newest(log), Some(expected), "from {start}");
        }
    };
    check(&log);
    // In a segment of its own, between an older and a newer one.
    log.roll(0).unwrap();
    log.append_as_leader(&mut batch_at(650, &[b"v"]), 0, 0).unwrap();
    log.log_start.store(4, Ordering::Release);
    assert_eq!(newest(&log), Some((5, 700)));
    log.log_start.store(8, Ordering::Release);
    assert_eq!(newest(&log), Some((10, 650)));
    log.log_start.store(11, Ordering::Release);
    assert_eq!(newest(&log), None);
}

// The same for a batch of which compaction left only the header, for its producer.
#[test]
fn the_newest_record_is_not_in_an_empty_batch() {
    let dir = tempfile::tempdir().unwrap();
    let config = LogConfig {
        producer_id_expiration_ms: i64::MAX,
        ..small()
    };
    let log = Log::open(dir.path(), config, false, 0).unwrap();
    let keyed = |time, producer| {
        let mut builder = BatchBuilder::new(Compression::None, None);
        builder.set_producer_state(producer, 0, 0);
        builder.append(time, Some(b"k"), Some(b"v"), &[]).unwrap();
        builder.build().unwrap()
    };
    log.append_as_leader(&mut keyed(900, 1), 0, 0).unwrap();
    log.append_as_leader(&mut keyed(500, 2), 0, 0).unwrap();
    log.roll(0).unwrap();
    log.compact_now(1000).unwrap();
    let newest = log.max_timestamp().unwrap().unwrap();
    assert_eq!((newest.offset, newest.timestamp), (1, 500));
}

// Broken if it failed: a producer whose records were deleted could not continue, or the second of a new
// producer's batches could be appended first, and the first be refused for ever (KAFKA-15591).
#[test]
fn only_a_log_that_never_had_a_record_refuses_a_first_sequence_above_0() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let error = log
        .append_as_leader(&mut producer_batch(7, 0, 3, 2), 0, 1000)
        .unwrap_err();
    assert_eq!(error.kafka_code(), 45, "{error}");
    log.append_as_leader(&mut producer_batch(7, 0, 0, 3), 0, 1000)
        .unwrap();
    log.append_as_leader(&mut producer_batch(7, 0, 3, 2), 0, 1000)
        .unwrap();
    log.advance_log_start_offset(5).unwrap();
    log.append_as_leader(&mut producer_batch(8, 0, 5, 1), 0, 1000)
        .unwrap();
    log.truncate_fully_and_start_at(100, None).unwrap();
    log.append_as_leader(&mut producer_batch(7, 0, 6, 1), 0, 1000)
        .unwrap();
    assert_eq!(log.log_end_offset(), 101);
}
