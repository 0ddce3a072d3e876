//! Logs that move between directories, with crashes and failing disks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering as Order};

use logcore_records::{BatchBuilder, Compression, EndTxnMarker, end_txn_marker};
use rustix::io::Errno;

use super::*;
use crate::cleaner::CleanerConfig;
use crate::files::disk::Change;
use crate::files::disk::watch::{Watcher, watch};
use crate::log::IsolationLevel;

/// Two directories on two disks, and the log `t-0` in the first.
struct Disks {
    root: tempfile::TempDir,
    from: Arc<LogDir>,
    to: Arc<LogDir>,
}

impl Disks {
    fn new() -> Self {
        let root = crate::testing::scratch();
        let [from, to] = opened(root.path());
        from.create("t", 0, [7; 16], small()).unwrap();
        Self { root, from, to }
    }

    fn log(&self) -> Arc<Log> {
        self.from.get("t", 0).unwrap().log.clone()
    }

    fn begin(&self) -> Move {
        Move::begin(&self.from, &self.to, "t", 0).unwrap()
    }
}

/// Segments of a few batches.
fn small() -> LogConfig {
    LogConfig {
        segment_bytes: 600,
        ..LogConfig::default()
    }
}

fn paths(root: &Path) -> [PathBuf; 2] {
    [root.join("from"), root.join("to")]
}

/// The two directories, opened as a broker opens them.
fn opened(root: &Path) -> [Arc<LogDir>; 2] {
    finish_moves(&paths(root)).unwrap();
    check_duplicates(&paths(root)).unwrap();
    paths(root).map(|path| {
        let opened = LogDir::open(&path, 1, Some("cluster-a"), &|_| small());
        Arc::new(opened.unwrap())
    })
}

/// The one of the directories that has the log.
fn index_of_log(dirs: &[Arc<LogDir>]) -> usize {
    let found: Vec<_> = (0..dirs.len())
        .filter(|number| dirs[*number].get("t", 0).is_some())
        .collect();
    let failures: Vec<_> = dirs.iter().flat_map(|dir| dir.failures()).collect();
    assert!(found.len() == 1, "it is in {found:?}: {failures:?}");
    found[0]
}

fn everything(log: &Log) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut offset = log.log_start_offset();
    while offset < log.log_end_offset() {
        let slice = log.read(offset, 1 << 20, i64::MAX, true).unwrap();
        let read = slice.read_whole_batches().unwrap();
        if read.is_empty() {
            break;
        }
        let mut at = 0;
        while at < read.len() {
            let number = |from: usize, to: usize| &read[at + from..at + to];
            let base = i64::from_be_bytes(number(0, 8).try_into().unwrap());
            let delta = i32::from_be_bytes(number(23, 27).try_into().unwrap());
            offset = base + i64::from(delta) + 1;
            at += 12 + i32::from_be_bytes(number(8, 12).try_into().unwrap()) as usize;
        }
        bytes.extend(read);
    }
    bytes
}

fn append_in_epoch(log: &Log, epoch: i32, value: &[u8]) {
    let mut batch = batch_of(&[(1, value)], None);
    log.append_as_leader(&mut batch, epoch, 1).unwrap();
}

/// Appends batches of a transaction of producer 9, and its marker if `committed` is given.
fn transaction(log: &Log, sequence: i32, committed: Option<bool>) {
    let mut builder = BatchBuilder::new(Compression::None, None);
    builder.set_producer_state(9, 0, sequence);
    builder.set_transactional(true);
    builder.append(1, None, Some(b"of a transaction"), &[]).unwrap();
    let mut batch = builder.build().unwrap();
    log.append_as_leader(&mut batch, 3, 1).unwrap();
    if let Some(committed) = committed {
        let marker = EndTxnMarker {
            committed,
            coordinator_epoch: 5,
        };
        let mut marker = end_txn_marker(9, 0, marker, 1).unwrap();
        log.append_as_coordinator(&mut marker, 3, 1).unwrap();
    }
}

fn write_all_kinds(log: &Log) {
    for number in 0..12 {
        append_in_epoch(log, number / 5, format!("value {number}").as_bytes());
    }
    let now = crate::clock::system_now_ms();
    let mut idempotent = batch_of(&[(now, b"x"), (now, b"y")], Some((4, 0)));
    log.append_as_leader(&mut idempotent, 2, 1).unwrap();
    transaction(log, 0, Some(false));
    transaction(log, 1, Some(true));
    transaction(log, 2, None);
    append_in_epoch(log, 4, b"the last");
}

