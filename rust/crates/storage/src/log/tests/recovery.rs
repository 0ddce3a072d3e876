//! Opening a directory after a crash, a power loss, or changes by a foreign program.

use super::*;
use crate::files::{INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, segment_file};

fn active_file(dir: &Path) -> PathBuf {
    let name = names(dir)
        .into_iter()
        .rfind(|name| name.ends_with(LOG_SUFFIX))
        .unwrap();
    dir.join(name)
}

// Broken if it failed: a torn tail would be served, stop the opening, or cost good records.
#[test]
fn any_torn_tail_is_cut_at_the_last_whole_batch() {
    let dir = tempfile::tempdir().unwrap();
    drop({
        let log = open(dir.path());
        fill(&log, 5);
        log
    });
    let path = active_file(dir.path());
    let whole = std::fs::read(&path).unwrap();
    let batch = whole.len() / 5;
    for cut in (0..whole.len()).step_by(7) {
        std::fs::write(&path, &whole[..cut]).unwrap();
        let log = open(dir.path());
        assert_eq!(log.log_end_offset() as usize, cut / batch);
        assert_eq!(log.recovery().truncated_bytes as usize, cut % batch);
        assert_eq!(
            std::fs::metadata(&path).unwrap().len() as usize,
            cut / batch * batch
        );
        fill(&log, 1);
        assert_eq!(values_from(&log, 0).len(), cut / batch + 1);
    }
    // One wrong byte in the last two batches: the earlier ones stay.
    for at in (3 * batch..whole.len()).step_by(3) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x40;
        std::fs::write(&path, &damaged).unwrap();
        let log = open(dir.path());
        let end = log.log_end_offset() as usize;
        // No checksum covers the base offset and the leader epoch. A compacted log may have gaps, so a base
        // offset that is too high looks like one.
        let uncovered = matches!(at % batch, 0..8 | 12..16);
        assert!(end == at / batch || uncovered, "byte {at}: {end}");
    }
    for garbage in [vec![0; 5000], vec![0xff; 100], b"garbage".to_vec()] {
        std::fs::write(&path, [&whole[..], &garbage].concat()).unwrap();
        let log = open(dir.path());
        assert_eq!(log.log_end_offset(), 5);
        assert!(log.recovery().reason.is_some());
    }
}

// Broken if it failed: segments after a torn one would be served, with a gap before them.
#[test]
fn segments_after_a_torn_one_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    drop({
        let log = open(dir.path());
        fill(&log, 60);
        log
    });
    let bases: Vec<i64> = names(dir.path())
        .iter()
        .filter_map(|name| files::offset_of(name, LOG_SUFFIX))
        .collect();
    let second = segment_file(dir.path(), bases[1], LOG_SUFFIX);
    let mut bytes = std::fs::read(&second).unwrap();
    bytes.truncate(bytes.len() - 1);
    std::fs::write(&second, &bytes).unwrap();
    // Nothing was known to be on disk.
    let log = open(dir.path());
    assert_eq!(log.log_end_offset(), bases[2] - 1);
    assert_eq!(log.segment_count(), 2);
    assert_eq!(log.recovery().segments_removed, bases.len() - 2);
    assert_eq!(values_from(&log, 0).len() as i64, bases[2] - 1);
    fill(&log, 30);
    assert_eq!(values_from(&log, 0).len() as i64, bases[2] - 1 + 30);
}

// Broken if it failed: acknowledged records would be cut off like a torn tail.
#[test]
fn damage_before_the_recovery_point_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    drop({
        let log = open(dir.path());
        fill(&log, 10);
        log.flush().unwrap();
        assert_eq!(log.recovery_point(), 10);
        log
    });
    let path = active_file(dir.path());
    let mut bytes = std::fs::read(&path).unwrap();
    let before = bytes.clone();
    bytes[100] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let error = Log::open(dir.path(), small(), false, 10).unwrap_err();
    assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), bytes, "nothing was cut");
    std::fs::write(&path, before).unwrap();
    assert_eq!(
        Log::open(dir.path(), small(), false, 10)
            .unwrap()
            .log_end_offset(),
        10
    );
}

