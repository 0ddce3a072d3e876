//! Frames read from a socket into a buffer that is used again.
//!
//! A frame is a big-endian int32 length and that many bytes. Each connection has one reader, owned by its
//! task. The reader checks the announced length before it allocates, and the buffer grows as bytes arrive: a
//! peer that announces 100 MB and sends nothing costs one small buffer, and a silent peer costs none. Once a
//! very long frame has begun to arrive, its whole buffer is allocated, so that nothing is copied repeatedly;
//! untouched pages of it have no memory yet. The bytes above a small buffer are counted as they are read
//! ([`crate::memory::frames`]).
//!
//! One `read` may bring several requests. The reader reads ahead of a peer that pipelines short frames while
//! there is enough memory. A frame is copied out of the buffer if it is short, or shorter than what was read
//! after it. Any other frame is given away with its buffer, and only the bytes after it are copied.
//! [`FrameReader::recycle`] takes the buffer back.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::timeout;

use crate::memory::UNCOUNTED;
use crate::memory::frames::{FrameMemory, FramePermit, LONG_FRAME, Progress, STALL};

/// The most that one read brings while no long frame arrives.
const READ_CHUNK: usize = UNCOUNTED;
/// The same for a peer that pipelines requests.
const READ_AHEAD: usize = 128 * 1024;
/// The reader does not read ahead of peers with longer frames, because it would have to copy more.
const SHORT_FRAME: usize = 32 * 1024;
/// The longest frame that is copied out because more was read after it.
const COPIED_FRAME: usize = READ_AHEAD / 2;
/// The buffer of a connection without long frames.
const SMALL_BUFFER: usize = 8 * 1024;
/// The most that the first read of a connection without a buffer brings.
const FIRST_READ: usize = 64;
/// Frames up to this length are copied out of the buffer.
const SMALL_FRAME: usize = 8 * 1024;
/// The largest buffer that a connection keeps between two requests.
const KEPT_CAPACITY: usize = 2 * 1024 * 1024;
/// The buffer of a very long frame before the whole buffer is allocated.
const BEGUN: usize = READ_CHUNK + LONG_FRAME;
/// Buffers grow by multiples of this many bytes.
const PAGE: usize = 4096;
const SIZE_PREFIX: usize = 4;

#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    /// The peer closed between two frames, as most connections end.
    #[error("closed by the peer")]
    Closed,
    #[error("closed by the peer in the middle of a frame: {missing} bytes are missing")]
    Truncated { missing: usize },
    #[error("the frame's length {length} is negative: the peer speaks another protocol or is broken")]
    Negative { length: i32 },
    #[error(
        "the frame's length {length} is above socket.request.max.bytes = {limit}: the peer speaks another \
         protocol (TLS or HTTP, perhaps) or the limit must be raised"
    )]
    TooLarge { length: i32, limit: usize },
    #[error(
        "the memory for requests is used up (queued.max.request.bytes) and the last {missing} bytes of a \
         frame arrive too slowly"
    )]
    Slow { missing: usize },
    #[error("cannot read from the socket: {0}")]
    Io(#[from] std::io::Error),
}

/// A frame without its length, and its share of the memory.
pub(crate) struct Frame {
    pub(crate) bytes: Bytes,
    pub(crate) permit: FramePermit,
}

pub(crate) struct FrameReader {
    buffer: BytesMut,
    /// For the bytes of the buffer above [`UNCOUNTED`].
    permit: FramePermit,
    /// Of the frame that is arriving, if it is counted.
    progress: Option<Progress>,
    received: u64,
    /// The most that the next read brings while the length of the frame is not known.
    ahead: usize,
    limit: usize,
    memory: Arc<FrameMemory>,
}

impl FrameReader {
    /// `limit` is the longest frame, in bytes, without its prefix.
    pub(crate) fn new(limit: usize, memory: Arc<FrameMemory>) -> Self {
        memory.enter();
        Self {
            buffer: BytesMut::new(),
            permit: FramePermit::default(),
            progress: None,
            received: 0,
            ahead: READ_CHUNK,
            limit,
            memory,
        }
    }

