//! Encodes values to bytes.

use crate::decode::MAX_STRING;
use crate::error::{Fault, Problem, ProtocolError};
use crate::table;
use crate::value::{Direction, Field, FieldType, Schema, Struct, StructSchema, Value};
use crate::wire::put_varint;

type Result<T> = std::result::Result<T, Box<Fault>>;

/// Bytes that an encoded response leaves to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The position of the missing bytes in the output, which has no bytes for other gaps either.
    pub position: usize,
    pub length: u32,
}

/// Appends a request's body, without its header. On an error `out` is unchanged.
pub fn encode_request(
    api_key: i16,
    version: i16,
    message: &Value,
    out: &mut Vec<u8>,
) -> std::result::Result<(), ProtocolError> {
    encode_with(table::find(api_key, Direction::Request)?, version, message, out)
}

/// Appends a response's body, without its header. On an error `out` is unchanged.
pub fn encode_response(
    api_key: i16,
    version: i16,
    message: &Value,
    out: &mut Vec<u8>,
) -> std::result::Result<(), ProtocolError> {
    encode_with(table::find(api_key, Direction::Response)?, version, message, out)
}

/// Appends a response whose `records` may be [`Value::Gap`]s: their lengths are written, and the caller sends
/// the bytes itself, as from a file, at each gap's position.
pub fn encode_response_with_gaps(
    api_key: i16,
    version: i16,
    message: &Value,
    out: &mut Vec<u8>,
) -> std::result::Result<Vec<Gap>, ProtocolError> {
    let mut gaps = Vec::new();
    run(
        table::find(api_key, Direction::Response)?,
        version,
        message,
        out,
        Some(&mut gaps),
    )?;
    Ok(gaps)
}

/// Appends data by its schema's name, without the int16 version that often precedes it.
pub fn encode_data(
    name: &str,
    version: i16,
    message: &Value,
    out: &mut Vec<u8>,
) -> std::result::Result<(), ProtocolError> {
    encode_with(table::find_data(name)?, version, message, out)
}

/// Appends any message. A field that the version lacks must be ignorable or have its default.
pub fn encode_with(
    schema: &'static Schema,
    version: i16,
    message: &Value,
    out: &mut Vec<u8>,
) -> std::result::Result<(), ProtocolError> {
    run(schema, version, message, out, None)
}

fn run(
    schema: &'static Schema,
    version: i16,
    message: &Value,
    out: &mut Vec<u8>,
    gaps: Option<&mut Vec<Gap>>,
) -> std::result::Result<(), ProtocolError> {
    schema.check_version(version)?;
    let start = out.len();
    let mut encoder = Encoder {
        out,
        gaps,
        version,
        flexible: schema.flexible.contains(version),
    };
    let result = encoder.value(&FieldType::Struct(schema.root), message);
    result.map_err(|fault| {
        out.truncate(start);
        ProtocolError::Encode {
            message: schema.to_string(),
            version,
            path: fault.path(),
            problem: fault.problem,
        }
    })
}

struct Encoder<'a> {
    out: &'a mut Vec<u8>,
    gaps: Option<&'a mut Vec<Gap>>,
    version: i16,
    flexible: bool,
}

