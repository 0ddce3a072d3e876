//! The log and the vote, as openraft wants them: readable when they are given, on disk when it is said so.
//!
//! [`LogStore`] keeps the log's tail in memory and passes every change on, in order, to whoever owns the disk, a [`Writer`].
//! While the disk is busy changes collect; appends that came together are brought to disk together, which is the group commit.
//! A vote is on disk before anything of its term is, for it stands before it in the queue.
//!
//! Where the disk is quicker than the writer's thread is woken, few entries that nothing stands before are brought there at
//! once, by whoever appends: in a member that is the thread that sends and answers, which would wake the writer's and be woken
//! by it for each of them. One write that waits long for the disk, and the writer's thread has those that follow.
//!
//! A disk that failed once is not asked again: what it has is not known any more. Everything after is answered with that.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::future::Future;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{Stream, stream};
use logcore_storage::disk_pace::{Begun, DiskPace};
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::{LogState, OptionalSend, RaftLogReader};
use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use crate::entry;
use crate::flushes::{Flush, Flushes, Written, now_ms};
use crate::types::{Entry, LogId, Payload, Types, Vote};

/// What is brought to disk at once, in bytes of entries, more or less.
const GROUP_BYTES: usize = 4 << 20;
/// How much of what is on disk stays in memory.
const CACHED_BYTES: usize = 32 << 20;
/// What one answer to a reader has at most, unless one entry has more.
const READ_BYTES: usize = 1 << 20;
/// What is brought to a quick disk at once.
const AT_ONCE_BYTES: usize = 16 << 10;

/// A member's disk. Asked by one at a time; nothing is asked any more after an error.
pub trait Disk: Send + 'static {
    /// Writes entries that follow the last. They are on disk after [`Disk::flush`].
    fn append(&mut self, entries: &[Entry]) -> io::Result<()>;
    /// Brings to disk what was appended.
    fn flush(&mut self) -> io::Result<()>;
    /// Removes the entries after this one, or all; on disk when it returns.
    fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()>;
    /// Removes the entries up to this one, which may lie beyond the last: the log goes on after it. On disk when it returns.
    fn purge(&mut self, up_to: LogId) -> io::Result<()>;
    /// Replaces the vote; on disk when it returns.
    fn save_vote(&mut self, vote: &Vote) -> io::Result<()>;
}

/// Reads what a [`Disk`] has, beside whoever writes.
pub trait DiskReader: Send + Sync + 'static {
    /// Entries from index `from` on, before index `before`: the first, whatever its size, and more up to `max_bytes`.
    fn read(
        &self,
        from: u64,
        before: u64,
        max_bytes: usize,
    ) -> impl Future<Output = io::Result<Vec<Entry>>> + Send;

    /// Entries up to this one are agreed on. It may be kept for [`Found::committed`], or not: a start that does not know waits for a
    /// leader that does. Returns at once.
    fn note_committed(&self, _last: LogId) {}

    /// Writes what was noted of that. Blocks.
    fn settle(&self) {}
}

/// What was found on a disk.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Found {
    pub vote: Option<Vote>,
    /// The last that was removed from the log's front.
    pub purged: Option<LogId>,
    /// The last entry, or what was removed last if there is none.
    pub last: Option<LogId>,
    /// An entry that is there and known to be agreed on, with all those before it: they are applied before there is a leader.
    pub committed: Option<LogId>,
}

/// A change for the disk, in its place among the others.
pub enum Change<C: Types> {
    Append(Appended<C>),
    Truncate(Option<LogId>, Reply),
    Purge(LogId, Reply),
    Vote(Vote, Reply),
}

/// Entries that follow the last.
pub struct Appended<C: Types> {
    pub entries: Vec<Entry>,
    /// Told when they are on disk.
    pub flushed: IOFlushed<C>,
    /// This machine's clock when they came, in milliseconds since 1970.
    pub came_ms: i64,
}

/// Told when a change is on disk.
pub type Reply = oneshot::Sender<io::Result<()>>;

/// The log and the vote of one member. A clone is another reader of the same.
pub struct LogStore<C: Types, R> {
    shared: Arc<Shared<R>>,
    changes: UnboundedSender<Change<C>>,
    disk: Arc<dyn AtOnce>,
}

impl<C: Types, R> Clone for LogStore<C, R> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            changes: self.changes.clone(),
            disk: self.disk.clone(),
        }
    }
}

