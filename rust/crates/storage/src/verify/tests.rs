//! Verification of intact directories, and of the same directories with one fault each.

use std::fs;
use std::path::{Path, PathBuf};

use logcore_records::{set_offsets_in_place, set_producer_state_in_place};
use tempfile::TempDir;

use super::{Finding, Kind, Report, Severity, VerifyOptions, verify};
use crate::config::LogConfig;
use crate::files::metadata::MetaProperties;
use crate::files::{SNAPSHOT_SUFFIX, segment_file};
use crate::log_dir::LogDir;
use crate::producers::snapshot;
use crate::producers::{BatchMetadata, ProducerEntry, ProducerState};
use crate::slice::whole_batches;
use crate::standalone::StandaloneLog;
use crate::testing::{batch_of, flip};

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/kafka-3.9.1/golden-0");

fn check(path: &Path) -> Report {
    verify(path, &VerifyOptions::default(), &mut |_| true).unwrap()
}

fn kinds(report: &Report) -> Vec<Kind> {
    report.findings.iter().map(|finding| finding.kind).collect()
}

/// A copy of Apache Kafka's directory, which a test may damage.
pub(crate) fn copy_of_kafka_log() -> (TempDir, PathBuf) {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("golden-0");
    fs::create_dir(&dir).unwrap();
    for entry in fs::read_dir(FIXTURE).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), dir.join(entry.file_name())).unwrap();
    }
    (parent, dir)
}

fn only(report: &Report, kind: Kind) -> &Finding {
    assert_eq!(kinds(report), [kind], "{:#?}", report.findings);
    &report.findings[0]
}

pub(crate) fn batch(values: std::ops::Range<i64>) -> Vec<u8> {
    let text = |value: &i64| format!("value {value:>40}").into_bytes();
    let texts: Vec<Vec<u8>> = values.clone().map(|value| text(&value)).collect();
    let times = values.map(|value| 1_000_000 + value);
    let records: Vec<(i64, &[u8])> = times.zip(texts.iter().map(Vec::as_slice)).collect();
    batch_of(&records, None)
}

/// A closed log ([`write_log`]) in a directory that is removed with the first value.
fn ours(batches: i64) -> (tempfile::TempDir, PathBuf) {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("ours-0");
    write_log(&dir, batches);
    (parent, dir)
}

/// A closed log of `batches` batches of ten records in several segments.
pub(crate) fn write_log(dir: &Path, batches: i64) {
    let config = LogConfig {
        segment_bytes: 8 << 10,
        index_interval_bytes: 1 << 10,
        ..LogConfig::default()
    };
    let log = StandaloneLog::open(dir, true, config).unwrap();
    for number in 0..batches {
        log.append(&mut batch(number * 10..number * 10 + 10)).unwrap();
    }
    log.close().unwrap();
}

// Broken if it failed: what Apache Kafka writes would be called damaged.
#[test]
fn a_directory_of_kafka_is_clean() {
    let report = check(Path::new(FIXTURE));
    assert_eq!(report.findings, []);
    assert_eq!((report.partitions, report.segments, report.records), (1, 3, 164));
}

// Broken if it failed: what this crate writes would be called damaged, or progress would not reach its total.
#[test]
fn a_directory_of_this_crate_is_clean_and_progress_reaches_the_total() {
    let (_parent, dir) = ours(60);
    let mut reported = Vec::new();
    let report = verify(&dir, &VerifyOptions::default(), &mut |progress| {
        reported.push(progress);
        true
    })
    .unwrap();
    assert_eq!(report.findings, []);
    assert_eq!((report.batches, report.records), (60, 600));
    assert!(report.segments > 3);
    let last = reported.last().unwrap();
    assert_eq!((last.bytes, last.partitions), (last.bytes_total, 1));
    assert_eq!(last.bytes_total, report.bytes);
}

// Broken if it failed: the caller could not stop the reading of a large directory.
#[test]
fn a_caller_can_stop() {
    let parent = tempfile::tempdir().unwrap();
    for number in 0..5 {
        write_log(&parent.path().join(format!("ours-{number}")), 5);
    }
    // The first call of the callback comes before anything is read.
    let report = verify(parent.path(), &VerifyOptions::default(), &mut |_| false).unwrap();
    assert!(report.stopped);
    assert_eq!((report.partitions, report.segments), (5, 0));
}

