//! The leader epochs of a log: which leader wrote from which offset (`LeaderEpochFileCache`, KIP-101).
//!
//! A short list of (epoch, first offset), both rising, in memory and in `leader-epoch-checkpoint`. It changes
//! under the log's writer lock. Recovery repairs a missing or damaged file from the epochs in the batches'
//! headers.
//!
//! An epoch is on disk before its first batch is written. The exception is the first epoch of a log: it is in
//! the file, but it is flushed only before the recovery point moves or a second segment begins. So the first
//! append to a new partition does not wait for the disk. No earlier epoch can be confused with it.

pub(crate) mod runs;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use crate::error::Result;
use crate::files;
use crate::files::checkpoints::{LEADER_EPOCH_FILE, read_epochs, write_epochs, write_epochs_unsynced};
use crate::leader_epochs::runs::EpochRuns;

/// No epoch (`OffsetsForLeaderEpochResponse.UNDEFINED_EPOCH`). A client may ask for other negative epochs;
/// none exists.
const UNDEFINED: i32 = -1;

#[derive(Debug, Default, Clone)]
pub(crate) struct LeaderEpochs {
    path: PathBuf,
    entries: Vec<(i32, i64)>,
    /// The entries differ from the file.
    changed: bool,
    /// The file has no entries.
    is_file_empty: bool,
    /// The file has the entries, but a power loss may take them back.
    is_unsynced: bool,
}

/// The epochs of a log, for concurrent readers.
#[derive(Debug)]
pub(crate) struct SharedEpochs {
    /// Changes are made here and may wait for the disk.
    changing: Mutex<LeaderEpochs>,
    /// The state after the last change. This lock is never held over disk access.
    epochs: RwLock<LeaderEpochs>,
    /// [`LeaderEpochs::saved_latest`], or [`NONE`]. Every append reads it, without a lock.
    saved_latest: AtomicI32,
}

const NONE: i32 = -1;

impl SharedEpochs {
    pub(crate) fn new(epochs: LeaderEpochs) -> Self {
        Self {
            saved_latest: AtomicI32::new(epochs.saved_latest().unwrap_or(NONE)),
            changing: Mutex::new(epochs.clone()),
            epochs: RwLock::new(epochs),
        }
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, LeaderEpochs> {
        self.epochs.read()
    }

    /// The latest epoch, if it is in the file.
    pub(crate) fn saved_latest(&self) -> Option<i32> {
        Some(self.saved_latest.load(Ordering::Acquire)).filter(|epoch| *epoch != NONE)
    }

    /// Makes changes and publishes them. The caller has the log's writer lock.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut LeaderEpochs) -> T) -> T {
        let mut epochs = self.changing.lock();
        let result = change(&mut epochs);
        let saved = epochs.saved_latest().unwrap_or(NONE);
        self.epochs.write().clone_from(&epochs);
        self.saved_latest.store(saved, Ordering::Release);
        result
    }
}

impl LeaderEpochs {
    /// Reads the file of a partition's directory. A damaged file counts as empty: recovery fills it from the
    /// log as far as it scans.
    pub(crate) fn load(dir: &Path) -> Result<Self> {
        let path = dir.join(LEADER_EPOCH_FILE);
        let mut epochs = Self {
            path,
            ..Self::default()
        };
        match read_epochs(&epochs.path) {
            Ok(entries) if rises(&entries) => {
                epochs.is_file_empty = entries.is_empty();
                // The process that wrote a first epoch may have ended before a flush.
                epochs.is_unsynced = entries.len() == 1;
                epochs.entries = entries;
            }
            Ok(_) | Err(crate::error::StorageError::Corrupt { .. }) => {
                (epochs.changed, epochs.is_file_empty) = (true, true);
            }
            Err(error) => return Err(error),
        }
        Ok(epochs)
    }

    pub(crate) fn latest(&self) -> Option<i32> {
        self.entries.last().map(|(epoch, _)| *epoch)
    }

