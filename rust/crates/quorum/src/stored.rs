//! What a member's files hold, read without its ensemble: by whoever moves it elsewhere, from any one thread.
//!
//! Nothing is changed but what a start changes: a torn tail is cut, files that were being written are removed. Of the last entries
//! it is not known whether a majority had them.

use std::io;
use std::path::Path;

use crate::delivery::Delivery;
use crate::directory::{self, Directory, DirectoryReader, OpenError};
use crate::host::{Served, SnapshotSource};
use crate::identity::DirectoryIdentity;
use crate::machine::{Snapshot, Snapshots};
use crate::reader::{DeliveredEntry, deliver};
use crate::snapshots::{SnapshotDir, SnapshotFile};

/// A member's files.
pub struct Stored {
    directory: Directory,
    reader: DirectoryReader<Served>,
    snapshot: Option<Snapshot<SnapshotFile>>,
    delivery: Delivery,
    next: u64,
    end: u64,
}

impl Stored {
    /// Opens a member's directory, and takes it as a member does.
    ///
    /// Errors: [`OpenError::NoMember`]; a directory that is in use, or whose files do not fit together.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        if DirectoryIdentity::read(path)?.is_none_or(|identity| identity.member.is_none()) {
            return Err(OpenError::NoMember {
                path: path.to_path_buf(),
            });
        }
        let (directory, reader, found) = directory::open::<Served>(path)?;
        let corrupt = |reason: String| OpenError::Corrupt {
            path: path.join("snapshots"),
            reason,
        };
        let mut damaged = Vec::new();
        let note = |path: &Path, error: &io::Error| {
            damaged.push(format!("{}: {error}", path.display()));
        };
        let snapshots = SnapshotDir::<Served>::open(&path.join("snapshots"), note)
            .map_err(|error| corrupt(error.to_string()))?;
        let snapshot = std::sync::Arc::new(snapshots).newest();
        let next = |id: Option<crate::types::LogId>| id.map_or(0, |id| id.index + 1);
        let begin = next(snapshot.as_ref().and_then(|found| found.meta.last_log_id));
        if begin < next(found.purged) {
            return Err(corrupt(format!(
                "the log begins at entry {}, and no whole snapshot reaches so far; {}",
                next(found.purged),
                damaged.join("; ")
            )));
        }
        let delivery = snapshot.as_ref().map(|found| found.snapshot.delivery());
        Ok(Self {
            directory,
            reader,
            snapshot,
            delivery: delivery.unwrap_or_default(),
            next: begin,
            end: next(found.last),
        })
    }

    /// What the log's front came to, to begin with.
    pub fn snapshot(&self) -> io::Result<Option<SnapshotSource>> {
        self.snapshot
            .as_ref()
            .map(SnapshotSource::open)
            .transpose()
            .map(Option::flatten)
    }

    /// The entries that follow, about `max_bytes` at most but one if there is one; none at the end.
    pub fn entries(&mut self, max_bytes: usize) -> io::Result<Vec<DeliveredEntry>> {
        if self.next >= self.end {
            return Ok(Vec::new());
        }
        let read = self.reader.read_now(self.next, self.end, max_bytes)?;
        let mut entries = Vec::new();
        for entry in read {
            if entry.log_id.index != self.next {
                return Err(io::Error::other(format!(
                    "the log has entry {} where {} is to be",
                    entry.log_id.index, self.next
                )));
            }
            self.next += 1;
            entries.push(deliver(entry, &mut self.delivery, |_| false));
        }
        match entries.is_empty() {
            true => Err(io::Error::other(format!("the log has no entry {}", self.next))),
            false => Ok(entries),
        }
    }

    /// Gives the directory back.
    pub fn close(self) -> Result<(), OpenError> {
        Ok(self.directory.close()?)
    }
}
