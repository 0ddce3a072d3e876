//! One connection: read a frame, answer it, read the next.
//!
//! Each connection has one task, so the responses have the order of the requests. Pipelined requests wait in
//! the kernel's buffers, except those that one read brought; their responses are sent together. Bad input
//! costs its own connection at most, and one log line, at most one a minute for each reason. A client above
//! its quota gets its response at once, and its connection is then not read for a while (KIP-219). If a peer
//! goes away while its request waits, the wait ends with the connection and gives back what it held.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncRead;
use tokio::sync::watch;
use tokio::task::coop::consume_budget;
use tokio::time::{sleep, timeout};

use logcore_protocol::{RequestHeader, Str};

use crate::api::dispatch::{Answered, Dispatch};
use crate::api::{Outcome, produce};
use crate::connections::outgoing::{Outgoing, Unsent};
use crate::connections::slow_requests;
use crate::control::requests::ConnectionInfo;
use crate::log_lines::Level;
use crate::metrics::{ErrorCounts, Stages};
use crate::net::busy_poll::{Timing, poll_once};
use crate::net::frame::{Frame, FrameError, FrameReader};
use crate::net::response::Response;
use crate::net::transport::Transport;
use crate::quotas::{Meter, Slot};
use crate::shared::Shared;

/// How long a silent connection keeps a large buffer.
const KEEP_BUFFER: Duration = Duration::from_secs(10);
/// How long a request goes on after its peer closed its side: the peer may still want to read the response.
const HALF_CLOSED_TIMEOUT: Duration = Duration::from_secs(1);
/// The same for a Produce, which may wait to be decompressed. A producer with acks=0 may have closed its side
/// long before.
const HALF_CLOSED_PRODUCE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a stopping server waits for a client to read the responses that were just sent.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);

enum End {
    /// The peer closed it or went away, or the server stops. There is nothing to report.
    Quiet,
    /// Nothing arrived for `connections.max.idle.ms`.
    Idle,
    /// Another connection needs its slot, and it was idle for the longest time.
    Evicted,
    /// The peer's input, or the outcome of its request, does not allow the connection to go on.
    Refused(String),
}

/// Serves until the peer closes, sends bad input or idles too long, or the server stops.
pub(crate) async fn serve(
    shared: &Shared,
    transport: impl Transport,
    info: Arc<ConnectionInfo>,
    slot: &Slot,
) {
    let about = Arc::clone(&info);
    let id = &about.id;
    let memory = Arc::clone(&shared.frames);
    let mut connection = Connection {
        shared,
        transport,
        dispatch: Dispatch { shared, info },
        slot,
        reader: FrameReader::new(shared.config.request_bytes_max, memory),
        outgoing: Outgoing::default(),
        timing: Timing::default(),
        stopping: shared.stopping.subscribe(),
    };
    let (level, reason) = match connection.run().await {
        End::Quiet => return,
        End::Idle => (Level::Info, "idle for connections.max.idle.ms".to_owned()),
        End::Evicted => (
            Level::Info,
            "there are more than max.connections and it was idle for the longest time".to_owned(),
        ),
        End::Refused(reason) => {
            shared.metrics.connections_refused.add(1);
            (Level::Warning, reason)
        }
    };
    let key = format!("closed {} {}", about.listener, kind_of(&reason));
    let text = format!("connection {id} closed: {reason}");
    let lines = &shared.lines;
    lines.push_limited_with(level, &key, text, || about.fields());
}

/// A reason without its numbers and details, which depend on the peer.
pub(crate) fn kind_of(reason: &str) -> String {
    let kind = reason.chars().take_while(|letter| *letter != ':');
    kind.filter(|letter| !letter.is_ascii_digit()).collect()
}

struct Connection<'a, T> {
    shared: &'a Shared,
    transport: T,
    dispatch: Dispatch<'a>,
    slot: &'a Slot,
    reader: FrameReader,
    outgoing: Outgoing,
    timing: Timing,
    stopping: watch::Receiver<bool>,
}

