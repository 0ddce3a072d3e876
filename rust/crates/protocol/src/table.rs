//! The table of messages: text in the binary that is parsed at its first use and kept for the life of the
//! process.
//!
//! The head of `messages.table` describes the format. A line that cannot be parsed is a defect of the build
//! and panics; the tests parse every line.

use std::collections::HashMap;
use std::sync::OnceLock;

use crate::error::ProtocolError;
use crate::value::{Direction, Field, FieldType, Schema, StructSchema, Value, zero};
use crate::versions::Versions;
use crate::weight;

const MESSAGES: &str = include_str!("messages.table");
const METADATA: &str = include_str!("metadata.table");
const RECORDS: &str = include_str!("records.table");

struct Registry {
    /// By API key; `None` for a key that is not in the table.
    requests: Vec<Option<&'static Schema>>,
    responses: Vec<Option<&'static Schema>>,
    data: Vec<&'static Schema>,
    names: Vec<&'static str>,
}

fn registry() -> &'static Registry {
    static REGISTRY: OnceLock<Registry> = OnceLock::new();
    REGISTRY.get_or_init(|| Parser::default().parse())
}

/// The schema of a request or response; `None` when the table has no such API.
pub fn schema(api_key: i16, direction: Direction) -> Option<&'static Schema> {
    let table = match direction {
        Direction::Request => &registry().requests,
        Direction::Response => &registry().responses,
    };
    table.get(usize::try_from(api_key).ok()?).copied().flatten()
}

/// The schema of data by Kafka's name, as in "ConsumerProtocolAssignment".
pub fn data_schema(name: &str) -> Option<&'static Schema> {
    registry().data.iter().copied().find(|schema| schema.name == name)
}

/// The requests of every API in the table, in the order of their keys.
pub fn request_schemas() -> impl Iterator<Item = &'static Schema> {
    registry().requests.iter().copied().flatten()
}

/// Every schema in the table: requests, responses, data.
pub fn schemas() -> impl Iterator<Item = &'static Schema> {
    let registry = registry();
    let messages = registry
        .requests
        .iter()
        .chain(&registry.responses)
        .copied()
        .flatten();
    messages.chain(registry.data.iter().copied())
}

/// Every distinct field name; [`Field::name_id`] is an index of it.
pub fn field_names() -> &'static [&'static str] {
    &registry().names
}

pub(crate) fn find(api_key: i16, direction: Direction) -> Result<&'static Schema, ProtocolError> {
    schema(api_key, direction).ok_or(ProtocolError::UnknownApi(api_key))
}

pub(crate) fn find_data(name: &str) -> Result<&'static Schema, ProtocolError> {
    data_schema(name).ok_or_else(|| ProtocolError::UnknownSchema(name.to_owned()))
}

#[derive(Default)]
struct Parser {
    names: Vec<&'static str>,
    name_ids: HashMap<&'static str, usize>,
}

impl Parser {
    fn parse(mut self) -> Registry {
        let mut registry = Registry {
            requests: Vec::new(),
            responses: Vec::new(),
            data: Vec::new(),
            names: Vec::new(),
        };
        for text in [MESSAGES, METADATA, RECORDS] {
            let lines: Vec<&'static str> = text
                .lines()
                .filter(|line| !line.is_empty() && !line.starts_with('#'))
                .collect();
            let mut rest = lines.as_slice();
            while let Some((head, below)) = rest.split_first() {
                rest = below;
                let schema: &'static Schema = Box::leak(Box::new(self.message(head, &mut rest)));
                match (schema.direction, schema.api_key) {
                    (Some(Direction::Request), Some(key)) => put(&mut registry.requests, key, schema),
                    (Some(Direction::Response), Some(key)) => put(&mut registry.responses, key, schema),
                    _ => registry.data.push(schema),
                }
            }
        }
        registry.names = self.names;
        registry
    }

