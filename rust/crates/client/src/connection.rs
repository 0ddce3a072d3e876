//! One TCP connection to one broker: framing, correlation, pipelining, version negotiation.
//!
//! Requests are written in the order of [`Connection::send`], and Kafka's brokers answer in that order. A
//! response out of order, a request without an answer and an I/O error end the connection; all open requests
//! fail with the reason. A connection has two tasks on the client's background thread. [`crate::connections`]
//! reconnects.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use logcore_protocol::{ErrorCode, RequestHeader, Str, Value, decode_response_header};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::api::{self, Api, Fields};
use crate::config::ClientConfig;
use crate::error::{ClientError, Result, milliseconds};
use crate::reporter::Reporter;

/// A response's body without its header, or why there is none.
type Answer = Result<Bytes>;

#[derive(Debug)]
struct Waiting {
    correlation_id: i32,
    api_key: i16,
    version: i16,
    answer: oneshot::Sender<Answer>,
}

#[derive(Debug)]
struct Shared {
    /// host:port, for messages.
    peer: String,
    reporter: Arc<Reporter>,
    waiting: Mutex<VecDeque<Waiting>>,
    /// Why the connection ended; nothing is sent after that.
    ended: Mutex<Option<ClientError>>,
    closing: Notify,
}

impl Shared {
    fn end(&self, error: ClientError) {
        let error = self.ended.lock().get_or_insert(error).clone();
        self.closing.notify_waiters();
        self.closing.notify_one();
        for waiting in self.waiting.lock().drain(..) {
            // The requester may have given up.
            let _ = waiting.answer.send(Err(error.clone()));
        }
    }

    fn broken(&self, what: impl std::fmt::Display) -> ClientError {
        ClientError::Transport {
            broker: self.peer.clone(),
            what: what.to_string(),
        }
    }
}

/// A request's body.
#[derive(Debug)]
pub enum Body<'a> {
    /// Encoded already.
    Encoded(&'a [u8]),
    /// To be encoded into the frame, with an estimate of its bytes.
    Message(&'a Value, usize),
}

impl Body<'_> {
    fn size_hint(&self) -> usize {
        match self {
            Self::Encoded(body) => body.len(),
            Self::Message(_, size) => *size,
        }
    }
}

/// An open connection. Dropping the last handle closes it.
#[derive(Debug)]
pub struct Connection {
    shared: Arc<Shared>,
    outgoing: mpsc::UnboundedSender<Vec<u8>>,
    next_correlation_id: AtomicI32,
    client_id: Str,
    /// API key -> first and last version the broker serves.
    versions: HashMap<i16, (i16, i16)>,
}

/// A request under way; [`Pending::answer`] waits for its response.
#[derive(Debug)]
pub struct Pending {
    shared: Arc<Shared>,
    receiver: oneshot::Receiver<Answer>,
    api_key: i16,
}

impl Pending {
    /// Waits for the response's body. When `timeout` passes the connection ends, because later answers would
    /// not match their requests any more.
    ///
    /// # Errors
    /// The connection's end, or [`ClientError::TimedOut`].
    pub async fn answer(self, timeout: Duration) -> Answer {
        let (shared, request) = (Arc::clone(&self.shared), api::name(self.api_key));
        let answer = self.unreported_answer(timeout).await;
        match &answer {
            Ok(_) => shared.reporter.request_answered(&shared.peer, request),
            Err(error) => shared.reporter.request_failed(&shared.peer, request, error),
        }
        answer
    }

    async fn unreported_answer(self, timeout: Duration) -> Answer {
        match tokio::time::timeout(timeout, self.receiver).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(self.shared.broken("connection closed")),
            Err(_) => {
                let error = ClientError::TimedOut {
                    what: format!("{}: a {} request", self.shared.peer, api::name(self.api_key)),
                    timeout_ms: milliseconds(timeout),
                };
                self.shared.end(error.clone());
                Err(error)
            }
        }
    }
}

impl Connection {
    /// Connects to `host:port` and asks which API versions it serves.
    ///
    /// # Errors
    /// [`ClientError::Resolve`], [`ClientError::Transport`] or [`ClientError::TimedOut`].
    pub async fn open(host: &str, port: u16, config: &ClientConfig, reporter: Arc<Reporter>) -> Result<Self> {
        let peer = format!("{host}:{port}");
        let opening = Self::open_without_timeout(host, port, peer.clone(), config, reporter);
        match tokio::time::timeout(config.connect_timeout, opening).await {
            Ok(result) => result,
            Err(_) => Err(ClientError::TimedOut {
                what: format!("{peer}: connecting"),
                timeout_ms: milliseconds(config.connect_timeout),
            }),
        }
    }

