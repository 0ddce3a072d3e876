//! Appending, and rolling when a segment is full.
//!
//! What is sent is checked before the writer lock is taken; under it, offsets are given, producers checked, and the bytes
//! written in one piece. An append that has to be on disk before it is acknowledged waits for that without the lock. Whatever
//! fails after the checks is the disk's fault and takes the log offline, but for a full disk: that refuses the append, and
//! the log is as it was.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use logcore_records::{BatchHeader, TimestampType};
use parking_lot::MutexGuard;

use super::{Log, Writer};
use crate::clock::Now;
use crate::config::DECOMPRESSED_MAX;
use crate::config::LogConfig;
use crate::error::{Result, StorageError};
use crate::files;
use crate::log::loader;
use crate::producers::snapshot;
use crate::producers::{Duplicate, Origin, Staged};
use crate::segment::{OpenSegment, Placed, Segment};
use crate::slice::Appended;
use crate::validation::recompress;
use crate::validation::{self, Checked};

/// How somebody waits: does what it is given, which may take as long as a disk does, where that keeps nobody else waiting.
pub type Wait = fn(&mut dyn FnMut());

/// For who keeps nobody waiting.
pub(super) fn in_place(work: &mut dyn FnMut()) {
    work();
}

/// Does something as `wait` says.
fn aside<T>(wait: Wait, work: impl FnOnce() -> T) -> T {
    let (mut work, mut done) = (Some(work), None);
    wait(&mut || done = work.take().map(|work| work()));
    match done {
        Some(done) => done,
        None => unreachable!("whoever is given something to do does it"),
    }
}

/// Who appends has the log for less; who has it longer waits for the disk.
const SOON: Duration = Duration::from_millis(1);

/// Who appends, as the leader of which epoch, and when.
#[derive(Clone, Copy)]
struct Terms {
    origin: Origin,
    /// `None`: that of the leader that wrote last.
    leader_epoch: Option<i32>,
    now: Now,
    /// What one batch may decompress to, where it has to be looked into.
    decompressed_max: usize,
    wait: Wait,
}

/// What batches are given, and by whom.
struct Given {
    origin: Origin,
    epoch: i32,
    /// The epoch is in the log's file of epochs already.
    epoch_saved: bool,
    /// The broker's time, when that is what the records get.
    log_append_time: Option<i64>,
    now: Now,
    wait: Wait,
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
    /// Only once everything before this offset is on disk.
    pub(super) until: i64,
    /// How many truncations there had been.
    pub(super) truncations: u64,
}

impl Log {
    /// Appends whole v2 batches, with one write. Offsets, leader epoch and, where the topic says so, the broker's time
    /// are set in `batches` itself, unless the topic's codec is another than theirs: then they are copied.
    ///
    /// Batches that an idempotent producer sends again are not written again: when all are such, the answer is
    /// `duplicate` with their first offsets; when only the first few are (a retry after a crash that cut the rest),
    /// the rest is written.
    ///
    /// Errors: see [`StorageError`]; unless it is a storage failure nothing was written and the log is as before.
    /// After an error `batches` may have been changed only if it is a storage failure.
    pub fn append_as_leader(&self, batches: &mut [u8], leader_epoch: i32, now_ms: i64) -> Result<Appended> {
        self.append_within(batches, leader_epoch, now_ms, DECOMPRESSED_MAX, in_place)
    }

    /// [`Log::append_as_leader`] for whoever bounds the memory of several appends: where it takes more of it to decompress one
    /// of the batches the error is [`StorageError::DecompressedTooLarge`], and the same may be tried with more. And for who has
    /// others to serve: `wait` is given what may take long, which is to wait for somebody who has the log and waits for the disk, and to
    /// begin a segment; not to bring what is appended, or its epoch, to disk ([`Log::has_saved_epoch`]).
    pub fn append_within(
        &self,
        batches: &mut [u8],
        leader_epoch: i32,
        now_ms: i64,
        decompressed_max: usize,
        wait: Wait,
    ) -> Result<Appended> {
        let terms = Terms {
            origin: Origin::Client,
            leader_epoch: Some(leader_epoch),
            now: Now::Ms(now_ms),
            decompressed_max,
            wait,
        };
        self.append_on(batches, terms)
    }

