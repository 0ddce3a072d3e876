//! How fast clients may be, and for how long those that were faster have to wait.
//!
//! Owns: the quotas of users and client ids, and what each has used in the last seconds. Does not own the waiting: the
//! connection answers at once, says how long it will not read (`throttle_time_ms`), and does not (KIP-219). Called from
//! connection tasks; while no quota is set a request costs one load of an atomic. Nothing is on disk: after a crash
//! everybody begins anew, and Python sets the quotas again. Source: `ClientQuotaManager`, `ClientRequestQuotaManager`,
//! `DefaultQuotaCallback`, `QuotaUtils`, `Rate`, `SampledStat`.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use crate::error::{Result, ServerError};

/// The user of a connection that was not authenticated (`KafkaPrincipal.ANONYMOUS`).
pub(crate) const ANONYMOUS: &str = "ANONYMOUS";
/// The part of an entity that stands for everybody who has no quota of his own.
const DEFAULT: &str = "";
/// How many rates of one quota are remembered; should more clients than that come within a window, the newcomers share one
/// until some are forgotten.
const RATES_MAX: usize = 65_536;
/// A share of a thread's time, in percent, for each nanosecond in a second.
const PERCENT_PER_NANO: f64 = 100.0 / 1e9;

/// A quota as an administrator sets it.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientQuota {
    /// Whose: `None` is whatever user, the empty text every user without a quota of his own.
    pub user: Option<String>,
    /// The same for the client id.
    pub client_id: Option<String>,
    /// `producer_byte_rate`, `consumer_byte_rate` (bytes a second), `request_percentage` (of one thread's time),
    /// `controller_mutation_rate` (a second).
    pub values: HashMap<String, f64>,
}

/// Over which time rates are measured: `quota.window.num` samples of `quota.window.size.seconds`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) samples: usize,
    pub(crate) length: Duration,
}

impl Window {
    fn length_ms(self) -> u64 {
        self.length.as_millis() as u64
    }

    /// After this time nothing is remembered.
    fn whole_ms(self) -> u64 {
        self.length_ms().saturating_mul(self.samples as u64)
    }
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    start_ms: u64,
    last_event_ms: u64,
    sum: f64,
}

/// A rate over a window, as `Rate` over a `WindowedSum` measures it.
#[derive(Debug, Default)]
pub(crate) struct Rate(VecDeque<Sample>);

impl Rate {
    /// Adds to what was used. A negative amount takes back what was added just before.
    pub(crate) fn record(&mut self, window: Window, amount: f64, now_ms: u64) {
        let is_current = |sample: &&mut Sample| now_ms.saturating_sub(sample.start_ms) < window.length_ms();
        if let Some(sample) = self.0.back_mut().filter(is_current) {
            sample.sum += amount;
            sample.last_event_ms = now_ms;
            return;
        }
        // One more than the window has: the oldest may still overlap it.
        if self.0.len() > window.samples {
            self.0.pop_front();
        }
        self.0.push_back(Sample {
            start_ms: now_ms,
            last_event_ms: now_ms,
            sum: amount,
        });
    }

    /// How many milliseconds without use bring the rate down to `bound` a second; 0 when it is not above it.
    pub(crate) fn throttle_ms(&mut self, window: Window, bound: f64, now_ms: u64) -> u64 {
        self.forget(window, now_ms);
        let measured_ms = self.measured_ms(window, now_ms) as f64;
        let sum: f64 = self.0.iter().map(|sample| sample.sum).sum();
        let rate = sum / (measured_ms / 1000.0);
        if rate <= bound {
            return 0;
        }
        // Saturates: a bound of zero is an endless wait.
        ((rate - bound) / bound * measured_ms).round() as u64
    }

    /// Whether it has forgotten everything.
    pub(crate) fn is_forgotten(&mut self, window: Window, now_ms: u64) -> bool {
        self.forget(window, now_ms);
        self.0.is_empty()
    }

    fn forget(&mut self, window: Window, now_ms: u64) {
        let is_over = |sample: &Sample| now_ms.saturating_sub(sample.last_event_ms) >= window.whole_ms();
        while self.0.front().is_some_and(is_over) {
            self.0.pop_front();
        }
    }

