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

// If this failed, a follower could join the ISR of a restarted leader without records that were acknowledged
// before the restart, because the high watermark of the last checkpoint is lower.
#[test]
fn a_follower_of_a_restarted_leader_catches_up_with_its_whole_log() {
    let (_dir, log, _, all) = three(LogConfig::default());
    append(&log, 3);
    let restarted = Replicas::default();
    set(&restarted, &all, 5, &log);
    append(&log, 1);
    let note = |offset| {
        restarted
            .note_fetch(&fetch(3, offset, &log), &log, &rules())
            .caught_up
    };
    assert_eq!((log.high_watermark(), log.epoch_start(5)), (2, Some(0)));
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
