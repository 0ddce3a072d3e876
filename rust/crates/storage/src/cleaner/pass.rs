//! One cleaning of one log: building the map, copying group by group (`Cleaner.doClean`, `cleanInto`).
//!
//! Runs in the cleaning thread without the log's locks. Reads sealed segments through a window, checks every
//! checksum, and reads of a record only its key, offset and whether it has a value.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use logcore_records::{
    Batch, BatchFilter, Entry, Filtered, Left, NewHorizon, RecordError, legacy, write_empty,
};

use super::offset_map::{Digest, OffsetMap};
use super::output::Output;
use super::throttle::Throttle;
use super::transactions::Transactions;
use super::{Aborted, CleanError, CleanerConfig};
use crate::config::LogConfig;
use crate::error::StorageError;
use crate::index::transactions::AbortedTxn;
use crate::log::Log;
use crate::log::cleaning::LastRecord;
use crate::log::cleaning::gate::Stop;
use crate::log::cleaning::plan::Plan;
use crate::segment::Segment;
use crate::segment::scan::{Next, Scanner, StoredBatch};

type Result<T, E = CleanError> = std::result::Result<T, E>;

/// The most bytes a batch may decompress to.
const DECOMPRESSED_MAX: usize = 256 << 20;
/// Bytes between two calls of the throttle.
const THROTTLE_STEP: u64 = 64 << 10;

/// The statistics of a cleaning.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CleanerStats {
    /// The first dirty offset before the cleaning and after it.
    pub first_dirty_offset: i64,
    pub clean_until_offset: i64,
    /// Bytes and records that were read to build the map.
    pub map_bytes_read: u64,
    pub map_records_read: u64,
    /// Bytes and records that were read and written to copy segments.
    pub bytes_read: u64,
    pub records_read: u64,
    pub bytes_written: u64,
    pub records_written: u64,
    /// Records without a key, which compaction removes.
    pub keyless_records: u64,
    /// The filled part of the map, 0 to 1 of what it may contain.
    pub buffer_utilization: f64,
    /// Number of cleaned segments before and after.
    pub segments_before: usize,
    pub segments_after: usize,
    pub elapsed: Duration,
}

impl CleanerStats {
    /// Adds the statistics of a later cleaning of the same log.
    pub(crate) fn add(&mut self, later: &Self) {
        if self.clean_until_offset == 0 {
            self.first_dirty_offset = later.first_dirty_offset;
        }
        self.clean_until_offset = later.clean_until_offset;
        self.map_bytes_read += later.map_bytes_read;
        self.map_records_read += later.map_records_read;
        self.bytes_read += later.bytes_read;
        self.records_read += later.records_read;
        self.bytes_written += later.bytes_written;
        self.records_written += later.records_written;
        self.keyless_records += later.keyless_records;
        self.buffer_utilization = self.buffer_utilization.max(later.buffer_utilization);
        self.segments_before += later.segments_before;
        self.segments_after += later.segments_after;
        self.elapsed += later.elapsed;
    }
}

/// The state of a cleaning.
pub(crate) struct Run<'a> {
    pub(crate) config: &'a CleanerConfig,
    pub(crate) throttle: &'a Throttle,
    pub(crate) stop: &'a Stop,
    pub(crate) now_ms: i64,
    filter: BatchFilter,
    buffer: Vec<u8>,
    /// The digests of the current batch.
    digests: Vec<Option<Digest>>,
    unthrottled: u64,
    stats: CleanerStats,
}

impl<'a> Run<'a> {
    pub(crate) fn new(
        config: &'a CleanerConfig,
        throttle: &'a Throttle,
        stop: &'a Stop,
        now_ms: i64,
    ) -> Self {
        Self {
            config,
            throttle,
            stop,
            now_ms,
            filter: BatchFilter::new(),
            buffer: Vec::new(),
            digests: Vec::new(),
            unthrottled: 0,
            stats: CleanerStats::default(),
        }
    }

    /// Called for every batch: ends a cleaning that is stopped, and throttles.
    fn account(&mut self, bytes: u64) -> Result<(), Aborted> {
        self.unthrottled += bytes;
        if self.unthrottled < THROTTLE_STEP {
            return if self.stop.is_set() { Err(Aborted) } else { Ok(()) };
        }
        self.throttle
            .take(std::mem::take(&mut self.unthrottled), self.stop)
    }
}

