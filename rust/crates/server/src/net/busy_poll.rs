//! Staying awake for a request that is likely to come at once.
//!
//! A thread that sleeps is woken tens of microseconds after its socket has bytes, longer than a small request takes; on a
//! virtual machine the processor itself has to be woken. A client that sends its next request as soon as it has an answer is
//! worth staying awake for: its connection looks again and again for up to `socket.busy.poll.us`, as long as the client is
//! that quick. One connection at a time does so, and the thread's other connections move in between, so it costs at most the
//! time of one processor, and none on a broker whose clients take their time. Between two looks whoever waits for this
//! processor has it: the client itself may, and would wait for the end of the vigil. The runtime is not told of the socket
//! meanwhile ([`crate::net::transport`]), or what comes would wake another of its threads as well. Where processors are short
//! nobody stays awake: it would use up the thread's turn, and others have better use for it. The same for network cards is
//! Linux's `net.core.busy_poll`.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::task::yield_now;

/// Between two looks there are a few microseconds. What takes so much longer is somebody else's turn on the processor, or a
/// connection of this thread that has much to do; a virtual machine is interrupted often, but for less.
const INTERRUPTED: Duration = Duration::from_micros(500);
/// For so many times as long nobody stays awake after that, and for twice that where it was so the last time, but no longer than
/// [`REST_MAX`].
const REST: u32 = 20;
const REST_MAX: Duration = Duration::from_secs(1);
/// How long the thread's other connections wait for one that is waited for. Each turn costs a wake-up: tokio has another thread see
/// whether there is more to do.
const TURN: Duration = Duration::from_micros(50);

/// Who stays awake: one at a time.
pub(crate) struct Vigil {
    opened: Instant,
    interrupted: Duration,
    is_kept: AtomicBool,
    /// Nanoseconds since it was opened.
    rests_until: AtomicU64,
    /// Interruptions one after the other.
    interruptions: AtomicU32,
}

impl Default for Vigil {
    fn default() -> Self {
        Self::new(INTERRUPTED)
    }
}

/// What a connection knows of how quick its client is.
#[derive(Default)]
pub(crate) struct Pace {
    /// When it was answered last.
    answered: Option<Instant>,
    is_quick: bool,
    /// When the thread's other connections had their turn, if this one was waited for since.
    gave_way: Option<Instant>,
}

impl Pace {
    /// What was answered has been sent.
    pub(crate) fn answered(&mut self) {
        self.answered = Some(Instant::now());
    }

    /// Whether the last answer was sent within this time.
    pub(crate) fn answered_within(&self, time: Duration) -> bool {
        self.answered.is_some_and(|answered| answered.elapsed() <= time)
    }

    /// A request has come.
    pub(crate) fn asked(&mut self, limit: Duration) {
        let answered = self.answered.take();
        self.is_quick = answered.is_some_and(|answered| answered.elapsed() <= limit);
    }
}

impl Vigil {
    /// `interrupted` is what is taken for an interruption between two looks.
    fn new(interrupted: Duration) -> Self {
        Self {
            opened: Instant::now(),
            interrupted,
            is_kept: AtomicBool::new(false),
            rests_until: AtomicU64::new(0),
            interruptions: AtomicU32::new(0),
        }
    }

    /// The right to stay awake, if the client is known to be quick and nobody else is waited for.
    pub(crate) fn keep(&self, pace: &Pace) -> Option<Kept<'_>> {
        if !pace.is_quick || self.rests() || self.is_kept.swap(true, Ordering::Relaxed) {
            return None;
        }
        Some(Kept(self))
    }

    fn rest(&self, interruption: Duration) {
        let before = self.interruptions.fetch_add(1, Ordering::Relaxed);
        let times = REST.saturating_mul(2u32.saturating_pow(before));
        let until = self.opened.elapsed() + interruption.saturating_mul(times).min(REST_MAX);
        self.rests_until
            .fetch_max(until.as_nanos() as u64, Ordering::Relaxed);
    }

    fn rests(&self) -> bool {
        let until = self.rests_until.load(Ordering::Relaxed);
        until > 0 && (self.opened.elapsed().as_nanos() as u64) < until
    }
}

/// What can be had without waiting.
pub(crate) async fn poll_once<R>(mut work: Pin<&mut impl Future<Output = R>>) -> Option<R> {
    std::future::poll_fn(|context| {
        Poll::Ready(match work.as_mut().poll(context) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        })
    })
    .await
}

/// Somebody's vigil, until it ends in whatever way.
pub(crate) struct Kept<'a>(&'a Vigil);

