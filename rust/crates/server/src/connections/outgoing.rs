//! Responses on their way to the peer.
//!
//! Small ones wait for those of the requests that were read together with their own, and are sent with them in one piece: a
//! peer that sends ahead costs one `send` for what one `recv` brought. The connection has everything sent before it waits
//! for anything, and once the first has been here for [`LONGEST`]: nothing waits longer but by the work on one request more.
//! Owned by the connection's task.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use crate::metrics::{ErrorCounts, Stages};
use crate::net::response::Response;
use crate::net::transport::Transport;
use crate::shared::Shared;

/// So many bytes wait for others.
const MOST: usize = 16 * 1024;
/// So many responses.
const MOST_RESPONSES: usize = 64;
/// So long after the first request came, no other is waited for.
const LONGEST: Duration = Duration::from_millis(1);

/// How long a client of a server that stops may take nothing of what it is being sent.
const STOPPING_PATIENCE: Duration = Duration::from_secs(2);

/// What is kept for the next responses.
const KEPT: usize = 1024;
const KEPT_RESPONSES: usize = 8;

/// Why something was not sent.
#[derive(Debug)]
pub(crate) enum Unsent {
    /// The socket's error.
    Io(io::Error),
    /// The peer read nothing for `connections.max.idle.ms`, or a little while when the server stops, or had its time for what
    /// others need.
    NotRead,
}

/// What waits.
#[derive(Default)]
pub(crate) struct Outgoing {
    bytes: Vec<u8>,
    requests: Vec<(Stages, ErrorCounts)>,
    /// Something is on its way; for good if whoever sent it gave up, and nothing can follow it then.
    sending: bool,
}

impl Outgoing {
    /// Takes the response to a request whose stages so far are these, and sends it with what waits if that is much together.
    pub(crate) async fn put(
        &mut self,
        shared: &Shared,
        transport: &mut impl Transport,
        response: &Response,
        stages: Stages,
    ) -> Result<(), Unsent> {
        self.requests.push((stages, response.errors().clone()));
        match response.whole() {
            Some(bytes) if self.bytes.len() + bytes.len() <= MOST && self.requests.len() < MOST_RESPONSES => {
                self.bytes.extend_from_slice(bytes);
                Ok(())
            }
            _ => self.send(shared, transport, Some(response)).await,
        }
    }

    /// Sends what waits.
    pub(crate) async fn flush(
        &mut self,
        shared: &Shared,
        transport: &mut impl Transport,
    ) -> Result<(), Unsent> {
        if self.sending {
            self.note(shared);
            return Ok(());
        }
        if self.requests.is_empty() {
            return Ok(());
        }
        self.send(shared, transport, None).await
    }

    /// Gives memory back.
    pub(crate) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        self.requests.shrink_to_fit();
    }

    /// Whether what waits, or is to wait now that the request with these stages is answered, has been here long enough.
    pub(crate) fn is_due(&self, newest: &Stages) -> bool {
        let first = self.requests.first().map_or(newest, |(first, _)| first);
        newest.since(first) >= LONGEST
    }

    /// Counts what was sent.
    fn note(&mut self, shared: &Shared) {
        for (mut stages, errors) in self.requests.drain(..) {
            stages.sent();
            shared.metrics.apis.record(&stages, &errors);
        }
    }

    async fn send(
        &mut self,
        shared: &Shared,
        transport: &mut impl Transport,
        last: Option<&Response>,
    ) -> Result<(), Unsent> {
        self.sending = true;
        let size = self.bytes.len() as u64 + last.map_or(0, Response::wire_size);
        shared.metrics.network_bytes_out.add(size);
        let bytes = std::mem::take(&mut self.bytes);
        let sending = async {
            transport.write(&bytes, last.is_some()).await?;
            match last {
                Some(last) => last.send(transport).await,
                None => Ok(()),
            }
        };
        let sending = async {
            let mut sending = pin!(sending);
            let served = async {
                match shared.config.connection_idle_max {
                    Some(patience) => while_it_moves(patience, sending.as_mut()).await,
                    None => Some(sending.as_mut().await),
                }
            };
            // Subscribed to by who has to wait only.
            let stopping = async { shared.stopping.subscribe().wait_for(|stops| *stops).await.is_ok() };
            let sent = tokio::select! {
                biased;
                sent = served => Some(sent),
                _ = stopping => None,
            };
            match sent {
                Some(sent) => sent,
                None => while_it_moves(STOPPING_PATIENCE, sending).await,
            }
        };
        let sent = match last.filter(|last| last.is_counted()) {
            Some(counted) => tokio::select! {
                biased;
                sent = sending => sent,
                () = counted.overdue() => None,
            },
            None => sending.await,
        };
        self.sending = false;
        self.note(shared);
        self.bytes = bytes;
        self.bytes.clear();
        self.bytes.shrink_to(KEPT);
        self.requests.shrink_to(KEPT_RESPONSES);
        sent.ok_or(Unsent::NotRead)?.map_err(Unsent::Io)
    }
}

