//! One connection: read a frame, answer it, read the next.
//!
//! One task per connection, so responses keep the order of the requests by themselves; requests sent ahead wait in the
//! kernel's buffers. Whatever a peer sends costs its own connection at most, and one log line that says why.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

use logcore_protocol::{RequestHeader, Value, decode_request};

use crate::api::api_versions::{self, ApiTable};
use crate::api::{Outcome, fetch, list_offsets, offset_for_leader_epoch, produce};
use crate::control::{Answer, ConnectionInfo, ControlRequest};
use crate::frame::{FrameError, FrameReader};
use crate::metrics::{ErrorCounts, Stages};
use crate::response::Response;
use crate::shared::Shared;
use crate::slow;

/// How long a connection keeps a large buffer while nothing comes.
const KEEP_BUFFER: Duration = Duration::from_secs(10);

/// Why a connection ended.
enum End {
    /// The peer closed it or went away, or the server stops: nothing to report.
    Quiet,
    /// Nothing came for `connections.max.idle.ms`.
    Idle,
    /// What the peer sent, or what became of it, does not allow to go on.
    Refused(String),
}

/// Serves until the peer closes, misbehaves or idles too long, or the server stops.
pub(crate) async fn serve(shared: &Shared, stream: TcpStream, info: Arc<ConnectionInfo>) {
    let Some(apis) = shared.apis.get() else {
        return;
    };
    let id = info.id.clone();
    let mut connection = Connection {
        shared,
        apis,
        stream,
        info,
        reader: FrameReader::new(shared.config.request_bytes_max),
    };
    match connection.run().await {
        End::Quiet => {}
        End::Idle => shared.lines.info(format!(
            "connection {id} closed: idle for connections.max.idle.ms"
        )),
        End::Refused(reason) => {
            shared.metrics.connections_refused.add(1);
            shared
                .lines
                .warning(format!("connection {id} closed: {reason}"));
        }
    }
}

struct Connection<'a> {
    shared: &'a Shared,
    apis: &'a ApiTable,
    stream: TcpStream,
    info: Arc<ConnectionInfo>,
    reader: FrameReader,
}

