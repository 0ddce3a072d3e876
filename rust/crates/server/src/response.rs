//! A response frame and its way onto the socket.
//!
//! Bytes are encoded with gaps where record batches belong; those go from the page cache to the socket with `sendfile`,
//! between the encoded parts, and are never copied through user space. Called from the connection's task only.

use std::io;

use rustix::io::{Errno, ReadWriteFlags};
use rustix::net::SendFlags;
use tokio::io::Interest;
use tokio::net::TcpStream;

use logcore_protocol::{
    Gap, ProtocolError, RequestHeader, Value, encode_response, encode_response_header,
    encode_response_with_gaps,
};
use logcore_storage::LogSlice;

use crate::metrics::ErrorCounts;

/// The most one `sendfile` sends, so that one connection does not keep a thread for long.
const SENDFILE_CHUNK: u64 = 1 << 20;
const SIZE_PREFIX: usize = 4;

/// A whole response: encoded bytes, size prefix included, and the file ranges that belong between them.
pub(crate) struct Response {
    bytes: Vec<u8>,
    /// By rising position; as many as there are gaps.
    parts: Vec<(Gap, LogSlice)>,
    /// The error codes in it.
    errors: ErrorCounts,
}

impl Response {
    /// A response without file ranges.
    pub(crate) fn new(header: &RequestHeader, message: &Value) -> Result<Self, ProtocolError> {
        let errors = ErrorCounts::of(message);
        Ok(Self::from_frame(encode(header, message)?, errors))
    }

    /// A frame that was encoded elsewhere, and the error codes in it.
    pub(crate) fn from_frame(bytes: Vec<u8>, errors: ErrorCounts) -> Self {
        Self {
            bytes,
            parts: Vec::new(),
            errors,
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
            errors: ErrorCounts::of(message),
        })
    }

    /// Bytes on the wire, size prefix included.
    pub(crate) fn wire_size(&self) -> u64 {
        let outside: u64 = self
            .parts
            .iter()
            .map(|(gap, _)| u64::from(gap.length))
            .sum();
        self.bytes.len() as u64 + outside
    }

    /// Writes everything.
    pub(crate) async fn send(&self, stream: &TcpStream) -> io::Result<()> {
        let mut sent = 0;
        for (gap, slice) in &self.parts {
            send_bytes(stream, &self.bytes[sent..gap.position], SendFlags::MORE).await?;
            send_slice(stream, slice).await?;
            sent = gap.position;
        }
        send_bytes(stream, &self.bytes[sent..], SendFlags::empty()).await
    }
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

async fn send_bytes(stream: &TcpStream, mut bytes: &[u8], flags: SendFlags) -> io::Result<()> {
    let flags = flags | SendFlags::NOSIGNAL;
    while !bytes.is_empty() {
        let send = || Ok(rustix::net::send(stream, bytes, flags)?);
        let sent = stream.async_io(Interest::WRITABLE, send).await?;
        bytes = &bytes[sent..];
    }
    Ok(())
}

async fn send_slice(stream: &TcpStream, slice: &LogSlice) -> io::Result<()> {
    let mut position = slice.position;
    let end = slice.position + slice.len;
    while position < end {
        let count = (end - position).min(SENDFILE_CHUNK);
        let cold = is_cold(slice, position) || is_cold(slice, position + count - 1);
        let send = || {
            let mut offset = position;
            let mut send =
                || rustix::fs::sendfile(stream, &slice.file, Some(&mut offset), count as usize);
            // A page that must come from disk would block this thread's other connections: let them move first.
            Ok(if cold {
                tokio::task::block_in_place(send)?
            } else {
                send()?
            })
        };
        let sent = stream.async_io(Interest::WRITABLE, send).await?;
        if sent == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!(
                    "a log file ended {} bytes before the range that was to be sent",
                    end - position
                ),
            ));
        }
        position += sent as u64;
    }
    Ok(())
}

/// Whether reading this byte would wait for the disk. File systems that cannot tell are taken to be in memory.
fn is_cold(slice: &LogSlice, position: u64) -> bool {
    let mut byte = [0];
    let mut buffers = [io::IoSliceMut::new(&mut byte)];
    let read = rustix::io::preadv2(&slice.file, &mut buffers, position, ReadWriteFlags::NOWAIT);
    matches!(read, Err(Errno::AGAIN))
}
