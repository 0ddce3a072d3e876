//! How many connections there may be, and how fast they may come.
//!
//! Owns: the count of connections, of all and by listener and address, the rates at which they came, and the limits of
//! both, which can be replaced at any time. Does not own the sockets: a listener asks before it accepts and tells what it
//! accepted; a connection that must give way is told through its [`Seat`]. Called from listeners' and connections' tasks;
//! one lock, taken when a connection comes and when it goes. Source: `ConnectionQuotas`.

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

/// So many rates of addresses are kept before those that are forgotten are looked for.
const SWEEP_MIN: usize = 1024;

/// The place of one connection.
pub(crate) struct Seat {
    pub(crate) number: u64,
    listener: Arc<str>,
    ip: IpAddr,
    /// When it was used last, in milliseconds since the server was opened.
    used_ms: AtomicU64,
    /// Another connection needs the place.
    give_way: Notify,
}

impl Seat {
    /// Returns when the connection has to close for another one's sake.
    pub(crate) async fn wanted(&self) {
        self.give_way.notified().await;
    }
}

/// Why a connection is not let in.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The address has so many open already.
    TooMany(usize),
    /// The address opens them too fast; it may come again after this time.
    TooFast(Duration),
}

#[derive(Default)]
struct Listener {
    open: usize,
    rate: Rate,
    /// Those that showed who they are, and those that could not.
    authenticated: u64,
    failed: u64,
}

/// Limits on the rate at which an address may connect.
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
    seats: HashMap<u64, Arc<Seat>>,
}

