//! What the log needs of a member's disk.

use std::io;

use crate::raft::types::{Entry, LogId, Vote};

/// The disk that a member writes. It is called by one thread at a time, and never again after an error.
pub trait Disk: Send + 'static {
    /// Writes entries that follow the last. They are on disk after [`Disk::flush`].
    fn append(&mut self, entries: &[Entry]) -> io::Result<()>;
    /// Brings to disk what was appended.
    fn flush(&mut self) -> io::Result<()>;
    /// Removes the entries after this one, or all. This is on disk when it returns.
    fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()>;
    /// Removes the entries up to this one. It may lie after the last entry; then the log goes on after it.
    /// This is on disk when it returns.
    fn purge(&mut self, up_to: LogId) -> io::Result<()>;
    /// Replaces the vote. It is on disk when this returns.
    fn save_vote(&mut self, vote: &Vote) -> io::Result<()>;
    /// Whether the files are in memory, so that a flush takes no time.
    fn is_memory(&self) -> bool {
        false
    }
}

/// Reads a [`Disk`] while another thread writes it.
pub trait DiskReader: Send + Sync + 'static {
    /// Entries from index `from` on and before index `before`: the first, whatever its size, and more up to
    /// `max_bytes`.
    fn read(
        &self,
        from: u64,
        before: u64,
        max_bytes: usize,
    ) -> impl Future<Output = io::Result<Vec<Entry>>> + Send;

    /// Notes that entries up to this one are committed. The disk may keep this for [`DiskState::committed`].
    /// Returns at once.
    fn note_committed(&self, _last: LogId) {}

    /// Writes that note. Blocks.
    fn write_committed(&self) {}
}

/// What is on a disk when it is opened.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DiskState {
    pub vote: Option<Vote>,
    /// The last entry that was removed from the log's front.
    pub purged: Option<LogId>,
    /// The last entry; without entries, the one that was removed last.
    pub last: Option<LogId>,
    /// An entry of the log that is known to be committed. It and all before it are applied before there is a
    /// leader.
    pub committed: Option<LogId>,
}
