//! Finding records by timestamp (KIP-79, KIP-734), one batch at a time.
//!
//! Segments and headers tell which batch may have the record. The search reads the records of that batch. If
//! the record is not there, the search goes on after it: the log start may be inside the batch, or its
//! producer put another timestamp into the header than its records have. So one search may have to decompress
//! many batches, and each may become a thousand times as large.
//!
//! Therefore [`Log::search_time`] does one step: it reads at most one batch, and decompresses one only as far
//! as its caller allows. [`Log::offset_for_timestamp`] and [`Log::max_timestamp`] do all steps.
//!
//! Runs in readers' threads without the writer lock. A [`TimeSearch`] has only numbers, no segment and no
//! file.

use std::sync::Arc;

use logcore_records::{Batch, Compression, RecordError, legacy};

use super::Log;
use crate::config::DECOMPRESSED_MAX;
use crate::error::Result;
use crate::segment::Segment;
use crate::segment::scan::StoredBatch;
use crate::slice::TimestampOffset;

/// The state of a search.
#[derive(Debug, Clone, Copy)]
pub struct TimeSearch {
    wanted: Wanted,
    /// Batches that end below this offset were read: of the log, or of the current segment of a search for
    /// the newest.
    from: i64,
}

#[derive(Debug, Clone, Copy)]
enum Wanted {
    /// The first record at or after this timestamp, in milliseconds since the epoch.
    First(i64),
    Newest(Newest),
}

/// A search for the newest record goes from the last segment to the first. Mostly the last segment has it,
/// and of the earlier ones only their largest timestamps are read.
#[derive(Debug, Clone, Copy)]
struct Newest {
    /// Segments that begin at or above this offset are done.
    below: i64,
    /// The segment has no record of its largest timestamp, so every batch of it must be read. That record is
    /// below the log start, compaction removed it, or a header is wrong.
    is_thorough: bool,
    /// The newest record of this segment.
    here: Option<TimestampOffset>,
    /// The newest record of the later segments.
    behind: Option<TimestampOffset>,
}

const ANY_SEGMENT: Newest = Newest {
    below: i64::MAX,
    is_thorough: false,
    here: None,
    behind: None,
};

/// The result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Searched {
    /// The search is done.
    Found(Option<TimestampOffset>),
    /// A batch was read, and the search goes on after it.
    Further,
    /// The next batch has this many bytes and needs more memory to be decompressed than allowed.
    Compressed(usize),
}

impl TimeSearch {
    /// For the first record at or after `timestamp` (milliseconds since the epoch), from the log start on.
    pub fn first_at(timestamp: i64) -> Self {
        Self {
            wanted: Wanted::First(timestamp),
            from: 0,
        }
    }

    /// For the record with the largest timestamp from the log start on; of several the first.
    pub fn newest() -> Self {
        Self {
            wanted: Wanted::Newest(ANY_SEGMENT),
            from: 0,
        }
    }
}

impl Newest {
    /// The smallest timestamp of interest in a segment with this largest timestamp.
    fn least(&self, largest: i64) -> i64 {
        match (self.is_thorough, self.here, self.behind) {
            (false, _, _) => largest,
            (true, Some(here), _) => here.timestamp.saturating_add(1),
            // Of several records with the same timestamp, the first is the result.
            (true, None, Some(behind)) => behind.timestamp,
            (true, None, None) => 0,
        }
    }

    /// Ends the search in the segment that begins at `base_offset`.
    fn leave(&mut self, base_offset: i64) {
        *self = Self {
            below: base_offset,
            behind: self.here.or(self.behind),
            ..ANY_SEGMENT
        };
    }
}

/// A batch that may have the record, and the smallest timestamp of interest.
struct Candidate {
    segment: Arc<Segment>,
    batch: StoredBatch,
    least: i64,
}

impl Log {
    /// The first record at or after `timestamp` (milliseconds since the epoch), from the log start on.
    pub fn offset_for_timestamp(&self, timestamp: i64) -> Result<Option<TimestampOffset>> {
        self.search_through(TimeSearch::first_at(timestamp))
    }

    /// The record with the largest timestamp from the log start on; of several the first.
    pub fn max_timestamp(&self) -> Result<Option<TimestampOffset>> {
        self.search_through(TimeSearch::newest())
    }

    /// Does the next step of a search. A batch may decompress to `decompressed_max` bytes; with 0 none is
    /// decompressed. With [`DECOMPRESSED_MAX`] no batch is too large: one that decompresses to more is found
    /// as a whole.
    pub fn search_time(&self, search: &mut TimeSearch, decompressed_max: usize) -> Result<Searched> {
        self.check_open()?;
        let step = || {
            let mut next = *search;
            let searched = self.step(&mut next, decompressed_max)?;
            Ok((next, searched))
        };
        let (next, searched) = self.between_truncations(step).map_err(|e| self.damaged(e))?;
        *search = next;
        Ok(searched)
    }

    fn search_through(&self, search: TimeSearch) -> Result<Option<TimestampOffset>> {
        self.check_open()?;
        let look = || {
            let mut search = search;
            loop {
                if let Searched::Found(found) = self.step(&mut search, DECOMPRESSED_MAX)? {
                    return Ok(found);
                }
            }
        };
        self.between_truncations(look).map_err(|e| self.damaged(e))
    }

