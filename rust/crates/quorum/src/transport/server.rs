//! Connections from the other members.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::BufMut;
use futures_util::future::{Either, select};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader};
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::frame::{self, FRAME_BYTES, Kind, MEMORY_KIB, malformed};
use super::handshake::{self, HELLO_BYTES, Identity, Target};
use super::messages::{get_request, get_snapshot, is_for_any_member, response_frame};
use crate::files::snapshots::{Received, SnapshotFile};
use crate::raft::requests::{Request, RequestError, Response};
use crate::raft::types::{Snapshot, Types};

/// Connections of a port whose peers have identified themselves. More are refused.
const CONNECTIONS: usize = 256;
/// Connections beyond those, for peers that have not identified themselves. More are closed at once.
const HANDSHAKES: usize = 64;
/// Requests of one connection without a response. More are not read.
const REQUESTS: usize = 64;
/// The limit of a request to any member of a server.
const SERVER_REQUEST_BYTES: usize = 4 << 10;
/// An idle connection is closed after this time. Its peer connects again when it has something to send.
const IDLE: Duration = Duration::from_secs(60);
/// The pause after a failed accept, as when there are too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The size of one read. Most frames are small and come whole.
pub(super) const READ_BYTES: usize = 4 << 10;
/// Snapshots are sent and received in pieces of this size.
pub(super) const CHUNK_BYTES: usize = 256 << 10;

const TOO_MANY: &str = "there are too many connections";

/// Answers requests for this member.
pub trait Handler<C: Types>: Clone + Send + Sync + 'static {
    fn identity(&self) -> Identity;

    fn handle(
        &self,
        request: Request<C, SnapshotFile>,
    ) -> impl Future<Output = Result<Response<C>, RequestError>> + Send;

    /// Begins a file for a snapshot that another member sends.
    fn receive(&self) -> io::Result<Received>;
}

/// Serves a port until the future is dropped. `report` is called with the reason when a connection fails.
pub async fn serve<C: Types>(
    listener: TcpListener,
    handler: impl Handler<C>,
    report: impl Fn(String) + Clone + Send + Sync + 'static,
) {
    let limits = Arc::new(Limits {
        accepted: Arc::new(Semaphore::new(CONNECTIONS + HANDSHAKES)),
        identified: Arc::new(Semaphore::new(CONNECTIONS)),
        memory: Arc::new(Semaphore::new(MEMORY_KIB)),
    });
    let mut connections = tokio::task::JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let (connection, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                report(format!("accepting a connection: {error}"));
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(accepted) = limits.accepted.clone().try_acquire_owned() else {
            report(format!("the connection from {from}: {TOO_MANY}"));
            continue;
        };
        let (handler, report, limits) = (handler.clone(), report.clone(), limits.clone());
        connections.spawn(async move {
            let _accepted = accepted;
            if let Err(error) = serve_connection(connection, &limits, handler).await {
                report(format!("the connection from {from}: {error}"));
            }
        });
    }
}

/// The limits of one port.
struct Limits {
    accepted: Arc<Semaphore>,
    identified: Arc<Semaphore>,
    /// KiB for requests.
    memory: Arc<Semaphore>,
}

