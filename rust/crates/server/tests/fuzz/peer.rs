//! Connections that do not behave: they send in any pieces, stop in the middle, do not read, go away.

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

/// What becomes of a connection.
#[derive(Debug, Clone, Copy)]
enum Manner {
    /// It reads all its answers, then closes.
    Polite,
    /// It closes its side as soon as it has sent everything, and reads on.
    HalfCloses,
    /// It sends everything, reads meanwhile, and resets the connection.
    Resets,
    /// It sends what is taken off it and does not read.
    Deaf,
    /// It stops in the middle, reads nothing until the server stops.
    Stalls,
}

const MANNERS: [Manner; 8] = [
    Manner::Polite,
    Manner::Polite,
    Manner::Polite,
    Manner::HalfCloses,
    Manner::HalfCloses,
    Manner::Resets,
    Manner::Deaf,
    Manner::Stalls,
];

/// The kernel takes as much of what the server does not read, in however small pieces it comes.
const UNREAD: usize = 32 << 10;

/// One connection: what it sends, and in which pieces.
#[derive(Debug)]
pub(crate) struct Peer {
    manner: Manner,
    pieces: Vec<Vec<u8>>,
    expected: Expected,
    /// What is still open when it has done its part.
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

/// Reads answers until all have come or the connection ends; how many came.
async fn read_answers(reader: &mut ReadHalf<'_>, answers: &[Answer]) -> usize {
    for (count, answer) in answers.iter().enumerate() {
        match next(reader).await {
            Some(frame) => answer.check(frame),
            None => return count,
        }
    }
    answers.len()
}

/// Nothing more comes but the end.
async fn read_end(reader: &mut ReadHalf<'_>) {
    let more = reader.read(&mut [0; 1]).await.unwrap_or(0);
    assert_eq!(more, 0, "an answer to nothing");
}

/// The server may close before it has read everything.
async fn write(writer: &mut WriteHalf<'_>, pieces: &[Vec<u8>]) {
    for piece in pieces {
        if writer.write_all(piece).await.is_err() {
            return;
        }
        tokio::task::yield_now().await;
    }
}

/// As much as is taken without being waited for.
fn push(stream: &TcpStream, pieces: &[Vec<u8>]) {
    for piece in pieces {
        if !matches!(stream.try_write(piece), Ok(count) if count == piece.len()) {
            return;
        }
    }
}

impl Peer {
    pub(crate) fn new(random: &mut Random, requests: &Requests) -> Self {
        let manner = *random.pick(&MANNERS);
        let mut stream = requests.stream(random);
        if matches!(manner, Manner::Stalls) {
            stream.truncate(random.below(stream.len() + 1));
        }
        let mut expected = Expected::of(&stream);
        // Only then does the server see that a peer has closed its side, and need not wait.
        if matches!(manner, Manner::Polite | Manner::HalfCloses)
            && let Some(end) = expected.waits_at.map(|end| end + UNREAD)
            && end < stream.len()
        {
            stream.truncate(end);
            expected = Expected::of(&stream);
        }
        Self {
            manner,
            pieces: cut(random, &stream),
            expected,
            open: None,
        }
    }

    /// Its part, until nothing more is to come, or for as long as others have theirs.
    pub(crate) async fn play(mut self, port: u16) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        stream.set_nodelay(true).unwrap();
        match self.manner {
            Manner::Polite => self.be_polite(&mut stream).await,
            Manner::HalfCloses => self.half_close(&mut stream).await,
            Manner::Resets => self.reset(stream).await,
            Manner::Deaf => {
                push(&stream, &self.pieces);
                SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
                tokio::task::yield_now().await;
            }
            Manner::Stalls => {
                push(&stream, &self.pieces);
                self.open = Some(stream.into_std().unwrap());
            }
        }
        self
    }

    async fn be_polite(&self, stream: &mut TcpStream) {
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
            assert_eq!(answers.get(count), None, "it is missing");
            writer.shutdown().await.unwrap();
        }
        read_end(&mut reader).await;
    }

    async fn half_close(&self, stream: &mut TcpStream) {
        let (mut reader, mut writer) = stream.split();
        let writing = async {
            write(&mut writer, &self.pieces).await;
            // It fails when the server has closed before.
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

    /// What is still open ends when the server does.
    pub(crate) fn see_the_end(self, patience: Duration) {
        let Some(mut stream) = self.open else {
            return;
        };
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(patience)).unwrap();
        if let Err(error) = stream.read_to_end(&mut Vec::new()) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
        }
    }
}
