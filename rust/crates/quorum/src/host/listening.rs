//! Where this member listens, and where the others are.
//!
//! A member begins with its own file's addresses. Once the log says where it is, that is where it listens: on new addresses
//! first, then no more on old ones. One that cannot be listened on is told and tried again. Connections end with the
//! address that they came in on; whoever dialled dials where the member is by what it knows last.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use openraft::async_runtime::watch::WatchReceiver;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;

use super::answering::Answering;
use super::{Shared, TICK};
use crate::tcp::serve;
use crate::types::{Address, Server};

pub(super) type Listening = (Address, TcpListener);

/// The addresses on which a server's member listens.
pub(super) fn places(shared: &Shared, server: &Server) -> Vec<Address> {
    let mut places: Vec<Address> = Vec::new();
    for address in server.quorum.iter().chain(&server.election) {
        let mut address = address.clone();
        if shared.options.listen_on_all {
            address.host = "::".to_owned();
        }
        if !places.contains(&address) {
            places.push(address);
        }
    }
    places
}

pub(super) fn bind(place: &Address) -> io::Result<TcpListener> {
    let mut listener = TcpListener::bind((place.host.as_str(), place.port));
    if listener.is_err() && place.host == "::" {
        // A machine without IPv6.
        listener = TcpListener::bind(("0.0.0.0", place.port));
    }
    let listener = listener?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

pub(super) fn what(place: &Address) -> String {
    format!(
        "listening on {}:{} for the ensemble's other servers",
        place.host, place.port
    )
}

/// Serves whoever dials, wherever this member is.
pub(super) async fn listen(shared: Arc<Shared>, listeners: Vec<Listening>) -> Result<(), String> {
    let mut serving = JoinSet::new();
    let mut places_now: Vec<(Address, AbortHandle)> = Vec::new();
    let mut known_at = None;
    let begin = |(place, listener): Listening, serving: &mut JoinSet<()>| {
        let listener = tokio::net::TcpListener::from_std(listener);
        let listener = listener.map_err(|error| format!("{}: {error}", what(&place)))?;
        let told = shared.clone();
        let served = serve(listener, Answering(shared.clone()), move |why| {
            let mut refused = told.refused.lock();
            *refused = (refused.0 + 1, why);
        });
        Ok::<_, String>((place, serving.spawn(served)))
    };
    for listening in listeners {
        places_now.push(begin(listening, &mut serving)?);
    }
    loop {
        tokio::select! {
            Some(ended) = serving.join_next() => match ended {
                Err(error) if !error.is_cancelled() => {
                    return Err(format!("listening for the ensemble's other servers: {error}"));
                }
                _ => continue,
            },
            () = sleep(TICK) => {}
        }
        let Some(node) = shared.node() else { continue };
        let stored = {
            let metrics = node.member.raft().server_metrics();
            metrics.borrow_watched().membership_config.clone()
        };
        if known_at == Some(*stored.log_id()) {
            continue;
        }
        let membership = stored.membership();
        node.links.know(membership.nodes());
        let Some(me) = membership.get_node(&node.id) else {
            continue;
        };
        let wanted = places(&shared, me);
        let mut all = true;
        for place in &wanted {
            if places_now.iter().any(|(there, _)| there == place) {
                continue;
            }
            match bind(place) {
                Ok(listener) => places_now.push(begin((place.clone(), listener), &mut serving)?),
                Err(error) => {
                    all = false;
                    let what = what(place);
                    shared.events.warn(format!("{what}: {error}; it is tried again"));
                }
            }
        }
        if all {
            places_now.retain(|(place, task)| {
                let stays = wanted.contains(place);
                if !stays {
                    task.abort();
                }
                stays
            });
            known_at = Some(*stored.log_id());
        }
    }
}