    /// The next frame. It may be cancelled at any await and called again: no byte is lost.
    pub(crate) async fn next(&mut self, stream: &mut (impl AsyncRead + Unpin)) -> Result<Frame, FrameError> {
        if !self.memory.may_keep(&self.permit) {
            self.shrink();
        }
        while self.buffer.len() < SIZE_PREFIX {
            if self.read_ahead(stream).await? == 0 {
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
            let most = if length <= SHORT_FRAME && self.reads_ahead() {
                self.space_ahead()
            } else {
                self.reserve(length).await
            };
            let read = self.fill(stream, missing, most).await?;
            if read == 0 {
                return Err(FrameError::Truncated { missing });
            }
            self.received += read as u64;
            if most > missing {
                self.learn(read, most);
            }
        }
        Ok(self.take(length))
    }

    /// Reads the beginning of a frame, or several frames. A connection without a buffer waits without one.
    async fn read_ahead(&mut self, stream: &mut (impl AsyncRead + Unpin)) -> Result<usize, FrameError> {
        if self.buffer.capacity() == 0 {
            let mut first = [0; FIRST_READ];
            let read = stream.read(&mut first).await?;
            self.buffer.reserve(SMALL_BUFFER);
            self.buffer.extend_from_slice(&first[..read]);
            self.received += read as u64;
            return Ok(read);
        }
        if !self.reads_ahead() {
            self.buffer.reserve(SMALL_BUFFER - self.buffer.len());
        }
        // A recycled buffer is larger than that, but bytes read after a long frame would have to be copied.
        let most = self.space_ahead();
        let mut chunk = (&mut self.buffer).limit(most);
        let read = stream.read_buf(&mut chunk).await?;
        self.received += read as u64;
        self.learn(read, most);
        Ok(read)
    }

    /// A full read has probably left more: the next one may bring twice as much.
    fn learn(&mut self, read: usize, most: usize) {
        if read == most {
            self.ahead = self.ahead.max(2 * read).min(READ_AHEAD);
        }
    }

    fn space_ahead(&self) -> usize {
        let space = self.buffer.capacity() - self.buffer.len();
        space.min(self.ahead)
    }

    /// Whether the next read may bring more than a small buffer. There must be enough memory for all
    /// connections, for the buffer and for a frame that is copied out of it.
    fn reads_ahead(&mut self) -> bool {
        let space = self.ahead.saturating_sub(self.buffer.len());
        if self.ahead == READ_CHUNK || space == 0 {
            return false;
        }
        if self.buffer.try_reclaim(space) {
            return true;
        }
        let may = self.memory.try_grow(&mut self.permit, self.ahead + COPIED_FRAME);
        if may {
            self.grow(self.ahead);
        } else {
            self.ahead = READ_CHUNK;
        }
        may
    }

    /// How many bytes of a frame the buffer may have now. A frame that has begun to arrive gets all of its
    /// buffer unless it is very long; otherwise many frames could begin and none could end. The buffer of a
    /// very long frame doubles each time.
    fn step(&self, end: usize) -> usize {
        let present = Some(self.buffer.capacity()).filter(|capacity| *capacity <= BEGUN);
        let least = match self.buffer.len() {
            ..READ_CHUNK => READ_CHUNK,
            _ => BEGUN,
        };
        let mut step = present.unwrap_or_default().max(least);
        while step <= self.buffer.len() {
            step *= 2;
        }
        step.min(end)
    }

    /// Reads some of the missing bytes, and bytes after them, into the buffer. A peer that others wait for
    /// must send fast enough.
    async fn fill(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        missing: usize,
        most: usize,
    ) -> Result<usize, FrameError> {
        loop {
            let mut chunk = (&mut self.buffer).limit(most);
            let read = stream.read_buf(&mut chunk);
            if self.permit.is_empty() {
                return Ok(read.await?);
            }
            let read = timeout(STALL, read).await;
            let progress = self.progress.get_or_insert_with(Progress::start);
            if let Ok(Ok(read)) = read {
                progress.add(read);
            }
            let others_wait = self.memory.is_short();
            if progress.is_slow(others_wait) || (others_wait && read.is_err()) {
                return Err(FrameError::Slow { missing });
            }
            if let Ok(read) = read {
                return Ok(read?);
            }
        }
    }

    /// Enlarges the buffer for more of a frame, as soon as there is memory. Returns how many bytes the next
    /// read may bring. The buffer is allocated anew, because growing in place would double it, beyond what is
    /// counted.
    async fn reserve(&mut self, frame: usize) -> usize {
        let end = SIZE_PREFIX + frame;
        let step = self.step(end);
        if self.buffer.capacity() < step || step > BEGUN {
            let counted = step.max(READ_CHUNK).next_multiple_of(PAGE);
            if self.memory.grow(&mut self.permit, counted, frame).await {
                // The wait was not the peer's fault.
                self.progress = None;
            }
            if self.buffer.capacity() < step {
                let whole = if step > BEGUN { end } else { counted };
                self.grow(whole.next_multiple_of(PAGE));
            }
        }
        step - self.buffer.len()
    }

    fn grow(&mut self, capacity: usize) {
        let mut grown = BytesMut::with_capacity(capacity);
        grown.extend_from_slice(&self.buffer);
        self.buffer = grown;
    }

    /// Whether the next frame, or a bad length, has been read already.
    pub(crate) fn has_frame(&self) -> bool {
        let length = self.buffer.len().checked_sub(SIZE_PREFIX);
        length.is_some_and(|read| self.length().map_or(true, |length| length <= read))
    }

    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// Whether a frame, or a part of one, has been read already.
    pub(crate) fn has_bytes(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// Takes back the buffer of a long frame from its handler.
    pub(crate) fn recycle(&mut self, mut memory: BytesMut, permit: FramePermit) {
        if self.buffer.is_empty()
            && memory.capacity() > self.buffer.capacity()
            && memory.capacity() <= KEPT_CAPACITY
            && self.memory.may_keep(&permit)
        {
            // The buffer also has the bytes of the prefix, in front of the frame.
            let whole = memory.capacity() + SIZE_PREFIX;
            memory.clear();
            memory.reserve(whole);
            self.buffer = memory;
            self.permit = permit;
        }
    }

    pub(crate) fn shrink(&mut self) {
        if self.buffer.is_empty() {
            self.buffer = BytesMut::new();
            self.permit = FramePermit::default();
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

    fn take(&mut self, length: usize) -> Frame {
        self.progress = None;
        if length > SHORT_FRAME {
            self.ahead = READ_CHUNK;
        }
        let end = SIZE_PREFIX + length;
        let after = self.buffer.len() - end;
        if length <= SMALL_FRAME.max(after) {
            let bytes = Bytes::copy_from_slice(&self.buffer[SIZE_PREFIX..end]);
            self.buffer.advance(end);
            return Frame {
                bytes,
                permit: FramePermit::default(),
            };
        }
        // With the bytes after it copied, the frame is the sole owner of its buffer.
        let rest = BytesMut::from(&self.buffer[end..]);
        let rest_permit = self.permit.split(after.saturating_sub(UNCOUNTED));
        let mut frame = std::mem::replace(&mut self.buffer, rest);
        frame.truncate(end);
        frame.advance(SIZE_PREFIX);
        Frame {
            bytes: frame.freeze(),
            permit: std::mem::replace(&mut self.permit, rest_permit),
        }
    }
}

impl Drop for FrameReader {
    fn drop(&mut self) {
        self.memory.leave();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tokio::io::ReadBuf;

    use super::*;

    fn framed(payload: &[u8]) -> Vec<u8> {
        [&(payload.len() as i32).to_be_bytes(), payload].concat()
    }

    fn reader(limit: usize) -> FrameReader {
        FrameReader::new(limit, Arc::new(FrameMemory::with(None, limit)))
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        runtime.unwrap().block_on(future)
    }

    // If this failed, pipelined requests would be lost, mixed up or answered out of order.
    #[test]
    fn frames_of_every_length_arrive_in_order() {
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
            let mut reader = reader(1 << 20);
            for frame in &frames {
                let read = reader.next(&mut stream).await.unwrap();
                assert_eq!(&read.bytes[..], &frame[..]);
                if let Ok(memory) = read.bytes.try_into_mut() {
                    reader.recycle(memory, read.permit);
                }
            }
            assert!(matches!(reader.next(&mut stream).await, Err(FrameError::Closed)));
        });
    }

    // If this failed, twelve bytes could make the broker allocate two gigabytes.
    #[test]
    fn an_announced_length_allocates_nothing() {
        block_on(async {
            let mut reader = reader(100 << 20);
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
                let result = reader(limit).next(&mut &wire[..]).await;
                assert!(matches!(
                    result,
                    Err(FrameError::Negative { .. } | FrameError::TooLarge { .. })
                ));
            }
        });
    }

    // If this failed, Produce would copy every request before it could write offsets into it.
    #[test]
    fn a_long_frame_is_the_sole_owner_of_its_buffer() {
        block_on(async {
            let wire = [framed(&[7; 100_000]), framed(b"next")].concat();
            let mut stream = &wire[..];
            let mut reader = reader(1 << 20);
            let frame = reader.next(&mut stream).await.unwrap().bytes;
            let address = frame.as_ptr();
            let memory = frame.try_into_mut().expect("it is not shared");
            assert_eq!(memory.as_ptr(), address);
            let next = reader.next(&mut stream).await.unwrap();
            assert_eq!(&next.bytes[..], b"next");
        });
    }

    // If this failed, a busy producer's connection would allocate for each request, or an idle one would keep
    // memory that others need.
    #[test]
    fn a_long_frames_buffer_serves_the_next_frame_and_is_counted() {
        block_on(async {
            let memory = Arc::new(FrameMemory::with(Some(1 << 20), 1 << 18));
            let mut reader = FrameReader::new(1 << 18, Arc::clone(&memory));
            let wire = framed(&[7; 100_000]).repeat(3);
            let mut stream = &wire[..];
            let mut address = None;
            for _ in 0..3 {
                let frame = reader.next(&mut stream).await.unwrap();
                // The first buffer grew, the others did not.
                let found = frame.bytes.as_ptr();
                assert!(address.is_none_or(|address| address == found));
                let memory = frame.bytes.try_into_mut().expect("it is not shared");
                reader.recycle(memory, frame.permit);
                address = Some(found);
            }
            assert!(memory.in_use() >= 100_000 - UNCOUNTED);
            reader.shrink();
            assert_eq!(memory.in_use(), 0);
        });
    }

    /// Returns as many bytes as are asked for, and counts the reads.
    struct Counted<'a> {
        wire: &'a [u8],
        reads: usize,
    }

    impl AsyncRead for Counted<'_> {
        fn poll_read(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<std::io::Result<()>> {
            self.reads += 1;
            Pin::new(&mut self.wire).poll_read(context, buffer)
        }
    }

    // If this failed, each request of a producer that pipelines would cost two reads, or bytes read ahead
    // would not be counted.
    #[test]
    fn pipelined_requests_are_read_together_and_counted() {
        block_on(async {
            let memory = Arc::new(FrameMemory::with(Some(4 << 20), 1 << 20));
            let mut reader = FrameReader::new(1 << 20, Arc::clone(&memory));
            let frames = 200;
            let wire = framed(&[7; 16_500]).repeat(frames);
            let mut stream = Counted {
                wire: &wire,
                reads: 0,
            };
            let mut together = 0;
            for _ in 0..frames {
                let frame = reader.next(&mut stream).await.unwrap();
                assert!(frame.bytes.len() == 16_500 && frame.bytes.iter().all(|byte| *byte == 7));
                together += usize::from(reader.has_frame());
                let counted = memory.in_use() + UNCOUNTED;
                assert!(reader.buffer.capacity() <= counted && counted <= 2 * READ_AHEAD + UNCOUNTED);
                if let Ok(memory) = frame.bytes.try_into_mut() {
                    reader.recycle(memory, frame.permit);
                }
            }
            assert!(stream.reads < frames / 4, "{} reads", stream.reads);
            assert!(together > frames / 2);
            reader.shrink();
            assert_eq!(memory.in_use(), 0);
        });
    }

    /// Returns small pieces, and records which buffers it was asked to fill.
    struct Dripping<'a> {
        wire: &'a [u8],
        given: usize,
        buffers: Vec<usize>,
    }

