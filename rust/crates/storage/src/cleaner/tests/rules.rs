//! The rules of Kafka's cleaner, one test each.

use std::time::{Duration, SystemTime};

use logcore_records::{BatchBuilder, Compression};

use super::*;
use crate::cleaner::CleanerConfig;
use crate::error::StorageError;
use crate::log::cleaning::plan::Plan;

fn strings(log: &Log) -> Vec<(i64, &'static str, Option<String>)> {
    let names = ["a", "b", "c", "d", "the active segment"];
    let name = |key: String| names.into_iter().find(|name| **name == key).unwrap();
    values(log)
        .into_iter()
        .map(|(offset, key, value)| (offset, name(key), value))
        .collect()
}

fn value(text: &str) -> Option<String> {
    Some(text.to_owned())
}

const ACTIVE: &str = "the active segment";

// Broken if it failed: a compacted topic would keep superseded records, or lose current ones.
#[test]
fn the_last_record_of_each_key_stays_at_its_offset() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(dir.path());
    writer.plain(&[(b"a", Some(b"1")), (b"b", Some(b"1")), (b"c", Some(b"1"))]);
    writer.roll();
    writer.plain(&[(b"a", Some(b"2")), (b"d", Some(b"1"))]);
    writer.plain(&[(b"a", Some(b"3"))]);
    let log = writer.open(config());
    let stats = log.compact_now(NOW).unwrap();
    let expected = [
        (1, "b", value("1")),
        (2, "c", value("1")),
        (4, "d", value("1")),
        (5, "a", value("3")),
        (6, ACTIVE, value("v")),
    ];
    assert_eq!(strings(&log), expected);
    assert_eq!((stats.records_read, stats.records_written), (6, 4));
    assert_eq!((stats.segments_before, stats.segments_after), (2, 1));
    assert_eq!(log.first_dirty_offset(), Some(6));
    assert_eq!((log.log_start_offset(), log.log_end_offset()), (0, 7));
    assert_eq!(log.segment_count(), 2);
    // Now no record is dirty.
    assert_eq!(log.compact_now(NOW).unwrap().records_read, 0);
    // A look-up by time skips removed records.
    let found = log.offset_for_timestamp(3).unwrap().unwrap();
    assert_eq!((found.offset, found.timestamp), (4, 4));
    let log = reopen(dir.path(), config());
    assert_eq!(strings(&log), expected);
}

// Broken if it failed: a deleted key would come back, or its tombstone be kept for ever or removed too early.
#[test]
fn tombstones_stay_until_their_horizon() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(dir.path());
    writer.plain(&[(b"a", Some(b"1")), (b"b", Some(b"1"))]);
    writer.plain(&[(b"a", None), (b"c", Some(b"1"))]);
    let log = writer.open(config());
    log.compact_now(NOW).unwrap();
    let with_tombstone = [
        (1, "b", value("1")),
        (2, "a", None),
        (3, "c", value("1")),
        (4, ACTIVE, value("v")),
    ];
    assert_eq!(strings(&log), with_tombstone);
    let marked = headers(&log).into_iter().find(|h| h.base_offset == 2).unwrap();
    assert!(marked.has_delete_horizon());
    assert_eq!((marked.base_timestamp, marked.max_timestamp), (NOW + 1000, 3));
    let timestamps: Vec<i64> = read_all(&log).iter().map(|r| r.timestamp).collect();
    assert_eq!(timestamps, [1, 2, 3, 4]);

    // The horizon is set once, and only that time counts.
    log.cleaning().set_first_dirty(0);
    log.compact_now(NOW + 999).unwrap();
    assert_eq!(strings(&log), with_tombstone);
    log.cleaning().set_first_dirty(0);
    log.compact_now(NOW + 1000).unwrap();
    assert_eq!(
        strings(&log),
        [
            (1, "b", value("1")),
            (3, "c", value("1")),
            (4, ACTIVE, value("v"))
        ]
    );
}

