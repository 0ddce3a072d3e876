//! How much memory the frames of requests may have (`queued.max.request.bytes`). What they are decoded to is
//! [`crate::memory::decoded`]'s.
//!
//! A frame is counted as it comes, not by what it announces: who announces 100 MB and sends nothing has nothing. When nothing
//! is left, connections wait with what they have, and their peers with what they did not send. One of them at a time goes on
//! nevertheless, in a lane kept free for it, which is as long as the longest frame: so of frames that wait for each other's
//! memory there is always one that completes. What is not coming is not waited for: while others wait, the connection closes
//! whose peer sends nothing or next to nothing of a frame it began, or after a while less than [`RATE`] of it. A long one may take
//! long nevertheless, so those longer than [`LARGE`] share half of the memory, and wait for each other only.
//!
//! The first [`FREE`] bytes of every connection are not counted: small requests are served whatever the large ones do.
//! Called from connection tasks; a crash leaves nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// What each connection may have without asking.
pub(crate) const FREE: usize = 16 * 1024;
/// Longer frames have half of the memory, and others all they need at once after their first bytes. Those of ordinary producers
/// (`max.request.size`) are not so long.
pub(crate) const LARGE: usize = 2 << 20;
/// So many connections keep a buffer between two requests. Where there are more it is had anew for each: most of them are idle
/// at any time, and each has one read more then.
const KEEPERS: usize = 1000;
/// How long a peer may send nothing of a frame while others wait for memory.
pub(crate) const STALL: Duration = Duration::from_secs(5);
/// What it must send in a second then, at any time.
const LEAST_RATE: u64 = 16 * 1024;
/// How long it may be slower than others like while they wait, and what must have come for each second beyond that.
const TIME: Duration = Duration::from_secs(10);
const RATE: u64 = 1 << 20;
/// What all responses may have that found no memory left.
const BEYOND: usize = 16 << 20;
/// What is worth giving back to the operating system when it is not had any more.
const EBB: usize = 32 << 20;

/// The memory of all connections' frames.
pub(crate) struct RequestMemory {
    shared: Arc<Semaphore>,
    /// What large frames may have of it.
    large: Arc<Semaphore>,
    /// What there is when nobody has any.
    whole: usize,
    /// Of responses that found nothing left.
    beyond: Arc<Semaphore>,
    lane: Arc<Mutex<()>>,
    waiting: AtomicUsize,
    /// Connections that read.
    readers: AtomicUsize,
    tide: Tide,
}

/// What one request has of it; given back when it is dropped.
#[derive(Default)]
pub(crate) struct Charge {
    permit: Option<OwnedSemaphorePermit>,
    /// The same of what large frames may have, if it is one.
    large: Held,
    lane: Option<OwnedMutexGuard<()>>,
}

impl Charge {
    /// Whether it is nothing.
    pub(crate) fn is_free(&self) -> bool {
        self.bytes() == 0 && self.lane.is_none()
    }

    /// Lets the next one into the lane, for a request that has come but may have to wait for others to come.
    pub(crate) fn leave_lane(&mut self) {
        self.lane = None;
    }

    /// What is given to somebody else of it; less, if it does not have as much.
    pub(crate) fn split(&mut self, bytes: usize) -> Self {
        let bytes = bytes.min(self.bytes());
        let permit = self.permit.as_mut().filter(|_| bytes > 0);
        Self {
            permit: permit.and_then(|permit| permit.split(bytes)),
            ..Self::default()
        }
    }

    fn add(&mut self, permit: OwnedSemaphorePermit, large: Held) {
        for (held, more) in [(&mut self.permit, Some(permit)), (&mut self.large, large)] {
            match (held.as_mut(), more) {
                (Some(held), Some(more)) => held.merge(more),
                (None, more) => *held = more,
                (Some(_), None) => {}
            }
        }
    }

    fn bytes(&self) -> usize {
        let permits = self.permit.as_ref();
        permits.map_or(0, OwnedSemaphorePermit::num_permits)
    }
}

/// What a request has of some other memory than its frame's; given back when it is dropped.
pub(crate) type Held = Option<OwnedSemaphorePermit>;

/// Waits for so much of it.
pub(crate) async fn hold(memory: &Arc<Semaphore>, permits: usize) -> Held {
    let permits = u32::try_from(permits).unwrap_or(u32::MAX);
    // Nobody closes the semaphore.
    Arc::clone(memory).acquire_many_owned(permits).await.ok()
}

/// The same without waiting: nothing, if there is not so much left.
pub(crate) fn try_hold(memory: &Arc<Semaphore>, permits: usize) -> Held {
    let permits = u32::try_from(permits).unwrap_or(u32::MAX);
    Arc::clone(memory).try_acquire_many_owned(permits).ok()
}

