//! Appending, and rolling when a segment is full.
//!
//! What is sent is checked before the writer lock is taken; under it, offsets are given, producers checked, and the bytes
//! written in one piece. An append that has to be on disk before it is acknowledged waits for that without the lock. Whatever
//! fails after the checks is the disk's fault and takes the log offline, but for a full disk: that refuses the append, and the
//! log is as it was.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use logcore_records::{BatchHeader, TimestampType};
use parking_lot::MutexGuard;

use super::{Log, Writer};
use crate::config::LogConfig;
use crate::error::{Result, StorageError};
use crate::files;
use crate::loader;
use crate::producer_snapshot;
use crate::producer_state::{Duplicate, Origin, Staged};
use crate::segment::{Segment, Tail};
use crate::slice::Appended;
use crate::validator::{self, Checked};

/// Who appends, as the leader of which epoch, and when.
#[derive(Clone, Copy)]
struct Terms {
    origin: Origin,
    leader_epoch: i32,
    now_ms: i64,
}

/// What is to be appended, as far as the choice of a segment depends on it.
pub(super) struct Coming {
    pub(super) size: u64,
    pub(super) newest: i64,
    pub(super) first_offset: i64,
    pub(super) last_offset: i64,
}

/// What was appended and has to be acknowledged.
pub(super) struct Written {
    pub(super) first_offset: i64,
    pub(super) end: i64,
    /// Only once it is on disk.
    pub(super) sync: bool,
    /// How many truncations there had been.
    pub(super) truncations: u64,
}

impl Log {
    /// Appends whole v2 batches, with one write. Offsets, leader epoch and, where the topic says so, the broker's time
    /// are set in `batches` itself.
    ///
    /// Batches that an idempotent producer sends again are not written again: when all are such, the answer is
    /// `duplicate` with their first offsets; when only the first few are (a retry after a crash that cut the rest),
    /// the rest is written.
    ///
    /// Errors: see [`StorageError`]; unless it is a storage failure nothing was written and the log is as before.
    /// After an error `batches` may have been changed only if it is a storage failure.
    pub fn append_as_leader(
        &self,
        batches: &mut [u8],
        leader_epoch: i32,
        now_ms: i64,
    ) -> Result<Appended> {
        let terms = Terms {
            origin: Origin::Client,
            leader_epoch,
            now_ms,
        };
        self.append_on(batches, terms)
    }

    /// [`Log::append_as_leader`] for the group and the transaction coordinator, who may also write the markers that end
    /// transactions ([`logcore_records::end_txn_marker`]), and batches of a producer without a sequence. Nothing is
    /// taken for a duplicate.
    ///
    /// Errors: also [`StorageError::TransactionCoordinatorFenced`].
    pub fn append_as_coordinator(
        &self,
        batches: &mut [u8],
        leader_epoch: i32,
        now_ms: i64,
    ) -> Result<Appended> {
        let terms = Terms {
            origin: Origin::Coordinator,
            leader_epoch,
            now_ms,
        };
        self.append_on(batches, terms)
    }

