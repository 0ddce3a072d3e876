//! The replicas of a partition, on its leader: which are in sync, how far each has fetched, and which one a
//! consumer should read.
//!
//! Python sets the replicas and the ISR. The followers' Fetch requests show their positions. Both determine
//! the high watermark. Shared between connections. Nothing is on disk: a restarted leader learns the
//! positions again. Source: `Partition`, `Replica`.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use parking_lot::RwLock;

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

#[derive(Debug)]
struct Follower {
    replica: Replica,
    log_start: AtomicI64,
    /// It has all records before this offset.
    log_end: AtomicI64,
}

#[derive(Debug, Default)]
struct State {
    leader_rack: Option<String>,
    followers: Vec<Follower>,
    /// The epoch in which the followers' positions were reported.
    epoch: i32,
}

#[derive(Debug)]
pub(crate) struct Replicas {
    state: RwLock<State>,
    /// The number of replicas and of in-sync replicas, for appends.
    counts: AtomicU64,
}

impl Default for Replicas {
    fn default() -> Self {
        Self {
            state: RwLock::default(),
            counts: AtomicU64::new(pack(1, 1)),
        }
    }
}

fn pack(all: usize, in_sync: usize) -> u64 {
    let short = |count: usize| u64::from(u32::try_from(count).unwrap_or(u32::MAX));
    short(all) << 32 | short(in_sync)
}

impl Replicas {
    /// Sets the replicas of a partition that `node_id` leads in `epoch`, or follows.
    pub(crate) fn set(&self, replicas: &[Replica], node_id: i32, leads: bool, epoch: i32, log: &Log) {
        let others = |replica: &&Replica| leads && replica.id != node_id;
        let in_sync = replicas.iter().filter(others).filter(|other| other.in_sync);
        let others_in_sync = in_sync.count();
        let is_alone = leads && others_in_sync == 0;
        if !is_alone {
            // This may wait for the disk, so it happens before the lock is taken.
            log.set_replicated_at_current();
        }
        let mut state = self.state.write();
        let own = replicas.iter().find(|replica| replica.id == node_id);
        let positions = std::mem::take(&mut *state);
        let same_epoch = positions.epoch == epoch;
        *state = State {
            leader_rack: own.and_then(|own| own.rack.clone()),
            followers: replicas
                .iter()
                .filter(others)
                .map(|replica| positions.with_position(replica, same_epoch))
                .collect(),
            epoch,
        };
        self.counts.store(
            pack(state.followers.len() + 1, others_in_sync + 1),
            Ordering::Release,
        );
        if is_alone {
            log.set_unreplicated();
        } else {
            state.raise_high_watermark(log);
        }
    }

    /// Whether the in-sync replicas are as many as `min.insync.replicas`. If there are fewer replicas than
    /// that, all must be in sync.
    pub(crate) fn has_min_in_sync(&self, log: &Log) -> bool {
        let counts = self.counts.load(Ordering::Acquire);
        let (all, in_sync) = (counts >> 32, counts & u64::from(u32::MAX));
        in_sync >= all || in_sync >= u64::from(log.config().min_insync_replicas)
    }

    pub(crate) fn is_follower(&self, id: i32) -> bool {
        self.state.read().follower(id).is_some()
    }

    /// A follower fetches from `offset`, so it has all records before. Returns whether that raised the high
    /// watermark.
    pub(crate) fn note_fetch(&self, id: i32, offset: i64, log_start: i64, log: &Log) -> bool {
        let state = self.state.read();
        let Some(follower) = state.follower(id) else {
            return false;
        };
        follower.log_start.store(log_start, Ordering::Release);
        follower.log_end.store(offset, Ordering::Release);
        follower.replica.in_sync && state.raise_high_watermark(log)
    }