struct Shared<R> {
    state: Mutex<State>,
    reader: R,
    /// What was found to be agreed on.
    committed: Option<LogId>,
    flushes: Arc<Flushes>,
}

#[derive(Debug)]
struct State {
    vote: Option<Vote>,
    purged: Option<LogId>,
    last: Option<LogId>,
    /// The log's tail. What is before it is on disk.
    tail: VecDeque<Entry>,
    tail_bytes: usize,
    /// Entries with lower indexes are on disk.
    flushed: u64,
    /// Changes that the writer has to bring to disk.
    queued: usize,
}

/// A disk, and what is known of it.
struct Place<D> {
    /// `None` once the writer gave it back.
    disk: Option<D>,
    /// Why nothing is asked of it any more.
    failed: Option<String>,
    pace: DiskPace,
}

impl<D: Disk> Place<D> {
    fn attempt(&mut self, work: impl FnOnce(&mut D) -> io::Result<()>) -> io::Result<()> {
        if let Some(before) = &self.failed {
            return Err(io::Error::other(format!(
                "the disk of the ensemble's log failed before: {before}"
            )));
        }
        let disk = self.disk.as_mut().ok_or_else(stopped)?;
        work(disk).inspect_err(|error| self.failed = Some(error.to_string()))
    }
}

/// A disk that may be so quick that waking the writer's thread takes longer.
trait AtOnce: Send + Sync {
    /// Brings entries to disk that follow the last, if it is quick: how long the flush took.
    fn bring_if_quick(&self, entries: &[Entry]) -> Option<io::Result<Duration>>;
}

impl<D: Disk> AtOnce for Mutex<Place<D>> {
    fn bring_if_quick(&self, entries: &[Entry]) -> Option<io::Result<Duration>> {
        let mut place = self.lock();
        if !place.pace.is_quick() {
            return None;
        }
        let begun = Begun::now();
        let written = place.attempt(|disk| disk.append(entries));
        let flushing = Instant::now();
        let brought = written.and_then(|()| place.attempt(Disk::flush));
        let took = flushing.elapsed();
        place.pace.took(&begun);
        Some(brought.map(|()| took))
    }
}

fn next_index(id: Option<LogId>) -> u64 {
    id.map_or(0, |id| id.index + 1)
}

impl State {
    fn next(&self) -> u64 {
        next_index(self.last)
    }

    fn tail_start(&self) -> u64 {
        self.next() - self.tail.len() as u64
    }

    /// Entries up to this one are on disk.
    fn flushed_up_to(&mut self, last: Option<LogId>) {
        self.flushed = self.flushed.max(next_index(last));
        self.forget_flushed();
    }

    fn push(&mut self, entry: Entry) {
        self.last = Some(entry.log_id);
        self.tail_bytes += entry::size_bound(&entry);
        self.tail.push_back(entry);
    }

    fn pop_front(&mut self) {
        if let Some(entry) = self.tail.pop_front() {
            self.tail_bytes -= entry::size_bound(&entry);
        }
    }

    fn forget_flushed(&mut self) {
        while self.tail_bytes > CACHED_BYTES && self.tail_start() < self.flushed {
            self.pop_front();
        }
    }

    fn truncated_after(&mut self, last: Option<LogId>) {
        let last = last.max(self.purged);
        if self.last <= last {
            return;
        }
        while let Some(entry) = self.tail.pop_back_if(|entry| Some(entry.log_id) > last) {
            self.tail_bytes -= entry::size_bound(&entry);
        }
        self.last = last;
        self.flushed = self.flushed.min(self.next());
    }

    fn purged(&mut self, up_to: LogId) {
        while self.tail_start() <= up_to.index && !self.tail.is_empty() {
            self.pop_front();
        }
        self.purged = self.purged.max(Some(up_to));
        if self.last < self.purged {
            self.last = self.purged;
            self.flushed = self.next();
        }
    }
}