    fn step(&self, search: &mut TimeSearch, decompressed_max: usize) -> Result<Searched> {
        let log_start = self.log_start_offset();
        let candidate = match &mut search.wanted {
            Wanted::First(timestamp) => self.first_candidate(*timestamp, search.from.max(log_start))?,
            Wanted::Newest(newest) => self.newest_candidate(newest, &mut search.from, log_start)?,
        };
        let Some(candidate) = candidate else {
            return Ok(Searched::Found(match search.wanted {
                Wanted::First(_) => None,
                Wanted::Newest(newest) => newest.behind,
            }));
        };
        let is_thorough = matches!(search.wanted, Wanted::Newest(newest) if newest.is_thorough);
        let Some(found) = candidate.look_into(log_start, is_thorough, decompressed_max)? else {
            let bytes = usize::try_from(candidate.batch.size).unwrap_or(usize::MAX);
            return Ok(Searched::Compressed(bytes));
        };
        search.from = candidate.batch.last_offset + 1;
        match &mut search.wanted {
            Wanted::First(_) if found.is_some() => return Ok(Searched::Found(found)),
            Wanted::Newest(newest) if found.is_some() => {
                newest.here = found;
                if !newest.is_thorough {
                    newest.leave(candidate.segment.base_offset);
                    search.from = 0;
                }
            }
            Wanted::First(_) | Wanted::Newest(_) => {}
        }
        Ok(Searched::Further)
    }

    /// The first batch from an offset on whose header has a timestamp at or after `timestamp`.
    fn first_candidate(&self, timestamp: i64, from: i64) -> Result<Option<Candidate>> {
        for segment in self.segments().iter() {
            if segment.next_offset() <= from
                || segment
                    .largest()?
                    .is_none_or(|largest| largest.timestamp < timestamp)
            {
                continue;
            }
            let found = candidate_in(segment, timestamp, from)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// The next batch whose header has a larger timestamp than the record found so far.
    fn newest_candidate(
        &self,
        newest: &mut Newest,
        from: &mut i64,
        log_start: i64,
    ) -> Result<Option<Candidate>> {
        for segment in self.segments().iter().rev() {
            if segment.next_offset() <= log_start {
                break;
            }
            if segment.base_offset >= newest.below {
                continue;
            }
            let is_older = |largest: i64| {
                let behind = newest.behind;
                behind.is_some_and(|behind| largest < behind.timestamp)
            };
            if let Some(largest) = segment.largest()?
                && !is_older(largest.timestamp)
            {
                let mut next =
                    candidate_in(segment, newest.least(largest.timestamp), (*from).max(log_start))?;
                if next.is_none() && !newest.is_thorough {
                    newest.is_thorough = true;
                    *from = 0;
                    next = candidate_in(segment, newest.least(largest.timestamp), log_start)?;
                }
                if next.is_some() {
                    return Ok(next);
                }
            }
            newest.leave(segment.base_offset);
            *from = 0;
        }
        Ok(None)
    }
}

/// The first batch of a segment from an offset on whose header has a timestamp at or after `least`.
fn candidate_in(segment: &Arc<Segment>, least: i64, from: i64) -> Result<Option<Candidate>> {
    let batch = segment.locate_time(least, from)?;
    Ok(batch.map(|batch| Candidate {
        segment: Arc::clone(segment),
        batch,
        least,
    }))
}

impl Candidate {
    /// The batch's first record of interest from `log_start` on, or the newest of those; `None` when the
    /// batch decompresses to more than allowed.
    ///
    /// A batch with a right checksum and unreadable records is found as a whole, with the timestamp and
    /// offset of its header. It was stored without the check of compressed batches.
    fn look_into(
        &self,
        log_start: i64,
        newest: bool,
        decompressed_max: usize,
    ) -> Result<Option<Option<TimestampOffset>>> {
        let (segment, stored) = (&self.segment, &self.batch);
        if decompressed_max == 0 && may_be_compressed(stored) {
            return Ok(None);
        }
        let bytes = segment.batch_bytes(stored)?;
        stored
            .verify(&bytes)
            .map_err(|reason| segment.corrupt(stored.position, reason))?;
        let found = |timestamp, offset| TimestampOffset {
            timestamp,
            offset,
            leader_epoch: stored.leader_epoch,
        };
        let mut best: Option<TimestampOffset> = None;
        let looked = for_each_time(stored, &bytes, decompressed_max, |at, offset| {
            let is_better = best.is_none_or(|best| newest && at > best.timestamp);
            if offset >= log_start && at >= self.least && is_better {
                best = Some(found(at, offset));
            }
        });
        Ok(match looked {
            Err(RecordError::DecompressedTooLarge { .. }) if decompressed_max < DECOMPRESSED_MAX => None,
            Err(_) if best.is_none() => Some(Some(found(
                stored.max_timestamp,
                stored.base_offset.max(log_start),
            ))),
            Ok(()) | Err(_) => Some(best),
        })
    }
}

/// Whether a message set is compressed is known only when it is read.
fn may_be_compressed(stored: &StoredBatch) -> bool {
    let header = stored.header.as_ref();
    header.is_none_or(|header| header.compression() != Ok(Compression::None))
}

/// Calls `visit` with the timestamp and the offset of each record of a batch.
fn for_each_time(
    stored: &StoredBatch,
    bytes: &[u8],
    decompressed_max: usize,
    mut visit: impl FnMut(i64, i64),
) -> Result<(), RecordError> {
    if stored.header.is_none() {
        return legacy::for_each(bytes, decompressed_max, |message| {
            visit(message.timestamp, message.offset);
            Ok(())
        });
    }
    for record in Batch::parse(bytes)?.records(decompressed_max)?.iter() {
        let record = record?;
        visit(record.timestamp, record.offset);
    }
    Ok(())
}
