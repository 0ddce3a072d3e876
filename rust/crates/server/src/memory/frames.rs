//! The memory of request frames (`queued.max.request.bytes`) and of their responses.
//!
//! A frame is counted as its bytes arrive, not by its announced length. When the budget is used up,
//! connections wait, and so do their clients. One connection at a time goes on with the reserve, which is as
//! large as the longest frame: of frames that wait for each other's memory, one always completes.
//!
//! While others wait, a connection is closed if its peer sends next to nothing of a frame, or after a while
//! less than [`RATE`]. Long frames may be slow nevertheless, so they share half of the budget and wait only
//! for each other.
//!
//! Called from connection tasks; a crash leaves nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::memory::budget::{Peak, Permit};
use crate::memory::{Budgets, UNCOUNTED};

/// Frames above this are long. Those of ordinary producers (`max.request.size`) are not.
pub(crate) const LONG_FRAME: usize = 2 << 20;
/// While there are no more connections than this, each keeps its buffer between two requests. Above it, most
/// are idle at any time, and each request needs one more read.
const CONNECTIONS_WITH_BUFFERS: usize = 1000;
/// How long a peer may send next to nothing of a frame while others wait for memory.
pub(crate) const STALL: Duration = Duration::from_secs(5);
/// What it must send in a second then.
const LEAST_RATE: u64 = 16 * 1024;
/// How long a peer may be slower than [`RATE`] while others wait.
const TIME: Duration = Duration::from_secs(10);
/// What it must have sent for each second after that.
const RATE: u64 = 1 << 20;

pub(crate) struct FrameMemory {
    budgets: Arc<Budgets>,
    waiting: AtomicUsize,
    connections: AtomicUsize,
    /// The bytes that connections use without a permit.
    uncounted: Peak,
}

/// A frame's share of the memory, given back when it is dropped.
#[derive(Default)]
pub(crate) struct FramePermit {
    bytes: Permit,
    /// As many bytes of the budget for long frames, if it is one.
    long: Permit,
    reserve: Permit,
}

impl FramePermit {
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.count() == 0 && !self.has_reserve()
    }

    /// Gives back the reserve. A request that has arrived may have to wait for others to arrive.
    pub(crate) fn return_reserve(&mut self) {
        self.reserve = Permit::default();
    }

    pub(crate) fn split(&mut self, bytes: usize) -> Self {
        Self {
            bytes: self.bytes.split(bytes),
            ..Self::default()
        }
    }

    fn has_reserve(&self) -> bool {
        self.reserve.is_some()
    }
}

pub(crate) struct Progress {
    /// The bytes that arrived since a recent time. A fast beginning is no credit for later.
    since: Instant,
    bytes: u64,
    /// The same since others wait.
    waited_for: Option<(Instant, u64)>,
}

impl Progress {
    pub(crate) fn start() -> Self {
        Self {
            since: Instant::now(),
            bytes: 0,
            waited_for: None,
        }
    }

    pub(crate) fn add(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        if let Some((_, arrived)) = &mut self.waited_for {
            *arrived += bytes as u64;
        }
    }

    /// Whether the rest is too slow for the connections that wait for memory. To be called after each read,
    /// and at least every [`STALL`].
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
        let (since, arrived) = *self.waited_for.get_or_insert((now, 0));
        let late = (now - since).saturating_sub(TIME);
        is_slow || u128::from(arrived) * 1000 < late.as_millis() * u128::from(RATE)
    }
}

pub(crate) enum ResponsePermit {
    /// All of it is frame memory.
    Frames(Permit),
    /// Frame memory as far as there is some, and the rest from the overflow.
    Overflow([Permit; 2]),
}

impl FrameMemory {
    pub(crate) fn new(budgets: Arc<Budgets>) -> Self {
        Self {
            budgets,
            waiting: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            uncounted: Peak::default(),
        }
    }

    pub(crate) fn enter(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.uncounted.note(self.uncounted_bytes());
    }

