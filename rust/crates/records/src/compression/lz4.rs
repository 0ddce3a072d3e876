//! Checks of LZ4 frames that `lz4_flex` lacks: the end mark, and the header checksum of message sets v0.
//!
//! Layout (LZ4 frame format 1.6), little-endian:
//!
//! ```text
//! 04 22 4d 18   magic
//! FLG, BD       u8 each
//! content size  u64, if FLG bit 3
//! dictionary id u32, if FLG bit 0
//! HC            u8, checksum of the descriptor
//! blocks        u32 size (top bit: not compressed), content, u32 checksum if FLG bit 4
//! end mark      u32 0
//! checksum      u32, if FLG bit 2
//! ```
//!
//! KAFKA-3160: clients that write message sets v0 computed HC over the magic number, too, and old readers
//! require it so. Other clients write the right checksum. So HC of a v0 frame is not compared: the right one
//! replaces it.

use super::failed;
use crate::compression::Compression;
use crate::error::RecordError;

const MAGIC_SIZE: usize = 4;
const BLOCK_CHECKSUM_FLAG: u8 = 0x10;
const CONTENT_CHECKSUM_FLAG: u8 = 0x04;
const NOT_COMPRESSED: u32 = 1 << 31;
const CONTENT_SIZE_FLAG: u8 = 0x08;
const DICTIONARY_FLAG: u8 = 0x01;

/// Checks that the first frame has its end mark. `lz4_flex` reads a frame without one as if it were complete.
pub(super) fn check_end(input: &[u8]) -> Result<(), RecordError> {
    let flags = input.get(MAGIC_SIZE).copied().unwrap_or(0);
    let checksum = if flags & BLOCK_CHECKSUM_FLAG != 0 { 4 } else { 0 };
    let mut position = checksum_at(input)? + 1;
    let cut = || failed(Compression::Lz4, "the frame is cut short");
    loop {
        let size = input
            .get(position..)
            .and_then(|rest| rest.first_chunk())
            .ok_or_else(cut)?;
        let size = u32::from_le_bytes(*size) & !NOT_COMPRESSED;
        position += 4;
        if size == 0 {
            let content_checksum = if flags & CONTENT_CHECKSUM_FLAG != 0 { 4 } else { 0 };
            return input.get(..position + content_checksum).map(drop).ok_or_else(cut);
        }
        position += size as usize + checksum;
    }
}

/// The frame's header with the right checksum, and the bytes after it.
pub(super) fn correct_header(input: &[u8]) -> Result<(Vec<u8>, &[u8]), RecordError> {
    let checksum_at = checksum_at(input)?;
    let (header, rest) = input.split_at(checksum_at + 1);
    let mut header = header.to_vec();
    header[checksum_at] = (xxh32_short(&header[MAGIC_SIZE..checksum_at]) >> 8) as u8;
    Ok((header, rest))
}

/// Sets the header checksum that old readers require. Kafka's frames have no content size and no dictionary.
pub(super) fn write_legacy_checksum(frame: &mut [u8]) -> Result<(), RecordError> {
    let checksum_at = checksum_at(frame)?;
    frame[checksum_at] = (xxh32_short(&frame[..checksum_at]) >> 8) as u8;
    Ok(())
}

/// The position of the header checksum, which is inside `input`.
fn checksum_at(input: &[u8]) -> Result<usize, RecordError> {
    let cut = || failed(Compression::Lz4, "the frame header is cut short");
    let flags = *input.get(MAGIC_SIZE).ok_or_else(cut)?;
    let mut descriptor = 2;
    if flags & CONTENT_SIZE_FLAG != 0 {
        descriptor += 8;
    }
    if flags & DICTIONARY_FLAG != 0 {
        descriptor += 4;
    }
    let checksum_at = MAGIC_SIZE + descriptor;
    input.get(checksum_at).ok_or_else(cut)?;
    Ok(checksum_at)
}

/// xxHash32 with seed 0 of fewer than 16 bytes, where no stripes occur.
fn xxh32_short(bytes: &[u8]) -> u32 {
    const PRIMES: [u32; 5] = [
        2_654_435_761,
        2_246_822_519,
        3_266_489_917,
        668_265_263,
        374_761_393,
    ];
    debug_assert!(bytes.len() < 16);
    let mut hash = PRIMES[4].wrapping_add(bytes.len() as u32);
    let (words, tail) = bytes.as_chunks::<4>();
    for word in words {
        hash = hash.wrapping_add(u32::from_le_bytes(*word).wrapping_mul(PRIMES[2]));
        hash = hash.rotate_left(17).wrapping_mul(PRIMES[3]);
    }
    for &byte in tail {
        hash = hash.wrapping_add(u32::from(byte).wrapping_mul(PRIMES[4]));
        hash = hash.rotate_left(11).wrapping_mul(PRIMES[0]);
    }
    hash = (hash ^ (hash >> 15)).wrapping_mul(PRIMES[1]);
    hash = (hash ^ (hash >> 13)).wrapping_mul(PRIMES[2]);
    hash ^ (hash >> 16)
}

#[cfg(test)]
mod tests {
    //! If this fails, lz4 message sets of Kafka 0.8 and 0.9 clients are refused.
    use super::*;

    #[test]
    fn a_wrong_header_checksum_is_replaced_by_the_right_one() {
        let mut frame = Vec::new();
        super::super::compress(Compression::Lz4, None, b"some text, some text", &mut frame).unwrap();
        let right = frame[6];
        frame[6] = !right;
        let (header, rest) = correct_header(&frame).unwrap();
        assert_eq!(header[6], right);
        assert_eq!(header.len() + rest.len(), frame.len());
        for cut in 0..7 {
            assert!(correct_header(&frame[..cut]).is_err());
        }
    }
}
