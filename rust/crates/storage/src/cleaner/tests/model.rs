//! Random logs, checked against a model of all records and of what a reader must find.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Step {
    /// Plain, idempotent or transactional records of keys and values; `None` is a tombstone.
    Batch(Source, Vec<(u8, Option<u8>)>),
    /// Ends the transaction of a producer that has one open.
    End {
        producer: i64,
        commit: bool,
    },
    Codec(Compression),
    Roll,
}

#[derive(Debug, Clone, Copy)]
enum Source {
    Plain,
    Idempotent,
    Transactional(i64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let source = prop_oneof![
        4 => Just(Source::Plain),
        2 => Just(Source::Idempotent),
        3 => (100i64..103).prop_map(Source::Transactional),
    ];
    let records = proptest::collection::vec((0u8..12, proptest::option::weighted(0.8, any::<u8>())), 1..6);
    let step = prop_oneof![
        10 => (source, records).prop_map(|(source, records)| Step::Batch(source, records)),
        4 => (100i64..103, any::<bool>()).prop_map(|(producer, commit)| Step::End { producer, commit }),
        1 => proptest::sample::select(&Compression::ALL[..]).prop_map(Step::Codec),
        4 => Just(Step::Roll),
    ];
    proptest::collection::vec(step, 1..60)
}

/// Writes a log; returns the offsets of all records in aborted transactions.
fn write(writer: &mut Writer<'_>, steps: &[Step]) -> BTreeSet<i64> {
    let mut in_transaction: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    let mut aborted = BTreeSet::new();
    for step in steps {
        match step {
            Step::Batch(source, records) => {
                let keys: Vec<([u8; 1], Option<[u8; 1]>)> = records
                    .iter()
                    .map(|(key, value)| ([*key], value.map(|v| [v])))
                    .collect();
                let pairs: Vec<Pair<'_>> = keys
                    .iter()
                    .map(|(key, value)| (&key[..], value.as_ref().map(|v| &v[..])))
                    .collect();
                let (producer, transactional) = match source {
                    Source::Plain => (None, false),
                    Source::Idempotent => (Some(50), false),
                    Source::Transactional(producer) => (Some(*producer), true),
                };
                let first = writer.next;
                writer.batch(producer, transactional, &pairs);
                if let (Some(producer), true) = (producer, transactional) {
                    in_transaction
                        .entry(producer)
                        .or_default()
                        .extend(first..writer.next);
                }
            }
            Step::End { producer, commit } => {
                if let Some(offsets) = in_transaction.remove(producer) {
                    writer.marker(*producer, *commit);
                    if !commit {
                        aborted.extend(offsets);
                    }
                }
            }
            Step::Codec(codec) => writer.codec = *codec,
            Step::Roll => writer.roll(),
        }
    }
    aborted
}

/// What a reader of committed records has when it has read up to `end`: the last value of each key.
fn state(records: &[Found], aborted: &BTreeSet<i64>, end: i64) -> BTreeMap<Vec<u8>, (i64, Vec<u8>)> {
    let mut state = BTreeMap::new();
    for record in records {
        if record.offset >= end || record.control || aborted.contains(&record.offset) {
            continue;
        }
        let key = record.key.clone().unwrap();
        match &record.value {
            Some(value) => state.insert(key, (record.offset, value.clone())),
            None => state.remove(&key),
        };
    }
    state
}

/// The records below `end` that the cleaner must keep when it has mapped the keys of all of them.
fn kept(records: &[Found], aborted: &BTreeSet<i64>, end: i64) -> Vec<Found> {
    let counts = |r: &&Found| r.offset < end && !r.control && !aborted.contains(&r.offset);
    let last: BTreeMap<&[u8], i64> = records
        .iter()
        .filter(counts)
        .map(|r| (r.key.as_deref().unwrap(), r.offset))
        .collect();
    let mut kept: Vec<Found> = records
        .iter()
        .filter(counts)
        .filter(|r| last[r.key.as_deref().unwrap()] == r.offset)
        .cloned()
        .collect();
    kept.sort_by_key(|r| r.offset);
    kept
}

fn without_controls(records: &[Found], from: i64, to: i64) -> Vec<Found> {
    records
        .iter()
        .filter(|r| !r.control && (from..to).contains(&r.offset))
        .cloned()
        .collect()
}

fn check(steps: &[Step], more: &[Step], buffer: u64) -> Result<(), TestCaseError> {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(dir.path());
    let aborted = write(&mut writer, steps);
    let log = writer.open(config());
    let before = read_all(&log);
    let buffers = crate::cleaner::CleanerConfig {
        dedupe_buffer_bytes: buffer * 24,
        ..Default::default()
    };
    log.compact_with(&buffers, NOW).unwrap();
    let end = log.first_dirty_offset().unwrap_or(0);
    let after = read_all(&log);
    let log_end = log.log_end_offset();

    // A reader that reads to the end of the clean part or further gets the same state as before.
    for offset in end..=log_end {
        prop_assert_eq!(
            state(&before, &aborted, offset),
            state(&after, &aborted, offset),
            "up to {}",
            offset
        );
    }
    // No record is new, and none above the clean part is missing.
    prop_assert!(after.iter().all(|record| before.contains(record)));
    prop_assert_eq!(
        without_controls(&after, end, log_end),
        without_controls(&before, end, log_end)
    );
    // Exactly the last record of each key is left, tombstones too, however many rounds the buffer needed.
    prop_assert_eq!(without_controls(&after, 0, end), kept(&before, &aborted, end));

    // A second pass from the front at the same time changes no records and no batches.
    log.cleaning().set_first_dirty(0);
    log.compact_with(&buffers, NOW).unwrap();
    let again = read_all(&log);
    prop_assert_eq!(
        without_controls(&again, 0, log_end),
        without_controls(&after, 0, log_end)
    );
    log.cleaning().set_first_dirty(0);
    log.compact_with(&buffers, NOW).unwrap();
    let third = read_batches(&log);
    log.cleaning().set_first_dirty(0);
    log.compact_with(&buffers, NOW).unwrap();
    prop_assert_eq!(read_batches(&log), third);

    // After the horizon the tombstones are removed, and the state stays.
    log.cleaning().set_first_dirty(0);
    log.compact_with(&buffers, NOW + 1000).unwrap();
    let last = read_all(&log);
    assert_aborted_have_markers(&log);
    for offset in end..=log_end {
        prop_assert_eq!(
            state(&before, &aborted, offset),
            state(&last, &aborted, offset),
            "up to {}",
            offset
        );
    }
    prop_assert!(last.iter().all(|r| r.offset >= end || r.value.is_some()));

    // The log is appended to, opened as after a crash, and compacted from its first dirty offset.
    drop(log);
    continue_log(dir.path(), more, end, &buffers)
}

/// Appends to the log of `check` after a restart and compacts the rest of it.
fn continue_log(
    dir: &Path,
    more: &[Step],
    end: i64,
    buffers: &crate::cleaner::CleanerConfig,
) -> Result<(), TestCaseError> {
    let log = reopen(dir, config());
    log.cleaning().set_first_dirty(end);
    for step in more {
        match step {
            Step::Batch(_, records) => {
                let mut builder = BatchBuilder::new(Compression::None, None);
                for (key, value) in records {
                    let value = value.map(|value| [value]);
                    builder
                        .append(1, Some(&[*key]), value.as_ref().map(|v| &v[..]), &[])
                        .unwrap();
                }
                log.append_as_leader(&mut builder.build().unwrap(), 0, NOW)
                    .unwrap();
            }
            _ => log.roll(NOW).unwrap(),
        }
    }
    log.roll(NOW).unwrap();
    let none = BTreeSet::new();
    let before = read_all(&log);
    log.compact_with(buffers, NOW + 1000).unwrap();
    let after = read_all(&log);
    let (end, log_end) = (log.first_dirty_offset().unwrap(), log.log_end_offset());
    // Transactions that were open before the restart are still open, and the cleaner stops at them.
    for offset in end..=log_end {
        prop_assert_eq!(
            state(&before, &none, offset),
            state(&after, &none, offset),
            "up to {}",
            offset
        );
    }
    drop(log);
    prop_assert_eq!(read_all(&reopen(dir, config())), after);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    // Broken if it failed: a compacted log would show its readers a state that was never written.
    #[test]
    fn every_log_keeps_its_state(
        steps in steps(), more in steps(), buffer in prop_oneof![Just(4096u64), 4u64..30],
    ) {
        check(&steps, &more, buffer)?;
    }
}
