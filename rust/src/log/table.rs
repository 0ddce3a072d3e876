//! Imports tables of other Arrow libraries through the C data interface.
//!
//! The memory belongs to the other library. `arrow` panics on some valid layouts (`ArrayData` of a slice of a
//! fixed-size list). The panic becomes an exception here, because Python's `except Exception` does not catch
//! a panic.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};
use logcore_columns::ColumnsError;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3_arrow::input::AnyRecordBatch;

use crate::errors::columns_error;

/// The rows and the schema of a table, a record batch or a reader of them, whose schema passes the check.
pub(crate) fn import(
    table: &Bound<'_, PyAny>,
    check: fn(&Schema) -> Result<(), ColumnsError>,
) -> PyResult<(Vec<RecordBatch>, SchemaRef)> {
    if !table.hasattr("__arrow_c_stream__")? && !table.hasattr("__arrow_c_array__")? {
        return Err(PyTypeError::new_err(format!(
            "an Arrow table or record batch is needed, not {}",
            table.get_type().name()?
        )));
    }
    // After a panic, no partly built value is used.
    catch_unwind(AssertUnwindSafe(|| rows(table, check))).unwrap_or_else(|panic| {
        Err(PyValueError::new_err(format!(
            "Arrow cannot take this table as it lies in memory ({}); append a copy of it: \
             table.take(list(range(len(table)))) makes one",
            message(&*panic)
        )))
    })
}

fn rows(
    table: &Bound<'_, PyAny>,
    check: fn(&Schema) -> Result<(), ColumnsError>,
) -> PyResult<(Vec<RecordBatch>, SchemaRef)> {
    let py = table.py();
    let table: AnyRecordBatch = table.extract()?;
    // The schema is checked first: `arrow` may panic on rows of a refused type.
    let schema = table.schema()?;
    check(&schema).map_err(|error| columns_error(py, &error))?;
    Ok(table.into_table()?.into_inner())
}

/// A panic's message.
fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without a message")
}
