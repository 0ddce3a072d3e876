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

    /// The number of replicas, and of those in the ISR.
    pub(crate) fn in_sync(&self) -> (u64, u64) {
        let counts = self.counts.load(Ordering::Acquire);
        (counts >> 32, counts & u64::from(u32::MAX))
    }

    pub(crate) fn is_follower(&self, id: i32) -> bool {
        self.state.read().follower(id).is_some()
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
            && state.has_epochs_start(fetch.offset, log)
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

    /// Whether a follower at `offset` has all records before the leader's epoch. Before that, it could become
    /// the leader without records that were acknowledged.
    fn has_epochs_start(&self, offset: i64, log: &Log) -> bool {
        let start = log.epoch_start(self.epoch);
        offset >= start.unwrap_or_else(|| log.log_end_offset())
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
mod tests {
    use logcore_storage::LogConfig;

    use super::*;

    fn replica(id: i32, rack: &str, in_sync: bool) -> Replica {
        Replica {
            id,
            rack: Some(rack.to_owned()),
            listeners: vec!["A".to_owned()],
            in_sync,
        }
    }

    fn batch() -> Vec<u8> {
        let mut builder = logcore_records::BatchBuilder::new(logcore_records::Compression::None, None);
        builder.append(1, None, Some(b"v"), &[]).unwrap();
        builder.build().unwrap()
    }

    // If this failed, a consumer would read from another data centre although its own has a replica, or from
    // a replica without its offset.
    #[test]
    fn the_nearest_replica_is_in_the_consumers_rack() {
        let candidate = |id, rack, log_end| Candidate {
            id,
            rack: Some(rack),
            log_end,
        };
        let all = [
            candidate(2, "b", 10),
            candidate(3, "b", 12),
            candidate(4, "c", 20),
        ];
        let from = |rack| nearest(rack, Some("a"), all.into_iter());
        assert_eq!(
            [from("a"), from("b"), from("c"), from("d")],
            [None, Some(3), Some(4), None]
        );
        let without_rack = Candidate { rack: None, ..all[0] };
        assert_eq!(nearest("b", None, [without_rack].into_iter()), None);
        assert_eq!(nearest("b", Some("b"), all.into_iter()), None);
    }

    fn rules() -> ReplicaRules {
        let rules = ReplicaRules::new(Duration::from_secs(30));
        rules.set_alive([1, 2, 3].into());
        rules
    }

    /// Broker 1 leads.
    fn set(replicas: &Replicas, all: &[Replica], leader_epoch: i32, log: &Log) {
        let assignment = Assignment {
            replicas: all,
            node_id: 1,
            leads: true,
            leader_epoch,
            partition_epoch: -1,
        };
        replicas.set(&assignment, log, &rules());
    }

    fn fetch(id: i32, offset: i64, log: &Log) -> FollowerFetch {
        FollowerFetch {
            id,
            leader_epoch: 5,
            offset,
            log_start: 0,
            leader_end: log.log_end_offset(),
            at: Instant::now(),
        }
    }

    fn append(log: &Log, count: usize) {
        for _ in 0..count {
            log.append_as_leader(&mut batch(), log.latest_epoch().unwrap_or(5), 1)
                .unwrap();
        }
    }

    fn isr<'a>(members: &'a [i32], joining: &'a [i32], partition_epoch: i32) -> Isr<'a> {
        Isr {
            leader_epoch: 5,
            partition_epoch,
            members,
            joining,
        }
    }

    /// Replicas 1, 2 and 3, led by 1 in epoch 5, with 2 in sync, and a log with two records.
    fn three(config: LogConfig) -> (tempfile::TempDir, Log, Replicas, [Replica; 3]) {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path(), config, false, 0).unwrap();
        let replicas = Replicas::default();
        log.begin_epoch(5);
        append(&log, 2);
        let all = [
            replica(1, "a", true),
            replica(2, "b", true),
            replica(3, "c", false),
        ];
        set(&replicas, &all, 5, &log);
        (dir, log, replicas, all)
    }

    // If this failed, records would be acknowledged that an in-sync replica does not have, or never be
    // acknowledged.
    #[test]
    fn the_high_watermark_is_what_all_in_sync_replicas_have() {
        let (_dir, log, replicas, all) = three(LogConfig::default());
        let note = |id, offset| {
            replicas
                .note_fetch(&fetch(id, offset, &log), &log, &rules())
                .raised
        };
        append(&log, 3);
        assert_eq!(log.high_watermark(), 2);
        assert!(!note(3, 5), "not in sync");
        assert!(!note(9, 5), "no replica");
        let old = FollowerFetch {
            leader_epoch: 4,
            ..fetch(2, 4, &log)
        };
        assert_eq!(replicas.note_fetch(&old, &log, &rules()), Noted::default());
        assert!(note(2, 4));
        assert_eq!(log.high_watermark(), 4);
        let preferred = |rack, offset| replicas.preferred(rack, "A", offset);
        assert_eq!(preferred("b", 4), Some(2));
        assert_eq!(preferred("b", 5), None, "it does not have the offset");
        assert_eq!(preferred("c", 4), None, "not in sync");
        assert_eq!(replicas.preferred("b", "B", 4), None, "no such listener");
        // The third is in sync now and has all records. The second has reported less.
        assert!(replicas.set_isr(&isr(&[1, 2, 3], &[], 1), &log, &rules()));
        assert_eq!(log.high_watermark(), 4);
        assert!(replicas.set_isr(&isr(&[1, 3], &[], 2), &log, &rules()));
        // The second has caught up lately, so it may join again.
        assert_eq!(log.high_watermark(), 4);
        let dead = ReplicaRules::new(Duration::from_secs(30));
        assert!(replicas.raise(&log, &dead));
        assert_eq!(log.high_watermark(), 5);
        append(&log, 1);
        assert_eq!(log.high_watermark(), 5);
        set(&replicas, &all[..1], 5, &log);
        append(&log, 1);
        assert_eq!(log.high_watermark(), 7);
        // In another epoch no position is known.
        log.begin_epoch(6);
        set(&replicas, &all, 6, &log);
        append(&log, 1);
        assert!(!note(2, 8));
        assert_eq!(log.high_watermark(), 7);
        // A follower does not move it by itself.
        let follows = Assignment {
            replicas: &all,
            node_id: 1,
            leads: false,
            leader_epoch: 7,
            partition_epoch: -1,
        };
        replicas.set(&follows, &log, &rules());
        assert!(!replicas.raise(&log, &rules()));
        assert_eq!(log.high_watermark(), 7);
    }

    // If this failed, a leader whose followers are all out of sync would never show its records, or show
    // them before a follower that just joins the ISR has them.
    #[test]
    fn a_leader_alone_raises_the_high_watermark_and_waits_for_who_joins() {
        let (_dir, log, replicas, all) = three(LogConfig::default());
        let dead = ReplicaRules::new(Duration::ZERO);
        let note = |id, offset| replicas.note_fetch(&fetch(id, offset, &log), &log, &dead);
        append(&log, 1);
        assert!(!replicas.note_append(&log, &rules()));
        assert!(replicas.set_isr(&isr(&[1], &[], 7), &log, &rules()));
        // Broker 2 was in sync until now, and is alive.
        assert_eq!(log.high_watermark(), 2);
        append(&log, 1);
        assert!(replicas.note_append(&log, &dead));
        assert_eq!(log.high_watermark(), 4);
        // An older ISR and another epoch's change nothing.
        assert!(!replicas.set_isr(&isr(&[1, 2], &[], 6), &log, &rules()));
        let other = Isr {
            leader_epoch: 4,
            ..isr(&[1, 2], &[], 9)
        };
        assert!(!replicas.set_isr(&other, &log, &rules()));
        assert_eq!(replicas.in_sync(), (3, 1));
        let caught_up = Noted {
            raised: false,
            caught_up: true,
        };
        assert_eq!(note(3, 3), Noted::default(), "below the high watermark");
        assert_eq!(note(3, 4), caught_up);
        assert_eq!(note(3, 4), Noted::default(), "reported");
        assert!(replicas.set_isr(&isr(&[1], &[3], 7), &log, &rules()));
        assert_eq!(replicas.in_sync(), (3, 1));
        append(&log, 1);
        assert!(!replicas.note_append(&log, &dead), "3 may be in sync");
        // The controller tells the old ISR again. It may still accept the request.
        let again = Assignment {
            replicas: &[all[0].clone(), replica(2, "b", false), all[2].clone()],
            node_id: 1,
            leads: true,
            leader_epoch: 5,
            partition_epoch: 7,
        };
        replicas.set(&again, &log, &dead);
        assert_eq!(log.high_watermark(), 4);
        assert_eq!(
            note(3, 5),
            Noted {
                raised: true,
                caught_up: false
            }
        );
        // The controller refused. It is reported again.
        assert!(replicas.set_isr(&isr(&[1], &[], 7), &log, &rules()));
        assert_eq!(note(3, 5), caught_up);
    }

    // If this failed, a slow follower would stop every acks=all, a quick one would be thrown out, or Python
    // would be told the same again and again.
    #[test]
    fn a_follower_falls_behind_once_it_has_not_caught_up_for_long() {
        let (_dir, log, replicas, _) = three(LogConfig::default());
        let begun = Instant::now();
        let second = |number| begun + Duration::from_secs(number);
        let at = |number, offset, leader_end| FollowerFetch {
            at: second(number),
            leader_end,
            ..fetch(2, offset, &log)
        };
        let caught_up = |position: &Position, number, lag| {
            position.is_caught_up(100, second(number), Duration::from_secs(lag))
        };
        let mut position = Position::unknown(false);
        assert!(!caught_up(&position, 0, 30));
        position.note(&at(1, 5, 10));
        assert!(!caught_up(&position, 1, 30));
        // At the Fetch before, the leader's log ended at 10.
        position.note(&at(4, 10, 20));
        assert!(caught_up(&position, 31, 30) && !caught_up(&position, 32, 30));
        position.note(&at(5, 20, 20));
        assert!(caught_up(&position, 35, 30) && !caught_up(&position, 36, 30));
        position.note(&at(90, 100, 101));
        assert!(caught_up(&position, 1000, 30), "it is at the end");

        let behind = |lag| replicas.fallen_behind(&log, &ReplicaRules::new(lag));
        assert_eq!(behind(Duration::from_secs(30)), (5, vec![]));
        assert_eq!(behind(Duration::ZERO), (5, vec![2]));
        assert_eq!(behind(Duration::ZERO), (5, vec![]), "reported");
        assert!(replicas.set_isr(&isr(&[1, 2], &[3], 0), &log, &rules()));
        assert_eq!(behind(Duration::ZERO), (5, vec![]), "3 is being added");
        assert!(replicas.set_isr(&isr(&[1, 2], &[], 0), &log, &rules()));
        assert_eq!(behind(Duration::ZERO), (5, vec![2]));
    }

    // If this failed, a follower could join the ISR without records that were acknowledged before its
    // leader's epoch.
    #[test]
    fn a_follower_catches_up_only_in_the_leaders_epoch() {
        let (_dir, log, replicas, all) = three(LogConfig::default());
        append(&log, 3);
        log.begin_epoch(6);
        set(&replicas, &all, 6, &log);
        let note = |offset| {
            let fetch = FollowerFetch {
                leader_epoch: 6,
                ..fetch(3, offset, &log)
            };
            replicas.note_fetch(&fetch, &log, &rules()).caught_up
        };
        assert_eq!(log.high_watermark(), 2);
        assert!(!note(2) && !note(4) && note(5));
    }

    // If this failed, records would be acknowledged, or shown to consumers, that too few replicas have.
    #[test]
    fn with_too_few_in_sync_the_high_watermark_stays() {
        let mut config = LogConfig::default();
        config.set("min.insync.replicas", "2").unwrap();
        let (_dir, log, replicas, _) = three(config);
        append(&log, 1);
        let dead = ReplicaRules::new(Duration::ZERO);
        assert!(replicas.set_isr(&isr(&[1], &[], 1), &log, &dead));
        assert!(!replicas.note_append(&log, &dead) && !replicas.has_min_in_sync(&log));
        assert_eq!(log.high_watermark(), 2);
        assert!(replicas.set_isr(&isr(&[1], &[2], 1), &log, &dead));
        replicas.note_fetch(&fetch(2, 3, &log), &log, &dead);
        assert_eq!(log.high_watermark(), 2);
        assert!(replicas.set_isr(&isr(&[1, 2], &[], 2), &log, &dead));
        assert_eq!(log.high_watermark(), 3);
    }

    // If this failed, a topic would accept records with too few in-sync replicas, or none at all on a small
    // cluster.
    #[test]
    fn fewer_replicas_than_asked_for_must_all_be_in_sync() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = LogConfig::default();
        config.set("min.insync.replicas", "2").unwrap();
        let log = Log::open(dir.path(), config, false, 0).unwrap();
        let replicas = Replicas::default();
        assert!(replicas.has_min_in_sync(&log));
        for (in_sync, enough) in [
            (&[true][..], true),
            (&[true, false], false),
            (&[true, true, false], true),
            (&[true, false, false], false),
        ] {
            let all: Vec<_> = in_sync
                .iter()
                .enumerate()
                .map(|(number, in_sync)| replica(1 + number as i32, "a", *in_sync))
                .collect();
            set(&replicas, &all, 0, &log);
            assert_eq!(replicas.has_min_in_sync(&log), enough, "{in_sync:?}");
        }
    }
}