impl<T: Transport> Connection<'_, T> {
    async fn run(&mut self) -> End {
        let end = self.serve_all().await;
        // Responses that are ready are sent, whatever ended the connection.
        let sent = self.outgoing.flush(self.shared, &mut self.transport).await;
        match (end, sent) {
            (End::Quiet, Err(unsent)) => unsent.into(),
            (End::Quiet, Ok(())) if self.timing.responded_within(FINISH_TIMEOUT) => {
                self.finish().await;
                End::Quiet
            }
            (end, _) => end,
        }
    }

    /// Lets a client read all its responses before a stopping server closes, whatever else it has sent.
    async fn finish(&mut self) {
        if *self.stopping.borrow() {
            let _closed = timeout(FINISH_TIMEOUT, self.transport.finish()).await;
        }
    }

    async fn serve_all(&mut self) -> End {
        loop {
            // A peer that pipelines must not keep the thread's other connections from being served.
            consume_budget().await;
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
        // A stopping server, too, answers the requests that it has read.
        if self.reader.has_frame() {
            let next = self.reader.next(&mut self.transport);
            return next.await.map_err(ended);
        }
        if *self.stopping.borrow_and_update() {
            return Err(End::Quiet);
        }
        let config = &self.shared.config;
        if let Some(polling) = self.shared.busy_poll.begin(&self.timing) {
            let direct = self.transport.read_directly(true);
            let direct = direct.map_err(|error| ended(error.into()))?;
            let next = self.reader.next(&mut self.transport);
            let polled = polling.poll(&mut self.timing, direct, config.busy_poll, next);
            if let Some(frame) = polled.await {
                return frame.map_err(ended);
            }
        }
        let direct = self.transport.read_directly(false);
        direct.map_err(|error| ended(error.into()))?;
        let buffers = (&mut self.reader, &mut self.outgoing);
        let read = read(buffers, &mut self.transport, config.connection_idle_max);
        tokio::select! {
            biased;
            frame = read => frame,
            _ = self.stopping.changed() => Err(End::Quiet),
            () = self.slot.evicted() => Err(End::Evicted),
        }
    }

    /// Answers one frame. Returns for how many milliseconds the next one has to wait.
    async fn serve(&mut self, frame: Frame) -> Result<u32, End> {
        let mut stages = Stages::begin();
        self.timing.requested(self.shared.config.busy_poll);
        let size = frame.bytes.len();
        self.shared.metrics.network_bytes_in.add(size as u64 + 4);
        self.shared.connections.used(self.slot);
        let mut body = frame.bytes;
        let mut header = RequestHeader::decode(&mut body)
            .map_err(|error| End::Refused(format!("not a request: {error}")))?;
        // The text is copied, because Produce can write into the frame only as its sole owner.
        header.client_id = header.client_id.map(|id| Str::from(id.as_str()));
        let key = header.api_key;
        let info = Arc::clone(&self.dispatch.info);
        let client_id = header.client_id.as_deref();
        let quotas = &self.shared.quotas;
        let meter = Meter::new(quotas, &info.principal, client_id);
        let Answered {
            outcome,
            memory,
            permit,
        } = {
            let dispatch = &self.dispatch;
            let work = async {
                let answered = dispatch.answer(&header, body, frame.permit, &meter, &mut stages);
                let answered = answered.await;
                stages.answered();
                answered
            };
            let mut work = std::pin::pin!(meter.timed(work));
            let mut done = poll_once(work.as_mut()).await;
            if done.is_none() {
                // The earlier responses are sent meanwhile: others may wait for their permits.
                let transport = &mut self.transport;
                let mut flush = std::pin::pin!(self.outgoing.flush(self.shared, transport));
                tokio::select! {
                    biased;
                    sent = flush.as_mut() => sent?,
                    answered = work.as_mut() => {
                        send_in_time(&answered, flush).await?;
                        done = Some(answered);
                    }
                }
            }
            match done {
                Some(answered) => answered,
                None => unless_closed(&mut self.transport, key, work).await?,
            }
        };
        if let Some(memory) = memory {
            self.reader.recycle(memory, permit);
        }
        let settled = settle(&meter, &header, size, outcome);
        let throttle_ms = meter.throttle_ms();
        stages.throttle = Duration::from_millis(throttle_ms.into());
        slow_requests::report(self.shared, &info, &header, &stages);
        let is_last = throttle_ms > 0 || meter.counts_time() || !self.reader.has_frame();
        let sent = meter.timed(self.send(settled, stages, is_last)).await;
        sent.inspect(|()| meter.sent()).map(|()| throttle_ms)
    }

    /// Sends the response to a request, if it has one. It may wait for the responses to the other requests of
    /// the same read.
    async fn send(
        &mut self,
        settled: Result<Option<Response>, End>,
        mut stages: Stages,
        is_last: bool,
    ) -> Result<(), End> {
        let transport = &mut self.transport;
        let is_due = self.outgoing.is_due(&stages);
        if let Ok(Some(response)) = &settled {
            self.outgoing
                .put(self.shared, transport, response, stages)
                .await?;
        } else {
            stages.sent();
            let errors = ErrorCounts::default();
            self.shared.metrics.apis.record(&stages, &errors);
        }
        if is_last || is_due {
            self.outgoing.flush(self.shared, transport).await?;
            self.timing.responded();
        }
        settled.map(|_| ())
    }

    /// Does not read for a while, not even the peer's close, because the bytes before it would be served too
    /// early. The connection counts as idle meanwhile, as in Kafka, whose `Selector` closes muted channels,
    /// too. So a throttled peer that went away is not kept longer than a silent one.
    async fn mute(&mut self, throttle_ms: u32) -> Result<(), End> {
        // The change may have been seen already.
        if *self.stopping.borrow_and_update() {
            return Ok(());
        }
        let throttle = Duration::from_millis(throttle_ms.into());
        let config = &self.shared.config;
        let idle_max = config.connection_idle_max.unwrap_or(Duration::MAX);
        tokio::select! {
            () = sleep(throttle.min(idle_max)) => {}
            _ = self.stopping.changed() => return Ok(()),
            () = self.slot.evicted() => return Err(End::Evicted),
        }
        if throttle > idle_max {
            return Err(End::Idle);
        }
        Ok(())
    }
}

