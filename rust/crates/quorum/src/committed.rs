//! What a member knows to be agreed on, noted for its next start.
//!
//! The file is replaced in place. The next start applies so much before there is a leader, which would have to tell it. The note is not flushed, and is written
//! now and then: after a crash it may be of some moments before, or after a power loss none, and then a leader tells more.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use parking_lot::Mutex;

use crate::directory::small_log_id;
use crate::types::LogId;

pub(crate) const FILE: &str = "committed";
pub(crate) const MAGIC: &[u8; 8] = b"LCQCOMM1";

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
        // Without it the next start waits for a leader.
        let _ = file.write_all_at(&small_log_id(MAGIC, last), 0);
        written.last = Some(last);
    }
}

impl Drop for CommittedNote {
    fn drop(&mut self) {
        self.settle();
    }
}
