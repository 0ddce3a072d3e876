//! Scans partitions on disk, written by a log that is still open.
//!
//! Broken if they failed: rows would be lost or doubled between segments or reads, or a reader would disturb
//! the writer.

use std::path::Path;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use logcore_columns::{
    Column, ColumnsError, DecodeOptions, PartitionScan, Projection, partition_offset_for_timestamp,
    partition_offsets, partition_splits,
};
use logcore_records::{BatchBuilder, Compression};
use logcore_storage::{Log, LogConfig};

/// Appends batches of ten records each; record `i` has the timestamp `1000 * i` and a value of `size` bytes.
fn append(log: &Log, from: i64, batches: i64, size: usize, compression: Compression) {
    for batch in 0..batches {
        let mut builder = BatchBuilder::new(compression, None);
        for record in 0..10 {
            let offset = from + batch * 10 + record;
            let value = vec![offset as u8; size];
            builder
                .append(1_000 * offset, None, Some(&value), &[])
                .expect("the record fits");
        }
        let mut bytes = builder.build().expect("the batch has records");
        log.append_as_leader(&mut bytes, 0, 1_000 * from)
            .expect("the log takes the batch");
    }
}

fn options(start: i64, end: i64) -> DecodeOptions {
    let projection = Projection::new(vec![Column::Offset, Column::Value]).expect("two columns");
    DecodeOptions {
        start,
        end,
        batch_rows: 1_000,
        ..DecodeOptions::new(projection, "orders", 0)
    }
}

fn offsets(directory: &Path, start: i64, end: i64) -> Vec<i64> {
    let mut found = Vec::new();
    for batch in PartitionScan::open(directory, &options(start, end)).expect("a readable log") {
        let batch = batch.expect("undamaged batches");
        let values = batch.column(1).as_binary::<i32>();
        for (row, offset) in batch
            .column(0)
            .as_primitive::<Int64Type>()
            .values()
            .iter()
            .enumerate()
        {
            assert!(values.value(row).iter().all(|byte| *byte == *offset as u8));
            found.push(*offset);
        }
    }
    found
}

fn small_segments() -> LogConfig {
    LogConfig {
        segment_bytes: 64 << 10,
        ..LogConfig::default()
    }
}

// Broken if it failed: a scan would lose or repeat records where one segment ends and the next begins.
#[test]
fn every_offset_comes_once_across_segments_and_codecs() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let directory = dir.path().join("orders-0");
    let log = Log::open(&directory, small_segments(), true, 0).expect("a new log");
    for (index, codec) in [
        Compression::None,
        Compression::Gzip,
        Compression::Snappy,
        Compression::Lz4,
        Compression::Zstd,
    ]
    .into_iter()
    .enumerate()
    {
        append(&log, index as i64 * 1_000, 100, 100, codec);
    }
    assert!(log.segment_count() > 1, "the test wants several segments");
    assert_eq!(partition_offsets(&directory, None).expect("readable"), (0, 5_000));
    assert_eq!(offsets(&directory, 0, i64::MAX), (0..5_000).collect::<Vec<_>>());
    for (start, end) in [(0, 1), (4_999, 5_000), (995, 1_013), (777, 4_321), (12, 12)] {
        assert_eq!(offsets(&directory, start, end), (start..end).collect::<Vec<_>>());
    }
    // The writer is not disturbed, and a new reader sees its later appends.
    append(&log, 5_000, 1, 10, Compression::None);
    assert_eq!(partition_offsets(&directory, None).expect("readable"), (0, 5_010));
    log.close().expect("a clean end");
}

// Broken if it failed: a large batch could not be read at all.
#[test]
fn batches_larger_than_a_read_are_decoded() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let directory = dir.path().join("orders-0");
    let config = LogConfig {
        max_message_bytes: 16 << 20,
        ..LogConfig::default()
    };
    let log = Log::open(&directory, config, true, 0).expect("a new log");
    append(&log, 0, 3, 300_000, Compression::None);
    assert_eq!(offsets(&directory, 0, i64::MAX), (0..30).collect::<Vec<_>>());
}

// Broken if it failed: a read by time would begin at the wrong record.
#[test]
fn times_lead_to_offsets() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let directory = dir.path().join("orders-0");
    let log = Log::open(&directory, small_segments(), true, 0).expect("a new log");
    append(&log, 0, 200, 100, Compression::None);
    for (timestamp, expected) in [(0, Some(0)), (500_001, Some(501)), (1_999_001, None)] {
        assert_eq!(
            partition_offset_for_timestamp(&directory, timestamp).expect("readable"),
            expected
        );
    }
}

