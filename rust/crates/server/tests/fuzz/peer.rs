//! Connections that misbehave: they send in any pieces, stop in the middle, do not read, or disconnect.

use std::io::Read;
use std::time::Duration;

use bytes::Bytes;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};

use crate::expected::{Answer, Expected};
use crate::requests::Requests;
use crate::support::random::Random;

/// The behaviour of a connection.
#[derive(Debug, Clone, Copy)]
enum Behaviour {
    /// It reads all its responses, then closes.
    Ordinary,
    /// It closes its sending side when it has sent everything, and reads on.
    HalfCloses,
    /// It sends and reads, and resets the connection when one of the two is done.
    Resets,
    /// It sends as much as the server reads at once, and does not read.
    ReadsNothing,
    /// It stops in the middle, and reads nothing until the server stops.
    Stalls,
}

const BEHAVIOURS: [Behaviour; 8] = [
    Behaviour::Ordinary,
    Behaviour::Ordinary,
    Behaviour::Ordinary,
    Behaviour::HalfCloses,
    Behaviour::HalfCloses,
    Behaviour::Resets,
    Behaviour::ReadsNothing,
    Behaviour::Stalls,
];

/// The kernel takes at least so many bytes that the server does not read, even in small pieces.
const UNREAD: usize = 32 << 10;

/// One connection: its behaviour, and the bytes it sends.
#[derive(Debug)]
pub(crate) struct Peer {
    behaviour: Behaviour,
    pieces: Vec<Vec<u8>>,
    expected: Expected,
    /// The socket of a connection that stalls.
    open: Option<std::net::TcpStream>,
}

fn cut(random: &mut Random, mut stream: &[u8]) -> Vec<Vec<u8>> {
    let most = *random.pick(&[3, 100, 5_000, 1_000_000]);
    let mut pieces = Vec::new();
    while !stream.is_empty() {
        // Thousands of tiny pieces would only take time.
        let least = if pieces.len() < 300 { 1 } else { stream.len() };
        let (piece, rest) = stream.split_at(least.max(random.between(1, most)).min(stream.len()));
        pieces.push(piece.to_vec());
        stream = rest;
    }
    pieces
}

/// The next frame, unless the connection has ended.
async fn next(reader: &mut ReadHalf<'_>) -> Option<Bytes> {
    let mut size = [0; 4];
    reader.read_exact(&mut size).await.ok()?;
    let size = usize::try_from(i32::from_be_bytes(size)).expect("a response's size");
    let mut frame = Vec::new();
    let whole = reader.take(size as u64).read_to_end(&mut frame).await;
    (whole.is_ok() && frame.len() == size).then(|| frame.into())
}

/// Reads responses until all have come or the connection ends. Returns how many came.
async fn read_answers(reader: &mut ReadHalf<'_>, answers: &[Answer]) -> usize {
    for (count, answer) in answers.iter().enumerate() {
        match next(reader).await {
            Some(frame) => answer.check(frame),
            None => return count,
        }
    }
    answers.len()
}

/// Checks that the connection ends without another byte.
async fn read_end(reader: &mut ReadHalf<'_>) {
    let more = reader.read(&mut [0; 1]).await.unwrap_or(0);
    assert_eq!(more, 0, "a response without a request");
}

/// Writes all pieces, or until the server closes the connection.
async fn write(writer: &mut WriteHalf<'_>, pieces: &[Vec<u8>]) {
    for piece in pieces {
        if writer.write_all(piece).await.is_err() {
            return;
        }
        tokio::task::yield_now().await;
    }
}

/// Writes as much as the kernel takes at once.
fn push(stream: &TcpStream, pieces: &[Vec<u8>]) {
    for piece in pieces {
        if !matches!(stream.try_write(piece), Ok(count) if count == piece.len()) {
            return;
        }
    }
}

impl Peer {
    pub(crate) fn new(random: &mut Random, requests: &Requests) -> Self {
        let behaviour = *random.pick(&BEHAVIOURS);
        let mut stream = requests.stream(random);
        if matches!(behaviour, Behaviour::Stalls) {
            stream.truncate(random.below(stream.len() + 1));
        }
        let mut expected = Expected::of(&stream);
        // After a request that waits, the server reads so far only. It must see the end of the stream to
        // answer.
        if matches!(behaviour, Behaviour::Ordinary | Behaviour::HalfCloses)
            && let Some(end) = expected.waits_at.map(|end| end + UNREAD)
            && end < stream.len()
        {
            stream.truncate(end);
            expected = Expected::of(&stream);
        }
        Self {
            behaviour,
            pieces: cut(random, &stream),
            expected,
            open: None,
        }
    }

    /// Runs the connection to its end. One that stalls stays open.
    pub(crate) async fn run(mut self, port: u16) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        stream.set_nodelay(true).unwrap();
        match self.behaviour {
            Behaviour::Ordinary => self.read_all(&mut stream).await,
            Behaviour::HalfCloses => self.half_close(&mut stream).await,
            Behaviour::Resets => self.reset(stream).await,
            Behaviour::ReadsNothing => {
                push(&stream, &self.pieces);
                SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
                tokio::task::yield_now().await;
            }
            Behaviour::Stalls => {
                push(&stream, &self.pieces);
                self.open = Some(stream.into_std().unwrap());
            }
        }
        self
    }

    async fn read_all(&self, stream: &mut TcpStream) {
        if self.expected.is_uncertain {
            return self.half_close(stream).await;
        }
        let (mut reader, mut writer) = stream.split();
        let answers = &self.expected.answers;
        let (count, ()) = tokio::join!(
            read_answers(&mut reader, answers),
            write(&mut writer, &self.pieces)
        );
        if !self.expected.is_refused {
            assert_eq!(answers.get(count), None, "the response is missing");
            writer.shutdown().await.unwrap();
        }
        read_end(&mut reader).await;
    }

    async fn half_close(&self, stream: &mut TcpStream) {
        let (mut reader, mut writer) = stream.split();
        let writing = async {
            write(&mut writer, &self.pieces).await;
            // This fails if the server has closed the connection.
            let _ = writer.shutdown().await;
        };
        let answers = &self.expected.answers;
        let (count, ()) = tokio::join!(read_answers(&mut reader, answers), writing);
        if count == answers.len() {
            read_end(&mut reader).await;
        }
    }

    async fn reset(&self, mut stream: TcpStream) {
        let socket = SockRef::from(&stream);
        socket.set_linger(Some(Duration::ZERO)).unwrap();
        let (mut reader, mut writer) = stream.split();
        tokio::select! {
            _ = read_answers(&mut reader, &self.expected.answers) => {}
            () = write(&mut writer, &self.pieces) => {}
        }
    }

    /// Waits until the server closes a connection that stalls.
    pub(crate) fn expect_close(self, timeout: Duration) {
        let Some(mut stream) = self.open else {
            return;
        };
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(timeout)).unwrap();
        if let Err(error) = stream.read_to_end(&mut Vec::new()) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
        }
    }
}