/// How a frame comes.
pub(crate) struct Progress {
    /// How much came, and since when: of late, so that what came at once is no credit for later.
    since: Instant,
    bytes: u64,
    /// The same since others wait.
    waited_for: Option<(Instant, u64)>,
}

impl Progress {
    /// From now on.
    pub(crate) fn start() -> Self {
        Self {
            since: Instant::now(),
            bytes: 0,
            waited_for: None,
        }
    }

    pub(crate) fn add(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        if let Some((_, came)) = &mut self.waited_for {
            *came += bytes as u64;
        }
    }

    /// Whether others who wait need not wait for the rest. To be asked after each read, and at least every [`STALL`].
    pub(crate) fn is_slow(&mut self, others_wait: bool) -> bool {
        let now = Instant::now();
        let elapsed = now - self.since;
        let mut is_slow = false;
        if elapsed >= STALL {
            is_slow = u128::from(self.bytes) * 1000 < elapsed.as_millis() * u128::from(LEAST_RATE);
            (self.since, self.bytes) = (now, 0);
        }
        if !others_wait {
            self.waited_for = None;
            return false;
        }
        let (since, came) = *self.waited_for.get_or_insert((now, 0));
        let late = (now - since).saturating_sub(TIME);
        is_slow || u128::from(came) * 1000 < late.as_millis() * u128::from(RATE)
    }
}

/// What a response has of the memory.
pub(crate) enum Cover {
    /// As much as it takes.
    Enough(Held),
    /// What was left, and a place among the few that find none.
    Beyond([Held; 2]),
    /// There is no such place.
    Nothing,
}

impl RequestMemory {
    /// `bytes` is what all requests may have, the longest of which has `frame_max`; `None` is no limit.
    pub(crate) fn new(bytes: Option<usize>, frame_max: usize) -> Self {
        let whole = bytes.map_or(Semaphore::MAX_PERMITS, |bytes| bytes - frame_max);
        let whole = whole.min(Semaphore::MAX_PERMITS);
        Self {
            shared: Arc::new(Semaphore::new(whole)),
            large: Arc::new(Semaphore::new(whole / 2)),
            whole,
            beyond: Arc::new(Semaphore::new(BEYOND)),
            lane: Arc::default(),
            waiting: AtomicUsize::new(0),
            readers: AtomicUsize::new(0),
            tide: Tide::default(),
        }
    }

    /// A connection comes that reads frames.
    pub(crate) fn enter(&self) {
        self.readers.fetch_add(1, Ordering::Relaxed);
        self.risen();
    }

