//! Reading a log that another process owns, perhaps a broker that is writing it now (Spark's tasks, read-only opens).
//!
//! Takes no lock and writes nothing. Index files are copied into memory as far as they are filled, never mapped: their
//! owner may trim them at any time. The end is found by checking batches from the last index entry on; a batch that is
//! not whole is one still being written. Segments that vanish during the listing were deleted by retention.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Log;
use crate::checkpoints::{LOG_START_FILE, read_offsets};
use crate::config::LogConfig;
use crate::error::{Result, StorageError};
use crate::files::{self, LOG_SUFFIX, offset_of};
use crate::leader_epochs::LeaderEpochs;
use crate::loader::{Loaded, Recovery, producers_at, settings};
use crate::log_dir::parse_partition_dir;
use crate::producer_state::ProducerState;
use crate::segment::{Access, Segment};
use crate::standalone::own_log_start;

/// How often a listing is repeated when segments vanish during it.
const LISTINGS_MAX: usize = 10;

impl Log {
    /// Opens a log for reading only, whoever may be writing it. The end is where it was at that moment, until
    /// [`Log::refresh`].
    ///
    /// Errors: [`StorageError::NotFound`] when there is no segment in `dir`.
    pub fn open_read_only(dir: &Path) -> Result<Self> {
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
        };
        Ok(Self::new(
            dir,
            LogConfig::default(),
            Access::Foreign,
            loaded,
        ))
    }

    /// Picks up what its owner has done to a log that was opened read-only; does nothing to another.
    pub fn refresh(&self) -> Result<()> {
        self.check_open()?;
        if self.access == Access::Owned {
            return Ok(());
        }
        let _one_at_a_time = self.writer.lock();
        let known = self.segments();
        let segments = list(&self.dir, &known)?;
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
    /// [`Log::last_stable_offset`] of a log that was opened read-only, too, whose producers are not known: the latest
    /// snapshot and the headers of the batches behind it are read for it.
    pub fn find_last_stable_offset(&self) -> Result<i64> {
        if self.access == Access::Owned {
            return Ok(self.last_stable_offset());
        }
        self.check_open()?;
        let (log_start, log_end) = (self.log_start_offset(), self.log_end_offset());
        let producers = producers_at(&self.dir, &self.segments(), log_end)?;
        let undecided = producers.first_undecided_offset().unwrap_or(log_end);
        Ok(undecided.max(log_start).min(log_end))
    }
}

/// Opens the segments of a directory, keeping those of `known` that are sealed.
fn list(dir: &Path, known: &[Arc<Segment>]) -> Result<Vec<Arc<Segment>>> {
    for _ in 0..LISTINGS_MAX {
        let names = match files::file_names(dir) {
            Err(StorageError::Io { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
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
fn open_all(
    dir: &Path,
    bases: &[i64],
    known: &[Arc<Segment>],
) -> Result<Option<Vec<Arc<Segment>>>> {
    let config = settings(&LogConfig::default());
    let mut segments = Vec::with_capacity(bases.len());
    for (number, base) in bases.iter().enumerate() {
        let next = bases.get(number + 1);
        let same = known
            .iter()
            .find(|k| k.base_offset == *base && Some(&k.next_offset()) == next && k.is_sealed())
            // Its owner may have cut it and gone on.
            .filter(|k| k.file_size().is_ok_and(|size| size == k.size()));
        if let Some(same) = same {
            segments.push(same.clone());
            continue;
        }
        let segment = match Segment::open(dir, *base, config, Access::Foreign, 0) {
            Ok(segment) => segment,
            Err(StorageError::Io { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
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

/// Where the log begins and ends. The directory's checkpoint may say that it begins later than its first segment.
fn bounds(dir: &Path, segments: &[Arc<Segment>]) -> Result<(i64, i64)> {
    let first = segments.first().map_or(0, |first| first.base_offset);
    let end = segments.last().map_or(first, |last| last.next_offset());
    let checkpoint = dir
        .canonicalize()
        .ok()
        .and_then(|dir| Some((dir.parent()?.join(LOG_START_FILE), partition_of(&dir)?)));
    let start = match checkpoint {
        // A damaged checkpoint is for its owner to report.
        Some((path, key)) => read_offsets(&path)
            .ok()
            .and_then(|offsets| offsets.get(&key).copied()),
        None => None,
    };
    let start = start.or_else(|| own_log_start(dir));
    Ok((start.unwrap_or(first).clamp(first, end), end))
}

fn partition_of(dir: &Path) -> Option<(String, i32)> {
    parse_partition_dir(dir.file_name()?.to_str()?)
}