    impl AsyncRead for Dripping<'_> {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _context: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<std::io::Result<()>> {
            let count = buffer.remaining().min(1000).min(self.wire.len());
            let begins = buffer.initialize_unfilled().as_ptr() as usize - self.given;
            if self.buffers.last() != Some(&begins) {
                self.buffers.push(begins);
            }
            buffer.put_slice(&self.wire[..count]);
            self.wire = &self.wire[count..];
            self.given += count;
            Poll::Ready(Ok(()))
        }
    }

    // If this failed, all of a long frame would be copied for each piece that arrives, or be counted before
    // it arrives.
    #[test]
    fn a_long_frame_in_small_pieces_is_copied_few_times() {
        block_on(async {
            let size = 4 * LONG_FRAME + 77;
            let memory = Arc::new(FrameMemory::with(Some(64 << 20), 1 << 20));
            let mut reader = FrameReader::new(64 << 20, Arc::clone(&memory));
            let wire = framed(&vec![7; size]);
            for part in [wire.len() / 2, wire.len()] {
                let mut stream = Dripping {
                    wire: &wire[..part],
                    given: 0,
                    buffers: Vec::new(),
                };
                let read = reader.next(&mut stream).await;
                let counted = memory.in_use();
                assert!(counted <= 2 * part + BEGUN, "{counted}");
                assert!(stream.buffers.len() <= 5, "{} buffers", stream.buffers.len());
                match read {
                    Ok(frame) => assert!(frame.bytes == wire[SIZE_PREFIX..]),
                    Err(_) => {
                        assert!(part < wire.len());
                        reader = FrameReader::new(64 << 20, Arc::clone(&memory));
                    }
                }
            }
            drop(reader);
            assert_eq!(memory.in_use(), 0);
        });
    }

    // If this failed, thousands of connections would each keep a buffer that is empty nearly all the time.
    #[test]
    fn many_connections_keep_no_buffers() {
        block_on(async {
            let memory = Arc::new(FrameMemory::with(None, 1 << 20));
            let mut reader = FrameReader::new(1 << 20, Arc::clone(&memory));
            let wire = [framed(&[7; 100]), framed(&[8; 40_000])].concat().repeat(2);
            let (mut stream, mut kept) = (&wire[..], Vec::new());
            let mut others = Vec::new();
            for size in [100, 40_000, 100, 40_000] {
                let frame = reader.next(&mut stream).await.unwrap();
                assert_eq!(frame.bytes.len(), size);
                if let Ok(memory) = frame.bytes.try_into_mut() {
                    reader.recycle(memory, frame.permit);
                }
                if size == 40_000 {
                    // Nothing more has arrived.
                    let mut silent = tokio::io::empty();
                    let end = reader.next(&mut silent).await;
                    assert!(matches!(end, Err(FrameError::Closed)));
                    kept.push(reader.buffer.capacity() > READ_CHUNK);
                    let join = || FrameReader::new(100, Arc::clone(&memory));
                    others.extend((0..5000).map(|_| join()));
                }
            }
            assert_eq!(kept, [true, false]);
            drop(others);
            assert!(memory.may_keep(&FramePermit::default()));
        });
    }

    // If this failed, peers that pipeline would take the memory that other connections' requests need.
    #[test]
    fn nothing_is_read_ahead_while_memory_is_short() {
        block_on(async {
            let memory = Arc::new(FrameMemory::with(Some(400_000), 100_000));
            let mut other = FramePermit::default();
            memory.grow(&mut other, 100_000, 100_000).await;
            let mut reader = FrameReader::new(100_000, Arc::clone(&memory));
            let wire = framed(&[7; 16_500]).repeat(50);
            let mut stream = &wire[..];
            for _ in 0..50 {
                let frame = reader.next(&mut stream).await.unwrap();
                assert!(reader.buffer.capacity() <= 2 * READ_CHUNK);
                if let Ok(memory) = frame.bytes.try_into_mut() {
                    reader.recycle(memory, frame.permit);
                }
            }
        });
    }
}