    /// The replica from which a consumer in `rack` should read `offset`, unless it is the leader. Its broker
    /// must have the consumer's listener, or the consumer could not connect.
    pub(crate) fn preferred(&self, rack: &str, listener: &str, offset: i64) -> Option<i32> {
        let state = self.state.read();
        if rack.is_empty() || state.followers.is_empty() {
            return None;
        }
        let candidates = state.in_sync().filter_map(|follower| {
            let log_start = follower.log_start.load(Ordering::Acquire);
            let log_end = follower.log_end.load(Ordering::Acquire);
            let has = (log_start..=log_end).contains(&offset);
            let replica = &follower.replica;
            let is_reachable = replica.listeners.iter().any(|name| name == listener);
            (has && is_reachable).then_some(Candidate {
                id: replica.id,
                rack: replica.rack.as_deref(),
                log_end,
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
    fn with_position(&self, replica: &Replica, same_epoch: bool) -> Follower {
        let before = self.follower(replica.id).filter(|_| same_epoch);
        let position = |of: fn(&Follower) -> &AtomicI64| {
            let known = before.map(|before| of(before).load(Ordering::Acquire));
            AtomicI64::new(known.unwrap_or(UNKNOWN))
        };
        Follower {
            replica: replica.clone(),
            log_start: position(|follower| &follower.log_start),
            log_end: position(|follower| &follower.log_end),
        }
    }

    /// Sets the high watermark to the end of what every in-sync replica has. Returns whether it rose.
    fn raise_high_watermark(&self, log: &Log) -> bool {
        let ends = self
            .in_sync()
            .map(|follower| follower.log_end.load(Ordering::Acquire));
        let before = log.high_watermark();
        match ends.min() {
            Some(end) if end > before => log.set_high_watermark(end) > before,
            _ => false,
        }
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

    // If this failed, records would be acknowledged that an in-sync replica does not have, or never be
    // acknowledged.
    #[test]
    fn the_high_watermark_is_what_all_in_sync_replicas_have() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path(), LogConfig::default(), false, 0).unwrap();
        let replicas = Replicas::default();
        let append = |count| {
            for _ in 0..count {
                log.append_as_leader(&mut batch(), 5, 1).unwrap();
            }
        };
        append(2);
        let three = [
            replica(1, "a", true),
            replica(2, "b", true),
            replica(3, "c", false),
        ];
        replicas.set(&three, 1, true, 5, &log);
        append(3);
        assert_eq!(log.high_watermark(), 2);
        assert!(!replicas.note_fetch(3, 5, 0, &log), "not in sync");
        assert!(!replicas.note_fetch(9, 5, 0, &log), "no replica");
        assert!(replicas.note_fetch(2, 4, 0, &log));
        assert_eq!(log.high_watermark(), 4);
        let preferred = |rack, offset| replicas.preferred(rack, "A", offset);
        assert_eq!(preferred("b", 4), Some(2));
        assert_eq!(preferred("b", 5), None, "it does not have the offset");
        assert_eq!(preferred("c", 4), None, "not in sync");
        assert_eq!(replicas.preferred("b", "B", 4), None, "no such listener");
        // The third is in sync now and has all records. The second has reported less.
        let all = [&three[..2], &[replica(3, "c", true)]].concat();
        replicas.set(&all, 1, true, 5, &log);
        assert_eq!(log.high_watermark(), 4);
        let [alone, third] = [[&three[0]], [&all[2]]].map(|one| one[0].clone());
        replicas.set(&[alone.clone(), third], 1, true, 5, &log);
        assert_eq!(log.high_watermark(), 5);
        append(1);
        assert_eq!(log.high_watermark(), 5);
        replicas.set(&[alone], 1, true, 5, &log);
        append(1);
        assert_eq!(log.high_watermark(), 7);
        // In another epoch no position is known.
        replicas.set(&all, 1, true, 6, &log);
        append_in(&log, 6);
        assert!(!replicas.note_fetch(2, 8, 0, &log));
        assert_eq!(log.high_watermark(), 7);
    }

    fn append_in(log: &Log, epoch: i32) {
        log.append_as_leader(&mut batch(), epoch, 1).unwrap();
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
            replicas.set(&all, 1, true, 0, &log);
            assert_eq!(replicas.has_min_in_sync(&log), enough, "{in_sync:?}");
        }
    }
}