/// Everything a log can report.
fn state(log: &Log) -> impl PartialEq + std::fmt::Debug + use<> {
    let start = log.log_start_offset();
    (
        everything(log),
        (start, log.log_end_offset(), log.high_watermark()),
        log.readable_end(IsolationLevel::ReadCommitted).unwrap(),
        log.aborted_transactions(start, i64::MAX).unwrap(),
        log.active_producers(),
        (0..6)
            .map(|epoch| log.epoch_end_offset(epoch))
            .collect::<Vec<_>>(),
        log.config().segment_bytes,
    )
}

// Broken if it failed: a moved log would lose records, its start, its epochs, its producers or its
// transactions, or threads that wait for its end would not be notified.
#[test]
fn a_log_moves_with_all_its_state() {
    let disks = Disks::new();
    let log = disks.log();
    write_all_kinds(&log);
    log.advance_log_start_offset(3).unwrap();
    let moving = disks.begin();
    let name = subdirectories(&paths(disks.root.path())[1]).remove(0);
    assert!(name.starts_with("t-0.") && name.ends_with("-future"), "{name}");
    assert!(moving.copy(1).unwrap() > 0 && moving.lag() > 0);
    append_in_epoch(&log, 4, b"meanwhile");
    while moving.copy(200).unwrap() > 0 {}
    assert_eq!(moving.lag(), 0);
    append_in_epoch(&log, 4, b"just before");
    let before = state(&log);
    let mut published = None;
    let moved = moving
        .finish(|partition| published = Some(Arc::clone(partition)))
        .unwrap()
        .unwrap();
    assert!(moved.left_behind.is_none());
    assert!(Arc::ptr_eq(&published.unwrap(), &moved.partition));
    assert_eq!(state(&moved.partition.log), before);
    assert_eq!(moved.partition.topic_id, Some([7; 16]));
    let mut late = batch_of(&[(1, b"late")], None);
    assert!(matches!(
        log.append_as_leader(&mut late, 4, 1),
        Err(StorageError::Closed { .. })
    ));
    assert_eq!(index_of_log(&[disks.from.clone(), disks.to.clone()]), 1);
    let [from, to] = paths(disks.root.path()).map(|path| subdirectories(&path));
    assert!(from.len() == 1 && from[0].ends_with("-delete"), "{from:?}");
    assert_eq!(to, ["t-0"]);
    // Also after a crash, when only the checkpoints give the start offset.
    drop((moving, moved, disks.from, disks.to));
    let dirs = opened(disks.root.path());
    assert_eq!(index_of_log(&dirs), 1);
    assert_eq!(state(&dirs[1].get("t", 0).unwrap().log), before);
}

// Broken if it failed: a producer that repeats an unanswered batch would be refused after a move, and end.
#[test]
fn repeated_batches_are_recognised_after_a_move() {
    let disks = Disks::new();
    let log = disks.log();
    let now = crate::clock::system_now_ms();
    let send = |log: &Log, sequence| {
        let mut batch = batch_of(&[(now, b"v")], Some((4, sequence)));
        log.append_as_leader(&mut batch, 0, now)
    };
    for sequence in 0..7 {
        send(&log, sequence).unwrap();
    }
    let again = |log: &Log| -> Vec<_> {
        let answers = (0..7).map(|sequence| send(log, sequence));
        let known = answers.map(|answer| answer.ok().map(|a| (a.first_offset, a.duplicate)));
        known.collect()
    };
    let before = again(&log);
    assert_eq!(before[..3], [None, None, Some((2, true))]);
    assert_eq!(before[6], Some((6, true)));
    let moving = disks.begin();
    while moving.copy(1 << 20).unwrap() > 0 {}
    // No batch of another producer is left.
    let mut other = batch_of(&[(now, b"gone")], Some((5, 0)));
    log.append_as_leader(&mut other, 0, now).unwrap();
    log.roll(now).unwrap();
    log.advance_log_start_offset(8).unwrap();
    log.delete_old_segments(now).unwrap();
    let producers = log.active_producers();
    assert_eq!(producers.len(), 2);
    let moved = moving.finish(|_| ()).unwrap().unwrap().partition.log.clone();
    assert_eq!(again(&moved), before);
    assert_eq!(moved.active_producers(), producers);
    assert_eq!(send(&moved, 7).unwrap().first_offset, 8);
    // The snapshot has all of them, too.
    let producers = moved.active_producers();
    drop((moving, moved, log));
    let Disks { root, from, to } = disks;
    to.close().unwrap();
    drop((from, to));
    let dirs = opened(root.path());
    assert_eq!(log_again(&dirs[1]).active_producers(), producers);
}