// Broken if it failed: a consumer would get damage in a closed file as missing offsets.
#[test]
fn damage_found_while_reading_takes_the_log_offline() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    fill(&log, 10);
    log.close().unwrap();
    let path = active_file(dir.path());
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[8] = 0x7f;
    std::fs::write(&path, &bytes).unwrap();
    let log = Log::open(dir.path(), small(), true, 10).unwrap();
    let error = log.read(0, 10_000, i64::MAX, true).unwrap_err();
    assert!(
        matches!(error, StorageError::Corrupt { position: 0, .. }),
        "{error}"
    );
    let error = log.append_as_leader(&mut batch_at(0, &[b"x"]), 0, 0).unwrap_err();
    assert!(matches!(error, StorageError::Offline { .. }), "{error}");
}

// Broken if it failed: a lost or wrong index would lose records, or give a reader the wrong ones.
#[test]
fn indexes_are_only_hints() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    fill(&log, 60);
    log.close().unwrap();
    let bases: Vec<i64> = names(dir.path())
        .iter()
        .filter_map(|name| files::offset_of(name, LOG_SUFFIX))
        .collect();
    let index = |base, suffix| segment_file(dir.path(), base, suffix);
    let good: Vec<Vec<u8>> = bases
        .iter()
        .flat_map(|base| [INDEX_SUFFIX, TIME_INDEX_SUFFIX].map(|suffix| (*base, suffix)))
        .map(|(base, suffix)| std::fs::read(index(base, suffix)).unwrap())
        .collect();
    type Damage = fn(&Path);
    let damages: [Damage; 6] = [
        |path| std::fs::remove_file(path).unwrap(),
        |path| std::fs::write(path, b"").unwrap(),
        |path| std::fs::write(path, [7; 23]).unwrap(),
        |path| std::fs::write(path, [0; 240]).unwrap(),
        |path| std::fs::write(path, [0x11; 240]).unwrap(),
        // Plausible and wrong: positions in the middle of batches, timestamps of other batches.
        |path| {
            let mut bytes = std::fs::read(path).unwrap();
            for byte in bytes.iter_mut().skip(7).step_by(8) {
                *byte ^= 0x05;
            }
            std::fs::write(path, bytes).unwrap();
        },
    ];
    for (number, damage) in damages.iter().enumerate() {
        for suffix in [INDEX_SUFFIX, TIME_INDEX_SUFFIX] {
            for base in &bases {
                damage(&index(*base, suffix));
            }
            let log = Log::open(dir.path(), small(), true, 60).unwrap();
            for offset in (0..60).rev() {
                let slice = log.read(offset, 1, i64::MAX, true).unwrap();
                assert_eq!(slice.base_offset, offset, "damage {number} to {suffix}");
                let found = log.offset_for_timestamp(1000 + offset).unwrap().unwrap();
                assert_eq!(found.offset, offset, "damage {number} to {suffix}");
            }
            fill(&log, 1);
            log.close().unwrap();
            // The files as they were, without the last record.
            std::fs::remove_dir_all(dir.path()).unwrap();
            std::fs::create_dir(dir.path()).unwrap();
            let log = open(dir.path());
            fill(&log, 60);
            log.close().unwrap();
        }
    }
    // A rebuilt index equals the first one.
    for base in &bases {
        std::fs::remove_file(index(*base, INDEX_SUFFIX)).unwrap();
        std::fs::write(index(*base, TIME_INDEX_SUFFIX), [0; 7]).unwrap();
    }
    Log::open(dir.path(), small(), true, 60).unwrap().close().unwrap();
    let rebuilt: Vec<Vec<u8>> = bases
        .iter()
        .flat_map(|base| [INDEX_SUFFIX, TIME_INDEX_SUFFIX].map(|suffix| (*base, suffix)))
        .map(|(base, suffix)| std::fs::read(index(base, suffix)).unwrap())
        .collect();
    assert_eq!(rebuilt, good);
}

