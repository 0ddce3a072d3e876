//! The bytes of an entry, which are the value of its record, and of Raft's ids. Big-endian.
//!
//! ```text
//! entry:       u8 version | u8 kind | u64 term | u64 index | rest
//!   kind 0, blank:       nothing
//!   kind 1, commands:    see `commands`
//!   kind 2, membership:  a membership
//! membership:  u8 configs, each { u16 count, u64 ids } | u16 servers, each { u64 id | server }
//! log id:      u64 term | u64 index;  with a u8 before it, 1 or 0, where there may be none
//! vote:        u64 term | u64 voted for | u8 committed
//! ```
//!
//! The CRC of a batch does not cover its offset and its epoch. Therefore an entry contains its term and index
//! too, and readers compare them.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Buf, BufMut, Bytes};

use super::types::{Entry, LogId, Membership, Payload, Vote, log_id, vote};
use crate::codec::{Malformed, end, get_bool, invalid};
use crate::commands::Commands;
use crate::servers::{get_server, put_server};

const VERSION: u8 = 1;
const BLANK: u8 = 0;
const COMMANDS: u8 = 1;
const MEMBERSHIP: u8 = 2;
/// Version, kind, term and index.
const FRONT_BYTES: usize = 18;

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
        Payload::Normal(commands) => out.put_slice(commands.as_bytes()),
        Payload::Membership(membership) => put_membership(membership, out),
    }
}

/// The number of bytes that [`encode`] makes, or more.
pub(crate) fn size_bound(entry: &Entry) -> usize {
    let rest = match &entry.payload {
        Payload::Blank => 0,
        Payload::Normal(commands) => commands.as_bytes().len(),
        Payload::Membership(membership) => {
            let mut bytes = Vec::new();
            put_membership(membership, &mut bytes);
            bytes.len()
        }
    };
    FRONT_BYTES + rest
}

/// Reads the bytes that [`encode`] made.
///
/// Errors: [`Malformed`] for any other bytes.
pub fn decode(mut bytes: Bytes) -> Result<Entry, Malformed> {
    let version = bytes.try_get_u8()?;
    if version != VERSION {
        return invalid(format!(
            "an entry of version {version}; this program reads version {VERSION}"
        ));
    }
    let kind = bytes.try_get_u8()?;
    let (term, index) = (bytes.try_get_u64()?, bytes.try_get_u64()?);
    let payload = match kind {
        BLANK => Payload::Blank,
        COMMANDS => Payload::Normal(Commands::parse(bytes.split_to(bytes.len()))?),
        MEMBERSHIP => Payload::Membership(get_membership(&mut bytes)?),
        kind => return invalid(format!("an entry of the unknown kind {kind}")),
    };
    end(&bytes)?;
    Ok(Entry {
        log_id: log_id(term, index),
        payload,
    })
}

pub(crate) fn put_membership(membership: &Membership, out: &mut Vec<u8>) {
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
        put_server(server, out);
    }
}

pub(crate) fn get_membership(bytes: &mut Bytes) -> Result<Membership, Malformed> {
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
        servers.insert(bytes.try_get_u64()?, get_server(bytes)?);
    }
    Membership::new(configs, servers)
        .or_else(|error| invalid(format!("a membership is not possible: {error}")))
}

pub(crate) fn put_log_id(id: Option<LogId>, out: &mut Vec<u8>) {
    out.put_u8(u8::from(id.is_some()));
    if let Some(id) = id {
        out.put_u64(id.leader_id.term);
        out.put_u64(id.index);
    }
}

pub(crate) fn get_log_id(bytes: &mut Bytes) -> Result<Option<LogId>, Malformed> {
    match get_bool(bytes)? {
        true => Ok(Some(log_id(bytes.try_get_u64()?, bytes.try_get_u64()?))),
        false => Ok(None),
    }
}

pub(crate) fn put_vote(vote: &Vote, out: &mut Vec<u8>) {
    out.put_u64(vote.leader_id.term);
    out.put_u64(vote.leader_id.voted_for);
    out.put_u8(u8::from(vote.committed));
}

pub(crate) fn get_vote(bytes: &mut Bytes) -> Result<Vote, Malformed> {
    let (term, voted_for) = (bytes.try_get_u64()?, bytes.try_get_u64()?);
    Ok(vote(term, voted_for, get_bool(bytes)?))
}
