//! Carries a plan out: removes segments from the last to the first, then cuts, then rebuilds.

use std::path::Path;

use crate::error::{Result, StorageError};
use crate::files::checkpoints::{write_epochs, write_offsets};
use crate::files::disk;
use crate::files::flushed_mark;
use crate::files::{self, TXN_INDEX_SUFFIX, segment_file};
use crate::index::transactions;
use crate::producers::snapshot;
use crate::segment::{Access, IndexSettings, Segment};
use crate::verify::PartitionCheck;

use super::Action;
use super::plan::{PartitionPlan, Plan};

/// The defaults of [`crate::LogConfig`]: the density of an index does not change what it says.
const SETTINGS: IndexSettings = IndexSettings {
    interval_bytes: 4096,
    // An index that is built for a sealed segment has the size that it needs.
    max_bytes: 0,
};

pub(super) fn apply(plan: &Plan, checks: &[PartitionCheck]) -> Result<()> {
    for (partition, check) in plan.partitions.iter().zip(checks) {
        if partition.actions().next().is_some() {
            apply_to_partition(partition, check)?;
        }
    }
    for checkpoint in &plan.checkpoints {
        let path = checkpoint.action.path();
        match &checkpoint.offsets {
            Some(offsets) => write_offsets(path, offsets)?,
            None => remove(path)?,
        }
    }
    Ok(())
}

fn apply_to_partition(plan: &PartitionPlan, check: &PartitionCheck) -> Result<()> {
    if plan.cut.is_some() || !plan.removals.is_empty() {
        // The note names offsets that the removals take away.
        flushed_mark::remove(&plan.dir)?;
    }
    for action in &plan.removals {
        remove(action.path())?;
    }
    if let Some((_, Action::Cut { path, position, .. })) = &plan.cut {
        cut(path, *position)?;
    }
    for (base_offset, actions) in &plan.indexes {
        for action in actions {
            files::remove_if_exists(action.path())?;
        }
        // Indexes that are missing are built when they are asked for.
        Segment::open(&plan.dir, *base_offset, SETTINGS, Access::Owned, 0)?.indexes()?;
    }
    for (number, _) in &plan.txn_indexes {
        write_txn_index(&plan.dir, &check.segments[*number], check.log_end)?;
    }
    if let Some((action, epochs)) = &plan.epochs {
        write_epochs(action.path(), epochs)?;
    }
    if plan.snapshot.is_some() {
        snapshot::write(&plan.dir, check.log_end, &check.producers, true)?;
    }
    files::sync_dir(&plan.dir)
}

fn remove(path: &Path) -> Result<()> {
    files::remove_if_exists(path).map(|_| ())
}

fn cut(path: &Path, position: u64) -> Result<()> {
    let file = disk::open(path).map_err(StorageError::io("open", path))?;
    disk::set_len(&file, path, position)
        .and_then(|()| disk::sync(&file, path))
        .map_err(StorageError::io("truncate", path))
}

fn write_txn_index(dir: &Path, segment: &crate::verify::SegmentCheck, log_end: i64) -> Result<()> {
    let path = segment_file(dir, segment.base_offset, TXN_INDEX_SUFFIX);
    let entries: Vec<_> = segment
        .aborted
        .iter()
        .filter(|entry| entry.last_offset < log_end)
        .collect();
    if entries.is_empty() {
        return files::remove_if_exists(&path).map(|_| ());
    }
    let mut bytes = Vec::with_capacity(entries.len() * transactions::ENTRY_SIZE);
    for entry in entries {
        bytes.extend(entry.encode());
    }
    files::replace_file(&path, &bytes)
}
