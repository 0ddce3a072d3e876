//! A response frame, and writing it to the transport.
//!
//! The encoded bytes have gaps where record batches belong. The batches go from the log files to the
//! transport, between the encoded parts. Called from the connection's task only.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::sleep;

use logcore_protocol::{
    Gap, ProtocolError, RequestHeader, Value, decode_response, decode_response_header, encode_response,
    encode_response_header, encode_response_with_gaps,
};
use logcore_storage::LogSlice;

use crate::memory::UNCOUNTED;
use crate::memory::budget::Permit;
use crate::memory::frames::{FrameMemory, FramePermit, ResponsePermit};
use crate::metrics::ErrorCounts;
use crate::net::transport::Transport;

/// The field with the time for which the broker does not read the client's requests.
const THROTTLE_TIME: &str = "throttle_time_ms";
/// The least time that a peer has to read a response while others need its memory.
const READING_TIME: Duration = Duration::from_secs(5);
/// The bytes of a longer response that the peer must read in a second then.
const READING_RATE: u64 = 1 << 20;
const SIZE_PREFIX: usize = 4;

/// A whole response: the encoded bytes, with their size prefix, and the file ranges that belong between them.
pub(crate) struct Response {
    bytes: Vec<u8>,
    /// By rising position, one for each gap.
    parts: Vec<(Gap, LogSlice)>,
    errors: ErrorCounts,
    /// Its shares of budgets, in bytes; they are given back when it was sent.
    permits: [Permit; 2],
    /// Set if it found too little frame memory and uses the overflow. It also keeps the request's share.
    overflow: Option<FramePermit>,
}

impl Response {
    pub(crate) fn new(header: &RequestHeader, message: &Value) -> Result<Self, ProtocolError> {
        let errors = ErrorCounts::of(message, header.api_version);
        Ok(Self::from_frame(encode(header, message)?, errors))
    }

    /// An encoded frame, and the error codes in it.
    pub(crate) fn from_frame(bytes: Vec<u8>, errors: ErrorCounts) -> Self {
        Self {
            bytes,
            parts: Vec::new(),
            errors,
            permits: Default::default(),
            overflow: None,
        }
    }

    pub(crate) fn with_permits(self, permits: [Permit; 2]) -> Self {
        Self { permits, ..self }
    }

    /// Roughly the bytes of memory of the response.
    pub(crate) fn size(&self) -> usize {
        self.bytes.capacity() + self.parts.capacity() * size_of::<(Gap, LogSlice)>()
    }

    /// The response with a share of the frame memory, unless it is short or is counted already.
    ///
    /// # Errors
    /// Why there is no memory for it.
    pub(crate) fn counted(self, memory: &FrameMemory, permit: &mut FramePermit) -> Result<Self, String> {
        if self.bytes.len() <= UNCOUNTED || self.is_counted() {
            return Ok(self);
        }
        Ok(match memory.for_response(permit, self.bytes.len())? {
            ResponsePermit::Frames(permit) => self.with_permits([permit, Permit::default()]),
            ResponsePermit::Overflow(permits) => Self {
                overflow: Some(std::mem::take(permit)),
                ..self.with_permits(permits)
            },
        })
    }

    /// Whether the peer must read it in time, should others need its memory.
    pub(crate) fn is_counted(&self) -> bool {
        self.overflow.is_some() || self.permits.iter().any(Permit::is_some)
    }

    /// Returns when the peer has had its time to read the response and others need the memory.
    pub(crate) async fn overdue(&self) {
        let is_overflow = self.overflow.is_some();
        let time = reading_time(self.wire_size());
        // For the memory of an overflow, others are waiting already.
        sleep(if is_overflow { time / 5 } else { time }).await;
        while !is_overflow && !self.permits.iter().any(Permit::is_needed) {
            sleep(READING_TIME).await;
        }
    }

    pub(crate) fn errors(&self) -> &ErrorCounts {
        &self.errors
    }

    /// A response whose `records` are gaps, one for each slice, in order.
    pub(crate) fn with_slices(
        header: &RequestHeader,
        message: &Value,
        slices: Vec<LogSlice>,
    ) -> Result<Self, ProtocolError> {
        let mut bytes = vec![0; SIZE_PREFIX];
        let (key, version) = (header.api_key, header.api_version);
        encode_response_header(key, version, header.correlation_id, &mut bytes)?;
        let gaps = encode_response_with_gaps(key, version, message, &mut bytes)?;
        debug_assert_eq!(gaps.len(), slices.len());
        let outside: usize = gaps.iter().map(|gap| gap.length as usize).sum();
        set_size(&mut bytes, outside)?;
        Ok(Self {
            bytes,
            parts: gaps.into_iter().zip(slices).collect(),
            errors: ErrorCounts::of(message, version),
            permits: Default::default(),
            overflow: None,
        })
    }

