//! Binding of the `columns` room: partitions and fetched batches as Arrow, handed over by PyCapsule without a copy.

use std::path::PathBuf;

use logcore_columns::{self as columns, ColumnsError, DecodeOptions, Projection};
use parking_lot::Mutex;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3_arrow::PyRecordBatch;

use crate::errors;

/// An iterator of Arrow record batches over the records of one partition's directory.
#[pyclass(module = "logcore._native", frozen)]
struct PartitionScan {
    inner: Mutex<columns::PartitionScan>,
}

#[pymethods]
impl PartitionScan {
    #[new]
    #[pyo3(signature = (directory, topic, partition, columns, start_offset=0, end_offset=None, batch_rows=65_536))]
    #[expect(clippy::too_many_arguments, reason = "Python names them")]
    fn new(
        py: Python<'_>,
        directory: PathBuf,
        topic: String,
        partition: i32,
        columns: Vec<PyBackedStr>,
        start_offset: i64,
        end_offset: Option<i64>,
        batch_rows: usize,
    ) -> PyResult<Self> {
        let options = DecodeOptions {
            projection: projection(py, &columns)?,
            topic,
            partition,
            start: start_offset,
            end: end_offset.unwrap_or(i64::MAX),
            batch_rows,
        };
        let scan = py
            .detach(|| columns::PartitionScan::open(&directory, &options))
            .map_err(|error| to_python(py, &error))?;
        Ok(Self {
            inner: Mutex::new(scan),
        })
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<PyRecordBatch>> {
        py.detach(|| self.inner.lock().next())
            .transpose()
            .map(|batch| batch.map(PyRecordBatch::new))
            .map_err(|error| to_python(py, &error))
    }
}

#[pyfunction]
#[pyo3(signature = (records, topic, partition, columns, start_offset=0, end_offset=None, batch_rows=65_536))]
#[expect(clippy::too_many_arguments, reason = "Python names them")]
fn decode_batches(
    py: Python<'_>,
    records: &[u8],
    topic: String,
    partition: i32,
    columns: Vec<PyBackedStr>,
    start_offset: i64,
    end_offset: Option<i64>,
    batch_rows: usize,
) -> PyResult<(Vec<PyRecordBatch>, i64)> {
    let options = DecodeOptions {
        projection: projection(py, &columns)?,
        topic,
        partition,
        start: start_offset,
        end: end_offset.unwrap_or(i64::MAX),
        batch_rows,
    };
    let decoded = py
        .detach(|| columns::decode_batches(records, &options))
        .map_err(|error| to_python(py, &error))?;
    let batches = decoded
        .batches
        .into_iter()
        .map(PyRecordBatch::new)
        .collect();
    Ok((batches, decoded.next_offset))
}

#[pyfunction]
fn partition_offsets(py: Python<'_>, directory: PathBuf) -> PyResult<(i64, i64)> {
    py.detach(|| columns::partition_offsets(&directory))
        .map_err(|error| to_python(py, &error))
}

#[pyfunction]
fn partition_offset_for_timestamp(
    py: Python<'_>,
    directory: PathBuf,
    timestamp: i64,
) -> PyResult<Option<i64>> {
    py.detach(|| columns::partition_offset_for_timestamp(&directory, timestamp))
        .map_err(|error| to_python(py, &error))
}

fn projection(py: Python<'_>, names: &[PyBackedStr]) -> PyResult<Projection> {
    let names: Vec<&str> = names.iter().map(|name| &**name).collect();
    Projection::from_names(&names).map_err(|error| to_python(py, &error))
}

/// A caller's mistake is a ValueError; what the log cannot give is one of `logcore`'s errors.
pub(crate) fn to_python(py: Python<'_>, error: &ColumnsError) -> PyErr {
    const OFFSET_OUT_OF_RANGE: i16 = 1;
    const CORRUPT_MESSAGE: i16 = 2;
    let text = error.to_string();
    let (exception, code) = match error {
        ColumnsError::UnknownColumn { .. }
        | ColumnsError::NoColumns
        | ColumnsError::DuplicateColumn { .. }
        | ColumnsError::BadRange { .. }
        | ColumnsError::NothingToAppend
        | ColumnsError::BadRow { .. } => return PyValueError::new_err(text),
        ColumnsError::ColumnType { .. } => return PyTypeError::new_err(text),
        ColumnsError::Encode(error) => return errors::record_error(py, error),
        ColumnsError::Storage(error) => return errors::storage_error(py, error),
        ColumnsError::RecordTooLarge { .. } | ColumnsError::Arrow(_) => {
            return errors::LogError::new_err(text);
        }
        ColumnsError::OutOfRange { .. } => (
            errors::OffsetOutOfRangeError::new_err(text),
            OFFSET_OUT_OF_RANGE,
        ),
        ColumnsError::CorruptSegment { .. }
        | ColumnsError::CutOff { .. }
        | ColumnsError::CorruptFetch { .. } => {
            (errors::CorruptLogError::new_err(text), CORRUPT_MESSAGE)
        }
    };
    match exception.value(py).setattr("code", code) {
        Ok(()) => exception,
        Err(other) => other,
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PartitionScan>()?;
    module.add_function(wrap_pyfunction!(decode_batches, module)?)?;
    module.add_function(wrap_pyfunction!(partition_offsets, module)?)?;
    module.add_function(wrap_pyfunction!(partition_offset_for_timestamp, module)?)?;
    Ok(())
}
