//! The counters and times of requests, by API (`RequestMetrics`).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::errors::ErrorCounts;
use super::histogram::{Histogram, HistogramValues};
use super::stages::Stages;
use crate::apis::{self, Api, FETCH, apis};

/// Versions from this one on are counted together.
const VERSIONS: usize = 32;
/// Codes outside -1..=158 are counted as -1. Kafka's end far below.
const CODES: usize = 160;

/// The names of the stages in `RequestMetrics`, in the order of [`ApiMeasurements::times`].
pub(crate) const STAGE_NAMES: [&str; 7] = [
    "RequestQueueTimeMs",
    "LocalTimeMs",
    "RemoteTimeMs",
    "ThrottleTimeMs",
    "ResponseQueueTimeMs",
    "ResponseSendTimeMs",
    "TotalTimeMs",
];

struct Counters {
    begun: AtomicU64,
    requests: [AtomicU64; VERSIONS],
    errors: [AtomicU64; CODES],
    /// Requests without any wait. Each counts as a zero in the four stages of waiting.
    plain: AtomicU64,
    request_queue: Histogram,
    local: Histogram,
    remote: Histogram,
    throttle: Histogram,
    response_queue: Histogram,
    send: Histogram,
    total: Histogram,
    request_bytes: Histogram,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            begun: AtomicU64::default(),
            requests: [const { AtomicU64::new(0) }; VERSIONS],
            errors: [const { AtomicU64::new(0) }; CODES],
            plain: AtomicU64::default(),
            request_queue: Histogram::default(),
            local: Histogram::default(),
            remote: Histogram::default(),
            throttle: Histogram::default(),
            response_queue: Histogram::default(),
            send: Histogram::default(),
            total: Histogram::default(),
            request_bytes: Histogram::default(),
        }
    }
}

impl Counters {
    fn record(&self, stages: &Stages, errors: &ErrorCounts) {
        let version = usize::try_from(stages.api_version).unwrap_or(VERSIONS - 1);
        self.requests[version.min(VERSIONS - 1)].fetch_add(1, Ordering::Relaxed);
        for (code, count) in errors.iter() {
            let slot = usize::try_from(i32::from(code) + 1).unwrap_or(0);
            let slot = if slot < CODES { slot } else { 0 };
            self.errors[slot].fetch_add(count, Ordering::Relaxed);
        }
        if stages.is_plain() {
            self.plain.fetch_add(1, Ordering::Relaxed);
        } else {
            self.request_queue.record_time(stages.request_queue);
            self.remote.record_time(stages.remote);
            self.throttle.record_time(stages.throttle);
            self.response_queue.record_time(stages.response_queue);
        }
        self.local.record_time(stages.local());
        self.send.record_time(stages.send);
        self.total.record_time(stages.total);
        self.request_bytes.record_size(stages.request_bytes);
    }

    fn read(&self, name: &str) -> ApiMeasurements {
        let plain = self.plain.load(Ordering::Relaxed);
        ApiMeasurements {
            name: name.to_owned(),
            requests: read_nonzero(&self.requests, 0),
            errors: read_nonzero(&self.errors, -1),
            times: vec![
                self.request_queue.times(plain),
                self.local.times(0),
                self.remote.times(plain),
                self.throttle.times(plain),
                self.response_queue.times(plain),
                self.send.times(0),
                self.total.times(0),
            ],
            request_bytes: self.request_bytes.sizes(),
        }
    }
}

/// The measurements of one API.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiMeasurements {
    /// Kafka's `request` tag: `Produce`, and for Fetch also `FetchConsumer` and `FetchFollower`.
    pub name: String,
    /// Versions and their numbers of requests.
    pub requests: Vec<(i16, u64)>,
    /// Error codes and their numbers.
    pub errors: Vec<(i16, u64)>,
    /// A histogram for each stage, in milliseconds.
    pub times: Vec<HistogramValues>,
    /// The sizes of requests, in bytes.
    pub request_bytes: HistogramValues,
}

/// The counters of all APIs in the table. An API's counters are allocated at its first request.
pub(crate) struct ApiMetrics {
    by_key: [OnceLock<Box<Counters>>; apis::KEYS],
    fetch_by_followers: OnceLock<Box<Counters>>,
}

impl Default for ApiMetrics {
    fn default() -> Self {
        Self {
            by_key: [const { OnceLock::new() }; apis::KEYS],
            fetch_by_followers: OnceLock::new(),
        }
    }
}

impl ApiMetrics {
    fn of(&self, key: i16) -> &OnceLock<Box<Counters>> {
        &self.by_key[key as usize]
    }

