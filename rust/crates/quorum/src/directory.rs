//! A member's files.
//!
//! ```text
//! vote       whom it voted for: replaced whole, on disk before it is told to anybody
//! purged     the last entry that was removed from the log's front
//! committed  an entry that was known to be agreed on: a note, not flushed, that counts if it fits the log
//! log/       a log of Kafka's format; an entry's index is its offset, its term the leader epoch
//! ```
//!
//! A crash leaves: a log cut at its last whole batch, which is behind all that was flushed, or else the start is refused; an old vote or a new one; `purged` ahead of the log, for it is written
//! before entries are removed, which opening makes good. Whatever else does not fit together stops the start.

use std::io;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::{Buf, BufMut, Bytes};
use logcore_records::{BatchBuilder, Compression, batches};
use logcore_storage::{LogConfig, StandaloneLog, StorageError, small_file};
use openraft::AsyncRuntime;
use openraft::vote::RaftLeaderId;
use thiserror::Error;

use crate::committed::{self, CommittedNote};
use crate::entry;
use crate::store::{Disk, DiskReader, Found};
use crate::types::{Entry, LeaderId, LogId, Term, Types, Vote};

const VOTE_FILE: &str = "vote";
const PURGED_FILE: &str = "purged";
const LOG_DIR: &str = "log";
const VOTE_MAGIC: &[u8; 8] = b"LCQVOTE1";
const PURGED_MAGIC: &[u8; 8] = b"LCQPURG1";
const SMALL_FILE_BYTES: u64 = 64;
const SEGMENT_BYTES: u64 = 64 << 20;
/// A batch has one entry, and an entry at most a frame of a client with what was added to it.
const BATCH_BYTES: u32 = 64 << 20;

/// Why a member's files cannot be used.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The log's own reasons.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The files do not fit together.
    #[error(
        "{path}: {reason}. This member's memory of what it voted for and agreed to cannot be relied on: move the directory away and let the member join anew"
    )]
    Corrupt { path: PathBuf, reason: String },
    /// It is nobody's.
    #[error("{path}: no member of an ensemble has its files here")]
    NoMember { path: PathBuf },
    /// It is another server's.
    #[error(
        "{path}: this is the directory of server {found}, and this is server {server}: give the server its own directory, or correct its id"
    )]
    WrongServer { path: PathBuf, found: u16, server: u16 },
}

/// A member's vote and log, for whoever writes.
pub struct Directory {
    path: PathBuf,
    log: Arc<StandaloneLog>,
    batches: Vec<u8>,
}

/// The log, for whoever reads beside it.
pub struct DirectoryReader<C> {
    log: Arc<StandaloneLog>,
    committed: CommittedNote,
    _runtime: PhantomData<fn() -> C>,
}

/// Opens a member's directory, which is made when it is missing, and says what is in it.
///
/// Errors: [`OpenError::Corrupt`] when the files do not fit together; those of [`StandaloneLog::open`].
pub fn open<C: Types>(path: &Path) -> Result<(Directory, DirectoryReader<C>, Found), OpenError> {
    let log_dir = path.join(LOG_DIR);
    if path.join(VOTE_FILE).exists() && !has_segments(&log_dir) {
        return Err(OpenError::Corrupt {
            path: log_dir,
            reason: "it is gone or empty, and this member has voted, which it does with a log".to_owned(),
        });
    }
    let log = StandaloneLog::open(&log_dir, true, config()).map_err(opening)?;
    // What this member has on disk may have been agreed on with it: it must not vote as one that never had it. This brings the
    // directory to disk, too, so that there is a segment before there is a vote.
    log.note_flushes()?;
    log.set_replicated(log.log_start_offset());
    let directory = Directory {
        path: path.to_path_buf(),
        log: Arc::new(log),
        batches: Vec::new(),
    };
    let vote = directory.read_vote()?;
    let purged = directory.read_small_log_id(PURGED_FILE, PURGED_MAGIC)?;
    directory.finish_purge(purged)?;
    let found = Found {
        committed: directory.committed(),
        ..directory.check(vote, purged)?
    };
    let reader = DirectoryReader {
        log: directory.log.clone(),
        committed: CommittedNote::begin(path),
        _runtime: PhantomData,
    };
    Ok((directory, reader, found))
}