    /// The whole response, if it has no file ranges.
    pub(crate) fn whole(&self) -> Option<&[u8]> {
        self.parts.is_empty().then_some(&*self.bytes)
    }

    /// The bytes on the wire, with the size prefix.
    pub(crate) fn wire_size(&self) -> u64 {
        let outside: u64 = self.parts.iter().map(|(gap, _)| u64::from(gap.length)).sum();
        self.bytes.len() as u64 + outside
    }

    /// The response with a throttle time (KIP-219), if it has no file ranges and its version has the field.
    /// It is decoded and encoded again, because throttled clients are in no hurry.
    pub(crate) fn throttled(self, header: &RequestHeader, throttle_ms: u32) -> Self {
        if !self.parts.is_empty() {
            return self;
        }
        let bytes = Bytes::from(self.bytes);
        let changed = with_throttle_time(header, bytes.clone(), throttle_ms);
        let bytes = changed.unwrap_or_else(|| bytes.into());
        Self {
            overflow: self.overflow,
            ..Self::from_frame(bytes, self.errors).with_permits(self.permits)
        }
    }

    pub(crate) async fn send(&self, transport: &mut impl Transport) -> io::Result<()> {
        let mut sent = 0;
        for (gap, slice) in &self.parts {
            transport.write(&self.bytes[sent..gap.position], true).await?;
            transport.write_slice(slice).await?;
            sent = gap.position;
        }
        transport.write(&self.bytes[sent..], false).await
    }
}

/// How long a peer may take for a response of so many bytes while others need the memory.
fn reading_time(bytes: u64) -> Duration {
    READING_TIME + Duration::from_secs(bytes / READING_RATE)
}

fn with_throttle_time(header: &RequestHeader, mut frame: Bytes, throttle_ms: u32) -> Option<Vec<u8>> {
    let (key, version) = (header.api_key, header.api_version);
    let _size = frame.split_to(SIZE_PREFIX);
    decode_response_header(key, version, &mut frame).ok()?;
    let Value::Struct(mut message) = decode_response(key, version, &frame).ok()? else {
        return None;
    };
    message.get(THROTTLE_TIME)?;
    message.set(THROTTLE_TIME, throttle_ms.cast_signed());
    encode(header, &message.into()).ok()
}

pub(crate) fn encode(header: &RequestHeader, message: &Value) -> Result<Vec<u8>, ProtocolError> {
    encode_as(header, header.api_version, message)
}

/// A frame in another version than the request's, as ApiVersions needs it.
pub(crate) fn encode_as(
    header: &RequestHeader,
    version: i16,
    message: &Value,
) -> Result<Vec<u8>, ProtocolError> {
    let mut bytes = vec![0; SIZE_PREFIX];
    encode_response_header(header.api_key, version, header.correlation_id, &mut bytes)?;
    encode_response(header.api_key, version, message, &mut bytes)?;
    set_size(&mut bytes, 0)?;
    Ok(bytes)
}

/// Writes the size prefix of a frame that has `outside` bytes in file ranges.
fn set_size(bytes: &mut [u8], outside: usize) -> Result<(), ProtocolError> {
    let size = bytes.len() - SIZE_PREFIX + outside;
    let size = i32::try_from(size).map_err(|_| ProtocolError::Header {
        position: 0,
        problem: logcore_protocol::Problem::TooLong(size),
    })?;
    bytes[..SIZE_PREFIX].copy_from_slice(&size.to_be_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use logcore_protocol::{Direction, schema};
    use tokio::time::{Instant, timeout};

    use super::*;
    use crate::apis::METADATA;
    use crate::memory::budget::{AtBound, Budget};

    // If this failed, a client that reads nothing or very slowly would make others wait for its memory, or
    // every client would be cut off like that, or a throttled client's response would not be counted.
    #[tokio::test(start_paused = true)]
    async fn a_response_whose_memory_others_need_is_read_in_time() {
        const DAY: Duration = Duration::from_secs(86_400);
        let header = RequestHeader {
            api_key: METADATA,
            api_version: 9,
            correlation_id: 1,
            client_id: None,
        };
        let message = schema(METADATA, Direction::Response).unwrap().message();
        let response = || Response::new(&header, &message.clone().into()).unwrap();
        assert!(!response().is_counted());
        let budget = Budget::new("bytes of a test", 64 << 20, 0, 1, AtBound::Wait);
        let counted = response().with_permits([budget.acquire(5).await, Permit::default()]);
        let throttled = counted.throttled(&header, 100);
        assert!(throttled.is_counted());
        // While there is enough for all, the peer may take any time.
        assert!(timeout(DAY, throttled.overdue()).await.is_err());
        let _rest = budget.acquire((64 << 20) - 5).await;
        let begun = Instant::now();
        throttled.overdue().await;
        assert!((READING_TIME..2 * READING_TIME).contains(&begun.elapsed()));
        assert_eq!(budget.left(), 0);
        drop(throttled);
        assert_eq!(budget.left(), 5);
    }
}
