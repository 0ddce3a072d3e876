//! A disk that loses what was not flushed, or some of it, and its owner's snapshots.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use logcore_quorum::delivery::Delivery;
use logcore_quorum::machine::{Snapshot, Snapshots};
use logcore_quorum::store::{Disk, DiskReader, Found};
use logcore_quorum::types::{Entry, LogId, Vote};
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
    /// Not flushed.
    committed: Option<LogId>,
}

/// One machine's disk; it outlives its members' lives.
#[derive(Clone, Default)]
pub(crate) struct MemoryDisk(Arc<Mutex<Platter>>);

impl MemoryDisk {
    pub(crate) fn found(&self) -> Found {
        let platter = self.0.lock();
        let last = platter.entries.values().next_back().map(|entry| entry.log_id);
        Found {
            vote: platter.vote,
            purged: platter.purged,
            last: last.or(platter.purged),
            committed: platter.committed.filter(|id| {
                let there = platter.entries.get(&id.index);
                there.is_some_and(|entry| entry.log_id == *id)
            }),
        }
    }

    /// The power is lost: of what was not flushed, the first few entries are there, or none.
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
            assert_eq!(index, next, "a log has no holes");
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
        // About a hundred bytes each.
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
