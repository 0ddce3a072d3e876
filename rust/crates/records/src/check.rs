//! Checks a produced batch's records before it is appended, without storing them.
//!
//! The payload is decompressed piece by piece ([`crate::compression::stream`]). Keys, values and header
//! values are skipped, not copied. Source: `LogValidator` and `DefaultRecord.readPartiallyFrom` of Kafka 3.9.
//! One check is stricter: a record's fields must fill exactly its length in compressed batches too. Kafka
//! checks that only in uncompressed ones.

use crate::batch::Batch;
use crate::compression::Compression;
use crate::compression::stream::{Limits, Lz4, OFFLOAD_AFTER, Plain, Reader, Snappy, Source, Zstd};
use crate::error::RecordError;
use crate::record::{BAD_NUMBER, RecordBase, read_fields};
use crate::varint;

/// The timestamp of a record without one.
const NO_TIMESTAMP: i64 = -1;

/// A record of a batch that is being checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckedRecord {
    /// The record's number in the batch, from 0.
    pub index: usize,
    pub offset: i64,
    /// Milliseconds since the epoch, -1 for none; the batch's append time when the batch says so.
    pub timestamp: i64,
    /// Bytes of the key; `None` without one.
    pub key_size: Option<usize>,
    pub value_size: Option<usize>,
}

/// The result of checking all records of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordSummary {
    /// The largest timestamp in milliseconds since the epoch; -1 when no record has one.
    pub max_timestamp: i64,
    /// The offset deltas are 0, 1, 2 and so on.
    pub in_order: bool,
}

impl Batch<'_> {
    /// Checks a new batch: its header ([`Batch::check_header`]) and each record, decompressed to at most
    /// `limit` bytes. Batches of a compacted log have gaps and are refused.
    pub fn validate(&self, limit: usize) -> Result<RecordSummary, RecordError> {
        self.check_sequence()?;
        self.check_header()?;
        self.check_records(&Limits::within(limit), |_| {})
    }

    /// Checks each record, calls `visit` with it, and compares the number of records with the header's.
    ///
    /// Errors: the payload cannot be decompressed, or not within `limits`; a record is invalid; the number of
    /// records differs from the header's.
    pub fn check_records(
        &self,
        limits: &Limits,
        visit: impl FnMut(&CheckedRecord),
    ) -> Result<RecordSummary, RecordError> {
        let (base, payload) = (RecordBase::of(&self.header), self.payload());
        match self.header.compression()? {
            Compression::None => Walk::new(Plain::new(payload), base, Compression::None, limits).run(visit),
            codec @ Compression::Gzip => {
                let decoder = flate2::bufread::MultiGzDecoder::new(payload);
                Walk::new(Reader::new(codec, decoder), base, codec, limits).run(visit)
            }
            codec @ Compression::Snappy => {
                let source = Snappy::new(payload, limits.buffer_max);
                Walk::new(source, base, codec, limits).run(visit)
            }
            codec @ Compression::Lz4 => {
                let source = Lz4::new(payload)?;
                Walk::new(source, base, codec, limits).run(visit)
            }
            codec @ Compression::Zstd => {
                let source = Zstd::new(payload, limits.buffer_max)?;
                Walk::new(source, base, codec, limits).run(visit)
            }
        }
    }
}

/// Reads the records of a source one after another.
struct Walk<'l, S> {
    source: S,
    /// The position in the current piece.
    position: usize,
    /// Bytes of all pieces so far.
    output: usize,
    base: RecordBase,
    codec: Compression,
    limits: &'l Limits,
}

/// An invalid record, or a payload that cannot be decompressed.
enum Fault {
    Record(&'static str),
    Payload(RecordError),
}

impl From<&'static str> for Fault {
    fn from(reason: &'static str) -> Self {
        Self::Record(reason)
    }
}

impl From<RecordError> for Fault {
    fn from(error: RecordError) -> Self {
        Self::Payload(error)
    }
}

/// The fields of a record that a check needs.
struct Fields {
    timestamp_delta: i64,
    offset_delta: i32,
    key_size: Option<usize>,
    value_size: Option<usize>,
}

impl<'l, S: Source> Walk<'l, S> {
    fn new(source: S, base: RecordBase, codec: Compression, limits: &'l Limits) -> Self {
        Self {
            source,
            position: 0,
            output: 0,
            base,
            codec,
            limits,
        }
    }

    fn run(mut self, mut visit: impl FnMut(&CheckedRecord)) -> Result<RecordSummary, RecordError> {
        let mut summary = RecordSummary {
            max_timestamp: NO_TIMESTAMP,
            in_order: true,
        };
        for index in 0..self.base.count() {
            let fields = self.next_record().map_err(|fault| match fault {
                Fault::Record(reason) => RecordError::InvalidRecord { index, reason },
                Fault::Payload(error) => error,
            })?;
            let record = CheckedRecord {
                index,
                offset: self.base.offset(fields.offset_delta),
                timestamp: self.base.timestamp(fields.timestamp_delta),
                key_size: fields.key_size,
                value_size: fields.value_size,
            };
            summary.max_timestamp = summary.max_timestamp.max(record.timestamp);
            summary.in_order &= usize::try_from(fields.offset_delta) == Ok(index);
            visit(&record);
        }
        if self.position < self.source.piece().len() || self.advance()? {
            return Err(RecordError::InvalidRecord {
                index: self.base.count(),
                reason: "bytes remain after the last record the header counts",
            });
        }
        Ok(summary)
    }

