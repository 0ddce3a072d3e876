//! The protocol's primitive types: a checked reader over shared bytes, and variable-length integers.
//!
//! Integers are big-endian. An unsigned varint has seven bits in each byte, the lowest first; the high bit
//! says that more follow. A compact length is the length plus one, and zero is null (KIP-482). As in Apache's
//! readers, every negative length is null.

use bytes::Bytes;

use crate::error::{Fault, Problem};

type Result<T> = std::result::Result<T, Box<Fault>>;

/// Reads from the front of a buffer. Every read is checked, and nothing is copied.
pub(crate) struct Reader<'a> {
    buffer: &'a Bytes,
    position: usize,
    /// The end of the message, or of the current tagged field.
    end: usize,
}

macro_rules! read_number {
    ($($name:ident: $kind:ty),*) => {
        $(#[inline]
        pub(crate) fn $name(&mut self) -> Result<$kind> {
            Ok(<$kind>::from_be_bytes(self.array()?))
        })*
    };
}

impl<'a> Reader<'a> {
    pub(crate) fn new(buffer: &'a Bytes) -> Self {
        Self {
            buffer,
            position: 0,
            end: buffer.len(),
        }
    }

    pub(crate) fn position(&self) -> usize {
        self.position
    }

    pub(crate) fn remaining(&self) -> usize {
        self.end - self.position
    }

    pub(crate) fn fault(&self, problem: Problem) -> Box<Fault> {
        Fault::new(problem, self.position)
    }

    #[inline]
    fn check(&self, needed: usize) -> Result<()> {
        let remaining = self.remaining();
        if needed > remaining {
            return Err(self.fault(Problem::Truncated { needed, remaining }));
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.check(N)?;
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.buffer[self.position..self.position + N]);
        self.position += N;
        Ok(bytes)
    }

    read_number!(i8: i8, i16: i16, i32: i32, i64: i64, u16: u16, u32: u32, f64: f64);

    /// The next bytes, sharing the buffer.
    #[inline]
    pub(crate) fn take(&mut self, length: usize) -> Result<Bytes> {
        self.check(length)?;
        let bytes = self.buffer.slice(self.position..self.position + length);
        self.position += length;
        Ok(bytes)
    }

    pub(crate) fn skip(&mut self, length: usize) -> Result<()> {
        self.check(length)?;
        self.position += length;
        Ok(())
    }

    /// At most five bytes, and no more than 32 bits.
    #[inline]
    pub(crate) fn varint(&mut self) -> Result<u32> {
        let start = self.position;
        let mut value = 0u32;
        for shift in [0, 7, 14, 21, 28] {
            let [byte] = self.array()?;
            let bits = u32::from(byte & 0x7f);
            if shift == 28 && bits > 0x0f {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Fault::new(Problem::InvalidVarint, start))
    }

    /// The length of a string (`None`: null): int16, or compact.
    pub(crate) fn string_length(&mut self, flexible: bool) -> Result<Option<usize>> {
        if flexible {
            return self.compact_length();
        }
        Ok(usize::try_from(self.i16()?).ok())
    }

    /// The length of bytes or the count of an array (`None`: null): int32, or compact.
    pub(crate) fn long_length(&mut self, flexible: bool) -> Result<Option<usize>> {
        if flexible {
            return self.compact_length();
        }
        Ok(usize::try_from(self.i32()?).ok())
    }

    /// Signed, as in Java: lengths above i32::MAX are negative.
    fn compact_length(&mut self) -> Result<Option<usize>> {
        let length = (self.varint()? as i32).wrapping_sub(1);
        Ok(usize::try_from(length).ok())
    }

    /// The next int16, without reading it.
    pub(crate) fn peek_i16(&mut self) -> Result<i16> {
        let value = self.i16()?;
        self.position -= 2;
        Ok(value)
    }

    /// Limits reads to the next `size` bytes. Pass the result to [`Self::end_limit`].
    pub(crate) fn limit(&mut self, size: usize) -> Result<usize> {
        self.check(size)?;
        Ok(std::mem::replace(&mut self.end, self.position + size))
    }

    /// Ends a limit. All its bytes must have been read.
    pub(crate) fn end_limit(&mut self, outer_end: usize) -> Result<()> {
        if self.remaining() > 0 {
            return Err(self.fault(Problem::TaggedFieldSize(self.remaining())));
        }
        self.end = outer_end;
        Ok(())
    }

    /// Skips a section of tagged fields.
    pub(crate) fn skip_tagged_fields(&mut self) -> Result<()> {
        for _ in 0..self.varint()? {
            self.varint()?;
            let size = self.varint()? as usize;
            self.skip(size)?;
        }
        Ok(())
    }
}

/// Appends an unsigned varint.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u32) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
