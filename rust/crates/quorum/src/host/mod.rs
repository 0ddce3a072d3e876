//! One member of an ensemble behind calls that return at once.
//!
//! [`Host`] owns a thread "quorum", which runs everything asynchronous, and a thread "quorum-log" for the
//! disk. Any thread may call it. Events come out of [`Host::take`]; the wake descriptor is readable while
//! some wait.
//!
//! A task that panics, a disk that fails and the end of openraft end the host: [`Event::Failed`] is the last
//! event, and every later call returns the reason. After a failed write nothing is tried again; the next
//! start reads what is on disk.
//!
//! After a crash, the files are enough to start as the same member. A forked process has none of the threads,
//! so its calls are refused.
//!
//! | module | concept |
//! |---|---|
//! | `options` | what a host starts with, its status and its errors |
//! | `event`, `queue`, `applied` | what the application takes and applies |
//! | `shared` | what the calls and the tasks share |
//! | `thread` | the life of the thread "quorum" |
//! | `survey`, `founding`, `joining` | how a directory becomes a member of an ensemble |
//! | `handler`, `listening` | the requests of other members |
//! | `delivering`, `role`, `barriers`, `renewals` | tasks of a running member |
//! | `membership` | the leader's changes of the members |
//! | `snapshot_sink` | snapshots on their way to disk |

mod applied;
mod barriers;
mod delivering;
mod event;
mod founding;
mod handler;
mod joining;
mod listening;
mod membership;
mod options;
mod queue;
mod renewals;
mod role;
mod shared;
mod snapshot_sink;
mod survey;
mod thread;

use std::io;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc as std_mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{mpsc, oneshot};

pub use self::event::{Event, OutOfOrder, Role, RoleKind, Stopped};
pub use self::founding::FIRST_STATE;
pub use self::options::{HostError, Options, Status};
pub use self::snapshot_sink::SnapshotSink;

use self::options::stopped;
use self::queue::{BARRIERS, EventQueue};
use self::shared::{NewShared, Shared};
use self::thread::{Opened, StopMode};
use crate::delivery::Delivery;
use crate::files::identity::DirectoryIdentity;
use crate::files::snapshots::SnapshotDir;
use crate::files::{OpenError, directory};
use crate::raft::state_machine::Snapshots;
use crate::raft::types::SnapshotMeta;
use crate::servers::{Server, check, ensemble_id};

/// The limit of a command. A batch of the log has space for it and what is around it.
pub const COMMAND_BYTES: usize = 16 << 20;
/// The limit of one round of renewals: session ids of 8 bytes.
const RENEWAL_BYTES: usize = 8 << 20;
/// A stop that takes longer is abandoned: the disk hangs.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
const DROP_TIMEOUT: Duration = Duration::from_secs(2);

/// One member of an ensemble.
pub struct Host {
    shared: Arc<Shared>,
    phase: Mutex<Phase>,
    /// The process that opened it.
    owner: u32,
}

enum Phase {
    Opened(Box<Opened>),
    Running(Running),
    Stopped,
}

struct Running {
    handle: Handle,
    stop: oneshot::Sender<StopMode>,
    done: std_mpsc::Receiver<()>,
    thread: JoinHandle<()>,
}

/// Checks the servers, and returns the line of this one.
fn own_line(options: &Options) -> Result<Server, HostError> {
    check(&options.servers).map_err(HostError::Servers)?;
    let id = options.server_id;
    let me = options.servers.iter().find(|server| server.id == id);
    me.cloned().ok_or_else(|| {
        HostError::Servers(format!(
            "this is server {id}, and no line names it: add server.{id} to every server's file, or correct \
             its id"
        ))
    })
}

