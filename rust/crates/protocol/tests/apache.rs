//! Messages that Apache's own classes wrote (tests/golden/messages, made by tests/protocol/golden.py). Were one of these to
//! fail, we and Kafka would not understand each other's messages of that API and version. No Java is needed to know.
#![allow(clippy::unwrap_used)] // a test may panic

use std::collections::HashMap;
use std::path::Path;

use bytes::Bytes;
use logcore_protocol::{
    Direction, Schema, data_schema, decode_with, encode_with, schema, schemas, to_json,
};

const FILES: [&str; 3] = [
    "kafka-3.9.1.txt",
    "kafka-4.1.0.txt",
    "kafka-clients-4.2.0.txt",
];

struct Golden {
    schema: &'static Schema,
    version: i16,
    body: Bytes,
    json: String,
}

fn from_hex(text: &str) -> Bytes {
    let digits = text.strip_prefix('-').unwrap_or(text);
    (0..digits.len())
        .step_by(2)
        .map(|place| u8::from_str_radix(&digits[place..place + 2], 16).unwrap())
        .collect()
}

fn golden(line: &str) -> Golden {
    let [kind, name, version, body, json] = line.splitn(5, ' ').collect::<Vec<_>>()[..] else {
        panic!("{line}")
    };
    let schema = match kind {
        "request" => schema(name.parse().unwrap(), Direction::Request),
        "response" => schema(name.parse().unwrap(), Direction::Response),
        _ => data_schema(name),
    };
    Golden {
        schema: schema.unwrap_or_else(|| panic!("{kind} {name}")),
        version: version.parse().unwrap(),
        body: from_hex(body),
        json: json.to_owned(),
    }
}

fn all() -> Vec<Golden> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/golden/messages");
    let read = |name| std::fs::read_to_string(directory.join(name)).unwrap();
    let texts = FILES.map(read);
    texts
        .iter()
        .flat_map(|text| text.lines())
        .map(golden)
        .collect()
}

#[test]
fn apaches_bytes_are_read_and_written() {
    for Golden {
        schema,
        version,
        body,
        json,
    } in all()
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
    for golden in all() {
        let found = versions.entry(golden.schema.to_string()).or_default();
        found.push(golden.version);
    }
    for schema in schemas().filter(|schema| schema.direction.is_some()) {
        let found = versions.get_mut(&schema.to_string()).unwrap();
        found.sort_unstable();
        let valid = schema.valid_versions();
        assert_eq!(
            *found,
            (valid.first..=valid.last).collect::<Vec<_>>(),
            "{schema}"
        );
    }
}
