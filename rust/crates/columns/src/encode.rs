//! Encodes the rows of Arrow tables as record batches.
//!
//! A table may have the columns `key`, `value`, `headers` and `timestamp`, and must have a key or a value.
//! The other columns of a scan (topic, partition, offset, timestampType) are ignored, so that records of one
//! log can be appended to another. Unknown columns are refused, because they are most likely misspelt. A time
//! before 1970 is refused; so is -1, which records of message format 0 have. Types are checked before the
//! first row is encoded. Rows keep their order.

use arrow_array::RecordBatch;
use arrow_schema::Schema;
use logcore_records::{BatchBuilder, Compression};

use crate::error::ColumnsError;
use crate::input::Input;
use crate::schema::Column;

/// How to make batches.
#[derive(Debug, Clone)]
pub struct EncodeOptions {
    pub compression: Compression,
    /// On the codec's own scale; `None` for its default.
    pub level: Option<i32>,
    /// Most bytes of a batch; a record that is larger by itself gets a batch of its own.
    pub batch_bytes: usize,
    /// The time of rows without a time, in milliseconds since the epoch.
    pub now_ms: i64,
}

/// Encodes the rows as record batches v2, one after the other. Offsets begin at 0 in each batch. No rows give
/// no bytes.
///
/// # Errors
/// A column that is unknown, named twice, or of a wrong type; neither key nor value; a header without a name;
/// a time before 1970 or beyond 64 bits of milliseconds; a record too large for any batch.
pub fn encode_rows(
    schema: &Schema,
    rows: &[RecordBatch],
    options: &EncodeOptions,
) -> Result<Vec<u8>, ColumnsError> {
    check_schema(schema)?;
    let mut encoder = Encoder {
        builder: BatchBuilder::new(options.compression, options.level),
        batch_bytes: options.batch_bytes,
        now_ms: options.now_ms,
        row: 0,
        out: Vec::new(),
    };
    for batch in rows {
        encoder.push(batch)?;
    }
    encoder.finish()
}

/// Checks whether a table of this schema can be appended.
///
/// # Errors
/// The errors of [`encode_rows`] that do not depend on rows.
pub fn check_schema(schema: &Schema) -> Result<(), ColumnsError> {
    let mut found = Vec::new();
    for field in schema.fields() {
        let column = Column::from_name(field.name())?;
        if found.contains(&column) {
            return Err(ColumnsError::DuplicateColumn { name: column.name() });
        }
        found.push(column);
    }
    if found.contains(&Column::Key) || found.contains(&Column::Value) {
        // An empty table has the same types.
        Input::new(&RecordBatch::new_empty(schema.clone().into())).map(|_| ())
    } else {
        Err(ColumnsError::NothingToAppend)
    }
}

struct Encoder {
    builder: BatchBuilder,
    batch_bytes: usize,
    now_ms: i64,
    /// The row's number in the table, for error messages.
    row: usize,
    out: Vec<u8>,
}

impl Encoder {
    fn push(&mut self, batch: &RecordBatch) -> Result<(), ColumnsError> {
        let input = Input::new(batch)?;
        let mut headers = Vec::new();
        for row in 0..batch.num_rows() {
            let found = input.row(row, &mut headers).map_err(|reason| {
                let row = self.row;
                ColumnsError::BadRow { row, reason }
            })?;
            self.append(
                found.timestamp.unwrap_or(self.now_ms),
                found.key,
                found.value,
                &headers,
            )?;
            self.row += 1;
        }
        Ok(())
    }

    fn append(
        &mut self,
        timestamp: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(&[u8], Option<&[u8]>)],
    ) -> Result<(), ColumnsError> {
        let size = BatchBuilder::record_size_bound(key, value, headers);
        if !self.builder.is_empty() && self.builder.estimated_size() + size > self.batch_bytes {
            self.end_batch()?;
        }
        self.builder.append(timestamp, key, value, headers)?;
        Ok(())
    }

    fn end_batch(&mut self) -> Result<(), ColumnsError> {
        self.builder.build_within(self.batch_bytes, &mut self.out)?;
        Ok(())
    }

    fn finish(mut self) -> Result<Vec<u8>, ColumnsError> {
        if !self.builder.is_empty() {
            self.end_batch()?;
        }
        Ok(self.out)
    }
}
