//! Reads the fields of a message one after another, and checks each length against the remaining bytes.

use std::ops::Range;

use crate::error::BenchError;

/// A position in a message. Strings and bytes are returned as ranges, so that the caller can change them.
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn cut_short() -> BenchError {
        BenchError::Protocol("a message is cut short".to_owned())
    }

    /// Skips `count` bytes.
    pub(crate) fn skip(&mut self, count: usize) -> Result<Range<usize>, BenchError> {
        if count > self.bytes.len() - self.at {
            return Err(Self::cut_short());
        }
        let range = self.at..self.at + count;
        self.at = range.end;
        Ok(range)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BenchError> {
        let rest = &self.bytes[self.at..];
        let array = rest.first_chunk::<N>().ok_or_else(Self::cut_short)?;
        self.at += N;
        Ok(*array)
    }

    pub(crate) fn i16(&mut self) -> Result<i16, BenchError> {
        Ok(i16::from_be_bytes(self.array()?))
    }

    pub(crate) fn i32(&mut self) -> Result<i32, BenchError> {
        Ok(i32::from_be_bytes(self.array()?))
    }

    pub(crate) fn i64(&mut self) -> Result<i64, BenchError> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    /// An unsigned varint of at most 32 bits.
    pub(crate) fn unsigned(&mut self) -> Result<u32, BenchError> {
        let mut value = 0u64;
        for shift in (0..35).step_by(7) {
            let [byte] = self.array::<1>()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return u32::try_from(value)
                    .map_err(|_| BenchError::Protocol("a varint is too large".to_owned()));
            }
        }
        Err(BenchError::Protocol("a varint is too long".to_owned()))
    }

    /// The length of a compact array; null counts as empty.
    pub(crate) fn compact_array(&mut self) -> Result<u32, BenchError> {
        Ok(self.unsigned()?.saturating_sub(1))
    }

    /// A compact string or compact bytes; null counts as empty.
    pub(crate) fn compact(&mut self) -> Result<Range<usize>, BenchError> {
        let length = self.unsigned()?.saturating_sub(1);
        self.skip(length as usize)
    }

    /// A string with an i16 length; null counts as empty.
    pub(crate) fn string(&mut self) -> Result<Range<usize>, BenchError> {
        let length = self.i16()?;
        self.skip(usize::try_from(length).unwrap_or(0))
    }

    /// Skips tagged fields.
    pub(crate) fn tags(&mut self) -> Result<(), BenchError> {
        for _ in 0..self.unsigned()? {
            self.unsigned()?;
            let size = self.unsigned()?;
            self.skip(size as usize)?;
        }
        Ok(())
    }
}
