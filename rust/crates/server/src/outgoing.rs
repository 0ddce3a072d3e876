//! Responses on their way to the peer.
//!
//! Small ones wait for those of the requests that were read together with their own, and are sent with them in one piece: a
//! peer that sends ahead costs one `send` for what one `recv` brought. The connection has everything sent before it waits
//! for anything, and once the first has been here for [`LONGEST`]: nothing waits longer but by the work on one request more.
//! Owned by the connection's task.

use std::io;
use std::time::Duration;

use tokio::time::timeout;

use crate::metrics::{ErrorCounts, Stages};
use crate::response::Response;
use crate::shared::Shared;
use crate::transport::Transport;

/// So many bytes wait for others.
const MOST: usize = 16 * 1024;
/// So many responses.
const MOST_RESPONSES: usize = 64;
/// So long after the first request came, no other is waited for.
const LONGEST: Duration = Duration::from_millis(1);

/// What is kept for the next responses.
const KEPT: usize = 1024;
const KEPT_RESPONSES: usize = 8;

/// Why something was not sent.
#[derive(Debug)]
pub(crate) enum Unsent {
    /// The socket's error.
    Io(io::Error),
    /// The peer did not read within `connections.max.idle.ms`.
    NotRead,
}

/// What waits.
#[derive(Default)]
pub(crate) struct Outgoing {
    bytes: Vec<u8>,
    requests: Vec<(Stages, ErrorCounts)>,
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
            Some(bytes)
                if self.bytes.len() + bytes.len() <= MOST
                    && self.requests.len() < MOST_RESPONSES =>
            {
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

    async fn send(
        &mut self,
        shared: &Shared,
        transport: &mut impl Transport,
        last: Option<&Response>,
    ) -> Result<(), Unsent> {
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
        let sent = match shared.config.connection_idle_max {
            Some(patience) => timeout(patience, sending).await,
            None => Ok(sending.await),
        };
        for (mut stages, errors) in self.requests.drain(..) {
            stages.sent();
            shared.metrics.apis.record(&stages, &errors);
        }
        self.bytes = bytes;
        self.bytes.clear();
        self.bytes.shrink_to(KEPT);
        self.requests.shrink_to(KEPT_RESPONSES);
        sent.map_err(|_| Unsent::NotRead)?.map_err(Unsent::Io)
    }
}
