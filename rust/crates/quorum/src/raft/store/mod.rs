//! The log and the vote of one member, as openraft wants them: entries are readable at once, and reported as
//! flushed once they are on disk.
//!
//! [`LogStore`] keeps the end of the log in memory and passes every change, in order, to a [`Writer`], which
//! has a thread for the disk. The order also puts a vote on disk before any entry of its term.
//!
//! On a memory file system, the appending thread writes small entries itself. There a flush takes no time,
//! and waking the writer's thread would take longer than the write.

mod disk;
mod tail;
mod writer;

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use futures_util::{Stream, stream};
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::{LogState, OptionalSend, RaftLogReader};
use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

pub use self::disk::{Disk, DiskReader, DiskState};
use self::tail::{Tail, next_index};
pub use self::writer::{Appended, Change, Reply, Writer};
use self::writer::{DiskSlot, WriteNow, measured};
use super::entry;
use super::types::{Entry, LogId, Types, Vote};
use crate::flushes::{Flush, Flushes, now_ms};

/// The most bytes of one read, unless a single entry has more.
const READ_BYTES: usize = 1 << 20;
/// Larger appends go to the writer's thread even on a memory file system.
const WRITE_NOW_BYTES: usize = 16 << 10;

/// The log and the vote of one member. A clone is another reader of the same.
pub struct LogStore<C: Types, R> {
    shared: Arc<Shared<R>>,
    changes: UnboundedSender<Change<C>>,
    /// The disk, if its files are in memory.
    memory: Option<Arc<dyn WriteNow>>,
}

impl<C: Types, R> Clone for LogStore<C, R> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            changes: self.changes.clone(),
            memory: self.memory.clone(),
        }
    }
}

struct Shared<R> {
    state: Mutex<State>,
    reader: R,
    /// [`DiskState::committed`].
    committed: Option<LogId>,
    flushes: Arc<Flushes>,
}

struct State {
    tail: Tail,
    /// Changes that the writer has not finished.
    queued: usize,
}

/// Opens the log of a disk. Changes reach the disk once the writer runs.
pub fn open<C: Types, D: Disk, R: DiskReader>(
    disk: D,
    reader: R,
    state: DiskState,
) -> (LogStore<C, R>, Writer<C, D, R>) {
    let (sender, receiver) = unbounded_channel();
    let shared = Arc::new(Shared {
        state: Mutex::new(State {
            tail: Tail::new(&state),
            queued: 0,
        }),
        reader,
        committed: state.committed,
        flushes: Arc::default(),
    });
    let is_memory = disk.is_memory();
    let slot = Arc::new(Mutex::new(DiskSlot::new(disk)));
    let store = LogStore {
        shared: shared.clone(),
        changes: sender,
        memory: is_memory.then(|| slot.clone() as Arc<dyn WriteNow>),
    };
    (store, Writer::new(slot, receiver, shared))
}

impl<C: Types, R> LogStore<C, R> {
    /// The measurements of the disk.
    pub fn flushes(&self) -> Arc<Flushes> {
        self.shared.flushes.clone()
    }

    /// Hands a change to the writer, behind the earlier ones.
    fn queue(&self, state: &mut State, change: Change<C>) -> io::Result<()> {
        state.queued += 1;
        self.changes.send(change).map_err(|_| closed())
    }

    async fn change(&self, change: impl FnOnce(Reply) -> Change<C>) -> io::Result<()> {
        let (reply, replied) = oneshot::channel();
        self.queue(&mut self.shared.state.lock(), change(reply))?;
        replied.await.map_err(|_| closed())?
    }
}

impl<C: Types, R: DiskReader> LogStore<C, R> {
    /// Writes to disk what is known to be committed. Blocks.
    pub fn write_committed(&self) {
        self.shared.reader.write_committed();
    }