// Broken if it failed: a move that was interrupted, or whose log lost its end in a power loss, would produce
// a log with records that were never written there.
#[test]
fn a_move_continues_after_a_restart() {
    let disks = Disks::new();
    let log = disks.log();
    write_all_kinds(&log);
    let moving = disks.begin();
    while moving.copy(1 << 20).unwrap() > 0 {}
    drop(moving);
    // The end is written again, with the same epoch and then with another, as after its loss.
    disks.from.truncate_to("t", 0, 9).unwrap();
    let Disks { root, from, to } = disks;
    log.close().unwrap();
    to.close().unwrap();
    drop((log, from, to));
    let [from, to] = opened(root.path());
    let (log, future) = (from.get("t", 0).unwrap(), to.future("t", 0).unwrap());
    assert!(future.log.log_end_offset() > log.log.log_end_offset());
    let moving = Move::begin(&from, &to, "t", 0).unwrap();
    assert_eq!(moving.lag(), 0);
    append_in_epoch(&log.log, 7, b"other");
    let before = (everything(&log.log), log.log.epoch_end_offset(7));
    let moved = moving.finish(|_| ()).unwrap().unwrap().partition.log.clone();
    assert_eq!((everything(&moved), moved.epoch_end_offset(7)), before);
}

// Broken if it failed: retention or DeleteRecords during a move would stop it for ever, or leave an unnoticed
// gap.
#[test]
fn a_log_may_begin_after_the_end_of_its_copy() {
    let disks = Disks::new();
    let log = disks.log();
    let moving = disks.begin();
    let mut builder = BatchBuilder::new(Compression::None, None);
    for _ in 0..10 {
        builder.append(1, None, Some(b"v"), &[]).unwrap();
    }
    let mut batch = builder.build().unwrap();
    for _ in 0..6 {
        log.append_as_leader(&mut batch.clone(), 0, 1).unwrap();
    }
    log.append_as_leader(&mut batch, 0, 1).unwrap();
    // The new start is inside a batch; the segments before it are deleted.
    log.advance_log_start_offset(55).unwrap();
    assert!(log.delete_old_segments(1).unwrap() > 0);
    while moving.copy(1).unwrap() > 0 {}
    // The last segment is still to be copied when everything is deleted.
    log.advance_log_start_offset(70).unwrap();
    append(&log, b"w");
    let moved = moving.finish(|_| ()).unwrap().unwrap().partition.log.clone();
    assert_eq!((moved.log_start_offset(), moved.log_end_offset()), (70, 71));
    assert_eq!(everything(&moved), everything(&log_again(&disks.to)));
    assert!(matches!(
        moved.read(69, 1, 71, true),
        Err(StorageError::OffsetOutOfRange { .. })
    ));
}

fn log_again(dir: &LogDir) -> Arc<Log> {
    dir.get("t", 0).unwrap().log.clone()
}

// Broken if it failed: offsets would be assigned a second time after a move, or a copy would have deleted
// records.
#[test]
fn a_compacted_log_moves() {
    let disks = Disks::new();
    let log = disks.log();
    let keyed = |key: &[u8], value: Option<&[u8]>| {
        let mut builder = BatchBuilder::new(Compression::None, None);
        builder.append(1, Some(key), value, &[]).unwrap();
        log.append_as_leader(&mut builder.build().unwrap(), 0, 1).unwrap();
    };
    for _ in 0..4 {
        keyed(b"a", Some(b"1"));
        keyed(b"b", Some(b"2"));
    }
    keyed(b"a", None);
    log.roll(1).unwrap();
    log.compact_with(&CleanerConfig::default(), 1).unwrap();
    let end = log.log_end_offset();
    let first_dirty = log.first_dirty_offset();
    assert!(first_dirty.is_some());
    let moving = disks.begin();
    assert!(
        log.cleaning().try_begin().is_none(),
        "it is compacted beside its copy"
    );
    while moving.copy(1 << 20).unwrap() > 0 {}
    let before = everything(&log);
    let moved = moving.finish(|_| ()).unwrap().unwrap().partition.log.clone();
    drop(moving);
    assert_eq!((everything(&moved), moved.log_end_offset()), (before, end));
    assert_eq!(moved.first_dirty_offset(), first_dirty);
    moved.compact_with(&CleanerConfig::default(), 1).unwrap();
}

