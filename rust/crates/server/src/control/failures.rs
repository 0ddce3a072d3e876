//! Logs that go offline while they are served, on their way to Python, which tells clients.
//!
//! Whoever meets a failure has them looked for, and so does every round of housekeeping, for what fails in the background. Each is told
//! once. Python takes them after the wake descriptor became readable. A crash loses what was not taken; the next start finds it.

use std::sync::Arc;

use parking_lot::Mutex;

use logcore_wake::WakeFd;

/// What went offline.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Failed {
    /// The partitions whose logs did: topic and index.
    pub partitions: Vec<(String, i32)>,
    /// Which log directories there were and why each is offline, if none is left. A server without one serves nothing.
    pub every_dir: Option<String>,
}

/// What waits to be taken.
pub(crate) struct Failures {
    waiting: Mutex<Waiting>,
    wake: Arc<WakeFd>,
}

#[derive(Default)]
struct Waiting {
    failed: Failed,
    is_end_told: bool,
}

impl Failures {
    pub(crate) fn new(wake: Arc<WakeFd>) -> Self {
        Self {
            waiting: Mutex::default(),
            wake,
        }
    }

    /// Adds what went offline; no directory left is told once.
    pub(crate) fn add(&self, partitions: Vec<(String, i32)>, every_dir: Option<String>) {
        let mut waiting = self.waiting.lock();
        let ends = every_dir.is_some() && !waiting.is_end_told;
        if partitions.is_empty() && !ends {
            return;
        }
        waiting.failed.partitions.extend(partitions);
        if ends {
            waiting.is_end_told = true;
            waiting.failed.every_dir = every_dir;
        }
        drop(waiting);
        self.wake.signal();
    }

    /// What went offline since the last call.
    pub(crate) fn take(&self) -> Failed {
        std::mem::take(&mut self.waiting.lock().failed)
    }
}
