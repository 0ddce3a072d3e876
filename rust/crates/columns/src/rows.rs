//! Collects rows in Arrow buffers: one growing buffer a column, and no allocation per row.
//!
//! A binary column is the rows' bytes one after the other, and the 32-bit end of each row's bytes. That is
//! Arrow's own layout, so finishing a batch moves the vectors and copies nothing. A batch ends at `max_rows`
//! rows, or before its bytes would exceed a limit of at most [`BATCH_BYTES_MAX`]. The limit bounds memory,
//! and the 32-bit ends cannot overflow.

use std::sync::Arc;

use arrow_array::types::Utf8Type;
use arrow_array::{
    ArrayRef, BinaryArray, GenericByteArray, Int32Array, Int64Array, ListArray, RecordBatch, StringArray,
    StructArray, TimestampMicrosecondArray,
};
use arrow_buffer::{Buffer, NullBufferBuilder, OffsetBuffer, ScalarBuffer};

use crate::error::ColumnsError;
use crate::schema::{Column, Projection, header_field, header_fields, unknown_column};

/// The greatest limit to the bytes of keys, values and headers in one Arrow batch.
pub(crate) const BATCH_BYTES_MAX: usize = 64 << 20;

/// Memory of a header beside its bytes: the offsets and validity of its key and value. It is counted so that
/// headers without any bytes are limited too.
const HEADER_BYTES: usize = 16;

const MICROS_PER_MILLI: i64 = 1_000;

/// A record to be put into the columns.
pub(crate) struct Row<'a> {
    pub(crate) offset: i64,
    /// Milliseconds since the epoch.
    pub(crate) timestamp: i64,
    pub(crate) timestamp_type: i32,
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) value: Option<&'a [u8]>,
}

/// A variable-width column: Arrow's offsets, bytes and validity.
struct Bytes {
    offsets: Vec<i32>,
    values: Vec<u8>,
    nulls: NullBufferBuilder,
}

impl Bytes {
    fn with_capacity(rows: usize, bytes: usize) -> Self {
        let mut offsets = Vec::with_capacity(rows + 1);
        offsets.push(0);
        Self {
            offsets,
            values: Vec::with_capacity(bytes),
            nulls: NullBufferBuilder::new(rows),
        }
    }

    fn push(&mut self, value: Option<&[u8]>) -> Result<(), ColumnsError> {
        if let Some(bytes) = value {
            self.values.extend_from_slice(bytes);
            self.nulls.append_non_null();
        } else {
            self.nulls.append_null();
        }
        let end = i32::try_from(self.values.len()).map_err(|_| ColumnsError::RecordTooLarge {
            bytes: self.values.len(),
        })?;
        self.offsets.push(end);
        Ok(())
    }

    /// Takes the values as Arrow buffers, and starts anew with the same capacity.
    fn take(&mut self) -> (OffsetBuffer<i32>, Buffer, NullBufferBuilder) {
        let fresh = Self::with_capacity(self.offsets.len() - 1, self.values.len());
        let full = std::mem::replace(self, fresh);
        (
            OffsetBuffer::new(ScalarBuffer::from(full.offsets)),
            Buffer::from_vec(full.values),
            full.nulls,
        )
    }

    fn take_binary(&mut self) -> Result<BinaryArray, ColumnsError> {
        let (offsets, values, mut nulls) = self.take();
        Ok(BinaryArray::try_new(offsets, values, nulls.finish())?)
    }

    fn take_string(&mut self) -> Result<StringArray, ColumnsError> {
        let (offsets, values, mut nulls) = self.take();
        Ok(StringArray::try_new(offsets, values, nulls.finish())?)
    }
}

/// The headers column: a list of (key, value) per row; null when a record has none.
struct Headers {
    ends: Vec<i32>,
    nulls: NullBufferBuilder,
    keys: Bytes,
    values: Bytes,
}

impl Headers {
    fn with_capacity(rows: usize) -> Self {
        let mut ends = Vec::with_capacity(rows + 1);
        ends.push(0);
        Self {
            ends,
            nulls: NullBufferBuilder::new(rows),
            keys: Bytes::with_capacity(0, 0),
            values: Bytes::with_capacity(0, 0),
        }
    }

    fn end_row(&mut self) -> Result<(), ColumnsError> {
        let total = self.keys.offsets.len() - 1;
        let end = i32::try_from(total).map_err(|_| ColumnsError::RecordTooLarge { bytes: total })?;
        self.nulls.append(self.ends.last() != Some(&end));
        self.ends.push(end);
        Ok(())
    }

    fn take(&mut self) -> Result<ListArray, ColumnsError> {
        let fresh = Self::with_capacity(self.ends.len() - 1);
        let mut full = std::mem::replace(self, fresh);
        let keys: ArrayRef = Arc::new(full.keys.take_string()?);
        let values: ArrayRef = Arc::new(full.values.take_binary()?);
        let entries = StructArray::try_new(header_fields(), vec![keys, values], None)?;
        Ok(ListArray::try_new(
            header_field(),
            OffsetBuffer::new(ScalarBuffer::from(full.ends)),
            Arc::new(entries),
            full.nulls.finish(),
        )?)
    }
}

/// Collects rows of one partition into Arrow record batches of the projected columns.
pub(crate) struct Rows {
    projection: Projection,
    topic: String,
    partition: i32,
    max_rows: usize,
    max_bytes: usize,
    rows: usize,
    bytes: usize,
    key: Option<Bytes>,
    value: Option<Bytes>,
    offset: Option<Vec<i64>>,
    timestamp: Option<Vec<i64>>,
    timestamp_type: Option<Vec<i32>>,
    headers: Option<Headers>,
}

