//! One record of a batch v2, and iterating over all of them without allocation.
//!
//! Layout (KIP-98, `DefaultRecord`); all numbers but the attributes are zigzag varints:
//!
//! ```text
//! length            i32   bytes that follow
//! attributes        i8    no bits defined
//! timestamp delta   i64   added to the base timestamp
//! offset delta      i32   added to the base offset
//! key length        i32   -1: null;  key
//! value length      i32   -1: null;  value
//! header count      i32
//!   key length      i32              key
//!   value length    i32   -1: null;  value
//! ```

use crate::error::RecordError;
use crate::header::{BatchHeader, TimestampType};
use crate::varint;

/// The smallest record: its length and six fields of one byte, without key, value and headers.
pub(crate) const RECORD_SIZE_MIN: usize = 7;

/// A record, borrowed from its batch or from the buffer the batch was decompressed into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    pub offset: i64,
    /// Milliseconds since the epoch, -1 for none; the batch's append time when the batch says so.
    pub timestamp: i64,
    pub key: Option<&'a [u8]>,
    pub value: Option<&'a [u8]>,
    headers: Headers<'a>,
}

impl<'a> Record<'a> {
    /// The record's headers in their order; keys may repeat.
    #[inline]
    pub fn headers(&self) -> Headers<'a> {
        self.headers
    }
}

/// The headers of a record: an iterator over keys (UTF-8 by convention, not checked) and values.
///
/// The bytes were checked when the record was read, so iterating cannot fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Headers<'a> {
    bytes: &'a [u8],
    remaining: usize,
}

impl<'a> Headers<'a> {
    /// No headers.
    pub const EMPTY: Headers<'static> = Headers {
        bytes: &[],
        remaining: 0,
    };

    /// True when none are left.
    pub fn is_empty(&self) -> bool {
        self.remaining == 0
    }

    /// Checks that `bytes` is exactly `count` headers.
    fn check(count: i32, bytes: &'a [u8]) -> Result<Self, &'static str> {
        // A header takes at least two bytes.
        if count < 0 || count as usize > bytes.len() / 2 {
            return Err("the header count is negative or greater than the record");
        }
        let mut rest = bytes;
        for _ in 0..count {
            next_header(&mut rest)?;
        }
        if !rest.is_empty() {
            return Err("bytes remain after the headers");
        }
        Ok(Self {
            bytes,
            remaining: count as usize,
        })
    }
}

fn next_header<'a>(rest: &mut &'a [u8]) -> Result<(&'a [u8], Option<&'a [u8]>), &'static str> {
    let key = nullable(rest)?.ok_or("a header key is null")?;
    let value = nullable(rest)?;
    Ok((key, value))
}

impl<'a> Iterator for Headers<'a> {
    type Item = (&'a [u8], Option<&'a [u8]>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.remaining == 0 {
            return None;
        }
        self.remaining -= 1;
        next_header(&mut self.bytes).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.remaining, Some(self.remaining))
    }
}

impl ExactSizeIterator for Headers<'_> {}

/// Reads the header count and that many headers, which must fill the rest of a record.
#[inline]
fn read_headers(mut body: &[u8]) -> Result<Headers<'_>, &'static str> {
    let count = varint::read_i32(&mut body).map_err(|_| BAD_NUMBER)?;
    if count == 0 && body.is_empty() {
        return Ok(Headers::EMPTY);
    }
    Headers::check(count, body)
}

pub(crate) const BAD_NUMBER: &str = "a number in it is cut short or too long";

/// Takes a length and that many bytes off the front. A negative length means null, as in Kafka.
#[inline]
pub(crate) fn nullable<'a>(rest: &mut &'a [u8]) -> Result<Option<&'a [u8]>, &'static str> {
    let length = varint::read_i32(rest).map_err(|_| BAD_NUMBER)?;
    if length < 0 {
        return Ok(None);
    }
    let (bytes, after) = rest
        .split_at_checked(length as usize)
        .ok_or("a key or value is longer than its record")?;
    *rest = after;
    Ok(Some(bytes))
}

/// The fields of a record before its headers.
pub(crate) struct Fields<'a> {
    pub(crate) timestamp_delta: i64,
    pub(crate) offset_delta: i32,
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) value: Option<&'a [u8]>,
}

