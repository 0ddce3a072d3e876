//! Random messages and random bytes. If one of these failed, a message of some API and version would reach
//! its peer changed, or a malformed one would end the process.
#![allow(clippy::unwrap_used)] // a test may panic

mod common;

use bytes::Bytes;
use common::{all_versions, any_message};
use logcore_protocol::{Problem, ProtocolError, Value, decode_with, encode_with};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// If this failed, a message would change on its way.
    #[test]
    fn messages_round_trip((schema, version, message) in any_message()) {
        let mut bytes = Vec::new();
        encode_with(schema, version, &message, &mut bytes).unwrap();
        let decoded = decode_with(schema, version, &Bytes::from(bytes.clone())).unwrap();
        prop_assert_eq!(&decoded, &message, "{} version {}", schema, version);
        let mut again = Vec::new();
        encode_with(schema, version, &decoded, &mut again).unwrap();
        prop_assert_eq!(again, bytes);
    }

    /// If this failed, a cut message, or bytes after one, would be taken for a message.
    #[test]
    fn other_lengths_are_refused(
        (schema, version, message) in any_message(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = Vec::new();
        encode_with(schema, version, &message, &mut bytes).unwrap();
        if !bytes.is_empty() {
            let shorter = Bytes::copy_from_slice(&bytes[..cut.index(bytes.len())]);
            prop_assert!(decode_with(schema, version, &shorter).is_err());
        }
        bytes.push(0);
        let error = decode_with(schema, version, &Bytes::from(bytes)).unwrap_err();
        let trailing = matches!(error, ProtocolError::Decode { problem: Problem::TrailingBytes(1), .. });
        prop_assert!(trailing, "{}", error);
    }

    /// If this failed, flipped bytes could end the process, or decode to a message that cannot be encoded.
    #[test]
    fn flipped_bytes_are_survived(
        (schema, version, message) in any_message(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = Vec::new();
        encode_with(schema, version, &message, &mut bytes).unwrap();
        prop_assume!(!bytes.is_empty());
        for (index, flip) in flips {
            let index = index.index(bytes.len());
            bytes[index] ^= flip;
        }
        if let Ok(decoded) = decode_with(schema, version, &Bytes::from(bytes)) {
            prop_assert!(encode_with(schema, version, &decoded, &mut Vec::new()).is_ok());
        }
    }

    /// If this failed, some bytes could end the process.
    #[test]
    fn random_bytes_are_survived(
        (schema, version) in prop::sample::select(all_versions()),
        bytes in prop::collection::vec(prop_oneof![3 => 0u8..4, 1 => Just(0xff), 1 => any::<u8>()], 0..200),
    ) {
        let _ = decode_with(schema, version, &Bytes::from(bytes));
    }
}

/// If this failed, some version's defaults could not be encoded, or would be decoded to other values.
#[test]
fn defaults_round_trip_everywhere() {
    for (schema, version) in all_versions() {
        let message = Value::from(carriable(schema.message(), version));
        let mut bytes = Vec::new();
        encode_with(schema, version, &message, &mut bytes).unwrap_or_else(|error| panic!("{error}"));
        let decoded =
            decode_with(schema, version, &Bytes::from(bytes)).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(decoded, message, "{schema} version {version}");
    }
}

/// Kafka's default is null for some fields that cannot be null in every version. They get an empty value.
fn carriable(mut message: logcore_protocol::Struct, version: i16) -> logcore_protocol::Struct {
    use logcore_protocol::FieldType;
    for (index, field) in message.schema().fields.iter().enumerate() {
        if field.versions.contains(version) && field.default.is_null() && !field.nullable.contains(version) {
            message[index] = match field.kind {
                FieldType::String => Value::from(""),
                FieldType::Array(_) => Value::Array(Vec::new()),
                _ => Value::Bytes(Bytes::new()),
            };
        }
    }
    message
}