/// Whether a log was opened there before.
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

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as i64)
}

pub(crate) fn log_id(term: u64, index: u64) -> LogId {
    LogId {
        leader_id: Term::new(term),
        index,
    }
}

/// What a small file has: its magic, this, and a checksum.
fn small(magic: &[u8; 8], content: &[u8]) -> Vec<u8> {
    let mut bytes = magic.to_vec();
    bytes.put_slice(content);
    bytes.put_u32(crc32fast::hash(&bytes));
    bytes
}

/// A small file that names an entry.
pub(crate) fn small_log_id(magic: &[u8; 8], id: LogId) -> Vec<u8> {
    let mut content = Vec::new();
    content.put_u64(id.leader_id.term);
    content.put_u64(id.index);
    small(magic, &content)
}

fn next_offset(id: Option<LogId>) -> i64 {
    id.map_or(0, |id| id.index as i64 + 1)
}

impl Directory {
    fn corrupt(&self, file: &str, reason: impl Into<String>) -> OpenError {
        OpenError::Corrupt {
            path: self.path.join(file),
            reason: reason.into(),
        }
    }

    /// What a small file has between its magic and its checksum; `None` when it is not there.
    fn read_small(&self, file: &str, magic: &[u8; 8]) -> Result<Option<Bytes>, OpenError> {
        let Some(bytes) = small_file::read(&self.path.join(file), SMALL_FILE_BYTES)? else {
            return Ok(None);
        };
        let Some((front, mut checksum)) = bytes.split_last_chunk::<4>().map(|(a, b)| (a, &b[..])) else {
            return Err(self.corrupt(file, "the file is cut off"));
        };
        if checksum.get_u32() != crc32fast::hash(front) {
            return Err(self.corrupt(file, "the checksum does not match"));
        }
        match front.strip_prefix(magic) {
            Some(content) => Ok(Some(Bytes::copy_from_slice(content))),
            None => Err(self.corrupt(file, "it is no file of this kind")),
        }
    }

    /// An entry that such a file names.
    fn read_small_log_id(&self, file: &str, magic: &[u8; 8]) -> Result<Option<LogId>, OpenError> {
        let Some(mut content) = self.read_small(file, magic)? else {
            return Ok(None);
        };
        match (content.try_get_u64(), content.try_get_u64()) {
            (Ok(term), Ok(index)) => Ok(Some(log_id(term, index))),
            _ => Err(self.corrupt(file, "the file is cut off")),
        }
    }

    fn write_small(&self, file: &str, bytes: &[u8]) -> io::Result<()> {
        small_file::replace(&self.path.join(file), bytes).map_err(io::Error::other)
    }

    fn read_vote(&self) -> Result<Option<Vote>, OpenError> {
        let Some(mut content) = self.read_small(VOTE_FILE, VOTE_MAGIC)? else {
            return Ok(None);
        };
        let (term, voted_for) = (content.try_get_u64(), content.try_get_u64());
        match (term, voted_for, content.try_get_u8()) {
            (Ok(term), Ok(voted_for), Ok(committed)) => Ok(Some(Vote {
                leader_id: LeaderId::new(term, voted_for),
                committed: committed != 0,
            })),
            _ => Err(self.corrupt(VOTE_FILE, "the file is cut off")),
        }
    }

    /// Removes from the log's front what the file `purged` says is gone.
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