    fn message(&mut self, head: &'static str, rest: &mut &[&'static str]) -> Schema {
        let words: Vec<&'static str> = head.split(' ').collect();
        let (direction, api_key, name, valid, flexible) = match words[..] {
            ["request", key, name, valid, flexible] => {
                (Some(Direction::Request), Some(key), name, valid, flexible)
            }
            ["response", key, name, valid, flexible] => {
                (Some(Direction::Response), Some(key), name, valid, flexible)
            }
            ["data", name, valid, flexible] => (None, None, name, valid, flexible),
            _ => defect(head),
        };
        Schema {
            name,
            direction,
            api_key: api_key.map(|key| number(key, head)),
            valid: versions(valid, head),
            flexible: versions(flexible, head),
            root: self.fields(name, 1, rest),
        }
    }

    /// Parses the fields at this depth, and those of the structs below them.
    fn fields(
        &mut self,
        name: &'static str,
        depth: usize,
        rest: &mut &[&'static str],
    ) -> &'static StructSchema {
        let mut fields = Vec::new();
        while let Some((line, below)) = rest.split_first() {
            let indent = line.len() - line.trim_start_matches(' ').len();
            if indent != depth {
                break;
            }
            *rest = below;
            fields.push(self.field(line, depth, rest));
        }
        let mut tagged: Vec<usize> = (0..fields.len())
            .filter(|&index| !fields[index].tagged.is_empty())
            .collect();
        tagged.sort_by_key(|&index| fields[index].tag);
        let weight = weight::STRUCT + fields.iter().map(weight::field).sum::<usize>();
        Box::leak(Box::new(StructSchema {
            name,
            fields,
            tagged,
            weight,
        }))
    }

    fn field(&mut self, line: &'static str, depth: usize, rest: &mut &[&'static str]) -> Field {
        let mut words = line.split_ascii_whitespace();
        let (Some(name), Some(kind), Some(present)) = (words.next(), words.next(), words.next()) else {
            defect(line)
        };
        let kind = self.kind(name, kind, depth, rest).unwrap_or_else(|| defect(line));
        let mut field = Field {
            name,
            name_id: self.name_id(name),
            kind,
            versions: versions(present, line),
            nullable: Versions::NONE,
            tagged: Versions::NONE,
            tag: 0,
            default: zero(kind),
            ignorable: false,
        };
        for word in words {
            match word.split_once('=') {
                None if word == "ignorable" => field.ignorable = true,
                Some(("null", range)) => field.nullable = versions(range, line),
                Some(("default", text)) => field.default = default(kind, text, line),
                Some(("tag", text)) => {
                    let Some((tag, range)) = text.split_once(':') else {
                        defect(line)
                    };
                    field.tag = number(tag, line);
                    field.tagged = versions(range, line);
                }
                _ => defect(line),
            }
        }
        field
    }

    fn kind(
        &mut self,
        name: &'static str,
        word: &str,
        depth: usize,
        rest: &mut &[&'static str],
    ) -> Option<FieldType> {
        Some(match word {
            "bool" => FieldType::Bool,
            "int8" => FieldType::Int8,
            "int16" => FieldType::Int16,
            "int32" => FieldType::Int32,
            "int64" => FieldType::Int64,
            "uint16" => FieldType::Uint16,
            "uint32" => FieldType::Uint32,
            "float64" => FieldType::Float64,
            "uuid" => FieldType::Uuid,
            "string" => FieldType::String,
            "bytes" => FieldType::Bytes,
            "records" => FieldType::Records,
            "struct" => FieldType::Struct(self.fields(name, depth + 1, rest)),
            _ => {
                let element = self.kind(name, word.strip_prefix("[]")?, depth, rest)?;
                FieldType::Array(Box::leak(Box::new(element)))
            }
        })
    }

    fn name_id(&mut self, name: &'static str) -> usize {
        *self.name_ids.entry(name).or_insert_with(|| {
            self.names.push(name);
            self.names.len() - 1
        })
    }
}

fn put(table: &mut Vec<Option<&'static Schema>>, key: i16, schema: &'static Schema) {
    let index = usize::try_from(key).unwrap_or_else(|_| defect(schema.name));
    if table.len() <= index {
        table.resize(index + 1, None);
    }
    table[index] = Some(schema);
}

fn versions(text: &str, line: &str) -> Versions {
    if text == "none" {
        return Versions::NONE;
    }
    if let Some(first) = text.strip_suffix('+') {
        return Versions {
            first: number(first, line),
            last: i16::MAX,
        };
    }
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Versions {
        first: number(first, line),
        last: number(last, line),
    }
}

fn default(kind: FieldType, text: &str, line: &str) -> Value {
    match kind {
        _ if text == "null" => Value::Null,
        FieldType::Bool => Value::Bool(text == "true"),
        FieldType::Int8 => Value::I8(number(text, line)),
        FieldType::Int16 => Value::I16(number(text, line)),
        FieldType::Int32 => Value::I32(number(text, line)),
        FieldType::Int64 => Value::I64(number(text, line)),
        FieldType::Uint16 => Value::U16(number(text, line)),
        FieldType::Uint32 => Value::U32(number(text, line)),
        FieldType::Float64 => Value::F64(number(text, line)),
        FieldType::String => Value::from(text),
        _ => defect(line),
    }
}

fn number<T: std::str::FromStr>(text: &str, line: &str) -> T {
    text.parse().unwrap_or_else(|_| defect(line))
}

fn defect(line: &str) -> ! {
    panic!("the table of messages has a line that cannot be parsed: {line:?}")
}
