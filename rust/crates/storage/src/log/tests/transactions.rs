//! Transactions in a log: markers, the last stable offset, aborted transactions, and all of these after a
//! crash.

use logcore_records::{EndTxnMarker, end_txn_marker};

use super::*;
use crate::AbortedTxn;
use crate::files::{INDEX_SUFFIX, LOG_SUFFIX, TXN_INDEX_SUFFIX, segment_file};
use crate::producers::verification::Verification;

fn transactional(producer_id: i64, epoch: i16, sequence: i32, count: usize) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Compression::None, None);
    builder.set_producer_state(producer_id, epoch, sequence);
    builder.set_transactional(true);
    for _ in 0..count {
        builder
            .append(1000, None, Some(b"in a transaction"), &[])
            .unwrap();
    }
    builder.build().unwrap()
}

fn marker(producer_id: i64, epoch: i16, committed: bool) -> Vec<u8> {
    let marker = EndTxnMarker {
        committed,
        coordinator_epoch: 0,
    };
    end_txn_marker(producer_id, epoch, marker, 1000).unwrap()
}

/// A transactional batch of so many records; returns its first offset.
pub(super) fn begin(log: &Log, producer_id: i64, sequence: i32, count: usize) -> i64 {
    let epoch = log.latest_epoch().unwrap_or(0);
    log.append_as_leader(&mut transactional(producer_id, 0, sequence, count), epoch, 0)
        .unwrap()
        .first_offset
}

/// A marker; returns its offset.
pub(super) fn end(log: &Log, producer_id: i64, committed: bool) -> i64 {
    try_end(log, producer_id, committed).unwrap().first_offset
}

pub(super) fn try_end(log: &Log, producer_id: i64, committed: bool) -> Result<crate::Appended> {
    let epoch = log.latest_epoch().unwrap_or(0);
    log.append_as_coordinator(&mut marker(producer_id, 0, committed), epoch, 0)
}

pub(super) fn keeps_producers() -> LogConfig {
    LogConfig {
        producer_id_expiration_ms: i64::MAX,
        ..small()
    }
}

fn aborted(producer_id: i64, first: i64, last: i64, stable: i64) -> AbortedTxn {
    AbortedTxn {
        producer_id,
        first_offset: first,
        last_offset: last,
        last_stable_offset: stable,
    }
}

// Broken if it failed: a reader of committed records would see open or aborted ones, or wait for decided
// ones.
#[test]
fn the_last_stable_offset_and_aborted_transactions() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    assert_eq!(begin(&log, 1, 0, 3), 0);
    assert_eq!(log.last_stable_offset(), 0);
    assert_eq!(begin(&log, 2, 0, 2), 3);
    fill(&log, 1);
    assert_eq!(end(&log, 1, false), 6);
    assert_eq!(log.last_stable_offset(), 3);
    // Without an open transaction a marker decides nothing.
    assert_eq!(end(&log, 1, false), 7);
    assert_eq!(begin(&log, 1, 3, 1), 8);
    assert_eq!(end(&log, 2, true), 9);
    assert_eq!(log.last_stable_offset(), 8);
    assert_eq!(end(&log, 1, false), 10);
    assert_eq!((log.last_stable_offset(), log.log_end_offset()), (11, 11));
    let all = [aborted(1, 0, 6, 3), aborted(1, 8, 10, 11)];
    assert_eq!(log.aborted_transactions(0, 11).unwrap(), all);
    assert_eq!(log.aborted_transactions(0, 3).unwrap(), all[..1]);
    assert_eq!(log.aborted_transactions(7, 11).unwrap(), all[1..]);
    assert_eq!(log.aborted_transactions(7, 8).unwrap(), []);
    let beside = Log::open_read_only(dir.path()).unwrap();
    assert_eq!(beside.aborted_transactions(0, 11).unwrap(), all);
}