/// Sends the earlier responses while a later one is ready. The peer has no more time for them than for the
/// later one, whose memory others may need.
async fn send_in_time(
    answered: &Answered,
    sending: impl Future<Output = Result<(), Unsent>>,
) -> Result<(), Unsent> {
    match &answered.outcome {
        Outcome::Respond(response) if response.is_counted() => tokio::select! {
            biased;
            sent = sending => sent,
            () = response.overdue() => Err(Unsent::NotRead),
        },
        _ => sending.await,
    }
}

/// Carries on work that has to wait, while the peer is connected.
async fn unless_closed<R>(
    transport: &mut impl Transport,
    key: i16,
    mut work: Pin<&mut impl Future<Output = R>>,
) -> Result<R, End> {
    tokio::select! {
        biased;
        done = &mut work => return Ok(done),
        () = transport.closed() => {}
    }
    let limit = match key {
        produce::KEY => HALF_CLOSED_PRODUCE_TIMEOUT,
        _ => HALF_CLOSED_TIMEOUT,
    };
    timeout(limit, work).await.map_err(|_| End::Quiet)
}

/// Accounts for a request of `size` bytes, and puts the throttle time into its response.
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

/// The next frame, or the end of a connection that was silent for too long.
async fn read(
    (reader, outgoing): (&mut FrameReader, &mut Outgoing),
    stream: &mut (impl AsyncRead + Unpin),
    idle_max: Option<Duration>,
) -> Result<Frame, End> {
    let idle_max = idle_max.unwrap_or(Duration::MAX);
    let mut silent = Duration::ZERO;
    let mut step = idle_max.min(KEEP_BUFFER);
    loop {
        let before = reader.received();
        if let Ok(frame) = timeout(step, reader.next(stream)).await {
            return frame.map_err(ended);
        }
        silent = if reader.received() == before {
            silent + step
        } else {
            Duration::ZERO
        };
        if silent >= idle_max {
            break;
        }
        reader.shrink();
        outgoing.shrink();
        step = idle_max - silent;
    }
    if reader.has_bytes() {
        return Err(End::Refused(
            "a frame was begun, and no more of it arrived within connections.max.idle.ms".to_owned(),
        ));
    }
    Err(End::Idle)
}

