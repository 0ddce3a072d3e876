//! Members that reach each other over TCP.
//!
//! A member dials another for each [`Stream`] it has something to say on, and keeps the connection; a snapshot has one of its
//! own, so that nothing waits behind it. Who is dialled answers on the same connection, in whatever order it is done. A
//! connection begins with who is meant: one to another ensemble, or to a member that is not there any more, is refused. One
//! that means a server, whichever member it is, may ask for no more than what a member without a directory needs to know.
//!
//! A peer that is gone without a word is noticed at both ends: a request that is not answered in time gives its connection up,
//! if nothing at all was heard on it meanwhile; who was dialled ends a connection on which nothing comes. Who has not said who
//! it is has [`HELLO_BYTES`] and [`HANDSHAKE`], and no more than [`STRANGERS`] of those are there at once: the newest.
//!
//! Requests take memory as their bytes come, and until they are answered, those of one port [`FRAMES_KIB`] together: a connection
//! on which more comes is ended.
//!
//! The ports trust their network, as ZooKeeper's do without TLS.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::{AbortHandle, spawn_blocking};
use tokio::time::timeout;

use crate::network::{Answer, Links, NoAnswer, Request};
use crate::snapshots::{Received, SnapshotFile};
use crate::types::{Address, MemberId, Server, Types};
use crate::wire::{self, FRAME_FRONT, Kind, WireError};

const MAGIC: &[u8; 4] = b"LCQ1";
const VERSION: u8 = 1;
/// Before it is known who is there.
const HELLO_BYTES: usize = 512;
/// The largest entry and what is around it.
const FRAME_BYTES: usize = 72 << 20;
const CHUNK: usize = 256 << 10;
/// What is read at once of small frames, which mostly come whole.
const READ_BYTES: usize = 4 << 10;
const CONNECT: Duration = Duration::from_secs(2);
const HANDSHAKE: Duration = Duration::from_secs(2);
/// What a peer may have sent without an answer yet.
const REQUESTS_AT_ONCE: usize = 64;
/// What requests that are being received or answered may have of a port's memory, in KiB: more than the largest takes.
const FRAMES_KIB: usize = 128 << 10;
/// A request of so many bytes takes none of it: votes and heartbeats do not wait for what is large.
const SMALL_BYTES: usize = 16 << 10;
/// Connections of a port whose peers said who they are and mean this member.
const CONNECTIONS: usize = 256;
/// Of those who mean the server, and how long they may stay.
const VISITORS: usize = 32;
const VISIT: Duration = Duration::from_secs(10);
const VISITOR_BYTES: usize = 4 << 10;
/// Of those who did not say yet who they are.
const STRANGERS: usize = 64;
/// A connection on which nothing comes for so long is ended; its peer dials again when it has something to say.
const IDLE: Duration = Duration::from_secs(60);
/// As one on which a frame stands still for so long, whichever way it goes.
const STALLED: Duration = Duration::from_secs(10);

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Stream {
    /// Votes and heartbeats; the election port.
    Control = 0,
    /// Entries and what is proposed; the quorum port.
    Log = 1,
    /// One snapshot; the quorum port.
    Snapshot = 2,
}

impl Stream {
    fn addresses(self, server: &Server) -> &[Address] {
        match self {
            Self::Control if !server.election.is_empty() => &server.election,
            _ => &server.quorum,
        }
    }
}

/// Who a member is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The ensemble's, the same for all of its members.
    pub ensemble: [u8; 16],
    /// 0 for one that is none yet.
    pub member: MemberId,
    /// Whose member it is.
    pub server: u16,
}

/// Whoever answers on behalf of this member.
pub trait Answers<C: Types>: Clone + Send + Sync + 'static {
    /// Who this member is.
    fn identity(&self) -> Identity;

    /// Does what another member asks.
    fn answer(
        &self,
        request: Request<C, SnapshotFile>,
    ) -> impl Future<Output = Result<Answer<C>, NoAnswer>> + Send;

    /// Where to put a snapshot that another member sends.
    fn receive(&self) -> io::Result<Received>;
}

type Reads = BufReader<OwnedReadHalf>;

