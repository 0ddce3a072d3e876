//! Connections to the other members.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, spawn_blocking};
use tokio::time::{Instant, timeout, timeout_at};

use super::frame::{self, FRAME_BYTES, Frame, Kind};
use super::handshake::{self, Identity, Stream, greet};
use super::messages::{get_response, request_frame};
use super::server::{CHUNK_BYTES, READ_BYTES};
use crate::files::snapshots::SnapshotFile;
use crate::raft::requests::{Links, Request, RequestError, Response};
use crate::raft::types::Types;
use crate::servers::{Address, MemberId, Server};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Requests that wait to be written to one connection.
const QUEUED_REQUESTS: usize = 64;

/// This member's connections to the others. A clone is the same.
pub struct TcpLinks<C: Types>(Arc<Shared<C>>);

struct Shared<C: Types> {
    me: Identity,
    slots: Mutex<Slots<C>>,
    /// The members' latest known addresses. A caller may have older ones.
    servers: Mutex<HashMap<MemberId, Server>>,
}

type Slots<C> = HashMap<(MemberId, Stream), Arc<Slot<C>>>;

impl<C: Types> Clone for TcpLinks<C> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// The connection for one member and stream, if there is one.
struct Slot<C: Types> {
    connection: Mutex<Option<Arc<Connection<C>>>>,
    connecting: tokio::sync::Mutex<()>,
}

/// A connection, until either side closes it.
struct Connection<C: Types> {
    frames: mpsc::Sender<Vec<u8>>,
    pending: Arc<Pending<C>>,
    tasks: [AbortHandle; 2],
}

type Waiter<C> = oneshot::Sender<Result<Response<C>, RequestError>>;

/// The requests without a response.
struct Pending<C: Types> {
    /// `None` once the connection is closed.
    by_request: Mutex<Option<HashMap<u32, Waiter<C>>>>,
    next_request: AtomicU64,
    /// The number of responses received.
    responses: AtomicU64,
}

impl<C: Types> Drop for Connection<C> {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl<C: Types> TcpLinks<C> {
    /// Connections are made when there is something to send.
    pub fn new(me: Identity) -> Self {
        Self(Arc::new(Shared {
            me,
            slots: Mutex::default(),
            servers: Mutex::default(),
        }))
    }

    /// Sets the addresses for new connections. Existing connections stay.
    pub fn set_servers<'a>(&self, members: impl Iterator<Item = (&'a MemberId, &'a Server)>) {
        let servers = members.map(|(id, server)| (*id, server.clone())).collect();
        *self.0.servers.lock() = servers;
    }

    fn slot(&self, member: MemberId, stream: Stream) -> Arc<Slot<C>> {
        let mut slots = self.0.slots.lock();
        let slot = slots.entry((member, stream)).or_insert_with(|| {
            Arc::new(Slot {
                connection: Mutex::new(None),
                connecting: tokio::sync::Mutex::new(()),
            })
        });
        slot.clone()
    }

    async fn connection(
        &self,
        member: MemberId,
        server: &Server,
        stream: Stream,
    ) -> Result<Arc<Connection<C>>, RequestError> {
        let slot = self.slot(member, stream);
        if let Some(connection) = slot.current() {
            return Ok(connection);
        }
        let (me, addresses) = (self.0.me, stream.addresses(server).to_vec());
        // The caller may have less time than connecting takes. The task goes on, and the next caller finds
        // its result.
        let connected = tokio::spawn(async move {
            let _guard = slot.connecting.lock().await;
            if let Some(connection) = slot.current() {
                return Ok(connection);
            }
            let connection = connect(me, member, &addresses, stream).await?;
            let connection = Arc::new(Connection::start(connection));
            *slot.connection.lock() = Some(connection.clone());
            Ok(connection)
        });
        connected.await.map_err(RequestError::broken)?
    }

    async fn exchange(
        &self,
        member: MemberId,
        server: &Server,
        stream: Stream,
        timeout: Duration,
        frame: impl FnOnce(u32) -> Vec<u8>,
    ) -> Result<Response<C>, RequestError> {
        let deadline = Instant::now() + timeout;
        let connection = timeout_at(deadline, self.connection(member, server, stream));
        let connection = connection.await.map_err(|_| RequestError::TimedOut)??;
        let pending = &connection.pending;
        let responses = pending.responses.load(Ordering::Relaxed);
        let request = pending.next_request.fetch_add(1, Ordering::Relaxed) as u32;
        let (waiter, response) = oneshot::channel();
        match &mut *pending.by_request.lock() {
            Some(by_request) => by_request.insert(request, waiter),
            None => return Err(closed()),
        };
        let _forget = Forget(pending, request);
        let exchanged = async {
            let sent = connection.frames.send(frame(request)).await;
            sent.map_err(|_| closed())?;
            response.await.map_err(|_| closed())?
        };
        match timeout_at(deadline, exchanged).await {
            Ok(response) => response,
            Err(_) => {
                // A connection on which something else arrived meanwhile is alive.
                if pending.responses.load(Ordering::Relaxed) == responses {
                    self.slot(member, stream).close(&connection);
                }
                Err(RequestError::TimedOut)
            }
        }
    }

