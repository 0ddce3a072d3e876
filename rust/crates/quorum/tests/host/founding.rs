//! Ensembles that begin with the state of one server.

use std::collections::BTreeSet;
use std::path::Path;

use logcore_quorum::host::{HostError, Options};

use crate::ensemble::{Ensemble, Running, all_apply, change, leader, numbers, refused, remove_dir, stop_all};

/// The options of a server that has a state.
fn with_state(ensemble: &Ensemble, id: u16) -> Options {
    Options {
        has_state: true,
        ..ensemble.options(id)
    }
}

/// Removes a directory's files, except its identity and files whose names begin with one of these.
fn remove_all_but(path: &Path, kept: &[&str]) {
    for file in std::fs::read_dir(path).unwrap() {
        let file = file.unwrap();
        let name = file.file_name().into_string().unwrap();
        if name == "identity" || kept.iter().any(|kept| name.starts_with(kept)) {
            continue;
        }
        if file.file_type().unwrap().is_dir() {
            remove_dir(&file.path());
        } else {
            std::fs::remove_file(file.path()).unwrap();
        }
    }
}

/// If this failed, a server's data would be lost when it becomes an ensemble.
#[test]
fn an_ensemble_begins_with_the_state_of_one_server() {
    let ensemble = Ensemble::steady(3);
    let mut members = vec![ensemble.start(2), ensemble.start(3)];
    members.insert(0, Running::start(with_state(&ensemble, 1)));
    // Servers without data wait for it, however long it takes.
    for member in &members[1..] {
        member.warned("waits for server 1, which founds the ensemble with its data");
    }
    members[0].write_first_state(numbers());
    let mut all = numbers();
    for member in &members {
        member.has_applied(&all);
        assert_eq!(member.seen.0.lock().installed.len(), 1);
        assert!(!member.host.awaits_state());
        assert_eq!(member.listed(), Some(vec![1, 2, 3]));
    }
    assert!(members[0].host.first_state().is_err());
    all_apply(&members, &mut all, 200);
    let leader = leader(&members);
    let leading = members[leader].wait("that it leads", |seen| seen.leading.first().copied());
    assert_eq!(leading, members[leader].role().unwrap().term);

    // A member that loses its directory gets the state too.
    members.pop().unwrap().stop();
    remove_dir(&ensemble.path(3));
    all_apply(&members, &mut all, 201);
    members.push(ensemble.start(3));
    all_apply(&members, &mut all, 202);
    stop_all(members);
    // After a restart, the state is not asked for again.
    let mut members = vec![Running::start(with_state(&ensemble, 1))];
    assert!(!members[0].host.awaits_state());
    members.extend([ensemble.start(2), ensemble.start(3)]);
    all_apply(&members, &mut all, 203);
    stop_all(members);
}

/// If this failed, an ensemble would begin with the data of one of two servers, and the other's would be
/// lost.
#[test]
fn two_servers_with_a_state_refuse_to_found() {
    let ensemble = Ensemble::new(3, 0);
    let third = ensemble.start(3);
    let first = Running::start(with_state(&ensemble, 1));
    let second = Running::start(with_state(&ensemble, 2));
    first.write_first_state(numbers());
    for member in [&first, &second] {
        let why = member.failed();
        assert!(why.contains("have data of their own"), "{why}");
    }
    stop_all(vec![first, second]);
    assert_eq!(third.seen.0.lock().last, None, "nothing was founded");
    remove_dir(&ensemble.path(2));
    let second = ensemble.start(2);
    let first = Running::start(with_state(&ensemble, 1));
    first.write_first_state(numbers());
    for member in [&first, &second, &third] {
        member.has_applied(&numbers());
    }
    stop_all(vec![first, second, third]);
}