// Broken if it failed: the last step of a move would block producers while a whole log is copied or flushed.
#[test]
fn the_last_step_copies_and_flushes_little() {
    let disks = Disks::new();
    let log = disks.log();
    let filled = LogConfig {
        segment_bytes: 1 << 20,
        ..small()
    };
    log.update_config(filled);
    let append_much = || {
        let value = vec![b'v'; 300_000];
        for _ in 0..20 {
            append_in_epoch(&log, 1, &value);
        }
    };
    append_much();
    let moving = disks.begin();
    let all = log.size_bytes();
    assert_eq!(moving.bytes_left().unwrap(), all);
    // The end of the first segment, and its last batch alone.
    let mut copied = 0;
    for _ in 0..3 {
        copied += moving.copy(1 << 19).unwrap();
        assert_eq!(moving.bytes_left().unwrap(), all - copied);
    }
    assert!(copied < 1 << 20);
    let too_early = || moving.finish(|_| panic!("it is too early")).unwrap().is_none();
    assert!(too_early());
    while moving.copy(1 << 20).unwrap() > 0 {}
    assert_eq!(moving.bytes_left().unwrap(), 0);
    // All is copied, but not flushed.
    assert!(too_early());
    moving.prepare().unwrap();
    append_much();
    assert!(log.is_about_to_move());
    assert!(too_early());
    assert!(!log.is_about_to_move());
    while moving.copy(1 << 20).unwrap() > 0 {}
    moving.prepare().unwrap();
    append_in_epoch(&log, 1, b"the last");
    let (before, end) = (everything(&log), log.log_end_offset());
    let moved = moving.finish(|_| ()).unwrap().unwrap().partition.log.clone();
    assert_eq!(moved.log_end_offset(), end);
    assert!(everything(&moved) == before);
}

// Broken if it failed: stopping a broker during a move, or the move's last step, would wait for a whole log's
// fsync.
#[test]
fn a_copy_is_flushed_as_it_grows() {
    let disks = Disks::new();
    let log = disks.log();
    log.update_config(LogConfig::default());
    let value = vec![b'v'; 1_000_000];
    for _ in 0..40 {
        append_in_epoch(&log, 1, &value);
    }
    let moving = disks.begin();
    while moving.copy(1 << 20).unwrap() > 0 {}
    let future = disks.to.future("t", 0).unwrap();
    assert!(future.log.recovery_point() > 30);
}

// Broken if it failed: offsets after the last batch that compaction kept would be assigned again after a
// move.
#[test]
fn the_end_offset_survives_without_the_last_batches() {
    for copied in [false, true] {
        let disks = Disks::new();
        let log = disks.log();
        if copied {
            append(&log, b"v");
        }
        log.skip_to(10, 1).unwrap();
        log.set_high_watermark(10);
        let moving = disks.begin();
        let moved = moving.finish(|_| ()).unwrap().unwrap().partition.log.clone();
        assert_eq!((moved.log_end_offset(), moved.high_watermark()), (10, 10));
        append(&moved, b"w");
        drop((moved, moving, log));
        let Disks { root, from, to } = disks;
        drop((from, to));
        let dirs = opened(root.path());
        let moved = log_again(&dirs[index_of_log(&dirs)]);
        assert_eq!(moved.log_end_offset(), 11);
    }
}