    /// The time that was measured. All samples but the last count as whole, also those that have not been yet: a client's
    /// first second is not its rate.
    fn measured_ms(&self, window: Window, now_ms: u64) -> u64 {
        let oldest = self.0.front().map_or(now_ms, |oldest| oldest.start_ms);
        // Another thread may have recorded with a later time in between.
        let elapsed = now_ms.saturating_sub(oldest);
        let whole = elapsed / window.length_ms();
        let missing = (window.samples as u64 - 1).saturating_sub(whole);
        (elapsed + missing * window.length_ms()).max(1)
    }
}

/// Quotas of client ids: by id, and of those that have none of their own.
#[derive(Debug, Default)]
struct ClientIds {
    by_id: HashMap<String, f64>,
    default: Option<f64>,
}

impl ClientIds {
    fn find(&self, client_id: &str) -> Option<f64> {
        self.by_id.get(client_id).copied().or(self.default)
    }

    fn set(&mut self, client_id: &str, bound: f64) {
        if client_id == DEFAULT {
            self.default = Some(bound);
        } else {
            self.by_id.insert(client_id.to_owned(), bound);
        }
    }
}

/// Quotas of one user.
#[derive(Debug, Default)]
struct User {
    client_ids: ClientIds,
    own: Option<f64>,
}

/// All bounds of one kind.
#[derive(Debug, Default)]
struct Bounds {
    users: HashMap<String, User>,
    default_user: User,
    whatever_user: ClientIds,
}

/// Whose request it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Client<'a> {
    user: &'a str,
    id: &'a str,
}

/// A bound, and with whom it is shared: an empty part is everybody.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Bound<'a> {
    per_second: f64,
    user: &'a str,
    client_id: &'a str,
}

impl Bounds {
    /// The most specific bound: a user's before everybody's, and a user's before a client id's.
    fn find<'a>(&self, client: Client<'a>) -> Option<Bound<'a>> {
        let (user, client_id) = (client.user, client.id);
        let bound = |per_second, user, client_id| Bound {
            per_second,
            user,
            client_id,
        };
        for quotas in [self.users.get(user), Some(&self.default_user)] {
            let Some(quotas) = quotas else { continue };
            if let Some(found) = quotas.client_ids.find(client_id) {
                return Some(bound(found, user, client_id));
            }
            if let Some(found) = quotas.own {
                return Some(bound(found, user, DEFAULT));
            }
        }
        let found = self.whatever_user.find(client_id)?;
        Some(bound(found, DEFAULT, client_id))
    }

    fn set(&mut self, user: Option<&str>, client_id: Option<&str>, per_second: f64) {
        let quotas = match user {
            Some(DEFAULT) => &mut self.default_user,
            Some(user) => self.users.entry(user.to_owned()).or_default(),
            None => {
                let client_id = client_id.unwrap_or(DEFAULT);
                return self.whatever_user.set(client_id, per_second);
            }
        };
        match client_id {
            Some(client_id) => quotas.client_ids.set(client_id, per_second),
            None => quotas.own = Some(per_second),
        }
    }
}

/// What clients have used, by a hash of who they are that nobody can foresee: a client's id has whatever length it likes.
#[derive(Debug, Default)]
struct Rates {
    by_client: HashMap<u128, Rate>,
    hasher: RandomState,
    /// Of those for whom there is no room.
    shared: Rate,
}

impl Rates {
    fn of(&mut self, bound: Bound<'_>) -> &mut Rate {
        let half = |which: u8| self.hasher.hash_one((which, bound.user, bound.client_id));
        let key = u128::from(half(0)) << 64 | u128::from(half(1));
        if self.by_client.len() >= RATES_MAX && !self.by_client.contains_key(&key) {
            return &mut self.shared;
        }
        self.by_client.entry(key).or_default()
    }

    fn forget(&mut self, window: Window, now_ms: u64) {
        self.by_client
            .retain(|_, rate| !rate.is_forgotten(window, now_ms));
        if self.by_client.capacity() > 4 * self.by_client.len() {
            self.by_client.shrink_to_fit();
        }
    }
}

