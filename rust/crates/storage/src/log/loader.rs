//! Loading a log from its directory (`LogLoader`).
//!
//! Runs in the thread that opens the log, with the directory locked, before any other thread has the log.
//! After a clean shutdown it reads only names, sizes and the last few batches. Otherwise it reads and checks
//! every segment from the recovery point on. The log then ends after the last whole batch; the rest is cut
//! off. Indexes, leader epochs and producers' state are rebuilt from what is left. Damage to what was known
//! to be on disk is an error and is not cut, because it is no torn tail. A crash during recovery leaves a
//! directory that recovers the same way.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::config::LogConfig;
use crate::error::{Result, StorageError};
use crate::files::disk;
use crate::files::{
    self, CLEANED_SUFFIX, DELETED_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX, SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX,
    SWAP_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, offset_of, segment_file,
};
use crate::index::file::looks_whole;
use crate::index::sparse::{OffsetIndex, TimeIndex};
use crate::leader_epochs::LeaderEpochs;
use crate::leader_epochs::runs::EpochRuns;
use crate::log::replay::{find_aborted, marker_of, producers_at, replay, replay_batch, replay_onto};
use crate::producers::snapshot::{self, Latest};
use crate::producers::{CompletedTxn, ProducerState};
use crate::segment::scan::{Next, Scanner, StoredBatch};
use crate::segment::{Access, IndexSettings, Segment, Torn};

/// What a directory's checkpoints say of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LastKnown {
    /// The log was closed: every file is whole.
    pub clean_shutdown: bool,
    /// Everything below this offset is on disk.
    pub recovery_point: i64,
    /// The log start offset, if it is above the first segment.
    pub log_start_offset: i64,
    /// The high watermark of a log with other replicas; `None` without, when it is the log end.
    pub high_watermark: Option<i64>,
}

/// What the opening of a log did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Segments that were read and checked.
    pub segments_checked: usize,
    /// Bytes of those segments.
    pub bytes_checked: u64,
    /// Bytes that were cut off because they were no whole batch.
    pub truncated_bytes: u64,
    /// Segments that were removed because they followed such bytes.
    pub segments_removed: usize,
    /// Why bytes were cut off.
    pub reason: Option<String>,
}

/// The progress of loading, for another thread. All logs that are loaded together share it.
#[derive(Debug, Default)]
pub struct LoadProgress {
    logs_total: AtomicU64,
    logs_done: AtomicU64,
    bytes_total: AtomicU64,
    bytes_checked: AtomicU64,
}

impl LoadProgress {
    /// Logs found so far.
    pub fn logs_total(&self) -> u64 {
        self.logs_total.load(Ordering::Relaxed)
    }

    /// Logs that were loaded, or failed to load.
    pub fn logs_done(&self) -> u64 {
        self.logs_done.load(Ordering::Relaxed)
    }

    /// Bytes that recovery has to read in the logs found so far; 0 after a clean shutdown.
    pub fn bytes_total(&self) -> u64 {
        self.bytes_total.load(Ordering::Relaxed)
    }

    /// Bytes that were read and checked. Bytes that were cut off are not counted.
    pub fn bytes_checked(&self) -> u64 {
        self.bytes_checked.load(Ordering::Relaxed)
    }

