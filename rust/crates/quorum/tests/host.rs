//! Hosts of one ensemble in one process, on real disks, over loopback.
#![allow(clippy::unwrap_used)] // a test may panic

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use logcore_quorum::directory;
use logcore_quorum::host::{Event, FIRST_STATE, Host, HostError, Options, Role, RoleKind, Served};
use logcore_quorum::member::Timing;
use logcore_quorum::members::listed;
use logcore_quorum::stored::Stored;
use logcore_quorum::types::{Address, Server};
use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Nothing here takes as long unless it never ends.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a member's host told, and what came of what was agreed on: the bodies of all commands.
#[derive(Default, Debug)]
struct Seen {
    bodies: Vec<u64>,
    mine: Vec<u64>,
    last: Option<u64>,
    installed: Vec<u64>,
    role: Option<Role>,
    leading: Vec<u64>,
    barriers: BTreeMap<u64, (bool, usize)>,
    touched: Vec<(u16, Bytes)>,
    acks: BTreeSet<u64>,
    snapshots: Vec<(u64, Option<String>)>,
    /// Commands that were brought to disk.
    written: u32,
    warnings: Vec<String>,
    failed: Option<String>,
}

impl Seen {
    fn apply(&mut self, host: &Host, event: Event) {
        match event {
            Event::Entries(entries) => {
                for entry in entries {
                    let next = self.last.map_or(0, |last| last + 1);
                    assert_eq!(entry.log_id.index, next, "a hole");
                    self.last = Some(next);
                    for counted in entry.commands {
                        let body = &counted.command.body[..8];
                        self.bodies.push(u64::from_be_bytes(body.try_into().unwrap()));
                        if counted.mine {
                            self.mine.push(counted.command.ticket);
                        }
                    }
                    host.applied(next).unwrap();
                }
            }
            Event::Install { source, my_next } => {
                self.bodies.clear();
                // In pieces that do not fit.
                let mut content = Vec::new();
                loop {
                    let piece = source.read(7).unwrap();
                    if piece.is_empty() {
                        break;
                    }
                    content.extend(piece);
                }
                let numbers = content.chunks_exact(8);
                self.bodies
                    .extend(numbers.map(|number| u64::from_be_bytes(number.try_into().unwrap())));
                self.last = Some(source.log_id.index);
                self.installed.push(my_next);
                host.applied(source.log_id.index).unwrap();
            }
            Event::Role(role) => self.role = Some(role),
            Event::Leading { term } => self.leading.push(term),
            Event::Touched { server, sessions } => self.touched.push((server, sessions)),
            Event::TouchAck { round } => {
                self.acks.insert(round);
            }
            Event::Barrier { number, ok } => {
                let before = self.barriers.insert(number, (ok, self.bodies.len()));
                assert_eq!(before, None, "a barrier is answered once");
            }
            Event::Snapshot { index, error } => self.snapshots.push((index, error)),
            Event::Flushed(flushes) => {
                let entries = flushes.iter().flat_map(|flush| &flush.entries);
                self.written += entries.map(|entry| entry.commands).sum::<u32>();
            }
            Event::Warning(text) => self.warnings.push(text),
            Event::Failed(why) => self.failed = Some(why),
        }
    }
}

/// A host and one who applies what it tells.
struct Running {
    id: u16,
    host: Arc<Host>,
    seen: Arc<(Mutex<Seen>, Condvar)>,
    over: Arc<AtomicBool>,
    applying: Option<JoinHandle<()>>,
}

impl Running {
    fn open(options: Options) -> Self {
        let id = options.server_id;
        let host = Arc::new(Host::open(options).unwrap());
        let seen: Arc<(Mutex<Seen>, Condvar)> = Arc::default();
        let over = Arc::new(AtomicBool::new(false));
        let (applies, told, ends) = (host.clone(), seen.clone(), over.clone());
        let applying = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                // SAFETY: the host, which has the descriptor, is held by this thread.
                let wake = unsafe { BorrowedFd::borrow_raw(applies.wake_fd()) };
                let mut wait = [PollFd::new(&wake, PollFlags::IN)];
                let moment = Timespec {
                    tv_sec: 0,
                    tv_nsec: 50_000_000,
                };
                poll(&mut wait, Some(&moment)).unwrap();
                let events = applies.take(10_000).unwrap();
                let mut seen = told.0.lock();
                for event in events {
                    let fails = matches!(event, Event::Failed(_));
                    seen.apply(&applies, event);
                    if fails {
                        ends.store(true, Ordering::Relaxed);
                    }
                }
                told.1.notify_all();
            }
        });
        Self {
            id,
            host,
            seen,
            over,
            applying: Some(applying),
        }
    }

    fn start(options: Options) -> Self {
        let running = Self::open(options);
        running.host.start().unwrap();
        running
    }

    /// Waits until it was told what makes it so.
    fn wait<T>(&self, what: &str, is_so: impl FnMut(&mut Seen) -> Option<T>) -> T {
        self.wait_for(PATIENCE, what, is_so)
    }

    fn wait_for<T>(
        &self,
        patience: Duration,
        what: &str,
        mut is_so: impl FnMut(&mut Seen) -> Option<T>,
    ) -> T {
        let (seen, more) = &*self.seen;
        let mut seen = seen.lock();
        let end = std::time::Instant::now() + patience;
        loop {
            if let Some(found) = is_so(&mut seen) {
                return found;
            }
            if more.wait_until(&mut seen, end).timed_out() {
                panic!(
                    "server {} waits for {what}: {:?}, role {:?}, warnings {:?}, failed {:?}; {:?}",
                    self.id,
                    seen.bodies.len(),
                    seen.role,
                    seen.warnings,
                    seen.failed,
                    self.host.status(),
                );
            }
        }
    }

    fn propose(&self, numbers: impl IntoIterator<Item = u64>) -> u64 {
        let body = |number: u64| Bytes::copy_from_slice(&number.to_be_bytes());
        self.host
            .propose(numbers.into_iter().map(body).collect())
            .unwrap()
    }

    fn has_applied(&self, expected: &BTreeSet<u64>) {
        self.wait("what was proposed", |seen| {
            let all: BTreeSet<u64> = seen.bodies.iter().copied().collect();
            assert_eq!(all.len(), seen.bodies.len(), "each once");
            assert!(all.is_subset(expected), "{all:?}");
            (all == *expected).then_some(())
        });
    }

    fn role(&self) -> Option<Role> {
        self.seen.0.lock().role
    }

    /// Barriers until one is answered with yes; how much was applied when it was.
    fn read(&self) -> usize {
        loop {
            let number = self.host.read_barrier().unwrap();
            let (ok, bodies) = self.wait("a barrier", |seen| seen.barriers.get(&number).copied());
            if ok {
                return bodies;
            }
        }
    }

    fn save_snapshot(&self) -> u64 {
        let (index, bodies) = {
            let seen = self.seen.0.lock();
            (seen.last.unwrap(), seen.bodies.clone())
        };
        let mut sink = self.host.snapshot_begin(index).unwrap();
        for body in bodies {
            sink.write(Bytes::copy_from_slice(&body.to_be_bytes())).unwrap();
        }
        sink.finish().unwrap();
        let error = self.wait("its snapshot", |seen| {
            let of = |(at, error): &(u64, Option<String>)| (*at == index).then(|| error.clone());
            seen.snapshots.iter().find_map(of)
        });
        assert_eq!(error, None);
        index
    }

    /// Gives it the state that its ensemble begins with.
    fn give(&self, numbers: impl IntoIterator<Item = u64>) {
        assert!(self.host.awaits_state());
        let mut sink = self.host.first_state().unwrap();
        for number in numbers {
            sink.write(Bytes::copy_from_slice(&number.to_be_bytes())).unwrap();
        }
        sink.finish().unwrap();
        let error = self.wait("its state on disk", |seen| {
            let of = |(at, error): &(u64, Option<String>)| (*at == FIRST_STATE).then(|| error.clone());
            seen.snapshots.iter().find_map(of)
        });
        assert_eq!(error, None);
    }

    fn warned(&self, what: &str) {
        self.wait(what, |seen| {
            seen.warnings.iter().any(|text| text.contains(what)).then_some(())
        });
    }

    fn failed(&self) -> String {
        self.wait("its failure", |seen| seen.failed.clone())
    }

    fn end(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(applying) = self.applying.take() {
            applying.join().unwrap();
        }
    }

    fn stop(mut self) {
        self.host.stop().unwrap();
        self.host.stop().unwrap();
        self.end();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

struct Place {
    dir: tempfile::TempDir,
    servers: Vec<Server>,
    timing: Timing,
}

/// Ports that are free now. They are below those that systems give to who asks for any: nobody else has them while a member is
/// down.
fn free_ports(count: usize) -> Vec<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let candidates = std::iter::repeat_with(|| 10_000 + NEXT.fetch_add(1, Ordering::Relaxed) % 20_000);
    candidates
        .filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .take(count)
        .collect()
}