/// If this failed, a server's own data would be lost when it joins an ensemble.
#[test]
fn a_server_with_a_state_joins_no_ensemble() {
    let ensemble = Ensemble::new(3, 0);
    let mut members = vec![ensemble.start(1), ensemble.start(2)];
    let mut all = BTreeSet::new();
    all_apply(&members, &mut all, 1);
    let late = Running::start(with_state(&ensemble, 3));
    let why = late.failed();
    assert!(why.contains("an ensemble without that data"), "{why}");
    late.stop();
    members.push(ensemble.start(3));
    all_apply(&members, &mut all, 2);
    stop_all(members);
}

/// If this failed, an observer would be a first member and vote.
#[test]
fn an_observer_cannot_begin_an_ensemble() {
    let ensemble = Ensemble::new(1, 1);
    let why = refused(with_state(&ensemble, 2));
    assert!(why.contains("server 2 is an observer and has data"), "{why}");
    let alone = ensemble.start(1);
    alone.propose([1]);
    alone.has_applied(&BTreeSet::from([1]));
    assert!(matches!(alone.host.first_state(), Err(HostError::OutOfOrder(_))));
    alone.stop();
}

/// If this failed, a crash during a founding would lose the state, or found two ensembles.
#[test]
fn a_founding_with_a_state_is_completed_after_a_crash() {
    let ensemble = Ensemble::new(3, 0);
    // Before any server is bound: the state on disk is not in place, and is removed.
    let alone = Running::start(with_state(&ensemble, 1));
    alone.write_first_state(numbers());
    alone.crash();
    let alone = Running::start(with_state(&ensemble, 1));
    assert!(alone.host.awaits_state());
    let snapshots = std::fs::read_dir(ensemble.path(1).join("snapshots"));
    assert_eq!(snapshots.unwrap().count(), 0);
    alone.write_first_state(7..9);
    // A minority is not enough.
    alone.warned("once a majority of the servers answers");
    assert!(alone.host.awaits_state());
    let members = vec![alone, ensemble.start(2)];
    for member in &members {
        member.has_applied(&(7..9).collect());
    }
    let id = members[0].host.status().unwrap().ensemble;
    stop_all(members);

    // Two servers are bound, and the state is not in place: its owner gives it again.
    for server in [1, 2] {
        remove_all_but(&ensemble.path(server), &[]);
    }
    let bound = vec![ensemble.start(2), ensemble.start(3)];
    for member in &bound {
        // Both know of the founding; neither founds another.
        member.warned("waits for");
    }
    let first = Running::start(with_state(&ensemble, 1));
    first.write_first_state(numbers());
    let mut members = vec![first];
    members.extend(bound);
    for member in &members {
        member.has_applied(&numbers());
        assert_eq!(member.host.status().unwrap().ensemble, id);
    }
    stop_all(members);

    // The state is in place, and nothing else was done.
    for server in 1..=3 {
        let kept: &[&str] = if server == 1 { &["snapshots"] } else { &[] };
        remove_all_but(&ensemble.path(server), kept);
    }
    let mut members = vec![Running::start(with_state(&ensemble, 1))];
    assert!(!members[0].host.awaits_state());
    members.extend([ensemble.start(2), ensemble.start(3)]);
    let mut all = numbers();
    all_apply(&members, &mut all, 200);
    stop_all(members);
}

/// If this failed, a standalone server could not become an ensemble of three without a stop.
#[test]
fn one_server_with_a_state_grows_to_three() {
    let ensemble = Ensemble::new(3, 0);
    let first = Running::start(Options {
        has_state: true,
        ..ensemble.reconfigurable(1, &[1])
    });
    first.write_first_state(numbers());
    let mut all = numbers();
    first.has_applied(&all);
    let mut members = vec![first];
    for id in [2, 3] {
        members.push(Running::start(ensemble.reconfigurable(id, &[1, id])));
        all_apply(&members, &mut all, 100 + u64::from(id));
        let ids: Vec<u16> = (1..=id).collect();
        change(&members, &ensemble.servers_of(&ids));
    }
    members.remove(0).stop();
    all_apply(&members, &mut all, 200);
    stop_all(members);
}
