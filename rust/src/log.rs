//! The extension's `Log`: one partition's directory as a Python object.
//!
//! Reading and writing files runs without the GIL, in [`off_gil`]. Records cross in lists, one fetch at a
//! time. Fetched batches cross as a buffer that Python reads in place. `logcore.Log` is built on it.

mod appender;
mod buffer;
mod compact;
mod decode;
mod directory;
mod encode;
mod follow;
mod handle;
mod record;
mod settings;
mod state_topics;
pub(crate) mod table;

use std::path::PathBuf;
use std::sync::Arc;

use logcore_columns::{Aborted, AbortedTransaction, EncodeOptions, LogSource, check_schema, encode_rows};
use logcore_records::{BatchBuilder, Compression};
use logcore_storage::{IsolationLevel, Log, LogSlice, StandaloneLog, StorageError};
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyMemoryView};

pub(crate) use self::decode::{AbortedList, aborted_transactions};
use self::encode::{Encoder, system_now_ms};
use self::handle::Handle;
pub(crate) use self::record::BytesArg;
use self::record::PyRecord;
pub(crate) use self::settings::isolation;
use crate::errors::{self, columns_error, storage_error};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    errors::register(module)?;
    module.add_class::<PyLog>()?;
    module.add_class::<PyRecord>()?;
    module.add_class::<appender::Appender>()?;
    module.add_class::<follow::Watch>()?;
    module.add_class::<directory::PyLogDir>()?;
    module.add_function(wrap_pyfunction!(directory::partition_of_directory, module)?)?;
    module.add_function(wrap_pyfunction!(encode::build_batch, module)?)?;
    module.add_function(wrap_pyfunction!(decode::parse_batches, module)?)?;
    module.add_function(wrap_pyfunction!(state_topics::build_state_batch, module)?)?;
    module.add_function(wrap_pyfunction!(state_topics::build_end_marker, module)?)?;
    module.add_function(wrap_pyfunction!(state_topics::parse_state_batches, module)?)?;
    Ok(())
}

/// Runs blocking work without the GIL, and turns its error into a Python exception.
fn off_gil<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T, StorageError> + Send) -> PyResult<T> {
    py.detach(work).map_err(|error| storage_error(py, &error))
}

/// A log in one directory.
#[pyclass(name = "Log", frozen, module = "logcore._native")]
pub(crate) struct PyLog {
    handle: Arc<Handle>,
    compression: Compression,
    scratch: Mutex<Scratch>,
}

/// Buffers that are reused from append to append.
#[derive(Default)]
struct Scratch {
    /// For single records.
    builder: Option<BatchBuilder>,
    /// A copy of the caller's batches: the append sets their offsets in place.
    bytes: Vec<u8>,
}

/// A larger buffer is freed after its append.
const SCRATCH_KEPT: usize = 8 << 20;

