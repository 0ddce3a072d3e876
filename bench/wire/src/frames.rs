//! Reads frames from a stream into one reused buffer. A frame is a length (i32, big-endian) and that many
//! bytes.

use std::io::{ErrorKind, Read};
use std::ops::Range;

use crate::error::BenchError;

/// The longest frame that is accepted.
const FRAME_LIMIT: usize = 512 << 20;
const FIRST_BUFFER: usize = 1 << 20;

/// Returns one frame at a time. One read may bring several. An incomplete frame moves only at the buffer's
/// end.
pub(crate) struct Frames<R> {
    reader: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl<R: Read> Frames<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self::with_buffer(reader, FIRST_BUFFER)
    }

    /// Begins with a buffer of `size` bytes.
    pub(crate) fn with_buffer(reader: R, size: usize) -> Self {
        Self {
            reader,
            buffer: vec![0; size],
            start: 0,
            end: 0,
        }
    }

    pub(crate) fn get_ref(&self) -> &R {
        &self.reader
    }

    pub(crate) fn into_inner(self) -> R {
        self.reader
    }

    /// The content of the next frame. `None` if the peer closed the connection between frames.
    pub(crate) fn next(&mut self) -> Result<Option<&mut [u8]>, BenchError> {
        loop {
            if let Some(content) = self.whole()? {
                return Ok(Some(&mut self.buffer[content]));
            }
            self.grow()?;
            let read = self.reader.read(&mut self.buffer[self.end..]);
            match read.map_err(BenchError::io("reading from the peer"))? {
                0 if self.start == self.end => return Ok(None),
                0 => {
                    return Err(BenchError::Protocol("closed within a frame".to_owned()));
                }
                count => self.end += count,
            }
        }
    }

    /// Reads once from a nonblocking socket. Returns false when the socket is empty.
    pub(crate) fn fill(&mut self) -> Result<bool, BenchError> {
        self.grow()?;
        match self.reader.read(&mut self.buffer[self.end..]) {
            Ok(0) => Err(BenchError::closed()),
            Ok(count) => {
                self.end += count;
                // A read that does not fill the buffer has emptied the socket (epoll(7), edge-triggered).
                Ok(self.end == self.buffer.len())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(BenchError::io("reading from the peer")(error)),
        }
    }

    /// The content of the next frame. `None` if it is not complete yet.
    pub(crate) fn buffered(&mut self) -> Result<Option<&mut [u8]>, BenchError> {
        let content = self.whole()?;
        Ok(content.map(|content| &mut self.buffer[content]))
    }

    /// Takes the next frame if it is complete. Returns the range of its content.
    fn whole(&mut self) -> Result<Option<Range<usize>>, BenchError> {
        let need = self.need()?;
        if self.end - self.start < need {
            return Ok(None);
        }
        let content = self.start + 4..self.start + need;
        self.start = content.end;
        Ok(Some(content))
    }

    /// The size of the next frame with its length prefix, or of the prefix alone if that is not complete.
    fn need(&self) -> Result<usize, BenchError> {
        let Some(prefix) = self.buffer[self.start..self.end].first_chunk::<4>() else {
            return Ok(4);
        };
        let length = usize::try_from(i32::from_be_bytes(*prefix)).unwrap_or(usize::MAX);
        if length > FRAME_LIMIT {
            return Err(BenchError::Protocol(format!("a frame of {length} bytes")));
        }
        Ok(4 + length)
    }

    /// The next frame. A closed connection is an error.
    pub(crate) fn expect(&mut self) -> Result<&mut [u8], BenchError> {
        self.next()?.ok_or_else(BenchError::closed)
    }

    /// Makes space for the rest of the next frame, which is at least one byte.
    fn grow(&mut self) -> Result<(), BenchError> {
        let (have, need) = (self.end - self.start, self.need()?);
        if have == 0 {
            (self.start, self.end) = (0, 0);
        }
        if self.start + need > self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, have);
            if need > self.buffer.len() {
                self.buffer.resize(need, 0);
            }
        }
        Ok(())
    }
}
