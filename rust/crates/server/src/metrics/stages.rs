//! Where a request's time goes, in Kafka's stages (`RequestChannel.Request`, `RequestMetrics`).
//!
//! The connection's task carries a [`Stages`] from the moment a frame is whole until its response is sent, and hands it to the
//! metrics. Three readings of the clock for a request that is answered in Rust, two more when it waits in the purgatory,
//! two more when it crosses to Python.

use std::time::{Duration, Instant};

use crate::apis::Api;

/// When Python took a request, and when it answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Crossing {
    pub(crate) taken: Instant,
    pub(crate) answered: Instant,
}

/// The stages of one request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stages {
    /// None: no API that is served.
    pub(crate) api: Option<&'static Api>,
    pub(crate) api_version: i16,
    /// A Fetch by a follower, which Kafka counts apart from consumers'.
    pub(crate) from_follower: bool,
    /// Bytes of the body.
    pub(crate) request_bytes: u64,
    received: Instant,
    answered: Instant,
    /// Until Python took it; what Rust answers waits in no queue.
    pub(crate) request_queue: Duration,
    /// Waiting for data, for other replicas, for other members of a group.
    pub(crate) remote: Duration,
    /// How long the client is kept waiting because of its quota, beside all others.
    pub(crate) throttle: Duration,
    /// From Python's answer until the connection's task had it.
    pub(crate) response_queue: Duration,
    pub(crate) send: Duration,
    pub(crate) total: Duration,
}

impl Stages {
    /// A request whose frame is whole.
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

    /// It is a request of this API. Before this it counts as none.
    pub(crate) fn name(&mut self, api: &'static Api, api_version: i16, request_bytes: usize) {
        self.api = Some(api);
        self.api_version = api_version;
        self.request_bytes = request_bytes as u64;
    }

    /// It came back from Python.
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

    /// The answer is ready to be sent.
    pub(crate) fn answered(&mut self) {
        self.answered = Instant::now();
    }

    /// From when another came until this one was answered.
    pub(crate) fn since(&self, other: &Self) -> Duration {
        self.answered.saturating_duration_since(other.received)
    }

    /// The answer is sent, or there is none.
    pub(crate) fn sent(&mut self) {
        let now = Instant::now();
        self.send = now - self.answered;
        self.total = now - self.received;
    }

    /// From the frame to the answer.
    fn until_answered(&self) -> Duration {
        self.answered - self.received
    }

    /// The time the broker worked on it.
    pub(crate) fn local(&self) -> Duration {
        self.until_answered()
            .saturating_sub(self.request_queue + self.remote + self.response_queue)
    }

    /// The time it took without waiting for anybody else: what a slow broker shows in. Sending is left out, for it takes as long as
    /// the client takes to read.
    pub(crate) fn own(&self) -> Duration {
        self.until_answered().saturating_sub(self.remote)
    }

    /// Whether only work and sending took time, as for most requests.
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

    // If this failed, a long poll would fill the slow-request log, or a slow disk would hide behind one.
    #[test]
    fn waiting_for_others_is_not_the_brokers_own_time() {
        let mut fetch = request(1, 500 * MS);
        fetch.remote = 490 * MS;
        assert_eq!((fetch.own(), fetch.local()), (10 * MS, 10 * MS));
        assert!(!fetch.is_plain() && request(0, MS).is_plain());
    }

    // If this failed, a rebalance would look like a slow handler, or a slow handler like a rebalance.
    #[test]
    fn what_python_did_is_told_from_what_members_waited() {
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
