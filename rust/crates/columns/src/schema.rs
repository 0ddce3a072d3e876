//! The columns: names, order, Arrow types and nullability of Spark's Kafka source.
//!
//! Source: Spark's `KafkaRecordToRowConverter.kafkaSchema`. There every field is nullable, even those that
//! are never null. Spark compares nullability, so every field is nullable here too. The Arrow types are those
//! that PySpark makes of that schema: plain `binary` and `string` with 32-bit offsets, microseconds in UTC,
//! list items named `element`.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef, TimeUnit};

use crate::error::ColumnsError;

/// One column of the Kafka source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    Key,
    Value,
    Topic,
    Partition,
    Offset,
    /// Microseconds since 1970-01-01 UTC: Kafka's milliseconds times 1,000. Kafka's "no timestamp", -1, stays
    /// -1 ms.
    Timestamp,
    /// Kafka's `TimestampType.id`: 0 create time, 1 log append time, -1 none (message format 0).
    TimestampType,
    /// The record's headers in order, duplicates kept; null when the record has none, as in Spark.
    Headers,
}

impl Column {
    /// Every column, in the order of Spark's schema.
    pub const ALL: [Column; 8] = [
        Column::Key,
        Column::Value,
        Column::Topic,
        Column::Partition,
        Column::Offset,
        Column::Timestamp,
        Column::TimestampType,
        Column::Headers,
    ];

    /// The name Spark's Kafka source gives the column.
    pub fn name(self) -> &'static str {
        match self {
            Column::Key => "key",
            Column::Value => "value",
            Column::Topic => "topic",
            Column::Partition => "partition",
            Column::Offset => "offset",
            Column::Timestamp => "timestamp",
            Column::TimestampType => "timestampType",
            Column::Headers => "headers",
        }
    }

    /// The column of this name.
    ///
    /// # Errors
    /// [`ColumnsError::UnknownColumn`], which lists the columns.
    pub fn from_name(name: &str) -> Result<Self, ColumnsError> {
        Self::ALL
            .into_iter()
            .find(|column| column.name() == name)
            .ok_or_else(|| unknown_column(name))
    }

    fn data_type(self) -> DataType {
        match self {
            Column::Key | Column::Value => DataType::Binary,
            Column::Topic => DataType::Utf8,
            Column::Partition | Column::TimestampType => DataType::Int32,
            Column::Offset => DataType::Int64,
            Column::Timestamp => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            Column::Headers => DataType::List(header_field()),
        }
    }
}

/// The error for a name that is not a column's.
pub(crate) fn unknown_column(name: &str) -> ColumnsError {
    ColumnsError::UnknownColumn {
        name: name.to_owned(),
        known: Column::ALL.map(Column::name).join(", "),
    }
}

/// The fields of one header.
pub(crate) fn header_fields() -> Fields {
    Fields::from(vec![
        Field::new("key", DataType::Utf8, true),
        Field::new("value", DataType::Binary, true),
    ])
}

/// The list item of the headers column.
pub(crate) fn header_field() -> Arc<Field> {
    Arc::new(Field::new("element", DataType::Struct(header_fields()), true))
}

/// The columns that a caller wants, in the order wanted. No other column is built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Projection {
    columns: Vec<Column>,
    schema: SchemaRef,
}

impl Projection {
    /// A projection onto `columns`, in this order.
    ///
    /// # Errors
    /// [`ColumnsError::NoColumns`] for an empty list, [`ColumnsError::DuplicateColumn`] for a column that is
    /// named twice.
    pub fn new(columns: Vec<Column>) -> Result<Self, ColumnsError> {
        if columns.is_empty() {
            return Err(ColumnsError::NoColumns);
        }
        for (index, column) in columns.iter().enumerate() {
            if columns[..index].contains(column) {
                return Err(ColumnsError::DuplicateColumn { name: column.name() });
            }
        }
        let fields: Vec<Field> = columns
            .iter()
            .map(|column| Field::new(column.name(), column.data_type(), true))
            .collect();
        Ok(Self {
            columns,
            schema: Arc::new(Schema::new(fields)),
        })
    }

    /// A projection onto the columns of these names.
    ///
    /// # Errors
    /// As [`Projection::new`] and [`Column::from_name`].
    pub fn from_names<S: AsRef<str>>(names: &[S]) -> Result<Self, ColumnsError> {
        let columns: Result<Vec<Column>, ColumnsError> = names
            .iter()
            .map(|name| Column::from_name(name.as_ref()))
            .collect();
        Self::new(columns?)
    }

    /// The columns in their order.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// The Arrow schema of every batch built for this projection.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    pub(crate) fn has(&self, column: Column) -> bool {
        self.columns.contains(&column)
    }
}

#[cfg(test)]
mod tests {
    //! Broken if they failed: Spark would refuse the first batch of every read, for a wrong type, name or
    //! nullability.
    use super::*;

    #[test]
    fn every_name_leads_back_to_its_column() {
        for column in Column::ALL {
            assert_eq!(Column::from_name(column.name()).expect("a known name"), column);
        }
        assert!(Column::from_name("Key").is_err(), "names are case-sensitive");
    }

    #[test]
    fn the_order_asked_for_is_the_order_of_the_schema() {
        let projection = Projection::from_names(&["offset", "value"]).expect("known columns");
        let names: Vec<&str> = projection
            .schema()
            .fields()
            .iter()
            .map(|f| f.name().as_str())
            .collect();
        assert_eq!(names, ["offset", "value"]);
        assert!(
            projection
                .schema()
                .fields()
                .iter()
                .all(|field| field.is_nullable())
        );
    }

    #[test]
    fn nothing_and_twice_the_same_are_refused() {
        assert!(matches!(Projection::new(vec![]), Err(ColumnsError::NoColumns)));
        assert!(matches!(
            Projection::from_names(&["key", "key"]),
            Err(ColumnsError::DuplicateColumn { name: "key" })
        ));
    }
}
