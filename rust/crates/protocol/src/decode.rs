//! Decodes bytes to values.

use bytes::Bytes;

use crate::error::{Fault, Problem, ProtocolError};
use crate::table;
use crate::value::{Direction, Field, FieldType, Schema, Str, Struct, StructSchema, Value};
use crate::weight;
use crate::wire::Reader;

type Result<T> = std::result::Result<T, Box<Fault>>;

/// The limit of values in one message. A value takes 40 bytes of memory and may take one byte of input, so a
/// message could otherwise take a hundred times its size. Metadata of 400,000 partitions fits. A server's
/// limit for its clients is lower, and counted in bytes: [`decode_request_within`].
pub const MAX_VALUES: usize = 1 << 23;

/// The limit of a string in bytes, as in Apache's generated readers.
pub(crate) const MAX_STRING: usize = i16::MAX as usize;

/// Decodes a request's body, without its header.
///
/// Ignores bytes after it, as Apache Kafka's broker does: librdkafka 2.16 sends three too many when it asks
/// for all topics (Metadata version 9 and later).
pub fn decode_request(api_key: i16, version: i16, body: &Bytes) -> std::result::Result<Value, ProtocolError> {
    let schema = table::find(api_key, Direction::Request)?;
    schema.check_version(version)?;
    let mut decoder = Decoder::new(schema, version, body, usize::MAX, usize::MAX);
    decoder.message(schema, false).map(Value::Struct)
}

/// A request, or only its weight.
pub struct Decoded {
    /// `None` if the request weighs more than was to be kept. The caller may reserve `weight` and decode it
    /// again.
    pub message: Option<Value>,
    /// The memory of its values and of the Python objects made of them, in bytes. Without the body, which
    /// strings share.
    pub weight: usize,
}

/// Decodes a request with a limit of memory. A request of more than `keep` bytes is read to its end and
/// weighed, but not kept.
///
/// # Errors
/// [`Problem::TooHeavy`] as soon as it weighs more than `limit` bytes.
pub fn decode_request_within(
    api_key: i16,
    version: i16,
    body: &Bytes,
    keep: usize,
    limit: usize,
) -> std::result::Result<Decoded, ProtocolError> {
    let schema = table::find(api_key, Direction::Request)?;
    schema.check_version(version)?;
    let mut decoder = Decoder::new(schema, version, body, keep, limit);
    let message = decoder.message(schema, false)?;
    Ok(Decoded {
        message: decoder.keeps().then_some(Value::Struct(message)),
        weight: decoder.weight,
    })
}

/// Decodes a response's body, without its header.
pub fn decode_response(
    api_key: i16,
    version: i16,
    body: &Bytes,
) -> std::result::Result<Value, ProtocolError> {
    decode_with(table::find(api_key, Direction::Response)?, version, body)
}

/// Decodes data by its schema's name, without the int16 version that often precedes it.
pub fn decode_data(name: &str, version: i16, data: &Bytes) -> std::result::Result<Value, ProtocolError> {
    decode_with(table::find_data(name)?, version, data)
}

/// Decodes any message. Fields that the version lacks and tagged fields that are absent get their defaults.
pub fn decode_with(
    schema: &'static Schema,
    version: i16,
    body: &Bytes,
) -> std::result::Result<Value, ProtocolError> {
    schema.check_version(version)?;
    let mut decoder = Decoder::new(schema, version, body, usize::MAX, usize::MAX);
    decoder.message(schema, true).map(Value::Struct)
}

struct Decoder<'a> {
    reader: Reader<'a>,
    version: i16,
    flexible: bool,
    values_left: usize,
    /// The weight of everything read so far, kept or not.
    weight: usize,
    keep: usize,
    limit: usize,
}

impl<'a> Decoder<'a> {
    fn new(schema: &Schema, version: i16, body: &'a Bytes, keep: usize, limit: usize) -> Self {
        Self {
            reader: Reader::new(body),
            version,
            flexible: schema.flexible.contains(version),
            values_left: MAX_VALUES,
            weight: 0,
            keep,
            limit,
        }
    }

    fn message(&mut self, schema: &Schema, to_the_end: bool) -> std::result::Result<Struct, ProtocolError> {
        self.whole(schema.root, to_the_end)
            .map_err(|fault| ProtocolError::Decode {
                message: schema.to_string(),
                version: self.version,
                path: fault.path(),
                position: fault.position,
                problem: fault.problem,
            })
    }

    fn whole(&mut self, schema: &'static StructSchema, to_the_end: bool) -> Result<Struct> {
        let message = self.structure(schema)?;
        match self.reader.remaining() {
            extra if extra == 0 || !to_the_end => Ok(message),
            extra => Err(self.reader.fault(Problem::TrailingBytes(extra))),
        }
    }

    /// Recursion ends because no struct in the table contains itself.
    fn structure(&mut self, schema: &'static StructSchema) -> Result<Struct> {
        self.spend(schema.fields.len(), schema.weight)?;
        let mut fields = Vec::with_capacity(schema.fields.len());
        for field in &schema.fields {
            fields.push(if field.is_plain(self.version) {
                self.field(field).map_err(|fault| fault.in_field(field.name))?
            } else {
                field.default.clone()
            });
        }
        if self.flexible {
            self.tagged_fields(schema, &mut fields)?;
        }
        Ok(Struct::from_fields(schema, fields))
    }

