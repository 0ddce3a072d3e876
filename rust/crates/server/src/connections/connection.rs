//! One connection: read a frame, answer it, read the next.
//!
//! One task per connection, so responses keep the order of the requests by themselves; requests sent ahead wait in the
//! kernel's buffers, but for those that one read brought: their answers are sent together. Whatever a peer sends costs its
//! own connection at most, and one log line that says why, which is said once a minute however many cause it. A client above
//! its quota is answered at once and then not read for a while (KIP-219). A peer that goes away while its request waits takes
//! the request with it: the wait is dropped, and all it held.

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
use crate::net::busy_poll::{Pace, poll_once};
use crate::net::frame::{Frame, FrameError, FrameReader};
use crate::net::response::Response;
use crate::net::transport::Transport;
use crate::quotas::{Meter, Seat};
use crate::shared::Shared;

/// How long a connection keeps a large buffer while nothing comes.
const KEEP_BUFFER: Duration = Duration::from_secs(10);
/// How long a request goes on whose peer has closed its side: it may only have nothing more to send, and want to read.
const HALF_CLOSED_PATIENCE: Duration = Duration::from_secs(1);
/// The same of a Produce, which may wait for its turn to be decompressed: who asks for no answer is gone by then.
const PRODUCE_PATIENCE: Duration = Duration::from_secs(10);
/// How long a stopping server waits for a client to take the answers it was just sent.
const FAREWELL: Duration = Duration::from_secs(1);

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
    let about = Arc::clone(&info);
    let id = &about.id;
    let memory = Arc::clone(&shared.frames);
    let mut connection = Connection {
        shared,
        transport,
        dispatch: Dispatch { shared, info },
        seat,
        reader: FrameReader::new(shared.config.request_bytes_max, memory),
        outgoing: Outgoing::default(),
        pace: Pace::default(),
        stopping: shared.stopping.subscribe(),
    };
    let (level, reason) = match connection.run().await {
        End::Quiet => return,
        End::Idle => (Level::Info, "idle for connections.max.idle.ms".to_owned()),
        End::GivesWay => (
            Level::Info,
            "there are more than max.connections and it was the idlest".to_owned(),
        ),
        End::Refused(reason) => {
            shared.metrics.connections_refused.add(1);
            (Level::Warning, reason)
        }
    };
    let key = format!("closed {} {}", about.listener, kind_of(&reason));
    let text = format!("connection {id} closed: {reason}");
    let lines = &shared.lines;
    lines.seldom_with(level, &key, text, || about.fields());
}

/// What a reason says without the numbers and details, which are the peer's.
pub(crate) fn kind_of(reason: &str) -> String {
    let kind = reason.chars().take_while(|letter| *letter != ':');
    kind.filter(|letter| !letter.is_ascii_digit()).collect()
}

struct Connection<'a, T> {
    shared: &'a Shared,
    transport: T,
    dispatch: Dispatch<'a>,
    seat: &'a Seat,
    reader: FrameReader,
    outgoing: Outgoing,
    pace: Pace,
    stopping: watch::Receiver<bool>,
}

