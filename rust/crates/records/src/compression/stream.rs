//! Decompresses a batch piece by piece, in memory that does not grow with the batch.
//!
//! A source has one piece of at most [`PIECE`] bytes and replaces it by the next. Buffers and contexts belong
//! to the thread and are reused. Two payloads need more memory than a piece: a snappy block is decompressed
//! in one step, and zstd keeps the window that the frame asks for. [`Limits::buffer_max`] bounds both. The
//! codecs' other state is bounded by constants: 32 KiB for gzip, two blocks of at most 4 MiB for lz4, 8 MiB
//! for zstd.

use std::cell::RefCell;
use std::io::Read;

use zstd::zstd_safe;

use super::{Compression, failed, lz4, snappy, zstd_error};
use crate::error::RecordError;

/// The size of a piece.
const PIECE: usize = 64 << 10;
/// A larger buffer is freed after use.
const KEPT_MAX: usize = 1 << 20;
/// The window that every zstd decoder supports (RFC 8878, 3.1.1.1.2). [`Limits::buffer_max`] does not count
/// it.
const ZSTD_WINDOW: usize = 8 << 20;
/// The largest window exponent of zstd's streaming decoders, Kafka's too (`ZSTD_WINDOWLOG_LIMIT_DEFAULT`).
const ZSTD_WINDOW_LOG_MAX: u32 = 27;

/// Runs a closure that may take long. A server runs it without blocking other connections.
pub type Offload = fn(&mut dyn FnMut());

/// The memory and time that checking a batch may take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The most bytes that the batch may decompress to.
    pub output_max: usize,
    /// The most memory for a snappy block or a zstd window.
    pub buffer_max: usize,
    /// Runs the rest of the decompression after 256 KiB of output.
    pub offload: Offload,
}

/// After this much output, some 0.3 ms of work, the rest is decompressed by [`Limits::offload`].
pub(crate) const OFFLOAD_AFTER: usize = 256 << 10;

impl Limits {
    /// Limits the decompressed bytes only, for a caller that may block.
    pub fn within(output_max: usize) -> Self {
        Self {
            output_max,
            buffer_max: output_max,
            offload: |work| work(),
        }
    }
}

/// The payload of a batch, in pieces.
pub(crate) trait Source {
    fn piece(&self) -> &[u8];
    /// Replaces the piece by the next one; false at the end.
    fn advance(&mut self) -> Result<bool, RecordError>;
}

/// An uncompressed payload: one piece.
pub(crate) struct Plain<'a> {
    payload: &'a [u8],
    started: bool,
}

impl<'a> Plain<'a> {
    pub(crate) fn new(payload: &'a [u8]) -> Self {
        Self {
            payload,
            started: false,
        }
    }
}

impl Source for Plain<'_> {
    #[inline]
    fn piece(&self) -> &[u8] {
        if self.started { self.payload } else { &[] }
    }

    fn advance(&mut self) -> Result<bool, RecordError> {
        Ok(!std::mem::replace(&mut self.started, true))
    }
}

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static ZSTD: RefCell<Option<zstd_safe::DCtx<'static>>> = const { RefCell::new(None) };
}

/// The thread's buffer, given back when it is dropped.
struct Buffer {
    bytes: Vec<u8>,
    filled: usize,
}

impl Buffer {
    fn take() -> Self {
        let bytes = BUFFER.with_borrow_mut(std::mem::take);
        Self { bytes, filled: 0 }
    }

    /// The buffer with at least `size` bytes. Old content stays, so that no piece needs clearing.
    fn at_least(&mut self, size: usize) -> &mut [u8] {
        if self.bytes.len() < size {
            self.bytes.resize(size, 0);
        }
        &mut self.bytes
    }

    fn piece(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.bytes.capacity() <= KEPT_MAX {
            BUFFER.with_borrow_mut(|kept| *kept = std::mem::take(&mut self.bytes));
        }
    }
}

/// A codec whose decoder is a reader.
pub(crate) struct Reader<R> {
    codec: Compression,
    decoder: R,
    buffer: Buffer,
}

impl<R: Read> Reader<R> {
    pub(crate) fn new(codec: Compression, decoder: R) -> Self {
        Self {
            codec,
            decoder,
            buffer: Buffer::take(),
        }
    }
}

impl<R: Read> Source for Reader<R> {
    #[inline]
    fn piece(&self) -> &[u8] {
        self.buffer.piece()
    }

    fn advance(&mut self) -> Result<bool, RecordError> {
        let out = self.buffer.at_least(PIECE);
        let read = loop {
            match self.decoder.read(&mut out[..PIECE]) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        self.buffer.filled = read.map_err(|error| failed(self.codec, error))?;
        Ok(self.buffer.filled > 0)
    }
}

/// Lz4: one or more frames.
pub(crate) struct Lz4<'a>(Reader<lz4_flex::frame::FrameDecoder<&'a [u8]>>);

