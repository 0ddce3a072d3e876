//! Decodes records in runs, and finds the malformed ones among them.
//!
//! A reader decodes a run as a whole. When it refuses a run and names the record, the run goes on without
//! that record. When it does not, the run is halved until the record stands alone. A run has at most
//! [`RUN_ROWS`] records, so a record is read at most about 2 log2([`RUN_ROWS`]) times.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use arrow_array::{Array, ArrayRef, BinaryArray, RecordBatch, StructArray, UInt32Array, new_null_array};
use arrow_schema::{ArrowError, DataType, Fields};

use crate::error::ColumnsError;
use crate::typed::Malformed;
use crate::typed::conform::conform_struct;

/// Most records that are read together. Readers allocate for as many.
pub(crate) const RUN_ROWS: usize = 1024;

/// Most bytes that are read together, unless a record is larger. Readers of JSON need about ten times the
/// memory.
const RUN_BYTES: usize = 1 << 20;

/// A record with more bytes is malformed, so that one record cannot use up a task's memory.
const RECORD_BYTES_MAX: usize = 64 << 20;

/// Most characters of a reason.
const REASON_CHARS: usize = 300;

/// Decodes records of one format.
pub(crate) trait Reader {
    /// The id of the schema that the record was written with, 0 where records do not say. Only records of one
    /// id are read together.
    ///
    /// # Errors
    /// Why the record is malformed.
    fn schema_id(&self, _record: &[u8]) -> Result<u32, String> {
        Ok(0)
    }

    /// See [`crate::typed::TypedDecoder::unknown_schemas`].
    fn unknown_schemas(&self, _values: &BinaryArray) -> Vec<u32> {
        Vec::new()
    }

    /// See [`crate::typed::TypedDecoder::add_schema`].
    fn add_schema(&mut self, _id: u32, _schema: Option<String>) {}

    /// Decodes the records in `rows`, one row of the array for each, in order. After an error the next call
    /// begins anew.
    fn read(&mut self, values: &BinaryArray, rows: &[u32]) -> Result<StructArray, Rejection>;
}

/// Why a run could not be read.
#[derive(Debug)]
pub(crate) struct Rejection {
    /// The first malformed record, an index of the run's rows, when the reader knows it.
    at: Option<usize>,
    reason: String,
}

impl Rejection {
    /// The record at this index of the run is malformed.
    pub(crate) fn at(index: usize, reason: impl ToString) -> Self {
        Self {
            at: Some(index),
            reason: reason.to_string(),
        }
    }

    /// Some record of the run is malformed.
    pub(crate) fn somewhere(reason: impl ToString) -> Self {
        Self {
            at: None,
            reason: reason.to_string(),
        }
    }
}

/// Reads a run with a decoder of arrow's, which takes records one by one (`feed`, with the number of those
/// before) and gives their rows together (`flush`). Returns the decoder for the next run: after an error its
/// state is lost.
pub(crate) fn read_fed<D>(
    mut decoder: D,
    (values, rows): (&BinaryArray, &[u32]),
    fields: &Fields,
    feed: impl Fn(&mut D, &[u8], usize) -> Result<(), String>,
    flush: impl Fn(&mut D) -> Result<Option<RecordBatch>, ArrowError>,
) -> Result<(D, StructArray), Rejection> {
    for (index, row) in rows.iter().enumerate() {
        feed(&mut decoder, values.value(*row as usize), index)
            .map_err(|reason| Rejection::at(index, reason))?;
    }
    let batch = flush(&mut decoder).map_err(Rejection::somewhere)?;
    let batch = batch.ok_or_else(|| Rejection::somewhere("no row was read"))?;
    let array = conform_struct(&StructArray::from(batch), fields).map_err(Rejection::somewhere)?;
    Ok((decoder, array))
}

/// A decoded column.
pub(crate) struct Decoded {
    /// As many rows as there are records; those of null and malformed records are null.
    pub(crate) array: ArrayRef,
    /// The rows of malformed records, in order.
    pub(crate) malformed: Vec<u32>,
    pub(crate) first: Option<Malformed>,
}

