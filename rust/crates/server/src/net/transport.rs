//! What a connection needs of its socket: the one seam that plain TCP fills here, and TLS in [`crate::net::tls`].
//!
//! Reading is [`AsyncRead`]'s. Writing knows two things more than a byte stream: whether more follows at once, and ranges of
//! files, which plain TCP hands to the kernel with `sendfile`, so that they are never copied through user space. A transport
//! that must see the bytes (to encrypt them) reads them through one bounded buffer into large writes. Owned by the
//! connection's task.

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

/// The most one `sendfile` sends, so that one connection does not keep a thread for long.
const SENDFILE_CHUNK: u64 = 1 << 20;
/// The buffer through which a file's bytes pass when they cannot be sent from the page cache.
pub(crate) const COPY_CHUNK: u64 = 256 * 1024;
/// What a peer still sends when everything was said is thrown away in chunks of this.
const FAREWELL_CHUNK: usize = 8 * 1024;

/// A connection's way to its peer.
pub(crate) trait Transport: AsyncRead + Unpin + Send + Sync {
    /// Who the peer is, as far as the transport knows (`KafkaPrincipal`).
    fn principal(&self) -> &str {
        ANONYMOUS
    }

    /// Writes everything. `more` says that more is written at once, so a packet that is not full may wait for it.
    fn write(&mut self, bytes: &[u8], more: bool) -> impl Future<Output = io::Result<()>> + Send;

    /// Writes a range of a file, after which more is written.
    fn write_slice(&mut self, slice: &LogSlice) -> impl Future<Output = io::Result<()>> + Send {
        copy_slice(self, slice, COPY_CHUNK)
    }

    /// Whether a read that finds nothing is repeated by its caller, again and again: then nobody is woken when something comes.
    /// Returns whether it is so now; a transport that cannot finds only what the runtime has told it of.
    fn look_directly(&mut self, _directly: bool) -> io::Result<bool> {
        Ok(false)
    }

    /// Says that nothing more is written, and returns once the peer has closed its side; what it still sends is thrown away.
    /// A socket that is closed with bytes unread takes those that are on their way to the peer along (RFC 9293, 3.10.4).
    fn finish(&mut self) -> impl Future<Output = io::Result<()>> + Send;

    /// Returns once the peer has closed its side, whether or not everything it sent was read.
    fn closed(&mut self) -> impl Future<Output = ()> + Send;
}

/// A slice through a buffer of at most `chunk` bytes, for a transport that has no better way.
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

/// Reads what is in memory at once; what must come from disk lets this thread's other connections move first.
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
        format!("a log file ended {missing} bytes before the range that was to be sent"),
    )
}

/// Plain TCP.
pub(crate) struct Plain(Socket);

enum Socket {
    /// The runtime tells when it can be read or written.
    Watched(TcpStream),
    /// The runtime does not know of it: no thread of it is woken by what comes.
    Unwatched(std::net::TcpStream),
    /// It could not be made one or the other.
    Lost,
}