impl<T: Transport> Connection<'_, T> {
    async fn run(&mut self) -> End {
        let end = self.serve_all().await;
        // What was answered is sent, whatever came after it.
        let sent = self.outgoing.flush(self.shared, &mut self.transport).await;
        match (end, sent) {
            (End::Quiet, Err(unsent)) => unsent.into(),
            (End::Quiet, Ok(())) if self.pace.answered_within(FAREWELL) => {
                self.take_leave().await;
                End::Quiet
            }
            (end, _) => end,
        }
    }

    /// Lets the client of a server that stops have all its answers, whatever else it has sent meanwhile.
    async fn take_leave(&mut self) {
        if *self.stopping.borrow() {
            let _gone = timeout(FAREWELL, self.transport.finish()).await;
        }
    }

    async fn serve_all(&mut self) -> End {
        loop {
            // However much one has sent ahead, the thread's other connections have their turn.
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
        // What has been read is answered, also by a server that stops.
        if self.reader.has_frame() {
            let next = self.reader.next(&mut self.transport);
            return next.await.map_err(ended);
        }
        if *self.stopping.borrow_and_update() {
            return Err(End::Quiet);
        }
        let config = &self.shared.config;
        if let Some(kept) = self.shared.vigil.keep(&self.pace) {
            let directly = self.transport.look_directly(true);
            let directly = directly.map_err(|error| ended(error.into()))?;
            let next = self.reader.next(&mut self.transport);
            let soon = kept.await_soon(&mut self.pace, directly, config.busy_poll, next);
            if let Some(frame) = soon.await {
                return frame.map_err(ended);
            }
        }
        let told = self.transport.look_directly(false);
        told.map_err(|error| ended(error.into()))?;
        let buffers = (&mut self.reader, &mut self.outgoing);
        let read = read(buffers, &mut self.transport, config.connection_idle_max);
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
        self.pace.asked(self.shared.config.busy_poll);
        let size = frame.bytes.len();
        self.shared.metrics.network_bytes_in.add(size as u64 + 4);
        self.shared.connections.used(self.seat);
        let mut body = frame.bytes;
        let mut header = RequestHeader::decode(&mut body)
            .map_err(|error| End::Refused(format!("not a request: {error}")))?;
        // The text shares the frame, which Produce takes back to write into, if it is its alone.
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
                // What waits is sent, while this goes on: it may hold a place that others wait for.
                let transport = &mut self.transport;
                let mut flush = std::pin::pin!(self.outgoing.flush(self.shared, transport));
                tokio::select! {
                    biased;
                    sent = flush.as_mut() => sent?,
                    answered = work.as_mut() => {
                        in_time_for(&answered, flush).await?;
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

    /// Sends the response to a request, if it has one; unless it is the last of those that were read, it may wait for the
    /// others.
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
            self.pace.answered();
        }
        settled.map(|_| ())
    }

    /// Does not read for a while, not even the end: what came before it would be served too early. It counts as idle meanwhile, as
    /// with Kafka, whose `Selector` closes muted channels too: a peer that has gone is kept no longer than one that says nothing.
    async fn mute(&mut self, throttle_ms: u32) -> Result<(), End> {
        // It may have been told of that already.
        if *self.stopping.borrow_and_update() {
            return Ok(());
        }
        let throttle = Duration::from_millis(throttle_ms.into());
        let config = &self.shared.config;
        let patience = config.connection_idle_max.unwrap_or(Duration::MAX);
        tokio::select! {
            () = sleep(throttle.min(patience)) => {}
            _ = self.stopping.changed() => return Ok(()),
            () = self.seat.wanted() => return Err(End::GivesWay),
        }
        if throttle > patience {
            return Err(End::Idle);
        }
        Ok(())
    }
}

/// Sends what stands before a response that was made meanwhile. While that is unread its peer has no more time for it than for the
/// response itself: others may need what this has.
async fn in_time_for(
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

/// Does what has to wait, as long as there is somebody to answer.
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
    let patience = match key {
        produce::KEY => PRODUCE_PATIENCE,
        _ => HALF_CLOSED_PATIENCE,
    };
    timeout(patience, work).await.map_err(|_| End::Quiet)
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

/// The next frame, or the end of patience: a peer may be silent for the time the configuration grants.
async fn read(
    (reader, outgoing): (&mut FrameReader, &mut Outgoing),
    stream: &mut (impl AsyncRead + Unpin),
    patience: Option<Duration>,
) -> Result<Frame, End> {
    let patience = patience.unwrap_or(Duration::MAX);
    let mut silent = Duration::ZERO;
    let mut step = patience.min(KEEP_BUFFER);
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
        if silent >= patience {
            break;
        }
        reader.shrink();
        outgoing.shrink();
        step = patience - silent;
    }
    if reader.has_bytes() {
        return Err(End::Refused(
            "a frame was begun, and nothing more of it came within connections.max.idle.ms".to_owned(),
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
                "the peer read nothing of its response for as long as it may (connections.max.idle.ms), or not enough of a large one while others waited".to_owned(),
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

/// Whether an error only says that the peer went away.
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

    const PATIENCE: Duration = Duration::from_secs(60);

    // If this failed, a client on a slow line would be cut off in the middle of a request, or a silent one would be kept.
    #[tokio::test(start_paused = true)]
    async fn a_frame_may_take_its_time_as_long_as_something_comes() {
        let memory = Arc::new(FrameMemory::with(None, 1 << 20));
        let mut reader = FrameReader::new(1 << 20, memory);
        let mut outgoing = Outgoing::default();
        let (mut peer, mut stream) = tokio::io::duplex(64);
        let dripping = async {
            for byte in [0, 0, 0, 3, b'a', b'b', b'c'] {
                sleep(PATIENCE * 4 / 5).await;
                peer.write_all(&[byte]).await.unwrap();
            }
        };
        let buffers = (&mut reader, &mut outgoing);
        let (frame, ()) = tokio::join!(read(buffers, &mut stream, Some(PATIENCE)), dripping);
        assert_eq!(&frame.ok().unwrap().bytes[..], b"abc");
        peer.write_all(&[0]).await.unwrap();
        let begun = tokio::time::Instant::now();
        let buffers = (&mut reader, &mut outgoing);
        let end = read(buffers, &mut stream, Some(PATIENCE)).await;
        assert!(matches!(end, Err(End::Refused(_))));
        assert!((PATIENCE..=2 * PATIENCE).contains(&begun.elapsed()));
    }

    // If this failed, who does not read the answers before it would keep a later one's memory for as long as a connection may be
    // idle, and everybody else waiting for it.
    #[tokio::test(start_paused = true)]
    async fn what_is_not_sent_yet_has_its_time_too() {
        let budget = Budget::new("bytes of a test", 1 << 20, 0, 1, AtBound::Wait);
        let whole = budget.acquire(1 << 20).await;
        for (permit, is_cut_off) in [(whole, true), (Permit::default(), false)] {
            let response = Response::from_frame(vec![0; 1 << 20], ErrorCounts::default());
            let answered = Outcome::Respond(response.with_permits([permit, Permit::default()])).into();
            let never = std::future::pending::<Result<(), Unsent>>();
            let sent = timeout(PATIENCE, in_time_for(&answered, never)).await;
            assert_eq!(matches!(sent, Ok(Err(Unsent::NotRead))), is_cut_off);
        }
        let response = Response::from_frame(vec![0; 10], ErrorCounts::default());
        let answered = Outcome::Respond(response).into();
        let at_once = std::future::ready(Ok(()));
        assert!(in_time_for(&answered, at_once).await.is_ok());
    }
}