// Broken if it failed: a flipped bit in a batch would be missed, or the records after it would not be
// counted.
#[test]
fn a_flipped_bit_in_the_middle_is_a_corrupt_batch() {
    let (_parent, dir) = copy_of_kafka_log();
    let path = dir.join("00000000000000000000.log");
    flip(&path, 200, 0x40);
    let report = check(&dir);
    let finding = only(&report, Kind::CorruptBatch);
    assert_eq!(finding.severity(), Severity::Damage);
    assert_eq!(
        (finding.path.as_path(), finding.position, finding.offset),
        (path.as_path(), Some(0), Some(0))
    );
    assert!(finding.what.contains("checksum"), "{}", finding.what);
    assert!(finding.what.contains("160 records after it"));
    assert_eq!(report.records, 160);
}

// Broken if it failed: a batch whose length is damaged would hide all batches after it.
#[test]
fn the_next_batch_after_garbage_is_found() {
    let (_parent, dir) = ours(6);
    let path = dir.join("00000000000000000000.log");
    let mut bytes = fs::read(&path).unwrap();
    let size = batch(0..10).len();
    // The second batch's header: its length is wrong now.
    bytes[size..size + 30].fill(0xff);
    fs::write(&path, bytes).unwrap();
    let report = check(&dir);
    let finding = only(&report, Kind::CorruptBatch);
    assert_eq!((finding.position, finding.offset), (Some(size as u64), Some(10)));
    assert!(finding.what.contains("40 records after it"), "{}", finding.what);
}

// Broken if it failed: a torn tail would be called damage in the middle, or the reverse.
#[test]
fn a_cut_last_batch_is_a_torn_tail() {
    let (_parent, dir) = ours(3);
    let path = dir.join("00000000000000000000.log");
    let bytes = fs::read(&path).unwrap();
    let size = bytes.len() / 3;
    for cut in [2 * size + 1, 2 * size + 61, 3 * size - 1] {
        fs::write(&path, &bytes[..cut]).unwrap();
        let report = check(&dir);
        // The snapshot at the log's end is not compared, because the end is not known.
        let finding = only(&report, Kind::TornTail);
        assert_eq!(
            (finding.position, finding.offset),
            (Some(2 * size as u64), Some(20)),
            "cut at {cut}"
        );
        assert!(report.is_damaged());
    }
}

// Broken if it failed: a batch that is being written would be called damage.
#[test]
fn a_torn_tail_of_a_live_log_is_not_reported() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("ours-0");
    let log = StandaloneLog::open(&dir, true, LogConfig::default()).unwrap();
    log.append(&mut batch(0..10)).unwrap();
    let path = dir.join("00000000000000000000.log");
    let whole = fs::read(&path).unwrap();
    let mut bytes = whole.clone();
    bytes.extend(&whole[..70]);
    fs::write(&path, &bytes).unwrap();
    assert_eq!(check(&dir).findings, []);
    fs::write(&path, &whole).unwrap();
    log.close().unwrap();
    // Without a writer, the same bytes are a torn tail.
    fs::write(&path, &bytes).unwrap();
    only(&check(&dir), Kind::TornTail);
}

// Broken if it failed: a snapshot that the broker is writing would be called wrong, or an older wrong one be
// missed.
#[test]
fn the_newest_snapshot_of_a_live_log_may_be_half_written() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("ours-0");
    let log = StandaloneLog::open(&dir, true, LogConfig::default()).unwrap();
    log.append(&mut batch(0..10)).unwrap();
    let newest = segment_file(&dir, 10, SNAPSHOT_SUFFIX);
    for half in [&b""[..], &[0, 1, 7, 7, 7, 7, 0, 0, 0, 0]] {
        fs::write(&newest, half).unwrap();
        assert_eq!(check(&dir).findings, []);
    }
    let older = segment_file(&dir, 5, SNAPSHOT_SUFFIX);
    fs::write(&older, b"").unwrap();
    assert_eq!(only(&check(&dir), Kind::ProducerSnapshot).path, older);
    fs::remove_file(&older).unwrap();
    log.close().unwrap();
    fs::write(&newest, b"").unwrap();
    only(&check(&dir), Kind::ProducerSnapshot);
}

