//! Requests that cross to Python, and their answers' way back.
//!
//! One bounded queue (`queued.max.requests`) from the connections to whoever calls [`ControlQueue::take`]; a full queue makes
//! the connection's task wait, which stops its reading: nothing is dropped. Each request carries the one-shot channel its
//! connection waits on. A request that is dropped unanswered closes that channel, and with it the connection: never a hang.
//! Whose connection ends while it waits for others to come is told too ([`ControlQueue::take_gone`]): nobody has its answer.
//! A crash loses what was queued, as it loses the connections.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use logcore_protocol::{ProtocolError, RequestHeader, Value};

use crate::apis::Api;
use crate::log_lines::Fields;
use crate::memory::frames::{Charge, Held};
use crate::metrics::{Crossing, ErrorCounts};
use crate::net::response;
use crate::quotas::Spent;
use logcore_wake::WakeFd;

/// How many requests one [`ControlQueue::take`] returns at most, so that the event loop gets to do other things in between.
const TAKE_MAX: usize = 256;

/// A request whose body takes more memory than this takes milliseconds to become Python's objects.
const LARGE: usize = 1024 * 1024;

/// The field of a response that says how long its client has to wait (KIP-219).
const THROTTLE_TIME: &str = "throttle_time_ms";

/// Where a request came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// Kafka's form: local host and port, remote host and port, and a number that makes it unique.
    pub id: String,
    /// The peer's address, without the port.
    pub client_host: String,
    /// The name of the listener it came in on.
    pub listener: String,
    /// Who the peer is (`KafkaPrincipal`'s name).
    pub principal: String,
}

impl ConnectionInfo {
    /// What a log line about it tells a machine.
    pub(crate) fn fields(&self) -> Fields {
        vec![
            ("connection", self.id.clone()),
            ("listener", self.listener.clone()),
        ]
    }
}

/// A decoded request that waits for its answer.
pub struct ControlRequest {
    api: &'static Api,
    /// Key, version, correlation id and client id.
    pub header: RequestHeader,
    /// Where it came from.
    pub connection: Arc<ConnectionInfo>,
    body: Value,
    taken: Instant,
    /// When its handler began.
    begun: Option<Instant>,
    answer: Option<oneshot::Sender<Answered>>,
    /// The memory of its frame and of its body, which the handler has until it is done, or waits for others to come.
    memory: (Charge, Held),
}

/// What becomes of a request.
pub(crate) enum Answer {
    /// A whole response frame, and the error codes in it.
    Frame(Vec<u8>, ErrorCounts),
    /// The connection is to be closed.
    Close,
}

/// An answer, and what making it took.
pub(crate) struct Answered {
    pub(crate) answer: Answer,
    pub(crate) times: Crossing,
    /// What its handler used of the client's quotas.
    pub(crate) spent: Spent,
    /// The memory of the request's frame, for the answer.
    pub(crate) charge: Charge,
}

impl ControlRequest {
    pub(crate) fn new(
        api: &'static Api,
        header: RequestHeader,
        connection: Arc<ConnectionInfo>,
        body: Value,
        memory: (Charge, Held),
    ) -> (Self, oneshot::Receiver<Answered>) {
        let (answer, receiver) = oneshot::channel();
        let request = Self {
            api,
            header,
            connection,
            body,
            begun: None,
            answer: Some(answer),
            taken: Instant::now(),
            memory,
        };
        (request, receiver)
    }

    /// The decoded body, which shares the request's buffers. Whoever takes it begins to handle the request, and is the only
    /// one who has it: a copy would be as large again. What a member brings is its group's from then on.
    pub fn take_body(&mut self) -> Value {
        self.begun.get_or_insert_with(Instant::now);
        if self.api.waits_for_members() {
            self.memory = Default::default();
        }
        std::mem::take(&mut self.body)
    }

    /// Whether its body takes so long to become other objects that nobody should wait for it. Asked before it is taken.
    pub fn is_large(&self) -> bool {
        let held = self.memory.1.as_ref();
        held.is_some_and(|held| held.num_permits() > LARGE)
    }

    /// Whether it would wait for others, and its connection has ended.
    fn is_abandoned(&self) -> bool {
        let answer = self.answer.as_ref();
        self.api.waits_for_members() && answer.is_some_and(oneshot::Sender::is_closed)
    }

    /// The time its handler took, if that was not a wait for other members of a group.
    fn time_spent(&self) -> Duration {
        let waits = self.api.waits_for_members();
        let begun = self.begun.filter(|_| !waits);
        begun.map_or(Duration::ZERO, |begun| begun.elapsed())
    }

