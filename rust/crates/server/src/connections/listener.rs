//! Accepting connections, within the limits.
//!
//! One task per listener. At `max.connections`, and above `max.connection.creation.rate`, accepting pauses and newcomers wait
//! in the kernel's backlog, but for one that was accepted before, which waits for its place as well; above what its address
//! may have a newcomer is closed. Who is in TLS's handshake has a place as
//! everybody else. What the limits are, and who is within
//! them, is [`crate::quotas::ConnectionQuotas`]'s.

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
use crate::quotas::{Refusal, Seat};
use crate::shared::Shared;

/// How long accepting pauses when the process is out of file descriptors.
const OUT_OF_RESOURCES_PAUSE: Duration = Duration::from_millis(100);

/// The system's default, which `connections.max.idle.ms` only shortens (tcp(7), `tcp_keepalive_time`).
const KEEPALIVE_MAX: Duration = Duration::from_secs(7200);

/// Where to listen.
#[derive(Debug, Clone)]
pub struct ListenerSpec {
    /// As in `listeners=NAME://host:port`.
    pub name: String,
    /// A name or an address; empty means every interface.
    pub host: String,
    /// 0 lets the system choose.
    pub port: u16,
    /// Of a listener whose security protocol is SSL.
    pub tls: Option<ListenerTls>,
}

/// Binds. Must be called inside the runtime.
///
/// # Errors
/// [`ServerError::Bind`] with the address and what the system says: in use, not allowed, not an address of this machine.
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
            shared.lines.seldom(Level::Error, name, text);
            tokio::time::sleep(OUT_OF_RESOURCES_PAUSE).await;
        }
    }
}

/// The next connection. While there are too many, or they come too fast, newcomers wait in the kernel's backlog.
async fn next(shared: &Shared, listener: &TcpListener, name: &str) -> io::Result<(TcpStream, SocketAddr)> {
    shared.connections.room(name).await;
    let accepted = listener.accept().await?;
    let wait = shared.connections.accepted(name);
    if !wait.is_zero() {
        tokio::time::sleep(wait).await;
    }
    Ok(accepted)
}

/// Serves a connection in a task of its own, once there is a place for it.
async fn open(
    shared: &Arc<Shared>,
    spec: &ListenerSpec,
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
    let seat = match shared.connections.enter(&spec.name, ip).await {
        Ok(seat) => seat,
        Err(refusal) => return refuse(shared, stream, peer, &refusal),
    };
    shared.metrics.connections_accepted.add(1);
    let guard = Guard {
        shared: Arc::clone(shared),
        seat,
        peer: canonical(peer),
        _alive: alive.clone(),
    };
    if let Err(error) = tune(shared, &stream) {
        let text = format!("connection from {peer}: cannot set its options: {error}");
        shared.lines.seldom(Level::Warning, "options", text);
    }
    let local = stream.local_addr();
    let local = local.map_or_else(|_| "?".to_owned(), |local| canonical(local).to_string());
    // Two tasks, for one would always have the memory of the larger.
    match &spec.tls {
        None => tokio::spawn(serve(guard, spec.name.clone(), Plain::new(stream), local)),
        Some(tls) => tokio::spawn(serve_tls(guard, spec.name.clone(), tls.clone(), stream, local)),
    };
}

/// Serves a connection to its end.
async fn serve(guard: Guard, listener: String, transport: impl Transport, local: String) {
    let info = Arc::new(ConnectionInfo {
        id: guard.id(&local),
        client_host: guard.peer.ip().to_string(),
        listener,
        principal: transport.principal().to_owned(),
    });
    connection::serve(&guard.shared, transport, info, &guard.seat).await;
    drop(guard);
}

