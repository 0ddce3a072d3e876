//! The times of a request, in Kafka's stages (`RequestChannel.Request`, `RequestMetrics`).
//!
//! The connection's task carries a [`Stages`] from the end of a frame to the end of its response, and passes
//! it to the metrics. A request answered in Rust reads the clock three times. A wait in the purgatory adds
//! two readings, and crossing to Python two.

use std::time::{Duration, Instant};

use crate::apis::Api;

/// The times at which Python took a request and answered it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Crossing {
    pub(crate) taken: Instant,
    pub(crate) answered: Instant,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Stages {
    /// `None` for a request of an API that is not served.
    pub(crate) api: Option<&'static Api>,
    pub(crate) api_version: i16,
    /// The request is a follower's Fetch, which Kafka counts apart.
    pub(crate) from_follower: bool,
    pub(crate) request_bytes: u64,
    received: Instant,
    answered: Instant,
    /// The time until Python took it. A request that Rust answers waits in no queue.
    pub(crate) request_queue: Duration,
    /// The wait for data, for other replicas, or for other members of a group.
    pub(crate) remote: Duration,
    /// The throttle time, beside all other times.
    pub(crate) throttle: Duration,
    /// The time from Python's answer to the connection's task.
    pub(crate) response_queue: Duration,
    pub(crate) send: Duration,
    pub(crate) total: Duration,
}

impl Stages {
    /// A request whose frame is complete.
    pub(crate) fn begin() -> Self {
        let now = Instant::now();
        Self {
            api: None,
            api_version: -1,
            from_follower: false,
            request_bytes: 0,
            received: now,
            answered: now,
            request_queue: Duration::ZERO,
            remote: Duration::ZERO,
            throttle: Duration::ZERO,
            response_queue: Duration::ZERO,
            send: Duration::ZERO,
            total: Duration::ZERO,
        }
    }

    /// Sets the API of the request. Without it, the request is not counted.
    pub(crate) fn name(&mut self, api: &'static Api, api_version: i16, request_bytes: usize) {
        self.api = Some(api);
        self.api_version = api_version;
        self.request_bytes = request_bytes as u64;
    }

    pub(crate) fn crossed(&mut self, crossing: &Crossing) {
        self.crossed_at(crossing, Instant::now());
    }

    fn crossed_at(&mut self, crossing: &Crossing, now: Instant) {
        self.request_queue = crossing.taken.saturating_duration_since(self.received);
        self.response_queue = now.saturating_duration_since(crossing.answered);
        if self.api.is_some_and(Api::waits_for_members) {
            self.remote = crossing.answered.saturating_duration_since(crossing.taken);
        }
    }

    pub(crate) fn answered(&mut self) {
        self.answered = Instant::now();
    }

    /// The time from the arrival of `other` to the response of this request.
    pub(crate) fn since(&self, other: &Self) -> Duration {
        self.answered.saturating_duration_since(other.received)
    }

    pub(crate) fn sent(&mut self) {
        let now = Instant::now();
        self.send = now - self.answered;
        self.total = now - self.received;
    }

    fn until_answered(&self) -> Duration {
        self.answered - self.received
    }

    /// The time in which the broker worked on it.
    pub(crate) fn local(&self) -> Duration {
        self.until_answered()
            .saturating_sub(self.request_queue + self.remote + self.response_queue)
    }

    /// The broker's own time: without the wait for others, and without sending, which depends on the client.
    pub(crate) fn own(&self) -> Duration {
        self.until_answered().saturating_sub(self.remote)
    }

    /// Whether there was no wait, as for most requests.
    pub(super) fn is_plain(&self) -> bool {
        let waits = [
            self.request_queue,
            self.remote,
            self.throttle,
            self.response_queue,
        ];
        waits.iter().all(Duration::is_zero)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn request(api_key: i16, took: Duration) -> Stages {
        let mut stages = Stages::begin();
        stages.name(Api::of(api_key).unwrap(), 0, 0);
        stages.answered = stages.received + took;
        stages
    }

    // If this failed, long polls would fill the slow-request log, or a slow disk would look like a long poll.
    #[test]
    fn waits_are_not_the_brokers_own_time() {
        let mut fetch = request(1, 500 * MS);
        fetch.remote = 490 * MS;
        assert_eq!((fetch.own(), fetch.local()), (10 * MS, 10 * MS));
        assert!(!fetch.is_plain() && request(0, MS).is_plain());
    }

    // If this failed, a rebalance would look like a slow handler, or a slow handler like a rebalance.
    #[test]
    fn a_handlers_work_is_not_a_wait_for_members() {
        for (api_key, local, remote) in [(3, 70, 0), (11, 0, 70), (14, 0, 70)] {
            let mut stages = request(api_key, 100 * MS);
            let crossing = Crossing {
                taken: stages.received + 30 * MS,
                answered: stages.received + 100 * MS,
            };
            stages.crossed_at(&crossing, crossing.answered);
            assert_eq!(stages.request_queue, 30 * MS);
            assert_eq!((stages.local(), stages.remote), (local * MS, remote * MS));
            assert_eq!(stages.own(), 100 * MS - stages.remote);
        }
    }
}
