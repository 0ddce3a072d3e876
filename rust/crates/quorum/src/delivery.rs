//! Each command counts once, in the order in which its member proposed it.
//!
//! A member proposes again what it has not seen agreed on, so a command may be in the log more than once, and after one that
//! was proposed later. What counts is decided when it is delivered, by everybody alike: of each member the command that follows the
//! last that counted, and after a new start of that member the first. Everything else is passed over.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Buf, BufMut, Bytes, TryGetError};

use crate::entry::Command;
use crate::members::nobody_yet;
use crate::types::{MemberId, Membership, server_of};

/// Below a member's start number stands the command's own.
const SEQUENCE_BITS: u32 = 40;

/// The ticket of a member's `sequence`-th command since its `start`-th start.
pub const fn ticket(start: u32, sequence: u64) -> u64 {
    ((start as u64) << SEQUENCE_BITS) | sequence
}

const fn sequence(ticket: u64) -> u64 {
    ticket & ((1 << SEQUENCE_BITS) - 1)
}

/// The last command of each member that counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delivery {
    last: BTreeMap<MemberId, u64>,
}

impl Delivery {
    /// Whether a command counts, which it does once.
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

    /// Notes one that counted.
    pub(crate) fn note(&mut self, member: MemberId, ticket: u64) {
        self.last.insert(member, ticket);
    }

    /// The ticket of a member's last command that counted.
    pub fn last(&self, member: MemberId) -> Option<u64> {
        self.last.get(&member).copied()
    }

    /// Forgets who can be a member no more: another directory of its server is. One that was removed may come back, and goes on
    /// with its tickets.
    pub fn keep_members_of(&mut self, membership: &Membership) {
        let nodes = membership.nodes().map(|(id, _)| (*id, server_of(*id)));
        let seen = nodes.filter(|(id, server)| *id != nobody_yet(*server));
        let servers: BTreeSet<u16> = seen.map(|(_, server)| server).collect();
        let stays = |id: &MemberId| membership.get_node(id).is_some() || !servers.contains(&server_of(*id));
        self.last.retain(|id, _| stays(id));
    }

    /// Appends its bytes: u32 count, each u64 member, u64 ticket.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(self.last.len() as u32);
        for (member, ticket) in &self.last {
            out.put_u64(*member);
            out.put_u64(*ticket);
        }
    }

    /// Takes one from the front of `bytes`.
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

    #[test]
    fn what_came_before_its_predecessor_or_again_is_passed_over() {
        let mut delivery = Delivery::default();
        assert!(!counted(&mut delivery, 1, 1));
        assert!(counted(&mut delivery, 1, 0));
        assert!(!counted(&mut delivery, 1, 2));
        assert!(counted(&mut delivery, 1, 1));
        assert!(!counted(&mut delivery, 1, 0));
        assert!(!counted(&mut delivery, 1, 1));
        assert!(counted(&mut delivery, 1, 2));
    }

    #[test]
    fn a_new_start_begins_with_its_first_and_ends_the_old() {
        let mut delivery = Delivery::default();
        assert!(counted(&mut delivery, 1, 0));
        assert!(!counted(&mut delivery, 2, 1));
        assert!(counted(&mut delivery, 2, 0));
        assert!(!counted(&mut delivery, 1, 1));
        assert!(counted(&mut delivery, 2, 1));
        // One start that came to nothing is no hole.
        assert!(counted(&mut delivery, 4, 0));
    }

    #[test]
    fn its_bytes_come_back() {
        let mut delivery = Delivery::default();
        counted(&mut delivery, 7, 0);
        let mut bytes = Vec::new();
        delivery.encode(&mut bytes);
        assert_eq!(Delivery::decode(&mut bytes.into()).unwrap(), delivery);
    }
}