    pub(crate) fn begin(&self, api: &Api) {
        let counters = self.of(api.key).get_or_init(Box::default);
        counters.begun.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn record(&self, stages: &Stages, errors: &ErrorCounts) {
        let Some(api) = stages.api else {
            return;
        };
        let counters = if stages.from_follower {
            &self.fetch_by_followers
        } else {
            self.of(api.key)
        };
        counters.get_or_init(Box::default).record(stages, errors);
    }

    /// How many requests of each API have begun, by rising key, without those that never had one.
    pub(crate) fn begun(&self) -> Vec<(i16, u64)> {
        let known = apis()
            .iter()
            .filter_map(|api| Some((api.key, self.of(api.key).get()?)));
        known
            .map(|(key, counters)| (key, counters.begun.load(Ordering::Relaxed)))
            .collect()
    }

    /// The measurements of every API with a finished request, by rising key.
    pub(crate) fn read(&self) -> Vec<ApiMeasurements> {
        let mut all = Vec::new();
        for api in apis() {
            if api.key == FETCH {
                all.extend(self.read_fetch(api));
            } else if let Some(counters) = self.of(api.key).get() {
                all.push(counters.read(api.name));
            }
        }
        all.retain(|api| !api.requests.is_empty());
        all
    }

    /// Kafka shows Fetch as a whole, and apart for consumers and followers.
    fn read_fetch(&self, api: &Api) -> Vec<ApiMeasurements> {
        let consumers = self.of(FETCH).get();
        let consumers = consumers.map(|counters| counters.read("FetchConsumer"));
        let followers = self.fetch_by_followers.get();
        let followers = followers.map(|counters| counters.read("FetchFollower"));
        let parts: Vec<_> = consumers.into_iter().chain(followers).collect();
        let whole = parts.iter().cloned().reduce(|sum, part| sum.plus(&part));
        let whole = whole.map(|whole| ApiMeasurements {
            name: api.name.to_owned(),
            ..whole
        });
        whole.into_iter().chain(parts).collect()
    }
}

impl ApiMeasurements {
    fn plus(mut self, other: &Self) -> Self {
        add_counts(&mut self.requests, &other.requests);
        add_counts(&mut self.errors, &other.errors);
        for (mine, theirs) in self.times.iter_mut().zip(&other.times) {
            mine.add(theirs);
        }
        self.request_bytes.add(&other.request_bytes);
        self
    }
}

fn add_counts(sum: &mut Vec<(i16, u64)>, more: &[(i16, u64)]) {
    for (name, count) in more {
        match sum.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known += count,
            None => sum.push((*name, *count)),
        }
    }
}

/// The counters that are not zero, numbered from `first`.
fn read_nonzero(counters: &[AtomicU64], first: i16) -> Vec<(i16, u64)> {
    let counts = counters.iter().map(|counter| counter.load(Ordering::Relaxed));
    let numbered = (first..).zip(counts);
    numbered.filter(|(_, count)| *count > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn request(key: i16, version: i16) -> Stages {
        let mut stages = Stages::begin();
        stages.name(Api::of(key).unwrap(), version, 100);
        stages.answered();
        stages.sent();
        stages
    }

    // If this failed, an operator would see wrong numbers, or the times of waiting would lack the requests
    // that did not wait.
    #[test]
    fn requests_errors_and_stages_are_counted_by_api() {
        let apis = ApiMetrics::default();
        assert!(apis.read().is_empty());
        apis.record(&request(0, 9), &ErrorCounts::one(0));
        apis.record(&request(0, 11), &ErrorCounts::one(87));
        apis.record(&request(0, 11), &ErrorCounts::default());
        let mut waited = request(1, 12);
        waited.remote = Duration::from_millis(300);
        apis.record(&waited, &ErrorCounts::one(-1));
        apis.record(&request(1, 12), &ErrorCounts::one(999));
        waited.from_follower = true;
        apis.record(&waited, &ErrorCounts::one(0));
        let all = apis.read();
        let names: Vec<_> = all.iter().map(|api| &*api.name).collect();
        assert_eq!(names, ["Produce", "Fetch", "FetchConsumer", "FetchFollower"]);
        assert_eq!(all[0].requests, [(9, 1), (11, 2)]);
        assert_eq!(all[0].errors, [(0, 1), (87, 1)]);
        assert_eq!(all[1].requests, [(12, 3)]);
        assert_eq!(all[2].errors, [(-1, 2)]);
        let counts = |api: usize, stage: usize| all[api].times[stage].cumulative.clone();
        for (stage, name) in STAGE_NAMES.iter().enumerate() {
            assert_eq!(counts(0, stage).last(), Some(&3), "{name}");
            assert_eq!(counts(1, stage).last(), Some(&3), "{name}");
        }
        let remote = counts(1, 2);
        assert_eq!((remote[0], remote[11], remote[12]), (1, 1, 3));
        assert!((all[1].times[2].sum - 600.0).abs() < 1e-6);
        assert_eq!(all[0].request_bytes.cumulative[..2], [0, 3]);
    }
}
