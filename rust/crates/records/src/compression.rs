//! The five compression codecs of record batches, each bounded when it decompresses.
//!
//! The payload of a batch is compressed as a whole:
//!
//! - gzip: RFC 1952, members may follow each other.
//! - snappy: written in the blocks of xerial's snappy-java, which Java clients write; read so or as one raw block.
//! - lz4: the LZ4 frame format 1.5 or later. Message sets v0 had a wrong header checksum (KAFKA-3160), which
//!   [`decompress_lz4_legacy`] mends before reading.
//! - zstd: RFC 8878.
//!
//! A hostile payload may decompress to a million times its size. The output therefore grows step by step and never
//! beyond the caller's limit; a codec's own state on top of it is bounded by a constant (4 MiB blocks for lz4).

use std::cell::RefCell;
use std::fmt;
use std::io::{Read, Write};
use std::ops::RangeInclusive;
use std::str::FromStr;

use zstd::zstd_safe;

use crate::error::RecordError;

mod lz4;
mod snappy;
pub(crate) mod stream;

/// How the records of a batch are compressed. The numbers are the codes in a batch's attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Compression {
    #[default]
    None = 0,
    Gzip = 1,
    Snappy = 2,
    Lz4 = 3,
    Zstd = 4,
}

impl Compression {
    /// Every codec, by code.
    pub const ALL: [Compression; 5] = [
        Compression::None,
        Compression::Gzip,
        Compression::Snappy,
        Compression::Lz4,
        Compression::Zstd,
    ];

    /// The number in the lowest three bits of a batch's attributes.
    #[inline]
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The codec with this number.
    #[inline]
    pub fn from_code(code: u8) -> Result<Self, RecordError> {
        Self::ALL
            .get(usize::from(code))
            .copied()
            .ok_or(RecordError::UnknownCompression(code))
    }

    /// The levels that `compression.<codec>.level` may have; `None` where there is no such setting.
    ///
    /// Source: `GzipCompression`, `Lz4Compression` and `ZstdCompression` of Kafka 3.9, whose gzip takes -1, the default, too.
    pub fn levels(self) -> Option<RangeInclusive<i32>> {
        match self {
            Self::None | Self::Snappy => None,
            Self::Gzip => Some(1..=9),
            Self::Lz4 => Some(1..=17),
            Self::Zstd => Some(-131_072..=22),
        }
    }

    /// No payload of `size` bytes decompresses to more bytes than this, whatever it contains.
    ///
    /// A match of deflate has at most 258 bytes for two bits (RFC 1951), a byte of LZ4's block format adds at most 255, and
    /// zstd has blocks of 128 KiB in four bytes (RFC 8878).
    pub fn most_decompressed(self, size: usize) -> usize {
        let ratio = match self {
            Self::None => return size,
            Self::Gzip => 1032,
            Self::Snappy => snappy::GREATEST_RATIO,
            Self::Lz4 => 255,
            Self::Zstd => 32 << 10,
        };
        // What begins in the last byte counts whole.
        (size + 1).saturating_mul(ratio)
    }

    /// The name in `compression.type`.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
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
/// `level` applies to gzip (1 to 9) and zstd (negative to 22), is clamped to what the codec knows, and `None` is its
/// default. On error `out` may have got bytes.
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

/// Decompresses `input` into `out`, whose old content is dropped and whose capacity is used.
///
/// Errors: the payload is damaged, or its content is longer than `limit` bytes. `out` is then unspecified but no
/// longer than `limit`.
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

/// Compresses `input` to an lz4 frame of a message set v0 and appends it to `out`: with the header checksum that old readers
/// insist on.
pub(crate) fn compress_lz4_legacy(input: &[u8], out: &mut Vec<u8>) -> Result<(), RecordError> {
    let start = out.len();
    compress(Compression::Lz4, None, input, out)?;
    lz4::spoil_header(&mut out[start..])
}

/// Decompresses an lz4 frame of a message set v0, whose header checksum may be the wrong one of old clients.
pub fn decompress_lz4_legacy(input: &[u8], limit: usize, out: &mut Vec<u8>) -> Result<(), RecordError> {
    out.clear();
    let (header, rest) = lz4::mend_header(input)?;
    let decoder = lz4_flex::frame::FrameDecoder::new(header.as_slice().chain(rest));
    read_bounded(Compression::Lz4, decoder, limit, out)
}

/// The first step of an output buffer; small batches need one allocation.
const FIRST_OUTPUT: usize = 16 * 1024;

/// Reads to the end or to `limit`. The buffer doubles, and is never greater than `limit`.
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
                // Full: it was all only if nothing follows.
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
    // Contexts cost more to make than a small batch costs to code.
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

/// Decompresses in one call, which unlike streaming needs no window beside the output: a frame may ask for a window
/// of 128 MiB and more. A frame that does not tell its size is tried again with four times the room.
fn decompress_zstd(input: &[u8], limit: usize, out: &mut Vec<u8>) -> Result<(), RecordError> {
    let codec = Compression::Zstd;
    let too_small =
        (zstd_safe::zstd_sys::ZSTD_ErrorCode::ZSTD_error_dstSize_tooSmall as usize).wrapping_neg();
    let told = match zstd_safe::get_frame_content_size(input) {
        Ok(size) => size.unwrap_or(0),
        Err(_) => return Err(failed(codec, "the frame header is damaged")),
    };
    if told > limit as u64 {
        return Err(RecordError::DecompressedTooLarge { codec, limit });
    }
    let mut room = out
        .capacity()
        .max(told as usize)
        .max(input.len().saturating_mul(4))
        .max(FIRST_OUTPUT)
        .min(limit);
    loop {
        out.clear();
        out.reserve_exact(room);
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
                room = room.saturating_mul(4).min(limit);
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
