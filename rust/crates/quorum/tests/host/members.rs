//! Ensembles whose members change while they serve.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::time::Duration;

use logcore_quorum::host::{HostError, Options, Role, RoleKind};
use logcore_quorum::raft::members::listed;

use crate::ensemble::{
    Ensemble, Running, all_apply, change, free_ports, leader, remove_dir, stop_all, wait_for_voters,
};

fn founders(ensemble: &Ensemble) -> Vec<Running> {
    let start = |id: u16| Running::start(ensemble.reconfigurable(id, &[1, 2, 3]));
    (1..=3).map(start).collect()
}

/// A server that joins: its file names the founders and itself.
fn joiner(ensemble: &Ensemble, id: u16) -> Running {
    Running::start(ensemble.reconfigurable(id, &[1, 2, 3, id]))
}

/// Proposes a number at the last member too, before all apply another.
fn all_propose(members: &[Running], all: &mut BTreeSet<u64>, number: u64) {
    members.last().unwrap().propose([number]);
    all.insert(number);
    all_apply(members, all, number + 1);
}

/// If this failed, an ensemble could not be moved to other machines while it serves.
#[test]
fn an_ensemble_grows_and_shrinks() {
    let ensemble = Ensemble::new(5, 0);
    let mut members = founders(&ensemble);
    let mut all = BTreeSet::new();
    all_apply(&members, &mut all, 1);
    members.push(joiner(&ensemble, 4));
    members.push(joiner(&ensemble, 5));
    // Joiners have the log and propose, and are not listed.
    for member in &members {
        member.has_applied(&all);
    }
    members[4].follows();
    all_propose(&members, &mut all, 2);
    assert_eq!(members[0].listed(), Some(vec![1, 2, 3]));
    let five = ensemble.servers_of(&[1, 2, 3, 4, 5]);
    let at = leader(&members);
    members[at].wait("that they are in sync", |_| {
        members[at].host.has_quorum(&five).unwrap().then_some(())
    });
    change(&members, &five);
    // Any three of the five are a majority.
    members.remove(0).stop();
    members.remove(0).stop();
    all_apply(&members, &mut all, 4);
    change(&members, &ensemble.servers_of(&[3, 4, 5]));
    members.remove(0).stop();
    all_apply(&members, &mut all, 5);
    stop_all(members);
}

/// If this failed, a leader that is removed would block the ensemble, or could not come back.
#[test]
fn a_removed_leader_hands_over_and_follows() {
    let ensemble = Ensemble::steady(3);
    let members = founders(&ensemble);
    let mut all = BTreeSet::new();
    all_apply(&members, &mut all, 1);
    let at = leader(&members);
    let others: Vec<u16> = (1..=3).filter(|id| *id != members[at].id).collect();
    change(&members, &ensemble.servers_of(&others));
    let led_by = members[at].follows().leader;
    assert!(others.contains(&led_by));
    members[at].propose([2]);
    all.insert(2);
    all_apply(&members, &mut all, 3);
    change(&members, &ensemble.servers_of(&[1, 2, 3]));
    all_apply(&members, &mut all, 4);
    members[at].propose([5]);
    all.insert(5);
    all_apply(&members, &mut all, 6);
    stop_all(members);
}