// ---- dialling ----

/// This member's ways to the others. A clone is the same.
pub struct TcpLinks<C: Types>(Arc<Ways<C>>);

struct Ways<C: Types> {
    me: Identity,
    by_peer: Mutex<ByPeer<C>>,
    /// Where members are by what is known last; who asks may know less.
    places: Mutex<HashMap<MemberId, Server>>,
}

type ByPeer<C> = HashMap<(MemberId, Stream), Arc<Way<C>>>;

impl<C: Types> Clone for TcpLinks<C> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// A connection that there may be.
struct Way<C: Types> {
    live: Mutex<Option<Arc<Live<C>>>>,
    dialling: tokio::sync::Mutex<()>,
}

/// A connection that there is, until one side ends it.
struct Live<C: Types> {
    frames: mpsc::Sender<Vec<u8>>,
    expected: Arc<Expected<C>>,
    tasks: [AbortHandle; 2],
}

type Expecting<C> = oneshot::Sender<Result<Answer<C>, NoAnswer>>;

struct Expected<C: Types> {
    /// `None` once the connection has ended.
    by_request: Mutex<Option<HashMap<u32, Expecting<C>>>>,
    next: AtomicU64,
    /// How many answers came.
    heard: AtomicU64,
}

impl<C: Types> Drop for Live<C> {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl<C: Types> TcpLinks<C> {
    /// Nobody is dialled before there is something to say.
    pub fn new(me: Identity) -> Self {
        Self(Arc::new(Ways {
            me,
            by_peer: Mutex::default(),
            places: Mutex::default(),
        }))
    }

    /// Where members are from here on. A connection to where one was stays as long as it lasts.
    pub fn know<'a>(&self, members: impl Iterator<Item = (&'a MemberId, &'a Server)>) {
        let places = members.map(|(id, server)| (*id, server.clone())).collect();
        *self.0.places.lock() = places;
    }

    fn way(&self, member: MemberId, stream: Stream) -> Arc<Way<C>> {
        let mut ways = self.0.by_peer.lock();
        let way = ways.entry((member, stream)).or_insert_with(|| {
            Arc::new(Way {
                live: Mutex::new(None),
                dialling: tokio::sync::Mutex::new(()),
            })
        });
        way.clone()
    }

    async fn live(
        &self,
        member: MemberId,
        server: &Server,
        stream: Stream,
    ) -> Result<Arc<Live<C>>, NoAnswer> {
        let way = self.way(member, stream);
        if let Some(live) = way.current() {
            return Ok(live);
        }
        let (me, addresses) = (self.0.me, stream.addresses(server).to_vec());
        // Whoever asked may not wait as long as a far connection takes to come about; the next will find it.
        let dialled = tokio::spawn(async move {
            let _alone = way.dialling.lock().await;
            if let Some(live) = way.current() {
                return Ok(live);
            }
            let connection = dial(me, member, &addresses, stream).await?;
            let live = Arc::new(Live::start(connection));
            *way.live.lock() = Some(live.clone());
            Ok(live)
        });
        dialled
            .await
            .map_err(|error| NoAnswer::Broken(error.to_string()))?
    }

    async fn converse(
        &self,
        member: MemberId,
        server: &Server,
        stream: Stream,
        patience: Duration,
        frame: impl FnOnce(u32) -> Vec<u8>,
    ) -> Result<Answer<C>, NoAnswer> {
        let deadline = tokio::time::Instant::now() + patience;
        let live = tokio::time::timeout_at(deadline, self.live(member, server, stream));
        let live = live.await.map_err(|_| NoAnswer::TimedOut)??;
        let heard = live.expected.heard.load(Ordering::Relaxed);
        let request = live.expected.next.fetch_add(1, Ordering::Relaxed) as u32;
        let (told, answered) = oneshot::channel();
        match &mut *live.expected.by_request.lock() {
            Some(expected) => expected.insert(request, told),
            None => return Err(NoAnswer::Broken("the connection ended".to_owned())),
        };
        let _forget = Forget(&live.expected, request);
        let asked = async {
            let ended = || NoAnswer::Broken("the connection ended".to_owned());
            live.frames.send(frame(request)).await.map_err(|_| ended())?;
            answered.await.map_err(|_| ended())?
        };
        match tokio::time::timeout_at(deadline, asked).await {
            Ok(answer) => answer,
            Err(_) => {
                if live.expected.heard.load(Ordering::Relaxed) == heard {
                    self.way(member, stream).give_up(&live);
                }
                Err(NoAnswer::TimedOut)
            }
        }
    }