    /// It is gone.
    pub(crate) fn leave(&self) {
        self.readers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Waits until a connection may have a buffer of so many bytes, the free ones included, for a frame that is so long. True: it
    /// had to wait.
    pub(crate) async fn grow(&self, charge: &mut Charge, capacity: usize, frame: usize) -> bool {
        let missing = capacity.saturating_sub(FREE + charge.bytes());
        if missing == 0 || charge.lane.is_some() {
            return false;
        }
        self.risen();
        let is_large = frame > LARGE;
        let large = is_large.then(|| try_hold(&self.large, missing));
        if !matches!(large, Some(None))
            && let Some(permit) = try_hold(&self.shared, missing)
        {
            charge.add(permit, large.flatten());
            return false;
        }
        drop(large);
        let _waits = Waits::new(&self.waiting);
        let room = async {
            let large = match is_large {
                true => hold(&self.large, missing).await,
                false => None,
            };
            (hold(&self.shared, missing).await, large)
        };
        tokio::select! {
            biased;
            (Some(permit), large) = room => charge.add(permit, large),
            turn = Arc::clone(&self.lane).lock_owned() => charge.lane = Some(turn),
        }
        true
    }

    /// The same without waiting, for what a connection would like to have but does not need: false when it may not. It leaves
    /// most of the memory to those who need it.
    pub(crate) fn try_grow(&self, charge: &mut Charge, capacity: usize) -> bool {
        let missing = capacity.saturating_sub(FREE + charge.bytes());
        if missing == 0 {
            return true;
        }
        let available = self.shared.available_permits();
        let Ok(wanted) = u32::try_from(missing) else {
            return false;
        };
        if available.saturating_sub(missing) < self.mostly() {
            return false;
        }
        match Arc::clone(&self.shared).try_acquire_many_owned(wanted) {
            Ok(permit) => charge.add(permit, None),
            Err(_) => return false,
        }
        true
    }

    /// So much is left to those who need it.
    fn mostly(&self) -> usize {
        self.whole / 4 * 3
    }

    /// What a response of so many bytes has of it until it is sent: first of what its request had, as it says about as much.
    pub(crate) fn cover(&self, charge: &mut Charge, bytes: usize) -> Cover {
        let part = charge.split(bytes);
        let missing = bytes - part.bytes();
        if missing == 0 {
            return Cover::Enough(part.permit);
        }
        match (part.permit, try_hold(&self.shared, missing)) {
            (Some(mut held), Some(more)) => {
                held.merge(more);
                Cover::Enough(Some(held))
            }
            (None, Some(held)) => Cover::Enough(Some(held)),
            // One that is longer than all of them may be is alone.
            (part, None) => match try_hold(&self.beyond, missing.min(BEYOND)) {
                Some(place) => Cover::Beyond([part, Some(place)]),
                None => Cover::Nothing,
            },
        }
    }

    /// As [`Tide::has_ebbed`].
    pub(crate) fn has_ebbed(&self) -> bool {
        self.tide.has_ebbed(self.had())
    }

    fn risen(&self) {
        self.tide.risen(self.had());
    }

    /// What all may have: what is counted, and what every connection has without asking.
    fn had(&self) -> usize {
        let counted = self.whole - self.shared.available_permits();
        counted + self.readers.load(Ordering::Relaxed) * FREE
    }

    /// Whether somebody waits.
    pub(crate) fn is_short(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Whether a connection may keep its buffer for the next frame: not while others could need it, or are too many to keep
    /// theirs.
    pub(crate) fn may_keep(&self, charge: &Charge) -> bool {
        charge.lane.is_none()
            && self.readers.load(Ordering::Relaxed) <= KEEPERS
            && self.shared.available_permits() >= self.mostly()
    }
}

/// The most bytes there were of something at a time, of late.
#[derive(Default)]
pub(crate) struct Tide(AtomicUsize);

impl Tide {
    /// There are so many now.
    pub(crate) fn risen(&self, now: usize) {
        self.0.fetch_max(now, Ordering::Relaxed);
    }

    /// Whether there are so much fewer now than at some time since this was last true that the allocator should give them back.
    pub(crate) fn has_ebbed(&self, now: usize) -> bool {
        let ebbs = self.0.load(Ordering::Relaxed).saturating_sub(now) >= EBB;
        if ebbs {
            self.0.store(now, Ordering::Relaxed);
        }
        ebbs
    }
}

/// One who waits, until it does not any more in whatever way.
struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
impl RequestMemory {
    pub(crate) fn used(&self) -> usize {
        self.whole - self.shared.available_permits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match future.poll(&mut context) {
            std::task::Poll::Ready(value) => Some(value),
            std::task::Poll::Pending => None,
        }
    }

    // If this failed, frames that wait for each other's memory would wait for ever, or more would be had than there is.
    #[test]
    fn one_goes_on_when_nothing_is_left() {
        let memory = RequestMemory::new(Some(300), 100);
        let mut charges: [Charge; 4] = Default::default();
        for charge in &mut charges[..2] {
            assert!(poll(std::pin::pin!(memory.grow(charge, FREE + 100, 100))).is_some());
            assert!(charge.lane.is_none());
        }
        let [first, _, third, fourth] = &mut charges;
        assert!(!memory.may_keep(first));
        assert!(poll(std::pin::pin!(memory.grow(third, FREE + 100, 100))).is_some());
        assert!(third.lane.is_some() && third.bytes() == 0);
        {
            let mut waits = std::pin::pin!(memory.grow(fourth, FREE + 100, 100));
            assert!(poll(waits.as_mut()).is_none());
            assert!(memory.is_short());
            *first = Charge::default();
            assert_eq!(poll(waits), Some(true));
        }
        assert!(!memory.is_short());
        assert!(fourth.bytes() == 100 && fourth.lane.is_none());
        // What is free needs nothing, and what one has counts.
        let none = &mut Charge::default();
        assert!(poll(std::pin::pin!(memory.grow(none, FREE, 0))).is_some());
        assert!(poll(std::pin::pin!(memory.grow(fourth, FREE + 50, 50))).is_some());
        drop(charges);
        assert_eq!(memory.used(), 0);
    }

    // If this failed, a crowd that lets large frames drip would keep every producer waiting.
    #[test]
    fn large_frames_leave_half_to_the_others() {
        const MIB: usize = 1 << 20;
        let memory = RequestMemory::new(Some(28 * MIB), 4 * MIB);
        let grow = |frame| {
            let mut charge = Charge::default();
            let is_let_in = poll(std::pin::pin!(memory.grow(&mut charge, FREE + MIB, frame))).is_some();
            (is_let_in, charge)
        };
        let mut held: Vec<_> = (0..13).map(|_| grow(3 * MIB)).collect();
        assert!(held.iter().all(|(is_let_in, _)| *is_let_in));
        assert!(held[..12].iter().all(|(_, charge)| charge.lane.is_none()));
        assert!(held[12].1.lane.is_some());
        assert!(!grow(3 * MIB).0);
        held.extend((0..12).map(|_| grow(2 * MIB)));
        let small = &held[13..];
        assert!(
            small
                .iter()
                .all(|(is_let_in, charge)| *is_let_in && charge.lane.is_none())
        );
        assert!(!grow(2 * MIB).0);
        held.clear();
        assert_eq!(memory.used(), 0);
        assert_eq!(memory.large.available_permits(), 12 * MIB);
    }

    // If this failed, what a crowd had of memory would stay with the process, or it would be given back again and again.
    #[test]
    fn what_a_crowd_had_is_given_back_once() {
        let memory = RequestMemory::new(Some(96 << 20), 100);
        let crowd = EBB / FREE;
        (0..=crowd).for_each(|_| memory.enter());
        assert!(!memory.has_ebbed());
        (0..crowd).for_each(|_| memory.leave());
        assert!(memory.has_ebbed());
        assert!(!memory.has_ebbed());
        let mut charges: Vec<Charge> = (0..2).map(|_| Charge::default()).collect();
        for charge in &mut charges {
            assert!(poll(std::pin::pin!(memory.grow(charge, FREE + EBB, 100))).is_some());
        }
        let more = &mut Charge::default();
        assert!(poll(std::pin::pin!(memory.grow(more, FREE + 100, 100))).is_some());
        charges.clear();
        assert!(memory.has_ebbed());
        assert!(!memory.has_ebbed());
    }

    // If this failed, answers would be counted twice or not at all, or there would be any number of them that are not.
    #[test]
    fn a_response_has_what_its_request_had_and_more_if_there_is() {
        let memory = RequestMemory::new(Some(300), 100);
        let mut charge = Charge::default();
        assert!(poll(std::pin::pin!(memory.grow(&mut charge, FREE + 100, 100))).is_some());
        let shorter = memory.cover(&mut charge, 60);
        assert!(matches!(&shorter, Cover::Enough(Some(_))));
        assert!(charge.bytes() == 40 && memory.used() == 100);
        let longer = memory.cover(&mut charge, 140);
        assert!(matches!(&longer, Cover::Enough(Some(_))));
        assert!(charge.bytes() == 0 && memory.used() == 200);
        let beyond = memory.cover(&mut charge, BEYOND - 1);
        assert!(matches!(&beyond, Cover::Beyond([None, Some(_)])));
        assert!(matches!(memory.cover(&mut charge, 2), Cover::Nothing));
        drop(beyond);
        let alone = memory.cover(&mut charge, 2 * BEYOND);
        assert!(matches!(alone, Cover::Beyond(_)));
        assert!(matches!(memory.cover(&mut charge, 1), Cover::Nothing));
        drop((shorter, longer, alone));
        assert_eq!(memory.used(), 0);
        assert_eq!(memory.beyond.available_permits(), BEYOND);
    }

    // If this failed, who sends most of a large frame at once and then a byte now and then would keep everybody waiting, or
    // everybody would be cut off like that.
    #[tokio::test(start_paused = true)]
    async fn what_came_at_once_is_no_credit() {
        let second = Duration::from_secs(1);
        let mut dripping = Progress::start();
        dripping.add(100 << 20);
        for _ in 0..100 {
            tokio::time::advance(4 * second).await;
            dripping.add(1);
            assert!(!dripping.is_slow(false));
        }
        let begun = Instant::now();
        while !dripping.is_slow(true) {
            tokio::time::advance(4 * second).await;
            dripping.add(1);
        }
        assert!(begun.elapsed() <= 2 * STALL);

        // Fast enough for a while: one megabyte comes in its time, a hundred do not, and that is known soon.
        let begun = Instant::now();
        for (megabytes, is_in_time) in [(1, true), (100, false)] {
            let mut steady = Progress::start();
            let mut missing: usize = megabytes << 20;
            while missing > 0 && !steady.is_slow(true) {
                tokio::time::advance(second).await;
                let piece = missing.min(128 << 10);
                steady.add(piece);
                missing -= piece;
            }
            assert_eq!(missing == 0, is_in_time, "{megabytes} MiB");
        }
        assert!(begun.elapsed() <= 3 * TIME);
    }
}
