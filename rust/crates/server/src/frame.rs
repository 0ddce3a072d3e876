//! Size-prefixed frames off a socket, into a buffer that is used again.
//!
//! A frame is an int32 length, big-endian, and that many bytes. One reader per connection, owned by its task.
//! The announced length is checked before anything is allocated, and memory grows as bytes arrive, never by the length alone:
//! a peer that announces 100 MB and sends nothing holds one small buffer.
//!
//! A small frame is copied out, so that one `read` may bring several requests. A large one is given away with the buffer it
//! was read into: nothing is copied, and whoever is done with it hands the memory back with [`FrameReader::recycle`].

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

/// What one read may bring while no large frame is on its way.
const READ_CHUNK: usize = 16 * 1024;
/// Frames up to this size are copied out of the buffer.
const SMALL_FRAME: usize = 8 * 1024;
/// The largest buffer a connection keeps between two requests.
const KEPT_CAPACITY: usize = 2 * 1024 * 1024;
/// The length of the length.
const SIZE_PREFIX: usize = 4;

/// Why there is no next frame.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    /// The peer closed between two frames: the usual end.
    #[error("closed by the peer")]
    Closed,
    #[error("closed by the peer in the middle of a frame: {missing} bytes are missing")]
    Truncated { missing: usize },
    #[error(
        "the frame's length {length} is negative: the peer speaks another protocol or is broken"
    )]
    Negative { length: i32 },
    #[error(
        "the frame's length {length} is above socket.request.max.bytes = {limit}: the peer speaks another protocol \
         (TLS or HTTP, perhaps) or the limit must be raised"
    )]
    TooLarge { length: i32, limit: usize },
    #[error("cannot read from the socket: {0}")]
    Io(#[from] std::io::Error),
}

/// Reads frames.
pub(crate) struct FrameReader {
    buffer: BytesMut,
    limit: usize,
}