/// If this failed, a leader's crash during a change would leave the ensemble between two configurations.
#[test]
fn the_next_leader_completes_a_change() {
    let ensemble = Ensemble::steady(5);
    let mut members = founders(&ensemble);
    let mut all = BTreeSet::new();
    members.push(joiner(&ensemble, 4));
    members.push(joiner(&ensemble, 5));
    all_apply(&members, &mut all, 1);
    members[3].follows();
    members[4].follows();
    // The leader and one follower are a majority of three and not of five: only half of the change is
    // committed.
    let led_by = members[leader(&members)].id;
    let followers: Vec<u16> = (1..=3).filter(|id| *id != led_by).collect();
    for member in members.extract_if(.., |member| member.id != led_by && member.id != followers[0]) {
        member.crash();
    }
    let at = leader(&members);
    let term = members[at].role().unwrap().term;
    let five = ensemble.servers_of(&[1, 2, 3, 4, 5]);
    members[at].wait("that the others are gone", |_| {
        let has_quorum = members[at].host.has_quorum(&five).unwrap();
        (!has_quorum).then_some(())
    });
    members[at].host.change_members(term, five).unwrap();
    for member in &members {
        member.wait("half of the change", |_| {
            let configs = member.membership().unwrap().get_joint_config().len();
            (configs > 1).then_some(())
        });
    }
    members.remove(at).crash();
    members.push(Running::start(ensemble.reconfigurable(followers[1], &[1, 2, 3])));
    members.push(joiner(&ensemble, 4));
    members.push(joiner(&ensemble, 5));
    for member in &members {
        member.wait("the other half", |_| {
            (member.listed() == Some(vec![1, 2, 3, 4, 5])).then_some(())
        });
    }
    all_apply(&members, &mut all, 2);
    stop_all(members);
}

/// If this failed, a joiner that crashes would keep its place for ever, or never get one.
#[test]
fn a_joiner_may_be_lost_before_and_after_it_is_added() {
    let ensemble = Ensemble::new(5, 0);
    let start = |id: u16| {
        Running::start(Options {
            absence_limit: Duration::from_millis(1_500),
            ..ensemble.reconfigurable(id, &[1, 2, 3])
        })
    };
    let mut members: Vec<Running> = (1..=3).map(start).collect();
    let mut all = BTreeSet::new();
    all_apply(&members, &mut all, 1);
    // A server is added before it was ever seen.
    change(&members, &ensemble.servers_of(&[1, 2, 3, 4]));
    all_apply(&members, &mut all, 2);
    members.push(joiner(&ensemble, 4));
    all_apply(&members, &mut all, 3);
    let fourth = members[3].status_member();
    wait_for_voters(&members[0], 4, |ids| ids.contains(&fourth));
    // A joiner that stops before it is added is removed, and joins again when it is back.
    let fifth = joiner(&ensemble, 5);
    fifth.has_applied(&all);
    let id = fifth.status_member();
    fifth.stop();
    members[0].wait("that it is removed", |_| {
        let membership = members[0].membership().unwrap();
        membership.get_node(&id).is_none().then_some(())
    });
    members.push(joiner(&ensemble, 5));
    all_propose(&members, &mut all, 4);
    assert_eq!(members[4].status_member(), id);
    change(&members, &ensemble.servers_of(&[1, 2, 3, 4, 5]));
    // A member that loses its disk after it was added is replaced.
    members.pop().unwrap().stop();
    remove_dir(&ensemble.path(5));
    all_apply(&members, &mut all, 6);
    members.push(joiner(&ensemble, 5));
    all_apply(&members, &mut all, 7);
    let fifth = members[4].status_member();
    wait_for_voters(&members[0], 5, |ids| ids.contains(&fifth));
    stop_all(members);
}

/// If this failed, a member could not move to other ports while the ensemble serves.
#[test]
fn a_member_moves_to_other_addresses() {
    let ensemble = Ensemble::new(3, 0);
    let mut members = founders(&ensemble);
    let mut all = BTreeSet::new();
    all_apply(&members, &mut all, 1);
    let ports = free_ports(2);
    let mut moved = ensemble.servers.clone();
    moved[1].quorum[0].port = ports[0];
    moved[1].election[0].port = ports[1];
    change(&members, &moved);
    all_apply(&members, &mut all, 2);
    let old = ensemble.servers[1].quorum[0].port;
    members[1].wait("that it left its old port", |_| {
        TcpListener::bind(("127.0.0.1", old)).is_ok().then_some(())
    });
    // It is needed for the majority.
    members.remove(0).stop();
    all_apply(&members, &mut all, 3);
    members.remove(0).stop();
    // Its own file has the old ports.
    members.push(Running::start(ensemble.reconfigurable(2, &[1, 2, 3])));
    all_apply(&members, &mut all, 4);
    stop_all(members);
}