// Broken if it failed: a producer that retries after the broker was killed would write its batch twice.
#[test]
fn retries_are_known_after_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    for sequence in 0..30 {
        log.append_as_leader(&mut producer_batch(5, 0, sequence, 1), 0, system_now_ms())
            .unwrap();
        if sequence == 20 {
            log.roll(0).unwrap();
        }
    }
    drop(log);
    let retry = |log: &Log| {
        let mut batch = BatchBuilder::new(Compression::None, None);
        batch.set_producer_state(5, 0, 29);
        batch.append(1000, None, Some(b"v"), &[]).unwrap();
        let again = log.append_as_leader(&mut batch.build().unwrap(), 0, 0).unwrap();
        assert_eq!((again.first_offset, again.duplicate), (29, true));
    };
    let config = LogConfig {
        producer_id_expiration_ms: i64::MAX,
        ..small()
    };
    let log = Log::open(dir.path(), config.clone(), false, 0).unwrap();
    retry(&log);
    // Also the four before it, because they were replayed.
    assert!(
        log.append_as_leader(&mut producer_batch(5, 0, 25, 1), 0, 0)
            .unwrap()
            .duplicate
    );
    log.close().unwrap();
    let log = Log::open(dir.path(), config.clone(), true, 0).unwrap();
    retry(&log);
    drop(log);
    // A damaged snapshot, and one of records that were cut off.
    for name in names(dir.path())
        .iter()
        .filter(|name| name.ends_with(".snapshot"))
    {
        std::fs::write(dir.path().join(name), b"damaged").unwrap();
    }
    std::fs::write(segment_file(dir.path(), 1000, ".snapshot"), b"future").unwrap();
    let log = Log::open(dir.path(), config, false, 0).unwrap();
    retry(&log);
    assert!(!names(dir.path()).contains(&format!("{:020}.snapshot", 1000)));
}

// Broken if it failed: after a crash a follower would get a wrong end of an epoch.
#[test]
fn epochs_are_recovered() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    for epoch in [2, 2, 3, 5] {
        log.append_as_leader(&mut batch_at(0, &[b"v"]), epoch, 0).unwrap();
    }
    drop(log);
    std::fs::write(dir.path().join("leader-epoch-checkpoint"), "garbage").unwrap();
    let log = open(dir.path());
    assert_eq!(log.latest_epoch(), Some(5));
    assert_eq!(log.epoch_end_offset(2), Some((2, 2)));
    assert_eq!(log.epoch_end_offset(4), Some((3, 3)));
    assert_eq!(log.epoch_of(3), Some(5));
    assert_eq!(
        std::fs::read(dir.path().join("leader-epoch-checkpoint")).unwrap(),
        b"0\n3\n2 0\n3 2\n5 3\n"
    );
}

/// Writes another leader epoch, which no checksum covers, into the batches with these offsets.
fn set_epochs(path: &Path, offsets: &[i64], epoch: i32) {
    let mut bytes = std::fs::read(path).unwrap();
    let mut position = 0;
    while position < bytes.len() {
        let base = i64::from_be_bytes(*bytes[position..].first_chunk().unwrap());
        if offsets.contains(&base) {
            bytes[position + 12..position + 16].copy_from_slice(&epoch.to_be_bytes());
        }
        let length = i32::from_be_bytes(*bytes[position + 8..].first_chunk().unwrap());
        position += 12 + length as usize;
    }
    std::fs::write(path, bytes).unwrap();
}

