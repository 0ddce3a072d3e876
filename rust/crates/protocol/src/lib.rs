//! Kafka's requests, responses and their headers: bytes to [`Value`] trees and back. And Kafka's error codes.
//!
//! Owns the table of every message (`messages.table`, `metadata.table`, `records.table`), the interpreter
//! that reads it in both directions, and the list of error codes. Does no I/O and holds no lock; any thread
//! may call it. The content of `records` fields is the crate `records`, Python's side the extension's
//! `codec.rs`.
//!
//! Input is hostile until it is decoded. Every length and count is checked against the remaining bytes before
//! anything is allocated. The table bounds the nesting. The number of values of a message is limited, and
//! their memory can be. Bytes, records and strings are slices of the input.
//!
//! ```
//! use bytes::Bytes;
//! use logcore_protocol::{Direction, decode_response, encode_response, schema};
//!
//! let heartbeat = schema(12, Direction::Response).expect("Heartbeat is in the table");
//! let mut response = heartbeat.message();
//! response.set("error_code", 27i16);
//! let mut out = Vec::new();
//! encode_response(12, 4, &response.into(), &mut out)?;
//! let decoded = decode_response(12, 4, &Bytes::from(out))?;
//! assert_eq!(decoded.get("error_code").and_then(|code| code.as_i16()), Some(27));
//! # Ok::<(), logcore_protocol::ProtocolError>(())
//! ```

mod decode;
mod encode;
mod error;
mod error_code;
mod header;
mod json;
mod table;
mod value;
mod versions;
mod weight;
mod wire;

pub use decode::{
    Decoded, MAX_VALUES, decode_data, decode_request, decode_request_within, decode_response, decode_with,
};
pub use encode::{Gap, encode_data, encode_request, encode_response, encode_response_with_gaps, encode_with};
pub use error::{Problem, ProtocolError};
pub use error_code::{ErrorCode, KAFKA_ERRORS, KafkaError, Retry};
pub use header::{
    API_VERSIONS, CONTROLLED_SHUTDOWN, RequestHeader, decode_response_header, encode_response_header,
    request_header_version, response_header_version,
};
pub use json::to_json;
pub use table::{data_schema, field_names, request_schemas, schema, schemas};
pub use value::{Direction, Field, FieldType, Schema, Str, Struct, StructSchema, Value};
pub use versions::Versions;
