//! The columns of Arrow tables that are parts of a record, read row by row without a copy.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowTimestampType, Int32Type, Int64Type, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType,
};
use arrow_array::{
    Array, BinaryArray, BinaryViewArray, FixedSizeBinaryArray, Int32Array, LargeBinaryArray,
    LargeStringArray, RecordBatch, StringArray, StringViewArray, StructArray,
};
use arrow_schema::{DataType, Schema, TimeUnit};

use crate::error::ColumnsError;
use crate::schema::Column;

const BYTES: &str = "binary or string";
const STRING: &str = "string";
const INT32: &str = "int32";
const TIME: &str = "a timestamp, or int64 of milliseconds since 1970 UTC";
const HEADERS: &str = "a list of structs of a key and a value, or a map";

/// A row's headers: names and values.
pub type RowHeaders<'a> = Vec<(&'a [u8], Option<&'a [u8]>)>;

/// The parts of a record in one row, borrowed from the table.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    pub key: Option<&'a [u8]>,
    pub value: Option<&'a [u8]>,
    /// Milliseconds since the epoch; `None` for a null.
    pub timestamp: Option<i64>,
}

/// The columns `key`, `value`, `headers` and `timestamp` of one Arrow batch.
pub(crate) struct Input<'a> {
    key: BytesIn<'a>,
    value: BytesIn<'a>,
    timestamp: TimeIn<'a>,
    headers: HeadersIn<'a>,
}

impl<'a> Input<'a> {
    pub(crate) fn new(batch: &'a RecordBatch) -> Result<Self, ColumnsError> {
        let column = |column: Column| batch.column_by_name(column.name()).map(|a| &**a);
        Ok(Self {
            key: BytesIn::new("key", column(Column::Key))?,
            value: BytesIn::new("value", column(Column::Value))?,
            timestamp: TimeIn::new(column(Column::Timestamp))?,
            headers: HeadersIn::new(column(Column::Headers))?,
        })
    }

    /// A row, and its headers in `headers`; an error says in words why it cannot be a record.
    #[inline]
    pub(crate) fn row(&self, row: usize, headers: &mut RowHeaders<'a>) -> Result<Row<'a>, &'static str> {
        headers.clear();
        self.headers.read(row, headers)?;
        Ok(Row {
            key: self.key.get(row),
            value: self.value.get(row),
            timestamp: self.timestamp.get(row)?,
        })
    }
}

/// The rows of one Arrow batch as records to produce: [`Row`], and where each goes.
pub struct ProduceRows<'a> {
    input: Input<'a>,
    topic: BytesIn<'a>,
    partition: Option<&'a Int32Array>,
    rows: usize,
}

impl<'a> ProduceRows<'a> {
    /// Other columns than those of records, `topic` and `partition` are ignored, as in Spark's Kafka sink.
    ///
    /// # Errors
    /// A column of a wrong type, or neither `key` nor `value`.
    pub fn new(batch: &'a RecordBatch) -> Result<Self, ColumnsError> {
        let column = |column: Column| batch.column_by_name(column.name()).map(|a| &**a);
        if column(Column::Key).is_none() && column(Column::Value).is_none() {
            return Err(ColumnsError::NothingToAppend);
        }
        let topic = column(Column::Topic);
        if let Some(array) = topic.filter(|array| !is_text(*array)) {
            return Err(wrong_type("topic", array, STRING));
        }
        let partition = column(Column::Partition).filter(|array| *array.data_type() != DataType::Null);
        let partition = partition
            .map(|array| {
                array
                    .as_primitive_opt::<Int32Type>()
                    .ok_or_else(|| wrong_type("partition", array, INT32))
            })
            .transpose()?;
        Ok(Self {
            input: Input::new(batch)?,
            topic: BytesIn::new("topic", topic)?,
            partition,
            rows: batch.num_rows(),
        })
    }

    /// Checks whether the rows of a table of this schema can be records.
    ///
    /// # Errors
    /// As [`ProduceRows::new`].
    pub fn check(schema: &Schema) -> Result<(), ColumnsError> {
        // An empty table has the same types.
        ProduceRows::new(&RecordBatch::new_empty(schema.clone().into())).map(|_| ())
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// The topic that a row names.
    #[inline]
    pub fn topic(&self, row: usize) -> Option<&'a str> {
        // The column is text.
        self.topic
            .get(row)
            .and_then(|name| std::str::from_utf8(name).ok())
    }

    /// A row's key.
    #[inline]
    pub fn key(&self, row: usize) -> Option<&'a [u8]> {
        self.input.key.get(row)
    }

    /// The partition that a row names.
    #[inline]
    pub fn partition(&self, row: usize) -> Option<i32> {
        self.partition
            .filter(|array| array.is_valid(row))
            .map(|array| array.value(row))
    }

    /// A row's record, and its headers in `headers`.
    ///
    /// # Errors
    /// [`ColumnsError::BadRow`].
    #[inline]
    pub fn record(&self, row: usize, headers: &mut RowHeaders<'a>) -> Result<Row<'a>, ColumnsError> {
        self.input
            .row(row, headers)
            .map_err(|reason| ColumnsError::BadRow { row, reason })
    }
}

fn is_text(array: &dyn Array) -> bool {
    matches!(
        array.data_type(),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Null
    )
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
        if !is_text(names) {
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
