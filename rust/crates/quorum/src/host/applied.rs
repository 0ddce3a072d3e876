//! The position up to which the application has applied the log. A snapshot of its state has it. Pure.

use std::collections::VecDeque;

use super::event::OutOfOrder;
use crate::delivery::Delivery;
use crate::raft::types::{LogId, Membership, SnapshotMeta, StoredMembership};
use crate::reader::DeliveredEntry;
use crate::servers::MemberId;

/// The position after an entry or a snapshot.
#[derive(Default, Clone)]
pub(super) struct Position {
    pub(super) last: Option<LogId>,
    pub(super) membership: StoredMembership,
    pub(super) delivery: Delivery,
}

/// What an entry, or a snapshot, changes of a [`Position`].
enum Step {
    Entry {
        log_id: LogId,
        counted: Vec<(MemberId, u64)>,
        membership: Option<Membership>,
    },
    Snapshot(Box<Position>),
}

impl Step {
    fn log_id(&self) -> Option<LogId> {
        match self {
            Self::Entry { log_id, .. } => Some(*log_id),
            Self::Snapshot(position) => position.last,
        }
    }
}

/// The position of the application, and the steps that were delivered beyond it.
#[derive(Default)]
pub(super) struct Applied {
    position: Position,
    steps: VecDeque<Step>,
}

impl Applied {
    pub(super) fn last(&self) -> Option<LogId> {
        self.position.last
    }

    pub(super) fn delivered(&mut self, entry: &DeliveredEntry) {
        let mut counted: Vec<(MemberId, u64)> = Vec::new();
        for command in entry.commands.iter().map(|counted| &counted.command) {
            match counted.last_mut() {
                Some((member, last)) if *member == command.member => *last = command.ticket,
                _ => counted.push((command.member, command.ticket)),
            }
        }
        self.steps.push_back(Step::Entry {
            log_id: entry.log_id,
            counted,
            membership: entry.membership.clone(),
        });
    }

    pub(super) fn installed(&mut self, position: Position) {
        self.steps.push_back(Step::Snapshot(Box::new(position)));
    }

    /// Moves the position to the entry with this index.
    pub(super) fn applied(&mut self, index: u64) {
        while let Some(step) = self.steps.front()
            && step.log_id().is_none_or(|log_id| log_id.index <= index)
            && let Some(step) = self.steps.pop_front()
        {
            self.take(step);
        }
    }

    fn take(&mut self, step: Step) {
        let position = &mut self.position;
        match step {
            Step::Snapshot(snapshot) => *position = *snapshot,
            Step::Entry {
                log_id,
                counted,
                membership,
            } => {
                position.last = Some(log_id);
                for (member, ticket) in counted {
                    position.delivery.note(member, ticket);
                }
                if let Some(membership) = membership {
                    position
                        .delivery
                        .keep_members(membership.nodes().map(|(id, _)| id));
                    position.membership = StoredMembership::new(Some(log_id), membership);
                }
            }
        }
    }

    /// The metadata of a snapshot of the application's state, which must be at this entry.
    pub(super) fn snapshot_of(&self, index: u64) -> Result<(SnapshotMeta, Delivery), OutOfOrder> {
        let position = &self.position;
        if position.last.is_none_or(|last| last.index != index) {
            let last = position
                .last
                .map_or("none".to_owned(), |last| last.index.to_string());
            return Err(OutOfOrder(format!(
                "a snapshot up to entry {index} was begun, but the last applied entry is {last}"
            )));
        }
        let meta = SnapshotMeta {
            last_log_id: position.last,
            last_membership: position.membership.clone(),
        };
        Ok((meta, position.delivery.clone()))
    }
}
