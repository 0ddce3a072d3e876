//! What other members ask.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use openraft::async_runtime::watch::WatchReceiver;
use openraft::raft::AppendEntriesResponse;

use super::founding::is_of_the_same;
use super::{Served, Shared};
use crate::member::confirm;
use crate::members::is_listed;
use crate::network::{Answer, Here, NoAnswer, Request};
use crate::sending::leader_of;
use crate::snapshots::{Received, SnapshotFile};
use crate::tcp::{Answers, Identity};
use crate::types::{MemberId, Server, member_id, server_of};

/// Members that are sent the log and are not listed.
const UNLISTED: usize = 64;

#[derive(Clone)]
pub(super) struct Answering(pub(super) Arc<Shared>);

pub(super) fn refuse<T>(why: impl Into<String>) -> Result<T, NoAnswer> {
    Err(NoAnswer::Broken(why.into()))
}

impl Answers<Served> for Answering {
    fn identity(&self) -> Identity {
        self.0.identity()
    }

    async fn answer(&self, request: Request<Served, SnapshotFile>) -> Result<Answer<Served>, NoAnswer> {
        let shared = &self.0;
        match request {
            Request::Whois => return Ok(Answer::Here(here(shared))),
            Request::Found(ensemble) => return found(shared, ensemble).await,
            _ => {}
        }
        let Some(node) = shared.node() else {
            return refuse("this member has not begun yet");
        };
        match request {
            Request::Touch(server, sessions) => {
                if !node.member.raft().is_leader() {
                    return refuse("it does not lead");
                }
                if !shared.events.touched(server, sessions) {
                    return refuse("too many touches wait at the leader");
                }
                confirm(node.member.raft()).await.map(|_| Answer::Touched)
            }
            Request::Join(member, server) => join(shared, &node, member, server),
            request => {
                let term = match &request {
                    Request::Append(append) => Some(append.vote.leader_id.term),
                    Request::Snapshot(vote, _) => Some(vote.leader_id.term),
                    _ => None,
                };
                let answer = node.member.answer(request).await?;
                if let Some(term) = term
                    && !matches!(answer, Answer::Append(AppendEntriesResponse::HigherVote(_)))
                {
                    *shared.contact.lock() = Some((Instant::now(), term));
                }
                Ok(answer)
            }
        }
    }

    fn receive(&self) -> io::Result<Received> {
        self.0.snapshots.receive()
    }
}

fn here(shared: &Shared) -> Here {
    let identity = shared.identity();
    let (mut leader, mut members) = (None, Vec::new());
    if let Some(node) = shared.node() {
        let metrics = node.member.raft().server_metrics();
        let metrics = metrics.borrow_watched();
        leader = leader_of::<Served>(&metrics);
        let known = metrics.membership_config.membership().nodes();
        members.extend(known.map(|(id, _)| *id));
    }
    Here {
        member: identity.member,
        ensemble: match identity.member {
            0 => shared.founded,
            _ => identity.ensemble,
        },
        fresh: shared.is_fresh(),
        has_state: shared.awaits_state.load(Ordering::Relaxed),
        leader: leader.map(|leader| leader.server),
        members,
    }
}

/// Another saw that a majority has nothing: this one is a founder too, with it and with nobody else.
async fn found(shared: &Arc<Shared>, ensemble: [u8; 16]) -> Result<Answer<Served>, NoAnswer> {
    if shared.identity().member == 0 {
        if !is_of_the_same(&ensemble, &shared.founded) {
            return refuse("it was started with other servers");
        }
        if shared.me.observer {
            return refuse("it is an observer");
        }
        if shared.awaits_state.load(Ordering::Relaxed) {
            return refuse("it has data of its own");
        }
        let (shared, id) = (shared.clone(), member_id(shared.me.id, 0));
        let saved = tokio::task::spawn_blocking(move || shared.become_member(ensemble, id)).await;
        let saved = saved.map_err(|error| NoAnswer::Broken(error.to_string()))?;
        saved.map_err(|error| NoAnswer::Broken(error.to_string()))?;
    }
    let here = here(shared);
    match here.ensemble == ensemble {
        true => Ok(Answer::Here(here)),
        false => refuse("it belongs to another ensemble"),
    }
}

/// A server whose directory is new asks to be in the place of what it was before.
fn join(
    shared: &Arc<Shared>,
    node: &super::Node,
    member: MemberId,
    server: Server,
) -> Result<Answer<Served>, NoAnswer> {
    if !node.member.raft().is_leader() {
        return refuse("it does not lead");
    }
    if server_of(member) != server.id {
        return refuse("the member is another server's");
    }
    let metrics = node.member.raft().server_metrics();
    let stored = metrics.borrow_watched().membership_config.clone();
    let membership = stored.membership();
    let is_this = |known: &&Server| known.id == server.id;
    let nodes = membership.nodes();
    let listed = nodes
        .filter(|(id, _)| is_listed(membership, **id))
        .map(|(_, known)| known);
    let known = listed.into_iter().find(is_this).or_else(|| {
        // An observer counts nowhere: a line in the leader's file is enough.
        let named = |known: &&Server| known.observer && is_this(known);
        let fixed = !shared.options.reconfigurable;
        shared.options.servers.iter().find(named).filter(|_| fixed)
    });
    match known {
        Some(known) => {
            if (&known.quorum, &known.election, known.observer)
                != (&server.quorum, &server.election, server.observer)
            {
                return refuse(format!(
                    "server {} has other addresses in the ensemble than in its own file",
                    server.id
                ));
            }
        }
        // It follows, and is not listed.
        None if membership.get_node(&member).is_some() => {}
        None if shared.options.reconfigurable => {
            let unlisted = membership.nodes().filter(|(id, _)| !is_listed(membership, **id));
            if unlisted.count() >= UNLISTED {
                return refuse(format!(
                    "{UNLISTED} members that are not listed follow already: add or stop some"
                ));
            }
        }
        None => {
            return refuse(format!(
                "server {} is no part of the ensemble: add it first",
                server.id
            ));
        }
    }
    match shared.joins.try_send((member, server)) {
        Ok(()) => Ok(Answer::Joining),
        Err(_) => refuse("others join at the moment"),
    }
}