// Broken if it failed: a range outside the log, or a missing directory, would look like a partition without
// records.
#[test]
fn offsets_and_directories_that_do_not_exist_are_errors() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let directory = dir.path().join("orders-0");
    let log = Log::open(&directory, small_segments(), true, 0).expect("a new log");
    append(&log, 0, 2, 10, Compression::None);
    assert!(matches!(
        PartitionScan::open(&directory, &options(0, 21)).err(),
        Some(ColumnsError::OutOfRange {
            earliest: 0,
            latest: 20,
            ..
        })
    ));
    assert!(matches!(
        PartitionScan::open(&dir.path().join("absent-0"), &options(0, 1)).err(),
        Some(ColumnsError::Storage(_))
    ));
}

// Broken if it failed: parallel readers would miss records, read some twice, or one reader would do all the
// work.
#[test]
fn splits_are_even_and_complete() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let directory = dir.path().join("orders-0");
    let log = Log::open(&directory, small_segments(), true, 0).expect("a new log");
    append(&log, 0, 300, 100, Compression::None);
    for (start, end) in [(0, 3_000), (0, 1), (1_234, 2_345), (7, 7)] {
        for parts in [1, 2, 3, 8, 1_000_000] {
            let ranges = partition_splits(&directory, parts, Some(start), end).expect("readable");
            assert!(ranges.len() <= parts);
            let mut next = start;
            for (from, to) in &ranges {
                assert_eq!(*from, next, "{ranges:?}");
                assert!(from < to, "{ranges:?}");
                // With a cut inside a batch, two readers would decode it.
                assert!(from % 10 == 0 || *from == start, "{ranges:?}");
                next = *to;
            }
            assert_eq!(next, end);
            let longest = ranges.iter().map(|(from, to)| to - from).max().unwrap_or(0);
            if parts <= 8 {
                // The index has an entry for each 4 KiB, three of these batches. A cut is at most so far off.
                assert!(longest <= (end - start) / parts as i64 + 100, "{ranges:?}");
            }
        }
    }
    let ranges = partition_splits(&directory, 4, None, i64::MAX).expect("readable");
    assert_eq!(ranges.len(), 4);
    let found: Vec<i64> = ranges
        .iter()
        .flat_map(|(from, to)| offsets(&directory, *from, *to))
        .collect();
    assert_eq!(found, (0..3_000).collect::<Vec<_>>());
    // A log without indexes can only be cut between segments.
    log.close().expect("a clean end");
    for entry in std::fs::read_dir(&directory).expect("a listing") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|suffix| suffix == "index") {
            std::fs::remove_file(path).expect("a file to remove");
        }
    }
    let ranges = partition_splits(&directory, 4, None, i64::MAX).expect("readable");
    assert_eq!(ranges.first().map(|(from, _)| *from), Some(0));
    assert_eq!(ranges.last().map(|(_, to)| *to), Some(3_000));
    for (parts, start, end) in [(0, 0, 10), (2, 10, 5), (2, -1, 5), (2, 0, 3_001)] {
        assert!(partition_splits(&directory, parts, Some(start), end).is_err());
    }
}

// Broken if it failed: a range of times would be read from the wrong record, or from the start of a large
// partition.
#[test]
fn a_scan_by_time_begins_at_the_time_index() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let directory = dir.path().join("orders-0");
    let log = Log::open(&directory, small_segments(), true, 0).expect("a new log");
    append(&log, 0, 300, 100, Compression::Lz4);
    for (from, to) in [
        (0, 3_000_000),
        (1_234_567, 2_000_001),
        (2_999_000, i64::MAX),
        (5_000_000, i64::MAX),
    ] {
        let options = DecodeOptions {
            start_time: from,
            end_time: Some(to),
            ..options(0, i64::MAX)
        };
        let scan = PartitionScan::open(&directory, &options).expect("a readable log");
        let found: Vec<i64> = scan
            .flat_map(|batch| {
                let batch = batch.expect("undamaged batches");
                batch.column(0).as_primitive::<Int64Type>().values().to_vec()
            })
            .collect();
        let expected: Vec<i64> = (0..3_000)
            .filter(|offset| (from..to).contains(&(offset * 1_000)))
            .collect();
        assert_eq!(found, expected);
    }
}
