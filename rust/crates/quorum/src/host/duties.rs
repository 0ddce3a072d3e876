//! What a member does all the time, one task each.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::{Either, select};
use openraft::ServerState;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::metrics::RaftMetrics;
use tokio::time::{sleep, sleep_until, timeout};

use super::{Event, HANDOVER, Node, Role, RoleKind, Served, Shared, TICK, TOUCHES};
use crate::member::{confirm, read_index};
use crate::network::{Answer, Links, NoAnswer, Request};
use crate::reader::{Delivered, Reader};
use crate::sending::leader_of;
use crate::types::{MemberId, server_of};

/// What is read from the log at once.
const READ_BYTES: usize = 256 << 10;
/// What a leader has for one request.
const PATIENCE: Duration = Duration::from_secs(1);
/// Before a leader is asked again.
const PAUSE: Duration = Duration::from_millis(20);
/// A leader that is heard is asked again whether it has a majority, and after so long without its word has none.
const FOLLOWED_AGAIN: Duration = Duration::from_millis(700);
const FOLLOWED: Duration = Duration::from_millis(2000);

/// Reads what was agreed on as it comes to be, and tells of it.
pub(super) async fn deliver(shared: Arc<Shared>, node: Node) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("reading what was agreed on: {error}");
    let mut reader = Reader::default();
    loop {
        shared.events.room().await;
        match reader.take(&node.member, READ_BYTES).await.map_err(failed)? {
            None => shared.more.notified().await,
            Some(Delivered::Install(snapshot)) => {
                let my_next = shared.proposals.next_ticket();
                let told = shared.events.installed(&snapshot, reader.delivery(), my_next);
                told.map_err(failed)?;
            }
            Some(Delivered::Entries(entries)) => shared.events.delivered(entries),
        }
    }
}

/// Wakes whoever applies entries for those that nobody waits for, together.
pub(super) async fn wake_later(shared: Arc<Shared>) -> Result<(), String> {
    loop {
        let due = shared.events.waits().await;
        sleep_until(due.into()).await;
        shared.events.hasten();
    }
}

/// How long ago a majority followed this leader.
pub(super) fn quorum_ack(metrics: &RaftMetrics<Served>) -> Option<Duration> {
    let acked = metrics.last_quorum_acked.as_ref()?;
    Some(openraft::Instant::elapsed(&**acked))
}

fn role_of(shared: &Shared, node: &Node, metrics: &RaftMetrics<Served>) -> Role {
    // Within it another is elected.
    let lately = Duration::from_millis(2 * shared.options.timing.election_max);
    let Some(leader) = metrics.current_leader else {
        return Role {
            term: metrics.current_term,
            ..Role::LOOKING
        };
    };
    let leads = metrics.state == ServerState::Leader && leader == node.id;
    let in_contact = if leads {
        let alone = metrics.membership_config.membership().voter_ids().count() == 1;
        alone || quorum_ack(metrics).is_some_and(|ago| ago < lately)
    } else {
        let now_term = metrics.vote.leader_id.term;
        let heard = *shared.contact.lock();
        heard.is_some_and(|(when, term)| when.elapsed() < lately && term == now_term)
            && shared.followed_before(now_term).is_some_and(|ago| ago < FOLLOWED)
    };
    let membership = metrics.membership_config.membership();
    let observes = match membership.get_node(&node.id) {
        Some(_) if membership.voter_ids().any(|id| id == node.id) => false,
        // One that is not listed is what its own file says.
        known => shared.me.observer || known.is_some_and(|known| known.observer),
    };
    let kind = match leads {
        true => RoleKind::Leader,
        false if leader == node.id => RoleKind::Looking,
        false if observes => RoleKind::Observer,
        false => RoleKind::Follower,
    };
    Role {
        kind,
        term: metrics.vote.leader_id.term,
        leader: match kind {
            RoleKind::Looking => 0,
            _ => server_of(leader),
        },
        in_contact: in_contact && kind != RoleKind::Looking,
    }
}

/// Tells what this member does, and ends when openraft does.
pub(super) async fn watch_role(shared: Arc<Shared>, node: Node) -> Result<(), String> {
    let mut changes = node.member.raft().server_metrics();
    let metrics = node.member.raft().metrics();
    let mut has_ended = false;
    loop {
        let (role, running) = {
            let metrics = metrics.borrow_watched();
            let running = metrics.running_state.clone();
            (role_of(&shared, &node, &metrics), running)
        };
        if let Err(fatal) = running {
            return Err(format!("the ensemble's member failed: {fatal}"));
        }
        if has_ended {
            return Err("the ensemble's member ended by itself".to_owned());
        }
        // Everything below was agreed on when this was so.
        shared.events.role(role, shared.feed.committed_before());
        // Why it ended it said before.
        let changed = async {
            let told = pin!(shared.followed_more.notified());
            match select(pin!(changes.changed()), told).await {
                Either::Left((changed, _)) => changed,
                Either::Right(_) => Ok(()),
            }
        };
        has_ended = matches!(timeout(TICK, changed).await, Ok(Err(_)));
    }
}

