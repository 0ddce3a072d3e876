//! How a directory becomes a member of an ensemble, and stays one.
//!
//! A directory without data founds an ensemble only if a majority of the voters answers and none of these
//! servers has data. All voters become first members with the same membership, whichever server begins.
//! Before that, a server waits some seconds for those that do not answer, because one of them may have data
//! ([`super::founding`]). A server with data founds the ensemble, and the others wait for it.
//!
//! A directory that finds an ensemble joins it as a new member. The new member replaces its server's earlier
//! one, whose votes it cannot know.
//!
//! Before an ensemble is founded, a majority is bound to it, each server on its disk and to one ensemble
//! only. So there is no second one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};

use super::founding::founders;
use super::shared::{Node, Shared};
use super::survey::{ALL_ANSWER, LONG, PAUSE, Survey, ask_all, links, random};
use crate::files::OpenError;
use crate::raft::members::is_listed;
use crate::raft::types::{Membership, OnTokio};
use crate::servers::{Address, MemberId, PLACEHOLDER, Server, member_id, placeholder, server_of};
use crate::transport::links::TcpLinks;

/// The pause before a leader is asked again.
const JOIN_PAUSE: Duration = Duration::from_secs(1);
const INCARNATION_BYTES: usize = 6;

const REPLACED: &str = "another directory of this server is a member of the ensemble, and this one no longer \
     is: stop the server and move this directory away";

const LEFT_OUT: &str = "this server was to found an ensemble that was never founded, and the others have \
     another: stop the server, move this directory away and start it again, and it joins";

const LOST_DISKS: &str = "Its directory is new. A new directory does not count until a majority of the \
     servers with the ensemble's data is there, because the lost one may have voted: start those servers. If \
     their disks are lost too, stop all servers, keep copies of their directories, export the data of one \
     that is left (`logcore coordinator export`) and import it into empty directories (`logcore coordinator \
     import`)";

/// Returns the member's id once this directory is a member.
pub(super) async fn become_member(shared: &Arc<Shared>) -> Result<MemberId, String> {
    let failed = |error: OpenError| error.to_string();
    let (links, begun) = (links(shared), Instant::now());
    let new = random_member(shared.me.id)?;
    loop {
        // Another server may have bound this one.
        let is_member = || shared.identity.lock().member;
        if let Some(member) = is_member() {
            return Ok(member);
        }
        let survey = ask_all(shared, &links, shared.founding_id).await;
        if let Some(member) = is_member() {
            return Ok(member);
        }
        let is_late = begun.elapsed() > ALL_ANSWER;
        if survey.with_state.is_empty() && survey.may_found(shared, is_late) {
            let first = member_id(shared.me.id, 0);
            shared.become_member(shared.founding_id, first).map_err(failed)?;
            if shared.identity().ensemble == shared.founding_id {
                // Early, so that they do not bind themselves to another. Whether they are a majority is
                // checked later.
                survey.bind(shared, &links, shared.founding_id).await;
            }
            continue;
        }
        let is_long = begun.elapsed() > LONG;
        if let Some(grown) = survey.grown.first() {
            match survey.join(shared, &links, new).await {
                Ok(()) => {
                    shared.become_member(grown.ensemble, new).map_err(failed)?;
                    continue;
                }
                Err(why) => {
                    let advice = if is_long { LOST_DISKS } else { "" };
                    warn_not_joined(shared, &why, advice);
                }
            }
        } else if is_long {
            warn_waiting(shared, &survey);
        }
        let _ = timeout(PAUSE, shared.decided.notified()).await;
    }
}

fn warn_not_joined(shared: &Shared, why: &str, advice: &str) {
    let text = format!("this server cannot join the ensemble: {why}. {advice}");
    shared.events.warn(text.trim_end_matches([' ', '.']).to_owned());
}

fn warn_waiting(shared: &Shared, survey: &Survey) {
    shared.events.warn(match survey.with_state.first() {
        Some(server) => format!(
            "this server's directory is new; it waits for server {server}, which founds the ensemble with \
             its data"
        ),
        None => format!(
            "this server's directory is new; it waits for a majority of the ensemble's servers: {}",
            survey.absent.join("; ")
        ),
    });
}

fn random_member(server: u16) -> Result<MemberId, String> {
    loop {
        let mut bytes = [0; 8];
        bytes[8 - INCARNATION_BYTES..].copy_from_slice(&random::<INCARNATION_BYTES>()?);
        match u64::from_be_bytes(bytes) {
            // First members have incarnation 0.
            0 | PLACEHOLDER => continue,
            incarnation => return Ok(member_id(server, incarnation)),
        }
    }
}

