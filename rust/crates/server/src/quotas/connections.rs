//! The limits on the number of connections and on the rate at which they are opened.
//!
//! Owns: the number of connections (all, by listener, by address), their rates, and the limits, which can be
//! replaced at any time. Does not own the sockets: a listener asks before it accepts and reports what it
//! accepted. A connection learns through its [`Slot`] that it must close for another one. Called from the
//! tasks of listeners and connections; one lock, taken when a connection is opened and when it is closed.
//! Source: `ConnectionQuotas`.

use std::collections::HashMap;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::config::{ConnectionLimits, ServerConfig, Window};
use crate::error::{Result, ServerError};
use crate::quotas::rate::Rate;

/// The number of addresses whose rates are kept before expired ones are removed.
const SWEEP_MIN: usize = 1024;

pub(crate) struct Slot {
    pub(crate) number: u64,
    listener: Arc<str>,
    ip: IpAddr,
    /// The time of its last request, in milliseconds since the server was opened.
    used_ms: AtomicU64,
    evict: Notify,
}

impl Slot {
    /// Returns when the connection must close for another one.
    pub(crate) async fn evicted(&self) {
        self.evict.notified().await;
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The address has this many open connections already.
    TooMany(usize),
    /// The address opens connections too fast. It may open one after this time.
    TooFast(Duration),
}

#[derive(Default)]
struct Listener {
    open: usize,
    rate: Rate,
    /// Connections that authenticated themselves, and that failed to.
    authenticated: u64,
    failed: u64,
}

#[derive(Default)]
struct IpRates {
    default: Option<f64>,
    by_ip: HashMap<IpAddr, f64>,
}

struct State {
    limits: ConnectionLimits,
    ip_rates: IpRates,
    listeners: HashMap<Arc<str>, Listener>,
    per_ip: HashMap<IpAddr, usize>,
    rate: Rate,
    rates_by_ip: HashMap<IpAddr, Rate>,
    sweep_at: usize,
    slots: HashMap<u64, Arc<Slot>>,
}

pub(crate) struct ConnectionQuotas {
    opened: Instant,
    window: Window,
    inter_broker: String,
    state: Mutex<State>,
    /// A slot became free, or the limits changed.
    changed: Notify,
    next_number: AtomicU64,
}

impl ConnectionQuotas {
    pub(crate) fn new(config: &ServerConfig, limits: ConnectionLimits) -> Self {
        Self {
            opened: Instant::now(),
            window: config.quota_window,
            inter_broker: config.inter_broker_listener.clone(),
            state: Mutex::new(State {
                limits,
                ip_rates: IpRates::default(),
                listeners: HashMap::new(),
                per_ip: HashMap::new(),
                rate: Rate::default(),
                rates_by_ip: HashMap::new(),
                sweep_at: SWEEP_MIN,
                slots: HashMap::new(),
            }),
            changed: Notify::new(),
            next_number: AtomicU64::new(0),
        }
    }

    pub(crate) fn open(&self) -> Vec<(String, u64)> {
        let state = self.state.lock();
        let listeners = state.listeners.iter();
        listeners
            .map(|(name, listener)| (name.to_string(), listener.open as u64))
            .collect()
    }

    /// The numbers of connections that authenticated themselves and that failed to since the server was
    /// opened, by listener.
    pub(crate) fn authentications(&self) -> Vec<(String, u64, u64)> {
        let state = self.state.lock();
        let listeners = state.listeners.iter();
        listeners
            .map(|(name, one)| (name.to_string(), one.authenticated, one.failed))
            .collect()
    }

    /// Counts a connection that authenticated itself, or failed to.
    pub(crate) fn authenticated(&self, slot: &Slot, success: bool) {
        if let Some(listener) = self.state.lock().listeners.get_mut(&slot.listener) {
            *(if success {
                &mut listener.authenticated
            } else {
                &mut listener.failed
            }) += 1;
        }
    }

