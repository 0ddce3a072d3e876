//! Where requests wait: a Fetch for more to read, a Produce for its replicas.
//!
//! Every partition has a waiting room. A request that cannot be answered yet enters the rooms of its partitions, looks once
//! more (something may have come in between), and sleeps until the rooms say that looking again pays, until its time is
//! over or until the server stops. Nothing polls. A wait is a future: dropped with its connection, it leaves the rooms. It has
//! nothing that others need.
//! What joins and syncs of groups wait for is Python's. Source of the semantics: `DelayedOperationPurgatory`,
//! `DelayedFetch`, `DelayedProduce`.

use std::collections::HashMap;
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// Bytes that no append brings: whoever waits for them wakes only when a room wakes all.
pub(crate) const NO_BYTES: u64 = u64::MAX;

/// How many requests wait, by kind.
#[derive(Default)]
pub(crate) struct Purgatory {
    pub(crate) produce: Kind,
    pub(crate) fetch: Kind,
}

/// How many requests of one kind wait.
#[derive(Default)]
pub(crate) struct Kind(AtomicU64);

impl Kind {
    pub(crate) fn len(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a look found.
pub(crate) struct Looked<T> {
    pub(crate) found: T,
    /// How many bytes are missing; `None` when the request can be answered.
    pub(crate) missing: Option<u64>,
}

/// How long a request waits, and for what.
pub(crate) struct Wait<'a> {
    pub(crate) kind: &'a Kind,
    pub(crate) patience: Duration,
    /// Appended bytes that it takes at most before looking again pays.
    pub(crate) bytes: u64,
    /// Becomes true once, when the server stops.
    pub(crate) stopping: watch::Receiver<bool>,
}

impl Wait<'_> {
    /// Looks until nothing is missing; returns what the last look found.
    pub(crate) async fn until<P: HasWaitingRoom, T>(
        self,
        places: Vec<Arc<P>>,
        look: impl FnMut() -> Looked<T>,
    ) -> T {
        self.until_in(|| ready(()), places, look).await.1
    }

