//! Names of the files in a log directory and in a partition's directory.
//!
//! Names are Kafka's (`LogFileUtils`): the base offset in 20 digits and a suffix. Only `logcore-moved` and
//! `flushed` are ours.

use std::path::{Path, PathBuf};

pub(crate) const LOG_SUFFIX: &str = ".log";
pub(crate) const INDEX_SUFFIX: &str = ".index";
pub(crate) const TIME_INDEX_SUFFIX: &str = ".timeindex";
pub(crate) const TXN_INDEX_SUFFIX: &str = ".txnindex";
pub(crate) const SNAPSHOT_SUFFIX: &str = ".snapshot";
pub(crate) const DELETED_SUFFIX: &str = ".deleted";
pub(crate) const CLEANED_SUFFIX: &str = ".cleaned";
pub(crate) const SWAP_SUFFIX: &str = ".swap";
/// The suffix of a file that [`super::replace_file`] has not renamed yet.
pub(crate) const TEMPORARY_SUFFIX: &str = ".tmp";

/// In a log directory: the offset below which each log is on disk.
pub const RECOVERY_POINT_FILE: &str = "recovery-point-offset-checkpoint";
/// In a log directory: each log's high watermark.
pub const HIGH_WATERMARK_FILE: &str = "replication-offset-checkpoint";
/// In a log directory: where each log begins, if later than its first segment.
pub const LOG_START_FILE: &str = "log-start-offset-checkpoint";
/// In a log directory: the offset up to which each log was compacted.
pub const CLEANER_FILE: &str = "cleaner-offset-checkpoint";
/// In a log directory: which broker and cluster it belongs to.
pub const META_PROPERTIES_FILE: &str = "meta.properties";
/// In a log directory: every log in it was closed, so none needs recovery.
pub const CLEAN_SHUTDOWN_FILE: &str = ".kafka_cleanshutdown";
/// In a log directory, and in the directory of a log that is used without a broker: the lock.
pub const LOCK_FILE: &str = ".lock";
/// In a partition's directory: the leader epochs.
pub const LEADER_EPOCH_FILE: &str = "leader-epoch-checkpoint";
/// In a partition's directory: the topic's id.
pub const PARTITION_METADATA_FILE: &str = "partition.metadata";
/// In a partition's directory: another log directory has the whole log now, and this directory is about to be
/// deleted. The file has the name of the copy's directory, without a line end. Kafka ignores it.
pub(crate) const MOVED_FILE: &str = "logcore-moved";
/// In the directory of a log that is used without a broker: see [`super::flushed_mark`].
pub(crate) const FLUSHED_FILE: &str = "flushed";

/// All files one segment may have. The snapshot at its base offset is kept and deleted with it.
pub(crate) const SEGMENT_SUFFIXES: [&str; 5] = [
    LOG_SUFFIX,
    INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
];

/// The files of a cleaned segment, in the order in which they are created and renamed.
pub(crate) const CLEANED_FILES: [&str; 4] = [LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX];

/// Files of a partition that belong to no segment. Kafka writes the last two in KRaft mode.
const OTHER_FILES: [&str; 9] = [
    LEADER_EPOCH_FILE,
    PARTITION_METADATA_FILE,
    CLEAN_SHUTDOWN_FILE,
    LOCK_FILE,
    // Of a log that is used without a broker.
    LOG_START_FILE,
    CLEANER_FILE,
    FLUSHED_FILE,
    "quorum-state",
    "quorum-state.tmp",
];

/// `00000000000000000042.log` for 42 and `.log`.
pub(crate) fn segment_file(dir: &Path, base_offset: i64, suffix: &str) -> PathBuf {
    dir.join(format!("{base_offset:020}{suffix}"))
}

/// `00000000000000000042.log.cleaned` for 42 and `.log`.
pub(crate) fn cleaned_file(dir: &Path, base_offset: i64, suffix: &str) -> PathBuf {
    segment_file(dir, base_offset, &format!("{suffix}{CLEANED_SUFFIX}"))
}

/// The offset in a file's name when the name is 20 digits and exactly `suffix`.
pub(crate) fn offset_of(name: &str, suffix: &str) -> Option<i64> {
    let digits = name.strip_suffix(suffix)?;
    if digits.len() != 20 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}

/// The base offset in the name of a segment's file with one of its suffixes.
pub(crate) fn base_of(name: &str) -> Option<i64> {
    SEGMENT_SUFFIXES.iter().find_map(|suffix| offset_of(name, suffix))
}

/// The base offset of a segment's file with a further suffix: 42 for `00000000000000000042.log.swap` and
/// `.swap`.
pub(crate) fn base_of_unfinished(name: &str, suffix: &str) -> Option<i64> {
    base_of(name.strip_suffix(suffix)?)
}

/// True for the `.tmp` file that a crash during [`super::replace_file`] leaves in a partition's directory.
pub(crate) fn is_temporary(name: &str) -> bool {
    name.strip_suffix(TEMPORARY_SUFFIX).is_some_and(|whole| {
        OTHER_FILES.contains(&whole) || whole == MOVED_FILE || offset_of(whole, SNAPSHOT_SUFFIX).is_some()
    })
}

/// True for a file that an interrupted step left in a partition's directory. Foreign files have no such
/// names.
pub(crate) fn is_unfinished(name: &str) -> bool {
    [DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX]
        .iter()
        .any(|suffix| base_of_unfinished(name, suffix).is_some())
        || is_temporary(name)
        || name == MOVED_FILE
}

/// True for the name of a file that a partition's directory may have.
pub(crate) fn is_of_partition(name: &str) -> bool {
    let snapshot_of_metadata = name
        .strip_suffix(".checkpoint")
        .is_some_and(|rest| rest.len() == 31 && rest.as_bytes()[20] == b'-');
    snapshot_of_metadata || OTHER_FILES.contains(&name) || base_of(name).is_some() || is_unfinished(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Broken if it failed: Kafka would not find our segments, or we would take a foreign file for one.
    #[test]
    fn names() {
        let dir = Path::new("/d");
        assert_eq!(
            segment_file(dir, 42, LOG_SUFFIX),
            Path::new("/d/00000000000000000042.log")
        );
        assert_eq!(offset_of("00000000000000000042.log", LOG_SUFFIX), Some(42));
        assert_eq!(
            offset_of("09223372036854775807.index", INDEX_SUFFIX),
            Some(i64::MAX)
        );
        for name in [
            "42.log",
            "0000000000000000004x.log",
            "00000000000000000042.log.deleted",
            "99999999999999999999.log",
            "+0000000000000000042.log",
        ] {
            assert_eq!(offset_of(name, LOG_SUFFIX), None, "{name}");
        }
        for name in [
            "00000000000000000042.log.deleted",
            "00000000000000000042.timeindex.swap",
            "00000000000000000042.txnindex.cleaned",
            "00000000000000000042.snapshot.tmp",
            "leader-epoch-checkpoint.tmp",
            "partition.metadata.tmp",
            "logcore-moved",
            "logcore-moved.tmp",
        ] {
            assert!(is_unfinished(name) && is_of_partition(name), "{name}");
        }
        for name in [
            "mail.deleted",
            "42.log.deleted",
            "00000000000000000042.deleted",
            "00000000000000000042.txt.swap",
            "00000000000000000042.log.tmp",
            "report.tmp",
            "x.cleaned",
        ] {
            assert!(!is_unfinished(name) && !is_of_partition(name), "{name}");
        }
    }
}