impl<'a> Lz4<'a> {
    pub(crate) fn new(payload: &'a [u8]) -> Result<Self, RecordError> {
        lz4::check_end(payload)?;
        let decoder = lz4_flex::frame::FrameDecoder::new(payload);
        Ok(Self(Reader::new(Compression::Lz4, decoder)))
    }
}

impl Source for Lz4<'_> {
    #[inline]
    fn piece(&self) -> &[u8] {
        self.0.piece()
    }

    fn advance(&mut self) -> Result<bool, RecordError> {
        self.0.advance()
    }
}

/// Snappy, block by block.
pub(crate) struct Snappy<'a> {
    blocks: snappy::Blocks<'a>,
    buffer_max: usize,
    buffer: Buffer,
}

impl<'a> Snappy<'a> {
    pub(crate) fn new(payload: &'a [u8], buffer_max: usize) -> Self {
        Self {
            blocks: snappy::Blocks::new(payload),
            buffer_max,
            buffer: Buffer::take(),
        }
    }
}

impl Source for Snappy<'_> {
    #[inline]
    fn piece(&self) -> &[u8] {
        self.buffer.piece()
    }

    fn advance(&mut self) -> Result<bool, RecordError> {
        // An empty block is not the end.
        while let Some(block) = self.blocks.next().transpose()? {
            let length = snappy::decompressed_len(block)?;
            if length > self.buffer_max.max(PIECE) {
                return Err(RecordError::DecompressedTooLarge {
                    codec: Compression::Snappy,
                    limit: self.buffer_max,
                });
            }
            let out = self.buffer.at_least(length);
            snappy::decompress_block(block, &mut out[..length])?;
            self.buffer.filled = length;
            if length > 0 {
                return Ok(true);
            }
        }
        self.buffer.filled = 0;
        Ok(false)
    }
}

/// Zstd, frame by frame.
pub(crate) struct Zstd<'a> {
    input: zstd_safe::InBuffer<'a>,
    /// `Some` until the source is dropped.
    context: Option<zstd_safe::DCtx<'static>>,
    /// The last frame was read to its end.
    complete: bool,
    window_log_max: u32,
    buffer: Buffer,
}

impl<'a> Zstd<'a> {
    pub(crate) fn new(payload: &'a [u8], buffer_max: usize) -> Result<Self, RecordError> {
        let window = buffer_max.clamp(ZSTD_WINDOW, 1 << ZSTD_WINDOW_LOG_MAX);
        let window_log_max = window.ilog2();
        let mut context = ZSTD
            .with_borrow_mut(Option::take)
            .unwrap_or_else(zstd_safe::DCtx::create);
        context
            .reset(zstd_safe::ResetDirective::SessionAndParameters)
            .and_then(|_| context.set_parameter(zstd_safe::DParameter::WindowLogMax(window_log_max)))
            .map_err(zstd_error)?;
        Ok(Self {
            input: zstd_safe::InBuffer::around(payload),
            context: Some(context),
            complete: true,
            window_log_max,
            buffer: Buffer::take(),
        })
    }
}

impl Source for Zstd<'_> {
    #[inline]
    fn piece(&self) -> &[u8] {
        self.buffer.piece()
    }

    fn advance(&mut self) -> Result<bool, RecordError> {
        let bytes = self.buffer.at_least(PIECE);
        let mut out = zstd_safe::OutBuffer::around(&mut bytes[..PIECE]);
        // A call may consume input without output, and output may remain in the context after all input is
        // consumed.
        loop {
            let consumed = self.input.pos;
            if self.complete && consumed == self.input.src.len() {
                break;
            }
            let Some(context) = &mut self.context else {
                unreachable!("the context is taken by drop");
            };
            let hint = context
                .decompress_stream(&mut out, &mut self.input)
                .map_err(|code| stream_error(code, self.window_log_max))?;
            self.complete = hint == 0;
            if out.pos() == PIECE {
                break;
            }
            if !self.complete && self.input.pos == consumed && self.input.pos == self.input.src.len() {
                return Err(failed(Compression::Zstd, "the payload is cut short"));
            }
        }
        self.buffer.filled = out.pos();
        Ok(self.buffer.filled > 0)
    }
}

impl Drop for Zstd<'_> {
    fn drop(&mut self) {
        // A context keeps its window's memory.
        if 1 << self.window_log_max <= ZSTD_WINDOW {
            ZSTD.with_borrow_mut(|kept| *kept = self.context.take());
        }
    }
}

/// The error for a window above the caller's limit, which a larger limit may allow, up to 128 MiB.
fn stream_error(code: zstd_safe::ErrorCode, window_log_max: u32) -> RecordError {
    let too_large = zstd_safe::zstd_sys::ZSTD_ErrorCode::ZSTD_error_frameParameter_windowTooLarge as usize;
    if code == too_large.wrapping_neg() && window_log_max < ZSTD_WINDOW_LOG_MAX {
        return RecordError::DecompressedTooLarge {
            codec: Compression::Zstd,
            limit: 1 << window_log_max,
        };
    }
    zstd_error(code)
}