impl Encoder<'_> {
    fn structure(&mut self, schema: &'static StructSchema, value: &Struct) -> Result<()> {
        if !std::ptr::eq(schema, value.schema()) {
            return Err(problem(Problem::WrongType {
                expected: schema.name,
                found: value.schema().name,
            }));
        }
        for (field, value) in schema.fields.iter().zip(value.fields()) {
            if field.is_plain(self.version) {
                self.field(field, value)
            } else {
                check_absent(field, value, self.version)
            }
            .map_err(|fault| fault.in_field(field.name))?;
        }
        if self.flexible {
            self.tagged_fields(schema, value)?;
        }
        Ok(())
    }

    /// Writes tagged fields in the order of their tags, without those at their defaults.
    fn tagged_fields(&mut self, schema: &StructSchema, value: &Struct) -> Result<()> {
        let written = |&index: &usize| {
            let field = &schema.fields[index];
            field.tagged.contains(self.version) && value[index] != field.default
        };
        let present: Vec<usize> = schema.tagged.iter().copied().filter(written).collect();
        put_varint(self.out, present.len() as u32);
        for index in present {
            let field = &schema.fields[index];
            let mut bytes = Vec::new();
            let mut inner = Encoder {
                out: &mut bytes,
                gaps: None,
                version: self.version,
                flexible: self.flexible,
            };
            inner
                .field(field, &value[index])
                .map_err(|fault| fault.in_field(field.name))?;
            put_varint(self.out, field.tag);
            put_varint(self.out, length(bytes.len())?);
            self.out.extend_from_slice(&bytes);
        }
        Ok(())
    }

    fn field(&mut self, field: &Field, value: &Value) -> Result<()> {
        let nullable = field.nullable.contains(self.version);
        if nullable && matches!(field.kind, FieldType::Struct(_)) {
            self.out.push(if value.is_null() { 0xff } else { 1 });
            if value.is_null() {
                return Ok(());
            }
        }
        if !value.is_null() {
            return self.value(&field.kind, value);
        }
        if !nullable {
            return Err(problem(Problem::UnexpectedNull));
        }
        self.null(&field.kind)
    }

    fn null(&mut self, kind: &FieldType) -> Result<()> {
        let null: &[u8] = match kind {
            _ if self.flexible => &[0],
            FieldType::String => &[0xff; 2],
            _ => &[0xff; 4],
        };
        self.out.extend_from_slice(null);
        Ok(())
    }

    fn value(&mut self, kind: &FieldType, value: &Value) -> Result<()> {
        match (kind, value) {
            (FieldType::Bool, Value::Bool(value)) => self.out.push(u8::from(*value)),
            (FieldType::Int8, Value::I8(value)) => self.out.extend(value.to_be_bytes()),
            (FieldType::Int16, Value::I16(value)) => self.out.extend(value.to_be_bytes()),
            (FieldType::Int32, Value::I32(value)) => self.out.extend(value.to_be_bytes()),
            (FieldType::Int64, Value::I64(value)) => self.out.extend(value.to_be_bytes()),
            (FieldType::Uint16, Value::U16(value)) => self.out.extend(value.to_be_bytes()),
            (FieldType::Uint32, Value::U32(value)) => self.out.extend(value.to_be_bytes()),
            (FieldType::Float64, Value::F64(value)) => self.out.extend(value.to_be_bytes()),
            (FieldType::Uuid, Value::Uuid(value)) => self.out.extend_from_slice(value),
            (FieldType::String, Value::Str(value)) => self.string(value.as_bytes())?,
            (FieldType::Bytes | FieldType::Records, Value::Bytes(value)) => {
                self.long_length(value.len())?;
                self.out.extend_from_slice(value);
            }
            (FieldType::Records, Value::Gap(length)) => self.gap(*length)?,
            (FieldType::Array(element), Value::Array(values)) => self.array(element, values)?,
            (FieldType::Struct(schema), Value::Struct(value)) => self.structure(schema, value)?,
            (_, Value::Null) => return Err(problem(Problem::UnexpectedNull)),
            _ => {
                return Err(problem(Problem::WrongType {
                    expected: kind.name(),
                    found: value.kind(),
                }));
            }
        }
        Ok(())
    }

    fn string(&mut self, text: &[u8]) -> Result<()> {
        if text.len() > MAX_STRING {
            return Err(problem(Problem::StringTooLong(text.len())));
        }
        if self.flexible {
            put_varint(self.out, text.len() as u32 + 1);
        } else {
            self.out.extend((text.len() as u16).to_be_bytes());
        }
        self.out.extend_from_slice(text);
        Ok(())
    }

    fn array(&mut self, element: &FieldType, values: &[Value]) -> Result<()> {
        self.long_length(values.len())?;
        for (index, value) in values.iter().enumerate() {
            self.value(element, value)
                .map_err(|fault| fault.in_element(index))?;
        }
        Ok(())
    }

    fn gap(&mut self, length: u32) -> Result<()> {
        self.long_length(length as usize)?;
        let position = self.out.len();
        let gaps = self
            .gaps
            .as_mut()
            .ok_or_else(|| problem(Problem::UnexpectedGap))?;
        gaps.push(Gap { position, length });
        Ok(())
    }

    fn long_length(&mut self, count: usize) -> Result<()> {
        let count = length(count)?;
        if self.flexible {
            put_varint(self.out, count + 1);
        } else {
            self.out.extend(count.to_be_bytes());
        }
        Ok(())
    }
}

/// Refuses to lose the value of a field that the version lacks. Fields that are tagged in this version come
/// later.
fn check_absent(field: &Field, value: &Value, version: i16) -> Result<()> {
    if field.ignorable || field.versions.contains(version) || *value == field.default {
        return Ok(());
    }
    Err(problem(Problem::NotInVersion(format!("{:?}", field.default))))
}

/// On the wire a length is an int32, or a varint of the length plus one.
fn length(length: usize) -> Result<u32> {
    match i32::try_from(length) {
        Ok(length) => Ok(length as u32),
        Err(_) => Err(problem(Problem::TooLong(length))),
    }
}

fn problem(problem: Problem) -> Box<Fault> {
    Fault::new(problem, 0)
}
