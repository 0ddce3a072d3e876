//! Failures that are tried again, and when they are reported.
//!
//! A failure is reported once it lasts, and again when it changes; after a success it may be reported anew.
//! So one broken connection is not reported, and a broker that closes every connection is. A broker that
//! refuses connections is reported at once, by [`crate::cluster`]. Reports wait in a bounded queue for
//! `error_cb` or the log. Any thread may call a [`Reporter`].

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::error::ClientError;

/// A request whose connection breaks so many times in a row is reported.
const REPORT_TIMES: u32 = 3;
/// A failure that lasts so long is reported. The election of a leader and the loading of a coordinator take
/// less.
const REPORT_AFTER: Duration = Duration::from_secs(10);
/// The most reports that wait for the application; later ones are dropped.
const QUEUE_MAX: usize = 1000;

/// The failures of one operation that is tried again until it succeeds.
#[derive(Debug, Default)]
pub(crate) struct Lasting {
    since: Option<Instant>,
    times: u32,
    /// The codes reported since the last success.
    reported: Vec<i32>,
}

impl Lasting {
    /// Notes a failure that the application gets as an error; whether to hand it out now. One that cannot
    /// pass is handed out at once.
    pub(crate) fn failed(&mut self, error: &ClientError, now: Instant) -> bool {
        self.failed_since(now, error, now)
    }

    /// Notes the failure of an operation that was tried from `since` to `now`; whether to report it.
    pub(crate) fn failed_since(&mut self, since: Instant, error: &ClientError, now: Instant) -> bool {
        let lasts = self.lasts(since, error, now);
        (lasts || !error.is_retriable()) && self.is_new(error)
    }

    fn lasts(&mut self, since: Instant, error: &ClientError, now: Instant) -> bool {
        let since = *self.since.get_or_insert(since);
        self.times += 1;
        let often = self.times >= REPORT_TIMES && !matches!(error, ClientError::Broker { .. });
        often || now.duration_since(since) >= REPORT_AFTER
    }

    /// Whether the failure was not reported since the last success. From now on it was.
    fn is_new(&mut self, error: &ClientError) -> bool {
        let new = !self.reported.contains(&error.code());
        if new {
            self.reported.push(error.code());
        }
        new
    }

    /// Notes a failure of `request`, which is tried again whatever its code; returns the report of one that
    /// lasts.
    pub(crate) fn tried_again(
        &mut self,
        request: &'static str,
        error: &ClientError,
        now: Instant,
    ) -> Option<ClientError> {
        self.tried_again_since(now, request, error, now)
    }

    /// [`Lasting::tried_again`], of a request that was tried since `since`.
    pub(crate) fn tried_again_since(
        &mut self,
        since: Instant,
        request: &'static str,
        error: &ClientError,
        now: Instant,
    ) -> Option<ClientError> {
        let lasts = self.lasts(since, error, now);
        (lasts && self.is_new(error)).then(|| ClientError::Lasting {
            request,
            last: Box::new(error.clone()),
        })
    }

    /// Notes a success.
    pub(crate) fn passed(&mut self) {
        if self.since.is_some() {
            *self = Self::default();
        }
    }
}

/// See the module. One a client.
pub struct Reporter {
    /// What fails at present, by broker and kind of request.
    requests: Mutex<HashMap<(String, &'static str), Lasting>>,
    queue: Mutex<VecDeque<ClientError>>,
    /// Wakes a thread that waits for messages or reports.
    wake: Box<dyn Fn() + Send + Sync>,
}

impl std::fmt::Debug for Reporter {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Reporter").finish_non_exhaustive()
    }
}

impl Reporter {
    /// A reporter that calls `wake` after each report.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            requests: Mutex::default(),
            queue: Mutex::default(),
            wake: Box::new(wake),
        }
    }

    /// Queues a report.
    pub(crate) fn report(&self, error: ClientError) {
        let mut queue = self.queue.lock();
        if queue.len() < QUEUE_MAX {
            queue.push_back(error);
        }
        drop(queue);
        (self.wake)();
    }

    /// Takes the oldest report.
    pub fn next(&self) -> Option<ClientError> {
        self.queue.lock().pop_front()
    }

    /// Whether no report waits.
    pub fn is_empty(&self) -> bool {
        self.queue.lock().is_empty()
    }

    /// A request had no answer. A failure that cannot pass is not noted: the requester handles it.
    pub(crate) fn request_failed(&self, broker: &str, request: &'static str, error: &ClientError) {
        if !error.is_retriable() {
            return;
        }
        let mut requests = self.requests.lock();
        let lasting = requests.entry((broker.to_owned(), request)).or_default();
        let report = lasting.tried_again(request, error, Instant::now());
        drop(requests);
        if let Some(report) = report {
            self.report(report);
        }
    }

    /// A request was answered.
    pub(crate) fn request_answered(&self, broker: &str, request: &'static str) {
        let mut requests = self.requests.lock();
        // It is empty nearly always, and then the name is not copied.
        if !requests.is_empty() {
            requests.remove(&(broker.to_owned(), request));
        }
    }
}

#[cfg(test)]
mod tests {
    //! If these fail, a permanent fault is retried without a word, or a passing one fills the log.
    use super::*;

    fn reset() -> ClientError {
        ClientError::Transport {
            broker: "b:1".to_owned(),
            what: "reset".to_owned(),
        }
    }

    fn answered(code: i16) -> ClientError {
        ClientError::Broker {
            code,
            what: "t-0".to_owned(),
        }
    }

    #[test]
    fn a_broken_connection_is_reported_once_when_it_breaks_again_and_again() {
        let reporter = Reporter::new(|| {});
        for _ in 0..100 {
            reporter.request_failed("b:1", "Fetch", &reset());
        }
        let report = reporter.next().expect("a report");
        assert_eq!(report.code(), reset().code());
        assert!(report.to_string().contains("Fetch"), "{report}");
        assert!(reporter.next().is_none());
        // Another request of the same broker still works, and clears only its own.
        reporter.request_answered("b:1", "Metadata");
        reporter.request_failed("b:1", "Fetch", &reset());
        assert!(reporter.is_empty());
        reporter.request_answered("b:1", "Fetch");
        for _ in 0..3 {
            reporter.request_failed("b:1", "Fetch", &reset());
        }
        assert!(reporter.next().is_some());
    }

    #[test]
    fn a_broker_that_is_not_ready_is_reported_when_that_lasts_and_when_it_changes() {
        let (mut lasting, start) = (Lasting::default(), Instant::now());
        for second in 0..10 {
            assert!(!lasting.failed(&answered(5), start + Duration::from_secs(second)));
        }
        assert!(lasting.failed(&answered(5), start + REPORT_AFTER));
        assert!(!lasting.failed(&answered(5), start + REPORT_AFTER * 2));
        assert!(lasting.failed(&answered(56), start + REPORT_AFTER * 2));
        assert!(!lasting.failed(&answered(5), start + REPORT_AFTER * 2));
        lasting.passed();
        assert!(!lasting.failed(&answered(5), start + REPORT_AFTER * 3));
    }

    #[test]
    fn what_cannot_pass_is_reported_at_once_and_an_application_that_does_not_ask_costs_no_memory() {
        let now = Instant::now();
        assert!(Lasting::default().failed(&answered(29), now));
        assert!(
            Lasting::default()
                .tried_again("Produce", &answered(29), now)
                .is_none()
        );
        let reporter = Reporter::new(|| {});
        for _ in 0..2 * QUEUE_MAX {
            reporter.report(reset());
        }
        assert_eq!(reporter.queue.lock().len(), QUEUE_MAX);
    }
}