impl FrameReader {
    /// `limit` is the longest frame, in bytes, without its prefix.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            limit,
        }
    }

    /// The next frame, without its length. May be cancelled at any await and called again: no byte is lost.
    pub(crate) async fn next(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
    ) -> Result<Bytes, FrameError> {
        while self.buffer.len() < SIZE_PREFIX {
            self.buffer.reserve(READ_CHUNK);
            // A recycled buffer has more room than that: what is read beyond a large frame has to be copied.
            let mut chunk = (&mut self.buffer).limit(READ_CHUNK);
            if stream.read_buf(&mut chunk).await? == 0 {
                return Err(match self.buffer.len() {
                    0 => FrameError::Closed,
                    some => FrameError::Truncated {
                        missing: SIZE_PREFIX - some,
                    },
                });
            }
        }
        let length = self.length()?;
        let end = SIZE_PREFIX + length;
        while self.buffer.len() < end {
            let missing = end - self.buffer.len();
            self.buffer
                .reserve(missing.min(self.buffer.len().max(READ_CHUNK)));
            let mut exact = (&mut self.buffer).limit(missing);
            if stream.read_buf(&mut exact).await? == 0 {
                return Err(FrameError::Truncated { missing });
            }
        }
        Ok(self.take(length))
    }

    /// Whether a frame, or a part of one, has been read already.
    pub(crate) fn has_bytes(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// Takes back the memory of a large frame whose handler is done with it.
    pub(crate) fn recycle(&mut self, mut memory: BytesMut) {
        if self.buffer.is_empty()
            && memory.capacity() > self.buffer.capacity()
            && memory.capacity() <= KEPT_CAPACITY
        {
            memory.clear();
            self.buffer = memory;
        }
    }

    /// Gives memory back while the connection is idle.
    pub(crate) fn shrink(&mut self) {
        if self.buffer.is_empty() {
            self.buffer = BytesMut::new();
        }
    }

    fn length(&self) -> Result<usize, FrameError> {
        let mut prefix = [0; SIZE_PREFIX];
        prefix.copy_from_slice(&self.buffer[..SIZE_PREFIX]);
        let length = i32::from_be_bytes(prefix);
        match usize::try_from(length) {
            Err(_) => Err(FrameError::Negative { length }),
            Ok(size) if size > self.limit => Err(FrameError::TooLarge {
                length,
                limit: self.limit,
            }),
            Ok(size) => Ok(size),
        }
    }

    fn take(&mut self, length: usize) -> Bytes {
        let end = SIZE_PREFIX + length;
        if length <= SMALL_FRAME {
            let frame = Bytes::copy_from_slice(&self.buffer[SIZE_PREFIX..end]);
            self.buffer.advance(end);
            return frame;
        }
        // What was read beyond the frame is at most one chunk; copying it leaves the frame the sole owner of its memory.
        let rest = BytesMut::from(&self.buffer[end..]);
        let mut frame = std::mem::replace(&mut self.buffer, rest);
        frame.truncate(end);
        frame.advance(SIZE_PREFIX);
        frame.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(payload: &[u8]) -> Vec<u8> {
        [&(payload.len() as i32).to_be_bytes(), payload].concat()
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(future)
    }

    // If this failed, pipelined requests would be lost, mixed up or answered out of order.
    #[test]
    fn frames_of_every_size_arrive_in_order() {
        let sizes = [
            0,
            1,
            5,
            SMALL_FRAME,
            SMALL_FRAME + 1,
            READ_CHUNK,
            3 * READ_CHUNK + 7,
            2,
            0,
        ];
        let frames: Vec<Vec<u8>> = sizes.iter().map(|size| vec![*size as u8; *size]).collect();
        let wire: Vec<u8> = frames.iter().flat_map(|frame| framed(frame)).collect();
        block_on(async {
            let mut stream = &wire[..];
            let mut reader = FrameReader::new(1 << 20);
            for frame in &frames {
                let read = reader.next(&mut stream).await.unwrap();
                assert_eq!(&read[..], &frame[..]);
                if let Ok(memory) = read.try_into_mut() {
                    reader.recycle(memory);
                }
            }
            assert!(matches!(
                reader.next(&mut stream).await,
                Err(FrameError::Closed)
            ));
        });
    }

    // If this failed, twelve bytes could make the broker allocate two gigabytes.
    #[test]
    fn an_announced_length_allocates_nothing() {
        block_on(async {
            let mut reader = FrameReader::new(100 << 20);
            let mut announced = &[&(100i32 << 20).to_be_bytes()[..], &[1; 100]].concat()[..];
            assert!(matches!(
                reader.next(&mut announced).await,
                Err(FrameError::Truncated { .. })
            ));
            assert!(reader.buffer.capacity() <= 4 * READ_CHUNK);
        });
    }

    // If this failed, garbage on the port would be taken for a request.
    #[test]
    fn absurd_lengths_are_refused() {
        block_on(async {
            for (length, limit) in [(-1i32, 100usize), (i32::MIN, 100), (101, 100)] {
                let wire = length.to_be_bytes();
                let result = FrameReader::new(limit).next(&mut &wire[..]).await;
                assert!(matches!(
                    result,
                    Err(FrameError::Negative { .. } | FrameError::TooLarge { .. })
                ));
            }
        });
    }

    // If this failed, Produce would copy every request before it could write offsets into it.
    #[test]
    fn a_large_frame_owns_its_memory_alone() {
        block_on(async {
            let wire = [framed(&[7; 100_000]), framed(b"next")].concat();
            let mut stream = &wire[..];
            let mut reader = FrameReader::new(1 << 20);
            let frame = reader.next(&mut stream).await.unwrap();
            let address = frame.as_ptr();
            let memory = frame.try_into_mut().expect("nobody shares it");
            assert_eq!(memory.as_ptr(), address);
            assert_eq!(&reader.next(&mut stream).await.unwrap()[..], b"next");
        });
    }
}
