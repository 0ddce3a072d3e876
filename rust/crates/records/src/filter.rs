//! Writes a batch again with only some of its records, for the log cleaner (`MemoryRecords.filterTo`).
//!
//! Kept records keep their offsets. The batch keeps its base offset and last offset even when its last record
//! is removed, because they give the producer's last sequence number. So the offsets inside have gaps. A
//! batch that keeps all its records is not written: the caller copies it. A batch that keeps none may be
//! written as a header without records, which keeps its producer's state
//! (`DefaultRecordBatch.writeEmptyHeader`).
//!
//! The delete horizon (KIP-534) is the time after which tombstones, or the marker of a transaction without
//! records, may be removed. The cleaner sets it when it first sees such a batch: it sets attribute bit 6 and
//! stores the time in the base timestamp, and the records' timestamp deltas count from there.
//!
//! Records are decoded only as far as the decision needs. Kept records are copied; only a new horizon changes
//! their timestamp deltas. Otherwise the base timestamp stays, while Kafka takes the first kept record's; on
//! its own it has no meaning.

use crate::batch::{Batch, length_field, set_crc};
use crate::compression::{self, Compression};
use crate::error::RecordError;
use crate::header::{BatchHeader, CODEC_MASK, DELETE_HORIZON_FLAG, HEADER_SIZE, TimestampType};
use crate::record::nullable;
use crate::varint;

/// The parts of a record that decide whether it is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    pub offset: i64,
    pub key: Option<&'a [u8]>,
    /// False for a tombstone.
    pub has_value: bool,
}

/// A delete horizon to set on a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewHorizon {
    /// Milliseconds since the epoch.
    pub at_ms: i64,
    /// Sets it even if the batch has no tombstone, because the batch is a marker that is no longer needed.
    pub always: bool,
}

/// What remains of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// All records, unchanged.
    Whole,
    /// Some of its records, or all with a new delete horizon, in the output.
    Rewritten,
    /// No records.
    Nothing,
}

/// The result of [`OpenBatch::filter`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filtered {
    pub left: Left,
    /// Records read and records kept.
    pub read: usize,
    pub kept: usize,
    /// The largest timestamp of the kept records, -1 when there are none.
    pub max_timestamp: i64,
}

/// Filters batches one after another and reuses its buffers.
#[derive(Debug, Default)]
pub struct BatchFilter {
    decompressed: Vec<u8>,
    records: Vec<u8>,
    /// Ranges of the kept records; adjacent ranges are joined.
    runs: Vec<(usize, usize)>,
}

/// A batch whose records are decompressed and ready to be read.
#[derive(Debug)]
pub struct OpenBatch<'a> {
    header: &'a BatchHeader,
    bytes: &'a [u8],
    scratch: &'a mut Vec<u8>,
    runs: &'a mut Vec<(usize, usize)>,
}

impl BatchFilter {
    pub fn new() -> Self {
        Self::default()
    }

    /// Decompresses the records of a batch, to at most `limit` bytes.
    ///
    /// Errors: as [`Batch::records`]. The caller verifies the checksum first: a batch that is written again
    /// gets a new checksum, which would hide damage.
    pub fn open<'a>(&'a mut self, batch: &'a Batch<'_>, limit: usize) -> Result<OpenBatch<'a>, RecordError> {
        Ok(OpenBatch {
            header: &batch.header,
            bytes: payload(batch, limit, &mut self.decompressed)?,
            scratch: &mut self.records,
            runs: &mut self.runs,
        })
    }
}