    pub(crate) fn expect(&self, logs: u64, bytes: u64) {
        self.logs_total.fetch_add(logs, Ordering::Relaxed);
        self.bytes_total.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn finish_log(&self) {
        self.logs_done.fetch_add(1, Ordering::Relaxed);
    }

    fn check(&self, bytes: u64) {
        self.bytes_checked.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Bytes that recovery of the log in `dir` will read, by names and sizes.
pub(crate) fn bytes_to_check(dir: &Path, recovery_point: i64) -> u64 {
    // Loading reports an error here.
    let names = files::file_names(dir).unwrap_or_default();
    let segments: Vec<_> = names
        .iter()
        .filter_map(|name| Some((offset_of(name, LOG_SUFFIX)?, name)))
        .collect();
    let from = segments.partition_point(|(base, _)| *base <= recovery_point);
    segments[from.saturating_sub(1)..]
        .iter()
        .map(|(_, name)| fs::metadata(dir.join(name)).map_or(0, |file| file.len()))
        .sum()
}

pub(crate) struct Loaded {
    pub(crate) segments: Vec<Arc<Segment>>,
    pub(crate) log_start: i64,
    pub(crate) log_end: i64,
    pub(crate) recovery_point: i64,
    pub(crate) producers: ProducerState,
    pub(crate) snapshot_offset: i64,
    /// Transactions whose marker the high watermark has not passed.
    pub(crate) unreplicated: Vec<CompletedTxn>,
    pub(crate) epochs: LeaderEpochs,
    pub(crate) recovery: Recovery,
    /// The disk was full: indexes, a snapshot or epochs are only in memory, and must be written before the
    /// next append.
    pub(crate) incomplete: bool,
}

pub(crate) fn settings(config: &LogConfig) -> IndexSettings {
    IndexSettings {
        interval_bytes: config.index_interval_bytes,
        max_bytes: config.segment_index_bytes,
    }
}

/// Loads the log in `dir`; creates it if it is missing. Bytes that are read and checked are added to
/// `progress`.
pub(crate) fn load(
    dir: &Path,
    config: &LogConfig,
    known: LastKnown,
    now_ms: i64,
    progress: &LoadProgress,
) -> Result<Loaded> {
    disk::create_dir_all(dir).map_err(StorageError::io("create", dir))?;
    finish_interrupted(dir)?;
    let mut loader = Loader {
        dir,
        config,
        known,
        now_ms,
        progress,
        epochs: LeaderEpochs::load(dir)?,
        recovery: Recovery::default(),
        incomplete: false,
    };
    let mut segments = loader.open_segments()?;
    loader.remove_stray_snapshots(&segments)?;
    let mut replayed = if known.clean_shutdown {
        loader.finish_clean(&segments)?;
        None
    } else {
        loader.recover(&mut segments)?
    };
    if loader.drop_all_before_start(&mut segments)? {
        replayed = Some(ProducerState::default());
    }
    let first_base = match segments.first() {
        Some(first) => first.base_offset,
        None => {
            let base = known.log_start_offset;
            segments.push(Arc::new(Segment::create(dir, base, settings(config), now_ms)?));
            base
        }
    };
    let log_start = known.log_start_offset.max(first_base);
    let log_end = segments.last().map_or(log_start, |last| last.next_offset());
    loader.epochs.truncate_from_end(log_end);
    loader.epochs.truncate_from_start(log_start);
    let saved = loader.epochs.save();
    loader.or_later(saved)?;
    let (producers, snapshot_offset) = loader.producers(&segments, log_end, replayed)?;
    let unreplicated = match known.high_watermark {
        Some(watermark) if producers.has_ended_transactions() => {
            loader.ended_from(&segments, watermark.clamp(log_start, log_end), log_end)?
        }
        Some(_) | None => Vec::new(),
    };
    let recovery_point = if known.clean_shutdown {
        log_end
    } else {
        known.recovery_point.min(log_end)
    };
    let incomplete = loader.incomplete || segments.iter().any(|segment| segment.is_incomplete());
    Ok(Loaded {
        segments,
        log_start,
        log_end,
        recovery_point,
        producers,
        snapshot_offset,
        unreplicated,
        epochs: loader.epochs,
        recovery: loader.recovery,
        incomplete,
    })
}

struct Loader<'a> {
    dir: &'a Path,
    config: &'a LogConfig,
    known: LastKnown,
    now_ms: i64,
    progress: &'a LoadProgress,
    epochs: LeaderEpochs,
    recovery: Recovery,
    incomplete: bool,
}

impl Loader<'_> {
    /// Ignores a full disk for a step that can be done later, because the records are all there.
    fn or_later(&mut self, step: Result<()>) -> Result<()> {
        match step {
            Err(error) if error.is_disk_full() => {
                self.incomplete = true;
                Ok(())
            }
            step => step,
        }
    }

    /// False when the disk was full.
    fn write_snapshot(&mut self, offset: i64, producers: &ProducerState) -> Result<bool> {
        match snapshot::write(self.dir, offset, producers, false) {
            Err(error) if error.is_disk_full() => {
                files::remove_if_exists(&segment_file(self.dir, offset, SNAPSHOT_SUFFIX))?;
                self.incomplete = true;
                Ok(false)
            }
            written => written.map(|()| true),
        }
    }

    /// Opens every `.log` file; each ends where the next begins. Index files without a segment are removed.
    /// Segments without sound index files get new ones.
    fn open_segments(&self) -> Result<Vec<Arc<Segment>>> {
        let names = files::file_names(self.dir)?;
        let bases: Vec<i64> = names
            .iter()
            .filter_map(|name| offset_of(name, LOG_SUFFIX))
            .collect();
        for suffix in [INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX] {
            for base in names.iter().filter_map(|name| offset_of(name, suffix)) {
                if bases.binary_search(&base).is_err() {
                    files::remove_if_exists(&segment_file(self.dir, base, suffix))?;
                }
            }
        }
        let mut segments = Vec::with_capacity(bases.len());
        for (number, base) in bases.iter().enumerate() {
            let segment = Segment::open(self.dir, *base, settings(self.config), Access::Owned, self.now_ms)?;
            if let Some(next) = bases.get(number + 1) {
                segment.set_next_offset(*next);
            }
            segments.push(Arc::new(segment));
        }
        Ok(segments)
    }

    /// Rebuilds the missing or damaged indexes of segment `number`, whose records are sound.
    fn ensure_indexes(&self, segments: &[Arc<Segment>], number: usize) -> Result<()> {
        let segment = &segments[number];
        let sound = self.has_sound_indexes(segment);
        self.ensure_txn_index(segments, number, sound)?;
        if !sound {
            segment.indexes()?;
        }
        Ok(())
    }

    fn has_sound_indexes(&self, segment: &Segment) -> bool {
        let path = |suffix| segment_file(self.dir, segment.base_offset, suffix);
        looks_whole(&path(INDEX_SUFFIX), OffsetIndex::ENTRY_SIZE)
            && looks_whole(&path(TIME_INDEX_SUFFIX), TimeIndex::ENTRY_SIZE)
    }

    /// Checks a segment's transaction index. Most segments have none, so a missing one is noticed only if the
    /// other index files are missing, too (`others_sound`): see [`Segment::may_lack_aborted`]. Therefore
    /// those are rebuilt after it, and it is flushed before.
    fn ensure_txn_index(&self, segments: &[Arc<Segment>], number: usize, others_sound: bool) -> Result<()> {
        let segment = &segments[number];
        let path = segment_file(self.dir, segment.base_offset, TXN_INDEX_SUFFIX);
        let size = path.metadata().map(|metadata| metadata.len()).ok();
        if others_sound && size.is_none() {
            return Ok(());
        }
        // The first entry creates the file, so an empty file has lost entries.
        let looks_sound = others_sound && size != Some(0);
        match segment.txn_index() {
            Ok(_) if looks_sound => return Ok(()),
            Ok(_) | Err(StorageError::Corrupt { .. }) => {}
            Err(other) => return Err(other),
        }
        segment.replace_aborted(&find_aborted(self.dir, segments, number)?)?;
        if segment.is_incomplete() {
            // The index files stay away until it is written, so that a crash before that rebuilds it again.
            segment.move_indexes_to_memory()?;
        } else {
            segment.flush_txn_index()?;
        }
        files::sync_dir(self.dir)
    }

    fn finish_clean(&mut self, segments: &[Arc<Segment>]) -> Result<()> {
        let Some((last, sealed)) = segments.split_last() else {
            return Ok(());
        };
        for number in 0..sealed.len() {
            self.ensure_indexes(segments, number)?;
        }
        let sound = self.has_sound_indexes(last);
        self.ensure_txn_index(segments, sealed.len(), sound)?;
        last.find_end(false)?;
        if last.may_lack_aborted(false)? {
            last.replace_aborted(&find_aborted(self.dir, segments, sealed.len())?)?;
        }
        if last.is_incomplete() {
            // The index files must be written after it.
            self.incomplete = true;
            return Ok(());
        }
        self.or_later(last.reopen_active())
    }

    /// Checks the segments from the recovery point on and cuts the log at the first damage. Returns the
    /// producers at its end.
    fn recover(&mut self, segments: &mut Vec<Arc<Segment>>) -> Result<Option<ProducerState>> {
        let after = segments.partition_point(|s| s.base_offset <= self.known.recovery_point);
        let from = after.saturating_sub(1);
        for number in 0..from {
            self.ensure_indexes(segments, number)?;
        }
        let Some(first) = segments.get(from) else {
            return Ok(None);
        };
        let mut producers = producers_at(self.dir, segments, first.base_offset)?;
        let mut epochs = EpochRuns::default();
        let mut number = from;
        while let Some(segment) = segments.get(number).cloned() {
            number += 1;
            let next_base = segments.get(number).map(|next| next.base_offset);
            let (known, progress) = (&self.epochs, self.progress);
            let is_certain = |batch: &StoredBatch| known.agrees(batch.leader_epoch, batch.base_offset);
            let mut torn = segment.recover(is_certain, |batch, bytes| {
                progress.check(batch.size);
                epochs.add(batch.leader_epoch, batch.base_offset, batch.position);
                replay_batch(batch, bytes, &mut producers)
            })?;
            self.recovery.segments_checked += 1;
            self.recovery.bytes_checked += segment.file_size()?;
            let (size, end) = (segment.size(), segment.next_offset());
            if torn.is_none() && next_base.is_some_and(|next| end > next) {
                torn = next_base.map(|offset| Torn {
                    offset,
                    reason: format!("offset {} is in the next segment too", end - 1),
                });
            }
            if let Some(Torn { offset, reason }) = torn {
                if offset < self.known.recovery_point {
                    return Err(segment.corrupt(size, reason));
                }
                self.cut(segments, number, &segment, reason)?;
            } else if let Some(next) = next_base {
                segment.set_next_offset(next);
                match segment.seal() {
                    Err(error) if error.is_disk_full() => {
                        segment.move_indexes_to_memory()?;
                        segment.seal()?;
                    }
                    sealed => sealed?,
                }
                self.write_snapshot(next, &producers)?;
            }
        }
        self.epochs.add_recovered(epochs);
        Ok(Some(producers))
    }

    /// Ends the log after the whole part of `segment`. Works from the end of the log, and flushes each step
    /// before the next, so that a crash leaves no gap.
    fn cut(
        &mut self,
        segments: &mut Vec<Arc<Segment>>,
        kept: usize,
        segment: &Segment,
        reason: String,
    ) -> Result<()> {
        self.recovery.truncated_bytes += segment.file_size()? - segment.size();
        self.recovery.reason = Some(reason);
        for removed in segments.drain(kept..).rev() {
            self.recovery.truncated_bytes += removed.file_size()?;
            self.recovery.segments_removed += 1;
            remove_segment_files(self.dir, removed.base_offset)?;
            files::sync_dir(self.dir)?;
        }
        segment.truncate_to_published()
    }

    /// Empties a log whose start is above its end: it has lost its files. True when that was so.
    fn drop_all_before_start(&mut self, segments: &mut Vec<Arc<Segment>>) -> Result<bool> {
        let end = segments.last().map(|last| last.next_offset());
        if end.is_none_or(|end| end >= self.known.log_start_offset) {
            return Ok(false);
        }
        for removed in segments.drain(..) {
            self.recovery.segments_removed += 1;
            remove_segment_files(self.dir, removed.base_offset)?;
        }
        self.epochs.truncate_from_end(0);
        Ok(true)
    }

    /// The producers at the log's end: from recovery, or from the latest snapshot and the batches after it.
    fn producers(
        &mut self,
        segments: &[Arc<Segment>],
        log_end: i64,
        replayed: Option<ProducerState>,
    ) -> Result<(ProducerState, i64)> {
        let latest = snapshot::load_latest(self.dir, log_end)?;
        let (from, mut state) = match (replayed, latest) {
            // Not the snapshot at the log end where recovery disagrees: it may include batches that are gone.
            (Some(state), Latest::At(offset, kept)) => {
                let agrees = snapshot::encode(&kept) == snapshot::encode(&state);
                let is_kept = agrees || offset < log_end;
                (if is_kept { offset } else { 0 }, state)
            }
            (Some(state), Latest::None | Latest::Damaged) => (0, state),
            // As in Kafka, a closed log without a snapshot has no producers.
            (None, Latest::None) => (log_end, ProducerState::default()),
            (None, Latest::Damaged) => {
                let none = ProducerState::default();
                (0, replay_onto(none, segments, 0, log_end)?)
            }
            (None, Latest::At(offset, state)) => {
                let state = replay_onto(state, segments, offset, log_end)?;
                (offset, state)
            }
        };
        state.remove_expired(self.now_ms, self.config.producer_id_expiration_ms);
        let snapshot_offset = if !self.known.clean_shutdown && from < log_end {
            if self.write_snapshot(log_end, &state)? {
                log_end
            } else {
                from
            }
        } else {
            from
        };
        self.remove_stray_snapshots(segments)?;
        Ok((state, snapshot_offset))
    }

    fn remove_stray_snapshots(&self, segments: &[Arc<Segment>]) -> Result<()> {
        let bases: Vec<i64> = segments.iter().map(|s| s.base_offset).collect();
        snapshot::remove_stray(self.dir, &bases)
    }

    /// The transactions that ended at or after `from`.
    fn ended_from(&self, segments: &[Arc<Segment>], from: i64, log_end: i64) -> Result<Vec<CompletedTxn>> {
        let mut ended = Vec::new();
        if from >= log_end {
            return Ok(ended);
        }
        let mut state = producers_at(self.dir, segments, from)?;
        for segment in segments.iter().filter(|s| s.next_offset() > from) {
            replay(segment, from, |batch, bytes| {
                if let Some(header) = &batch.header
                    && batch.base_offset >= from
                {
                    let marker = marker_of(header, bytes);
                    ended.extend(state.replay_ending(header, marker).map(|(ended, _)| ended));
                }
                Ok(())
            })?;
        }
        Ok(ended)
    }
}

/// Removes all files of a segment.
pub(crate) fn remove_segment_files(dir: &Path, base_offset: i64) -> Result<()> {
    for suffix in SEGMENT_SUFFIXES {
        files::remove_if_exists(&segment_file(dir, base_offset, suffix))?;
    }
    Ok(())
}

/// [`remove_segment_files`] without the producers' snapshot, which belongs to the log before it.
pub(crate) fn remove_log_and_indexes(dir: &Path, base_offset: i64) -> Result<()> {
    for suffix in SEGMENT_SUFFIXES {
        if suffix != SNAPSHOT_SUFFIX {
            files::remove_if_exists(&segment_file(dir, base_offset, suffix))?;
        }
    }
    Ok(())
}

/// Finishes what a crash interrupted: deletes `.deleted` files and a cleaner's unfinished output
/// (`.cleaned`). A cleaner's finished output (`.swap`) replaces the segments that it was made from.
fn finish_interrupted(dir: &Path) -> Result<()> {
    let names = files::file_names(dir)?;
    let ending = |suffix: &'static str| {
        names
            .iter()
            .filter_map(move |name| Some((name, files::base_of_unfinished(name, suffix)?)))
    };
    let mut removed = false;
    let deleted = ending(DELETED_SUFFIX).map(|(name, _)| name);
    for name in deleted.chain(names.iter().filter(|name| files::is_temporary(name))) {
        removed |= files::remove_if_exists(&dir.join(name))?;
    }
    if removed {
        // From here on the first segment alone may define the log start, so earlier segments must not come
        // back.
        files::sync_dir(dir)?;
    }
    let unfinished = ending(CLEANED_SUFFIX).map(|(_, base)| base).min();
    for (name, _) in ending(CLEANED_SUFFIX) {
        files::remove_if_exists(&dir.join(name))?;
    }
    let mut finished = Vec::new();
    for (name, base) in ending(SWAP_SUFFIX) {
        if unfinished.is_some_and(|unfinished| base >= unfinished) {
            files::remove_if_exists(&dir.join(name))?;
        } else {
            finished.push(name.as_str());
        }
    }
    replace_by_swapped(dir, &names, &finished)
}