impl Host {
    /// Opens a member's directory, checks it, and counts the start. Blocks.
    ///
    /// Errors: servers that cannot be an ensemble; a directory that is in use, belongs to another server, or
    /// has files that do not fit together.
    pub fn open(options: Options) -> Result<Self, HostError> {
        let me = own_line(&options)?;
        let os = |what: &str| {
            let what = what.to_owned();
            move |error| HostError::Os { what, error }
        };
        let dir = options.data_dir.clone();
        std::fs::create_dir_all(&dir).map_err(os(&format!("creating {}", dir.display())))?;
        // First, because it takes the lock.
        let (directory, reader, state) = directory::open(&dir)?;
        let events = Arc::new(EventQueue::new().map_err(os("creating an eventfd"))?);
        let snapshots_dir = dir.join("snapshots");
        let damaged = |path: &Path, error: &io::Error| {
            events.warn(format!(
                "the snapshot {} is damaged and not used: {error}",
                path.display()
            ));
        };
        let snapshots = SnapshotDir::open(&snapshots_dir, damaged);
        let snapshots = Arc::new(snapshots.map_err(os("opening the snapshots"))?);
        let identity = DirectoryIdentity::start(&dir, options.server_id)?;
        let is_empty = state.vote.is_none() && state.last.is_none();
        if identity.member.is_none() && !is_empty {
            let reason = "there is a log, and the file does not say which member's";
            return Err(OpenError::corrupt(&dir.join("identity"), reason).into());
        }
        let newest = snapshots.newest().and_then(|newest| newest.meta.last_log_id);
        if let Some(purged) = state.purged
            && newest < Some(purged)
        {
            let reason = format!("the log begins after {purged}, and no whole snapshot reaches it");
            return Err(OpenError::corrupt(&snapshots_dir, reason).into());
        }
        let awaits_state = options.has_state && is_empty && newest.is_none();
        if awaits_state && me.observer {
            return Err(HostError::Servers(format!(
                "server {} is an observer and has data of its own: an ensemble can only begin with the data \
                 of a voter",
                me.id
            )));
        }
        let voters = options.servers.iter().filter(|server| !server.observer).count();
        if voters % 2 == 0 {
            events.warn(format!(
                "{voters} servers vote, which survives no more failures than {}: make their number odd",
                voters - 1
            ));
        }
        events.set_role(Role::LOOKING, 0);
        let (joins, joining) = mpsc::channel(8);
        let shared = Shared::new(NewShared {
            founding_id: ensemble_id(&options.servers),
            was_fresh: state.last.is_none_or(|last| last.index == 0) && newest.is_none(),
            options,
            me,
            identity,
            awaits_state,
            snapshots,
            events,
            joins,
        });
        let opened = Opened {
            directory,
            reader,
            state,
            joins: joining,
        };
        Ok(Self {
            shared: Arc::new(shared),
            phase: Mutex::new(Phase::Opened(Box::new(opened))),
            owner: std::process::id(),
        })
    }

    fn check_process(&self) -> Result<(), HostError> {
        match std::process::id() == self.owner {
            true => Ok(()),
            false => Err(stopped(
                "the member was opened by the process that this one was forked from: use it there",
            )),
        }
    }

    fn check(&self) -> Result<(), HostError> {
        self.check_process()?;
        match self.shared.events.failure() {
            Some(why) => Err(why.into()),
            None => Ok(()),
        }
    }

    fn check_running(&self) -> Result<(), HostError> {
        self.check()?;
        match *self.phase.lock() {
            Phase::Running(_) => Ok(()),
            Phase::Opened(_) => Err(stopped("the member was not started")),
            Phase::Stopped => Err(stopped("the member was stopped")),
        }
    }

    /// Listens and starts the threads, which found the ensemble with the other servers or join it. Blocks
    /// until it listens.
    ///
    /// Errors: an address on which it cannot listen; a host that was started before.
    pub fn start(&self) -> Result<(), HostError> {
        self.check()?;
        let mut phase = self.phase.lock();
        if !matches!(*phase, Phase::Opened(_)) {
            return Err(stopped("the member was started before: open it again"));
        }
        let listeners =
            listening::listen(&self.shared).map_err(|(what, error)| HostError::Os { what, error })?;
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
        let (done_sender, done) = std_mpsc::channel();
        let Phase::Opened(opened) = std::mem::replace(&mut *phase, Phase::Stopped) else {
            return Ok(());
        };
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new()
            .name("quorum".to_owned())
            .spawn(move || {
                thread::run(runtime, &shared, *opened, listeners, stopping);
                // The caller of `stop` may have given up.
                let _ = done_sender.send(());
            })
            .map_err(os)?;
        *phase = Phase::Running(Running {
            handle,
            stop,
            done,
            thread,
        });
        Ok(())
    }

    /// Readable while [`Host::take`] may return something.
    pub fn wake_fd(&self) -> RawFd {
        self.shared.events.wake_fd()
    }

