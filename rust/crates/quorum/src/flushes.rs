//! What bringing a log to disk took, for whoever measures.
//!
//! A [`Flushes`] has the latest until they are taken, and never more than some; any thread may ask it.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

/// Entries of commands that are kept; of more the oldest are forgotten.
const KEPT: usize = 4096;

/// One time that a log was brought to disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flush {
    /// What the disk took.
    pub took: Duration,
    /// Those that have commands, in order.
    pub entries: Vec<Written>,
}

/// An entry of commands that is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    pub commands: u32,
    /// Its proposer's clock.
    pub time_ms: i64,
    /// This machine's, when it came to the log.
    pub came_ms: i64,
    /// And when it was on disk.
    pub on_disk_ms: i64,
}

/// The latest [`Flush`]es.
#[derive(Debug, Default)]
pub struct Flushes(Mutex<Latest>);

#[derive(Debug, Default)]
struct Latest {
    flushes: VecDeque<Flush>,
    entries: usize,
}

impl Flushes {
    pub(crate) fn put(&self, mut flush: Flush) {
        let surplus = flush.entries.len().saturating_sub(KEPT);
        flush.entries.drain(..surplus);
        let mut latest = self.0.lock();
        // One without entries has a place, too.
        latest.entries += flush.entries.len().max(1);
        latest.flushes.push_back(flush);
        while latest.entries > KEPT
            && latest.flushes.len() > 1
            && let Some(oldest) = latest.flushes.pop_front()
        {
            latest.entries -= oldest.entries.len().max(1);
        }
    }

    /// Those since the last time, in order.
    pub fn take(&self) -> Vec<Flush> {
        let mut latest = self.0.lock();
        latest.entries = 0;
        std::mem::take(&mut latest.flushes).into()
    }
}

/// The machine's clock, in milliseconds since 1970.
pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flush(entries: usize) -> Flush {
        let written = Written {
            commands: 1,
            time_ms: 0,
            came_ms: 0,
            on_disk_ms: 0,
        };
        Flush {
            took: Duration::ZERO,
            entries: vec![written; entries],
        }
    }

    #[test]
    fn no_more_is_kept_than_some() {
        let flushes = Flushes::default();
        for _ in 0..3 * KEPT {
            flushes.put(flush(0));
        }
        assert_eq!(flushes.take().len(), KEPT);
        for _ in 0..3 * KEPT {
            flushes.put(flush(5));
        }
        assert_eq!(flushes.take().len(), KEPT / 5);
        flushes.put(flush(2 * KEPT));
        assert_eq!(flushes.take(), [flush(KEPT)]);
        assert!(flushes.take().is_empty());
    }
}