    async fn send_snapshot(
        &self,
        member: MemberId,
        server: &Server,
        request: &Request<C, SnapshotFile>,
        file: &SnapshotFile,
    ) -> Result<Answer<C>, NoAnswer> {
        let broken = |error: io::Error| NoAnswer::Broken(error.to_string());
        let (file, length) = file.open_whole().map_err(broken)?;
        let addresses = Stream::Snapshot.addresses(server);
        let mut connection = dial(self.0.me, member, addresses, Stream::Snapshot).await?;
        let front = wire::request_frame(0, request, length);
        connection.write_all(&front).await.map_err(broken)?;
        let (mut file, mut left) = (file, length);
        while left > 0 {
            let wanted = left.min(CHUNK as u64) as usize;
            let read = move || {
                let mut chunk = vec![0; wanted];
                io::Read::read_exact(&mut file, &mut chunk).map(|()| (file, chunk))
            };
            let chunk;
            (file, chunk) = spawn_blocking(read)
                .await
                .map_err(io::Error::other)
                .and_then(|read| read)
                .map_err(broken)?;
            connection.write_all(&chunk).await.map_err(broken)?;
            left -= wanted as u64;
        }
        let (kind, _, body) = read_frame(&mut connection, FRAME_BYTES)
            .await
            .map_err(broken)?
            .ok_or_else(|| NoAnswer::Broken("the connection ended".to_owned()))?;
        answer_of(kind, body)
    }
}

struct Forget<'a, C: Types>(&'a Expected<C>, u32);

impl<C: Types> Drop for Forget<'_, C> {
    fn drop(&mut self) {
        if let Some(expected) = &mut *self.0.by_request.lock() {
            expected.remove(&self.1);
        }
    }
}

impl<C: Types> Way<C> {
    fn current(&self) -> Option<Arc<Live<C>>> {
        let live = self.live.lock();
        let open = |live: &&Arc<Live<C>>| live.expected.by_request.lock().is_some();
        live.as_ref().filter(open).cloned()
    }

    fn give_up(&self, given_up: &Arc<Live<C>>) {
        let mut live = self.live.lock();
        if live.as_ref().is_some_and(|live| Arc::ptr_eq(live, given_up)) {
            *live = None;
        }
        given_up.expected.end();
    }
}

impl<C: Types> Expected<C> {
    /// Whoever waits is told that nothing comes any more.
    fn end(&self) {
        self.by_request.lock().take();
    }
}

impl<C: Types> Live<C> {
    fn start(connection: TcpStream) -> Self {
        let (reads, writes) = connection.into_split();
        let reads = BufReader::with_capacity(READ_BYTES, reads);
        let (frames, to_write) = mpsc::channel(REQUESTS_AT_ONCE);
        let expected = Arc::new(Expected {
            by_request: Mutex::new(Some(HashMap::new())),
            next: AtomicU64::new(0),
            heard: AtomicU64::new(0),
        });
        let (written, heard) = (expected.clone(), expected.clone());
        let writing = tokio::spawn(async move {
            let _ended = write_frames(writes, to_write).await;
            written.end();
        });
        let reading = tokio::spawn(async move {
            let _ended = hear(reads, &heard).await;
            heard.end();
        });
        Self {
            frames,
            expected,
            tasks: [writing.abort_handle(), reading.abort_handle()],
        }
    }
}

async fn write_frames(mut writes: OwnedWriteHalf, mut frames: mpsc::Receiver<Vec<u8>>) -> io::Result<()> {
    while let Some(frame) = frames.recv().await {
        let mut left = &frame[..];
        while !left.is_empty() {
            let written = timeout(STALLED, writes.write(left)).await;
            left = &left[written.map_err(|_| stalled())??..];
        }
    }
    Ok(())
}

