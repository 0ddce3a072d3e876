//! Rebuilding producers' state and transactions from the batches of a log.
//!
//! Used by the loader, by truncations, and by readers of another process's log. Reads headers, and the bytes
//! of control batches. Writes nothing.

use std::path::Path;
use std::sync::Arc;

use logcore_records::{Batch, BatchHeader, EndTxnMarker};

use crate::error::{Result, StorageError};
use crate::index::transactions::AbortedTxn;
use crate::producers::ProducerState;
use crate::producers::snapshot;
use crate::segment::Segment;
use crate::segment::scan::{Next, Scanner, StoredBatch};

/// The producers before the batch at `offset`: the latest snapshot at or before it and the batches in
/// between, also those below the log start. A transaction may have begun or ended there, and a moved log
/// start is certain only once a checkpoint has it.
pub(crate) fn producers_at(dir: &Path, segments: &[Arc<Segment>], offset: i64) -> Result<ProducerState> {
    let found = snapshot::find_latest(dir, offset)?;
    let (from, state) = found.unwrap_or_default();
    replay_onto(state, segments, from, offset)
}

/// The transactions whose abort marker is in segment `number`, from its batches and the producers' state
/// before them.
pub(crate) fn find_aborted(dir: &Path, segments: &[Arc<Segment>], number: usize) -> Result<Vec<AbortedTxn>> {
    let segment = &segments[number];
    let mut state = producers_at(dir, segments, segment.base_offset)?;
    let mut found = Vec::new();
    replay(segment, segment.base_offset, |batch, bytes| {
        found.extend(replay_batch(batch, bytes, &mut state));
        Ok(())
    })?;
    Ok(found)
}

pub(crate) fn replay_onto(
    mut state: ProducerState,
    segments: &[Arc<Segment>],
    from: i64,
    end: i64,
) -> Result<ProducerState> {
    replay_range(&mut state, segments, from, end)?;
    Ok(state)
}

/// Adds the batches in `[from, end)` to a state; returns the transactions that they abort.
pub(crate) fn replay_range(
    state: &mut ProducerState,
    segments: &[Arc<Segment>],
    from: i64,
    end: i64,
) -> Result<Vec<AbortedTxn>> {
    let mut aborted = Vec::new();
    for segment in segments {
        if segment.base_offset >= end || segment.next_offset() <= from {
            continue;
        }
        replay(segment, from, |batch, bytes| {
            if batch.base_offset < end {
                aborted.extend(replay_batch(batch, bytes, state));
            }
            Ok(())
        })?;
    }
    Ok(aborted)
}

/// Calls `visit` for the batches of a segment from `from` on. The bytes are given for control batches only.
pub(crate) fn replay(
    segment: &Segment,
    from: i64,
    mut on_batch: impl FnMut(&StoredBatch, &[u8]) -> Result<()>,
) -> Result<()> {
    let end = segment.size();
    let first = if from <= segment.base_offset {
        // Does not use the index, which may have to be rebuilt.
        0
    } else {
        match segment.locate(from, end)? {
            Some(first) => first.position,
            None => return Ok(()),
        }
    };
    let file = segment.file().clone();
    let mut scan = Scanner::all_headers(&file, first, end);
    loop {
        match scan.next().map_err(StorageError::io("read", segment.path()))? {
            Next::Batch(batch) if batch.header.as_ref().is_some_and(|h| h.is_control()) => {
                on_batch(&batch, &segment.batch_bytes(&batch)?)?;
            }
            Next::Batch(batch) => on_batch(&batch, &[])?,
            Next::End => return Ok(()),
            Next::Torn(reason) => return Err(segment.corrupt(scan.position(), reason)),
        }
    }
}

/// Adds a batch to the state of its producer; returns the transaction that it aborts.
pub(crate) fn replay_batch(
    batch: &StoredBatch,
    bytes: &[u8],
    state: &mut ProducerState,
) -> Option<AbortedTxn> {
    let header = batch.header.as_ref().filter(|h| h.has_producer_id())?;
    state.replay(header, marker_of(header, bytes))
}

/// The marker in a control batch. `None` for one that no coordinator could have written.
pub(crate) fn marker_of(header: &BatchHeader, bytes: &[u8]) -> Option<EndTxnMarker> {
    if !header.is_control() {
        return None;
    }
    EndTxnMarker::of(&Batch::parse(bytes).ok()?).ok()?
}
