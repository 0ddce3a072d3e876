//! Which servers an ensemble's configuration lists, and the changes that make it list others. Pure.
//!
//! A membership contains more members than the configuration lists: members that join or were removed receive
//! the log too, but neither vote nor are listed. Listed members vote or observe. A server that is to vote
//! before any of its directories was seen has a placeholder: a member's id that no directory has. The first
//! directory of that server takes its place.

use std::collections::{BTreeMap, BTreeSet};

use openraft::ChangeMembers;

use super::types::Membership;
use crate::servers::{MemberId, Server, placeholder, server_of};

/// A change of the membership.
pub struct Change {
    pub(super) members: ChangeMembers<MemberId, Server>,
    /// Whether voters that are removed go on to receive the log.
    pub(super) retain: bool,
}

impl Change {
    fn retaining(members: ChangeMembers<MemberId, Server>) -> Self {
        Self {
            members,
            retain: true,
        }
    }

    fn dropping(members: ChangeMembers<MemberId, Server>) -> Self {
        Self {
            members,
            retain: false,
        }
    }
}

fn voters(membership: &Membership) -> BTreeSet<MemberId> {
    membership.voter_ids().collect()
}

/// Whether a change of the voters has begun and not ended.
pub fn is_changing(membership: &Membership) -> bool {
    membership.get_joint_config().len() > 1
}

/// The servers that the configuration lists, ordered by their ids; `None` while it changes.
pub fn listed(membership: &Membership) -> Option<Vec<Server>> {
    if is_changing(membership) {
        return None;
    }
    let voters = voters(membership);
    let mut servers: Vec<Server> = membership
        .nodes()
        .filter(|(id, server)| server.observer || voters.contains(id))
        .map(|(_, server)| server.clone())
        .collect();
    servers.sort_by_key(|server| server.id);
    // While a directory takes another's place, both are listed for a moment.
    servers.dedup_by_key(|server| server.id);
    Some(servers)
}

/// Whether the configuration lists a member.
pub fn is_listed(membership: &Membership, member: MemberId) -> bool {
    let node = membership.get_node(&member);
    node.is_some_and(|server| server.observer || membership.voter_ids().any(|id| id == member))
}

/// The member that is to stand for a server: one that is alive, a listed one before others; or else the
/// listed one; or else any.
fn chosen(membership: &Membership, server: u16, is_alive: &impl Fn(MemberId) -> bool) -> Option<MemberId> {
    let of_server = || {
        let ids = membership.nodes().map(|(id, _)| *id);
        ids.filter(|id| server_of(*id) == server)
    };
    of_server()
        .find(|id| is_listed(membership, *id) && is_alive(*id))
        .or_else(|| of_server().find(|id| is_alive(*id)))
        .or_else(|| of_server().find(|id| is_listed(membership, *id)))
        .or_else(|| of_server().find(|id| *id != placeholder(server)))
}

/// Whether a majority of the servers that are to vote is alive.
pub fn has_quorum(membership: &Membership, servers: &[Server], is_alive: impl Fn(MemberId) -> bool) -> bool {
    let voters = || servers.iter().filter(|server| !server.observer);
    let alive = voters()
        .filter(|server| chosen(membership, server.id, &is_alive).is_some_and(&is_alive))
        .count();
    alive > voters().count() / 2
}

/// Completes a change of the voters that an earlier leader began.
pub fn completion(membership: &Membership) -> Option<Change> {
    let last = membership.get_joint_config().last()?;
    is_changing(membership).then(|| Change::retaining(ChangeMembers::ReplaceAllVoters(last.clone())))
}

/// Makes the configuration list exactly these servers; `None` if it does. Members that are no longer listed
/// go on to receive the log.
pub fn change_to(
    membership: &Membership,
    servers: &[Server],
    is_alive: impl Fn(MemberId) -> bool,
) -> Option<Change> {
    let mut wanted = servers.to_vec();
    wanted.sort_by_key(|server| server.id);
    if listed(membership).as_ref() == Some(&wanted) {
        return None;
    }
    let mut nodes: BTreeMap<MemberId, Server> = BTreeMap::new();
    for (id, server) in membership.nodes() {
        let unlisted = Server {
            observer: false,
            ..server.clone()
        };
        nodes.insert(*id, unlisted);
    }
    let mut voters = BTreeSet::new();
    for server in wanted {
        let member = chosen(membership, server.id, &is_alive).unwrap_or(placeholder(server.id));
        if !server.observer {
            voters.insert(member);
        }
        nodes.insert(member, server);
    }
    Some(Change::retaining(ChangeMembers::Batch(vec![
        ChangeMembers::ReplaceAllNodes(nodes),
        ChangeMembers::ReplaceAllVoters(voters),
    ])))
}

/// Lists servers as observers before any of their directories was seen; `None` without servers.
pub fn add_observers<'a>(servers: impl Iterator<Item = &'a Server>) -> Option<Change> {
    let nodes: BTreeMap<_, _> = servers
        .map(|server| (placeholder(server.id), server.clone()))
        .collect();
    (!nodes.is_empty()).then(|| Change::retaining(ChangeMembers::AddNodes(nodes)))
}

/// Adds a member that receives the log, or changes what is known of it.
pub fn set_member(member: MemberId, server: Server) -> Change {
    Change::dropping(ChangeMembers::SetNodes(BTreeMap::from([(member, server)])))
}

/// Removes members that are not listed.
pub fn remove(members: BTreeSet<MemberId>) -> Option<Change> {
    (!members.is_empty()).then(|| Change::retaining(ChangeMembers::RemoveNodes(members)))
}

/// Puts a member in the place of its server's earlier members. One that is to vote must be alive. `None` if
/// it has its place, or has to wait.
pub fn replacement(
    membership: &Membership,
    member: MemberId,
    is_alive: impl Fn(MemberId) -> bool,
) -> Option<Change> {
    let server = server_of(member);
    let others: BTreeSet<MemberId> = membership
        .nodes()
        .map(|(id, _)| *id)
        .filter(|id| server_of(*id) == server && *id != member)
        .collect();
    let voters = voters(membership);
    if voters.contains(&member) || !is_alive(member) {
        return None;
    }
    let (old_voters, old_listeners): (BTreeSet<_>, BTreeSet<_>) =
        others.into_iter().partition(|id| voters.contains(id));
    let set_like = |old: &Server| ChangeMembers::SetNodes(BTreeMap::from([(member, old.clone())]));
    let mut changes = Vec::new();
    if let Some(old) = old_voters.first().and_then(|id| membership.get_node(id)) {
        changes.push(set_like(old));
        changes.push(ChangeMembers::AddVoterIds(BTreeSet::from([member])));
        changes.push(ChangeMembers::RemoveVoters(old_voters));
    } else if let Some(old) = old_listeners
        .iter()
        .filter_map(|id| membership.get_node(id))
        .find(|server| server.observer)
    {
        changes.push(set_like(old));
    }
    if !old_listeners.is_empty() {
        changes.push(ChangeMembers::RemoveNodes(old_listeners));
    }
    (!changes.is_empty()).then(|| Change::dropping(ChangeMembers::Batch(changes)))
}
