//! Options, calls and files that are refused, and differences that the operator is warned of.

use std::collections::BTreeSet;

use bytes::Bytes;
use logcore_quorum::host::{Host, HostError};

use crate::ensemble::{Ensemble, Running, free_ports, refused, remove_dir, stop_all};

/// If this failed, a wrong configuration would start an ensemble that cannot work.
#[test]
fn servers_that_cannot_be_an_ensemble_are_refused() {
    let ensemble = Ensemble::new(3, 0);
    let mut options = ensemble.options(1);
    options.server_id = 7;
    assert!(refused(options).contains("no line names it"));
    let mut options = ensemble.options(1);
    options.servers.push(ensemble.servers[1].clone());
    assert!(refused(options).contains("server 2 is named twice"));
    let mut options = ensemble.options(1);
    for server in &mut options.servers {
        server.observer = true;
    }
    assert!(refused(options).contains("no server votes"));
    let two = Ensemble::new(2, 0);
    let pair = two.start_all();
    for member in &pair {
        member.warned("make their number odd");
    }
    pair[0].propose([1]);
    pair[1].has_applied(&BTreeSet::from([1]));
    stop_all(pair);
}

/// If this failed, a wrong call would be carried out, or two members would use one directory.
#[test]
fn calls_that_do_not_fit_are_refused() {
    let ensemble = Ensemble::new(3, 0);
    let first = Running::open(ensemble.options(1));
    assert!(matches!(first.host.propose(vec![]), Err(HostError::Stopped(_))));
    let refusal = refused(ensemble.options(1));
    assert!(refusal.contains("in use"), "{refusal}");
    first.host.start().unwrap();
    assert!(first.host.start().is_err());
    let mut options = ensemble.options(2);
    options.servers[1].quorum = options.servers[0].quorum.clone();
    let second = Host::open(options).unwrap();
    let error = second.start().unwrap_err().to_string();
    assert!(error.contains("listening on 127.0.0.1"), "{error}");
    drop(second);
    let error = first.host.applied(1_000).unwrap_err().to_string();
    assert!(error.contains("cannot be applied"), "{error}");
    assert!(first.host.snapshot_begin(0).is_err());
    let large = Bytes::from(vec![0; (16 << 20) + 1]);
    assert!(matches!(
        first.host.propose(vec![large]),
        Err(HostError::TooLarge { .. })
    ));
    first.stop();
}

/// If this failed, a member would use the votes of another.
#[test]
fn a_directory_of_another_server_is_refused() {
    let ensemble = Ensemble::new(1, 0);
    let alone = ensemble.start(1);
    alone.propose([1]);
    alone.has_applied(&BTreeSet::from([1]));
    alone.stop();
    let mut options = ensemble.options(1);
    options.server_id = 3;
    options.servers[0].id = 3;
    assert!(refused(options).contains("this is the directory of server 1, and this is server 3"));
    std::fs::remove_file(ensemble.path(1).join("identity")).unwrap();
    assert!(refused(ensemble.options(1)).contains("there is a log, and the file does not say"));
}

/// If this failed, an operator would not learn why a changed line has no effect, or why a server cannot join.
#[test]
fn differences_between_the_file_and_the_ensemble_are_reported() {
    let ensemble = Ensemble::new(3, 0);
    let mut members = ensemble.start_all();
    members[0].propose([1]);
    for member in &members {
        member.has_applied(&BTreeSet::from([1]));
    }
    // A member that comes back with another address in its file: the ensemble knows the old one.
    members.pop().unwrap().stop();
    let mut moved = ensemble.options(3);
    let other = free_ports(2);
    moved.servers[2].quorum[0].port = other[0];
    let member = Running::start(moved.clone());
    member.warned("this server's own line differs");
    member.stop();
    // Without a directory it cannot join.
    remove_dir(&ensemble.path(3));
    let member = Running::start(moved);
    member.warned("has other addresses in the ensemble");
    member.stop();
    // An unknown server cannot either.
    let mut fourth = ensemble.options(3);
    let mut line = fourth.servers[2].clone();
    (line.id, line.quorum[0].port, line.election[0].port) = (4, other[0], other[1]);
    fourth.servers.push(line);
    fourth.server_id = 4;
    fourth.data_dir = ensemble.path(4);
    let member = Running::start(fourth);
    member.warned("server 4 is not part of the ensemble");
    member.stop();
    // With its own line it joins.
    members.push(ensemble.start(3));
    members[2].has_applied(&BTreeSet::from([1]));
    stop_all(members);
}