impl OpenBatch<'_> {
    /// Calls `visit` with each record.
    ///
    /// Errors: invalid records.
    #[inline]
    pub fn for_each(&self, mut visit: impl FnMut(Entry<'_>)) -> Result<(), RecordError> {
        let mut frames = Frames::new(self.header, self.bytes);
        while let Some(frame) = frames.next()? {
            visit(frame.entry);
        }
        Ok(())
    }

    /// Calls `keep` with each record in order, and appends to `out` the batch with the kept records, unless
    /// all are kept. `horizon` is given when the batch has none yet and is to get one if a tombstone is kept.
    ///
    /// Errors: invalid records. `out` is unchanged then.
    pub fn filter(
        self,
        horizon: Option<NewHorizon>,
        mut keep: impl FnMut(Entry<'_>) -> bool,
        out: &mut Vec<u8>,
    ) -> Result<Filtered, RecordError> {
        let Self {
            header,
            bytes,
            scratch,
            runs,
        } = self;
        runs.clear();
        let (mut read, mut kept, mut tombstones) = (0, 0, false);
        let mut newest = i64::MIN;
        let mut frames = Frames::new(header, bytes);
        while let Some(frame) = frames.next()? {
            read += 1;
            if !keep(frame.entry) {
                continue;
            }
            kept += 1;
            tombstones |= !frame.entry.has_value;
            newest = newest.max(frame.timestamp_delta);
            match runs.last_mut() {
                Some(run) if run.1 == frame.start => run.1 = frame.end,
                _ => runs.push((frame.start, frame.end)),
            }
        }
        let horizon = horizon
            .filter(|horizon| kept > 0 && (horizon.always || tombstones))
            .map(|horizon| horizon.at_ms);
        let left = match kept {
            0 => Left::Nothing,
            _ if kept == read && horizon.is_none() => Left::Whole,
            _ => Left::Rewritten,
        };
        let max_timestamp = match left {
            Left::Nothing => -1,
            Left::Whole => header.max_timestamp,
            Left::Rewritten if header.timestamp_type() == TimestampType::LogAppendTime => {
                header.max_timestamp
            }
            Left::Rewritten => header.base_timestamp.wrapping_add(newest),
        };
        if left == Left::Rewritten {
            let header = BatchHeader {
                max_timestamp,
                record_count: kept as i32,
                ..header.clone()
            };
            let start = out.len();
            let written = rewrite(header, horizon, bytes, runs, scratch, out);
            if written.is_err() {
                out.truncate(start);
            }
            written?;
        }
        Ok(Filtered {
            left,
            read,
            kept,
            max_timestamp,
        })
    }
}

/// Appends to `out` the batch of `header` without records. It keeps its producer's last sequence.
pub fn write_empty(header: &BatchHeader, out: &mut Vec<u8>) -> Result<(), RecordError> {
    let empty = BatchHeader {
        batch_length: length_field(HEADER_SIZE)?,
        attributes: header.attributes & !(CODEC_MASK | DELETE_HORIZON_FLAG),
        base_timestamp: -1,
        record_count: 0,
        ..header.clone()
    };
    let start = out.len();
    out.resize(start + HEADER_SIZE, 0);
    empty.write(&mut out[start..]);
    set_crc(&mut out[start..]);
    Ok(())
}

/// The encoded records of a batch, decompressed into `scratch` when needed.
fn payload<'a>(batch: &Batch<'a>, limit: usize, scratch: &'a mut Vec<u8>) -> Result<&'a [u8], RecordError> {
    let codec = batch.header.compression()?;
    if codec == Compression::None {
        return Ok(batch.payload());
    }
    compression::decompress(codec, batch.payload(), limit, scratch)?;
    Ok(scratch)
}

/// Appends the batch of `header` with the records in `runs` of `bytes`, and sets `horizon` if there is one.
fn rewrite(
    mut header: BatchHeader,
    horizon: Option<i64>,
    bytes: &[u8],
    runs: &[(usize, usize)],
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> Result<(), RecordError> {
    let shift = match horizon {
        Some(at_ms) => {
            let shift = header.base_timestamp.wrapping_sub(at_ms);
            header.base_timestamp = at_ms;
            header.attributes |= DELETE_HORIZON_FLAG;
            Some(shift)
        }
        None => None,
    };
    let codec = header.compression()?;
    let start = out.len();
    out.resize(start + HEADER_SIZE, 0);
    if codec == Compression::None {
        copy_runs(bytes, runs, shift, out)?;
    } else {
        scratch.clear();
        copy_runs(bytes, runs, shift, scratch)?;
        compression::compress(codec, None, scratch, out)?;
    }
    header.batch_length = length_field(out.len() - start)?;
    header.write(&mut out[start..]);
    set_crc(&mut out[start..]);
    Ok(())
}

fn copy_runs(
    bytes: &[u8],
    runs: &[(usize, usize)],
    shift: Option<i64>,
    out: &mut Vec<u8>,
) -> Result<(), RecordError> {
    for &(from, to) in runs {
        match shift {
            None => out.extend_from_slice(&bytes[from..to]),
            Some(shift) => shift_run(&bytes[from..to], shift, out)?,
        }
    }
    Ok(())
}

/// Copies records, adding `shift` to their timestamp deltas.
fn shift_run(run: &[u8], shift: i64, out: &mut Vec<u8>) -> Result<(), RecordError> {
    let mut rest = run;
    let mut index = 0;
    while !rest.is_empty() {
        let invalid = |reason| RecordError::InvalidRecord { index, reason };
        let body = take_body(&mut rest).map_err(invalid)?;
        let (attributes, mut after) = body.split_first().ok_or(invalid(EMPTY))?;
        let delta = varint::read_i64(&mut after).map_err(|_| invalid(BAD_NUMBER))?;
        let delta = delta.wrapping_add(shift);
        let size = 1 + varint::size_i64(delta) + after.len();
        let length = i32::try_from(size).map_err(|_| RecordError::TooLarge { what: "record", size })?;
        varint::write_i32(out, length);
        out.push(*attributes);
        varint::write_i64(out, delta);
        out.extend_from_slice(after);
        index += 1;
    }
    Ok(())
}

const EMPTY: &str = "it is empty";
const BAD_NUMBER: &str = "a number in it is cut short or too long";

/// Takes a record's length and that many bytes off the front.
#[inline]
fn take_body<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], &'static str> {
    let length = varint::read_i32(rest).map_err(|_| BAD_NUMBER)?;
    let length = usize::try_from(length).map_err(|_| "its length is negative")?;
    let (body, after) = rest
        .split_at_checked(length)
        .ok_or("it is longer than the batch")?;
    *rest = after;
    Ok(body)
}

