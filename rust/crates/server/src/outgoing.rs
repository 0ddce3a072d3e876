//! Responses on their way to the peer.
//!
//! Small ones wait for those of the requests that were read together with their own, and are sent with them in one piece: a
//! peer that sends ahead costs one `send` for what one `recv` brought. The connection has everything sent before it waits
//! for anything, so nothing is answered later than the work on the next requests takes, of which there is at most
//! [`LONGEST`]. Owned by the connection's task.

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
/// So long does the first of them wait until no other is awaited.
const LONGEST: Duration = Duration::from_millis(1);

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
    /// Takes the response to a request whose stages so far are these, and sends it with what waits if it is large, or if that
    /// has waited enough.
    pub(crate) async fn put(
        &mut self,
        shared: &Shared,
        transport: &mut impl Transport,
        response: &Response,
        stages: Stages,
    ) -> Result<(), Unsent> {
        self.requests.push((stages, response.errors().clone()));
        match response.whole() {
            Some(bytes) if self.bytes.len() + bytes.len() <= MOST => {
                self.bytes.extend_from_slice(bytes);
                if self.is_due(&stages) {
                    self.send(shared, transport, None).await?;
                }
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

    fn is_due(&self, newest: &Stages) -> bool {
        let first = self.requests.first();
        self.requests.len() >= MOST_RESPONSES
            || first.is_some_and(|(first, _)| newest.after(first) >= LONGEST)
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
        sent.map_err(|_| Unsent::NotRead)?.map_err(Unsent::Io)
    }
}
