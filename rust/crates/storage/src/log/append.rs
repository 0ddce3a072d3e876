//! Appending, and rolling when a segment is full.
//!
//! Batches are checked before the writer lock is taken. Under the lock they get offsets, their producers are
//! checked, and the bytes are written in one piece. An append that is acknowledged only once it is on disk
//! waits for that without the lock. A failure after the checks is the disk's and takes the log offline. The
//! exception is a full disk: it refuses the append, and the log stays as it was.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use logcore_records::{BatchHeader, Offload, TimestampType};
use parking_lot::MutexGuard;

use super::{Log, Writer};
use crate::clock::Now;
use crate::config::DECOMPRESSED_MAX;
use crate::config::LogConfig;
use crate::error::{Result, StorageError};
use crate::files;
use crate::log::loader;
use crate::producers::snapshot;
use crate::producers::verification::Verification;
use crate::producers::{Duplicate, Origin, Staged};
use crate::segment::{OpenSegment, Placed, Segment};
use crate::slice::Appended;
use crate::validation::recompress;
use crate::validation::{self, CheckedBatches, ParsedBatches, Rules};

/// For a caller that blocks no other work.
pub(super) fn in_place(work: &mut dyn FnMut()) {
    work();
}

/// Runs `work` by `offload`.
fn offloaded<T>(offload: Offload, work: impl FnOnce() -> T) -> T {
    let (mut work, mut done) = (Some(work), None);
    offload(&mut || done = work.take().map(|work| work()));
    match done {
        Some(done) => done,
        None => unreachable!("an offload runs its closure"),
    }
}

/// Appends hold the lock for under 1 ms. A longer hold means that the holder waits for the disk.
const LOCK_PATIENCE: Duration = Duration::from_millis(1);

/// How a producer's batches are appended.
#[derive(Clone, Copy)]
pub struct ProduceOptions {
    pub leader_epoch: i32,
    /// Milliseconds since the epoch.
    pub now_ms: i64,
    /// Decompress every compressed batch and check its records.
    pub check_compressed: bool,
    /// The most memory to decompress one batch with. Checking needs it only for raw snappy and large zstd
    /// windows; encoding a batch anew needs it for all of its records.
    pub buffer_max: usize,
    /// Runs what may take long: decompressing a long batch, waiting for a lock whose holder waits for the
    /// disk, rolling a segment. Not the fsync of what is appended, nor of its epoch
    /// ([`Log::has_saved_epoch`]).
    pub offload: Offload,
    /// How the first batch of a transaction is let in.
    pub verification: Verification,
}

impl ProduceOptions {
    /// Options for a caller with no limit on memory or time.
    pub fn new(leader_epoch: i32, now_ms: i64) -> Self {
        Self {
            leader_epoch,
            now_ms,
            check_compressed: true,
            buffer_max: DECOMPRESSED_MAX,
            offload: in_place,
            verification: Verification::Off,
        }
    }
}

/// How an append is checked and completed.
#[derive(Clone, Copy)]
struct Mode {
    rules: Rules,
    /// `None`: the epoch of the leader that wrote last.
    leader_epoch: Option<i32>,
}

/// What batches get from the leader.
struct Assigned {
    origin: Origin,
    epoch: i32,
    /// The epoch is in the log's file of epochs.
    epoch_saved: bool,
    /// The broker's time, where the topic has append time.
    log_append_time: Option<i64>,
    now: Now,
    offload: Offload,
    verification: Verification,
}

/// What the choice of a segment depends on.
pub(super) struct Incoming {
    pub(super) size: u64,
    pub(super) max_timestamp: i64,
    pub(super) first_offset: i64,
    pub(super) last_offset: i64,
}

/// An append that is written and not acknowledged.
pub(super) struct Written {
    pub(super) first_offset: i64,
    pub(super) end: i64,
    /// It is acknowledged once everything below this offset is on disk.
    pub(super) until: i64,
    /// How many truncations there had been.
    pub(super) truncations: u64,
}