/// Keeps this member in the ensemble, and warns the operator when no leader is heard from for long.
pub(super) async fn stay_member(shared: Arc<Shared>, node: Node) -> Result<(), String> {
    let links = links(&shared);
    let is_founder = node.id == member_id(shared.me.id, 0) && !shared.me.observer;
    let (mut compared, mut alone_since) = (false, None);
    let is_replacement =
        |id: &MemberId| server_of(*id) == shared.me.id && *id != node.id && *id != placeholder(shared.me.id);
    loop {
        let metrics = node.member.metrics();
        let membership = metrics.membership().membership();
        if metrics.last_index().is_none() && is_founder {
            let is_long = alone_since.get_or_insert_with(Instant::now).elapsed() > LONG;
            found(&shared, &links, &node, is_long).await?;
            sleep(PAUSE).await;
            continue;
        }
        let known = membership.get_node(&node.id);
        let is_listed = is_listed(membership, node.id);
        if let Some(known) = known
            && !compared
        {
            compared = true;
            if is_listed {
                compare(&shared, known, membership);
            }
        }
        let others = || membership.nodes().map(|(id, _)| *id).filter(|id| *id != node.id);
        let is_member = is_listed || known.is_some() && !others().any(|id| server_of(id) == shared.me.id);
        let was_replaced =
            known.is_none() && metrics.last_index().is_some() && others().any(|id| is_replacement(&id));
        if is_member && shared.events.current_role().in_contact {
            alone_since = None;
            sleep(JOIN_PAUSE).await;
            continue;
        }
        let is_long = alone_since.get_or_insert_with(Instant::now).elapsed() > LONG;
        if was_replaced {
            if is_long {
                shared.events.warn(REPLACED.to_owned());
            }
        } else if !is_member || is_long {
            let survey = ask_all(&shared, &links, shared.identity().ensemble).await;
            let mut grown = survey.grown.iter();
            let lacking = grown.find(|info| !info.members.is_empty() && !info.members.contains(&node.id));
            if is_member && lacking.is_some_and(|info| info.members.iter().any(is_replacement)) {
                shared.events.warn(REPLACED.to_owned());
            } else if !survey.grown.is_empty() && (!is_listed || lacking.is_some()) {
                if let Err(why) = survey.join(&shared, &links, node.id).await {
                    warn_not_joined(&shared, &why, "");
                }
            } else if is_long && !survey.absent.is_empty() {
                shared.events.warn(format!(
                    "this server hears from no leader: {}",
                    survey.absent.join("; ")
                ));
            }
        }
        sleep(if is_member { JOIN_PAUSE } else { PAUSE }).await;
    }
}

/// Founds the ensemble that this member is bound to, together with enough servers that have no data either.
/// An ensemble that begins with a state is founded by the server that has it.
async fn found(shared: &Shared, links: &TcpLinks<OnTokio>, node: &Node, is_long: bool) -> Result<(), String> {
    let ensemble = shared.identity().ensemble;
    let survey = ask_all(shared, links, ensemble).await;
    if !survey.grown.is_empty() && !survey.grown.iter().any(|info| info.ensemble == ensemble) {
        shared.events.warn(LEFT_OUT.to_owned());
        return Ok(());
    }
    if ensemble != shared.founding_id {
        if is_long && survey.with_state.is_empty() {
            shared.events.warn(format!(
                "this server waits for the server with whose data the ensemble is to begin; to give that up, \
                 empty this server's data directory except myid: {}",
                survey.absent.join("; ")
            ));
        }
        return Ok(());
    }
    let is_bound = survey.bound + 1 > shared.voters().count() / 2;
    if !survey.may_found(shared, true) || !(is_bound || survey.with_state.is_empty()) {
        return Ok(());
    }
    // An unbound server could later mistake the others for an ensemble that it belonged to before.
    if !survey.bind(shared, links, ensemble).await {
        return Ok(());
    }
    let founded = node.member.initialize(founders(shared)).await;
    founded.map_err(|error| format!("founding the ensemble: {error}"))
}

/// Warns the operator when this server's file and the ensemble differ.
fn compare(shared: &Shared, known: &Server, membership: &Membership) {
    if *known != shared.me {
        shared.events.warn(format!(
            "this server's own line differs from the ensemble's: {} here, {} there; the ensemble's counts",
            line(&shared.me),
            line(known)
        ));
    }
    let mut theirs: Vec<u16> = membership.voter_ids().map(server_of).collect();
    let mut ours: Vec<u16> = shared.voters().map(|server| server.id).collect();
    theirs.sort_unstable();
    ours.sort_unstable();
    if theirs != ours {
        shared.events.warn(format!(
            "this server's file names the voters {ours:?}, and the ensemble has {theirs:?}; the ensemble's \
             count"
        ));
    }
}

fn line(server: &Server) -> String {
    let shown = |addresses: &[Address]| {
        let addresses = addresses.iter().map(|at| format!("{}:{}", at.host, at.port));
        addresses.collect::<Vec<_>>().join("|")
    };
    format!(
        "server.{}={} elections at {}{}{}",
        server.id,
        shown(&server.quorum),
        shown(&server.election),
        if server.observer { " observer" } else { "" },
        server
            .client
            .as_ref()
            .map_or(String::new(), |at| format!(" clients at {}:{}", at.host, at.port))
    )
}
