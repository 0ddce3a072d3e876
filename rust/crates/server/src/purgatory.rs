//! Where a long poll waits for an append.
//!
//! Every partition has a waiting room. A Fetch that has too little to answer enters the rooms of its partitions, looks once
//! more (an append may have come in between), and sleeps until the rooms' appends add up to what it misses, until its
//! time is over or until the server stops. Nothing polls. Source of the semantics: `DelayedFetch`.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// One long poll.
pub(crate) struct Waiter {
    id: u64,
    /// Bytes that must still be appended before looking again pays.
    missing: AtomicI64,
    wake: Notify,
}

impl Waiter {
    pub(crate) fn new() -> Arc<Self> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        Arc::new(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            missing: AtomicI64::new(0),
            wake: Notify::new(),
        })
    }

    /// Says how many bytes are missing, before the last look: appends from here on count.
    pub(crate) fn expect(&self, bytes: u64) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.missing.store(bytes, Ordering::SeqCst);
    }

    /// Takes off what the look found to be there already.
    pub(crate) fn relax(&self, bytes: u64) {
        self.appended(bytes);
    }

    /// Returns once enough was appended or something changed that must be answered. A wake before the call counts.
    pub(crate) async fn woken(&self) {
        self.wake.notified().await;
    }

    fn appended(&self, bytes: u64) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        if self.missing.fetch_sub(bytes, Ordering::SeqCst) <= bytes {
            self.wake.notify_one();
        }
    }
}

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

    /// Wakes everyone: the partition was deleted or its leader changed.
    pub(crate) fn wake_all(&self) {
        for waiter in self.0.lock().values() {
            waiter.wake.notify_one();
        }
    }

    fn enter(&self, waiter: &Arc<Waiter>) {
        self.0.lock().insert(waiter.id, Arc::clone(waiter));
    }

    fn leave(&self, waiter: &Waiter) {
        self.0.lock().remove(&waiter.id);
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
pub(crate) struct Stay<P: HasWaitingRoom> {
    waiter: Arc<Waiter>,
    places: Vec<Arc<P>>,
}

impl<P: HasWaitingRoom> Stay<P> {
    pub(crate) fn enter(waiter: &Arc<Waiter>, places: Vec<Arc<P>>) -> Self {
        for place in &places {
            place.waiting_room().enter(waiter);
        }
        Self {
            waiter: Arc::clone(waiter),
            places,
        }
    }
}

impl<P: HasWaitingRoom> Drop for Stay<P> {
    fn drop(&mut self) {
        for place in &self.places {
            place.waiting_room().leave(&self.waiter);
        }
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

    // If this failed, a long poll would wake for every append (or for none), and a finished one would stay behind.
    #[test]
    fn a_waiter_wakes_when_its_bytes_are_there_and_leaves_nothing_behind() {
        let places = [
            Arc::new(Place(WaitingRoom::default())),
            Arc::new(Place(WaitingRoom::default())),
        ];
        let waiter = Waiter::new();
        waiter.expect(100);
        let stay = Stay::enter(&waiter, places.to_vec());
        places[0].0.appended(60);
        assert!(!is_woken(&waiter));
        places[1].0.appended(40);
        assert!(is_woken(&waiter));
        assert!(!is_woken(&waiter));
        places[0].0.wake_all();
        assert!(is_woken(&waiter));
        drop(stay);
        assert!(places.iter().all(|place| place.0.is_empty()));
    }
}