impl Writer {
    /// A batch of a transaction that is not open here needs a verification.
    fn check_verified(&self, header: &BatchHeader, verification: Verification) -> Result<()> {
        let guard = match verification {
            Verification::Off => return Ok(()),
            Verification::Open => None,
            Verification::Guarded(guard) => Some(guard),
        };
        let producer_id = header.producer_id;
        let is_verified = !header.is_transactional()
            || self.producers.is_open(producer_id, header.producer_epoch)
            || guard.is_some_and(|guard| self.verifications.holds(producer_id, guard));
        if is_verified {
            Ok(())
        } else {
            Err(StorageError::InvalidTxnState { producer_id })
        }
    }
}

impl Log {
    /// Appends whole v2 batches, with one write. Offsets, leader epoch and, where the topic has append time,
    /// timestamps are set in `batches` itself. Batches that are encoded anew for the topic's codec are
    /// copied.
    ///
    /// Batches that an idempotent producer sends again are not written again. When all are repeated, the
    /// result is `duplicate` with their first offsets. When only the first few are (a retry after a crash
    /// that cut the rest), the rest is written.
    ///
    /// Errors: see [`StorageError`]. Unless it is a storage failure nothing was written, and `batches` is
    /// unchanged.
    pub fn append_as_leader(&self, batches: &mut [u8], leader_epoch: i32, now_ms: i64) -> Result<Appended> {
        let parsed = ParsedBatches::parse(batches)?;
        self.append_produced(batches, &parsed, ProduceOptions::new(leader_epoch, now_ms))
    }

    /// [`Log::append_as_leader`] for a server: the batches are parsed already, memory is bounded, and long
    /// work is offloaded. `parsed` are the batches of all of `batches`.
    ///
    /// Errors: also [`StorageError::DecompressedTooLarge`] when a batch needs more memory than `buffer_max`.
    /// The append may be tried again with more.
    pub fn append_produced(
        &self,
        batches: &mut [u8],
        parsed: &ParsedBatches,
        options: ProduceOptions,
    ) -> Result<Appended> {
        let rules = Rules {
            origin: Origin::Client,
            now: Now::Ms(options.now_ms),
            check_compressed: options.check_compressed,
            buffer_max: options.buffer_max,
            offload: options.offload,
            verification: options.verification,
        };
        let leader_epoch = Some(options.leader_epoch);
        self.append_on(batches, parsed, Mode { rules, leader_epoch })
    }

    /// [`Log::append_as_leader`] as the leader that wrote last, at the system's time. Batches that are
    /// `trusted`, because this process built them, are not decompressed to be checked.
    pub fn append_as_last_leader(&self, batches: &mut [u8], trusted: bool) -> Result<Appended> {
        let rules = Rules {
            now: Now::System,
            check_compressed: !trusted,
            ..Rules::of(Origin::Client)
        };
        let parsed = ParsedBatches::parse(batches)?;
        let leader_epoch = None;
        self.append_on(batches, &parsed, Mode { rules, leader_epoch })
    }

    /// [`Log::append_as_leader`] for the group coordinator and the transaction coordinator. They may also
    /// write the markers that end transactions ([`logcore_records::end_txn_marker`]), and batches of a
    /// producer without a sequence. No batch counts as repeated.
    ///
    /// Errors: also [`StorageError::TransactionCoordinatorFenced`].
    pub fn append_as_coordinator(
        &self,
        batches: &mut [u8],
        leader_epoch: i32,
        now_ms: i64,
    ) -> Result<Appended> {
        let rules = Rules {
            now: Now::Ms(now_ms),
            ..Rules::of(Origin::Coordinator)
        };
        let parsed = ParsedBatches::parse(batches)?;
        let leader_epoch = Some(leader_epoch);
        self.append_on(batches, &parsed, Mode { rules, leader_epoch })
    }

