//! Watches which role this member has, and whether its leader has a majority.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use tokio::time::{sleep, timeout};

use super::event::{Role, RoleKind};
use super::shared::{Node, Shared, TICK};
use crate::raft::metrics::Metrics;
use crate::raft::requests::{Links, Request, Response};
use crate::raft::types::OnTokio;
use crate::servers::server_of;

/// The time in which a leader must answer.
const TIMEOUT: Duration = Duration::from_secs(1);
/// The first pause before a leader is asked again.
const PAUSE: Duration = Duration::from_millis(20);
/// The interval at which a leader is asked whether it has a majority.
const CONFIRM_INTERVAL: Duration = Duration::from_millis(700);
/// The time without its confirmation after which the leader counts as lost.
const CONFIRMED: Duration = Duration::from_millis(2000);

fn role_of(shared: &Shared, node: &Node, metrics: &Metrics<OnTokio>) -> Role {
    // Within this time another leader is elected.
    let recent = Duration::from_millis(2 * shared.options.timing.election_max);
    let Some(leader) = metrics.leader() else {
        return Role {
            term: metrics.term(),
            ..Role::LOOKING
        };
    };
    let term = metrics.vote_term();
    let leads = metrics.is_leader() && leader == node.id;
    let membership = metrics.membership().membership();
    let in_contact = if leads {
        let is_alone = membership.voter_ids().count() == 1;
        is_alone || metrics.quorum_ack().is_some_and(|ago| ago < recent)
    } else {
        let contact = *shared.contact.lock();
        let confirmed = shared.leader_confirmed_before(term);
        contact.is_some_and(|(when, of)| when.elapsed() < recent && of == term)
            && confirmed.is_some_and(|ago| ago < CONFIRMED)
    };
    let observes = match membership.get_node(&node.id) {
        Some(_) if membership.voter_ids().any(|id| id == node.id) => false,
        // For a member that is not listed, its own file counts.
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
        term,
        leader: match kind {
            RoleKind::Looking => 0,
            _ => server_of(leader),
        },
        in_contact: in_contact && kind != RoleKind::Looking,
    }
}

/// Reports this member's role, and ends with openraft.
pub(super) async fn watch(shared: Arc<Shared>, node: Node) -> Result<(), String> {
    let mut changes = node.member.watch();
    let mut has_ended = false;
    loop {
        let metrics = node.member.metrics();
        if let Some(why) = metrics.failure() {
            return Err(format!("the ensemble's member failed: {why}"));
        }
        if has_ended {
            return Err("the ensemble's member ended by itself".to_owned());
        }
        let role = role_of(&shared, &node, &metrics);
        // It is reported after everything that is committed now.
        shared.events.set_role(role, shared.feed.committed_before());
        let changed = async {
            let confirmed = pin!(shared.confirmed_more.notified());
            match select(pin!(changes.changed()), confirmed).await {
                Either::Left((changed, _)) => changed,
                Either::Right(_) => Ok(()),
            }
        };
        // The metrics say why it ended.
        has_ended = matches!(timeout(TICK, changed).await, Ok(Err(_)));
    }
}

/// Asks the leader whether it has a majority. A leader without one may still reach this member.
pub(super) async fn confirm_leader(shared: Arc<Shared>, node: Node) -> Result<(), String> {
    let mut watch = node.member.watch();
    let mut pause = PAUSE;
    loop {
        let is_due = |term| {
            let before = shared.leader_confirmed_before(term);
            before.is_none_or(|ago| ago >= CONFIRM_INTERVAL)
        };
        let leader = watch.leader();
        let leader = leader.filter(|leader| leader.member != node.id && is_due(leader.term));
        let Some(leader) = leader else {
            pause = PAUSE;
            if let Ok(Err(_)) = timeout(TICK, watch.changed()).await {
                // The task that watches the role reports that openraft has ended.
                sleep(TICK).await;
            }
            continue;
        };
        let asked = Instant::now();
        let response = node
            .links
            .request(leader.member, &leader.server, Request::ReadIndex, TIMEOUT);
        match response.await {
            Ok(Response::ReadIndex(_)) => shared.leader_confirmed(asked, leader.term),
            _ => {
                sleep(pause).await;
                pause = (2 * pause).min(CONFIRM_INTERVAL);
            }
        }
    }
}