impl Place {
    fn new(voters: u16, observers: u16) -> Self {
        let count = voters + observers;
        let ports = free_ports(2 * count as usize);
        let at = |port| {
            vec![Address {
                host: "127.0.0.1".to_owned(),
                port,
            }]
        };
        let server = |id: u16| Server {
            id,
            quorum: at(ports[2 * id as usize - 2]),
            election: at(ports[2 * id as usize - 1]),
            client: None,
            observer: id > voters,
        };
        Self {
            dir: tempfile::tempdir().unwrap(),
            servers: (1..=count).map(server).collect(),
            timing: Timing::default(),
        }
    }

    /// Where nobody is elected anew because a thread got no processor for half a second.
    fn steady(voters: u16) -> Self {
        let timing = Timing {
            election_min: 2_000,
            election_max: 3_000,
            probe: 7_000,
            ..Timing::default()
        };
        Self {
            timing,
            ..Self::new(voters, 0)
        }
    }

    fn path(&self, id: u16) -> PathBuf {
        self.dir.path().join(id.to_string())
    }

    fn options(&self, id: u16) -> Options {
        self.options_among(id, self.servers.clone())
    }

    fn options_among(&self, id: u16, servers: Vec<Server>) -> Options {
        Options {
            timing: self.timing.clone(),
            ..options(&self.path(id), id, servers)
        }
    }

    fn start(&self, id: u16) -> Running {
        Running::start(self.options(id))
    }

    fn start_all(&self) -> Vec<Running> {
        self.servers.iter().map(|server| self.start(server.id)).collect()
    }
}

fn options(path: &Path, server_id: u16, servers: Vec<Server>) -> Options {
    Options {
        data_dir: path.to_path_buf(),
        server_id,
        servers,
        timing: Timing::default(),
        sync_limit: Duration::from_secs(10),
        absence_limit: Duration::from_secs(30),
        has_state: false,
        reconfigurable: false,
        entries_kept: 5,
        listen_on_all: false,
    }
}

/// The place in the list of the one that all follow.
fn leader(members: &[Running]) -> usize {
    let led = members[0].wait("a leader", |seen| {
        seen.role
            .filter(|role| role.leader != 0 && role.in_contact)
            .map(|role| role.leader)
    });
    members.iter().position(|member| member.id == led).unwrap()
}

#[test]
fn three_found_an_ensemble_and_survive_a_leader() {
    let place = Place::steady(3);
    let mut members = place.start_all();
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
        assert_eq!(member.host.status().unwrap().member >> 48, u64::from(member.id));
        assert_eq!(member.host.status().unwrap().member << 16, 0, "it founded it");
    }

    // What one is told was agreed on, all read after it.
    for number in 10_000..10_020u64 {
        let writer = &members[number as usize % 3];
        let ticket = writer.propose([number]);
        all.insert(number);
        writer.wait("its own", |seen| seen.mine.contains(&ticket).then_some(()));
        for member in &members {
            assert!(member.read() >= all.len(), "a write that was agreed on is missed");
        }
    }

    // Followers tell the leader of sessions.
    let at = leader(&members);
    for (other, member) in members.iter().enumerate() {
        let round = member.host.touch(Bytes::from_static(b"eight by")).unwrap();
        member.wait("the touch's answer", |seen| {
            seen.acks.contains(&round).then_some(())
        });
        let by_it = |seen: &mut Seen| {
            let told = seen.touched.iter();
            told.filter(|(server, _)| *server == member.id).count()
        };
        if other == at {
            assert_eq!(by_it(&mut members[at].seen.0.lock()), 0);
        } else {
            members[at].wait("the sessions", |seen| (by_it(seen) == 1).then_some(()));
        }
    }
    let leading = members[at].seen.0.lock().leading.clone();
    assert_eq!(leading, [members[at].role().unwrap().term]);

    // The leader goes in order: another leads soon, and nothing is lost.
    let gone = members.remove(at);
    let id = gone.id;
    gone.stop();
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
    // And comes back.
    members.push(place.start(id));
    members[2].propose([30_000]);
    all.insert(30_000);
    for member in &members {
        member.has_applied(&all);
    }
    for member in &members {
        assert_eq!(member.seen.0.lock().warnings, Vec::<String>::new());
    }
    for member in members {
        member.stop();
    }
}

