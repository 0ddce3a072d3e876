//! Size-prefixed frames off a socket, into a buffer that is used again.
//!
//! A frame is an int32 length, big-endian, and that many bytes. One reader per connection, owned by its task.
//! The announced length is checked before anything is allocated, and memory grows as bytes arrive, never by the length alone:
//! a peer that announces 100 MB and sends nothing holds one small buffer, and one that sends nothing at all holds none. Of a
//! very large frame that has begun to come the whole buffer is made, so that nothing is copied again and again; what did not
//! come has no memory behind it yet. What is more than a small buffer is counted as it is read into ([`crate::memory::frames`]).
//!
//! One `read` may bring several requests: of a peer that sends ahead more is read at once, as long as its frames are short and
//! memory is not. A frame is copied out if it is small or more was read behind it than is in it. Any other is given away with
//! the buffer it was read into: only what is behind it is copied, and whoever is done with it hands the memory back with
//! [`FrameReader::recycle`].

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::timeout;

use crate::memory::frames::{Charge, FREE, LARGE, Progress, RequestMemory, STALL};

/// What one read may bring while no large frame is on its way.
const READ_CHUNK: usize = FREE;
/// The same of a peer that sends ahead.
const READ_AHEAD: usize = 128 * 1024;
/// Peers with longer frames are not read ahead of: less is copied so.
const SHORT_FRAME: usize = 32 * 1024;
/// The longest frame that is copied out because more was read behind it.
const COPIED_FRAME: usize = READ_AHEAD / 2;
/// The buffer of a connection that has no large frames.
const SMALL_BUFFER: usize = 8 * 1024;
/// What the first read of a connection without a buffer may bring.
const FIRST_READ: usize = 64;
/// Frames up to this size are copied out of the buffer.
const SMALL_FRAME: usize = 8 * 1024;
/// The largest buffer a connection keeps between two requests.
const KEPT_CAPACITY: usize = 2 * 1024 * 1024;
/// What is had of a very large frame before the whole buffer is made.
const BEGUN: usize = READ_CHUNK + LARGE;
/// Buffers grow by multiples of this.
const PAGE: usize = 4096;
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
    #[error("the frame's length {length} is negative: the peer speaks another protocol or is broken")]
    Negative { length: i32 },
    #[error(
        "the frame's length {length} is above socket.request.max.bytes = {limit}: the peer speaks another protocol \
         (TLS or HTTP, perhaps) or the limit must be raised"
    )]
    TooLarge { length: i32, limit: usize },
    #[error(
        "memory for requests is short (queued.max.request.bytes) and the other {missing} bytes of a frame come too slowly"
    )]
    Slow { missing: usize },
    #[error("cannot read from the socket: {0}")]
    Io(#[from] std::io::Error),
}

/// A frame without its length, and the memory it has.
pub(crate) struct Frame {
    pub(crate) bytes: Bytes,
    pub(crate) charge: Charge,
}

/// Reads frames.
pub(crate) struct FrameReader {
    buffer: BytesMut,
    /// For what the buffer has beyond [`FREE`].
    charge: Charge,
    /// Of the frame that is on its way, if it is counted.
    progress: Option<Progress>,
    /// Bytes that came so far.
    received: u64,
    /// What the next read may bring before it is known how long the frame is.
    ahead: usize,
    limit: usize,
    memory: Arc<RequestMemory>,
}

impl FrameReader {
    /// `limit` is the longest frame, in bytes, without its prefix.
    pub(crate) fn new(limit: usize, memory: Arc<RequestMemory>) -> Self {
        memory.enter();
        Self {
            buffer: BytesMut::new(),
            charge: Charge::default(),
            progress: None,
            received: 0,
            ahead: READ_CHUNK,
            limit,
            memory,
        }
    }