/// Asks the leader whether a majority follows it: this member may be all that it has, and hears it all the same.
pub(super) async fn ask_for_majority(shared: Arc<Shared>, node: Node) -> Result<(), String> {
    let mut changes = node.member.raft().server_metrics();
    let mut pause = PAUSE;
    loop {
        let leader = leader_of::<Served>(&changes.borrow_watched());
        let is_due = |term| {
            let before = shared.followed_before(term);
            before.is_none_or(|ago| ago >= FOLLOWED_AGAIN)
        };
        let leader = leader.filter(|leader| leader.member != node.id && is_due(leader.term));
        let Some(leader) = leader else {
            pause = PAUSE;
            if let Ok(Err(_)) = timeout(TICK, changes.changed()).await {
                // That openraft ended is told by who watches the role.
                sleep(TICK).await;
            }
            continue;
        };
        let asked = Instant::now();
        let answer = node
            .links
            .ask(leader.member, &leader.server, Request::ReadIndex, PATIENCE);
        match answer.await {
            Ok(Answer::ReadIndex(_)) => shared.is_followed(asked, leader.term),
            _ => {
                sleep(pause).await;
                pause = (2 * pause).min(FOLLOWED_AGAIN);
            }
        }
    }
}

/// Has the disk keep what is agreed on, for the next start. A disk that hangs keeps nobody else waiting.
pub(super) async fn note_agreed(shared: Arc<Shared>, node: Node) -> Result<(), String> {
    let mut noted = 0;
    loop {
        sleep(TICK).await;
        let before = shared.feed.committed_before();
        if before == noted {
            continue;
        }
        noted = before;
        let store = node.member.store().clone();
        let settled = tokio::task::spawn_blocking(move || store.settle()).await;
        settled.map_err(|error| format!("noting what is agreed on: {error}"))?;
    }
}

/// Refuses barriers that waited too long, whether or not there is a member yet.
pub(super) async fn expire(shared: Arc<Shared>) -> Result<(), String> {
    loop {
        sleep(TICK).await;
        let now = Instant::now();
        let late: Vec<_> = {
            let mut waiting = shared.barriers.lock();
            waiting.extract_if(.., |(_, deadline)| *deadline <= now).collect()
        };
        if !late.is_empty() {
            shared
                .events
                .refuse_barriers(late.into_iter().map(|(number, _)| number));
        }
        shared.events.expire_barriers(Some(now));
    }
}

/// Has the leader say up to where to read, once for all that asked before.
pub(super) async fn answer_barriers(shared: Arc<Shared>, node: Node) -> Result<(), String> {
    let mut changes = node.member.raft().server_metrics();
    loop {
        let asked = std::mem::take(&mut *shared.barriers.lock());
        if asked.is_empty() {
            shared.barriers_more.notified().await;
            continue;
        }
        let raft = node.member.raft();
        let leader = leader_of::<Served>(&changes.borrow_watched());
        let read = {
            let read = pin!(read_index(node.id, raft, &node.links, PATIENCE));
            // One that leads no more may be silent for ever.
            let replaced = pin!(async {
                while leader_of::<Served>(&changes.borrow_watched()) == leader {
                    if changes.changed().await.is_err() {
                        return;
                    }
                }
            });
            match timeout(PATIENCE, select(read, replaced)).await {
                Ok(Either::Left((read, _))) => read.ok(),
                Ok(Either::Right(_)) | Err(_) => None,
            }
        };
        match read {
            Some(index) => shared.events.barriers(index, asked),
            None => {
                // Those that came later came later.
                shared.barriers.lock().splice(..0, asked);
                // Nobody may lead; one who does may be asked again soon.
                let _ = timeout(PAUSE, changes.changed()).await;
            }
        }
    }
}

/// Counts what is on its way, as long as it lives.
struct Counted<'a>(&'a AtomicUsize);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Tells the leader of sessions, once.
pub(super) async fn touch(shared: Arc<Shared>, round: u64, sessions: Bytes) {
    let before = shared.touches.fetch_add(1, Ordering::Relaxed);
    let _counted = Counted(&shared.touches);
    if before >= TOUCHES {
        return;
    }
    let Some(node) = shared.node() else { return };
    let leader = leader_of::<Served>(&node.member.raft().server_metrics().borrow_watched());
    let Some(leader) = leader else { return };
    let asked_at = Instant::now();
    let told = if leader.member == node.id {
        confirm(node.member.raft()).await.map(|_| ())
    } else {
        let request = Request::Touch(shared.me.id, sessions);
        let asked = node.links.ask(leader.member, &leader.server, request, PATIENCE);
        match asked.await {
            Ok(Answer::Touched) => {
                shared.is_followed(asked_at, leader.term);
                Ok(())
            }
            Ok(_) => Err(NoAnswer::TimedOut),
            Err(why) => Err(why),
        }
    };
    // Otherwise there is nothing to tell: the next round is.
    if told.is_ok() {
        shared.events.tell(Event::TouchAck { round });
    }
}

/// Has another lead, if this member does and one is there. Never itself: a leader that hands over takes no more commands.
pub(super) async fn hand_over(node: &Node) {
    let raft = node.member.raft();
    if !raft.is_leader() {
        return;
    }
    let metrics = raft.metrics().borrow_watched().clone();
    let (Some(replication), Some(heartbeat)) = (&metrics.replication, &metrics.heartbeat) else {
        return;
    };
    let is_there = |id: &MemberId| {
        let heard = heartbeat.get(id).and_then(Option::as_ref);
        heard.is_some_and(|heard| openraft::Instant::elapsed(&**heard) < TICK * 3)
    };
    let voters = metrics.membership_config.membership().voter_ids();
    let others = voters.filter(|id| *id != node.id).filter(is_there);
    let best = others.max_by_key(|id| replication.get(id).copied().flatten());
    let Some(best) = best else { return };
    if raft.trigger().transfer_leader(best).await.is_err() {
        return;
    }
    let mut changes = raft.server_metrics();
    let another = async {
        while changes.borrow_watched().current_leader == Some(node.id) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    };
    // If it takes longer the others elect one.
    let _ = timeout(HANDOVER, another).await;
}
