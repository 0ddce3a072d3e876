//! The meter of one request: its use of the client's quotas, and the resulting wait.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::quotas::clients::{Client, ClientQuotas};

/// What a handler in Python adds to the meter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    pub(crate) time: Duration,
    /// The wait for a quota that Python measures.
    pub(crate) throttle_ms: u64,
}

/// The meter of one request, on the connection's task, from the request's decoding to the end of sending.
pub(crate) struct Meter<'a> {
    quotas: &'a ClientQuotas,
    client: Client<'a>,
    counts_time: AtomicBool,
    /// Nanoseconds of the thread's time before the current poll.
    spent: AtomicU64,
    /// The time at which that poll began, in nanoseconds of the quotas' clock.
    resumed: AtomicU64,
    throttle_ms: AtomicU32,
    /// The request is accounted for already.
    settled: AtomicBool,
}

impl<'a> Meter<'a> {
    pub(crate) fn new(quotas: &'a ClientQuotas, user: &'a str, client_id: Option<&'a str>) -> Self {
        Self {
            quotas,
            client: Client {
                user,
                id: client_id.unwrap_or_default(),
            },
            counts_time: AtomicBool::new(quotas.counts_time()),
            spent: AtomicU64::new(0),
            resumed: AtomicU64::new(0),
            throttle_ms: AtomicU32::new(0),
            settled: AtomicBool::new(false),
        }
    }

    /// Runs a part of the request's work. Counts the time in which it runs, and not the time in which it
    /// waits.
    pub(crate) async fn timed<F: Future>(&self, work: F) -> F::Output {
        let mut work = std::pin::pin!(work);
        std::future::poll_fn(|context| {
            if !self.counts_time() {
                return work.as_mut().poll(context);
            }
            self.resumed.store(self.now(), Ordering::Relaxed);
            let polled = work.as_mut().poll(context);
            self.spent.fetch_add(self.running(), Ordering::Relaxed);
            self.resumed.store(self.now(), Ordering::Relaxed);
            polled
        })
        .await
    }

    pub(crate) fn counts_time(&self) -> bool {
        self.counts_time.load(Ordering::Relaxed)
    }

    /// The request's time does not count: a replica sent it.
    pub(crate) fn exempt(&self) {
        self.counts_time.store(false, Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        self.quotas.opened.elapsed().as_nanos() as u64
    }

    fn running(&self) -> u64 {
        self.now() - self.resumed.load(Ordering::Relaxed)
    }

    /// Accounts for a Produce request. A request without a response is throttled for its bytes only.
    pub(crate) fn produced(&self, bytes: usize, is_answered: bool) {
        let quotas = self.quotas;
        if quotas.produce.is_set() {
            let now_ms = quotas.now_ms();
            let wait = quotas
                .produce
                .record(quotas.window, self.client, bytes as f64, now_ms);
            self.wait(wait);
        }
        if is_answered {
            self.requested();
        } else {
            self.settled.store(true, Ordering::Relaxed);
        }
    }

    /// Accounts for a Fetch whose response would have so many bytes; `bytes` is called only if they count. If
    /// it returns false, the response must be empty, and the bytes do not count.
    pub(crate) fn fetched(&self, bytes: impl FnOnce() -> u64) -> bool {
        self.requested();
        let quotas = self.quotas;
        if quotas.fetch.bound(self.client).is_some() {
            let bytes = bytes();
            let record = |amount: f64| {
                let now_ms = quotas.now_ms();
                quotas.fetch.record(quotas.window, self.client, amount, now_ms)
            };
            self.wait(record(bytes as f64));
            if self.throttle_ms() > 0 {
                record(-(bytes as f64));
            }
        }
        self.throttle_ms() == 0
    }

    /// The most bytes of a Fetch response. More would exceed the quota even of a client that was silent
    /// before.
    pub(crate) fn fetch_bytes_max(&self) -> u64 {
        let quotas = self.quotas;
        let bound = quotas.fetch.bound(self.client);
        let window = quotas.window;
        let whole = (window.samples as u64 - 1) as f64 * window.length.as_secs_f64();
        bound.map_or(u64::MAX, |bound| (bound * whole) as u64)
    }

    /// Adds the use of the handler in Python.
    pub(crate) fn spent(&self, spent: Spent) {
        self.spent
            .fetch_add(spent.time.as_nanos() as u64, Ordering::Relaxed);
        self.wait(spent.throttle_ms);
    }

    /// Accounts for the time so far, unless that was done.
    pub(crate) fn requested(&self) {
        if self.settled.swap(true, Ordering::Relaxed) || !self.counts_time() {
            return;
        }
        let spent = self.spent.swap(0, Ordering::Relaxed) + self.running();
        self.resumed.store(self.now(), Ordering::Relaxed);
        let spent = Duration::from_nanos(spent);
        self.wait(self.quotas.record_time(self.client, spent));
    }

    /// Accounts for the time of sending. It counts for the client's next request.
    pub(crate) fn sent(&self) {
        let spent = self.spent.swap(0, Ordering::Relaxed);
        if spent > 0 && self.counts_time() {
            let spent = Duration::from_nanos(spent);
            self.quotas.record_time(self.client, spent);
        }
    }

    pub(crate) fn throttle_ms(&self) -> u32 {
        self.throttle_ms.load(Ordering::Relaxed)
    }

    /// Adds a wait. The longest one counts.
    pub(crate) fn wait(&self, throttle_ms: u64) {
        let throttle_ms = throttle_ms.min(i32::MAX as u64) as u32;
        self.throttle_ms.fetch_max(throttle_ms, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quotas::clients::tests::{WINDOW, quota};
    use crate::quotas::clients::{ANONYMOUS, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE};

    // If this failed, a client would not get the longest of several waits, or time would not count.
    #[test]
    fn a_meter_has_the_longest_wait() {
        let a_second = Spent {
            time: Duration::from_secs(1),
            throttle_ms: 0,
        };
        let quotas = ClientQuotas::new(WINDOW);
        let mut all = quota(Some(ANONYMOUS), None, 10.0);
        let silent = Meter::new(&quotas, ANONYMOUS, None);
        silent.produced(1 << 30, true);
        assert_eq!(silent.throttle_ms(), 0);
        all.values.insert(REQUEST_PERCENTAGE.to_owned(), 0.0001);
        all.values.insert(CONSUMER_BYTE_RATE.to_owned(), 10.0);
        quotas.replace(&[all]).unwrap();
        let exempt = Meter::new(&quotas, ANONYMOUS, None);
        exempt.exempt();
        exempt.spent(a_second);
        exempt.requested();
        assert_eq!(exempt.throttle_ms(), 0);
        let slow = Meter::new(&quotas, ANONYMOUS, Some("a"));
        slow.spent(a_second);
        slow.requested();
        // One sample at most.
        assert_eq!(slow.throttle_ms(), 1000);
        slow.produced(300, true);
        let waits = slow.throttle_ms();
        assert!((19_000..=20_000).contains(&waits), "{waits}");
        assert_eq!(slow.fetch_bytes_max(), 100);
        quotas.replace(&[]).unwrap();
        let free = Meter::new(&quotas, ANONYMOUS, Some("a"));
        free.produced(1 << 30, true);
        assert!(free.fetched(|| 1 << 30) && free.throttle_ms() == 0);
        assert_eq!(free.fetch_bytes_max(), u64::MAX);
    }
}