/// Opens the log of what was found on a disk. The writer owns the disk; until it runs, nothing comes to it.
pub fn open<C: Types, D: Disk, R: DiskReader>(
    disk: D,
    reader: R,
    found: Found,
) -> (LogStore<C, R>, Writer<C, D, R>) {
    let (sender, receiver) = unbounded_channel();
    let shared = Arc::new(Shared {
        state: Mutex::new(State {
            vote: found.vote,
            purged: found.purged,
            last: found.last,
            tail: VecDeque::new(),
            tail_bytes: 0,
            flushed: next_index(found.last),
            queued: 0,
        }),
        reader,
        committed: found.committed,
        flushes: Arc::default(),
    });
    let place = Arc::new(Mutex::new(Place {
        disk: Some(disk),
        failed: None,
        pace: DiskPace::default(),
    }));
    let store = LogStore {
        shared: shared.clone(),
        changes: sender,
        disk: place.clone(),
    };
    let writer = Writer {
        place,
        changes: receiver,
        shared,
    };
    (store, writer)
}

impl<C: Types, R> LogStore<C, R> {
    /// What bringing it to disk takes.
    pub fn flushes(&self) -> Arc<Flushes> {
        self.shared.flushes.clone()
    }
}

impl<C: Types, R: DiskReader> LogStore<C, R> {
    /// Has the disk keep what is agreed on; called now and then. Blocks.
    pub fn settle(&self) {
        self.shared.reader.settle();
    }