/// Cleans a log as far as the map goes. Swapped segments stay, even if it ends early.
pub(crate) fn clean(log: &Log, plan: &Plan, mut run: Run<'_>) -> Result<CleanerStats> {
    let began = std::time::Instant::now();
    let config = log.config();
    // Superseding records must be on disk before those they supersede are removed, and so must their commit
    // markers, which may be in the active segment.
    log.flush_rolled()?;
    log.flush()?;
    let aborted = aborted_transactions(log, plan)?;
    let map = build_map(plan, &mut run, &aborted)?;
    let end = map.latest() + 1;
    let legacy_horizon = legacy_horizon(plan, &config)?;
    let mut transactions = Transactions::new(aborted);
    for group in plan.groups(end, &config)? {
        let mut copy = Copy {
            config: &config,
            map: &map,
            transactions: &mut transactions,
            producers: log.last_records(),
            legacy_horizon,
            run: &mut run,
            changed: group.len() > 1,
        };
        copy.clean_group(log, &group)?;
    }
    let mut stats = run.stats;
    stats.first_dirty_offset = plan.first_dirty;
    stats.clean_until_offset = end;
    let capacity = super::offset_map::capacity(run.config.dedupe_bytes_per_thread(), 1.0);
    stats.buffer_utilization = map.len() as f64 / capacity.max(1) as f64;
    stats.elapsed = began.elapsed();
    Ok(stats)
}

/// The aborted transactions of all segments, because a marker may be far after the records that it aborts.
fn aborted_transactions(log: &Log, plan: &Plan) -> Result<Vec<AbortedTxn>> {
    let mut found = Vec::new();
    let segments = &plan.view.segments;
    for number in 0..segments.len() {
        found.extend(log.txn_index(segments, number)?.entries());
    }
    Ok(found)
}

/// Cleaned segments that were last written before this time may lose legacy tombstones, which have no delete
/// horizon.
fn legacy_horizon(plan: &Plan, config: &LogConfig) -> Result<SystemTime> {
    let segments = &plan.view.segments;
    let clean = segments.partition_point(|s| s.base_offset < plan.first_dirty);
    let Some(last) = segments[..clean].last() else {
        return Ok(SystemTime::UNIX_EPOCH);
    };
    let retention = Duration::from_millis(config.delete_retention_ms.max(0).unsigned_abs());
    let horizon = last.modified()?.checked_sub(retention);
    Ok(horizon.unwrap_or(SystemTime::UNIX_EPOCH))
}

fn damaged(segment: &Segment, position: u64, error: &RecordError) -> CleanError {
    segment.corrupt(position, error.to_string()).into()
}

/// Calls `visit` with each batch of a segment from `position` on and its bytes. Checksums are verified.
/// `visit` returns whether to go on.
fn walk(
    segment: &Segment,
    position: u64,
    window: usize,
    mut visit: impl FnMut(&StoredBatch, &[u8]) -> Result<bool>,
) -> Result<()> {
    let file = segment.file();
    let mut scan = Scanner::checked_through(file, position, segment.size(), window);
    loop {
        match scan.next().map_err(StorageError::io("read", segment.path()))? {
            Next::Batch(batch) => {
                let bytes = scan
                    .bytes(&batch)
                    .map_err(StorageError::io("read", segment.path()))?;
                if !visit(&batch, bytes)? {
                    return Ok(());
                }
            }
            Next::End => return Ok(()),
            Next::Torn(reason) => return Err(segment.corrupt(scan.position(), reason).into()),
        }
    }
}

/// Maps the keys of the dirty segments to their last offsets, until the map is full.
fn build_map(plan: &Plan, run: &mut Run<'_>, aborted: &[AbortedTxn]) -> Result<OffsetMap> {
    let config = run.config;
    let span = plan
        .first_uncleanable
        .saturating_sub(plan.first_dirty)
        .max(0)
        .unsigned_abs();
    let mut map = OffsetMap::new(config.dedupe_bytes_per_thread(), config.load_factor, span);
    let not_before = |transaction: &&AbortedTxn| transaction.last_offset >= plan.first_dirty;
    let mut transactions = Transactions::new(aborted.iter().filter(not_before).copied().collect());
    let dirty = plan.dirty();
    for (number, segment) in dirty.iter().enumerate() {
        let full = map_segment(plan.first_dirty, segment, run, &mut map, &mut transactions)?;
        if full {
            break;
        }
        // The segment may end with a gap.
        let next = dirty
            .get(number + 1)
            .map_or(plan.first_uncleanable, |next| next.base_offset);
        map.advance(next - 1);
    }
    Ok(map)
}

/// True when the map is full.
fn map_segment(
    first_dirty: i64,
    segment: &Segment,
    run: &mut Run<'_>,
    map: &mut OffsetMap,
    transactions: &mut Transactions,
) -> Result<bool> {
    let Some(first) = segment.locate(first_dirty, segment.size())? else {
        return Ok(false);
    };
    let mut full = false;
    let mut keys = Vec::new();
    walk(
        segment,
        first.position,
        run.config.io_bytes_per_thread(),
        |batch, bytes| {
            run.account(batch.size)?;
            run.stats.map_bytes_read += batch.size;
            let records = map_batch(
                first_dirty,
                batch,
                bytes,
                &mut run.filter,
                &mut keys,
                map,
                transactions,
            )
            .map_err(|error| damaged(segment, batch.position, &error))?;
            match records {
                Some(records) => {
                    run.stats.map_records_read += records;
                    if batch.last_offset >= first_dirty {
                        map.advance(batch.last_offset);
                    }
                }
                None => full = true,
            }
            Ok(!full)
        },
    )?;
    Ok(full)
}

