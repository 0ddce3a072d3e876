//! One connection: read a frame, answer it, read the next.
//!
//! One task per connection, so responses keep the order of the requests by themselves; requests sent ahead wait in the
//! kernel's buffers. Whatever a peer sends costs its own connection at most, and one log line that says why. A client above
//! its quota is answered at once and then not read for a while (KIP-219). A peer that goes away while its request waits
//! takes the request with it: the wait is dropped, and all it held.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use logcore_protocol::{RequestHeader, Str, Value, decode_request};

use crate::api::api_versions::{self, ApiTable};
use crate::api::{Outcome, fetch, list_offsets, native_versions, offset_for_leader_epoch, produce};
use crate::connection_quotas::Seat;
use crate::control::{Answer, ConnectionInfo, ControlRequest};
use crate::frame::{Frame, FrameError, FrameReader};
use crate::lines::Level;
use crate::memory::Charge;
use crate::metrics::Stages;
use crate::quotas::Meter;
use crate::response::Response;
use crate::shared::Shared;
use crate::slow;
use crate::transport::Transport;

/// How long a connection keeps a large buffer while nothing comes.
const KEEP_BUFFER: Duration = Duration::from_secs(10);
/// How long a peer that will send nothing more is still waited for by what Python does: it may want to read the answer.
const HALF_CLOSED_PATIENCE: Duration = Duration::from_secs(1);
/// Requests among brokers, whose time no client pays for (`sendResponseExemptThrottle`): LeaderAndIsr, StopReplica,
/// UpdateMetadata, ControlledShutdown, WriteTxnMarkers, AlterPartition.
const EXEMPT_APIS: [i16; 6] = [4, 5, 6, 7, 27, 56];

/// Why a connection ended.
enum End {
    /// The peer closed it or went away, or the server stops: nothing to report.
    Quiet,
    /// Nothing came for `connections.max.idle.ms`.
    Idle,
    /// Others need its place, and it was the idlest.
    GivesWay,
    /// What the peer sent, or what became of it, does not allow to go on.
    Refused(String),
}

/// Serves until the peer closes, misbehaves or idles too long, or the server stops.
pub(crate) async fn serve(
    shared: &Shared,
    transport: impl Transport,
    info: Arc<ConnectionInfo>,
    seat: &Seat,
) {
    let Some(apis) = shared.apis.get() else {
        return;
    };
    let about = Arc::clone(&info);
    let id = &about.id;
    let memory = Arc::clone(&shared.memory);
    let mut connection = Connection {
        shared,
        apis,
        transport,
        info,
        seat,
        reader: FrameReader::new(shared.config.request_bytes_max, memory),
        stopping: shared.stopping.subscribe(),
    };
    match connection.run().await {
        End::Quiet => {}
        End::Idle => shared.lines.push_with(
            Level::Info,
            format!("connection {id} closed: idle for connections.max.idle.ms"),
            about.fields(),
        ),
        End::GivesWay => shared.lines.push_with(
            Level::Info,
            format!(
                "connection {id} closed: there are more than max.connections and it was the idlest"
            ),
            about.fields(),
        ),
        End::Refused(reason) => {
            shared.metrics.connections_refused.add(1);
            shared.lines.push_with(
                Level::Warning,
                format!("connection {id} closed: {reason}"),
                about.fields(),
            );
        }
    }
}

struct Connection<'a, T> {
    shared: &'a Shared,
    apis: &'a ApiTable,
    transport: T,
    info: Arc<ConnectionInfo>,
    seat: &'a Seat,
    reader: FrameReader,
    stopping: watch::Receiver<bool>,
}