/// If this failed, an observer could not become a voter, or would have to be added by hand.
#[test]
fn roles_change_and_an_observer_of_the_file_is_listed_at_once() {
    let ensemble = Ensemble::new(3, 1);
    let start = |id: u16| Running::start(ensemble.reconfigurable(id, &[1, 2, 3, 4]));
    let mut members: Vec<Running> = (1..=3).map(start).collect();
    let mut all = BTreeSet::new();
    all_apply(&members, &mut all, 1);
    for member in &members {
        member.wait("the observer's line", |_| {
            (member.listed() == Some(vec![1, 2, 3, 4])).then_some(())
        });
    }
    members.push(start(4));
    all_apply(&members, &mut all, 2);
    let is_observer = |role: &Role| role.kind == RoleKind::Observer && role.in_contact;
    members[3].wait("that it observes", |seen| seen.role.filter(is_observer));
    let fourth = members[3].status_member();
    for member in &members {
        member.wait("that it has its place", |_| {
            let node = member.membership().unwrap().get_node(&fourth).cloned();
            node.filter(|server| server.observer)
        });
    }
    let mut roles = ensemble.servers.clone();
    roles[3].observer = false;
    roles[0].observer = true;
    change(&members, &roles);
    members[3].follows();
    members[0].wait("that it observes", |seen| seen.role.filter(is_observer));
    members.remove(1).stop();
    all_apply(&members, &mut all, 3);
    stop_all(members);
}

/// If this failed, a removed member that comes back would force elections.
#[test]
fn a_removed_member_that_comes_back_disturbs_nobody() {
    let ensemble = Ensemble::steady(4);
    let start = |id: u16| Running::start(ensemble.reconfigurable(id, &[1, 2, 3, 4]));
    let mut members: Vec<Running> = (1..=4).map(start).collect();
    let mut all = BTreeSet::new();
    all_apply(&members, &mut all, 1);
    let at = (leader(&members) + 1) % 4;
    let removed = members.remove(at);
    let id = removed.id;
    // It is down when it is removed, and believes that it votes.
    removed.stop();
    let rest: Vec<u16> = (1..=4).filter(|other| *other != id).collect();
    change(&members, &ensemble.servers_of(&rest));
    let before = members[leader(&members)].role().unwrap();
    let back = start(id);
    all_apply(&members, &mut all, 2);
    back.has_applied(&all);
    assert_eq!(back.listed(), Some(rest));
    let now = members[leader(&members)].role().unwrap();
    assert_eq!((now.term, now.leader), (before.term, before.leader));
    back.stop();
    stop_all(members);
}

/// If this failed, a change could leave an ensemble without voters, or a late one would undo a newer
/// leader's.
#[test]
fn changes_that_are_not_possible_are_refused() {
    let ensemble = Ensemble::new(1, 0);
    let alone = Running::start(ensemble.reconfigurable(1, &[1]));
    alone.propose([1]);
    alone.has_applied(&BTreeSet::from([1]));
    let term = alone.role().unwrap().term;
    assert!(matches!(
        alone.host.change_members(term, vec![]),
        Err(HostError::Servers(_))
    ));
    let mut without_voters = ensemble.servers.clone();
    without_voters[0].observer = true;
    assert!(matches!(
        alone.host.has_quorum(&without_voters),
        Err(HostError::Servers(_))
    ));
    // A change for another term is ignored.
    let mut other = ensemble.servers.clone();
    other[0].client = Some(ensemble.servers[0].quorum[0].clone());
    alone.host.change_members(term + 1, other.clone()).unwrap();
    alone.propose([2]);
    alone.has_applied(&BTreeSet::from([1, 2]));
    let listed_now = || listed(&alone.membership().unwrap()).unwrap();
    assert_eq!(listed_now(), ensemble.servers);
    alone.host.change_members(term, other.clone()).unwrap();
    alone.wait("the clients' address", |_| (listed_now() == other).then_some(()));
    alone.stop();
}
