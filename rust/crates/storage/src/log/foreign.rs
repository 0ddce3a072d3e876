//! Reading a log that another process owns, perhaps a broker that is writing it (Spark's tasks, read-only
//! opens).
//!
//! Takes no lock and writes nothing. Index files are copied into memory, never mapped, because their owner
//! may trim them. The log end is found by checking batches from the last index entry on: a batch that is not
//! whole is still being written. Segments that vanish during the listing were deleted by retention.
//!
//! Transactions are read from the batches: the owner writes an abort marker before it adds the transaction to
//! the `.txnindex`, so the index of the newest segment may lack some.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use parking_lot::MutexGuard;

use super::{IsolationLevel, Log};
use crate::config::LogConfig;
use crate::error::{Result, StorageError};
use crate::files::checkpoints::{HIGH_WATERMARK_FILE, LOG_START_FILE, read_offsets};
use crate::files::partition_dir::parse_partition_dir;
use crate::files::single_log::own_log_start;
use crate::files::{self, LOG_SUFFIX, offset_of};
use crate::index::transactions::AbortedTxn;
use crate::leader_epochs::LeaderEpochs;
use crate::log::loader::{Loaded, Recovery, settings};
use crate::log::replay::replay_range;
use crate::producers::ProducerState;
use crate::producers::snapshot;
use crate::segment::scan::StoredBatch;
use crate::segment::{Access, Segment};

/// Identifies a directory, whatever its name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct DirIdentity {
    device: u64,
    inode: u64,
    /// When it was created: file systems reuse the inode of a deleted directory. Not all record the time.
    created: Option<SystemTime>,
}