// Broken if it failed: records of aborted transactions would take space for ever or supersede committed ones,
// or a marker would be removed before a reader inside its transaction has read it.
#[test]
fn aborted_records_are_removed_and_then_their_markers() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(dir.path());
    writer.plain(&[(b"a", Some(b"committed"))]);
    writer.batch(Some(7), true, &[(b"a", Some(b"aborted"))]);
    writer.batch(Some(8), true, &[(b"b", Some(b"1"))]);
    writer.roll();
    writer.marker(7, false);
    writer.marker(8, true);
    writer.batch(Some(8), true, &[(b"b", Some(b"2"))]);
    writer.marker(8, true);
    writer.batch(Some(7), true, &[(b"c", Some(b"1"))]);
    writer.marker(7, true);
    let log = writer.open(config());
    let controls = |log: &Log| -> Vec<i64> {
        read_all(log)
            .iter()
            .filter(|r| r.control)
            .map(|r| r.offset)
            .collect()
    };
    log.compact_now(NOW).unwrap();
    let expected = [
        (0, "a", value("committed")),
        (5, "b", value("2")),
        (7, "c", value("1")),
        (9, ACTIVE, value("v")),
    ];
    assert_eq!(strings(&log), expected);
    // Every marker stays: its transaction still had batches when this pass began.
    assert_eq!(controls(&log), [3, 4, 6, 8]);
    let aborted = |log: &Log| {
        log.plan_cleaning(NOW).unwrap().view.segments[0]
            .aborted_transactions()
            .unwrap()
    };
    assert_eq!(aborted(&log).len(), 1);

    // The transactions of 3 and 4 have no batch left: their markers get a horizon, those of 6 and 8 none.
    log.cleaning().set_first_dirty(0);
    log.compact_now(NOW).unwrap();
    assert_eq!(controls(&log), [3, 4, 6, 8]);
    let horizons: Vec<i64> = headers(&log)
        .iter()
        .filter(|h| h.has_delete_horizon())
        .map(|h| h.base_offset)
        .collect();
    assert_eq!(horizons, [3, 4]);
    assert_eq!(aborted(&log), []);
    log.cleaning().set_first_dirty(0);
    log.compact_now(NOW + 1000).unwrap();
    assert_eq!(controls(&log), [6, 8]);
    assert_eq!(strings(&log), expected);
}

// Broken if it failed: a record that may still be aborted would supersede a committed one.
#[test]
fn cleaning_stops_at_an_open_transaction() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(dir.path());
    writer.plain(&[(b"a", Some(b"1")), (b"a", Some(b"2"))]);
    writer.roll();
    writer.batch(Some(7), true, &[(b"a", Some(b"3"))]);
    writer.roll();
    writer.plain(&[(b"a", Some(b"4"))]);
    let log = writer.open(config());
    assert_eq!(log.last_stable_offset(), 2);
    log.compact_now(NOW).unwrap();
    assert_eq!(log.first_dirty_offset(), Some(2));
    let offsets: Vec<i64> = values(&log).iter().map(|(offset, ..)| *offset).collect();
    assert_eq!(offsets, [1, 2, 3, 4]);
}

// Broken if it failed: a producer whose last records were superseded would be refused as out of order, or its
// retry be written twice.
#[test]
fn the_last_batch_of_a_producer_stays_as_a_header() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(dir.path());
    writer.batch(Some(5), false, &[(b"a", Some(b"1"))]);
    writer.batch(Some(5), false, &[(b"a", Some(b"2")), (b"b", Some(b"2"))]);
    writer.plain(&[(b"a", Some(b"3")), (b"b", Some(b"3"))]);
    let log = writer.open(config());
    log.compact_now(NOW).unwrap();
    let left: Vec<(i64, i64, i32)> = headers(&log)
        .iter()
        .map(|h| (h.base_offset, h.last_offset(), h.record_count))
        .collect();
    assert_eq!(left, [(1, 2, 0), (3, 4, 2), (5, 5, 1)]);
    drop(log);
    // Without snapshots, the producer's state comes from the batch header alone.
    for name in names(dir.path())
        .iter()
        .filter(|name| name.ends_with(".snapshot"))
    {
        std::fs::remove_file(dir.path().join(name)).unwrap();
    }
    let log = reopen(dir.path(), config());
    let batch = |sequence, count: usize| {
        let mut builder = BatchBuilder::new(Compression::None, None);
        builder.set_producer_state(5, 0, sequence);
        for _ in 0..count {
            builder.append(1, Some(b"a"), Some(b"x"), &[]).unwrap();
        }
        builder.build().unwrap()
    };
    let again = log.append_as_leader(&mut batch(1, 2), 0, NOW).unwrap();
    assert_eq!((again.duplicate, again.first_offset), (true, 1));
    assert!(matches!(
        log.append_as_leader(&mut batch(4, 1), 0, NOW),
        Err(StorageError::OutOfOrderSequence { expected: 3, .. })
    ));
    log.append_as_leader(&mut batch(3, 1), 0, NOW).unwrap();

    // Once the producer has written again, its old batch is removed.
    log.roll(NOW).unwrap();
    log.compact_now(NOW).unwrap();
    assert!(headers(&log).iter().all(|h| h.record_count > 0));
}