/// Reads a record's fields between its length and its headers. Also returns the rest.
#[inline]
fn read_front(body: &[u8]) -> Result<(Fields<'_>, &[u8]), &'static str> {
    let (_attributes, mut rest) = body.split_first().ok_or("it is empty")?;
    let timestamp_delta = varint::read_i64(&mut rest).map_err(|_| BAD_NUMBER)?;
    let offset_delta = varint::read_i32(&mut rest).map_err(|_| BAD_NUMBER)?;
    let key = nullable(&mut rest)?;
    let value = nullable(&mut rest)?;
    let fields = Fields {
        timestamp_delta,
        offset_delta,
        key,
        value,
    };
    Ok((fields, rest))
}

/// Reads a record's fields after its length, and checks its headers.
#[inline]
pub(crate) fn read_fields(body: &[u8]) -> Result<Fields<'_>, &'static str> {
    let (fields, headers) = read_front(body)?;
    read_headers(headers)?;
    Ok(fields)
}

/// The header fields that decoding a record needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordBase {
    base_offset: i64,
    base_timestamp: i64,
    append_time: Option<i64>,
    count: usize,
}

impl RecordBase {
    pub(crate) fn of(header: &BatchHeader) -> Self {
        Self {
            base_offset: header.base_offset,
            base_timestamp: header.base_timestamp,
            append_time: (header.timestamp_type() == TimestampType::LogAppendTime)
                .then_some(header.max_timestamp),
            count: header.record_count.max(0) as usize,
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    #[inline]
    pub(crate) fn offset(&self, delta: i32) -> i64 {
        self.base_offset.wrapping_add(i64::from(delta))
    }

    #[inline]
    pub(crate) fn timestamp(&self, delta: i64) -> i64 {
        self.append_time
            .unwrap_or_else(|| self.base_timestamp.wrapping_add(delta))
    }
}

/// The decompressed records of one batch, borrowed from it or in a buffer of their own.
#[derive(Debug)]
pub struct Records<'a> {
    pub(crate) base: RecordBase,
    pub(crate) bytes: std::borrow::Cow<'a, [u8]>,
}

impl Records<'_> {
    /// Iterates over the records.
    #[inline]
    pub fn iter(&self) -> RecordIter<'_> {
        RecordIter::new(self.base, &self.bytes)
    }
}

impl<'r> IntoIterator for &'r Records<'_> {
    type Item = Result<Record<'r>, RecordError>;
    type IntoIter = RecordIter<'r>;

    fn into_iter(self) -> RecordIter<'r> {
        self.iter()
    }
}

/// Yields each record, or the first error and then nothing. It is an error if the records are fewer than the
/// header's count, or if bytes remain after the last.
#[derive(Debug, Clone)]
pub struct RecordIter<'a> {
    base: RecordBase,
    rest: &'a [u8],
    index: usize,
    done: bool,
    skip_headers: bool,
}

impl<'a> RecordIter<'a> {
    /// Skips the headers without reading or checking them; every record then has none. For callers that need
    /// no headers.
    #[must_use]
    pub fn without_headers(mut self) -> Self {
        self.skip_headers = true;
        self
    }

    #[inline]
    pub(crate) fn new(base: RecordBase, bytes: &'a [u8]) -> Self {
        Self {
            base,
            rest: bytes,
            index: 0,
            done: false,
            skip_headers: false,
        }
    }

    /// Reads one record.
    #[inline]
    fn read(&mut self) -> Result<Record<'a>, &'static str> {
        let length = varint::read_i32(&mut self.rest).map_err(|_| BAD_NUMBER)?;
        if length < 0 {
            return Err("its length is negative");
        }
        let (body, after) = self
            .rest
            .split_at_checked(length as usize)
            .ok_or("it is longer than the batch")?;
        self.rest = after;
        let (fields, after_value) = read_front(body)?;
        let headers = if self.skip_headers {
            Headers::EMPTY
        } else {
            read_headers(after_value)?
        };
        Ok(Record {
            offset: self.base.offset(fields.offset_delta),
            timestamp: self.base.timestamp(fields.timestamp_delta),
            key: fields.key,
            value: fields.value,
            headers,
        })
    }
}

impl<'a> Iterator for RecordIter<'a> {
    type Item = Result<Record<'a>, RecordError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let index = self.index;
        let result = if index < self.base.count {
            self.index += 1;
            self.read()
        } else {
            self.done = true;
            if self.rest.is_empty() {
                return None;
            }
            Err("bytes remain after the last record the header counts")
        };
        Some(result.map_err(|reason| {
            self.done = true;
            RecordError::InvalidRecord { index, reason }
        }))
    }
}

impl std::iter::FusedIterator for RecordIter<'_> {}