    /// Replaces the limits. Connections above the new limits are closed, the longest idle first, except for
    /// the limit of an address.
    pub(crate) fn update(&self, limits: ConnectionLimits) {
        let mut state = self.state.lock();
        state.limits = limits;
        self.evict_excess(&state);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Replaces the rates at which addresses may connect. A rate without an address is for all addresses
    /// without their own.
    ///
    /// # Errors
    /// [`ServerError::InvalidConfig`] for an invalid address, and for a rate that is not a number from 0.
    /// Then nothing changes.
    pub(crate) fn update_ip_rates(&self, quotas: &[(Option<String>, f64)]) -> Result<()> {
        let mut rates = IpRates::default();
        for (host, rate) in quotas {
            let invalid = |reason| ServerError::InvalidConfig {
                name: "connection_creation_rate".to_owned(),
                value: format!("{rate} of {}", host.as_deref().unwrap_or("every address")),
                reason,
            };
            if rate.is_nan() || *rate < 0.0 {
                return Err(invalid("a rate is a number from 0"));
            }
            let Some(host) = host else {
                rates.default = Some(*rate);
                continue;
            };
            let found = (host.as_str(), 0).to_socket_addrs();
            for address in found.map_err(|_| invalid("the address cannot be resolved"))? {
                rates.by_ip.insert(address.ip().to_canonical(), *rate);
            }
        }
        self.state.lock().ip_rates = rates;
        Ok(())
    }

    /// Adds a listener. As in Kafka, the listener for brokers is protected from the limits, if there is
    /// another one.
    pub(crate) fn add_listener(&self, name: &str) {
        let listeners = &mut self.state.lock().listeners;
        listeners.insert(name.into(), Listener::default());
    }

    /// Waits until the listener may have one more connection. Another listener may be faster.
    pub(crate) async fn below_limit(&self, listener: &str) {
        self.wait_for(|state| self.has_slot(state, listener).then_some(()))
            .await;
    }

    /// Waits until `look` finds something in the state. Looks again whenever a slot became free or the limits
    /// changed.
    async fn wait_for<T>(&self, mut look: impl FnMut(&mut State) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            let found = look(&mut self.state.lock());
            if let Some(found) = found {
                return found;
            }
            changed.await;
        }
    }

    fn has_slot(&self, state: &State, listener: &str) -> bool {
        let open = state.listeners.get(listener).map_or(0, |one| one.open);
        let own = state.limits.listener(listener);
        open < own.connections_max
            && (self.is_protected(state, listener) || state.slots.len() < state.limits.broker.connections_max)
    }

    fn is_protected(&self, state: &State, listener: &str) -> bool {
        state.listeners.len() > 1 && listener.eq_ignore_ascii_case(&self.inter_broker)
    }

    /// Counts an accepted connection. Returns how long the listener must wait before it serves the
    /// connection.
    pub(crate) fn accepted(&self, listener: &str) -> Duration {
        let now_ms = self.now_ms();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let mut wait = 0;
        let own = state.limits.listener(listener).creation_rate;
        if !self.is_protected(state, listener)
            && let Some(bound) = state.limits.broker.creation_rate
        {
            wait = self.record(&mut state.rate, bound, now_ms);
        }
        if let (Some(bound), Some(one)) = (own, state.listeners.get_mut(listener)) {
            wait = wait.max(self.record(&mut one.rate, bound, now_ms));
        }
        Duration::from_millis(wait)
    }

    /// The wait after one more connection, at most one sample.
    fn record(&self, rate: &mut Rate, bound: f64, now_ms: u64) -> u64 {
        rate.record(self.window, 1.0, now_ms);
        let wait = rate.throttle_ms(self.window, bound, now_ms);
        wait.min(self.window.length.as_millis() as u64)
    }

    /// Gives an accepted connection a slot, once there is one. The last slot may have gone to another
    /// listener's connection since. A broker's connection gets one in any case, and the longest idle of the
    /// others is closed for it.
    ///
    /// # Errors
    /// When its address has too many connections, or opens them too fast.
    pub(crate) async fn enter(&self, listener: &str, ip: IpAddr) -> Result<Arc<Slot>, Refusal> {
        self.wait_for(|state| {
            self.has_slot(state, listener)
                .then(|| self.take(state, listener, ip))
        })
        .await
    }

    fn take(&self, state: &mut State, listener: &str, ip: IpAddr) -> Result<Arc<Slot>, Refusal> {
        let now_ms = self.now_ms();
        let wait = self.record_ip(state, ip, now_ms);
        if wait > 0 {
            return Err(Refusal::TooFast(Duration::from_millis(wait)));
        }
        let most = state.limits.per_ip(ip);
        let open = state.per_ip.entry(ip).or_insert(0);
        if *open >= most {
            if *open == 0 {
                state.per_ip.remove(&ip);
            }
            return Err(Refusal::TooMany(most));
        }
        *open += 1;
        let known = state.listeners.get_key_value(listener);
        let name = known.map_or_else(|| listener.into(), |(name, _)| Arc::clone(name));
        if let Some(listener) = state.listeners.get_mut(&name) {
            listener.open += 1;
        }
        let slot = Arc::new(Slot {
            number: self.next_number.fetch_add(1, Ordering::Relaxed),
            listener: name,
            ip,
            used_ms: AtomicU64::new(now_ms),
            evict: Notify::new(),
        });
        state.slots.insert(slot.number, Arc::clone(&slot));
        self.evict_excess(state);
        Ok(slot)
    }

