//! Imports tables of other Arrow libraries through the C data interface.
//!
//! The memory belongs to the other library. `arrow` panics on some valid layouts (`ArrayData` of a slice of a
//! fixed-size list). The panic becomes an exception here, because Python's `except Exception` does not catch
//! a panic.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use logcore_columns::check_schema;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3_arrow::input::AnyRecordBatch;

use crate::errors::columns_error;

/// The rows and the schema of a table, a record batch or a reader of them. The schema can be appended.
pub(super) fn import(table: &Bound<'_, PyAny>) -> PyResult<(Vec<RecordBatch>, SchemaRef)> {
    // After a panic, no partly built value is used.
    catch_unwind(AssertUnwindSafe(|| rows(table))).unwrap_or_else(|panic| {
        Err(PyValueError::new_err(format!(
            "Arrow cannot take this table as it lies in memory ({}); append a copy of it: \
             table.take(list(range(len(table)))) makes one",
            message(&*panic)
        )))
    })
}

fn rows(table: &Bound<'_, PyAny>) -> PyResult<(Vec<RecordBatch>, SchemaRef)> {
    let py = table.py();
    let table: AnyRecordBatch = table.extract()?;
    // The schema is checked first: `arrow` may panic on rows of a refused type.
    let schema = table.schema()?;
    check_schema(&schema).map_err(|error| columns_error(py, &error))?;
    Ok(table.into_table()?.into_inner())
}

/// A panic's message.
fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without a message")
}