    /// Proposes commands in this order, and returns the ticket of the first; the others have the tickets
    /// after it. They are sent to the leader until they are committed; each counts once.
    ///
    /// Errors: [`HostError::Full`], [`HostError::TooLarge`], [`HostError::Stopped`]; nothing was proposed
    /// then.
    pub fn propose(&self, commands: Vec<Bytes>) -> Result<u64, HostError> {
        self.check_running()?;
        let mut sizes = commands.iter().map(Bytes::len);
        if let Some(bytes) = sizes.find(|bytes| *bytes > COMMAND_BYTES) {
            return Err(HostError::TooLarge {
                what: "a command",
                bytes,
                limit: COMMAND_BYTES,
            });
        }
        Ok(self.shared.proposals.propose_all(commands)?)
    }

    /// The events since the last call, in order: at least one if there is one, and otherwise about
    /// `max_bytes`. Clears the wake descriptor first, and sets it again while more wait.
    ///
    /// Errors: [`HostError::Stopped`] after [`Event::Failed`] was taken, or in a forked process.
    pub fn take(&self, max_bytes: usize) -> Result<Vec<Event>, HostError> {
        self.check_process()?;
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

    /// Sets how often the application is woken for commands that other members proposed: one millisecond at
    /// first.
    ///
    /// Errors: [`HostError::Stopped`].
    pub fn set_wake_interval(&self, interval: Duration) -> Result<(), HostError> {
        self.check()?;
        self.shared.events.set_wake_interval(interval);
        Ok(())
    }

    /// Notes that the application has applied all entries up to this one.
    ///
    /// Errors: [`HostError::OutOfOrder`] for an entry that was not taken.
    pub fn applied(&self, index: u64) -> Result<(), HostError> {
        self.check()?;
        Ok(self.shared.events.applied(index)?)
    }

    /// Asks for an [`Event::Barrier`] once everything that was committed before this call was taken. Returns
    /// its number.
    ///
    /// Errors: [`HostError::Busy`], [`HostError::Stopped`].
    pub fn read_barrier(&self) -> Result<u64, HostError> {
        self.check_running()?;
        let shared = &self.shared;
        if !shared.events.open_barrier() {
            return Err(HostError::Busy {
                what: "read barriers",
                count: BARRIERS,
            });
        }
        let number = shared.next_number.fetch_add(1, Ordering::Relaxed);
        let deadline = Instant::now() + shared.options.sync_limit;
        shared.barriers.lock().push((number, deadline));
        shared.barriers_more.notify_one();
        Ok(number)
    }

    /// Renews sessions at the leader, and returns the number of this round. At most one [`Event::RenewalAck`]
    /// follows. `sessions` are session ids of 8 bytes each.
    ///
    /// Errors: [`HostError::TooLarge`], [`HostError::Stopped`].
    pub fn renew_sessions(&self, sessions: Bytes) -> Result<u64, HostError> {
        self.check_running()?;
        if sessions.len() > RENEWAL_BYTES {
            return Err(HostError::TooLarge {
                what: "a round of session renewals",
                bytes: sessions.len(),
                limit: RENEWAL_BYTES,
            });
        }
        let round = self.shared.next_number.fetch_add(1, Ordering::Relaxed);
        if let Phase::Running(running) = &*self.phase.lock() {
            let renewing = renewals::renew(self.shared.clone(), round, sessions);
            running.handle.spawn(renewing);
        }
        Ok(round)
    }

    /// At the leader: whether a majority of the voters among these servers could vote now. Also true while a
    /// change of the voters goes on, because it can only be completed. False at other members.
    ///
    /// Errors: [`HostError::Servers`], [`HostError::Stopped`].
    pub fn has_quorum(&self, servers: &[Server]) -> Result<bool, HostError> {
        self.check_running()?;
        check(servers).map_err(HostError::Servers)?;
        let node = self.shared.node();
        Ok(node.is_some_and(|node| node.member.is_leader() && membership::may_vote(&node, servers)))
    }

    /// Makes these servers the ensemble, if this member leads in this term; otherwise nothing happens. The
    /// membership of a delivered entry shows that it is done. A later call replaces an earlier one that is
    /// not committed.
    ///
    /// Errors: [`HostError::Servers`], [`HostError::Stopped`].
    pub fn change_members(&self, term: u64, servers: Vec<Server>) -> Result<(), HostError> {
        self.check_running()?;
        check(&servers).map_err(HostError::Servers)?;
        *self.shared.target.lock() = Some((term, servers));
        self.shared.target_set.notify_one();
        Ok(())
    }

    /// The member's state.
    ///
    /// Errors: [`HostError::Stopped`] in a forked process.
    pub fn status(&self) -> Result<Status, HostError> {
        self.check_process()?;
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
            let metrics = node.member.metrics();
            status.membership = Some(metrics.membership().clone());
            status.last_index = metrics.last_index();
            status.committed = shared.feed.committed_before().checked_sub(1);
            status.snapshot = metrics.snapshot();
            status.purged = metrics.purged();
            status.quorum_ack = metrics.quorum_ack();
        }
        Ok(status)
    }