    /// [`Log::append_as_leader`] as the leader that wrote last, at the system's time.
    pub(crate) fn append_as_last_leader(&self, batches: &mut [u8]) -> Result<Appended> {
        let terms = Terms {
            origin: Origin::Client,
            leader_epoch: None,
            now: Now::System,
            decompressed_max: DECOMPRESSED_MAX,
            wait: in_place,
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
            leader_epoch: Some(leader_epoch),
            now: Now::Ms(now_ms),
            decompressed_max: DECOMPRESSED_MAX,
            wait: in_place,
        };
        self.append_on(batches, terms)
    }

    /// Whether batches would be taken, for whoever appends them in several pieces; without what depends on the log's
    /// producers and its disk.
    ///
    /// Errors: those of [`Log::append_as_leader`]; a position is that in all of `batches`.
    pub fn check_append(&self, batches: &[u8]) -> Result<()> {
        self.check_writable()?;
        let config = self.config();
        let (origin, limit) = (Origin::Client, DECOMPRESSED_MAX);
        let mut checked = validation::check(batches, &config, origin, Now::System, limit)?;
        // With the topic's own codec a batch may be too large that was not.
        recompress::recompress(batches, &mut checked, &config, limit)?;
        checked
            .headers
            .iter()
            .try_for_each(|header| check_fits(header.size(), &config))
    }