    /// Whether batches would be accepted, for a caller that appends them in several pieces. Does not check
    /// what depends on producers or the disk.
    ///
    /// Errors: those of [`Log::append_as_leader`]; a position counts from the start of `batches`.
    pub fn check_append(&self, batches: &[u8]) -> Result<()> {
        self.check_writable()?;
        let config = self.config();
        let parsed = ParsedBatches::parse(batches)?;
        let rules = Rules {
            check_compressed: false,
            ..Rules::of(Origin::Client)
        };
        let mut checked = validation::check(batches, &parsed, &config, &rules)?;
        // With the topic's codec a batch may become too large.
        recompress::recompress(batches, &mut checked, &config, rules.buffer_max)?;
        checked
            .headers
            .iter()
            .try_for_each(|header| check_fits(header.size(), &config))
    }

    fn append_on(&self, batches: &mut [u8], parsed: &ParsedBatches, mode: Mode) -> Result<Appended> {
        self.check_writable()?;
        let config = self.config();
        let rules = &mode.rules;
        let mut checked = validation::check(batches, parsed, &config, rules)?;
        let mut recompressed = recompress::recompress(batches, &mut checked, &config, rules.buffer_max)?;
        let batches = recompressed.as_deref_mut().unwrap_or(batches);
        let log_append_time = (config.timestamp_type == TimestampType::LogAppendTime).then(|| rules.now.ms());

        let mut writer = match self.writer.try_lock_for(LOCK_PATIENCE) {
            Some(writer) => writer,
            None => offloaded(rules.offload, || self.writer.lock()),
        };
        self.check_writable()?;
        let assigned = self.check_leads(&mode, log_append_time)?;
        let repeated: Vec<Duplicate> = match rules.origin {
            Origin::Client => checked
                .headers
                .iter()
                .map_while(|header| writer.producers.duplicate_of(header))
                .collect(),
            Origin::Coordinator | Origin::Replication => Vec::new(),
        };
        if let (Some(first), Some(last)) = (repeated.first(), repeated.last())
            && repeated.len() == checked.headers.len()
        {
            let appended = Appended {
                first_offset: first.first_offset,
                last_offset: last.last_offset,
                // Also where it is the producer's timestamp, as in `UnifiedLog.append`.
                log_append_time: last.timestamp,
                log_start_offset: self.log_start_offset(),
                duplicate: true,
                bytes: 0,
            };
            self.acknowledge_again(writer, last.last_offset)?;
            return Ok(appended);
        }
        let skipped: usize = checked
            .headers
            .drain(..repeated.len())
            .map(|header| header.size())
            .sum();
        let fresh = &mut batches[skipped..];
        let written = self.write(&mut writer, &config, fresh, &mut checked, &assigned)?;
        self.acknowledge(writer, &written, true)?;
        let first = repeated.first().map(|first| first.first_offset);
        Ok(Appended {
            first_offset: first.unwrap_or(written.first_offset),
            last_offset: written.end - 1,
            log_append_time: log_append_time.unwrap_or(-1),
            log_start_offset: self.log_start_offset(),
            duplicate: false,
            bytes: fresh.len() as u64,
        })
    }

    /// Epochs change under the writer lock only, so the answer holds as long as the caller has the lock.
    fn check_leads(&self, mode: &Mode, log_append_time: Option<i64>) -> Result<Assigned> {
        let saved = self.epochs.saved_latest();
        let latest = saved.or_else(|| self.latest_epoch());
        let epoch = mode.leader_epoch.or(latest).unwrap_or(0);
        match latest {
            Some(current) if epoch < current => Err(StorageError::FencedLeaderEpoch {
                found: epoch,
                current,
            }),
            Some(_) | None => Ok(Assigned {
                origin: mode.rules.origin,
                epoch,
                epoch_saved: saved == Some(epoch),
                log_append_time,
                now: mode.rules.now,
                offload: mode.rules.offload,
                verification: mode.rules.verification,
            }),
        }
    }

