//! Request and response headers.
//!
//! Request v0: api_key int16, api_version int16, correlation_id int32. v1 adds client_id, a nullable string that keeps its
//! two-byte length even in v2, so that any broker can read the header of any ApiVersions request. v2 adds tagged fields.
//! Response v0: correlation_id int32; v1 adds tagged fields. Source: RequestHeader.json, ResponseHeader.json, KIP-482.

use bytes::{Buf, Bytes};

use crate::decode::MAX_STRING;
use crate::error::{Fault, Problem, ProtocolError};
use crate::schema::Direction;
use crate::table;
use crate::value::Str;
use crate::wire::Reader;

/// The key of ControlledShutdown, whose version 0 alone has a request header of version 0.
pub const CONTROLLED_SHUTDOWN: i16 = 7;
/// The key of ApiVersions, whose response header is always version 0: a client reads it before it knows the broker.
pub const API_VERSIONS: i16 = 18;

/// What stands before a request's body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    pub api_key: i16,
    pub api_version: i16,
    pub correlation_id: i32,
    pub client_id: Option<Str>,
}

impl RequestHeader {
    /// Takes the header off the front of a request; the body remains. The version need not be one that exists: the
    /// caller answers an ApiVersions request of any version.
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

    /// Appends the header, at the version its API and version ask for.
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

/// A client may call itself anything, as with Apache Kafka: what is not UTF-8 costs it no connection.
fn read_client_id(reader: &mut Reader<'_>) -> Result<Option<Str>, Box<Fault>> {
    let Some(length) = reader.string_length(false)? else {
        return Ok(None);
    };
    Ok(Some(Str::from_utf8_lossy(reader.take(length)?)))
}

/// The version of the header before a request; of every version of the API, existing or not.
pub fn request_header_version(api_key: i16, version: i16) -> Result<i16, ProtocolError> {
    let schema = table::find(api_key, Direction::Request)?;
    Ok(match (api_key, version) {
        (CONTROLLED_SHUTDOWN, 0) => 0,
        _ if schema.flexible.contains(version) => 2,
        _ => 1,
    })
}

/// The version of the header before a response.
pub fn response_header_version(api_key: i16, version: i16) -> Result<i16, ProtocolError> {
    let schema = table::find(api_key, Direction::Response)?;
    Ok(i16::from(
        api_key != API_VERSIONS && schema.flexible.contains(version),
    ))
}

/// Takes a response's header off its front and returns the correlation id; the body remains.
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

#[allow(clippy::boxed_local)] // the form in which the reader returns it
fn header_error(fault: Box<Fault>) -> ProtocolError {
    ProtocolError::Header {
        position: fault.position,
        problem: fault.problem,
    }
}