fn replace_by_swapped(dir: &Path, names: &[String], swapped: &[&str]) -> Result<()> {
    let mut range: Option<(i64, i64)> = None;
    for name in swapped {
        let plain = name.trim_end_matches(SWAP_SUFFIX);
        let Some(base) = offset_of(plain, LOG_SUFFIX) else {
            continue;
        };
        let path = dir.join(name);
        let file = fs::File::open(&path).map_err(StorageError::io("open", &path))?;
        let size = file.metadata().map_err(StorageError::io("read", &path))?.len();
        let mut scan = Scanner::all_headers(&file, 0, size);
        let mut next = base;
        while let Next::Batch(batch) = scan.next().map_err(StorageError::io("read", &path))? {
            next = batch.last_offset + 1;
        }
        let (low, high) = range.unwrap_or((base, next));
        range = Some((low.min(base), high.max(next)));
    }
    if let Some((low, high)) = range {
        for name in names.iter().filter(|name| !name.ends_with(SWAP_SUFFIX)) {
            let base = files::base_of(name);
            if base.is_some_and(|base| (low..high).contains(&base)) {
                files::remove_if_exists(&dir.join(name))?;
            }
        }
    }
    for name in swapped {
        let (from, to) = (dir.join(name), dir.join(name.trim_end_matches(SWAP_SUFFIX)));
        disk::rename(&from, &to).map_err(StorageError::io("rename", &from))?;
    }
    Ok(())
}