    /// Gives offsets to batches that were checked, and writes them.
    fn write(
        &self,
        writer: &mut Writer,
        config: &LogConfig,
        bytes: &mut [u8],
        checked: &mut CheckedBatches,
        assigned: &Assigned,
    ) -> Result<Written> {
        check_fits(bytes.len(), config)?;
        let headers = &mut checked.headers;
        let first_offset = self.log_end_offset();
        check_offsets_left(first_offset, headers)?;
        validation::assign(headers, first_offset, assigned.epoch, assigned.log_append_time);
        let mut staged = Staged::default();
        for (index, header) in checked.headers.iter().enumerate() {
            let marker = checked.marker(index);
            writer.check_verified(header, assigned.verification)?;
            writer
                .producers
                .stage(&mut staged, header, marker, assigned.origin)?;
        }
        let headers = &checked.headers;

        // From here on only the disk can fail.
        self.complete(writer)?;
        let incoming = Incoming {
            size: bytes.len() as u64,
            max_timestamp: headers.iter().map(|h| h.max_timestamp).max().unwrap_or(-1),
            first_offset,
            last_offset: headers.last().map_or(first_offset, BatchHeader::last_offset),
        };
        self.roll_if_full(writer, config, &incoming, (assigned.now, assigned.offload))
            .map_err(|e| self.fail_unless_full(e))?;
        if !assigned.epoch_saved {
            self.assign_epoch(assigned.epoch, first_offset)
                .map_err(|e| self.fail_unless_full(e))?;
        }
        validation::write_assigned(bytes, headers, assigned.log_append_time.is_some());
        let written = self.append_staged(writer, config, bytes, placed(headers), staged, assigned.now)?;
        for header in headers.iter().filter(|header| header.is_transactional()) {
            writer.verifications.end(header.producer_id);
        }
        Ok(written)
    }

    /// Begins to verify that this partition is in a producer's transaction. Returns the guard for
    /// [`ProduceOptions::verification`]; `None` if the transaction is open here, so that nothing is to
    /// verify. Waits for the writer's lock.
    pub fn begin_verification(&self, producer_id: i64, producer_epoch: i16) -> Option<u64> {
        let mut writer = self.writer.lock();
        let is_open = writer.producers.is_open(producer_id, producer_epoch);
        (!is_open).then(|| writer.verifications.begin(producer_id))
    }

    /// Nothing is appended with this guard any more.
    pub fn give_up_verification(&self, producer_id: i64, guard: u64) {
        self.writer.lock().verifications.give_up(producer_id, guard);
    }

    /// Writes batches whose producers are staged to the active segment, and publishes them.
    pub(super) fn append_staged(
        &self,
        writer: &mut Writer,
        config: &LogConfig,
        bytes: &[u8],
        batches: impl ExactSizeIterator<Item = Placed>,
        staged: Staged,
        now: Now,
    ) -> Result<Written> {
        let transactions = staged.has_transactions();
        let open = self.opened(&mut writer.active)?;
        if transactions {
            open.segment
                .reserve_aborted(writer.producers.aborted_by(&staged).len())
                .map_err(|e| self.fail_unless_full(e))?;
        }
        open.append(bytes, batches)
            .map_err(|e| self.fail_unless_full(e))?;
        if transactions && let Err(error) = open.segment.append_aborted(&writer.producers.aborted_by(&staged))
        {
            // The tail stays as it was published.
            writer.active = None;
            return Err(self.fail(error));
        }
        open.segment.publish(open.tail);
        let end = open.tail.next_offset;
        if transactions {
            let completed = staged.completed().to_vec();
            writer.producers.commit(staged);
            self.note_transactions(&completed, writer.producers.first_undecided_offset());
        } else {
            writer.producers.commit(staged);
        }
        // Only the holder of the writer lock changes it.
        let first_offset = self.log_end.load(Ordering::Relaxed);
        self.log_end.store(end, Ordering::Release);
        writer.unflushed += end - first_offset;
        writer.unflushed_since_ms.get_or_insert_with(|| now.ms());
        if writer.unflushed >= config.flush_messages {
            writer.unflushed = 0;
            writer.unflushed_since_ms = None;
            writer.sync_end = end;
        }
        Ok(Written {
            first_offset,
            end,
            // Also behind an earlier append that waits for the disk. Otherwise a crash could lose more than
            // `flush.messages`.
            until: writer.sync_end,
            truncations: self.truncations.count(),
        })
    }