    /// Looks at every batch's front, and at whether it all fits together.
    fn check(&self, vote: Option<Vote>, purged: Option<LogId>) -> Result<Found, OpenError> {
        let (start, end) = (self.log.log_start_offset(), self.log.log_end_offset());
        if start > next_offset(purged) {
            return Err(self.corrupt(
                LOG_DIR,
                format!(
                    "the log begins at entry {start}, and the file {PURGED_FILE} tells of none before {}",
                    next_offset(purged)
                ),
            ));
        }
        let last = if end > start {
            let Some(term) = self.log.epoch_of(end - 1) else {
                return Err(self.corrupt(LOG_DIR, format!("entry {} has no term", end - 1)));
            };
            Some(log_id(term as u64, end as u64 - 1))
        } else {
            purged
        };
        if let Some(last) = last
            && vote.is_none_or(|vote| vote.leader_id.term < last.leader_id.term)
            // The first membership is of term 0, in which nobody votes.
            && last.leader_id.term > 0
        {
            return Err(self.corrupt(
                VOTE_FILE,
                format!(
                    "the log has entries of term {}, and the vote is {}",
                    last.leader_id.term,
                    vote.map_or("none".to_owned(), |vote| format!(
                        "of term {}",
                        vote.leader_id.term
                    ))
                ),
            ));
        }
        Ok(Found {
            vote,
            purged,
            last,
            committed: None,
        })
    }

    /// The entry that is noted to be agreed on, if the log has it: then it has all before it as they were agreed on, too. What is no
    /// such note says nothing.
    fn committed(&self) -> Option<LogId> {
        let last = self.read_small_log_id(committed::FILE, committed::MAGIC).ok()??;
        let offset = i64::try_from(last.index).ok()?;
        let is_there = (self.log.log_start_offset()..self.log.log_end_offset()).contains(&offset);
        let term = self.log.epoch_of(offset).filter(|_| is_there)?;
        (term as u64 == last.leader_id.term).then_some(last)
    }
}

impl Disk for Directory {
    fn append(&mut self, entries: &[Entry]) -> io::Result<()> {
        self.batches.clear();
        for entry in entries {
            write_batch(entry, &mut self.batches)?;
        }
        let appended = self
            .log
            .append_as_follower(&self.batches, now_ms())
            .map_err(io::Error::other)?;
        let (bytes, written) = (appended.bytes, self.batches.len() as u64);
        // A large one is not kept.
        if self.batches.capacity() > 8 << 20 {
            self.batches = Vec::new();
        }
        if bytes != written {
            return Err(io::Error::other(format!(
                "of {written} bytes of entries the log took {bytes}"
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
        self.write_small(PURGED_FILE, &small_log_id(PURGED_MAGIC, up_to))?;
        self.finish_purge(Some(up_to)).map_err(io::Error::other)
    }

    fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let mut content = Vec::new();
        content.put_u64(vote.leader_id.term);
        content.put_u64(vote.leader_id.voted_for);
        content.put_u8(u8::from(vote.committed));
        self.write_small(VOTE_FILE, &small(VOTE_MAGIC, &content))
    }
}

impl Directory {
    /// Closes the log: its next start reads nothing of it.
    pub fn close(self) -> Result<(), StorageError> {
        self.log.close()
    }
}

fn write_batch(entry: &Entry, out: &mut Vec<u8>) -> io::Result<()> {
    let id = entry.log_id;
    let (Ok(offset), Ok(epoch)) = (i64::try_from(id.index), i32::try_from(id.leader_id.term)) else {
        return Err(io::Error::other(format!(
            "entry {id} is beyond what a log can hold"
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

impl<C> DirectoryReader<C> {
    /// What [`DiskReader::read`] gives. Blocks.
    pub fn read_now(&self, from: u64, before: u64, max_bytes: usize) -> io::Result<Vec<Entry>> {
        read_entries(&self.log, from, before, max_bytes)
    }
}

impl<C: Types> DiskReader for DirectoryReader<C> {
    async fn read(&self, from: u64, before: u64, max_bytes: usize) -> io::Result<Vec<Entry>> {
        let log = self.log.clone();
        let read = move || read_entries(&log, from, before, max_bytes);
        <C::AsyncRuntime as AsyncRuntime>::spawn_blocking(read).await?
    }

    fn note_committed(&self, last: LogId) {
        self.committed.note(last);
    }

    fn settle(&self) {
        self.committed.settle();
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
            return Err(wrong(format!(
                "of epoch {epoch} says that it is {}",
                entry.log_id
            )));
        }
        entries.push(entry);
    }
    Ok(entries)
}