/// Work that waits for nothing but its peer, to its end; `None` when nothing moved for so long, or up to twice as long. It is
/// woken when the peer has taken something.
async fn while_it_moves<F: Future>(patience: Duration, work: F) -> Option<F::Output> {
    let mut work = pin!(work);
    if let Poll::Ready(done) = poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await {
        return Some(done);
    }
    // Its task may be polled for other reasons.
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut rest = pin!(sleep(patience));
    let (mut is_first, mut moved) = (true, false);
    poll_fn(|context| {
        woken.task.lock().clone_from(context.waker());
        if is_first || woken.is_woken.swap(false, Ordering::AcqRel) {
            if let Poll::Ready(done) = work.as_mut().poll(&mut Context::from_waker(&waker)) {
                return Poll::Ready(Some(done));
            }
            moved |= !is_first;
            is_first = false;
        }
        while rest.as_mut().poll(context).is_ready() {
            if !moved {
                return Poll::Ready(None);
            }
            moved = false;
            rest.as_mut().reset(Instant::now() + patience);
        }
        Poll::Pending
    })
    .await
}

/// Whether work was woken itself, and not only the task it is a part of.
struct Woken {
    is_woken: AtomicBool,
    task: Mutex<Waker>,
}

impl Default for Woken {
    fn default() -> Self {
        Self {
            is_woken: AtomicBool::new(false),
            task: Mutex::new(Waker::noop().clone()),
        }
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.task.lock().wake_by_ref();
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::timeout;

    use super::*;
    use crate::net::tls;
    use crate::{Properties, Server, ServerOptions};

    const PATIENCE: Duration = Duration::from_secs(60);

    // If this failed, who was given up for not reading would be waited for once more when its connection ends, over TLS.
    #[test]
    fn nothing_is_sent_after_what_was_given_up() {
        let logs = tempfile::tempdir().unwrap();
        let server = Server::open(&ServerOptions {
            node_id: 0,
            cluster_id: "abcdefghijklmnopqrstuv".to_owned(),
            log_dirs: vec![logs.path().to_string_lossy().into_owned()],
            properties: Properties::default(),
            progress: Arc::default(),
        });
        let server = server.unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }.worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            // More than the socket and the session have room for.
            let response = Response::from_frame(vec![7; 16 << 20], ErrorCounts::default());
            let (mut transport, _reads_nothing) = tls::tests::pair().await;
            let mut outgoing = Outgoing::default();
            let sending = outgoing.put(&server.shared, &mut transport, &response, Stages::begin());
            let given_up = timeout(Duration::from_millis(200), sending).await;
            assert!(given_up.is_err());
            let flushed = outgoing.flush(&server.shared, &mut transport);
            timeout(Duration::from_secs(10), flushed).await.unwrap().unwrap();
            assert!(outgoing.requests.is_empty());
        });
    }

    // If this failed, a consumer on a slow line would be cut off in the middle of a large response, or one that reads nothing
    // would keep its response, and the memory or files it is in.
    #[tokio::test(start_paused = true)]
    async fn a_response_may_take_its_time_as_long_as_it_is_read() {
        let (mut server, mut peer) = tokio::io::duplex(10);
        let sending = while_it_moves(PATIENCE, server.write_all(&[7; 100]));
        let reading = async {
            for _ in 0..9 {
                sleep(PATIENCE * 4 / 5).await;
                peer.read_exact(&mut [0; 10]).await.unwrap();
            }
        };
        let (sent, ()) = tokio::join!(sending, reading);
        sent.unwrap().unwrap();
        let begun = Instant::now();
        // What the same task does besides is no movement.
        let ticks = async {
            loop {
                sleep(PATIENCE / 10).await;
            }
        };
        let sent = tokio::select! {
            sent = while_it_moves(PATIENCE, server.write_all(&[7; 100])) => sent,
            () = ticks => unreachable!(),
        };
        assert!(sent.is_none());
        assert!((PATIENCE..3 * PATIENCE).contains(&begun.elapsed()));
    }
}
