//! The transport of a connection with TLS.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_rustls::server::TlsStream;

use logcore_storage::LogSlice;

use crate::net::transport::{COPY_CHUNK, Transport, copy_slice, discard_rest, peer_closed};

/// The largest TLS record, and the most bytes that wait for the next write.
pub(super) const RECORD: usize = 16 * 1024;

/// Sessions that send files in large pieces at the same time. The others send one record at a time.
static LARGE_BUFFERS: Semaphore = Semaphore::const_new(64);

/// A connection with TLS.
pub(crate) struct Tls {
    pub(super) stream: TlsStream<TcpStream>,
    pub(super) principal: String,
    /// Bytes that wait for the next write, because a record of their own would cost a packet.
    pub(super) pending: Vec<u8>,
}

impl AsyncRead for Tls {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_read(context, buffer) {
            // Frames have lengths, so a peer that closes without a TLS alert cannot truncate one unnoticed.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
            polled => polled,
        }
    }
}

impl Transport for Tls {
    fn principal(&self) -> &str {
        &self.principal
    }

    async fn write(&mut self, mut bytes: &[u8], more: bool) -> io::Result<()> {
        if !self.pending.is_empty() || (more && bytes.len() < RECORD) {
            let left = RECORD - self.pending.len();
            let (fits, rest) = bytes.split_at(bytes.len().min(left));
            self.pending.extend_from_slice(fits);
            bytes = rest;
            if more && self.pending.len() < RECORD {
                return Ok(());
            }
            let pending = std::mem::take(&mut self.pending);
            self.stream.write_all(&pending).await?;
        }
        self.stream.write_all(bytes).await?;
        if !more {
            self.stream.flush().await?;
        }
        Ok(())
    }

    async fn write_slice(&mut self, slice: &LogSlice) -> io::Result<()> {
        let Ok(_large) = LARGE_BUFFERS.try_acquire() else {
            return copy_slice(self, slice, RECORD as u64).await;
        };
        let limit = |stream: &mut TlsStream<TcpStream>, bytes| {
            stream.get_mut().1.set_buffer_limit(Some(bytes));
        };
        limit(&mut self.stream, COPY_CHUNK as usize);
        let copied = copy_slice(self, slice, COPY_CHUNK).await;
        // A peer that does not read leaves bytes in the session. They count as a large buffer until they are
        // sent.
        let flushed = match copied {
            Ok(()) => self.stream.flush().await,
            Err(error) => Err(error),
        };
        limit(&mut self.stream, RECORD);
        flushed
    }

    async fn finish(&mut self) -> io::Result<()> {
        self.stream.shutdown().await?;
        discard_rest(self.stream.get_mut().0).await
    }

    async fn closed(&mut self) {
        peer_closed(self.stream.get_ref().0).await;
    }
}

impl Drop for Tls {
    /// Sends the closing alert, without which a peer takes the end for an attack. It does not wait for the
    /// socket.
    fn drop(&mut self) {
        let (socket, session) = self.stream.get_mut();
        session.send_close_notify();
        let _ = session.write_tls(&mut AtOnce(socket));
    }
}

/// Writes to a socket without waiting.
struct AtOnce<'a>(&'a TcpStream);

impl io::Write for AtOnce<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
