//! At the leader: who the members are.
//!
//! One task makes what the log says of the members what it should say, one change after another: it completes what a leader
//! before began, changes the configuration to what was asked for, takes in who joins, puts a directory in the place of its
//! server's last one, forgets who is not listed and was long not heard of, and hands over when this member itself votes no more.
//! Each step looks at what is agreed on, so that whichever leader comes next goes on from there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use openraft::async_runtime::watch::WatchReceiver;
use openraft::metrics::RaftMetrics;
use openraft::{ChangeMembers, Precondition};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::duties::hand_over;
use super::{Node, Served, Shared, TICK};
use crate::members::{Change, change_of_place, change_to, has_quorum, is_listed, nobody_yet};
use crate::types::{MemberId, Membership, Server, StoredMembership, Term, server_of};

/// What a change of the membership may take to be agreed on.
const AGREEMENT: Duration = Duration::from_secs(10);
/// Who was heard of so lately is there.
const LATELY: Duration = Duration::from_secs(1);
/// And has the log but for so many entries.
const LAG: u64 = 1_000;

/// While somebody waits for its place.
const PAUSE: Duration = Duration::from_millis(20);

type Metrics = RaftMetrics<Served>;

fn metrics_of(node: &Node) -> Metrics {
    node.member.raft().metrics().borrow_watched().clone()
}

/// Whether the leader heard of a member lately.
fn is_heard(node: &Node, metrics: &Metrics, member: MemberId) -> bool {
    let heard = metrics.heartbeat.as_ref();
    let heard = heard.and_then(|heard| heard.get(&member).and_then(Option::as_ref));
    member == node.id || heard.is_some_and(|at| openraft::Instant::elapsed(&**at) < LATELY)
}

/// Whether a member could vote at once: it is heard of, and has the log.
fn is_there(node: &Node, metrics: &Metrics, member: MemberId) -> bool {
    let matched = metrics.replication.as_ref();
    let matched = matched.and_then(|matched| matched.get(&member).copied().flatten());
    let lag = |matched: u64| metrics.last_log_index.unwrap_or(0).saturating_sub(matched);
    member == node.id
        || is_heard(node, metrics, member) && matched.is_some_and(|matched| lag(matched.index) <= LAG)
}

/// At the leader: whether most of those who would vote are there, or a change is under way, which can only be completed.
pub(super) fn may_vote(node: &Node, servers: &[Server]) -> bool {
    let metrics = metrics_of(node);
    let membership = metrics.membership_config.membership();
    membership.get_joint_config().len() > 1
        || has_quorum(membership, servers, |id| is_there(node, &metrics, id))
}

/// What the leader has to do of which nothing is in the log.
#[derive(Default)]
struct Work {
    /// The term of which all this is.
    term: u64,
    /// Who asks for a place.
    joining: BTreeMap<MemberId, Server>,
    /// Since when members are not heard of.
    silent: BTreeMap<MemberId, Instant>,
}