    /// A connection that is refused for its rate does not count in it.
    fn record_ip(&self, state: &mut State, ip: IpAddr, now_ms: u64) -> u64 {
        let bound = state.ip_rates.by_ip.get(&ip).copied();
        let Some(bound) = bound.or(state.ip_rates.default) else {
            return 0;
        };
        if state.rates_by_ip.len() >= state.sweep_at {
            let is_used = |_: &IpAddr, rate: &mut Rate| !rate.is_forgotten(self.window, now_ms);
            state.rates_by_ip.retain(is_used);
            state.sweep_at = (2 * state.rates_by_ip.len()).max(SWEEP_MIN);
        }
        let rate = state.rates_by_ip.entry(ip).or_default();
        let wait = self.record(rate, bound, now_ms);
        if wait > 0 {
            rate.record(self.window, -1.0, now_ms);
        }
        wait
    }

    /// Evicts the longest idle connections above the limit. Those of the protected listener stay.
    fn evict_excess(&self, state: &State) {
        let excess = state
            .slots
            .len()
            .saturating_sub(state.limits.broker.connections_max);
        if excess == 0 {
            return;
        }
        let mut others: Vec<_> = state
            .slots
            .values()
            .filter(|slot| !self.is_protected(state, &slot.listener))
            .collect();
        // Of connections used in the same millisecond, the oldest is evicted.
        others.sort_by_key(|slot| (slot.used_ms.load(Ordering::Relaxed), slot.number));
        for slot in others.into_iter().take(excess) {
            slot.evict.notify_one();
        }
    }

