//! What was committed in a history, and what must be true of it.
//!
//! - All members apply the same entry at the same index, each index once and in order (state machine safety).
//! - In a term at most one member leads (election safety).
//! - An acknowledged command is at its index. A refused command is nowhere. No command counts twice.
//! - The commands of one member count in their order, without a gap.
//! - A write that began after another was acknowledged comes after it. A read that began after a write was
//!   acknowledged sees it.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use logcore_quorum::delivery::Delivery;
use logcore_quorum::reader::DeliveredEntry;
use logcore_quorum::servers::MemberId;

/// A command's member and ticket.
pub(crate) type Key = (MemberId, u64);

/// The state that a member has applied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Model {
    /// The index of the next entry.
    pub(crate) next: u64,
    /// A hash of everything that was applied, in order.
    pub(crate) digest: u64,
    pub(crate) delivery: Delivery,
}

impl Model {
    pub(crate) fn apply(&mut self, entry: &DeliveredEntry) {
        assert_eq!(
            entry.log_id.index, self.next,
            "entries are applied in order, each once"
        );
        self.next += 1;
        let mut hasher = DefaultHasher::new();
        (self.digest, entry.log_id.leader_id.term, entry.time_ms).hash(&mut hasher);
        for counted in &entry.commands {
            let command = &counted.command;
            (command.member, command.ticket, &command.body).hash(&mut hasher);
        }
        format!("{:?}", entry.membership).hash(&mut hasher);
        self.digest = hasher.finish();
    }
}

#[derive(Debug, Default)]
pub(crate) struct History {
    /// The state after each index, as the first member had it that applied it.
    committed: Vec<(u64, u64)>,
    /// The index of each command.
    index_of: BTreeMap<Key, u64>,
    /// The last command of each member.
    last_of: BTreeMap<MemberId, u64>,
    leaders: BTreeMap<u64, MemberId>,
    acknowledged: BTreeMap<Key, u64>,
    refused: BTreeSet<Key>,
    /// The proposed commands, and the highest index that was acknowledged before each.
    proposed: BTreeMap<Key, u64>,
    highest_acknowledged: u64,
    reads: u64,
}

impl History {
    pub(crate) fn applied(&mut self, member: MemberId, entry: &DeliveredEntry, after: &Model) {
        let index = entry.log_id.index;
        for counted in entry.commands.iter().filter(|counted| counted.mine) {
            let key = (counted.command.member, counted.command.ticket);
            let begun = self.proposed[&key];
            self.acknowledged(key, index, begun);
        }
        let state = (after.next, after.digest);
        if let Some(committed) = self.committed.get(index as usize) {
            assert_eq!(
                *committed, state,
                "member {member} applied something else at {index}: {entry:?}"
            );
            return;
        }
        assert_eq!(
            index,
            self.committed.len() as u64,
            "member {member} skipped entries"
        );
        self.committed.push(state);
        for counted in &entry.commands {
            let key = (counted.command.member, counted.command.ticket);
            let twice = self.index_of.insert(key, index);
            assert_eq!(twice, None, "command {key:?} counts twice");
            self.check_order(key);
        }
    }

    fn check_order(&mut self, (member, ticket): Key) {
        let last = self.last_of.insert(member, ticket);
        let follows = last.is_some_and(|last| ticket == last + 1);
        let begins = ticket.trailing_zeros() >= 40 && last.is_none_or(|last| ticket > last);
        assert!(
            follows || begins,
            "command {ticket:x} of member {member} counts after {last:x?}"
        );
    }

    pub(crate) fn installed(&self, member: MemberId, model: &Model) {
        let committed = self.committed.get(model.next as usize - 1);
        let state = (model.next, model.digest);
        assert_eq!(committed, Some(&state), "member {member} was sent another state");
    }

    pub(crate) fn leads(&mut self, member: MemberId, term: u64) {
        let leader = *self.leaders.entry(term).or_insert(member);
        assert_eq!(leader, member, "two members lead in term {term}");
    }

    /// The highest index that was acknowledged. A request that begins now must come after it.
    pub(crate) fn begin(&self) -> u64 {
        self.highest_acknowledged
    }

    pub(crate) fn proposed(&mut self, key: Key) {
        let begun = self.begin();
        self.proposed.insert(key, begun);
    }

    pub(crate) fn acknowledged(&mut self, key: Key, index: u64, begun: u64) {
        assert!(
            index > begun,
            "command {key:?} at {index} was sent after {begun} was acknowledged"
        );
        self.acknowledged.insert(key, index);
        self.highest_acknowledged = self.highest_acknowledged.max(index);
    }

    pub(crate) fn refused(&mut self, key: Key) {
        self.refused.insert(key);
    }

    pub(crate) fn read(&mut self, index: u64, begun: u64) {
        assert!(
            index >= begun,
            "a read saw {index}, and {begun} was acknowledged before it began"
        );
        self.reads += 1;
    }

    pub(crate) fn has(&self, key: Key) -> bool {
        self.index_of.contains_key(&key)
    }

    pub(crate) fn applied_next(&self) -> u64 {
        self.committed.len() as u64
    }

    /// Checks what can be checked only at the end.
    pub(crate) fn check(&self) {
        for (key, index) in &self.acknowledged {
            let found = self.index_of.get(key);
            assert_eq!(found, Some(index), "command {key:?} was acknowledged at {index}");
        }
        for key in &self.refused {
            let found = self.index_of.get(key);
            assert_eq!(found, None, "command {key:?} was refused");
        }
        assert!(!self.acknowledged.is_empty(), "nothing was acknowledged");
    }

    pub(crate) fn digest(&self) -> (usize, u64, u64, usize) {
        let last = self.committed.last().map_or(0, |(_, digest)| *digest);
        (self.committed.len(), last, self.reads, self.acknowledged.len())
    }
}
