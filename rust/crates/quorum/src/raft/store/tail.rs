//! The end of the log in memory, and the state of the whole log. Pure.

use std::collections::VecDeque;

use super::disk::DiskState;
use crate::raft::entry;
use crate::raft::types::{Entry, LogId, Vote};

/// Entries that are on disk stay in memory up to this many bytes.
const CACHED_BYTES: usize = 32 << 20;

#[derive(Debug)]
pub(super) struct Tail {
    pub(super) vote: Option<Vote>,
    pub(super) purged: Option<LogId>,
    pub(super) last: Option<LogId>,
    /// The last entries. Those before them are on disk.
    entries: VecDeque<Entry>,
    bytes: usize,
    /// Entries with lower indexes are on disk.
    flushed: u64,
}

pub(super) fn next_index(id: Option<LogId>) -> u64 {
    id.map_or(0, |id| id.index + 1)
}

impl Tail {
    pub(super) fn new(state: &DiskState) -> Self {
        Self {
            vote: state.vote,
            purged: state.purged,
            last: state.last,
            entries: VecDeque::new(),
            bytes: 0,
            flushed: next_index(state.last),
        }
    }

    /// The index of the next entry to append.
    pub(super) fn next(&self) -> u64 {
        next_index(self.last)
    }

    /// The index of the first entry in memory.
    pub(super) fn start(&self) -> u64 {
        self.next() - self.entries.len() as u64
    }

    /// The entries in memory from index `from` on; `from` must not lie before [`Tail::start`].
    pub(super) fn entries_from(&self, from: u64) -> impl Iterator<Item = &Entry> {
        self.entries.iter().skip((from - self.start()) as usize)
    }

    pub(super) fn push(&mut self, entry: Entry) {
        self.last = Some(entry.log_id);
        self.bytes += entry::size_bound(&entry);
        self.entries.push_back(entry);
    }

    fn pop_front(&mut self) {
        if let Some(entry) = self.entries.pop_front() {
            self.bytes -= entry::size_bound(&entry);
        }
    }

    /// Notes that entries up to this one are on disk. The oldest of them leave the memory when there are
    /// many.
    pub(super) fn flushed_up_to(&mut self, last: Option<LogId>) {
        self.flushed = self.flushed.max(next_index(last));
        while self.bytes > CACHED_BYTES && self.start() < self.flushed {
            self.pop_front();
        }
    }

    pub(super) fn truncated_after(&mut self, last: Option<LogId>) {
        let last = last.max(self.purged);
        if self.last <= last {
            return;
        }
        while let Some(entry) = self.entries.pop_back_if(|entry| Some(entry.log_id) > last) {
            self.bytes -= entry::size_bound(&entry);
        }
        self.last = last;
        self.flushed = self.flushed.min(self.next());
    }

    pub(super) fn purged_up_to(&mut self, up_to: LogId) {
        while self.start() <= up_to.index && !self.entries.is_empty() {
            self.pop_front();
        }
        self.purged = self.purged.max(Some(up_to));
        if self.last < self.purged {
            self.last = self.purged;
            self.flushed = self.next();
        }
    }
}