    fn append_on(&self, batches: &mut [u8], terms: Terms) -> Result<Appended> {
        self.check_writable()?;
        let config = self.config();
        let limit = terms.decompressed_max;
        let mut checked = validation::check(batches, &config, terms.origin, terms.now, limit)?;
        let mut recompressed = recompress::recompress(batches, &mut checked, &config, limit)?;
        let batches = recompressed.as_deref_mut().unwrap_or(batches);
        let log_append_time = (config.timestamp_type == TimestampType::LogAppendTime).then(|| terms.now.ms());

        let mut writer = match self.writer.try_lock_for(SOON) {
            Some(writer) => writer,
            None => aside(terms.wait, || self.writer.lock()),
        };
        self.check_writable()?;
        let given = self.check_leads(terms, log_append_time)?;
        let repeated: Vec<Duplicate> = match terms.origin {
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
                // Whoever's time it is, as with Kafka (`UnifiedLog.append`).
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
        let written = self.write(&mut writer, &config, fresh, &mut checked, &given)?;
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

    /// Epochs change under the writer lock only: the answer holds as long as the caller has it.
    fn check_leads(&self, terms: Terms, log_append_time: Option<i64>) -> Result<Given> {
        let saved = self.epochs.saved_latest();
        let latest = saved.or_else(|| self.latest_epoch());
        let epoch = terms.leader_epoch.or(latest).unwrap_or(0);
        match latest {
            Some(current) if epoch < current => Err(StorageError::FencedLeaderEpoch {
                found: epoch,
                current,
            }),
            Some(_) | None => Ok(Given {
                origin: terms.origin,
                epoch,
                epoch_saved: saved == Some(epoch),
                log_append_time,
                now: terms.now,
                wait: terms.wait,
            }),
        }
    }

    /// Gives offsets to batches that were checked, places and writes them.
    fn write(
        &self,
        writer: &mut Writer,
        config: &LogConfig,
        bytes: &mut [u8],
        checked: &mut Checked,
        given: &Given,
    ) -> Result<Written> {
        check_fits(bytes.len(), config)?;
        let headers = &mut checked.headers;
        let first_offset = self.log_end_offset();
        check_offsets_left(first_offset, headers)?;
        validation::assign(headers, first_offset, given.epoch, given.log_append_time);
        let mut staged = Staged::default();
        for (number, header) in checked.headers.iter().enumerate() {
            let marker = checked.marker(number);
            writer
                .producers
                .stage(&mut staged, header, marker, given.origin)?;
        }
        let headers = &checked.headers;

        // From here on nothing is refused: what fails is the disk.
        self.complete(writer)?;
        let coming = Coming {
            size: bytes.len() as u64,
            newest: headers.iter().map(|h| h.max_timestamp).max().unwrap_or(-1),
            first_offset,
            last_offset: headers.last().map_or(first_offset, BatchHeader::last_offset),
        };
        self.make_room(writer, config, &coming, (given.now, given.wait))
            .map_err(|e| self.fail_unless_full(e))?;
        if !given.epoch_saved {
            self.assign_epoch(given.epoch, first_offset)
                .map_err(|e| self.fail_unless_full(e))?;
        }
        validation::place(bytes, headers, given.log_append_time.is_some());
        self.append_staged(writer, config, bytes, placed(headers), staged, given.now)
    }

    /// Writes batches whose producers are staged to the active segment, and makes them part of the log.
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
            // What it was before is what is published.
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
        // Whoever changes it holds the writer lock.
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
            // Of one before that waits, too: acknowledged and shown before that one is, this would not be one of the
            // `flush.messages` that may be lost, but one more.
            until: writer.sync_end,
            truncations: self.truncations.count(),
        })
    }

    /// The end of an append: with `flush.messages` the one that makes them full waits for the disk, without the writer lock, so
    /// that others append meanwhile, wait with it, and share the fsync that follows if they are as many again. With `lead`,
    /// readers may then go as far, unless the log has replicas.
    pub(super) fn acknowledge(
        &self,
        writer: MutexGuard<'_, Writer>,
        written: &Written,
        lead: bool,
    ) -> Result<()> {
        // It goes back only with the lock.
        if written.until <= self.recovery_point() {
            if lead {
                self.follow_end_locked(written.end);
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

    /// Sees to it that the active segment takes what is coming: begins a new one when it is full or old.
    pub(super) fn make_room(
        &self,
        writer: &mut Writer,
        config: &LogConfig,
        coming: &Coming,
        (now, wait): (Now, Wait),
    ) -> Result<()> {
        let active = self.opened(&mut writer.active)?;
        let filled = active.tail.size;
        let fits = active.segment.can_hold(coming.last_offset);
        if filled == 0 && fits {
            return Ok(());
        }
        let full = filled + coming.size > config.segment_bytes
            || !fits
            || active.indexes.is_full()
            || active.age_ms(now, coming.newest)? > age_max_ms(config, writer.roll_random);
        if full {
            // At the log's end, also when what comes begins later: should it be refused after all, by a full disk, then
            // another leader's batches may begin there.
            let end = self.log_end_offset();
            let far = coming.last_offset - end > i64::from(i32::MAX);
            let base = if far { coming.first_offset } else { end };
            aside(wait, || self.roll_locked(writer, config, base, now.ms()))?;
        }
        Ok(())
    }

    /// The active segment, looked up when `slot` does not have it.
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

    /// A new segment that begins at `first_offset`, or at the log's end if that is later.
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
            // Recovery after a crash would begin behind it, and believe its indexes.
            self.flush_through(&active, end)?;
        }
        // A log that lost its first segment's entry in the directory and kept the second's would seem to begin there.
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

    /// Removes what there is of a segment that could not be created. An empty file that stayed would say where the segment
    /// before ends, also after that has been cut and filled anew.
    fn take_back_segment(&self, base: i64, error: StorageError) -> Result<Segment> {
        loader::remove_log_and_indexes(&self.dir, base)
            .and_then(|()| files::sync_dir(&self.dir))
            .map_err(|e| self.fail(e))?;
        Err(error)
    }

    /// Writes the producers' state as that at `offset`, once per offset.
    pub(super) fn snapshot_producers(&self, writer: &mut Writer, offset: i64, sync: bool) -> Result<()> {
        if offset > writer.snapshot_offset {
            snapshot::write(&self.dir, offset, &writer.producers, sync)?;
            writer.snapshot_offset = offset;
        } else if sync {
            // Written when a segment was rolled, which does not wait for the disk.
            snapshot::sync(&self.dir, offset)?;
            files::sync_dir(&self.dir)?;
        }
        Ok(())
    }
}

/// Where batches stand in what is written, one behind the other.
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

/// How old a segment may become: `segment.ms` less its part of `segment.jitter.ms`, so that segments that began at one time are
/// not all rolled at one time (`LogConfig.randomSegmentJitter`); of a compacted log `max.compaction.lag.ms` at most, for an
/// active segment is not compacted (`LogConfig.maxSegmentMs`).
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

/// The offset after the last record has to be a number, too.
fn check_offsets_left(first_offset: i64, headers: &[BatchHeader]) -> Result<()> {
    let records = |header: &BatchHeader| i64::from(header.last_offset_delta) + 1;
    let count: i64 = headers.iter().map(records).sum();
    if i64::MAX - first_offset < count {
        return Err(StorageError::InvalidRecord {
            position: 0,
            reason: format!(
                "there are {} offsets left behind offset {first_offset}, and {count} are needed",
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
