//! The first frame each way of a connection: who connects to whom, and for what. Big-endian:
//!
//! ```text
//! Hello:    magic LCQ1 | u8 version | u8 stream | 16 bytes ensemble | u64 from member | u64 to
//! Welcome:  nothing
//! Refused:  the reason, in UTF-8
//! ```
//!
//! `to` is a member, or a server's id for any member of that server. A connection to a member needs the same
//! ensemble on both sides. A connection to a server may only ask what a member without data has to know.

use std::io;
use std::time::Duration;

use bytes::{Buf, BufMut};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::frame::{self, Frame, Kind};
use crate::codec::{Malformed, get_array};
use crate::servers::{Address, MemberId, Server};

const MAGIC: &[u8; 4] = b"LCQ1";
const VERSION: u8 = 1;
/// The limit of the first frame.
pub(super) const HELLO_BYTES: usize = 512;
/// The time for the first frame of each side.
pub(super) const TIMEOUT: Duration = Duration::from_secs(2);

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Stream {
    /// Votes and heartbeats, on the election port.
    Control = 0,
    /// Entries and proposals, on the quorum port.
    Log = 1,
    /// One snapshot, on the quorum port.
    Snapshot = 2,
}

impl Stream {
    pub(super) fn addresses(self, server: &Server) -> &[Address] {
        match self {
            Self::Control if !server.election.is_empty() => &server.election,
            _ => &server.quorum,
        }
    }
}

/// A member, as it identifies itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    pub ensemble: [u8; 16],
    /// 0 as long as its directory belongs to no ensemble.
    pub member: MemberId,
    pub server: u16,
}

/// The receiver that a connection asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// This member.
    Member,
    /// Any member of this server.
    Server,
}

/// Introduces this member on a new connection.
pub(super) async fn greet(
    mut connection: TcpStream,
    me: Identity,
    member: MemberId,
    stream: Stream,
) -> io::Result<TcpStream> {
    connection.set_nodelay(true)?;
    let hello = frame::encode(Kind::Hello, 0, |out| {
        out.put_slice(MAGIC);
        out.put_u8(VERSION);
        out.put_u8(stream as u8);
        out.put_slice(&me.ensemble);
        out.put_u64(me.member);
        out.put_u64(member);
    });
    connection.write_all(&hello).await?;
    match frame::read(&mut connection, HELLO_BYTES).await? {
        Some(Frame {
            kind: Kind::Welcome, ..
        }) => Ok(connection),
        Some(Frame {
            kind: Kind::Refused,
            body,
            ..
        }) => {
            let why = String::from_utf8_lossy(&body);
            Err(io::Error::other(format!("it refuses: {why}")))
        }
        Some(_) => Err(io::Error::other("it is not a member of an ensemble")),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Checks the first frame of a peer.
///
/// Errors: the reason to refuse it.
pub(super) fn check(me: Identity, hello: Frame) -> Result<Target, String> {
    if hello.kind != Kind::Hello || !hello.body.starts_with(MAGIC) {
        return Err("this port is for the members of an ensemble of logcore coordinators".to_owned());
    }
    let mut body = hello.body.slice(MAGIC.len()..);
    let mut parse = || -> Result<_, Malformed> {
        let version = body.try_get_u8()?;
        if version != VERSION {
            return Ok(Err(format!(
                "version {version} of the protocol; this member speaks version {VERSION}"
            )));
        }
        let _stream = body.try_get_u8()?;
        Ok(Ok((
            get_array(&mut body)?,
            body.try_get_u64()?,
            body.try_get_u64()?,
        )))
    };
    let (ensemble, from, to): ([u8; 16], u64, u64) = parse().map_err(|error| error.to_string())??;
    if to != me.member && to == u64::from(me.server) {
        return Ok(Target::Server);
    }
    if to != me.member && to <= u64::from(u16::MAX) {
        return Err(format!(
            "the connection is for server {to}, and this is server {}",
            me.server
        ));
    }
    if me.member == 0 {
        return Err(format!("server {} is not a member yet", me.server));
    }
    if ensemble != me.ensemble {
        return Err(format!("member {from} belongs to another ensemble"));
    }
    if to != me.member {
        return Err(format!(
            "the connection is for member {to}, and this is member {}",
            me.member
        ));
    }
    Ok(Target::Member)
}
