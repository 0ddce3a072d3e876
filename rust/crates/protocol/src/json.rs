//! Prints messages as JSON, in the form of Kafka's own tools (the `…JsonConverter` classes made of the
//! message definitions).
//!
//! - An object has the version's fields in the order of the definition, with names in camel case. Tagged
//!   fields at their defaults are left out.
//! - Bytes are base64, a uuid is its 22 characters. Of `records` only the size is printed, as in Kafka's
//!   request log.
//! - In a text, only the characters that JSON demands are escaped.

use std::fmt::Write;

use crate::error::ProtocolError;
use crate::value::{Field, FieldType, Schema, Struct, Value};

/// Names whose capitals do not follow from the snake case.
const ODD_NAMES: [(&str, &str); 3] = [
    ("is_kraft_controller", "isKRaftController"),
    ("kraft_version", "kRaftVersion"),
    ("kraft_version_feature", "kRaftVersionFeature"),
];

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// A body, or data, with this schema as a JSON object.
///
/// # Errors
/// The version is not in the table, or the bytes do not decode.
pub fn to_json(schema: &'static Schema, version: i16, body: &bytes::Bytes) -> Result<String, ProtocolError> {
    let message = crate::decode_with(schema, version, body)?;
    let mut json = Json {
        version,
        out: String::new(),
    };
    json.value(&message);
    Ok(json.out)
}

struct Json {
    version: i16,
    out: String,
}

impl Json {
    fn value(&mut self, value: &Value) {
        match value {
            Value::Null => self.out.push_str("null"),
            Value::Bool(value) => self.display(value),
            Value::I8(value) => self.display(value),
            Value::I16(value) => self.display(value),
            Value::I32(value) => self.display(value),
            Value::I64(value) => self.display(value),
            Value::U16(value) => self.display(value),
            Value::U32(value) => self.display(value),
            Value::F64(value) => self.double(*value),
            Value::Uuid(id) => {
                self.out.push('"');
                self.base64(id, *b"-_", false);
                self.out.push('"');
            }
            Value::Str(text) => self.text(text),
            Value::Bytes(bytes) => {
                self.out.push('"');
                self.base64(bytes, *b"+/", true);
                self.out.push('"');
            }
            Value::Gap(size) => self.display(size),
            Value::Array(values) => self.array(values),
            Value::Struct(fields) => self.object(fields),
        }
    }

    fn display(&mut self, value: &dyn std::fmt::Display) {
        // Writing to a string cannot fail.
        let _written = write!(self.out, "{value}");
    }

    fn array(&mut self, values: &[Value]) {
        self.out.push('[');
        for (number, value) in values.iter().enumerate() {
            if number > 0 {
                self.out.push(',');
            }
            self.value(value);
        }
        self.out.push(']');
    }

    fn object(&mut self, message: &Struct) {
        self.out.push('{');
        let mut first = true;
        for (index, field) in message.schema().fields.iter().enumerate() {
            let value = &message[index];
            if !self.has(field, value) {
                continue;
            }
            if !std::mem::take(&mut first) {
                self.out.push(',');
            }
            self.out.push('"');
            self.name(field.name);
            match (field.kind, value) {
                (FieldType::Records, Value::Bytes(records)) => {
                    self.out.push_str("SizeInBytes\":");
                    self.display(&records.len());
                }
                _ => {
                    self.out.push_str("\":");
                    self.value(value);
                }
            }
        }
        self.out.push('}');
    }

    fn has(&self, field: &Field, value: &Value) -> bool {
        let is_tagged = field.tagged.contains(self.version);
        field.versions.contains(self.version) && !(is_tagged && *value == field.default)
    }

    fn name(&mut self, name: &str) {
        if let Some((_, odd)) = ODD_NAMES.iter().find(|(snake, _)| *snake == name) {
            self.out.push_str(odd);
            return;
        }
        let mut capital = false;
        for character in name.chars() {
            match character {
                '_' => capital = true,
                _ if std::mem::take(&mut capital) => self.out.push(character.to_ascii_uppercase()),
                _ => self.out.push(character),
            }
        }
    }