impl DirIdentity {
    /// A directory that does not exist has the default value.
    pub(super) fn of(dir: &Path) -> Result<Self> {
        match std::fs::metadata(dir) {
            Ok(metadata) => Ok(Self {
                device: metadata.dev(),
                inode: metadata.ino(),
                created: metadata.created().ok(),
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(StorageError::io("read the metadata of", dir)(error)),
        }
    }
}

/// How often a listing is repeated when segments vanish during it.
const LISTINGS_MAX: usize = 10;

/// The transactions of a foreign log, as far as its batches were read.
#[derive(Debug, Default)]
pub(super) struct ForeignTransactions {
    producers: ProducerState,
    /// Of the newest segment and of other batches that were read, in the order of their markers.
    aborted: Vec<AbortedTxn>,
    /// All batches below this offset were read.
    end: i64,
    /// The last batch before `end`. If another one is there now, the owner truncated or compacted its log.
    last: Option<StoredBatch>,
}

impl Log {
    /// Opens a log for reading only, beside a process that may be writing it. The log end stays as it is now
    /// until [`Log::refresh`].
    ///
    /// Errors: [`StorageError::NotFound`] when `dir` has no segment.
    pub fn open_read_only(dir: &Path) -> Result<Self> {
        let dir_identity = DirIdentity::of(dir)?;
        let segments = list(dir, &[])?;
        let (start, end) = bounds(dir, &segments)?;
        let loaded = Loaded {
            segments,
            log_start: start,
            log_end: end,
            recovery_point: end,
            producers: ProducerState::default(),
            snapshot_offset: end,
            unreplicated: Vec::new(),
            epochs: LeaderEpochs::load(dir)?,
            recovery: Recovery::default(),
            incomplete: false,
        };
        let config = LogConfig::default();
        Ok(Self {
            dir_identity,
            ..Self::new(dir, config, Access::Foreign, loaded, Arc::default())
        })
    }

    /// Reads what the owner has changed in a log that was opened read-only. Does nothing for other logs.
    pub fn refresh(&self) -> Result<()> {
        self.check_open()?;
        if self.access == Access::Owned {
            return Ok(());
        }
        let _one_at_a_time = self.writer.lock();
        if DirIdentity::of(&self.dir)? != self.dir_identity {
            // It was deleted, and another log has its name.
            return Err(StorageError::NotFound { path: self.dir() });
        }
        let known = self.segments();
        let segments = match list(&self.dir, &known) {
            // Its owner starts it again at another offset, and has not created the first segment yet.
            Err(StorageError::NotFound { .. }) if self.dir.is_dir() => return Ok(()),
            listed => listed?,
        };
        let (start, end) = bounds(&self.dir, &segments)?;
        let epochs = LeaderEpochs::load(&self.dir)?;
        self.epochs.change(|known| *known = epochs);
        self.log_start.store(start, Ordering::Release);
        *self.segments.write() = Arc::new(segments);
        self.log_end.store(end, Ordering::Release);
        self.high_watermark.store(end, Ordering::Release);
        Ok(())
    }
}

impl Log {
    /// [`Log::last_stable_offset`], also of a log that was opened read-only. The first call reads the latest
    /// producer snapshot and the headers of the batches after it; later calls read what is new.
    pub fn find_last_stable_offset(&self) -> Result<i64> {
        if self.access == Access::Owned {
            return Ok(self.last_stable_offset());
        }
        self.find_stable_before(i64::MAX)
    }

    /// [`Log::readable_end`], also of a log that was opened read-only. What its broker wrote last in its
    /// checkpoint is the high watermark then, some seconds old; without a checkpoint it is the log end.
    pub fn find_readable_end(&self, isolation: IsolationLevel) -> Result<i64> {
        if self.access == Access::Owned {
            return self.readable_end(isolation);
        }
        let (start, end) = (self.log_start_offset(), self.log_end_offset());
        let noted = noted_offset(&self.dir(), HIGH_WATERMARK_FILE)?;
        let high_watermark = noted.unwrap_or(end).clamp(start, end);
        match isolation {
            IsolationLevel::ReadUncommitted => Ok(high_watermark),
            IsolationLevel::ReadCommitted => self.find_stable_before(high_watermark),
        }
    }

    /// The last stable offset of the records before `end`; the log end if that is lower.
    fn find_stable_before(&self, end: i64) -> Result<i64> {
        self.check_open()?;
        let (known, log_start) = self.look_at_transactions(end)?;
        let log_end = known.end;
        let undecided = known.producers.first_undecided_offset().unwrap_or(log_end);
        Ok(undecided.max(log_start).min(log_end))
    }

    /// Aborted transactions that the `.txnindex` of the newest segment may lack.
    pub(super) fn foreign_aborted(&self) -> Result<Vec<AbortedTxn>> {
        match self.access {
            Access::Owned => Ok(Vec::new()),
            Access::Foreign => Ok(self.look_at_transactions(i64::MAX)?.0.aborted.clone()),
        }
    }

    /// The transactions before `end` or the log end, and the log start.
    fn look_at_transactions(&self, end: i64) -> Result<(MutexGuard<'_, ForeignTransactions>, i64)> {
        let mut known = self.foreign.lock();
        let segments = self.segments();
        let (log_start, log_end) = span(&segments, self.log_start_offset());
        known.look(&self.dir, &segments, log_end.min(end))?;
        Ok((known, log_start))
    }
}

impl ForeignTransactions {
    /// Reads the batches up to `end`: only the new ones, if those that were read before are still there.
    fn look(&mut self, dir: &Path, segments: &[Arc<Segment>], end: i64) -> Result<()> {
        let mut from = self.end;
        if from > end || self.last.is_none() || last_before(segments, from)? != self.last {
            let found = snapshot::find_latest(dir, end)?;
            let (snapshot, producers) = found.unwrap_or_default();
            *self = Self {
                producers,
                ..Self::default()
            };
            // Also before the log start, where a transaction may have begun.
            from = snapshot;
        }
        // After an error everything is read again.
        let before = std::mem::take(self);
        let (mut producers, mut aborted) = (before.producers, before.aborted);
        aborted.extend(replay_range(&mut producers, segments, from, end)?);
        // The index of a segment is complete once the next segment has begun.
        let newest = segments.last().map_or(0, |newest| newest.base_offset);
        aborted.retain(|aborted| aborted.last_offset >= newest);
        *self = Self {
            producers,
            aborted,
            end,
            last: last_before(segments, end)?,
        };
        Ok(())
    }
}

/// The batch with the last offset before `end`.
fn last_before(segments: &[Arc<Segment>], end: i64) -> Result<Option<StoredBatch>> {
    let after = segments.partition_point(|segment| segment.base_offset < end);
    let Some(segment) = after.checked_sub(1).map(|index| &segments[index]) else {
        return Ok(None);
    };
    segment.locate(end - 1, segment.size())
}

/// The start, at least `log_start`, and the end of these segments.
fn span(segments: &[Arc<Segment>], log_start: i64) -> (i64, i64) {
    let end = segments.last().map_or(log_start, |last| last.next_offset());
    (log_start.min(end), end)
}

/// Opens the segments of a directory. Sealed segments in `known` are kept.
fn list(dir: &Path, known: &[Arc<Segment>]) -> Result<Vec<Arc<Segment>>> {
    for _ in 0..LISTINGS_MAX {
        let names = match files::file_names(dir) {
            Err(StorageError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                break;
            }
            other => other?,
        };
        let bases: Vec<i64> = names
            .iter()
            .filter_map(|name| offset_of(name, LOG_SUFFIX))
            .collect();
        if bases.is_empty() {
            break;
        }
        if let Some(segments) = open_all(dir, &bases, known)? {
            return Ok(segments);
        }
    }
    Err(StorageError::NotFound {
        path: dir.to_path_buf(),
    })
}

/// `None` when one vanished.
fn open_all(dir: &Path, bases: &[i64], known: &[Arc<Segment>]) -> Result<Option<Vec<Arc<Segment>>>> {
    let config = settings(&LogConfig::default());
    let mut segments = Vec::with_capacity(bases.len());
    for (number, base) in bases.iter().enumerate() {
        let next = bases.get(number + 1);
        let same = known
            .iter()
            .find(|k| k.base_offset == *base && Some(&k.next_offset()) == next && k.is_sealed())
            // Its owner may have truncated it and continued.
            .filter(|k| k.file_size().is_ok_and(|size| size == k.size()));
        if let Some(same) = same {
            segments.push(same.clone());
            continue;
        }
        let segment = match Segment::open(dir, *base, config, Access::Foreign, 0) {
            Ok(segment) => segment,
            Err(StorageError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Ok(None);
            }
            Err(other) => return Err(other),
        };
        match next {
            Some(next) => segment.set_next_offset(*next),
            None => segment.find_end(true)?,
        }
        segments.push(Arc::new(segment));
    }
    Ok(Some(segments))
}

/// The log start and end. The directory's checkpoint may have a later start than the first segment.
fn bounds(dir: &Path, segments: &[Arc<Segment>]) -> Result<(i64, i64)> {
    let first = segments.first().map_or(0, |first| first.base_offset);
    let end = segments.last().map_or(first, |last| last.next_offset());
    // The owner reports a damaged checkpoint.
    let start = noted_offset(dir, LOG_START_FILE).unwrap_or_default();
    let start = start.or_else(|| own_log_start(dir));
    Ok((start.unwrap_or(first).clamp(first, end), end))
}

/// The offset of this log in a checkpoint file of the log directory that it is in.
fn noted_offset(dir: &Path, checkpoint: &str) -> Result<Option<i64>> {
    let Ok(dir) = dir.canonicalize() else {
        return Ok(None);
    };
    match (dir.parent(), partition_of(&dir)) {
        (Some(parent), Some(key)) => Ok(read_offsets(&parent.join(checkpoint))?.get(&key).copied()),
        _ => Ok(None),
    }
}

fn partition_of(dir: &Path) -> Option<(String, i32)> {
    parse_partition_dir(dir.file_name()?.to_str()?)
}