/// One kind of quota.
#[derive(Debug, Default)]
struct Quota {
    /// Whether anybody has one.
    is_set: AtomicBool,
    bounds: RwLock<Bounds>,
    rates: Mutex<Rates>,
}

impl Quota {
    fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }

    fn replace(&self, quotas: &[ClientQuota], name: &str) {
        let mut bounds = Bounds::default();
        let mut is_set = false;
        for quota in quotas {
            if let Some(per_second) = quota.values.get(name) {
                bounds.set(quota.user.as_deref(), quota.client_id.as_deref(), *per_second);
                is_set = true;
            }
        }
        *self.bounds.write() = bounds;
        self.is_set.store(is_set, Ordering::Relaxed);
        if !is_set {
            *self.rates.lock() = Rates::default();
        }
    }

    /// What a client may use in a second.
    fn bound(&self, client: Client<'_>) -> Option<f64> {
        if !self.is_set() {
            return None;
        }
        let bounds = self.bounds.read();
        bounds.find(client).map(|bound| bound.per_second)
    }

    /// Records what a client used, and says how long it has to wait.
    fn record(&self, window: Window, client: Client<'_>, amount: f64, now_ms: u64) -> u64 {
        let bounds = self.bounds.read();
        let Some(bound) = bounds.find(client) else {
            return 0;
        };
        let mut rates = self.rates.lock();
        let rate = rates.of(bound);
        rate.record(window, amount, now_ms);
        rate.throttle_ms(window, bound.per_second, now_ms)
    }
}

/// The quotas of all clients.
#[derive(Debug)]
pub(crate) struct ClientQuotas {
    window: Window,
    opened: Instant,
    produce: Quota,
    fetch: Quota,
    request: Quota,
}

/// The names of the quotas there are.
const PRODUCER_BYTE_RATE: &str = "producer_byte_rate";
const CONSUMER_BYTE_RATE: &str = "consumer_byte_rate";
const REQUEST_PERCENTAGE: &str = "request_percentage";
/// Kept where topics are created and deleted, in Python, which says how long a client has to wait ([`Spent`]).
const CONTROLLER_MUTATION_RATE: &str = "controller_mutation_rate";

impl ClientQuotas {
    pub(crate) fn new(window: Window) -> Self {
        Self {
            window,
            opened: Instant::now(),
            produce: Quota::default(),
            fetch: Quota::default(),
            request: Quota::default(),
        }
    }

    /// Replaces all quotas. What clients have used stays on their accounts.
    ///
    /// # Errors
    /// [`ServerError::InvalidConfig`] for a quota that does not exist or is no number from 0; then nothing changes.
    pub(crate) fn replace(&self, quotas: &[ClientQuota]) -> Result<()> {
        for (name, value) in quotas.iter().flat_map(|quota| &quota.values) {
            check(name, *value)?;
        }
        self.produce.replace(quotas, PRODUCER_BYTE_RATE);
        self.fetch.replace(quotas, CONSUMER_BYTE_RATE);
        self.request.replace(quotas, REQUEST_PERCENTAGE);
        Ok(())
    }

    /// Forgets those who have used nothing for a window. To be called now and then: nothing else makes room.
    pub(crate) fn forget(&self) {
        let now_ms = self.now_ms();
        for quota in [&self.produce, &self.fetch, &self.request] {
            quota.rates.lock().forget(self.window, now_ms);
        }
    }

    fn now_ms(&self) -> u64 {
        self.opened.elapsed().as_millis() as u64
    }

    /// Records a share of a thread's time. The wait is at most one sample long, for one request can take long.
    pub(crate) fn record_time(&self, client: Client<'_>, spent: Duration) -> u64 {
        let percent = spent.as_nanos() as f64 * PERCENT_PER_NANO;
        let wait = self.request.record(self.window, client, percent, self.now_ms());
        wait.min(self.window.length_ms())
    }

    /// Whether time is to be recorded at all.
    pub(crate) fn counts_time(&self) -> bool {
        self.request.is_set()
    }
}