impl Kept<'_> {
    /// What comes within `limit`. `work` is asked again and again. If it looks `directly` it need not tell when it may have
    /// something; else it hears of it from the runtime, which has a turn between two looks.
    pub(crate) async fn await_soon<R>(
        self,
        pace: &mut Pace,
        directly: bool,
        limit: Duration,
        work: impl Future<Output = R>,
    ) -> Option<R> {
        let mut work = std::pin::pin!(work);
        let begun = Instant::now();
        let mut looked = begun;
        let mut gave_way = pace.gave_way.take().unwrap_or(begun);
        loop {
            let found = poll_once(work.as_mut()).await;
            let now = Instant::now();
            let is_first = looked == begun;
            if found.is_some() {
                // What came while somebody else had the processor waited for that.
                if !is_first && now - looked >= self.0.interrupted {
                    self.0.rest(now - looked);
                } else if self.0.interruptions.load(Ordering::Relaxed) > 0 {
                    self.0.interruptions.store(0, Ordering::Relaxed);
                }
                pace.gave_way = Some(gave_way);
                return found;
            }
            if now - looked >= self.0.interrupted {
                self.0.rest(now - looked);
                return None;
            }
            if now - begun >= limit {
                return None;
            }
            looked = now;
            if !directly || now - gave_way >= TURN {
                yield_now().await;
                gave_way = now;
            }
            // Whoever waits for this processor has it first: it may be the client.
            std::thread::yield_now();
        }
    }
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        self.0.is_kept.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    fn quick() -> Pace {
        let mut pace = Pace::default();
        pace.answered();
        pace.asked(LONG);
        pace
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(future)
    }

    /// Pending so often, then done.
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

    async fn await_soon<R>(
        vigil: &Vigil,
        pace: &Pace,
        limit: Duration,
        work: impl Future<Output = R>,
    ) -> Option<R> {
        let mut pace = Pace { ..*pace };
        let kept = vigil.keep(&pace)?;
        kept.await_soon(&mut pace, true, limit, work).await
    }

    // If this failed, threads would stay awake for clients that take their time, or sleep while a quick one asks.
    #[test]
    fn only_the_quick_are_waited_for() {
        let vigil = Vigil::new(LONG);
        let mut slow = quick();
        slow.answered();
        slow.asked(Duration::ZERO);
        let mut silent = quick();
        silent.asked(LONG);
        for (pace, expected) in [
            (quick(), Some(101)),
            (slow, None),
            (silent, None),
            (Pace::default(), None),
        ] {
            let found = block_on(await_soon(&vigil, &pace, LONG, after(100)));
            assert_eq!(found, expected);
        }
    }

    // If this failed, every thread could be awake for nothing, or nobody would be waited for again.
    #[test]
    fn one_at_a_time_and_not_for_ever() {
        let vigil = Vigil::new(LONG);
        block_on(async {
            let pace = quick();
            let never = std::future::pending::<()>;
            {
                let (kept, mut first_pace) = (vigil.keep(&pace).unwrap(), quick());
                // It gives way after its first look.
                let first = kept.await_soon(&mut first_pace, false, LONG, never());
                let mut first = std::pin::pin!(first);
                assert_eq!(poll_once(first.as_mut()).await, None);
                assert_eq!(await_soon(&vigil, &pace, LONG, after(1)).await, None);
            }
            assert_eq!(await_soon(&vigil, &pace, Duration::ZERO, never()).await, None);
            assert_eq!(await_soon(&vigil, &pace, LONG, after(1)).await, Some(2));
        });
    }

    // If this failed, one quick client would keep all others of its thread waiting.
    #[test]
    fn others_have_their_turn() {
        let vigil = Vigil::new(LONG);
        block_on(async {
            let (turn, mut came) = tokio::sync::oneshot::channel();
            tokio::spawn(async { turn.send(()).unwrap() });
            let work = std::future::poll_fn(|_| match came.try_recv() {
                Ok(()) => Poll::Ready(()),
                Err(_) => Poll::Pending,
            });
            let limit = Duration::from_secs(20);
            assert_eq!(await_soon(&vigil, &quick(), limit, work).await, Some(()));
        });
    }

    // If this failed, a thread would stay awake where others need the processor, and be put to sleep when it is asked.
    #[test]
    fn nobody_stays_awake_after_an_interruption() {
        let vigil = Vigil::new(Duration::ZERO);
        block_on(async {
            assert_eq!(await_soon(&vigil, &quick(), LONG, after(0)).await, Some(1));
            assert_eq!(await_soon(&vigil, &quick(), LONG, after(1)).await, None);
            vigil.rest(LONG);
            assert_eq!(await_soon(&vigil, &quick(), LONG, after(0)).await, None);
        });
    }

    // If this failed, somebody who computes all the time would have its slice of the processor again and again, while the
    // thread's other connections wait.
    #[test]
    fn who_is_interrupted_again_rests_longer() {
        let interrupted = Duration::from_millis(2);
        let vigil = Vigil::new(interrupted);
        let interruptions = || vigil.interruptions.load(Ordering::Relaxed);
        // Found after the processor was somebody else's.
        let mut looks = 0;
        let work = std::future::poll_fn(|_| {
            looks += 1;
            if looks == 1 {
                return Poll::Pending;
            }
            std::thread::sleep(interrupted);
            Poll::Ready(())
        });
        assert_eq!(block_on(await_soon(&vigil, &quick(), LONG, work)), Some(()));
        assert!(interruptions() == 1 && vigil.rests_until.load(Ordering::Relaxed) > 0);
        let rest = || {
            let before = vigil.opened.elapsed();
            vigil.rests_until.store(0, Ordering::Relaxed);
            vigil.rest(Duration::from_millis(1));
            let until = Duration::from_nanos(vigil.rests_until.load(Ordering::Relaxed));
            assert!(until <= vigil.opened.elapsed() + REST_MAX);
            until - before
        };
        for times in [2, 4, 8] {
            assert!(rest() >= times * Duration::from_millis(REST.into()));
        }
        for _ in 0..40 {
            rest();
        }
        assert!(rest() >= REST_MAX);
        vigil.rests_until.store(0, Ordering::Relaxed);
        let vigil = Vigil {
            interrupted: LONG,
            ..vigil
        };
        assert_eq!(block_on(await_soon(&vigil, &quick(), LONG, after(5))), Some(6));
        assert_eq!(vigil.interruptions.load(Ordering::Relaxed), 0);
    }
}