impl Plain {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self(Socket::Watched(stream))
    }

    /// The socket, for what may have to wait.
    fn watched(&mut self) -> io::Result<&mut TcpStream> {
        self.look_directly(false)?;
        match &mut self.0 {
            Socket::Watched(stream) => Ok(stream),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Sends as much as there is room for; waits until there is some.
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

/// What has come; nothing is waited for.
fn read_directly(stream: &std::net::TcpStream, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
    // SAFETY: nothing that is initialized is made uninitialized: the kernel writes bytes.
    let room = unsafe { buffer.unfilled_mut() };
    let count = match rustix::net::recv(stream, room, RecvFlags::DONTWAIT) {
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
            Socket::Unwatched(stream) => read_directly(stream, buffer),
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
                // A page that must come from disk would block this thread's other connections: let them move first.
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

    fn look_directly(&mut self, directly: bool) -> io::Result<bool> {
        if directly == matches!(self.0, Socket::Unwatched(_)) {
            return Ok(directly);
        }
        self.0 = match std::mem::replace(&mut self.0, Socket::Lost) {
            Socket::Watched(stream) => Socket::Unwatched(stream.into_std()?),
            Socket::Unwatched(stream) => Socket::Watched(TcpStream::from_std(stream)?),
            Socket::Lost => return Err(io::ErrorKind::NotConnected.into()),
        };
        Ok(directly)
    }

    async fn finish(&mut self) -> io::Result<()> {
        let stream = self.watched()?;
        SockRef::from(&*stream).shutdown(Shutdown::Write)?;
        throw_away(stream).await
    }

    async fn closed(&mut self) {
        if let Ok(stream) = self.watched() {
            peer_closed(stream).await;
        }
    }
}

/// Reads until the peer has closed its side, for nobody.
pub(crate) async fn throw_away(stream: &mut TcpStream) -> io::Result<()> {
    let mut thrown_away = vec![0; FAREWELL_CHUNK];
    while stream.read(&mut thrown_away).await? > 0 {}
    Ok(())
}

/// Returns once the peer has closed its side of the socket, whether or not everything it sent was read.
pub(crate) async fn peer_closed(stream: &TcpStream) {
    // This interest is woken by the peer's end and not by its bytes; nothing here asks for urgent data.
    while let Ok(ready) = stream.ready(Interest::PRIORITY).await
        && !ready.is_read_closed()
    {
        let clear = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
        let _ = stream.try_io(Interest::PRIORITY, clear);
    }
}

/// Whether reading this byte would wait for the disk. File systems that cannot tell are taken to be in memory.
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

    const PATIENCE: Duration = Duration::from_secs(20);

    /// A transport without a way to send files, as one that encrypts is.
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

    // If this failed, what is encrypted would not be what is sent plainly, or would be read into memory as a whole.
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

    // If this failed, a quick client's connection would miss a request, or its end, where it stops to look by itself, or could
    // not be answered at length.
    #[test]
    fn nothing_is_missed_between_looking_and_being_woken() {
        const LONG: usize = 16 << 20;
        runtime().block_on(async {
            let (mut plain, mut client) = plain_pair().await;
            let mut context = Context::from_waker(std::task::Waker::noop());
            for round in 0..100u8 {
                plain.look_directly(true).unwrap();
                let mut byte = [0];
                let mut room = ReadBuf::new(&mut byte);
                assert!(
                    Pin::new(&mut plain)
                        .poll_read(&mut context, &mut room)
                        .is_pending()
                );
                client.write_all(&[round]).await.unwrap();
                // What came is found by looking, or, as it comes while nobody looks, by being woken.
                if round % 2 == 0 {
                    while Pin::new(&mut plain)
                        .poll_read(&mut context, &mut room)
                        .is_pending()
                    {
                        tokio::task::yield_now().await;
                    }
                } else {
                    plain.look_directly(false).unwrap();
                    let read = timeout(PATIENCE, plain.read(&mut byte)).await.unwrap();
                    assert_eq!(read.unwrap(), 1);
                }
                assert_eq!(byte, [round]);
            }
            plain.look_directly(true).unwrap();
            let (long, mut received) = (vec![7; LONG], vec![0; LONG]);
            let sent = async { tokio::join!(plain.write(&long, false), client.read_exact(&mut received)) };
            let (sent, read) = timeout(PATIENCE, sent).await.unwrap();
            sent.unwrap();
            read.unwrap();
            assert!(received == long);
            plain.look_directly(true).unwrap();
            client.shutdown().await.unwrap();
            timeout(PATIENCE, plain.closed()).await.unwrap();
            plain.look_directly(true).unwrap();
            assert_eq!(plain.read(&mut [0]).await.unwrap(), 0);
        });
    }

    // If this failed, a request whose client is gone would wait to its end, or one whose client only went on sending would
    // be dropped.
    #[test]
    fn the_end_is_seen_behind_unread_bytes() {
        runtime().block_on(async {
            let (mut plain, mut client) = plain_pair().await;
            client.write_all(b"unread").await.unwrap();
            plain.watched().unwrap().readable().await.unwrap();
            let mut closed = std::pin::pin!(plain.closed());
            let mut context = Context::from_waker(std::task::Waker::noop());
            assert!(closed.as_mut().poll(&mut context).is_pending());
            client.shutdown().await.unwrap();
            timeout(PATIENCE, closed).await.unwrap();
        });
    }
}
