//! The Arrow types that Spark takes, and those that a reader is asked for.
//!
//! arrow-json would read 2.7 as the integer 2, a number as a timestamp in the column's unit, decimals without
//! rounding, and binary as hexadecimal. So it reads these types as strings, which [`conform`] then converts
//! strictly. arrow-csv reads decimals and times likewise.

use std::sync::Arc;

use arrow_array::builder::BinaryBuilder;
use arrow_array::cast::AsArray;
use arrow_array::types::TimestampMicrosecondType;
use arrow_array::{Array, ArrayRef, BinaryArray, ListArray, MapArray, StringArray, StructArray};
use arrow_cast::base64::{BASE64_STANDARD, Engine};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Fields, TimeUnit};

/// The types to read as JSON, for columns of `fields`; an error names a type that JSON does not have.
pub(crate) fn json_fields(fields: &Fields) -> Result<Fields, String> {
    fields.iter().map(json_field).collect()
}

fn json_field(field: &FieldRef) -> Result<FieldRef, String> {
    let data_type = match field.data_type() {
        DataType::Boolean | DataType::Float32 | DataType::Float64 | DataType::Utf8 => {
            field.data_type().clone()
        }
        DataType::Int8
        | DataType::Int16
        | DataType::Int32
        | DataType::Int64
        | DataType::Date32
        | DataType::Timestamp(TimeUnit::Microsecond, _)
        | DataType::Decimal128(_, _)
        | DataType::Binary => DataType::Utf8,
        DataType::Struct(fields) => DataType::Struct(json_fields(fields)?),
        DataType::List(item) => DataType::List(json_field(item)?),
        DataType::Map(entries, ordered) => match entries.data_type() {
            DataType::Struct(pair) if is_key(pair[0].data_type()) => {
                let pair = DataType::Struct(json_fields(pair)?);
                DataType::Map(Arc::new(entries.as_ref().clone().with_data_type(pair)), *ordered)
            }
            _ => {
                return Err(format!(
                    "field {:?}: a map has strings or integers as keys",
                    field.name()
                ));
            }
        },
        other => {
            return Err(format!(
                "field {:?}: JSON has no values of type {other}",
                field.name()
            ));
        }
    };
    Ok(Arc::new(field.as_ref().clone().with_data_type(data_type)))
}

/// Whether names of JSON's fields, which are strings, can be of this type.
fn is_key(data_type: &DataType) -> bool {
    data_type == &DataType::Utf8 || data_type.is_signed_integer()
}

/// The types to read as CSV, for columns of `fields`; an error names a type that CSV does not have.
pub(crate) fn csv_fields(fields: &Fields) -> Result<Fields, String> {
    let read = |field: &FieldRef| {
        let data_type = match field.data_type() {
            DataType::Boolean
            | DataType::Int8
            | DataType::Int16
            | DataType::Int32
            | DataType::Int64
            | DataType::Float32
            | DataType::Float64
            | DataType::Date32
            | DataType::Utf8 => field.data_type().clone(),
            DataType::Timestamp(TimeUnit::Microsecond, _) | DataType::Decimal128(_, _) => DataType::Utf8,
            other => {
                return Err(format!(
                    "field {:?}: CSV has no values of type {other}",
                    field.name()
                ));
            }
        };
        Ok(Arc::new(field.as_ref().clone().with_data_type(data_type)))
    };
    fields.iter().map(read).collect()
}

/// Spark's types for the fields of an Avro record: those of its own Avro source, and every field nullable.
/// An error names a type that Spark does not have.
pub(crate) fn spark_fields(fields: &Fields) -> Result<Fields, String> {
    fields
        .iter()
        .map(|field| spark_field(field, field.name()))
        .collect()
}

fn spark_field(field: &FieldRef, name: &str) -> Result<FieldRef, String> {
    let data_type = match field.data_type() {
        DataType::Boolean
        | DataType::Int32
        | DataType::Int64
        | DataType::Float32
        | DataType::Float64
        | DataType::Utf8
        | DataType::Binary
        | DataType::Date32
        | DataType::Decimal128(_, _) => field.data_type().clone(),
        DataType::Dictionary(_, symbols) if symbols.as_ref() == &DataType::Utf8 => DataType::Utf8,
        DataType::FixedSizeBinary(_) => DataType::Binary,
        DataType::Time32(_) => DataType::Int32,
        DataType::Time64(_) => DataType::Int64,
        DataType::Timestamp(_, zone) => {
            DataType::Timestamp(TimeUnit::Microsecond, zone.as_ref().map(|_| "UTC".into()))
        }
        DataType::Struct(fields) => DataType::Struct(spark_fields(fields)?),
        DataType::List(item) => DataType::List(spark_field(item, "element")?),
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(pair) if pair.len() == 2 => {
                let key = Arc::new(Field::new("key", DataType::Utf8, false));
                let pair = DataType::Struct(Fields::from(vec![key, spark_field(&pair[1], "value")?]));
                DataType::Map(Arc::new(Field::new("entries", pair, false)), false)
            }
            other => return Err(format!("field {name:?} is a map of {other}")),
        },
        other => {
            return Err(format!(
                "field {name:?} has the type {other}, which has no column type"
            ));
        }
    };
    Ok(Arc::new(Field::new(name, data_type, true)))
}

