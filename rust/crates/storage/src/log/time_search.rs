//! Finding records by time (KIP-79, KIP-734), one batch at a time.
//!
//! Segments and headers say which batch may have the record; it is looked into, and what is found there is the answer, or the
//! search goes on behind it: the log's start may be inside of it, or its producer gave its header another time than its
//! records, which nobody sees before they are decompressed. So one search may have many batches to decompress, and each may be
//! a thousand times as large then. [`Log::search_time`] therefore does one step: it looks into one batch at most, and into none
//! that is compressed before its caller says to how much it may decompress. Who has all the time and memory there is calls
//! [`Log::offset_for_timestamp`] and [`Log::max_timestamp`].
//!
//! Runs in readers' threads without the writer lock. A [`TimeSearch`] holds numbers only: it keeps no segment and no file.

use std::sync::Arc;

use logcore_records::{Batch, Compression, RecordError, legacy};

use super::Log;
use crate::config::DECOMPRESSED_MAX;
use crate::error::Result;
use crate::segment::Segment;
use crate::segment::scan::StoredBatch;
use crate::slice::TimestampOffset;

/// How far a search has come.
#[derive(Debug, Clone, Copy)]
pub struct TimeSearch {
    wanted: Wanted,
    /// What ends before this offset has been looked at: of the log, or of the segment where the newest is looked for.
    from: i64,
}

#[derive(Debug, Clone, Copy)]
enum Wanted {
    /// The first record at or after this time, in milliseconds since the epoch.
    First(i64),
    Newest(Newest),
}

/// A search for the newest goes from the last segment to the first: mostly the last has it, and of those before only what is
/// known of them is looked at.
#[derive(Debug, Clone, Copy)]
struct Newest {
    /// Segments that begin here or after have been looked at.
    below: i64,
    /// The segment has no record of the time it is known for: that one is before the log's start, compaction left no more
    /// of its batch than the header, or the header says what is not. Every batch of it counts now.
    is_thorough: bool,
    /// The newest of this segment.
    here: Option<TimestampOffset>,
    /// That of those behind it.
    behind: Option<TimestampOffset>,
}

const ANY_SEGMENT: Newest = Newest {
    below: i64::MAX,
    is_thorough: false,
    here: None,
    behind: None,
};

/// What a step of a search came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Searched {
    /// This is the answer.
    Found(Option<TimestampOffset>),
    /// A batch was looked into, and the search goes on behind it.
    Further,
    /// The next batch has so many bytes and decompresses to more than it may.
    Packed(usize),
}

impl TimeSearch {
    /// For the first record at or after `timestamp` (milliseconds since the epoch), of those from the log's start on.
    pub fn first_at(timestamp: i64) -> Self {
        Self {
            wanted: Wanted::First(timestamp),
            from: 0,
        }
    }

    /// For the record with the largest timestamp of those from the log's start on, the first of them if several have it.
    pub fn newest() -> Self {
        Self {
            wanted: Wanted::Newest(ANY_SEGMENT),
            from: 0,
        }
    }
}

impl Newest {
    /// The time from which on a record of a segment is of interest, whose largest timestamp this is.
    fn least(&self, largest: i64) -> i64 {
        match (self.is_thorough, self.here, self.behind) {
            (false, _, _) => largest,
            (true, Some(here), _) => here.timestamp.saturating_add(1),
            // Of the same time, the first is the newest.
            (true, None, Some(behind)) => behind.timestamp,
            (true, None, None) => 0,
        }
    }

    /// Done with the segment that begins at `base_offset`.
    fn leave(&mut self, base_offset: i64) {
        *self = Self {
            below: base_offset,
            behind: self.here.or(self.behind),
            ..ANY_SEGMENT
        };
    }
}

/// A batch that may have the record, and from which time on one counts.
struct Candidate {
    segment: Arc<Segment>,
    batch: StoredBatch,
    least: i64,
}

impl Log {
    /// The first record at or after `timestamp` (milliseconds since the epoch), of those from the log's start on.
    pub fn offset_for_timestamp(&self, timestamp: i64) -> Result<Option<TimestampOffset>> {
        self.search_through(TimeSearch::first_at(timestamp))
    }

    /// The record with the largest timestamp of those from the log's start on, the first of them if several have it.
    pub fn max_timestamp(&self) -> Result<Option<TimestampOffset>> {
        self.search_through(TimeSearch::newest())
    }

    /// Does the next step of a search, in which a batch may decompress to `decompressed_max` bytes; with 0 none is
    /// decompressed. With [`DECOMPRESSED_MAX`] no batch is too large: one that decompresses to more is answered as a whole.
    pub fn search_time(&self, search: &mut TimeSearch, decompressed_max: usize) -> Result<Searched> {
        self.check_open()?;
        let step = || {
            let mut next = *search;
            let searched = self.step(&mut next, decompressed_max)?;
            Ok((next, searched))
        };
        let (next, searched) = self.undisturbed(step).map_err(|e| self.damaged(e))?;
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
        self.undisturbed(look).map_err(|e| self.damaged(e))
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
            return Ok(Searched::Packed(bytes));
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

    /// The first batch from an offset on that says it has a record at or after `timestamp`.
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

    /// The next batch that says it has a newer record than what was found.
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

/// The first batch of a segment from an offset on that says it has a record at or after `least`.
fn candidate_in(segment: &Arc<Segment>, least: i64, from: i64) -> Result<Option<Candidate>> {
    let batch = segment.locate_time(least, from)?;
    Ok(batch.map(|batch| Candidate {
        segment: Arc::clone(segment),
        batch,
        least,
    }))
}

impl Candidate {
    /// The batch's first record that counts from `log_start` on, or the newest of those; `None` when the batch decompresses
    /// to more than it may.
    ///
    /// A batch that is as its producer sent it, by its checksum, but whose records cannot be read (they were never
    /// decompressed) is answered as a whole: by the times and offsets of its header.
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

/// Of a message set it is not known before its messages are looked at.
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
