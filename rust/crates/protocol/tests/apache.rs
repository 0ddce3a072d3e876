//! Messages that Apache's own classes wrote (tests/golden/messages, made by tests/protocol/golden.py). Needs
//! no Java. If one of these failed, we and Kafka would not understand each other's messages of that API and
//! version.
#![allow(clippy::unwrap_used)] // a test may panic

mod common;

use std::collections::HashMap;

use common::{Golden, golden_messages};
use logcore_protocol::{decode_with, encode_with, schemas, to_json};

/// If this failed, a message would reach its peer changed.
#[test]
fn apaches_bytes_are_read_and_written() {
    for Golden {
        schema,
        version,
        body,
        json,
    } in golden_messages()
    {
        let what = format!("{schema} version {version}");
        let message = decode_with(schema, version, &body).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(to_json(schema, version, &body).unwrap(), json, "{what}");
        let mut again = Vec::new();
        encode_with(schema, version, &message, &mut again).unwrap();
        assert_eq!(again, body, "{what}");
    }
}

/// If this failed, some API or version would not be compared with Apache's.
#[test]
fn every_version_of_every_request_and_response_is_compared() {
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
