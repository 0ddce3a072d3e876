//! Encodes the rows of Arrow tables as record batches.
//!
//! A table may have the columns `key`, `value`, `headers` and `timestamp`, and must have a key or a value.
//! The other columns of a scan (topic, partition, offset, timestampType) are ignored, so that records of one
//! log can be appended to another. Unknown columns are refused, because they are most likely misspelt. A time
//! before 1970 is refused; so is -1, which records of message format 0 have. Types are checked before the
//! first row is encoded. Rows keep their order.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowTimestampType, Int64Type, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType,
};
use arrow_array::{
    Array, BinaryArray, BinaryViewArray, FixedSizeBinaryArray, LargeBinaryArray, LargeStringArray,
    RecordBatch, StringArray, StringViewArray, StructArray,
};
use arrow_schema::{DataType, Schema, TimeUnit};
use logcore_records::{BatchBuilder, Compression};

use crate::error::ColumnsError;
use crate::schema::Column;

const BYTES: &str = "binary or string";
const STRING: &str = "string";
const TIME: &str = "a timestamp, or int64 of milliseconds since 1970 UTC";
const HEADERS: &str = "a list of structs of a key and a value, or a map";

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
            headers.clear();
            input.headers.read(row, &mut headers).map_err(|reason| {
                let row = self.row;
                ColumnsError::BadRow { row, reason }
            })?;
            let timestamp = input.timestamp.get(row).map_err(|reason| {
                let row = self.row;
                ColumnsError::BadRow { row, reason }
            })?;
            self.append(
                timestamp.unwrap_or(self.now_ms),
                input.key.get(row),
                input.value.get(row),
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

/// The columns of one Arrow batch that are parts of a record.
struct Input<'a> {
    key: BytesIn<'a>,
    value: BytesIn<'a>,
    timestamp: TimeIn<'a>,
    headers: HeadersIn<'a>,
}

impl<'a> Input<'a> {
    fn new(batch: &'a RecordBatch) -> Result<Self, ColumnsError> {
        let column = |column: Column| batch.column_by_name(column.name()).map(|a| &**a);
        Ok(Self {
            key: BytesIn::new("key", column(Column::Key))?,
            value: BytesIn::new("value", column(Column::Value))?,
            timestamp: TimeIn::new(column(Column::Timestamp))?,
            headers: HeadersIn::new(column(Column::Headers))?,
        })
    }
}

fn wrong_type(name: &'static str, array: &dyn Array, wanted: &'static str) -> ColumnsError {
    ColumnsError::ColumnType {
        name,
        found: array.data_type().clone(),
        wanted,
    }
}

