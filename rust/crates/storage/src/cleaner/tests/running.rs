//! Compaction next to appends and reads, and by the cleaner's threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use super::*;
use crate::cleaner::{Cleaner, CleanerConfig, CleanerEvent};
use crate::error::StorageError;
use crate::files::checkpoints::{CLEANER_FILE, read_offsets};
use crate::files::{INDEX_SUFFIX, TIME_INDEX_SUFFIX};
use crate::log_dir::LogDir;
use crate::standalone::StandaloneLog;

fn batch(key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Compression::None, None);
    builder.append(1, Some(key), Some(value), &[]).unwrap();
    builder.build().unwrap()
}

fn append(log: &Log, key: &[u8], value: &[u8]) {
    log.append_as_leader(&mut batch(key, value), 0, NOW).unwrap();
}

/// Sets the flag when it is dropped, by a panic too, so that no thread waits for ever.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

// Broken if it failed: a reader would miss records, or see them twice or damaged, while segments are
// replaced.
#[test]
fn readers_see_no_gap_while_segments_are_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let log = reopen(
        dir.path(),
        LogConfig {
            segment_bytes: 2000,
            ..config()
        },
    );
    for key in 0..20u8 {
        append(&log, &[key], b"for ever");
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    let found = read_all(&log);
                    for key in 0..20u8 {
                        let wanted = |r: &&Found| r.key.as_deref() == Some(&[key][..]);
                        let record = found.iter().find(wanted).unwrap();
                        assert_eq!(
                            (record.offset, record.value.as_deref()),
                            (i64::from(key), Some(&b"for ever"[..]))
                        );
                    }
                    // Every value of the counter is removed or at its offset, and the last is there.
                    let counts: Vec<u32> = found
                        .iter()
                        .filter(|r| r.key.as_deref() == Some(b"counter"))
                        .map(|r| u32::from_be_bytes(r.value.as_deref().unwrap().try_into().unwrap()))
                        .collect();
                    assert!(counts.is_sorted_by(|one, other| one < other), "{counts:?}");
                    assert!(log.offset_for_timestamp(0).unwrap().is_some());
                    std::thread::yield_now();
                }
            });
        }
        let _at_end = SetAtEnd(&done);
        for count in 0..2000u32 {
            append(&log, b"counter", &count.to_be_bytes());
            if count % 50 == 49 {
                log.compact_now(NOW).unwrap();
                log.maintain(NOW + 1_000_000).unwrap();
            }
        }
    });
    assert!(log.segment_count() < 10);
}

// Broken if it failed: a reader that began before a swap would search its segment by the new segment's index,
// or write the old segment's index into the new segment's file.
#[test]
fn a_replaced_segment_leaves_the_new_ones_files_alone() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(dir.path());
    for round in 0..40u8 {
        if round == 20 {
            writer.roll();
        }
        writer.plain(&[
            (&[round % 3], Some(&[round; 60])),
            (&[100 + round], Some(&[round; 60])),
        ]);
    }
    let log = writer.open(config());
    log.close().unwrap();
    drop(log);
    // Only the first segment's log file is open so far, and the cleaner only copies it.
    let log = Log::open(dir.path(), config(), true, 0).unwrap();
    log.cleaning().set_first_dirty(40);
    let old = Arc::clone(&log.plan_cleaning(NOW).unwrap().view.segments[0]);
    log.compact_now(NOW).unwrap();
    let files = || {
        let read = |suffix| std::fs::read(segment_file(dir.path(), 0, suffix)).unwrap();
        (read(INDEX_SUFFIX), read(TIME_INDEX_SUFFIX))
    };
    let before = files();
    for offset in 0..40 {
        let slice = old.read(offset, 1, 40, true).unwrap().unwrap();
        assert_eq!(slice.base_offset, offset - offset % 2);
        let found = old.locate_time(offset, 0).unwrap().unwrap();
        assert_eq!(found.base_offset, offset - offset % 2);
    }
    assert_eq!(files(), before);
    assert_eq!(read_all(&log).len(), 3 + 40 + 1);
}

