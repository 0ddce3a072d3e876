//! A member's thread: everything of one member of an ensemble behind calls that return at once.
//!
//! [`Host`] owns a thread "quorum" with everything asynchronous, and a thread "quorum-log" for the disk, which "quorum" does
//! not wait for unless the disk is quicker than the other thread is woken ([`store`]). Any thread may
//! call it. What happens comes out of [`Host::take`]; the wake descriptor is readable while something waits there.
//!
//! A task that panics, a disk that fails or openraft's end are the end of the host: [`Event::Failed`] is the last event, and
//! every later call says why. Nothing is tried again after a failed write: the next start reads what is on disk.
//!
//! Crash: whatever is on disk is enough to start again as the same member. A fork has none of the threads, and is refused.

mod answering;
mod duties;
mod entering;
mod events;
mod founding;
mod keeping;
mod listening;
mod sink;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc as std_mpsc;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use openraft::async_runtime::watch::WatchReceiver;
use openraft_rt_tokio::TokioRuntime;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinSet;

pub use self::events::{Event, OutOfOrder, Role, RoleKind, SnapshotSource, Stopped};
pub use self::founding::FIRST_STATE;
pub use self::sink::SnapshotSink;

use self::events::Events;
use self::listening::Listening;
use crate::delivery::Delivery;
use crate::directory::{self, Directory, DirectoryReader, OpenError};
use crate::entry::{self, Commands};
use crate::flushes::{Flushes, now_ms};
use crate::identity::DirectoryIdentity;
use crate::machine::{Feed, Snapshot, Snapshots};
use crate::member::{Member, Parts, Timing, config};
use crate::proposals::{Full, Proposals};
use crate::snapshots::{SnapshotDir, SnapshotFile};
use crate::store::{self, Found};
use crate::tcp::{Identity, TcpLinks};
use crate::types::{Address, LeaderId, LogId, MemberId, Server, SnapshotMeta, StoredMembership, server_of};

openraft::declare_raft_types!(
    /// The types of the crate on tokio's runtime.
    pub Served:
        D = Commands,
        R = (),
        NodeId = MemberId,
        Node = Server,
        LeaderId = LeaderId,
        AsyncRuntime = TokioRuntime,
);

/// The largest command. With what is around it a batch of the log has room for it.
pub const COMMAND_BYTES: usize = 16 << 20;
/// Sessions of one touch, 8 bytes each.
const TOUCH_BYTES: usize = 8 << 20;
/// Touches on their way; more are given up.
const TOUCHES: usize = 16;
/// What is looked at without being told is looked at so often.
const TICK: Duration = Duration::from_millis(100);
/// What a member has that leads to hand that over when it stops.
const HANDOVER: Duration = Duration::from_secs(1);
/// And the disk to write what is at hand.
const DISK: Duration = Duration::from_secs(10);
/// A stop that takes longer is not waited for: the disk hangs.
const STOP: Duration = Duration::from_secs(20);

/// What a host starts with.
#[derive(Debug, Clone)]
pub struct Options {
    /// The member's own directory; made when it is missing.
    pub data_dir: PathBuf,
    pub server_id: u16,
    /// The ensemble's servers, this one among them: what they are if there is no ensemble yet.
    pub servers: Vec<Server>,
    pub timing: Timing,
    /// What a read barrier waits at most.
    pub sync_limit: Duration,
    /// A member that is not listed, and was not heard of for so long, is forgotten.
    pub absence_limit: Duration,
    /// Somebody has a state that an ensemble is to begin with, and gives it to [`Host::first_state`] if
    /// [`Host::awaits_state`].
    pub has_state: bool,
    /// Whether servers that nobody named are sent the log, so that they may be added.
    pub reconfigurable: bool,
    /// Entries that stay in the log after a snapshot.
    pub entries_kept: u64,
    /// Accept on every address of the machine, not only on those of this server's line.
    pub listen_on_all: bool,
}

