//! Records that are one JSON object each. The parser is arrow-json's.

use std::sync::Arc;

use arrow_array::{BinaryArray, StructArray};
use arrow_json::ReaderBuilder;
use arrow_json::reader::Decoder;
use arrow_schema::{Fields, Schema, SchemaRef};

use crate::error::ColumnsError;
use crate::typed::conform::json_fields;
use crate::typed::runs::{RUN_ROWS, Reader, Rejection, read_fed};
use crate::typed::typed;

/// Most levels of objects and lists, as in Spark's parser (Jackson's `StreamReadConstraints`). arrow-json's
/// messages follow the levels by recursion.
const DEPTH_MAX: usize = 1000;

pub(crate) struct JsonReader {
    fields: Fields,
    /// The types that are read, before they are made those of `fields`.
    read: SchemaRef,
    /// `None` after an error: the decoder's state is lost then.
    decoder: Option<Decoder>,
}

impl JsonReader {
    pub(crate) fn new(fields: &Fields) -> Result<Self, ColumnsError> {
        let read = Arc::new(Schema::new(json_fields(fields).map_err(typed)?));
        let decoder = Some(decoder(&read).map_err(|error| typed(error.to_string()))?);
        Ok(Self {
            fields: fields.clone(),
            read,
            decoder,
        })
    }
}

/// A decoder of JSON values as rows of `schema`.
pub(crate) fn decoder(schema: &SchemaRef) -> Result<Decoder, arrow_schema::ArrowError> {
    ReaderBuilder::new(Arc::clone(schema))
        .with_batch_size(RUN_ROWS)
        .with_coerce_primitive(true)
        .build_decoder()
}

impl Reader for JsonReader {
    fn read(&mut self, values: &BinaryArray, rows: &[u32]) -> Result<StructArray, Rejection> {
        let decoder = match self.decoder.take() {
            Some(decoder) => decoder,
            None => decoder(&self.read).map_err(Rejection::somewhere)?,
        };
        let (decoder, array) = read_fed(decoder, (values, rows), &self.fields, feed, Decoder::flush)?;
        self.decoder = Some(decoder);
        Ok(array)
    }
}

/// Gives the decoder one record, which must be one value. An object that is cut off, and a number, which is
/// no object, leave the decoder amid a value.
fn feed(decoder: &mut Decoder, record: &[u8], before: usize) -> Result<(), String> {
    if is_deep(record) {
        return Err(format!("more than {DEPTH_MAX} levels of objects and lists"));
    }
    let used = decoder.decode(record).map_err(|error| error.to_string())?;
    match decoder.len().saturating_sub(before) {
        0 => Err("no JSON value".to_owned()),
        1 if used == record.len() && !decoder.has_partial_record() => Ok(()),
        1 if used == record.len() => Err("the JSON object is cut off".to_owned()),
        _ => Err("more than one JSON value".to_owned()),
    }
}

/// Whether the levels exceed [`DEPTH_MAX`].
fn is_deep(record: &[u8]) -> bool {
    let opening = record.iter().filter(|byte| matches!(byte, b'[' | b'{')).count();
    if opening <= DEPTH_MAX {
        return false;
    }
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for byte in record {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => depth += 1,
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEPTH_MAX {
            return true;
        }
    }
    false
}
