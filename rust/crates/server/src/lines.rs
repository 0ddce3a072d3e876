//! Log lines on their way to Python's `logging`.
//!
//! A bounded queue: any thread pushes, Python drains it with `take` after the wake descriptor became readable. When nobody
//! drains it, the oldest lines are dropped and their number is told with the next drain; a flood of bad connections costs
//! no memory. A crash loses the lines that were not taken.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::wake::WakeFd;

/// How many lines may wait.
const CAPACITY: usize = 4096;

/// How bad it is; the numbers are those of Python's `logging`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Something worth knowing that needs no action.
    Info = 20,
    /// A peer misbehaved or something was refused.
    Warning = 30,
    /// An operator has to act.
    Error = 40,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// How bad it is.
    pub level: Level,
    /// What happened, to what, and what to do.
    pub message: String,
}

#[derive(Default)]
struct Queue {
    lines: VecDeque<LogLine>,
    dropped: u64,
}

/// The queue.
pub(crate) struct LogLines {
    queue: Mutex<Queue>,
    wake: Arc<WakeFd>,
}

impl LogLines {
    pub(crate) fn new(wake: Arc<WakeFd>) -> Self {
        Self {
            queue: Mutex::default(),
            wake,
        }
    }

    pub(crate) fn push(&self, level: Level, message: impl Into<String>) {
        let mut queue = self.queue.lock();
        if queue.lines.len() >= CAPACITY {
            queue.lines.pop_front();
            queue.dropped += 1;
        }
        queue.lines.push_back(LogLine {
            level,
            message: message.into(),
        });
        drop(queue);
        self.wake.signal();
    }

    pub(crate) fn info(&self, message: impl Into<String>) {
        self.push(Level::Info, message);
    }

    pub(crate) fn warning(&self, message: impl Into<String>) {
        self.push(Level::Warning, message);
    }

    pub(crate) fn error(&self, message: impl Into<String>) {
        self.push(Level::Error, message);
    }

    /// Every line that waits, oldest first.
    pub(crate) fn take(&self) -> Vec<LogLine> {
        let queue = std::mem::take(&mut *self.queue.lock());
        let mut lines: Vec<LogLine> = queue.lines.into();
        if queue.dropped > 0 {
            lines.push(LogLine {
                level: Level::Warning,
                message: format!(
                    "{} older log lines were dropped: they came faster than they were read",
                    queue.dropped
                ),
            });
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // If this failed, a peer that sends garbage in a loop would fill the broker's memory with log lines, or a drop of
    // lines would go unnoticed.
    #[test]
    fn the_queue_is_bounded_and_says_what_it_dropped() {
        let lines = LogLines::new(Arc::new(WakeFd::new().unwrap()));
        for number in 0..CAPACITY + 3 {
            lines.info(number.to_string());
        }
        let taken = lines.take();
        assert_eq!(taken.len(), CAPACITY + 1);
        assert_eq!(taken[0].message, "3");
        assert!(taken[CAPACITY].message.starts_with("3 older"));
        assert!(lines.take().is_empty());
    }
}
