//! Accepting connections, within the limits.
//!
//! Each listener has one task. At `max.connections` and above `max.connection.creation.rate` it stops
//! accepting, and new connections wait in the kernel's backlog. One connection may be accepted already; it
//! waits for a slot. A connection above the limit of its address is closed. A connection in its TLS handshake
//! has a slot, too. [`crate::quotas::ConnectionQuotas`] has the limits and counts the connections.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::connections::connection;
use crate::control::requests::ConnectionInfo;
use crate::descriptors::{Descriptors, advice};
use crate::error::{Result, ServerError};
use crate::log_lines::Level;
use crate::net::tls::{Failure, HANDSHAKE_TIMEOUT, ListenerTls};
use crate::net::transport::{Plain, Transport};
use crate::quotas::{Refusal, Slot};
use crate::shared::Shared;

const OUT_OF_RESOURCES_PAUSE: Duration = Duration::from_millis(100);

/// The system's default (tcp(7), `tcp_keepalive_time`). `connections.max.idle.ms` can only shorten it.
const KEEPALIVE_MAX: Duration = Duration::from_secs(7200);

/// A listener to open.
#[derive(Debug, Clone)]
pub struct ListenerSpec {
    /// As in `listeners=NAME://host:port`.
    pub name: String,
    /// A host name or an address. The empty text stands for every interface.
    pub host: String,
    /// With 0, the system chooses.
    pub port: u16,
    /// Set for the security protocol SSL.
    pub tls: Option<ListenerTls>,
}

/// Binds the listener. Must be called inside the runtime.
///
/// # Errors
/// [`ServerError::Bind`] with the address and the system's reason: in use, not allowed, not an address of
/// this machine.
pub(crate) fn bind(spec: &ListenerSpec, backlog: i32) -> Result<TcpListener> {
    let mut result = Err(io::Error::new(io::ErrorKind::NotFound, "the host has no address"));
    for address in addresses(spec).map_err(|source| bind_error(spec, source))? {
        result = bind_to(address, backlog);
        if result.is_ok() {
            break;
        }
    }
    result.map_err(|source| bind_error(spec, source))
}

/// The addresses, IPv4 first as in Java. For every interface, one of IPv6 serves both families where there is
/// IPv6.
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

/// Accepts until the server stops. Every connection has a clone of `alive`, so that the end of all can be
/// awaited.
pub(crate) async fn accept(
    shared: Arc<Shared>,
    listener: TcpListener,
    spec: ListenerSpec,
    alive: mpsc::Sender<()>,
) {
    let name = &spec.name;
    let mut stopping = shared.stopping.subscribe();
    while !*stopping.borrow_and_update() {
        let next = async {
            let (stream, peer) = next(&shared, &listener, name).await?;
            open(&shared, &spec, stream, peer, &alive).await;
            Ok::<_, io::Error>(())
        };
        let opened = tokio::select! {
            _ = stopping.changed() => continue,
            opened = next => opened,
        };
        if let Err(error) = opened {
            let text = format!(
                "listener {name} cannot accept a connection: {error}{}",
                advice(&error)
            );
            shared.lines.push_limited(Level::Error, name, text);
            tokio::time::sleep(OUT_OF_RESOURCES_PAUSE).await;
        }
    }
}

async fn next(shared: &Shared, listener: &TcpListener, name: &str) -> io::Result<(TcpStream, SocketAddr)> {
    shared.connections.below_limit(name).await;
    let accepted = listener.accept().await?;
    let wait = shared.connections.accepted(name);
    if !wait.is_zero() {
        tokio::time::sleep(wait).await;
    }
    Ok(accepted)
}

/// Serves a connection in a task of its own, once there is a slot for it.
async fn open(
    shared: &Arc<Shared>,
    spec: &ListenerSpec,
    stream: TcpStream,
    peer: SocketAddr,
    alive: &mpsc::Sender<()>,
) {
    let ip = peer.ip().to_canonical();
    let descriptors = Descriptors::now();
    if !descriptors.allow_connection(stream.as_raw_fd()) {
        let text = format!(
            "connection from {peer} closed: connections and logs use nearly all of the {} files that may be \
             open, and the rest is reserved for the logs; raise the limit (ulimit -n) or set \
             max.connections.per.ip",
            descriptors.limit
        );
        shared.metrics.connections_refused.add(1);
        shared.lines.push_limited(Level::Warning, "descriptors", text);
        return;
    }
    let slot = match shared.connections.enter(&spec.name, ip).await {
        Ok(slot) => slot,
        Err(refusal) => return refuse(shared, stream, peer, &refusal),
    };
    shared.metrics.connections_accepted.add(1);
    let guard = Guard {
        shared: Arc::clone(shared),
        slot,
        peer: canonical(peer),
        _alive: alive.clone(),
    };
    if let Err(error) = tune(shared, &stream) {
        let text = format!("connection from {peer}: cannot set its options: {error}");
        shared.lines.push_limited(Level::Warning, "options", text);
    }
    let local = stream.local_addr();
    let local = local.map_or_else(|_| "?".to_owned(), |local| canonical(local).to_string());
    // The futures differ, so that a plain connection's task is not as large as one with TLS.
    match &spec.tls {
        None => tokio::spawn(serve(guard, spec.name.clone(), Plain::new(stream), local)),
        Some(tls) => tokio::spawn(serve_tls(guard, spec.name.clone(), tls.clone(), stream, local)),
    };
}