    /// Ends an append. With `flush.messages` the append that reaches the number waits for the disk without
    /// the writer lock. Other appends go on meanwhile and share the next fsync. With `lead`, readers may then
    /// read up to its end, unless the log has replicas.
    pub(super) fn acknowledge(
        &self,
        writer: MutexGuard<'_, Writer>,
        written: &Written,
        lead: bool,
    ) -> Result<()> {
        // The recovery point goes back only under the lock.
        if written.until <= self.recovery_point() {
            if lead {
                self.follow_end_locked(written.end);
            }
            return Ok(());
        }
        drop(writer);
        self.sync_to(written, lead)
    }

    /// Ends a retry. The append that it repeats may still wait for the disk.
    fn acknowledge_again(&self, writer: MutexGuard<'_, Writer>, last_offset: i64) -> Result<()> {
        let end = last_offset + 1;
        let written = Written {
            first_offset: end,
            end,
            until: end.min(writer.sync_end),
            truncations: self.truncations.count(),
        };
        self.acknowledge(writer, &written, false)
    }

    pub(super) fn assign_epoch(&self, epoch: i32, offset: i64) -> Result<()> {
        if self.epochs.saved_latest() == Some(epoch) {
            return Ok(());
        }
        if self.end_unsynced.load(Ordering::Acquire) {
            self.active()
                .flush()
                .map_err(|e| self.fail_unless_out_of_files(e))?;
            self.end_unsynced.store(false, Ordering::Release);
        }
        self.epochs.change(|epochs| {
            epochs.assign(epoch, offset);
            epochs.save_before_append()
        })
    }

    /// Begins a new segment when the active one is full or old.
    pub(super) fn roll_if_full(
        &self,
        writer: &mut Writer,
        config: &LogConfig,
        incoming: &Incoming,
        (now, offload): (Now, Offload),
    ) -> Result<()> {
        let active = self.opened(&mut writer.active)?;
        let filled = active.tail.size;
        let fits = active.segment.can_hold(incoming.last_offset);
        if filled == 0 && fits {
            return Ok(());
        }
        let full = filled + incoming.size > config.segment_bytes
            || !fits
            || active.indexes.is_full()
            || active.age_ms(now, incoming.max_timestamp)? > age_max_ms(config, writer.roll_random);
        if full {
            // At the log's end even if the batches begin later: if a full disk refuses them, another leader's
            // batches may begin at the log's end.
            let end = self.log_end_offset();
            let far = incoming.last_offset - end > i64::from(i32::MAX);
            let base = if far { incoming.first_offset } else { end };
            offloaded(offload, || self.roll_locked(writer, config, base, now.ms()))?;
        }
        Ok(())
    }

