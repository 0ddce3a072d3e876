//! Logs that went offline, on their way to Python.
//!
//! A request that meets a failure reports it, and so does each round of housekeeping for failures in the
//! background. Each failure is reported once. Python takes them after the wake descriptor became readable. A
//! crash loses those that were not taken; the next start finds them again.

use std::sync::Arc;

use parking_lot::Mutex;

use logcore_wake::WakeFd;

/// The logs that went offline.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Failed {
    /// Their partitions: topic and index.
    pub partitions: Vec<(String, i32)>,
    /// Set if no log directory is left: each one and why it is offline. Such a server serves nothing.
    pub every_dir: Option<String>,
}

pub(crate) struct Failures {
    waiting: Mutex<Waiting>,
    wake: Arc<WakeFd>,
}

#[derive(Default)]
struct Waiting {
    failed: Failed,
    is_end_reported: bool,
}

impl Failures {
    pub(crate) fn new(wake: Arc<WakeFd>) -> Self {
        Self {
            waiting: Mutex::default(),
            wake,
        }
    }

    /// Adds failures. The loss of every directory is reported once.
    pub(crate) fn add(&self, partitions: Vec<(String, i32)>, every_dir: Option<String>) {
        let mut waiting = self.waiting.lock();
        let ends = every_dir.is_some() && !waiting.is_end_reported;
        if partitions.is_empty() && !ends {
            return;
        }
        waiting.failed.partitions.extend(partitions);
        if ends {
            waiting.is_end_reported = true;
            waiting.failed.every_dir = every_dir;
        }
        drop(waiting);
        self.wake.signal();
    }

    pub(crate) fn take(&self) -> Failed {
        std::mem::take(&mut self.waiting.lock().failed)
    }
}