/// The connections of a server.
pub(crate) struct ConnectionQuotas {
    opened: Instant,
    window: Window,
    inter_broker: String,
    state: Mutex<State>,
    /// A place became free, or the limits changed.
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
                seats: HashMap::new(),
            }),
            changed: Notify::new(),
            next_number: AtomicU64::new(0),
        }
    }

    /// How many connections are open, by listener.
    pub(crate) fn open(&self) -> Vec<(String, u64)> {
        let state = self.state.lock();
        let listeners = state.listeners.iter();
        listeners
            .map(|(name, listener)| (name.to_string(), listener.open as u64))
            .collect()
    }

    /// How many connections authenticated themselves since the server was opened, and how many failed to, by listener.
    pub(crate) fn authentications(&self) -> Vec<(String, u64, u64)> {
        let state = self.state.lock();
        let listeners = state.listeners.iter();
        listeners
            .map(|(name, one)| (name.to_string(), one.authenticated, one.failed))
            .collect()
    }

    /// Takes note that a connection authenticated itself, or failed to.
    pub(crate) fn authenticated(&self, seat: &Seat, is_so: bool) {
        if let Some(listener) = self.state.lock().listeners.get_mut(&seat.listener) {
            *(if is_so {
                &mut listener.authenticated
            } else {
                &mut listener.failed
            }) += 1;
        }
    }

    /// Replaces the limits. Connections that are too many now are closed, the idlest first; not those of an address that
    /// has too many.
    pub(crate) fn update(&self, limits: ConnectionLimits) {
        let mut state = self.state.lock();
        state.limits = limits;
        self.make_room(&state);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Replaces the rates at which addresses may connect. No address is everyone that has no rate of its own.
    ///
    /// # Errors
    /// [`ServerError::InvalidConfig`] for an address that is none and a rate that is no number from 0; then nothing changes.
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

    /// Lets a listener have connections. Kafka protects the one that brokers use among themselves, if it is not the only one.
    pub(crate) fn add_listener(&self, name: &str) {
        let listeners = &mut self.state.lock().listeners;
        listeners.insert(name.into(), Listener::default());
    }

    /// Waits until the listener may have one more connection, which another listener's may be before it.
    pub(crate) async fn room(&self, listener: &str) {
        self.once(|state| self.has_room(state, listener).then_some(()))
            .await;
    }

    /// What is found in the state, once there is something: looks again whenever a place became free or the limits changed.
    async fn once<T>(&self, mut look: impl FnMut(&mut State) -> Option<T>) -> T {
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

    fn has_room(&self, state: &State, listener: &str) -> bool {
        let open = state.listeners.get(listener).map_or(0, |one| one.open);
        let own = state.limits.listener(listener);
        open < own.connections_max
            && (self.is_protected(state, listener) || state.seats.len() < state.limits.broker.connections_max)
    }

    fn is_protected(&self, state: &State, listener: &str) -> bool {
        state.listeners.len() > 1 && listener.eq_ignore_ascii_case(&self.inter_broker)
    }

    /// Counts a connection that was accepted, and says how long the listener must wait before it lets it in.
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

    /// How long to wait after one more; at most one sample.
    fn record(&self, rate: &mut Rate, bound: f64, now_ms: u64) -> u64 {
        rate.record(self.window, 1.0, now_ms);
        let wait = rate.throttle_ms(self.window, bound, now_ms);
        wait.min(self.window.length.as_millis() as u64)
    }

    /// Gives a connection a place, once there is one: the last may have gone to another listener's since it was accepted,
    /// and only brokers' come in where there is none, for which the idlest of the others goes.
    ///
    /// # Errors
    /// When its address has too many, or opens them too fast.
    pub(crate) async fn enter(&self, listener: &str, ip: IpAddr) -> Result<Arc<Seat>, Refusal> {
        self.once(|state| {
            self.has_room(state, listener)
                .then(|| self.seat(state, listener, ip))
        })
        .await
    }

    fn seat(&self, state: &mut State, listener: &str, ip: IpAddr) -> Result<Arc<Seat>, Refusal> {
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
        let seat = Arc::new(Seat {
            number: self.next_number.fetch_add(1, Ordering::Relaxed),
            listener: name,
            ip,
            used_ms: AtomicU64::new(now_ms),
            give_way: Notify::new(),
        });
        state.seats.insert(seat.number, Arc::clone(&seat));
        self.make_room(state);
        Ok(seat)
    }

    /// A connection that is refused for its rate is not counted in it.
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

    /// Tells the idlest connections to close while there are more than may be. Those of the protected listener stay.
    fn make_room(&self, state: &State) {
        let excess = state
            .seats
            .len()
            .saturating_sub(state.limits.broker.connections_max);
        if excess == 0 {
            return;
        }
        let mut others: Vec<_> = state
            .seats
            .values()
            .filter(|seat| !self.is_protected(state, &seat.listener))
            .collect();
        // Of those used in one millisecond the oldest goes.
        others.sort_by_key(|seat| (seat.used_ms.load(Ordering::Relaxed), seat.number));
        for seat in others.into_iter().take(excess) {
            seat.give_way.notify_one();
        }
    }

    /// Takes note that a connection is not idle.
    pub(crate) fn used(&self, seat: &Seat) {
        seat.used_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    /// Takes the place back.
    pub(crate) fn leave(&self, seat: &Seat) {
        let mut state = self.state.lock();
        state.seats.remove(&seat.number);
        if let Some(listener) = state.listeners.get_mut(&seat.listener) {
            listener.open -= 1;
        }
        if let Some(open) = state.per_ip.get_mut(&seat.ip) {
            *open -= 1;
            if *open == 0 {
                state.per_ip.remove(&seat.ip);
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

    fn has_room(quotas: &ConnectionQuotas, listener: &str) -> bool {
        quotas.has_room(&quotas.state.lock(), listener)
    }

    /// What is there without waiting.
    fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match std::pin::pin!(future).poll(&mut context) {
            std::task::Poll::Ready(value) => Some(value),
            std::task::Poll::Pending => None,
        }
    }

    fn is_wanted(seat: &Seat) -> bool {
        at_once(seat.wanted()).is_some()
    }

    fn enter(quotas: &ConnectionQuotas, listener: &str, ip: IpAddr) -> Result<Arc<Seat>, Refusal> {
        at_once(quotas.enter(listener, ip)).unwrap()
    }

    // If this failed, one host could take all connections, or a host that closed its own could never come back.
    #[test]
    fn connections_per_host_are_counted() {
        let quotas = quotas(&[
            ("max.connections.per.ip", "2"),
            ("max.connections.per.ip.overrides", "10.0.0.2:1"),
        ]);
        let seats = [ONE, ONE, OTHER].map(|ip| enter(&quotas, "EXTERNAL", ip).ok().unwrap());
        assert_eq!(enter(&quotas, "EXTERNAL", ONE).err(), Some(Refusal::TooMany(2)));
        assert_eq!(enter(&quotas, "EXTERNAL", OTHER).err(), Some(Refusal::TooMany(1)));
        quotas.leave(&seats[0]);
        quotas.leave(&enter(&quotas, "EXTERNAL", ONE).ok().unwrap());
        seats[1..].iter().for_each(|seat| quotas.leave(seat));
        let state = quotas.state.lock();
        assert!(state.per_ip.is_empty() && state.seats.is_empty());
        assert_eq!(state.listeners["EXTERNAL"].open, 0);
    }

    // If this failed, clients could keep brokers from each other, or a limit that is lowered would not hold.
    #[test]
    fn brokers_come_first_and_the_idlest_goes() {
        let quotas = quotas(&[
            ("max.connections", "2"),
            ("listener.name.plaintext.max.connections", "2"),
        ]);
        quotas.add_listener("PLAINTEXT");
        let idle = enter(&quotas, "EXTERNAL", ONE).ok().unwrap();
        let busy = enter(&quotas, "EXTERNAL", ONE).ok().unwrap();
        busy.used_ms.store(u64::MAX, Ordering::Relaxed);
        assert!(!has_room(&quotas, "EXTERNAL") && has_room(&quotas, "PLAINTEXT"));
        assert!(!is_wanted(&idle) && !is_wanted(&busy));
        let broker = enter(&quotas, "PLAINTEXT", ONE).ok().unwrap();
        assert!(is_wanted(&idle) && !is_wanted(&busy));
        quotas.leave(&idle);
        quotas.update(limits(&[("max.connections", "1")]));
        assert!(is_wanted(&busy) && !is_wanted(&broker));
        quotas.update(limits(&[("listener.name.plaintext.max.connections", "1")]));
        assert!(has_room(&quotas, "EXTERNAL") && !has_room(&quotas, "PLAINTEXT"));
    }

    // If this failed, somebody who is served would be closed for a newcomer on another listener.
    #[test]
    fn a_newcomer_waits_for_a_place() {
        let quotas = quotas(&[("max.connections", "2"), ("max.connections.per.ip", "2")]);
        quotas.add_listener("PLAINTEXT");
        quotas.add_listener("OTHER");
        let first = enter(&quotas, "EXTERNAL", ONE).ok().unwrap();
        // Both listeners were told that there is room for one.
        assert!(has_room(&quotas, "EXTERNAL") && has_room(&quotas, "OTHER"));
        let second = enter(&quotas, "EXTERNAL", ONE).ok().unwrap();
        let mut newcomer = std::pin::pin!(quotas.enter("OTHER", ONE));
        assert!(at_once(newcomer.as_mut()).is_none());
        assert!(!is_wanted(&first) && !is_wanted(&second));
        // While it waits it is nobody's place and nobody's connection.
        assert_eq!(quotas.state.lock().per_ip[&ONE], 2);
        quotas.leave(&second);
        let third = at_once(newcomer).unwrap().ok().unwrap();
        assert!(!is_wanted(&first) && !is_wanted(&third));
        // A limit that is raised lets the next one in.
        let mut another = std::pin::pin!(quotas.enter("OTHER", OTHER));
        assert!(at_once(another.as_mut()).is_none());
        quotas.update(limits(&[("max.connections", "3")]));
        assert!(at_once(another).unwrap().is_ok());
    }

    // If this failed, a storm of connections would not be slowed down, or an honest address would pay for another one.
    #[test]
    fn connections_come_no_faster_than_they_may() {
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
        let come = |ip| enter(&quotas, "EXTERNAL", ip).is_ok();
        assert_eq!([(); 30].iter().filter(|()| come(ONE)).count(), 10);
        assert_eq!([(); 30].iter().filter(|()| come(OTHER)).count(), 20);
        quotas.update_ip_rates(&[]).unwrap();
        assert!(come(ONE));
    }
}