/// Maps one batch; returns its number of records, or `None` when the map is full.
fn map_batch(
    first_dirty: i64,
    stored: &StoredBatch,
    bytes: &[u8],
    filter: &mut BatchFilter,
    keys: &mut Vec<(Digest, i64)>,
    map: &mut OffsetMap,
    transactions: &mut Transactions,
) -> Result<Option<u64>, RecordError> {
    keys.clear();
    let mut records = 0;
    let mut take = |key: Option<&[u8]>, offset: i64| {
        records += 1;
        if let Some(key) = key.filter(|_| offset >= first_dirty) {
            keys.push((map.digest(key), offset));
        }
    };
    if stored.header.is_none() {
        legacy::for_each(bytes, DECOMPRESSED_MAX, |message| {
            take(message.key, message.offset);
            Ok(())
        })?;
    } else {
        let batch = Batch::parse(bytes)?;
        if batch.header.is_control() {
            transactions.on_control(&batch)?;
            return Ok(Some(1));
        }
        if transactions.on_batch(&batch) {
            return Ok(Some(batch.header.record_count.max(0) as u64));
        }
        let batch = filter.open(&batch, DECOMPRESSED_MAX)?;
        batch.for_each(|entry| take(entry.key, entry.offset))?;
    }
    map.prefetch(keys.iter().map(|(digest, _)| *digest));
    let full = keys
        .iter()
        .any(|(digest, offset)| map.put(*digest, *offset).is_err());
    Ok((!full).then_some(records))
}

/// Copies segments of one log without superseded records.
struct Copy<'a, 'r> {
    config: &'a LogConfig,
    map: &'a OffsetMap,
    transactions: &'a mut Transactions,
    producers: HashMap<i64, LastRecord>,
    legacy_horizon: SystemTime,
    run: &'a mut Run<'r>,
    /// The output differs from its source.
    changed: bool,
}

impl Copy<'_, '_> {
    /// Writes one segment for several and swaps it in.
    fn clean_group(&mut self, log: &Log, group: &[Arc<Segment>]) -> Result<()> {
        let (Some(first), Some(last)) = (group.first(), group.last()) else {
            return Ok(());
        };
        let buffer = std::mem::take(&mut self.run.buffer);
        let window = self.run.config.io_bytes_per_thread();
        let interval = self.config.index_interval_bytes;
        let mut output = Output::create(&log.dir(), first.base_offset, interval, buffer, window)?;
        for segment in group {
            self.copy_segment(segment, &mut output)?;
        }
        self.run.stats.bytes_written += output.size();
        self.run.stats.segments_before += group.len();
        self.run.stats.segments_after += 1;
        if self.changed {
            output.finish(last.modified()?)?;
            let base = output.base_offset;
            let now_ms = self.run.now_ms;
            if self.run.stop.is_set()
                || !log.replace_segments(group, base, || output.was_swapped(), now_ms)?
            {
                return Err(CleanError::Aborted);
            }
        }
        self.run.buffer = output.take_buffer();
        Ok(())
    }

    fn copy_segment(&mut self, segment: &Segment, output: &mut Output) -> Result<()> {
        let retain_legacy_deletes = segment.modified()? > self.legacy_horizon;
        walk(
            segment,
            0,
            self.run.config.io_bytes_per_thread(),
            |batch, bytes| {
                self.run.account(batch.size)?;
                self.run.stats.bytes_read += batch.size;
                let before = output.buffer.len();
                let copied = match batch.header {
                    Some(_) => self.copy_batch(bytes, output),
                    None => self.copy_legacy(bytes, retain_legacy_deletes, output),
                };
                let timestamp = copied.map_err(|error| match error {
                    CopyError::Record(error) => damaged(segment, batch.position, &error),
                    CopyError::Storage(error) => error.into(),
                })?;
                let size = output.buffer.len() - before;
                // A batch that is removed, or reduced to its header, has another size.
                self.changed |= size as u64 != batch.size;
                if size > 0 {
                    self.run.account(size as u64)?;
                    output.added(size, batch.last_offset, timestamp)?;
                }
                Ok(true)
            },
        )
    }