// Broken if it failed: a wrong index entry would be missed.
#[test]
fn a_wrong_index_is_a_hint() {
    let (_parent, dir) = copy_of_kafka_log();
    let first = "00000000000000000000";
    for (suffix, position, kind) in [
        // A wrong position, an offset that is too low, one that goes backwards.
        (".index", 7, Kind::OffsetIndex),
        (".index", 2, Kind::OffsetIndex),
        (".timeindex", 7, Kind::TimeIndex),
        (".timeindex", 10, Kind::TimeIndex),
    ] {
        let path = dir.join(format!("{first}{suffix}"));
        let before = fs::read(&path).unwrap();
        flip(&path, position, 0x40);
        let report = check(&dir);
        let finding = only(&report, kind);
        assert_eq!((&finding.path, finding.severity()), (&path, Severity::Hint));
        assert!(!report.is_damaged());
        fs::write(&path, &before[..before.len() - 1]).unwrap();
        only(&check(&dir), kind);
        fs::remove_file(&path).unwrap();
        assert!(only(&check(&dir), kind).what.contains("missing"));
        fs::write(&path, before).unwrap();
    }
    assert_eq!(check(&dir).findings, []);
}

// Broken if it failed: a read-committed consumer could get aborted records without anyone noticing.
#[test]
fn a_wrong_transaction_index_is_damage() {
    let (_parent, dir) = copy_of_kafka_log();
    let path = dir.join("00000000000000000161.txnindex");
    let before = fs::read(&path).unwrap();
    assert_eq!(before.len(), 34);
    // The producer, a first offset that is too high, the marker's offset, the last stable offset.
    for position in [9, 17, 25, 27] {
        let mut bytes = before.clone();
        bytes[position] = bytes[position].wrapping_add(1);
        fs::write(&path, &bytes).unwrap();
        let report = check(&dir);
        assert_eq!(only(&report, Kind::TxnIndex).severity(), Severity::Damage);
    }
    fs::remove_file(&path).unwrap();
    assert!(only(&check(&dir), Kind::TxnIndex).what.contains("missing"));
}

// Broken if it failed: a wrong leader epoch file would be missed, and followers truncate by it.
#[test]
fn a_wrong_leader_epoch_file_is_reported() {
    let (_parent, dir) = copy_of_kafka_log();
    let path = dir.join("leader-epoch-checkpoint");
    for (text, expected) in [
        ("0\n1\n7 0\n", "of epoch 7"),
        ("0\n0\n", "it has no epoch"),
        ("0\n2\n0 0\n1 5000\n", "begins at offset 5000"),
        ("0\n2\n1 0\n0 0\n", "do not increase"),
        ("0\n1\n-1 0\n", "do not increase"),
        ("0\n1\nzero 0\n", "malformed"),
    ] {
        fs::write(&path, text).unwrap();
        let report = check(&dir);
        let finding = only(&report, Kind::LeaderEpochs);
        assert!(finding.what.contains(expected), "{text}: {}", finding.what);
    }
}

/// Writes a leader epoch into batch `number` of a file whose batches have one size.
pub(crate) fn set_epoch(path: &Path, number: usize, epoch: i32) {
    let mut bytes = fs::read(path).unwrap();
    let front = number * batch(0..10).len();
    bytes[front + 12..front + 16].copy_from_slice(&epoch.to_be_bytes());
    fs::write(path, bytes).unwrap();
}

// Broken if it failed: a batch's wrong leader epoch would be missed, or reported for all later batches too.
#[test]
fn a_wrong_leader_epoch_of_a_batch_is_one_finding() {
    for (number, epoch, kind, expected) in [
        (0, 9, Kind::EpochOrder, "which most batches contradict"),
        (2, 1 << 30, Kind::EpochOrder, "which most batches contradict"),
        (2, -5, Kind::EpochOrder, "epoch -5 is not possible"),
        (5, -5, Kind::EpochOrder, "epoch -5 is not possible"),
        // No batch follows: only the file contradicts it.
        (5, 9, Kind::LeaderEpochs, "is of epoch 0 by the file"),
    ] {
        let (_parent, dir) = ours(6);
        set_epoch(&dir.join("00000000000000000000.log"), number, epoch);
        let report = check(&dir);
        let finding = only(&report, kind);
        assert!(finding.what.contains(expected), "{number}: {}", finding.what);
        assert!(report.is_damaged());
        if kind == Kind::EpochOrder {
            assert_eq!(finding.offset, Some(10 * number as i64));
        }
    }
}

