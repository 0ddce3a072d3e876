//! The replicas of a partition, on its leader: which are in sync, how far each has fetched, and which one a
//! consumer should read.
//!
//! Python sets the replicas and the ISR. The followers' Fetch requests show their positions. Both determine
//! the high watermark. A follower that is in sync again, or not any more, is a fact for Python, which asks
//! the controller for another ISR and then sets it. Shared between connections. Nothing is on disk: a
//! restarted leader learns the positions again. Source: `Partition`, `Replica`.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use logcore_storage::Log;

/// A replica's position before its first Fetch.
const UNKNOWN: i64 = -1;

/// One replica of a partition: see [`crate::PartitionSpec::replicas`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replica {
    /// The broker's id.
    pub id: i32,
    /// `broker.rack`
    pub rack: Option<String>,
    /// The names of the broker's listeners. Empty for a broker that is not alive.
    pub listeners: Vec<String>,
    /// Whether it is in the ISR.
    pub in_sync: bool,
}

/// What holds for the replicas of all partitions.
#[derive(Debug)]
pub(crate) struct ReplicaRules {
    /// `replica.lag.time.max.ms`
    pub(crate) lag_max: Duration,
    /// The brokers that Python says are alive.
    alive: RwLock<HashSet<i32>>,
}

impl ReplicaRules {
    pub(crate) fn new(lag_max: Duration) -> Self {
        Self {
            lag_max,
            alive: RwLock::default(),
        }
    }

    /// Returns whether that is new.
    pub(crate) fn set_alive(&self, alive: HashSet<i32>) -> bool {
        let mut known = self.alive.write();
        let is_new = *known != alive;
        *known = alive;
        is_new
    }

    fn is_alive(&self, id: i32) -> bool {
        self.alive.read().contains(&id)
    }
}

/// The replicas of a partition from now on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Assignment<'a> {
    pub(crate) replicas: &'a [Replica],
    /// This server.
    pub(crate) node_id: i32,
    /// This server is the leader.
    pub(crate) leads: bool,
    pub(crate) leader_epoch: i32,
    /// -1 if it is not known.
    pub(crate) partition_epoch: i32,
}

/// The ISR of a partition from now on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Isr<'a> {
    pub(crate) leader_epoch: i32,
    pub(crate) partition_epoch: i32,
    /// The committed ISR.
    pub(crate) members: &'a [i32],
    /// Replicas that a request to the controller adds, and that it may already have added.
    pub(crate) joining: &'a [i32],
}

/// A follower's Fetch: it has all records before `offset`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FollowerFetch {
    pub(crate) id: i32,
    /// The leader's epoch in which it was answered.
    pub(crate) leader_epoch: i32,
    pub(crate) offset: i64,
    pub(crate) log_start: i64,
    /// The end of the leader's log then, and the time.
    pub(crate) leader_end: i64,
    pub(crate) at: Instant,
}

/// What a Fetch changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Noted {
    /// The high watermark rose.
    pub(crate) raised: bool,
    /// The follower is not in the ISR and could be. That is reported once until Python answers.
    pub(crate) caught_up: bool,
}

/// `ReplicaState`
#[derive(Debug, Clone, Copy)]
struct Position {
    log_start: i64,
    /// It has all records before this offset.
    log_end: i64,
    fetched_at: Option<Instant>,
    /// The end of the leader's log at the last Fetch.
    leader_end: i64,
    /// The last time at which it had all of the leader's records.
    caught_up_at: Option<Instant>,
}

impl Position {
    /// The position on a new leader.
    fn unknown(in_sync: bool) -> Self {
        Self {
            log_start: UNKNOWN,
            log_end: UNKNOWN,
            fetched_at: None,
            leader_end: UNKNOWN,
            // A member of the ISR has time to fetch.
            caught_up_at: in_sync.then(Instant::now),
        }
    }

    /// `Replica.updateFetchStateOrThrow`
    fn note(&mut self, fetch: &FollowerFetch) {
        let caught_up_at = if fetch.offset >= fetch.leader_end {
            Some(fetch.at)
        } else if fetch.offset >= self.leader_end {
            // It has what the leader had at the Fetch before.
            self.fetched_at
        } else {
            None
        };
        self.caught_up_at = self.caught_up_at.max(caught_up_at);
        self.leader_end = self.leader_end.max(fetch.leader_end);
        self.fetched_at = Some(fetch.at);
        self.log_end = fetch.offset;
        self.log_start = fetch.log_start;
    }

