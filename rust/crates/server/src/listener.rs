//! Accepting connections, within the limits.
//!
//! One task per listener. At `max.connections` accepting pauses and newcomers wait in the kernel's backlog; above
//! `max.connections.per.ip` a newcomer is closed. Both as Kafka's `ConnectionQuotas`.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::connection;
use crate::control::ConnectionInfo;
use crate::descriptors::{Descriptors, advice};
use crate::error::{Result, ServerError};
use crate::lines::Level;
use crate::shared::Shared;

/// How long accepting pauses when the process is out of file descriptors.
const OUT_OF_RESOURCES_PAUSE: Duration = Duration::from_millis(100);

/// Where to listen.
#[derive(Debug, Clone)]
pub struct ListenerSpec {
    /// As in `listeners=NAME://host:port`.
    pub name: String,
    /// A name or an address; empty means every interface.
    pub host: String,
    /// 0 lets the system choose.
    pub port: u16,
}

/// Connections that are open now, against their limits; shared by all listeners.
pub(crate) struct Limits {
    total: Arc<Semaphore>,
    per_ip: Mutex<HashMap<IpAddr, usize>>,
    per_ip_max: usize,
    next_number: AtomicU64,
}

impl Limits {
    pub(crate) fn new(total: usize, per_ip_max: usize) -> Self {
        Self {
            total: Arc::new(Semaphore::new(total.min(Semaphore::MAX_PERMITS))),
            per_ip: Mutex::default(),
            per_ip_max,
            next_number: AtomicU64::new(0),
        }
    }

    fn enter(&self, ip: IpAddr) -> bool {
        let mut per_ip = self.per_ip.lock();
        let count = per_ip.entry(ip).or_insert(0);
        let free = *count < self.per_ip_max;
        if free {
            *count += 1;
        } else if *count == 0 {
            per_ip.remove(&ip);
        }
        free
    }

    fn leave(&self, ip: IpAddr) {
        let mut per_ip = self.per_ip.lock();
        if let Some(count) = per_ip.get_mut(&ip) {
            *count -= 1;
            if *count == 0 {
                per_ip.remove(&ip);
            }
        }
    }
}

/// Binds. Must be called inside the runtime.
///
/// # Errors
/// [`ServerError::Bind`] with the address and what the system says: in use, not allowed, not an address of this machine.
pub(crate) fn bind(spec: &ListenerSpec, backlog: i32) -> Result<TcpListener> {
    let mut result = Err(io::Error::new(
        io::ErrorKind::NotFound,
        "the host has no address",
    ));
    for address in addresses(spec).map_err(|source| bind_error(spec, source))? {
        result = bind_to(address, backlog);
        if result.is_ok() {
            break;
        }
    }
    result.map_err(|source| bind_error(spec, source))
}

/// IPv4 first, as Java does; every interface of both families if there is IPv6.
fn addresses(spec: &ListenerSpec) -> io::Result<Vec<SocketAddr>> {
    if spec.host.is_empty() {
        let any = |ip: IpAddr| SocketAddr::new(ip, spec.port);
        return Ok(vec![any([0u16; 8].into()), any([0u8; 4].into())]);
    }
    let host = spec.host.trim_start_matches('[').trim_end_matches(']');
    let mut addresses: Vec<_> = (host, spec.port).to_socket_addrs()?.collect();
    addresses.sort_by_key(SocketAddr::is_ipv6);
    Ok(addresses)
}

fn bind_to(address: SocketAddr, backlog: i32) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(backlog.unsigned_abs())
}

fn bind_error(spec: &ListenerSpec, source: io::Error) -> ServerError {
    ServerError::Bind {
        name: spec.name.clone(),
        address: format!("{}:{}", spec.host, spec.port),
        source,
    }
}

/// Accepts until the server stops. `alive` is held by every connection, so that the end of all of them can be awaited.
pub(crate) async fn accept(
    shared: Arc<Shared>,
    limits: Arc<Limits>,
    listener: TcpListener,
    name: String,
    alive: mpsc::Sender<()>,
) {
    let mut stopping = shared.stopping.subscribe();
    while !*stopping.borrow_and_update() {
        let accepted = tokio::select! {
            _ = stopping.changed() => continue,
            accepted = next(&limits, &listener) => accepted,
        };
        match accepted {
            Ok((permit, stream, peer)) => {
                open(&shared, &limits, &name, permit, stream, peer, &alive)
            }
            Err(error) => {
                let text = format!(
                    "listener {name} cannot accept a connection: {error}{}",
                    advice(&error)
                );
                shared.lines.seldom(Level::Error, &name, text);
                tokio::time::sleep(OUT_OF_RESOURCES_PAUSE).await;
            }
        }
    }
}