    fn tagged_fields(&mut self, schema: &'static StructSchema, fields: &mut [Value]) -> Result<()> {
        for _ in 0..self.reader.varint()? {
            let tag = self.reader.varint()?;
            let size = self.reader.varint()? as usize;
            let known = schema.tagged.iter().copied().find(|&index| {
                let field = &schema.fields[index];
                field.tag == tag && field.tagged.contains(self.version)
            });
            let Some(index) = known else {
                // A newer peer may send fields that the table does not have.
                self.reader.skip(size)?;
                continue;
            };
            let field = &schema.fields[index];
            fields[index] = self
                .tagged_field(field, size)
                .map_err(|fault| fault.in_field(field.name))?;
        }
        Ok(())
    }

    fn tagged_field(&mut self, field: &Field, size: usize) -> Result<Value> {
        let limit = self.reader.limit(size)?;
        let value = self.field(field)?;
        self.reader.end_limit(limit)?;
        Ok(value)
    }

    fn field(&mut self, field: &Field) -> Result<Value> {
        let nullable = field.nullable.contains(self.version);
        if nullable && matches!(field.kind, FieldType::Struct(_)) && self.reader.i8()? < 0 {
            return Ok(Value::Null);
        }
        let value = self.value(&field.kind)?;
        if value.is_null() && !nullable {
            return Err(self.reader.fault(Problem::UnexpectedNull));
        }
        Ok(value)
    }

    fn value(&mut self, kind: &FieldType) -> Result<Value> {
        Ok(match kind {
            FieldType::Bool => Value::Bool(self.reader.i8()? != 0),
            FieldType::Int8 => Value::I8(self.reader.i8()?),
            FieldType::Int16 => Value::I16(self.reader.i16()?),
            FieldType::Int32 => Value::I32(self.reader.i32()?),
            FieldType::Int64 => Value::I64(self.reader.i64()?),
            FieldType::Uint16 => Value::U16(self.reader.u16()?),
            FieldType::Uint32 => Value::U32(self.reader.u32()?),
            FieldType::Float64 => Value::F64(self.reader.f64()?),
            FieldType::Uuid => Value::Uuid(self.reader.array()?),
            FieldType::String => self.string()?,
            FieldType::Bytes | FieldType::Records => match self.reader.long_length(self.flexible)? {
                Some(length) => self.bytes(kind, length)?,
                None => Value::Null,
            },
            FieldType::Array(element) => self.array(element)?,
            FieldType::Struct(schema) => Value::Struct(self.structure(schema)?),
        })
    }

    /// Records have no weight, because they are never copied.
    fn bytes(&mut self, kind: &FieldType, length: usize) -> Result<Value> {
        let bytes = self.reader.take(length)?;
        if matches!(kind, FieldType::Bytes) {
            self.spend(0, weight::bytes(length))?;
        }
        Ok(Value::Bytes(bytes))
    }

    /// Bytes that are not UTF-8 become U+FFFD, as in Apache's readers. The result must fit in a response's
    /// string.
    fn string(&mut self) -> Result<Value> {
        let Some(length) = self.reader.string_length(self.flexible)? else {
            return Ok(Value::Null);
        };
        if length > MAX_STRING {
            return Err(self.reader.fault(Problem::StringTooLong(length)));
        }
        let start = self.reader.position();
        let text = Str::from_utf8_lossy(self.reader.take(length)?);
        if text.len() > MAX_STRING {
            return Err(Fault::new(Problem::StringTooLong(text.len()), start));
        }
        self.spend(0, weight::text(&text))?;
        Ok(Value::Str(text))
    }

    fn array(&mut self, element: &FieldType) -> Result<Value> {
        let Some(count) = self.reader.long_length(self.flexible)? else {
            return Ok(Value::Null);
        };
        let remaining = self.reader.remaining();
        let element_size = element.min_size(self.version, self.flexible).max(1);
        if count > remaining / element_size {
            return Err(self.reader.fault(Problem::CountTooLarge {
                count,
                element_size,
                remaining,
            }));
        }
        self.spend(count, weight::ARRAY + count * weight::element(element))?;
        let mut values = Vec::with_capacity(if self.keeps() { count } else { 0 });
        for index in 0..count {
            let value = self.value(element).map_err(|fault| fault.in_element(index))?;
            if value.is_null() {
                return Err(self.reader.fault(Problem::UnexpectedNull).in_element(index));
            }
            if self.keeps() {
                values.push(value);
            }
        }
        Ok(Value::Array(values))
    }

    /// Counts values before memory is allocated for them.
    fn spend(&mut self, values: usize, weight: usize) -> Result<()> {
        let Some(left) = self.values_left.checked_sub(values) else {
            return Err(self.reader.fault(Problem::TooManyValues(MAX_VALUES)));
        };
        self.values_left = left;
        self.weight = self.weight.saturating_add(weight);
        if self.weight > self.limit {
            return Err(self.reader.fault(Problem::TooHeavy(self.limit)));
        }
        Ok(())
    }

    /// Whether values are kept, or only weighed because there are too many.
    fn keeps(&self) -> bool {
        self.weight <= self.keep
    }
}