// Broken if it failed: a buffer too small for the log would lose records, or the pass would never reach its
// end.
#[test]
fn a_small_buffer_takes_several_rounds() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(dir.path());
    let keys: Vec<String> = (0..40).map(|key| format!("key {key:02}")).collect();
    for round in 0..3 {
        for key in &keys {
            writer.plain(&[(key.as_bytes(), Some(format!("{round}").as_bytes()))]);
        }
        writer.roll();
    }
    let log = writer.open(config());
    let buffers = CleanerConfig {
        dedupe_buffer_bytes: 24 * 16,
        ..CleanerConfig::default()
    };
    log.compact_with(&buffers, NOW).unwrap();
    assert_eq!(log.first_dirty_offset(), Some(120));
    let found = values(&log);
    assert_eq!(found.len(), 40 + 1);
    for (number, key) in keys.iter().enumerate() {
        assert_eq!(found[number], (80 + number as i64, key.clone(), value("2")));
    }
    let too_small = CleanerConfig {
        dedupe_buffer_bytes: 40,
        ..CleanerConfig::default()
    };
    assert!(matches!(
        log.compact_with(&too_small, NOW),
        Err(StorageError::InvalidConfig { .. })
    ));
}

// Broken if it failed: records could be compacted before a consumer had the promised time to read them, or be
// kept after the time at which they must be removed.
#[test]
fn a_log_is_due_by_its_dirty_ratio_and_its_lags() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(dir.path());
    for _ in 0..4 {
        writer.plain(&[(b"a", Some(b"1")), (b"a", Some(b"1"))]);
        writer.roll();
    }
    let log = writer.open(config());
    let plan = |config: &LogConfig, first_dirty, now| {
        let view = log.plan_cleaning(NOW).unwrap().view;
        Plan::new(view, config, first_dirty, now).unwrap()
    };
    let all = plan(&config(), None, NOW);
    assert_eq!((all.first_dirty, all.first_uncleanable), (0, 8));
    assert_eq!((all.ratio(), all.clean_bytes), (1.0, 0));
    assert!(all.is_due(&config()) && !all.reset);

    // Timestamps equal offsets here. The segment [4, 6) has a record of time 5.
    let lag = LogConfig {
        min_compaction_lag_ms: 10,
        ..config()
    };
    assert_eq!(plan(&lag, None, 14).first_uncleanable, 4);
    assert_eq!(plan(&lag, None, 15).first_uncleanable, 6);
    assert_eq!(plan(&lag, None, 0).cleanable_bytes, 0);

    let half = plan(&config(), Some(4), NOW);
    assert_eq!(half.ratio(), 0.5);
    assert!(!half.is_due(&config()));
    assert!(half.is_due(&LogConfig {
        min_cleanable_dirty_ratio: 0.4,
        ..config()
    }));
    // The oldest dirty batch has timestamp 5.
    let overdue = LogConfig {
        max_compaction_lag_ms: 100,
        ..config()
    };
    assert!(!plan(&overdue, Some(4), 105).is_due(&overdue));
    assert!(plan(&overdue, Some(4), 106).is_due(&overdue));

    // No record is dirty, and the remembered offset is after the log's end.
    assert!(!plan(&config(), Some(8), NOW).is_due(&config()));
    let after_end = plan(&config(), Some(10), NOW);
    assert_eq!((after_end.first_dirty, after_end.reset), (0, true));
}

// Broken if it failed: a compacted log would consist of ever more small segments, or of one above its limits.
#[test]
fn segments_are_joined_up_to_their_limits() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(dir.path());
    for key in 0..12u8 {
        writer.plain(&[(&[key], Some(&[key; 100]))]);
        writer.roll();
    }
    let log = writer.open(config());
    let plan = log.plan_cleaning(NOW).unwrap();
    let size = plan.view.segments[0].size();
    let groups = |config: &LogConfig| -> Vec<usize> {
        plan.groups(12, config).unwrap().iter().map(Vec::len).collect()
    };
    assert_eq!(groups(&config()), [12]);
    let five = LogConfig {
        segment_bytes: size * 5 + 1,
        ..config()
    };
    assert_eq!(groups(&five), [5, 5, 2]);
    let small_index = LogConfig {
        // A time index has one entry per segment here.
        segment_index_bytes: 30,
        ..config()
    };
    assert_eq!(groups(&small_index), [2; 6]);
    assert_eq!(plan.groups(3, &config()).unwrap()[0].len(), 3);

    let log = reopen(dir.path(), five);
    let before = read_all(&log);
    log.compact_now(NOW).unwrap();
    assert_eq!(log.segment_count(), 4);
    assert_eq!(read_all(&log), before);
}