// Broken if it failed: a client could end transactions, or a replaced producer could write into its
// successor's.
#[test]
fn a_replaced_producer_or_coordinator_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let code = |result: Result<Appended>| result.unwrap_err().kafka_code();
    use crate::slice::Appended;
    assert_eq!(code(log.append_as_leader(&mut marker(1, 0, true), 0, 0)), 87);
    begin(&log, 1, 0, 1);
    assert_eq!(
        code(log.append_as_leader(&mut producer_batch(1, 0, 1, 1), 0, 0)),
        48
    );
    log.append_as_coordinator(&mut marker(1, 1, false), 0, 0).unwrap();
    assert_eq!(code(log.append_as_coordinator(&mut marker(1, 0, true), 0, 0)), 47);
    assert_eq!(
        code(log.append_as_leader(&mut transactional(1, 0, 1, 1), 0, 0)),
        47
    );
    let newer = EndTxnMarker {
        committed: true,
        coordinator_epoch: 5,
    };
    let mut bytes = end_txn_marker(1, 1, newer, 0).unwrap();
    log.append_as_coordinator(&mut bytes, 0, 0).unwrap();
    assert_eq!(code(log.append_as_coordinator(&mut marker(1, 1, true), 0, 0)), 52);
    let mut other = BatchBuilder::new(Compression::None, None);
    other.set_control(true);
    other.append(0, Some(&[0, 0, 0, 9]), None, &[]).unwrap();
    assert_eq!(
        code(log.append_as_coordinator(&mut other.build().unwrap(), 0, 0)),
        87
    );
    // The group coordinator's offsets in a transaction have no sequence, so none is a retry of another.
    let end = log.log_end_offset();
    for _ in 0..2 {
        log.append_as_coordinator(&mut transactional(7, 0, -1, 1), 0, 0)
            .unwrap();
    }
    assert_eq!((log.log_end_offset(), log.last_stable_offset()), (end + 2, end));
    assert_eq!(
        code(log.append_as_leader(&mut transactional(8, 0, -1, 1), 0, 0)),
        87
    );
}

/// A log of several segments with transactions that are committed, aborted or open, some over several
/// segments.
fn write_some(dir: &Path) -> (Log, Vec<AbortedTxn>) {
    let log = Log::open(dir, keeps_producers(), false, 0).unwrap();
    begin(&log, 99, 0, 1);
    end(&log, 99, true);
    for round in 0..42 {
        begin(&log, 1, round * 4, 4);
        begin(&log, 2, round, 1);
        fill(&log, 1);
        if round % 3 == 0 {
            end(&log, 1, false);
        }
        end(&log, 2, round % 4 != 1);
        if round % 3 == 1 {
            end(&log, 1, true);
        }
    }
    assert!(log.segment_count() > 4);
    let found = log.aborted_transactions(0, log.log_end_offset()).unwrap();
    assert!(found.len() > 15, "{found:?}");
    (log, found)
}

// Broken if it failed: a consumer of committed records would block a server's thread with disk access, or the
// server would offload for nothing.
#[test]
fn aborted_transactions_are_in_memory_after_the_first_read() {
    let dir = tempfile::tempdir().unwrap();
    let (log, found) = write_some(dir.path());
    let end = log.log_end_offset();
    let whole = |log: &Log| log.read(end - 1, u64::MAX, end, true).unwrap();
    assert!(log.has_aborted_in_memory(0, &whole(&log)));
    log.flush().unwrap();
    drop(log);
    let lost = segment_file(dir.path(), 0, TXN_INDEX_SUFFIX);
    std::fs::remove_file(lost).unwrap();
    let log = Log::open(dir.path(), keeps_producers(), true, end).unwrap();
    assert!(!log.has_aborted_in_memory(0, &whole(&log)));
    assert_eq!(log.aborted_transactions(0, end).unwrap(), found);
    assert!(log.has_aborted_in_memory(0, &whole(&log)));
}

