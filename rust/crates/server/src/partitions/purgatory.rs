//! The purgatory: Fetch requests that wait for records, and Produce requests that wait for replicas.
//!
//! Each partition has a list of waiters. A request that cannot be answered yet joins the lists of its
//! partitions and looks once more, because something may have changed in between. Then it sleeps until enough
//! was appended, its timeout ends, or the server stops. Nothing polls. A wait is a future: when its
//! connection ends, it is dropped and leaves the lists. A waiting Fetch of many partitions holds a permit of
//! `fetch_purgatory`. Waits of group members are in Python. Source: `DelayedOperationPurgatory`,
//! `DelayedFetch`, `DelayedProduce`.

use std::collections::HashMap;
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// More bytes than any append brings: such a waiter wakes only when all waiters are woken.
pub(crate) const NO_BYTES: u64 = u64::MAX;

#[derive(Default)]
pub(crate) struct Purgatory {
    pub(crate) produce: Kind,
    pub(crate) fetch: Kind,
}

#[derive(Default)]
pub(crate) struct Kind(AtomicU64);

impl Kind {
    pub(crate) fn len(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

pub(crate) struct Attempt<T> {
    pub(crate) result: T,
    /// The bytes that are missing. `None` if the request can be answered.
    pub(crate) missing: Option<u64>,
}

/// What a request waits for, and how long.
pub(crate) struct Wait<'a> {
    pub(crate) kind: &'a Kind,
    pub(crate) timeout: Duration,
    /// The most bytes that must be appended before it looks again.
    pub(crate) bytes: u64,
    /// Becomes true once, when the server stops.
    pub(crate) stopping: watch::Receiver<bool>,
}

impl Wait<'_> {
    /// Looks until nothing is missing. Returns the result of the last look.
    pub(crate) async fn until<P: HasWaiters, T>(
        self,
        partitions: Vec<Arc<P>>,
        look: impl FnMut() -> Attempt<T>,
    ) -> T {
        self.until_in(|| ready(()), partitions, look).await.1
    }

    /// As [`Self::until`], for a look that needs a permit. The permit is given back between two looks. Also
    /// returns the last one.
    pub(crate) async fn until_in<P: HasWaiters, T, R, F: Future<Output = R>>(
        mut self,
        permit: impl Fn() -> F,
        partitions: Vec<Arc<P>>,
        mut look: impl FnMut() -> Attempt<T>,
    ) -> (R, T) {
        let deadline = Instant::now().checked_add(self.timeout);
        let waiter = Waiter::new();
        let _entry = Entry::new(&waiter, partitions, self.kind);
        loop {
            let permit = permit().await;
            waiter.expect(self.bytes);
            // This look sees earlier appends. The waiter counts later ones.
            let Attempt { result, missing } = look();
            let Some(missing) = missing else {
                return (permit, result);
            };
            let is_over = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if is_over || *self.stopping.borrow_and_update() {
                return (permit, result);
            }
            waiter.relax(self.bytes.saturating_sub(missing));
            drop((result, permit));
            tokio::select! {
                () = waiter.woken() => {}
                _ = self.stopping.changed() => {}
                () = sleep_until(deadline) => {}
            }
        }
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

struct Waiter {
    id: u64,
    missing: AtomicI64,
    wake: Notify,
}

impl Waiter {
    fn new() -> Arc<Self> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        Arc::new(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            missing: AtomicI64::new(0),
            wake: Notify::new(),
        })
    }

    /// Sets the missing bytes before a look. Appends count from now on.
    fn expect(&self, bytes: u64) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.missing.store(bytes, Ordering::SeqCst);
    }

    /// Subtracts the bytes that the look found.
    fn relax(&self, bytes: u64) {
        self.appended(bytes);
    }

    /// Returns once enough was appended, or all waiters were woken. A wake-up before the call counts.
    async fn woken(&self) {
        self.wake.notified().await;
    }

    fn appended(&self, bytes: u64) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        if self.missing.fetch_sub(bytes, Ordering::SeqCst) <= bytes {
            self.wake.notify_one();
        }
    }
}

/// The capacity that an empty list keeps.
const KEPT: usize = 64;

#[derive(Default)]
pub(crate) struct Waiters(Mutex<HashMap<u64, Arc<Waiter>>>);

impl Waiters {
    /// Reports readable bytes to the waiters. To be called after they became readable.
    pub(crate) fn appended(&self, bytes: u64) {
        for waiter in self.0.lock().values() {
            waiter.appended(bytes);
        }
    }

    /// Wakes all waiters: the high watermark rose by replication, the leader changed, or the partition was
    /// deleted.
    pub(crate) fn wake_all(&self) {
        for waiter in self.0.lock().values() {
            waiter.wake.notify_one();
        }
    }

    fn enter(&self, waiter: &Arc<Waiter>) {
        self.0.lock().insert(waiter.id, Arc::clone(waiter));
    }

