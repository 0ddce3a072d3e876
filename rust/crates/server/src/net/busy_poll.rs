//! Busy polling: a thread looks for a quick client's next request instead of sleeping.
//!
//! A sleeping thread wakes tens of microseconds after its socket has bytes, which is longer than a small
//! request takes. On a virtual machine the processor itself has to wake. A client that sends its next request
//! as soon as it has a response is worth polling for: its connection looks again and again for up to
//! `socket.busy.poll.us`, while the client is that quick.
//!
//! One connection polls at a time, and between two looks the thread serves its other connections. So polling
//! costs at most the time of one processor, and nothing on a broker with slow clients. Between two looks the
//! thread also yields the processor: the client itself may be waiting for it. The runtime does not watch the
//! socket meanwhile ([`crate::net::transport`]), because arriving bytes would wake another of its threads.
//! Where processors are short, polling pauses. Linux's `net.core.busy_poll` does the same for network cards.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::task::yield_now;

/// Two polls are a few microseconds apart. A gap of this length means that another thread had the processor,
/// or that another connection of this thread had much to do. A virtual machine's usual interruptions are
/// shorter.
const INTERRUPTED: Duration = Duration::from_micros(500);
/// Polling pauses for so many times the length of an interruption. The pause doubles with each interruption
/// in a row, up to [`PAUSE_MAX`].
const PAUSE: u32 = 20;
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long the thread's other connections wait for one that polls. Each yield costs a wake-up, because tokio
/// lets another thread look for work.
const YIELD_AFTER: Duration = Duration::from_micros(50);

/// The right to poll, of one connection at a time.
pub(crate) struct BusyPoll {
    opened: Instant,
    interrupted: Duration,
    is_taken: AtomicBool,
    /// In nanoseconds since `opened`.
    paused_until: AtomicU64,
    interruptions: AtomicU32,
}

impl Default for BusyPoll {
    fn default() -> Self {
        Self::new(INTERRUPTED)
    }
}

/// How quick the client of a connection is.
#[derive(Default)]
pub(crate) struct Timing {
    responded: Option<Instant>,
    is_quick: bool,
    /// The time at which the connection last yielded to others, if it has polled since.
    yielded: Option<Instant>,
}

impl Timing {
    pub(crate) fn responded(&mut self) {
        self.responded = Some(Instant::now());
    }

    pub(crate) fn responded_within(&self, time: Duration) -> bool {
        self.responded
            .is_some_and(|responded| responded.elapsed() <= time)
    }

    /// A request arrived. Its client is quick if that is within `limit` of the last response.
    pub(crate) fn requested(&mut self, limit: Duration) {
        let responded = self.responded.take();
        self.is_quick = responded.is_some_and(|responded| responded.elapsed() <= limit);
    }
}

impl BusyPoll {
    /// `interrupted` is the time between two looks that counts as an interruption.
    fn new(interrupted: Duration) -> Self {
        Self {
            opened: Instant::now(),
            interrupted,
            is_taken: AtomicBool::new(false),
            paused_until: AtomicU64::new(0),
            interruptions: AtomicU32::new(0),
        }
    }

    /// The right to poll, if the client is quick and no other connection polls.
    pub(crate) fn begin(&self, timing: &Timing) -> Option<Polling<'_>> {
        if !timing.is_quick || self.is_paused() || self.is_taken.swap(true, Ordering::Relaxed) {
            return None;
        }
        Some(Polling(self))
    }

    fn pause(&self, interruption: Duration) {
        let before = self.interruptions.fetch_add(1, Ordering::Relaxed);
        let times = PAUSE.saturating_mul(2u32.saturating_pow(before));
        let until = self.opened.elapsed() + interruption.saturating_mul(times).min(PAUSE_MAX);
        self.paused_until
            .fetch_max(until.as_nanos() as u64, Ordering::Relaxed);
    }

    fn is_paused(&self) -> bool {
        let until = self.paused_until.load(Ordering::Relaxed);
        until > 0 && (self.opened.elapsed().as_nanos() as u64) < until
    }
}

/// The result of `work` if it is ready now.
pub(crate) async fn poll_once<R>(mut work: Pin<&mut impl Future<Output = R>>) -> Option<R> {
    std::future::poll_fn(|context| {
        Poll::Ready(match work.as_mut().poll(context) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        })
    })
    .await
}

/// A connection's right to poll, until it is dropped.
pub(crate) struct Polling<'a>(&'a BusyPoll);