impl Connection<'_> {
    async fn run(&mut self) -> End {
        let mut stopping = self.shared.stopping.subscribe();
        loop {
            let frame = match self.next_frame(&mut stopping).await {
                Ok(frame) => frame,
                Err(end) => return end,
            };
            self.shared
                .metrics
                .network_bytes_in
                .add(frame.len() as u64 + 4);
            let mut stages = Stages::begin();
            let (outcome, memory) = self.answer(frame, &mut stages).await;
            if let Some(memory) = memory {
                self.reader.recycle(memory);
            }
            if let Err(end) = self.finish(outcome, &mut stages).await {
                return end;
            }
        }
    }

    /// Sends what there is to send, and counts the request.
    async fn finish(&mut self, outcome: Outcome, stages: &mut Stages) -> Result<(), End> {
        let none = ErrorCounts::default();
        let (end, errors) = match &outcome {
            Outcome::Respond(response) => (self.send(response).await, response.errors()),
            Outcome::Silent => (Ok(()), &none),
            Outcome::Close(reason) => (Err(End::Refused(reason.clone())), &none),
        };
        stages.sent();
        if stages.is_named() {
            self.shared.metrics.apis.record(stages, errors);
        }
        end
    }

    async fn next_frame(&mut self, stopping: &mut watch::Receiver<bool>) -> Result<Bytes, End> {
        if *stopping.borrow_and_update() {
            return Err(End::Quiet);
        }
        tokio::select! {
            biased;
            _ = stopping.changed() => Err(End::Quiet),
            frame = self.read() => frame,
        }
    }

    /// The next frame, or the end of patience: a peer may be silent for the time the configuration grants.
    async fn read(&mut self) -> Result<Bytes, End> {
        let patience = self
            .shared
            .config
            .connection_idle_max
            .unwrap_or(Duration::MAX);
        let keep = patience.min(KEEP_BUFFER);
        let mut frame = timeout(keep, self.reader.next(&mut self.stream)).await;
        if frame.is_err() && keep < patience {
            self.reader.shrink();
            frame = timeout(patience - keep, self.reader.next(&mut self.stream)).await;
        }
        match frame {
            Ok(frame) => frame.map_err(ended),
            Err(_) if self.reader.has_bytes() => Err(End::Refused(
                "a frame was begun but did not arrive within connections.max.idle.ms".to_owned(),
            )),
            Err(_) => Err(End::Idle),
        }
    }

    async fn send(&self, response: &Response) -> Result<(), End> {
        self.shared
            .metrics
            .network_bytes_out
            .add(response.wire_size());
        let sending = response.send(&self.stream);
        let sent = match self.shared.config.connection_idle_max {
            Some(patience) => timeout(patience, sending).await,
            None => Ok(sending.await),
        };
        match sent {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) if is_gone(&error) => Err(End::Quiet),
            Ok(Err(error)) => Err(End::Refused(format!("cannot send a response: {error}"))),
            Err(_) => Err(End::Refused(
                "the peer did not read its response within connections.max.idle.ms".to_owned(),
            )),
        }
    }

    /// Answers one request; large frames' memory comes back when the handler is done with it.
    async fn answer(&self, frame: Bytes, stages: &mut Stages) -> (Outcome, Option<BytesMut>) {
        let mut body = frame;
        let header = match RequestHeader::decode(&mut body) {
            Ok(header) => header,
            Err(error) => return (Outcome::Close(format!("not a request: {error}")), None),
        };
        let answered = self.answer_body(&header, body, stages).await;
        stages.answered();
        slow::tell(self.shared, &self.info, &header, stages);
        answered
    }

    async fn answer_body(
        &self,
        header: &RequestHeader,
        body: Bytes,
        stages: &mut Stages,
    ) -> (Outcome, Option<BytesMut>) {
        let (key, version) = (header.api_key, header.api_version);
        if !self.apis.serves(key, version) {
            return (self.answer_unserved(header, &body, stages), None);
        }
        self.shared.metrics.request(key);
        stages.name(key, version, body.len());
        let message = match decode_request(key, version, &body) {
            Ok(message) => message,
            Err(error) => return (Outcome::Close(format!("malformed request: {error}")), None),
        };
        if key == produce::KEY {
            return produce::handle(self.shared, header, message, body);
        }
        drop(body);
        (self.answer_message(header, message, stages).await, None)
    }

    async fn answer_message(
        &self,
        header: &RequestHeader,
        message: Value,
        stages: &mut Stages,
    ) -> Outcome {
        match (header.api_key, message.as_struct()) {
            (fetch::KEY, _) => fetch::handle(self.shared, header, message, stages).await,
            (list_offsets::KEY, Some(request)) => {
                list_offsets::handle(self.shared, header, request)
            }
            (api_versions::KEY, Some(request)) => api_versions::handle(self.apis, header, request),
            (offset_for_leader_epoch::KEY, Some(request)) => {
                offset_for_leader_epoch::handle(self.shared, header, request)
            }
            _ => self.cross(header, message, stages).await,
        }
    }

    /// Kafka answers ApiVersions of any version and closes the connection for everything else it does not serve.
    fn answer_unserved(&self, header: &RequestHeader, body: &[u8], stages: &mut Stages) -> Outcome {
        if header.api_key == api_versions::KEY && self.apis.serves(api_versions::KEY, 0) {
            self.shared.metrics.request(header.api_key);
            stages.name(header.api_key, header.api_version, body.len());
            return api_versions::handle_unsupported(self.apis, header);
        }
        Outcome::Close(format!(
            "request for API {} version {}, which is not served here",
            header.api_key, header.api_version
        ))
    }

    /// Hands the request to Python and waits for its answer.
    async fn cross(&self, header: &RequestHeader, message: Value, stages: &mut Stages) -> Outcome {
        let (key, version) = (header.api_key, header.api_version);
        let (request, answer) =
            ControlRequest::new(header.clone(), Arc::clone(&self.info), message);
        if !self.shared.control.put(request).await {
            return Outcome::Close("the server stops".to_owned());
        }
        let Ok((answer, crossing)) = answer.await else {
            return Outcome::Close(format!(
                "the handler of API {key} version {version} gave no answer"
            ));
        };
        stages.crossed(&crossing);
        match answer {
            Answer::Frame(frame, errors) => Outcome::Respond(Response::from_frame(frame, errors)),
            Answer::Close => Outcome::Close(format!(
                "the handler of API {key} version {version} asked for it"
            )),
        }
    }
}

fn ended(error: FrameError) -> End {
    match error {
        FrameError::Closed => End::Quiet,
        FrameError::Io(error) if is_gone(&error) => End::Quiet,
        error => End::Refused(error.to_string()),
    }
}

/// Whether an error only says that the peer went away.
fn is_gone(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, TimedOut,
    };
    matches!(
        error.kind(),
        BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | TimedOut
    )
}