    /// Encodes and sends the response. The throttle time in it, if any, is kept: the connection does not read for so long,
    /// or longer if another quota asks for it. A peer that is gone is not an error; a second answer is ignored.
    ///
    /// # Errors
    /// When the message does not fit the API's response schema; the request is then still unanswered.
    pub fn respond(&mut self, message: &Value) -> Result<(), ProtocolError> {
        let frame = response::encode(&self.header, message)?;
        let throttle_ms = message.get(THROTTLE_TIME).and_then(Value::as_i32);
        let throttle_ms = throttle_ms.and_then(|ms| u64::try_from(ms).ok());
        let answer = Answer::Frame(frame, ErrorCounts::of(message, self.header.api_version));
        self.send(answer, throttle_ms.unwrap_or_default());
        Ok(())
    }

    /// Closes the connection the request came on, without an answer.
    pub fn close(&mut self) {
        self.send(Answer::Close, 0);
    }

    /// Whether it was answered or closed.
    pub fn is_answered(&self) -> bool {
        self.answer.is_none()
    }

    fn send(&mut self, answer: Answer, throttle_ms: u64) {
        if let Some(sender) = self.answer.take() {
            let answered = Answered {
                answer,
                times: Crossing {
                    taken: self.taken,
                    answered: Instant::now(),
                },
                spent: Spent {
                    time: self.time_spent(),
                    throttle_ms,
                },
                charge: std::mem::take(&mut self.memory.0),
            };
            // The connection may have ended meanwhile; then nobody waits for the answer.
            let _ = sender.send(answered);
        }
    }
}

/// The queue.
pub(crate) struct ControlQueue {
    sender: mpsc::Sender<ControlRequest>,
    receiver: Mutex<mpsc::Receiver<ControlRequest>>,
    /// The ids of connections that ended while a request of theirs waited for others to come.
    gone: Mutex<Vec<String>>,
    wake: Arc<WakeFd>,
}

/// A connection that waits for an answer of an API that waits for members. Dropped before it is over, it has ended.
pub(crate) struct Waiting<'a> {
    queue: &'a ControlQueue,
    connection: Option<&'a str>,
}

impl Waiting<'_> {
    /// The answer has come.
    pub(crate) fn over(mut self) {
        self.connection = None;
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection {
            self.queue.gone.lock().push(connection.to_owned());
            self.queue.wake.signal();
        }
    }
}

impl ControlQueue {
    pub(crate) fn new(capacity: usize, wake: Arc<WakeFd>) -> Self {
        let (sender, receiver) = mpsc::channel(capacity.max(1));
        Self {
            sender,
            receiver: Mutex::new(receiver),
            gone: Mutex::default(),
            wake,
        }
    }

    /// To be kept while a connection waits for the answer to such a request.
    pub(crate) fn waiting<'a>(&'a self, api: &Api, connection: &'a str) -> Waiting<'a> {
        Waiting {
            queue: self,
            connection: api.waits_for_members().then_some(connection),
        }
    }

    /// Who went since the last call. Asked after [`ControlQueue::take`], which clears the wake descriptor.
    pub(crate) fn take_gone(&self) -> Vec<String> {
        std::mem::take(&mut self.gone.lock())
    }

    /// Waits for room and enqueues. False when the queue was closed: the server stops.
    pub(crate) async fn put(&self, request: ControlRequest) -> bool {
        let sent = self.sender.send(request).await.is_ok();
        self.wake.signal();
        sent
    }

    /// What waits, oldest first, up to `max` and a bound of its own. Clears the wake descriptor when nothing remains.
    pub(crate) fn take(&self, max: usize) -> Vec<ControlRequest> {
        self.wake.clear();
        let mut receiver = self.receiver.lock();
        let mut taken = Vec::new();
        let now = Instant::now();
        while taken.len() < max.min(TAKE_MAX) {
            match receiver.try_recv() {
                Ok(request) if request.is_abandoned() => {}
                Ok(request) => taken.push(ControlRequest {
                    taken: now,
                    ..request
                }),
                Err(_) => return taken,
            }
        }
        self.wake.signal();
        taken
    }

    /// How many requests wait to be taken.
    pub(crate) fn len(&self) -> usize {
        self.sender.max_capacity() - self.sender.capacity()
    }

    /// Refuses further requests and drops those nobody took, which closes their connections.
    pub(crate) fn close(&self) {
        let mut receiver = self.receiver.lock();
        receiver.close();
        while receiver.try_recv().is_ok() {}
    }
}
