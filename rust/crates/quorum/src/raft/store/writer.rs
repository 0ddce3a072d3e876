//! Brings changes of the log and the vote to disk, in the order in which they were made.
//!
//! While the disk is busy, changes collect. Appends that collected are flushed together, which is the group
//! commit.
//!
//! After an error the disk is not used again, because its content is no longer known. Every later change gets
//! an error.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use openraft::storage::IOFlushed;
use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;

use super::disk::Disk;
use super::tail::Tail;
use super::{Shared, closed};
use crate::flushes::{Flush, Written, now_ms};
use crate::raft::entry;
use crate::raft::types::{Entry, LogId, Payload, Types, Vote};

/// The most bytes of entries that are brought to disk together, approximately.
const GROUP_BYTES: usize = 4 << 20;

/// A change for the disk.
pub enum Change<C: Types> {
    Append(Appended<C>),
    Truncate(Option<LogId>, Reply),
    Purge(LogId, Reply),
    Vote(Vote, Reply),
}

/// Entries that follow the last.
pub struct Appended<C: Types> {
    pub entries: Vec<Entry>,
    /// Called when they are on disk.
    pub flushed: IOFlushed<C>,
    /// This machine's clock when they were appended, in milliseconds since 1970.
    pub appended_ms: i64,
}

/// Receives the outcome when a change is on disk.
pub type Reply = oneshot::Sender<io::Result<()>>;

/// The disk of a writer.
pub(super) struct DiskSlot<D> {
    /// `None` once the writer has given it back.
    disk: Option<D>,
    /// The error after which the disk is not used.
    failed: Option<String>,
}

impl<D: Disk> DiskSlot<D> {
    pub(super) fn new(disk: D) -> Self {
        Self {
            disk: Some(disk),
            failed: None,
        }
    }

    fn attempt(&mut self, work: impl FnOnce(&mut D) -> io::Result<()>) -> io::Result<()> {
        if let Some(before) = &self.failed {
            return Err(io::Error::other(format!(
                "the disk of the ensemble's log failed before: {before}"
            )));
        }
        let disk = self.disk.as_mut().ok_or_else(closed)?;
        work(disk).inspect_err(|error| self.failed = Some(error.to_string()))
    }
}

/// A disk that the appending thread writes itself.
pub(super) trait WriteNow: Send + Sync {
    /// Writes and flushes entries that follow the last. Returns how long the flush took.
    fn write_now(&self, entries: &[Entry]) -> io::Result<Duration>;
}

impl<D: Disk> WriteNow for Mutex<DiskSlot<D>> {
    fn write_now(&self, entries: &[Entry]) -> io::Result<Duration> {
        let mut slot = self.lock();
        slot.attempt(|disk| disk.append(entries))?;
        let began = Instant::now();
        slot.attempt(Disk::flush)?;
        Ok(began.elapsed())
    }
}

/// Brings changes to its disk. [`Writer::run`] does so on a thread of its own until all stores are dropped.
pub struct Writer<C: Types, D, R> {
    slot: Arc<Mutex<DiskSlot<D>>>,
    changes: UnboundedReceiver<Change<C>>,
    shared: Arc<Shared<R>>,
}

impl<C: Types, D: Disk, R> Writer<C, D, R> {
    pub(super) fn new(
        slot: Arc<Mutex<DiskSlot<D>>>,
        changes: UnboundedReceiver<Change<C>>,
        shared: Arc<Shared<R>>,
    ) -> Self {
        Self {
            slot,
            changes,
            shared,
        }
    }

    /// Works until all stores are dropped, and gives the disk back.
    pub fn run(mut self) -> Option<D> {
        while let Some(first) = self.changes.blocking_recv() {
            let group = self.group(first);
            self.perform(group);
        }
        self.slot.lock().disk.take()
    }

    /// Waits for changes. Returns those that are there, up to the size of a group; `None` once all stores are
    /// dropped.
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

    /// Brings changes to disk in their order, and reports each.
    pub fn perform(&mut self, group: Vec<Change<C>>) {
        let mut appended = Vec::new();
        for change in group {
            if !matches!(change, Change::Append(_)) {
                self.flush(&mut appended);
            }
            match change {
                Change::Append(append) => {
                    let result = self.attempt(|disk| disk.append(&append.entries));
                    appended.push((append, result));
                }
                Change::Truncate(last, reply) => {
                    let result = self.attempt(|disk| disk.truncate_after(last));
                    self.report(reply, result, |tail| tail.truncated_after(last));
                }
                Change::Purge(up_to, reply) => {
                    let result = self.attempt(|disk| disk.purge(up_to));
                    self.report(reply, result, |tail| tail.purged_up_to(up_to));
                }
                Change::Vote(vote, reply) => {
                    let result = self.attempt(|disk| disk.save_vote(&vote));
                    self.report(reply, result, |tail| tail.vote = Some(vote));
                }
            }
        }
        self.flush(&mut appended);
    }

    fn flush(&mut self, appended: &mut Vec<(Appended<C>, io::Result<()>)>) {
        if appended.is_empty() {
            return;
        }
        let began = Instant::now();
        let flushed = self.attempt(Disk::flush);
        if flushed.is_ok() {
            let entries = appended.iter().flat_map(|(append, _)| {
                let each = append.entries.iter();
                each.map(|entry| (entry, append.appended_ms))
            });
            self.shared.flushes.put(Flush {
                took: began.elapsed(),
                entries: measured(entries),
            });
        }
        for (append, written) in appended.drain(..) {
            let result = match (&flushed, written) {
                (Ok(()), Ok(())) => Ok(()),
                (_, Err(error)) => Err(error),
                (Err(error), Ok(())) => Err(io::Error::new(error.kind(), error.to_string())),
            };
            let mut state = self.shared.state.lock();
            state.queued -= 1;
            if result.is_ok() {
                let last = append.entries.last().map(|entry| entry.log_id);
                state.tail.flushed_up_to(last);
            }
            drop(state);
            append.flushed.io_completed(result);
        }
    }

    fn report(&self, reply: Reply, result: io::Result<()>, note: impl FnOnce(&mut Tail)) {
        let mut state = self.shared.state.lock();
        state.queued -= 1;
        if result.is_ok() {
            note(&mut state.tail);
        }
        drop(state);
        // Nothing waits for it any more when openraft has stopped.
        let _ = reply.send(result);
    }

    fn attempt(&mut self, work: impl FnOnce(&mut D) -> io::Result<()>) -> io::Result<()> {
        self.slot.lock().attempt(work)
    }
}

/// The measurements of entries that are on disk now. Each entry comes with the time when it was appended.
pub(super) fn measured<'a>(entries: impl Iterator<Item = (&'a Entry, i64)>) -> Vec<Written> {
    let on_disk_ms = now_ms();
    let measured = entries.filter_map(|(entry, appended_ms)| match &entry.payload {
        Payload::Normal(commands) => Some(Written {
            commands: commands.count(),
            time_ms: commands.time_ms(),
            appended_ms,
            on_disk_ms,
        }),
        _ => None,
    });
    measured.collect()
}

fn size<C: Types>(change: &Change<C>) -> usize {
    match change {
        Change::Append(append) => append.entries.iter().map(entry::size_bound).sum(),
        _ => 0,
    }
}