// Broken if it failed: a cancelled move, or that of a deleted log, would go on, or leave its copy for ever.
#[test]
fn cancelled_moves_leave_no_copy() {
    let disks = Disks::new();
    append(&disks.log(), b"v");
    let moving = disks.begin();
    disks.to.delete_future("t", 0).unwrap();
    assert!(matches!(
        moving.copy(1),
        Err(StorageError::Closed { .. } | StorageError::NotFound { .. })
    ));
    moving.finish(|_| panic!("it was cancelled")).unwrap_err();
    assert!(disks.to.futures().is_empty());
    drop(moving);
    assert!(disks.log().cleaning().try_begin().is_some());
    let moving = disks.begin();
    disks.from.delete("t", 0).unwrap();
    disks.from.create("t", 0, [8; 16], small()).unwrap();
    moving.finish(|_| panic!("it was deleted")).unwrap_err();
    assert!(matches!(
        Move::begin(&disks.from, &disks.to, "u", 0),
        Err(StorageError::NotFound { .. })
    ));
}

/// Ends the process before one change, or fails that change as a disk does. Only changes below `below` count.
struct Step {
    at: usize,
    below: PathBuf,
    crash: bool,
    seen: AtomicUsize,
}

impl Watcher for Step {
    fn before(&self, change: Change<'_>) -> io::Result<Option<(usize, io::Error)>> {
        if !change.path().starts_with(&self.below) {
            return Ok(None);
        }
        let seen = self.seen.fetch_add(1, Order::SeqCst);
        if seen == self.at || (self.crash && seen > self.at) {
            return Err(Errno::IO.into());
        }
        Ok(None)
    }
}

/// The outcome of a move, whether it reached the step, and the values written before.
fn interrupted(below: &str, at: usize, crash: bool) -> (Disks, Result<Moved>, bool, Vec<u8>) {
    let disks = Disks::new();
    write_all_kinds(&disks.log());
    let written = everything(&disks.log());
    let root = disks.root.path().canonicalize().unwrap();
    let step = Arc::new(Step {
        at,
        below: root.join(below),
        crash,
        seen: AtomicUsize::new(0),
    });
    let watching = watch(&root, step.clone());
    let result = (|| {
        let moving = Move::begin(&disks.from, &disks.to, "t", 0)?;
        while moving.copy(400)? > 0 {}
        moving.prepare()?;
        Ok(moving.finish(|_| ())?.unwrap())
    })();
    drop(watching);
    let reached = step.seen.load(Order::SeqCst) > at;
    (disks, result, reached, written)
}

// Broken if it failed: a crash during a move would leave a broker that does not start, or a log that is
// missing, in two directories, or without its end.
#[test]
fn a_move_survives_a_crash_at_every_step() {
    let mut ends = [0, 0];
    for at in 0.. {
        let (disks, result, reached, expected) = interrupted("", at, true);
        let Disks { root, from, to } = disks;
        drop((result, from, to));
        let dirs = opened(root.path());
        let number = index_of_log(&dirs);
        ends[number] += 1;
        assert!(everything(&log_again(&dirs[number])) == expected, "step {at}");
        let end = log_again(&dirs[number]).log_end_offset();
        append_in_epoch(&log_again(&dirs[number]), 5, b"after");
        // The rest of the interrupted move is removed, or the move continues.
        if number == 0 {
            let moving = Move::begin(&dirs[0], &dirs[1], "t", 0).unwrap();
            moving.finish(|_| ()).unwrap().unwrap();
            assert_eq!(log_again(&dirs[1]).log_end_offset(), end + 1);
        } else {
            assert!(dirs[1].futures().is_empty());
        }
        if !reached {
            assert!(ends[0] > 30 && ends[1] > 2, "{ends:?}");
            return;
        }
    }
}

// Broken if it failed: a disk that fails during a move would take a log on another disk offline, or a log
// would be served from a disk that lacks its records.
#[test]
fn a_move_survives_a_failure_at_every_step() {
    for (below, number) in [("from", 0), ("to", 1)] {
        for at in 0.. {
            let (disks, result, reached, _) = interrupted(below, at, false);
            let dirs = [disks.from.clone(), disks.to.clone()];
            let holder = index_of_log(&dirs);
            let step = format!("{below}, step {at}: {result:?}");
            assert_eq!(result.is_ok(), holder == 1, "{step}");
            let log = log_again(&dirs[holder]);
            let mut batch = batch_of(&[(1, b"after")], None);
            let appended = log.append_as_leader(&mut batch, 5, 1);
            // The log is served as long as its own disk works.
            if holder == number && reached && log.failure().is_some() {
                appended.unwrap_err();
            } else {
                assert_eq!(log.failure(), None, "{step}");
                assert!(appended.is_ok(), "{step}");
            }
            assert_eq!(dirs[1 - number].failure(), None, "{step}");
            let (end, bytes) = (log.log_end_offset(), everything(&log));
            let Disks { root, from, to } = disks;
            drop((dirs, log, result, from, to));
            let dirs = opened(root.path());
            let log = log_again(&dirs[index_of_log(&dirs)]);
            assert_eq!((log.log_end_offset(), everything(&log)), (end, bytes), "{step}");
            if !reached {
                assert!(at > 3, "only {at} steps were seen below {below}");
                break;
            }
        }
    }
}