// Broken if it failed: after a restart, producers with wrong sequences would be accepted.
#[test]
fn a_wrong_producer_snapshot_is_reported() {
    let (_parent, dir) = copy_of_kafka_log();
    let path = dir.join("00000000000000000161.snapshot");
    let before = fs::read(&path).unwrap();
    flip(&path, 20, 0x40);
    only(&check(&dir), Kind::ProducerSnapshot);
    // A wrong sequence with a right checksum.
    let mut bytes = before;
    bytes[10 + 8 + 2 + 3] ^= 1;
    let crc = logcore_records::crc32c(&bytes[6..]);
    bytes[2..6].copy_from_slice(&crc.to_be_bytes());
    fs::write(&path, bytes).unwrap();
    let report = check(&dir);
    assert!(
        only(&report, Kind::ProducerSnapshot)
            .what
            .contains("by the snapshot")
    );
}

/// A segment with batches of ten records of producer 7 at these offsets, and a snapshot with its last offset.
fn log_of_a_producer(dir: &Path, offsets: &[i64], snapshot: i64, ended: i64) {
    let mut bytes = Vec::new();
    for offset in offsets {
        let mut batch = batch(0..10);
        set_producer_state_in_place(&mut batch, 7, 0, *offset as i32);
        set_offsets_in_place(&mut batch, *offset, 0);
        bytes.extend(batch);
    }
    fs::create_dir(dir).unwrap();
    fs::write(dir.join("00000000000000000000.log"), bytes).unwrap();
    let last = BatchMetadata {
        last_sequence: ended as i32,
        last_offset: ended,
        offset_delta: 9,
        timestamp: 1_000_009,
    };
    let entry = ProducerEntry {
        epoch: 0,
        batches: [last].into(),
        coordinator_epoch: -1,
        last_timestamp: 1_000_009,
        transaction_start: None,
    };
    let mut state = ProducerState::default();
    state.restore(7, entry);
    snapshot::write(dir, snapshot, &state, false).unwrap();
}

// Broken if it failed: an old snapshot of a compacted log would be called wrong, or a wrong one of a whole
// log right.
#[test]
fn a_snapshot_may_have_batches_that_compaction_removed() {
    for (offsets, snapshot, ended, wrong) in [
        (&[0, 10, 20][..], 20, 19, false),
        (&[0, 10, 20], 20, 9, true),
        (&[0, 10, 20], 20, 18, true),
        // Compacted: the batch at 10 is gone, because the producer has later ones.
        (&[0, 20], 20, 19, false),
        (&[0, 20], 30, 19, true),
    ] {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("ours-0");
        log_of_a_producer(&dir, offsets, snapshot, ended);
        let found = kinds(&check(&dir)).contains(&Kind::ProducerSnapshot);
        assert_eq!(found, wrong, "{offsets:?} {snapshot} {ended}");
    }
}

// Broken if it failed: foreign files and leftovers of interrupted steps would be missed.
#[test]
fn stray_and_unfinished_files_are_reported() {
    let (_parent, dir) = copy_of_kafka_log();
    for name in [
        "00000000000000000132.log.deleted",
        "00000000000000000900.index",
        "notes.txt",
    ] {
        fs::write(dir.join(name), b"").unwrap();
    }
    let report = check(&dir);
    assert_eq!(
        kinds(&report),
        [Kind::Unfinished, Kind::StrayName, Kind::StrayName]
    );
    assert!(!report.is_damaged());
}

// Broken if it failed: offsets that repeat, or overlap the next segment, would be missed.
#[test]
fn offsets_that_do_not_increase_are_reported() {
    let (_parent, dir) = ours(3);
    let path = dir.join("00000000000000000000.log");
    let bytes = fs::read(&path).unwrap();
    let size = bytes.len() / 3;
    let mut twice = bytes.clone();
    twice[size..2 * size].copy_from_slice(&bytes[..size]);
    fs::write(&path, &twice).unwrap();
    let report = check(&dir);
    let finding = only(&report, Kind::OffsetOrder);
    assert_eq!((finding.position, finding.offset), (Some(size as u64), Some(10)));
    fs::write(&path, &bytes).unwrap();
    fs::write(dir.join("00000000000000000025.log"), b"").unwrap();
    let report = check(&dir);
    assert!(kinds(&report).contains(&Kind::OffsetOrder), "{report:?}");
}