fn check(name: &str, value: f64) -> Result<()> {
    let reason = match name {
        PRODUCER_BYTE_RATE | CONSUMER_BYTE_RATE | REQUEST_PERCENTAGE | CONTROLLER_MUTATION_RATE
            if value >= 0.0 =>
        {
            return Ok(());
        }
        PRODUCER_BYTE_RATE | CONSUMER_BYTE_RATE | REQUEST_PERCENTAGE | CONTROLLER_MUTATION_RATE => {
            "a quota is a number from 0"
        }
        _ => "there is no such quota",
    };
    Err(ServerError::InvalidConfig {
        name: name.to_owned(),
        value: value.to_string(),
        reason,
    })
}

/// What the handling of a request elsewhere adds to its account.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    /// Threads' time.
    pub(crate) time: Duration,
    /// How long its handler has the client wait, for a quota that is kept there.
    pub(crate) throttle_ms: u64,
}

/// The account of one request: what it used, and how long its client has to wait for that.
///
/// Lives from the request's decoding to the end of its response's sending, on the connection's task.
pub(crate) struct Meter<'a> {
    quotas: &'a ClientQuotas,
    client: Client<'a>,
    counts_time: AtomicBool,
    /// Nanoseconds of threads' time before the poll that runs now.
    spent: AtomicU64,
    /// When that poll began, in nanoseconds since the quotas' clock began.
    resumed: AtomicU64,
    throttle_ms: AtomicU32,
    /// The handler has seen to the quotas itself.
    settled: AtomicBool,
}

impl<'a> Meter<'a> {
    /// `is_exempt` is for the requests whose time nobody pays for.
    pub(crate) fn new(
        quotas: &'a ClientQuotas,
        user: &'a str,
        client_id: Option<&'a str>,
        is_exempt: bool,
    ) -> Self {
        Self {
            quotas,
            client: Client {
                user,
                id: client_id.unwrap_or_default(),
            },
            counts_time: AtomicBool::new(quotas.counts_time() && !is_exempt),
            spent: AtomicU64::new(0),
            resumed: AtomicU64::new(0),
            throttle_ms: AtomicU32::new(0),
            settled: AtomicBool::new(false),
        }
    }

    /// Does some of the request's work and counts the time it runs, not that in which it waits.
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

    /// Whether somebody pays for the request's time.
    pub(crate) fn counts_time(&self) -> bool {
        self.counts_time.load(Ordering::Relaxed)
    }