    pub(crate) fn used(&self, slot: &Slot) {
        slot.used_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    pub(crate) fn leave(&self, slot: &Slot) {
        let mut state = self.state.lock();
        state.slots.remove(&slot.number);
        if let Some(listener) = state.listeners.get_mut(&slot.listener) {
            listener.open -= 1;
        }
        if let Some(open) = state.per_ip.get_mut(&slot.ip) {
            *open -= 1;
            if *open == 0 {
                state.per_ip.remove(&slot.ip);
            }
        }
        drop(state);
        self.changed.notify_waiters();
    }

    fn now_ms(&self) -> u64 {
        self.opened.elapsed().as_millis() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{DynamicConfig, Properties};

    const ONE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    fn limits(pairs: &[(&str, &str)]) -> ConnectionLimits {
        let owned = pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let properties: Properties = owned.collect();
        DynamicConfig::new(&properties).unwrap().connections
    }

    fn quotas(pairs: &[(&str, &str)]) -> ConnectionQuotas {
        let config = ServerConfig::new(&Properties::new()).unwrap();
        let quotas = ConnectionQuotas::new(&config, limits(pairs));
        quotas.add_listener("EXTERNAL");
        quotas
    }

    fn has_slot(quotas: &ConnectionQuotas, listener: &str) -> bool {
        quotas.has_slot(&quotas.state.lock(), listener)
    }

    fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match std::pin::pin!(future).poll(&mut context) {
            std::task::Poll::Ready(value) => Some(value),
            std::task::Poll::Pending => None,
        }
    }

    fn is_evicted(slot: &Slot) -> bool {
        at_once(slot.evicted()).is_some()
    }

    fn enter(quotas: &ConnectionQuotas, listener: &str, ip: IpAddr) -> Result<Arc<Slot>, Refusal> {
        at_once(quotas.enter(listener, ip)).unwrap()
    }

    // If this failed, one host could use all connections, or a host that closed its own could never come
    // back.
    #[test]
    fn connections_per_host_are_counted() {
        let quotas = quotas(&[
            ("max.connections.per.ip", "2"),
            ("max.connections.per.ip.overrides", "10.0.0.2:1"),
        ]);
        let slots = [ONE, ONE, OTHER].map(|ip| enter(&quotas, "EXTERNAL", ip).ok().unwrap());
        assert_eq!(enter(&quotas, "EXTERNAL", ONE).err(), Some(Refusal::TooMany(2)));
        assert_eq!(enter(&quotas, "EXTERNAL", OTHER).err(), Some(Refusal::TooMany(1)));
        quotas.leave(&slots[0]);
        quotas.leave(&enter(&quotas, "EXTERNAL", ONE).ok().unwrap());
        slots[1..].iter().for_each(|slot| quotas.leave(slot));
        let state = quotas.state.lock();
        assert!(state.per_ip.is_empty() && state.slots.is_empty());
        assert_eq!(state.listeners["EXTERNAL"].open, 0);
    }

    // If this failed, clients could keep brokers from each other, or a limit that is lowered would not hold.
    #[test]
    fn brokers_are_protected_and_the_longest_idle_is_evicted() {
        let quotas = quotas(&[
            ("max.connections", "2"),
            ("listener.name.plaintext.max.connections", "2"),
        ]);
        quotas.add_listener("PLAINTEXT");
        let idle = enter(&quotas, "EXTERNAL", ONE).ok().unwrap();
        let busy = enter(&quotas, "EXTERNAL", ONE).ok().unwrap();
        busy.used_ms.store(u64::MAX, Ordering::Relaxed);
        assert!(!has_slot(&quotas, "EXTERNAL") && has_slot(&quotas, "PLAINTEXT"));
        assert!(!is_evicted(&idle) && !is_evicted(&busy));
        let broker = enter(&quotas, "PLAINTEXT", ONE).ok().unwrap();
        assert!(is_evicted(&idle) && !is_evicted(&busy));
        quotas.leave(&idle);
        quotas.update(limits(&[("max.connections", "1")]));
        assert!(is_evicted(&busy) && !is_evicted(&broker));
        quotas.update(limits(&[("listener.name.plaintext.max.connections", "1")]));
        assert!(has_slot(&quotas, "EXTERNAL") && !has_slot(&quotas, "PLAINTEXT"));
    }

    // If this failed, a served connection would be closed for a new one on another listener.
    #[test]
    fn a_new_connection_waits_for_a_slot() {
        let quotas = quotas(&[("max.connections", "2"), ("max.connections.per.ip", "2")]);
        quotas.add_listener("PLAINTEXT");
        quotas.add_listener("OTHER");
        let first = enter(&quotas, "EXTERNAL", ONE).ok().unwrap();
        // Both listeners see one free slot.
        assert!(has_slot(&quotas, "EXTERNAL") && has_slot(&quotas, "OTHER"));
        let second = enter(&quotas, "EXTERNAL", ONE).ok().unwrap();
        let mut new = std::pin::pin!(quotas.enter("OTHER", ONE));
        assert!(at_once(new.as_mut()).is_none());
        assert!(!is_evicted(&first) && !is_evicted(&second));
        // While it waits, it has no slot and does not count.
        assert_eq!(quotas.state.lock().per_ip[&ONE], 2);
        quotas.leave(&second);
        let third = at_once(new).unwrap().ok().unwrap();
        assert!(!is_evicted(&first) && !is_evicted(&third));
        // A raised limit gives the next one a slot.
        let mut another = std::pin::pin!(quotas.enter("OTHER", OTHER));
        assert!(at_once(another.as_mut()).is_none());
        quotas.update(limits(&[("max.connections", "3")]));
        assert!(at_once(another).unwrap().is_ok());
    }

    // If this failed, a storm of connections would not be slowed down, or an address would wait because of
    // another one.
    #[test]
    fn connection_rates_are_limited() {
        let quotas = quotas(&[
            ("max.connection.creation.rate", "100"),
            ("listener.name.external.max.connection.creation.rate", "2"),
        ]);
        // 2 a second are 20 in the ten whole seconds of the window.
        let waits = [(); 21].map(|()| quotas.accepted("EXTERNAL"));
        assert!(waits[..20].iter().all(Duration::is_zero), "{waits:?}");
        assert!(!waits[20].is_zero() && waits[20] <= Duration::from_secs(1));
        assert!(quotas.accepted("ANOTHER").is_zero());
        let rates = [(None, 1.0), (Some("10.0.0.2".to_owned()), 2.0)];
        quotas.update_ip_rates(&rates).unwrap();
        let connects = |ip| enter(&quotas, "EXTERNAL", ip).is_ok();
        assert_eq!([(); 30].iter().filter(|()| connects(ONE)).count(), 10);
        assert_eq!([(); 30].iter().filter(|()| connects(OTHER)).count(), 20);
        quotas.update_ip_rates(&[]).unwrap();
        assert!(connects(ONE));
    }
}
