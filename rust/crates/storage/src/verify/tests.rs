//! Verifying directories that are whole, and the same with one thing wrong at a time.

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

/// Apache Kafka's directory, copied so that it can be damaged.
pub(crate) fn copy_of_kafkas() -> (TempDir, PathBuf) {
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

/// A closed log ([`write_log`]) in a directory that goes with the first of these.
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
fn kafkas_own_directory_is_clean() {
    let report = check(Path::new(FIXTURE));
    assert_eq!(report.findings, []);
    assert_eq!((report.partitions, report.segments, report.records), (1, 3, 164));
}

// Broken if it failed: what this crate writes would be called damaged, or not be read to its end.
#[test]
fn our_own_directory_is_clean_and_progress_is_told() {
    let (_parent, dir) = ours(60);
    let mut told = Vec::new();
    let report = verify(&dir, &VerifyOptions::default(), &mut |progress| {
        told.push(progress);
        true
    })
    .unwrap();
    assert_eq!(report.findings, []);
    assert_eq!((report.batches, report.records), (60, 600));
    assert!(report.segments > 3);
    let last = told.last().unwrap();
    assert_eq!((last.bytes, last.partitions), (last.bytes_total, 1));
    assert_eq!(last.bytes_total, report.bytes);
}

// Broken if it failed: nobody could interrupt the reading of a large directory.
#[test]
fn a_caller_can_stop() {
    let parent = tempfile::tempdir().unwrap();
    for number in 0..5 {
        write_log(&parent.path().join(format!("ours-{number}")), 5);
    }
    // The first call comes before anything is read.
    let report = verify(parent.path(), &VerifyOptions::default(), &mut |_| false).unwrap();
    assert!(report.stopped);
    assert_eq!((report.partitions, report.segments), (5, 0));
}

// Broken if it failed: a flipped bit in any batch would go unseen, or what is behind it not be counted.
#[test]
fn a_flipped_bit_in_the_middle() {
    let (_parent, dir) = copy_of_kafkas();
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
    assert!(finding.what.contains("160 records behind it"));
    assert_eq!(report.records, 160);
}

// Broken if it failed: damage that hides where the next batch begins would hide everything behind it.
#[test]
fn the_next_batch_is_found_behind_rubbish() {
    let (_parent, dir) = ours(6);
    let path = dir.join("00000000000000000000.log");
    let mut bytes = fs::read(&path).unwrap();
    let size = batch(0..10).len();
    // The second batch's header: its length leads nowhere any more.
    bytes[size..size + 30].fill(0xff);
    fs::write(&path, bytes).unwrap();
    let report = check(&dir);
    let finding = only(&report, Kind::CorruptBatch);
    assert_eq!((finding.position, finding.offset), (Some(size as u64), Some(10)));
    assert!(finding.what.contains("40 records behind it"), "{}", finding.what);
}

// Broken if it failed: a torn tail would be taken for damage in the middle, or the other way round.
#[test]
fn a_torn_tail() {
    let (_parent, dir) = ours(3);
    let path = dir.join("00000000000000000000.log");
    let bytes = fs::read(&path).unwrap();
    let size = bytes.len() / 3;
    for cut in [2 * size + 1, 2 * size + 61, 3 * size - 1] {
        fs::write(&path, &bytes[..cut]).unwrap();
        let report = check(&dir);
        // The snapshot of the log's end is not held against it: the end is what is in doubt.
        let finding = only(&report, Kind::TornTail);
        assert_eq!(
            (finding.position, finding.offset),
            (Some(2 * size as u64), Some(20)),
            "cut at {cut}"
        );
        assert!(report.is_damaged());
    }
}

// Broken if it failed: what is being written beside us would be called damage.
#[test]
fn the_tail_of_a_live_log_is_no_fault() {
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
    // The same bytes with nobody there are a torn tail.
    fs::write(&path, &bytes).unwrap();
    only(&check(&dir), Kind::TornTail);
}

// Broken if it failed: the snapshot that the broker beside us is writing would be called wrong, or an older one that is
// wrong would be taken for it.
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

// Broken if it failed: an index that leads astray would go unseen.
#[test]
fn indexes() {
    let (_parent, dir) = copy_of_kafkas();
    let first = "00000000000000000000";
    for (suffix, position, kind) in [
        // A position, an offset that is too low, one that goes backwards.
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

// Broken if it failed: a reader of committed records could be given aborted ones, and nobody would know.
#[test]
fn transaction_index() {
    let (_parent, dir) = copy_of_kafkas();
    let path = dir.join("00000000000000000161.txnindex");
    let before = fs::read(&path).unwrap();
    assert_eq!(before.len(), 34);
    // The producer, the first offset made later, the marker's offset, the last stable offset.
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

// Broken if it failed: wrong leader epochs, by which followers truncate, would go unseen.
#[test]
fn leader_epochs() {
    let (_parent, dir) = copy_of_kafkas();
    let path = dir.join("leader-epoch-checkpoint");
    for (text, expected) in [
        ("0\n1\n7 0\n", "of epoch 7"),
        ("0\n0\n", "there is no epoch"),
        ("0\n2\n0 0\n1 5000\n", "begin at offset 5000"),
        ("0\n2\n1 0\n0 0\n", "do not rise"),
        ("0\n1\n-1 0\n", "do not rise"),
        ("0\n1\nzero 0\n", "malformed"),
    ] {
        fs::write(&path, text).unwrap();
        let report = check(&dir);
        let finding = only(&report, Kind::LeaderEpochs);
        assert!(finding.what.contains(expected), "{text}: {}", finding.what);
    }
}

/// Writes a leader epoch into batch `number` of a file of batches of one size.
pub(crate) fn set_epoch(path: &Path, number: usize, epoch: i32) {
    let mut bytes = fs::read(path).unwrap();
    let front = number * batch(0..10).len();
    bytes[front + 12..front + 16].copy_from_slice(&epoch.to_be_bytes());
    fs::write(path, bytes).unwrap();
}

// Broken if it failed: a wrong leader epoch in a batch would go unseen, be told of every batch behind it, or of the file.
#[test]
fn epochs_of_batches() {
    for (number, epoch, kind, expected) in [
        (0, 9, Kind::EpochOrder, "which most batches contradict"),
        (2, 1 << 30, Kind::EpochOrder, "which most batches contradict"),
        (2, -5, Kind::EpochOrder, "epoch -5 cannot be"),
        (5, -5, Kind::EpochOrder, "epoch -5 cannot be"),
        // Nothing comes behind it: only the file says otherwise.
        (5, 9, Kind::LeaderEpochs, "is said to be of epoch 0"),
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

// Broken if it failed: producers would be let through with wrong sequences after a restart.
#[test]
fn producer_snapshots() {
    let (_parent, dir) = copy_of_kafkas();
    let path = dir.join("00000000000000000161.snapshot");
    let before = fs::read(&path).unwrap();
    flip(&path, 20, 0x40);
    only(&check(&dir), Kind::ProducerSnapshot);
    // Another sequence, under a right checksum.
    let mut bytes = before;
    bytes[10 + 8 + 2 + 3] ^= 1;
    let crc = logcore_records::crc32c(&bytes[6..]);
    bytes[2..6].copy_from_slice(&crc.to_be_bytes());
    fs::write(&path, bytes).unwrap();
    let report = check(&dir);
    assert!(
        only(&report, Kind::ProducerSnapshot)
            .what
            .contains("is said to have ended")
    );
}

/// A segment of batches of ten records of producer 7, at these offsets, and a snapshot that says where it ended.
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

// Broken if it failed: an older snapshot of a compacted log, whose batches are gone, would be called wrong, or a wrong one
// of a log that has all its batches, right.
#[test]
fn snapshots_of_a_compacted_log() {
    for (offsets, snapshot, ended, wrong) in [
        (&[0, 10, 20][..], 20, 19, false),
        (&[0, 10, 20], 20, 9, true),
        (&[0, 10, 20], 20, 18, true),
        // Compacted: the batch at 10 is gone, as the producer has later ones.
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

// Broken if it failed: names that are nobody's, or half-done steps, would not be told.
#[test]
fn names() {
    let (_parent, dir) = copy_of_kafkas();
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

// Broken if it failed: offsets that repeat, or run into the next segment, would go unseen.
#[test]
fn offsets_must_rise() {
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

// Broken if it failed: a log directory's own files would not be looked at, or the logs in it not be held against them.
#[test]
fn a_log_directory() {
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

// Broken if it failed: a log that lost whole segments would be called sound.
#[test]
fn segments_that_are_gone() {
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

    // Opened, it loses its marks of a clean shutdown and its index files; what is missing stays missing.
    let log = StandaloneLog::open(&dir, false, LogConfig::default()).unwrap();
    log.close().unwrap();
    assert_eq!(kinds(&check(&dir)), gaps);

    // The front went, as retention does it.
    remove_segment(&dir, bases[0]);
    remove_segment(&dir, bases[1]);
    remove_segment(&dir, bases[4]);
    assert_eq!(check(&dir).findings, []);
}

// Broken if it failed: an emptied segment would pass for a compacted one, and a log without files for a new one.
#[test]
fn segments_that_were_emptied() {
    let (_parent, dir) = ours(120);
    let bases = bases(&dir);
    let path = |base: i64| dir.join(format!("{base:020}.log"));
    fs::write(path(bases[1]), b"").unwrap();
    let report = check(&dir);
    assert!(report.is_damaged());
    let told = |report: &Report| -> Vec<PathBuf> {
        let lost = |finding: &&Finding| finding.kind == Kind::MissingOffsets;
        let found = report.findings.iter().filter(lost);
        found.map(|finding| finding.path.clone()).collect()
    };
    assert_eq!(told(&report), [path(bases[1])], "{:#?}", report.findings);
    for base in &bases {
        fs::remove_file(path(*base)).unwrap();
    }
    assert_eq!(told(&check(&dir)), vec![dir.clone(); bases.len()]);
}

// Broken if it failed: what the cleaner removed would be called lost, or what is lost, cleaned.
#[test]
fn gaps_of_compacted_logs() {
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
    // Nobody says that it was cleaned, but a batch is missing inside a segment, too.
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

// Broken if it failed: offsets that no log has would be called sound, or not be set right.
#[test]
fn checkpoints_that_cannot_be() {
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
    for (name, offset, kind, mended) in [
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
        assert_eq!(text, format!("0\n1\na 0 {mended}\n"));
        match before {
            Some(before) => fs::write(&file, before).unwrap(),
            None => fs::remove_file(&file).unwrap(),
        }
        fs::remove_dir_all(done.aside.unwrap()).unwrap();
    }
    // Without a snapshot, the next opening takes a closed log for one without producers.
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
    fs::remove_dir_all(done.aside.unwrap()).unwrap();
}

// Broken if it failed: a path with nothing of Kafka's would be called clean.
#[test]
fn nothing_to_verify() {
    let parent = tempfile::tempdir().unwrap();
    for path in [parent.path().to_path_buf(), parent.path().join("missing")] {
        let result = verify(&path, &VerifyOptions::default(), &mut |_| true);
        assert!(matches!(result, Err(crate::StorageError::NotFound { .. })));
    }
}

/// Where the batches of a file begin.
fn batch_fronts(bytes: &[u8]) -> Vec<usize> {
    let mut fronts = vec![0];
    assert_eq!(whole_batches(bytes), bytes.len());
    while let Some(length) = bytes.get(fronts[fronts.len() - 1] + 8..) {
        let length = i32::from_be_bytes([length[0], length[1], length[2], length[3]]);
        fronts.push(fronts[fronts.len() - 1] + 12 + length as usize);
    }
    fronts
}

proptest::proptest! {
    // Broken if it failed: some damage to Apache Kafka's files would panic, hang or be taken for nothing.
    #[test]
    fn any_flipped_bit_is_told(file in 0usize..3, place in 0usize..100_000, bit in 0u8..8) {
        let (_parent, dir) = copy_of_kafkas();
        let name = ["00000000000000000000.log", "00000000000000000132.log", "00000000000000000161.log"][file];
        let path = dir.join(name);
        let mut bytes = fs::read(&path).unwrap();
        let position = place % bytes.len();
        let fronts = batch_fronts(&bytes);
        bytes[position] ^= 1 << bit;
        fs::write(&path, bytes).unwrap();
        let report = check(&dir);
        // The checksum leaves out a batch's offset, length and epoch; those can only be held against what is around them.
        let covered = fronts.iter().all(|front| !(*front..front + 16).contains(&position));
        proptest::prop_assert!(!covered || report.is_damaged(), "byte {} of {}: {:?}", position, name, report);
    }

    // Broken if it failed: a file of any bytes would panic or take memory without bound.
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
