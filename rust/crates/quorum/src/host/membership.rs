//! The leader's changes of the ensemble's members.
//!
//! One task makes one change after another: it completes what an earlier leader began, changes the
//! configuration to the one that was asked for, adds members that join, puts a directory in the place of its
//! server's earlier one, and removes unlisted members that were silent for long. It hands over the leadership
//! when this member no longer votes. Each step looks at what is committed, so that the next leader goes on
//! from there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::time::timeout;

use super::shared::{Node, Shared, TICK};
use crate::raft::members::{
    Change, add_observers, change_to, completion, has_quorum, is_changing, is_listed, remove, replacement,
    set_member,
};
use crate::raft::metrics;
use crate::raft::types::{Membership, OnTokio, StoredMembership};
use crate::servers::{MemberId, Server, server_of};

/// The time in which a change must be committed.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(10);
/// A member that was heard from within this time is alive.
const RECENT: Duration = Duration::from_secs(1);
/// A member may vote if it lacks no more entries.
const LAG: u64 = 1_000;
/// The interval at which the task looks again while a member waits to join.
const JOIN_INTERVAL: Duration = Duration::from_millis(20);
/// The time in which another member must take over the leadership.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(1);

type Metrics = metrics::Metrics<OnTokio>;

fn is_heard(node: &Node, metrics: &Metrics, member: MemberId) -> bool {
    member == node.id || metrics.heard(member).is_some_and(|ago| ago < RECENT)
}

/// Whether a member could vote at once: the leader hears from it, and it has the log.
fn is_alive(node: &Node, metrics: &Metrics, member: MemberId) -> bool {
    let last = metrics.last_index().unwrap_or(0);
    let has_log = || {
        let matched = metrics.matched(member);
        matched.is_some_and(|matched| last.saturating_sub(matched.index) <= LAG)
    };
    member == node.id || is_heard(node, metrics, member) && has_log()
}

/// At the leader: whether a majority of those that are to vote is alive, or a change goes on, which can only
/// be completed.
pub(super) fn may_vote(node: &Node, servers: &[Server]) -> bool {
    let metrics = node.member.metrics();
    let membership = metrics.membership().membership();
    is_changing(membership) || has_quorum(membership, servers, |id| is_alive(node, &metrics, id))
}

/// What the leader has to do that is not in the log.
#[derive(Default)]
struct Work {
    /// The term that all this belongs to.
    term: u64,
    /// Members that asked to join.
    joining: BTreeMap<MemberId, Server>,
    /// Since when unlisted members are silent.
    silent: BTreeMap<MemberId, Instant>,
}

pub(super) async fn maintain(
    shared: Arc<Shared>,
    node: Node,
    mut joins: mpsc::Receiver<(MemberId, Server)>,
) -> Result<(), String> {
    let mut work = Work::default();
    let mut joins_open = true;
    loop {
        let interval = match work.joining.is_empty() {
            true => TICK,
            false => JOIN_INTERVAL,
        };
        tokio::select! {
            join = joins.recv(), if joins_open => match join {
                Some((member, server)) => { work.joining.insert(member, server); }
                None => joins_open = false,
            },
            () = shared.target_set.notified() => {}
            () = tokio::time::sleep(interval) => {}
        }
        if !node.member.is_leader() {
            work = Work::default();
            continue;
        }
        let metrics = node.member.metrics();
        if work.term != metrics.term() {
            let joining = std::mem::take(&mut work.joining);
            work = Work {
                term: metrics.term(),
                joining,
                ..Work::default()
            };
        }
        if let Err(why) = work.step(&shared, &node, &metrics).await {
            shared
                .events
                .warn(format!("changing the ensemble's members: {why}"));
        }
    }
}

impl Work {
    /// Makes the most urgent change, if there is any.
    async fn step(&mut self, shared: &Shared, node: &Node, metrics: &Metrics) -> Result<(), String> {
        let stored = metrics.membership();
        let membership = stored.membership();
        if let Some(change) = completion(membership) {
            return self.change(node, change).await;
        }
        let alive = |id| is_alive(node, metrics, id);
        if let Some(change) = of_founding(shared, stored) {
            return self.change(node, change).await;
        }
        let target = shared.target.lock().clone();
        if let Some(target) = target.filter(|(term, _)| *term == self.term) {
            if let Some(change) = change_to(membership, &target.1, alive) {
                self.change(node, change).await?;
            }
            let mut current = shared.target.lock();
            if current.as_ref() == Some(&target) {
                *current = None;
            }
            return Ok(());
        }
        for (member, server) in self.joining.clone() {
            if let Some(change) = self.of_joining(shared, membership, member, server, alive) {
                return self.change(node, change).await;
            }
        }
        if let Some(change) = remove(self.silent_too_long(shared, node, metrics)) {
            return self.change(node, change).await;
        }
        if !membership.voter_ids().any(|id| id == node.id) {
            node.member.hand_over(RECENT, HANDOVER_TIMEOUT).await;
        }
        Ok(())
    }

    async fn change(&self, node: &Node, change: Change) -> Result<(), String> {
        let changed = node.member.change_members(self.term, change);
        let timed_out = |_| "it was not committed in time".to_owned();
        timeout(CHANGE_TIMEOUT, changed).await.map_err(timed_out)?
    }

    /// The next step of a member that asked to join.
    fn of_joining(
        &mut self,
        shared: &Shared,
        membership: &Membership,
        member: MemberId,
        server: Server,
        is_alive: impl Fn(MemberId) -> bool,
    ) -> Option<Change> {
        if is_listed(membership, member) {
            self.joining.remove(&member);
            return None;
        }
        let mut others = membership.nodes().map(|(id, _)| *id);
        let is_alone = !others.any(|id| id != member && server_of(id) == server.id);
        let server = Server {
            // Without reconfiguration only the files say which servers observe, so an observer of the file is
            // listed at once.
            observer: server.observer && is_alone && !shared.options.reconfigurable,
            ..server
        };
        let known = membership.get_node(&member);
        if known != Some(&server) && (is_alone || known.is_none()) {
            return Some(set_member(member, server));
        }
        if is_alone {
            self.joining.remove(&member);
            return None;
        }
        replacement(membership, member, is_alive)
    }

    /// The unlisted members that were silent for too long.
    fn silent_too_long(&mut self, shared: &Shared, node: &Node, metrics: &Metrics) -> BTreeSet<MemberId> {
        let membership = metrics.membership().membership();
        let is_silent = |id: &MemberId| !is_listed(membership, *id) && !is_heard(node, metrics, *id);
        let silent: BTreeSet<MemberId> = membership.nodes().map(|(id, _)| *id).filter(is_silent).collect();
        self.silent.retain(|id, _| silent.contains(id));
        for id in silent {
            self.silent.entry(id).or_insert_with(Instant::now);
        }
        let limit = shared.options.absence_limit;
        let too_long = self.silent.iter().filter(|(_, since)| since.elapsed() > limit);
        too_long.map(|(id, _)| *id).collect()
    }
}

/// Adds the observers of the file to an ensemble that was just founded.
fn of_founding(shared: &Shared, stored: &StoredMembership) -> Option<Change> {
    let is_first = stored.log_id().is_some_and(|id| id.index == 0);
    if !is_first || !shared.options.reconfigurable {
        return None;
    }
    add_observers(shared.options.servers.iter().filter(|server| server.observer))
}
