//! Binding of `logcore-columns`: partitions and fetched batches as Arrow, passed to Python by PyCapsule
//! without a copy.

use std::path::PathBuf;
use std::sync::Arc;

use logcore_columns::{self as columns, DecodeOptions, LogSource, Projection, ScanReader};
use logcore_storage::metadata;
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::PyBytes;
use pyo3_arrow::{PyRecordBatch, PyRecordBatchReader, PySchema};

use crate::errors::{columns_error, storage_error};
use crate::log::{AbortedList, BytesArg, PyLog, aborted_transactions, isolation};

/// A partition, as a Python caller names it.
#[derive(FromPyObject)]
enum Source<'py> {
    Log(Bound<'py, PyLog>),
    Directory(PathBuf),
}

/// An iterator of Arrow record batches over the records of one partition, and an Arrow stream of them.
#[pyclass(module = "logcore._native", frozen)]
struct PartitionScan {
    /// `None` after the scan was exported as a stream.
    inner: Mutex<Option<columns::PartitionScan>>,
}

#[pymethods]
impl PartitionScan {
    #[new]
    #[pyo3(signature = (
        source, topic, partition, columns, start_offset=0, end_offset=None,
        batch_rows=DecodeOptions::BATCH_ROWS, *, start_time=None, end_time=None,
        batch_bytes=DecodeOptions::BATCH_BYTES, aborted=Vec::new(),
        isolation_level="read_uncommitted",
    ))]
    #[expect(clippy::too_many_arguments, reason = "Python names them")]
    fn new(
        py: Python<'_>,
        source: Source<'_>,
        topic: &str,
        partition: i32,
        columns: Vec<PyBackedStr>,
        start_offset: i64,
        end_offset: Option<i64>,
        batch_rows: usize,
        start_time: Option<i64>,
        end_time: Option<i64>,
        batch_bytes: usize,
        aborted: AbortedList,
        isolation_level: &str,
    ) -> PyResult<Self> {
        let options = DecodeOptions {
            isolation: isolation(isolation_level)?,
            start: start_offset,
            end: end_offset.unwrap_or(i64::MAX),
            start_time: start_time.unwrap_or(i64::MIN),
            end_time,
            batch_rows,
            batch_bytes,
            aborted: aborted_transactions(aborted),
            ..DecodeOptions::new(projection(py, &columns)?, topic, partition)
        };
        let scan = match source {
            Source::Log(log) => {
                let log: Arc<dyn LogSource> = log.get().handle();
                py.detach(|| {
                    log.log().refresh()?;
                    columns::PartitionScan::over(log, &options)
                })
            }
            Source::Directory(directory) => py.detach(|| columns::PartitionScan::open(&directory, &options)),
        };
        let scan = scan.map_err(|error| columns_error(py, &error))?;
        Ok(Self {
            inner: Mutex::new(Some(scan)),
        })
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<PyRecordBatch>> {
        py.detach(|| self.inner.lock().as_mut().and_then(Iterator::next))
            .transpose()
            .map(|batch| batch.map(PyRecordBatch::new))
            .map_err(|error| columns_error(py, &error))
    }

    /// Exports the rows that were not iterated over yet, for Arrow libraries. The iterator has ended then.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Some(scan) = py.detach(|| self.inner.lock().take()) else {
            return Err(already_exported());
        };
        let reader = PyRecordBatchReader::new(Box::new(ScanReader(scan)));
        Bound::new(py, reader)?.call_method1("__arrow_c_stream__", (requested_schema,))
    }

    /// The schema of the batches, for Arrow libraries.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let schema = self.inner.lock().as_ref().map(columns::PartitionScan::schema);
        let schema = schema.ok_or_else(already_exported)?;
        Bound::new(py, PySchema::new(schema))?.call_method0("__arrow_c_schema__")
    }
}

fn already_exported() -> PyErr {
    PyValueError::new_err("this scan was exported as a stream before; begin another scan")
}