impl<T: Transport> Connection<'_, T> {
    async fn run(&mut self) -> End {
        loop {
            let served = match self.next_frame().await {
                Ok(frame) => self.serve(frame).await,
                Err(end) => return end,
            };
            let muted = match served {
                Ok(0) => continue,
                Ok(throttle_ms) => self.mute(throttle_ms).await,
                Err(end) => Err(end),
            };
            if let Err(end) = muted {
                return end;
            }
        }
    }

    async fn next_frame(&mut self) -> Result<Frame, End> {
        if *self.stopping.borrow_and_update() {
            return Err(End::Quiet);
        }
        let patience = self.shared.config.connection_idle_max;
        let read = read(&mut self.reader, &mut self.transport, patience);
        tokio::select! {
            biased;
            frame = read => frame,
            _ = self.stopping.changed() => Err(End::Quiet),
            () = self.seat.wanted() => Err(End::GivesWay),
        }
    }

    /// Answers one frame and says for how many milliseconds the next one has to wait.
    async fn serve(&mut self, frame: Frame) -> Result<u32, End> {
        let mut stages = Stages::begin();
        let size = frame.bytes.len();
        self.shared.metrics.network_bytes_in.add(size as u64 + 4);
        self.shared.connections.used(self.seat);
        let mut body = frame.bytes;
        let mut header = RequestHeader::decode(&mut body)
            .map_err(|error| End::Refused(format!("not a request: {error}")))?;
        // The text shares the frame, which Produce takes back to write into, if it is its alone.
        header.client_id = header.client_id.map(|id| Str::from(id.as_str()));
        let key = header.api_key;
        let is_exempt = EXEMPT_APIS.contains(&key);
        let info = Arc::clone(&self.info);
        let meter = Meter::new(
            &self.shared.quotas,
            &info.principal,
            header.client_id.as_deref(),
            is_exempt,
        );
        let work = self.answer(&header, body, frame.charge, &meter, &mut stages);
        let Answered {
            outcome,
            memory,
            charge,
        } = self.unless_closed(key, meter.timed(work)).await?;
        stages.answered();
        if let Some(memory) = memory {
            self.reader.recycle(memory, charge);
        }
        let errors = outcome.errors();
        let settled = settle(&meter, &header, size, outcome);
        stages.throttle = Duration::from_millis(meter.throttle_ms().into());
        slow::tell(self.shared, &info, &header, &stages);
        let sent = match settled {
            Ok(Some(response)) => {
                let sent = meter.timed(self.send(&response)).await;
                sent.inspect(|()| meter.sent())
            }
            Ok(None) => Ok(()),
            Err(end) => Err(end),
        };
        stages.sent();
        if stages.is_named() {
            self.shared.metrics.apis.record(&stages, &errors);
        }
        sent.map(|()| meter.throttle_ms())
    }

    /// Does what may have to wait, as long as there is somebody to answer. What can be done at once is done, for a peer that
    /// has closed its side may still read.
    async fn unless_closed<R>(&self, key: i16, work: impl Future<Output = R>) -> Result<R, End> {
        let mut work = std::pin::pin!(work);
        tokio::select! {
            biased;
            done = &mut work => return Ok(done),
            () = self.transport.closed() => {}
        }
        let patience = match native_versions(key) {
            Some(_) => Duration::ZERO,
            None => HALF_CLOSED_PATIENCE,
        };
        timeout(patience, work).await.map_err(|_| End::Quiet)
    }

    /// Does not read for a while, not even the end: what came before it would be served too early.
    async fn mute(&mut self, throttle_ms: u32) -> Result<(), End> {
        tokio::select! {
            () = sleep(Duration::from_millis(throttle_ms.into())) => Ok(()),
            _ = self.stopping.changed() => Ok(()),
            () = self.seat.wanted() => Err(End::GivesWay),
        }
    }

    async fn send(&mut self, response: &Response) -> Result<(), End> {
        self.shared
            .metrics
            .network_bytes_out
            .add(response.wire_size());
        let sending = response.send(&mut self.transport);
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
    async fn answer(
        &self,
        header: &RequestHeader,
        body: Bytes,
        charge: Charge,
        meter: &Meter<'_>,
        stages: &mut Stages,
    ) -> Answered {
        let (key, version) = (header.api_key, header.api_version);
        if !self.apis.serves(key, version) {
            return self.answer_unserved(header, &body, stages).into();
        }
        self.shared.metrics.request(key);
        stages.name(key, version, body.len());
        let message = match decode_request(key, version, &body) {
            Ok(message) => message,
            Err(error) => return Outcome::Close(format!("malformed request: {error}")).into(),
        };
        if key == produce::KEY {
            let (outcome, kept) =
                produce::handle(self.shared, header, message, body, charge, stages).await;
            let (memory, charge) = kept.unzip();
            return Answered {
                outcome,
                memory,
                charge: charge.unwrap_or_default(),
            };
        }
        drop(body);
        match (key, message.as_struct()) {
            (fetch::KEY, _) => {
                drop(charge);
                fetch::handle(self.shared, header, message, meter, stages).await
            }
            (list_offsets::KEY, Some(request)) => {
                list_offsets::handle(self.shared, header, request)
            }
            (api_versions::KEY, Some(request)) => api_versions::handle(self.apis, header, request),
            (offset_for_leader_epoch::KEY, Some(request)) => {
                offset_for_leader_epoch::handle(self.shared, header, request)
            }
            _ => self.cross(header, message, charge, meter, stages).await,
        }
        .into()
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
    async fn cross(
        &self,
        header: &RequestHeader,
        message: Value,
        mut charge: Charge,
        meter: &Meter<'_>,
        stages: &mut Stages,
    ) -> Outcome {
        charge.leave_lane();
        let (key, version) = (header.api_key, header.api_version);
        let info = Arc::clone(&self.info);
        let (request, answer) = ControlRequest::new(header.clone(), info, message, charge);
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
            Answer::Frame(frame, errors) => {
                meter.spent(crossing.spent);
                Outcome::Respond(Response::from_frame(frame, errors))
            }
            Answer::Close => Outcome::Close(format!(
                "the handler of API {key} version {version} asked for it"
            )),
        }
    }
}

