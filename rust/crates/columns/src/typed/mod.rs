//! Decodes the keys or values of records into one typed Arrow column: JSON, CSV, Avro or Protobuf.
//!
//! Owns the choice of the records that are read together, what happens to a malformed one, and the Arrow
//! types that Spark takes. The parsing is that of arrow-json, arrow-csv, arrow-avro and
//! prost-reflect. The caller asks the registry of schemas.
//!
//! A record is malformed when its reader refuses it, or when it is not exactly one value. Its row is null, or
//! is dropped. Its neighbours are not affected. Memory is bounded by the given batch and a run of records
//! (`runs`).

mod avro;
mod conform;
mod csv;
mod json;
mod protobuf;
mod runs;

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BinaryArray, BooleanArray, RecordBatch, UInt32Array};
use arrow_schema::{DataType, Field, FieldRef, Schema};

use crate::error::ColumnsError;

use avro::AvroReader;
pub use avro::avro_schema;
use csv::CsvReader;
use json::JsonReader;
use protobuf::ProtobufReader;
pub use protobuf::protobuf_schema;
use runs::Reader;

/// How records are encoded.
#[derive(Debug, Clone)]
pub enum Format {
    /// One JSON object a record.
    Json,
    /// One CSV line a record, without a header.
    Csv {
        delimiter: u8,
        /// The names of the line's columns, in their order.
        columns: Vec<String>,
    },
    /// Avro's binary encoding, of one record.
    Avro {
        /// The reader's schema, as JSON.
        schema: String,
        /// Whether a record begins with a zero byte and the 4-byte id of its writer's schema in a registry.
        framed: bool,
    },
    /// Protobuf's binary encoding, of one message.
    Protobuf {
        /// A `FileDescriptorSet`, as protoc writes it.
        descriptors: Vec<u8>,
        /// The message's full name.
        message: String,
        /// Whether a record begins with the frame of a registry.
        framed: bool,
    },
}

/// A malformed record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    /// Its row in the batch that was given to the decoder.
    pub row: usize,
    pub reason: String,
}

/// A batch with its typed column.
#[derive(Debug)]
pub struct Typed {
    pub batch: RecordBatch,
    /// How many records are malformed.
    pub malformed: usize,
    /// The first of them.
    pub first: Option<Malformed>,
}

/// Replaces a binary column of record batches by a typed one.
pub struct TypedDecoder {
    /// Name and type of the typed column.
    field: FieldRef,
    /// The column that gets the bytes of malformed records.
    corrupt: Option<FieldRef>,
    drop_malformed: bool,
    reader: Box<dyn Reader + Send>,
}

impl TypedDecoder {
    /// A decoder for the column of `field`'s name, whose type becomes `field`'s: a nullable struct with the
    /// fields to decode. With `corrupt`, a column of this name is added and has the bytes of malformed
    /// records. With `drop_malformed`, their rows are left out.
    ///
    /// # Errors
    /// [`ColumnsError::Typed`] for a type that the format does not have, or a bad Avro schema.
    pub fn new(
        field: FieldRef,
        format: Format,
        corrupt: Option<&str>,
        drop_malformed: bool,
    ) -> Result<Self, ColumnsError> {
        let DataType::Struct(fields) = field.data_type() else {
            return Err(typed(format!(
                "{} is to be {}, not a struct",
                field.name(),
                field.data_type()
            )));
        };
        let fields = fields.clone();
        let reader: Box<dyn Reader + Send> = match format {
            Format::Json => Box::new(JsonReader::new(&fields)?),
            Format::Csv { delimiter, columns } => Box::new(CsvReader::new(&fields, &columns, delimiter)?),
            Format::Protobuf {
                descriptors,
                message,
                framed,
            } => Box::new(ProtobufReader::new(&fields, &descriptors, &message, framed)?),
            Format::Avro { schema, framed } => Box::new(AvroReader::new(&fields, schema, framed)?),
        };
        Ok(Self {
            field,
            corrupt: corrupt.map(|name| Arc::new(Field::new(name, DataType::Binary, true))),
            drop_malformed,
            reader,
        })
    }

    /// The ids of writers' schemas that the records of `batch` name and the decoder does not know yet, for
    /// [`TypedDecoder::add_schema`].
    ///
    /// # Errors
    /// As [`TypedDecoder::decode`].
    pub fn unknown_schemas(&self, batch: &RecordBatch) -> Result<Vec<u32>, ColumnsError> {
        Ok(self.reader.unknown_schemas(self.encoded(batch)?.1))
    }

    /// Makes a writer's schema known. With `None`, or a schema that does not resolve to the reader's, its
    /// records are malformed.
    pub fn add_schema(&mut self, id: u32, schema: Option<String>) {
        self.reader.add_schema(id, schema);
    }

    /// Decodes the column of one batch. The other columns are not changed.
    ///
    /// # Errors
    /// [`ColumnsError::Typed`] when the batch has no such binary column, [`ColumnsError::Arrow`] when decoded
    /// values exceed what an Arrow column can hold.
    pub fn decode(&mut self, batch: &RecordBatch) -> Result<Typed, ColumnsError> {
        let (index, values) = self.encoded(batch)?;
        let values = values.clone();
        let decoded = runs::decode(self.reader.as_mut(), &values, self.field.data_type())?;
        let mut columns: Vec<ArrayRef> = batch.columns().to_vec();
        let mut fields: Vec<FieldRef> = batch.schema().fields().iter().cloned().collect();
        columns[index] = decoded.array;
        fields[index] = Arc::clone(&self.field);
        if let Some(corrupt) = &self.corrupt {
            columns.push(kept(&values, &decoded.malformed)?);
            fields.push(Arc::clone(corrupt));
        }
        let mut batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?;
        if self.drop_malformed && !decoded.malformed.is_empty() {
            let mut wanted = vec![true; batch.num_rows()];
            for row in &decoded.malformed {
                wanted[*row as usize] = false;
            }
            batch = arrow_select::filter::filter_record_batch(&batch, &BooleanArray::from(wanted))?;
        }
        Ok(Typed {
            batch,
            malformed: decoded.malformed.len(),
            first: decoded.first,
        })
    }

    /// The column to decode, and its index.
    fn encoded<'a>(&self, batch: &'a RecordBatch) -> Result<(usize, &'a BinaryArray), ColumnsError> {
        let name = self.field.name();
        let (index, found) = batch
            .schema_ref()
            .column_with_name(name)
            .ok_or_else(|| typed(format!("the batch has no column {name:?}")))?;
        let values = batch.column(index).as_binary_opt::<i32>();
        let values =
            values.ok_or_else(|| typed(format!("column {name:?} is {}, not binary", found.data_type())))?;
        Ok((index, values))
    }
}

/// A column of the bytes of the records in `rows`, which is null elsewhere.
fn kept(values: &BinaryArray, rows: &[u32]) -> Result<ArrayRef, ColumnsError> {
    let mut indices: Vec<Option<u32>> = vec![None; values.len()];
    for row in rows {
        indices[*row as usize] = Some(*row);
    }
    Ok(arrow_select::take::take(
        values,
        &UInt32Array::from(indices),
        None,
    )?)
}

fn typed(reason: String) -> ColumnsError {
    ColumnsError::Typed { reason }
}

#[cfg(test)]
mod tests;