#[pymethods]
impl PyLog {
    #[new]
    #[pyo3(signature = (path, create, readonly, compression, config))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        create: bool,
        readonly: bool,
        compression: &str,
        config: &Bound<'_, PyDict>,
    ) -> PyResult<Self> {
        // An unknown codec is refused before any file is created.
        let compression = encode::codec(compression)?;
        let config = settings::settings(config)?;
        let log = off_gil(py, || {
            if readonly {
                StandaloneLog::open_read_only(&path)
            } else {
                StandaloneLog::open(&path, create, config)
            }
        })?;
        let handle = Arc::new(Handle::alone(log, readonly));
        Ok(Self::new_over(handle, compression))
    }

    /// Appends one record as a batch of its own. Returns its offset.
    fn append_record<'py>(
        &self,
        py: Python<'py>,
        value: Option<&Bound<'py, PyAny>>,
        key: Option<&Bound<'py, PyAny>>,
        headers: Option<&Bound<'py, PyAny>>,
        timestamp: Option<i64>,
    ) -> PyResult<i64> {
        let Scratch { builder, bytes } = std::mem::take(&mut *self.scratch.lock());
        let builder = builder.unwrap_or_else(|| BatchBuilder::new(self.compression, None));
        let mut encoder = Encoder::again(builder, bytes, system_now_ms());
        encoder.push_parts(py, key, value, headers, timestamp)?;
        let (builder, mut bytes) = encoder.finish_one(py)?;
        let appended = off_gil(py, || self.handle.append(&mut bytes, true));
        self.keep(Some(builder), bytes);
        appended.map(|appended| appended.first_offset)
    }

    fn append_records(&self, py: Python<'_>, records: &Bound<'_, PyAny>) -> PyResult<(i64, i64)> {
        let mut encoder = Encoder::new(self.compression, None, self.handle.batch_bytes(), system_now_ms());
        for record in records.try_iter()? {
            encoder.push(&record?)?;
        }
        let mut bytes = encoder.finish(py)?;
        if bytes.is_empty() {
            return Err(PyValueError::new_err("there are no records to append"));
        }
        off_gil(py, || self.handle.append_in_segments(&mut bytes))
    }

    /// Appends the rows of an Arrow table or record batch. All are encoded before any is appended.
    fn append_table(
        &self,
        py: Python<'_>,
        table: &Bound<'_, PyAny>,
        compression: Option<&str>,
        level: Option<i32>,
        batch_bytes: Option<usize>,
    ) -> PyResult<(i64, i64)> {
        let limit = self.handle.batch_bytes();
        let compression = compression.map_or(Ok(self.compression), encode::codec)?;
        let options = EncodeOptions {
            compression,
            level: encode::codec_level(compression, level)?,
            batch_bytes: batch_bytes.unwrap_or(limit).min(limit),
            now_ms: system_now_ms(),
        };
        let (rows, schema) = table::import(table, check_schema)?;
        let mut bytes = py
            .detach(|| encode_rows(&schema, &rows, &options))
            .map_err(|error| columns_error(py, &error))?;
        if bytes.is_empty() {
            return Err(PyValueError::new_err("there are no rows to append"));
        }
        off_gil(py, || self.handle.append_in_segments(&mut bytes))
    }

    fn append_batches(&self, py: Python<'_>, batches: &Bound<'_, PyAny>) -> PyResult<(i64, i64)> {
        let given = BytesArg::new(batches)?;
        let Scratch { builder, mut bytes } = std::mem::take(&mut *self.scratch.lock());
        bytes.clear();
        bytes.extend_from_slice(given.as_slice());
        let appended = off_gil(py, || self.handle.append(&mut bytes, false));
        self.keep(builder, bytes);
        appended.map(|appended| (appended.first_offset, appended.last_offset))
    }

    /// The batches from the one with `offset` on.
    fn fetch<'py>(
        &self,
        py: Python<'py>,
        offset: i64,
        max_bytes: u64,
        isolation_level: &str,
    ) -> PyResult<Bound<'py, PyMemoryView>> {
        let isolation = isolation(isolation_level)?;
        let (bytes, _) = off_gil(py, || self.read(offset, max_bytes, isolation))?;
        buffer::memoryview(py, bytes)
    }

    /// As `fetch`, with the next offset to fetch.
    fn fetch_next<'py>(
        &self,
        py: Python<'py>,
        offset: i64,
        max_bytes: u64,
        isolation_level: &str,
    ) -> PyResult<(Bound<'py, PyMemoryView>, i64)> {
        let isolation = isolation(isolation_level)?;
        let (bytes, _) = off_gil(py, || self.read(offset, max_bytes, isolation))?;
        let next = decode::next_offset(py, &bytes, offset)?;
        Ok((buffer::memoryview(py, bytes)?, next))
    }

    /// The records from `offset` on, of about `max_bytes` of batches, and the next offset to read.
    fn read_records<'py>(
        &self,
        py: Python<'py>,
        offset: i64,
        max_bytes: u64,
        isolation_level: &str,
    ) -> PyResult<(Bound<'py, PyList>, i64)> {
        let isolation = isolation(isolation_level)?;
        let (bytes, aborted) = off_gil(py, || {
            let (bytes, slice) = self.read(offset, max_bytes, isolation)?;
            Ok((bytes, self.aborted_in(offset, &slice, isolation)?))
        })?;
        decode::decode(py, &bytes, offset, aborted)
    }

    /// Producer id, first offset and abort marker's offset of the aborted transactions that a reader of
    /// `[offset, end)` needs.
    fn aborted_transactions(&self, py: Python<'_>, offset: i64, end: i64) -> PyResult<Vec<(i64, i64, i64)>> {
        let aborted = off_gil(py, || {
            self.log().refresh()?;
            self.log().aborted_transactions(offset, end)
        })?;
        let aborted = aborted.into_iter();
        Ok(aborted
            .map(|aborted| (aborted.producer_id, aborted.first_offset, aborted.last_offset))
            .collect())
    }

    /// Base offset of the segment with `offset`, and a position in its file at or before that offset.
    fn index_position(&self, py: Python<'_>, offset: i64) -> PyResult<(i64, u64)> {
        off_gil(py, || {
            if self.handle.is_readonly() && offset >= self.log().log_end_offset() {
                self.log().refresh()?;
            }
            self.log().index_position(offset)
        })
    }

    fn offset_for_time(
        &self,
        py: Python<'_>,
        timestamp: i64,
        isolation_level: &str,
    ) -> PyResult<Option<i64>> {
        let isolation = isolation(isolation_level)?;
        let found = off_gil(py, || {
            self.log().refresh()?;
            let end = self.log().readable_end(isolation)?;
            let found = self.log().offset_for_timestamp(timestamp)?;
            Ok(found.filter(|found| found.offset < end))
        })?;
        Ok(found.map(|found| found.offset))
    }

    fn roll(&self, py: Python<'_>) -> PyResult<()> {
        off_gil(py, || self.handle.roll())
    }

    /// Removes the batches with offsets from `offset` on. Returns the new end offset.
    fn truncate_to(&self, py: Python<'_>, offset: i64) -> PyResult<i64> {
        off_gil(py, || self.handle.truncate_to(offset))
    }

    fn truncate_fully_and_start_at(&self, py: Python<'_>, offset: i64) -> PyResult<()> {
        off_gil(py, || self.handle.truncate_fully_and_start_at(offset))
    }

    fn delete_records(&self, py: Python<'_>, before_offset: i64) -> PyResult<i64> {
        off_gil(py, || self.handle.delete_records(before_offset))
    }

    fn compact(&self, py: Python<'_>) -> PyResult<compact::StatsRow> {
        compact::compact(py, &self.handle)
    }

    /// Applies retention and periodic flushes.
    fn maintain(&self, py: Python<'_>) -> PyResult<()> {
        off_gil(py, || self.handle.maintain())
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        off_gil(py, || self.handle.flush())
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        off_gil(py, || self.handle.close())
    }

    #[getter]
    fn start_offset(&self, py: Python<'_>) -> PyResult<i64> {
        off_gil(py, || self.log().refresh())?;
        Ok(self.log().log_start_offset())
    }

    #[getter]
    fn end_offset(&self, py: Python<'_>) -> PyResult<i64> {
        off_gil(py, || self.log().refresh())?;
        Ok(self.log().log_end_offset())
    }

    /// The end of the readable offsets.
    fn readable_end(&self, py: Python<'_>, isolation_level: &str) -> PyResult<i64> {
        let isolation = isolation(isolation_level)?;
        off_gil(py, || {
            self.log().refresh()?;
            self.log().readable_end(isolation)
        })
    }

    /// Whether `cleanup.policy` includes `compact`.
    #[getter]
    fn compacted(&self) -> bool {
        self.log().config().cleanup_compact
    }

    #[getter]
    fn size_bytes(&self) -> u64 {
        self.log().size_bytes()
    }

    #[getter]
    fn truncated_bytes(&self) -> u64 {
        self.log().recovery().truncated_bytes
    }

    #[getter]
    fn path(&self) -> PathBuf {
        self.log().dir()
    }

    #[getter]
    fn readonly(&self) -> bool {
        self.handle.is_readonly()
    }
}