    /// Where the latest epoch begins, if it is `epoch`.
    pub(crate) fn start_of_latest(&self, epoch: i32) -> Option<i64> {
        let (latest, start) = *self.entries.last()?;
        (latest == epoch).then_some(start)
    }

    /// The latest epoch, if it is in the file. A full disk may have kept it out.
    fn saved_latest(&self) -> Option<i32> {
        self.latest().filter(|_| !self.changed)
    }

    /// Notes that `epoch` writes from `offset` on; true when that is new. Earlier epochs that begin at or
    /// after `offset` have no batch any more and are removed.
    pub(crate) fn assign(&mut self, epoch: i32, offset: i64) -> bool {
        if epoch < 0 || self.latest().is_some_and(|latest| epoch <= latest) {
            return false;
        }
        self.entries.retain(|(_, start)| *start < offset);
        self.entries.push((epoch, offset));
        self.changed = true;
        true
    }

    /// Adds the epochs of the batches that recovery read. An intact file got each epoch before its first
    /// batch was written, so a single batch that contradicts it has a flipped bit.
    pub(crate) fn add_recovered(&mut self, runs: EpochRuns) {
        let is_sound = !self.entries.is_empty();
        for run in runs.resolve().believed {
            if run.batches > 1 || !is_sound {
                self.assign(run.epoch, run.first);
            }
        }
    }

    /// True when a batch of `epoch` at `offset` fits the entries.
    pub(crate) fn agrees(&self, epoch: i32, offset: i64) -> bool {
        self.entries.is_empty() || self.epoch_of(offset) == Some(epoch)
    }

    /// Removes epochs that begin at or after the log's end.
    pub(crate) fn truncate_from_end(&mut self, end: i64) {
        let before = self.entries.len();
        self.entries.retain(|(_, start)| *start < end);
        self.changed |= self.entries.len() != before;
    }

    /// Removes epochs that ended before the log's start. The epoch of the start begins there.
    pub(crate) fn truncate_from_start(&mut self, start: i64) {
        let covering = self.entries.partition_point(|(_, first)| *first <= start);
        if let Some(index) = covering.checked_sub(1)
            && (index > 0 || self.entries[0].1 < start)
        {
            self.entries.drain(..index);
            self.entries[0].1 = start;
            self.changed = true;
        }
    }

    /// The largest epoch that is at most `epoch`, and the offset at which it ends
    /// (`LeaderEpochFileCache.endOffsetFor`). `None` when this log has no such epoch.
    pub(crate) fn end_offset(&self, epoch: i32, log_end: i64) -> Option<(i32, i64)> {
        let latest = self.latest().filter(|_| epoch != UNDEFINED)?;
        if epoch == latest {
            return Some((epoch, log_end));
        }
        let higher = self.entries.partition_point(|(known, _)| *known <= epoch);
        let (_, end) = *self.entries.get(higher)?;
        match higher.checked_sub(1) {
            Some(floor) => Some((self.entries[floor].0, end)),
            None => Some((epoch, end)),
        }
    }

    /// The epoch that wrote `offset`.
    pub(crate) fn epoch_of(&self, offset: i64) -> Option<i32> {
        let after = self.entries.partition_point(|(_, start)| *start <= offset);
        Some(self.entries[after.checked_sub(1)?].0)
    }

    /// Writes the file if the entries changed or it does not exist.
    pub(crate) fn save(&mut self) -> Result<()> {
        if self.changed {
            write_epochs(&self.path, &self.entries)?;
            self.is_unsynced = false;
            self.written();
        }
        Ok(())
    }

    /// [`LeaderEpochs::save`] before an append: the first epoch of a log is not flushed.
    pub(crate) fn save_before_append(&mut self) -> Result<()> {
        if self.changed && self.is_file_empty && self.entries.len() == 1 {
            write_epochs_unsynced(&self.path, &self.entries)?;
            self.is_unsynced = true;
            self.written();
        }
        self.save()
    }

    fn written(&mut self) {
        self.changed = false;
        self.is_file_empty = self.entries.is_empty();
    }

