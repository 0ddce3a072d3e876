//! How an ensemble comes to be that begins with the state of one of its servers.
//!
//! Its first members are those who vote, as of an ensemble that begins with nothing; entry 0 is their membership, and the state
//! is a snapshot of everything up to entry [`FIRST_STATE`], which is of no leader's term.
//!
//! There is one founding at most. Whoever founds binds itself, on disk, and then a majority, of which each binds itself to one
//! ensemble only; a founding with a state has another name than one with nothing, and than any other with a state. Until a
//! majority is bound the state is in no member's place: a crash leaves it with its owner, who gives it again at the next start.
//! When it is in its place, by one renaming, the directory is a member like any other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::Shared;
use super::entering::{ALL_ANSWER, LONG, PAUSE, ask_all, bind, links, random};
use crate::directory::log_id;
use crate::machine::Snapshots;
use crate::types::{MemberId, Membership, Server, SnapshotMeta, StoredMembership, member_id, server_of};

/// The last entry that is in the state that an ensemble begins with.
pub const FIRST_STATE: u64 = 1;
/// Those that have a state too are left this time to see that this one has.
const TO_BE_SEEN: Duration = Duration::from_secs(2);
/// Of an ensemble's name so much is of its servers; the rest is of the founding.
const OF_SERVERS: usize = 8;

/// Whether this is what an ensemble of the same servers is called, whatever it begins with.
pub(super) fn is_of_the_same(ensemble: &[u8; 16], other: &[u8; 16]) -> bool {
    ensemble[..OF_SERVERS] == other[..OF_SERVERS]
}

/// What an ensemble is called that these servers found with a state.
fn name(founded: [u8; 16]) -> Result<[u8; 16], String> {
    loop {
        let mut ensemble = founded;
        ensemble[OF_SERVERS..].copy_from_slice(&random::<{ 16 - OF_SERVERS }>()?);
        if ensemble != founded {
            return Ok(ensemble);
        }
    }
}

/// The first members.
pub(super) fn founders(shared: &Shared) -> BTreeMap<MemberId, Server> {
    let founder = |server: &Server| (member_id(server.id, 0), server.clone());
    shared.voters().map(founder).collect()
}

/// What the first snapshot says of itself.
///
/// Errors: the servers that were named cannot be an ensemble.
pub(super) fn first_meta(shared: &Shared) -> Result<SnapshotMeta, String> {
    let founders = founders(shared);
    let voters = founders.keys().copied().collect();
    let membership = Membership::new(vec![voters], founders).map_err(|error| error.to_string())?;
    Ok(SnapshotMeta {
        last_log_id: Some(log_id(0, FIRST_STATE)),
        last_membership: StoredMembership::new(Some(log_id(0, 0)), membership),
    })
}

/// Founds the ensemble with the state that this server has, once it is on disk. Returns once the directory is a member, and which.
///
/// Errors: there is an ensemble already, or another server that has a state; the disk's.
pub(super) async fn found_with_state(shared: &Arc<Shared>) -> Result<MemberId, String> {
    let (links, begun) = (links(shared), Instant::now());
    let first = member_id(shared.me.id, 0);
    let bound = *shared.identity.lock();
    // Others may be bound to what was begun at an earlier start.
    let ensemble = match bound.member == Some(first)
        && is_of_the_same(&bound.ensemble, &shared.founded)
        && bound.ensemble != shared.founded
    {
        true => bound.ensemble,
        false => name(shared.founded)?,
    };
    loop {
        let round = ask_all(shared, &links, ensemble).await;
        if let Some(there) = round.grown.first() {
            return Err(format!(
                "this server has data of its own, and server {} is a member of an ensemble without that data: move this server's \
                 data away, and it joins; or stop the other servers, empty their data directories but for myid and start them \
                 with this one: an ensemble begins with its data then",
                server_of(there.member)
            ));
        }
        if let Some(other) = round.with_state.first() {
            // It is to see this one, too.
            sleep(TO_BE_SEEN).await;
            return Err(format!(
                "this server and server {other} have data of their own, and an ensemble begins with one server's: move away the \
                 data of the one that is to get the other's, and start it again"
            ));
        }
        let state = shared.first_state.lock().clone();
        if let Some(state) = state
            && round.may_found(shared, begun.elapsed() > ALL_ANSWER)
        {
            bind_this(shared, ensemble, first).await?;
            if bind(shared, &links, &round, ensemble).await {
                let kept = shared.snapshots.keep(&state).await;
                kept.map_err(|error| format!("keeping the state to begin with: {error}"))?;
                shared.awaits_state.store(false, Ordering::Relaxed);
                return Ok(first);
            }
        } else if begun.elapsed() > LONG && !round.absent.is_empty() {
            shared.events.warn(format!(
                "this server founds the ensemble with its data once a majority of the servers is there: {}",
                round.absent.join("; ")
            ));
        }
        let _ = timeout(PAUSE, shared.decided.notified()).await;
    }
}

/// Binds this directory to this founding; on disk when it returns.
async fn bind_this(shared: &Arc<Shared>, ensemble: [u8; 16], member: MemberId) -> Result<(), String> {
    let shared = shared.clone();
    let bound = spawn_blocking(move || {
        let mut identity = shared.identity.lock();
        shared.change_identity(&mut identity, ensemble, member)
    });
    let bound = bound.await.map_err(|error| error.to_string())?;
    bound.map_err(|error| error.to_string())
}
