//! The log and the vote of a member.
//!
//! ```text
//! vote       the member's vote; replaced as a whole, and on disk before the member tells anyone
//! purged     the last entry that was removed from the log's front
//! committed  see `committed`
//! log/       a log in Kafka's format: an entry's index is its offset, its term the leader epoch
//! ```
//!
//! After a crash the log is cut at its last whole batch, which never cuts what was flushed; otherwise the
//! start is refused. The vote is the old one or the new one. `purged` may be ahead of the log, since it is
//! written before entries are removed; opening then removes them. Any other difference between the files
//! stops the start.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use logcore_records::{BatchBuilder, Compression, batches};
use logcore_storage::{LogConfig, StandaloneLog, StorageError};
use tokio::task::spawn_blocking;

use super::committed::{self, CommittedNote};
use super::error::OpenError;
use super::small::{self, Magic};
use crate::codec::Malformed;
use crate::flushes::now_ms;
use crate::raft::entry::{self, get_vote, put_vote};
use crate::raft::store::{Disk, DiskReader, DiskState};
use crate::raft::types::{Entry, LogId, Vote, log_id};

const VOTE_FILE: &str = "vote";
const PURGED_FILE: &str = "purged";
const LOG_DIR: &str = "log";
const VOTE_MAGIC: &Magic = b"LCQVOTE1";
const PURGED_MAGIC: &Magic = b"LCQPURG1";
const SEGMENT_BYTES: u64 = 64 << 20;
/// The limit of a batch, which has one entry. The largest entry is a client's largest request and what is
/// added to it.
const BATCH_BYTES: u32 = 64 << 20;
/// A buffer that grew larger is not kept.
const BUFFER_BYTES: usize = 8 << 20;
/// File systems in memory (`statfs(2)`): tmpfs and ramfs.
const MEMORY_FILE_SYSTEMS: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// A member's vote and log, for the thread that writes them.
pub struct Directory {
    path: PathBuf,
    log: Arc<StandaloneLog>,
    /// The bytes of an append.
    buffer: Vec<u8>,
}

/// The log, for threads that read it meanwhile.
pub struct DirectoryReader {
    log: Arc<StandaloneLog>,
    committed: CommittedNote,
}

/// Opens a member's directory, or makes it, and returns its state.
///
/// Errors: [`OpenError::Corrupt`] when the files do not fit together; those of [`StandaloneLog::open`].
pub fn open(path: &Path) -> Result<(Directory, DirectoryReader, DiskState), OpenError> {
    let log_dir = path.join(LOG_DIR);
    if path.join(VOTE_FILE).exists() && !has_segments(&log_dir) {
        let reason = "it is missing or empty, and this member has voted, which it does with a log";
        return Err(OpenError::corrupt(&log_dir, reason));
    }
    let log = StandaloneLog::open(&log_dir, true, config()).map_err(opening)?;
    // Entries that this member acknowledged may be committed, so a cut of them must be noticed. This also
    // brings the directory to disk: a segment is there before a vote.
    log.note_flushes()?;
    log.set_replicated(log.log_start_offset());
    let directory = Directory {
        path: path.to_path_buf(),
        log: Arc::new(log),
        buffer: Vec::new(),
    };
    let vote = directory.read_vote()?;
    let purged = small::read_log_id(&path.join(PURGED_FILE), PURGED_MAGIC)?;
    directory.finish_purge(purged)?;
    let state = DiskState {
        committed: directory.committed(),
        ..directory.check(vote, purged)?
    };
    let reader = DirectoryReader {
        log: directory.log.clone(),
        committed: CommittedNote::open(path),
    };
    Ok((directory, reader, state))
}

fn has_segments(dir: &Path) -> bool {
    let is_segment = |path: &Path| path.extension().is_some_and(|end| end == "log");
    std::fs::read_dir(dir).is_ok_and(|files| files.flatten().any(|file| is_segment(&file.path())))
}

fn opening(error: StorageError) -> OpenError {
    match error {
        StorageError::Corrupt {
            path,
            position,
            reason,
        } => OpenError::Corrupt {
            path,
            reason: format!("at byte {position}: {reason}"),
        },
        error => OpenError::Storage(error),
    }
}

