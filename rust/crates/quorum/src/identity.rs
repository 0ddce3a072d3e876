//! Which member a directory is: the file `identity`.
//!
//! ```text
//! magic LCQIDEN1 | 16 bytes ensemble | u16 server | u8 whether it is a member | u64 member | u32 starts | u32 CRC-32
//! ```
//!
//! It is replaced whole. A start is counted on disk before anything is proposed in it, so that no ticket is given twice; that
//! the directory is a member is on disk before it votes.

use std::path::Path;

use bytes::{Buf, BufMut, Bytes};
use logcore_storage::small_file;

use crate::directory::OpenError;
use crate::types::{MemberId, server_of};

const FILE: &str = "identity";
const MAGIC: &[u8; 8] = b"LCQIDEN1";
const BYTES: u64 = 64;
/// Above a ticket's sequence number there is room for so many starts.
const STARTS: u32 = 1 << 24;

/// Which member a directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectoryIdentity {
    /// The ensemble's; that of nobody as long as this is no member.
    pub ensemble: [u8; 16],
    pub server: u16,
    /// `None` until it founded an ensemble or joined one.
    pub member: Option<MemberId>,
    /// How often it was started.
    pub starts: u32,
}

impl DirectoryIdentity {
    /// Counts a start of a server's directory, and says which member that is. Whoever calls this has the directory's lock.
    ///
    /// Errors: the directory is of another server, or its file is damaged.
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
            return Err(corrupt(dir, "it was started too often"));
        }
        identity.save(dir)?;
        Ok(identity)
    }

    /// What the file says; `None` when there is none.
    pub fn read(dir: &Path) -> Result<Option<Self>, OpenError> {
        let Some(bytes) = small_file::read(&dir.join(FILE), BYTES)? else {
            return Ok(None);
        };
        let mut content = Bytes::from(bytes);
        if content.len() != MAGIC.len() + 16 + 2 + 1 + 8 + 4 + 4 || !content.starts_with(MAGIC) {
            return Err(corrupt(dir, "it is no file of this kind"));
        }
        let mut checksum = content.split_off(content.len() - 4);
        if checksum.get_u32() != crc32fast::hash(&content) {
            return Err(corrupt(dir, "the checksum does not match"));
        }
        content.advance(MAGIC.len());
        let mut ensemble = [0; 16];
        content.copy_to_slice(&mut ensemble);
        let (server, decided) = (content.get_u16(), content.get_u8() == 1);
        let (member, starts) = (content.get_u64(), content.get_u32());
        if decided && server_of(member) != server {
            return Err(corrupt(dir, "its member is another server's"));
        }
        Ok(Some(Self {
            ensemble,
            server,
            member: decided.then_some(member),
            starts,
        }))
    }

    /// Replaces the file; it is on disk when this returns.
    pub fn save(&self, dir: &Path) -> Result<(), OpenError> {
        let mut bytes = MAGIC.to_vec();
        bytes.put_slice(&self.ensemble);
        bytes.put_u16(self.server);
        bytes.put_u8(u8::from(self.member.is_some()));
        bytes.put_u64(self.member.unwrap_or(0));
        bytes.put_u32(self.starts);
        bytes.put_u32(crc32fast::hash(&bytes));
        Ok(small_file::replace(&dir.join(FILE), &bytes)?)
    }
}

fn corrupt(dir: &Path, reason: &str) -> OpenError {
    OpenError::Corrupt {
        path: dir.join(FILE),
        reason: reason.to_owned(),
    }
}