// Broken if it failed: after a restart, each fetch from a log without aborted transactions would look for
// missing files.
#[test]
fn later_segments_are_not_checked_again() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), keeps_producers(), false, 0).unwrap();
    for round in 0..42 {
        begin(&log, 1, round * 4, 4);
        end(&log, 1, true);
        fill(&log, 1);
    }
    let (segments, log_end) = (log.segment_count(), log.log_end_offset());
    assert!(segments > 4);
    log.flush().unwrap();
    drop(log);
    let log = Log::open(dir.path(), keeps_producers(), true, log_end).unwrap();
    let slice = log.read(0, 1, log_end, true).unwrap();
    assert!(!log.has_aborted_in_memory(0, &slice));
    assert_eq!(log.aborted_in(0, &slice).unwrap(), []);
    assert!(log.has_aborted_in_memory(0, &slice));
    let opened = log
        .segments()
        .iter()
        .filter(|one| one.has_open_txn_index())
        .count();
    assert!(opened < segments - 1, "{opened} of {segments}");
}

fn bases(dir: &Path) -> Vec<i64> {
    names(dir)
        .iter()
        .filter_map(|name| files::offset_of(name, LOG_SUFFIX))
        .collect()
}

fn txn_indexes(dir: &Path) -> Vec<Option<Vec<u8>>> {
    bases(dir)
        .into_iter()
        .map(|base| std::fs::read(segment_file(dir, base, TXN_INDEX_SUFFIX)).ok())
        .collect()
}

// Broken if it failed: after a crash or a clean restart aborted records would count as committed.
#[test]
fn transactions_are_the_same_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (log, found) = write_some(dir.path());
    let (end, stable) = (log.log_end_offset(), log.last_stable_offset());
    assert!(stable < end);
    let written = txn_indexes(dir.path());
    drop(log);
    let check = |log: &Log| {
        assert_eq!((log.log_end_offset(), log.last_stable_offset()), (end, stable));
        assert_eq!(log.aborted_transactions(0, end).unwrap(), found);
    };
    let recovery_points = [0, end / 3, end / 2, end];
    for recovery_point in recovery_points {
        // What exists is kept or rebuilt, whatever its state.
        for damage in [None, Some(&b""[..]), Some(&[7; 50]), Some(&[0; 68])] {
            let from = bases(dir.path())
                .into_iter()
                .rfind(|base| *base <= recovery_point)
                .unwrap();
            if let Some(bytes) = damage {
                for base in bases(dir.path()).into_iter().filter(|base| *base >= from) {
                    std::fs::write(segment_file(dir.path(), base, TXN_INDEX_SUFFIX), bytes).unwrap();
                }
            }
            let log = Log::open(dir.path(), keeps_producers(), false, recovery_point).unwrap();
            check(&log);
            assert_eq!(txn_indexes(dir.path()), written);
        }
    }
    let log = Log::open(dir.path(), keeps_producers(), false, 0).unwrap();
    log.close().unwrap();
    check(&Log::open(dir.path(), keeps_producers(), true, end).unwrap());
}

// Broken if it failed: a damaged transaction index of a closed log would be believed, and aborted records
// served.
#[test]
fn damage_is_seen_after_a_clean_shutdown() {
    let dir = tempfile::tempdir().unwrap();
    let (log, found) = write_some(dir.path());
    let end = log.log_end_offset();
    log.close().unwrap();
    drop(log);
    let written = txn_indexes(dir.path());
    for (number, base) in bases(dir.path()).into_iter().enumerate() {
        let path = segment_file(dir.path(), base, TXN_INDEX_SUFFIX);
        let Some(good) = &written[number] else {
            continue;
        };
        let mut torn = good.clone();
        torn.pop();
        let other = AbortedTxn {
            last_offset: base - 1,
            first_offset: 0,
            ..aborted(1, 0, 0, 0)
        };
        let elsewhere = other.encode().to_vec();
        for bad in [torn, elsewhere, vec![1; 34]] {
            if base == 0 && bad == other.encode() {
                continue;
            }
            std::fs::write(&path, bad).unwrap();
            let log = Log::open(dir.path(), keeps_producers(), true, end).unwrap();
            assert_eq!(log.aborted_transactions(0, end).unwrap(), found);
            assert_eq!(std::fs::read(&path).unwrap(), *good);
            log.close().unwrap();
        }
        // A missing or empty one is rebuilt at the opening, or at its first use.
        for is_there in [true, false] {
            if is_there {
                std::fs::write(&path, b"").unwrap();
            } else {
                std::fs::remove_file(&path).unwrap();
            }
            let reader = Log::open_read_only(dir.path()).unwrap();
            if !is_there {
                assert_eq!(reader.aborted_transactions(0, end).unwrap(), found);
            }
            let log = Log::open(dir.path(), keeps_producers(), true, end).unwrap();
            assert_eq!(log.aborted_transactions(0, end).unwrap(), found);
            assert_eq!(std::fs::read(&path).unwrap(), *good);
            log.close().unwrap();
        }
        // Missing together with the other indexes, as when an operator deletes all index files.
        std::fs::remove_file(&path).unwrap();
        std::fs::remove_file(segment_file(dir.path(), base, INDEX_SUFFIX)).unwrap();
        let log = Log::open(dir.path(), keeps_producers(), true, end).unwrap();
        assert_eq!(log.aborted_transactions(0, end).unwrap(), found);
        log.close().unwrap();
    }
    assert_eq!(txn_indexes(dir.path()), written);
}

