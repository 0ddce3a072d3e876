//! Compressing and decompressing the records of a batch, with a limit on decompressed bytes.
//!
//! The records of a batch are compressed together:
//!
//! - gzip: RFC 1952, one or more members.
//! - snappy: in the frame of xerial's snappy-java, as Java clients write it. One raw block is read, too.
//! - lz4: the LZ4 frame format 1.5 or later. Message sets v0 have a wrong header checksum (KAFKA-3160), which
//!   [`decompress_lz4_legacy`] corrects first.
//! - zstd: RFC 8878.
//!
//! A hostile payload may decompress to a million times its size. So the output buffer grows in steps and
//! stops at the caller's limit. A codec's own state is bounded by a constant, such as 4 MiB blocks for lz4.

use std::cell::RefCell;
use std::fmt;
use std::io::{Read, Write};
use std::str::FromStr;

use zstd::zstd_safe;

pub use crate::codec::Compression;
use crate::error::RecordError;

mod lz4;
mod snappy;
pub(crate) mod stream;

impl Compression {
    /// The codec with this code.
    #[inline]
    pub fn from_code(code: u8) -> Result<Self, RecordError> {
        Self::ALL
            .get(usize::from(code))
            .copied()
            .ok_or(RecordError::UnknownCompression(code))
    }

    /// The most bytes that a payload of `size` bytes can decompress to.
    ///
    /// A deflate match is at most 258 bytes in two bits (RFC 1951). A byte of an LZ4 block adds at most 255
    /// bytes. A zstd block is 128 KiB in four bytes (RFC 8878).
    pub fn most_decompressed(self, size: usize) -> usize {
        let ratio = match self {
            Self::None => return size,
            Self::Gzip => 1032,
            Self::Snappy => snappy::GREATEST_RATIO,
            Self::Lz4 => 255,
            Self::Zstd => 32 << 10,
        };
        // A match that begins in the last byte counts in full.
        (size + 1).saturating_mul(ratio)
    }
}

impl FromStr for Compression {
    type Err = RecordError;

    fn from_str(name: &str) -> Result<Self, RecordError> {
        Self::ALL
            .into_iter()
            .find(|codec| codec.name() == name)
            .ok_or_else(|| RecordError::UnknownCompressionName(name.to_owned()))
    }
}

fn failed(codec: Compression, reason: impl fmt::Display) -> RecordError {
    RecordError::Codec {
        codec,
        reason: reason.to_string(),
    }
}

/// Compresses `input` and appends the result to `out`.
///
/// `level` applies to gzip (1 to 9) and zstd (negative to 22). It is clamped to the codec's range; `None` is
/// the codec's default. After an error `out` may hold part of the result.
pub fn compress(
    codec: Compression,
    level: Option<i32>,
    input: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), RecordError> {
    match codec {
        Compression::None => {
            out.extend_from_slice(input);
            Ok(())
        }
        Compression::Gzip => {
            let level = level.map_or_else(flate2::Compression::default, |level| {
                flate2::Compression::new(level.clamp(1, 9) as u32)
            });
            let mut encoder = flate2::write::GzEncoder::new(out, level);
            let written = encoder.write_all(input).and_then(|()| encoder.try_finish());
            written.map_err(|error| failed(codec, error))
        }
        Compression::Snappy => snappy::compress(input, out),
        Compression::Lz4 => {
            let info = lz4_flex::frame::FrameInfo::new()
                .block_size(lz4_flex::frame::BlockSize::Max64KB)
                .block_mode(lz4_flex::frame::BlockMode::Independent);
            let mut encoder = lz4_flex::frame::FrameEncoder::with_frame_info(info, out);
            encoder.write_all(input).map_err(|error| failed(codec, error))?;
            encoder.finish().map_err(|error| failed(codec, error))?;
            Ok(())
        }
        Compression::Zstd => compress_zstd(level, input, out),
    }
}

/// Decompresses `input` into `out`, replacing its content and reusing its capacity.
///
/// Errors: the payload is damaged, or decompresses to more than `limit` bytes. The content of `out` is then
/// unspecified, but no longer than `limit`.
pub fn decompress(
    codec: Compression,
    input: &[u8],
    limit: usize,
    out: &mut Vec<u8>,
) -> Result<(), RecordError> {
    out.clear();
    match codec {
        Compression::None => {
            if input.len() > limit {
                return Err(RecordError::DecompressedTooLarge { codec, limit });
            }
            out.extend_from_slice(input);
            Ok(())
        }
        Compression::Gzip => read_bounded(codec, flate2::bufread::MultiGzDecoder::new(input), limit, out),
        Compression::Snappy => snappy::decompress(input, limit, out),
        Compression::Lz4 => read_bounded(codec, lz4_flex::frame::FrameDecoder::new(input), limit, out),
        Compression::Zstd => decompress_zstd(input, limit, out),
    }
}

