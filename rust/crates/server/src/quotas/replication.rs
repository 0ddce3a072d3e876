//! The throttles of replication (KIP-73): what leaders send to followers, what followers fetch, and what
//! moves between log directories copy.
//!
//! Only replicas that a topic's settings name are counted and held back, and only while they are not in sync.
//! Shared by all threads. A crash loses the counts. Source: `ReplicationQuotaManager`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::rate::Rate;
use crate::config::{Properties, ReplicationRates, Window};

/// A topic's settings that name its throttled replicas: on leaders, and on followers.
const LEADER_REPLICAS: &str = "leader.replication.throttled.replicas";
const FOLLOWER_REPLICAS: &str = "follower.replication.throttled.replicas";

/// All throttles of a server.
pub(crate) struct ReplicationQuotas {
    /// `leader.replication.throttled.rate`
    pub(crate) leader: ReplicationQuota,
    /// `follower.replication.throttled.rate`
    pub(crate) follower: ReplicationQuota,
    /// `replica.alter.log.dirs.io.max.bytes.per.second`
    pub(crate) moves: ReplicationQuota,
}

impl ReplicationQuotas {
    pub(crate) fn new(replication: Window, moves: Window, rates: &ReplicationRates) -> Self {
        let quotas = Self {
            leader: ReplicationQuota::new(replication),
            follower: ReplicationQuota::new(replication),
            moves: ReplicationQuota::new(moves),
        };
        quotas.update(rates);
        quotas
    }

    pub(crate) fn update(&self, rates: &ReplicationRates) {
        self.leader.bound.store(rates.leader, Ordering::Relaxed);
        self.follower.bound.store(rates.follower, Ordering::Relaxed);
        self.moves.bound.store(rates.moves, Ordering::Relaxed);
    }
}

/// One rate and its bound.
pub(crate) struct ReplicationQuota {
    window: Window,
    opened: Instant,
    rate: Mutex<Rate>,
    /// Bytes a second; `i64::MAX` stands for no bound.
    bound: AtomicU64,
}

impl ReplicationQuota {
    fn new(window: Window) -> Self {
        Self {
            window,
            opened: Instant::now(),
            rate: Mutex::default(),
            bound: AtomicU64::new(ReplicationRates::NO_BOUND),
        }
    }

    pub(crate) fn bound(&self) -> Option<u64> {
        let bound = self.bound.load(Ordering::Relaxed);
        (bound < ReplicationRates::NO_BOUND).then_some(bound)
    }

    /// Adds bytes, also above the bound.
    pub(crate) fn record(&self, bytes: u64) {
        let now_ms = self.now_ms();
        self.rate.lock().record(self.window, bytes as f64, now_ms);
    }

    /// How long the rate will be above its bound; `None` if it is not above.
    pub(crate) fn exceeded_for(&self) -> Option<Duration> {
        let bound = self.bound()? as f64;
        let wait_ms = self.rate.lock().simple_wait_ms(self.window, bound, self.now_ms());
        (wait_ms > 0).then(|| Duration::from_millis(wait_ms))
    }

    fn now_ms(&self) -> u64 {
        self.opened.elapsed().as_millis() as u64
    }
}

/// Whether a topic's settings throttle this broker's replica of a partition: as leader, and as follower.
pub(crate) fn is_throttled(config: &Properties, broker: i32, partition: i32) -> (bool, bool) {
    let names = |setting: &str| {
        let text = config.get(setting).map_or("", |text| text.trim());
        let is_it = |pair: &str| {
            let pair = pair.trim().split_once(':');
            let numbers = pair.map(|(index, id)| (index.trim().parse::<i32>(), id.trim().parse::<i32>()));
            numbers == Some((Ok(partition), Ok(broker)))
        };
        text == "*" || text.split(',').any(is_it)
    };
    (names(LEADER_REPLICAS), names(FOLLOWER_REPLICAS))
}

#[cfg(test)]
mod tests {
    use super::*;

    // If this failed, an operator's list would throttle other replicas than it names.
    #[test]
    fn a_list_names_partitions_and_brokers() {
        let config = |leader: &str, follower: &str| -> Properties {
            let pairs = [(LEADER_REPLICAS, leader), (FOLLOWER_REPLICAS, follower)];
            pairs
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into()
        };
        let lists = config("0:1,0:2, 1:3", "*");
        assert_eq!(is_throttled(&lists, 1, 0), (true, true));
        assert_eq!(is_throttled(&lists, 3, 1), (true, true));
        assert_eq!(is_throttled(&lists, 3, 0), (false, true));
        assert_eq!(is_throttled(&config("", "0:2"), 1, 0), (false, false));
        assert_eq!(is_throttled(&Properties::new(), 1, 0), (false, false));
    }

    // If this failed, replication would be held back for longer or shorter than in Kafka.
    #[test]
    fn a_rate_is_above_its_bound_until_time_has_passed() {
        let window = Window {
            samples: 11,
            length: Duration::from_secs(1),
        };
        let mut rate = Rate::default();
        rate.record(window, 1000.0, 0);
        assert_eq!(
            rate.simple_wait_ms(window, 1000.0, 0),
            0,
            "a second's bytes at once"
        );
        rate.record(window, 1000.0, 500);
        assert_eq!(rate.simple_wait_ms(window, 1000.0, 500), 1500);
        assert_eq!(rate.simple_wait_ms(window, 1000.0, 2000), 0);
        rate.record(window, 1_000_000.0, 2000);
        let whole = rate.simple_wait_ms(window, 1000.0, 2000);
        assert_eq!(whole, 11_000, "then it is forgotten");
        assert_eq!(rate.simple_wait_ms(window, 1000.0, 14_000), 0);
    }
}
