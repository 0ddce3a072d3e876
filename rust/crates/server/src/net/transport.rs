//! The interface between a connection and its socket. Plain TCP implements it here, and TLS in
//! [`crate::net::tls`].
//!
//! Reading is [`AsyncRead`]. Writing has two additions to a byte stream: whether more follows at once, and
//! ranges of files. Plain TCP sends file ranges with `sendfile`, so they are never copied through user space.
//! A transport that encrypts reads them through one bounded buffer. Owned by the connection's task.

use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll};

use rustix::io::{Errno, ReadWriteFlags};
use rustix::net::{RecvFlags, SendFlags};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::block_in_place;

use logcore_storage::LogSlice;

use crate::quotas::ANONYMOUS;

/// The most bytes of one `sendfile`, so that a connection does not occupy its thread for long.
const SENDFILE_CHUNK: u64 = 1 << 20;
/// The buffer for a file's bytes where `sendfile` cannot be used.
pub(crate) const COPY_CHUNK: u64 = 256 * 1024;
/// The buffer in which the bytes of a closing peer are discarded.
const DISCARD_CHUNK: usize = 8 * 1024;

/// The socket of a connection.
pub(crate) trait Transport: AsyncRead + Unpin + Send + Sync {
    /// The peer's principal (`KafkaPrincipal`).
    fn principal(&self) -> &str {
        ANONYMOUS
    }

    /// Writes all bytes. With `more`, another write follows at once, so a packet that is not full may wait
    /// for it.
    fn write(&mut self, bytes: &[u8], more: bool) -> impl Future<Output = io::Result<()>> + Send;

    /// Writes a range of a file. Another write follows.
    fn write_slice(&mut self, slice: &LogSlice) -> impl Future<Output = io::Result<()>> + Send {
        copy_slice(self, slice, COPY_CHUNK)
    }

    /// Turns direct reading on or off. While it is on, the caller repeats a read that found nothing, and
    /// arriving bytes wake no thread. Returns whether it is on now: a transport without it depends on the
    /// runtime for wake-ups.
    fn read_directly(&mut self, _on: bool) -> io::Result<bool> {
        Ok(false)
    }

    /// Closes the sending side, and returns once the peer has closed its own. What the peer still sends is
    /// discarded. Closing a socket with unread bytes would destroy those on their way to the peer (RFC 9293,
    /// 3.10.4).
    fn finish(&mut self) -> impl Future<Output = io::Result<()>> + Send;

    /// Returns once the peer has closed its side, even if some of its bytes are unread.
    fn closed(&mut self) -> impl Future<Output = ()> + Send;
}

/// Writes a file range through a buffer of at most `chunk` bytes.
pub(crate) async fn copy_slice<T: Transport + ?Sized>(
    transport: &mut T,
    slice: &LogSlice,
    chunk: u64,
) -> io::Result<()> {
    let mut buffer = vec![0; slice.len.min(chunk) as usize];
    let (mut position, end) = (slice.position, slice.position + slice.len);
    while position < end {
        let wanted = (end - position).min(chunk) as usize;
        let read = read_some(slice, position, &mut buffer[..wanted])?;
        if read == 0 {
            return Err(ended_early(end - position));
        }
        transport.write(&buffer[..read], true).await?;
        position += read as u64;
    }
    Ok(())
}

/// Reads from the page cache, or else from the disk. A read from the disk moves the thread's other
/// connections to another thread.
fn read_some(slice: &LogSlice, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut buffers = [io::IoSliceMut::new(buffer)];
    match rustix::io::preadv2(&slice.file, &mut buffers, position, ReadWriteFlags::NOWAIT) {
        Ok(read) if read > 0 => Ok(read),
        _ => Ok(block_in_place(|| {
            rustix::io::pread(&slice.file, &mut *buffer, position)
        })?),
    }
}

fn ended_early(missing: u64) -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        format!("a log file ended {missing} bytes before the end of the range to be sent"),
    )
}

/// Plain TCP.
pub(crate) struct Plain(Socket);