    fn text(&mut self, text: &str) {
        self.out.push('"');
        for character in text.chars() {
            match character {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                control if control < ' ' => {
                    let _written = write!(self.out, "\\u{:04X}", u32::from(control));
                }
                other => self.out.push(other),
            }
        }
        self.out.push('"');
    }

    /// Like Java's `Double.toString`: always with a decimal point, and with a power of ten from 10^7 on and
    /// below 10^-3. NaN and the infinities are strings.
    fn double(&mut self, value: f64) {
        let size = value.abs();
        if value.is_nan() {
            self.out.push_str("\"NaN\"");
        } else if value.is_infinite() {
            self.out.push_str(if value > 0.0 {
                "\"Infinity\""
            } else {
                "\"-Infinity\""
            });
        } else if size == 0.0 || (1e-3..1e7).contains(&size) {
            let _written = write!(self.out, "{value:?}");
        } else {
            let text = format!("{value:e}");
            let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
            let point = if digits.contains('.') { "" } else { ".0" };
            let _written = write!(self.out, "{digits}{point}E{power}");
        }
    }

    /// `last` has the last two characters of the alphabet.
    fn base64(&mut self, bytes: &[u8], last: [u8; 2], padded: bool) {
        for chunk in bytes.chunks(3) {
            let mut three = [0; 3];
            three[..chunk.len()].copy_from_slice(chunk);
            let bits = u32::from_be_bytes([0, three[0], three[1], three[2]]);
            for index in 0..4 {
                let six = (bits >> (18 - 6 * index)) as usize & 63;
                if index > chunk.len() {
                    if padded {
                        self.out.push('=');
                    }
                } else {
                    let letter = if six < 62 { BASE64[six] } else { last[six - 62] };
                    self.out.push(char::from(letter));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json_of(value: Value) -> String {
        let mut json = Json {
            version: 0,
            out: String::new(),
        };
        json.value(&value);
        json.out
    }

    /// If this failed, values would not be printed as Kafka's tools print them, or would not be JSON.
    #[test]
    fn values_are_printed_as_kafka_prints_them() {
        for (value, expected) in [
            (Value::from(0.0), "0.0"),
            (Value::from(-1024.5), "-1024.5"),
            (Value::from(9_999_999.0), "9999999.0"),
            (Value::from(1e7), "1.0E7"),
            (Value::from(1.25e-4), "1.25E-4"),
            (Value::from(f64::NAN), "\"NaN\""),
            (Value::from("a\"\\\n\u{1}é"), "\"a\\\"\\\\\\n\\u0001é\""),
            (Value::from(vec![0xfbu8]), "\"+w==\""),
            (Value::from(b"abc".to_vec()), "\"YWJj\""),
            (Value::from([0xff; 16]), "\"_____________________w\""),
            (Value::Null, "null"),
            (Value::from(vec![1, 2]), "[1,2]"),
        ] {
            assert_eq!(json_of(value), expected);
        }
    }

    /// If this failed, fields would be printed that the version does not have, or that were left out.
    #[test]
    fn an_object_has_the_fields_of_its_version() {
        let schema = crate::table::find_data("PartitionChangeRecord").expect("in the table");
        let mut message = schema.message();
        message.set("partition_id", 3);
        message.set("leader", -2);
        message.set("isr", vec![1, 2]);
        for (version, directories) in [(0i16, ""), (1, ",\"directories\":[]")] {
            if version > 0 {
                message.set("directories", Value::Array(Vec::new()));
            }
            let mut data = Vec::new();
            crate::encode_with(schema, version, &message.clone().into(), &mut data).expect("sound");
            let json = to_json(schema, version, &data.into()).expect("sound");
            assert_eq!(
                json,
                format!(
                    "{{\"partitionId\":3,\"topicId\":\"AAAAAAAAAAAAAAAAAAAAAA\",\"isr\":[1,2]{directories}}}"
                )
            );
        }
    }
}
