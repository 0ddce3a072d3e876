//! Flips one bit of what a power loss left, and says what the log may do about it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::history::PARTITION_DIR;
use crate::files::checkpoints::{
    CLEANER_FILE, HIGH_WATERMARK_FILE, LEADER_EPOCH_FILE, LOG_START_FILE, RECOVERY_POINT_FILE, read_offsets,
};
use crate::files::metadata::{CLEAN_SHUTDOWN_FILE, PARTITION_METADATA_FILE};
use crate::files::{
    INDEX_SUFFIX, LOG_SUFFIX, SNAPSHOT_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, file_names, offset_of,
};
use crate::segment::scan::{Next, Scanner, StoredBatch};
use crate::support::random::Random;
use crate::testing::flip;

/// What has the flipped bit. Kafka's formats have no checksum over the last four.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// An index or a snapshot: nothing may change.
    Hint,
    /// A batch, where its checksum covers it. `certain`: below the recovery point, so it is no torn tail, and
    /// the log must report it instead of cutting it off.
    Covered { certain: bool },
    /// A batch's base offset: no other batch may be served wrong.
    BaseOffset,
    /// A batch's leader epoch: no record may be lost or served with another value.
    LeaderEpoch,
    /// The log start: no record may be served wrong.
    LogStart,
    /// A text file, or the entry of an aborted transaction: no record may be lost or served wrong.
    Beside,
}

/// A bit that was flipped.
#[derive(Debug)]
pub(super) struct Flipped {
    pub(super) what: What,
    pub(super) file: String,
    /// The first offset of the batch with the bit, and the last.
    pub(super) offset: i64,
    pub(super) last_offset: i64,
}

impl Flipped {
    fn beside(path: &Path, what: What) -> Self {
        Self {
            what,
            file: path.file_name().unwrap().to_string_lossy().into_owned(),
            offset: 0,
            last_offset: 0,
        }
    }
}

/// Flips a bit in the partition below `root`, or beside it, if there is one to flip.
pub(super) fn flip_a_bit(random: &mut Random, root: &Path, broker: bool) -> Option<Flipped> {
    let dir = root.join(PARTITION_DIR);
    let names = file_names(&dir).ok()?;
    let named = |suffix: &str| -> Vec<PathBuf> {
        let found = names.iter().filter(|name| name.ends_with(suffix));
        found.map(|name| dir.join(name)).collect()
    };
    let hints = [INDEX_SUFFIX, TIME_INDEX_SUFFIX, SNAPSHOT_SUFFIX];
    let beside = [
        root.join(RECOVERY_POINT_FILE),
        root.join(HIGH_WATERMARK_FILE),
        root.join(CLEANER_FILE),
        dir.join(LEADER_EPOCH_FILE),
        dir.join(PARTITION_METADATA_FILE),
    ];
    let (candidates, what) = match random.below(10) {
        0..=3 => {
            let path = random.pick(&non_empty(named(LOG_SUFFIX))?).clone();
            return flip_in_log(random, &path, root, broker);
        }
        4..=6 => (named(hints[random.below(hints.len())]), What::Hint),
        7 => (named(TXN_INDEX_SUFFIX), What::Beside),
        8 => {
            let start = [root.join(LOG_START_FILE), dir.join(LOG_START_FILE)];
            (start.to_vec(), What::LogStart)
        }
        _ => (vec![random.pick(&beside).clone()], What::Beside),
    };
    let path = random.pick(&non_empty(candidates)?).clone();
    let size = fs::metadata(&path).unwrap().len() as usize;
    flip(&path, random.below(size), 1 << random.below(8));
    Some(Flipped::beside(&path, what))
}

/// The existing files with at least one byte.
fn non_empty(mut paths: Vec<PathBuf>) -> Option<Vec<PathBuf>> {
    paths.retain(|path| fs::metadata(path).is_ok_and(|metadata| metadata.len() > 0));
    (!paths.is_empty()).then_some(paths)
}

fn flip_in_log(random: &mut Random, path: &Path, root: &Path, broker: bool) -> Option<Flipped> {
    let batches = batches_of(path);
    if batches.is_empty() {
        return None;
    }
    let batch = random.pick(&batches);
    // A legacy message has its checksum there, and no leader epoch.
    let epoch = if batch.header.is_some() { 12..16 } else { 0..0 };
    let at = match random.below(4) {
        0 => random.below(8),
        1 if batch.header.is_some() => random.between(12, 15),
        _ => random.between(8, batch.size as usize - 1),
    };
    let what = if at < 8 {
        What::BaseOffset
    } else if epoch.contains(&at) {
        What::LeaderEpoch
    } else {
        let certain = batch.base_offset < certain_end(path.parent()?, root, broker);
        What::Covered { certain }
    };
    flip(path, batch.position as usize + at, 1 << random.below(8));
    Some(Flipped {
        offset: batch.base_offset,
        last_offset: batch.last_offset,
        ..Flipped::beside(path, what)
    })
}

/// The offset below which everything is certainly on disk, by the files there.
fn certain_end(dir: &Path, root: &Path, broker: bool) -> i64 {
    let marker_in = if broker { root } else { dir };
    if marker_in.join(CLEAN_SHUTDOWN_FILE).exists() {
        return i64::MAX;
    }
    if broker {
        let offsets = read_offsets(&root.join(RECOVERY_POINT_FILE)).unwrap();
        return offsets.get(&("t".to_owned(), 0)).copied().unwrap_or(0);
    }
    let names = file_names(dir).unwrap();
    let bases = names.iter().filter_map(|name| offset_of(name, LOG_SUFFIX));
    bases.max().unwrap_or(0)
}

/// The whole batches at the front of a file.
fn batches_of(path: &Path) -> Vec<StoredBatch> {
    let file = File::open(path).unwrap();
    let size = file.metadata().unwrap().len();
    let mut scan = Scanner::checked(&file, 0, size);
    let mut batches = Vec::new();
    while let Next::Batch(batch) = scan.next().unwrap() {
        batches.push(batch);
    }
    batches
}
