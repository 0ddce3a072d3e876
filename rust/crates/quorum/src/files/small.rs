//! Files of a few bytes: a magic number, the content, and a CRC-32 of both (big-endian).

use std::path::Path;

use bytes::{Buf, BufMut, Bytes};
use logcore_storage::small_file;

use super::error::OpenError;
use crate::raft::types::{LogId, log_id};

const BYTES_MAX: u64 = 64;

pub(super) type Magic = [u8; 8];

/// The bytes of such a file.
pub(super) fn encode(magic: &Magic, content: &[u8]) -> Vec<u8> {
    let mut bytes = magic.to_vec();
    bytes.put_slice(content);
    bytes.put_u32(crc32fast::hash(&bytes));
    bytes
}

/// The content of a file that names an entry.
pub(super) fn log_id_content(id: LogId) -> Vec<u8> {
    let mut content = Vec::new();
    content.put_u64(id.leader_id.term);
    content.put_u64(id.index);
    content
}

/// Replaces a file. It is on disk when this returns.
pub(super) fn write(path: &Path, magic: &Magic, content: &[u8]) -> Result<(), OpenError> {
    Ok(small_file::replace(path, &encode(magic, content))?)
}

/// The content of a file; `None` when it does not exist.
pub(super) fn read(path: &Path, magic: &Magic) -> Result<Option<Bytes>, OpenError> {
    let Some(bytes) = small_file::read(path, BYTES_MAX)? else {
        return Ok(None);
    };
    let Some((front, mut checksum)) = bytes.split_last_chunk::<4>().map(|(a, b)| (a, &b[..])) else {
        return Err(OpenError::corrupt(path, "the file is too short"));
    };
    if checksum.get_u32() != crc32fast::hash(front) {
        return Err(OpenError::corrupt(path, "the checksum does not match"));
    }
    match front.strip_prefix(magic) {
        Some(content) => Ok(Some(Bytes::copy_from_slice(content))),
        None => Err(OpenError::corrupt(
            path,
            "the file begins with other bytes than it should",
        )),
    }
}

/// The entry that a file names; `None` when the file does not exist.
pub(super) fn read_log_id(path: &Path, magic: &Magic) -> Result<Option<LogId>, OpenError> {
    let Some(mut content) = read(path, magic)? else {
        return Ok(None);
    };
    match (content.try_get_u64(), content.try_get_u64()) {
        (Ok(term), Ok(index)) => Ok(Some(log_id(term, index))),
        _ => Err(OpenError::corrupt(path, "the file is too short")),
    }
}