// Broken if it failed: retention would leave the transactions of what it deletes, or keep readers below the
// log start.
#[test]
fn deleted_records_take_their_transactions_along() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    begin(&log, 1, 0, 1);
    end(&log, 1, false);
    begin(&log, 2, 0, 1);
    log.roll(0).unwrap();
    fill(&log, 1);
    assert_eq!(log.last_stable_offset(), 2);
    log.advance_log_start_offset(3).unwrap();
    assert_eq!(log.last_stable_offset(), 3);
    assert_eq!(log.delete_old_segments(0).unwrap(), 1);
    assert_eq!(log.aborted_transactions(3, 4).unwrap(), []);
    assert!(matches!(
        log.aborted_transactions(0, 4),
        Err(StorageError::OffsetOutOfRange { .. })
    ));
    assert!(names(dir.path()).contains(&"00000000000000000000.txnindex.deleted".to_owned()));
    end(&log, 2, true);
    assert_eq!(log.last_stable_offset(), 5);
}

// Broken if it failed: a consumer of committed records would get aborted ones, or all aborted transactions
// with each fetch.
#[test]
fn a_slice_gets_its_aborted_transactions() {
    let dir = tempfile::tempdir().unwrap();
    let (log, found) = write_some(dir.path());
    let end = log.log_end_offset();
    let mut reported_max = 0;
    for offset in 0..end {
        for max_bytes in [1, 700, 1 << 20] {
            let slice = log.read(offset, max_bytes, i64::MAX, true).unwrap();
            let reported = log.aborted_in(offset, &slice).unwrap();
            let bytes = slice.read_whole_batches().unwrap();
            for batch in batches(&bytes) {
                let header = batch.unwrap().header;
                let met = found.iter().filter(|aborted| {
                    aborted.producer_id == header.producer_id
                        && aborted.first_offset <= header.base_offset
                        && header.last_offset() <= aborted.last_offset
                        && aborted.last_offset >= offset
                });
                met.for_each(|aborted| assert!(reported.contains(aborted), "{aborted:?}"));
            }
            if max_bytes == 1 {
                reported_max = reported_max.max(reported.len());
            }
        }
    }
    assert!(
        reported_max < found.len() / 2,
        "{reported_max} of {}",
        found.len()
    );
}

// Broken if it failed: a reader beside a broker would take records of open transactions for committed ones.
#[test]
fn a_reader_beside_the_writer_finds_what_is_stable() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = write_some(dir.path());
    let beside = Log::open_read_only(dir.path()).unwrap();
    let check = |beside: &Log| {
        let stable = log.last_stable_offset();
        assert_eq!(beside.find_last_stable_offset().unwrap(), stable);
        assert_eq!(log.find_last_stable_offset().unwrap(), stable);
        stable
    };
    let before = check(&beside);
    assert!(before < log.log_end_offset());
    end(&log, 1, true);
    beside.refresh().unwrap();
    assert_eq!(check(&beside), log.log_end_offset());
}

