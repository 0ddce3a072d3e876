//! A note of the last entry that a member knows to be committed: the file `committed`.
//!
//! The next start applies the log up to it before there is a leader, so that a read-only server has something
//! to serve. The file is overwritten in place, now and then, and not flushed. After a crash it may be old or
//! damaged. Then the start applies less, and the rest comes from the leader.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use parking_lot::Mutex;

use super::small::{self, Magic};
use crate::raft::types::LogId;

pub(super) const FILE: &str = "committed";
pub(super) const MAGIC: &Magic = b"LCQCOMM1";

/// The note of a running member. Any thread may call it.
pub(super) struct CommittedNote {
    last: Mutex<Option<LogId>>,
    written: Mutex<Written>,
}

struct Written {
    /// `None` when it could not be opened, as on a full disk.
    file: Option<File>,
    last: Option<LogId>,
}

impl CommittedNote {
    pub(super) fn open(dir: &Path) -> Self {
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

    /// Notes that entries up to this one are committed. Writes nothing.
    pub(super) fn note(&self, last: LogId) {
        *self.last.lock() = Some(last);
    }

    /// Writes the note if it changed. Blocks.
    pub(super) fn write(&self) {
        let mut written = self.written.lock();
        let last = *self.last.lock();
        let (Some(last), true, Some(file)) = (last, last != written.last, &written.file) else {
            return;
        };
        let bytes = small::encode(MAGIC, &small::log_id_content(last));
        // When this fails, the next start waits for a leader.
        let _ = file.write_all_at(&bytes, 0);
        written.last = Some(last);
    }
}

impl Drop for CommittedNote {
    fn drop(&mut self) {
        self.write();
    }
}