    /// The same when a look takes room that others need: none is kept between two looks. Returns that of the last.
    pub(crate) async fn until_in<P: HasWaitingRoom, T, R, F: Future<Output = R>>(
        mut self,
        room: impl Fn() -> F,
        places: Vec<Arc<P>>,
        mut look: impl FnMut() -> Looked<T>,
    ) -> (R, T) {
        let deadline = Instant::now().checked_add(self.patience);
        let waiter = Waiter::new();
        let _stay = Stay::enter(&waiter, places, self.kind);
        loop {
            let room = room().await;
            waiter.expect(self.bytes);
            // What came before the stay began is seen by this look, what comes after it by the waiter.
            let Looked { found, missing } = look();
            let Some(missing) = missing else {
                return (room, found);
            };
            let is_over = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if is_over || *self.stopping.borrow_and_update() {
                return (room, found);
            }
            waiter.relax(self.bytes.saturating_sub(missing));
            drop((found, room));
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

/// One request that waits.
struct Waiter {
    id: u64,
    /// Bytes that must still be appended before looking again pays.
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

    /// Says how many bytes are missing, before the last look: appends from here on count.
    fn expect(&self, bytes: u64) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.missing.store(bytes, Ordering::SeqCst);
    }

    /// Takes off what the look found to be there already.
    fn relax(&self, bytes: u64) {
        self.appended(bytes);
    }

    /// Returns once enough was appended or something changed that must be answered. A wake before the call counts.
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

/// A waiting room keeps its memory for so many.
const KEPT: usize = 64;

/// The waiting room of one partition.
#[derive(Default)]
pub(crate) struct WaitingRoom(Mutex<HashMap<u64, Arc<Waiter>>>);

impl WaitingRoom {
    /// Tells everyone who waits that this many bytes became readable. Call it after they did.
    pub(crate) fn appended(&self, bytes: u64) {
        for waiter in self.0.lock().values() {
            waiter.appended(bytes);
        }
    }

    /// Wakes everyone: the high watermark of a partition with replicas moved, its leader changed, or it was deleted.
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

/// Whatever has a waiting room.
pub(crate) trait HasWaitingRoom {
    fn waiting_room(&self) -> &WaitingRoom;
}

/// A waiter's stay in several rooms; it leaves them when this is dropped.
struct Stay<'a, P: HasWaitingRoom> {
    waiter: Arc<Waiter>,
    places: Vec<Arc<P>>,
    kind: &'a Kind,
}

impl<'a, P: HasWaitingRoom> Stay<'a, P> {
    fn enter(waiter: &Arc<Waiter>, places: Vec<Arc<P>>, kind: &'a Kind) -> Self {
        for place in &places {
            place.waiting_room().enter(waiter);
        }
        kind.0.fetch_add(1, Ordering::Relaxed);
        Self {
            waiter: Arc::clone(waiter),
            places,
            kind,
        }
    }
}

impl<P: HasWaitingRoom> Drop for Stay<'_, P> {
    fn drop(&mut self) {
        for place in &self.places {
            place.waiting_room().leave(&self.waiter);
        }
        self.kind.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Place(WaitingRoom);

    impl HasWaitingRoom for Place {
        fn waiting_room(&self) -> &WaitingRoom {
            &self.0
        }
    }

    fn is_woken(waiter: &Waiter) -> bool {
        let mut woken = std::pin::pin!(waiter.woken());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        woken.as_mut().poll(&mut context).is_ready()
    }

    /// A wait that only its bytes end, while what is returned with it is kept.
    fn endless(kind: &Kind, bytes: u64) -> (watch::Sender<bool>, Wait<'_>) {
        let (stop, stopping) = watch::channel(false);
        let wait = Wait {
            kind,
            patience: Duration::MAX,
            bytes,
            stopping,
        };
        (stop, wait)
    }

    // If this failed, a long poll would wake for every append (or for none), and a finished one would stay behind.
    #[test]
    fn a_waiter_wakes_when_its_bytes_are_there_and_leaves_nothing_behind() {
        let places = [
            Arc::new(Place(WaitingRoom::default())),
            Arc::new(Place(WaitingRoom::default())),
        ];
        let waiter = Waiter::new();
        waiter.expect(100);
        let kind = Kind::default();
        let stay = Stay::enter(&waiter, places.to_vec(), &kind);
        assert_eq!(kind.len(), 1);
        places[0].0.appended(60);
        assert!(!is_woken(&waiter));
        places[1].0.appended(40);
        assert!(is_woken(&waiter));
        assert!(!is_woken(&waiter));
        places[0].0.wake_all();
        assert!(is_woken(&waiter));
        drop(stay);
        assert!(places.iter().all(|place| place.0.is_empty()));
        assert_eq!(kind.len(), 0);
    }

    // If this failed, who waits would keep what those need who have something to read.
    #[test]
    fn a_wait_has_no_room_between_two_looks() {
        let places = vec![Arc::new(Place(WaitingRoom::default()))];
        let kind = Kind::default();
        let (_stop, wait) = endless(&kind, 1);
        let room = Arc::new(());
        let mut missing = Some(1);
        let look = || {
            assert_eq!(Arc::strong_count(&room), 2);
            Looked {
                found: (),
                missing: missing.take(),
            }
        };
        let take = || ready(Arc::clone(&room));
        let mut waiting = Box::pin(wait.until_in(take, places.clone(), look));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        assert_eq!(Arc::strong_count(&room), 1);
        places[0].0.appended(1);
        let std::task::Poll::Ready((kept, ())) = waiting.as_mut().poll(&mut context) else {
            panic!("nothing is missing");
        };
        assert!(Arc::ptr_eq(&kept, &room));
    }

    // If this failed, a connection that dies would leave its request behind in the rooms of its partitions.
    #[test]
    fn a_wait_that_is_dropped_leaves_its_rooms() {
        let places = vec![Arc::new(Place(WaitingRoom::default()))];
        let kind = Kind::default();
        let (_stop, wait) = endless(&kind, NO_BYTES);
        let mut looks = 0;
        let mut waiting = Box::pin(wait.until(places.clone(), || {
            looks += 1;
            Looked {
                found: (),
                missing: Some(NO_BYTES),
            }
        }));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        places[0].0.appended(1 << 40);
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        places[0].0.wake_all();
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        assert_eq!((kind.len(), places[0].0.is_empty()), (1, false));
        drop(waiting);
        assert_eq!((kind.len(), places[0].0.is_empty()), (0, true));
        assert_eq!(looks, 2, "bytes were not what it waits for");
    }
}