impl From<Unsent> for End {
    fn from(unsent: Unsent) -> Self {
        match unsent {
            Unsent::Io(error) if is_gone(&error) => Self::Quiet,
            Unsent::Io(error) => Self::Refused(format!("cannot send a response: {error}")),
            Unsent::NotRead => Self::Refused(
                "the peer read nothing of its response within connections.max.idle.ms, or too little of a \
                 long one while others needed its memory"
                    .to_owned(),
            ),
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

fn is_gone(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, TimedOut};
    matches!(
        error.kind(),
        BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | TimedOut
    )
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::memory::budget::{AtBound, Budget, Permit};
    use crate::memory::frames::FrameMemory;

    const TIMEOUT: Duration = Duration::from_secs(60);

    // If this failed, a client on a slow line would be cut off in the middle of a request, or a silent one
    // would be kept.
    #[tokio::test(start_paused = true)]
    async fn a_slow_frame_is_read_while_bytes_arrive() {
        let memory = Arc::new(FrameMemory::with(None, 1 << 20));
        let mut reader = FrameReader::new(1 << 20, memory);
        let mut outgoing = Outgoing::default();
        let (mut peer, mut stream) = tokio::io::duplex(64);
        let dripping = async {
            for byte in [0, 0, 0, 3, b'a', b'b', b'c'] {
                sleep(TIMEOUT * 4 / 5).await;
                peer.write_all(&[byte]).await.unwrap();
            }
        };
        let buffers = (&mut reader, &mut outgoing);
        let (frame, ()) = tokio::join!(read(buffers, &mut stream, Some(TIMEOUT)), dripping);
        assert_eq!(&frame.ok().unwrap().bytes[..], b"abc");
        peer.write_all(&[0]).await.unwrap();
        let begun = tokio::time::Instant::now();
        let buffers = (&mut reader, &mut outgoing);
        let end = read(buffers, &mut stream, Some(TIMEOUT)).await;
        assert!(matches!(end, Err(End::Refused(_))));
        assert!((TIMEOUT..=2 * TIMEOUT).contains(&begun.elapsed()));
    }

    // If this failed, a client that does not read its earlier responses would keep a later one's memory, for
    // which others wait, for as long as a connection may be idle.
    #[tokio::test(start_paused = true)]
    async fn earlier_responses_have_no_more_time_than_a_later_one() {
        let budget = Budget::new("bytes of a test", 1 << 20, 0, 1, AtBound::Wait);
        let whole = budget.acquire(1 << 20).await;
        for (permit, is_cut_off) in [(whole, true), (Permit::default(), false)] {
            let response = Response::from_frame(vec![0; 1 << 20], ErrorCounts::default());
            let answered = Outcome::Respond(response.with_permits([permit, Permit::default()])).into();
            let never = std::future::pending::<Result<(), Unsent>>();
            let sent = timeout(TIMEOUT, send_in_time(&answered, never)).await;
            assert_eq!(matches!(sent, Ok(Err(Unsent::NotRead))), is_cut_off);
        }
        let response = Response::from_frame(vec![0; 10], ErrorCounts::default());
        let answered = Outcome::Respond(response).into();
        let at_once = std::future::ready(Ok(()));
        assert!(send_in_time(&answered, at_once).await.is_ok());
    }
}
