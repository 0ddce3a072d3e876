//! Splitting a range of offsets by the offset indexes alone, for readers that work in parallel.
//!
//! Reads nothing of the log itself. Indexes are hints: with a missing or wrong index the pieces have uneven
//! sizes, and every offset is still in exactly one piece.

use std::sync::Arc;

use super::Log;
use crate::error::{Result, StorageError};
use crate::segment::Segment;

/// The bytes of one segment that lie in a range.
struct Piece {
    segment: Arc<Segment>,
    from: u64,
    to: u64,
}

impl Log {
    /// The base offset of the segment that has `offset`, and a position in its file at or before the batch:
    /// that of the last index entry at or before it. The first call opens the segment's indexes.
    ///
    /// Errors: [`StorageError::OffsetOutOfRange`].
    pub fn index_position(&self, offset: i64) -> Result<(i64, u64)> {
        self.check_open()?;
        let (log_start, log_end) = (self.log_start_offset(), self.log_end_offset());
        let segments = self.segments.read();
        let after = segments.partition_point(|segment| segment.base_offset <= offset);
        match after.checked_sub(1) {
            Some(at) if (log_start..=log_end).contains(&offset) => {
                let segment = &segments[at];
                let entry = segment.indexes()?.offset.lookup(offset, segment.size());
                Ok((segment.base_offset, entry.position))
            }
            _ => Err(StorageError::OffsetOutOfRange {
                requested: offset,
                log_start,
                log_end,
            }),
        }
    }

    /// The offsets at which to split `[start, end)` into at most `parts` pieces: `start`, splits in rising
    /// order, `end`. A split is the start of a batch, unless an index is damaged.
    ///
    /// Errors: [`StorageError::OffsetOutOfRange`] for a range outside the log's.
    pub fn split_offsets(&self, start: i64, end: i64, parts: usize) -> Result<Vec<i64>> {
        self.check_open()?;
        let (log_start, log_end) = (self.log_start_offset(), self.log_end_offset());
        if let Some(requested) = [start, end]
            .into_iter()
            .find(|offset| !(log_start..=log_end).contains(offset))
        {
            return Err(StorageError::OffsetOutOfRange {
                requested,
                log_start,
                log_end,
            });
        }
        let pieces = self.pieces(start, end)?;
        let total: u64 = pieces.iter().map(|piece| piece.to - piece.from).sum();
        let mut cuts = vec![start];
        // More splits than bytes would repeat some.
        let parts = (parts as u64).min(total);
        for number in 1..parts {
            let distance = u128::from(total) * u128::from(number) / u128::from(parts);
            let cut = cut_at(&pieces, distance as u64)?;
            if cut > *cuts.last().unwrap_or(&start) && cut < end {
                cuts.push(cut);
            }
        }
        cuts.push(end);
        Ok(cuts)
    }

    fn pieces(&self, start: i64, end: i64) -> Result<Vec<Piece>> {
        let segments = self.segments();
        let mut pieces = Vec::new();
        for (number, segment) in segments.iter().enumerate() {
            let after = segments.get(number + 1).map(|next| next.base_offset);
            if segment.base_offset >= end || after.is_some_and(|after| after <= start) {
                continue;
            }
            let size = segment.size();
            let index = segment.indexes()?;
            let from = index.offset.lookup(start, size).position;
            let to = match after {
                Some(after) if after <= end => size,
                _ if end >= segment.next_offset() => size,
                _ => index.offset.lookup(end, size).position,
            };
            pieces.push(Piece {
                segment: segment.clone(),
                from,
                to: to.max(from),
            });
        }
        Ok(pieces)
    }
}

/// The start of a batch at about `distance` bytes from the start of the pieces.
fn cut_at(pieces: &[Piece], mut distance: u64) -> Result<i64> {
    for piece in pieces {
        let size = piece.to - piece.from;
        if distance < size {
            let index = piece.segment.indexes()?;
            let entry = index.offset.at_position(piece.from + distance);
            // An entry has the last offset of its batch.
            return Ok(entry.map_or(piece.segment.base_offset, |entry| entry.offset + 1));
        }
        distance -= size;
    }
    Ok(i64::MAX)
}
