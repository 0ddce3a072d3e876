//! Tables of other Arrow libraries, taken over their C data interface.
//!
//! What comes over it is somebody else's memory, described in their words. `arrow` panics on some layouts that are allowed
//! (`ArrayData` of a slice of a fixed-size list); the panic ends here, as an error, because Python's `except Exception` does
//! not see a panic.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use logcore_columns::check_schema;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3_arrow::input::AnyRecordBatch;

use crate::columns::to_python;

/// The rows of a table, a record batch or a reader of them, and their schema, which is one that can be appended.
pub(super) fn import(table: &Bound<'_, PyAny>) -> PyResult<(Vec<RecordBatch>, SchemaRef)> {
    // Nothing that was half made is looked at after a panic.
    catch_unwind(AssertUnwindSafe(|| rows(table))).unwrap_or_else(|panic| {
        Err(PyValueError::new_err(format!(
            "Arrow cannot take this table as it lies in memory ({}); append a copy of it: table.take(list(range(len(table)))) makes one",
            message(&*panic)
        )))
    })
}

fn rows(table: &Bound<'_, PyAny>) -> PyResult<(Vec<RecordBatch>, SchemaRef)> {
    let py = table.py();
    let table: AnyRecordBatch = table.extract()?;
    // Before the rows are taken: a type that is refused may be one that they cannot be taken of.
    let schema = table.schema()?;
    check_schema(&schema).map_err(|error| to_python(py, &error))?;
    Ok(table.into_table()?.into_inner())
}

/// What a panic said.
fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("it does not say why")
}
