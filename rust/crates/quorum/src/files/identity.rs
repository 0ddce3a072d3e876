//! Which member a directory is: the file `identity`. Its content (big-endian):
//!
//! ```text
//! magic LCQIDEN1 | 16 bytes ensemble | u16 server | u8 whether it is a member | u64 member | u32 starts
//! | u32 CRC-32
//! ```
//!
//! The file is replaced as a whole. A start is counted on disk before the member proposes anything, so that
//! no ticket is used twice. The directory's membership is on disk before the member votes.

use std::path::Path;

use bytes::{Buf, BufMut};

use super::error::OpenError;
use super::small::{self, Magic};
use crate::codec::{Malformed, end, get_array, get_bool};
use crate::servers::{MemberId, server_of};

const FILE: &str = "identity";
const MAGIC: &Magic = b"LCQIDEN1";
/// A ticket has 24 bits for the number of the start.
const STARTS: u32 = 1 << 24;

/// Which member a directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectoryIdentity {
    /// All zeros as long as the directory is no member.
    pub ensemble: [u8; 16],
    pub server: u16,
    /// `None` until it founded an ensemble or joined one.
    pub member: Option<MemberId>,
    /// The number of starts.
    pub starts: u32,
}

impl DirectoryIdentity {
    /// Counts a start of a server's directory. The caller must hold the directory's lock.
    ///
    /// Errors: the directory belongs to another server, or its file is damaged.
    pub fn start(dir: &Path, server: u16) -> Result<Self, OpenError> {
        let mut identity = Self::read(dir)?.unwrap_or(Self {
            ensemble: [0; 16],
            server,
            member: None,
            starts: 0,
        });
        if identity.server != server {
            return Err(OpenError::WrongServer {
                path: dir.to_path_buf(),
                found: identity.server,
                server,
            });
        }
        identity.starts += 1;
        if identity.starts >= STARTS {
            return Err(OpenError::corrupt(&dir.join(FILE), "it was started too often"));
        }
        identity.save(dir)?;
        Ok(identity)
    }

    /// The content of the file; `None` when it does not exist.
    pub fn read(dir: &Path) -> Result<Option<Self>, OpenError> {
        let path = dir.join(FILE);
        let Some(mut content) = small::read(&path, MAGIC)? else {
            return Ok(None);
        };
        let mut parse = || -> Result<_, Malformed> {
            let ensemble = get_array(&mut content)?;
            let (server, is_member) = (content.try_get_u16()?, get_bool(&mut content)?);
            let (member, starts) = (content.try_get_u64()?, content.try_get_u32()?);
            end(&content)?;
            Ok(Self {
                ensemble,
                server,
                member: is_member.then_some(member),
                starts,
            })
        };
        let identity = parse().map_err(|error| OpenError::corrupt(&path, error.to_string()))?;
        match identity.member {
            Some(member) if server_of(member) != identity.server => {
                Err(OpenError::corrupt(&path, "its member is another server's"))
            }
            _ => Ok(Some(identity)),
        }
    }

    /// Replaces the file. It is on disk when this returns.
    pub fn save(&self, dir: &Path) -> Result<(), OpenError> {
        let mut content = self.ensemble.to_vec();
        content.put_u16(self.server);
        content.put_u8(u8::from(self.member.is_some()));
        content.put_u64(self.member.unwrap_or(0));
        content.put_u32(self.starts);
        small::write(&dir.join(FILE), MAGIC, &content)
    }
}