    /// `ReplicaState.isCaughtUp`
    fn is_caught_up(&self, leader_end: i64, now: Instant, lag_max: Duration) -> bool {
        let recent = |at: Instant| now.saturating_duration_since(at) <= lag_max;
        self.log_end == leader_end || self.caught_up_at.is_some_and(recent)
    }
}

#[derive(Debug)]
struct Follower {
    replica: Replica,
    /// It is being added to the ISR.
    joins: bool,
    position: Mutex<Position>,
    /// A fact about it was reported, and Python has not answered.
    is_reported: AtomicBool,
}

impl Follower {
    /// Whether records wait for it: it is in the ISR or may be (KIP-497's maximal ISR).
    fn may_be_in_sync(&self) -> bool {
        self.replica.in_sync || self.joins
    }

    fn position(&self) -> Position {
        *self.position.lock()
    }

    fn is_first_report(&self) -> bool {
        !self.is_reported.swap(true, Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
struct State {
    leads: bool,
    leader_rack: Option<String>,
    followers: Vec<Follower>,
    /// The epoch in which the followers' positions were reported.
    epoch: i32,
    /// The end of the log when this server began to lead in this epoch (`leaderEpochStartOffsetOpt`). After a
    /// restart it is above the epoch's first offset.
    begun_at: i64,
    partition_epoch: i32,
}

#[derive(Debug)]
pub(crate) struct Replicas {
    state: RwLock<State>,
    /// The number of replicas and of in-sync replicas, for appends.
    counts: AtomicU64,
    /// The leader has followers, and none is in the ISR. So its own appends can raise the high watermark.
    is_alone: AtomicBool,
}

impl Default for Replicas {
    fn default() -> Self {
        Self {
            state: RwLock::default(),
            counts: AtomicU64::new(pack(1, 1)),
            is_alone: AtomicBool::new(false),
        }
    }
}

fn pack(all: usize, in_sync: usize) -> u64 {
    let short = |count: usize| u64::from(u32::try_from(count).unwrap_or(u32::MAX));
    short(all) << 32 | short(in_sync)
}

impl Replicas {
    /// Sets the replicas and the ISR. Nothing changes if a newer ISR of the same epoch was set.
    pub(crate) fn set(&self, new: &Assignment<'_>, log: &Log, rules: &ReplicaRules) {
        let others = |replica: &&Replica| new.leads && replica.id != new.node_id;
        let has_others = new.replicas.iter().any(|replica| others(&replica));
        let is_only_one = new.leads && !has_others;
        if !is_only_one {
            // This may wait for the disk, so it happens before the lock is taken.
            log.set_replicated_at_current();
        }
        let mut state = self.state.write();
        let same_epoch = state.leads && state.epoch == new.leader_epoch;
        if same_epoch && (0..state.partition_epoch).contains(&new.partition_epoch) {
            return;
        }
        // The controller may still accept a request that adds replicas to this very ISR.
        let keeps_joining = same_epoch && new.partition_epoch <= state.partition_epoch;
        let own = new.replicas.iter().find(|replica| replica.id == new.node_id);
        let before = std::mem::take(&mut *state);
        *state = State {
            leads: new.leads,
            leader_rack: own.and_then(|own| own.rack.clone()),
            followers: new
                .replicas
                .iter()
                .filter(others)
                .map(|replica| before.follower_again(replica, same_epoch, keeps_joining))
                .collect(),
            epoch: new.leader_epoch,
            begun_at: if same_epoch {
                before.begun_at
            } else {
                log.log_end_offset()
            },
            partition_epoch: new.partition_epoch,
        };
        self.count(&state);
        if is_only_one {
            log.set_unreplicated();
        } else {
            state.raise_high_watermark(log, rules, Instant::now());
        }
    }

    /// Sets the ISR. Facts may be reported again. Returns false, and changes nothing, if this server does not
    /// lead in that epoch, or a newer ISR was set.
    pub(crate) fn set_isr(&self, isr: &Isr<'_>, log: &Log, rules: &ReplicaRules) -> bool {
        let mut state = self.state.write();
        let is_current = state.leads && state.epoch == isr.leader_epoch;
        if !is_current || isr.partition_epoch < state.partition_epoch {
            return false;
        }
        state.partition_epoch = isr.partition_epoch;
        for follower in &mut state.followers {
            let id = follower.replica.id;
            follower.replica.in_sync = isr.members.contains(&id);
            follower.joins = isr.joining.contains(&id);
            follower.is_reported = AtomicBool::new(false);
        }
        self.count(&state);
        state.raise_high_watermark(log, rules, Instant::now());
        true
    }

    fn count(&self, state: &State) {
        let counts = pack(state.followers.len() + 1, state.in_sync().count() + 1);
        self.counts.store(counts, Ordering::Release);
        let waits_for_none = !state.followers.iter().any(Follower::may_be_in_sync);
        let is_alone = waits_for_none && !state.followers.is_empty();
        self.is_alone.store(is_alone, Ordering::Release);
    }

    /// Whether the in-sync replicas are as many as `min.insync.replicas`. If there are fewer replicas than
    /// that, all must be in sync.
    pub(crate) fn has_min_in_sync(&self, log: &Log) -> bool {
        let (all, in_sync) = self.in_sync();
        in_sync >= all || in_sync >= u64::from(log.config().min_insync_replicas)
    }

    /// Whether one in-sync replica less would be fewer than `min.insync.replicas` (`Partition.isAtMinIsr`).
    pub(crate) fn is_at_min_in_sync(&self, log: &Log) -> bool {
        let (all, in_sync) = self.in_sync();
        in_sync == all.min(u64::from(log.config().min_insync_replicas))
    }

    /// The number of replicas, and of those in the ISR.
    pub(crate) fn in_sync(&self) -> (u64, u64) {
        let counts = self.counts.load(Ordering::Acquire);
        (counts >> 32, counts & u64::from(u32::MAX))
    }

    /// The end of the log when this server began to lead in its epoch.
    pub(crate) fn begun_at(&self) -> i64 {
        self.state.read().begun_at
    }

    pub(crate) fn is_follower(&self, id: i32) -> bool {
        self.state.read().follower(id).is_some()
    }

    pub(crate) fn is_in_sync(&self, id: i32) -> bool {
        let state = self.state.read();
        state
            .follower(id)
            .is_some_and(|follower| follower.replica.in_sync)
    }

    /// A follower's Fetch shows its position. One of another leader's epoch does not count.
    pub(crate) fn note_fetch(&self, fetch: &FollowerFetch, log: &Log, rules: &ReplicaRules) -> Noted {
        let state = self.state.read();
        let follower = state.follower(fetch.id);
        let Some(follower) = follower.filter(|_| state.epoch == fetch.leader_epoch) else {
            return Noted::default();
        };
        let before = {
            let mut position = follower.position.lock();
            let before = position.log_end;
            position.note(fetch);
            before
        };
        let caught_up = !follower.may_be_in_sync()
            && fetch.offset >= log.high_watermark()
            // Below, it could become the leader without records that were acknowledged.
            && fetch.offset >= state.begun_at
            && follower.is_first_report();
        Noted {
            raised: before != fetch.offset && state.raise_high_watermark(log, rules, fetch.at),
            caught_up,
        }
    }

    /// The leader appended. Returns whether that raised the high watermark.
    pub(crate) fn note_append(&self, log: &Log, rules: &ReplicaRules) -> bool {
        self.is_alone.load(Ordering::Acquire) && self.raise(log, rules)
    }

    /// Raises the high watermark if it can, because a follower died or fell behind.
    pub(crate) fn raise(&self, log: &Log, rules: &ReplicaRules) -> bool {
        self.state.read().raise_high_watermark(log, rules, Instant::now())
    }

    /// The members of the ISR that did not catch up for `replica.lag.time.max.ms`, each once until Python
    /// answers, and the leader's epoch. None while replicas are being added.
    pub(crate) fn fallen_behind(&self, log: &Log, rules: &ReplicaRules) -> (i32, Vec<i32>) {
        let state = self.state.read();
        if state.followers.iter().any(|follower| follower.joins) {
            return (state.epoch, Vec::new());
        }
        let (end, now) = (log.log_end_offset(), Instant::now());
        let behind = state
            .in_sync()
            .filter(|follower| !follower.position().is_caught_up(end, now, rules.lag_max));
        let behind = behind.filter(|follower| follower.is_first_report());
        (state.epoch, behind.map(|follower| follower.replica.id).collect())
    }

    /// The replica from which a consumer in `rack` should read `offset`, unless it is the leader. Its broker
    /// must have the consumer's listener, or the consumer could not connect.
    pub(crate) fn preferred(&self, rack: &str, listener: &str, offset: i64) -> Option<i32> {
        let state = self.state.read();
        if rack.is_empty() || state.followers.is_empty() {
            return None;
        }
        let candidates = state.in_sync().filter_map(|follower| {
            let position = follower.position();
            let has = (position.log_start..=position.log_end).contains(&offset);
            let replica = &follower.replica;
            let is_reachable = replica.listeners.iter().any(|name| name == listener);
            (has && is_reachable).then_some(Candidate {
                id: replica.id,
                rack: replica.rack.as_deref(),
                log_end: position.log_end,
            })
        });
        nearest(rack, state.leader_rack.as_deref(), candidates)
    }
}

impl State {
    fn in_sync(&self) -> impl Iterator<Item = &Follower> {
        self.followers.iter().filter(|follower| follower.replica.in_sync)
    }

    fn follower(&self, id: i32) -> Option<&Follower> {
        self.followers.iter().find(|follower| follower.replica.id == id)
    }

    /// A follower with its position, if that was reported in the same epoch.
    fn follower_again(&self, replica: &Replica, same_epoch: bool, keeps_joining: bool) -> Follower {
        let before = self.follower(replica.id).filter(|_| same_epoch);
        let position = before.map_or_else(|| Position::unknown(replica.in_sync), Follower::position);
        Follower {
            replica: replica.clone(),
            joins: keeps_joining && before.is_some_and(|before| before.joins),
            position: Mutex::new(position),
            is_reported: AtomicBool::new(false),
        }
    }

    /// Sets the high watermark to the end of what every replica has that is in sync or may be. It also waits
    /// for followers that have caught up lately; otherwise they could never reach it and join the ISR. With
    /// fewer than `min.insync.replicas` it stays. Returns whether it rose. Source:
    /// `Partition.maybeIncrementLeaderHW`.
    fn raise_high_watermark(&self, log: &Log, rules: &ReplicaRules, now: Instant) -> bool {
        if !self.leads || self.followers.is_empty() {
            return false;
        }
        let (all, in_sync) = (self.followers.len() + 1, self.in_sync().count() + 1);
        if in_sync < all && in_sync < log.config().min_insync_replicas as usize {
            return false;
        }
        let leader_end = log.log_end_offset();
        let mut end = leader_end;
        for follower in &self.followers {
            let position = follower.position();
            if position.log_end >= end {
                continue;
            }
            let has_caught_up = || {
                position.is_caught_up(leader_end, now, rules.lag_max) && rules.is_alive(follower.replica.id)
            };
            if follower.may_be_in_sync() || has_caught_up() {
                end = position.log_end;
            }
        }
        let before = log.high_watermark();
        end > before && log.set_high_watermark(end) > before
    }
}

#[derive(Debug, Clone, Copy)]
struct Candidate<'a> {
    id: i32,
    rack: Option<&'a str>,
    log_end: i64,
}

/// The leader (`None`) if it is in the consumer's rack or no other replica is, and else the replica there
/// that is the furthest (`RackAwareReplicaSelector`).
fn nearest<'a>(
    rack: &str,
    leader_rack: Option<&str>,
    candidates: impl Iterator<Item = Candidate<'a>>,
) -> Option<i32> {
    if leader_rack == Some(rack) {
        return None;
    }
    candidates
        .filter(|candidate| candidate.rack == Some(rack))
        .max_by_key(|candidate| (candidate.log_end, candidate.id))
        .map(|candidate| candidate.id)
}

#[cfg(test)]
#[path = "replicas_tests.rs"]
mod tests;