/// The same after TLS's handshake, which has its time, and as long as nobody else needs the place.
async fn serve_tls(guard: Guard, listener: String, tls: ListenerTls, stream: TcpStream, local: String) {
    let shared = &guard.shared;
    let idle = shared.config.connection_idle_max;
    let patience = HANDSHAKE_TIMEOUT.min(idle.unwrap_or(Duration::MAX));
    let mut stopping = shared.stopping.subscribe();
    // A handshake takes more memory than a connection that has it behind it.
    let mut handshake = Box::pin(timeout(patience, tls.accept(stream)));
    let done = tokio::select! {
        biased;
        done = &mut handshake => done,
        _ = stopping.wait_for(|stopping| *stopping) => return,
        () = guard.seat.wanted() => return guard.tell(&listener, &local, Level::Info,
            "in TLS's handshake: there are more than max.connections and it was the idlest"),
    };
    drop(handshake);
    let (level, reason) = match done {
        Ok(Ok(transport)) => {
            shared.connections.authenticated(&guard.seat, true);
            return serve(guard, listener, transport, local).await;
        }
        Ok(Err(Failure::Gone)) => return,
        Ok(Err(Failure::Refused(reason))) => {
            shared.connections.authenticated(&guard.seat, false);
            // What stands before a colon is the kind, of which one is told a minute.
            (Level::Warning, format!("TLS's handshake failed, {reason}"))
        }
        Ok(Err(Failure::NoPrincipal(reason))) => (
            Level::Warning,
            format!("its certificate has no principal: {reason}"),
        ),
        Err(_) => {
            let seconds = patience.as_secs_f64();
            let text = format!("TLS's handshake was not over: it had {seconds} s");
            return guard.tell(&listener, &local, Level::Info, &text);
        }
    };
    shared.metrics.connections_refused.add(1);
    guard.tell(&listener, &local, level, &reason);
}

/// Closes a connection that is not let in: at once, or after the time for which its address must be silent, so that it does
/// not come again before.
fn refuse(shared: &Arc<Shared>, stream: TcpStream, peer: SocketAddr, refusal: &Refusal) {
    let ip = peer.ip().to_canonical();
    shared.metrics.connections_refused.add(1);
    let (text, wait) = match refusal {
        Refusal::TooMany(most) => (
            format!(
                "connection from {peer} closed: {ip} has its {most} connections (max.connections.per.ip) open already"
            ),
            Duration::ZERO,
        ),
        Refusal::TooFast(wait) => (
            format!("connection from {peer} closed: {ip} connects faster than its connection_creation_rate"),
            *wait,
        ),
    };
    shared.lines.seldom(Level::Warning, &ip.to_string(), text);
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

/// When the kernel begins to ask whether a silent peer is still there: one that waits for an answer is not closed for being
/// idle, and one that vanished while it did would never be missed. The system's own default is two hours.
fn keepalive_time(idle: Duration) -> Duration {
    idle.clamp(Duration::from_secs(1), KEEPALIVE_MAX)
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// What a connection takes up, given back when its task ends in whatever way.
struct Guard {
    shared: Arc<Shared>,
    seat: Arc<Seat>,
    peer: SocketAddr,
    _alive: mpsc::Sender<()>,
}

impl Guard {
    /// The connection's name in Kafka's form.
    fn id(&self, local: &str) -> String {
        format!("{local}-{}-{}", self.peer, self.seat.number)
    }

    /// Why it was closed before it was served.
    fn tell(&self, listener: &str, local: &str, level: Level, reason: &str) {
        let id = self.id(local);
        let text = format!("connection {id} closed: {reason}");
        let key = format!("closed {listener} {}", connection::kind_of(reason));
        let lines = &self.shared.lines;
        lines.seldom_with(level, &key, text, || {
            vec![("connection", id), ("listener", listener.to_owned())]
        });
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.shared.connections.leave(&self.seat);
        if std::thread::panicking() {
            self.shared.lines.error(format!(
                "connection from {} closed: its handler panicked, which is a defect of the server",
                self.peer
            ));
        }
    }
}