// Broken if it failed: a segment could hold offsets that do not fit its index.
#[test]
fn a_group_spans_no_more_offsets_than_an_index_can_store() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(dir.path());
    for jump in [1 << 29, 1 << 29, 1 << 29, 1 << 29, 5] {
        writer.plain(&[(b"a", Some(b"1"))]);
        writer.roll();
        writer.next += jump;
        writer.base = writer.next;
    }
    let log = writer.open(config());
    let plan = log.plan_cleaning(NOW).unwrap();
    let sizes: Vec<usize> = plan
        .groups(plan.first_uncleanable, &config())
        .unwrap()
        .iter()
        .map(Vec::len)
        .collect();
    assert_eq!(sizes, [3, 2]);
    log.compact_now(NOW).unwrap();
    assert_eq!(values(&log).len(), 2);
}

// Broken if it failed: retention by time would count from the compaction, and legacy tombstones never be
// removed.
#[test]
fn a_cleaned_segment_keeps_the_age_of_its_sources() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(dir.path());
    writer.plain(&[(b"a", Some(b"1"))]);
    writer.roll();
    writer.plain(&[(b"a", Some(b"2"))]);
    writer.roll();
    let log = writer.open(config());
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    let last = std::fs::File::open(segment_file(dir.path(), 1, LOG_SUFFIX)).unwrap();
    last.set_modified(long_ago).unwrap();
    log.compact_now(NOW).unwrap();
    let cleaned = std::fs::metadata(segment_file(dir.path(), 0, LOG_SUFFIX)).unwrap();
    assert_eq!(cleaned.modified().unwrap(), long_ago);
    assert_eq!(values(&log).len(), 2);
}

pub(super) fn legacy_message(magic: u8, offset: i64, key: &[u8], value: Option<&[u8]>) -> Vec<u8> {
    let mut body = vec![magic, 0];
    if magic == 1 {
        body.extend(offset.to_be_bytes());
    }
    body.extend((key.len() as i32).to_be_bytes());
    body.extend(key);
    body.extend(value.map_or(-1, |value| value.len() as i32).to_be_bytes());
    body.extend(value.unwrap_or_default());
    let mut out = offset.to_be_bytes().to_vec();
    out.extend((body.len() as i32 + 4).to_be_bytes());
    out.extend(crc32fast::hash(&body).to_be_bytes());
    out.extend(body);
    out
}

// Broken if it failed: a log of an old format could not be compacted, or its deletions come back or stay for
// ever.
#[test]
fn old_formats_keep_their_format() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(dir.path());
    for (magic, key, value) in [
        (0, b"a", Some(&b"1"[..])),
        (1, b"b", Some(b"1")),
        (1, b"a", Some(b"2")),
        (1, b"b", None),
    ] {
        let offset = writer.next;
        writer.bytes.extend(legacy_message(magic, offset, key, value));
        writer.next += 1;
    }
    writer.roll();
    let log = writer.open(config());
    log.compact_now(NOW).unwrap();
    let expected = [(2, "a", value("2")), (3, "b", None), (4, ACTIVE, value("v"))];
    assert_eq!(strings(&log), expected);
    assert_eq!(read_batches(&log)[0][16], 1);
    // A legacy tombstone is removed by its segment's age relative to the last clean segment's.
    log.append_as_leader(
        &mut {
            let mut builder = BatchBuilder::new(Compression::None, None);
            builder.append(9, Some(b"c"), Some(b"1"), &[]).unwrap();
            builder.build().unwrap()
        },
        0,
        NOW,
    )
    .unwrap();
    log.roll(NOW).unwrap();
    let file = std::fs::File::open(segment_file(dir.path(), 0, LOG_SUFFIX)).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(5))
        .unwrap();
    log.update_config(LogConfig {
        delete_retention_ms: 0,
        ..config()
    });
    log.compact_now(NOW).unwrap();
    assert_eq!(
        strings(&log),
        [
            (2, "a", value("2")),
            (4, ACTIVE, value("v")),
            (5, "c", value("1"))
        ]
    );
}

// Broken if it failed: damaged bytes would get a valid checksum, or be copied and the intact original
// deleted.
#[test]
fn damaged_records_stop_the_compaction() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(dir.path());
    writer.plain(&[(b"a", Some(b"1")), (b"b", Some(b"damaged later"))]);
    writer.plain(&[(b"a", Some(b"2"))]);
    let log = writer.open(config());
    let path = segment_file(dir.path(), 0, LOG_SUFFIX);
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(7).position(|w| w == b"damaged").unwrap();
    bytes[at] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    assert!(matches!(log.compact_now(NOW), Err(StorageError::Corrupt { .. })));
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    assert!(!names(dir.path()).iter().any(|name| name.ends_with(".cleaned")));
}