// Broken if it failed: a log directory's own files would not be checked, or not be compared with its logs.
#[test]
fn files_of_a_log_directory_are_checked() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path();
    let config = |_: &str| LogConfig::default();
    let logs = LogDir::open(path, 1, None, &config).unwrap();
    for topic in ["a", "b"] {
        let created = logs.create(topic, 0, [7; 16], LogConfig::default()).unwrap();
        let now = crate::clock::system_now_ms();
        created.log.append_as_leader(&mut batch(0..10), 0, now).unwrap();
    }
    assert_eq!(check(path).findings, [], "while it is written");
    logs.close().unwrap();
    let report = check(path);
    assert_eq!(report.findings, []);
    assert_eq!((report.partitions, report.records), (2, 20));

    let points = path.join("recovery-point-offset-checkpoint");
    fs::write(&points, "0\n1\na 0 11\n").unwrap();
    let report = check(path);
    assert!(
        only(&report, Kind::Checkpoint)
            .what
            .contains("a-0 ends at offset 10")
    );
    fs::write(&points, "0\n2\na 0 10\n").unwrap();
    only(&check(path), Kind::Checkpoint);
    fs::write(&points, "0\n1\na 0 10\n").unwrap();
    fs::write(path.join("meta.properties"), "version=7\n").unwrap();
    only(&check(path), Kind::MetaProperties);
    MetaProperties::new(1, "PGe0vV0nQfOgQnwyn2aVtg")
        .write(path)
        .unwrap();
    fs::create_dir(path.join("whatever")).unwrap();
    fs::create_dir(path.join("a-0.0123-delete")).unwrap();
    fs::write(path.join("b-0/partition.metadata"), "version: 3\n").unwrap();
    assert_eq!(
        kinds(&check(path)),
        [Kind::Unfinished, Kind::TopicId, Kind::StrayName]
    );
}

fn remove_segment(dir: &Path, base_offset: i64) {
    let prefix = format!("{base_offset:020}.");
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name().to_str().unwrap().starts_with(&prefix) {
            fs::remove_file(entry.path()).unwrap();
        }
    }
}

fn bases(dir: &Path) -> Vec<i64> {
    let names = crate::files::file_names(dir).unwrap();
    let bases = names
        .iter()
        .filter_map(|name| crate::files::offset_of(name, ".log"));
    bases.collect()
}

// Broken if it failed: a log that lost whole segments would be called clean.
#[test]
fn lost_segments_are_damage() {
    let (_parent, dir) = ours(120);
    let bases = bases(&dir);
    assert!(bases.len() > 7, "{bases:?}");
    remove_segment(&dir, bases[2]);
    remove_segment(&dir, bases[3]);
    remove_segment(&dir, bases[5]);
    let report = check(&dir);
    let gaps = [Kind::MissingOffsets, Kind::MissingOffsets];
    assert_eq!(kinds(&report), gaps, "{:#?}", report.findings);
    assert!(report.is_damaged());
    let first = &report.findings[0];
    assert_eq!(first.offset, Some(bases[2]));
    assert!(first.path.ends_with(format!("{:020}.log", bases[4])));
    let expected = format!("offsets {} to {} are missing", bases[2], bases[4] - 1);
    assert!(first.what.contains(&expected), "{}", first.what);
    assert_eq!(report.findings[1].offset, Some(bases[5]));

    // Opening the log rebuilds its indexes; the gaps remain.
    let log = StandaloneLog::open(&dir, false, LogConfig::default()).unwrap();
    log.close().unwrap();
    assert_eq!(kinds(&check(&dir)), gaps);

    // A missing start of the log is what retention leaves.
    remove_segment(&dir, bases[0]);
    remove_segment(&dir, bases[1]);
    remove_segment(&dir, bases[4]);
    assert_eq!(check(&dir).findings, []);
}