    /// Replaces the piece after all of it was read.
    fn advance(&mut self) -> Result<bool, RecordError> {
        let more = if self.output > OFFLOAD_AFTER {
            let mut advanced = Ok(false);
            (self.limits.offload)(&mut || advanced = self.source.advance());
            advanced?
        } else {
            self.source.advance()?
        };
        self.position = 0;
        let size = self.source.piece().len();
        self.output += size;
        if self.output > self.limits.output_max && self.codec != Compression::None {
            return Err(RecordError::DecompressedTooLarge {
                codec: self.codec,
                limit: self.limits.output_max,
            });
        }
        Ok(more)
    }

    #[inline]
    fn next_record(&mut self) -> Result<Fields, Fault> {
        let piece = &self.source.piece()[self.position..];
        let mut rest = piece;
        // Nearly every record lies inside one piece.
        if rest.len() >= varint::MAX_I32_SIZE
            && let Ok(length) = varint::read_i32(&mut rest)
            && let Ok(length) = usize::try_from(length)
            && let Some(body) = rest.get(..length)
        {
            let read = read_fields(body)?;
            let fields = Fields {
                timestamp_delta: read.timestamp_delta,
                offset_delta: read.offset_delta,
                key_size: read.key.map(<[u8]>::len),
                value_size: read.value.map(<[u8]>::len),
            };
            self.position += piece.len() - rest.len() + length;
            return Ok(fields);
        }
        self.next_divided_record()
    }

    /// Reads a record that begins in one piece and ends in another, or is cut short.
    #[cold]
    fn next_divided_record(&mut self) -> Result<Fields, Fault> {
        let mut unlimited = usize::MAX;
        let length = self.read_i32(&mut unlimited)?;
        let mut left = usize::try_from(length).map_err(|_| "its length is negative")?;
        self.byte(&mut left)?;
        let timestamp_delta = self.read_i64(&mut left)?;
        let offset_delta = self.read_i32(&mut left)?;
        let key_size = self.skip_nullable(&mut left)?;
        let value_size = self.skip_nullable(&mut left)?;
        let headers = self.read_i32(&mut left)?;
        if headers < 0 {
            return Err("the header count is negative".into());
        }
        for _ in 0..headers {
            self.skip_nullable(&mut left)?.ok_or("a header key is null")?;
            self.skip_nullable(&mut left)?;
        }
        if left > 0 {
            return Err("bytes remain after the headers".into());
        }
        Ok(Fields {
            timestamp_delta,
            offset_delta,
            key_size,
            value_size,
        })
    }

    /// The next byte of a record that has `left` more bytes.
    fn byte(&mut self, left: &mut usize) -> Result<u8, Fault> {
        *left = left
            .checked_sub(1)
            .ok_or("its fields are longer than its length")?;
        while self.position == self.source.piece().len() {
            self.more()?;
        }
        let byte = self.source.piece()[self.position];
        self.position += 1;
        Ok(byte)
    }

    fn more(&mut self) -> Result<(), Fault> {
        if self.advance()? {
            Ok(())
        } else {
            Err("the batch ends in it".into())
        }
    }

    /// Copies the bytes of a varint, which `varint` then reads.
    fn number(&mut self, left: &mut usize, bytes: &mut [u8]) -> Result<usize, Fault> {
        for (count, slot) in bytes.iter_mut().enumerate() {
            *slot = self.byte(left)?;
            if *slot < 0x80 {
                return Ok(count + 1);
            }
        }
        Err(BAD_NUMBER.into())
    }

    fn read_i32(&mut self, left: &mut usize) -> Result<i32, Fault> {
        let mut bytes = [0; varint::MAX_I32_SIZE];
        let count = self.number(left, &mut bytes)?;
        varint::read_i32(&mut &bytes[..count]).map_err(|_| BAD_NUMBER.into())
    }

    fn read_i64(&mut self, left: &mut usize) -> Result<i64, Fault> {
        let mut bytes = [0; varint::MAX_I64_SIZE];
        let count = self.number(left, &mut bytes)?;
        varint::read_i64(&mut &bytes[..count]).map_err(|_| BAD_NUMBER.into())
    }

    /// Skips a length and that many bytes. A negative length means null, as in Kafka.
    fn skip_nullable(&mut self, left: &mut usize) -> Result<Option<usize>, Fault> {
        let Ok(size) = usize::try_from(self.read_i32(left)?) else {
            return Ok(None);
        };
        *left = left
            .checked_sub(size)
            .ok_or("a key or value is longer than its record")?;
        let mut skip = size;
        loop {
            let here = skip.min(self.source.piece().len() - self.position);
            self.position += here;
            skip -= here;
            if skip == 0 {
                return Ok(Some(size));
            }
            self.more()?;
        }
    }
}

#[cfg(test)]
mod tests;
