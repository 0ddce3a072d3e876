//! The plan of a repair, made from the findings. Reads only names and checkpoints, and changes nothing.

use std::path::{Path, PathBuf};

use crate::files::CLEANER_FILE;
use crate::files::checkpoints::{
    HIGH_WATERMARK_FILE, LEADER_EPOCH_FILE, LOG_START_FILE, Offsets, RECOVERY_POINT_FILE, read_epochs,
    read_offsets,
};
use crate::files::flushed_mark::FLUSHED_FILE;
use crate::files::metadata::PARTITION_METADATA_FILE;
use crate::files::{
    INDEX_SUFFIX, LOG_SUFFIX, SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX,
    segment_file,
};
use crate::producers::snapshot;
use crate::verify::{Partition, PartitionCheck, Target};

use super::Action;

const AFTER_CUT: &str = "it is after the cut";

/// What to do to a directory.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// In the order of the target's partitions.
    pub(super) partitions: Vec<PartitionPlan>,
    pub(super) checkpoints: Vec<CheckpointPlan>,
    pub(super) refused: Vec<Action>,
}

/// What to do to one partition.
#[derive(Debug, Default)]
pub(super) struct PartitionPlan {
    pub(super) dir: PathBuf,
    /// The index of the segment to cut, and the action.
    pub(super) cut: Option<(usize, Action)>,
    /// In the order of removal.
    pub(super) removals: Vec<Action>,
    /// Base offsets of the segments whose `.index` and `.timeindex` are rebuilt.
    pub(super) indexes: Vec<(i64, Vec<Action>)>,
    /// Indexes of the segments whose `.txnindex` is rebuilt.
    pub(super) txn_indexes: Vec<(usize, Action)>,
    /// The action on the leader epoch file, and the file's new epochs.
    pub(super) epochs: Option<(Action, Vec<(i32, i64)>)>,
    /// The action that writes a snapshot at the log's end.
    pub(super) snapshot: Option<Action>,
}

/// A checkpoint that is removed (`offsets` is `None`) or gets other offsets.
#[derive(Debug)]
pub(super) struct CheckpointPlan {
    pub(super) action: Action,
    pub(super) offsets: Option<Offsets>,
}

impl Plan {
    pub(super) fn is_empty(&self) -> bool {
        self.actions().is_empty()
    }

    /// All actions, in the order in which they are carried out.
    pub(super) fn actions(&self) -> Vec<Action> {
        let partitions = self.partitions.iter().flat_map(PartitionPlan::actions);
        let checkpoints = self.checkpoints.iter().map(|plan| &plan.action);
        partitions.chain(checkpoints).cloned().collect()
    }
}

impl PartitionPlan {
    pub(super) fn actions(&self) -> impl Iterator<Item = &Action> {
        self.removals
            .iter()
            .chain(self.cut.iter().map(|(_, action)| action))
            .chain(self.indexes.iter().flat_map(|(_, actions)| actions))
            .chain(self.txn_indexes.iter().map(|(_, action)| action))
            .chain(self.epochs.iter().map(|(action, _)| action))
            .chain(&self.snapshot)
    }

    fn remove(&mut self, path: PathBuf, why: &str) {
        let why = why.to_owned();
        // A segment need not have all its files.
        if path.exists() {
            self.removals.push(Action::Remove { path, why });
        }
    }
}

pub(super) fn plan(target: &Target, checks: &[PartitionCheck], cut_at_corruption: bool) -> Plan {
    let mut plan = Plan::default();
    let mut ends = Offsets::new();
    for (partition, check) in target.partitions.iter().zip(checks) {
        let (wanted, refused) = plan_partition(partition, check, cut_at_corruption);
        // The end of a log that stays damaged is not known.
        if refused.is_none()
            && let Some(key) = &partition.key
        {
            ends.insert(key.clone(), check.log_end);
        }
        plan.partitions.push(wanted);
        plan.refused.extend(refused);
    }
    plan.checkpoints = plan_checkpoints(target, &ends);
    plan
}

fn plan_partition(
    partition: &Partition,
    check: &PartitionCheck,
    cut_at_corruption: bool,
) -> (PartitionPlan, Option<Action>) {
    let dir = &partition.dir;
    let mut plan = PartitionPlan {
        dir: dir.clone(),
        ..PartitionPlan::default()
    };
    let mut refused = None;
    if let Some(cut) = &check.cut {
        let base_offset = check.segments[cut.segment].base_offset;
        let action = Action::Cut {
            path: segment_file(dir, base_offset, LOG_SUFFIX),
            position: cut.position,
            offset: cut.offset,
            bytes: cut.bytes,
            records: cut.records,
            why: cut.reason.clone(),
        };
        if cut.is_tail || cut_at_corruption {
            plan_cut(&mut plan, check, cut.segment, cut.offset);
            plan.cut = Some((cut.segment, action));
        } else {
            refused = Some(action);
        }
    }
    if check.is_short {
        let why = "the log ends before the offset that it says was on disk".to_owned();
        let path = dir.join(FLUSHED_FILE);
        if cut_at_corruption {
            plan.remove(path, &why);
        } else {
            refused = Some(Action::Remove { path, why });
        }
    }
    plan_rebuilds(&mut plan, check, refused.is_some());
    (plan, refused)
}

