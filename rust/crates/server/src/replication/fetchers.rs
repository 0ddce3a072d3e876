//! All fetchers of a server: which partition is with which, and where the leaders are.
//!
//! Python's threads call this, one change of a partition at a time. The fetchers are threads of their own,
//! started with their first partition. A fetcher whose leader's address is not known waits for it.
//! Source: `AbstractFetcherManager`.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::Mutex;

use super::address::BrokerAddress;
use super::fetcher::Fetcher;
use super::following::{Context, Following};
use crate::error::{Result, ServerError};
use crate::housekeeping::moves::Moves;
use crate::partitions::registry::Partition;
use crate::shared::Shared;

pub(crate) struct Fetchers {
    context: Arc<Context>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    addresses: HashMap<i32, BrokerAddress>,
    /// By the leader's id and a number below `num.replica.fetchers`.
    running: HashMap<(i32, usize), Running>,
    /// By topic and index.
    following: HashMap<(Arc<str>, i32), Arc<Following>>,
    stopped: bool,
}

struct Running {
    fetcher: Arc<Fetcher>,
    thread: JoinHandle<()>,
}

impl Fetchers {
    pub(crate) fn new(shared: Arc<Shared>, moves: Arc<Moves>) -> Self {
        Self {
            context: Arc::new(Context { shared, moves }),
            state: Mutex::default(),
        }
    }

    /// Replaces the addresses of all brokers. Fetchers of brokers that moved connect again.
    pub(crate) fn set_brokers(&self, brokers: &[BrokerAddress]) {
        let mut state = self.state.lock();
        state.addresses = brokers.iter().map(|one| (one.id, one.clone())).collect();
        let State {
            addresses, running, ..
        } = &mut *state;
        running.retain(|(id, _), running| {
            let address = addresses.get(id);
            running.fetcher.set_address(address.cloned());
            let is_over = address.is_none() && running.fetcher.is_idle();
            if is_over {
                // The thread has nothing to do and ends by itself.
                running.fetcher.stop();
            }
            !is_over
        });
    }

    /// Fetches a partition from its leader, unless it does so already in this epoch. A new epoch begins with
    /// a comparison of the logs.
    ///
    /// # Errors
    /// If the system has no thread left.
    pub(crate) fn follow(&self, partition: &Arc<Partition>, leader_id: i32, epoch: i32) -> Result<()> {
        let is_same = |one: &Arc<Following>| (one.leader_id, one.epoch) == (leader_id, epoch);
        if self
            .find(&partition.topic, partition.index)
            .is_some_and(|one| is_same(&one))
        {
            return Ok(());
        }
        self.stop(&partition.topic, partition.index);
        let following = Arc::new(Following::new(Arc::clone(partition), leader_id, epoch));
        let mut state = self.state.lock();
        if state.stopped {
            return Ok(());
        }
        let number = fetcher_of(&partition.topic, partition.index, self.count());
        let fetcher = match state.running.get(&(leader_id, number)) {
            Some(running) => Arc::clone(&running.fetcher),
            None => self.start(&mut state, leader_id, number)?,
        };
        let key = (Arc::clone(&partition.topic), partition.index);
        state.following.insert(key, Arc::clone(&following));
        fetcher.add(following);
        Ok(())
    }

    fn count(&self) -> usize {
        self.context.shared.config.replica.fetchers
    }

    fn find(&self, topic: &Arc<str>, index: i32) -> Option<Arc<Following>> {
        let state = self.state.lock();
        state.following.get(&(Arc::clone(topic), index)).cloned()
    }

    fn start(&self, state: &mut State, leader_id: i32, number: usize) -> Result<Arc<Fetcher>> {
        let address = state.addresses.get(&leader_id).cloned();
        let fetcher = Arc::new(Fetcher::new(
            Arc::clone(&self.context),
            leader_id,
            number,
            address,
        ));
        let run = Arc::clone(&fetcher);
        let thread = std::thread::Builder::new()
            .name(format!("logcore-fetch-{leader_id}"))
            .spawn(move || run.run())
            .map_err(|source| ServerError::Os {
                action: "start a thread that fetches from a leader",
                source,
            })?;
        let running = Running {
            fetcher: Arc::clone(&fetcher),
            thread,
        };
        state.running.insert((leader_id, number), running);
        Ok(fetcher)
    }

    /// Ends the fetching of a partition, if it is fetched. Nothing is written to its log from then on. May
    /// wait for the disk.
    pub(crate) fn stop(&self, topic: &str, index: i32) {
        let removed = {
            let mut state = self.state.lock();
            state.following.remove(&(Arc::from(topic), index))
        };
        // Without the lock: other partitions do not wait for this one's disk.
        if let Some(following) = removed {
            following.end();
        }
    }

    /// Ends all fetchers and waits for their threads.
    pub(crate) fn stop_all(&self) {
        let stopped = State {
            stopped: true,
            ..State::default()
        };
        let before = std::mem::replace(&mut *self.state.lock(), stopped);
        let State {
            running, following, ..
        } = before;
        for running in running.values() {
            running.fetcher.stop();
        }
        for one in following.values() {
            one.end();
        }
        for running in running.into_values() {
            // It catches its panics.
            let _ = running.thread.join();
        }
    }

    /// The most records by which a followed partition is behind.
    pub(crate) fn lag_max(&self) -> i64 {
        let state = self.state.lock();
        let all = state.following.values();
        all.filter_map(|one| one.lag()).max().unwrap_or(0)
    }

    /// The number of fetchers whose threads ended although they were not stopped.
    pub(crate) fn dead_count(&self) -> usize {
        let state = self.state.lock();
        let threads = state.running.values();
        threads.filter(|running| running.thread.is_finished()).count()
    }

    /// The number of followed partitions that are not fetched any more.
    pub(crate) fn failed_count(&self) -> usize {
        let state = self.state.lock();
        state.following.values().filter(|one| one.has_failed()).count()
    }
}

/// The number of a partition's fetcher (`AbstractFetcherManager.getFetcherId`): Java's hash of the name.
fn fetcher_of(topic: &str, index: i32, count: usize) -> usize {
    let hash = topic.encode_utf16().fold(0_i32, |hash, unit| {
        hash.wrapping_mul(31).wrapping_add(i32::from(unit))
    });
    let hash = hash.wrapping_mul(31).wrapping_add(index);
    // Java's absolute value of the smallest number counts as 0.
    hash.checked_abs().unwrap_or(0) as usize % count.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    // If this failed, the partitions of one topic could all be with one fetcher, while others have none.
    #[test]
    fn partitions_are_spread_by_kafkas_hash() {
        let spread = |topic: &str| {
            (0..4)
                .map(|index| fetcher_of(topic, index, 4))
                .collect::<Vec<_>>()
        };
        // "t" has the code 116: 31 * 116 = 3596.
        assert_eq!(spread("t"), [0, 1, 2, 3]);
        // The hash of "polygenelubricants" is the smallest number; 31 times it is that number again.
        assert_eq!(spread("polygenelubricants"), [0, 3, 2, 1]);
        assert_eq!(fetcher_of("t", 3, 1), 0);
    }
}