/// The position of a record in the batch, and the parts that a decision needs.
struct Frame<'a> {
    start: usize,
    end: usize,
    timestamp_delta: i64,
    entry: Entry<'a>,
}

/// Iterates over a batch's records and decodes each up to its value's length.
struct Frames<'a> {
    bytes: &'a [u8],
    rest: &'a [u8],
    base_offset: i64,
    index: usize,
    count: usize,
}

impl<'a> Frames<'a> {
    fn new(header: &BatchHeader, bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            rest: bytes,
            base_offset: header.base_offset,
            index: 0,
            count: header.record_count.max(0) as usize,
        }
    }

    #[inline]
    fn next(&mut self) -> Result<Option<Frame<'a>>, RecordError> {
        if self.index < self.count {
            let frame = self.read();
            self.index += 1;
            frame.map(Some)
        } else if self.rest.is_empty() {
            Ok(None)
        } else {
            Err("bytes remain after the last record the header counts")
        }
        .map_err(|reason| RecordError::InvalidRecord {
            index: self.index,
            reason,
        })
    }

    #[inline]
    fn read(&mut self) -> Result<Frame<'a>, &'static str> {
        let start = self.bytes.len() - self.rest.len();
        let body = take_body(&mut self.rest)?;
        let (_attributes, mut body) = body.split_first().ok_or(EMPTY)?;
        let timestamp_delta = varint::read_i64(&mut body).map_err(|_| BAD_NUMBER)?;
        let offset_delta = varint::read_i32(&mut body).map_err(|_| BAD_NUMBER)?;
        let key = nullable(&mut body)?;
        let value_length = varint::read_i32(&mut body).map_err(|_| BAD_NUMBER)?;
        Ok(Frame {
            start,
            end: self.bytes.len() - self.rest.len(),
            timestamp_delta,
            entry: Entry {
                offset: self.base_offset.wrapping_add(i64::from(offset_delta)),
                key,
                has_value: value_length >= 0,
            },
        })
    }
}

#[cfg(test)]
mod tests;
