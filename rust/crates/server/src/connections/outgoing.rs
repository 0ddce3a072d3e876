//! Sending responses to the peer.
//!
//! Short responses to requests of one read are sent together: a peer that pipelines costs one `send` for each
//! `recv`. The connection sends all of them before it waits for anything, and once the first of them has been
//! ready for [`LONGEST`]. So a response waits for the work on one more request at most. Owned by the
//! connection's task.

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

const BYTES_MAX: usize = 16 * 1024;
const RESPONSES_MAX: usize = 64;
/// The longest time that a response waits for others.
const LONGEST: Duration = Duration::from_millis(1);

/// How long a client of a stopping server may read nothing of its responses.
const STOPPING_TIMEOUT: Duration = Duration::from_secs(2);

/// The capacity that is kept for the next responses.
const KEPT: usize = 1024;
const KEPT_RESPONSES: usize = 8;

#[derive(Debug)]
pub(crate) enum Unsent {
    Io(io::Error),
    /// The peer read nothing for `connections.max.idle.ms`, or for a short time while the server stops, or
    /// too little while others needed the memory.
    NotRead,
}

#[derive(Default)]
pub(crate) struct Outgoing {
    bytes: Vec<u8>,
    requests: Vec<(Stages, ErrorCounts)>,
    /// A send is under way. It stays so if the send was cancelled, and nothing more can be sent then.
    sending: bool,
}

impl Outgoing {
    /// Takes a response, with the stages of its request. Sends all that waits if it is much.
    pub(crate) async fn put(
        &mut self,
        shared: &Shared,
        transport: &mut impl Transport,
        response: &Response,
        stages: Stages,
    ) -> Result<(), Unsent> {
        self.requests.push((stages, response.errors().clone()));
        match response.whole() {
            Some(bytes)
                if self.bytes.len() + bytes.len() <= BYTES_MAX && self.requests.len() < RESPONSES_MAX =>
            {
                self.bytes.extend_from_slice(bytes);
                Ok(())
            }
            _ => self.send(shared, transport, Some(response)).await,
        }
    }

    pub(crate) async fn flush(
        &mut self,
        shared: &Shared,
        transport: &mut impl Transport,
    ) -> Result<(), Unsent> {
        if self.sending {
            self.record(shared);
            return Ok(());
        }
        if self.requests.is_empty() {
            return Ok(());
        }
        self.send(shared, transport, None).await
    }

    pub(crate) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        self.requests.shrink_to_fit();
    }

    /// Whether the oldest response, or else the one to the request with these stages, has waited long enough.
    pub(crate) fn is_due(&self, newest: &Stages) -> bool {
        let first = self.requests.first().map_or(newest, |(first, _)| first);
        newest.since(first) >= LONGEST
    }

    fn record(&mut self, shared: &Shared) {
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
                    Some(idle_max) => while_it_moves(idle_max, sending.as_mut()).await,
                    None => Some(sending.as_mut().await),
                }
            };
            // Only a send that has to wait subscribes.
            let stopping = async { shared.stopping.subscribe().wait_for(|stops| *stops).await.is_ok() };
            let sent = tokio::select! {
                biased;
                sent = served => Some(sent),
                _ = stopping => None,
            };
            match sent {
                Some(sent) => sent,
                None => while_it_moves(STOPPING_TIMEOUT, sending).await,
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
        self.record(shared);
        self.bytes = bytes;
        self.bytes.clear();
        self.bytes.shrink_to(KEPT);
        self.requests.shrink_to(KEPT_RESPONSES);
        sent.ok_or(Unsent::NotRead)?.map_err(Unsent::Io)
    }
}

/// Work that waits only for its peer, which wakes it by reading. Returns `None` if the peer read nothing for
/// `limit`, or up to twice as long.
async fn while_it_moves<F: Future>(limit: Duration, work: F) -> Option<F::Output> {
    let mut work = pin!(work);
    if let Poll::Ready(done) = poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await {
        return Some(done);
    }
    // The task may be polled for other reasons than the peer.
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut rest = pin!(sleep(limit));
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
            rest.as_mut().reset(Instant::now() + limit);
        }
        Poll::Pending
    })
    .await
}

/// Whether the work itself was woken, and not only its task.
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

    const TIMEOUT: Duration = Duration::from_secs(60);

    // If this failed, the end of a connection with TLS would wait once more for a peer that was cut off for
    // not reading.
    #[test]
    fn nothing_is_sent_after_a_cancelled_send() {
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
            // More than the buffers of the socket and of the TLS session.
            let response = Response::from_frame(vec![7; 16 << 20], ErrorCounts::default());
            let (mut transport, _reads_nothing) = tls::tests::pair().await;
            let mut outgoing = Outgoing::default();
            let sending = outgoing.put(&server.shared, &mut transport, &response, Stages::begin());
            let cancelled = timeout(Duration::from_millis(200), sending).await;
            assert!(cancelled.is_err());
            let flushed = outgoing.flush(&server.shared, &mut transport);
            timeout(Duration::from_secs(10), flushed).await.unwrap().unwrap();
            assert!(outgoing.requests.is_empty());
        });
    }

    // If this failed, a consumer on a slow line would be cut off in the middle of a long response, or one
    // that reads nothing would keep its response with its memory or files.
    #[tokio::test(start_paused = true)]
    async fn a_slow_response_is_sent_while_it_is_read() {
        let (mut server, mut peer) = tokio::io::duplex(10);
        let sending = while_it_moves(TIMEOUT, server.write_all(&[7; 100]));
        let reading = async {
            for _ in 0..9 {
                sleep(TIMEOUT * 4 / 5).await;
                peer.read_exact(&mut [0; 10]).await.unwrap();
            }
        };
        let (sent, ()) = tokio::join!(sending, reading);
        sent.unwrap().unwrap();
        let begun = Instant::now();
        // Other wake-ups of the task do not count as reading.
        let ticks = async {
            loop {
                sleep(TIMEOUT / 10).await;
            }
        };
        let sent = tokio::select! {
            sent = while_it_moves(TIMEOUT, server.write_all(&[7; 100])) => sent,
            () = ticks => unreachable!(),
        };
        assert!(sent.is_none());
        assert!((TIMEOUT..3 * TIMEOUT).contains(&begun.elapsed()));
    }
}
