//! Measurements of writing the log to disk. A [`Flushes`] keeps the latest until they are taken. Any thread
//! may call it.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

/// Entries that are kept; older ones are forgotten.
const KEPT: usize = 4096;

/// One flush of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flush {
    pub took: Duration,
    /// The entries with commands, in order.
    pub entries: Vec<Written>,
}

/// An entry with commands that is on disk. The times are milliseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    pub commands: u32,
    /// When it was proposed, by the proposer's clock.
    pub time_ms: i64,
    /// When it was appended, by this machine's clock.
    pub appended_ms: i64,
    /// When it was on disk, by this machine's clock.
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
        // A flush without entries counts as one, so that their number is bounded too.
        latest.entries += flush.entries.len().max(1);
        latest.flushes.push_back(flush);
        while latest.entries > KEPT
            && latest.flushes.len() > 1
            && let Some(oldest) = latest.flushes.pop_front()
        {
            latest.entries -= oldest.entries.len().max(1);
        }
    }

    /// The flushes since the last call, in order.
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
            appended_ms: 0,
            on_disk_ms: 0,
        };
        Flush {
            took: Duration::ZERO,
            entries: vec![written; entries],
        }
    }

    /// If this failed, measurements that nobody takes would fill the memory.
    #[test]
    fn the_number_kept_is_bounded() {
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
