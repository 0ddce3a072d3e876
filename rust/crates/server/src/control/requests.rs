//! Requests that cross to Python, and the way back of their responses.
//!
//! One bounded queue (`queued.max.requests`) leads from the connections to Python, which calls
//! [`ControlQueue::take`]. A full queue makes a connection's task wait, and so stops its reading: nothing is
//! dropped. Each request carries the one-shot channel on which its connection waits. A request that is
//! dropped without a response closes that channel and so the connection: no client hangs.
//! [`ControlQueue::take_gone`] reports the connections that ended while their handlers wait for group
//! members. A crash loses the queue with the connections.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use logcore_protocol::{ProtocolError, RequestHeader, Value};

use crate::apis::Api;
use crate::log_lines::Fields;
use crate::memory::budget::Permit;
use crate::memory::frames::FramePermit;
use crate::metrics::{Crossing, ErrorCounts};
use crate::net::response;
use crate::quotas::Spent;
use logcore_wake::WakeFd;

/// The most requests that one [`ControlQueue::take`] returns, so that the event loop does other things in
/// between.
const TAKE_MAX: usize = 256;

/// A body with more bytes of memory than this takes milliseconds to become Python objects.
const LONG_CONVERSION: usize = 1024 * 1024;

/// The field of a response with the time that its client has to wait (KIP-219).
const THROTTLE_TIME: &str = "throttle_time_ms";

/// The connection of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// Kafka's form: local host and port, remote host and port, and a number that makes the id unique.
    pub id: String,
    /// The peer's address, without the port.
    pub client_host: String,
    /// The name of its listener.
    pub listener: String,
    /// The client's principal (`KafkaPrincipal`'s name).
    pub principal: String,
}

impl ConnectionInfo {
    pub(crate) fn fields(&self) -> Fields {
        vec![
            ("connection", self.id.clone()),
            ("listener", self.listener.clone()),
        ]
    }
}

/// A decoded request that waits for its response.
pub struct ControlRequest {
    api: &'static Api,
    /// Key, version, correlation id and client id.
    pub header: RequestHeader,
    /// Its connection.
    pub connection: Arc<ConnectionInfo>,
    body: Value,
    taken: Instant,
    begun: Option<Instant>,
    answer: Option<oneshot::Sender<Answered>>,
    /// The memory of its frame and of its body. The handler has it to its end, or until it waits for group
    /// members.
    memory: (FramePermit, Permit),
}

pub(crate) enum Answer {
    Frame(Vec<u8>, ErrorCounts),
    Close,
}

/// An outcome, with the time and memory that it took.
pub(crate) struct Answered {
    pub(crate) answer: Answer,
    pub(crate) times: Crossing,
    pub(crate) spent: Spent,
    /// The memory of the request's frame, for the response.
    pub(crate) permit: FramePermit,
}

impl ControlRequest {
    pub(crate) fn new(
        api: &'static Api,
        header: RequestHeader,
        connection: Arc<ConnectionInfo>,
        body: Value,
        memory: (FramePermit, Permit),
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

    /// The decoded body, which shares the request's buffers. Taking it begins the handling. It can be taken
    /// once, because a copy would double the memory. The body of a request that waits for members becomes
    /// part of its group's memory.
    pub fn take_body(&mut self) -> Value {
        self.begun.get_or_insert_with(Instant::now);
        if self.api.waits_for_members() {
            self.memory = Default::default();
        }
        std::mem::take(&mut self.body)
    }

    /// Whether the conversion of its body to Python objects should be offloaded. Valid until the body is
    /// taken.
    pub fn is_large(&self) -> bool {
        self.memory.1.count() > LONG_CONVERSION
    }

    /// Whether it would wait for members although its connection has ended.
    fn is_abandoned(&self) -> bool {
        let answer = self.answer.as_ref();
        self.api.waits_for_members() && answer.is_some_and(oneshot::Sender::is_closed)
    }

    /// The time of its handler, unless that waits for group members.
    fn time_spent(&self) -> Duration {
        let waits = self.api.waits_for_members();
        let begun = self.begun.filter(|_| !waits);
        begun.map_or(Duration::ZERO, |begun| begun.elapsed())
    }

    /// Encodes and sends the response. The connection is not read for its throttle time, or longer if another
    /// quota asks for it. A closed connection is not an error. A second response is ignored.
    ///
    /// # Errors
    /// When the message does not fit the API's response schema. The request can still be answered.
    pub fn respond(&mut self, message: &Value) -> Result<(), ProtocolError> {
        let frame = response::encode(&self.header, message)?;
        let throttle_ms = message.get(THROTTLE_TIME).and_then(Value::as_i32);
        let throttle_ms = throttle_ms.and_then(|ms| u64::try_from(ms).ok());
        let answer = Answer::Frame(frame, ErrorCounts::of(message, self.header.api_version));
        self.send(answer, throttle_ms.unwrap_or_default());
        Ok(())
    }

    /// Closes the request's connection without a response.
    pub fn close(&mut self) {
        self.send(Answer::Close, 0);
    }

    /// Whether [`Self::respond`] or [`Self::close`] was called.
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
                permit: std::mem::take(&mut self.memory.0),
            };
            // The connection may have ended meanwhile.
            let _ = sender.send(answered);
        }
    }
}

pub(crate) struct ControlQueue {
    sender: mpsc::Sender<ControlRequest>,
    receiver: Mutex<mpsc::Receiver<ControlRequest>>,
    /// The ids of connections that ended while their handlers wait for members.
    gone: Mutex<Vec<String>>,
    wake: Arc<WakeFd>,
}

/// Reports the end of a connection whose handler waits for members, if it is dropped before [`Self::over`].
pub(crate) struct Waiting<'a> {
    queue: &'a ControlQueue,
    connection: Option<&'a str>,
}

impl Waiting<'_> {
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

    /// To be kept while a connection waits for the response.
    pub(crate) fn waiting<'a>(&'a self, api: &Api, connection: &'a str) -> Waiting<'a> {
        Waiting {
            queue: self,
            connection: api.waits_for_members().then_some(connection),
        }
    }

    /// The connections that ended since the last call. To be called after [`Self::take`], which clears the
    /// wake descriptor.
    pub(crate) fn take_gone(&self) -> Vec<String> {
        std::mem::take(&mut self.gone.lock())
    }

    /// Waits for space and enqueues. Returns false if the queue is closed, because the server stops.
    pub(crate) async fn put(&self, request: ControlRequest) -> bool {
        let sent = self.sender.send(request).await.is_ok();
        self.wake.signal();
        sent
    }

    /// The oldest waiting requests, at most `max` and [`TAKE_MAX`]. Clears the wake descriptor if none
    /// remains, or if `max` is 0: then the caller asks again when it can take more.
    pub(crate) fn take(&self, max: usize) -> Vec<ControlRequest> {
        self.wake.clear();
        if max == 0 {
            return Vec::new();
        }
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

    pub(crate) fn len(&self) -> usize {
        self.sender.max_capacity() - self.sender.capacity()
    }

    /// Refuses further requests and drops the waiting ones, which closes their connections.
    pub(crate) fn close(&self) {
        let mut receiver = self.receiver.lock();
        receiver.close();
        while receiver.try_recv().is_ok() {}
    }
}