    /// Begins a snapshot of the application's state at the entry that was applied last, which must be
    /// `index`. There is one snapshot at a time.
    ///
    /// Errors: [`HostError::OutOfOrder`], [`HostError::Stopped`].
    pub fn snapshot_begin(&self, index: u64) -> Result<SnapshotSink, HostError> {
        self.check_running()?;
        let (meta, delivery) = self.shared.events.snapshot_of(index)?;
        self.begin_sink(meta, delivery, index, snapshot_sink::Kind::Newest)
    }

    /// Whether the ensemble that this member founds begins with the state that [`Options::has_state`]
    /// promised. False once the state is in place, and when the directory already has data, which then
    /// counts.
    pub fn awaits_state(&self) -> bool {
        self.shared.awaits_state.load(Ordering::Relaxed)
    }

    /// Begins that state, as a snapshot up to entry [`FIRST_STATE`]. [`Event::Snapshot`] reports when it is
    /// on disk. It is put in place, whole or not at all, once a majority of the servers is bound to this
    /// founding; then [`Event::Install`] delivers it.
    ///
    /// Errors: [`HostError::OutOfOrder`] when no state is awaited; [`HostError::Stopped`].
    pub fn first_state(&self) -> Result<SnapshotSink, HostError> {
        self.check_running()?;
        if !self.awaits_state() {
            let why = "no state is awaited: the member was opened without one, or its files have an \
                 ensemble's data";
            return Err(OutOfOrder(why.to_owned()).into());
        }
        let meta = founding::first_meta(&self.shared).map_err(HostError::Servers)?;
        self.begin_sink(meta, Delivery::default(), FIRST_STATE, snapshot_sink::Kind::First)
    }

    fn begin_sink(
        &self,
        meta: SnapshotMeta,
        delivery: Delivery,
        index: u64,
        kind: snapshot_sink::Kind,
    ) -> Result<SnapshotSink, HostError> {
        let phase = self.phase.lock();
        let Phase::Running(running) = &*phase else {
            return Err(stopped("the member was stopped"));
        };
        if self.shared.saving.swap(true, Ordering::Relaxed) {
            let why = "a snapshot is being written: finish or abort it first";
            return Err(OutOfOrder(why.to_owned()).into());
        }
        let (sink, saving) = snapshot_sink::begin(self.shared.clone(), meta, delivery, index, kind);
        running.handle.spawn(saving);
        Ok(sink)
    }

    /// Hands leadership to another member if this one leads, brings the log to disk and ends the threads.
    /// Blocks. Events that were not taken can still be taken. Does nothing the second time.
    ///
    /// Errors: the disk hangs; its thread is left running.
    pub fn stop(&self) -> Result<(), HostError> {
        self.end(StopMode::Graceful, STOP_TIMEOUT)
    }

    fn end(&self, mode: StopMode, timeout: Duration) -> Result<(), HostError> {
        let phase = std::mem::replace(&mut *self.phase.lock(), Phase::Stopped);
        if std::process::id() != self.owner {
            // The threads and files belong to the process that opened the member.
            std::mem::forget(phase);
            return Ok(());
        }
        match phase {
            Phase::Stopped => Ok(()),
            Phase::Opened(opened) => {
                let closed = opened.directory.close();
                Ok(closed.map_err(OpenError::from)?)
            }
            Phase::Running(running) => {
                // The thread may have ended by itself.
                let _ = running.stop.send(mode);
                if let Err(std_mpsc::RecvTimeoutError::Timeout) = running.done.recv_timeout(timeout) {
                    return Err(stopped(
                        "the member's log could not be written in time, because its disk hangs; what is on \
                         it is whole",
                    ));
                }
                // A panic was reported as an event.
                let _ = running.thread.join();
                Ok(())
            }
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.end(StopMode::Immediate, DROP_TIMEOUT);
    }
}