    /// Entries from index `from` on, before index `before`, as many as there are: all, or with `max_bytes` the first and
    /// more up to so many bytes. What was removed from the log's front is left out.
    pub async fn read(&self, from: u64, before: u64, max_bytes: Option<usize>) -> io::Result<Vec<Entry>> {
        let limit = max_bytes.unwrap_or(usize::MAX);
        let (mut entries, mut bytes) = (Vec::new(), 0);
        let mut next = from;
        loop {
            let on_disk_before = {
                let state = self.shared.state.lock();
                next = next.max(next_index(state.purged));
                let end = before.min(state.next());
                let start = state.tail_start();
                if next >= end || next >= start {
                    for entry in state.tail.iter().skip((next.max(start) - start) as usize) {
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
                end.min(start)
            };
            let wanted = READ_BYTES.min(limit - bytes.min(limit));
            let read = self.shared.reader.read(next, on_disk_before, wanted).await?;
            let Some(last) = read.last() else {
                return Err(io::Error::other(format!(
                    "the log has no entry {next}, which was written: its files were changed by somebody else"
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

    async fn change(&self, change: impl FnOnce(Reply) -> Change<C>) -> io::Result<()> {
        let (reply, replied) = oneshot::channel();
        self.queue(&mut self.shared.state.lock(), change(reply))?;
        replied.await.map_err(|_| stopped())?
    }
}

impl<C: Types, R> LogStore<C, R> {
    /// Has the writer bring a change to disk, behind those before.
    fn queue(&self, state: &mut State, change: Change<C>) -> io::Result<()> {
        state.queued += 1;
        self.changes.send(change).map_err(|_| stopped())
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

fn stopped() -> io::Error {
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
        // However many there are, a few are in memory.
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
        Ok(self.shared.state.lock().vote)
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
            last_purged_log_id: state.purged,
            last_log_id: state.last,
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
            if entry.log_id.index != state.next() {
                return Err(io::Error::other(format!(
                    "entry {} was to be appended to a log that goes on at index {}",
                    entry.log_id,
                    state.next()
                )));
            }
            state.push(entry.clone());
        }
        let came_ms = now_ms();
        // Both in the order in which they came to be readable.
        if state.queued == 0
            && entries.iter().map(entry::size_bound).sum::<usize>() <= AT_ONCE_BYTES
            && let Some(brought) = self.disk.bring_if_quick(&entries)
        {
            if let Ok(took) = brought {
                state.flushed_up_to(entries.last().map(|entry| entry.log_id));
                let entries = measured(entries.iter().map(|entry| (entry, came_ms)));
                self.shared.flushes.put(Flush { took, entries });
            }
            drop(state);
            flushed.io_completed(brought.map(|_| ()));
            return Ok(());
        }
        let appended = Appended {
            entries,
            flushed,
            came_ms,
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

/// Brings changes to the disk it owns. [`Writer::run`] does so on a thread until all stores are gone.
pub struct Writer<C: Types, D, R> {
    place: Arc<Mutex<Place<D>>>,
    changes: UnboundedReceiver<Change<C>>,
    shared: Arc<Shared<R>>,
}

impl<C: Types, D: Disk, R: DiskReader> Writer<C, D, R> {
    /// Works until there is no store any more, and gives the disk back. Once the disk turned out to be quick, it is not asked
    /// to write a few entries.
    pub fn run(mut self) -> Option<D> {
        while let Some(first) = self.changes.blocking_recv() {
            let group = self.group(first);
            // What else is done says nothing of the next append.
            let appends = group.iter().all(|change| matches!(change, Change::Append(_)));
            let begun = Begun::now();
            self.perform(group);
            if appends {
                self.place.lock().pace.took(&begun);
            }
        }
        self.place.lock().disk.take()
    }

    /// Waits for changes: those that are there, about as many as go to disk at once; `None` when there is no store any more.
    pub async fn next(&mut self) -> Option<Vec<Change<C>>> {
        let first = self.changes.recv().await?;
        Some(self.group(first))
    }

    fn group(&mut self, first: Change<C>) -> Vec<Change<C>> {
        let mut bytes = size(&first);
        let mut group = vec![first];
        while bytes < GROUP_BYTES
            && let Ok(change) = self.changes.try_recv()
        {
            bytes += size(&change);
            group.push(change);
        }
        group
    }

    /// Brings changes to disk, one after another, and says so.
    pub fn perform(&mut self, group: Vec<Change<C>>) {
        let mut written = Vec::new();
        for change in group {
            if !matches!(change, Change::Append(_)) {
                self.flush(&mut written);
            }
            match change {
                Change::Append(appended) => {
                    let done = self.attempt(|disk| disk.append(&appended.entries));
                    written.push((appended, done));
                }
                Change::Truncate(last, reply) => {
                    let done = self.attempt(|disk| disk.truncate_after(last));
                    self.tell(reply, done, |state| state.truncated_after(last));
                }
                Change::Purge(up_to, reply) => {
                    let done = self.attempt(|disk| disk.purge(up_to));
                    self.tell(reply, done, |state| state.purged(up_to));
                }
                Change::Vote(vote, reply) => {
                    let done = self.attempt(|disk| disk.save_vote(&vote));
                    self.tell(reply, done, |state| state.vote = Some(vote));
                }
            }
        }
        self.flush(&mut written);
    }

    fn flush(&mut self, written: &mut Vec<(Appended<C>, io::Result<()>)>) {
        if written.is_empty() {
            return;
        }
        let began = Instant::now();
        let done = self.attempt(Disk::flush);
        if done.is_ok() {
            let entries = written.iter().flat_map(|(appended, _)| {
                let each = appended.entries.iter();
                each.map(|entry| (entry, appended.came_ms))
            });
            self.shared.flushes.put(Flush {
                took: began.elapsed(),
                entries: measured(entries),
            });
        }
        for (appended, written) in written.drain(..) {
            let result = match (&done, written) {
                (Ok(()), Ok(())) => Ok(()),
                (_, Err(error)) => Err(error),
                (Err(error), Ok(())) => Err(io::Error::new(error.kind(), error.to_string())),
            };
            let mut state = self.shared.state.lock();
            state.queued -= 1;
            if result.is_ok() {
                state.flushed_up_to(appended.entries.last().map(|entry| entry.log_id));
            }
            drop(state);
            appended.flushed.io_completed(result);
        }
    }

    fn tell(&self, reply: Reply, done: io::Result<()>, note: impl FnOnce(&mut State)) {
        let mut state = self.shared.state.lock();
        state.queued -= 1;
        if done.is_ok() {
            note(&mut state);
        }
        drop(state);
        // Nobody waits for it any more when openraft stops.
        let _ = reply.send(done);
    }

    fn attempt(&mut self, work: impl FnOnce(&mut D) -> io::Result<()>) -> io::Result<()> {
        self.place.lock().attempt(work)
    }
}

/// When entries came, by this machine's clock, that are on disk now: those that have commands.
fn measured<'a>(entries: impl Iterator<Item = (&'a Entry, i64)>) -> Vec<Written> {
    let on_disk_ms = now_ms();
    let measured = entries.filter_map(|(entry, came_ms)| match &entry.payload {
        Payload::Normal(commands) => Some(Written {
            commands: commands.count(),
            time_ms: commands.time_ms(),
            came_ms,
            on_disk_ms,
        }),
        _ => None,
    });
    measured.collect()
}

fn size<C: Types>(change: &Change<C>) -> usize {
    match change {
        Change::Append(appended) => appended.entries.iter().map(entry::size_bound).sum(),
        _ => 0,
    }
}
