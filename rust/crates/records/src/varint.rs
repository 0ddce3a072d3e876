//! Zigzag varints, as records use them (`ByteUtils`, the encoding of Protocol Buffers' sint32 and sint64).
//!
//! Seven bits a byte, lowest first; the top bit means that another byte follows. Zigzag maps 0, -1, 1, -2 …
//! to 0, 1, 2, 3 … so that small negative numbers stay short. An `i32` takes at most 5 bytes, an `i64` at
//! most 10. As in Kafka, surplus bits of the last byte are dropped, and overlong encodings are accepted.

use crate::error::RecordError;

/// The most bytes an `i32` takes.
pub const MAX_I32_SIZE: usize = 5;
/// The most bytes an `i64` takes.
pub const MAX_I64_SIZE: usize = 10;

#[inline]
fn zigzag32(value: i32) -> u32 {
    ((value << 1) ^ (value >> 31)) as u32
}

#[inline]
fn zigzag64(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// Bytes that `value` takes.
#[inline]
pub fn size_i32(value: i32) -> usize {
    // 7 bits a byte; `| 1` makes zero take one byte.
    (38 - (zigzag32(value) | 1).leading_zeros() as usize) / 7
}

/// Bytes that `value` takes.
#[inline]
pub fn size_i64(value: i64) -> usize {
    (70 - (zigzag64(value) | 1).leading_zeros() as usize) / 7
}

/// Appends `value` to `out`.
#[inline]
pub fn write_i32(out: &mut Vec<u8>, value: i32) {
    let mut scratch = Scratch::new();
    scratch.i32(value);
    out.extend_from_slice(scratch.bytes());
}

/// Appends `value` to `out`.
#[inline]
pub fn write_i64(out: &mut Vec<u8>, value: i64) {
    let mut scratch = Scratch::new();
    scratch.i64(value);
    out.extend_from_slice(scratch.bytes());
}

/// Takes an `i32` off the front of `input`. After an error the position of `input` is unspecified.
#[inline]
pub fn read_i32(input: &mut &[u8]) -> Result<i32, RecordError> {
    let raw = match **input {
        [first, ref rest @ ..] if first < 0x80 => {
            *input = rest;
            u32::from(first)
        }
        _ => read_raw(input, MAX_I32_SIZE)? as u32,
    };
    Ok((raw >> 1) as i32 ^ -((raw & 1) as i32))
}

/// Takes an `i64` off the front of `input`. After an error the position of `input` is unspecified.
#[inline]
pub fn read_i64(input: &mut &[u8]) -> Result<i64, RecordError> {
    let raw = match **input {
        [first, ref rest @ ..] if first < 0x80 => {
            *input = rest;
            u64::from(first)
        }
        _ => read_raw(input, MAX_I64_SIZE)?,
    };
    Ok((raw >> 1) as i64 ^ -((raw & 1) as i64))
}

fn read_raw(input: &mut &[u8], max_size: usize) -> Result<u64, RecordError> {
    let mut value = 0u64;
    for index in 0..max_size {
        let Some((&byte, rest)) = input.split_first() else {
            return Err(RecordError::Truncated {
                what: "varint",
                needed: index + 1,
                available: index,
            });
        };
        *input = rest;
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(RecordError::VarintTooLong(max_size))
}

/// The numbers before a record's key, collected on the stack so that one copy moves them to the buffer.
pub(crate) struct Scratch {
    bytes: [u8; 32],
    len: usize,
}

impl Scratch {
    #[inline]
    pub(crate) fn new() -> Self {
        Self {
            bytes: [0; 32],
            len: 0,
        }
    }

    #[inline]
    pub(crate) fn u8(&mut self, value: u8) {
        self.bytes[self.len] = value;
        self.len += 1;
    }

    #[inline]
    pub(crate) fn i32(&mut self, value: i32) {
        let mut rest = zigzag32(value);
        while rest >= 0x80 {
            self.u8(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.u8(rest as u8);
    }

    #[inline]
    pub(crate) fn i64(&mut self, value: i64) {
        let mut rest = zigzag64(value);
        while rest >= 0x80 {
            self.u8(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.u8(rest as u8);
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

#[cfg(test)]
mod tests {
    //! If these fail, Kafka's clients cannot read our records, or we theirs.
    use super::*;
    use proptest::prelude::*;

    /// The simplest form of the encoding, in 128 bits so that nothing overflows.
    fn model(value: i64) -> Vec<u8> {
        let value = i128::from(value);
        let mut rest = if value < 0 { -2 * value - 1 } else { 2 * value };
        let mut out = Vec::new();
        loop {
            let byte = (rest % 128) as u8;
            rest /= 128;
            out.push(if rest > 0 { byte + 128 } else { byte });
            if rest == 0 {
                return out;
            }
        }
    }

    proptest! {
        #[test]
        fn i64_equals_the_model(value: i64, shift in 0u32..64) {
            let value = value >> shift;
            let mut out = Vec::new();
            write_i64(&mut out, value);
            prop_assert_eq!(&out, &model(value));
            prop_assert_eq!(size_i64(value), out.len());
            let mut input = &out[..];
            prop_assert_eq!(read_i64(&mut input).unwrap(), value);
            prop_assert!(input.is_empty());
        }

        #[test]
        fn i32_equals_the_model(value: i32, shift in 0u32..32) {
            let value = value >> shift;
            let mut out = Vec::new();
            write_i32(&mut out, value);
            prop_assert_eq!(&out, &model(i64::from(value)));
            prop_assert_eq!(size_i32(value), out.len());
            let mut input = &out[..];
            prop_assert_eq!(read_i32(&mut input).unwrap(), value);
            prop_assert!(input.is_empty());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..16)) {
            let mut input = &bytes[..];
            if read_i32(&mut input).is_ok() {
                prop_assert!(bytes.len() - input.len() <= MAX_I32_SIZE);
            }
            let mut input = &bytes[..];
            if read_i64(&mut input).is_ok() {
                prop_assert!(bytes.len() - input.len() <= MAX_I64_SIZE);
            }
        }
    }

    #[test]
    fn extremes_take_the_largest_size() {
        assert_eq!(size_i32(i32::MIN), MAX_I32_SIZE);
        assert_eq!(size_i64(i64::MIN), MAX_I64_SIZE);
        assert_eq!(size_i64(0), 1);
        assert_eq!(read_i32(&mut &[0xff; 5][..]), Err(RecordError::VarintTooLong(5)));
        assert_eq!(
            read_i64(&mut &[0xff; 10][..]),
            Err(RecordError::VarintTooLong(10))
        );
        assert!(read_i32(&mut &[0x80; 2][..]).is_err());
    }
}