/// Why a host cannot be opened or started, or does not do what it is asked.
#[derive(Debug, Error)]
pub enum HostError {
    /// The servers that were named cannot be an ensemble.
    #[error("the ensemble's servers: {0}")]
    Servers(String),
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The operating system's.
    #[error("{what}: {error}")]
    Os { what: String, error: io::Error },
    #[error(transparent)]
    Full(#[from] Full),
    /// So many wait that no more is taken.
    #[error("{count} {what} wait: wait until there are fewer")]
    Busy { what: &'static str, count: usize },
    /// A command or a touch beyond what the log or a message has room for.
    #[error("{what} of {bytes} bytes; the most is {most}")]
    TooLarge {
        what: &'static str,
        bytes: usize,
        most: usize,
    },
    #[error(transparent)]
    OutOfOrder(#[from] OutOfOrder),
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

fn stopped(why: &str) -> HostError {
    HostError::Stopped(Stopped(why.to_owned()))
}

/// What a host tells of itself.
#[derive(Debug, Clone)]
pub struct Status {
    pub role: Role,
    /// This member; 0 as long as it is none.
    pub member: MemberId,
    pub ensemble: [u8; 16],
    pub membership: Option<StoredMembership>,
    pub last_index: Option<u64>,
    pub committed: Option<u64>,
    pub applied: Option<u64>,
    pub snapshot: Option<u64>,
    pub purged: Option<u64>,
    /// At the leader: how long ago a majority followed it.
    pub quorum_ack: Option<Duration>,
    /// What was proposed and not delivered.
    pub outstanding: usize,
    /// Connections that were refused or broke their word, and the last reason.
    pub refused: u64,
    pub last_refused: String,
}

type Kept = Arc<SnapshotDir<Served>>;

/// A member that has begun, and its ways to the others. A clone is the same.
#[derive(Clone)]
struct Node {
    id: MemberId,
    member: Member<Served, DirectoryReader<Served>, Kept>,
    links: TcpLinks<Served>,
}

/// What every task reaches.
struct Shared {
    options: Options,
    me: Server,
    /// What an ensemble is called that these servers found.
    founded: [u8; 16],
    identity: Mutex<DirectoryIdentity>,
    /// Told when the directory becomes a member.
    decided: Notify,
    /// Whether there was no more than a first membership when it was opened.
    was_fresh: bool,
    /// The ensemble that this member founds begins with a state, which is not in its place yet.
    awaits_state: AtomicBool,
    /// That state, once it is on disk.
    first_state: Mutex<Option<Snapshot<SnapshotFile>>>,
    snapshots: Kept,
    feed: Arc<Feed<SnapshotFile>>,
    /// Told by the feed.
    more: Arc<Notify>,
    proposals: Arc<Proposals>,
    events: Arc<Events>,
    /// Once there is a log.
    flushes: OnceLock<Arc<Flushes>>,
    node: Mutex<Option<Node>>,
    /// When a leader was last heard from, and its term.
    contact: Mutex<Option<(Instant, u64)>>,
    /// When the leader of a term was asked last and then had a majority.
    followed: Mutex<Option<(Instant, u64)>>,
    followed_more: Notify,
    barriers: Mutex<Vec<(u64, Instant)>>,
    barriers_more: Notify,
    numbers: AtomicU64,
    touches: AtomicUsize,
    saving: AtomicBool,
    joins: mpsc::Sender<(MemberId, Server)>,
    /// What the configuration is to list, and the term whose leader is to see to it.
    wanted: Mutex<Option<(u64, Vec<Server>)>>,
    wanted_more: Notify,
    refused: Mutex<(u64, String)>,
}

impl Shared {
    fn node(&self) -> Option<Node> {
        self.node.lock().clone()
    }

    /// Who this member is to others.
    fn identity(&self) -> Identity {
        let identity = *self.identity.lock();
        Identity {
            ensemble: identity.ensemble,
            member: identity.member.unwrap_or(0),
            server: identity.server,
        }
    }

    /// A leader that was asked at this time had a majority then.
    fn is_followed(&self, asked: Instant, term: u64) {
        let mut followed = self.followed.lock();
        let newer = (term, asked);
        if followed.is_none_or(|(when, known)| (known, when) < newer) {
            *followed = Some((asked, term));
            self.followed_more.notify_one();
        }
    }

    /// How long ago the leader of this term was asked and had a majority.
    fn followed_before(&self, term: u64) -> Option<Duration> {
        let followed = *self.followed.lock();
        followed
            .filter(|(_, known)| *known == term)
            .map(|(when, _)| when.elapsed())
    }

    /// Nothing that was agreed on is known here.
    fn is_fresh(&self) -> bool {
        match self.node() {
            None => self.was_fresh,
            Some(node) => {
                let metrics = node.member.raft().metrics();
                metrics
                    .borrow_watched()
                    .last_log_index
                    .is_none_or(|last| last == 0)
            }
        }
    }

    /// Makes the directory a member, if it is none; on disk when this returns.
    fn become_member(&self, ensemble: [u8; 16], member: MemberId) -> Result<(), OpenError> {
        let mut identity = self.identity.lock();
        match identity.member {
            None => self.change_identity(&mut identity, ensemble, member),
            Some(_) => Ok(()),
        }
    }

    fn change_identity(
        &self,
        identity: &mut DirectoryIdentity,
        ensemble: [u8; 16],
        member: MemberId,
    ) -> Result<(), OpenError> {
        let decided = DirectoryIdentity {
            ensemble,
            member: Some(member),
            ..*identity
        };
        if decided != *identity {
            decided.save(&self.options.data_dir)?;
            *identity = decided;
            self.decided.notify_one();
        }
        Ok(())
    }

    fn voters(&self) -> impl Iterator<Item = &Server> {
        self.options.servers.iter().filter(|server| !server.observer)
    }

    /// All servers but this one: those of the ensemble, where they are by what is known last, and those of the file.
    fn others(&self) -> Vec<Server> {
        let mut servers: Vec<Server> = Vec::new();
        if let Some(node) = self.node() {
            let metrics = node.member.raft().server_metrics();
            let stored = metrics.borrow_watched().membership_config.clone();
            servers.extend(stored.membership().nodes().map(|(_, server)| server.clone()));
        }
        servers.extend(self.options.servers.iter().cloned());
        let mut seen = BTreeSet::from([self.me.id]);
        servers.retain(|server| seen.insert(server.id));
        servers
    }
}

/// One member of an ensemble.
pub struct Host {
    shared: Arc<Shared>,
    life: Mutex<Life>,
    /// The process that opened it.
    owner: u32,
}

enum Life {
    Opened(Box<Opened>),
    Running(Running),
    Stopped,
}

struct Opened {
    directory: Directory,
    reader: DirectoryReader<Served>,
    found: Found,
    joins: mpsc::Receiver<(MemberId, Server)>,
}

struct Running {
    handle: Handle,
    stop: oneshot::Sender<Ending>,
    done: std_mpsc::Receiver<()>,
    thread: JoinHandle<()>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// Hands over what others can do.
    Orderly,
    AtOnce,
}

/// Checks what was named as an ensemble.
fn check_servers(named: &[Server]) -> Result<(), HostError> {
    let servers = |why: String| Err(HostError::Servers(why));
    for (at, server) in named.iter().enumerate() {
        if server.id == 0 {
            return servers("server 0: an id is 1 or more".to_owned());
        }
        if named[..at].iter().any(|other| other.id == server.id) {
            return servers(format!("server {} is named twice", server.id));
        }
        let addresses = || server.quorum.iter().chain(&server.election);
        if server.quorum.is_empty() || addresses().any(|address| address.port == 0) {
            return servers(format!("server {} has no address with a port", server.id));
        }
        if let Some(long) = addresses().find(|address| address.host.len() > 255) {
            return servers(format!(
                "server {}: the host {} is too long",
                server.id, long.host
            ));
        }
    }
    if named.iter().all(|server| server.observer) {
        return servers("no server votes: one at least is no observer".to_owned());
    }
    Ok(())
}

/// Checks what was named as an ensemble, and finds this server in it.
fn find_server(options: &Options) -> Result<Server, HostError> {
    check_servers(&options.servers)?;
    let me = options
        .servers
        .iter()
        .find(|server| server.id == options.server_id);
    me.cloned().ok_or_else(|| {
        HostError::Servers(format!(
            "this is server {}, and no line names it: add server.{} to every server's file, or correct its id",
            options.server_id, options.server_id
        ))
    })
}

/// What an ensemble is called that these servers found: FNV-1a of those who vote.
fn founded_by(servers: &[Server]) -> [u8; 16] {
    let mut voters: Vec<&Server> = servers.iter().filter(|server| !server.observer).collect();
    voters.sort_by_key(|server| server.id);
    let mut bytes = Vec::new();
    for server in voters {
        entry::encode_server(server, &mut bytes);
    }
    let mut hash: u128 = 0x6c62272e07bb014262b821756295c58d;
    for byte in bytes {
        hash = (hash ^ u128::from(byte)).wrapping_mul(0x0000000001000000000000000000013B);
    }
    hash.to_be_bytes()
}

impl Host {
    /// Opens a member's directory and checks it; counts the start. Blocks.
    ///
    /// Errors: servers that cannot be an ensemble; a directory that is in use, of another server, or whose files do not fit
    /// together.
    pub fn open(options: Options) -> Result<Self, HostError> {
        let me = find_server(&options)?;
        let os = |what: &str| {
            let what = what.to_owned();
            move |error| HostError::Os { what, error }
        };
        let dir = options.data_dir.clone();
        std::fs::create_dir_all(&dir).map_err(os(&format!("creating {}", dir.display())))?;
        // First, for it has the lock.
        let (directory, reader, found) = directory::open::<Served>(&dir)?;
        let events = Arc::new(Events::new().map_err(os("creating an eventfd"))?);
        let damaged = |path: &std::path::Path, error: &io::Error| {
            events.warn(format!(
                "the snapshot {} is damaged and passed over: {error}",
                path.display()
            ));
        };
        let snapshots = SnapshotDir::<Served>::open(&dir.join("snapshots"), damaged);
        let snapshots = Arc::new(snapshots.map_err(os("opening the snapshots"))?);
        let identity = DirectoryIdentity::start(&dir, options.server_id)?;
        let is_empty = found.vote.is_none() && found.last.is_none();
        if identity.member.is_none() && !is_empty {
            return Err(HostError::Open(OpenError::Corrupt {
                path: dir.join("identity"),
                reason: "there is a log, and the file does not say which member's".to_owned(),
            }));
        }
        if let Some(purged) = found.purged
            && snapshots
                .newest()
                .is_none_or(|newest| newest.meta.last_log_id < Some(purged))
        {
            return Err(HostError::Open(OpenError::Corrupt {
                path: dir.join("snapshots"),
                reason: format!("the log begins after {purged}, and no whole snapshot reaches so far"),
            }));
        }
        let awaits_state = options.has_state && is_empty && snapshots.newest().is_none();
        if awaits_state && me.observer {
            return Err(HostError::Servers(format!(
                "server {} is an observer and has data of its own: an ensemble begins with that of a server that votes",
                me.id
            )));
        }
        let voters = options.servers.iter().filter(|server| !server.observer).count();
        if voters % 2 == 0 {
            events.warn(format!(
                "{voters} servers vote: that survives no more failures than {} would; make their number odd",
                voters - 1
            ));
        }
        events.role(Role::LOOKING, 0);
        let more = Arc::new(Notify::new());
        let wake = more.clone();
        let (joins, joining) = mpsc::channel(8);
        let shared = Arc::new(Shared {
            me,
            founded: founded_by(&options.servers),
            was_fresh: found.last.is_none_or(|last| last.index == 0) && snapshots.newest().is_none(),
            awaits_state: AtomicBool::new(awaits_state),
            first_state: Mutex::default(),
            snapshots,
            feed: Arc::new(Feed::new(move || wake.notify_one())),
            more,
            proposals: Arc::new(Proposals::new(identity.member.unwrap_or(0), identity.starts)),
            identity: Mutex::new(identity),
            decided: Notify::new(),
            events,
            flushes: OnceLock::new(),
            node: Mutex::new(None),
            contact: Mutex::new(None),
            followed: Mutex::new(None),
            followed_more: Notify::new(),
            barriers: Mutex::default(),
            barriers_more: Notify::new(),
            numbers: AtomicU64::new(1),
            touches: AtomicUsize::new(0),
            saving: AtomicBool::new(false),
            joins,
            wanted: Mutex::default(),
            wanted_more: Notify::new(),
            refused: Mutex::default(),
            options,
        });
        let opened = Opened {
            directory,
            reader,
            found,
            joins: joining,
        };
        Ok(Self {
            shared,
            life: Mutex::new(Life::Opened(Box::new(opened))),
            owner: std::process::id(),
        })
    }

    fn check(&self) -> Result<(), HostError> {
        if std::process::id() != self.owner {
            return Err(stopped(
                "the member was opened by the process that this one is a fork of: use it there",
            ));
        }
        match self.shared.events.failure() {
            Some(why) => Err(why.into()),
            None => Ok(()),
        }
    }

    fn check_running(&self) -> Result<(), HostError> {
        self.check()?;
        match *self.life.lock() {
            Life::Running(_) => Ok(()),
            Life::Opened(_) => Err(stopped("the member was not started")),
            Life::Stopped => Err(stopped("the member was stopped")),
        }
    }

    /// Listens, dials the others, founds the ensemble with them or joins it. Blocks until it listens.
    ///
    /// Errors: an address that cannot be listened on; one that was started before.
    pub fn start(&self) -> Result<(), HostError> {
        self.check()?;
        let mut life = self.life.lock();
        if !matches!(*life, Life::Opened(_)) {
            return Err(stopped("the member was started before: open it again"));
        }
        let listeners = self.listen()?;
        let os = |error| HostError::Os {
            what: "starting the thread of the ensemble's member".to_owned(),
            error,
        };
        let runtime = Builder::new_current_thread()
            .thread_name("quorum-files")
            .enable_all()
            .build()
            .map_err(os)?;
        let handle = runtime.handle().clone();
        let (stop, stopping) = oneshot::channel();
        let (tell_done, done) = std_mpsc::channel();
        let Life::Opened(opened) = std::mem::replace(&mut *life, Life::Stopped) else {
            return Ok(());
        };
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new()
            .name("quorum".to_owned())
            .spawn(move || {
                live_on(runtime, &shared, *opened, listeners, stopping);
                // Whoever waited may be gone.
                let _ = tell_done.send(());
            })
            .map_err(os)?;
        *life = Life::Running(Running {
            handle,
            stop,
            done,
            thread,
        });
        Ok(())
    }

    fn listen(&self) -> Result<Vec<Listening>, HostError> {
        let places = listening::places(&self.shared, &self.shared.me);
        let listen = |place: Address| match listening::bind(&place) {
            Ok(listener) => Ok((place, listener)),
            Err(error) => Err(HostError::Os {
                what: listening::what(&place),
                error,
            }),
        };
        places.into_iter().map(listen).collect()
    }

    /// Readable while [`Host::take`] may have something.
    pub fn wake_fd(&self) -> RawFd {
        self.shared.events.wake_fd()
    }

    /// Proposes commands in this order, and says which ticket the first has; the others follow it. They are sent to whoever
    /// leads until they are agreed on; each counts once.
    ///
    /// Errors: [`HostError::Full`], [`HostError::TooLarge`], [`HostError::Stopped`]; nothing was proposed then.
    pub fn propose(&self, commands: Vec<Bytes>) -> Result<u64, HostError> {
        self.check_running()?;
        let large = commands
            .iter()
            .map(Bytes::len)
            .find(|bytes| *bytes > COMMAND_BYTES);
        if let Some(bytes) = large {
            return Err(HostError::TooLarge {
                what: "a command",
                bytes,
                most: COMMAND_BYTES,
            });
        }
        Ok(self.shared.proposals.propose_all(commands)?)
    }

    /// What happened since, in order, about `max_bytes` at most but one event if there is one. Clears the wake descriptor first,
    /// and sets it again while more waits.
    ///
    /// Errors: [`HostError::Stopped`] after [`Event::Failed`] was taken, or in a fork.
    pub fn take(&self, max_bytes: usize) -> Result<Vec<Event>, HostError> {
        if std::process::id() != self.owner {
            self.check()?;
        }
        let mut events = self.shared.events.take(max_bytes)?;
        if !events.is_empty()
            && let Some(flushes) = self.shared.flushes.get()
        {
            let flushes = flushes.take();
            if !flushes.is_empty() {
                events.insert(0, Event::Flushed(flushes));
            }
        }
        Ok(events)
    }

    /// Whoever applies entries is not woken more often than this for what others proposed; a millisecond otherwise.
    ///
    /// Errors: [`HostError::Stopped`] in a fork.
    pub fn be_patient(&self, patience: Duration) -> Result<(), HostError> {
        self.check()?;
        self.shared.events.be_patient(patience);
        Ok(())
    }

    /// Whoever applies entries has applied all up to this one.
    ///
    /// Errors: [`HostError::OutOfOrder`] for one that was not taken.
    pub fn applied(&self, index: u64) -> Result<(), HostError> {
        self.check()?;
        Ok(self.shared.events.applied(index)?)
    }

    /// Asks for [`Event::Barrier`] once everything that was agreed on before this call is in what was taken, and says its number.
    ///
    /// Errors: [`HostError::Busy`], [`HostError::Stopped`].
    pub fn read_barrier(&self) -> Result<u64, HostError> {
        self.check_running()?;
        let shared = &self.shared;
        if !shared.events.open_barrier() {
            return Err(HostError::Busy {
                what: "read barriers",
                count: events::BARRIERS,
            });
        }
        let number = shared.numbers.fetch_add(1, Ordering::Relaxed);
        let deadline = Instant::now() + shared.options.sync_limit;
        shared.barriers.lock().push((number, deadline));
        shared.barriers_more.notify_one();
        Ok(number)
    }

    /// Tells the leader of sessions that were heard from, and says the round's number. [`Event::TouchAck`] may follow, once.
    ///
    /// Errors: [`HostError::TooLarge`], [`HostError::Stopped`].
    pub fn touch(&self, sessions: Bytes) -> Result<u64, HostError> {
        self.check_running()?;
        if sessions.len() > TOUCH_BYTES {
            return Err(HostError::TooLarge {
                what: "a touch",
                bytes: sessions.len(),
                most: TOUCH_BYTES,
            });
        }
        let round = self.shared.numbers.fetch_add(1, Ordering::Relaxed);
        if let Life::Running(running) = &*self.life.lock() {
            let sending = duties::touch(self.shared.clone(), round, sessions);
            running.handle.spawn(sending);
        }
        Ok(round)
    }

    /// At the leader: whether a majority of those of these servers that would vote could at once, as far as is known, or a change
    /// that a leader before began is under way, which cannot be refused any more. `false` where it does not lead.
    ///
    /// Errors: [`HostError::Servers`], [`HostError::Stopped`].
    pub fn has_quorum(&self, servers: &[Server]) -> Result<bool, HostError> {
        self.check_running()?;
        check_servers(servers)?;
        let node = self.shared.node();
        Ok(node.is_some_and(|node| node.member.raft().is_leader() && keeping::may_vote(&node, servers)))
    }

    /// Has the leader of this term, if this member is that, make these servers the ensemble. The membership of an entry says
    /// when they are; nothing comes of it once another leads. What was asked for before and is not agreed on gives way.
    ///
    /// Errors: [`HostError::Servers`], [`HostError::Stopped`].
    pub fn change_members(&self, term: u64, servers: Vec<Server>) -> Result<(), HostError> {
        self.check_running()?;
        check_servers(&servers)?;
        *self.shared.wanted.lock() = Some((term, servers));
        self.shared.wanted_more.notify_one();
        Ok(())
    }

    /// How it stands.
    ///
    /// Errors: [`HostError::Stopped`] in a fork.
    pub fn status(&self) -> Result<Status, HostError> {
        if std::process::id() != self.owner {
            self.check()?;
        }
        let shared = &self.shared;
        let identity = shared.identity();
        let (refused, last_refused) = shared.refused.lock().clone();
        let mut status = Status {
            role: shared.events.current_role(),
            member: identity.member,
            ensemble: identity.ensemble,
            membership: None,
            last_index: None,
            committed: None,
            applied: shared.events.last_applied().map(|last| last.index),
            snapshot: None,
            purged: None,
            quorum_ack: None,
            outstanding: shared.proposals.waiting(),
            refused,
            last_refused,
        };
        if let Some(node) = shared.node() {
            let metrics = node.member.raft().metrics();
            let metrics = metrics.borrow_watched();
            let index = |id: Option<LogId>| id.map(|id| id.index);
            status.membership = Some((*metrics.membership_config).clone());
            status.last_index = metrics.last_log_index;
            status.committed = shared.feed.committed_before().checked_sub(1);
            status.snapshot = index(metrics.snapshot);
            status.purged = index(metrics.purged);
            status.quorum_ack = duties::quorum_ack(&metrics);
        }
        Ok(status)
    }

    /// Begins a snapshot of everything up to the entry that was applied last, which must be `index`. One at a time.
    ///
    /// Errors: [`HostError::OutOfOrder`], [`HostError::Stopped`].
    pub fn snapshot_begin(&self, index: u64) -> Result<SnapshotSink, HostError> {
        self.check_running()?;
        let (meta, delivery) = self.shared.events.snapshot_of(index)?;
        self.begin_sink(meta, delivery, index, sink::Kind::Newest)
    }

    /// Whether the ensemble that this member founds begins with the state that [`Options::has_state`] promised. `false` once it
    /// is in its place, and if the directory's files know of anything: then that is what counts.
    pub fn awaits_state(&self) -> bool {
        self.shared.awaits_state.load(Ordering::Relaxed)
    }

    /// Begins that state: a snapshot of everything up to entry [`FIRST_STATE`]. [`Event::Snapshot`] tells when it is on disk.
    /// It is in its place, all of it or nothing, once a majority of the servers is bound to this founding; [`Event::Install`]
    /// has it then.
    ///
    /// Errors: [`HostError::OutOfOrder`] where none is awaited; [`HostError::Stopped`].
    pub fn first_state(&self) -> Result<SnapshotSink, HostError> {
        self.check_running()?;
        if !self.awaits_state() {
            let why =
                "no state is awaited: the member was opened without one, or its files know of an ensemble";
            return Err(OutOfOrder(why.to_owned()).into());
        }
        let meta = founding::first_meta(&self.shared).map_err(HostError::Servers)?;
        self.begin_sink(meta, Delivery::default(), FIRST_STATE, sink::Kind::First)
    }

    fn begin_sink(
        &self,
        meta: SnapshotMeta,
        delivery: Delivery,
        index: u64,
        kind: sink::Kind,
    ) -> Result<SnapshotSink, HostError> {
        let life = self.life.lock();
        let Life::Running(running) = &*life else {
            return Err(stopped("the member was stopped"));
        };
        if self.shared.saving.swap(true, Ordering::Relaxed) {
            let why = "a snapshot is being written: finish or abort it first";
            return Err(OutOfOrder(why.to_owned()).into());
        }
        let (sink, saving) = sink::begin(self.shared.clone(), meta, delivery, index, kind);
        running.handle.spawn(saving);
        Ok(sink)
    }

    /// Hands leadership to another if this member leads, brings its log to disk and ends its threads. Blocks. What was not taken
    /// can be taken still. Does nothing the second time.
    ///
    /// Errors: the disk hangs; its thread is left behind.
    pub fn stop(&self) -> Result<(), HostError> {
        self.end(Ending::Orderly, STOP)
    }

    fn end(&self, ending: Ending, patience: Duration) -> Result<(), HostError> {
        let life = std::mem::replace(&mut *self.life.lock(), Life::Stopped);
        if std::process::id() != self.owner {
            // What is there belongs to the process that has the threads.
            std::mem::forget(life);
            return Ok(());
        }
        match life {
            Life::Stopped => Ok(()),
            Life::Opened(opened) => {
                let closed = opened.directory.close();
                Ok(closed.map_err(OpenError::from)?)
            }
            Life::Running(running) => {
                // It may have ended by itself.
                let _ = running.stop.send(ending);
                if let Err(std_mpsc::RecvTimeoutError::Timeout) = running.done.recv_timeout(patience) {
                    return Err(stopped(
                        "the member's log could not be written in time: its disk hangs; what is on it is whole",
                    ));
                }
                // That it panicked was told.
                let _ = running.thread.join();
                Ok(())
            }
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Nobody is there to be told.
        let _ = self.end(Ending::AtOnce, Duration::from_secs(2));
    }
}

// ---- the thread ----

fn live_on(
    runtime: tokio::runtime::Runtime,
    shared: &Arc<Shared>,
    opened: Opened,
    listeners: Vec<Listening>,
    mut stopping: oneshot::Receiver<Ending>,
) {
    let (tell_disk, disk_done) = std_mpsc::channel::<Directory>();
    let mut tasks = JoinSet::new();
    let lived = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        runtime.block_on(live(
            shared,
            opened,
            listeners,
            &mut stopping,
            &mut tasks,
            tell_disk,
        ))
    }));
    match lived {
        Ok(Ok(())) => {}
        Ok(Err(why)) => shared.events.fail(why),
        Err(_) => shared.events.fail("the ensemble's member panicked".to_owned()),
    }
    let end = async {
        refuse_waiting(shared);
        let node = shared.node.lock().take();
        if let Some(node) = node {
            // Its tasks are dropped with the runtime, if they do not end.
            let _ = tokio::time::timeout(DISK, node.member.raft().shutdown()).await;
        }
        tasks.shutdown().await;
    };
    runtime.block_on(end);
    runtime.shutdown_timeout(Duration::from_secs(1));
    match disk_done.recv_timeout(DISK) {
        Ok(directory) => {
            if let Err(error) = directory.close() {
                shared.events.fail(error.to_string());
            }
        }
        Err(std_mpsc::RecvTimeoutError::Timeout) => {
            let why = "the disk of the ensemble's log hangs; what is on it is whole";
            shared.events.fail(why.to_owned());
        }
        // There was no member, or its thread panicked, which was told.
        Err(std_mpsc::RecvTimeoutError::Disconnected) => {}
    }
}

fn refuse_waiting(shared: &Shared) {
    let waiting = std::mem::take(&mut *shared.barriers.lock());
    shared
        .events
        .refuse_barriers(waiting.into_iter().map(|(number, _)| number));
    shared.events.expire_barriers(None);
}

type Tasks = JoinSet<Result<(), String>>;

/// Waits for something, unless the member is to stop (`None`) or a task failed.
async fn unless_over<T>(
    work: impl Future<Output = Result<T, String>>,
    stopping: &mut oneshot::Receiver<Ending>,
    tasks: &mut Tasks,
) -> Result<Result<T, Ending>, String> {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            biased;
            ending = &mut *stopping => return Ok(Err(ending.unwrap_or(Ending::AtOnce))),
            Some(ended) = tasks.join_next() => match ended {
                Ok(ended) => ended?,
                Err(error) => return Err(format!("a task of the ensemble's member ended: {error}")),
            },
            done = &mut work => return done.map(Ok),
        }
    }
}