    async fn send_snapshot(
        &self,
        member: MemberId,
        server: &Server,
        request: &Request<C, SnapshotFile>,
        file: &SnapshotFile,
    ) -> Result<Response<C>, RequestError> {
        let (mut file, length) = file.open_whole().map_err(RequestError::broken)?;
        let addresses = Stream::Snapshot.addresses(server);
        let mut connection = connect(self.0.me, member, addresses, Stream::Snapshot).await?;
        let front = request_frame(0, request, length);
        let written = connection.write_all(&front).await;
        written.map_err(RequestError::broken)?;
        let mut left = length;
        while left > 0 {
            let wanted = left.min(CHUNK_BYTES as u64) as usize;
            let read = move || {
                let mut chunk = vec![0; wanted];
                io::Read::read_exact(&mut file, &mut chunk).map(|()| (file, chunk))
            };
            let chunk;
            (file, chunk) = spawn_blocking(read)
                .await
                .map_err(io::Error::other)
                .and_then(|read| read)
                .map_err(RequestError::broken)?;
            let written = connection.write_all(&chunk).await;
            written.map_err(RequestError::broken)?;
            left -= wanted as u64;
        }
        let frame = frame::read(&mut connection, FRAME_BYTES).await;
        let frame = frame.map_err(RequestError::broken)?.ok_or_else(closed)?;
        response_of(frame.kind, frame.body)
    }
}

/// Removes a request when nobody waits for it any more.
struct Forget<'a, C: Types>(&'a Pending<C>, u32);

impl<C: Types> Drop for Forget<'_, C> {
    fn drop(&mut self) {
        if let Some(by_request) = &mut *self.0.by_request.lock() {
            by_request.remove(&self.1);
        }
    }
}

impl<C: Types> Slot<C> {
    fn current(&self) -> Option<Arc<Connection<C>>> {
        let connection = self.connection.lock();
        let is_open = |open: &&Arc<Connection<C>>| open.pending.by_request.lock().is_some();
        connection.as_ref().filter(is_open).cloned()
    }

    fn close(&self, closing: &Arc<Connection<C>>) {
        let mut current = self.connection.lock();
        if current
            .as_ref()
            .is_some_and(|current| Arc::ptr_eq(current, closing))
        {
            *current = None;
        }
        closing.pending.end();
    }
}

impl<C: Types> Pending<C> {
    /// Fails all requests.
    fn end(&self) {
        self.by_request.lock().take();
    }
}

impl<C: Types> Connection<C> {
    fn start(connection: TcpStream) -> Self {
        let (reads, writes) = connection.into_split();
        let reads = BufReader::with_capacity(READ_BYTES, reads);
        let (frames, queue) = mpsc::channel(QUEUED_REQUESTS);
        let pending = Arc::new(Pending {
            by_request: Mutex::new(Some(HashMap::new())),
            next_request: AtomicU64::new(0),
            responses: AtomicU64::new(0),
        });
        let (writer, reader) = (pending.clone(), pending.clone());
        let writing = tokio::spawn(async move {
            let _ended = frame::write_all(writes, queue).await;
            writer.end();
        });
        let reading = tokio::spawn(async move {
            let _ended = read_responses(reads, &reader).await;
            reader.end();
        });
        Self {
            frames,
            pending,
            tasks: [writing.abort_handle(), reading.abort_handle()],
        }
    }
}

async fn read_responses<C: Types>(
    mut reads: BufReader<OwnedReadHalf>,
    pending: &Pending<C>,
) -> io::Result<()> {
    while let Some(Frame { kind, request, body }) = frame::read(&mut reads, FRAME_BYTES).await? {
        let response = response_of(kind, body);
        pending.responses.fetch_add(1, Ordering::Relaxed);
        let waiter = match &mut *pending.by_request.lock() {
            Some(by_request) => by_request.remove(&request),
            None => return Ok(()),
        };
        if let Some(waiter) = waiter {
            // The caller may have given up.
            let _ = waiter.send(response);
        }
    }
    Ok(())
}

fn closed() -> RequestError {
    RequestError::broken("the connection was closed")
}

fn response_of<C: Types>(kind: Kind, body: Bytes) -> Result<Response<C>, RequestError> {
    match get_response(kind, body) {
        Ok(response) => response.map_err(RequestError::Broken),
        Err(error) => Err(RequestError::broken(error)),
    }
}

/// Connects to the first address that accepts this member.
async fn connect(
    me: Identity,
    member: MemberId,
    addresses: &[Address],
    stream: Stream,
) -> Result<TcpStream, RequestError> {
    let mut reasons = Vec::new();
    for Address { host, port } in addresses {
        let connected = timeout(CONNECT_TIMEOUT, TcpStream::connect((host.as_str(), *port)));
        let reason = match connected.await {
            Ok(Ok(connection)) => {
                let greeted = timeout(handshake::TIMEOUT, greet(connection, me, member, stream));
                match greeted.await {
                    Ok(Ok(connection)) => return Ok(connection),
                    Ok(Err(error)) => format!("{host}:{port}: {error}"),
                    Err(_) => format!("{host}:{port} does not answer"),
                }
            }
            Ok(Err(error)) => format!("{host}:{port}: {error}"),
            Err(_) => format!("{host}:{port} cannot be reached"),
        };
        reasons.push(reason);
    }
    Err(RequestError::Unreachable(reasons.join("; ")))
}

impl<C: Types> Links<C, SnapshotFile> for TcpLinks<C> {
    async fn request(
        &self,
        member: MemberId,
        server: &Server,
        request: Request<C, SnapshotFile>,
        timeout: Duration,
    ) -> Result<Response<C>, RequestError> {
        let latest = self.0.servers.lock().get(&member).cloned();
        let server = latest.as_ref().unwrap_or(server);
        let stream = match &request {
            Request::Snapshot(_, snapshot) => {
                let sent = self.send_snapshot(member, server, &request, &snapshot.snapshot);
                let sent = tokio::time::timeout(timeout, sent).await;
                return sent.unwrap_or(Err(RequestError::TimedOut));
            }
            Request::Append(append) if !append.entries.is_empty() => Stream::Log,
            Request::Propose(..) => Stream::Log,
            _ => Stream::Control,
        };
        let frame = |number| request_frame(number, &request, 0);
        self.exchange(member, server, stream, timeout, frame).await
    }
}