    fn append_on(&self, batches: &mut [u8], terms: Terms) -> Result<Appended> {
        self.check_writable()?;
        let config = self.config();
        let mut checked = validator::check(batches, &config, terms.origin, terms.now_ms)?;
        let log_append_time =
            (config.timestamp_type == TimestampType::LogAppendTime).then_some(terms.now_ms);

        let mut writer = self.writer.lock();
        self.check_writable()?;
        self.check_leads(terms.leader_epoch)?;
        let repeated: Vec<Duplicate> = checked
            .headers
            .iter()
            .filter(|_| terms.origin == Origin::Client)
            .map_while(|header| writer.producers.duplicate_of(header))
            .collect();
        if let (Some(first), Some(last)) = (repeated.first(), repeated.last())
            && repeated.len() == checked.headers.len()
        {
            let appended = Appended {
                first_offset: first.first_offset,
                last_offset: last.last_offset,
                log_append_time: log_append_time.map_or(-1, |_| last.timestamp),
                log_start_offset: self.log_start_offset(),
                duplicate: true,
                batches: Vec::new(),
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
        let mut written = self.write(&mut writer, &config, fresh, &mut checked, terms)?;
        // The front of a retry may still be waiting for the disk.
        written.sync |= repeated
            .last()
            .is_some_and(|last| last.last_offset < writer.sync_end);
        self.acknowledge(writer, &written, true)?;
        let first = repeated.first().map(|first| first.first_offset);
        Ok(Appended {
            first_offset: first.unwrap_or(written.first_offset),
            last_offset: written.end - 1,
            log_append_time: log_append_time.unwrap_or(-1),
            log_start_offset: self.log_start_offset(),
            duplicate: false,
            batches: checked.headers,
        })
    }

    fn check_leads(&self, leader_epoch: i32) -> Result<()> {
        match self.latest_epoch() {
            Some(current) if leader_epoch < current => Err(StorageError::FencedLeaderEpoch {
                found: leader_epoch,
                current,
            }),
            Some(_) | None => Ok(()),
        }
    }

    /// Gives offsets to batches that were checked, places and writes them.
    fn write(
        &self,
        writer: &mut Writer,
        config: &LogConfig,
        bytes: &mut [u8],
        checked: &mut Checked,
        terms: Terms,
    ) -> Result<Written> {
        check_fits(bytes.len(), config)?;
        let log_append_time =
            (config.timestamp_type == TimestampType::LogAppendTime).then_some(terms.now_ms);
        let headers = &mut checked.headers;
        let first_offset = self.log_end_offset();
        validator::assign(headers, first_offset, terms.leader_epoch, log_append_time);
        let mut staged = Staged::default();
        for (number, header) in checked.headers.iter().enumerate() {
            let marker = checked.marker(number);
            writer
                .producers
                .stage(&mut staged, header, marker, terms.origin)?;
        }
        let headers = &checked.headers;

        // From here on nothing is refused: what fails is the disk.
        let coming = Coming {
            size: bytes.len() as u64,
            newest: headers.iter().map(|h| h.max_timestamp).max().unwrap_or(-1),
            first_offset,
            last_offset: headers
                .last()
                .map_or(first_offset, BatchHeader::last_offset),
        };
        let active = self
            .active_for(writer, config, &coming, terms.now_ms)
            .map_err(|e| self.fail_unless_full(e))?;
        self.assign_epoch(terms.leader_epoch, first_offset)
            .map_err(|e| self.fail_unless_full(e))?;
        let aborted = writer.producers.aborted_by(&staged).len();
        active
            .reserve_aborted(aborted)
            .map_err(|e| self.fail_unless_full(e))?;
        let placed = validator::place(bytes, headers, log_append_time.is_some());
        let tail = active
            .append(bytes, &placed)
            .map_err(|e| self.fail_unless_full(e))?;
        self.take_in(writer, config, &active, staged, tail, terms.now_ms)
    }

    /// Makes what was written to the active segment part of the log.
    pub(super) fn take_in(
        &self,
        writer: &mut Writer,
        config: &LogConfig,
        active: &Segment,
        staged: Staged,
        tail: Tail,
        now_ms: i64,
    ) -> Result<Written> {
        active
            .append_aborted(&writer.producers.aborted_by(&staged))
            .map_err(|e| self.fail(e))?;
        active.publish(tail);
        if staged.has_transactions() {
            let completed = staged.completed().to_vec();
            writer.producers.commit(staged);
            self.note_transactions(&completed, writer.producers.first_undecided_offset());
        } else {
            writer.producers.commit(staged);
        }
        let end = tail.next_offset;
        let first_offset = self.log_end.swap(end, Ordering::AcqRel);
        writer.unflushed += end - first_offset;
        writer.unflushed_since_ms.get_or_insert(now_ms);
        let sync = writer.unflushed >= config.flush_messages;
        if sync {
            writer.unflushed = 0;
            writer.unflushed_since_ms = None;
            writer.sync_end = end;
        }
        Ok(Written {
            first_offset,
            end,
            sync,
            truncations: self.truncations.count(),
        })
    }

    /// The end of an append: with `flush.messages` it waits for the disk, without the writer lock, so that others append
    /// meanwhile and share the fsync that follows. With `lead`, readers may then go as far, unless the log has replicas.
    pub(super) fn acknowledge(
        &self,
        writer: MutexGuard<'_, Writer>,
        written: &Written,
        lead: bool,
    ) -> Result<()> {
        if !written.sync {
            if lead {
                self.follow_end(written.end);
            }
            return Ok(());
        }
        drop(writer);
        self.sync_to(written, lead)
    }

    /// The answer to a retry: what it repeats may still be waiting for the disk.
    fn acknowledge_again(&self, writer: MutexGuard<'_, Writer>, last_offset: i64) -> Result<()> {
        let end = last_offset + 1;
        let written = Written {
            first_offset: end,
            end,
            sync: last_offset < writer.sync_end && self.recovery_point() < end,
            truncations: self.truncations.count(),
        };
        self.acknowledge(writer, &written, false)
    }

    pub(super) fn assign_epoch(&self, epoch: i32, offset: i64) -> Result<()> {
        if self.epochs.read().is_saved(epoch) {
            return Ok(());
        }
        let mut epochs = self.epochs.write();
        epochs.assign(epoch, offset);
        epochs.save()
    }

    /// The segment that takes what is coming: the active one, or a new one when that is full or old.
    pub(super) fn active_for(
        &self,
        writer: &mut Writer,
        config: &LogConfig,
        coming: &Coming,
        now_ms: i64,
    ) -> Result<Arc<Segment>> {
        let active = self.active();
        let filled = active.size();
        if filled == 0 && active.can_hold(coming.last_offset) {
            return Ok(active);
        }
        let full = filled + coming.size > config.segment_bytes
            || !active.can_hold(coming.last_offset)
            || active.indexes()?.is_full()
            || active.age_ms(now_ms, coming.newest)? > age_max_ms(config, writer.roll_random);
        if full {
            self.roll_locked(writer, config, coming.first_offset, now_ms)
        } else {
            Ok(active)
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

    /// A new segment that begins at `first_offset`, or at the log's end if that is later.
    pub(super) fn roll_locked(
        &self,
        writer: &mut Writer,
        config: &LogConfig,
        first_offset: i64,
        now_ms: i64,
    ) -> Result<Arc<Segment>> {
        let active = self.active();
        let end = self.log_end_offset();
        let base = first_offset.max(end);
        if active.base_offset == base {
            return Ok(active);
        }
        self.snapshot_producers(writer, base, config.flush_on_roll)?;
        active.seal()?;
        if config.flush_on_roll || self.recovery_point() >= end {
            // Recovery after a crash would begin behind it, and believe its indexes.
            self.flush_through(&active, end)?;
        }
        let next = Arc::new(Segment::create(
            &self.dir,
            base,
            loader::settings(config),
            now_ms,
        )?);
        writer.roll_random = super::random();
        let mut segments = self.segments.write();
        let mut list = segments.to_vec();
        list.push(next.clone());
        *segments = Arc::new(list);
        Ok(next)
    }

    /// Writes the producers' state as that at `offset`, once per offset.
    pub(super) fn snapshot_producers(
        &self,
        writer: &mut Writer,
        offset: i64,
        sync: bool,
    ) -> Result<()> {
        if offset > writer.snapshot_offset {
            producer_snapshot::write(&self.dir, offset, &writer.producers, sync)?;
            writer.snapshot_offset = offset;
        } else if sync {
            // Written when a segment was rolled, which does not wait for the disk.
            producer_snapshot::sync(&self.dir, offset)?;
            files::sync_dir(&self.dir)?;
        }
        Ok(())
    }
}

/// How old a segment may become: `segment.ms` less its part of `segment.jitter.ms`, so that segments that began at one time are
/// not all rolled at one time (`LogConfig.randomSegmentJitter`).
fn age_max_ms(config: &LogConfig, random: u32) -> i64 {
    match config.segment_jitter_ms.min(config.segment_ms) {
        jitter @ 1.. => config.segment_ms - i64::from(random >> 1) % jitter,
        _ => config.segment_ms,
    }
}

/// All batches of one append go into one segment.
fn check_fits(size: usize, config: &LogConfig) -> Result<()> {
    let (size, limit) = (size as u64, config.segment_bytes);
    if size > limit {
        return Err(StorageError::AppendTooLarge { size, limit });
    }
    Ok(())
}
