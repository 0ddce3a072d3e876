//! Founds an ensemble that begins with the state of one of its servers.
//!
//! The first members are the voters, as when an ensemble begins empty. Entry 0 is their membership; the state
//! is a snapshot up to entry [`FIRST_STATE`], which belongs to no leader's term.
//!
//! There is at most one founding. The founder binds itself, on disk, and then a majority. Each server binds
//! itself to one ensemble only, and a founding with a state has an id of its own. Until a majority is bound,
//! no member has the state in place. After a crash its owner gives it again at the next start. One rename
//! puts it in place; then the directory is a member like any other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::shared::Shared;
use super::survey::{ALL_ANSWER, ID_OF_SERVERS, LONG, PAUSE, ask_all, has_same_servers, links, random};
use crate::raft::state_machine::Snapshots;
use crate::raft::types::{Membership, SnapshotMeta, StoredMembership, log_id};
use crate::servers::{MemberId, Server, member_id, server_of};

/// The last entry that the state of a new ensemble contains.
pub const FIRST_STATE: u64 = 1;
/// The time in which another server with a state must notice that this one has a state too.
const TO_BE_SEEN: Duration = Duration::from_secs(2);

/// The id of an ensemble that these servers found with a state.
fn new_id(founding_id: [u8; 16]) -> Result<[u8; 16], String> {
    loop {
        let mut ensemble = founding_id;
        ensemble[ID_OF_SERVERS..].copy_from_slice(&random::<{ 16 - ID_OF_SERVERS }>()?);
        if ensemble != founding_id {
            return Ok(ensemble);
        }
    }
}

/// The first members.
pub(super) fn founders(shared: &Shared) -> BTreeMap<MemberId, Server> {
    let founder = |server: &Server| (member_id(server.id, 0), server.clone());
    shared.voters().map(founder).collect()
}

/// The metadata of the first snapshot.
///
/// Errors: the servers of the file cannot be an ensemble.
pub(super) fn first_meta(shared: &Shared) -> Result<SnapshotMeta, String> {
    let founders = founders(shared);
    let voters = founders.keys().copied().collect();
    let membership = Membership::new(vec![voters], founders).map_err(|error| error.to_string())?;
    Ok(SnapshotMeta {
        last_log_id: Some(log_id(0, FIRST_STATE)),
        last_membership: StoredMembership::new(Some(log_id(0, 0)), membership),
    })
}

/// Founds the ensemble with this server's state, once that is on disk. Returns this member's id.
///
/// Errors: there is an ensemble already, or another server with a state; the disk's.
pub(super) async fn found_with_state(shared: &Arc<Shared>) -> Result<MemberId, String> {
    let (links, begun) = (links(shared), Instant::now());
    let first = member_id(shared.me.id, 0);
    let bound = *shared.identity.lock();
    // Others may be bound to a founding that an earlier start began.
    let is_begun = bound.member == Some(first)
        && has_same_servers(&bound.ensemble, &shared.founding_id)
        && bound.ensemble != shared.founding_id;
    let ensemble = match is_begun {
        true => bound.ensemble,
        false => new_id(shared.founding_id)?,
    };
    loop {
        let survey = ask_all(shared, &links, ensemble).await;
        if let Some(other) = survey.grown.first() {
            return Err(format!(
                "this server has data of its own, and server {} is a member of an ensemble without that \
                 data. Move this server's data away, and it joins that ensemble. Or stop the other servers, \
                 empty their data directories except myid and start them with this one: the ensemble then \
                 begins with its data",
                server_of(other.member)
            ));
        }
        if let Some(other) = survey.with_state.first() {
            // The other server needs time to notice this one.
            sleep(TO_BE_SEEN).await;
            return Err(format!(
                "this server and server {other} have data of their own, and an ensemble begins with the data \
                 of one server: move away the data of the server that is to get the other's, and start it \
                 again"
            ));
        }
        let state = shared.first_state.lock().clone();
        if let Some(state) = state
            && survey.may_found(shared, begun.elapsed() > ALL_ANSWER)
        {
            bind_this(shared, ensemble, first).await?;
            if survey.bind(shared, &links, ensemble).await {
                let kept = shared.snapshots.keep(&state).await;
                kept.map_err(|error| format!("keeping the state to begin with: {error}"))?;
                shared.awaits_state.store(false, Ordering::Relaxed);
                return Ok(first);
            }
        } else if begun.elapsed() > LONG && !survey.absent.is_empty() {
            shared.events.warn(format!(
                "this server founds the ensemble with its data once a majority of the servers answers: {}",
                survey.absent.join("; ")
            ));
        }
        let _ = timeout(PAUSE, shared.decided.notified()).await;
    }
}

/// Binds this directory to this founding. This is on disk when it returns.
async fn bind_this(shared: &Arc<Shared>, ensemble: [u8; 16], member: MemberId) -> Result<(), String> {
    let shared = shared.clone();
    let bound = spawn_blocking(move || {
        let mut identity = shared.identity.lock();
        shared.change_identity(&mut identity, ensemble, member)
    });
    let bound = bound.await.map_err(|error| error.to_string())?;
    bound.map_err(|error| error.to_string())
}