async fn serve(guard: Guard, listener: String, transport: impl Transport, local: String) {
    let info = Arc::new(ConnectionInfo {
        id: guard.id(&local),
        client_host: guard.peer.ip().to_string(),
        listener,
        principal: transport.principal().to_owned(),
    });
    connection::serve(&guard.shared, transport, info, &guard.slot).await;
    drop(guard);
}

/// Serves a connection after its TLS handshake, which has a timeout.
async fn serve_tls(guard: Guard, listener: String, tls: ListenerTls, stream: TcpStream, local: String) {
    let shared = &guard.shared;
    let idle = shared.config.connection_idle_max;
    let limit = HANDSHAKE_TIMEOUT.min(idle.unwrap_or(Duration::MAX));
    let mut stopping = shared.stopping.subscribe();
    // The handshake is boxed: it takes more memory than the connection does later.
    let mut handshake = Box::pin(timeout(limit, tls.accept(stream)));
    let done = tokio::select! {
        biased;
        done = &mut handshake => done,
        _ = stopping.wait_for(|stopping| *stopping) => return,
        () = guard.slot.evicted() => return guard.log_end(&listener, &local, Level::Info,
            "in the TLS handshake: there are more than max.connections and it was idle for the longest time"),
    };
    drop(handshake);
    let (level, reason) = match done {
        Ok(Ok(transport)) => {
            shared.connections.authenticated(&guard.slot, true);
            return serve(guard, listener, transport, local).await;
        }
        Ok(Err(Failure::Gone)) => return,
        Ok(Err(Failure::Refused(reason))) => {
            shared.connections.authenticated(&guard.slot, false);
            // The log has one line a minute for each text before the colon.
            (Level::Warning, format!("the TLS handshake failed, {reason}"))
        }
        Ok(Err(Failure::NoPrincipal(reason))) => (
            Level::Warning,
            format!("its certificate has no principal: {reason}"),
        ),
        Err(_) => {
            let seconds = limit.as_secs_f64();
            let text = format!("the TLS handshake did not end within {seconds} s");
            return guard.log_end(&listener, &local, Level::Info, &text);
        }
    };
    shared.metrics.connections_refused.add(1);
    guard.log_end(&listener, &local, level, &reason);
}

/// Closes a connection that is refused. If its address connects too fast, the close waits, and so does the
/// client's next attempt.
fn refuse(shared: &Arc<Shared>, stream: TcpStream, peer: SocketAddr, refusal: &Refusal) {
    let ip = peer.ip().to_canonical();
    shared.metrics.connections_refused.add(1);
    let (text, wait) = match refusal {
        Refusal::TooMany(most) => (
            format!(
                "connection from {peer} closed: {ip} has {most} open connections (max.connections.per.ip)"
            ),
            Duration::ZERO,
        ),
        Refusal::TooFast(wait) => (
            format!("connection from {peer} closed: {ip} connects faster than its connection_creation_rate"),
            *wait,
        ),
    };
    shared.lines.push_limited(Level::Warning, &ip.to_string(), text);
    if wait.is_zero() {
        return;
    }
    let mut stopping = shared.stopping.subscribe();
    tokio::spawn(async move {
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            _ = stopping.changed() => {}
        }
        drop(stream);
    });
}

fn tune(shared: &Shared, stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_keepalive(true)?;
    if let Some(idle) = shared.config.connection_idle_max {
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(keepalive_time(idle)))?;
    }
    if let Some(size) = shared.config.send_buffer_bytes {
        socket.set_send_buffer_size(size)?;
    }
    if let Some(size) = shared.config.receive_buffer_bytes {
        socket.set_recv_buffer_size(size)?;
    }
    Ok(())
}

/// The time after which the kernel probes a silent peer. A connection that waits for a response is not closed
/// as idle, so without probes a vanished peer would stay for the system's two hours.
fn keepalive_time(idle: Duration) -> Duration {
    idle.clamp(Duration::from_secs(1), KEEPALIVE_MAX)
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

struct Guard {
    shared: Arc<Shared>,
    slot: Arc<Slot>,
    peer: SocketAddr,
    _alive: mpsc::Sender<()>,
}

impl Guard {
    /// The connection's id in Kafka's form.
    fn id(&self, local: &str) -> String {
        format!("{local}-{}-{}", self.peer, self.slot.number)
    }

    fn log_end(&self, listener: &str, local: &str, level: Level, reason: &str) {
        let id = self.id(local);
        let text = format!("connection {id} closed: {reason}");
        let key = format!("closed {listener} {}", connection::kind_of(reason));
        let lines = &self.shared.lines;
        lines.push_limited_with(level, &key, text, || {
            vec![("connection", id), ("listener", listener.to_owned())]
        });
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.shared.connections.leave(&self.slot);
        if std::thread::panicking() {
            self.shared.lines.error(format!(
                "connection from {} closed: its handler panicked, which is a defect of the server",
                self.peer
            ));
        }
    }
}