/// Decodes all records of a column, to an array of type `data_type`.
pub(crate) fn decode(
    reader: &mut dyn Reader,
    values: &BinaryArray,
    data_type: &DataType,
) -> Result<Decoded, ColumnsError> {
    let mut found = Found::default();
    let mut groups: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for row in 0..u32::try_from(values.len()).unwrap_or(u32::MAX) {
        let index = row as usize;
        if values.is_null(index) {
            continue;
        }
        let record = values.value(index);
        if record.len() > RECORD_BYTES_MAX {
            found.reject(
                row,
                &format!("{} bytes are more than {RECORD_BYTES_MAX}", record.len()),
            );
            continue;
        }
        match reader.schema_id(record) {
            Ok(id) => groups.entry(id).or_default().push(row),
            Err(reason) => found.reject(row, &reason),
        }
    }
    for rows in groups.values() {
        let mut rest: &[u32] = rows;
        while !rest.is_empty() {
            let (run, following) = rest.split_at(run_length(values, rest));
            rest = following;
            found.read(reader, values, run);
        }
    }
    found.finish(values.len(), data_type)
}

/// How many of `rows` are read together.
fn run_length(values: &BinaryArray, rows: &[u32]) -> usize {
    let mut bytes = 0usize;
    let fits = |row: &&u32| {
        bytes += values.value(**row as usize).len();
        bytes <= RUN_BYTES
    };
    rows.iter().take(RUN_ROWS).take_while(fits).count().max(1)
}

/// What was read so far.
#[derive(Default)]
struct Found {
    arrays: Vec<StructArray>,
    /// The row of each element of `arrays`.
    rows: Vec<u32>,
    malformed: Vec<u32>,
    first: Option<Malformed>,
}

impl Found {
    fn read(&mut self, reader: &mut dyn Reader, values: &BinaryArray, run: &[u32]) {
        let mut waiting = vec![run];
        while let Some(rows) = waiting.pop() {
            let rejection = match read_guarded(reader, values, rows) {
                Ok(array) => {
                    self.arrays.push(array);
                    self.rows.extend_from_slice(rows);
                    continue;
                }
                Err(rejection) => rejection,
            };
            let at = rejection.at.or((rows.len() == 1).then_some(0));
            let (before, after) = if let Some(at) = at {
                self.reject(rows[at], &rejection.reason);
                (&rows[..at], &rows[at + 1..])
            } else {
                rows.split_at(rows.len() / 2)
            };
            waiting.extend([after, before].into_iter().filter(|rows| !rows.is_empty()));
        }
    }

    fn reject(&mut self, row: u32, reason: &str) {
        self.malformed.push(row);
        let row = row as usize;
        if self.first.as_ref().is_none_or(|first| row < first.row) {
            let reason = match reason.char_indices().nth(REASON_CHARS) {
                Some((end, _)) => format!("{}...", &reason[..end]),
                None => reason.to_owned(),
            };
            self.first = Some(Malformed { row, reason });
        }
    }

    fn finish(mut self, count: usize, data_type: &DataType) -> Result<Decoded, ColumnsError> {
        self.malformed.sort_unstable();
        let read: Vec<&dyn Array> = self.arrays.iter().map(|array| array as &dyn Array).collect();
        let array = if read.is_empty() {
            new_null_array(data_type, count)
        } else {
            let read = arrow_select::concat::concat(&read)?;
            let in_order = self
                .rows
                .iter()
                .enumerate()
                .all(|(index, row)| index == *row as usize);
            if in_order && self.rows.len() == count {
                read
            } else {
                let mut indices: Vec<Option<u32>> = vec![None; count];
                for (index, row) in (0u32..).zip(&self.rows) {
                    indices[*row as usize] = Some(index);
                }
                arrow_select::take::take(&read, &UInt32Array::from(indices), None)?
            }
        };
        Ok(Decoded {
            array,
            malformed: self.malformed,
            first: self.first,
        })
    }
}

/// Reads a run. A panic of the reader, which is not ours, is a rejection.
fn read_guarded(
    reader: &mut dyn Reader,
    values: &BinaryArray,
    rows: &[u32],
) -> Result<StructArray, Rejection> {
    // A reader takes its state out before it reads, so none is left half changed.
    catch_unwind(AssertUnwindSafe(|| reader.read(values, rows)))
        .unwrap_or_else(|_| Err(Rejection::somewhere("the reader panicked")))
}
