//! Checks leader epochs: the batches' epochs against each other, and the epoch file against them.

use std::path::Path;

use super::{ANOTHER_REPLICA, Walk};
use crate::error::StorageError;
use crate::files::checkpoints::{LEADER_EPOCH_FILE, read_epochs};
use crate::files::{LOG_SUFFIX, segment_file};
use crate::leader_epochs::rises;
use crate::leader_epochs::runs::{EpochRun, Resolved};
use crate::segment::scan::StoredBatch;
use crate::verify::{Finding, Kind};

const EPOCHS_REBUILT: &str = "`logcore repair --apply` rebuilds it from the epochs of the batches";
/// The epoch of a batch that was written without one (`RecordBatch.NO_PARTITION_LEADER_EPOCH`).
const NO_EPOCH: i32 = -1;

impl Walk<'_> {
    /// Adds the epoch of a batch.
    pub(in crate::verify) fn epoch(&mut self, segment: usize, batch: &StoredBatch) {
        let (epoch, offset) = (batch.leader_epoch, batch.base_offset);
        if epoch < NO_EPOCH {
            let what = format!("leader epoch {epoch} is not possible");
            self.report_epoch(segment, (batch.position, offset), what);
        }
        self.epochs.add(epoch, offset, batch.position);
    }

    fn report_epoch(&mut self, segment: usize, (position, offset): (u64, i64), what: String) {
        self.findings.push(Finding {
            kind: Kind::EpochOrder,
            path: segment_file(self.dir, self.bases[segment], LOG_SUFFIX),
            position: Some(position),
            offset: Some(offset),
            what,
            remedy: ANOTHER_REPLICA.to_owned(),
        });
    }

    /// Compares the epochs of the batches with each other, and the epoch file with them.
    pub(super) fn check_epochs(&mut self) {
        let batches = std::mem::take(&mut self.epochs).resolve();
        for run in &batches.doubted {
            let segment = self.bases.partition_point(|base| *base <= run.first);
            let what = doubt(run, &batches.believed);
            self.report_epoch(segment.saturating_sub(1), (run.position, run.first), what);
        }
        let path = self.dir.join(LEADER_EPOCH_FILE);
        match read_epochs(&path) {
            Ok(entries) if !rises(&entries) => {
                self.wrong_epochs(&path, "the epochs do not increase".to_owned(), &batches);
            }
            Ok(entries) if entries.is_empty() && !batches.believed.is_empty() => {
                let what = "it has no epoch, but the batches have".to_owned();
                self.wrong_epochs(&path, what, &batches);
            }
            Ok(entries) => self.compare_epochs(&path, &entries, &batches),
            Err(StorageError::Corrupt { reason, .. }) => {
                self.wrong_epochs(&path, reason, &batches);
            }
            Err(error) => {
                self.findings
                    .error(Kind::LeaderEpochs, &path, &error, EPOCHS_REBUILT);
            }
        }
    }

    /// Reports a file that is wrong whatever the batches say. It is not rebuilt when the batches' epochs go
    /// back. The cause may be a flipped bit, or a tail from before a truncation, which the next opening cuts.
    fn wrong_epochs(&mut self, path: &Path, what: String, batches: &Resolved) {
        if batches.doubted.is_empty() {
            self.rebuild_epochs(path, what, batches.entries());
        } else {
            self.findings
                .file(Kind::LeaderEpochs, path, what, ANOTHER_REPLICA);
        }
    }

    fn rebuild_epochs(&mut self, path: &Path, what: String, wanted: Vec<(i32, i64)>) {
        self.epochs_wanted = Some(wanted);
        self.findings.file(Kind::LeaderEpochs, path, what, EPOCHS_REBUILT);
    }

    /// Compares well-formed entries with the batches. No checksum says which of the two is wrong: a single
    /// batch may have a flipped bit. So the file is rebuilt only when several batches contradict it and no
    /// batch contradicts those.
    fn compare_epochs(&mut self, path: &Path, entries: &[(i32, i64)], batches: &Resolved) {
        let end = self.next_offset;
        let contradicting: Vec<_> = batches
            .believed
            .iter()
            .filter_map(|run| Some((run, contradiction(entries, run)?)))
            .collect();
        if !batches.doubted.is_empty() && !contradicting.is_empty() {
            // The batches' contradiction is reported already.
            return;
        }
        let in_doubt = contradicting.iter().find(|(run, _)| run.batches == 1);
        if let Some((_, what)) = in_doubt {
            self.findings
                .file(Kind::LeaderEpochs, path, what.clone(), ANOTHER_REPLICA);
        } else if let Some((_, what)) = contradicting.first() {
            let mut wanted = batches.entries();
            // The epoch of a leader that has not written yet.
            let (epoch, _) = wanted.last().copied().unwrap_or((NO_EPOCH, 0));
            let later = |(e, start): &(i32, i64)| *e > epoch && *start == end;
            wanted.extend(entries.iter().copied().filter(later));
            self.rebuild_epochs(path, what.clone(), wanted);
        } else if let Some((epoch, start)) = entries.last()
            && (self.intact() && !self.live() && *start > end)
        {
            let what = format!("epoch {epoch} begins at offset {start}, but the log ends at {end}");
            let kept = entries.iter().copied().filter(|(_, start)| *start <= end);
            self.rebuild_epochs(path, what, kept.collect());
        }
    }
}

/// Describes why a run's epoch is not believed.
fn doubt(run: &EpochRun, believed: &[EpochRun]) -> String {
    let epoch = run.epoch;
    let higher = believed
        .iter()
        .rfind(|other| other.first < run.first && other.epoch > epoch);
    match (higher, believed.iter().find(|other| other.last > run.first)) {
        (Some(higher), _) => format!("leader epoch {epoch} follows leader epoch {}", higher.epoch),
        (None, Some(lower)) => format!(
            "leader epoch {} follows leader epoch {epoch}, which most batches contradict",
            lower.epoch
        ),
        (None, None) => format!("most batches contradict leader epoch {epoch}"),
    }
}

/// Describes how the file's entries contradict a run of batches.
fn contradiction(entries: &[(i32, i64)], run: &EpochRun) -> Option<String> {
    let said = |offset: i64| {
        let after = entries.partition_point(|(_, start)| *start <= offset);
        match after.checked_sub(1) {
            Some(index) => entries[index].0,
            // The log's start has passed the epoch, so the file may lack it.
            None => entries
                .first()
                .map_or(NO_EPOCH, |(first, _)| run.epoch.min(*first)),
        }
    };
    let offset = [run.first, run.last]
        .into_iter()
        .find(|offset| said(*offset) != run.epoch)?;
    Some(format!(
        "offset {offset} is of epoch {} by the file, but the batch there is of epoch {}",
        said(offset),
        run.epoch
    ))
}
