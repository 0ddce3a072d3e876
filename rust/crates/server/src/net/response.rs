//! A response frame and its way onto the socket.
//!
//! Bytes are encoded with gaps where record batches belong; those go from the log files to the transport between the encoded
//! parts. Called from the connection's task only.

use std::io;

use bytes::Bytes;
use tokio::time::sleep;

use logcore_protocol::{
    Gap, ProtocolError, RequestHeader, Value, decode_response, decode_response_header, encode_response,
    encode_response_header, encode_response_with_gaps,
};
use logcore_storage::LogSlice;

use crate::memory::answers::{PATIENCE, is_scarce, time_for};
use crate::memory::frames::{Charge, Cover, FREE, Held, RequestMemory};
use crate::metrics::ErrorCounts;
use crate::net::transport::Transport;

/// The field that tells a client how long it is not heard.
const THROTTLE_TIME: &str = "throttle_time_ms";
const SIZE_PREFIX: usize = 4;

/// A whole response: encoded bytes, size prefix included, and the file ranges that belong between them.
pub(crate) struct Response {
    bytes: Vec<u8>,
    /// By rising position; as many as there are gaps.
    parts: Vec<(Gap, LogSlice)>,
    /// The error codes in it.
    errors: ErrorCounts,
    /// What it has of memory that others need, in bytes.
    held: [Held; 2],
    /// There was less of it left than it takes, for whoever has what its request had, perhaps the lane of all that wait.
    beyond: Option<Charge>,
}

impl Response {
    /// A response without file ranges.
    pub(crate) fn new(header: &RequestHeader, message: &Value) -> Result<Self, ProtocolError> {
        let errors = ErrorCounts::of(message, header.api_version);
        Ok(Self::from_frame(encode(header, message)?, errors))
    }

    /// A frame that was encoded elsewhere, and the error codes in it.
    pub(crate) fn from_frame(bytes: Vec<u8>, errors: ErrorCounts) -> Self {
        Self {
            bytes,
            parts: Vec::new(),
            errors,
            held: [const { None }; 2],
            beyond: None,
        }
    }

    /// The same with what it has of memory that others need; it is given back when the response was sent.
    pub(crate) fn counted(self, held: [Held; 2]) -> Self {
        Self { held, ..self }
    }

    /// Bytes of memory, in about.
    pub(crate) fn size(&self) -> usize {
        self.bytes.capacity() + self.parts.capacity() * size_of::<(Gap, LogSlice)>()
    }

    /// The same, unless it is small or is counted already, with what it takes of the memory of requests; nothing, if there is
    /// none for it.
    pub(crate) fn covered(self, memory: &RequestMemory, charge: &mut Charge) -> Option<Self> {
        if self.bytes.len() <= FREE || self.is_counted() {
            return Some(self);
        }
        match memory.cover(charge, self.bytes.len()) {
            Cover::Enough(held) => Some(self.counted([held, None])),
            Cover::Beyond(held) => Some(Self {
                beyond: Some(std::mem::take(charge)),
                ..self.counted(held)
            }),
            Cover::Nothing => None,
        }
    }

    /// Whether its peer has its time for it and no more, should others need what it takes.
    pub(crate) fn is_counted(&self) -> bool {
        self.beyond.is_some() || self.held.iter().any(Option::is_some)
    }

    /// Returns when its peer has had its time for it and others need what it has.
    pub(crate) async fn overdue(&self) {
        let is_beyond = self.beyond.is_some();
        // What is beyond others wait for already.
        let time = time_for(self.wire_size()) / if is_beyond { 5 } else { 1 };
        sleep(time).await;
        while !is_beyond && !self.held.iter().flatten().any(is_scarce) {
            sleep(PATIENCE).await;
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
            held: [const { None }; 2],
            beyond: None,
        })
    }

    /// All of it, if no file ranges belong between its bytes.
    pub(crate) fn whole(&self) -> Option<&[u8]> {
        self.parts.is_empty().then_some(&*self.bytes)
    }

    /// Bytes on the wire, size prefix included.
    pub(crate) fn wire_size(&self) -> u64 {
        let outside: u64 = self.parts.iter().map(|(gap, _)| u64::from(gap.length)).sum();
        self.bytes.len() as u64 + outside
    }

    /// The same response with the time for which its client is not heard, if it has no file ranges and its version can tell
    /// (KIP-219). Decodes and encodes anew: clients that are throttled are in no hurry.
    pub(crate) fn throttled(self, header: &RequestHeader, throttle_ms: u32) -> Self {
        if !self.parts.is_empty() {
            return self;
        }
        let bytes = Bytes::from(self.bytes);
        let told = with_throttle_time(header, bytes.clone(), throttle_ms);
        let bytes = told.unwrap_or_else(|| bytes.into());
        Self {
            beyond: self.beyond,
            ..Self::from_frame(bytes, self.errors).counted(self.held)
        }
    }

    /// Writes everything.
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

/// A frame with its size prefix, header and body.
pub(crate) fn encode(header: &RequestHeader, message: &Value) -> Result<Vec<u8>, ProtocolError> {
    encode_as(header, header.api_version, message)
}

/// The same at another version than the request's, as ApiVersions needs it.
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

/// Writes the size prefix of a frame that has `outside` more bytes than are in `bytes`.
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
    use std::sync::Arc;
    use std::time::Duration;

    use logcore_protocol::{Direction, schema};
    use tokio::sync::Semaphore;
    use tokio::time::{Instant, timeout};

    use super::*;
    use crate::memory::frames::hold;

    const METADATA: i16 = 3;

    // If this failed, who reads nothing of what others wait for, or next to nothing, would keep them waiting, or everybody would be
    // cut off like that, or a client above its quota could have any memory.
    #[tokio::test(start_paused = true)]
    async fn what_others_need_is_read_in_its_time() {
        const DAY: Duration = Duration::from_secs(86_400);
        let header = RequestHeader {
            api_key: METADATA,
            api_version: 9,
            correlation_id: 1,
            client_id: None,
        };
        let message = schema(METADATA, Direction::Response).unwrap().message();
        let response = || Response::new(&header, &message.clone().into()).unwrap();
        assert!(!response().counted([None, None]).is_counted());
        let memory = Arc::new(Semaphore::new(64 << 20));
        let counted = response().counted([hold(&memory, 5).await, None]);
        let throttled = counted.throttled(&header, 100);
        assert!(throttled.is_counted());
        // While there is enough for all, it has any time.
        assert!(timeout(DAY, throttled.overdue()).await.is_err());
        let _rest = hold(&memory, (64 << 20) - 5).await;
        let begun = Instant::now();
        throttled.overdue().await;
        assert!((PATIENCE..2 * PATIENCE).contains(&begun.elapsed()));
        assert_eq!(memory.available_permits(), 0);
        drop(throttled);
        assert_eq!(memory.available_permits(), 5);
    }
}