/// A column of bytes or text in any of Arrow's layouts.
enum BytesIn<'a> {
    /// There is no such column, or it has Arrow's null type.
    Nulls,
    Binary(&'a BinaryArray),
    LargeBinary(&'a LargeBinaryArray),
    BinaryView(&'a BinaryViewArray),
    FixedBinary(&'a FixedSizeBinaryArray),
    Text(&'a StringArray),
    LargeText(&'a LargeStringArray),
    TextView(&'a StringViewArray),
}

impl<'a> BytesIn<'a> {
    fn new(name: &'static str, array: Option<&'a dyn Array>) -> Result<Self, ColumnsError> {
        let Some(array) = array else {
            return Ok(Self::Nulls);
        };
        Ok(match array.data_type() {
            DataType::Null => Self::Nulls,
            DataType::Binary => Self::Binary(array.as_binary()),
            DataType::LargeBinary => Self::LargeBinary(array.as_binary()),
            DataType::BinaryView => Self::BinaryView(array.as_binary_view()),
            DataType::FixedSizeBinary(_) => Self::FixedBinary(array.as_fixed_size_binary()),
            DataType::Utf8 => Self::Text(array.as_string()),
            DataType::LargeUtf8 => Self::LargeText(array.as_string()),
            DataType::Utf8View => Self::TextView(array.as_string_view()),
            _ => return Err(wrong_type(name, array, BYTES)),
        })
    }

    #[inline]
    fn get(&self, row: usize) -> Option<&'a [u8]> {
        match self {
            Self::Nulls => None,
            Self::Binary(array) => array.is_valid(row).then(|| array.value(row)),
            Self::LargeBinary(array) => array.is_valid(row).then(|| array.value(row)),
            Self::BinaryView(array) => array.is_valid(row).then(|| array.value(row)),
            Self::FixedBinary(array) => array.is_valid(row).then(|| array.value(row)),
            Self::Text(array) => array.is_valid(row).then(|| array.value(row).as_bytes()),
            Self::LargeText(array) => array.is_valid(row).then(|| array.value(row).as_bytes()),
            Self::TextView(array) => array.is_valid(row).then(|| array.value(row).as_bytes()),
        }
    }
}

/// A column of times, in any of Arrow's units. A time is multiplied and then divided to be in milliseconds.
struct TimeIn<'a> {
    /// Values and nulls; `None` when there is no such column.
    values: Option<(&'a [i64], &'a dyn Array)>,
    multiply: i64,
    divide: i64,
}

impl<'a> TimeIn<'a> {
    fn new(array: Option<&'a dyn Array>) -> Result<Self, ColumnsError> {
        let Some(array) = array else {
            return Ok(Self::none());
        };
        match array.data_type() {
            DataType::Null => Ok(Self::none()),
            DataType::Int64 => Ok(Self {
                values: Some((array.as_primitive::<Int64Type>().values(), array)),
                multiply: 1,
                divide: 1,
            }),
            DataType::Timestamp(unit, _) => Ok(match unit {
                TimeUnit::Second => Self::of::<TimestampSecondType>(array, 1_000, 1),
                TimeUnit::Millisecond => Self::of::<TimestampMillisecondType>(array, 1, 1),
                TimeUnit::Microsecond => Self::of::<TimestampMicrosecondType>(array, 1, 1_000),
                TimeUnit::Nanosecond => Self::of::<TimestampNanosecondType>(array, 1, 1_000_000),
            }),
            _ => Err(wrong_type("timestamp", array, TIME)),
        }
    }

    fn none() -> Self {
        Self {
            values: None,
            multiply: 1,
            divide: 1,
        }
    }

    fn of<T: ArrowTimestampType>(array: &'a dyn Array, multiply: i64, divide: i64) -> Self {
        Self {
            values: Some((array.as_primitive::<T>().values(), array)),
            multiply,
            divide,
        }
    }

    /// Milliseconds since the epoch, rounded down; an error says in words what is wrong with the row's time.
    /// A null is no time. A -1, which stands for no time in Kafka, is before 1970 and therefore an error.
    #[inline]
    fn get(&self, row: usize) -> Result<Option<i64>, &'static str> {
        let Some((values, _)) = self.values.filter(|(_, array)| array.is_valid(row)) else {
            return Ok(None);
        };
        let time = values[row];
        if time < 0 {
            return Err("its timestamp is before 1970");
        }
        match time.checked_mul(self.multiply) {
            Some(scaled) => Ok(Some(scaled / self.divide)),
            None => Err("its timestamp is more than 64 bits of milliseconds"),
        }
    }
}

/// A column of headers: the offsets at which each row's headers begin and end in a flat list, and that list.
enum HeadersIn<'a> {
    None,
    Small(&'a [i32], Entries<'a>),
    Large(&'a [i64], Entries<'a>),
}

struct Entries<'a> {
    /// The column itself, which says which rows are null.
    rows: &'a dyn Array,
    structs: &'a StructArray,
    names: BytesIn<'a>,
    values: BytesIn<'a>,
}

impl<'a> HeadersIn<'a> {
    fn new(array: Option<&'a dyn Array>) -> Result<Self, ColumnsError> {
        let Some(array) = array else {
            return Ok(Self::None);
        };
        match array.data_type() {
            DataType::Null => Ok(Self::None),
            DataType::List(_) => {
                let list = array.as_list::<i32>();
                let entries = Entries::new(array, list.values())?;
                Ok(Self::Small(list.value_offsets(), entries))
            }
            DataType::LargeList(_) => {
                let list = array.as_list::<i64>();
                let entries = Entries::new(array, list.values())?;
                Ok(Self::Large(list.value_offsets(), entries))
            }
            DataType::Map(_, _) => {
                let map = array.as_map();
                let entries = Entries::of(array, map.entries(), map.keys(), map.values())?;
                Ok(Self::Small(map.value_offsets(), entries))
            }
            _ => Err(wrong_type("headers", array, HEADERS)),
        }
    }

    /// Adds the headers of a row to `found`; an error says in words what is wrong with them.
    fn read(&self, row: usize, found: &mut Vec<(&'a [u8], Option<&'a [u8]>)>) -> Result<(), &'static str> {
        match self {
            Self::None => Ok(()),
            Self::Small(offsets, entries) => {
                let (start, end) = (offsets[row] as usize, offsets[row + 1] as usize);
                entries.read(row, start..end, found)
            }
            Self::Large(offsets, entries) => {
                let (start, end) = (offsets[row] as usize, offsets[row + 1] as usize);
                entries.read(row, start..end, found)
            }
        }
    }
}

impl<'a> Entries<'a> {
    fn new(column: &'a dyn Array, items: &'a dyn Array) -> Result<Self, ColumnsError> {
        let wrong = || wrong_type("headers", column, HEADERS);
        let structs = items.as_struct_opt().ok_or_else(wrong)?;
        let field = |name| structs.column_by_name(name).ok_or_else(wrong);
        Self::of(column, structs, field("key")?, field("value")?)
    }

    fn of(
        rows: &'a dyn Array,
        structs: &'a StructArray,
        names: &'a dyn Array,
        values: &'a dyn Array,
    ) -> Result<Self, ColumnsError> {
        let text = matches!(
            names.data_type(),
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View
        );
        if !text {
            return Err(wrong_type("headers' key", names, STRING));
        }
        Ok(Self {
            rows,
            structs,
            names: BytesIn::new("headers' key", Some(names))?,
            values: BytesIn::new("headers' value", Some(values))?,
        })
    }

    fn read(
        &self,
        row: usize,
        entries: std::ops::Range<usize>,
        found: &mut Vec<(&'a [u8], Option<&'a [u8]>)>,
    ) -> Result<(), &'static str> {
        if self.rows.is_null(row) {
            return Ok(());
        }
        for entry in entries {
            match self.names.get(entry) {
                Some(name) if self.structs.is_valid(entry) => {
                    found.push((name, self.values.get(entry)));
                }
                _ => return Err("it has a header without a name"),
            }
        }
        Ok(())
    }
}
