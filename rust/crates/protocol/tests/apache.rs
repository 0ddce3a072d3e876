//! Messages that Apache's own classes wrote (tests/golden/messages, made by tests/protocol/golden.py). Were one of these to
//! fail, we and Kafka would not understand each other's messages of that API and version. No Java is needed to know.
#![allow(clippy::unwrap_used)] // a test may panic

mod common;

use std::collections::HashMap;

use common::{Golden, golden_messages};
use logcore_protocol::{decode_with, encode_with, schemas, to_json};

#[test]
fn apaches_bytes_are_read_and_written() {
    for Golden {
        schema,
        version,
        body,
        json,
    } in golden_messages()
    {
        let place = format!("{schema} version {version}");
        let message = decode_with(schema, version, &body).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(to_json(schema, version, &body).unwrap(), json, "{place}");
        let mut again = Vec::new();
        encode_with(schema, version, &message, &mut again).unwrap();
        assert_eq!(again, body, "{place}");
    }
}

#[test]
fn every_version_of_every_request_and_response_is_there() {
    let mut versions: HashMap<String, Vec<i16>> = HashMap::new();
    for golden in golden_messages() {
        let found = versions.entry(golden.schema.to_string()).or_default();
        found.push(golden.version);
    }
    for schema in schemas().filter(|schema| schema.direction.is_some()) {
        let found = versions.get_mut(&schema.to_string()).unwrap();
        found.sort_unstable();
        let valid = schema.valid_versions();
        assert_eq!(*found, (valid.first..=valid.last).collect::<Vec<_>>(), "{schema}");
    }
}