// Broken if it failed: an emptied segment would look compacted, and a log without `.log` files new.
#[test]
fn emptied_segments_are_damage() {
    let (_parent, dir) = ours(120);
    let bases = bases(&dir);
    let path = |base: i64| dir.join(format!("{base:020}.log"));
    fs::write(path(bases[1]), b"").unwrap();
    let report = check(&dir);
    assert!(report.is_damaged());
    let lost_in = |report: &Report| -> Vec<PathBuf> {
        let lost = |finding: &&Finding| finding.kind == Kind::MissingOffsets;
        let found = report.findings.iter().filter(lost);
        found.map(|finding| finding.path.clone()).collect()
    };
    assert_eq!(lost_in(&report), [path(bases[1])], "{:#?}", report.findings);
    for base in &bases {
        fs::remove_file(path(*base)).unwrap();
    }
    assert_eq!(lost_in(&check(&dir)), vec![dir.clone(); bases.len()]);
}

// Broken if it failed: what the cleaner removed would be called lost, or a loss would be called cleaned.
#[test]
fn gaps_below_the_cleaner_checkpoint_are_no_loss() {
    let parent = tempfile::tempdir().unwrap();
    let config = |_: &str| LogConfig {
        segment_bytes: 2 << 10,
        ..LogConfig::default()
    };
    let logs = LogDir::open(parent.path(), 1, None, &config).unwrap();
    let created = logs.create("a", 0, [7; 16], config("a")).unwrap();
    for number in 0..40 {
        let mut batch = batch(number * 10..number * 10 + 10);
        let now = crate::clock::system_now_ms();
        created.log.append_as_leader(&mut batch, 0, now).unwrap();
    }
    drop(created);
    logs.close().unwrap();
    let dir = parent.path().join("a-0");
    let bases = bases(&dir);
    remove_segment(&dir, bases[3]);
    only(&check(parent.path()), Kind::MissingOffsets);
    let cleaned = parent.path().join("cleaner-offset-checkpoint");
    fs::write(&cleaned, format!("0\n1\na 0 {}\n", bases[3])).unwrap();
    only(&check(parent.path()), Kind::MissingOffsets);
    fs::write(&cleaned, format!("0\n1\na 0 {}\n", bases[4])).unwrap();
    assert_eq!(check(parent.path()).findings, []);
    assert_eq!(check(&dir).findings, []);
    // No checkpoint says that it was cleaned, but a batch is missing inside a segment, too.
    fs::remove_file(&cleaned).unwrap();
    remove_segment(&dir, bases[5]);
    let path = dir.join(format!("{:020}.log", bases[6]));
    let bytes = fs::read(&path).unwrap();
    let size = batch(0..10).len();
    assert!(bytes.len() > size);
    fs::write(&path, &bytes[size..]).unwrap();
    for suffix in ["index", "timeindex"] {
        fs::write(path.with_extension(suffix), b"").unwrap();
    }
    let report = check(parent.path());
    assert!(!report.is_damaged(), "{:#?}", report.findings);
    let gap = report.findings.iter().find(|f| f.kind == Kind::OffsetGap);
    let gap = gap.unwrap();
    assert_eq!(gap.offset, Some(bases[3]));
    assert!(gap.what.contains("1 more such gaps"), "{}", gap.what);
}

