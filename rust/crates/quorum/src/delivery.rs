//! Decides which commands in the log count: each once, in the order in which its member proposed it.
//!
//! A member proposes a command again until it sees it committed. The log may therefore contain a command
//! several times, and after a later one. Every member decides alike when it reads the log. A member's next
//! command counts if its ticket follows the last that counted, or if it is the first after a new start of
//! that member. All others are skipped.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Buf, BufMut, Bytes, TryGetError};

use crate::commands::Command;
use crate::servers::{MemberId, placeholder, server_of};

/// A ticket has the member's start number above these bits, and in them the number of the command since that
/// start.
const SEQUENCE_BITS: u32 = 40;

/// The ticket of a member's command number `sequence` since its start number `start`.
pub const fn ticket(start: u32, sequence: u64) -> u64 {
    ((start as u64) << SEQUENCE_BITS) | sequence
}

const fn sequence(ticket: u64) -> u64 {
    ticket & ((1 << SEQUENCE_BITS) - 1)
}

/// The ticket of each member's last command that counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delivery {
    last: BTreeMap<MemberId, u64>,
}

impl Delivery {
    /// Whether the next command of the log counts. If it does, this is noted.
    pub fn counts(&mut self, command: &Command) -> bool {
        let ticket = command.ticket;
        let counts = match self.last.get(&command.member) {
            Some(last) if ticket >> SEQUENCE_BITS == last >> SEQUENCE_BITS => ticket == last + 1,
            Some(last) => ticket > *last && sequence(ticket) == 0,
            None => sequence(ticket) == 0,
        };
        if counts {
            self.last.insert(command.member, ticket);
        }
        counts
    }

    /// Notes a command that is known to count.
    pub(crate) fn note(&mut self, member: MemberId, ticket: u64) {
        self.last.insert(member, ticket);
    }

    /// The ticket of a member's last command that counted.
    pub fn last(&self, member: MemberId) -> Option<u64> {
        self.last.get(&member).copied()
    }

    /// Forgets a member when another member of its server took its place. A removed member stays: it may come
    /// back, and then goes on with its tickets.
    pub fn keep_members<'a>(&mut self, members: impl Iterator<Item = &'a MemberId>) {
        let members: BTreeSet<MemberId> = members.copied().collect();
        let seen = members.iter().filter(|id| **id != placeholder(server_of(**id)));
        let servers: BTreeSet<u16> = seen.map(|id| server_of(*id)).collect();
        self.last
            .retain(|id, _| members.contains(id) || !servers.contains(&server_of(*id)));
    }

    /// Appends its bytes: u32 count, each u64 member, u64 ticket.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(self.last.len() as u32);
        for (member, ticket) in &self.last {
            out.put_u64(*member);
            out.put_u64(*ticket);
        }
    }

    /// Takes its bytes from the front of `bytes`.
    pub fn decode(bytes: &mut Bytes) -> Result<Self, TryGetError> {
        let mut last = BTreeMap::new();
        for _ in 0..bytes.try_get_u32()? {
            last.insert(bytes.try_get_u64()?, bytes.try_get_u64()?);
        }
        Ok(Self { last })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(delivery: &mut Delivery, start: u32, sequence: u64) -> bool {
        delivery.counts(&Command {
            member: 1,
            ticket: ticket(start, sequence),
            body: Bytes::new(),
        })
    }

    /// If this failed, a command that was sent twice would be applied twice, or two of a client out of order.
    #[test]
    fn a_command_counts_once_and_after_its_predecessor() {
        let mut delivery = Delivery::default();
        assert!(!counted(&mut delivery, 1, 1));
        assert!(counted(&mut delivery, 1, 0));
        assert!(!counted(&mut delivery, 1, 2));
        assert!(counted(&mut delivery, 1, 1));
        assert!(!counted(&mut delivery, 1, 0));
        assert!(!counted(&mut delivery, 1, 1));
        assert!(counted(&mut delivery, 1, 2));
    }

    /// If this failed, a member that was restarted could propose nothing, or a late command of its old life
    /// would count.
    #[test]
    fn a_new_start_begins_with_its_first_command_and_ends_the_old_one() {
        let mut delivery = Delivery::default();
        assert!(counted(&mut delivery, 1, 0));
        assert!(!counted(&mut delivery, 2, 1));
        assert!(counted(&mut delivery, 2, 0));
        assert!(!counted(&mut delivery, 1, 1));
        assert!(counted(&mut delivery, 2, 1));
        // A start that proposed nothing leaves no gap.
        assert!(counted(&mut delivery, 4, 0));
    }

    /// If this failed, a member that starts from a snapshot would apply commands again.
    #[test]
    fn its_bytes_are_read_back() {
        let mut delivery = Delivery::default();
        counted(&mut delivery, 7, 0);
        let mut bytes = Vec::new();
        delivery.encode(&mut bytes);
        assert_eq!(Delivery::decode(&mut bytes.into()).unwrap(), delivery);
    }
}
