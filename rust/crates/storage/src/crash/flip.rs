//! Flips one bit of what a power loss left, and says what the log must make of it.
//!
//! Bits that nothing covers are left alone: a batch's base offset and leader epoch, which are outside of its checksum so
//! that a broker can set them in place, and the text files, which have none (Kafka's formats, all of them).

use std::fs::{self, File};
use std::path::Path;

use super::history::PARTITION_DIR;
use crate::checkpoints::{RECOVERY_POINT_FILE, read_offsets};
use crate::files::{
    INDEX_SUFFIX, LOG_SUFFIX, SNAPSHOT_SUFFIX, TIME_INDEX_SUFFIX, file_names, offset_of,
};
use crate::metadata::CLEAN_SHUTDOWN_FILE;
use crate::scan::{Next, Scanner, StoredBatch};
use crate::support::random::Random;

/// A bit that was flipped.
#[derive(Debug)]
pub(super) struct Flipped {
    /// Not in records but in an index or a snapshot: nothing may come of it.
    pub(super) in_hint: bool,
    /// Below the recovery point: no torn tail, so the log must not cut it off but say where it is.
    pub(super) must_be_reported: bool,
    /// The first offset of the batch that has it, and the last.
    pub(super) offset: i64,
    pub(super) last_offset: i64,
}

/// Flips a bit in the partition below `root`, if there is one to flip.
pub(super) fn flip_a_bit(random: &mut Random, root: &Path, broker: bool) -> Option<Flipped> {
    let dir = root.join(PARTITION_DIR);
    let names = file_names(&dir).ok()?;
    let suffix = *random.pick(&[
        LOG_SUFFIX,
        LOG_SUFFIX,
        INDEX_SUFFIX,
        TIME_INDEX_SUFFIX,
        SNAPSHOT_SUFFIX,
    ]);
    let named: Vec<&String> = names.iter().filter(|n| n.ends_with(suffix)).collect();
    if named.is_empty() {
        return None;
    }
    let path = dir.join(random.pick(&named));
    if suffix != LOG_SUFFIX {
        let size = fs::metadata(&path).unwrap().len() as usize;
        if size == 0 {
            return None;
        }
        flip(&path, random.below(size), random);
        return Some(Flipped {
            in_hint: true,
            must_be_reported: false,
            offset: 0,
            last_offset: 0,
        });
    }
    let batches = batches_of(&path);
    if batches.is_empty() {
        return None;
    }
    let batch = random.pick(&batches);
    let covered = (8..batch.size as usize).filter(|at| !(12..16).contains(at));
    let covered: Vec<usize> = covered.collect();
    flip(
        &path,
        batch.position as usize + random.pick(&covered),
        random,
    );
    let recovery_point = if broker {
        let offsets = read_offsets(&root.join(RECOVERY_POINT_FILE)).unwrap();
        offsets.get(&("t".to_owned(), 0)).copied().unwrap_or(0)
    } else {
        let bases = names.iter().filter_map(|name| offset_of(name, LOG_SUFFIX));
        bases.max().unwrap_or(0)
    };
    let marker_in = if broker { root } else { &dir };
    let closed = marker_in.join(CLEAN_SHUTDOWN_FILE).exists();
    Some(Flipped {
        in_hint: false,
        must_be_reported: closed || batch.base_offset < recovery_point,
        offset: batch.base_offset,
        last_offset: batch.last_offset,
    })
}

fn flip(path: &Path, at: usize, random: &mut Random) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 1 << random.below(8);
    fs::write(path, bytes).unwrap();
}

/// The batches at the front of a file that are whole.
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
