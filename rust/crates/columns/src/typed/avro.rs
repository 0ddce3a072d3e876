//! Records in Avro's binary encoding. The decoder and the resolution of schemas are arrow-avro's.
//!
//! A record is the encoding alone, or has a registry's frame: a zero byte, the 4-byte id of its writer's
//! schema (big-endian), and the encoding. Source: Confluent's wire format.
//!
//! arrow-avro's decoder takes framed records only, with an id that it knows. Each writer's schema has a
//! decoder of its own here, and every record gets the same frame for it. The frame's id is random, so that no
//! record can hold a second frame.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use arrow_array::{BinaryArray, StructArray};
use arrow_avro::reader::{Decoder, ReaderBuilder};
use arrow_avro::schema::{AvroSchema, Fingerprint, FingerprintAlgorithm, SchemaStore};
use arrow_schema::{ArrowError, Fields, Schema};

use crate::error::ColumnsError;
use crate::typed::conform::{conform_struct, spark_fields};
use crate::typed::runs::{RUN_ROWS, Reader, Rejection};
use crate::typed::typed;

/// A zero byte and the 4-byte id.
const FRAME_BYTES: usize = 5;

/// The columns that Spark takes for the records of an Avro schema, all of them nullable.
///
/// # Errors
/// [`ColumnsError::Typed`] for a schema that is not of a record, or has a type that Spark has not.
pub fn avro_schema(schema: &str) -> Result<Schema, ColumnsError> {
    let decoder = build(&AvroSchema::new(schema.to_owned()), None, None, 0);
    let decoder = decoder.map_err(|error| typed(error.to_string()))?;
    Ok(Schema::new(
        spark_fields(decoder.schema().fields()).map_err(typed)?,
    ))
}

pub(crate) struct AvroReader {
    fields: Fields,
    /// The reader's schema.
    schema: AvroSchema,
    /// The wanted fields of `schema`.
    wanted: Vec<usize>,
    /// Whether these are all, in their order.
    everything: bool,
    framed: bool,
    frame_id: u64,
    /// By the writer's id; 0 without frames.
    writers: BTreeMap<u32, Writer>,
}

/// A writer's schema.
enum Writer {
    /// Its decoder is `None` after an error: the state is lost then.
    Known {
        schema: AvroSchema,
        decoder: Option<Box<Decoder>>,
    },
    /// Why its records cannot be read.
    Unreadable(String),
}

impl AvroReader {
    pub(crate) fn new(fields: &Fields, schema: String, framed: bool) -> Result<Self, ColumnsError> {
        let columns = avro_schema(&schema)?;
        let wanted: Result<Vec<usize>, ArrowError> = fields
            .iter()
            .map(|field| columns.index_of(field.name()))
            .collect();
        let wanted = wanted.map_err(|error| typed(error.to_string()))?;
        let mut reader = Self {
            fields: fields.clone(),
            schema: AvroSchema::new(schema.clone()),
            everything: wanted.iter().copied().eq(0..columns.fields().len()),
            wanted,
            framed,
            frame_id: RandomState::new().build_hasher().finish(),
            writers: BTreeMap::new(),
        };
        if !framed {
            reader.add_schema(0, Some(schema));
        }
        Ok(reader)
    }

    fn new_decoder(&self, writer: &AvroSchema) -> Result<Box<Decoder>, ArrowError> {
        if writer == &self.schema && self.everything {
            return build(writer, None, None, self.frame_id).map(Box::new);
        }
        build(writer, Some(&self.schema), Some(&self.wanted), self.frame_id).map(Box::new)
    }

    fn body<'a>(&self, record: &'a [u8]) -> &'a [u8] {
        if self.framed {
            &record[FRAME_BYTES..]
        } else {
            record
        }
    }
}

impl Reader for AvroReader {
    fn schema_id(&self, record: &[u8]) -> Result<u32, String> {
        let id = if self.framed {
            let found =
                frame(record).ok_or("the record does not begin with a zero byte and a schema's id")?;
            found.0
        } else {
            0
        };
        match self.writers.get(&id) {
            Some(Writer::Known { .. }) => Ok(id),
            Some(Writer::Unreadable(reason)) => Err(reason.clone()),
            None => Err(format!("schema {id} is not known")),
        }
    }

