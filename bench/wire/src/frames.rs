//! Frames off a stream: a length (i32, big-endian) and that many bytes, read into one reused buffer.

use std::io::{ErrorKind, Read};
use std::ops::Range;

use crate::error::BenchError;

/// Nothing a run exchanges is longer.
const FRAME_LIMIT: usize = 512 << 20;
const FIRST_BUFFER: usize = 1 << 20;

/// Yields one frame at a time. One read may bring several; the tail moves only when the buffer's end is reached.
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

    /// With a first buffer of `size` bytes, for a peer whose frames are small.
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

    /// The content of the next frame, `None` when the peer closed between frames.
    pub(crate) fn next(&mut self) -> Result<Option<&mut [u8]>, BenchError> {
        loop {
            if let Some(content) = self.whole()? {
                return Ok(Some(&mut self.buffer[content]));
            }
            self.make_room()?;
            let read = self.reader.read(&mut self.buffer[self.end..]);
            match read.map_err(BenchError::io("reading from the peer"))? {
                0 if self.start == self.end => return Ok(None),
                0 => {
                    return Err(BenchError::Protocol("closed in the middle of a frame".to_owned()));
                }
                count => self.end += count,
            }
        }
    }

    /// Reads once from a socket that does not block; false when all that had arrived has been read.
    pub(crate) fn fill(&mut self) -> Result<bool, BenchError> {
        self.make_room()?;
        match self.reader.read(&mut self.buffer[self.end..]) {
            Ok(0) => Err(BenchError::closed()),
            Ok(count) => {
                self.end += count;
                // What did not fill the buffer was all there was (epoll(7), on edges and streams).
                Ok(self.end == self.buffer.len())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(BenchError::io("reading from the peer")(error)),
        }
    }

    /// The content of the next frame, `None` when not all of it has been read.
    pub(crate) fn buffered(&mut self) -> Result<Option<&mut [u8]>, BenchError> {
        let content = self.whole()?;
        Ok(content.map(|content| &mut self.buffer[content]))
    }

    /// Takes the next frame if all of it is there: where its content stands.
    fn whole(&mut self) -> Result<Option<Range<usize>>, BenchError> {
        let need = self.need()?;
        if self.end - self.start < need {
            return Ok(None);
        }
        let content = self.start + 4..self.start + need;
        self.start = content.end;
        Ok(Some(content))
    }

    /// The size of the next frame with its length, or of its length when that is not known.
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

    /// The next frame of a peer that must not close yet.
    pub(crate) fn expect(&mut self) -> Result<&mut [u8], BenchError> {
        self.next()?.ok_or_else(BenchError::closed)
    }

    /// Makes room for the rest of the next frame, which is one byte at least.
    fn make_room(&mut self) -> Result<(), BenchError> {
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
