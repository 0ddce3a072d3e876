//! Snappy as Kafka uses it.
//!
//! Layout (snappy-java's `SnappyOutputStream`), big-endian:
//!
//! ```text
//! 82 53 4e 41 50 50 59 00   magic
//! version                   i32 (1)
//! oldest compatible version i32 (1)
//! then, to the end:
//!   block length            i32
//!   block                   raw snappy of at most the writer's block size
//! ```
//!
//! A writer that is flushed and reused repeats the header, so a header may stand where a block is expected.
//! Clients other than Java's may write one raw block without a frame.

use super::failed;
use crate::compression::Compression;
use crate::error::RecordError;

const MAGIC: [u8; 8] = [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0];
const FRAME_HEADER: usize = 16;
/// snappy-java's default.
const BLOCK_SIZE: usize = 32 * 1024;
/// A copy of 64 bytes takes at least 3, so a raw block grows by at most this factor.
pub(super) const GREATEST_RATIO: usize = 22;

pub(super) fn compress(input: &[u8], out: &mut Vec<u8>) -> Result<(), RecordError> {
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&1i32.to_be_bytes());
    out.extend_from_slice(&1i32.to_be_bytes());
    let mut encoder = snap::raw::Encoder::new();
    for block in input.chunks(BLOCK_SIZE) {
        let length_at = out.len();
        let start = length_at + 4;
        out.resize(start + snap::raw::max_compress_len(block.len()), 0);
        let length = encoder
            .compress(block, &mut out[start..])
            .map_err(|error| failed(Compression::Snappy, error))?;
        out[length_at..start].copy_from_slice(&(length as u32).to_be_bytes());
        out.truncate(start + length);
    }
    Ok(())
}

/// The raw blocks of a payload.
pub(super) struct Blocks<'a> {
    rest: &'a [u8],
    /// The payload is one block without a frame.
    raw: bool,
}

impl<'a> Blocks<'a> {
    pub(super) fn new(input: &'a [u8]) -> Self {
        Self {
            rest: input,
            raw: !input.starts_with(&MAGIC),
        }
    }
}

impl<'a> Iterator for Blocks<'a> {
    type Item = Result<&'a [u8], RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut rest = std::mem::take(&mut self.rest);
        if rest.is_empty() && !self.raw {
            return None;
        }
        if std::mem::take(&mut self.raw) {
            return Some(Ok(rest));
        }
        while rest.starts_with(&MAGIC) {
            match rest.get(FRAME_HEADER..) {
                Some([]) => return None,
                Some(after) => rest = after,
                None => return Some(Err(failed(Compression::Snappy, "the frame header is cut short"))),
            }
        }
        let block = rest.split_first_chunk::<4>().and_then(|(length, after)| {
            let length = usize::try_from(i32::from_be_bytes(*length)).ok()?;
            after.split_at_checked(length)
        });
        let Some((block, after)) = block else {
            return Some(Err(failed(Compression::Snappy, "a block is cut short")));
        };
        self.rest = after;
        Some(Ok(block))
    }
}

/// The decompressed size that a block states.
pub(super) fn decompressed_len(block: &[u8]) -> Result<usize, RecordError> {
    let codec = Compression::Snappy;
    let length = snap::raw::decompress_len(block).map_err(|error| failed(codec, error))?;
    if length > block.len().saturating_mul(GREATEST_RATIO) {
        return Err(failed(codec, "a block claims more than it can hold"));
    }
    Ok(length)
}

/// Decompresses a block into `out`, whose length is [`decompressed_len`].
pub(super) fn decompress_block(block: &[u8], out: &mut [u8]) -> Result<(), RecordError> {
    let decompressed = snap::raw::Decoder::new().decompress(block, out);
    decompressed
        .map_err(|error| failed(Compression::Snappy, error))
        .map(drop)
}

pub(super) fn decompress(input: &[u8], limit: usize, out: &mut Vec<u8>) -> Result<(), RecordError> {
    for block in Blocks::new(input) {
        let block = block?;
        let length = decompressed_len(block)?;
        let start = out.len();
        if length > limit - start {
            let codec = Compression::Snappy;
            return Err(RecordError::DecompressedTooLarge { codec, limit });
        }
        if out.capacity() - start < length {
            // Blocks are small: the buffer doubles, up to the limit.
            let target = (start * 2).max(start + length).min(limit);
            out.reserve_exact(target - start);
        }
        out.resize(start + length, 0);
        decompress_block(block, &mut out[start..])?;
    }
    Ok(())
}