pub(super) async fn keep_members(
    shared: Arc<Shared>,
    node: Node,
    mut joins: mpsc::Receiver<(MemberId, Server)>,
) -> Result<(), String> {
    let mut work = Work::default();
    let mut joins_open = true;
    loop {
        // Whoever waits for its place counts nowhere until it has it.
        let pause = if work.joining.is_empty() { TICK } else { PAUSE };
        tokio::select! {
            join = joins.recv(), if joins_open => match join {
                Some((member, server)) => { work.joining.insert(member, server); }
                None => joins_open = false,
            },
            () = shared.wanted_more.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
        if !node.member.raft().is_leader() {
            work = Work::default();
            continue;
        }
        let metrics = metrics_of(&node);
        if work.term != metrics.current_term {
            let joining = std::mem::take(&mut work.joining);
            work = Work {
                term: metrics.current_term,
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
    /// Does what is to be done first, if anything is.
    async fn step(&mut self, shared: &Shared, node: &Node, metrics: &Metrics) -> Result<(), String> {
        let stored = metrics.membership_config.clone();
        let membership = stored.membership();
        let configs = membership.get_joint_config();
        if let Some(last) = configs.last()
            && configs.len() > 1
        {
            // A leader before began it.
            return self
                .change(node, ChangeMembers::ReplaceAllVoters(last.clone()), true)
                .await;
        }
        let there = |id| is_there(node, metrics, id);
        if let Some(change) = self.of_founding(shared, &stored) {
            return self.change(node, change, true).await;
        }
        let wanted = shared.wanted.lock().clone();
        if let Some(wanted) = wanted.filter(|(term, _)| *term == self.term) {
            if let Some(change) = change_to(membership, &wanted.1, there) {
                self.change(node, change, true).await?;
            }
            let mut current = shared.wanted.lock();
            if current.as_ref() == Some(&wanted) {
                *current = None;
            }
            return Ok(());
        }
        for (member, server) in self.joining.clone() {
            if let Some(change) = self.of_joining(shared, membership, member, server, there) {
                return self.change(node, change, false).await;
            }
        }
        let forgotten = self.of_silence(shared, node, metrics);
        if !forgotten.is_empty() {
            return self
                .change(node, ChangeMembers::RemoveNodes(forgotten), true)
                .await;
        }
        if !membership.voter_ids().any(|id| id == node.id) {
            hand_over(node).await;
        }
        Ok(())
    }

    /// Has it agreed on, if this member leads in this term still.
    async fn change(&self, node: &Node, change: Change, retain: bool) -> Result<(), String> {
        let fence = Precondition::CommittedLeaderId {
            committed_leader_id: Term::new(self.term),
        };
        let raft = node.member.raft();
        let changed = raft.change_membership_if(change, retain, [fence]);
        match timeout(AGREEMENT, changed).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("it was not agreed on in time".to_owned()),
        }
    }

    /// An ensemble that was just founded has the observers of its file, too, wherever they are.
    fn of_founding(&self, shared: &Shared, stored: &StoredMembership) -> Option<Change> {
        let is_first = stored.log_id().is_some_and(|id| id.index == 0);
        if !is_first || !shared.options.reconfigurable {
            return None;
        }
        let observers = shared.options.servers.iter().filter(|server| server.observer);
        let nodes: BTreeMap<_, _> = observers
            .map(|server| (nobody_yet(server.id), server.clone()))
            .collect();
        (!nodes.is_empty()).then_some(ChangeMembers::AddNodes(nodes))
    }

    /// The next step of one that asks for a place.
    fn of_joining(
        &mut self,
        shared: &Shared,
        membership: &Membership,
        member: MemberId,
        server: Server,
        is_there: impl Fn(MemberId) -> bool,
    ) -> Option<Change> {
        let mut others = membership.nodes().map(|(id, _)| *id);
        let is_alone = !others.any(|id| id != member && server_of(id) == server.id);
        if is_listed(membership, member) {
            self.joining.remove(&member);
            return None;
        }
        let node = Server {
            // Where nothing but the files says who observes, one that is in them is listed at once.
            observer: server.observer && is_alone && !shared.options.reconfigurable,
            ..server
        };
        if membership.get_node(&member) != Some(&node) && (is_alone || membership.get_node(&member).is_none())
        {
            return Some(ChangeMembers::SetNodes(BTreeMap::from([(member, node)])));
        }
        if is_alone {
            self.joining.remove(&member);
            return None;
        }
        change_of_place(membership, member, is_there)
    }

    /// Who is not listed, and was not heard of for too long.
    fn of_silence(&mut self, shared: &Shared, node: &Node, metrics: &Metrics) -> BTreeSet<MemberId> {
        let membership = metrics.membership_config.membership();
        let is_silent = |id: &MemberId| !is_listed(membership, *id) && !is_heard(node, metrics, *id);
        let silent: BTreeSet<MemberId> = membership.nodes().map(|(id, _)| *id).filter(is_silent).collect();
        self.silent.retain(|id, _| silent.contains(id));
        for id in silent {
            self.silent.entry(id).or_insert_with(Instant::now);
        }
        let limit = shared.options.absence_limit;
        let gone = self.silent.iter().filter(|(_, since)| since.elapsed() > limit);
        gone.map(|(id, _)| *id).collect()
    }
}