    fn leave(&self, waiter: &Waiter) {
        let mut waiters = self.0.lock();
        waiters.remove(&waiter.id);
        if waiters.capacity() > KEPT && waiters.len() < waiters.capacity() / 8 {
            waiters.shrink_to(KEPT / 2);
        }
    }

    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

pub(crate) trait HasWaiters {
    fn waiters(&self) -> &Waiters;
}

/// A waiter in the lists of several partitions, until this is dropped.
struct Entry<'a, P: HasWaiters> {
    waiter: Arc<Waiter>,
    partitions: Vec<Arc<P>>,
    kind: &'a Kind,
}

impl<'a, P: HasWaiters> Entry<'a, P> {
    fn new(waiter: &Arc<Waiter>, partitions: Vec<Arc<P>>, kind: &'a Kind) -> Self {
        for partition in &partitions {
            partition.waiters().enter(waiter);
        }
        kind.0.fetch_add(1, Ordering::Relaxed);
        Self {
            waiter: Arc::clone(waiter),
            partitions,
            kind,
        }
    }
}

impl<P: HasWaiters> Drop for Entry<'_, P> {
    fn drop(&mut self) {
        for partition in &self.partitions {
            partition.waiters().leave(&self.waiter);
        }
        self.kind.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct TestPartition(Waiters);

    impl HasWaiters for TestPartition {
        fn waiters(&self) -> &Waiters {
            &self.0
        }
    }

    fn is_woken(waiter: &Waiter) -> bool {
        let mut woken = std::pin::pin!(waiter.woken());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        woken.as_mut().poll(&mut context).is_ready()
    }

    /// A wait that ends only with its bytes, while the returned sender is kept.
    fn endless(kind: &Kind, bytes: u64) -> (watch::Sender<bool>, Wait<'_>) {
        let (stop, stopping) = watch::channel(false);
        let wait = Wait {
            kind,
            timeout: Duration::MAX,
            bytes,
            stopping,
        };
        (stop, wait)
    }

    // If this failed, a long poll would wake for every append or for none, or a finished one would stay in
    // the lists.
    #[test]
    fn a_waiter_wakes_when_its_bytes_are_there_and_leaves_the_lists() {
        let partitions = [
            Arc::new(TestPartition(Waiters::default())),
            Arc::new(TestPartition(Waiters::default())),
        ];
        let waiter = Waiter::new();
        waiter.expect(100);
        let kind = Kind::default();
        let entry = Entry::new(&waiter, partitions.to_vec(), &kind);
        assert_eq!(kind.len(), 1);
        partitions[0].0.appended(60);
        assert!(!is_woken(&waiter));
        partitions[1].0.appended(40);
        assert!(is_woken(&waiter));
        assert!(!is_woken(&waiter));
        partitions[0].0.wake_all();
        assert!(is_woken(&waiter));
        drop(entry);
        assert!(partitions.iter().all(|partition| partition.0.is_empty()));
        assert_eq!(kind.len(), 0);
    }

    // If this failed, waiting requests would keep permits that others need.
    #[test]
    fn a_wait_has_no_permit_between_two_looks() {
        let partitions = vec![Arc::new(TestPartition(Waiters::default()))];
        let kind = Kind::default();
        let (_stop, wait) = endless(&kind, 1);
        let budget = Arc::new(());
        let mut missing = Some(1);
        let look = || {
            assert_eq!(Arc::strong_count(&budget), 2);
            Attempt {
                result: (),
                missing: missing.take(),
            }
        };
        let take = || ready(Arc::clone(&budget));
        let mut waiting = Box::pin(wait.until_in(take, partitions.clone(), look));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        assert_eq!(Arc::strong_count(&budget), 1);
        partitions[0].0.appended(1);
        let std::task::Poll::Ready((permit, ())) = waiting.as_mut().poll(&mut context) else {
            panic!("nothing is missing");
        };
        assert!(Arc::ptr_eq(&permit, &budget));
    }

    // If this failed, a request would stay in the lists of its partitions after its connection ended.
    #[test]
    fn a_dropped_wait_leaves_the_lists() {
        let partitions = vec![Arc::new(TestPartition(Waiters::default()))];
        let kind = Kind::default();
        let (_stop, wait) = endless(&kind, NO_BYTES);
        let mut looks = 0;
        let mut waiting = Box::pin(wait.until(partitions.clone(), || {
            looks += 1;
            Attempt {
                result: (),
                missing: Some(NO_BYTES),
            }
        }));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        partitions[0].0.appended(1 << 40);
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        partitions[0].0.wake_all();
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        assert_eq!((kind.len(), partitions[0].0.is_empty()), (1, false));
        drop(waiting);
        assert_eq!((kind.len(), partitions[0].0.is_empty()), (0, true));
        assert_eq!(looks, 2, "it does not wait for bytes");
    }
}
