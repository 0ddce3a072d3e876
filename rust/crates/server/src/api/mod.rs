//! The APIs that Rust answers, one file each, and the dispatch. All run on the task of the request's
//! connection.

pub(crate) mod api_versions;
pub(crate) mod dispatch;
pub(crate) mod fetch;
pub(crate) mod list_offsets;
pub(crate) mod offset_for_leader_epoch;
pub(crate) mod produce;

use std::collections::HashMap;

use logcore_protocol::{Direction, ProtocolError, Schema, Struct, Value};

use crate::net::response::Response;

pub(crate) enum Outcome {
    Respond(Response),
    /// Nothing is sent: Produce with acks=0.
    Silent,
    /// The connection is closed, for this reason.
    Close(String),
}

impl From<Result<Response, ProtocolError>> for Outcome {
    fn from(response: Result<Response, ProtocolError>) -> Self {
        match response {
            Ok(response) => Self::Respond(response),
            Err(error) => Self::Close(format!("the response cannot be encoded: {error}")),
        }
    }
}

/// An empty response of an API.
///
/// # Panics
/// If the protocol crate does not know the API, which is a defect of this crate.
pub(crate) fn response_message(key: i16) -> Struct {
    response_schema(key).message()
}

/// The schema of an API's response.
///
/// # Panics
/// As above.
pub(crate) fn response_schema(key: i16) -> &'static Schema {
    match logcore_protocol::schema(key, Direction::Response) {
        Some(schema) => schema,
        None => panic!("the message table has no response for API {key}"),
    }
}

/// A number for each name, the same for equal names. Names may be long and have many partitions, so each is
/// hashed once.
pub(crate) fn numbered<'a>(names: impl Iterator<Item = &'a str>) -> Vec<usize> {
    let mut known = HashMap::new();
    let numbers = names.map(|name| {
        let next = known.len();
        *known.entry(name).or_insert(next)
    });
    numbers.collect()
}

/// The fields of a decoded request by name. A field that the version lacks has its default, or zero.
pub(crate) trait Fields {
    fn int8(&self, name: &str) -> i8;
    fn int16(&self, name: &str) -> i16;
    fn int32(&self, name: &str) -> i32;
    fn int64(&self, name: &str) -> i64;
    fn text(&self, name: &str) -> &str;
    fn uuid(&self, name: &str) -> [u8; 16];
    fn each<'a>(&'a self, name: &str) -> Box<dyn Iterator<Item = &'a Struct> + 'a>;
}

impl Fields for Struct {
    fn int8(&self, name: &str) -> i8 {
        self.get(name).and_then(Value::as_i8).unwrap_or_default()
    }

    fn int16(&self, name: &str) -> i16 {
        self.get(name).and_then(Value::as_i16).unwrap_or_default()
    }

    fn int32(&self, name: &str) -> i32 {
        self.get(name).and_then(Value::as_i32).unwrap_or_default()
    }

    fn int64(&self, name: &str) -> i64 {
        self.get(name).and_then(Value::as_i64).unwrap_or_default()
    }

    fn text(&self, name: &str) -> &str {
        self.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    fn uuid(&self, name: &str) -> [u8; 16] {
        self.get(name).and_then(Value::as_uuid).unwrap_or_default()
    }

    fn each<'a>(&'a self, name: &str) -> Box<dyn Iterator<Item = &'a Struct> + 'a> {
        match self.get(name) {
            Some(value) => Box::new(value.structs()),
            None => Box::new(std::iter::empty()),
        }
    }
}
