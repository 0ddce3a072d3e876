//! Members that serve: commands, reads, renewals, roles, and a leader that goes.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use logcore_quorum::host::RoleKind;

use crate::ensemble::{Ensemble, Running, Seen, leader, stop_all};

/// If this failed, an ensemble would lose commands, apply them twice, read stale data, or not survive its
/// leader.
#[test]
fn three_members_found_an_ensemble_and_survive_a_leader() {
    let ensemble = Ensemble::steady(3);
    let mut members = ensemble.start_all();
    let mut all: BTreeSet<u64> = BTreeSet::new();
    for (at, member) in members.iter().enumerate() {
        let first = at as u64 * 1_000;
        let ticket = member.propose(first..first + 100);
        all.extend(first..first + 100);
        member.wait("its own", |seen| (seen.mine.len() == 100).then_some(()));
        let tickets: Vec<u64> = (ticket..ticket + 100).collect();
        assert_eq!(member.seen.0.lock().mine, tickets);
    }
    for member in &members {
        member.has_applied(&all);
        assert_eq!(member.status_member() >> 48, u64::from(member.id));
        assert_eq!(member.status_member() << 16, 0, "it is a founder");
    }

    // A barrier at any member comes after a write that was committed at another.
    for number in 10_000..10_020u64 {
        let writer = &members[number as usize % 3];
        let ticket = writer.propose([number]);
        all.insert(number);
        writer.wait("its own", |seen| seen.mine.contains(&ticket).then_some(()));
        for member in &members {
            assert!(member.read() >= all.len(), "a committed write is missing");
        }
    }

    // Followers renew sessions at the leader.
    let at = leader(&members);
    for (other, member) in members.iter().enumerate() {
        let sessions = Bytes::from_static(b"eight by");
        let round = member.host.renew_sessions(sessions).unwrap();
        member.wait("the ack", |seen| seen.acks.contains(&round).then_some(()));
        let of_member = |seen: &mut Seen| {
            let renewed = seen.renewed.iter();
            renewed.filter(|(server, _)| *server == member.id).count()
        };
        if other == at {
            assert_eq!(of_member(&mut members[at].seen.0.lock()), 0);
        } else {
            members[at].wait("the sessions", |seen| (of_member(seen) == 1).then_some(()));
        }
    }
    let leading = members[at].seen.0.lock().leading.clone();
    assert_eq!(leading, [members[at].role().unwrap().term]);

    // The leader stops: another leads soon, and nothing is lost.
    let stopped = members.remove(at);
    let id = stopped.id;
    stopped.stop();
    let before = members[0].role().unwrap().term;
    for (number, member) in (20_000..).zip(&members) {
        member.propose([number]);
        all.insert(number);
    }
    for member in &members {
        member.has_applied(&all);
        let leads = |seen: &mut Seen| seen.role.filter(|role| role.leader != 0 && role.leader != id);
        let role = member.wait("another leader", leads);
        assert!(role.term >= before);
    }
    // It starts again.
    members.push(ensemble.start(id));
    members[2].propose([30_000]);
    all.insert(30_000);
    for member in &members {
        member.has_applied(&all);
    }
    for member in &members {
        assert_eq!(member.seen.0.lock().warnings, Vec::<String>::new());
    }
    stop_all(members);
}

/// If this failed, members would apply commands of a snapshot again, or not know which of their commands it
/// contains.
#[test]
fn all_start_again_from_snapshots() {
    let ensemble = Ensemble::new(3, 0);
    let members = ensemble.start_all();
    let mut all: BTreeSet<u64> = (0..500).collect();
    for number in 0..500 {
        members[number as usize % 3].propose([number]);
    }
    for member in &members {
        member.has_applied(&all);
    }
    for member in &members {
        let index = member.save_snapshot();
        member.wait("that its status has the snapshot", |_| {
            (member.host.status().unwrap().snapshot == Some(index)).then_some(())
        });
    }
    members[0].propose([500]);
    all.insert(500);
    for member in &members {
        member.has_applied(&all);
    }
    stop_all(members);
    let members = ensemble.start_all();
    members[1].propose([501]);
    all.insert(501);
    for member in &members {
        member.has_applied(&all);
        assert_eq!(member.seen.0.lock().installed.len(), 1);
    }
    let installed = members[1].seen.0.lock().installed[0];
    let mine = members[1].seen.0.lock().mine[0];
    assert!(installed <= mine);
    stop_all(members);
}