async fn next(
    limits: &Limits,
    listener: &TcpListener,
) -> io::Result<(OwnedSemaphorePermit, TcpStream, SocketAddr)> {
    let permit = Arc::clone(&limits.total)
        .acquire_owned()
        .await
        .map_err(io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    Ok((permit, stream, peer))
}

fn open(
    shared: &Arc<Shared>,
    limits: &Arc<Limits>,
    listener: &str,
    permit: OwnedSemaphorePermit,
    stream: TcpStream,
    peer: SocketAddr,
    alive: &mpsc::Sender<()>,
) {
    let ip = peer.ip().to_canonical();
    let descriptors = Descriptors::now();
    if !descriptors.leave_room_for_logs(stream.as_raw_fd()) {
        let text = format!(
            "connection from {peer} closed: connections and logs have nearly all of the {} files that may be open, and the rest is kept for the logs; raise the limit (ulimit -n) or set max.connections.per.ip",
            descriptors.limit
        );
        shared.metrics.connections_refused.add(1);
        shared.lines.seldom(Level::Warning, "descriptors", text);
        return;
    }
    if !limits.enter(ip) {
        let text =
            format!("connection from {peer} closed: {ip} has max.connections.per.ip open already");
        shared.metrics.connections_refused.add(1);
        shared.lines.seldom(Level::Warning, &ip.to_string(), text);
        return;
    }
    shared.metrics.connections_accepted.add(1);
    shared.metrics.connections.add(1);
    let guard = Guard {
        shared: Arc::clone(shared),
        limits: Arc::clone(limits),
        ip,
        peer,
        _permit: permit,
        _alive: alive.clone(),
    };
    if let Err(error) = tune(shared, &stream) {
        shared.lines.warning(format!(
            "connection from {peer}: cannot set its options: {error}"
        ));
    }
    let info = Arc::new(describe(limits, listener, &stream, peer));
    tokio::spawn(async move {
        connection::serve(&guard.shared, stream, info).await;
        drop(guard);
    });
}

fn tune(shared: &Shared, stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_keepalive(true)?;
    if let Some(size) = shared.config.send_buffer_bytes {
        socket.set_send_buffer_size(size)?;
    }
    if let Some(size) = shared.config.receive_buffer_bytes {
        socket.set_recv_buffer_size(size)?;
    }
    Ok(())
}

fn describe(
    limits: &Limits,
    listener: &str,
    stream: &TcpStream,
    peer: SocketAddr,
) -> ConnectionInfo {
    let canonical =
        |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    let peer = canonical(peer);
    let local = stream
        .local_addr()
        .map_or_else(|_| "?".to_owned(), |local| canonical(local).to_string());
    let number = limits.next_number.fetch_add(1, Ordering::Relaxed);
    ConnectionInfo {
        id: format!("{local}-{peer}-{number}"),
        client_host: peer.ip().to_string(),
        listener: listener.to_owned(),
    }
}

/// What a connection takes up, given back when its task ends in whatever way.
struct Guard {
    shared: Arc<Shared>,
    limits: Arc<Limits>,
    ip: IpAddr,
    peer: SocketAddr,
    _permit: OwnedSemaphorePermit,
    _alive: mpsc::Sender<()>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.limits.leave(self.ip);
        self.shared.metrics.connections.subtract(1);
        if std::thread::panicking() {
            self.shared.lines.error(format!(
                "connection from {} closed: its handler panicked, which is a defect of the server",
                self.peer
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // If this failed, one host could take all connections, or a host that closed its own could never come back.
    #[test]
    fn connections_per_host_are_counted() {
        let limits = Limits::new(10, 2);
        let (one, other) = ([10u8, 0, 0, 1].into(), [10u8, 0, 0, 2].into());
        assert!(limits.enter(one) && limits.enter(one) && limits.enter(other));
        assert!(!limits.enter(one));
        limits.leave(one);
        assert!(limits.enter(one));
        for ip in [one, one, other] {
            limits.leave(ip);
        }
        assert!(limits.per_ip.lock().is_empty());
        assert!(!Limits::new(10, 0).enter(one));
    }
}