    /// Appends the remaining records of a batch to the output; returns their largest timestamp.
    fn copy_batch(&mut self, bytes: &[u8], output: &mut Output) -> Result<i64, CopyError> {
        let batch = Batch::parse(bytes)?;
        let header = &batch.header;
        let discardable = if header.is_control() {
            let marker = self.transactions.on_control(&batch)?;
            if let Some(transaction) = marker.index_entry {
                output.keep_aborted(transaction).map_err(CopyError::Storage)?;
            }
            marker.discardable
        } else {
            self.transactions.on_batch(&batch)
        };
        let horizon = header.has_delete_horizon().then_some(header.base_timestamp);
        let horizon_over = horizon.is_some_and(|horizon| horizon <= self.run.now_ms);
        let discard = discardable && (!header.is_control() || horizon_over);
        if discard {
            if self.is_last_of_producer(&batch) {
                write_empty(header, &mut output.buffer)?;
            }
            return Ok(header.max_timestamp);
        }
        let new_horizon = horizon.is_none().then(|| NewHorizon {
            at_ms: self.run.now_ms.saturating_add(self.config.delete_retention_ms),
            always: discardable && header.is_control(),
        });
        let filtered = self.filter(&batch, horizon_over, new_horizon, output)?;
        match filtered.left {
            Left::Whole => output.buffer.extend_from_slice(bytes),
            Left::Nothing if self.is_last_of_producer(&batch) => {
                write_empty(header, &mut output.buffer)?;
                return Ok(header.max_timestamp);
            }
            Left::Rewritten => self.changed = true,
            Left::Nothing => {}
        }
        Ok(filtered.max_timestamp)
    }

    fn filter(
        &mut self,
        batch: &Batch<'_>,
        horizon_over: bool,
        new_horizon: Option<NewHorizon>,
        output: &mut Output,
    ) -> Result<Filtered, RecordError> {
        let map = self.map;
        let is_control = batch.header.is_control();
        let Run {
            filter,
            digests,
            stats,
            ..
        } = &mut *self.run;
        let batch = filter.open(batch, DECOMPRESSED_MAX)?;
        digests.clear();
        if !is_control {
            batch.for_each(|entry| {
                let mapped = entry.key.filter(|_| entry.offset <= map.latest());
                digests.push(mapped.map(|key| map.digest(key)));
            })?;
            map.prefetch(digests.iter().flatten().copied());
        }
        let mut digests = digests.iter().copied();
        let filtered = batch.filter(
            new_horizon,
            |entry| {
                let digest = digests.next().flatten();
                is_control || stays(map, entry, digest, !horizon_over, &mut stats.keyless_records)
            },
            &mut output.buffer,
        )?;
        stats.records_read += filtered.read as u64;
        stats.records_written += filtered.kept as u64;
        Ok(filtered)
    }

    fn copy_legacy(
        &mut self,
        bytes: &[u8],
        retain_deletes: bool,
        output: &mut Output,
    ) -> Result<i64, CopyError> {
        let map = self.map;
        let stats = &mut self.run.stats;
        let filtered = legacy::filter(
            bytes,
            DECOMPRESSED_MAX,
            |entry| {
                let digest = entry.key.map(|key| map.digest(key));
                stays(map, entry, digest, retain_deletes, &mut stats.keyless_records)
            },
            &mut output.buffer,
        )?;
        stats.records_read += filtered.read as u64;
        stats.records_written += filtered.kept as u64;
        match filtered.left {
            Left::Whole => output.buffer.extend_from_slice(bytes),
            Left::Rewritten => self.changed = true,
            Left::Nothing => {}
        }
        Ok(filtered.max_timestamp)
    }

    /// True for the last batch of records of an active producer, or, without one, for the marker that has its
    /// epoch.
    fn is_last_of_producer(&self, batch: &Batch<'_>) -> bool {
        let header = &batch.header;
        header.has_producer_id()
            && self
                .producers
                .get(&header.producer_id)
                .is_some_and(|last| match last.offset {
                    Some(offset) => offset == header.last_offset(),
                    None => header.is_control() && header.producer_epoch == last.epoch,
                })
    }
}

/// True when a record stays: its offset is after the mapped range, or it is the last of its key and no
/// expired tombstone. `digest` is that of its key, if it has one and is in the mapped range.
fn stays(
    map: &OffsetMap,
    entry: Entry<'_>,
    digest: Option<Digest>,
    retain_deletes: bool,
    keyless: &mut u64,
) -> bool {
    if entry.offset > map.latest() {
        return true;
    }
    let Some(digest) = digest else {
        *keyless += 1;
        return false;
    };
    (entry.has_value || retain_deletes) && map.get(digest).is_none_or(|latest| entry.offset >= latest)
}

enum CopyError {
    Record(RecordError),
    Storage(StorageError),
}

impl From<RecordError> for CopyError {
    fn from(error: RecordError) -> Self {
        Self::Record(error)
    }
}
