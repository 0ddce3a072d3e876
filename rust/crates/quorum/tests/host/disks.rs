//! Directories that are lost, damaged, put back or read without their member.

use std::collections::BTreeSet;
use std::path::Path;

use logcore_quorum::files::directory;
use logcore_quorum::files::stored::Stored;
use logcore_quorum::host::HostError;

use crate::ensemble::{
    Ensemble, Running, all_apply, leader, number, numbers, refused, remove_dir, stop_all, wait_for_voters,
};

/// If this failed, a server with a new disk could never vote again, or would vote as the member that forgot
/// its votes.
#[test]
fn a_server_without_its_directory_is_replaced_by_a_new_member() {
    let ensemble = Ensemble::new(3, 0);
    let mut members = ensemble.start_all();
    let mut all: BTreeSet<u64> = (0..100).collect();
    members[0].propose(0..100);
    for member in &members {
        member.has_applied(&all);
    }
    let wiped = members.remove((leader(&members) + 1) % 3);
    let (id, before) = (wiped.id, wiped.status_member());
    wiped.stop();
    remove_dir(&ensemble.path(id));
    let back = ensemble.start(id);
    back.propose([100]);
    all.insert(100);
    back.has_applied(&all);
    let after = back.status_member();
    assert_eq!(after >> 48, u64::from(id));
    assert_ne!(after, before);
    members.push(back);
    for member in &members {
        wait_for_voters(member, 3, |ids| ids.contains(&after) && !ids.contains(&before));
    }
    // It votes: with one other it is a majority.
    members.remove(0).stop();
    members[0].propose([101]);
    all.insert(101);
    for member in &members {
        member.has_applied(&all);
    }
    stop_all(members);
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let copy = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &copy);
        } else {
            std::fs::copy(entry.path(), &copy).unwrap();
        }
    }
}

/// If this failed, a member whose disk was restored from a backup would hang for ever, and its leader would
/// count it.
#[test]
fn a_restored_disk_is_sent_what_it_lost() {
    for observers in [0, 1] {
        let ensemble = Ensemble::new(3 - observers, observers);
        let mut members = ensemble.start_all();
        let mut all: BTreeSet<u64> = BTreeSet::new();
        all_apply(&members, &mut all, 1);
        let id = match observers {
            0 => members[(leader(&members) + 1) % 3].id,
            _ => 3,
        };
        let copy = ensemble.dir.path().join("copy");
        let restart = |members: &mut Vec<Running>, change: &dyn Fn()| {
            let at = members.iter().position(|member| member.id == id).unwrap();
            members.remove(at).crash();
            change();
            members.push(ensemble.start(id));
        };
        restart(&mut members, &|| copy_dir(&ensemble.path(id), &copy));
        for number in 2..50 {
            all_apply(&members, &mut all, number);
        }
        restart(&mut members, &|| {
            remove_dir(&ensemble.path(id));
            copy_dir(&copy, &ensemble.path(id));
        });
        members.last().unwrap().has_applied(&all);
        // It counts: without another voter, it is needed for the majority.
        if observers == 0 {
            let is_other = |member: &Running| member.id != id && member.is_follower();
            let other = members.iter().position(is_other);
            members.remove(other.unwrap()).crash();
        }
        all_apply(&members, &mut all, 50);
        stop_all(members);
    }
}

/// If this failed, a read-only server without a leader would have nothing to serve, or entries that were
/// never committed.
#[test]
fn committed_entries_are_applied_before_there_is_a_leader() {
    let ensemble = Ensemble::new(3, 0);
    let mut members = ensemble.start_all();
    let mut all = BTreeSet::new();
    for number in 0..300 {
        all_apply(&members, &mut all, number);
    }
    members.pop().unwrap().crash();
    stop_all(members);
    let alone = ensemble.start(1);
    alone.has_applied(&all);
    assert!(!alone.host.status().unwrap().role.in_contact);
    alone.stop();
    // The note of a member that was killed may be some entries old.
    let killed = ensemble.start(3);
    killed.wait("most entries", |seen| (seen.bodies.len() > 150).then_some(()));
    killed.crash();
    // A note is ignored if it is damaged, or names an entry that the log does not have.
    let note = ensemble.path(1).join("committed");
    let written = std::fs::read(&note).unwrap();
    let mut damaged = written.clone();
    damaged[20] ^= 1;
    let (term, index) = (number(&written[8..]), number(&written[16..]));
    let naming = |term: u64, index: u64| {
        let mut bytes = b"LCQCOMM1".to_vec();
        bytes.extend(term.to_be_bytes());
        bytes.extend(index.to_be_bytes());
        bytes.extend(crc32fast::hash(&bytes).to_be_bytes());
        bytes
    };
    assert_eq!(naming(term, index), written);
    for wrong in [
        damaged,
        naming(term + 1, index),
        naming(term, index + 1),
        Vec::new(),
    ] {
        std::fs::write(&note, wrong).unwrap();
        let (_, _, state) = directory::open(&ensemble.path(1)).unwrap();
        assert_eq!(state.committed, None);
    }
    std::fs::write(&note, &written).unwrap();
    let (_, _, state) = directory::open(&ensemble.path(1)).unwrap();
    assert!(state.committed.is_some());
}

