//! A directory's way into an ensemble.
//!
//! One that has nothing founds an ensemble only if a majority of those who vote is there and all that are there have nothing
//! either: they all become its first members, with the same membership, whoever of them begins. Some seconds are left to those
//! that are not there, for one of them may have a state ([`super::founding`]): that one founds, and the others wait for it. One
//! that meets an ensemble joins it as a member that never was before, in the place of what its server was: it cannot know what
//! that voted for.
//!
//! Before anything is founded a majority is bound to it, each member on its disk and to one ensemble only. So there is no second.

use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{InitializeError, RaftError};
use tokio::time::{sleep, timeout};

use super::founding::{founders, is_of_the_same};
use super::{Node, Served, Shared};
use crate::members::{NOBODY, is_listed, nobody_yet};
use crate::network::{Answer, Here, Links, NoAnswer, Request};
use crate::tcp::{Identity, TcpLinks};
use crate::types::{MemberId, Server, member_id, server_of};

/// What another server has to say who it is.
const PATIENCE: Duration = Duration::from_millis(1_500);
/// Before the others are asked again.
pub(super) const PAUSE: Duration = Duration::from_millis(200);
/// Before a leader is asked again for a place.
const JOIN_PAUSE: Duration = Duration::from_secs(1);
/// The operator is told why it takes so long.
pub(super) const LONG: Duration = Duration::from_secs(5);
/// Before a majority founds an ensemble without those that do not answer.
pub(super) const ALL_ANSWER: Duration = Duration::from_secs(5);
const INCARNATION_BYTES: usize = 6;

const REPLACED: &str = "another directory of this server is a member of the ensemble, and this one is none any more: \
     stop the server and move this directory away";

const LEFT_OUT: &str = "this server was to found an ensemble that never began, and the others are another: stop the server, move \
     this directory away and start it again, and it joins";

const LOST_DISKS: &str = "Its directory is new, and one that is new counts for nothing until a majority of those who had the \
     ensemble's data is there, for others may have agreed to what it lost: start them. If their disks are lost, too, stop all \
     servers, keep copies of their directories, take the data from one that is left (`logcore coordinator export`) and begin \
     anew with it (`import` on empty directories)";

/// What the other servers say of themselves.
pub(super) struct Round {
    /// Those who know of something that was agreed on.
    pub(super) grown: Vec<Here>,
    /// Servers that have a state, with which they found an ensemble.
    pub(super) with_state: Vec<u16>,
    /// Those who vote, know of nothing and would found this ensemble.
    fresh: Vec<Server>,
    /// How many of them can found no other.
    bound: usize,
    /// Why the rest does not count.
    pub(super) absent: Vec<String>,
}

pub(super) fn links(shared: &Shared) -> TcpLinks<Served> {
    TcpLinks::new(Identity {
        ensemble: [0; 16],
        member: 0,
        server: shared.me.id,
    })
}

async fn ask(
    links: &TcpLinks<Served>,
    server: &Server,
    request: Request<Served, crate::snapshots::SnapshotFile>,
) -> Result<Answer<Served>, NoAnswer> {
    // Whichever of its members is there.
    links.ask(server.id.into(), server, request, PATIENCE).await
}

/// Asks who would found this ensemble.
pub(super) async fn ask_all(shared: &Shared, links: &TcpLinks<Served>, ensemble: [u8; 16]) -> Round {
    let ask = |server: Server| async move {
        let asked = ask(links, &server, Request::Whois).await;
        (server, asked)
    };
    let answers = join_all(shared.others().into_iter().map(ask)).await;
    let mut round = Round {
        grown: Vec::new(),
        with_state: Vec::new(),
        fresh: Vec::new(),
        bound: 0,
        absent: Vec::new(),
    };
    for (server, answer) in answers {
        match answer {
            Ok(Answer::Here(here)) if !here.fresh => round.grown.push(here),
            Ok(Answer::Here(here)) if here.has_state => round.with_state.push(server.id),
            Ok(Answer::Here(here)) if !is_of_the_same(&here.ensemble, &shared.founded) => {
                let why = "it has nothing either, and was started with other servers";
                round.absent.push(format!("server {}: {why}", server.id));
            }
            Ok(Answer::Here(here)) if here.member != 0 && here.ensemble != ensemble => {
                let why = "it waits for another ensemble, which did not begin yet: if that is not to be, empty its data directory";
                round.absent.push(format!("server {}: {why}", server.id));
            }
            Ok(Answer::Here(_)) if server.observer => {}
            Ok(Answer::Here(here)) => {
                round.bound += usize::from(here.member != 0);
                round.fresh.push(server);
            }
            Ok(_) => round
                .absent
                .push(format!("server {}: it is no member", server.id)),
            Err(why) => round.absent.push(format!("server {}: {why}", server.id)),
        }
    }
    round
}

