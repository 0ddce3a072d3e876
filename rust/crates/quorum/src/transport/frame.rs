//! The frames of a connection. Big-endian:
//!
//! ```text
//! u32 length of what follows | u8 kind | u32 request | body
//! ```
//!
//! The length is checked against a limit before the body is read. A body takes memory as its bytes come.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;

use crate::codec::{Malformed, invalid};

/// Length, kind and request.
const FRONT_BYTES: usize = 9;
/// The largest entry and what is around it.
pub(super) const FRAME_BYTES: usize = 72 << 20;
/// What requests of one port may have in memory while they are received or answered: more than the largest
/// takes. A connection that exceeds it is closed.
pub(super) const MEMORY_KIB: usize = 128 << 10;
/// Requests up to this size take none of that memory, so that votes and heartbeats do not fail because of
/// large requests.
const SMALL_BYTES: usize = 16 << 10;
/// A connection is closed when a frame makes no progress for this time.
pub(super) const STALLED: Duration = Duration::from_secs(10);

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Hello = 1,
    Welcome = 2,
    Refused = 3,
    Append = 10,
    Vote = 11,
    PreVote = 12,
    Transfer = 13,
    Snapshot = 14,
    Propose = 15,
    ReadIndex = 16,
    RenewSessions = 17,
    Identify = 30,
    Bind = 31,
    Join = 32,
    AppendResponse = 20,
    VoteResponse = 21,
    TransferResponse = 22,
    SnapshotResponse = 23,
    Proposed = 24,
    ReadUpTo = 25,
    SessionsRenewed = 26,
    Failed = 29,
    Identity = 40,
    Joining = 41,
}

const KINDS: [Kind; 24] = [
    Kind::Hello,
    Kind::Welcome,
    Kind::Refused,
    Kind::Append,
    Kind::Vote,
    Kind::PreVote,
    Kind::Transfer,
    Kind::Snapshot,
    Kind::Propose,
    Kind::ReadIndex,
    Kind::RenewSessions,
    Kind::Identify,
    Kind::Bind,
    Kind::Join,
    Kind::AppendResponse,
    Kind::VoteResponse,
    Kind::TransferResponse,
    Kind::SnapshotResponse,
    Kind::Proposed,
    Kind::ReadUpTo,
    Kind::SessionsRenewed,
    Kind::Failed,
    Kind::Identity,
    Kind::Joining,
];

impl Kind {
    pub(super) fn of(code: u8) -> Result<Self, Malformed> {
        match KINDS.into_iter().find(|kind| *kind as u8 == code) {
            Some(kind) => Ok(kind),
            None => invalid(format!("a frame of the unknown kind {code}")),
        }
    }
}

/// A whole frame.
pub(super) fn encode(kind: Kind, request: u32, body: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = vec![0; 4];
    out.put_u8(kind as u8);
    out.put_u32(request);
    body(&mut out);
    let length = (out.len() - 4) as u32;
    out[..4].copy_from_slice(&length.to_be_bytes());
    out
}

/// What stands before a body.
pub(super) struct Front {
    pub(super) kind: Kind,
    pub(super) request: u32,
    /// Bytes of the body.
    pub(super) length: usize,
}

/// A whole frame that was read.
pub(super) struct Frame {
    pub(super) kind: Kind,
    pub(super) request: u32,
    pub(super) body: Bytes,
}

/// Reads the next frame, however long it takes to begin. `None` when the peer closed the connection between
/// two frames.
pub(super) async fn read(reads: &mut (impl AsyncRead + Unpin), limit: usize) -> io::Result<Option<Frame>> {
    let Some(front) = read_front(reads, limit).await? else {
        return Ok(None);
    };
    let (body, _) = read_body(reads, front.length, None).await?;
    Ok(Some(Frame {
        kind: front.kind,
        request: front.request,
        body,
    }))
}

pub(super) async fn read_front(
    reads: &mut (impl AsyncRead + Unpin),
    limit: usize,
) -> io::Result<Option<Front>> {
    let mut front = [0; FRONT_BYTES];
    if reads.read(&mut front[..1]).await? == 0 {
        return Ok(None);
    }
    fill(reads, &mut front[1..]).await?;
    let mut rest = &front[..];
    let length = rest.get_u32() as usize;
    let (kind, request) = (rest.get_u8(), rest.get_u32());
    let Some(body) = length
        .checked_sub(FRONT_BYTES - 4)
        .filter(|length| *length <= limit)
    else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a frame of {length} bytes; the limit is {limit}"),
        ));
    };
    Ok(Some(Front {
        kind: Kind::of(kind).map_err(malformed)?,
        request,
        length: body,
    }))
}

/// Reads a body. A large one takes KiB of `memory` as its bytes come; the permit gives them back. Its address
/// range is reserved at once, so that nothing is copied as it grows.
pub(super) async fn read_body(
    reads: &mut (impl AsyncRead + Unpin),
    length: usize,
    memory: Option<&Arc<Semaphore>>,
) -> io::Result<(Bytes, Option<OwnedSemaphorePermit>)> {
    let memory = memory.filter(|_| length > SMALL_BYTES);
    let (mut body, mut permit) = (Vec::new(), None::<OwnedSemaphorePermit>);
    body.try_reserve_exact(length).map_err(io::Error::other)?;
    while body.len() < length {
        let begin = body.len();
        let end = length.min(begin + begin.clamp(16 << 10, 1 << 20));
        if let Some(memory) = memory {
            let kib = (end - begin).div_ceil(1 << 10) as u32;
            let more = memory.clone().try_acquire_many_owned(kib);
            let more = more.map_err(|_| no_memory(length))?;
            match &mut permit {
                Some(permit) => permit.merge(more),
                None => permit = Some(more),
            }
        }
        body.resize(end, 0);
        fill(reads, &mut body[begin..]).await?;
    }
    Ok((body.into(), permit))
}

fn no_memory(length: usize) -> io::Error {
    let limit = MEMORY_KIB >> 10;
    io::Error::other(format!(
        "a frame of {length} bytes; the requests of this port have taken their {limit} MiB of memory"
    ))
}

/// Fills `out`. Errors: the connection's end; a peer that sends nothing for [`STALLED`].
pub(super) async fn fill(reads: &mut (impl AsyncRead + Unpin), out: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < out.len() {
        let read = timeout(STALLED, reads.read(&mut out[filled..])).await;
        match read.map_err(|_| stalled())?? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => filled += read,
        }
    }
    Ok(())
}

/// Writes frames as they come, until the sender is dropped.
pub(super) async fn write_all(
    mut writes: OwnedWriteHalf,
    mut frames: mpsc::Receiver<Vec<u8>>,
) -> io::Result<()> {
    while let Some(frame) = frames.recv().await {
        let mut left = &frame[..];
        while !left.is_empty() {
            let written = timeout(STALLED, writes.write(left)).await;
            left = &left[written.map_err(|_| stalled())??..];
        }
    }
    Ok(())
}

fn stalled() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the connection makes no progress")
}

pub(super) fn malformed(error: Malformed) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
