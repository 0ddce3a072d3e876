//! Apache Kafka 3.9.1's cleaner and ours clean one log three times (`tests/fixtures/kafka-3.9.1-cleaner`).

use std::path::PathBuf;

use super::*;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/kafka-3.9.1-cleaner")
        .join(name)
}

fn copy(from: &Path) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in names(from) {
        std::fs::copy(from.join(&name), dir.path().join(&name)).unwrap();
    }
    dir
}

/// The header without the size and the checksum, which depend on the compressor, and without the base
/// timestamp.
fn comparable(header: BatchHeader) -> BatchHeader {
    let base_timestamp = if header.has_delete_horizon() {
        header.base_timestamp
    } else {
        0
    };
    BatchHeader {
        batch_length: 0,
        crc: 0,
        base_timestamp,
        ..header
    }
}

fn with_suffix(dir: &Path, suffix: &str) -> Vec<String> {
    let mut found = names(dir);
    found.retain(|name| name.ends_with(suffix));
    found
}

// Broken if it failed: Kafka's cleaner and ours would keep different records, batches, producers' headers,
// markers, delete horizons or aborted transactions of one log.
#[test]
fn what_kafka_keeps_is_kept() {
    let dir = copy(&fixture("before-0"));
    let log = reopen(dir.path(), config());
    for (round, now) in [(1, NOW), (2, NOW), (3, NOW + 1000)] {
        log.cleaning().set_first_dirty(0);
        log.compact_now(now).unwrap();
        log.maintain(now + 1_000_000).unwrap();

        let after = fixture(&format!("after-{round}"));
        let theirs_dir = copy(&after);
        let theirs = reopen(theirs_dir.path(), config());
        assert_eq!(read_all(&log), read_all(&theirs), "round {round}");
        let batches = |log: &Log| -> Vec<BatchHeader> { headers(log).into_iter().map(comparable).collect() };
        let (ours, expected) = (batches(&log), batches(&theirs));
        for (one, other) in ours.iter().zip(&expected) {
            assert_eq!(one, other, "round {round}");
        }
        assert_eq!(ours.len(), expected.len(), "round {round}");
        for suffix in [LOG_SUFFIX, TXN_INDEX_SUFFIX] {
            assert_eq!(with_suffix(dir.path(), suffix), with_suffix(&after, suffix));
        }
        for name in with_suffix(&after, TXN_INDEX_SUFFIX) {
            let read = |dir: &Path| std::fs::read(dir.join(&name)).unwrap();
            assert_eq!(read(dir.path()), read(&after), "round {round}, {name}");
        }
    }
}