    /// The next frame. May be cancelled at any await and called again: no byte is lost.
    pub(crate) async fn next(&mut self, stream: &mut (impl AsyncRead + Unpin)) -> Result<Frame, FrameError> {
        if !self.memory.may_keep(&self.charge) {
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
            let most = if length <= SHORT_FRAME && self.has_room_ahead() {
                self.room_ahead()
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

    /// Reads what may be the beginning of a frame, or several frames. Waits without a buffer while there is none.
    async fn read_ahead(&mut self, stream: &mut (impl AsyncRead + Unpin)) -> Result<usize, FrameError> {
        if self.buffer.capacity() == 0 {
            let mut first = [0; FIRST_READ];
            let read = stream.read(&mut first).await?;
            self.buffer.reserve(SMALL_BUFFER);
            self.buffer.extend_from_slice(&first[..read]);
            self.received += read as u64;
            return Ok(read);
        }
        if !self.has_room_ahead() {
            self.buffer.reserve(SMALL_BUFFER - self.buffer.len());
        }
        // A recycled buffer has more room than that: what is read beyond a large frame has to be copied.
        let most = self.room_ahead();
        let mut chunk = (&mut self.buffer).limit(most);
        let read = stream.read_buf(&mut chunk).await?;
        self.received += read as u64;
        self.learn(read, most);
        Ok(read)
    }

    /// A read that brought all it could is taken to have left more: the next one may bring twice as much.
    fn learn(&mut self, read: usize, most: usize) {
        if read == most {
            self.ahead = self.ahead.max(2 * read).min(READ_AHEAD);
        }
    }

    /// What one read may bring.
    fn room_ahead(&self) -> usize {
        let room = self.buffer.capacity() - self.buffer.len();
        room.min(self.ahead)
    }

    /// Whether more than a small buffer is read at once: as long as there is memory for everybody, for the buffer and for a
    /// frame that is copied out of it.
    fn has_room_ahead(&mut self) -> bool {
        let room = self.ahead.saturating_sub(self.buffer.len());
        if self.ahead == READ_CHUNK || room == 0 {
            return false;
        }
        if self.buffer.try_reclaim(room) {
            return true;
        }
        let may = self.memory.try_grow(&mut self.charge, self.ahead + COPIED_FRAME);
        if may {
            self.grow(self.ahead);
        } else {
            self.ahead = READ_CHUNK;
        }
        may
    }

    /// How much of a frame may be had now: what there is a buffer for, and one that has begun to come is let in whole unless it is
    /// very large, so that those of a crowd do not all begin and none can end. Of the others twice as much each time.
    fn step(&self, end: usize) -> usize {
        let had = Some(self.buffer.capacity()).filter(|capacity| *capacity <= BEGUN);
        let least = match self.buffer.len() {
            ..READ_CHUNK => READ_CHUNK,
            _ => BEGUN,
        };
        let mut step = had.unwrap_or_default().max(least);
        while step <= self.buffer.len() {
            step *= 2;
        }
        step.min(end)
    }

    /// Reads some of the missing bytes, and what is behind them, into the room there is. A peer that keeps others waiting for
    /// memory must send.
    async fn fill(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        missing: usize,
        most: usize,
    ) -> Result<usize, FrameError> {
        loop {
            let mut chunk = (&mut self.buffer).limit(most);
            let read = stream.read_buf(&mut chunk);
            if self.charge.is_free() {
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

    /// Makes room for more of a frame, as soon as the connection may have it; returns how many bytes of the frame the next read
    /// may bring. Growing in place would double the buffer, and more would be had than is counted.
    async fn reserve(&mut self, frame: usize) -> usize {
        let end = SIZE_PREFIX + frame;
        let step = self.step(end);
        if self.buffer.capacity() < step || step > BEGUN {
            let counted = step.max(READ_CHUNK).next_multiple_of(PAGE);
            if self.memory.grow(&mut self.charge, counted, frame).await {
                // Meanwhile it was not the peer that was slow.
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

    /// Whether the next frame has been read already, or what is wrong with it.
    pub(crate) fn has_frame(&self) -> bool {
        let length = self.buffer.len().checked_sub(SIZE_PREFIX);
        length.is_some_and(|read| self.length().map_or(true, |length| length <= read))
    }

    /// How many bytes came so far.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// Whether a frame, or a part of one, has been read already.
    pub(crate) fn has_bytes(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// Takes back the memory of a large frame whose handler is done with it.
    pub(crate) fn recycle(&mut self, mut memory: BytesMut, charge: Charge) {
        if self.buffer.is_empty()
            && memory.capacity() > self.buffer.capacity()
            && memory.capacity() <= KEPT_CAPACITY
            && self.memory.may_keep(&charge)
        {
            // Room for the prefix was in front of the frame, and is there again.
            let whole = memory.capacity() + SIZE_PREFIX;
            memory.clear();
            memory.reserve(whole);
            self.buffer = memory;
            self.charge = charge;
        }
    }

    /// Gives memory back while the connection is idle.
    pub(crate) fn shrink(&mut self) {
        if self.buffer.is_empty() {
            self.buffer = BytesMut::new();
            self.charge = Charge::default();
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
        let behind = self.buffer.len() - end;
        if length <= SMALL_FRAME.max(behind) {
            let bytes = Bytes::copy_from_slice(&self.buffer[SIZE_PREFIX..end]);
            self.buffer.advance(end);
            return Frame {
                bytes,
                charge: Charge::default(),
            };
        }
        // Copying what was read beyond the frame leaves the frame the sole owner of its memory.
        let rest = BytesMut::from(&self.buffer[end..]);
        let rest_charge = self.charge.split(behind.saturating_sub(FREE));
        let mut frame = std::mem::replace(&mut self.buffer, rest);
        frame.truncate(end);
        frame.advance(SIZE_PREFIX);
        Frame {
            bytes: frame.freeze(),
            charge: std::mem::replace(&mut self.charge, rest_charge),
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
        FrameReader::new(limit, Arc::new(RequestMemory::new(None, limit)))
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
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
            let mut reader = reader(1 << 20);
            for frame in &frames {
                let read = reader.next(&mut stream).await.unwrap();
                assert_eq!(&read.bytes[..], &frame[..]);
                if let Ok(memory) = read.bytes.try_into_mut() {
                    reader.recycle(memory, read.charge);
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
    fn a_large_frame_owns_its_memory_alone() {
        block_on(async {
            let wire = [framed(&[7; 100_000]), framed(b"next")].concat();
            let mut stream = &wire[..];
            let mut reader = reader(1 << 20);
            let frame = reader.next(&mut stream).await.unwrap().bytes;
            let address = frame.as_ptr();
            let memory = frame.try_into_mut().expect("nobody shares it");
            assert_eq!(memory.as_ptr(), address);
            let next = reader.next(&mut stream).await.unwrap();
            assert_eq!(&next.bytes[..], b"next");
        });
    }

    // If this failed, every connection of a busy producer would allocate for each of its requests, or one that is idle
    // would keep what others need.
    #[test]
    fn a_large_buffer_serves_the_next_frame_and_is_counted() {
        block_on(async {
            let memory = Arc::new(RequestMemory::new(Some(1 << 20), 1 << 18));
            let mut reader = FrameReader::new(1 << 18, Arc::clone(&memory));
            let wire = framed(&[7; 100_000]).repeat(3);
            let mut stream = &wire[..];
            let mut address = None;
            for _ in 0..3 {
                let frame = reader.next(&mut stream).await.unwrap();
                // The first buffer grew, the others did not.
                let found = frame.bytes.as_ptr();
                assert!(address.is_none_or(|address| address == found));
                let memory = frame.bytes.try_into_mut().expect("nobody shares it");
                reader.recycle(memory, frame.charge);
                address = Some(found);
            }
            assert!(memory.used() >= 100_000 - FREE);
            reader.shrink();
            assert_eq!(memory.used(), 0);
        });
    }

    /// Gives what it has in pieces as large as they are asked for, and counts those.
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

    // If this failed, every request of a producer that sends ahead would be read in two pieces of its own, or what is read
    // ahead would be nobody's memory.
    #[test]
    fn what_is_sent_ahead_is_read_together_and_counted() {
        block_on(async {
            let memory = Arc::new(RequestMemory::new(Some(4 << 20), 1 << 20));
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
                let had = memory.used() + FREE;
                assert!(reader.buffer.capacity() <= had && had <= 2 * READ_AHEAD + FREE);
                if let Ok(memory) = frame.bytes.try_into_mut() {
                    reader.recycle(memory, frame.charge);
                }
            }
            assert!(stream.reads < frames / 4, "{} reads", stream.reads);
            assert!(together > frames / 2);
            reader.shrink();
            assert_eq!(memory.used(), 0);
        });
    }

    /// Gives what it has in small pieces, and tells how many buffers it was asked to fill.
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

    // If this failed, all of a large frame would be copied for every piece of it that comes, or be counted before it comes.
    #[test]
    fn a_large_frame_in_small_pieces_is_copied_seldom() {
        block_on(async {
            let size = 4 * LARGE + 77;
            let memory = Arc::new(RequestMemory::new(Some(64 << 20), 1 << 20));
            let mut reader = FrameReader::new(64 << 20, Arc::clone(&memory));
            let wire = framed(&vec![7; size]);
            for part in [wire.len() / 2, wire.len()] {
                let mut stream = Dripping {
                    wire: &wire[..part],
                    given: 0,
                    buffers: Vec::new(),
                };
                let read = reader.next(&mut stream).await;
                let counted = memory.used();
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
            assert_eq!(memory.used(), 0);
        });
    }

    // If this failed, thousands of connections would each keep a buffer that is empty at nearly all times.
    #[test]
    fn a_crowd_keeps_no_buffers() {
        block_on(async {
            let memory = Arc::new(RequestMemory::new(None, 1 << 20));
            let mut reader = FrameReader::new(1 << 20, Arc::clone(&memory));
            let wire = [framed(&[7; 100]), framed(&[8; 40_000])].concat().repeat(2);
            let (mut stream, mut kept) = (&wire[..], Vec::new());
            let mut crowd = Vec::new();
            for size in [100, 40_000, 100, 40_000] {
                let frame = reader.next(&mut stream).await.unwrap();
                assert_eq!(frame.bytes.len(), size);
                if let Ok(memory) = frame.bytes.try_into_mut() {
                    reader.recycle(memory, frame.charge);
                }
                if size == 40_000 {
                    // Nothing more has come.
                    let mut silent = tokio::io::empty();
                    let end = reader.next(&mut silent).await;
                    assert!(matches!(end, Err(FrameError::Closed)));
                    kept.push(reader.buffer.capacity() > READ_CHUNK);
                    let join = || FrameReader::new(100, Arc::clone(&memory));
                    crowd.extend((0..5000).map(|_| join()));
                }
            }
            assert_eq!(kept, [true, false]);
            drop(crowd);
            assert!(memory.may_keep(&Charge::default()));
        });
    }

    // If this failed, peers that send ahead would take the memory that others' requests need.
    #[test]
    fn nothing_is_read_ahead_while_memory_is_short() {
        block_on(async {
            let memory = Arc::new(RequestMemory::new(Some(400_000), 100_000));
            let mut other = Charge::default();
            memory.grow(&mut other, 100_000, 100_000).await;
            let mut reader = FrameReader::new(100_000, Arc::clone(&memory));
            let wire = framed(&[7; 16_500]).repeat(50);
            let mut stream = &wire[..];
            for _ in 0..50 {
                let frame = reader.next(&mut stream).await.unwrap();
                assert!(reader.buffer.capacity() <= 2 * READ_CHUNK);
                if let Ok(memory) = frame.bytes.try_into_mut() {
                    reader.recycle(memory, frame.charge);
                }
            }
        });
    }
}
