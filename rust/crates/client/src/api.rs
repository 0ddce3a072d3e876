//! The APIs that this crate uses, with the versions it is written for, and accessors for the fields of
//! responses.
//!
//! Newer versions need topic ids instead of names. Every broker from 0.11 to 4.x serves a version of each
//! range.

use bytes::Bytes;
use logcore_protocol::{Direction, ProtocolError, Struct, Value, decode_response, schema};

use crate::error::{ClientError, Result};

/// An API, with the versions that this crate is written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Api {
    pub key: i16,
    pub first: i16,
    pub last: i16,
}

/// Produce; version 3 is the first with batches v2.
pub const PRODUCE: Api = Api {
    key: 0,
    first: 3,
    last: 9,
};
/// Fetch; version 4 is the first with batches v2, 12 the last with topic names.
pub const FETCH: Api = Api {
    key: 1,
    first: 4,
    last: 12,
};
/// ListOffsets; version 1 is the first that answers with one offset.
pub const LIST_OFFSETS: Api = Api {
    key: 2,
    first: 1,
    last: 8,
};
/// Metadata; version 1 is the first that distinguishes "all topics" and "no topics".
pub const METADATA: Api = Api {
    key: 3,
    first: 1,
    last: 12,
};
/// ApiVersions.
pub const API_VERSIONS: Api = Api {
    key: 18,
    first: 0,
    last: 3,
};
/// InitProducerId.
pub const INIT_PRODUCER_ID: Api = Api {
    key: 22,
    first: 0,
    last: 4,
};

/// An empty request of one of the APIs above.
pub(crate) fn request(api: Api) -> Struct {
    match schema(api.key, Direction::Request) {
        Some(schema) => schema.message(),
        // The table is compiled in, and a test encodes every API above.
        None => unreachable!("API {} is in the table", api.key),
    }
}

/// An API's name, for messages.
pub(crate) fn name(api_key: i16) -> &'static str {
    schema(api_key, Direction::Request).map_or("unknown", |schema| schema.name)
}

/// Decodes a response body.
pub(crate) fn decode(api: Api, version: i16, body: &Bytes) -> Result<Value> {
    decode_response(api.key, version, body).map_err(bad_data)
}

pub(crate) fn bad_data(error: ProtocolError) -> ClientError {
    ClientError::BadData {
        what: error.to_string(),
    }
}

/// Reads fields by name. A field that the version does not have reads as its default.
pub(crate) trait Fields {
    fn field(&self, name: &str) -> &Value;

    fn i16(&self, name: &str) -> i16 {
        self.field(name).as_i16().unwrap_or_default()
    }
    fn i32(&self, name: &str) -> i32 {
        self.field(name).as_i32().unwrap_or_default()
    }
    fn i64(&self, name: &str) -> i64 {
        self.field(name).as_i64().unwrap_or_default()
    }
    fn text(&self, name: &str) -> &str {
        self.field(name).as_str().unwrap_or_default()
    }
    fn i32s(&self, name: &str) -> Vec<i32> {
        self.field(name)
            .as_array()
            .unwrap_or_default()
            .iter()
            .filter_map(Value::as_i32)
            .collect()
    }
}

static NULL: Value = Value::Null;

impl Fields for Struct {
    fn field(&self, name: &str) -> &Value {
        self.get(name).unwrap_or(&NULL)
    }
}

impl Fields for Value {
    fn field(&self, name: &str) -> &Value {
        self.get(name).unwrap_or(&NULL)
    }
}

#[cfg(test)]
mod tests {
    //! If this fails, the client sends an API or version that the codec does not know.
    use super::*;

    #[test]
    fn every_version_of_every_api_is_in_the_table() {
        for api in [
            PRODUCE,
            FETCH,
            LIST_OFFSETS,
            METADATA,
            API_VERSIONS,
            INIT_PRODUCER_ID,
        ] {
            for version in api.first..=api.last {
                let mut out = Vec::new();
                logcore_protocol::encode_request(api.key, version, &request(api).into(), &mut out)
                    .expect("encodes");
            }
        }
    }
}