impl Rows {
    pub(crate) fn new(
        projection: Projection,
        topic: &str,
        partition: i32,
        max_rows: usize,
        max_bytes: usize,
    ) -> Self {
        let binary = |column| projection.has(column).then(|| Bytes::with_capacity(0, 0));
        Self {
            topic: topic.to_owned(),
            partition,
            max_rows: max_rows.max(1),
            max_bytes: max_bytes.min(BATCH_BYTES_MAX),
            rows: 0,
            bytes: 0,
            key: binary(Column::Key),
            value: binary(Column::Value),
            offset: projection.has(Column::Offset).then(Vec::new),
            timestamp: projection.has(Column::Timestamp).then(Vec::new),
            timestamp_type: projection.has(Column::TimestampType).then(Vec::new),
            headers: projection.has(Column::Headers).then(|| Headers::with_capacity(0)),
            projection,
        }
    }

    /// Whether headers are a wanted column.
    pub(crate) fn wants_headers(&self) -> bool {
        self.headers.is_some()
    }

    pub(crate) fn len(&self) -> usize {
        self.rows
    }

    /// Whether a row with `row_bytes` bytes of key, value and headers fits the batch being built.
    pub(crate) fn fits(&self, row_bytes: usize) -> bool {
        self.rows == 0
            || (self.rows < self.max_rows && self.bytes.saturating_add(row_bytes) <= self.max_bytes)
    }

    /// Appends one row. Its headers, if wanted, were pushed before with [`Rows::push_header`].
    pub(crate) fn push(&mut self, row: &Row<'_>) -> Result<(), ColumnsError> {
        if let Some(key) = &mut self.key {
            key.push(row.key)?;
            self.bytes += row.key.map_or(0, <[u8]>::len);
        }
        if let Some(value) = &mut self.value {
            value.push(row.value)?;
            self.bytes += row.value.map_or(0, <[u8]>::len);
        }
        if let Some(offset) = &mut self.offset {
            offset.push(row.offset);
        }
        if let Some(timestamp) = &mut self.timestamp {
            let micros = row.timestamp.checked_mul(MICROS_PER_MILLI);
            timestamp.push(micros.ok_or(ColumnsError::TimestampTooLarge {
                offset: row.offset,
                timestamp: row.timestamp,
            })?);
        }
        if let Some(timestamp_type) = &mut self.timestamp_type {
            timestamp_type.push(row.timestamp_type);
        }
        if let Some(headers) = &mut self.headers {
            headers.end_row()?;
        }
        self.rows += 1;
        Ok(())
    }

    /// Adds a header to the row of the next [`Rows::push`]. Bytes of a key that are not UTF-8 become U+FFFD,
    /// as in Java.
    pub(crate) fn push_header(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), ColumnsError> {
        if let Some(headers) = &mut self.headers {
            headers.keys.push(Some(String::from_utf8_lossy(key).as_bytes()))?;
            headers.values.push(value)?;
            self.bytes += header_bytes(key, value);
        }
        Ok(())
    }

    /// Takes the rows collected so far as one Arrow record batch.
    pub(crate) fn take(&mut self) -> Result<RecordBatch, ColumnsError> {
        let rows = std::mem::take(&mut self.rows);
        self.bytes = 0;
        let columns = self.projection.columns().to_vec();
        let arrays: Result<Vec<ArrayRef>, ColumnsError> = columns
            .into_iter()
            .map(|column| self.take_column(column, rows))
            .collect();
        Ok(RecordBatch::try_new(
            Arc::clone(self.projection.schema()),
            arrays?,
        )?)
    }

    fn take_column(&mut self, column: Column, rows: usize) -> Result<ArrayRef, ColumnsError> {
        Ok(match column {
            Column::Key => Arc::new(taken(&mut self.key, column)?.take_binary()?),
            Column::Value => Arc::new(taken(&mut self.value, column)?.take_binary()?),
            Column::Topic => Arc::new(GenericByteArray::<Utf8Type>::new_repeated(&self.topic, rows)),
            Column::Partition => Arc::new(Int32Array::from(vec![self.partition; rows])),
            Column::Offset => Arc::new(Int64Array::from(renewed(taken(&mut self.offset, column)?))),
            Column::Timestamp => {
                let micros = renewed(taken(&mut self.timestamp, column)?);
                Arc::new(TimestampMicrosecondArray::from(micros).with_timezone("UTC"))
            }
            Column::TimestampType => Arc::new(Int32Array::from(renewed(taken(
                &mut self.timestamp_type,
                column,
            )?))),
            Column::Headers => Arc::new(taken(&mut self.headers, column)?.take()?),
        })
    }
}

/// The bytes that a header counts for in the size of a batch.
pub(crate) fn header_bytes(key: &[u8], value: Option<&[u8]>) -> usize {
    HEADER_BYTES + key.len() + value.map_or(0, <[u8]>::len)
}

fn taken<T>(column: &mut Option<T>, which: Column) -> Result<&mut T, ColumnsError> {
    column.as_mut().ok_or_else(|| unknown_column(which.name()))
}

fn renewed<T>(values: &mut Vec<T>) -> Vec<T> {
    let fresh = Vec::with_capacity(values.len());
    std::mem::replace(values, fresh)
}