#[test]
fn all_start_again_from_snapshots() {
    let place = Place::new(3, 0);
    let members = place.start_all();
    let mut all: BTreeSet<u64> = (0..500).collect();
    for number in 0..500 {
        members[number as usize % 3].propose([number]);
    }
    for member in &members {
        member.has_applied(&all);
    }
    for member in &members {
        let index = member.save_snapshot();
        member.wait("that it tells of its snapshot", |_| {
            (member.host.status().unwrap().snapshot == Some(index)).then_some(())
        });
    }
    members[0].propose([500]);
    all.insert(500);
    for member in members {
        member.has_applied(&all);
        member.stop();
    }
    let members = place.start_all();
    members[1].propose([501]);
    all.insert(501);
    for member in &members {
        member.has_applied(&all);
        assert_eq!(member.seen.0.lock().installed.len(), 1);
    }
    let installed = members[1].seen.0.lock().installed[0];
    let mine = members[1].seen.0.lock().mine[0];
    assert!(installed <= mine);
    for member in members {
        member.stop();
    }
}

#[test]
fn without_a_majority_nothing_is_agreed_on_and_reads_are_refused() {
    let place = Place::new(3, 0);
    let mut options = place.options(1);
    options.sync_limit = Duration::from_millis(500);
    let alone = Running::start(options);
    alone.propose([1]);
    let number = alone.host.read_barrier().unwrap();
    let (ok, _) = alone.wait("its refusal", |seen| seen.barriers.get(&number).copied());
    assert!(!ok);
    assert_eq!(alone.role().unwrap().kind, RoleKind::Looking);
    assert_eq!(alone.seen.0.lock().bodies.len(), 0);
    // What it held is there once it may be.
    let second = place.start(2);
    second.has_applied(&BTreeSet::from([1]));
    alone.has_applied(&BTreeSet::from([1]));
    // One of two is no majority either.
    second.stop();
    alone.wait("the loss", |seen| seen.role.filter(|role| !role.in_contact));
    let round = alone.host.touch(Bytes::new()).unwrap();
    let waiting = alone.host.read_barrier().unwrap();
    let (ok, _) = alone.wait("its refusal", |seen| seen.barriers.get(&waiting).copied());
    assert!(!ok);
    assert!(!alone.seen.0.lock().acks.contains(&round), "nobody followed it");
    alone.stop();
}

#[test]
fn a_server_alone_is_an_ensemble() {
    let place = Place::new(1, 0);
    for start in 0..3u64 {
        let alone = place.start(1);
        alone.propose([start]);
        alone.has_applied(&(0..=start).collect());
        assert_eq!(alone.read(), start as usize + 1);
        let round = alone.host.touch(Bytes::new()).unwrap();
        alone.wait("the touch's answer", |seen| {
            seen.acks.contains(&round).then_some(())
        });
        alone.wait("that it leads", |seen| (seen.leading.len() == 1).then_some(()));
        // What was there before is not written again.
        alone.wait("what the disk took", |seen| (seen.written == 1).then_some(()));
        alone.stop();
    }
}

#[test]
fn a_wiped_server_takes_its_own_place() {
    let place = Place::new(3, 0);
    let mut members = place.start_all();
    let mut all: BTreeSet<u64> = (0..100).collect();
    members[0].propose(0..100);
    for member in &members {
        member.has_applied(&all);
    }
    let wiped = members.remove((leader(&members) + 1) % 3);
    let (id, before) = (wiped.id, wiped.host.status().unwrap().member);
    wiped.stop();
    std::fs::remove_dir_all(place.path(id)).unwrap();
    let back = place.start(id);
    back.propose([100]);
    all.insert(100);
    back.has_applied(&all);
    let after = back.host.status().unwrap().member;
    assert_eq!(after >> 48, u64::from(id));
    assert_ne!(after, before);
    members.push(back);
    // It votes, and what it was is gone: the other two may not be enough without it.
    for member in &members {
        wait_for_members(member, 3, |ids| ids.contains(&after) && !ids.contains(&before));
    }
    let stopped = members.remove(0);
    stopped.stop();
    members[0].propose([101]);
    all.insert(101);
    for member in &members {
        member.has_applied(&all);
    }
    for member in members {
        member.stop();
    }
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let place = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &place);
        } else {
            std::fs::copy(entry.path(), &place).unwrap();
        }
    }
}

/// From a backup, say. It must not hang for ever, counted as there by its leader, which waits for it where it is needed.
#[test]
fn a_member_whose_disk_was_put_back_is_sent_what_it_lost() {
    for observers in [0, 1] {
        let place = Place::new(3 - observers, observers);
        let mut members = place.start_all();
        let mut all: BTreeSet<u64> = BTreeSet::new();
        all_apply(&members, &mut all, 1);
        let id = match observers {
            0 => members[(leader(&members) + 1) % 3].id,
            _ => 3,
        };
        let copy = place.dir.path().join("copy");
        let restart = |members: &mut Vec<Running>, change: &dyn Fn()| {
            let at = members.iter().position(|member| member.id == id).unwrap();
            crash(members.remove(at));
            change();
            members.push(place.start(id));
        };
        restart(&mut members, &|| copy_dir(&place.path(id), &copy));
        for number in 2..50 {
            all_apply(&members, &mut all, number);
        }
        restart(&mut members, &|| {
            std::fs::remove_dir_all(place.path(id)).unwrap();
            copy_dir(&copy, &place.path(id));
        });
        members.last().unwrap().has_applied(&all);
        // It counts: without another there are as many as are needed.
        if observers == 0 {
            let other = members
                .iter()
                .position(|member| member.id != id && follows_now(member));
            crash(members.remove(other.unwrap()));
        }
        all_apply(&members, &mut all, 50);
        stop_all(members);
    }
}

