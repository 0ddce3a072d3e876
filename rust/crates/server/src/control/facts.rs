//! Facts about followers, on their way to Python, which decides about the ISR.
//!
//! A follower's Fetch reports that it caught up, and a round of housekeeping that it fell behind. Each is
//! reported once until Python answers with another ISR, so the queue is bounded by the number of followers.
//! Python takes the facts after the wake descriptor became readable. A crash loses those that were not taken;
//! the next leader finds them again.

use std::sync::Arc;

use parking_lot::Mutex;

use logcore_wake::WakeFd;

/// What a leader found out about a follower.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaFact {
    pub topic: String,
    pub partition: i32,
    /// The epoch of this leader.
    pub leader_epoch: i32,
    /// The follower.
    pub broker: i32,
    pub kind: ReplicaFactKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicaFactKind {
    /// It is not in the ISR and has everything up to the high watermark.
    CaughtUp,
    /// It is in the ISR and did not catch up within `replica.lag.time.max.ms`.
    FellBehind,
}

impl ReplicaFactKind {
    /// The name for Python.
    pub fn name(self) -> &'static str {
        match self {
            Self::CaughtUp => "caught_up",
            Self::FellBehind => "fell_behind",
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

    pub(crate) fn take(&self) -> Vec<ReplicaFact> {
        std::mem::take(&mut self.waiting.lock())
    }
}