#[pyfunction]
#[pyo3(signature = (
    records, topic, partition, columns, start_offset=0, end_offset=None,
    batch_rows=DecodeOptions::BATCH_ROWS, *, start_time=None, end_time=None,
    batch_bytes=DecodeOptions::BATCH_BYTES, aborted=Vec::new(),
))]
#[expect(clippy::too_many_arguments, reason = "Python names them")]
fn decode_batches(
    py: Python<'_>,
    records: &Bound<'_, PyAny>,
    topic: &str,
    partition: i32,
    columns: Vec<PyBackedStr>,
    start_offset: i64,
    end_offset: Option<i64>,
    batch_rows: usize,
    start_time: Option<i64>,
    end_time: Option<i64>,
    batch_bytes: usize,
    aborted: AbortedList,
) -> PyResult<(Vec<PyRecordBatch>, i64)> {
    let options = DecodeOptions {
        start: start_offset,
        end: end_offset.unwrap_or(i64::MAX),
        start_time: start_time.unwrap_or(i64::MIN),
        end_time,
        batch_rows,
        batch_bytes,
        aborted: aborted_transactions(aborted),
        ..DecodeOptions::new(projection(py, &columns)?, topic, partition)
    };
    let records = BytesArg::new(records)?;
    let bytes = records.as_slice();
    let decoded = py
        .detach(|| columns::decode_batches(bytes, &options))
        .map_err(|error| columns_error(py, &error))?;
    let batches = decoded.batches.into_iter().map(PyRecordBatch::new).collect();
    Ok((batches, decoded.next_offset))
}

#[pyfunction]
#[pyo3(signature = (directory, isolation_level=None))]
fn partition_offsets(
    py: Python<'_>,
    directory: PathBuf,
    isolation_level: Option<&str>,
) -> PyResult<(i64, i64)> {
    let readable = isolation_level.map(isolation).transpose()?;
    py.detach(|| columns::partition_offsets(&directory, readable))
        .map_err(|error| columns_error(py, &error))
}

#[pyfunction]
fn partition_topic_id(py: Python<'_>, directory: PathBuf) -> PyResult<Option<Bound<'_, PyBytes>>> {
    let id = py
        .detach(|| metadata::read_topic_id(&directory))
        .map_err(|error| storage_error(py, &error))?;
    Ok(id.map(|id| PyBytes::new(py, &id)))
}

#[pyfunction]
fn partition_covers(
    py: Python<'_>,
    directory: PathBuf,
    start_offset: i64,
    end_offset: i64,
    leader_epoch: i32,
    isolation_level: &str,
) -> PyResult<bool> {
    let isolation = isolation(isolation_level)?;
    let range = (start_offset, end_offset);
    py.detach(|| columns::partition_covers(&directory, range, leader_epoch, isolation))
        .map_err(|error| columns_error(py, &error))
}

#[pyfunction]
fn partition_offset_for_timestamp(
    py: Python<'_>,
    directory: PathBuf,
    timestamp: i64,
) -> PyResult<Option<i64>> {
    py.detach(|| columns::partition_offset_for_timestamp(&directory, timestamp))
        .map_err(|error| columns_error(py, &error))
}

#[pyfunction]
#[pyo3(signature = (source, parts, start_offset=None, end_offset=None))]
fn partition_splits(
    py: Python<'_>,
    source: Source<'_>,
    parts: usize,
    start_offset: Option<i64>,
    end_offset: Option<i64>,
) -> PyResult<Vec<(i64, i64)>> {
    let end = end_offset.unwrap_or(i64::MAX);
    let ranges = match source {
        Source::Log(log) => {
            let handle = log.get().handle();
            py.detach(|| {
                let log = handle.log();
                log.refresh()?;
                let start = start_offset.unwrap_or_else(|| log.log_start_offset());
                columns::split(log, parts, start, end)
            })
        }
        Source::Directory(directory) => {
            py.detach(|| columns::partition_splits(&directory, parts, start_offset, end))
        }
    };
    ranges.map_err(|error| columns_error(py, &error))
}

fn projection(py: Python<'_>, names: &[PyBackedStr]) -> PyResult<Projection> {
    let names: Vec<&str> = names.iter().map(|name| &**name).collect();
    Projection::from_names(&names).map_err(|error| columns_error(py, &error))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PartitionScan>()?;
    module.add_function(wrap_pyfunction!(decode_batches, module)?)?;
    module.add_function(wrap_pyfunction!(partition_splits, module)?)?;
    module.add_function(wrap_pyfunction!(partition_offsets, module)?)?;
    module.add_function(wrap_pyfunction!(partition_topic_id, module)?)?;
    module.add_function(wrap_pyfunction!(partition_covers, module)?)?;
    module.add_function(wrap_pyfunction!(partition_offset_for_timestamp, module)?)?;
    Ok(())
}