    async fn open_without_timeout(
        host: &str,
        port: u16,
        peer: String,
        config: &ClientConfig,
        reporter: Arc<Reporter>,
    ) -> Result<Self> {
        let stream = connect(host, port, &peer).await?;
        let shared = Arc::new(Shared {
            peer,
            reporter,
            waiting: Mutex::new(VecDeque::new()),
            ended: Mutex::new(None),
            closing: Notify::new(),
        });
        let (outgoing, queue) = mpsc::unbounded_channel();
        let (reading, writing) = stream.into_split();
        tokio::spawn(write_loop(Arc::clone(&shared), writing, queue));
        tokio::spawn(read_loop(Arc::clone(&shared), reading, config.receive_bytes_max));
        let mut connection = Self {
            shared,
            outgoing,
            next_correlation_id: AtomicI32::new(1),
            client_id: Str::from(config.client_id.as_str()),
            versions: HashMap::new(),
        };
        connection.versions = connection.ask_versions(config.request_timeout).await?;
        Ok(connection)
    }

    /// ApiVersions in our newest version. An older broker answers UNSUPPORTED_VERSION, and is asked in
    /// version 0.
    async fn ask_versions(&self, timeout: Duration) -> Result<HashMap<i16, (i16, i16)>> {
        let mut version = api::API_VERSIONS.last;
        loop {
            let message = api::request(api::API_VERSIONS)
                .with("client_software_name", "logcore")
                .with("client_software_version", env!("CARGO_PKG_VERSION"));
            let message = if version >= 3 {
                message
            } else {
                api::request(api::API_VERSIONS)
            };
            let message = Value::Struct(message);
            let body = Body::Message(&message, 64);
            let answer = self
                .send(api::API_VERSIONS.key, version, &body)?
                .unreported_answer(timeout)
                .await?;
            let refused = answer.first_chunk() == Some(&ErrorCode::UNSUPPORTED_VERSION.0.to_be_bytes());
            if refused && version > 0 {
                version = 0;
                continue;
            }
            let response = api::decode(api::API_VERSIONS, version, &answer)?;
            let code = response.i16("error_code");
            if code != 0 {
                return Err(ClientError::Broker {
                    code,
                    what: format!("{}: ApiVersions", self.shared.peer),
                });
            }
            let versions = response.field("api_keys").structs();
            return Ok(versions
                .map(|api| {
                    (
                        api.i16("api_key"),
                        (api.i16("min_version"), api.i16("max_version")),
                    )
                })
                .collect());
        }
    }

    /// host:port.
    #[must_use]
    pub fn peer(&self) -> &str {
        &self.shared.peer
    }

    /// Whether requests can still be sent.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.shared.ended.lock().is_none()
    }

    /// The versions of an API that the broker serves.
    #[must_use]
    pub fn served(&self, api_key: i16) -> Option<(i16, i16)> {
        self.versions.get(&api_key).copied()
    }

    /// The newest version of `api` that both sides know.
    ///
    /// # Errors
    /// [`ClientError::Unsupported`].
    pub fn version(&self, api: Api) -> Result<i16> {
        let served = self.served(api.key);
        if let Some((first, last)) = served {
            let version = last.min(api.last);
            if version >= first.max(api.first) {
                return Ok(version);
            }
        }
        Err(ClientError::Unsupported {
            broker: self.shared.peer.clone(),
            api_key: api.key,
            wanted: format!("{} to {}", api.first, api.last),
            served: served.map_or("none".into(), |(first, last)| format!("{first} to {last}")),
        })
    }

    /// Hands one request to the writer. Requests go out in the order of these calls.
    ///
    /// # Errors
    /// The connection has ended, or the header cannot be encoded.
    pub fn send(&self, api_key: i16, version: i16, body: &Body<'_>) -> Result<Pending> {
        let (answer, receiver) = oneshot::channel();
        let correlation_id = self.next_correlation_id.fetch_add(1, Ordering::Relaxed);
        let frame = self.frame(api_key, version, correlation_id, body)?;
        {
            // `end` takes the same lock, so no request waits on a connection that has ended.
            let mut waiting = self.shared.waiting.lock();
            if let Some(error) = self.shared.ended.lock().clone() {
                return Err(error);
            }
            waiting.push_back(Waiting {
                correlation_id,
                api_key,
                version,
                answer,
            });
        }
        self.outgoing
            .send(frame)
            .map_err(|_| self.shared.broken("connection closed"))?;
        Ok(Pending {
            shared: Arc::clone(&self.shared),
            receiver,
            api_key,
        })
    }

    /// Hands over a request that has no response (Produce with acks=0).
    ///
    /// # Errors
    /// The connection has ended, or the header cannot be encoded.
    pub fn send_unanswered(&self, api_key: i16, version: i16, body: &Body<'_>) -> Result<()> {
        if let Some(error) = self.shared.ended.lock().clone() {
            return Err(error);
        }
        let correlation_id = self.next_correlation_id.fetch_add(1, Ordering::Relaxed);
        let frame = self.frame(api_key, version, correlation_id, body)?;
        self.outgoing
            .send(frame)
            .map_err(|_| self.shared.broken("connection closed"))
    }

    fn frame(&self, api_key: i16, version: i16, correlation_id: i32, body: &Body<'_>) -> Result<Vec<u8>> {
        let header = RequestHeader {
            api_key,
            api_version: version,
            correlation_id,
            client_id: Some(self.client_id.clone()),
        };
        let mut frame = Vec::with_capacity(body.size_hint() + self.client_id.len() + 16);
        frame.extend_from_slice(&[0; 4]);
        header.encode(&mut frame).map_err(api::bad_data)?;
        match body {
            Body::Encoded(body) => frame.extend_from_slice(body),
            Body::Message(message, _) => {
                logcore_protocol::encode_request(api_key, version, message, &mut frame)
                    .map_err(api::bad_data)?;
            }
        }
        let length = i32::try_from(frame.len() - 4).map_err(|_| ClientError::BadData {
            what: "a request above 2 GiB".into(),
        })?;
        frame[..4].copy_from_slice(&length.to_be_bytes());
        Ok(frame)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared
            .end(self.shared.broken("connection closed by the client"));
    }
}

