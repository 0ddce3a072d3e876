//! Request and response headers.
//!
//! ```text
//! request v0:   int16 api_key | int16 api_version | int32 correlation_id
//! request v1:   v0 | nullable string client_id, with an int16 length
//! request v2:   v1 | tagged fields
//! response v0:  int32 correlation_id
//! response v1:  v0 | tagged fields
//! ```
//!
//! The length of client_id is an int16 in v2 too, so that any broker can read the header of any ApiVersions
//! request. Source: RequestHeader.json, ResponseHeader.json, KIP-482.

use bytes::{Buf, Bytes};

use crate::decode::MAX_STRING;
use crate::error::{Fault, Problem, ProtocolError};
use crate::table;
use crate::value::{Direction, Str};
use crate::wire::Reader;

/// The key of ControlledShutdown. Its version 0 is the only request with a header of version 0.
pub const CONTROLLED_SHUTDOWN: i16 = 7;
/// The key of ApiVersions. Its response header always has version 0, because the client does not know the
/// broker yet.
pub const API_VERSIONS: i16 = 18;

/// The header before a request's body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    pub api_key: i16,
    pub api_version: i16,
    pub correlation_id: i32,
    pub client_id: Option<Str>,
}

impl RequestHeader {
    /// Takes the header from the front of a request; the body remains. Accepts API versions that do not
    /// exist, because an ApiVersions request of any version is answered.
    pub fn decode(request: &mut Bytes) -> Result<Self, ProtocolError> {
        let mut reader = Reader::new(request);
        let api_key = reader.i16().map_err(header_error)?;
        let header_version = request_header_version(api_key, reader.peek_i16().map_err(header_error)?)?;
        let header = Self::read(&mut reader, api_key, header_version).map_err(header_error)?;
        let length = reader.position();
        request.advance(length);
        Ok(header)
    }

    fn read(reader: &mut Reader<'_>, api_key: i16, header_version: i16) -> Result<Self, Box<Fault>> {
        let api_version = reader.i16()?;
        let correlation_id = reader.i32()?;
        let client_id = if header_version >= 1 {
            read_client_id(reader)?
        } else {
            None
        };
        if header_version >= 2 {
            reader.skip_tagged_fields()?;
        }
        Ok(Self {
            api_key,
            api_version,
            correlation_id,
            client_id,
        })
    }

    /// Appends the header, in the version that the API's version demands.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), ProtocolError> {
        let header_version = request_header_version(self.api_key, self.api_version)?;
        let client_id = self.client_id.as_deref().unwrap_or_default();
        if client_id.len() > MAX_STRING {
            return Err(ProtocolError::Header {
                position: 8,
                problem: Problem::StringTooLong(client_id.len()),
            });
        }
        out.extend(self.api_key.to_be_bytes());
        out.extend(self.api_version.to_be_bytes());
        out.extend(self.correlation_id.to_be_bytes());
        if header_version >= 1 {
            let length = if self.client_id.is_some() {
                client_id.len() as i16
            } else {
                -1
            };
            out.extend(length.to_be_bytes());
            out.extend_from_slice(client_id.as_bytes());
        }
        if header_version >= 2 {
            out.push(0);
        }
        Ok(())
    }
}

/// Accepts bytes that are not UTF-8, as Apache Kafka does.
fn read_client_id(reader: &mut Reader<'_>) -> Result<Option<Str>, Box<Fault>> {
    let Some(length) = reader.string_length(false)? else {
        return Ok(None);
    };
    Ok(Some(Str::from_utf8_lossy(reader.take(length)?)))
}

/// The header version of a request, also for API versions that do not exist.
pub fn request_header_version(api_key: i16, version: i16) -> Result<i16, ProtocolError> {
    let schema = table::find(api_key, Direction::Request)?;
    Ok(match (api_key, version) {
        (CONTROLLED_SHUTDOWN, 0) => 0,
        _ if schema.flexible.contains(version) => 2,
        _ => 1,
    })
}

/// The header version of a response.
pub fn response_header_version(api_key: i16, version: i16) -> Result<i16, ProtocolError> {
    let schema = table::find(api_key, Direction::Response)?;
    Ok(i16::from(
        api_key != API_VERSIONS && schema.flexible.contains(version),
    ))
}

/// Takes the header from the front of a response, and returns the correlation id. The body remains.
pub fn decode_response_header(
    api_key: i16,
    version: i16,
    response: &mut Bytes,
) -> Result<i32, ProtocolError> {
    let header_version = response_header_version(api_key, version)?;
    let mut reader = Reader::new(response);
    let correlation_id = reader.i32().map_err(header_error)?;
    if header_version >= 1 {
        reader.skip_tagged_fields().map_err(header_error)?;
    }
    let length = reader.position();
    response.advance(length);
    Ok(correlation_id)
}

/// Appends a response's header.
pub fn encode_response_header(
    api_key: i16,
    version: i16,
    correlation_id: i32,
    out: &mut Vec<u8>,
) -> Result<(), ProtocolError> {
    let header_version = response_header_version(api_key, version)?;
    out.extend(correlation_id.to_be_bytes());
    if header_version >= 1 {
        out.push(0);
    }
    Ok(())
}

#[allow(clippy::boxed_local)] // as the reader returns it
fn header_error(fault: Box<Fault>) -> ProtocolError {
    ProtocolError::Header {
        position: fault.position,
        problem: fault.problem,
    }
}