/// Without it a start waits for a leader before it applies anything, and whoever is alone has nothing to read from.
#[test]
fn what_was_agreed_on_is_applied_before_there_is_a_leader() {
    let place = Place::new(3, 0);
    let members = place.start_all();
    let mut all = BTreeSet::new();
    for number in 0..300 {
        all_apply(&members, &mut all, number);
    }
    let mut members = members;
    crash(members.pop().unwrap());
    stop_all(members);
    let alone = place.start(1);
    alone.has_applied(&all);
    assert!(!alone.host.status().unwrap().role.in_contact);
    alone.stop();
    // Of one that was killed the note may be some entries old.
    let killed = place.start(3);
    killed.wait("most entries", |seen| (seen.bodies.len() > 150).then_some(()));
    crash(killed);
    // A note of what the log has not, or that is none, counts for nothing.
    let note = place.path(1).join("committed");
    let written = std::fs::read(&note).unwrap();
    let mut torn = written.clone();
    torn[20] ^= 1;
    let (term, index) = (&written[8..16], &written[16..24]);
    let mut of_another = b"LCQCOMM1".to_vec();
    of_another.extend((u64::from_be_bytes(term.try_into().unwrap()) + 1).to_be_bytes());
    of_another.extend(index);
    of_another.extend(crc32fast::hash(&of_another).to_be_bytes());
    let mut beyond = b"LCQCOMM1".to_vec();
    beyond.extend(term);
    beyond.extend((u64::from_be_bytes(index.try_into().unwrap()) + 1).to_be_bytes());
    beyond.extend(crc32fast::hash(&beyond).to_be_bytes());
    for wrong in [&torn, &of_another, &beyond, &Vec::new()] {
        std::fs::write(&note, wrong).unwrap();
        let (_, _, found) = directory::open::<Served>(&place.path(1)).unwrap();
        assert_eq!(found.committed, None);
    }
    std::fs::write(&note, &written).unwrap();
    let (_, _, found) = directory::open::<Served>(&place.path(1)).unwrap();
    assert!(found.committed.is_some());
}

#[test]
fn a_member_that_lost_its_log_and_kept_its_vote_does_not_start() {
    let place = Place::new(3, 0);
    let members = place.start_all();
    let mut all = BTreeSet::new();
    all_apply(&members, &mut all, 1);
    let id = members[0].id;
    for member in members {
        crash(member);
    }
    let log = place.path(id).join("log");
    let refused = || match Host::open(place.options(id)) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("it was opened"),
    };
    for file in std::fs::read_dir(&log).unwrap().flatten() {
        std::fs::remove_file(file.path()).unwrap();
    }
    assert!(refused().contains("it is gone or empty"), "{}", refused());
    std::fs::remove_dir_all(&log).unwrap();
    assert!(refused().contains("it is gone or empty"), "{}", refused());
    assert!(!log.exists(), "another start would find one");
}

/// Waits until those who vote are these.
fn wait_for_members(member: &Running, count: usize, is_so: impl Fn(&BTreeSet<u64>) -> bool) {
    // A membership is told of with the entries; this is what the member itself has then.
    member.wait("its members", |_| {
        let membership = member.host.status().unwrap().membership.unwrap();
        let ids: BTreeSet<u64> = membership.membership().voter_ids().collect();
        let uniform = membership.membership().get_joint_config().len() == 1;
        (uniform && ids.len() == count && is_so(&ids)).then_some(())
    });
}

#[test]
fn observers_follow_and_do_not_count() {
    let place = Place::new(3, 1);
    let mut members = place.start_all();
    let mut all = BTreeSet::from([1, 2]);
    members[3].propose([1]);
    members[0].propose([2]);
    for member in &members {
        member.has_applied(&all);
    }
    let role = members[3].wait("its role", |seen| seen.role.filter(|role| role.in_contact));
    assert_eq!(role.kind, RoleKind::Observer);
    assert_eq!(members[3].read(), 2);
    // Two of three are a majority, whoever else there is.
    let first = members.remove(0);
    first.stop();
    members[2].propose([3]);
    all.insert(3);
    for member in &members {
        member.has_applied(&all);
    }
    // One and an observer are none.
    let second = members.remove(0);
    second.stop();
    let number = members[0].host.read_barrier().unwrap();
    let (ok, _) = members[0].wait("its refusal", |seen| seen.barriers.get(&number).copied());
    assert!(!ok);
    for member in members {
        member.stop();
    }
}