    /// Nobody pays for the request's time: a replica sent it.
    pub(crate) fn exempt(&self) {
        self.counts_time.store(false, Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        self.quotas.opened.elapsed().as_nanos() as u64
    }

    fn running(&self) -> u64 {
        self.now() - self.resumed.load(Ordering::Relaxed)
    }

    /// Accounts for a Produce request of so many bytes. One that is not answered is only throttled by its bytes.
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

    /// Accounts for a Fetch that would be answered with so many bytes, which are asked for if they count. False: it is answered
    /// with nothing instead, and the bytes are not counted.
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

    /// The most bytes that a Fetch may be answered with: more would exceed the quota of a client that was silent before.
    pub(crate) fn fetch_bytes_max(&self) -> u64 {
        let quotas = self.quotas;
        let bound = quotas.fetch.bound(self.client);
        let window = quotas.window;
        let whole = (window.samples as u64 - 1) as f64 * window.length.as_secs_f64();
        bound.map_or(u64::MAX, |bound| (bound * whole) as u64)
    }

    /// Adds what others spent on the request.
    pub(crate) fn spent(&self, spent: Spent) {
        self.spent
            .fetch_add(spent.time.as_nanos() as u64, Ordering::Relaxed);
        self.wait(spent.throttle_ms);
    }

    /// Accounts for the time spent so far, unless that was done.
    pub(crate) fn requested(&self) {
        if self.settled.swap(true, Ordering::Relaxed) || !self.counts_time() {
            return;
        }
        let spent = self.spent.swap(0, Ordering::Relaxed) + self.running();
        self.resumed.store(self.now(), Ordering::Relaxed);
        let spent = Duration::from_nanos(spent);
        self.wait(self.quotas.record_time(self.client, spent));
    }

    /// Accounts for what was spent on sending the response; it is held against the next request.
    pub(crate) fn sent(&self) {
        let spent = self.spent.swap(0, Ordering::Relaxed);
        if spent > 0 && self.counts_time() {
            let spent = Duration::from_nanos(spent);
            self.quotas.record_time(self.client, spent);
        }
    }

    /// How long the client has to wait.
    pub(crate) fn throttle_ms(&self) -> u32 {
        self.throttle_ms.load(Ordering::Relaxed)
    }

    /// The longest of several waits counts.
    pub(crate) fn wait(&self, throttle_ms: u64) {
        let throttle_ms = throttle_ms.min(i32::MAX as u64) as u32;
        self.throttle_ms.fetch_max(throttle_ms, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Window = Window {
        samples: 11,
        length: Duration::from_secs(1),
    };

    fn quota(user: Option<&str>, client_id: Option<&str>, per_second: f64) -> ClientQuota {
        ClientQuota {
            user: user.map(str::to_owned),
            client_id: client_id.map(str::to_owned),
            values: HashMap::from([(PRODUCER_BYTE_RATE.to_owned(), per_second)]),
        }
    }

    // If this failed, a client would have somebody else's quota, or share its own with somebody.
    #[test]
    fn the_most_specific_quota_counts() {
        // From the weakest to the strongest (`ClientQuotaManager`): whose it is, and with whom it is shared.
        let order = [
            (None, Some(""), ("", "c")),
            (None, Some("c"), ("", "c")),
            (Some(""), None, ("u", "")),
            (Some(""), Some(""), ("u", "c")),
            (Some(""), Some("c"), ("u", "c")),
            (Some("u"), None, ("u", "")),
            (Some("u"), Some(""), ("u", "c")),
            (Some("u"), Some("c"), ("u", "c")),
        ];
        let client = Client { user: "u", id: "c" };
        let mut bounds = Bounds::default();
        bounds.set(Some("other"), None, 100.0);
        bounds.set(Some("other"), Some("c"), 101.0);
        bounds.set(None, Some("other"), 102.0);
        assert_eq!(bounds.find(client), None);
        for (rank, (user, client_id, shared)) in order.into_iter().enumerate() {
            bounds.set(user, client_id, rank as f64);
            let found = bounds.find(client).unwrap();
            assert_eq!(found.per_second, rank as f64);
            assert_eq!((found.user, found.client_id), shared);
        }
    }

    // If this failed, clients would be throttled for longer or shorter than by Apache Kafka. The figures are those that
    // `ClientQuotaManagerTest` expects of it.
    #[test]
    fn waits_are_as_long_as_kafkas() {
        let mut rate = Rate::default();
        for second in 0..10 {
            rate.record(WINDOW, 400.0, second * 1000);
            assert_eq!(rate.throttle_ms(WINDOW, 500.0, second * 1000), 0);
        }
        // 4000 so far; half a second later 2300 more are 6300 in 10.5 s, which is 600 a second, of which 500 are allowed.
        rate.record(WINDOW, 0.0, 10_000);
        rate.record(WINDOW, 2300.0, 10_500);
        assert_eq!(rate.throttle_ms(WINDOW, 500.0, 10_500), 2100);
        for second in 11..23 {
            rate.record(WINDOW, 400.0, second * 1000);
        }
        assert_eq!(rate.throttle_ms(WINDOW, 500.0, 22_000), 0);
    }

    // If this failed, the first large request of a client would be held against it as if it had lasted a moment, or what
    // was taken back would still count.
    #[test]
    fn the_first_second_is_not_the_rate() {
        let mut rate = Rate::default();
        rate.record(WINDOW, 1000.0, 5);
        assert_eq!(rate.throttle_ms(WINDOW, 100.0, 5), 0);
        rate.record(WINDOW, 500.0, 5);
        assert_eq!(rate.throttle_ms(WINDOW, 100.0, 5), 5000);
        rate.record(WINDOW, -500.0, 5);
        assert_eq!(rate.throttle_ms(WINDOW, 100.0, 5), 0);
        assert!(rate.throttle_ms(WINDOW, 0.0, 5) > 1 << 40);
        assert!(!rate.is_forgotten(WINDOW, 11_004));
        assert!(rate.is_forgotten(WINDOW, 11_005));
    }

    // If this failed, a client that makes up ids would fill the memory.
    #[test]
    fn what_nobody_uses_is_forgotten() {
        let quotas = Quota::default();
        quotas.replace(&[quota(None, Some(""), 1000.0)], PRODUCER_BYTE_RATE);
        for number in 0..RATES_MAX + 100 {
            let id = number.to_string();
            let client = Client {
                user: ANONYMOUS,
                id: &id,
            };
            quotas.record(WINDOW, client, 1.0, 0);
        }
        let count = |quotas: &Quota| quotas.rates.lock().by_client.len();
        assert_eq!(count(&quotas), RATES_MAX);
        let late = Client {
            user: ANONYMOUS,
            id: "late",
        };
        // Newcomers share an account while there is no room, and have their own again later.
        assert_eq!(quotas.record(WINDOW, late, 1.0, 5000), 0);
        assert!(quotas.record(WINDOW, late, 1e6, 5000) > 0);
        assert_eq!(count(&quotas), RATES_MAX);
        quotas.rates.lock().forget(WINDOW, 11_000);
        assert_eq!(count(&quotas), 0);
        assert_eq!(quotas.record(WINDOW, late, 1.0, 11_000), 0);
        assert_eq!(count(&quotas), 1);
        assert!(quotas.rates.lock().by_client.capacity() < 100);
    }

    // If this failed, a client with very long ids would fill the memory, or two clients would have one account.
    #[test]
    fn an_account_is_as_large_whatever_its_client_is_called() {
        assert_eq!(size_of::<(u128, Rate)>(), 48);
        let quotas = Quota::default();
        quotas.replace(&[quota(None, Some(""), 1000.0)], PRODUCER_BYTE_RATE);
        let long = "x".repeat(32_000);
        for (id, amount, waits) in [
            (&long[..], 1e6, true),
            (&long[1..], 1.0, false),
            (&long, 1.0, true),
        ] {
            let client = Client { user: ANONYMOUS, id };
            assert_eq!(quotas.record(WINDOW, client, amount, 0) > 0, waits);
        }
    }

    // If this failed, the largest of several waits would not be the one a client is told, or time would not count.
    #[test]
    fn a_meter_tells_the_longest_wait() {
        let a_second = Spent {
            time: Duration::from_secs(1),
            throttle_ms: 0,
        };
        let quotas = ClientQuotas::new(WINDOW);
        let mut all = quota(Some(ANONYMOUS), None, 10.0);
        let silent = Meter::new(&quotas, ANONYMOUS, None, false);
        silent.produced(1 << 30, true);
        assert_eq!(silent.throttle_ms(), 0);
        all.values.insert(REQUEST_PERCENTAGE.to_owned(), 0.0001);
        all.values.insert(CONSUMER_BYTE_RATE.to_owned(), 10.0);
        quotas.replace(&[all]).unwrap();
        let exempt = Meter::new(&quotas, ANONYMOUS, None, true);
        exempt.spent(a_second);
        exempt.requested();
        assert_eq!(exempt.throttle_ms(), 0);
        let slow = Meter::new(&quotas, ANONYMOUS, Some("a"), false);
        slow.spent(a_second);
        slow.requested();
        // At most one sample long.
        assert_eq!(slow.throttle_ms(), 1000);
        slow.produced(300, true);
        let waits = slow.throttle_ms();
        assert!((19_000..=20_000).contains(&waits), "{waits}");
        assert_eq!(slow.fetch_bytes_max(), 100);
        quotas.replace(&[]).unwrap();
        let free = Meter::new(&quotas, ANONYMOUS, Some("a"), false);
        free.produced(1 << 30, true);
        assert!(free.fetched(|| 1 << 30) && free.throttle_ms() == 0);
        assert_eq!(free.fetch_bytes_max(), u64::MAX);
    }
}
