//! The addresses on which this member listens, and those of the others.
//!
//! A member starts with the addresses of its own file. Once the log has its address, it listens there: first
//! on new addresses, then no longer on old ones. An address on which it cannot listen is reported and tried
//! again. Connections end with the address on which they came.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;

use super::handler::HostHandler;
use super::shared::{Shared, TICK};
use crate::servers::{Address, Server};
use crate::transport::server::serve;

pub(super) type Listener = (Address, TcpListener);

/// Listens on the addresses of this server's own line.
///
/// Errors: what failed, and why.
pub(super) fn listen(shared: &Shared) -> Result<Vec<Listener>, (String, io::Error)> {
    let listen = |address: Address| match bind(&address) {
        Ok(listener) => Ok((address, listener)),
        Err(error) => Err((description(&address), error)),
    };
    addresses(shared, &shared.me).into_iter().map(listen).collect()
}

fn addresses(shared: &Shared, server: &Server) -> Vec<Address> {
    let mut addresses: Vec<Address> = Vec::new();
    for address in server.quorum.iter().chain(&server.election) {
        let mut address = address.clone();
        if shared.options.listen_on_all {
            address.host = "::".to_owned();
        }
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

fn bind(address: &Address) -> io::Result<TcpListener> {
    let mut listener = TcpListener::bind((address.host.as_str(), address.port));
    if listener.is_err() && address.host == "::" {
        // A machine without IPv6.
        listener = TcpListener::bind(("0.0.0.0", address.port));
    }
    let listener = listener?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn description(address: &Address) -> String {
    format!(
        "listening on {}:{} for the ensemble's other servers",
        address.host, address.port
    )
}

fn start(
    shared: &Arc<Shared>,
    (address, listener): Listener,
    tasks: &mut JoinSet<()>,
) -> Result<(Address, AbortHandle), String> {
    let listener = tokio::net::TcpListener::from_std(listener);
    let listener = listener.map_err(|error| format!("{}: {error}", description(&address)))?;
    let reported = shared.clone();
    let report = move |why| {
        let mut refused = reported.refused.lock();
        *refused = (refused.0 + 1, why);
    };
    let serving = serve(listener, HostHandler(shared.clone()), report);
    Ok((address, tasks.spawn(serving)))
}

/// Serves the other members, wherever the log says that this member is.
pub(super) async fn serve_all(shared: Arc<Shared>, listeners: Vec<Listener>) -> Result<(), String> {
    let mut tasks = JoinSet::new();
    let mut serving: Vec<(Address, AbortHandle)> = Vec::new();
    let mut served_at = None;
    for listener in listeners {
        serving.push(start(&shared, listener, &mut tasks)?);
    }
    loop {
        tokio::select! {
            Some(ended) = tasks.join_next() => match ended {
                Err(error) if !error.is_cancelled() => {
                    return Err(format!("listening for the ensemble's other servers: {error}"));
                }
                _ => continue,
            },
            () = sleep(TICK) => {}
        }
        let Some(node) = shared.node() else { continue };
        let stored = node.member.watch().membership();
        if served_at == Some(*stored.log_id()) {
            continue;
        }
        let membership = stored.membership();
        node.links.set_servers(membership.nodes());
        let Some(me) = membership.get_node(&node.id) else {
            continue;
        };
        let wanted = addresses(&shared, me);
        let mut all = true;
        for address in &wanted {
            if serving.iter().any(|(served, _)| served == address) {
                continue;
            }
            match bind(address) {
                Ok(listener) => serving.push(start(&shared, (address.clone(), listener), &mut tasks)?),
                Err(error) => {
                    all = false;
                    let what = description(address);
                    shared.events.warn(format!("{what}: {error}; it is tried again"));
                }
            }
        }
        if all {
            serving.retain(|(address, task)| {
                let stays = wanted.contains(address);
                if !stays {
                    task.abort();
                }
                stays
            });
            served_at = Some(*stored.log_id());
        }
    }
}