#[test]
fn who_hears_a_leader_without_a_majority_has_no_contact() {
    let place = Place::new(3, 1);
    let mut members = place.start_all();
    for member in &members {
        member.wait("contact", |seen| seen.role.filter(|role| role.in_contact));
    }
    let observer = members.pop().unwrap();
    let led_by = leader(&members);
    let leading = members.remove(led_by);
    let term = leading.role().unwrap().term;
    for member in members {
        crash(member);
    }
    leading.wait("the loss", |seen| seen.role.filter(|role| !role.in_contact));
    observer.wait("the loss", |seen| seen.role.filter(|role| !role.in_contact));
    // Nor has one that is told of this leader anew, long after it was elected.
    crash(observer);
    let observer = place.start(4);
    let role = observer.wait("its leader", |seen| {
        seen.role.filter(|role| role.kind == RoleKind::Observer)
    });
    assert_eq!((role.leader, role.term), (leading.id, term));
    assert!(!role.in_contact);
    let voter = (1..=3).find(|id| *id != leading.id).unwrap();
    let voter = place.start(voter);
    for member in [&leading, &observer, &voter] {
        member.wait("contact", |seen| seen.role.filter(|role| role.in_contact));
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let place = Place::new(3, 0);
    let refused = |options: Options| match Host::open(options) {
        Ok(_) => panic!("it was opened"),
        Err(error) => error.to_string(),
    };
    // A server that no line names.
    let mut options = place.options(1);
    options.server_id = 7;
    assert!(refused(options).contains("no line names it"));
    let mut options = place.options(1);
    options.servers.push(place.servers[1].clone());
    assert!(refused(options).contains("server 2 is named twice"));
    let mut options = place.options(1);
    options
        .servers
        .iter_mut()
        .for_each(|server| server.observer = true);
    assert!(refused(options).contains("no server votes"));

    let first = Running::open(place.options(1));
    // Not started.
    assert!(matches!(first.host.propose(vec![]), Err(HostError::Stopped(_))));
    // In use.
    let refusal = refused(place.options(1));
    assert!(refusal.contains("in use"), "{refusal}");
    first.host.start().unwrap();
    assert!(first.host.start().is_err());
    // Another's address.
    let mut options = place.options(2);
    options.servers[1].quorum = options.servers[0].quorum.clone();
    let second = Host::open(options).unwrap();
    assert!(
        second
            .start()
            .unwrap_err()
            .to_string()
            .contains("listening on 127.0.0.1")
    );
    drop(second);
    // Beyond what was taken.
    let error = first.host.applied(1_000).unwrap_err().to_string();
    assert!(error.contains("cannot be applied"), "{error}");
    assert!(first.host.snapshot_begin(0).is_err());
    let large = Bytes::from(vec![0; (16 << 20) + 1]);
    assert!(matches!(
        first.host.propose(vec![large]),
        Err(HostError::TooLarge { .. })
    ));
    first.stop();
    // Of another server.
    let mut options = place.options(1);
    options.server_id = 3;
    assert!(refused(options).contains("this is the directory of server 1, and this is server 3"));
    // Its memory is gone.
    std::fs::remove_file(place.path(1).join("identity")).unwrap();
    let two = Place::new(2, 0);
    let pair = two.start_all();
    for member in &pair {
        member.wait("the warning", |seen| {
            seen.warnings
                .iter()
                .any(|text| text.contains("make their number odd"))
                .then_some(())
        });
    }
    pair[0].propose([1]);
    pair[1].has_applied(&BTreeSet::from([1]));
    for member in pair {
        member.stop();
    }
    std::fs::remove_file(two.path(1).join("identity")).unwrap();
    assert!(refused(two.options(1)).contains("there is a log, and the file does not say"));
}

#[test]
fn a_disk_that_fails_is_the_end_and_is_told_once() {
    let place = Place::new(1, 0);
    let alone = Running::open(place.options(1));
    // The vote cannot be replaced by a file.
    std::fs::create_dir(place.path(1).join("vote")).unwrap();
    alone.host.start().unwrap();
    let why = alone.wait("the failure", |seen| seen.failed.clone());
    assert!(why.contains("vote"), "{why}");
    let refused = |error: HostError| matches!(error, HostError::Stopped(stopped) if stopped.0 == why);
    assert!(refused(alone.host.propose(vec![]).unwrap_err()));
    assert!(refused(alone.host.read_barrier().unwrap_err()));
    assert!(refused(alone.host.take(1).unwrap_err()));
    alone.stop();
}

#[test]
fn lines_that_differ_from_the_ensemble_s_are_told() {
    let place = Place::new(3, 0);
    let mut members = place.start_all();
    members[0].propose([1]);
    for member in &members {
        member.has_applied(&BTreeSet::from([1]));
    }
    let warned = |member: &Running, what: &str| {
        member.wait(what, |seen| {
            seen.warnings.iter().find(|text| text.contains(what)).cloned()
        });
    };
    // One that comes back with another address says so; it is where the ensemble knows it no more.
    members.pop().unwrap().stop();
    let mut moved = place.options(3);
    let other = free_ports(2);
    moved.servers[2].quorum[0].port = other[0];
    let member = Running::start(moved.clone());
    warned(&member, "this server's own line differs");
    member.stop();
    // With no directory it is not taken in.
    std::fs::remove_dir_all(place.path(3)).unwrap();
    let member = Running::start(moved);
    warned(&member, "has other addresses in the ensemble");
    member.stop();
    // Nor one that nobody knows.
    let mut fourth = place.options(3);
    let mut line = fourth.servers[2].clone();
    (line.id, line.quorum[0].port, line.election[0].port) = (4, other[0], other[1]);
    fourth.servers.push(line);
    fourth.server_id = 4;
    fourth.data_dir = place.path(4);
    let member = Running::start(fourth);
    warned(&member, "server 4 is no part of the ensemble");
    member.stop();
    // With its own line it is.
    members.push(place.start(3));
    members[2].has_applied(&BTreeSet::from([1]));
    // One whose file names others does not found an ensemble with them.
    for member in members {
        member.stop();
    }
}

#[test]
fn a_directory_that_was_replaced_stays_out() {
    let place = Place::new(3, 0);
    let mut members = place.start_all();
    members[0].propose([1]);
    for member in &members {
        member.has_applied(&BTreeSet::from([1]));
    }
    members.pop().unwrap().stop();
    let kept = place.dir.path().join("kept");
    std::fs::rename(place.path(3), &kept).unwrap();
    let another = place.start(3);
    another.has_applied(&BTreeSet::from([1]));
    let id = another.host.status().unwrap().member;
    for member in &members {
        wait_for_members(member, 3, |ids| ids.contains(&id));
    }
    another.stop();
    // The old one is back: its votes count no more, and the ensemble stays as it is.
    std::fs::remove_dir_all(place.path(3)).unwrap();
    std::fs::rename(&kept, place.path(3)).unwrap();
    let old = place.start(3);
    members[0].propose([2]);
    for member in &members {
        member.has_applied(&BTreeSet::from([1, 2]));
        wait_for_members(member, 3, |ids| ids.contains(&id));
    }
    old.wait("the warning", |seen| {
        let told = |text: &String| text.contains("move this directory away");
        seen.warnings.iter().any(told).then_some(())
    });
    // What was agreed on while it was a member it knows.
    old.has_applied(&BTreeSet::from([1]));
    old.stop();
    for member in members {
        member.stop();
    }
}

#[test]
fn one_that_is_dropped_ends_by_itself() {
    let place = Place::new(1, 0);
    let alone = place.start(1);
    alone.propose([1]);
    alone.has_applied(&BTreeSet::from([1]));
    let mut alone = alone;
    alone.end();
    drop(alone);
    let again = place.start(1);
    again.has_applied(&BTreeSet::from([1]));
    again.stop();
}

// ---- one has a state to begin with ----

/// Options of the one that has it.
fn with_state(place: &Place, id: u16) -> Options {
    let mut options = place.options(id);
    options.has_state = true;
    options
}

fn numbers() -> BTreeSet<u64> {
    (0..100).collect()
}

fn stop_all(members: Vec<Running>) {
    for member in members {
        member.stop();
    }
}

/// What is in a member's directory but for its identity, and for files with these names' beginnings.
fn remove_all_but(path: &Path, kept: &[&str]) {
    for file in std::fs::read_dir(path).unwrap() {
        let file = file.unwrap();
        let name = file.file_name().into_string().unwrap();
        if name == "identity" || kept.iter().any(|kept| name.starts_with(kept)) {
            continue;
        }
        if file.file_type().unwrap().is_dir() {
            std::fs::remove_dir_all(file.path()).unwrap();
        } else {
            std::fs::remove_file(file.path()).unwrap();
        }
    }
}

#[test]
fn an_ensemble_begins_with_the_state_of_one() {
    let place = Place::steady(3);
    let mut members = vec![place.start(2), place.start(3)];
    members.insert(0, Running::start(with_state(&place, 1)));
    // Those that have nothing wait for it, however long that takes.
    for member in &members[1..] {
        member.warned("waits for server 1, which founds the ensemble with its data");
    }
    members[0].give(numbers());
    let mut all = numbers();
    for member in &members {
        member.has_applied(&all);
        assert_eq!(member.seen.0.lock().installed.len(), 1);
        assert!(!member.host.awaits_state());
        let membership = member.host.status().unwrap().membership.unwrap();
        assert_eq!(listed(membership.membership()), Some(place.servers.clone()));
    }
    assert!(members[0].host.first_state().is_err());
    all_apply(&members, &mut all, 200);
    let leader = leader(&members);
    let leading = members[leader].wait("that it leads", |seen| seen.leading.first().copied());
    assert_eq!(leading, members[leader].role().unwrap().term);

    // A member that loses its directory, and one that comes back, have it too.
    members.pop().unwrap().stop();
    std::fs::remove_dir_all(place.path(3)).unwrap();
    all_apply(&members, &mut all, 201);
    members.push(place.start(3));
    all_apply(&members, &mut all, 202);
    stop_all(members);
    // What was promised is not asked for twice.
    let mut members = vec![Running::start(with_state(&place, 1))];
    assert!(!members[0].host.awaits_state());
    members.extend([place.start(2), place.start(3)]);
    all_apply(&members, &mut all, 203);
    stop_all(members);
}

#[test]
fn two_that_have_a_state_refuse() {
    let place = Place::new(3, 0);
    let third = place.start(3);
    let first = Running::start(with_state(&place, 1));
    let second = Running::start(with_state(&place, 2));
    first.give(numbers());
    for member in [&first, &second] {
        let why = member.failed();
        assert!(why.contains("have data of their own"), "{why}");
    }
    stop_all(vec![first, second]);
    // Nothing came of it.
    assert_eq!(third.seen.0.lock().last, None);
    std::fs::remove_dir_all(place.path(2)).unwrap();
    let second = place.start(2);
    let first = Running::start(with_state(&place, 1));
    first.give(numbers());
    for member in [&first, &second, &third] {
        member.has_applied(&numbers());
    }
    stop_all(vec![first, second, third]);
}

#[test]
fn one_that_has_a_state_joins_no_ensemble() {
    let place = Place::new(3, 0);
    // Two found one without the third.
    let mut members = vec![place.start(1), place.start(2)];
    let mut all = BTreeSet::new();
    all_apply(&members, &mut all, 1);
    let late = Running::start(with_state(&place, 3));
    let why = late.failed();
    assert!(why.contains("an ensemble without that data"), "{why}");
    late.stop();
    // Without it, it does.
    members.push(place.start(3));
    all_apply(&members, &mut all, 2);
    stop_all(members);
}

#[test]
fn an_observer_cannot_begin_an_ensemble() {
    let place = Place::new(1, 1);
    let refused = Host::open(with_state(&place, 2)).err().unwrap().to_string();
    assert!(
        refused.contains("server 2 is an observer and has data"),
        "{refused}"
    );
    let alone = place.start(1);
    alone.propose([1]);
    alone.has_applied(&BTreeSet::from([1]));
    assert!(matches!(alone.host.first_state(), Err(HostError::OutOfOrder(_))));
    alone.stop();
}

#[test]
fn a_founding_with_a_state_is_completed_wherever_it_was_cut_off() {
    let place = Place::new(3, 0);
    // Before anybody is bound: nothing is left of what was on disk.
    let alone = Running::start(with_state(&place, 1));
    alone.give(numbers());
    crash(alone);
    let alone = Running::start(with_state(&place, 1));
    assert!(alone.host.awaits_state());
    assert_eq!(
        std::fs::read_dir(place.path(1).join("snapshots"))
            .unwrap()
            .count(),
        0
    );
    alone.give(7..9);
    // A minority is not enough.
    alone.warned("once a majority of the servers is there");
    assert!(alone.host.awaits_state());
    let members = vec![alone, place.start(2)];
    for member in &members {
        member.has_applied(&(7..9).collect());
    }
    let ensemble = members[0].host.status().unwrap().ensemble;
    stop_all(members);

    // Two are bound, and the state is not in its place: it is given again, as it is then.
    for id in [1, 2] {
        remove_all_but(&place.path(id), &[]);
    }
    let bound = vec![place.start(2), place.start(3)];
    for member in &bound {
        // Both know that it has begun; neither founds another.
        member.warned("waits for");
    }
    let first = Running::start(with_state(&place, 1));
    first.give(numbers());
    let mut members = vec![first];
    members.extend(bound);
    for member in &members {
        member.has_applied(&numbers());
        assert_eq!(member.host.status().unwrap().ensemble, ensemble);
    }
    stop_all(members);

    // It is in its place, and nothing else was done.
    for id in 1..=3 {
        let kept: &[&str] = if id == 1 { &["snapshots"] } else { &[] };
        remove_all_but(&place.path(id), kept);
    }
    let mut members = vec![Running::start(with_state(&place, 1))];
    assert!(!members[0].host.awaits_state());
    members.extend([place.start(2), place.start(3)]);
    let mut all = numbers();
    all_apply(&members, &mut all, 200);
    stop_all(members);
}

#[test]
fn one_with_a_state_grows_to_three() {
    let place = Place::new(3, 0);
    let mut options = changing(&place, 1, &[1]);
    options.has_state = true;
    let first = Running::start(options);
    first.give(numbers());
    let mut all = numbers();
    first.has_applied(&all);
    let mut members = vec![first];
    for id in [2, 3] {
        members.push(Running::start(changing(&place, id, &[1, id])));
        all_apply(&members, &mut all, 100 + u64::from(id));
        let ids: Vec<u16> = (1..=id).collect();
        change(&members, &servers(&place, &ids));
    }
    members.remove(0).stop();
    all_apply(&members, &mut all, 200);
    stop_all(members);
}

#[test]
fn a_member_s_files_are_read_without_it() {
    let place = Place::new(1, 0);
    let path = place.path(1);
    assert!(
        Stored::open(&path)
            .err()
            .unwrap()
            .to_string()
            .contains("no member of")
    );
    let alone = place.start(1);
    let refused = Stored::open(&path).err().unwrap().to_string();
    assert!(
        refused.contains("in use") || refused.contains("no member of"),
        "{refused}"
    );
    alone.propose(0..50);
    alone.has_applied(&(0..50).collect());
    let index = alone.save_snapshot();
    alone.propose(50..100);
    alone.has_applied(&numbers());
    alone.stop();
    for _ in 0..2 {
        let mut stored = Stored::open(&path).unwrap();
        let source = stored.snapshot().unwrap().unwrap();
        assert_eq!(source.log_id.index, index);
        let content = source.read(1 << 20).unwrap();
        let whole = |bytes: &[u8]| u64::from_be_bytes(bytes[..8].try_into().unwrap());
        let mut bodies: Vec<u64> = content.chunks_exact(8).map(whole).collect();
        loop {
            let entries = stored.entries(100).unwrap();
            if entries.is_empty() {
                break;
            }
            let commands = entries.iter().flat_map(|entry| &entry.commands);
            bodies.extend(commands.map(|counted| whole(&counted.command.body)));
        }
        assert_eq!(bodies, (0..100).collect::<Vec<_>>());
        stored.close().unwrap();
    }
    let alone = place.start(1);
    alone.has_applied(&numbers());
    alone.stop();
}

// ---- the members change ----

/// Options of a server whose file names these, in an ensemble whose members may change.
fn changing(place: &Place, id: u16, named: &[u16]) -> Options {
    let named = servers(place, named);
    let mut options = place.options_among(id, named);
    options.reconfigurable = true;
    options
}

fn servers(place: &Place, ids: &[u16]) -> Vec<Server> {
    let of = |id: &u16| place.servers[*id as usize - 1].clone();
    ids.iter().map(of).collect()
}

fn founders(place: &Place) -> Vec<Running> {
    let start = |id: u16| Running::start(changing(place, id, &[1, 2, 3]));
    (1..=3).map(start).collect()
}

/// One that joins: its file names the ensemble and itself.
fn joiner(place: &Place, id: u16) -> Running {
    Running::start(changing(place, id, &[1, 2, 3, id]))
}

fn listed_by(member: &Running) -> Option<Vec<u16>> {
    let membership = member.host.status().unwrap().membership?;
    let servers = listed(membership.membership())?;
    Some(servers.iter().map(|server| server.id).collect())
}

fn is_joint(member: &Running) -> bool {
    let membership = member.host.status().unwrap().membership.unwrap();
    membership.membership().get_joint_config().len() > 1
}

/// Has whoever leads make these the ensemble, and waits until all these members know it.
fn change(members: &[Running], servers: &[Server]) {
    let mut ids: Vec<u16> = servers.iter().map(|server| server.id).collect();
    ids.sort_unstable();
    for member in members {
        member.wait("the new members", |_| {
            for each in members {
                // Who leads may be another meanwhile.
                let role = each.host.status().unwrap().role;
                if role.kind == RoleKind::Leader {
                    each.host.change_members(role.term, servers.to_vec()).unwrap();
                }
            }
            (listed_by(member) == Some(ids.clone())).then_some(())
        });
    }
}

fn all_apply(members: &[Running], all: &mut BTreeSet<u64>, number: u64) {
    members[0].propose([number]);
    all.insert(number);
    for member in members {
        member.has_applied(all);
    }
}

fn follows(member: &Running) -> Role {
    let is_following = |role: &Role| role.kind == RoleKind::Follower && role.in_contact;
    member.wait("that it follows", |seen| seen.role.filter(is_following))
}

fn follows_now(member: &Running) -> bool {
    member.host.status().unwrap().role.kind == RoleKind::Follower
}

/// Ends it without an orderly stop.
fn crash(mut member: Running) {
    member.end();
}

#[test]
fn an_ensemble_grows_and_shrinks() {
    let place = Place::new(5, 0);
    let mut members = founders(&place);
    let mut all = BTreeSet::new();
    all_apply(&members, &mut all, 1);
    members.push(joiner(&place, 4));
    members.push(joiner(&place, 5));
    // They have what the others have, propose, and are not listed.
    for member in &members {
        member.has_applied(&all);
    }
    follows(&members[4]);
    members[4].propose([2]);
    all.insert(2);
    all_apply(&members, &mut all, 3);
    assert_eq!(listed_by(&members[0]), Some(vec![1, 2, 3]));
    let five = servers(&place, &[1, 2, 3, 4, 5]);
    let at = leader(&members);
    members[at].wait("that they are in sync", |_| {
        members[at].host.has_quorum(&five).unwrap().then_some(())
    });
    change(&members, &five);
    // Any three of the five are a majority.
    members.remove(0).stop();
    members.remove(0).stop();
    all_apply(&members, &mut all, 4);
    change(&members, &servers(&place, &[3, 4, 5]));
    members.remove(0).stop();
    all_apply(&members, &mut all, 5);
    for member in members {
        member.stop();
    }
}

#[test]
fn a_leader_that_is_removed_hands_over_and_follows() {
    let place = Place::steady(3);
    let members = founders(&place);
    let mut all = BTreeSet::new();
    all_apply(&members, &mut all, 1);
    let at = leader(&members);
    let others: Vec<u16> = (1..=3).filter(|id| *id != members[at].id).collect();
    change(&members, &servers(&place, &others));
    let led = follows(&members[at]).leader;
    assert!(others.contains(&led));
    members[at].propose([2]);
    all.insert(2);
    all_apply(&members, &mut all, 3);
    // It comes back to where it was with what it has.
    change(&members, &servers(&place, &[1, 2, 3]));
    all_apply(&members, &mut all, 4);
    members[at].propose([5]);
    all.insert(5);
    all_apply(&members, &mut all, 6);
    for member in members {
        member.stop();
    }
}

#[test]
fn what_a_leader_began_the_next_completes() {
    let place = Place::steady(5);
    let mut members = founders(&place);
    let mut all = BTreeSet::new();
    members.push(joiner(&place, 4));
    members.push(joiner(&place, 5));
    all_apply(&members, &mut all, 1);
    follows(&members[3]);
    follows(&members[4]);
    // A leader and one follower are a majority of the three, and none of the five: half of the change is on their disks.
    let led = members[leader(&members)].id;
    let two: Vec<u16> = (1..=3).filter(|id| *id != led).collect();
    for member in members.extract_if(.., |member| member.id != led && member.id != two[0]) {
        crash(member);
    }
    let at = leader(&members);
    let term = members[at].role().unwrap().term;
    let five = servers(&place, &[1, 2, 3, 4, 5]);
    members[at].wait("that the others are gone", |_| {
        let has_quorum = members[at].host.has_quorum(&five).unwrap();
        (!has_quorum).then_some(())
    });
    members[at].host.change_members(term, five).unwrap();
    for member in &members {
        member.wait("half of the change", |_| is_joint(member).then_some(()));
    }
    crash(members.remove(at));
    members.push(Running::start(changing(&place, two[1], &[1, 2, 3])));
    members.push(joiner(&place, 4));
    members.push(joiner(&place, 5));
    for member in &members {
        member.wait("the other half", |_| {
            (listed_by(member) == Some(vec![1, 2, 3, 4, 5])).then_some(())
        });
    }
    all_apply(&members, &mut all, 2);
    for member in members {
        member.stop();
    }
}

#[test]
fn a_joiner_may_be_lost_before_and_after_it_is_added() {
    let place = Place::new(5, 0);
    let mut members: Vec<Running> = (1..=3)
        .map(|id| {
            let mut options = changing(&place, id, &[1, 2, 3]);
            options.absence_limit = Duration::from_millis(1_500);
            Running::start(options)
        })
        .collect();
    let mut all = BTreeSet::new();
    all_apply(&members, &mut all, 1);
    // One that was never seen is added, and comes then.
    change(&members, &servers(&place, &[1, 2, 3, 4]));
    all_apply(&members, &mut all, 2);
    members.push(joiner(&place, 4));
    all_apply(&members, &mut all, 3);
    let fourth = members[3].host.status().unwrap().member;
    wait_for_members(&members[0], 4, |ids| ids.contains(&fourth));
    // One that goes before it is added is forgotten, and taken in when it is back.
    let fifth = joiner(&place, 5);
    fifth.has_applied(&all);
    let id = fifth.host.status().unwrap().member;
    fifth.stop();
    let is_known = |member: &Running| {
        let membership = member.host.status().unwrap().membership.unwrap();
        membership.membership().get_node(&id).is_some()
    };
    members[0].wait("that it is forgotten", |_| (!is_known(&members[0])).then_some(()));
    members.push(joiner(&place, 5));
    members[4].propose([4]);
    all.insert(4);
    all_apply(&members, &mut all, 5);
    assert_eq!(members[4].host.status().unwrap().member, id);
    change(&members, &servers(&place, &[1, 2, 3, 4, 5]));
    // One that is lost with its disk after it was added takes its place again.
    members.pop().unwrap().stop();
    std::fs::remove_dir_all(place.path(5)).unwrap();
    all_apply(&members, &mut all, 6);
    members.push(joiner(&place, 5));
    let fifth = members[4].host.status().unwrap().member;
    all_apply(&members, &mut all, 7);
    let fifth = members[4].host.status().unwrap().member.max(fifth);
    wait_for_members(&members[0], 5, |ids| ids.contains(&fifth));
    for member in members {
        member.stop();
    }
}

#[test]
fn a_member_moves_to_other_addresses() {
    let place = Place::new(3, 0);
    let mut members = founders(&place);
    let mut all = BTreeSet::new();
    all_apply(&members, &mut all, 1);
    let ports = free_ports(2);
    let mut moved = place.servers.clone();
    moved[1].quorum[0].port = ports[0];
    moved[1].election[0].port = ports[1];
    change(&members, &moved);
    all_apply(&members, &mut all, 2);
    // Where it was nobody listens any more, and it is needed for a majority.
    let old = place.servers[1].quorum[0].port;
    members[1].wait("that it is gone from there", |_| {
        TcpListener::bind(("127.0.0.1", old)).is_ok().then_some(())
    });
    members.remove(0).stop();
    all_apply(&members, &mut all, 3);
    members.remove(0).stop();
    // Its own file may be old.
    members.push(Running::start(changing(&place, 2, &[1, 2, 3])));
    all_apply(&members, &mut all, 4);
    for member in members {
        member.stop();
    }
}

#[test]
fn roles_change_and_an_observer_of_the_file_is_listed_at_once() {
    let place = Place::new(3, 1);
    let start = |id: u16| Running::start(changing(&place, id, &[1, 2, 3, 4]));
    let mut members: Vec<Running> = (1..=3).map(start).collect();
    let mut all = BTreeSet::new();
    all_apply(&members, &mut all, 1);
    for member in &members {
        member.wait("the observer's line", |_| {
            (listed_by(member) == Some(vec![1, 2, 3, 4])).then_some(())
        });
    }
    members.push(start(4));
    all_apply(&members, &mut all, 2);
    let is_observer = |role: &Role| role.kind == RoleKind::Observer && role.in_contact;
    members[3].wait("that it observes", |seen| seen.role.filter(is_observer));
    let fourth = members[3].host.status().unwrap().member;
    for member in &members {
        member.wait("that it has its place", |_| {
            let membership = member.host.status().unwrap().membership.unwrap();
            let node = membership.membership().get_node(&fourth).cloned();
            node.filter(|server| server.observer)
        });
    }
    let mut roles = place.servers.clone();
    roles[3].observer = false;
    roles[0].observer = true;
    change(&members, &roles);
    follows(&members[3]);
    members[0].wait("that it observes", |seen| seen.role.filter(is_observer));
    members.remove(1).stop();
    all_apply(&members, &mut all, 3);
    for member in members {
        member.stop();
    }
}

#[test]
fn one_that_is_removed_and_comes_back_disturbs_nobody() {
    let place = Place::steady(4);
    let mut members: Vec<Running> = (1..=4)
        .map(|id| Running::start(changing(&place, id, &[1, 2, 3, 4])))
        .collect();
    let mut all = BTreeSet::new();
    all_apply(&members, &mut all, 1);
    let at = (leader(&members) + 1) % 4;
    let gone = members.remove(at);
    let id = gone.id;
    // It is away when it is removed, and believes that it votes.
    gone.stop();
    let rest: Vec<u16> = (1..=4).filter(|other| *other != id).collect();
    change(&members, &servers(&place, &rest));
    let led = members[leader(&members)].role().unwrap();
    let back = Running::start(changing(&place, id, &[1, 2, 3, 4]));
    all_apply(&members, &mut all, 2);
    back.has_applied(&all);
    assert_eq!(listed_by(&back), Some(rest));
    let now = members[leader(&members)].role().unwrap();
    assert_eq!((now.term, now.leader), (led.term, led.leader));
    back.stop();
    for member in members {
        member.stop();
    }
}

#[test]
fn a_change_to_what_is_no_ensemble_is_refused() {
    let place = Place::new(1, 0);
    let alone = Running::start(changing(&place, 1, &[1]));
    alone.propose([1]);
    alone.has_applied(&BTreeSet::from([1]));
    let term = alone.role().unwrap().term;
    assert!(matches!(
        alone.host.change_members(term, vec![]),
        Err(HostError::Servers(_))
    ));
    let mut nobody = place.servers.clone();
    nobody[0].observer = true;
    assert!(matches!(
        alone.host.has_quorum(&nobody),
        Err(HostError::Servers(_))
    ));
    // Of another term it is nobody's.
    let mut other = place.servers.clone();
    other[0].client = Some(place.servers[0].quorum[0].clone());
    alone.host.change_members(term + 1, other.clone()).unwrap();
    alone.propose([2]);
    alone.has_applied(&BTreeSet::from([1, 2]));
    let listed_now = |alone: &Running| {
        let membership = alone.host.status().unwrap().membership.unwrap();
        listed(membership.membership()).unwrap()
    };
    assert_eq!(listed_now(&alone), place.servers);
    alone.host.change_members(term, other.clone()).unwrap();
    alone.wait("its clients' address", |_| {
        (listed_now(&alone) == other).then_some(())
    });
    alone.stop();
}
