//! Frames off a stream: a length (i32, big-endian) and that many bytes, read into one reused buffer.

use std::io::Read;

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
        Self {
            reader,
            buffer: vec![0; FIRST_BUFFER],
            start: 0,
            end: 0,
        }
    }

    /// The content of the next frame, `None` when the peer closed between frames.
    pub(crate) fn next(&mut self) -> Result<Option<&mut [u8]>, BenchError> {
        loop {
            let have = self.end - self.start;
            let mut need = 4;
            if let Some(prefix) = self.buffer[self.start..self.end].first_chunk::<4>() {
                let length = usize::try_from(i32::from_be_bytes(*prefix)).unwrap_or(usize::MAX);
                if length > FRAME_LIMIT {
                    return Err(BenchError::Protocol(format!("a frame of {length} bytes")));
                }
                need += length;
                if have >= need {
                    let content = self.start + 4..self.start + need;
                    self.start = content.end;
                    return Ok(Some(&mut self.buffer[content]));
                }
            }
            self.make_room(have, need);
            let read = self.reader.read(&mut self.buffer[self.end..]);
            match read.map_err(BenchError::io("reading from the peer"))? {
                0 if have == 0 => return Ok(None),
                0 => {
                    return Err(BenchError::Protocol(
                        "closed in the middle of a frame".to_owned(),
                    ));
                }
                count => self.end += count,
            }
        }
    }

    /// The next frame of a peer that must not close yet.
    pub(crate) fn expect(&mut self) -> Result<&mut [u8], BenchError> {
        self.next()?.ok_or_else(|| {
            BenchError::Protocol("the peer closed the connection instead of answering".to_owned())
        })
    }

    /// Makes room for a frame of `need` bytes of which `have` are there, and for one byte to read at least.
    fn make_room(&mut self, have: usize, need: usize) {
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
    }
}