/// Compresses `input` to an lz4 frame of a message set v0 and appends it to `out`. The frame has the wrong
/// header checksum that old readers require.
pub(crate) fn compress_lz4_legacy(input: &[u8], out: &mut Vec<u8>) -> Result<(), RecordError> {
    let start = out.len();
    compress(Compression::Lz4, None, input, out)?;
    lz4::write_legacy_checksum(&mut out[start..])
}

/// Decompresses an lz4 frame of a message set v0, whose header checksum may be the wrong one of old clients.
pub fn decompress_lz4_legacy(input: &[u8], limit: usize, out: &mut Vec<u8>) -> Result<(), RecordError> {
    out.clear();
    let (header, rest) = lz4::correct_header(input)?;
    let decoder = lz4_flex::frame::FrameDecoder::new(header.as_slice().chain(rest));
    read_bounded(Compression::Lz4, decoder, limit, out)
}

/// The first size of an output buffer. Small batches need one allocation.
const FIRST_OUTPUT: usize = 16 * 1024;

/// Reads to the end or to `limit`. The buffer doubles, up to `limit`.
fn read_bounded(
    codec: Compression,
    mut reader: impl Read,
    limit: usize,
    out: &mut Vec<u8>,
) -> Result<(), RecordError> {
    let mut filled = 0;
    loop {
        if filled == out.len() {
            if filled == limit {
                // The buffer is full: the payload is complete only if no byte follows.
                return match reader.read(&mut [0]) {
                    Ok(0) => Ok(()),
                    Ok(_) => Err(RecordError::DecompressedTooLarge { codec, limit }),
                    Err(error) => Err(failed(codec, error)),
                };
            }
            let target = (filled * 2).max(out.capacity()).max(FIRST_OUTPUT).min(limit);
            out.reserve_exact(target - filled);
            out.resize(target, 0);
        }
        match reader.read(&mut out[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(codec, error)),
        }
    }
    out.truncate(filled);
    Ok(())
}

thread_local! {
    // Making a context costs more than coding a small batch.
    static ZSTD_ENCODER: RefCell<Option<zstd_safe::CCtx<'static>>> = const { RefCell::new(None) };
    static ZSTD_DECODER: RefCell<Option<zstd_safe::DCtx<'static>>> = const { RefCell::new(None) };
}

fn zstd_error(code: zstd_safe::ErrorCode) -> RecordError {
    failed(Compression::Zstd, zstd_safe::get_error_name(code))
}

fn compress_zstd(level: Option<i32>, input: &[u8], out: &mut Vec<u8>) -> Result<(), RecordError> {
    let level = level
        .unwrap_or(zstd_safe::CLEVEL_DEFAULT)
        .clamp(zstd_safe::min_c_level(), zstd_safe::max_c_level());
    let start = out.len();
    out.resize(start + zstd_safe::compress_bound(input.len()), 0);
    let written = ZSTD_ENCODER.with_borrow_mut(|context| {
        let context = context.get_or_insert_with(zstd_safe::CCtx::create);
        context
            .compress(&mut out[start..], input, level)
            .map_err(zstd_error)
    })?;
    out.truncate(start + written);
    Ok(())
}

/// Decompresses in one call. Unlike streaming, that needs no window next to the output: a frame may ask for
/// 128 MiB and more. When a frame does not state its size, the buffer is enlarged fourfold until it fits.
fn decompress_zstd(input: &[u8], limit: usize, out: &mut Vec<u8>) -> Result<(), RecordError> {
    let codec = Compression::Zstd;
    let too_small =
        (zstd_safe::zstd_sys::ZSTD_ErrorCode::ZSTD_error_dstSize_tooSmall as usize).wrapping_neg();
    let stated = match zstd_safe::get_frame_content_size(input) {
        Ok(size) => size.unwrap_or(0),
        Err(_) => return Err(failed(codec, "the frame header is damaged")),
    };
    if stated > limit as u64 {
        return Err(RecordError::DecompressedTooLarge { codec, limit });
    }
    let mut capacity = out
        .capacity()
        .max(stated as usize)
        .max(input.len().saturating_mul(4))
        .max(FIRST_OUTPUT)
        .min(limit);
    loop {
        out.clear();
        out.reserve_exact(capacity);
        let result = ZSTD_DECODER.with_borrow_mut(|context| {
            let context = context.get_or_insert_with(zstd_safe::DCtx::create);
            context.decompress(out, input)
        });
        match result {
            Ok(size) if size > limit => {
                return Err(RecordError::DecompressedTooLarge { codec, limit });
            }
            Ok(_) => return Ok(()),
            Err(code) if code == too_small && out.capacity() < limit => {
                capacity = capacity.saturating_mul(4).min(limit);
            }
            Err(code) if code == too_small => {
                return Err(RecordError::DecompressedTooLarge { codec, limit });
            }
            Err(code) => return Err(zstd_error(code)),
        }
    }
}

#[cfg(test)]
mod tests;
