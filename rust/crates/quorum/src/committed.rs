//! What a member knows to be agreed on, noted for its next start.
//!
//! ```text
//! magic LCQCOMM1 | u64 term | u64 index | u32 CRC-32: replaced in place
//! ```
//!
//! The next start applies so much before there is a leader, which would have to tell it. The note is not flushed, and is written
//! now and then: after a crash it may be of some moments before, or after a power loss none, and then a leader tells more.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use bytes::{Buf, BufMut};
use logcore_storage::small_file;
use parking_lot::Mutex;

use crate::types::LogId;

const FILE: &str = "committed";
const MAGIC: &[u8; 8] = b"LCQCOMM1";
const BYTES: usize = 28;

/// The note of a member that runs.
pub(crate) struct CommittedNote {
    last: Mutex<Option<LogId>>,
    written: Mutex<Written>,
}

struct Written {
    /// `None` where there is no room for it.
    file: Option<File>,
    last: Option<LogId>,
}

impl CommittedNote {
    pub(crate) fn begin(dir: &Path) -> Self {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        Self {
            last: Mutex::default(),
            written: Mutex::new(Written {
                file: options.open(dir.join(FILE)).ok(),
                last: None,
            }),
        }
    }

    /// Entries up to this one are agreed on. Writes nothing.
    pub(crate) fn note(&self, last: LogId) {
        *self.last.lock() = Some(last);
    }

    /// Writes what is not written yet. Blocks.
    pub(crate) fn settle(&self) {
        let mut written = self.written.lock();
        let last = *self.last.lock();
        let (Some(last), true, Some(file)) = (last, last != written.last, &written.file) else {
            return;
        };
        let mut bytes = MAGIC.to_vec();
        bytes.put_u64(last.leader_id.term);
        bytes.put_u64(last.index);
        bytes.put_u32(crc32fast::hash(&bytes));
        // Without it the next start waits for a leader.
        let _ = file.write_all_at(&bytes, 0);
        written.last = Some(last);
    }
}

impl Drop for CommittedNote {
    fn drop(&mut self) {
        self.settle();
    }
}

/// What the note of a member that does not run says; nothing that is no note says anything.
pub(crate) fn read(dir: &Path) -> Option<LogId> {
    let bytes = small_file::read(&dir.join(FILE), BYTES as u64).ok()??;
    let (front, mut checksum) = bytes.split_last_chunk::<4>().map(|(a, b)| (a, &b[..]))?;
    let mut content = front.strip_prefix(MAGIC)?;
    if bytes.len() != BYTES || checksum.get_u32() != crc32fast::hash(front) {
        return None;
    }
    let (term, index) = (content.get_u64(), content.get_u64());
    Some(crate::directory::log_id(term, index))
}
