//! A disk in memory that loses what was not flushed, or some of it. It also has the member's snapshots.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use logcore_quorum::delivery::Delivery;
use logcore_quorum::raft::state_machine::Snapshots;
use logcore_quorum::raft::store::{Disk, DiskReader, DiskState};
use logcore_quorum::raft::types::{Entry, LogId, Snapshot, Vote};
use parking_lot::Mutex;

use crate::history::Model;
use crate::support::random::Random;

#[derive(Default)]
pub(crate) struct Platter {
    entries: BTreeMap<u64, Entry>,
    /// Entries from this index on are not on disk yet.
    unflushed: Option<u64>,
    purged: Option<LogId>,
    vote: Option<Vote>,
    snapshot: Option<Snapshot<Arc<Model>>>,
    /// A note that is never flushed.
    committed: Option<LogId>,
}

/// One machine's disk. It stays when its member crashes.
#[derive(Clone, Default)]
pub(crate) struct MemoryDisk(Arc<Mutex<Platter>>);

impl MemoryDisk {
    pub(crate) fn state(&self) -> DiskState {
        let platter = self.0.lock();
        let last = platter.entries.values().next_back().map(|entry| entry.log_id);
        DiskState {
            vote: platter.vote,
            purged: platter.purged,
            last: last.or(platter.purged),
            committed: platter.committed.filter(|id| {
                let found = platter.entries.get(&id.index);
                found.is_some_and(|entry| entry.log_id == *id)
            }),
        }
    }

    /// Loses the power. Of the entries that were not flushed, the first few stay, or none.
    pub(crate) fn lose_power(&self, random: &mut Random) {
        let mut platter = self.0.lock();
        if random.between(0, 1) == 0 {
            platter.committed = None;
        }
        let Some(from) = platter.unflushed.take() else {
            return;
        };
        let count = platter.entries.range(from..).count();
        let kept = random.between(0, count) as u64;
        platter.entries.split_off(&(from + kept));
    }

    pub(crate) fn save_snapshot(&self, snapshot: Snapshot<Arc<Model>>) {
        let mut platter = self.0.lock();
        let newer = |kept: &Snapshot<Arc<Model>>| kept.meta.last_log_id < snapshot.meta.last_log_id;
        if platter.snapshot.as_ref().is_none_or(newer) {
            platter.snapshot = Some(snapshot);
        }
    }
}

impl Disk for MemoryDisk {
    fn append(&mut self, entries: &[Entry]) -> io::Result<()> {
        let mut platter = self.0.lock();
        for entry in entries {
            let index = entry.log_id.index;
            let last = platter.entries.keys().next_back().copied();
            let next = last
                .or(platter.purged.map(|id| id.index))
                .map_or(0, |last| last + 1);
            assert_eq!(index, next, "a log has no gaps");
            platter.unflushed.get_or_insert(index);
            platter.entries.insert(index, entry.clone());
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.lock().unflushed = None;
        Ok(())
    }

    fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        let mut platter = self.0.lock();
        platter.entries.split_off(&last.map_or(0, |id| id.index + 1));
        Ok(())
    }

    fn purge(&mut self, up_to: LogId) -> io::Result<()> {
        let mut platter = self.0.lock();
        platter.entries = platter.entries.split_off(&(up_to.index + 1));
        platter.purged = platter.purged.max(Some(up_to));
        Ok(())
    }

    fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        self.0.lock().vote = Some(*vote);
        Ok(())
    }
}

impl DiskReader for MemoryDisk {
    async fn read(&self, from: u64, before: u64, max_bytes: usize) -> io::Result<Vec<Entry>> {
        // An entry has about a hundred bytes.
        let count = (max_bytes / 100).max(1);
        let platter = self.0.lock();
        let range = platter.entries.range(from..before).take(count);
        Ok(range.map(|(_, entry)| entry.clone()).collect())
    }

    fn note_committed(&self, last: LogId) {
        self.0.lock().committed = Some(last);
    }
}

impl Snapshots for MemoryDisk {
    type Data = Arc<Model>;

    fn newest(&self) -> Option<Snapshot<Arc<Model>>> {
        self.0.lock().snapshot.clone()
    }

    fn delivery(&self, model: &Arc<Model>) -> Delivery {
        model.delivery.clone()
    }

    async fn keep(&self, snapshot: &Snapshot<Arc<Model>>) -> io::Result<()> {
        self.save_snapshot(snapshot.clone());
        Ok(())
    }
}