// Broken if it failed: an unfinished copy on a disk that failed and was repaired would replace the log.
#[test]
fn only_a_complete_copy_replaces_the_log() {
    for renamed in [false, true] {
        let disks = Disks::new();
        write_all_kinds(&disks.log());
        let written = everything(&disks.log());
        let moving = disks.begin();
        while moving.copy(400).unwrap() > 0 {}
        let copy = disks.to.future("t", 0).unwrap().log.dir();
        let mark = disks.log().dir().join("logcore-moved");
        fs::write(mark, copy.file_name().unwrap().as_encoded_bytes()).unwrap();
        let Disks { root, from, to } = disks;
        drop((moving, from, to));
        if renamed {
            fs::rename(&copy, root.path().join("to/t-0")).unwrap();
        }
        // Both names sort before those of the directories of the move.
        let mut all = paths(root.path()).to_vec();
        for (number, name) in ["after", "before"].iter().enumerate() {
            let stale = root.path().join(name).join(format!("t-0.{number}-future"));
            fs::create_dir_all(stale).unwrap();
            all.insert(number, root.path().join(name));
        }
        let moved = root.path().canonicalize().unwrap().join("to/t-0");
        assert_eq!(finish_moves(&all).unwrap(), [moved]);
        assert!(root.path().join("after/t-0.0-future").exists());
        assert!(root.path().join("before/t-0.1-future").exists());
        let dirs = opened(root.path());
        assert_eq!(index_of_log(&dirs), 1);
        assert!(everything(&log_again(&dirs[1])) == written);
    }
}

// Broken if it failed: when a log moves a second time after its first disk failed, a crash would keep the
// broker from serving it.
#[test]
fn a_second_move_after_a_failed_disk_is_finished() {
    let root = crate::testing::scratch();
    let all = ["one", "two", "three"].map(|name| root.path().join(name));
    let copies = ["t-0.a-future", "t-0.b-future"];
    for (path, (dir, copy)) in all.iter().zip([
        ("t-0", Some(copies[0])),
        ("t-0", Some(copies[1])),
        (copies[1], None),
    ]) {
        fs::create_dir_all(path.join(dir)).unwrap();
        if let Some(copy) = copy {
            fs::write(path.join(dir).join("logcore-moved"), copy).unwrap();
        }
    }
    let finished = finish_moves(&all).unwrap();
    let moved = root.path().canonicalize().unwrap().join("three/t-0");
    assert_eq!(finished, [moved.clone(), moved]);
    check_duplicates(&all).unwrap();
    assert!(!all[0].join("t-0").exists() && !all[1].join("t-0").exists());
}

// Broken if it failed: a log moved to a disk that is missing would be served from its old copy.
#[test]
fn a_log_whose_new_directory_is_missing_is_not_served() {
    let disks = Disks::new();
    append(&disks.log(), b"v");
    let Disks { root, from, to } = disks;
    drop((from, to));
    let mark = root.path().join("from/t-0/logcore-moved");
    fs::write(&mark, b"").unwrap();
    let from = LogDir::open(&root.path().join("from"), 1, None, &|_| small()).unwrap();
    assert!(from.get("t", 0).is_none());
    let reason = from.failures()[0].1.to_string();
    assert!(
        reason.contains("t-0 was moved to another log directory"),
        "{reason}"
    );
    drop(from);
    fs::remove_file(&mark).unwrap();
    let dirs = opened(root.path());
    assert_eq!(log_again(&dirs[0]).log_end_offset(), 1);
}