    /// Entries from index `from` on and before index `before`: all that are there, or with `max_bytes` the
    /// first and more up to this size. Entries that were purged are left out.
    pub async fn read(&self, from: u64, before: u64, max_bytes: Option<usize>) -> io::Result<Vec<Entry>> {
        let limit = max_bytes.unwrap_or(usize::MAX);
        let (mut entries, mut bytes) = (Vec::new(), 0);
        let mut next = from;
        loop {
            let on_disk_before = {
                let state = self.shared.state.lock();
                let tail = &state.tail;
                next = next.max(next_index(tail.purged));
                let end = before.min(tail.next());
                if next >= end {
                    return Ok(entries);
                }
                if next >= tail.start() {
                    for entry in tail.entries_from(next) {
                        let size = entry::size_bound(entry);
                        if next >= end || (!entries.is_empty() && bytes + size > limit) {
                            break;
                        }
                        bytes += size;
                        next += 1;
                        entries.push(entry.clone());
                    }
                    return Ok(entries);
                }
                end.min(tail.start())
            };
            let wanted = READ_BYTES.min(limit - bytes.min(limit));
            let read = self.shared.reader.read(next, on_disk_before, wanted).await?;
            let Some(last) = read.last() else {
                return Err(io::Error::other(format!(
                    "the log lacks entry {next}, which was written: another program changed its files"
                )));
            };
            next = last.log_id.index + 1;
            bytes += read.iter().map(entry::size_bound).sum::<usize>();
            entries.extend(read);
            if bytes >= limit {
                return Ok(entries);
            }
        }
    }
}

/// The first index of a range, and the first after it.
fn bounds(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let from = match range.start_bound() {
        Bound::Included(index) => *index,
        Bound::Excluded(index) => index.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let before = match range.end_bound() {
        Bound::Included(index) => index.saturating_add(1),
        Bound::Excluded(index) => *index,
        Bound::Unbounded => u64::MAX,
    };
    (from, before)
}

fn closed() -> io::Error {
    io::Error::other("the log of the ensemble is closed")
}

impl<C: Types, R: DiskReader> RaftLogReader<C> for LogStore<C, R> {
    async fn try_get_log_entries<B: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: B,
    ) -> io::Result<Vec<Entry>> {
        let (from, before) = bounds(&range);
        self.read(from, before, None).await
    }

    async fn entries_stream<B>(&mut self, range: B) -> impl Stream<Item = io::Result<Entry>> + OptionalSend
    where
        B: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (from, before) = bounds(&range);
        let begin = (self.clone(), from, VecDeque::new());
        // One read at a time is in memory, however long the range is.
        let entries = stream::try_unfold(begin, move |(store, next, mut at_hand)| async move {
            if at_hand.is_empty() {
                at_hand = store.read(next, before, Some(READ_BYTES)).await?.into();
            }
            let Some(entry): Option<Entry> = at_hand.pop_front() else {
                return Ok(None);
            };
            let next = entry.log_id.index + 1;
            Ok(Some((entry, (store, next, at_hand))))
        });
        Box::pin(entries)
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.shared.state.lock().tail.vote)
    }

    async fn limited_get_log_entries(&mut self, from: u64, before: u64) -> io::Result<Vec<Entry>> {
        self.read(from, before, Some(READ_BYTES)).await
    }
}

impl<C: Types, R: DiskReader> RaftLogStorage<C> for LogStore<C, R> {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<C>> {
        let state = self.shared.state.lock();
        Ok(LogState {
            last_purged_log_id: state.tail.purged,
            last_log_id: state.tail.last,
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        if let Some(last) = committed {
            self.shared.reader.note_committed(last);
        }
        Ok(())
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        Ok(self.shared.committed)
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        self.change(|reply| Change::Vote(*vote, reply)).await
    }

    async fn append<I>(&mut self, entries: I, flushed: IOFlushed<C>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<Entry> = entries.into_iter().collect();
        let mut state = self.shared.state.lock();
        for entry in &entries {
            let next = state.tail.next();
            if entry.log_id.index != next {
                return Err(io::Error::other(format!(
                    "entry {} was to be appended, and the next index of the log is {next}",
                    entry.log_id
                )));
            }
            state.tail.push(entry.clone());
        }
        let appended_ms = now_ms();
        // The lock is held until the entries are written or queued: the disk's order is the order in which
        // they became readable.
        if state.queued == 0
            && let Some(memory) = &self.memory
            && entries.iter().map(entry::size_bound).sum::<usize>() <= WRITE_NOW_BYTES
        {
            let written = memory.write_now(&entries);
            if let Ok(took) = written {
                state.tail.flushed_up_to(entries.last().map(|entry| entry.log_id));
                let entries = measured(entries.iter().map(|entry| (entry, appended_ms)));
                self.shared.flushes.put(Flush { took, entries });
            }
            drop(state);
            flushed.io_completed(written.map(|_| ()));
            return Ok(());
        }
        let appended = Appended {
            entries,
            flushed,
            appended_ms,
        };
        self.queue(&mut state, Change::Append(appended))
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        self.change(|reply| Change::Truncate(last, reply)).await
    }

    async fn purge(&mut self, up_to: LogId) -> io::Result<()> {
        self.change(|reply| Change::Purge(up_to, reply)).await
    }
}