enum Socket {
    /// The runtime reports when it can be read or written.
    Watched(TcpStream),
    /// The runtime does not know of it, so arriving bytes wake no thread.
    Unwatched(std::net::TcpStream),
    /// A change between the two failed.
    Lost,
}

impl Plain {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self(Socket::Watched(stream))
    }

    /// The socket for an operation that may have to wait.
    fn watched(&mut self) -> io::Result<&mut TcpStream> {
        self.read_directly(false)?;
        match &mut self.0 {
            Socket::Watched(stream) => Ok(stream),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Sends as much as the socket takes. Waits until it takes some.
    async fn send(&mut self, mut send: impl FnMut(BorrowedFd<'_>) -> io::Result<usize>) -> io::Result<usize> {
        if let Socket::Unwatched(stream) = &self.0 {
            match send(stream.as_fd()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => return sent,
            }
        }
        let stream = self.watched()?;
        let write = || send(stream.as_fd());
        stream.async_io(Interest::WRITABLE, write).await
    }
}

/// Reads the bytes that are there, without waiting.
fn receive_now(stream: &std::net::TcpStream, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
    // SAFETY: no initialized byte becomes uninitialized: the kernel writes bytes.
    let unfilled = unsafe { buffer.unfilled_mut() };
    let count = match rustix::net::recv(stream, unfilled, RecvFlags::DONTWAIT) {
        Ok(((read, _), _)) => read.len(),
        Err(Errno::AGAIN | Errno::INTR) => return Poll::Pending,
        Err(error) => return Poll::Ready(Err(error.into())),
    };
    // SAFETY: the kernel has just written so many.
    unsafe { buffer.assume_init(count) };
    buffer.advance(count);
    Poll::Ready(Ok(()))
}

impl AsyncRead for Plain {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Socket::Watched(stream) => Pin::new(stream).poll_read(context, buffer),
            Socket::Unwatched(stream) => receive_now(stream, buffer),
            Socket::Lost => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

impl Transport for Plain {
    async fn write(&mut self, mut bytes: &[u8], more: bool) -> io::Result<()> {
        let more = if more { SendFlags::MORE } else { SendFlags::empty() };
        while !bytes.is_empty() {
            let send =
                |socket: BorrowedFd<'_>| Ok(rustix::net::send(socket, bytes, SendFlags::NOSIGNAL | more)?);
            let sent = self.send(send).await?;
            bytes = &bytes[sent..];
        }
        Ok(())
    }

    async fn write_slice(&mut self, slice: &LogSlice) -> io::Result<()> {
        let mut position = slice.position;
        let end = slice.position + slice.len;
        while position < end {
            let count = (end - position).min(SENDFILE_CHUNK);
            let cold = is_cold(slice, position) || is_cold(slice, position + count - 1);
            let send = |socket: BorrowedFd<'_>| {
                let mut offset = position;
                let mut send =
                    || rustix::fs::sendfile(socket, &slice.file, Some(&mut offset), count as usize);
                // A page that must come from the disk blocks this thread, so its other connections move to
                // another one.
                Ok(if cold { block_in_place(send)? } else { send()? })
            };
            let sent = self.send(send).await?;
            if sent == 0 {
                return Err(ended_early(end - position));
            }
            position += sent as u64;
        }
        Ok(())
    }

    fn read_directly(&mut self, on: bool) -> io::Result<bool> {
        if on == matches!(self.0, Socket::Unwatched(_)) {
            return Ok(on);
        }
        self.0 = match std::mem::replace(&mut self.0, Socket::Lost) {
            Socket::Watched(stream) => Socket::Unwatched(stream.into_std()?),
            Socket::Unwatched(stream) => Socket::Watched(TcpStream::from_std(stream)?),
            Socket::Lost => return Err(io::ErrorKind::NotConnected.into()),
        };
        Ok(on)
    }

    async fn finish(&mut self) -> io::Result<()> {
        let stream = self.watched()?;
        SockRef::from(&*stream).shutdown(Shutdown::Write)?;
        discard_rest(stream).await
    }

    async fn closed(&mut self) {
        if let Ok(stream) = self.watched() {
            peer_closed(stream).await;
        }
    }
}

/// Discards the peer's bytes until it has closed its side.
pub(crate) async fn discard_rest(stream: &mut TcpStream) -> io::Result<()> {
    let mut discarded = vec![0; DISCARD_CHUNK];
    while stream.read(&mut discarded).await? > 0 {}
    Ok(())
}

/// Returns once the peer has closed its side of the socket, even if some of its bytes are unread.
pub(crate) async fn peer_closed(stream: &TcpStream) {
    // This interest wakes for the peer's close and not for its bytes. Urgent data is not used here.
    while let Ok(ready) = stream.ready(Interest::PRIORITY).await
        && !ready.is_read_closed()
    {
        let clear = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
        let _ = stream.try_io(Interest::PRIORITY, clear);
    }
}

/// Whether reading this byte would wait for the disk. If the file system does not support the question, the
/// answer is no.
fn is_cold(slice: &LogSlice, position: u64) -> bool {
    let mut byte = [0];
    let mut buffers = [io::IoSliceMut::new(&mut byte)];
    let read = rustix::io::preadv2(&slice.file, &mut buffers, position, ReadWriteFlags::NOWAIT);
    matches!(read, Err(Errno::AGAIN))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use logcore_protocol::{RequestHeader, Struct, Value};
    use logcore_storage::{Log, LogConfig};

    use super::*;
    use crate::api::response_message;
    use crate::net::response::Response;

    const TIMEOUT: Duration = Duration::from_secs(20);

    /// A transport without `sendfile`, as for encryption.
    struct Piped {
        stream: DuplexStream,
        largest_write: usize,
    }

    impl AsyncRead for Piped {
        fn poll_read(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.stream).poll_read(context, buffer)
        }
    }

    impl Transport for Piped {
        async fn write(&mut self, bytes: &[u8], _more: bool) -> io::Result<()> {
            self.largest_write = self.largest_write.max(bytes.len());
            self.stream.write_all(bytes).await
        }

        async fn finish(&mut self) -> io::Result<()> {
            self.stream.shutdown().await
        }

        async fn closed(&mut self) {
            std::future::pending().await
        }
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap()
    }

    async fn plain_pair() -> (Plain, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await;
        let (server, _) = listener.accept().await.unwrap();
        (Plain::new(server), client.unwrap())
    }

    /// A Fetch response with two ranges of a log in it, the second far larger than any buffer.
    fn response(log: &Log) -> Response {
        let slices = [log.read(0, 1, 1 << 40, true), log.read(1, 1 << 30, 1 << 40, true)];
        let slices = slices.map(Result::unwrap);
        let mut message = response_message(1);
        let partitions = slices.iter().map(|slice| {
            let partition: Struct = message.element("responses").element("partitions");
            Value::Struct(partition.with("records", Value::Gap(slice.len as u32)))
        });
        let partitions: Vec<_> = partitions.collect();
        let topic = message
            .element("responses")
            .with("topic", "t")
            .with("partitions", partitions);
        message.push("responses", topic);
        let header = RequestHeader {
            api_key: 1,
            api_version: 12,
            correlation_id: 7,
            client_id: None,
        };
        Response::with_slices(&header, &message.into(), slices.to_vec()).unwrap()
    }

    fn log_in(dir: &std::path::Path) -> Arc<Log> {
        let dir = logcore_storage::LogDir::open(dir, 1, None, &|_| LogConfig::default()).unwrap();
        let partition = dir.create("t", 0, [7; 16], LogConfig::default()).unwrap();
        let value = vec![b'v'; 900_000];
        for value in [&value[..10], &value, &value] {
            let mut builder = logcore_records::BatchBuilder::new(logcore_records::Compression::None, None);
            builder.append(0, None, Some(value), &[]).unwrap();
            let mut batch = builder.build().unwrap();
            partition.log.append_as_leader(&mut batch, 0, 0).unwrap();
        }
        Arc::clone(&partition.log)
    }

    // If this failed, an encrypted response would differ from a plain one, or would be read into memory as a
    // whole.
    #[test]
    fn every_transport_sends_the_same_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let log = log_in(dir.path());
        let response = response(&log);
        runtime().block_on(async {
            let size = response.wire_size() as usize;
            assert!(size > 1_800_000);
            let (mut plain, mut client) = plain_pair().await;
            let mut sent = vec![0; size];
            let (done, _) = tokio::join!(response.send(&mut plain), client.read_exact(&mut sent));
            done.unwrap();
            let (stream, mut client) = duplex(4096);
            let mut piped = Piped {
                stream,
                largest_write: 0,
            };
            let mut copied = vec![0; size];
            let (done, _) = tokio::join!(response.send(&mut piped), client.read_exact(&mut copied));
            done.unwrap();
            assert!(sent == copied);
            assert_eq!(piped.largest_write as u64, COPY_CHUNK);
            let (mut tls, mut client) = crate::net::tls::tests::pair().await;
            let mut deciphered = vec![0; size];
            let (done, _) = tokio::join!(response.send(&mut tls), client.read_exact(&mut deciphered));
            done.unwrap();
            assert!(sent == deciphered);
        });
    }

    // If this failed, a connection that stops direct reading would miss a request or the peer's close, or
    // could not send a long response.
    #[test]
    fn nothing_is_missed_between_direct_reading_and_wake_ups() {
        const LONG: usize = 16 << 20;
        runtime().block_on(async {
            let (mut plain, mut client) = plain_pair().await;
            let mut context = Context::from_waker(std::task::Waker::noop());
            for round in 0..100u8 {
                plain.read_directly(true).unwrap();
                let mut byte = [0];
                let mut space = ReadBuf::new(&mut byte);
                assert!(
                    Pin::new(&mut plain)
                        .poll_read(&mut context, &mut space)
                        .is_pending()
                );
                client.write_all(&[round]).await.unwrap();
                // The byte is found by direct reading in even rounds, and by a wake-up in odd ones.
                if round % 2 == 0 {
                    while Pin::new(&mut plain)
                        .poll_read(&mut context, &mut space)
                        .is_pending()
                    {
                        tokio::task::yield_now().await;
                    }
                } else {
                    plain.read_directly(false).unwrap();
                    let read = timeout(TIMEOUT, plain.read(&mut byte)).await.unwrap();
                    assert_eq!(read.unwrap(), 1);
                }
                assert_eq!(byte, [round]);
            }
            plain.read_directly(true).unwrap();
            let (long, mut received) = (vec![7; LONG], vec![0; LONG]);
            let sent = async { tokio::join!(plain.write(&long, false), client.read_exact(&mut received)) };
            let (sent, read) = timeout(TIMEOUT, sent).await.unwrap();
            sent.unwrap();
            read.unwrap();
            assert!(received == long);
            plain.read_directly(true).unwrap();
            client.shutdown().await.unwrap();
            timeout(TIMEOUT, plain.closed()).await.unwrap();
            plain.read_directly(true).unwrap();
            assert_eq!(plain.read(&mut [0]).await.unwrap(), 0);
        });
    }

    // If this failed, a request whose client is gone would wait to its end, or a request whose client goes on
    // sending would be dropped.
    #[test]
    fn a_close_is_seen_behind_unread_bytes() {
        runtime().block_on(async {
            let (mut plain, mut client) = plain_pair().await;
            client.write_all(b"unread").await.unwrap();
            plain.watched().unwrap().readable().await.unwrap();
            let mut closed = std::pin::pin!(plain.closed());
            let mut context = Context::from_waker(std::task::Waker::noop());
            assert!(closed.as_mut().poll(&mut context).is_pending());
            client.shutdown().await.unwrap();
            timeout(TIMEOUT, closed).await.unwrap();
        });
    }
}