fn config() -> LogConfig {
    LogConfig {
        segment_bytes: SEGMENT_BYTES,
        segment_ms: i64::MAX,
        segment_index_bytes: 1 << 20,
        max_message_bytes: BATCH_BYTES,
        retention_ms: -1,
        retention_bytes: -1,
        file_delete_delay_ms: 0,
        flush_on_roll: true,
        ..LogConfig::default()
    }
}

fn next_offset(id: Option<LogId>) -> i64 {
    id.map_or(0, |id| id.index as i64 + 1)
}

impl Directory {
    /// Closes the log, so that the next start need not recover it.
    pub fn close(self) -> Result<(), StorageError> {
        self.log.close()
    }

    fn corrupt(&self, file: &str, reason: impl Into<String>) -> OpenError {
        OpenError::corrupt(&self.path.join(file), reason)
    }

    fn read_vote(&self) -> Result<Option<Vote>, OpenError> {
        let Some(mut content) = small::read(&self.path.join(VOTE_FILE), VOTE_MAGIC)? else {
            return Ok(None);
        };
        let invalid = |error: Malformed| self.corrupt(VOTE_FILE, error.to_string());
        get_vote(&mut content).map(Some).map_err(invalid)
    }

    /// Removes the entries that `purged` names from the log's front.
    fn finish_purge(&self, purged: Option<LogId>) -> Result<(), StorageError> {
        let start = next_offset(purged);
        if start <= self.log.log_start_offset() {
            return Ok(());
        }
        if start > self.log.log_end_offset() {
            return self.log.truncate_fully_and_start_at(start);
        }
        self.log.set_high_watermark(start);
        self.log.advance_log_start_offset(start)?;
        self.log.delete_old_segments(now_ms())?;
        self.log.maintain(now_ms())
    }

    /// Checks that vote, `purged` and log fit together.
    fn check(&self, vote: Option<Vote>, purged: Option<LogId>) -> Result<DiskState, OpenError> {
        let (start, end) = (self.log.log_start_offset(), self.log.log_end_offset());
        let expected = next_offset(purged);
        if start > expected {
            let reason =
                format!("the log begins at entry {start}, and the file {PURGED_FILE} says {expected}");
            return Err(self.corrupt(LOG_DIR, reason));
        }
        let last = if end > start {
            let Some(term) = self.log.epoch_of(end - 1) else {
                return Err(self.corrupt(LOG_DIR, format!("entry {} has no term", end - 1)));
            };
            Some(log_id(term as u64, end as u64 - 1))
        } else {
            purged
        };
        let voted = vote.map(|vote| vote.leader_id.term);
        // The first membership has term 0, in which nobody votes.
        if let Some(last) = last
            && last.leader_id.term > 0
            && voted < Some(last.leader_id.term)
        {
            let vote = voted.map_or("none".to_owned(), |term| format!("of term {term}"));
            let reason = format!(
                "the log has entries of term {}, and the vote is {vote}",
                last.leader_id.term
            );
            return Err(self.corrupt(VOTE_FILE, reason));
        }
        Ok(DiskState {
            vote,
            purged,
            last,
            committed: None,
        })
    }

    /// The entry in the file `committed`, if the log has it. Then the log has all before it as they were
    /// committed. Any other note is ignored.
    fn committed(&self) -> Option<LogId> {
        let noted = small::read_log_id(&self.path.join(committed::FILE), committed::MAGIC);
        let last = noted.ok()??;
        let offset = i64::try_from(last.index).ok()?;
        let is_there = (self.log.log_start_offset()..self.log.log_end_offset()).contains(&offset);
        let term = self.log.epoch_of(offset).filter(|_| is_there)?;
        (term as u64 == last.leader_id.term).then_some(last)
    }
}

