//! An entry's bytes: the value of its record. Big-endian.
//!
//! ```text
//! u8 version | u8 kind | u64 term | u64 index | rest
//! kind 0, blank:       nothing
//! kind 1, commands:    i64 time (ms) | u32 count | count × { u64 member | u64 ticket | u32 length | command }
//! kind 2, membership:  u8 configs, each { u16 count, u64 ids } | u16 servers, each { u64 id | server }
//! server:              u16 id | u8 observer | addresses of the quorum | of the election | of clients, at most one
//! addresses:           u8 count, each { u8 length | host | u16 port }
//! ```
//!
//! A batch's offset and epoch stand outside its CRC; term and index stand in here too, and whoever reads compares.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::{Buf, BufMut, Bytes, BytesMut, TryGetError};
use openraft::entry::RaftPayload;
use thiserror::Error;

use crate::types::{Address, Entry, LogId, MemberId, Membership, Payload, Server, Term};

const VERSION: u8 = 1;
const BLANK: u8 = 0;
const COMMANDS: u8 = 1;
const MEMBERSHIP: u8 = 2;
/// Before the rest: version, kind, term, index.
pub(crate) const FRONT_SIZE: usize = 18;
const COMMAND_FRONT_SIZE: usize = 20;

/// Bytes that are no entry.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    /// They end too early.
    #[error("an entry is cut off: {0}")]
    CutOff(#[from] TryGetError),
    /// Something in them cannot be.
    #[error("an entry has {0}")]
    Impossible(String),
}

fn impossible<T>(what: impl Into<String>) -> Result<T, Malformed> {
    Err(Malformed::Impossible(what.into()))
}

/// Commands that are agreed on together, as they are on disk and between members.
#[derive(Clone, PartialEq, Eq)]
pub struct Commands(Bytes);

/// One command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// Who proposed it.
    pub member: MemberId,
    /// Which of that member's it is, ascending.
    pub ticket: u64,
    /// The coordinator's own.
    pub body: Bytes,
}

impl Commands {
    /// Puts commands together; `time_ms` is the proposer's clock, in milliseconds since 1970.
    pub fn new(time_ms: i64, commands: &[Command]) -> Self {
        let bodies: usize = commands.iter().map(|command| command.body.len()).sum();
        let mut bytes = BytesMut::with_capacity(12 + bodies + commands.len() * COMMAND_FRONT_SIZE);
        bytes.put_i64(time_ms);
        bytes.put_u32(commands.len() as u32);
        for command in commands {
            bytes.put_u64(command.member);
            bytes.put_u64(command.ticket);
            bytes.put_u32(command.body.len() as u32);
            bytes.put_slice(&command.body);
        }
        Self(bytes.freeze())
    }

    /// Takes bytes that are commands, as [`Commands::as_bytes`] gave them. Every length is checked.
    pub fn parse(bytes: Bytes) -> Result<Self, Malformed> {
        let mut rest = &bytes[..];
        rest.try_get_i64()?;
        let count = rest.try_get_u32()?;
        for _ in 0..count {
            rest.try_get_u64()?;
            rest.try_get_u64()?;
            let length = rest.try_get_u32()? as usize;
            skip(&mut rest, length)?;
        }
        if rest.has_remaining() {
            return impossible(format!("{} bytes after its last command", rest.remaining()));
        }
        Ok(Self(bytes))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// The proposer's clock, in milliseconds since 1970.
    pub fn time_ms(&self) -> i64 {
        (&self.0[..]).get_i64()
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        (&self.0[8..]).get_u32()
    }

    /// Who proposed the first.
    pub fn proposer(&self) -> Option<MemberId> {
        (self.count() > 0).then(|| (&self.0[12..]).get_u64())
    }

    /// Each command, in order.
    pub fn iter(&self) -> impl Iterator<Item = Command> {
        let mut rest = self.0.slice(12..);
        (0..self.count()).map(move |_| {
            let (member, ticket) = (rest.get_u64(), rest.get_u64());
            let length = rest.get_u32() as usize;
            let body = rest.split_to(length);
            Command { member, ticket, body }
        })
    }
}

impl fmt::Debug for Commands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Commands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} commands in {} bytes", self.count(), self.0.len())
    }
}

/// Appends an entry's bytes.
pub fn encode(entry: &Entry, out: &mut Vec<u8>) {
    let kind = match &entry.payload {
        Payload::Blank => BLANK,
        Payload::Normal(_) => COMMANDS,
        Payload::Membership(_) => MEMBERSHIP,
    };
    out.put_u8(VERSION);
    out.put_u8(kind);
    out.put_u64(entry.log_id.leader_id.term);
    out.put_u64(entry.log_id.index);
    match &entry.payload {
        Payload::Blank => {}
        Payload::Normal(commands) => out.put_slice(&commands.0),
        Payload::Membership(membership) => encode_membership(membership, out),
    }
}

