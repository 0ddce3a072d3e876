//! Answers the requests of other members.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tokio::task::spawn_blocking;

use super::shared::{Node, Shared};
use super::survey::has_same_servers;
use crate::files::snapshots::{Received, SnapshotFile};
use crate::raft::members::is_listed;
use crate::raft::requests::{MemberInfo, Request, RequestError, Response};
use crate::raft::types::OnTokio;
use crate::servers::{MemberId, Server, member_id, server_of};
use crate::transport::handshake::Identity;
use crate::transport::server::Handler;

/// The limit of unlisted members that receive the log.
const UNLISTED: usize = 64;

type Answer = Result<Response<OnTokio>, RequestError>;

#[derive(Clone)]
pub(super) struct HostHandler(pub(super) Arc<Shared>);

fn refuse(why: impl Into<String>) -> Answer {
    Err(RequestError::Broken(why.into()))
}

impl Handler<OnTokio> for HostHandler {
    fn identity(&self) -> Identity {
        self.0.identity()
    }

    async fn handle(&self, request: Request<OnTokio, SnapshotFile>) -> Answer {
        let shared = &self.0;
        match request {
            Request::Identify => return Ok(Response::Identity(info(shared))),
            Request::Bind(ensemble) => return bind(shared, ensemble).await,
            _ => {}
        }
        let Some(node) = shared.node() else {
            return refuse("this member has not started yet");
        };
        match request {
            Request::RenewSessions(server, sessions) => {
                if !node.member.is_leader() {
                    return refuse("this member does not lead");
                }
                if !shared.events.sessions_renewed(server, sessions) {
                    return refuse("too many session renewals wait at the leader");
                }
                node.member.confirm().await.map(|_| Response::SessionsRenewed)
            }
            Request::Join(member, server) => join(shared, &node, member, server),
            request => {
                let term = request.leader_term();
                let response = node.member.answer(request).await?;
                if let Some(term) = term
                    && !response.refuses_leader()
                {
                    *shared.contact.lock() = Some((Instant::now(), term));
                }
                Ok(response)
            }
        }
    }

    fn receive(&self) -> io::Result<Received> {
        self.0.snapshots.receive()
    }
}

fn info(shared: &Shared) -> MemberInfo {
    let identity = shared.identity();
    let (mut leader, mut members) = (None, Vec::new());
    if let Some(node) = shared.node() {
        let watch = node.member.watch();
        leader = watch.leader().map(|leader| leader.server);
        members.extend(watch.membership().membership().nodes().map(|(id, _)| *id));
    }
    MemberInfo {
        member: identity.member,
        ensemble: match identity.member {
            0 => shared.founding_id,
            _ => identity.ensemble,
        },
        fresh: shared.is_fresh(),
        has_state: shared.awaits_state.load(Ordering::Relaxed),
        leader,
        members,
    }
}

/// Binds this directory to the ensemble that is being founded, unless it is bound to another one.
async fn bind(shared: &Arc<Shared>, ensemble: [u8; 16]) -> Answer {
    if shared.identity().member == 0 {
        if !has_same_servers(&ensemble, &shared.founding_id) {
            return refuse("its file names other servers");
        }
        if shared.me.observer {
            return refuse("it is an observer");
        }
        if shared.awaits_state.load(Ordering::Relaxed) {
            return refuse("it has data of its own");
        }
        let (shared, id) = (shared.clone(), member_id(shared.me.id, 0));
        let saved = spawn_blocking(move || shared.become_member(ensemble, id)).await;
        let saved = saved.map_err(RequestError::broken)?;
        saved.map_err(RequestError::broken)?;
    }
    let info = info(shared);
    match info.ensemble == ensemble {
        true => Ok(Response::Identity(info)),
        false => refuse("it belongs to another ensemble"),
    }
}

/// Checks a request to join and hands it to the task that changes the members.
fn join(shared: &Arc<Shared>, node: &Node, member: MemberId, server: Server) -> Answer {
    if !node.member.is_leader() {
        return refuse("this member does not lead");
    }
    if server_of(member) != server.id {
        return refuse(format!("member {member} is not of server {}", server.id));
    }
    let stored = node.member.watch().membership();
    let membership = stored.membership();
    let is_same = |known: &&Server| known.id == server.id;
    let mut listed = membership
        .nodes()
        .filter(|(id, _)| is_listed(membership, **id))
        .map(|(_, known)| known);
    let known = listed.find(is_same).or_else(|| {
        // Without reconfiguration, a line in the leader's file is enough for an observer.
        let mut servers = shared.options.servers.iter();
        let named = servers.find(|known| known.observer && is_same(known));
        named.filter(|_| !shared.options.reconfigurable)
    });
    let addresses = |server: &Server| (server.quorum.clone(), server.election.clone(), server.observer);
    match known {
        Some(known) if addresses(known) != addresses(&server) => {
            return refuse(format!(
                "server {} has other addresses in the ensemble than in its own file: correct the file",
                server.id
            ));
        }
        Some(_) => {}
        // It receives the log, and is not listed.
        None if membership.get_node(&member).is_some() => {}
        None if shared.options.reconfigurable => {
            let unlisted = membership.nodes().filter(|(id, _)| !is_listed(membership, **id));
            if unlisted.count() >= UNLISTED {
                return refuse(format!(
                    "{UNLISTED} unlisted members receive the log already: add some to the configuration, or \
                     stop some"
                ));
            }
        }
        None => {
            return refuse(format!(
                "server {} is not part of the ensemble: add it first",
                server.id
            ));
        }
    }
    match shared.joins.try_send((member, server)) {
        Ok(()) => Ok(Response::Joining),
        Err(_) => refuse("other members are joining; try again"),
    }
}