impl Round {
    /// Whether these and this server are enough to found an ensemble. `is_late`: it need not be all.
    pub(super) fn may_found(&self, shared: &Shared, is_late: bool) -> bool {
        let (voters, there) = (shared.voters().count(), self.fresh.len() + 1);
        !shared.me.observer && self.grown.is_empty() && (there == voters || is_late && there > voters / 2)
    }
}

/// Binds those who would found this ensemble to it; whether they and this server, which is bound, are a majority.
pub(super) async fn bind(
    shared: &Shared,
    links: &TcpLinks<Served>,
    round: &Round,
    ensemble: [u8; 16],
) -> bool {
    let bound = round
        .fresh
        .iter()
        .map(|server| ask(links, server, Request::Found(ensemble)));
    let bound = join_all(bound).await.into_iter().filter(Result::is_ok).count();
    bound + 1 > shared.voters().count() / 2
}

/// Returns once this directory is a member, and which.
pub(super) async fn decide(shared: &Arc<Shared>) -> Result<MemberId, String> {
    let failed = |error: crate::directory::OpenError| error.to_string();
    let (links, begun) = (links(shared), Instant::now());
    let new = random_member(shared.me.id)?;
    loop {
        let is_member = || shared.identity.lock().member;
        if let Some(member) = is_member() {
            return Ok(member);
        }
        let round = ask_all(shared, &links, shared.founded).await;
        if let Some(member) = is_member() {
            return Ok(member);
        }
        let is_late = begun.elapsed() > ALL_ANSWER;
        if round.with_state.is_empty() && round.may_found(shared, is_late) {
            let first = member_id(shared.me.id, 0);
            shared.become_member(shared.founded, first).map_err(failed)?;
            if shared.identity().ensemble == shared.founded {
                // Soon, so that they are not bound to something else. It is looked at when this member has begun.
                bind(shared, &links, &round, shared.founded).await;
            }
            continue;
        }
        if let Some(grown) = round.grown.first() {
            match join(shared, &links, &round.grown, new).await {
                Ok(()) => {
                    shared.become_member(grown.ensemble, new).map_err(failed)?;
                    continue;
                }
                Err(why) if begun.elapsed() > LONG => shared.events.warn(format!(
                    "this server cannot join the ensemble: {why}. {LOST_DISKS}"
                )),
                Err(why) => shared
                    .events
                    .warn(format!("this server cannot join the ensemble: {why}")),
            }
        } else if begun.elapsed() > LONG {
            shared.events.warn(match round.with_state.first() {
                Some(server) => format!(
                    "this server's directory is new; it waits for server {server}, which founds the ensemble with its data"
                ),
                None => format!(
                    "this server's directory is new; it waits for a majority of the ensemble's servers: {}",
                    round.absent.join("; ")
                ),
            });
        }
        // Another may find enough.
        let _ = timeout(PAUSE, shared.decided.notified()).await;
    }
}

/// Asks the leader for a place.
async fn join(
    shared: &Shared,
    links: &TcpLinks<Served>,
    grown: &[Here],
    member: MemberId,
) -> Result<(), String> {
    let Some(leader) = grown.iter().find_map(|here| here.leader.as_ref()) else {
        return Err("nobody leads it".to_owned());
    };
    match ask(links, leader, Request::Join(member, shared.me.clone())).await {
        Ok(Answer::Joining) => Ok(()),
        Ok(_) => Err("its leader answered something else".to_owned()),
        Err(NoAnswer::Unreachable(why) | NoAnswer::Broken(why)) => Err(why),
        Err(NoAnswer::TimedOut) => Err("its leader does not answer".to_owned()),
    }
}

pub(super) fn random<const BYTES: usize>() -> Result<[u8; BYTES], String> {
    let mut bytes = [0; BYTES];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|error| format!("reading /dev/urandom: {error}"))?;
    Ok(bytes)
}

fn random_member(server: u16) -> Result<MemberId, String> {
    loop {
        let mut bytes = [0; 8];
        bytes[8 - INCARNATION_BYTES..].copy_from_slice(&random::<INCARNATION_BYTES>()?);
        match u64::from_be_bytes(bytes) {
            // The first members have the one, and nobody the other.
            0 | NOBODY => continue,
            incarnation => return Ok(member_id(server, incarnation)),
        }
    }
}