/// If this failed, a member could vote for a leader without entries that it had acknowledged.
#[test]
fn a_member_with_a_vote_and_without_a_log_does_not_start() {
    let ensemble = Ensemble::new(3, 0);
    let members = ensemble.start_all();
    let mut all = BTreeSet::new();
    all_apply(&members, &mut all, 1);
    let id = members[0].id;
    for member in members {
        member.crash();
    }
    let log = ensemble.path(id).join("log");
    let refused = || refused(ensemble.options(id));
    for file in std::fs::read_dir(&log).unwrap().flatten() {
        std::fs::remove_file(file.path()).unwrap();
    }
    assert!(refused().contains("it is missing or empty"), "{}", refused());
    remove_dir(&log);
    assert!(refused().contains("it is missing or empty"), "{}", refused());
    assert!(!log.exists(), "the next start would find a log");
}

/// If this failed, an old directory of a server would vote beside the one that replaced it.
#[test]
fn a_replaced_directory_stays_out() {
    let ensemble = Ensemble::new(3, 0);
    let mut members = ensemble.start_all();
    members[0].propose([1]);
    for member in &members {
        member.has_applied(&BTreeSet::from([1]));
    }
    members.pop().unwrap().stop();
    let kept = ensemble.dir.path().join("kept");
    std::fs::rename(ensemble.path(3), &kept).unwrap();
    let another = ensemble.start(3);
    another.has_applied(&BTreeSet::from([1]));
    let id = another.status_member();
    for member in &members {
        wait_for_voters(member, 3, |ids| ids.contains(&id));
    }
    another.stop();
    // The old directory is put back. The ensemble stays as it is.
    remove_dir(&ensemble.path(3));
    std::fs::rename(&kept, ensemble.path(3)).unwrap();
    let old = ensemble.start(3);
    members[0].propose([2]);
    for member in &members {
        member.has_applied(&BTreeSet::from([1, 2]));
        wait_for_voters(member, 3, |ids| ids.contains(&id));
    }
    old.warned("move this directory away");
    // It knows what was committed while it was a member.
    old.has_applied(&BTreeSet::from([1]));
    old.stop();
    stop_all(members);
}

/// If this failed, a member would go on after its disk failed, and lose what it acknowledges.
#[test]
fn a_failed_disk_ends_the_member() {
    let ensemble = Ensemble::new(1, 0);
    let alone = Running::open(ensemble.options(1));
    // The file of the vote cannot replace a directory.
    std::fs::create_dir(ensemble.path(1).join("vote")).unwrap();
    alone.host.start().unwrap();
    let why = alone.failed();
    assert!(why.contains("vote"), "{why}");
    let refused = |error: HostError| matches!(error, HostError::Stopped(stopped) if stopped.0 == why);
    assert!(refused(alone.host.propose(vec![]).unwrap_err()));
    assert!(refused(alone.host.read_barrier().unwrap_err()));
    assert!(refused(alone.host.take(1).unwrap_err()));
    alone.stop();
}

/// If this failed, an export of a member's files would lack commands, or change the files.
#[test]
fn a_members_files_are_read_without_it() {
    let ensemble = Ensemble::new(1, 0);
    let path = ensemble.path(1);
    let refused = || Stored::open(&path).err().unwrap().to_string();
    assert!(refused().contains("not the directory of a member"));
    let alone = ensemble.start(1);
    alone.propose(0..50);
    alone.has_applied(&(0..50).collect());
    assert!(refused().contains("in use"), "{}", refused());
    let index = alone.save_snapshot();
    alone.propose(50..100);
    alone.has_applied(&numbers());
    alone.stop();
    for _ in 0..2 {
        let mut stored = Stored::open(&path).unwrap();
        let source = stored.snapshot().unwrap().unwrap();
        assert_eq!(source.log_id.index, index);
        let content = source.read(1 << 20).unwrap();
        let mut bodies: Vec<u64> = content.chunks_exact(8).map(number).collect();
        loop {
            let entries = stored.entries(100).unwrap();
            if entries.is_empty() {
                break;
            }
            let commands = entries.iter().flat_map(|entry| &entry.commands);
            bodies.extend(commands.map(|counted| number(&counted.command.body)));
        }
        assert_eq!(bodies, (0..100).collect::<Vec<_>>());
        stored.close().unwrap();
    }
    let alone = ensemble.start(1);
    alone.has_applied(&numbers());
    alone.stop();
}
