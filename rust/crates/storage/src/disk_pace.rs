//! Whether a disk is so quick that handing work over to another thread takes longer than the work.
//!
//! Memory's file systems and disks that keep what they were given through a power cut are. Owns a count of quick writes; whoever
//! writes tells how long it took. One writer at a time; a crash forgets it, and it is learnt again.

use std::time::Duration;

/// About what it takes to wake a thread, and to be woken by it.
const QUICK: Duration = Duration::from_micros(100);
/// Nobody who has other things to do should wait for so long.
const SLOW: Duration = Duration::from_millis(1);
/// So many quick writes more than others, and the next one is taken for quick.
const ENOUGH: u32 = 32;

/// What the last writes to a disk tell of the next.
#[derive(Debug, Default)]
pub struct DiskPace {
    quick: u32,
}

impl DiskPace {
    /// Counts a write, with its flush, that took so long.
    pub fn took(&mut self, time: Duration) {
        self.quick = match time {
            _ if time <= QUICK => (self.quick + 1).min(2 * ENOUGH),
            _ if time <= SLOW => self.quick.saturating_sub(ENOUGH / 4),
            _ => 0,
        };
    }

    /// Whether the next write is better waited for.
    pub fn is_quick(&self) -> bool {
        self.quick >= ENOUGH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Broken if it failed: an event loop would wait for a slow disk again and again, or threads be woken for nothing.
    #[test]
    fn a_disk_is_quick_until_it_is_slow() {
        let mut pace = DiskPace::default();
        for _ in 0..ENOUGH {
            assert!(!pace.is_quick());
            pace.took(QUICK);
        }
        assert!(pace.is_quick());
        for _ in 0..1000 {
            pace.took(QUICK);
        }
        // Whoever has no processor for a moment is not slow.
        for _ in 0..4 {
            pace.took(SLOW);
            assert!(pace.is_quick());
        }
        pace.took(SLOW);
        assert!(!pace.is_quick());
        for _ in 0..1000 {
            pace.took(QUICK);
        }
        pace.took(SLOW + QUICK);
        assert!(!pace.is_quick());
        for _ in 0..ENOUGH {
            pace.took(QUICK);
        }
        assert!(pace.is_quick());
    }
}