impl Polling<'_> {
    /// The result of `work` if it is ready within `limit`. `direct` work looks at its socket itself. Other
    /// work depends on the runtime, which therefore runs between any two looks.
    pub(crate) async fn poll<R>(
        self,
        timing: &mut Timing,
        direct: bool,
        limit: Duration,
        work: impl Future<Output = R>,
    ) -> Option<R> {
        let mut work = std::pin::pin!(work);
        let begun = Instant::now();
        let mut looked = begun;
        let mut yielded = timing.yielded.take().unwrap_or(begun);
        loop {
            let found = poll_once(work.as_mut()).await;
            let now = Instant::now();
            let is_first = looked == begun;
            if found.is_some() {
                // A request that arrived during an interruption had to wait for its end.
                if !is_first && now - looked >= self.0.interrupted {
                    self.0.pause(now - looked);
                } else if self.0.interruptions.load(Ordering::Relaxed) > 0 {
                    self.0.interruptions.store(0, Ordering::Relaxed);
                }
                timing.yielded = Some(yielded);
                return found;
            }
            if now - looked >= self.0.interrupted {
                self.0.pause(now - looked);
                return None;
            }
            if now - begun >= limit {
                return None;
            }
            looked = now;
            if !direct || now - yielded >= YIELD_AFTER {
                yield_now().await;
                yielded = now;
            }
            // Another process that waits for this processor runs first: it may be the client.
            std::thread::yield_now();
        }
    }
}

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        self.0.is_taken.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    fn quick() -> Timing {
        let mut timing = Timing::default();
        timing.responded();
        timing.requested(LONG);
        timing
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(future)
    }

    fn after(polls: usize) -> impl Future<Output = usize> {
        let mut polled = 0;
        std::future::poll_fn(move |_| {
            polled += 1;
            if polled > polls {
                Poll::Ready(polled)
            } else {
                Poll::Pending
            }
        })
    }

    async fn poll<R>(
        busy_poll: &BusyPoll,
        timing: &Timing,
        limit: Duration,
        work: impl Future<Output = R>,
    ) -> Option<R> {
        let mut timing = Timing { ..*timing };
        let polling = busy_poll.begin(&timing)?;
        polling.poll(&mut timing, true, limit, work).await
    }

    // If this failed, threads would poll for slow clients, or sleep although a client is quick.
    #[test]
    fn only_quick_clients_are_polled_for() {
        let busy_poll = BusyPoll::new(LONG);
        let mut slow = quick();
        slow.responded();
        slow.requested(Duration::ZERO);
        let mut silent = quick();
        silent.requested(LONG);
        for (timing, expected) in [
            (quick(), Some(101)),
            (slow, None),
            (silent, None),
            (Timing::default(), None),
        ] {
            let found = block_on(poll(&busy_poll, &timing, LONG, after(100)));
            assert_eq!(found, expected);
        }
    }

    // If this failed, every thread could poll for nothing, or no connection could poll again.
    #[test]
    fn one_connection_polls_at_a_time_and_not_for_ever() {
        let busy_poll = BusyPoll::new(LONG);
        block_on(async {
            let timing = quick();
            let never = std::future::pending::<()>;
            {
                let (polling, mut first_timing) = (busy_poll.begin(&timing).unwrap(), quick());
                // It yields after its first look.
                let first = polling.poll(&mut first_timing, false, LONG, never());
                let mut first = std::pin::pin!(first);
                assert_eq!(poll_once(first.as_mut()).await, None);
                assert_eq!(poll(&busy_poll, &timing, LONG, after(1)).await, None);
            }
            assert_eq!(poll(&busy_poll, &timing, Duration::ZERO, never()).await, None);
            assert_eq!(poll(&busy_poll, &timing, LONG, after(1)).await, Some(2));
        });
    }

    // If this failed, a quick client would make all others of its thread wait.
    #[test]
    fn the_threads_other_connections_are_served() {
        let busy_poll = BusyPoll::new(LONG);
        block_on(async {
            let (turn, mut came) = tokio::sync::oneshot::channel();
            tokio::spawn(async { turn.send(()).unwrap() });
            let work = std::future::poll_fn(|_| match came.try_recv() {
                Ok(()) => Poll::Ready(()),
                Err(_) => Poll::Pending,
            });
            let limit = Duration::from_secs(20);
            assert_eq!(poll(&busy_poll, &quick(), limit, work).await, Some(()));
        });
    }

    // If this failed, a thread would poll although others need the processor, and be suspended when its
    // request arrives.
    #[test]
    fn polling_pauses_after_an_interruption() {
        let busy_poll = BusyPoll::new(Duration::ZERO);
        block_on(async {
            assert_eq!(poll(&busy_poll, &quick(), LONG, after(0)).await, Some(1));
            assert_eq!(poll(&busy_poll, &quick(), LONG, after(1)).await, None);
            busy_poll.pause(LONG);
            assert_eq!(poll(&busy_poll, &quick(), LONG, after(0)).await, None);
        });
    }

    // If this failed, a process that computes all the time would interrupt polling again and again, and the
    // thread's other connections would wait each time.
    #[test]
    fn repeated_interruptions_pause_for_longer() {
        let interrupted = Duration::from_millis(2);
        let busy_poll = BusyPoll::new(interrupted);
        let interruptions = || busy_poll.interruptions.load(Ordering::Relaxed);
        // Ready after an interruption.
        let mut looks = 0;
        let work = std::future::poll_fn(|_| {
            looks += 1;
            if looks == 1 {
                return Poll::Pending;
            }
            std::thread::sleep(interrupted);
            Poll::Ready(())
        });
        assert_eq!(block_on(poll(&busy_poll, &quick(), LONG, work)), Some(()));
        assert!(interruptions() == 1 && busy_poll.paused_until.load(Ordering::Relaxed) > 0);
        let pause = || {
            let before = busy_poll.opened.elapsed();
            busy_poll.paused_until.store(0, Ordering::Relaxed);
            busy_poll.pause(Duration::from_millis(1));
            let until = Duration::from_nanos(busy_poll.paused_until.load(Ordering::Relaxed));
            assert!(until <= busy_poll.opened.elapsed() + PAUSE_MAX);
            until - before
        };
        for times in [2, 4, 8] {
            assert!(pause() >= times * Duration::from_millis(PAUSE.into()));
        }
        for _ in 0..40 {
            pause();
        }
        assert!(pause() >= PAUSE_MAX);
        busy_poll.paused_until.store(0, Ordering::Relaxed);
        let busy_poll = BusyPoll {
            interrupted: LONG,
            ..busy_poll
        };
        assert_eq!(block_on(poll(&busy_poll, &quick(), LONG, after(5))), Some(6));
        assert_eq!(busy_poll.interruptions.load(Ordering::Relaxed), 0);
    }
}
