//! Random messages of every schema, and messages that Apache's classes wrote. Shared by the tests of this
//! crate.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test file uses its part

use std::path::Path;

use bytes::Bytes;
use logcore_protocol::{
    Direction, Field, FieldType, Schema, Struct, StructSchema, Value, data_schema, schema, schemas,
};
use proptest::prelude::*;
use proptest::test_runner::TestRng;

/// Every schema and version.
pub fn all_versions() -> Vec<(&'static Schema, i16)> {
    schemas()
        .flat_map(|schema| {
            let valid = schema.valid_versions();
            (valid.first..=valid.last).map(move |version| (schema, version))
        })
        .collect()
}

/// A schema, one of its versions, and a random message whose fields this version has.
pub fn any_message() -> impl Strategy<Value = (&'static Schema, i16, Value)> {
    let choice = prop::sample::select(all_versions());
    choice.prop_perturb(|(schema, version), mut rng| {
        (
            schema,
            version,
            Value::Struct(random_struct(schema.root, version, &mut rng)),
        )
    })
}

/// A struct whose fields of this version are random and whose other fields are at their defaults.
pub fn random_struct(schema: &'static StructSchema, version: i16, rng: &mut TestRng) -> Struct {
    let mut value = Struct::new(schema);
    for (index, field) in schema.fields.iter().enumerate() {
        if field.versions.contains(version) {
            value[index] = random_field(field, version, rng);
        }
    }
    value
}

fn random_field(field: &Field, version: i16, rng: &mut TestRng) -> Value {
    let nullable = field.nullable.contains(version);
    if nullable && rng.random_ratio(1, 4) {
        return Value::Null;
    }
    if rng.random_ratio(1, 8) && (nullable || !field.default.is_null()) {
        return field.default.clone();
    }
    random_value(&field.kind, version, rng)
}

fn random_value(kind: &FieldType, version: i16, rng: &mut TestRng) -> Value {
    match kind {
        FieldType::Bool => Value::Bool(rng.random()),
        FieldType::Int8 => Value::I8(rng.random()),
        FieldType::Int16 => Value::I16(rng.random()),
        FieldType::Int32 => Value::I32(rng.random()),
        FieldType::Int64 => Value::I64(rng.random()),
        FieldType::Uint16 => Value::U16(rng.random()),
        FieldType::Uint32 => Value::U32(rng.random()),
        FieldType::Float64 => Value::F64(f64::from(rng.random::<i32>()) / 8.0),
        FieldType::Uuid => Value::Uuid(rng.random()),
        FieldType::String => {
            let letters = ['a', 'Z', '0', '-', 'é', '日', '🦀'];
            let length = random_length(rng);
            Value::from(
                (0..length)
                    .map(|_| letters[rng.random_range(0..letters.len())])
                    .collect::<String>(),
            )
        }
        FieldType::Bytes | FieldType::Records => Value::Bytes(
            (0..random_length(rng))
                .map(|_| rng.random::<u8>())
                .collect::<Bytes>(),
        ),
        FieldType::Array(element) => {
            let count = rng.random_range(0..4);
            Value::Array((0..count).map(|_| random_value(element, version, rng)).collect())
        }
        FieldType::Struct(schema) => Value::Struct(random_struct(schema, version, rng)),
    }
}

/// Mostly short, and sometimes long enough for a second byte of a compact length.
fn random_length(rng: &mut TestRng) -> usize {
    if rng.random_ratio(1, 20) {
        rng.random_range(100..400)
    } else {
        rng.random_range(0..12)
    }
}

const FILES: [&str; 3] = ["kafka-3.9.1.txt", "kafka-4.1.0.txt", "kafka-clients-4.2.0.txt"];

/// A message that Apache's own classes wrote, and its JSON.
pub struct Golden {
    pub schema: &'static Schema,
    pub version: i16,
    pub body: Bytes,
    pub json: String,
}

fn from_hex(text: &str) -> Bytes {
    let digits = text.strip_prefix('-').unwrap_or(text);
    (0..digits.len())
        .step_by(2)
        .map(|index| u8::from_str_radix(&digits[index..index + 2], 16).unwrap())
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

/// The messages of tests/golden/messages, which tests/protocol/golden.py makes.
pub fn golden_messages() -> Vec<Golden> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/golden/messages");
    let read = |name| std::fs::read_to_string(directory.join(name)).unwrap();
    let texts = FILES.map(read);
    texts.iter().flat_map(|text| text.lines()).map(golden).collect()
}
