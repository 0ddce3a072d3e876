//! Records that are one CSV line each. The parser is arrow-csv's.

use std::sync::Arc;

use arrow_array::{BinaryArray, StructArray};
use arrow_csv::ReaderBuilder;
use arrow_csv::reader::Decoder;
use arrow_schema::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};

use crate::error::ColumnsError;
use crate::typed::conform::csv_fields;
use crate::typed::runs::{RUN_ROWS, Reader, Rejection, read_fed};
use crate::typed::typed;

/// One more row than a run has, so that a second line of the last record shows.
const CAPACITY: usize = RUN_ROWS + 1;

pub(crate) struct CsvReader {
    fields: Fields,
    /// Every column of a line, with the types that are read.
    line: SchemaRef,
    /// The columns that are wanted.
    wanted: Vec<usize>,
    delimiter: u8,
    /// `None` after an error: the decoder's state is lost then.
    decoder: Option<Decoder>,
}

impl CsvReader {
    pub(crate) fn new(fields: &Fields, columns: &[String], delimiter: u8) -> Result<Self, ColumnsError> {
        let read = csv_fields(fields).map_err(typed)?;
        // Columns that are not wanted are not parsed.
        let column = |name: &String| match read.find(name) {
            Some((_, field)) => Arc::clone(field),
            None => Arc::new(Field::new(name, DataType::Utf8, true)),
        };
        let line: Fields = columns.iter().map(column).collect();
        let index = |field: &FieldRef| {
            let found = columns.iter().position(|name| name == field.name());
            found.ok_or_else(|| {
                typed(format!(
                    "the line has no column {:?}: {}",
                    field.name(),
                    columns.join(", ")
                ))
            })
        };
        Ok(Self {
            fields: fields.clone(),
            line: Arc::new(Schema::new(line)),
            wanted: fields.iter().map(index).collect::<Result<_, _>>()?,
            delimiter,
            decoder: None,
        })
    }

    fn new_decoder(&self) -> Decoder {
        ReaderBuilder::new(Arc::clone(&self.line))
            .with_batch_size(CAPACITY)
            .with_delimiter(self.delimiter)
            .with_projection(self.wanted.clone())
            .build_decoder()
    }
}

impl Reader for CsvReader {
    fn read(&mut self, values: &BinaryArray, rows: &[u32]) -> Result<StructArray, Rejection> {
        let decoder = self.decoder.take().unwrap_or_else(|| self.new_decoder());
        let (decoder, array) = read_fed(decoder, (values, rows), &self.fields, feed, Decoder::flush)?;
        self.decoder = Some(decoder);
        Ok(array)
    }
}

/// Gives the decoder one record, which must be one line. The added line end shows what is incomplete: an open
/// quote takes it in, and a second line becomes a row.
fn feed(decoder: &mut Decoder, record: &[u8], before: usize) -> Result<(), String> {
    // An empty slice would be the end of the input.
    if record.is_empty() {
        return Err("no line".to_owned());
    }
    let mut give = |bytes| decoder.decode(bytes).map_err(|error| error.to_string());
    give(record)?;
    give(b"\n")?;
    match (CAPACITY - decoder.capacity()).saturating_sub(before) {
        0 => Err("no line, or a quote without its end".to_owned()),
        1 => Ok(()),
        _ => Err("more than one line".to_owned()),
    }
}