async fn serve_connection<C: Types>(
    connection: TcpStream,
    limits: &Limits,
    handler: impl Handler<C>,
) -> io::Result<()> {
    connection.set_nodelay(true)?;
    let (reads, mut writes) = connection.into_split();
    let mut reads = BufReader::with_capacity(READ_BYTES, reads);
    let hello = timeout(handshake::TIMEOUT, frame::read(&mut reads, HELLO_BYTES)).await;
    let hello = hello.map_err(|_| io::Error::other("the peer did not identify itself in time"))??;
    let hello = hello.ok_or(io::ErrorKind::UnexpectedEof)?;
    let admitted = handshake::check(handler.identity(), hello).and_then(|target| {
        let identified = limits.identified.clone().try_acquire_owned();
        Ok((target, identified.map_err(|_| TOO_MANY.to_owned())?))
    });
    let (target, _identified) = match admitted {
        Ok(admitted) => admitted,
        Err(why) => {
            let refusal = frame::encode(Kind::Refused, 0, |out| out.put_slice(why.as_bytes()));
            // The peer need not read it.
            let _ = timeout(handshake::TIMEOUT, writes.write_all(&refusal)).await;
            return Err(io::Error::other(why));
        }
    };
    writes.write_all(&frame::encode(Kind::Welcome, 0, |_| {})).await?;
    let (frames, queue) = mpsc::channel(REQUESTS);
    // The connection ends when either half does.
    let written = pin!(frame::write_all(writes, queue));
    let read = pin!(read_requests(reads, target, handler, frames, &limits.memory));
    match select(read, written).await {
        Either::Left((ended, _)) | Either::Right((ended, _)) => ended,
    }
}

async fn read_requests<C: Types>(
    mut reads: BufReader<OwnedReadHalf>,
    target: Target,
    handler: impl Handler<C>,
    frames: mpsc::Sender<Vec<u8>>,
    memory: &Arc<Semaphore>,
) -> io::Result<()> {
    let mut tasks = tokio::task::JoinSet::new();
    let slots = Arc::new(Semaphore::new(REQUESTS));
    let limit = match target {
        Target::Member => FRAME_BYTES,
        Target::Server => SERVER_REQUEST_BYTES,
    };
    loop {
        if timeout(IDLE, reads.fill_buf()).await.is_err() {
            return Ok(());
        }
        let Some(front) = frame::read_front(&mut reads, limit).await? else {
            return Ok(());
        };
        let (body, memory) = frame::read_body(&mut reads, front.length, Some(memory)).await?;
        while tasks.len() > REQUESTS && tasks.try_join_next().is_some() {}
        if target == Target::Server && !is_for_any_member(front.kind) {
            return Err(io::Error::other(
                "it asks a server for what only a member answers",
            ));
        }
        let request = match front.kind {
            Kind::Snapshot => {
                let (vote, length) = get_snapshot(body).map_err(malformed)?;
                let snapshot = receive(&mut reads, length, handler.receive()?).await?;
                Request::Snapshot(vote, snapshot)
            }
            kind => get_request(kind, body).map_err(malformed)?,
        };
        let Ok(slot) = slots.clone().acquire_owned().await else {
            return Ok(());
        };
        tasks.spawn(respond(
            handler.clone(),
            request,
            front.request,
            frames.clone(),
            (slot, memory),
        ));
    }
}

/// Handles a request. Its slot and its memory are free once the response is queued.
async fn respond<C: Types>(
    handler: impl Handler<C>,
    request: Request<C, SnapshotFile>,
    number: u32,
    frames: mpsc::Sender<Vec<u8>>,
    _permits: (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>),
) {
    let frame = match handler.handle(request).await {
        Ok(response) => response_frame(number, &response),
        Err(why) => frame::encode(Kind::Failed, number, |out| {
            out.put_slice(why.to_string().as_bytes());
        }),
    };
    // The connection may have ended.
    let _ = frames.send(frame).await;
}

async fn receive(
    reads: &mut (impl AsyncRead + Unpin),
    length: u64,
    mut received: Received,
) -> io::Result<Snapshot<SnapshotFile>> {
    let mut left = length;
    while left > 0 {
        let mut chunk = vec![0; left.min(CHUNK_BYTES as u64) as usize];
        frame::fill(reads, &mut chunk).await?;
        left -= chunk.len() as u64;
        let write = move || received.write(&chunk).map(|()| received);
        received = spawn_blocking(write).await.map_err(io::Error::other)??;
    }
    spawn_blocking(|| received.finish())
        .await
        .map_err(io::Error::other)?
}