    /// The active segment, opened if `slot` is empty.
    fn opened<'a>(&self, slot: &'a mut Option<OpenSegment>) -> Result<&'a mut OpenSegment> {
        match slot {
            Some(open) => Ok(open),
            None => Ok(slot.insert(self.active().open_to_append()?)),
        }
    }

    /// Ends the active segment and begins a new one, unless the active one is empty.
    pub fn roll(&self, now_ms: i64) -> Result<()> {
        let mut writer = self.writer.lock();
        self.check_writable()?;
        let config = self.config();
        let end = self.log_end_offset();
        self.roll_locked(&mut writer, &config, end, now_ms)
            .map(|_| ())
            .map_err(|e| self.fail_unless_full(e))
    }

    /// Begins a segment at `first_offset`, or at the log's end if that is later.
    pub(super) fn roll_locked(
        &self,
        writer: &mut Writer,
        config: &LogConfig,
        first_offset: i64,
        now_ms: i64,
    ) -> Result<Arc<Segment>> {
        self.complete(writer)?;
        let active = self.active();
        let end = self.log_end_offset();
        let base = first_offset.max(end);
        if active.base_offset == base {
            return Ok(active);
        }
        writer.active = None;
        self.snapshot_producers(writer, base, config.flush_on_roll)?;
        active.seal()?;
        if config.flush_on_roll || self.recovery_point() >= end {
            // Recovery after a crash would start after this segment and trust its indexes.
            self.flush_through(&active, end)?;
        }
        // After a power loss the directory must not have the second segment without the first: the log would
        // begin there.
        self.sync_first_epoch()
            .map_err(|e| self.fail_unless_out_of_files(e))?;
        let next = Segment::create(&self.dir, base, loader::settings(config), now_ms)
            .or_else(|error| self.take_back_segment(base, error))?;
        let next = Arc::new(next);
        writer.roll_random = super::random();
        let mut segments = self.segments.write();
        let mut list = segments.to_vec();
        list.push(next.clone());
        *segments = Arc::new(list);
        Ok(next)
    }

    /// Removes the files of a segment that could not be created. A file that stayed would fix the end of the
    /// segment before it, even after that was truncated and written again.
    fn take_back_segment(&self, base: i64, error: StorageError) -> Result<Segment> {
        loader::remove_log_and_indexes(&self.dir, base)
            .and_then(|()| files::sync_dir(&self.dir))
            .map_err(|e| self.fail(e))?;
        Err(error)
    }

    /// Writes the snapshot of the producers' state at `offset`, once per offset.
    pub(super) fn snapshot_producers(&self, writer: &mut Writer, offset: i64, sync: bool) -> Result<()> {
        if offset > writer.snapshot_offset {
            snapshot::write(&self.dir, offset, &writer.producers, sync)?;
            writer.snapshot_offset = offset;
        } else if sync {
            // A roll wrote the snapshot without an fsync.
            snapshot::sync(&self.dir, offset)?;
            files::sync_dir(&self.dir)?;
        }
        Ok(())
    }
}

/// The positions of batches that follow each other.
fn placed(headers: &[BatchHeader]) -> impl ExactSizeIterator<Item = Placed> {
    let mut end = 0;
    headers.iter().map(move |header| {
        let position = end;
        end += header.size() as u64;
        Placed {
            position,
            size: header.size() as u64,
            last_offset: header.last_offset(),
            max_timestamp: header.max_timestamp,
        }
    })
}

/// The age at which a segment is rolled: `segment.ms` less a random part of `segment.jitter.ms`
/// (`LogConfig.randomSegmentJitter`). In a compacted log at most `max.compaction.lag.ms`, because an active
/// segment is not compacted (`LogConfig.maxSegmentMs`).
fn age_max_ms(config: &LogConfig, random: u32) -> i64 {
    let age_max = if config.cleanup_compact {
        config.segment_ms.min(config.max_compaction_lag_ms)
    } else {
        config.segment_ms
    };
    match config.segment_jitter_ms.min(config.segment_ms) {
        jitter @ 1.. => age_max - i64::from(random >> 1) % jitter,
        _ => age_max,
    }
}

/// The offset after the last record must fit, too.
fn check_offsets_left(first_offset: i64, headers: &[BatchHeader]) -> Result<()> {
    let records = |header: &BatchHeader| i64::from(header.last_offset_delta) + 1;
    let count: i64 = headers.iter().map(records).sum();
    if i64::MAX - first_offset < count {
        return Err(StorageError::InvalidRecord {
            position: 0,
            reason: format!(
                "the log has {} offsets left after offset {first_offset}, and {count} are needed",
                i64::MAX - first_offset
            ),
        });
    }
    Ok(())
}

/// All batches of one append go into one segment.
fn check_fits(size: usize, config: &LogConfig) -> Result<()> {
    let (size, limit) = (size as u64, config.segment_bytes);
    if size > limit {
        return Err(StorageError::AppendTooLarge { size, limit });
    }
    Ok(())
}
