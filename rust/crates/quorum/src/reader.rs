//! What was agreed on, entry by entry, for one who applies it.

use std::io;

use crate::delivery::Delivery;
use crate::entry::Command;
use crate::machine::{Data, Snapshot, Snapshots, Told};
use crate::member::Member;
use crate::store::DiskReader;
use crate::types::{Entry, LogId, Membership, Payload, Types};

/// How far one who applies entries has come.
#[derive(Debug, Default)]
pub struct Reader {
    next: u64,
    delivery: Delivery,
}

/// What there is to apply.
#[derive(Debug)]
pub enum Delivered<D: Data> {
    /// Forget everything and begin with this. What this member proposed and is in it is not told of one by one.
    Install(Snapshot<D>),
    /// Entries, in order, without a hole.
    Entries(Vec<DeliveredEntry>),
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveredEntry {
    pub log_id: LogId,
    /// The clock of who proposed the commands, in milliseconds since 1970; 0 without commands.
    pub time_ms: i64,
    /// Those that count.
    pub commands: Vec<Counted>,
    /// Who is a member from here on.
    pub membership: Option<Membership>,
}

/// A command that counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted {
    pub command: Command,
    /// Proposed by this member since it started: somebody may wait for what comes of it.
    pub mine: bool,
}

impl Reader {
    /// The index of the entry that is delivered next.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Of the commands that were delivered, the last of each member that counted: a part of a snapshot that is made of what was
    /// delivered.
    pub fn delivery(&self) -> &Delivery {
        &self.delivery
    }

    /// What comes next, about `max_bytes` at most; `None` when there is nothing now. The feed wakes when there is more.
    ///
    /// Errors: the disk's.
    pub async fn take<C: Types, R: DiskReader, S: Snapshots>(
        &mut self,
        member: &Member<C, R, S>,
        max_bytes: usize,
    ) -> io::Result<Option<Delivered<S::Data>>> {
        let read = loop {
            let before = match member.feed().look(self.next) {
                None => return Ok(None),
                Some(Told::Entries { before }) => before,
                Some(Told::Install(snapshot)) => {
                    self.next = snapshot.meta.last_log_id.map_or(0, |last| last.index + 1);
                    self.delivery = member.snapshots().delivery(&snapshot.snapshot);
                    member.proposals().delivered_up_to(&self.delivery);
                    return Ok(Some(Delivered::Install(snapshot)));
                }
            };
            let read = member.store().read(self.next, before, Some(max_bytes));
            let gone = match read.await {
                Ok(read) => match read.first() {
                    Some(entry) if entry.log_id.index == self.next => break read,
                    _ => io::Error::other(format!(
                        "entry {}, which was agreed on, is not in the log",
                        self.next
                    )),
                },
                Err(error) => error,
            };
            // A snapshot that came meanwhile may have taken their place, of which the feed was told before they went.
            if !member.feed().has_installed() {
                return Err(gone);
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

/// What there is to apply of an entry, after all those before it.
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
            delivery.keep_members_of(&membership);
            delivered.membership = Some(membership);
        }
    }
    delivered
}