/// If this failed, a minority would commit, answer reads with stale data, or keep sessions alive.
#[test]
fn a_minority_commits_nothing_and_refuses_reads() {
    let ensemble = Ensemble::new(3, 0);
    let mut options = ensemble.options(1);
    options.sync_limit = Duration::from_millis(500);
    let alone = Running::start(options);
    alone.propose([1]);
    assert!(!alone.barrier().0);
    assert_eq!(alone.role().unwrap().kind, RoleKind::Looking);
    assert_eq!(alone.seen.0.lock().bodies.len(), 0);
    // Its proposal is committed once there is a majority.
    let second = ensemble.start(2);
    second.has_applied(&BTreeSet::from([1]));
    alone.has_applied(&BTreeSet::from([1]));
    second.stop();
    alone.wait("the loss", |seen| seen.role.filter(|role| !role.in_contact));
    let round = alone.host.renew_sessions(Bytes::new()).unwrap();
    assert!(!alone.barrier().0);
    assert!(
        !alone.seen.0.lock().acks.contains(&round),
        "no majority confirmed it"
    );
    alone.stop();
}

/// If this failed, a standalone coordinator of the quorum's kind would not serve.
#[test]
fn one_server_is_an_ensemble() {
    let ensemble = Ensemble::new(1, 0);
    for start in 0..3u64 {
        let alone = ensemble.start(1);
        alone.propose([start]);
        alone.has_applied(&(0..=start).collect());
        assert_eq!(alone.read(), start as usize + 1);
        let round = alone.host.renew_sessions(Bytes::new()).unwrap();
        alone.wait("the ack", |seen| seen.acks.contains(&round).then_some(()));
        alone.wait("that it leads", |seen| (seen.leading.len() == 1).then_some(()));
        // Commands of earlier starts are not written again.
        alone.wait("the measurement", |seen| (seen.written == 1).then_some(()));
        alone.stop();
    }
}

/// If this failed, observers would count for a majority, or would not serve.
#[test]
fn observers_follow_and_do_not_vote() {
    let ensemble = Ensemble::new(3, 1);
    let mut members = ensemble.start_all();
    let mut all = BTreeSet::from([1, 2]);
    members[3].propose([1]);
    members[0].propose([2]);
    for member in &members {
        member.has_applied(&all);
    }
    let role = members[3].wait("its role", |seen| seen.role.filter(|role| role.in_contact));
    assert_eq!(role.kind, RoleKind::Observer);
    assert_eq!(members[3].read(), 2);
    // Two of three voters are a majority.
    members.remove(0).stop();
    members[2].propose([3]);
    all.insert(3);
    for member in &members {
        member.has_applied(&all);
    }
    // One voter and an observer are not.
    members.remove(0).stop();
    assert!(!members[0].barrier().0);
    stop_all(members);
}

/// If this failed, a member would serve clients for a leader that can commit nothing.
#[test]
fn a_leader_without_a_majority_is_no_contact() {
    let ensemble = Ensemble::new(3, 1);
    let mut members = ensemble.start_all();
    for member in &members {
        member.wait("contact", |seen| seen.role.filter(|role| role.in_contact));
    }
    let observer = members.pop().unwrap();
    let led_by = leader(&members);
    let leading = members.remove(led_by);
    let term = leading.role().unwrap().term;
    for member in members {
        member.crash();
    }
    leading.wait("the loss", |seen| seen.role.filter(|role| !role.in_contact));
    observer.wait("the loss", |seen| seen.role.filter(|role| !role.in_contact));
    // A member that meets this leader long after its election has no contact either.
    observer.crash();
    let observer = ensemble.start(4);
    let role = observer.wait("its leader", |seen| {
        seen.role.filter(|role| role.kind == RoleKind::Observer)
    });
    assert_eq!((role.leader, role.term), (leading.id, term));
    assert!(!role.in_contact);
    let voter = (1..=3).find(|id| *id != leading.id).unwrap();
    let voter = ensemble.start(voter);
    for member in [&leading, &observer, &voter] {
        member.wait("contact", |seen| seen.role.filter(|role| role.in_contact));
    }
}

/// If this failed, a host that is dropped would keep its directory locked.
#[test]
fn a_dropped_host_ends() {
    let ensemble = Ensemble::new(1, 0);
    let mut alone = ensemble.start(1);
    alone.propose([1]);
    alone.has_applied(&BTreeSet::from([1]));
    alone.end();
    drop(alone);
    let again = ensemble.start(1);
    again.has_applied(&BTreeSet::from([1]));
    again.stop();
}