    /// True when the file still needs a flush.
    pub(crate) fn is_unsynced(&self) -> bool {
        self.is_unsynced
    }

    /// Flushes the file. That needs no disk space.
    pub(crate) fn sync(&mut self) -> Result<()> {
        files::sync_in_place(&self.path)?;
        self.is_unsynced = false;
        Ok(())
    }
}

/// True when epochs and offsets both rise and are at least 0.
pub(crate) fn rises(entries: &[(i32, i64)]) -> bool {
    let from_zero = entries.iter().all(|(epoch, start)| *epoch >= 0 && *start >= 0);
    from_zero
        && entries
            .windows(2)
            .all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Broken if it failed: a follower would truncate at a wrong offset, and two logs would differ.
    #[test]
    fn end_offsets() {
        let dir = tempfile::tempdir().unwrap();
        let mut epochs = LeaderEpochs::load(dir.path()).unwrap();
        assert_eq!(epochs.end_offset(0, 10), None);
        for (epoch, offset) in [(2, 6), (3, 7), (5, 9)] {
            assert!(epochs.assign(epoch, offset));
        }
        assert!(!epochs.assign(4, 20) && !epochs.assign(-1, 20) && !epochs.assign(5, 20));
        // As in Kafka: for an epoch before the first, the epoch that was asked for is returned.
        assert_eq!(epochs.end_offset(1, 100), Some((1, 6)));
        assert_eq!(epochs.end_offset(-2, 100), Some((-2, 6)));
        assert_eq!(epochs.end_offset(-1, 100), None);
        assert_eq!(epochs.end_offset(2, 100), Some((2, 7)));
        assert_eq!(epochs.end_offset(4, 100), Some((3, 9)));
        assert_eq!(epochs.end_offset(5, 100), Some((5, 100)));
        assert_eq!(epochs.end_offset(6, 100), None);
        assert_eq!(epochs.epoch_of(8), Some(3));
        assert_eq!(epochs.epoch_of(5), None);

        epochs.save().unwrap();
        let reloaded = LeaderEpochs::load(dir.path()).unwrap();
        assert_eq!(reloaded.entries, [(2, 6), (3, 7), (5, 9)]);
    }

    #[test]
    fn truncation() {
        let dir = tempfile::tempdir().unwrap();
        let mut epochs = LeaderEpochs::load(dir.path()).unwrap();
        for (epoch, offset) in [(2, 6), (3, 7), (5, 9)] {
            epochs.assign(epoch, offset);
        }
        epochs.truncate_from_start(5);
        assert_eq!(epochs.entries, [(2, 6), (3, 7), (5, 9)]);
        epochs.truncate_from_start(8);
        assert_eq!(epochs.entries, [(3, 8), (5, 9)]);
        epochs.truncate_from_end(9);
        assert_eq!(epochs.entries, [(3, 8)]);
        // A leader that wrote nothing leaves no entry once another leader writes at its offset.
        epochs.assign(7, 20);
        epochs.assign(8, 20);
        assert_eq!(epochs.entries, [(3, 8), (8, 20)]);
    }

    // Broken if it failed: readers of epochs would wait for the disk with a thread that saves them.
    #[test]
    fn a_change_keeps_no_reader_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let shared = SharedEpochs::new(LeaderEpochs::load(dir.path()).unwrap());
        shared.change(|epochs| {
            assert!(epochs.assign(3, 10));
            let known = shared.epochs.try_read().expect("no writer holds the lock");
            assert_eq!(known.latest(), None);
        });
        assert_eq!(shared.read().latest(), Some(3));
    }

    // Broken if it failed: a damaged file would stop the log from opening.
    #[test]
    fn damage_counts_as_empty() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["rubbish", "0\n2\n3 5\n2 9\n", "0\n1\n-3 0\n"] {
            std::fs::write(dir.path().join(LEADER_EPOCH_FILE), text).unwrap();
            assert_eq!(LeaderEpochs::load(dir.path()).unwrap().latest(), None);
        }
    }
}