    fn unknown_schemas(&self, values: &BinaryArray) -> Vec<u32> {
        if !self.framed {
            return Vec::new();
        }
        let mut unknown: Vec<u32> = values
            .iter()
            .flatten()
            .filter_map(frame)
            .map(|(id, _)| id)
            .collect();
        unknown.sort_unstable();
        unknown.dedup();
        unknown.retain(|id| !self.writers.contains_key(id));
        unknown
    }

    fn add_schema(&mut self, id: u32, schema: Option<String>) {
        let writer = match schema.map(AvroSchema::new) {
            None => Writer::Unreadable(format!("the registry has no schema {id}")),
            Some(schema) => match self.new_decoder(&schema) {
                Ok(decoder) => Writer::Known {
                    schema,
                    decoder: Some(decoder),
                },
                Err(error) => Writer::Unreadable(format!("schema {id} cannot be read: {error}")),
            },
        };
        self.writers.insert(id, writer);
    }

    fn read(&mut self, values: &BinaryArray, rows: &[u32]) -> Result<StructArray, Rejection> {
        let id = self
            .schema_id(values.value(rows[0] as usize))
            .map_err(Rejection::somewhere)?;
        let Some(Writer::Known { schema, decoder }) = self.writers.get_mut(&id) else {
            return Err(Rejection::somewhere("the schema is not known"));
        };
        let mut decoder = match decoder.take() {
            Some(decoder) => decoder,
            None => {
                let schema = schema.clone();
                self.new_decoder(&schema).map_err(Rejection::somewhere)?
            }
        };
        let mut frame = [0; 9];
        frame[1..].copy_from_slice(&self.frame_id.to_be_bytes());
        for (index, row) in rows.iter().enumerate() {
            feed(&mut decoder, &frame, self.body(values.value(*row as usize)))
                .map_err(|reason| Rejection::at(index, reason))?;
        }
        let batch = decoder.flush().map_err(Rejection::somewhere)?;
        if let Some(Writer::Known { decoder: kept, .. }) = self.writers.get_mut(&id) {
            *kept = Some(decoder);
        }
        let batch = batch.ok_or_else(|| Rejection::somewhere("no row was read"))?;
        conform_struct(&StructArray::from(batch), &self.fields).map_err(Rejection::somewhere)
    }
}

/// The id in a record's frame, and the encoding after it.
fn frame(record: &[u8]) -> Option<(u32, &[u8])> {
    let (id, body) = record.strip_prefix(&[0])?.split_first_chunk()?;
    Some((u32::from_be_bytes(*id), body))
}

/// Gives the decoder one record, which must be one encoded value.
fn feed(decoder: &mut Decoder, frame: &[u8], body: &[u8]) -> Result<(), String> {
    let capacity = decoder.capacity();
    decoder.decode(frame).map_err(|error| error.to_string())?;
    let used = decoder.decode(body).map_err(|error| error.to_string())?;
    if capacity - decoder.capacity() != 1 {
        return Err("the record is cut off".to_owned());
    }
    if used != body.len() {
        return Err(format!("{} bytes after the record", body.len() - used));
    }
    Ok(())
}

fn build(
    writer: &AvroSchema,
    reader: Option<&AvroSchema>,
    wanted: Option<&[usize]>,
    frame_id: u64,
) -> Result<Decoder, ArrowError> {
    let id = Fingerprint::Id64(frame_id);
    let mut store = SchemaStore::new_with_type(FingerprintAlgorithm::Id64);
    store.set(id, writer.clone())?;
    let mut builder = ReaderBuilder::new()
        .with_batch_size(RUN_ROWS)
        .with_writer_schema_store(store)
        .with_active_fingerprint(id);
    if let Some(reader) = reader {
        builder = builder.with_reader_schema(reader.clone());
    }
    if let Some(wanted) = wanted {
        builder = builder.with_projection(wanted.to_vec());
    }
    builder.build_decoder()
}
