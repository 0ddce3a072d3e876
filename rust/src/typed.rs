//! Binding of `logcore-columns`' typed values: columns of JSON, CSV, Avro and Protobuf as Arrow
//! columns.

use std::sync::Arc;

use logcore_columns::{self as columns, Format};
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3_arrow::{PyField, PyRecordBatch, PySchema};

use crate::errors::columns_error;

/// A decoded batch, how many records are malformed, and the row and the reason of the first of them.
type Decoded = (PyRecordBatch, usize, Option<(usize, String)>);

/// Replaces a binary column of record batches by a typed one.
#[pyclass(module = "logcore._native", frozen)]
struct TypedDecoder {
    inner: Mutex<columns::TypedDecoder>,
}

impl TypedDecoder {
    fn open(
        py: Python<'_>,
        field: PyField,
        format: Format,
        corrupt_column: Option<&str>,
        drop_malformed: bool,
    ) -> PyResult<Self> {
        let field = field.into_inner();
        py.detach(|| columns::TypedDecoder::new(field, format, corrupt_column, drop_malformed))
            .map(|decoder| Self {
                inner: Mutex::new(decoder),
            })
            .map_err(|error| columns_error(py, &error))
    }
}

#[pymethods]
impl TypedDecoder {
    #[staticmethod]
    #[pyo3(signature = (field, *, corrupt_column=None, drop_malformed=false))]
    fn json(
        py: Python<'_>,
        field: PyField,
        corrupt_column: Option<&str>,
        drop_malformed: bool,
    ) -> PyResult<Self> {
        Self::open(py, field, Format::Json, corrupt_column, drop_malformed)
    }

    #[staticmethod]
    #[pyo3(signature = (field, columns, delimiter=",", *, corrupt_column=None, drop_malformed=false))]
    fn csv(
        py: Python<'_>,
        field: PyField,
        columns: Vec<String>,
        delimiter: &str,
        corrupt_column: Option<&str>,
        drop_malformed: bool,
    ) -> PyResult<Self> {
        let [delimiter] = delimiter.as_bytes() else {
            return Err(PyValueError::new_err("a delimiter has one byte"));
        };
        let format = Format::Csv {
            delimiter: *delimiter,
            columns,
        };
        Self::open(py, field, format, corrupt_column, drop_malformed)
    }

    #[staticmethod]
    #[pyo3(signature = (field, schema, framed=false, *, corrupt_column=None, drop_malformed=false))]
    fn avro(
        py: Python<'_>,
        field: PyField,
        schema: String,
        framed: bool,
        corrupt_column: Option<&str>,
        drop_malformed: bool,
    ) -> PyResult<Self> {
        Self::open(
            py,
            field,
            Format::Avro { schema, framed },
            corrupt_column,
            drop_malformed,
        )
    }

    #[staticmethod]
    #[pyo3(signature = (
        field, descriptors, message, framed=false, *, corrupt_column=None, drop_malformed=false
    ))]
    fn protobuf(
        py: Python<'_>,
        field: PyField,
        descriptors: Vec<u8>,
        message: String,
        framed: bool,
        corrupt_column: Option<&str>,
        drop_malformed: bool,
    ) -> PyResult<Self> {
        let format = Format::Protobuf {
            descriptors,
            message,
            framed,
        };
        Self::open(py, field, format, corrupt_column, drop_malformed)
    }

    fn unknown_schemas(&self, py: Python<'_>, batch: PyRecordBatch) -> PyResult<Vec<u32>> {
        let batch = batch.into_inner();
        py.detach(|| self.inner.lock().unknown_schemas(&batch))
            .map_err(|error| columns_error(py, &error))
    }

    fn add_schema(&self, py: Python<'_>, id: u32, schema: Option<String>) {
        py.detach(|| self.inner.lock().add_schema(id, schema));
    }

    fn decode(&self, py: Python<'_>, batch: PyRecordBatch) -> PyResult<Decoded> {
        let batch = batch.into_inner();
        let found = py
            .detach(|| self.inner.lock().decode(&batch))
            .map_err(|error| columns_error(py, &error))?;
        let first = found.first.map(|first| (first.row, first.reason));
        Ok((PyRecordBatch::new(found.batch), found.malformed, first))
    }
}

/// The schema of the columns for an Avro schema.
#[pyfunction]
fn avro_schema(py: Python<'_>, schema: &str) -> PyResult<PySchema> {
    columns::avro_schema(schema)
        .map(|schema| PySchema::new(Arc::new(schema)))
        .map_err(|error| columns_error(py, &error))
}

/// The schema of the columns for a Protobuf message.
#[pyfunction]
fn protobuf_schema(py: Python<'_>, descriptors: Vec<u8>, message: &str) -> PyResult<PySchema> {
    columns::protobuf_schema(&descriptors, message)
        .map(|schema| PySchema::new(Arc::new(schema)))
        .map_err(|error| columns_error(py, &error))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<TypedDecoder>()?;
    module.add_function(wrap_pyfunction!(avro_schema, module)?)?;
    module.add_function(wrap_pyfunction!(protobuf_schema, module)?)?;
    Ok(())
}
