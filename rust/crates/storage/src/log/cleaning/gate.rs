//! Exclusive cleaning of a log, and how to stop it (`LogCleanerManager`'s states of a partition).
//!
//! Each log has one [`Cleaning`]. At most one thread cleans a log. Other threads may pause cleaning before
//! they close, delete or truncate the log: that stops a running cleaning and waits for it. A cleaning checks
//! its [`Stop`] between batches, and a stop wakes it where it waits. Only the first dirty offset is on disk,
//! in the log directory's checkpoint.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// Stops one cleaning.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    set: AtomicBool,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Stop {
    pub(crate) fn set(&self) {
        let _lock = self.lock.lock();
        self.set.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    pub(crate) fn is_set(&self) -> bool {
        self.set.load(Ordering::Acquire)
    }

    /// Waits until `time` or until a stop; true for a stop.
    pub(crate) fn wait_until(&self, time: Instant) -> bool {
        let mut lock = self.lock.lock();
        while !self.is_set() {
            if self.changed.wait_until(&mut lock, time).timed_out() {
                break;
            }
        }
        self.is_set()
    }
}

/// The state of a log's compaction.
#[derive(Debug)]
pub(crate) struct Cleaning {
    state: Mutex<State>,
    changed: Condvar,
    /// [`UNKNOWN`] before the first cleaning.
    first_dirty: AtomicI64,
    uncleanable: OnceLock<String>,
}

#[derive(Debug, Default)]
struct State {
    running: Option<Arc<Stop>>,
    pauses: usize,
}

const UNKNOWN: i64 = -1;

impl Default for Cleaning {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            first_dirty: AtomicI64::new(UNKNOWN),
            uncleanable: OnceLock::new(),
        }
    }
}

/// A running cleaning, until it is dropped.
pub(crate) struct Running<'a> {
    cleaning: &'a Cleaning,
    pub(crate) stop: Arc<Stop>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.cleaning.state.lock().running = None;
        self.cleaning.changed.notify_all();
    }
}

/// No cleaning of a log runs or begins until this is dropped.
#[derive(Debug)]
pub struct CleaningPaused<'a>(&'a Cleaning);

impl CleaningPaused<'_> {
    /// The log was truncated to `offset`: records after it are dirty.
    pub fn truncated_to(&self, offset: i64) {
        self.0.first_dirty.fetch_min(offset, Ordering::AcqRel);
    }
}

impl Drop for CleaningPaused<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl Cleaning {
    /// Begins a cleaning; `None` when one runs or cleaning is paused.
    pub(crate) fn try_begin(&self) -> Option<Running<'_>> {
        let mut state = self.state.lock();
        let free = state.running.is_none() && state.pauses == 0;
        free.then(|| self.start(&mut state))
    }

    #[cfg(test)]
    pub(crate) fn is_running(&self) -> bool {
        self.state.lock().running.is_some()
    }

    /// [`Cleaning::try_begin`] that waits.
    pub(crate) fn begin(&self) -> Running<'_> {
        let mut state = self.state.lock();
        while state.running.is_some() || state.pauses > 0 {
            self.changed.wait(&mut state);
        }
        self.start(&mut state)
    }

    fn start(&self, state: &mut State) -> Running<'_> {
        let stop = Arc::new(Stop::default());
        state.running = Some(Arc::clone(&stop));
        Running { cleaning: self, stop }
    }

    /// Stops a running cleaning, waits for its end, and lets none begin. The caller must not hold the log's
    /// writer lock, for which the cleaning may wait.
    pub(crate) fn pause(&self) -> CleaningPaused<'_> {
        let mut state = self.state.lock();
        state.pauses += 1;
        while let Some(running) = state.running.clone() {
            running.set();
            self.changed.wait(&mut state);
        }
        CleaningPaused(self)
    }

    /// [`Cleaning::pause`] until [`Cleaning::release`], for a caller that cannot borrow the log.
    pub(crate) fn pause_until_release(&self) {
        std::mem::forget(self.pause());
    }

    /// Takes over the state of the log in another directory that this log replaces.
    pub(crate) fn take_over(&self, other: &Self) {
        let offset = other.first_dirty.load(Ordering::Acquire);
        self.first_dirty.store(offset, Ordering::Release);
    }

    pub(crate) fn release(&self) {
        self.state.lock().pauses -= 1;
        self.changed.notify_all();
    }

    /// The offset up to which the log was cleaned.
    pub(crate) fn first_dirty(&self) -> Option<i64> {
        let offset = self.first_dirty.load(Ordering::Acquire);
        (offset != UNKNOWN).then_some(offset)
    }

    pub(crate) fn set_first_dirty(&self, offset: i64) {
        self.first_dirty.store(offset, Ordering::Release);
    }

    /// Why the log is not cleaned any more, after a failed cleaning.
    pub(crate) fn uncleanable(&self) -> Option<&str> {
        self.uncleanable.get().map(String::as_str)
    }

    pub(crate) fn set_uncleanable(&self, reason: String) {
        let _first_reason_stays = self.uncleanable.set(reason);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    // Broken if it failed: two threads would clean one log, or a log would be deleted under its cleaner.
    #[test]
    fn pausing_ends_what_runs_and_waits_for_it() {
        let cleaning = Cleaning::default();
        let (began, begun) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let running = cleaning.try_begin().unwrap();
                assert!(cleaning.try_begin().is_none());
                began.send(()).unwrap();
                let far = Instant::now() + std::time::Duration::from_secs(3600);
                assert!(running.stop.wait_until(far));
            });
            begun.recv().unwrap();
            let paused = cleaning.pause();
            assert!(cleaning.try_begin().is_none());
            let again = cleaning.pause();
            drop(paused);
            assert!(cleaning.try_begin().is_none());
            drop(again);
            assert!(cleaning.try_begin().is_some());
        });
    }
}