/// The member's life, until it is stopped or fails.
async fn live(
    shared: &Arc<Shared>,
    opened: Opened,
    listeners: Vec<Listening>,
    stopping: &mut oneshot::Receiver<Ending>,
    tasks: &mut Tasks,
    tell_disk: std_mpsc::Sender<Directory>,
) -> Result<(), String> {
    tasks.spawn(listening::listen(shared.clone(), listeners));
    tasks.spawn(duties::expire(shared.clone()));
    tasks.spawn(duties::wake_later(shared.clone()));
    let Opened {
        directory,
        reader,
        found,
        joins,
    } = opened;
    let deciding = async {
        match shared.awaits_state.load(Ordering::Relaxed) {
            true => founding::found_with_state(shared).await,
            false => entering::decide(shared).await,
        }
    };
    let decided = unless_over(deciding, stopping, tasks).await?;
    let Ok(id) = decided else {
        // Nobody may wait for it any more.
        let _ = tell_disk.send(directory);
        return Ok(());
    };
    shared.proposals.set_member(id);
    let (store, writer) = store::open(directory, reader, found);
    shared.flushes.get_or_init(|| store.flushes());
    let failing = shared.events.clone();
    let disk = std::thread::Builder::new().name("quorum-log".to_owned());
    let disk = disk.spawn(move || {
        let run = std::panic::AssertUnwindSafe(|| writer.run());
        match std::panic::catch_unwind(run) {
            Ok(directory) => {
                let told = directory.map(|directory| tell_disk.send(directory));
                // Nobody may wait for it any more.
                drop(told);
            }
            Err(_) => failing.fail("the thread of the ensemble's log panicked".to_owned()),
        }
    });
    disk.map_err(|error| format!("starting the thread of the ensemble's log: {error}"))?;
    let options = &shared.options;
    let config = config("ensemble", &options.timing, options.entries_kept)
        .map_err(|error| format!("the ensemble's times do not fit together: {error}"))?;
    let links = TcpLinks::new(shared.identity());
    let parts = Parts {
        id,
        config: Arc::new(config),
        links: links.clone(),
        store,
        snapshots: Arc::new(shared.snapshots.clone()),
        feed: shared.feed.clone(),
        proposals: shared.proposals.clone(),
        clock: now_ms,
    };
    let member = Member::start(parts)
        .await
        .map_err(|error| format!("the ensemble's log does not begin: {error}"))?;
    let node = Node { id, member, links };
    if let Some(sending) = node.member.sending() {
        tasks.spawn(async { sending.await.map_err(|error| error.to_string()) });
    }
    *shared.node.lock() = Some(node.clone());
    tasks.spawn(duties::deliver(shared.clone(), node.clone()));
    tasks.spawn(duties::note_agreed(shared.clone(), node.clone()));
    tasks.spawn(duties::watch_role(shared.clone(), node.clone()));
    tasks.spawn(duties::ask_for_majority(shared.clone(), node.clone()));
    tasks.spawn(duties::answer_barriers(shared.clone(), node.clone()));
    tasks.spawn(keeping::keep_members(shared.clone(), node.clone(), joins));
    tasks.spawn(entering::keep_place(shared.clone(), node.clone()));
    let lived = unless_over(std::future::pending::<Result<(), String>>(), stopping, tasks).await?;
    if lived == Err(Ending::Orderly) {
        duties::hand_over(&node).await;
    }
    Ok(())
}

/// The server that a member is one of.
pub fn server_id(member: MemberId) -> u16 {
    server_of(member)
}