fn start(dirs: Vec<Arc<LogDir>>, config: CleanerConfig) -> (Cleaner, Receiver<CleanerEvent>) {
    let (sender, events) = channel();
    let cleaner = Cleaner::start(dirs, config, move |event| {
        // The test may have ended, and the receiver with it.
        let _ = sender.send(event);
    })
    .unwrap();
    (cleaner, events)
}

fn open_dir(path: &Path) -> LogDir {
    LogDir::open(path, 1, Some("cluster"), &|_| config()).unwrap()
}

/// Waits for the cleaner's next event, up to a time limit.
fn next(events: &Receiver<CleanerEvent>) -> CleanerEvent {
    events.recv_timeout(Duration::from_secs(300)).unwrap()
}

/// Waits for the next log to be cleaned.
fn cleaned(events: &Receiver<CleanerEvent>) -> (String, i64) {
    match next(events) {
        CleanerEvent::Cleaned { topic, stats, .. } => (topic, stats.clean_until_offset),
        other => panic!("{other:?}"),
    }
}

/// A cleaner that checks its logs only when it is woken.
fn patient() -> CleanerConfig {
    CleanerConfig {
        backoff_ms: u64::MAX,
        ..CleanerConfig::default()
    }
}

// Broken if it failed: logs would not be compacted on their own, the dirtiest not first, or again after a
// restart.
#[test]
fn the_dirtiest_log_is_cleaned_first_and_its_offset_remembered() {
    let dir = tempfile::tempdir().unwrap();
    let logs = Arc::new(open_dir(dir.path()));
    for topic in ["half", "whole", "plain"] {
        let config = LogConfig {
            cleanup_compact: topic != "plain",
            min_cleanable_dirty_ratio: 0.3,
            ..config()
        };
        let log = &logs.create(topic, 0, [1; 16], config).unwrap().log;
        for number in 0..10u8 {
            append(log, b"key", &[number]);
            if number == 4 {
                log.roll(NOW).unwrap();
            }
        }
        log.roll(NOW).unwrap();
        append(log, b"key", b"active");
    }
    logs.get("half", 0).unwrap().log.cleaning().set_first_dirty(5);
    let (cleaner, events) = start(vec![Arc::clone(&logs)], patient());
    assert_eq!(cleaned(&events), ("whole".to_owned(), 10));
    assert_eq!(cleaned(&events), ("half".to_owned(), 10));
    let whole = logs.get("whole", 0).unwrap();
    assert_eq!(values(&whole.log).len(), 2);
    assert_eq!(values(&logs.get("plain", 0).unwrap().log).len(), 11);

    // Records that come later are found when the cleaner checks again.
    whole.log.roll(NOW).unwrap();
    cleaner.wake();
    assert_eq!(cleaned(&events), ("whole".to_owned(), 11));
    cleaner.stop();
    cleaner.stop();
    let kept = read_offsets(&dir.path().join(CLEANER_FILE)).unwrap();
    let key = |topic: &str| (topic.to_owned(), 0);
    assert_eq!((kept[&key("whole")], kept[&key("half")], kept.len()), (11, 10, 2));

    logs.delete("half", 0).unwrap();
    logs.checkpoint().unwrap();
    let kept = read_offsets(&dir.path().join(CLEANER_FILE)).unwrap();
    assert_eq!(kept.keys().collect::<Vec<_>>(), [&key("whole")]);
    logs.close().unwrap();
    drop((logs, cleaner));
    let logs = open_dir(dir.path());
    assert_eq!(logs.get("whole", 0).unwrap().log.first_dirty_offset(), Some(11));
    drop(logs);
}

