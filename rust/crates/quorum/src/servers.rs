//! The servers of an ensemble, as their configuration names them, and the ids of their members. Owns no
//! state.
//!
//! A server's bytes, in entries and messages (big-endian):
//!
//! ```text
//! server:     u16 id | u8 observer | quorum addresses | election addresses | client addresses, at most one
//! addresses:  u8 count, each { u8 length | host | u16 port }
//! ```

use std::collections::BTreeSet;

use bytes::{Buf, BufMut, Bytes};

use crate::codec::{Malformed, get_bool, invalid, take};

/// Names a member in the log: the id of its server in the upper 16 bits, and below it the incarnation, which
/// is one data directory of that server. A server whose directory was lost comes back as another member,
/// because it has forgotten its vote.
///
/// A number below 2¹⁶ is a server's id: it stands for any member of that server.
pub type MemberId = u64;

const INCARNATION_BITS: u32 = 48;
/// The incarnation that no directory has.
pub(crate) const PLACEHOLDER: u64 = (1 << INCARNATION_BITS) - 1;
const HOST_BYTES: usize = 255;

/// The member of this directory of a server; `incarnation` is below 2⁴⁸.
pub const fn member_id(server: u16, incarnation: u64) -> MemberId {
    ((server as u64) << INCARNATION_BITS) | incarnation
}

/// The server that a member belongs to.
pub const fn server_of(member: MemberId) -> u16 {
    (member >> INCARNATION_BITS) as u16
}

/// Stands in a membership for a server of which no directory has been seen yet.
pub(crate) const fn placeholder(server: u16) -> MemberId {
    member_id(server, PLACEHOLDER)
}

/// One server of an ensemble: a line `server.N=…` of its configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Server {
    /// N, 1 to 255 in ZooKeeper.
    pub id: u16,
    /// Where entries and proposals are received. A server with several networks has several addresses.
    pub quorum: Vec<Address>,
    /// Where votes and heartbeats are received.
    pub election: Vec<Address>,
    /// Where clients connect.
    pub client: Option<Address>,
    /// Receives the log and never votes.
    pub observer: bool,
}

/// A host's name or address, and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Up to 255 bytes.
    pub host: String,
    /// 1 to 65535.
    pub port: u16,
}

/// Checks that these servers can be an ensemble.
pub(crate) fn check(servers: &[Server]) -> Result<(), String> {
    let mut ids = BTreeSet::new();
    for server in servers {
        if server.id == 0 {
            return Err("server 0: an id is 1 or more".to_owned());
        }
        if !ids.insert(server.id) {
            return Err(format!("server {} is named twice", server.id));
        }
        let addresses = || server.quorum.iter().chain(&server.election);
        if server.quorum.is_empty() || addresses().any(|address| address.port == 0) {
            return Err(format!("server {} has no address with a port", server.id));
        }
        if let Some(long) = addresses().find(|address| address.host.len() > HOST_BYTES) {
            return Err(format!(
                "server {}: the host name {} is too long",
                server.id, long.host
            ));
        }
    }
    if servers.iter().all(|server| server.observer) {
        return Err("no server votes: at least one must not be an observer".to_owned());
    }
    Ok(())
}

/// The id of the ensemble that these servers found: FNV-1a over the servers that vote.
pub(crate) fn ensemble_id(servers: &[Server]) -> [u8; 16] {
    let mut voters: Vec<&Server> = servers.iter().filter(|server| !server.observer).collect();
    voters.sort_by_key(|server| server.id);
    let mut bytes = Vec::new();
    for server in voters {
        put_server(server, &mut bytes);
    }
    let mut hash: u128 = 0x6c62272e07bb014262b821756295c58d;
    for byte in bytes {
        hash = (hash ^ u128::from(byte)).wrapping_mul(0x0000000001000000000000000000013B);
    }
    hash.to_be_bytes()
}

pub(crate) fn put_server(server: &Server, out: &mut Vec<u8>) {
    out.put_u16(server.id);
    out.put_u8(u8::from(server.observer));
    put_addresses(&server.quorum, out);
    put_addresses(&server.election, out);
    put_addresses(server.client.as_slice(), out);
}

pub(crate) fn get_server(bytes: &mut Bytes) -> Result<Server, Malformed> {
    let id = bytes.try_get_u16()?;
    let observer = get_bool(bytes)?;
    let (quorum, election) = (get_addresses(bytes)?, get_addresses(bytes)?);
    let mut client = get_addresses(bytes)?;
    if client.len() > 1 {
        return invalid(format!("server {id} has {} client addresses", client.len()));
    }
    Ok(Server {
        id,
        quorum,
        election,
        client: client.pop(),
        observer,
    })
}

fn put_addresses(addresses: &[Address], out: &mut Vec<u8>) {
    out.put_u8(addresses.len() as u8);
    for address in addresses {
        out.put_u8(address.host.len() as u8);
        out.put_slice(address.host.as_bytes());
        out.put_u16(address.port);
    }
}

fn get_addresses(bytes: &mut Bytes) -> Result<Vec<Address>, Malformed> {
    let mut addresses = Vec::new();
    for _ in 0..bytes.try_get_u8()? {
        let length = bytes.try_get_u8()? as usize;
        let host = take(bytes, length)?;
        let Ok(host) = std::str::from_utf8(&host) else {
            return invalid("a host name is not UTF-8");
        };
        addresses.push(Address {
            host: host.to_owned(),
            port: bytes.try_get_u16()?,
        });
    }
    Ok(addresses)
}