impl PyLog {
    fn new_over(handle: Arc<Handle>, compression: Compression) -> Self {
        Self {
            handle,
            compression,
            scratch: Mutex::new(Scratch::default()),
        }
    }

    /// Keeps the buffers for the next append, unless they are large.
    fn keep(&self, builder: Option<BatchBuilder>, bytes: Vec<u8>) {
        let mut scratch = self.scratch.lock();
        if bytes.capacity() <= SCRATCH_KEPT {
            scratch.bytes = bytes;
            scratch.builder = builder.or(scratch.builder.take());
        }
    }

    pub(crate) fn handle(&self) -> Arc<Handle> {
        self.handle.clone()
    }

    fn log(&self) -> &Log {
        self.handle.log()
    }

    /// Reads batches. A read-only log refreshes its end offset when the reader has reached the known one.
    fn read(
        &self,
        offset: i64,
        max_bytes: u64,
        isolation: IsolationLevel,
    ) -> Result<(Vec<u8>, LogSlice), StorageError> {
        let log = self.log();
        let mut end = log.readable_end(isolation)?;
        if self.handle.is_readonly() && offset >= end {
            log.refresh()?;
            end = log.readable_end(isolation)?;
        }
        let slice = log.read(offset, max_bytes, end, true)?;
        Ok((slice.read_whole_batches()?, slice))
    }

    /// The aborted transactions whose records a reader of `slice` must skip.
    fn aborted_in(
        &self,
        offset: i64,
        slice: &LogSlice,
        isolation: IsolationLevel,
    ) -> Result<Aborted, StorageError> {
        if isolation == IsolationLevel::ReadUncommitted || slice.is_empty() {
            return Ok(Aborted::new(&[]));
        }
        let aborted = self.log().aborted_in(offset, slice)?;
        let aborted: Vec<_> = aborted.into_iter().map(AbortedTransaction::from).collect();
        Ok(Aborted::new(&aborted))
    }
}