/// Accounts for a request, whose frame had so many bytes, and has its response tell for how long its client is not heard.
fn settle(
    meter: &Meter<'_>,
    header: &RequestHeader,
    size: usize,
    outcome: Outcome,
) -> Result<Option<Response>, End> {
    let response = match outcome {
        Outcome::Close(reason) => return Err(End::Refused(reason)),
        Outcome::Silent => None,
        Outcome::Respond(response) => Some(response),
    };
    if header.api_key == produce::KEY {
        meter.produced(size, response.is_some());
    } else {
        meter.requested();
    }
    Ok(match meter.throttle_ms() {
        0 => response,
        throttle_ms => response.map(|response| response.throttled(header, throttle_ms)),
    })
}

/// What became of a request, and the memory it was read into, if it is wanted back.
struct Answered {
    outcome: Outcome,
    memory: Option<BytesMut>,
    charge: Charge,
}

impl From<Outcome> for Answered {
    fn from(outcome: Outcome) -> Self {
        Self {
            outcome,
            memory: None,
            charge: Charge::default(),
        }
    }
}

/// The next frame, or the end of patience: a peer may be silent for the time the configuration grants.
async fn read(
    reader: &mut FrameReader,
    transport: &mut impl Transport,
    patience: Option<Duration>,
) -> Result<Frame, End> {
    let patience = patience.unwrap_or(Duration::MAX);
    let keep = patience.min(KEEP_BUFFER);
    let mut frame = timeout(keep, reader.next(transport)).await;
    if frame.is_err() && keep < patience {
        reader.shrink();
        frame = timeout(patience - keep, reader.next(transport)).await;
    }
    match frame {
        Ok(frame) => frame.map_err(ended),
        Err(_) if reader.has_bytes() => Err(End::Refused(
            "a frame was begun but did not arrive within connections.max.idle.ms".to_owned(),
        )),
        Err(_) => Err(End::Idle),
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