/// Sees to it that the ensemble has this member in its place, and tells the operator why nobody is heard from, if it lasts.
pub(super) async fn keep_place(shared: Arc<Shared>, node: Node) -> Result<(), String> {
    let links = links(&shared);
    let raft = node.member.raft();
    let is_founder = node.id == member_id(shared.me.id, 0) && !shared.me.observer;
    let (mut compared, mut alone) = (false, None);
    let is_another =
        |id: &MemberId| server_of(*id) == shared.me.id && *id != node.id && *id != nobody_yet(shared.me.id);
    loop {
        let (stored, last) = {
            let metrics = raft.metrics();
            let metrics = metrics.borrow_watched();
            (metrics.membership_config.clone(), metrics.last_log_index)
        };
        let membership = stored.membership();
        if last.is_none() && is_founder {
            let is_long = alone.get_or_insert_with(Instant::now).elapsed() > LONG;
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
        let in_place = is_listed || known.is_some() && !others().any(|id| server_of(id) == shared.me.id);
        let was_replaced = known.is_none() && last.is_some() && others().any(|id| is_another(&id));
        if in_place && shared.events.current_role().in_contact {
            alone = None;
            sleep(JOIN_PAUSE).await;
            continue;
        }
        let is_long = alone.get_or_insert_with(Instant::now).elapsed() > LONG;
        if was_replaced {
            if is_long {
                shared.events.warn(REPLACED.to_owned());
            }
        } else if !in_place || is_long {
            let round = ask_all(&shared, &links, shared.identity().ensemble).await;
            let lacks_this = |here: &&Here| !here.members.is_empty() && !here.members.contains(&node.id);
            let lacking = round.grown.iter().find(lacks_this);
            if in_place && lacking.is_some_and(|here| here.members.iter().any(is_another)) {
                shared.events.warn(REPLACED.to_owned());
            } else if !round.grown.is_empty() && (!is_listed || lacking.is_some()) {
                if let Err(why) = join(&shared, &links, &round.grown, node.id).await {
                    shared
                        .events
                        .warn(format!("this server cannot join the ensemble: {why}"));
                }
            } else if is_long && !round.absent.is_empty() {
                shared.events.warn(format!(
                    "this server hears from nobody who leads: {}",
                    round.absent.join("; ")
                ));
            }
        }
        sleep(if in_place { JOIN_PAUSE } else { PAUSE }).await;
    }
}

/// Founds the ensemble that this member is bound to with those who have nothing either, if they are enough. What begins with a
/// state is founded by who has it.
async fn found(shared: &Shared, links: &TcpLinks<Served>, node: &Node, is_long: bool) -> Result<(), String> {
    let ensemble = shared.identity().ensemble;
    let round = ask_all(shared, links, ensemble).await;
    if !round.grown.is_empty() && !round.grown.iter().any(|here| here.ensemble == ensemble) {
        shared.events.warn(LEFT_OUT.to_owned());
        return Ok(());
    }
    if ensemble != shared.founded {
        if is_long && round.with_state.is_empty() {
            shared.events.warn(format!(
                "this server waits for the one with whose data the ensemble is to begin (if that is not to be, empty this server's \
                 data directory but for myid): {}",
                round.absent.join("; ")
            ));
        }
        return Ok(());
    }
    let is_bound = round.bound + 1 > shared.voters().count() / 2;
    if !round.may_found(shared, true) || !(is_bound || round.with_state.is_empty()) {
        return Ok(());
    }
    // So that none of them takes the others, once they agree on something, for an ensemble that it was a member of before.
    if !bind(shared, links, &round, ensemble).await {
        return Ok(());
    }
    match node.member.raft().initialize(founders(shared)).await {
        // Another was quicker.
        Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Ok(()),
        Err(error) => Err(format!("founding the ensemble: {error}")),
    }
}

/// Tells the operator where this server's file and the ensemble differ.
fn compare(shared: &Shared, known: &Server, membership: &crate::types::Membership) {
    if *known != shared.me {
        shared.events.warn(format!(
            "this server's own line differs from what the ensemble has: {} here, {} there; the ensemble's is what counts",
            line(&shared.me),
            line(known)
        ));
    }
    let voters: Vec<MemberId> = membership.voter_ids().collect();
    let mut there: Vec<u16> = voters.iter().map(|id| server_of(*id)).collect();
    let mut here: Vec<u16> = shared.voters().map(|server| server.id).collect();
    there.sort_unstable();
    here.sort_unstable();
    if there != here {
        shared.events.warn(format!(
            "this server's file names {here:?} as those who vote, and the ensemble has {there:?}; the ensemble's is what counts"
        ));
    }
}

fn line(server: &Server) -> String {
    let places = |addresses: &[crate::types::Address]| {
        let places = addresses.iter().map(|at| format!("{}:{}", at.host, at.port));
        places.collect::<Vec<_>>().join("|")
    };
    format!(
        "server.{}={} elections at {}{}{}",
        server.id,
        places(&server.quorum),
        places(&server.election),
        if server.observer { " observer" } else { "" },
        server
            .client
            .as_ref()
            .map_or(String::new(), |at| format!(" clients at {}:{}", at.host, at.port))
    )
}