/// How many bytes [`encode`] makes, or more.
pub(crate) fn size_bound(entry: &Entry) -> usize {
    let rest = match &entry.payload {
        Payload::Blank => 0,
        Payload::Normal(commands) => commands.0.len(),
        Payload::Membership(membership) => {
            let mut bytes = Vec::new();
            encode_membership(membership, &mut bytes);
            bytes.len()
        }
    };
    FRONT_SIZE + rest
}

/// The entry that [`encode`] made these bytes of.
///
/// Errors: [`Malformed`] for anything else, whatever it is.
pub fn decode(mut bytes: Bytes) -> Result<Entry, Malformed> {
    let version = bytes.try_get_u8()?;
    if version != VERSION {
        return impossible(format!("version {version}; this program knows version {VERSION}"));
    }
    let kind = bytes.try_get_u8()?;
    let term = bytes.try_get_u64()?;
    let index = bytes.try_get_u64()?;
    let payload = match kind {
        BLANK => Payload::Blank,
        COMMANDS => Payload::Normal(Commands::parse(bytes.split_to(bytes.len()))?),
        MEMBERSHIP => Payload::membership(decode_membership(&mut bytes)?),
        kind => return impossible(format!("kind {kind}, which there is not")),
    };
    if bytes.has_remaining() {
        return impossible(format!("{} bytes after its end", bytes.remaining()));
    }
    Ok(Entry {
        log_id: LogId {
            leader_id: Term::new(term),
            index,
        },
        payload,
    })
}

/// Appends a membership's bytes.
pub fn encode_membership(membership: &Membership, out: &mut Vec<u8>) {
    let configs = membership.get_joint_config();
    out.put_u8(configs.len() as u8);
    for config in configs {
        out.put_u16(config.len() as u16);
        for id in config {
            out.put_u64(*id);
        }
    }
    let servers: Vec<_> = membership.nodes().collect();
    out.put_u16(servers.len() as u16);
    for (id, server) in servers {
        out.put_u64(*id);
        encode_server(server, out);
    }
}

/// Takes a membership from the front of `bytes`.
pub fn decode_membership(bytes: &mut Bytes) -> Result<Membership, Malformed> {
    let mut configs = Vec::new();
    for _ in 0..bytes.try_get_u8()? {
        let mut config = BTreeSet::new();
        for _ in 0..bytes.try_get_u16()? {
            config.insert(bytes.try_get_u64()?);
        }
        configs.push(config);
    }
    let mut servers = BTreeMap::new();
    for _ in 0..bytes.try_get_u16()? {
        servers.insert(bytes.try_get_u64()?, decode_server(bytes)?);
    }
    Membership::new(configs, servers)
        .or_else(|error| impossible(format!("a membership that cannot be: {error}")))
}

pub(crate) fn encode_server(server: &Server, out: &mut Vec<u8>) {
    out.put_u16(server.id);
    out.put_u8(u8::from(server.observer));
    encode_addresses(&server.quorum, out);
    encode_addresses(&server.election, out);
    encode_addresses(server.client.as_slice(), out);
}

pub(crate) fn decode_server(bytes: &mut Bytes) -> Result<Server, Malformed> {
    let id = bytes.try_get_u16()?;
    let observer = match bytes.try_get_u8()? {
        0 => false,
        1 => true,
        other => {
            return impossible(format!("{other} where a server is an observer, 1, or not, 0"));
        }
    };
    let (quorum, election) = (decode_addresses(bytes)?, decode_addresses(bytes)?);
    let mut client = decode_addresses(bytes)?;
    if client.len() > 1 {
        return impossible(format!(
            "{} addresses for the clients of one server",
            client.len()
        ));
    }
    Ok(Server {
        id,
        quorum,
        election,
        client: client.pop(),
        observer,
    })
}

fn encode_addresses(addresses: &[Address], out: &mut Vec<u8>) {
    out.put_u8(addresses.len() as u8);
    for address in addresses {
        out.put_u8(address.host.len() as u8);
        out.put_slice(address.host.as_bytes());
        out.put_u16(address.port);
    }
}

fn decode_addresses(bytes: &mut Bytes) -> Result<Vec<Address>, Malformed> {
    let mut addresses = Vec::new();
    for _ in 0..bytes.try_get_u8()? {
        let length = bytes.try_get_u8()? as usize;
        let mut rest = &bytes[..];
        skip(&mut rest, length)?;
        let host = bytes.split_to(length);
        let Ok(host) = std::str::from_utf8(&host) else {
            return impossible("a host's name that is not UTF-8");
        };
        addresses.push(Address {
            host: host.to_owned(),
            port: bytes.try_get_u16()?,
        });
    }
    Ok(addresses)
}

fn skip(bytes: &mut &[u8], count: usize) -> Result<(), Malformed> {
    if bytes.len() < count {
        return Err(Malformed::CutOff(TryGetError {
            requested: count,
            available: bytes.len(),
        }));
    }
    bytes.advance(count);
    Ok(())
}