// Broken if it failed: a broker would compact again what a program compacted in its directory, and the
// reverse.
#[test]
fn a_program_and_a_broker_share_the_cleaner_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let logs = open_dir(dir.path());
    let log = Arc::clone(&logs.create("t", 0, [1; 16], config()).unwrap().log);
    append(&log, b"key", b"one");
    append(&log, b"key", b"two");
    log.roll(NOW).unwrap();
    log.compact_now(NOW).unwrap();
    logs.close().unwrap();
    drop((logs, log));

    let log = StandaloneLog::open(&dir.path().join("t-0"), false, config()).unwrap();
    assert_eq!(log.first_dirty_offset(), Some(2));
    append(&log, b"key", b"three");
    log.roll(NOW).unwrap();
    assert_eq!(log.compact_now().unwrap().clean_until_offset, 3);
    log.close().unwrap();
    drop(log);
    let logs = open_dir(dir.path());
    let log = &logs.get("t", 0).unwrap().log;
    assert_eq!((log.first_dirty_offset(), values(log).len()), (Some(3), 1));
}

// Broken if it failed: deleting a topic or stopping the server would wait for a slow compaction, or fail
// through it.
#[test]
fn a_cleaning_ends_when_its_log_or_its_cleaner_does() {
    for stop in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let logs = Arc::new(open_dir(dir.path()));
        let log = Arc::clone(&logs.create("t", 0, [1; 16], config()).unwrap().log);
        for _ in 0..20 {
            append(&log, b"key", &[0; 10_000]);
        }
        log.roll(NOW).unwrap();
        // At one byte in a thousand seconds the pass does not end on its own.
        let slow = CleanerConfig {
            io_max_bytes_per_second: 0.001,
            ..patient()
        };
        let (cleaner, events) = start(vec![Arc::clone(&logs)], slow);
        // The pass has started.
        while !log.cleaning().is_running() {
            std::thread::yield_now();
        }
        if stop {
            cleaner.stop();
            assert!(events.try_recv().is_err());
            assert_eq!(values(&log).len(), 20);
        } else {
            logs.delete("t", 0).unwrap();
            assert!(!dir.path().join("t-0").exists());
        }
    }
}