/// The array in the type `to`: structs have the fields of `to` only, found by name. A value that does not fit
/// is an error.
pub(crate) fn conform(array: &ArrayRef, to: &DataType) -> Result<ArrayRef, ArrowError> {
    if array.data_type() == to {
        return Ok(Arc::clone(array));
    }
    Ok(match (array.data_type(), to) {
        (DataType::Struct(_), DataType::Struct(fields)) => {
            Arc::new(conform_struct(array.as_struct(), fields)?)
        }
        (DataType::List(_), DataType::List(item)) => {
            let list = array.as_list::<i32>();
            let items = conform(list.values(), item.data_type())?;
            let nulls = list.nulls().cloned();
            Arc::new(ListArray::try_new(
                Arc::clone(item),
                list.offsets().clone(),
                items,
                nulls,
            )?)
        }
        (DataType::Map(_, _), DataType::Map(entries, ordered)) => {
            let map = array.as_map();
            let DataType::Struct(pair) = entries.data_type() else {
                return Err(ArrowError::SchemaError(format!(
                    "{entries} are no entries of a map"
                )));
            };
            let keys = conform(map.keys(), pair[0].data_type())?;
            let values = conform(map.values(), pair[1].data_type())?;
            let pairs = StructArray::try_new(pair.clone(), vec![keys, values], None)?;
            let (offsets, nulls) = (map.offsets().clone(), map.nulls().cloned());
            Arc::new(MapArray::try_new(
                Arc::clone(entries),
                offsets,
                pairs,
                nulls,
                *ordered,
            )?)
        }
        (DataType::Utf8, DataType::Binary) => Arc::new(from_base64(array.as_string())?),
        // A string without a zone is in UTC.
        (DataType::Utf8, DataType::Timestamp(unit, zone)) => {
            let instants = strict(array, &DataType::Timestamp(*unit, None))?;
            with_zone(&instants, zone.clone())
        }
        (DataType::Timestamp(_, given), DataType::Timestamp(unit, zone)) => {
            let instants = strict(array, &DataType::Timestamp(*unit, given.clone()))?;
            with_zone(&instants, zone.clone())
        }
        _ => strict(array, to)?,
    })
}

/// [`conform`] for structs.
pub(crate) fn conform_struct(array: &StructArray, fields: &Fields) -> Result<StructArray, ArrowError> {
    let child = |field: &FieldRef| {
        let column = array
            .column_by_name(field.name())
            .ok_or_else(|| ArrowError::SchemaError(format!("there is no field {:?}", field.name())))?;
        conform(column, field.data_type())
            .map_err(|error| ArrowError::CastError(format!("field {:?}: {error}", field.name())))
    };
    let children: Result<Vec<ArrayRef>, ArrowError> = fields.iter().map(child).collect();
    StructArray::try_new(fields.clone(), children?, array.nulls().cloned())
}

fn strict(array: &ArrayRef, to: &DataType) -> Result<ArrayRef, ArrowError> {
    let options = CastOptions {
        safe: false,
        ..CastOptions::default()
    };
    cast_with_options(array, to, &options)
}

fn from_base64(texts: &StringArray) -> Result<BinaryArray, ArrowError> {
    let mut found = BinaryBuilder::with_capacity(texts.len(), texts.values().len());
    for text in texts {
        match text.map(|text| BASE64_STANDARD.decode(text)) {
            None => found.append_null(),
            Some(Ok(bytes)) => found.append_value(bytes),
            Some(Err(error)) => return Err(ArrowError::ParseError(format!("no base64: {error}"))),
        }
    }
    Ok(found.finish())
}

fn with_zone(instants: &ArrayRef, zone: Option<Arc<str>>) -> ArrayRef {
    let instants = instants.as_primitive::<TimestampMicrosecondType>().clone();
    Arc::new(instants.with_timezone_opt(zone))
}
