//! Whether a disk is so quick that handing work over to another thread takes longer than the work.
//!
//! Memory's file systems and disks that keep what they were given through a power cut are. Owns a count of
//! quick writes; whoever writes tells of each. What took long while others had the processor, and did not
//! once wait, says nothing of the disk. One writer at a time; a crash forgets it, and it is learnt again.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

/// About what it takes to wake a thread, and to be woken by it.
const QUICK: Duration = Duration::from_micros(100);
/// Nobody who has other things to do should wait for so long.
const SLOW: Duration = Duration::from_millis(1);
/// So many quick writes more than others, and the next one is taken for quick.
const ENOUGH: u32 = 32;

/// A write that has begun, on the thread that does it and that tells of its end.
#[derive(Debug)]
pub struct Begun {
    at: Instant,
    switches: Option<Switches>,
    _of_this_thread: PhantomData<*const ()>,
}

impl Begun {
    pub fn now() -> Self {
        Self {
            at: Instant::now(),
            switches: Switches::of_thread(),
            _of_this_thread: PhantomData,
        }
    }

    /// Whether it is known since then that others had the processor, and that the thread did not once wait
    /// for anything else.
    fn was_kept_from_processor(&self) -> bool {
        self.switches
            .zip(Switches::of_thread())
            .is_some_and(|(then, now)| now.waits == then.waits && now.forced > then.forced)
    }
}

/// How often a thread has left the processor: because it had to wait, as it does for a disk, or because
/// others had their turn (`ru_nvcsw` and `ru_nivcsw` of getrusage(2)).
#[derive(Debug, Clone, Copy)]
struct Switches {
    waits: i64,
    forced: i64,
}

impl Switches {
    fn of_thread() -> Option<Self> {
        let mut usage = MaybeUninit::<libc::rusage>::uninit();
        // SAFETY: `usage` is a `rusage` for the time of the call, which writes all of it unless it fails.
        let usage = unsafe {
            match libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) {
                0 => usage.assume_init(),
                _ => return None,
            }
        };
        Some(Self {
            waits: usage.ru_nvcsw,
            forced: usage.ru_nivcsw,
        })
    }
}

/// What the last writes to a disk tell of the next.
#[derive(Debug, Default)]
pub struct DiskPace {
    quick: u32,
}

impl DiskPace {
    /// Counts a write, with its flush, that has ended on the thread on which it began.
    pub fn took(&mut self, begun: &Begun) {
        let time = begun.at.elapsed();
        self.count(time, begun.was_kept_from_processor());
    }

    fn count(&mut self, time: Duration, was_kept_from_processor: bool) {
        self.quick = match time {
            _ if time <= QUICK => (self.quick + 1).min(2 * ENOUGH),
            _ if was_kept_from_processor => self.quick,
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

    // Broken if it failed: an event loop would wait for a slow disk again and again, or threads be woken for
    // nothing.
    #[test]
    fn a_disk_is_quick_until_it_is_slow() {
        let mut pace = DiskPace::default();
        for _ in 0..ENOUGH {
            assert!(!pace.is_quick());
            pace.count(QUICK, false);
        }
        assert!(pace.is_quick());
        for _ in 0..1000 {
            pace.count(QUICK, false);
        }
        for _ in 0..4 {
            pace.count(SLOW, false);
            assert!(pace.is_quick());
        }
        pace.count(SLOW, false);
        assert!(!pace.is_quick());
        for _ in 0..1000 {
            pace.count(QUICK, false);
        }
        pace.count(SLOW + QUICK, false);
        assert!(!pace.is_quick());
        for _ in 0..ENOUGH {
            pace.count(QUICK, false);
        }
        assert!(pace.is_quick());
    }

    // Broken if it failed: whoever shares a processor would wake a thread for each write, for dozens of them
    // after each time that another had it.
    #[test]
    fn whoever_has_no_processor_for_a_while_is_not_slow() {
        let mut pace = DiskPace::default();
        for _ in 0..ENOUGH {
            pace.count(10 * SLOW, true);
            assert!(!pace.is_quick());
            pace.count(QUICK, false);
        }
        for _ in 0..1000 {
            pace.count(10 * SLOW, true);
            assert!(pace.is_quick());
        }
    }

    // Broken if it failed: a slow disk would be taken for a processor that others have.
    #[test]
    fn whoever_waits_is_not_kept_from_the_processor() {
        let mut pace = DiskPace { quick: ENOUGH };
        let begun = Begun::now();
        std::thread::sleep(2 * SLOW);
        pace.took(&begun);
        assert!(!pace.is_quick());
    }
}