// Broken if it failed: a damaged log would be read over and over, or keep the others from being cleaned.
#[test]
fn a_log_that_cannot_be_cleaned_is_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let logs = Arc::new(open_dir(dir.path()));
    for topic in ["bad", "good"] {
        let log = &logs.create(topic, 0, [1; 16], config()).unwrap().log;
        append(log, b"key", b"one");
        append(log, b"key", b"two");
        log.roll(NOW).unwrap();
    }
    let path = segment_file(&dir.path().join("bad-0"), 0, LOG_SUFFIX);
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let (cleaner, events) = start(vec![Arc::clone(&logs)], patient());
    let (mut failed, mut cleaned) = (0, 0);
    while cleaned == 0 || failed == 0 {
        match next(&events) {
            CleanerEvent::Failed {
                topic,
                for_good,
                reason,
                ..
            } => {
                assert_eq!((topic.as_str(), for_good), ("bad", true));
                assert!(reason.contains("00000000000000000000.log"), "{reason}");
                failed += 1;
            }
            CleanerEvent::Cleaned { topic, .. } => {
                assert_eq!(topic, "good");
                cleaned += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    let good = &logs.get("good", 0).unwrap().log;
    append(good, b"key", b"three");
    good.roll(NOW).unwrap();
    cleaner.wake();
    assert!(matches!(next(&events), CleanerEvent::Cleaned { .. }));
    cleaner.stop();
    assert!(events.try_recv().is_err());
    assert!(logs.get("bad", 0).unwrap().log.uncleanable().is_some());
}

// Broken if it failed: a topic with both policies would keep records beyond retention, or one policy fail the
// other.
#[test]
fn compaction_and_retention_run_side_by_side() {
    let dir = tempfile::tempdir().unwrap();
    let both = LogConfig {
        cleanup_delete: true,
        retention_ms: 100,
        segment_bytes: 2000,
        ..config()
    };
    let mut writer = Writer::new(dir.path());
    for round in 0..5u8 {
        writer.plain(&[(b"always", Some(&[round])), (&[round], Some(b"once"))]);
        writer.roll();
    }
    let log = writer.open(both);
    let plan = log.plan_cleaning(NOW).unwrap();
    // Retention deletes the first two segments after the pass has chosen them. Timestamps equal offsets.
    assert_eq!(log.delete_old_segments(104).unwrap(), 2);
    assert!(plan.view.log_start < log.log_start_offset());
    log.compact_now(NOW).unwrap();
    assert_eq!(log.log_start_offset(), 4);
    let offsets: Vec<i64> = values(&log).iter().map(|(offset, ..)| *offset).collect();
    assert_eq!(offsets, [5, 7, 8, 9, 10]);
    assert_eq!(log.first_segment_offset(), 4);
}

// Broken if it failed: a standalone log would be compacted from its front after each opening, or records
// written after a truncation would count as compacted.
#[test]
fn a_standalone_log_remembers_its_first_dirty_offset() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = dir.path().join(CLEANER_FILE);
    let first_dirty = || {
        let offsets = read_offsets(&checkpoint).unwrap();
        offsets.into_values().next()
    };
    let open = || StandaloneLog::open(dir.path(), true, config()).unwrap();
    let log = open();
    log.close().unwrap();
    assert!(!checkpoint.exists());
    let log = open();
    for value in [b"one", b"two"] {
        append(&log, b"key", value);
    }
    log.roll(NOW).unwrap();
    assert_eq!(log.compact_now().unwrap().clean_until_offset, 2);
    assert_eq!(first_dirty(), Some(2));
    // The log is not closed, as after a crash.
    drop(log);
    let log = open();
    assert_eq!(log.first_dirty_offset(), Some(2));
    let stats = log.compact_now().unwrap();
    assert_eq!((stats.first_dirty_offset, stats.records_read), (2, 0));
    append(&log, b"key", b"three");
    log.roll(NOW).unwrap();
    assert_eq!(log.compact_now().unwrap().clean_until_offset, 3);
    assert_eq!(log.truncate_to(2).unwrap(), 2);
    assert_eq!(first_dirty(), Some(2));
    log.truncate_fully_and_start_at(1).unwrap();
    assert_eq!(first_dirty(), Some(1));
    assert!(matches!(
        log.truncate_to(-1),
        Err(StorageError::OffsetOutOfRange { .. })
    ));
    assert_eq!(first_dirty(), Some(1));
    log.close().unwrap();
    drop(log);
    // A damaged checkpoint is ignored.
    std::fs::write(&checkpoint, "garbage").unwrap();
    let log = open();
    assert_eq!(log.first_dirty_offset(), None);
    append(&log, b"key", b"four");
    log.roll(NOW).unwrap();
    assert_eq!(log.compact_now().unwrap().clean_until_offset, 2);
    log.close().unwrap();
    assert_eq!(first_dirty(), Some(2));
}

// Broken if it failed: Ctrl-C would not stop a compaction, or it would leave the log half compacted.
#[test]
fn a_cancelled_compaction_leaves_the_log_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let log = reopen(dir.path(), config());
    append(&log, b"key", b"one");
    append(&log, b"key", b"two");
    log.roll(NOW).unwrap();
    let stop = AtomicBool::new(true);
    let stats = log.compact_until(&stop, &patient(), NOW).unwrap();
    assert_eq!((stats.records_read, stats.clean_until_offset), (0, 0));
    assert_eq!(values(&log).len(), 2);
    // A pass under way: at one byte in a thousand seconds it does not end on its own.
    let slow = CleanerConfig {
        io_max_bytes_per_second: 0.001,
        ..patient()
    };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let running = scope.spawn(|| log.compact_until(&stop, &slow, NOW).unwrap());
        while !log.cleaning().is_running() {
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Release);
        drop(log.pause_cleaning());
        assert_eq!(running.join().unwrap().records_written, 0);
    });
    assert_eq!(values(&log).len(), 2);
}