// Broken if it failed: after a crash, one flipped bit in a batch's leader epoch would fence every leader, cut
// off later batches, or make the log forget its epoch.
#[test]
fn a_flipped_epoch_is_not_believed() {
    for (has_file, flipped, epoch, end) in [
        (true, 4, 1 << 30, 10),
        (true, 0, 1 << 30, 10),
        // The last batch: the file had its epoch before it was written.
        (true, 9, 1 << 30, 10),
        // A batch whose epoch goes back begins a tail from before a truncation.
        (true, 4, 0, 4),
        (false, 4, 0, 4),
        // Only the batches have the epoch: the last one is believed.
        (false, 9, 5, 10),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let log = open(dir.path());
        for _ in 0..10 {
            log.append_as_leader(&mut batch_at(0, &[b"v"]), 2, 0).unwrap();
        }
        drop(log);
        set_epochs(&active_file(dir.path()), &[flipped], epoch);
        let file = dir.path().join("leader-epoch-checkpoint");
        if !has_file {
            std::fs::remove_file(&file).unwrap();
        }
        let log = open(dir.path());
        let case = (has_file, flipped, epoch);
        assert_eq!(log.log_end_offset(), end, "{case:?}");
        let latest = if epoch == 5 { 5 } else { 2 };
        assert_eq!(log.latest_epoch(), Some(latest), "{case:?}");
        log.append_as_leader(&mut batch_at(0, &[b"v"]), latest, 0)
            .unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        let expected = if epoch == 5 {
            "0\n2\n2 0\n5 9\n"
        } else {
            "0\n1\n2 0\n"
        };
        assert_eq!(text, expected, "{case:?}");
    }
}

// Broken if it failed: a crash would lose epochs that an older copy of the file does not have.
#[test]
fn an_older_file_of_epochs_is_completed() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    for epoch in [2, 2, 3, 3] {
        log.append_as_leader(&mut batch_at(0, &[b"v"]), epoch, 0).unwrap();
    }
    drop(log);
    let file = dir.path().join("leader-epoch-checkpoint");
    std::fs::write(&file, "0\n1\n2 0\n").unwrap();
    let log = open(dir.path());
    assert_eq!(log.epoch_end_offset(2), Some((2, 2)));
    assert_eq!(log.latest_epoch(), Some(3));
}

// Broken if it failed: an interrupted cleaning or deletion would come back, or the result of a cleaning be
// lost.
#[test]
fn interrupted_steps_are_finished() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    fill(&log, 60);
    log.close().unwrap();
    let bases: Vec<i64> = names(dir.path())
        .iter()
        .filter_map(|name| files::offset_of(name, LOG_SUFFIX))
        .collect();
    let file = |base: i64, suffix: &str| segment_file(dir.path(), base, suffix);
    std::fs::write(file(7, ".log.deleted"), b"x").unwrap();
    std::fs::write(file(1_000, ".log.cleaned"), b"x").unwrap();
    std::fs::write(file(1_000, ".index.swap"), b"x").unwrap();
    std::fs::write(file(500, ".index"), b"orphan").unwrap();
    std::fs::write(dir.path().join("leader-epoch-checkpoint.tmp"), b"x").unwrap();
    // The first two segments became one.
    let merged = [
        std::fs::read(file(bases[0], ".log")).unwrap(),
        std::fs::read(file(bases[1], ".log")).unwrap(),
    ]
    .concat();
    std::fs::write(file(bases[0], ".log.swap"), merged).unwrap();
    let log = Log::open(dir.path(), small(), true, 60).unwrap();
    assert_eq!(log.segment_count(), bases.len() - 1);
    assert_eq!(values_from(&log, 0).len(), 60);
    let left = names(dir.path());
    for suffix in [".deleted", ".cleaned", ".swap", ".tmp"] {
        assert!(
            !left.iter().any(|name| name.ends_with(suffix)),
            "{suffix}: {left:?}"
        );
    }
    assert!(!file(500, ".index").exists());
}

// Broken if it failed: records below the log start would be served again after their files were lost.
#[test]
fn a_log_start_above_the_end_empties_the_log() {
    let dir = tempfile::tempdir().unwrap();
    drop({
        let log = open(dir.path());
        fill(&log, 5);
        log
    });
    let known = LastKnown {
        clean_shutdown: false,
        recovery_point: 0,
        log_start_offset: 50,
        high_watermark: None,
    };
    let log = Log::open_with(dir.path(), small(), known).unwrap();
    assert_eq!((log.log_start_offset(), log.log_end_offset()), (50, 50));
    fill(&log, 1);
    assert_eq!(values_from(&log, 50).len(), 1);
}