/// Plans what goes with a cut: the later segments, from the last to the first, and the snapshots after the
/// cut.
fn plan_cut(plan: &mut PartitionPlan, check: &PartitionCheck, segment: usize, offset: i64) {
    let dir = plan.dir.clone();
    for later in check.segments[segment + 1..].iter().rev() {
        // The .log file goes last: after a crash, the next verification still finds the rest of the segment.
        for suffix in SEGMENT_SUFFIXES.into_iter().rev() {
            if suffix != SNAPSHOT_SUFFIX {
                plan.remove(segment_file(&dir, later.base_offset, suffix), AFTER_CUT);
            }
        }
    }
    for snapshot in snapshot::list(&dir).unwrap_or_default() {
        if snapshot > offset {
            plan.remove(segment_file(&dir, snapshot, SNAPSHOT_SUFFIX), AFTER_CUT);
        }
    }
}

fn plan_rebuilds(plan: &mut PartitionPlan, check: &PartitionCheck, stays_damaged: bool) {
    let dir = plan.dir.clone();
    let cut = plan.cut.as_ref().map(|(segment, _)| *segment);
    let kept = cut.map_or(check.segments.len(), |segment| segment + 1);
    let damaged = check.cut.as_ref().map(|cut| cut.segment);
    for (number, segment) in check.segments[..kept].iter().enumerate() {
        if stays_damaged && damaged.is_some_and(|damaged| number >= damaged) {
            // The batches to rebuild them from are damaged.
            break;
        }
        let is_cut = cut == Some(number);
        let wrong = [
            (INDEX_SUFFIX, segment.offset_index_wrong),
            (TIME_INDEX_SUFFIX, segment.time_index_wrong),
        ];
        if is_cut || wrong.iter().any(|(_, wrong)| *wrong) {
            // One pass builds both.
            let actions = wrong.map(|(suffix, wrong)| Action::Rebuild {
                path: segment_file(&dir, segment.base_offset, suffix),
                why: why_rebuilt(wrong, is_cut).to_owned(),
            });
            plan.indexes.push((segment.base_offset, actions.to_vec()));
        }
        let path = segment_file(&dir, segment.base_offset, TXN_INDEX_SUFFIX);
        if segment.txn_index_wrong || (is_cut && path.exists()) {
            let why = why_rebuilt(segment.txn_index_wrong, is_cut).to_owned();
            plan.txn_indexes.push((number, Action::Rebuild { path, why }));
        }
    }
    if check.topic_id_wrong {
        plan.remove(
            dir.join(PARTITION_METADATA_FILE),
            "it has no topic id; the broker writes it again",
        );
    }
    if stays_damaged {
        return;
    }
    plan.epochs = plan_epochs(&dir, check);
    for offset in &check.snapshots_wrong {
        let path = segment_file(&dir, *offset, SNAPSHOT_SUFFIX);
        if !plan.removals.iter().any(|action| action.path() == path) {
            plan.remove(path, "it contradicts the batches, or cannot be read");
        }
    }
    if cut.is_some() || check.snapshot_missing || !check.snapshots_wrong.is_empty() {
        plan.snapshot = Some(Action::Rebuild {
            path: segment_file(&dir, check.log_end, SNAPSHOT_SUFFIX),
            why: "it keeps the producers at the log's end".to_owned(),
        });
    }
}

/// Plans the leader epoch file. A wrong file is rebuilt; with a cut, the epochs after the cut go.
fn plan_epochs(dir: &Path, check: &PartitionCheck) -> Option<(Action, Vec<(i32, i64)>)> {
    let path = dir.join(LEADER_EPOCH_FILE);
    if let Some(wanted) = &check.epochs {
        let why = why_rebuilt(true, false).to_owned();
        let end = check.cut.as_ref().map_or(i64::MAX, |cut| cut.offset);
        let kept = wanted.iter().copied().filter(|(_, start)| *start < end);
        return Some((Action::Rebuild { path, why }, kept.collect()));
    }
    let before = read_epochs(&path).ok()?;
    let end = check.cut.as_ref()?.offset;
    let kept: Vec<_> = before.iter().copied().filter(|(_, start)| *start < end).collect();
    let why = why_rebuilt(false, true).to_owned();
    let changed = kept != before;
    changed.then_some((Action::Rebuild { path, why }, kept))
}

fn why_rebuilt(wrong: bool, cut: bool) -> &'static str {
    match (wrong, cut) {
        (false, true) => "the log is cut",
        (false, false) => "it is rebuilt together with the other index",
        (true, _) => "it contradicts the batches, cannot be read or is missing",
    }
}

fn plan_checkpoints(target: &Target, ends: &Offsets) -> Vec<CheckpointPlan> {
    let mut plans = Vec::new();
    for name in [
        RECOVERY_POINT_FILE,
        HIGH_WATERMARK_FILE,
        LOG_START_FILE,
        CLEANER_FILE,
    ] {
        let path = target.checkpoint_dir().join(name);
        let Ok(before) = read_offsets(&path) else {
            if target.is_one_of_many() {
                // It has other partitions too, which this repair must not touch.
                continue;
            }
            let why = "it cannot be read; without it, logs are recovered from their start".to_owned();
            let action = Action::Remove { path, why };
            plans.push(CheckpointPlan {
                action,
                offsets: None,
            });
            continue;
        };
        let mut after = before.clone();
        for (key, offset) in &mut after {
            if let Some(end) = ends.get(key) {
                *offset = (*offset).clamp(0, *end);
            }
        }
        if after != before {
            let why = "it has offsets that are not in their log".to_owned();
            plans.push(CheckpointPlan {
                action: Action::Rebuild { path, why },
                offsets: Some(after),
            });
        }
    }
    plans
}