// Broken if it failed: a reader of committed records beside a writer would get aborted or open ones, because
// it read between the marker and its index entry, or used what it knew of a log that was truncated since.
#[test]
fn a_reader_beside_the_writer_follows_every_transaction() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), keeps_producers(), false, 0).unwrap();
    fill(&log, 1);
    let beside = Log::open_read_only(dir.path()).unwrap();
    let check = |index_lags: bool| {
        beside.refresh().unwrap();
        let active = segment_file(dir.path(), log.active().base_offset, TXN_INDEX_SUFFIX);
        let hidden = active.with_extension("hidden");
        let lags = index_lags && active.exists();
        if lags {
            std::fs::rename(&active, &hidden).unwrap();
        }
        let end = log.log_end_offset();
        let aborted = beside.aborted_transactions(0, end).unwrap();
        let reported = (beside.find_last_stable_offset().unwrap(), aborted);
        let expected = (
            log.last_stable_offset(),
            log.aborted_transactions(0, end).unwrap(),
        );
        assert_eq!(reported, expected, "the log ends at {end}");
        if lags {
            std::fs::rename(&hidden, &active).unwrap();
        }
    };
    let mut producers = [0, 1];
    let mut sequence = 0;
    for round in 0..120 {
        for producer in producers {
            begin(&log, producer, sequence, 2);
            check(round % 2 == 0);
        }
        sequence += 2;
        if round % 4 != 0 {
            end(&log, producers[0], round % 3 == 0);
            check(true);
        }
        end(&log, producers[1], round % 5 == 0);
        check(round % 2 == 1);
        if round % 17 == 16 {
            // As much is written again, so the log end is the same.
            let at = log.log_end_offset();
            log.truncate_to(at - 3 - round % 7).unwrap();
            for producer in producers {
                try_end(&log, producer, false).unwrap();
            }
            // Other producers continue, because the sequences of these are unknown.
            producers = producers.map(|producer| producer + 2);
            sequence = 0;
            while log.log_end_offset() < at {
                fill(&log, 1);
            }
            check(true);
        }
    }
    assert!(log.segment_count() > 4);
}

// Broken if it failed: a batch that comes after its transaction's abort marker would begin a transaction that
// nothing ends, and readers of committed records would stop there for ever.
#[test]
fn a_batch_is_let_in_by_a_verification_that_no_marker_ended() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), keeps_producers(), false, 0).unwrap();
    let append = |sequence, verification| {
        let options = ProduceOptions {
            verification,
            ..ProduceOptions::new(0, 0)
        };
        produce(&log, &mut transactional(7, 0, sequence, 1), options)
    };
    let refused =
        |result: Result<crate::Appended>| matches!(result, Err(StorageError::InvalidTxnState { .. }));
    assert!(refused(append(0, Verification::Open)));
    let guard = log.begin_verification(7, 0).unwrap();
    assert_eq!(
        log.begin_verification(7, 0),
        Some(guard),
        "requests of one producer share it"
    );
    try_end(&log, 7, false).unwrap();
    assert!(
        refused(append(0, Verification::Guarded(guard))),
        "after the marker"
    );

    let guard = log.begin_verification(7, 0).unwrap();
    append(0, Verification::Guarded(guard)).unwrap();
    assert_eq!(log.begin_verification(7, 0), None, "the transaction is open");
    assert!(log.begin_verification(7, 1).is_some(), "not in the next epoch");
    append(1, Verification::Open).unwrap();
    // What was appended already is answered again, whatever became of the transaction.
    try_end(&log, 7, true).unwrap();
    assert!(append(1, Verification::Open).unwrap().duplicate);
    assert!(refused(append(2, Verification::Open)));

    let given_up = log.begin_verification(7, 0).unwrap();
    log.give_up_verification(7, given_up);
    assert!(refused(append(2, Verification::Guarded(given_up))));
    append(2, Verification::Off).unwrap();
}