impl Disk for Directory {
    fn append(&mut self, entries: &[Entry]) -> io::Result<()> {
        self.buffer.clear();
        for entry in entries {
            write_batch(entry, &mut self.buffer)?;
        }
        let appended = self
            .log
            .append_as_follower(&self.buffer, now_ms())
            .map_err(io::Error::other)?;
        let (bytes, written) = (appended.bytes, self.buffer.len() as u64);
        if self.buffer.capacity() > BUFFER_BYTES {
            self.buffer = Vec::new();
        }
        if bytes != written {
            return Err(io::Error::other(format!(
                "the log took {bytes} of {written} bytes of entries"
            )));
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.log.flush().map_err(io::Error::other)
    }

    fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        let end = next_offset(last).max(self.log.log_start_offset());
        let cut = self.log.truncate_to(end).map_err(io::Error::other)?;
        if cut > end {
            return Err(io::Error::other(format!(
                "the log was to be cut at entry {end} and ends at {cut}"
            )));
        }
        Ok(())
    }

    fn purge(&mut self, up_to: LogId) -> io::Result<()> {
        let content = small::log_id_content(up_to);
        small::write(&self.path.join(PURGED_FILE), PURGED_MAGIC, &content).map_err(io::Error::other)?;
        self.finish_purge(Some(up_to)).map_err(io::Error::other)
    }

    fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let mut content = Vec::new();
        put_vote(vote, &mut content);
        small::write(&self.path.join(VOTE_FILE), VOTE_MAGIC, &content).map_err(io::Error::other)
    }

    fn is_memory(&self) -> bool {
        let file_system = rustix::fs::statfs(&self.path);
        file_system.is_ok_and(|found| MEMORY_FILE_SYSTEMS.contains(&(found.f_type as u64)))
    }
}

fn write_batch(entry: &Entry, out: &mut Vec<u8>) -> io::Result<()> {
    let id = entry.log_id;
    let (Ok(offset), Ok(epoch)) = (i64::try_from(id.index), i32::try_from(id.leader_id.term)) else {
        return Err(io::Error::other(format!(
            "the index or the term of entry {id} is too large for a log"
        )));
    };
    let mut value = Vec::with_capacity(entry::size_bound(entry));
    entry::encode(entry, &mut value);
    let mut builder = BatchBuilder::with_capacity(Compression::None, None, value.len() + 128);
    builder.set_base_offset(offset, epoch);
    builder
        .append(now_ms(), None, Some(&value), &[])
        .and_then(|_| builder.build_into(out))
        .map_err(io::Error::other)
}

impl DirectoryReader {
    /// Like [`DiskReader::read`], but blocks.
    pub fn read_now(&self, from: u64, before: u64, max_bytes: usize) -> io::Result<Vec<Entry>> {
        read_entries(&self.log, from, before, max_bytes)
    }
}

impl DiskReader for DirectoryReader {
    async fn read(&self, from: u64, before: u64, max_bytes: usize) -> io::Result<Vec<Entry>> {
        let log = self.log.clone();
        spawn_blocking(move || read_entries(&log, from, before, max_bytes)).await?
    }

    fn note_committed(&self, last: LogId) {
        self.committed.note(last);
    }

    fn write_committed(&self) {
        self.committed.write();
    }
}

fn read_entries(log: &StandaloneLog, from: u64, before: u64, max_bytes: usize) -> io::Result<Vec<Entry>> {
    let bytes = log
        .read(from as i64, max_bytes as u64, before as i64, true)
        .and_then(|slice| slice.read_whole_batches())
        .map_err(io::Error::other)?;
    let mut entries = Vec::new();
    for batch in batches(&bytes) {
        let batch = batch.map_err(io::Error::other)?;
        batch.verify_crc().map_err(io::Error::other)?;
        let offset = batch.header.base_offset;
        let wrong = |reason: String| io::Error::other(format!("entry {offset} of the log {reason}"));
        let records = batch.records(0).map_err(io::Error::other)?;
        let mut records = records.iter();
        let (Some(record), None) = (records.next(), records.next()) else {
            return Err(wrong("is not one record".to_owned()));
        };
        let value = record.map_err(io::Error::other)?.value;
        let entry = entry::decode(Bytes::copy_from_slice(value.unwrap_or_default()))
            .map_err(|error| wrong(format!("cannot be read: {error}")))?;
        let epoch = batch.header.partition_leader_epoch;
        if entry.log_id != log_id(epoch as u64, offset as u64) {
            return Err(wrong(format!("of epoch {epoch} contains entry {}", entry.log_id)));
        }
        entries.push(entry);
    }
    Ok(entries)
}
