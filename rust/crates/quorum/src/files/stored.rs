//! A member's files read without its ensemble, as by an export. One thread uses it.
//!
//! Opening changes only what a start changes: it cuts a torn tail and removes unfinished files. Whether a
//! majority has the last entries is not known.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::directory::{self, Directory, DirectoryReader};
use super::error::OpenError;
use super::identity::DirectoryIdentity;
use super::snapshots::{SnapshotDir, SnapshotFile, SnapshotSource};
use crate::delivery::Delivery;
use crate::raft::state_machine::Snapshots;
use crate::raft::types::{LogId, Snapshot};
use crate::reader::{DeliveredEntry, deliver};

/// A member's files.
pub struct Stored {
    directory: Directory,
    reader: DirectoryReader,
    snapshot: Option<Snapshot<SnapshotFile>>,
    delivery: Delivery,
    next: u64,
    end: u64,
}

impl Stored {
    /// Opens a member's directory and locks it.
    ///
    /// Errors: [`OpenError::NoMember`]; a directory that is in use, or whose files do not fit together.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        if DirectoryIdentity::read(path)?.is_none_or(|identity| identity.member.is_none()) {
            return Err(OpenError::NoMember {
                path: path.to_path_buf(),
            });
        }
        let (directory, reader, state) = directory::open(path)?;
        let snapshots_dir = path.join("snapshots");
        let mut damaged = Vec::new();
        let note = |path: &Path, error: &io::Error| {
            damaged.push(format!("{}: {error}", path.display()));
        };
        let snapshots = SnapshotDir::open(&snapshots_dir, note)
            .map_err(|error| OpenError::corrupt(&snapshots_dir, error.to_string()))?;
        let snapshot = Arc::new(snapshots).newest();
        let next = |id: Option<LogId>| id.map_or(0, |id| id.index + 1);
        let begin = next(snapshot.as_ref().and_then(|found| found.meta.last_log_id));
        if begin < next(state.purged) {
            let reason = format!(
                "the log begins at entry {}, and no whole snapshot reaches it; {}",
                next(state.purged),
                damaged.join("; ")
            );
            return Err(OpenError::corrupt(&snapshots_dir, reason));
        }
        let delivery = snapshot.as_ref().map(|found| found.snapshot.delivery());
        Ok(Self {
            directory,
            reader,
            snapshot,
            delivery: delivery.unwrap_or_default(),
            next: begin,
            end: next(state.last),
        })
    }

    /// The newest snapshot.
    pub fn snapshot(&self) -> io::Result<Option<SnapshotSource>> {
        let source = self.snapshot.as_ref().map(SnapshotSource::open);
        source.transpose().map(Option::flatten)
    }

    /// The next entries after the snapshot: at least one, and otherwise about `max_bytes`. None at the end.
    pub fn entries(&mut self, max_bytes: usize) -> io::Result<Vec<DeliveredEntry>> {
        if self.next >= self.end {
            return Ok(Vec::new());
        }
        let read = self.reader.read_now(self.next, self.end, max_bytes)?;
        let mut entries = Vec::new();
        for entry in read {
            if entry.log_id.index != self.next {
                return Err(io::Error::other(format!(
                    "the log has entry {} in the place of entry {}",
                    entry.log_id.index, self.next
                )));
            }
            self.next += 1;
            entries.push(deliver(entry, &mut self.delivery, |_| false));
        }
        match entries.is_empty() {
            true => Err(io::Error::other(format!("the log lacks entry {}", self.next))),
            false => Ok(entries),
        }
    }

    /// Closes the log and unlocks the directory.
    pub fn close(self) -> Result<(), OpenError> {
        Ok(self.directory.close()?)
    }
}
