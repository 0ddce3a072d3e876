//! A budget: a bound on the memory of one kind of thing, shared by all requests.
//!
//! A request takes a permit for what it needs and gives it back by dropping the permit. Each budget is a row
//! of the table in [`crate::memory`]. Called from connection tasks; a crash leaves nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// With so many bytes left of a budget, another request may not find enough.
const LITTLE: usize = 16 << 20;
/// A fall of the memory in use that is worth returning memory to the operating system for.
const FALL: usize = 32 << 20;

/// What happens to a request that finds too little left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AtBound {
    /// It waits for other requests to give back theirs.
    Wait,
    /// It is refused at once. The text says what becomes of it, and what the operator can do.
    Refuse(&'static str),
}

pub(crate) struct Budget {
    /// What it bounds, for messages.
    what: &'static str,
    size: usize,
    /// A request that needs no more than this needs no permit.
    uncounted: usize,
    /// The bytes of memory behind each unit of `size`.
    unit_bytes: usize,
    at_bound: AtBound,
    left: Arc<Semaphore>,
    peak: Peak,
}

impl Budget {
    pub(crate) fn new(
        what: &'static str,
        size: usize,
        uncounted: usize,
        unit_bytes: usize,
        at_bound: AtBound,
    ) -> Self {
        let size = size.min(Semaphore::MAX_PERMITS);
        Self {
            what,
            size,
            uncounted,
            unit_bytes,
            at_bound,
            left: Arc::new(Semaphore::new(size)),
            peak: Peak::default(),
        }
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn uncounted(&self) -> usize {
        self.uncounted
    }

    pub(crate) fn left(&self) -> usize {
        self.left.available_permits()
    }

    /// Waits for a permit for `count`. A request that needs more than the whole budget waits for all of it.
    pub(crate) async fn acquire(&self, count: usize) -> Permit {
        debug_assert_eq!(self.at_bound, AtBound::Wait, "{}", self.what);
        if count <= self.uncounted {
            return Permit::default();
        }
        // The semaphore is never closed.
        let permit = Arc::clone(&self.left).acquire_many_owned(self.clip(count)).await;
        self.note_peak();
        Permit(permit.ok())
    }

    /// A permit for `count`, or `None` if too little is left.
    pub(crate) fn try_acquire(&self, count: usize) -> Option<Permit> {
        if count <= self.uncounted {
            return Some(Permit::default());
        }
        let permit = Arc::clone(&self.left).try_acquire_many_owned(self.clip(count));
        self.note_peak();
        permit.ok().map(|permit| Permit(Some(permit)))
    }

    /// As [`Self::try_acquire`].
    ///
    /// # Errors
    /// Why there is no permit and what follows, as a sentence for the log.
    pub(crate) fn acquire_or_refuse(&self, count: usize) -> Result<Permit, String> {
        self.try_acquire(count).ok_or_else(|| {
            let AtBound::Refuse(consequence) = self.at_bound else {
                unreachable!("requests wait for this budget: {}", self.what);
            };
            format!(
                "the budget of {} {} is used up by other requests and this one needs {count}: {consequence}",
                self.size, self.what
            )
        })
    }

    /// Whether so much less is in use now than at some time since this was last true that memory should be
    /// returned to the operating system.
    pub(crate) fn has_fallen(&self) -> bool {
        self.peak.has_fallen_to(self.bytes_in_use())
    }

    fn clip(&self, count: usize) -> u32 {
        u32::try_from(count.min(self.size)).unwrap_or(u32::MAX)
    }

    fn bytes_in_use(&self) -> usize {
        (self.size - self.left()) * self.unit_bytes
    }

    fn note_peak(&self) {
        self.peak.note(self.bytes_in_use());
    }
}

/// A request's share of a budget, given back when it is dropped. The default is no share.
#[derive(Default)]
pub(crate) struct Permit(Option<OwnedSemaphorePermit>);

impl Permit {
    pub(crate) fn count(&self) -> usize {
        self.0.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
    }

