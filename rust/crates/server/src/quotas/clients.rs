//! The quotas of clients, and how long a client above its quota has to wait.
//!
//! Owns: the quotas of users and client ids, and their use in the last seconds. Does not own the waiting: the
//! connection responds at once, with the time for which it will not read (`throttle_time_ms`, KIP-219).
//! Called from connection tasks; while no quota is set, a request costs one load of an atomic. Nothing is on
//! disk: after a crash all rates begin at zero, and Python sets the quotas again. Source:
//! `ClientQuotaManager`, `ClientRequestQuotaManager`, `DefaultQuotaCallback`, `QuotaUtils`, `Rate`,
//! `SampledStat`.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use crate::config::Window;
use crate::error::{Result, ServerError};
use crate::quotas::rate::Rate;

/// The user of a connection without authentication (`KafkaPrincipal.ANONYMOUS`).
pub(crate) const ANONYMOUS: &str = "ANONYMOUS";
/// The part of an entity that stands for all without a quota of their own.
const DEFAULT: &str = "";
/// The most rates that one quota keeps. If more clients come within a window, the later ones share one rate
/// until others expire.
const RATES_MAX: usize = 65_536;
/// The percentage of a thread's time that is one nanosecond in a second.
const PERCENT_PER_NANO: f64 = 100.0 / 1e9;

/// A quota as an administrator sets it.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientQuota {
    /// The user. `None` stands for any user, the empty text for users without a quota of their own.
    pub user: Option<String>,
    /// The same for the client id.
    pub client_id: Option<String>,
    /// `producer_byte_rate`, `consumer_byte_rate` (bytes a second), `request_percentage` (of one thread's
    /// time), `controller_mutation_rate` (a second).
    pub values: HashMap<String, f64>,
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

#[derive(Debug, Default)]
struct User {
    client_ids: ClientIds,
    own: Option<f64>,
}

#[derive(Debug, Default)]
struct Bounds {
    users: HashMap<String, User>,
    default_user: User,
    any_user: ClientIds,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Client<'a> {
    pub(super) user: &'a str,
    pub(super) id: &'a str,
}

/// A bound, and the entity that shares it: an empty part stands for all.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Bound<'a> {
    per_second: f64,
    user: &'a str,
    client_id: &'a str,
}

impl Bounds {
    /// The most specific bound: a user's before the default, and a user's before a client id's.
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
        let found = self.any_user.find(client_id)?;
        Some(bound(found, DEFAULT, client_id))
    }

    fn set(&mut self, user: Option<&str>, client_id: Option<&str>, per_second: f64) {
        let quotas = match user {
            Some(DEFAULT) => &mut self.default_user,
            Some(user) => self.users.entry(user.to_owned()).or_default(),
            None => {
                let client_id = client_id.unwrap_or(DEFAULT);
                return self.any_user.set(client_id, per_second);
            }
        };
        match client_id {
            Some(client_id) => quotas.client_ids.set(client_id, per_second),
            None => quotas.own = Some(per_second),
        }
    }
}

/// The use of the clients, by a keyed hash of user and client id. A client id can have any length, and is not
/// stored.
#[derive(Debug, Default)]
struct Rates {
    by_client: HashMap<u128, Rate>,
    hasher: RandomState,
    /// Of all clients above [`RATES_MAX`].
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

#[derive(Debug, Default)]
pub(super) struct Quota {
    is_set: AtomicBool,
    bounds: RwLock<Bounds>,
    rates: Mutex<Rates>,
}

impl Quota {
    pub(super) fn is_set(&self) -> bool {
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

    pub(super) fn bound(&self, client: Client<'_>) -> Option<f64> {
        if !self.is_set() {
            return None;
        }
        let bounds = self.bounds.read();
        bounds.find(client).map(|bound| bound.per_second)
    }

    /// Records a client's use. Returns how long the client has to wait.
    pub(super) fn record(&self, window: Window, client: Client<'_>, amount: f64, now_ms: u64) -> u64 {
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

#[derive(Debug)]
pub(crate) struct ClientQuotas {
    pub(super) window: Window,
    pub(super) opened: Instant,
    pub(super) produce: Quota,
    pub(super) fetch: Quota,
    request: Quota,
}

const PRODUCER_BYTE_RATE: &str = "producer_byte_rate";
pub(super) const CONSUMER_BYTE_RATE: &str = "consumer_byte_rate";
pub(super) const REQUEST_PERCENTAGE: &str = "request_percentage";
/// Python measures this one where topics are created and deleted, and reports the wait ([`super::Spent`]).
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

    /// Replaces all quotas. The use so far still counts.
    ///
    /// # Errors
    /// [`ServerError::InvalidConfig`] for an unknown quota, and for one that is not a number from 0. Then
    /// nothing changes.
    pub(crate) fn replace(&self, quotas: &[ClientQuota]) -> Result<()> {
        for (name, value) in quotas.iter().flat_map(|quota| &quota.values) {
            check(name, *value)?;
        }
        self.produce.replace(quotas, PRODUCER_BYTE_RATE);
        self.fetch.replace(quotas, CONSUMER_BYTE_RATE);
        self.request.replace(quotas, REQUEST_PERCENTAGE);
        Ok(())
    }

    /// Removes the rates of clients that used nothing for a window. To be called regularly.
    pub(crate) fn forget(&self) {
        let now_ms = self.now_ms();
        for quota in [&self.produce, &self.fetch, &self.request] {
            quota.rates.lock().forget(self.window, now_ms);
        }
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.opened.elapsed().as_millis() as u64
    }

    /// Records a share of a thread's time. The wait is at most one sample long, because one request can take
    /// long.
    pub(crate) fn record_time(&self, client: Client<'_>, spent: Duration) -> u64 {
        let percent = spent.as_nanos() as f64 * PERCENT_PER_NANO;
        let wait = self.request.record(self.window, client, percent, self.now_ms());
        wait.min(self.window.length_ms())
    }

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

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::quotas) const WINDOW: Window = Window {
        samples: 11,
        length: Duration::from_secs(1),
    };

    pub(in crate::quotas) fn quota(
        user: Option<&str>,
        client_id: Option<&str>,
        per_second: f64,
    ) -> ClientQuota {
        ClientQuota {
            user: user.map(str::to_owned),
            client_id: client_id.map(str::to_owned),
            values: HashMap::from([(PRODUCER_BYTE_RATE.to_owned(), per_second)]),
        }
    }

    // If this failed, a client would have another's quota, or share its own with another client.
    #[test]
    fn the_most_specific_quota_counts() {
        // From the least to the most specific (`ClientQuotaManager`): the quota's entity, and the entity that
        // shares it.
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

    // If this failed, a client that invents ids would fill the memory.
    #[test]
    fn unused_rates_expire() {
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
        // Later clients share one rate while there are too many, and have their own again afterwards.
        assert_eq!(quotas.record(WINDOW, late, 1.0, 5000), 0);
        assert!(quotas.record(WINDOW, late, 1e6, 5000) > 0);
        assert_eq!(count(&quotas), RATES_MAX);
        quotas.rates.lock().forget(WINDOW, 11_000);
        assert_eq!(count(&quotas), 0);
        assert_eq!(quotas.record(WINDOW, late, 1.0, 11_000), 0);
        assert_eq!(count(&quotas), 1);
        assert!(quotas.rates.lock().by_client.capacity() < 100);
    }

    // If this failed, a client with very long ids would fill the memory, or two clients would share one rate.
    #[test]
    fn a_rate_has_one_size_for_every_client_id() {
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
}