// Broken if it failed: impossible offsets in checkpoints would be missed, or a repair would not correct them.
#[test]
fn impossible_checkpoint_offsets_are_reported_and_repaired() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path();
    let config = |_: &str| LogConfig::default();
    let logs = LogDir::open(path, 1, None, &config).unwrap();
    let created = logs.create("a", 0, [7; 16], config("a")).unwrap();
    let now = crate::clock::system_now_ms();
    let mut records = batch(0..10);
    set_producer_state_in_place(&mut records, 7, 0, 0);
    created.log.append_as_leader(&mut records, 0, now).unwrap();
    drop(created);
    logs.close().unwrap();
    assert_eq!(check(path).findings, []);
    for (name, offset, kind, repaired) in [
        ("recovery-point-offset-checkpoint", -7, Kind::Checkpoint, 0),
        ("replication-offset-checkpoint", -1, Kind::Checkpoint, 0),
        ("log-start-offset-checkpoint", -1, Kind::Checkpoint, 0),
        ("cleaner-offset-checkpoint", -1, Kind::CleanerCheckpoint, 0),
        ("cleaner-offset-checkpoint", 11, Kind::CleanerCheckpoint, 10),
    ] {
        let file = path.join(name);
        let before = fs::read(&file).ok();
        fs::write(&file, format!("0\n1\na 0 {offset}\n")).unwrap();
        let report = check(path);
        let finding = only(&report, kind);
        assert_eq!((&finding.path, finding.offset), (&file, Some(offset)));
        assert_eq!(report.is_damaged(), kind == Kind::Checkpoint);
        let options = crate::repair::RepairOptions {
            apply: true,
            ..Default::default()
        };
        let done = crate::repair::repair(path, &options, &mut |_| true).unwrap();
        assert_eq!(done.findings, [], "{name}");
        let text = fs::read_to_string(&file).unwrap();
        assert_eq!(text, format!("0\n1\na 0 {repaired}\n"));
        match before {
            Some(before) => fs::write(&file, before).unwrap(),
            None => fs::remove_file(&file).unwrap(),
        }
        fs::remove_dir_all(done.backup_dir.unwrap()).unwrap();
    }
    // Without a snapshot, the next opening assumes that a closed log has no producers.
    let snapshot = path.join("a-0/00000000000000000010.snapshot");
    let before = fs::read(&snapshot).unwrap();
    fs::remove_file(&snapshot).unwrap();
    let report = check(path);
    let finding = only(&report, Kind::ProducerSnapshot);
    assert!(finding.what.contains("1 producers"), "{}", finding.what);
    let options = crate::repair::RepairOptions {
        apply: true,
        ..Default::default()
    };
    let done = crate::repair::repair(path, &options, &mut |_| true).unwrap();
    assert_eq!(done.findings, []);
    assert_eq!(fs::read(&snapshot).unwrap(), before);
    fs::remove_dir_all(done.backup_dir.unwrap()).unwrap();
}

// Broken if it failed: a path without a log would be called clean.
#[test]
fn a_path_without_a_log_is_an_error() {
    let parent = tempfile::tempdir().unwrap();
    for path in [parent.path().to_path_buf(), parent.path().join("missing")] {
        let result = verify(&path, &VerifyOptions::default(), &mut |_| true);
        assert!(matches!(result, Err(crate::StorageError::NotFound { .. })));
    }
}

/// The positions of the batches in a file.
fn batch_positions(bytes: &[u8]) -> Vec<usize> {
    let mut starts = vec![0];
    assert_eq!(whole_batches(bytes), bytes.len());
    while let Some(length) = bytes.get(starts[starts.len() - 1] + 8..) {
        let length = i32::from_be_bytes([length[0], length[1], length[2], length[3]]);
        starts.push(starts[starts.len() - 1] + 12 + length as usize);
    }
    starts
}

proptest::proptest! {
    // Broken if it failed: some damage to Apache Kafka's files would panic, hang or be missed.
    #[test]
    fn any_flipped_bit_is_reported(file in 0usize..3, at in 0usize..100_000, bit in 0u8..8) {
        let (_parent, dir) = copy_of_kafka_log();
        let name = ["00000000000000000000.log", "00000000000000000132.log", "00000000000000000161.log"][file];
        let path = dir.join(name);
        let mut bytes = fs::read(&path).unwrap();
        let position = at % bytes.len();
        let starts = batch_positions(&bytes);
        bytes[position] ^= 1 << bit;
        fs::write(&path, bytes).unwrap();
        let report = check(&dir);
        // The checksum does not cover a batch's offset, length and epoch. Those are only compared with their
        // context.
        let is_covered = starts.iter().all(|start| !(*start..start + 16).contains(&position));
        let found = !is_covered || report.is_damaged();
        proptest::prop_assert!(found, "byte {} of {}: {:?}", position, name, report);
    }

    // Broken if it failed: a file with arbitrary bytes would panic or take unbounded memory.
    #[test]
    fn any_bytes_are_read(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..2000)) {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("any-0");
        fs::create_dir(&dir).unwrap();
        for suffix in ["log", "index", "timeindex", "txnindex", "snapshot"] {
            fs::write(dir.join(format!("00000000000000000000.{suffix}")), &bytes).unwrap();
        }
        let report = check(&dir);
        proptest::prop_assert!(bytes.is_empty() || report.is_damaged());
    }
}