    pub(crate) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn split(&mut self, count: usize) -> Self {
        let count = count.min(self.count());
        let permit = self.0.as_mut().filter(|_| count > 0);
        Self(permit.and_then(|permit| permit.split(count)))
    }

    /// Adds a share of the same budget.
    pub(crate) fn merge(&mut self, more: Self) {
        match (&mut self.0, more.0) {
            (Some(permit), Some(more)) => permit.merge(more),
            (None, more) => self.0 = more,
            (Some(_), None) => {}
        }
    }

    /// Whether little is left of its budget, which is one of bytes: others need this share, or soon will.
    pub(crate) fn is_needed(&self) -> bool {
        let permit = self.0.as_ref();
        permit.is_some_and(|permit| permit.semaphore().available_permits() < LITTLE)
    }
}

/// The most bytes in use at a time, of late.
#[derive(Default)]
pub(crate) struct Peak(AtomicUsize);

impl Peak {
    pub(crate) fn note(&self, now: usize) {
        self.0.fetch_max(now, Ordering::Relaxed);
    }

    /// Whether `now` is far below the peak. Then `now` is the new peak.
    pub(crate) fn has_fallen_to(&self, now: usize) -> bool {
        let fallen = self.0.load(Ordering::Relaxed).saturating_sub(now) >= FALL;
        if fallen {
            self.0.store(now, Ordering::Relaxed);
        }
        fallen
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;
    use crate::net::busy_poll::poll_once;

    // If this failed, more would be in use than there is, small requests would wait for large ones, or a
    // request larger than the budget would wait for ever.
    #[tokio::test]
    async fn a_request_waits_for_the_others() {
        let budget = Budget::new("bytes of a test", 100, 10, 1, AtBound::Wait);
        let all = budget.acquire(usize::MAX).await;
        assert_eq!((all.count(), budget.left()), (100, 0));
        assert!(!budget.acquire(10).await.is_some());
        let mut next = pin!(budget.acquire(11));
        assert!(poll_once(next.as_mut()).await.is_none());
        drop(all);
        assert_eq!(next.await.count(), 11);
        assert_eq!(budget.left(), 100);
    }

    // If this failed, requests would use more than there is, or the log would not show why they were refused.
    #[test]
    fn a_request_is_refused_with_its_reason() {
        let budget = Budget::new("bytes of a test", 100, 10, 1, AtBound::Refuse("it is dropped"));
        let all = budget.acquire_or_refuse(90).unwrap();
        let refused = budget.acquire_or_refuse(11).err().unwrap();
        assert_eq!(
            refused,
            "the budget of 100 bytes of a test is used up by other requests and this one needs 11: it is \
             dropped"
        );
        assert!(!budget.acquire_or_refuse(10).unwrap().is_some());
        drop(all);
        assert!(budget.acquire_or_refuse(11).unwrap().is_some());
    }

    // If this failed, a share would be given back twice or never, or be counted as another budget's.
    #[test]
    fn permits_are_split_and_merged() {
        let budget = Budget::new("bytes of a test", 100, 0, 1, AtBound::Wait);
        let mut whole = budget.try_acquire(60).unwrap();
        let part = whole.split(20);
        assert_eq!((whole.count(), part.count(), budget.left()), (40, 20, 40));
        assert_eq!(Permit::default().split(5).count(), 0);
        let mut sum = Permit::default();
        sum.merge(part);
        sum.merge(whole);
        assert_eq!(sum.count(), 60);
        drop(sum);
        assert_eq!(budget.left(), 100);
    }

    // If this failed, memory that was in use once would stay with the process, or would be returned again and
    // again.
    #[test]
    fn memory_is_returned_once_after_a_peak() {
        let budget = Budget::new("kibibytes of a test", 2 * FALL / 1024, 0, 1024, AtBound::Wait);
        let peak = budget.try_acquire(FALL / 1024).unwrap();
        assert!(!budget.has_fallen());
        drop(peak);
        assert!(budget.has_fallen() && !budget.has_fallen());
    }
}