async fn connect(host: &str, port: u16, peer: &str) -> Result<TcpStream> {
    let addresses = tokio::net::lookup_host((host, port))
        .await
        .map_err(|what| ClientError::Resolve {
            host: host.to_owned(),
            what: what.to_string(),
        })?;
    let mut last = None;
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                // Otherwise a small request waits until the one before it is acknowledged.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(error) => last = Some(error),
        }
    }
    Err(match last {
        Some(error) => ClientError::Transport {
            broker: peer.to_owned(),
            what: format!("cannot connect: {error}"),
        },
        None => ClientError::Resolve {
            host: host.to_owned(),
            what: "no address".into(),
        },
    })
}

async fn write_loop(
    shared: Arc<Shared>,
    mut stream: OwnedWriteHalf,
    mut queue: mpsc::UnboundedReceiver<Vec<u8>>,
) {
    let writing = async {
        while let Some(frame) = queue.recv().await {
            if let Err(error) = stream.write_all(&frame).await {
                shared.end(shared.broken(format_args!("sending failed: {error}")));
                return;
            }
        }
    };
    tokio::select! {
        () = writing => {}
        // The other task waits for the same signal.
        () = shared.closing.notified() => shared.closing.notify_one(),
    }
}

async fn read_loop(shared: Arc<Shared>, stream: OwnedReadHalf, frame_max: usize) {
    let reading = read_frames(&shared, stream, frame_max);
    tokio::select! {
        error = reading => shared.end(error),
        () = shared.closing.notified() => shared.closing.notify_one(),
    }
}

async fn read_frames(shared: &Shared, mut stream: OwnedReadHalf, frame_max: usize) -> ClientError {
    const READ_AHEAD: usize = 16 * 1024;
    let mut buffer = BytesMut::new();
    loop {
        while let Some(prefix) = buffer.first_chunk::<4>() {
            let length = i32::from_be_bytes(*prefix);
            let Ok(length) = usize::try_from(length) else {
                return shared.broken(format_args!(
                    "a response claims {length} bytes; check that Kafka listens at this port, without TLS"
                ));
            };
            if length > frame_max {
                return refuse_long_response(shared, length, frame_max);
            }
            if buffer.len() < 4 + length {
                buffer.reserve(4 + length - buffer.len());
                break;
            }
            let frame = buffer.split_to(4 + length).freeze().slice(4..);
            if let Err(error) = deliver(shared, frame) {
                return error;
            }
        }
        if buffer.capacity() == buffer.len() {
            buffer.reserve(READ_AHEAD);
        }
        match stream.read_buf(&mut buffer).await {
            Ok(0) => return shared.broken("the broker closed the connection"),
            Ok(_) => {}
            Err(error) => return shared.broken(format_args!("receiving failed: {error}")),
        }
    }
}

/// Fails the request whose response is too long. The connection ends: reading the rest could take for ever.
fn refuse_long_response(shared: &Shared, size: usize, limit: usize) -> ClientError {
    if let Some(waiting) = shared.waiting.lock().pop_front() {
        let _ = waiting.answer.send(Err(ClientError::ResponseTooLarge {
            broker: shared.peer.clone(),
            request: api::name(waiting.api_key),
            size,
            limit,
        }));
    }
    shared.broken(format_args!(
        "the response to another request is longer than receive.message.max.bytes"
    ))
}

fn deliver(shared: &Shared, mut frame: Bytes) -> Result<()> {
    let Some(waiting) = shared.waiting.lock().pop_front() else {
        return Err(shared.broken("a response came without a request"));
    };
    let correlation_id = decode_header(&waiting, &mut frame).map_err(|what| shared.broken(what))?;
    if correlation_id != waiting.correlation_id {
        let error = shared.broken(format_args!(
            "response {correlation_id} came where {} was due",
            waiting.correlation_id
        ));
        let _ = waiting.answer.send(Err(error.clone()));
        return Err(error);
    }
    let _ = waiting.answer.send(Ok(frame));
    Ok(())
}

fn decode_header(waiting: &Waiting, frame: &mut Bytes) -> std::result::Result<i32, String> {
    decode_response_header(waiting.api_key, waiting.version, frame).map_err(|error| error.to_string())
}