fn stalled() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the peer stands still")
}

async fn hear<C: Types>(mut reads: Reads, expected: &Expected<C>) -> io::Result<()> {
    while let Some((kind, request, body)) = read_frame(&mut reads, FRAME_BYTES).await? {
        let answer = answer_of(kind, body);
        expected.heard.fetch_add(1, Ordering::Relaxed);
        let waiting = match &mut *expected.by_request.lock() {
            Some(waiting) => waiting.remove(&request),
            None => return Ok(()),
        };
        if let Some(waiting) = waiting {
            // It may have given up.
            let _ = waiting.send(answer);
        }
    }
    Ok(())
}

fn answer_of<C: Types>(kind: Kind, body: Bytes) -> Result<Answer<C>, NoAnswer> {
    match wire::get_answer(kind, body) {
        Ok(answer) => answer.map_err(NoAnswer::Broken),
        Err(error) => Err(NoAnswer::Broken(error.to_string())),
    }
}

async fn dial(
    me: Identity,
    member: MemberId,
    addresses: &[Address],
    stream: Stream,
) -> Result<TcpStream, NoAnswer> {
    let mut reasons = Vec::new();
    for address in addresses {
        let place = (address.host.as_str(), address.port);
        match timeout(CONNECT, TcpStream::connect(place)).await {
            Ok(Ok(connection)) => match timeout(HANDSHAKE, greet(connection, me, member, stream)).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(error)) => reasons.push(format!("{}:{}: {error}", place.0, place.1)),
                Err(_) => reasons.push(format!("{}:{} does not answer", place.0, place.1)),
            },
            Ok(Err(error)) => reasons.push(format!("{}:{}: {error}", place.0, place.1)),
            Err(_) => reasons.push(format!("{}:{} cannot be reached", place.0, place.1)),
        }
    }
    Err(NoAnswer::Unreachable(reasons.join("; ")))
}

