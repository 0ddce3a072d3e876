//! Records that are one Protobuf message each. The decoder is prost-reflect's, with the descriptors that
//! protoc writes (`--descriptor_set_out --include_imports`). Its messages go to arrow-json's reader as rows,
//! in the canonical JSON mapping of Protobuf, without any JSON text.
//!
//! A record is the message alone, or has a registry's frame: a zero byte, the 4-byte id of the schema, the
//! position of the message in its file, and the message. The position is a list of zigzag varints, its length
//! first; a single 0 stands for the list [0]. The id and the position are not used: the descriptors say what
//! the message is. Source: Confluent's wire format.

use std::sync::Arc;

use arrow_array::{BinaryArray, StructArray};
use arrow_json::reader::Decoder;
use arrow_schema::{DataType, Field, FieldRef, Fields, Schema, SchemaRef, TimeUnit};
use prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, SerializeOptions,
};
use serde::{Serialize, Serializer};

use crate::error::ColumnsError;
use crate::typed::conform::json_fields;
use crate::typed::json;
use crate::typed::runs::{Reader, Rejection, read_fed};
use crate::typed::typed;

/// A zero byte and the 4-byte id.
const FRAME_BYTES: usize = 5;

/// The columns for the messages of a type, all of them nullable. The types are those of Spark's Protobuf
/// source, with unsigned integers in a wider type and durations as strings.
///
/// # Errors
/// [`ColumnsError::Typed`] for descriptors without the message, or a message that contains itself.
pub fn protobuf_schema(descriptors: &[u8], message: &str) -> Result<Schema, ColumnsError> {
    let message = find(descriptors, message)?;
    Ok(Schema::new(
        message_fields(&message, &mut Vec::new()).map_err(typed)?,
    ))
}

pub(crate) struct ProtobufReader {
    fields: Fields,
    /// The types that are read, before they are made those of `fields`.
    read: SchemaRef,
    message: MessageDescriptor,
    framed: bool,
    /// `None` after an error: the decoder's state is lost then.
    decoder: Option<Decoder>,
}

impl ProtobufReader {
    pub(crate) fn new(
        fields: &Fields,
        descriptors: &[u8],
        message: &str,
        framed: bool,
    ) -> Result<Self, ColumnsError> {
        Ok(Self {
            fields: fields.clone(),
            read: Arc::new(Schema::new(json_fields(fields).map_err(typed)?)),
            message: find(descriptors, message)?,
            framed,
            decoder: None,
        })
    }

    fn message(&self, record: &[u8]) -> Result<Row, String> {
        let body = if self.framed { unframed(record)? } else { record };
        let message = DynamicMessage::decode(self.message.clone(), body);
        message.map(Row).map_err(|error| error.to_string())
    }
}

impl Reader for ProtobufReader {
    fn read(&mut self, values: &BinaryArray, rows: &[u32]) -> Result<StructArray, Rejection> {
        let decoder = match self.decoder.take() {
            Some(decoder) => decoder,
            None => json::decoder(&self.read).map_err(Rejection::somewhere)?,
        };
        let feed = |decoder: &mut Decoder, record: &[u8], _before: usize| {
            let row = self.message(record)?;
            decoder.serialize(&[row]).map_err(|error| error.to_string())
        };
        let (decoder, array) = read_fed(decoder, (values, rows), &self.fields, feed, Decoder::flush)?;
        self.decoder = Some(decoder);
        Ok(array)
    }
}

/// A message as a row. Fields have the names of the .proto file; those that are absent, or have the default
/// value without being optional, are left out, as in Spark.
struct Row(DynamicMessage);

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let options = SerializeOptions::new().use_proto_field_name(true);
        self.0.serialize_with_options(serializer, &options)
    }
}

/// The message in a registry's frame.
fn unframed(record: &[u8]) -> Result<&[u8], String> {
    let framed = record.len() >= FRAME_BYTES && record[0] == 0;
    if !framed {
        return Err("the record does not begin with a zero byte and a schema's id".to_owned());
    }
    let mut rest = &record[FRAME_BYTES..];
    let mut number = || prost::decode_length_delimiter(&mut rest).map_err(|error| error.to_string());
    // Zigzag doubles numbers that are not negative.
    for _ in 0..number()? / 2 {
        number()?;
    }
    Ok(rest)
}

fn find(descriptors: &[u8], message: &str) -> Result<MessageDescriptor, ColumnsError> {
    let pool = DescriptorPool::decode(descriptors).map_err(|error| typed(error.to_string()))?;
    pool.get_message_by_name(message)
        .ok_or_else(|| typed(format!("the descriptors have no message {message:?}")))
}

fn message_fields(message: &MessageDescriptor, outer: &mut Vec<String>) -> Result<Fields, String> {
    let name = message.full_name().to_owned();
    if outer.contains(&name) {
        return Err(format!("message {name} contains itself"));
    }
    if message.fields().len() == 0 {
        return Err(format!("message {name} has no fields"));
    }
    outer.push(name);
    let fields = message.fields().map(|field| column(&field, outer)).collect();
    outer.pop();
    fields
}

fn column(field: &FieldDescriptor, outer: &mut Vec<String>) -> Result<FieldRef, String> {
    let data_type = match field.kind() {
        Kind::Message(entry) if field.is_map() => {
            let key = plain(&entry.map_entry_key_field(), outer)?;
            let key = Field::new("key", key, false);
            let value = Field::new("value", plain(&entry.map_entry_value_field(), outer)?, true);
            let pair = DataType::Struct(Fields::from(vec![key, value]));
            DataType::Map(Arc::new(Field::new("entries", pair, false)), false)
        }
        _ if field.is_list() => DataType::List(Arc::new(Field::new("element", plain(field, outer)?, true))),
        _ => plain(field, outer)?,
    };
    Ok(Arc::new(Field::new(field.name(), data_type, true)))
}

/// The type of one value of a field.
fn plain(field: &FieldDescriptor, outer: &mut Vec<String>) -> Result<DataType, String> {
    Ok(match field.kind() {
        Kind::Double => DataType::Float64,
        Kind::Float => DataType::Float32,
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => DataType::Int32,
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 | Kind::Uint32 | Kind::Fixed32 => DataType::Int64,
        Kind::Uint64 | Kind::Fixed64 => DataType::Decimal128(20, 0),
        Kind::Bool => DataType::Boolean,
        Kind::String | Kind::Enum(_) => DataType::Utf8,
        Kind::Bytes => DataType::Binary,
        Kind::Message(message) => match message.full_name() {
            "google.protobuf.Timestamp" => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            "google.protobuf.Duration" | "google.protobuf.FieldMask" => DataType::Utf8,
            "google.protobuf.DoubleValue"
            | "google.protobuf.FloatValue"
            | "google.protobuf.Int32Value"
            | "google.protobuf.Int64Value"
            | "google.protobuf.UInt32Value"
            | "google.protobuf.UInt64Value"
            | "google.protobuf.BoolValue"
            | "google.protobuf.StringValue"
            | "google.protobuf.BytesValue" => match message.fields().next() {
                Some(inner) => plain(&inner, outer)?,
                None => return Err(format!("message {} has no fields", message.full_name())),
            },
            "google.protobuf.Any"
            | "google.protobuf.Struct"
            | "google.protobuf.ListValue"
            | "google.protobuf.Value" => {
                let (field, message) = (field.full_name(), message.full_name());
                return Err(format!("field {field} is {message}, which has no columns"));
            }
            _ => DataType::Struct(message_fields(&message, outer)?),
        },
    })
}