    pub(crate) fn leave(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Waits until a connection may have a buffer of `capacity` bytes, the uncounted ones included, for a
    /// frame of `frame` bytes. Returns whether it had to wait.
    pub(crate) async fn grow(&self, permit: &mut FramePermit, capacity: usize, frame: usize) -> bool {
        let missing = capacity.saturating_sub(UNCOUNTED + permit.bytes.count());
        if missing == 0 || permit.has_reserve() {
            return false;
        }
        let Budgets {
            frames,
            long_frames,
            frame_reserve,
            ..
        } = &*self.budgets;
        let is_long = frame > LONG_FRAME;
        let long = if is_long {
            long_frames.try_acquire(missing)
        } else {
            Some(Permit::default())
        };
        if let Some(long) = long
            && let Some(bytes) = frames.try_acquire(missing)
        {
            permit.add(bytes, long);
            return false;
        }
        let _waiting = Waiting::new(&self.waiting);
        let memory = async {
            let long = if is_long {
                long_frames.acquire(missing).await
            } else {
                Permit::default()
            };
            (frames.acquire(missing).await, long)
        };
        tokio::select! {
            biased;
            (bytes, long) = memory => permit.add(bytes, long),
            reserve = frame_reserve.acquire(1) => permit.reserve = reserve,
        }
        true
    }

    /// As [`Self::grow`], for a larger buffer than a connection needs: it never waits, and leaves most of the
    /// memory to connections that need it. Returns whether the connection may have it.
    pub(crate) fn try_grow(&self, permit: &mut FramePermit, capacity: usize) -> bool {
        let missing = capacity.saturating_sub(UNCOUNTED + permit.bytes.count());
        if missing == 0 {
            return true;
        }
        let frames = &self.budgets.frames;
        if frames.left().saturating_sub(missing) < self.most() {
            return false;
        }
        let bytes = frames.try_acquire(missing);
        let may = bytes.is_some();
        permit.add(bytes.unwrap_or_default(), Permit::default());
        may
    }

    fn most(&self) -> usize {
        self.budgets.frames.size() / 4 * 3
    }

    /// The memory of a response of `bytes` until it is sent: first its request's share, because most
    /// responses are about as long.
    ///
    /// # Errors
    /// Why there is no memory for it.
    pub(crate) fn for_response(
        &self,
        permit: &mut FramePermit,
        bytes: usize,
    ) -> Result<ResponsePermit, String> {
        let mut part = permit.bytes.split(bytes);
        let missing = bytes - part.count();
        if missing == 0 {
            return Ok(ResponsePermit::Frames(part));
        }
        if let Some(more) = self.budgets.frames.try_acquire(missing) {
            part.merge(more);
            return Ok(ResponsePermit::Frames(part));
        }
        // One that is longer than the whole overflow takes all of it.
        let overflow = self.budgets.overflow.acquire_or_refuse(missing)?;
        Ok(ResponsePermit::Overflow([part, overflow]))
    }

    /// As [`Budgets::have_fallen`], of what connections use without a permit.
    pub(crate) fn has_fallen(&self) -> bool {
        self.uncounted.has_fallen_to(self.uncounted_bytes())
    }

    fn uncounted_bytes(&self) -> usize {
        self.connections.load(Ordering::Relaxed) * UNCOUNTED
    }

    pub(crate) fn is_short(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Whether a connection may keep its buffer for the next frame: not while others could need it, or there
    /// are too many.
    pub(crate) fn may_keep(&self, permit: &FramePermit) -> bool {
        !permit.has_reserve()
            && self.connections.load(Ordering::Relaxed) <= CONNECTIONS_WITH_BUFFERS
            && self.budgets.frames.left() >= self.most()
    }
}

impl FramePermit {
    fn add(&mut self, bytes: Permit, long: Permit) {
        self.bytes.merge(bytes);
        self.long.merge(long);
    }
}

/// Counts a connection that waits, until it is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
impl FrameMemory {
    pub(crate) fn with(request_memory: Option<usize>, frame_max: usize) -> Self {
        Self::new(Arc::new(Budgets::new(request_memory, frame_max)))
    }

    pub(crate) fn in_use(&self) -> usize {
        self.budgets.frames.size() - self.budgets.frames.left()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use super::*;

    const MIB: usize = 1 << 20;

    fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    fn grows(memory: &FrameMemory, permit: &mut FramePermit, counted: usize, frame: usize) -> bool {
        poll(pin!(memory.grow(permit, UNCOUNTED + counted, frame))).is_some()
    }

    // If this failed, frames that wait for each other's memory would wait for ever, or more would be used
    // than there is.
    #[test]
    fn one_connection_goes_on_when_no_memory_is_left() {
        let memory = FrameMemory::with(Some(300), 100);
        let mut permits: [FramePermit; 4] = Default::default();
        for permit in &mut permits[..2] {
            assert!(grows(&memory, permit, 100, 100) && !permit.has_reserve());
        }
        let [first, _, third, fourth] = &mut permits;
        assert!(!memory.may_keep(first));
        assert!(grows(&memory, third, 100, 100));
        assert!(third.has_reserve() && third.bytes.count() == 0);
        {
            let mut waits = pin!(memory.grow(fourth, UNCOUNTED + 100, 100));
            assert!(poll(waits.as_mut()).is_none());
            assert!(memory.is_short());
            *first = FramePermit::default();
            assert_eq!(poll(waits), Some(true));
        }
        assert!(!memory.is_short());
        assert!(fourth.bytes.count() == 100 && !fourth.has_reserve());
        // The uncounted bytes need no permit, and the permit of a connection counts.
        assert!(grows(&memory, &mut FramePermit::default(), 0, 0));
        assert!(grows(&memory, fourth, 50, 50));
        drop(permits);
        assert_eq!(memory.in_use(), 0);
    }

    // If this failed, many clients that send long frames slowly would make every producer wait.
    #[test]
    fn long_frames_leave_half_to_the_others() {
        let memory = FrameMemory::with(Some(28 * MIB), 4 * MIB);
        let grow = |frame| {
            let mut permit = FramePermit::default();
            (grows(&memory, &mut permit, MIB, frame), permit)
        };
        let mut held: Vec<_> = (0..13).map(|_| grow(3 * MIB)).collect();
        assert!(held.iter().all(|(has_grown, _)| *has_grown));
        assert!(held[..12].iter().all(|(_, permit)| !permit.has_reserve()));
        assert!(held[12].1.has_reserve());
        assert!(!grow(3 * MIB).0);
        held.extend((0..12).map(|_| grow(2 * MIB)));
        let short = &held[13..];
        assert!(
            short
                .iter()
                .all(|(has_grown, permit)| *has_grown && !permit.has_reserve())
        );
        assert!(!grow(2 * MIB).0);
        held.clear();
        assert_eq!(memory.in_use(), 0);
        assert_eq!(memory.budgets.long_frames.left(), 12 * MIB);
    }

    // If this failed, the buffers of many connections would stay with the process after they closed.
    #[test]
    fn memory_of_closed_connections_is_returned_once() {
        let memory = FrameMemory::with(Some(96 * MIB), 100);
        let many = 32 * MIB / UNCOUNTED;
        (0..=many).for_each(|_| memory.enter());
        assert!(!memory.has_fallen());
        (0..many).for_each(|_| memory.leave());
        assert!(memory.has_fallen() && !memory.has_fallen());
    }

    // If this failed, responses would be counted twice or not at all, or any number of them would be
    // uncounted.
    #[test]
    fn a_response_takes_its_requests_share_and_more_if_there_is_some() {
        let memory = FrameMemory::with(Some(300), 100);
        let mut permit = FramePermit::default();
        assert!(grows(&memory, &mut permit, 100, 100));
        let shorter = memory.for_response(&mut permit, 60);
        assert!(matches!(&shorter, Ok(ResponsePermit::Frames(_))));
        assert!(permit.bytes.count() == 40 && memory.in_use() == 100);
        let longer = memory.for_response(&mut permit, 140);
        assert!(matches!(&longer, Ok(ResponsePermit::Frames(_))));
        assert!(permit.bytes.count() == 0 && memory.in_use() == 200);
        let whole = memory.budgets.overflow.size();
        let overflow = memory.for_response(&mut permit, whole - 1);
        assert!(matches!(&overflow, Ok(ResponsePermit::Overflow(_))));
        assert!(memory.for_response(&mut permit, 2).is_err());
        drop(overflow);
        let alone = memory.for_response(&mut permit, 2 * whole);
        assert!(matches!(alone, Ok(ResponsePermit::Overflow(_))));
        assert!(memory.for_response(&mut permit, 1).is_err());
        drop((shorter, longer, alone));
        assert_eq!((memory.in_use(), memory.budgets.overflow.left()), (0, whole));
    }

    // If this failed, a client that sends most of a long frame at once and then a byte now and then would
    // make everybody wait, or every client would be cut off like that.
    #[tokio::test(start_paused = true)]
    async fn a_fast_beginning_is_no_credit() {
        let second = Duration::from_secs(1);
        let mut dripping = Progress::start();
        dripping.add(100 * MIB);
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

        // At 128 KiB a second, one megabyte arrives in its time. A hundred do not, and that is known soon.
        let begun = Instant::now();
        for (megabytes, is_in_time) in [(1, true), (100, false)] {
            let mut steady = Progress::start();
            let mut missing: usize = megabytes * MIB;
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
