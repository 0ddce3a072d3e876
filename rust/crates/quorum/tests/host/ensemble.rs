//! An ensemble of hosts for a test, each with an application that records its events.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use logcore_quorum::host::{Event, FIRST_STATE, Host, Options, Role, RoleKind};
use logcore_quorum::raft::member::Timing;
use logcore_quorum::raft::members::listed;
use logcore_quorum::raft::types::Membership;
use logcore_quorum::servers::{Address, Server};
use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Nothing takes so long unless it never ends.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The events of a host, and the state of its application: the number in each command.
#[derive(Default, Debug)]
pub(crate) struct Seen {
    pub(crate) bodies: Vec<u64>,
    /// The tickets of this member's own commands.
    pub(crate) mine: Vec<u64>,
    /// The index of the last entry.
    pub(crate) last: Option<u64>,
    /// The next ticket of this member after each installed snapshot.
    pub(crate) installed: Vec<u64>,
    pub(crate) role: Option<Role>,
    pub(crate) leading: Vec<u64>,
    /// Whether each barrier was answered with ok, and how many commands were applied then.
    pub(crate) barriers: BTreeMap<u64, (bool, usize)>,
    pub(crate) renewed: Vec<(u16, Bytes)>,
    pub(crate) acks: BTreeSet<u64>,
    pub(crate) snapshots: Vec<(u64, Option<String>)>,
    /// Commands that were measured when they were written to disk.
    pub(crate) written: u32,
    pub(crate) warnings: Vec<String>,
    pub(crate) failed: Option<String>,
}

