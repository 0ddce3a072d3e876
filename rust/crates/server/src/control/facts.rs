//! Facts about the replicas of led partitions, on their way to Python, which decides about the ISR.
//!
//! A follower's Fetch reports that it caught up, and a round of housekeeping that it fell behind. Each is
//! reported once until Python answers with another ISR. A refused append reports that the leader lacks space;
//! the queue has this once a partition. So it is bounded by the number of replicas.
//! Python takes the facts after the wake descriptor became readable. A crash loses those that were not taken;
//! the next leader finds them again.

use std::sync::Arc;

use parking_lot::Mutex;

use logcore_wake::WakeFd;

/// What a leader found out about a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaFact {
    pub topic: String,
    pub partition: i32,
    /// The epoch of this leader.
    pub leader_epoch: i32,
    /// The replica's broker.
    pub broker: i32,
    pub kind: ReplicaFactKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicaFactKind {
    /// It is not in the ISR and has everything up to the high watermark.
    CaughtUp,
    /// It is in the ISR and did not catch up within `replica.lag.time.max.ms`.
    FellBehind,
    /// It is the leader, and the disk has no space for a record.
    LacksSpace,
}

impl ReplicaFactKind {
    /// The name for Python.
    pub fn name(self) -> &'static str {
        match self {
            Self::CaughtUp => "caught_up",
            Self::FellBehind => "fell_behind",
            Self::LacksSpace => "lacks_space",
        }
    }
}

pub(crate) struct ReplicaFacts {
    waiting: Mutex<Vec<ReplicaFact>>,
    wake: Arc<WakeFd>,
}

impl ReplicaFacts {
    pub(crate) fn new(wake: Arc<WakeFd>) -> Self {
        Self {
            waiting: Mutex::default(),
            wake,
        }
    }

    pub(crate) fn add(&self, facts: Vec<ReplicaFact>) {
        if !facts.is_empty() {
            self.waiting.lock().extend(facts);
            self.wake.signal();
        }
    }

    /// Adds a fact that is not waiting already.
    pub(crate) fn add_once(&self, fact: ReplicaFact) {
        let mut waiting = self.waiting.lock();
        if !waiting.contains(&fact) {
            waiting.push(fact);
            self.wake.signal();
        }
    }

    pub(crate) fn take(&self) -> Vec<ReplicaFact> {
        std::mem::take(&mut self.waiting.lock())
    }
}