async fn greet(
    mut connection: TcpStream,
    me: Identity,
    member: MemberId,
    stream: Stream,
) -> io::Result<TcpStream> {
    connection.set_nodelay(true)?;
    let hello = wire::frame(Kind::Hello, 0, |out| {
        out.put_slice(MAGIC);
        out.put_u8(VERSION);
        out.put_u8(stream as u8);
        out.put_slice(&me.ensemble);
        out.put_u64(me.member);
        out.put_u64(member);
    });
    connection.write_all(&hello).await?;
    match read_frame(&mut connection, HELLO_BYTES).await? {
        Some((Kind::Welcome, ..)) => Ok(connection),
        Some((Kind::Refused, _, why)) => {
            let why = String::from_utf8_lossy(&why);
            Err(io::Error::other(format!("it refuses: {why}")))
        }
        Some(_) => Err(io::Error::other("it is no member of an ensemble")),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

impl<C: Types> Links<C, SnapshotFile> for TcpLinks<C> {
    async fn ask(
        &self,
        member: MemberId,
        server: &Server,
        request: Request<C, SnapshotFile>,
        patience: Duration,
    ) -> Result<Answer<C>, NoAnswer> {
        let known = self.0.places.lock().get(&member).cloned();
        let server = known.as_ref().unwrap_or(server);
        let stream = match &request {
            Request::Snapshot(_, snapshot) => {
                let sent = self.send_snapshot(member, server, &request, &snapshot.snapshot);
                let sent = timeout(patience, sent).await;
                return sent.unwrap_or(Err(NoAnswer::TimedOut));
            }
            Request::Append(append) if !append.entries.is_empty() => Stream::Log,
            Request::Propose(..) => Stream::Log,
            _ => Stream::Control,
        };
        let frame = |number| wire::request_frame(number, &request, 0);
        self.converse(member, server, stream, patience, frame).await
    }
}

// ---- being dialled ----

/// Answers whoever dials, until it is dropped. What ends a connection is told to `told`.
pub async fn serve<C: Types>(
    listener: TcpListener,
    answers: impl Answers<C>,
    told: impl Fn(String) + Clone + Send + Sync + 'static,
) {
    let rooms = Arc::new(Rooms {
        members: Arc::new(Semaphore::new(CONNECTIONS)),
        visitors: Arc::new(Semaphore::new(VISITORS)),
        frames: Arc::new(Semaphore::new(FRAMES_KIB)),
    });
    let mut strangers: VecDeque<oneshot::Sender<()>> = VecDeque::new();
    let mut connections = tokio::task::JoinSet::new();
    loop {
        // Those that have ended are not kept.
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((connection, from)) => {
                let (answers, told, rooms) = (answers.clone(), told.clone(), rooms.clone());
                strangers.retain(|stranger| !stranger.is_closed());
                if strangers.len() == STRANGERS {
                    strangers.pop_front();
                }
                let (stays, displaced) = oneshot::channel();
                strangers.push_back(stays);
                connections.spawn(async move {
                    if let Err(error) = attend(connection, displaced, &rooms, answers).await {
                        told(format!("the connection of {from}: {error}"));
                    }
                });
            }
            Err(error) => {
                told(format!("accepting a connection: {error}"));
                // Too many open files, for one: that passes.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Who may be there at once, and with how much.
struct Rooms {
    members: Arc<Semaphore>,
    visitors: Arc<Semaphore>,
    /// KiB for what they ask.
    frames: Arc<Semaphore>,
}

/// Serves one connection. `displaced` ends when others came that have not said who they are either.
async fn attend<C: Types>(
    connection: TcpStream,
    displaced: oneshot::Receiver<()>,
    rooms: &Rooms,
    answers: impl Answers<C>,
) -> io::Result<()> {
    connection.set_nodelay(true)?;
    let (reads, mut writes) = connection.into_split();
    let mut reads = BufReader::with_capacity(READ_BYTES, reads);
    let hello = {
        let hello = pin!(timeout(HANDSHAKE, read_frame(&mut reads, HELLO_BYTES)));
        match select(hello, displaced).await {
            Either::Left((hello, _)) => hello,
            Either::Right(_) => {
                return Err(io::Error::other("it did not say who it is, and others came"));
            }
        }
    };
    let hello = hello.map_err(|_| io::Error::other("it did not say who it is"))??;
    let hello = hello.ok_or(io::ErrorKind::UnexpectedEof)?;
    let admitted = check_hello(answers.identity(), hello).and_then(|meant| {
        let room = match meant {
            Meant::Member => &rooms.members,
            Meant::Server => &rooms.visitors,
        };
        let permit = room.clone().try_acquire_owned();
        let permit = permit.map_err(|_| "there are too many connections".to_owned())?;
        Ok((meant, permit))
    });
    let (meant, _permit) = match admitted {
        Ok(admitted) => admitted,
        Err(why) => {
            let refusal = wire::frame(Kind::Refused, 0, |out| out.put_slice(why.as_bytes()));
            // What the peer does with it is its own affair; it is one frame.
            let _ = timeout(HANDSHAKE, writes.write_all(&refusal)).await;
            return Err(io::Error::other(why));
        }
    };
    writes.write_all(&wire::frame(Kind::Welcome, 0, |_| {})).await?;
    let (frames, to_write) = mpsc::channel(REQUESTS_AT_ONCE);
    // Whichever ends first ends the connection, and what it still does.
    let written = pin!(write_frames(writes, to_write));
    let heard = pin!(take_requests(reads, meant, answers, frames, &rooms.frames));
    let visit = async {
        match meant {
            Meant::Member => std::future::pending().await,
            Meant::Server => tokio::time::sleep(VISIT).await,
        }
    };
    match select(select(heard, written), pin!(visit)).await {
        Either::Left((Either::Left((ended, _)) | Either::Right((ended, _)), _)) => ended,
        Either::Right(_) => Ok(()),
    }
}

/// Does what comes on a connection.
async fn take_requests<C: Types>(
    mut reads: Reads,
    meant: Meant,
    answers: impl Answers<C>,
    frames: mpsc::Sender<Vec<u8>>,
    memory: &Arc<Semaphore>,
) -> io::Result<()> {
    let mut tasks = tokio::task::JoinSet::new();
    let room = Arc::new(Semaphore::new(REQUESTS_AT_ONCE));
    let most = match meant {
        Meant::Member => FRAME_BYTES,
        Meant::Server => VISITOR_BYTES,
    };
    loop {
        if timeout(IDLE, reads.fill_buf()).await.is_err() {
            return Ok(());
        }
        let Some((kind, number, length)) = read_front(&mut reads, most).await? else {
            return Ok(());
        };
        let (mut body, held) = read_body(&mut reads, length, Some(memory)).await?;
        while tasks.len() > REQUESTS_AT_ONCE && tasks.try_join_next().is_some() {}
        let for_all = matches!(kind, Kind::Whois | Kind::Found | Kind::Join);
        if meant == Meant::Server && !for_all {
            return Err(io::Error::other("it asks a server what only a member answers"));
        }
        let request = if kind == Kind::Snapshot {
            let vote = wire::get_vote(&mut body).map_err(invalid)?;
            let length = body.try_get_u64().map_err(|error| invalid(error.into()))?;
            wire::end(&body).map_err(invalid)?;
            let received = receive(&mut reads, length, answers.receive()?).await?;
            let snapshot = spawn_blocking(|| received.finish())
                .await
                .map_err(io::Error::other)??;
            Request::Snapshot(vote, snapshot)
        } else {
            request_of(kind, body).map_err(invalid)?
        };
        let Ok(permit) = room.clone().acquire_owned().await else {
            return Ok(());
        };
        let (answers, frames) = (answers.clone(), frames.clone());
        tasks.spawn(async move {
            let _held = (permit, held);
            let frame = match answers.answer(request).await {
                Ok(answer) => wire::answer_frame(number, &answer),
                Err(why) => wire::frame(Kind::Failed, number, |out| {
                    out.put_slice(why.to_string().as_bytes());
                }),
            };
            // The connection may have ended.
            let _ = frames.send(frame).await;
        });
    }
}

/// Whom a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meant {
    /// This member.
    Member,
    /// Whichever member this server has.
    Server,
}

fn invalid(error: WireError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn check_hello(me: Identity, (kind, _, mut body): (Kind, u32, Bytes)) -> Result<Meant, String> {
    if kind != Kind::Hello || !body.starts_with(MAGIC) {
        return Err("this is a port of an ensemble of logcore coordinators".to_owned());
    }
    body.advance(MAGIC.len());
    let cut_off = |error: bytes::TryGetError| error.to_string();
    let version = body.try_get_u8().map_err(cut_off)?;
    if version != VERSION {
        return Err(format!(
            "version {version} of the protocol; this member knows {VERSION}"
        ));
    }
    body.try_get_u8().map_err(cut_off)?;
    let mut ensemble = [0; 16];
    body.try_copy_to_slice(&mut ensemble).map_err(cut_off)?;
    let from = body.try_get_u64().map_err(cut_off)?;
    let to = body.try_get_u64().map_err(cut_off)?;
    if to != me.member && to == u64::from(me.server) {
        return Ok(Meant::Server);
    }
    if to != me.member && to <= u64::from(u16::MAX) {
        return Err(format!("server {to} is meant, and this is server {}", me.server));
    }
    if me.member == 0 {
        return Err(format!("server {} has no directory yet", me.server));
    }
    if ensemble != me.ensemble {
        return Err(format!("member {from} belongs to another ensemble"));
    }
    if to != me.member {
        return Err(format!("member {to} is meant, and this is member {}", me.member));
    }
    Ok(Meant::Member)
}

fn request_of<C: Types>(kind: Kind, body: Bytes) -> Result<Request<C, SnapshotFile>, WireError> {
    match kind {
        Kind::Append => wire::get_append(body).map(Request::Append),
        Kind::Vote => wire::get_vote_request(body).map(Request::Vote),
        Kind::PreVote => wire::get_vote_request(body).map(Request::PreVote),
        Kind::Transfer => wire::get_transfer(body).map(Request::Transfer),
        Kind::Propose => wire::get_propose(body).map(|(term, commands)| Request::Propose(term, commands)),
        Kind::ReadIndex => wire::end(&body).map(|()| Request::ReadIndex),
        Kind::Touch => wire::get_touch(body).map(|(server, sessions)| Request::Touch(server, sessions)),
        Kind::Whois => wire::end(&body).map(|()| Request::Whois),
        Kind::Found => wire::get_ensemble(body).map(Request::Found),
        Kind::Join => wire::get_join(body).map(|(member, server)| Request::Join(member, server)),
        other => Err(WireError::Unknown("request", other as u64)),
    }
}

async fn receive(
    reads: &mut (impl AsyncRead + Unpin),
    length: u64,
    mut received: Received,
) -> io::Result<Received> {
    let mut left = length;
    while left > 0 {
        let mut chunk = vec![0; left.min(CHUNK as u64) as usize];
        fill(reads, &mut chunk).await?;
        left -= chunk.len() as u64;
        let write = move || received.write(&chunk).map(|()| received);
        received = spawn_blocking(write).await.map_err(io::Error::other)??;
    }
    Ok(received)
}

/// Fills `out`. Errors: the end, and a peer that stands still.
async fn fill(reads: &mut (impl AsyncRead + Unpin), out: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < out.len() {
        let read = timeout(STALLED, reads.read(&mut out[filled..])).await;
        match read.map_err(|_| stalled())?? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => filled += read,
        }
    }
    Ok(())
}

/// The next frame, however long it takes to begin; `None` when the other side has ended the connection between two.
async fn read_frame(
    reads: &mut (impl AsyncRead + Unpin),
    most: usize,
) -> io::Result<Option<(Kind, u32, Bytes)>> {
    let Some((kind, request, length)) = read_front(reads, most).await? else {
        return Ok(None);
    };
    let (body, _) = read_body(reads, length, None).await?;
    Ok(Some((kind, request, body)))
}

/// What stands before a frame's body: what it is, its request, and how long the body is.
async fn read_front(
    reads: &mut (impl AsyncRead + Unpin),
    most: usize,
) -> io::Result<Option<(Kind, u32, usize)>> {
    let mut front = [0; FRAME_FRONT];
    if reads.read(&mut front[..1]).await? == 0 {
        return Ok(None);
    }
    fill(reads, &mut front[1..]).await?;
    let mut rest = &front[..];
    let length = rest.get_u32() as usize;
    let (kind, request) = (rest.get_u8(), rest.get_u32());
    let Some(length) = length
        .checked_sub(FRAME_FRONT - 4)
        .filter(|length| *length <= most)
    else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a frame of {length} bytes; the most is {most}"),
        ));
    };
    let kind = Kind::of(kind).map_err(invalid)?;
    Ok(Some((kind, request, length)))
}

/// A frame's body, and what it has of `memory`, in KiB, if it is not small. Memory is for what comes: of what is said addresses are
/// set aside, so that nothing is copied as more comes.
async fn read_body(
    reads: &mut (impl AsyncRead + Unpin),
    length: usize,
    memory: Option<&Arc<Semaphore>>,
) -> io::Result<(Bytes, Option<OwnedSemaphorePermit>)> {
    let memory = memory.filter(|_| length > SMALL_BYTES);
    let (mut body, mut held) = (Vec::new(), None::<OwnedSemaphorePermit>);
    body.try_reserve_exact(length).map_err(io::Error::other)?;
    while body.len() < length {
        let begin = body.len();
        let end = length.min(begin + begin.clamp(16 << 10, 1 << 20));
        if let Some(memory) = memory {
            let more = (end - begin).div_ceil(1 << 10) as u32;
            let more = memory.clone().try_acquire_many_owned(more);
            let more = more.map_err(|_| no_memory(length))?;
            match &mut held {
                Some(held) => held.merge(more),
                None => held = Some(more),
            }
        }
        body.resize(end, 0);
        fill(reads, &mut body[begin..]).await?;
    }
    Ok((body.into(), held))
}

fn no_memory(length: usize) -> io::Error {
    let most = FRAMES_KIB >> 10;
    io::Error::other(format!(
        "a frame of {length} bytes, and requests have taken the {most} MiB that there are for them"
    ))
}