impl Seen {
    fn apply(&mut self, host: &Host, event: Event) {
        match event {
            Event::Entries(entries) => {
                for entry in entries {
                    let next = self.last.map_or(0, |last| last + 1);
                    assert_eq!(entry.log_id.index, next, "a gap");
                    self.last = Some(next);
                    for counted in entry.commands {
                        self.bodies.push(number(&counted.command.body));
                        if counted.mine {
                            self.mine.push(counted.command.ticket);
                        }
                    }
                    host.applied(next).unwrap();
                }
            }
            Event::Install { source, my_next } => {
                // In pieces that do not match the numbers.
                let mut content = Vec::new();
                loop {
                    let piece = source.read(7).unwrap();
                    if piece.is_empty() {
                        break;
                    }
                    content.extend(piece);
                }
                self.bodies = content.chunks_exact(8).map(number).collect();
                self.last = Some(source.log_id.index);
                self.installed.push(my_next);
                host.applied(source.log_id.index).unwrap();
            }
            Event::Role(role) => self.role = Some(role),
            Event::Leading { term } => self.leading.push(term),
            Event::SessionsRenewed { server, sessions } => self.renewed.push((server, sessions)),
            Event::RenewalAck { round } => {
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

/// The number that a command or a snapshot begins with.
pub(crate) fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes[..8].try_into().unwrap())
}

/// A host and its application, which has a thread.
pub(crate) struct Running {
    pub(crate) id: u16,
    pub(crate) host: Arc<Host>,
    pub(crate) seen: Arc<(Mutex<Seen>, Condvar)>,
    over: Arc<AtomicBool>,
    application: Option<JoinHandle<()>>,
}

impl Running {
    pub(crate) fn open(options: Options) -> Self {
        let id = options.server_id;
        let host = Arc::new(Host::open(options).unwrap());
        let seen: Arc<(Mutex<Seen>, Condvar)> = Arc::default();
        let over = Arc::new(AtomicBool::new(false));
        let application = {
            let (host, seen, over) = (host.clone(), seen.clone(), over.clone());
            std::thread::spawn(move || apply(&host, &seen, &over))
        };
        Self {
            id,
            host,
            seen,
            over,
            application: Some(application),
        }
    }

    pub(crate) fn start(options: Options) -> Self {
        let running = Self::open(options);
        running.host.start().unwrap();
        running
    }

    /// Waits until events make `found` return something.
    pub(crate) fn wait<T>(&self, what: &str, mut found: impl FnMut(&mut Seen) -> Option<T>) -> T {
        let (seen, more) = &*self.seen;
        let mut seen = seen.lock();
        let end = std::time::Instant::now() + TIMEOUT;
        loop {
            if let Some(found) = found(&mut seen) {
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

    /// Proposes commands with these numbers.
    pub(crate) fn propose(&self, numbers: impl IntoIterator<Item = u64>) -> u64 {
        let body = |number: u64| Bytes::copy_from_slice(&number.to_be_bytes());
        self.host
            .propose(numbers.into_iter().map(body).collect())
            .unwrap()
    }

    /// Waits until exactly these numbers are applied, each once.
    pub(crate) fn has_applied(&self, expected: &BTreeSet<u64>) {
        self.wait("the proposed commands", |seen| {
            let all: BTreeSet<u64> = seen.bodies.iter().copied().collect();
            assert_eq!(all.len(), seen.bodies.len(), "each once");
            assert!(all.is_subset(expected), "{all:?}");
            (all == *expected).then_some(())
        });
    }

    pub(crate) fn role(&self) -> Option<Role> {
        self.seen.0.lock().role
    }

    pub(crate) fn status_member(&self) -> u64 {
        self.host.status().unwrap().member
    }

    /// The membership that the member knows. It changes with a delivered entry, so a wait for an event may
    /// read it.
    pub(crate) fn membership(&self) -> Option<Membership> {
        let stored = self.host.status().unwrap().membership?;
        Some(stored.membership().clone())
    }

    /// The servers that the configuration lists; `None` while it changes.
    pub(crate) fn listed(&self) -> Option<Vec<u16>> {
        let servers = listed(&self.membership()?)?;
        Some(servers.iter().map(|server| server.id).collect())
    }

    pub(crate) fn is_follower(&self) -> bool {
        self.host.status().unwrap().role.kind == RoleKind::Follower
    }

    /// Asks for barriers until one is answered with ok. Returns how many commands were applied then.
    pub(crate) fn read(&self) -> usize {
        loop {
            let (ok, bodies) = self.barrier();
            if ok {
                return bodies;
            }
        }
    }

    /// The answer to one barrier, and how many commands were applied then.
    pub(crate) fn barrier(&self) -> (bool, usize) {
        let number = self.host.read_barrier().unwrap();
        self.wait("a barrier", |seen| seen.barriers.get(&number).copied())
    }

    /// Saves a snapshot of everything that was applied, and returns its index.
    pub(crate) fn save_snapshot(&self) -> u64 {
        let (index, bodies) = {
            let seen = self.seen.0.lock();
            (seen.last.unwrap(), seen.bodies.clone())
        };
        let mut sink = self.host.snapshot_begin(index).unwrap();
        for body in bodies {
            sink.write(Bytes::copy_from_slice(&body.to_be_bytes())).unwrap();
        }
        sink.finish().unwrap();
        self.snapshot_is_saved(index);
        index
    }

    /// Writes the state with which its ensemble is to begin.
    pub(crate) fn write_first_state(&self, numbers: impl IntoIterator<Item = u64>) {
        assert!(self.host.awaits_state());
        let mut sink = self.host.first_state().unwrap();
        for number in numbers {
            sink.write(Bytes::copy_from_slice(&number.to_be_bytes())).unwrap();
        }
        sink.finish().unwrap();
        self.snapshot_is_saved(FIRST_STATE);
    }

    fn snapshot_is_saved(&self, index: u64) {
        let error = self.wait("its snapshot", |seen| {
            let of = |(at, error): &(u64, Option<String>)| (*at == index).then(|| error.clone());
            seen.snapshots.iter().find_map(of)
        });
        assert_eq!(error, None);
    }

    pub(crate) fn warned(&self, what: &str) {
        self.wait(what, |seen| {
            seen.warnings.iter().any(|text| text.contains(what)).then_some(())
        });
    }

    pub(crate) fn failed(&self) -> String {
        self.wait("its failure", |seen| seen.failed.clone())
    }

    /// Waits until it follows a leader with a majority.
    pub(crate) fn follows(&self) -> Role {
        let is_following = |role: &Role| role.kind == RoleKind::Follower && role.in_contact;
        self.wait("that it follows", |seen| seen.role.filter(is_following))
    }

    /// Ends the application.
    pub(crate) fn end(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(application) = self.application.take() {
            application.join().unwrap();
        }
    }

    pub(crate) fn stop(mut self) {
        self.host.stop().unwrap();
        self.host.stop().unwrap();
        self.end();
    }

    /// Ends it without an orderly stop.
    pub(crate) fn crash(mut self) {
        self.end();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

fn apply(host: &Host, seen: &(Mutex<Seen>, Condvar), over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        // SAFETY: the caller keeps the host, which owns the descriptor.
        let wake = unsafe { BorrowedFd::borrow_raw(host.wake_fd()) };
        let mut wait = [PollFd::new(&wake, PollFlags::IN)];
        let moment = Timespec {
            tv_sec: 0,
            tv_nsec: 50_000_000,
        };
        poll(&mut wait, Some(&moment)).unwrap();
        let events = host.take(10_000).unwrap();
        let (lock, more) = seen;
        let mut state = lock.lock();
        for event in events {
            let fails = matches!(event, Event::Failed(_));
            state.apply(host, event);
            if fails {
                over.store(true, Ordering::Relaxed);
            }
        }
        more.notify_all();
    }
}

/// The directories and the servers of an ensemble.
pub(crate) struct Ensemble {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) servers: Vec<Server>,
    timing: Timing,
}

/// Ports that are free now. They are below the range for ports that programs let the system choose, so that
/// nobody takes them while a member is down.
pub(crate) fn free_ports(count: usize) -> Vec<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let candidates = std::iter::repeat_with(|| 10_000 + NEXT.fetch_add(1, Ordering::Relaxed) % 20_000);
    candidates
        .filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .take(count)
        .collect()
}

impl Ensemble {
    pub(crate) fn new(voters: u16, observers: u16) -> Self {
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

    /// An ensemble without elections when a thread gets no processor for half a second.
    pub(crate) fn steady(voters: u16) -> Self {
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

    pub(crate) fn path(&self, id: u16) -> PathBuf {
        self.dir.path().join(id.to_string())
    }

    pub(crate) fn options(&self, id: u16) -> Options {
        self.options_naming(id, self.servers.clone())
    }

    /// The options of a server whose file names these servers.
    fn options_naming(&self, id: u16, servers: Vec<Server>) -> Options {
        Options {
            data_dir: self.path(id),
            server_id: id,
            servers,
            timing: self.timing.clone(),
            sync_limit: Duration::from_secs(10),
            absence_limit: Duration::from_secs(30),
            has_state: false,
            reconfigurable: false,
            entries_kept: 5,
            listen_on_all: false,
        }
    }

    /// The options of a server whose file names these servers, in an ensemble whose members may change.
    pub(crate) fn reconfigurable(&self, id: u16, named: &[u16]) -> Options {
        Options {
            reconfigurable: true,
            ..self.options_naming(id, self.servers_of(named))
        }
    }

    pub(crate) fn servers_of(&self, ids: &[u16]) -> Vec<Server> {
        let of = |id: &u16| self.servers[*id as usize - 1].clone();
        ids.iter().map(of).collect()
    }

    pub(crate) fn start(&self, id: u16) -> Running {
        Running::start(self.options(id))
    }

    pub(crate) fn start_all(&self) -> Vec<Running> {
        self.servers.iter().map(|server| self.start(server.id)).collect()
    }
}

/// The position in the list of the leader that the members follow.
pub(crate) fn leader(members: &[Running]) -> usize {
    let led_by = members[0].wait("a leader", |seen| {
        let has_leader = |role: &Role| role.leader != 0 && role.in_contact;
        seen.role.filter(has_leader).map(|role| role.leader)
    });
    members.iter().position(|member| member.id == led_by).unwrap()
}

/// Proposes a number at the first member, and waits until all have applied everything.
pub(crate) fn all_apply(members: &[Running], all: &mut BTreeSet<u64>, number: u64) {
    members[0].propose([number]);
    all.insert(number);
    for member in members {
        member.has_applied(all);
    }
}

/// Has the leader make these servers the ensemble, and waits until all these members know it.
pub(crate) fn change(members: &[Running], servers: &[Server]) {
    let mut ids: Vec<u16> = servers.iter().map(|server| server.id).collect();
    ids.sort_unstable();
    for member in members {
        member.wait("the new members", |_| {
            for each in members {
                // The leader may change meanwhile.
                let role = each.host.status().unwrap().role;
                if role.kind == RoleKind::Leader {
                    each.host.change_members(role.term, servers.to_vec()).unwrap();
                }
            }
            (member.listed() == Some(ids.clone())).then_some(())
        });
    }
}

/// Waits until there are so many voters, and `is_so` says yes to their ids.
pub(crate) fn wait_for_voters(member: &Running, count: usize, is_so: impl Fn(&BTreeSet<u64>) -> bool) {
    member.wait("its members", |_| {
        let membership = member.membership().unwrap();
        let ids: BTreeSet<u64> = membership.voter_ids().collect();
        let is_changing = membership.get_joint_config().len() > 1;
        (!is_changing && ids.len() == count && is_so(&ids)).then_some(())
    });
}

pub(crate) fn stop_all(members: Vec<Running>) {
    for member in members {
        member.stop();
    }
}

/// The numbers of a first state.
pub(crate) fn numbers() -> BTreeSet<u64> {
    (0..100).collect()
}

/// Why options are refused.
pub(crate) fn refused(options: Options) -> String {
    match Host::open(options) {
        Ok(_) => panic!("it was opened"),
        Err(error) => error.to_string(),
    }
}

pub(crate) fn remove_dir(path: &Path) {
    std::fs::remove_dir_all(path).unwrap();
}
