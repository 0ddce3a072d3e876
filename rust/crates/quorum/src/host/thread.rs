//! The life of the thread "quorum", from the opened files to their close.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc as std_mpsc;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::listening::{self, Listener};
use super::shared::{Node, Shared, TICK};
use super::{barriers, delivering, founding, joining, membership, role};
use crate::files::directory::{Directory, DirectoryReader};
use crate::flushes::now_ms;
use crate::raft::member::{Member, Parts};
use crate::raft::store::{self, DiskState, LogStore};
use crate::raft::types::OnTokio;
use crate::servers::{MemberId, Server};
use crate::transport::links::TcpLinks;

/// The time in which another member must take over the leadership when this one stops.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(1);
/// A member that was heard from within this time may take it over.
const HANDOVER_HEARD: Duration = TICK.saturating_mul(3);
/// The time in which the disk must write what is queued.
const DISK_TIMEOUT: Duration = Duration::from_secs(10);

/// The files of a member that was not started.
pub(super) struct Opened {
    pub(super) directory: Directory,
    pub(super) reader: DirectoryReader,
    pub(super) state: DiskState,
    pub(super) joins: mpsc::Receiver<(MemberId, Server)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopMode {
    /// Hands over the leadership.
    Graceful,
    Immediate,
}

type Tasks = JoinSet<Result<(), String>>;

/// Runs a member until it is stopped or fails.
pub(super) fn run(
    runtime: Runtime,
    shared: &Arc<Shared>,
    opened: Opened,
    listeners: Vec<Listener>,
    mut stopping: oneshot::Receiver<StopMode>,
) {
    let (directory_sender, directory) = std_mpsc::channel::<Directory>();
    let mut tasks = JoinSet::new();
    let lived = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(live(
            shared,
            opened,
            listeners,
            &mut stopping,
            &mut tasks,
            directory_sender,
        ))
    }));
    match lived {
        Ok(Ok(())) => {}
        Ok(Err(why)) => shared.events.fail(why),
        Err(_) => shared.events.fail("the ensemble's member panicked".to_owned()),
    }
    let end = async {
        barriers::refuse_all(shared);
        let node = shared.node.lock().take();
        if let Some(node) = node {
            // Tasks that do not end are dropped with the runtime.
            let _ = timeout(DISK_TIMEOUT, node.member.shutdown()).await;
        }
        tasks.shutdown().await;
    };
    runtime.block_on(end);
    runtime.shutdown_timeout(Duration::from_secs(1));
    match directory.recv_timeout(DISK_TIMEOUT) {
        Ok(directory) => {
            if let Err(error) = directory.close() {
                shared.events.fail(error.to_string());
            }
        }
        Err(std_mpsc::RecvTimeoutError::Timeout) => {
            let why = "the disk of the ensemble's log hangs; what is on it is whole";
            shared.events.fail(why.to_owned());
        }
        // There was no member, or the disk's thread panicked, which was reported.
        Err(std_mpsc::RecvTimeoutError::Disconnected) => {}
    }
}

/// Waits for `work`. `Ok(Err(mode))` when the member is to stop meanwhile, an error when a task fails.
async fn unless_stopped<T>(
    work: impl Future<Output = Result<T, String>>,
    stopping: &mut oneshot::Receiver<StopMode>,
    tasks: &mut Tasks,
) -> Result<Result<T, StopMode>, String> {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            biased;
            mode = &mut *stopping => return Ok(Err(mode.unwrap_or(StopMode::Immediate))),
            Some(ended) = tasks.join_next() => match ended {
                Ok(ended) => ended?,
                Err(error) => return Err(format!("a task of the ensemble's member ended: {error}")),
            },
            done = &mut work => return done.map(Ok),
        }
    }
}

async fn live(
    shared: &Arc<Shared>,
    opened: Opened,
    listeners: Vec<Listener>,
    stopping: &mut oneshot::Receiver<StopMode>,
    tasks: &mut Tasks,
    directory_sender: std_mpsc::Sender<Directory>,
) -> Result<(), String> {
    tasks.spawn(listening::serve_all(shared.clone(), listeners));
    tasks.spawn(barriers::expire(shared.clone()));
    tasks.spawn(delivering::wake_at_intervals(shared.clone()));
    let Opened {
        directory,
        reader,
        state,
        joins,
    } = opened;
    let deciding = async {
        match shared.awaits_state.load(Ordering::Relaxed) {
            true => founding::found_with_state(shared).await,
            false => joining::become_member(shared).await,
        }
    };
    let Ok(id) = unless_stopped(deciding, stopping, tasks).await? else {
        let _ = directory_sender.send(directory);
        return Ok(());
    };
    shared.proposals.set_member(id);
    let store = start_disk(shared, directory, reader, state, directory_sender)?;
    let links = TcpLinks::new(shared.identity());
    let member = Member::start(Parts {
        id,
        timing: shared.options.timing.clone(),
        entries_kept: shared.options.entries_kept,
        links: links.clone(),
        store,
        snapshots: Arc::new(shared.snapshots.clone()),
        feed: shared.feed.clone(),
        proposals: shared.proposals.clone(),
        clock: now_ms,
    });
    let node = Node {
        id,
        member: member.await?,
        links,
    };
    if let Some(sending) = node.member.sending() {
        tasks.spawn(async { sending.await.map_err(|error| error.to_string()) });
    }
    *shared.node.lock() = Some(node.clone());
    tasks.spawn(delivering::deliver(shared.clone(), node.clone()));
    tasks.spawn(delivering::write_committed(shared.clone(), node.clone()));
    tasks.spawn(role::watch(shared.clone(), node.clone()));
    tasks.spawn(role::confirm_leader(shared.clone(), node.clone()));
    tasks.spawn(barriers::answer(shared.clone(), node.clone()));
    tasks.spawn(membership::maintain(shared.clone(), node.clone(), joins));
    tasks.spawn(joining::stay_member(shared.clone(), node.clone()));
    let forever = std::future::pending::<Result<(), String>>();
    if unless_stopped(forever, stopping, tasks).await? == Err(StopMode::Graceful) {
        node.member.hand_over(HANDOVER_HEARD, HANDOVER_TIMEOUT).await;
    }
    Ok(())
}

/// Starts the thread "quorum-log", which sends the directory back when it ends.
fn start_disk(
    shared: &Shared,
    directory: Directory,
    reader: DirectoryReader,
    state: DiskState,
    directory_sender: std_mpsc::Sender<Directory>,
) -> Result<LogStore<OnTokio, DirectoryReader>, String> {
    let (store, writer) = store::open(directory, reader, state);
    shared.flushes.get_or_init(|| store.flushes());
    let events = shared.events.clone();
    let thread = std::thread::Builder::new().name("quorum-log".to_owned());
    let started = thread.spawn(move || match catch_unwind(AssertUnwindSafe(|| writer.run())) {
        Ok(directory) => {
            // The thread "quorum" may have given up waiting.
            let _ = directory.map(|directory| directory_sender.send(directory));
        }
        Err(_) => events.fail("the thread of the ensemble's log panicked".to_owned()),
    });
    started.map_err(|error| format!("starting the thread of the ensemble's log: {error}"))?;
    Ok(store)
}
