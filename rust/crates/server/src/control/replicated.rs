//! Appends of Python that the in-sync replicas have, on their way to Python.
//!
//! Python names an append by a number ([`crate::Server::append_and_report`]) and takes the outcome after the
//! wake descriptor became readable. A crash loses the outcomes with the process that waits for them.

use std::sync::Arc;

use parking_lot::Mutex;

use logcore_protocol::ErrorCode;
use logcore_wake::WakeFd;

pub(crate) struct ReplicatedAppends {
    waiting: Mutex<Vec<(u64, ErrorCode)>>,
    wake: Arc<WakeFd>,
}

impl ReplicatedAppends {
    pub(crate) fn new(wake: Arc<WakeFd>) -> Self {
        Self {
            waiting: Mutex::default(),
            wake,
        }
    }

    pub(crate) fn add(&self, number: u64, code: ErrorCode) {
        self.waiting.lock().push((number, code));
        self.wake.signal();
    }

    pub(crate) fn take(&self) -> Vec<(u64, ErrorCode)> {
        std::mem::take(&mut self.waiting.lock())
    }
}
