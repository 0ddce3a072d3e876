//! Reads committed entries one after another, for the task that hands them to the application.

use std::io;

use crate::commands::Command;
use crate::delivery::Delivery;
use crate::raft::member::Member;
use crate::raft::state_machine::{Available, Data, Snapshots};
use crate::raft::store::DiskReader;
use crate::raft::types::{Entry, LogId, Membership, Payload, Snapshot, Types};

/// The position of one application in the log.
#[derive(Debug, Default)]
pub struct Reader {
    next: u64,
    delivery: Delivery,
}

/// What the application is to apply next.
#[derive(Debug)]
pub enum Delivered<D: Data> {
    /// Replace the whole state by this snapshot. Commands of this member that it contains are not delivered
    /// again.
    Install(Snapshot<D>),
    /// Entries in order, without a gap.
    Entries(Vec<DeliveredEntry>),
}

/// One committed entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveredEntry {
    pub log_id: LogId,
    /// The proposer's clock, in milliseconds since 1970; 0 without commands.
    pub time_ms: i64,
    /// The commands that count.
    pub commands: Vec<Counted>,
    /// The membership from this entry on, if it changes.
    pub membership: Option<Membership>,
}

/// A command that counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted {
    pub command: Command,
    /// This member proposed it since its start, so a client of this server may wait for it.
    pub mine: bool,
}

impl Reader {
    /// The index of the next entry to deliver.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The delivery up to here. A snapshot of what was delivered contains it.
    pub fn delivery(&self) -> &Delivery {
        &self.delivery
    }

    /// Returns what comes next, at least one entry and otherwise about `max_bytes`. `None` when nothing is
    /// committed beyond this; the feed wakes the caller when there is more.
    ///
    /// Errors: the disk's.
    pub async fn take<C: Types, R: DiskReader, S: Snapshots>(
        &mut self,
        member: &Member<C, R, S>,
        max_bytes: usize,
    ) -> io::Result<Option<Delivered<S::Data>>> {
        let read = loop {
            let before = match member.feed().available(self.next) {
                None => return Ok(None),
                Some(Available::Entries { before }) => before,
                Some(Available::Install(snapshot)) => {
                    self.next = snapshot.meta.last_log_id.map_or(0, |last| last.index + 1);
                    self.delivery = member.snapshots().delivery(&snapshot.snapshot);
                    member.proposals().delivered_up_to(&self.delivery);
                    return Ok(Some(Delivered::Install(snapshot)));
                }
            };
            let read = member.store().read(self.next, before, Some(max_bytes));
            let error = match read.await {
                Ok(read) => match read.first() {
                    Some(entry) if entry.log_id.index == self.next => break read,
                    _ => io::Error::other(format!("the log lacks the committed entry {}", self.next)),
                },
                Err(error) => error,
            };
            // A snapshot that was installed meanwhile replaces the entries. The feed has it before they are
            // removed.
            if !member.feed().has_installed() {
                return Err(error);
            }
        };
        let mut entries = Vec::new();
        for entry in read {
            self.next = entry.log_id.index + 1;
            let mine = |command: &Command| member.proposals().delivered(command);
            entries.push(deliver(entry, &mut self.delivery, mine));
        }
        Ok(Some(Delivered::Entries(entries)))
    }
}

/// Picks from an entry the commands that count. It must follow the last entry that went into `delivery`.
pub(crate) fn deliver(
    entry: Entry,
    delivery: &mut Delivery,
    mine: impl Fn(&Command) -> bool,
) -> DeliveredEntry {
    let mut delivered = DeliveredEntry {
        log_id: entry.log_id,
        time_ms: 0,
        commands: Vec::new(),
        membership: None,
    };
    match entry.payload {
        Payload::Blank => {}
        Payload::Normal(commands) => {
            delivered.time_ms = commands.time_ms();
            for command in commands.iter() {
                if delivery.counts(&command) {
                    let mine = mine(&command);
                    delivered.commands.push(Counted { command, mine });
                }
            }
        }
        Payload::Membership(membership) => {
            delivery.keep_members(membership.nodes().map(|(id, _)| id));
            delivered.membership = Some(membership);
        }
    }
    delivered
}
