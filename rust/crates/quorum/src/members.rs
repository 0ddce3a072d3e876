//! Which servers an ensemble's configuration lists, and what has to change for it to list others.
//!
//! A membership has more in it than the configuration: members that join or were removed are sent the log, and neither vote nor
//! are listed. Listed is who votes or observes. A server that is to vote before any of its directories was seen is held open a
//! place under a member's id that no directory has; whichever comes first takes it.
//!
//! Pure.

use std::collections::{BTreeMap, BTreeSet};

use openraft::ChangeMembers;

use crate::types::{MemberId, Membership, Server, member_id, server_of};

/// The incarnation that no directory has.
pub(crate) const NOBODY: u64 = (1 << 48) - 1;

/// The member whose place is held open for a server.
pub(crate) const fn nobody_yet(server: u16) -> MemberId {
    member_id(server, NOBODY)
}

/// What is asked of openraft.
pub type Change = ChangeMembers<MemberId, Server>;

fn voters(membership: &Membership) -> BTreeSet<MemberId> {
    membership.voter_ids().collect()
}

/// The servers that the configuration lists, by their ids; `None` while it changes.
pub fn listed(membership: &Membership) -> Option<Vec<Server>> {
    if membership.get_joint_config().len() > 1 {
        return None;
    }
    let voters = voters(membership);
    let mut servers: Vec<Server> = membership
        .nodes()
        .filter(|(id, server)| server.observer || voters.contains(id))
        .map(|(_, server)| server.clone())
        .collect();
    servers.sort_by_key(|server| server.id);
    // A directory that takes another's place is there beside it for a moment.
    servers.dedup_by_key(|server| server.id);
    Some(servers)
}

/// Whether the configuration lists a member.
pub fn is_listed(membership: &Membership, member: MemberId) -> bool {
    let node = membership.get_node(&member);
    node.is_some_and(|server| server.observer || membership.voter_ids().any(|id| id == member))
}

/// Which member is to be a server's: one that is there, the one that has its place before others, or whoever was seen last.
fn chosen(membership: &Membership, server: u16, is_there: &impl Fn(MemberId) -> bool) -> Option<MemberId> {
    let of_it = || {
        membership
            .nodes()
            .map(|(id, _)| *id)
            .filter(|id| server_of(*id) == server)
    };
    of_it()
        .find(|id| is_listed(membership, *id) && is_there(*id))
        .or_else(|| of_it().find(|id| is_there(*id)))
        .or_else(|| of_it().find(|id| is_listed(membership, *id)))
        .or_else(|| of_it().find(|id| *id != nobody_yet(server)))
}

/// Whether most of those who are to vote are there.
pub fn has_quorum(membership: &Membership, servers: &[Server], is_there: impl Fn(MemberId) -> bool) -> bool {
    let voters = || servers.iter().filter(|server| !server.observer);
    let there = voters()
        .filter(|server| chosen(membership, server.id, &is_there).is_some_and(&is_there))
        .count();
    there > voters().count() / 2
}

/// What makes the configuration list exactly these; `None` if it does. Who is listed no more stays, and is sent the log.
pub fn change_to(
    membership: &Membership,
    servers: &[Server],
    is_there: impl Fn(MemberId) -> bool,
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
        let member = chosen(membership, server.id, &is_there).unwrap_or(nobody_yet(server.id));
        if !server.observer {
            voters.insert(member);
        }
        nodes.insert(member, server);
    }
    Some(ChangeMembers::Batch(vec![
        ChangeMembers::ReplaceAllNodes(nodes),
        ChangeMembers::ReplaceAllVoters(voters),
    ]))
}

/// What puts a member that asks for it in the place of whatever its server was before, if it may have it: one that is to vote
/// has to be there. `None`: it has its place, or has to wait.
pub fn change_of_place(
    membership: &Membership,
    member: MemberId,
    is_there: impl Fn(MemberId) -> bool,
) -> Option<Change> {
    let server = server_of(member);
    let others: BTreeSet<MemberId> = membership
        .nodes()
        .map(|(id, _)| *id)
        .filter(|id| server_of(*id) == server && *id != member)
        .collect();
    let voters = voters(membership);
    if voters.contains(&member) || !is_there(member) {
        return None;
    }
    let (old_voters, old_listeners): (BTreeSet<_>, BTreeSet<_>) =
        others.into_iter().partition(|id| voters.contains(id));
    let mut changes = Vec::new();
    if let Some(old) = old_voters.first().and_then(|id| membership.get_node(id)) {
        changes.push(ChangeMembers::SetNodes(BTreeMap::from([(member, old.clone())])));
        changes.push(ChangeMembers::AddVoterIds(BTreeSet::from([member])));
        changes.push(ChangeMembers::RemoveVoters(old_voters));
    } else if let Some(old) = old_listeners
        .iter()
        .filter_map(|id| membership.get_node(id))
        .find(|server| server.observer)
    {
        changes.push(ChangeMembers::SetNodes(BTreeMap::from([(member, old.clone())])));
    }
    if !old_listeners.is_empty() {
        changes.push(ChangeMembers::RemoveNodes(old_listeners));
    }
    (!changes.is_empty()).then_some(ChangeMembers::Batch(changes))
}
