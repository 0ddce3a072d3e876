//! Binding of the `log` room: one partition's directory as a Python object, records in and batches out.
//!
//! Everything that reads or writes files runs without the GIL, through [`off_gil`]. Records cross in lists, a fetch at a
//! time; fetched bytes cross as a buffer that Python looks into without a copy. The Python face is `logcore.Log`.

use std::ffi::c_int;
use std::path::PathBuf;

use logcore_records::{Batch, BatchBuilder, Compression, RecordError, batches};
use logcore_storage::{LogConfig, StandaloneLog, StorageError};
use parking_lot::Mutex;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyList, PyMemoryView, PyString, PyTuple};

use crate::errors::{self, LogConfigError, record_error, storage_error};

/// How much one batch may decompress to.
const DECOMPRESSED_MAX: usize = 512 << 20;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    errors::register(module)?;
    module.add_class::<PyLog>()?;
    module.add_class::<PyRecord>()?;
    module.add_function(wrap_pyfunction!(build_batch, module)?)?;
    module.add_function(wrap_pyfunction!(parse_batches, module)?)?;
    Ok(())
}

/// Runs what may block without the GIL, and gives its error the class it has in Python.
fn off_gil<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, StorageError> + Send,
) -> PyResult<T> {
    py.detach(work).map_err(|error| storage_error(py, &error))
}

/// Whole batches, filled by one `pread`; Python reads them in place.
#[pyclass(frozen, module = "logcore._native")]
struct FetchedBatches {
    bytes: Vec<u8>,
}

#[pymethods]
impl FetchedBatches {
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let bytes = &slf.get().bytes;
        // SAFETY: Python gives a valid `view`. The bytes never change or move, because the class is frozen and has no
        // method that touches them, and PyBuffer_FillInfo makes the view hold a reference to their owner. The last
        // but one argument says read-only, so the pointer is never written through.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                bytes.as_ptr().cast_mut().cast(),
                bytes.len() as ffi::Py_ssize_t,
                1,
                flags,
            )
        };
        if filled == 0 {
            Ok(())
        } else {
            Err(PyErr::fetch(slf.py()))
        }
    }
}

fn memoryview(py: Python<'_>, bytes: Vec<u8>) -> PyResult<Bound<'_, PyMemoryView>> {
    PyMemoryView::from(Bound::new(py, FetchedBatches { bytes })?.as_any())
}

// ---- records ----

/// A record: to be appended, or as read.
#[pyclass(name = "Record", frozen, get_all, module = "logcore")]
struct PyRecord {
    offset: i64,
    timestamp: i64,
    key: Option<Py<PyBytes>>,
    value: Option<Py<PyBytes>>,
    headers: Py<PyTuple>,
}

#[pymethods]
impl PyRecord {
    #[classattr]
    fn __match_args__() -> (
        &'static str,
        &'static str,
        &'static str,
        &'static str,
        &'static str,
    ) {
        ("offset", "timestamp", "key", "value", "headers")
    }

    #[new]
    #[pyo3(signature = (value=None, key=None, headers=None, timestamp=-1, offset=-1))]
    fn new(
        py: Python<'_>,
        value: Option<Bound<'_, PyAny>>,
        key: Option<Bound<'_, PyAny>>,
        headers: Option<Bound<'_, PyAny>>,
        timestamp: i64,
        offset: i64,
    ) -> PyResult<Self> {
        let bytes = |given: Option<Bound<'_, PyAny>>| -> PyResult<Option<Py<PyBytes>>> {
            let bytes = given.map(|given| to_bytes(&given)).transpose()?;
            Ok(bytes.map(|bytes| PyBytes::new(py, &bytes).unbind()))
        };
        let headers = to_headers(headers.as_ref())?;
        Ok(Self {
            offset,
            timestamp,
            key: bytes(key)?,
            value: bytes(value)?,
            headers: headers_tuple(py, headers.iter().map(|(k, v)| (&k[..], v.as_deref())))?,
        })
    }

    fn as_tuple<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        (
            self.offset,
            self.timestamp,
            self.key.as_ref().map(|key| key.clone_ref(py)),
            self.value.as_ref().map(|value| value.clone_ref(py)),
            self.headers.clone_ref(py),
        )
            .into_pyobject(py)
    }

    fn __eq__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<bool> {
        let Ok(other) = other.cast::<Self>() else {
            return Ok(false);
        };
        self.as_tuple(py)?.eq(other.get().as_tuple(py)?)
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
        self.as_tuple(py)?.hash()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let repr = |bytes: &Option<Py<PyBytes>>| match bytes {
            Some(bytes) => bytes.bind(py).repr().map(|text| text.to_string()),
            None => Ok("None".to_owned()),
        };
        Ok(format!(
            "Record(offset={}, timestamp={}, key={}, value={}, headers={})",
            self.offset,
            self.timestamp,
            repr(&self.key)?,
            repr(&self.value)?,
            self.headers.bind(py).repr()?
        ))
    }
}

type HeaderBytes = (Vec<u8>, Option<Vec<u8>>);

fn to_bytes(given: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    if let Ok(bytes) = given.cast::<PyBytes>() {
        return Ok(bytes.as_bytes().to_vec());
    }
    match PyBuffer::<u8>::get(given) {
        Ok(buffer) => buffer.to_vec(given.py()),
        Err(_) => Err(PyTypeError::new_err(format!(
            "keys and values are bytes or None, not {}",
            given.get_type().name()?
        ))),
    }
}

/// Headers from a mapping or a sequence of pairs of a name and bytes or None.
fn to_headers(given: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<HeaderBytes>> {
    let Some(given) = given else {
        return Ok(Vec::new());
    };
    let pairs = match given.cast::<PyDict>() {
        Ok(mapping) => mapping.items().into_any(),
        Err(_) => given.clone(),
    };
    let mut headers = Vec::new();
    for pair in pairs.try_iter()? {
        let (name, value): (Bound<'_, PyString>, Option<Bound<'_, PyAny>>) = pair?.extract()?;
        let value = value.map(|value| to_bytes(&value)).transpose()?;
        headers.push((name.to_str()?.as_bytes().to_vec(), value));
    }
    Ok(headers)
}

fn headers_tuple<'a>(
    py: Python<'_>,
    headers: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>,
) -> PyResult<Py<PyTuple>> {
    let pairs: Vec<_> = headers
        .map(|(name, value)| {
            let name = PyString::new(py, &String::from_utf8_lossy(name));
            (name, value.map(|value| PyBytes::new(py, value)))
        })
        .collect();
    Ok(PyTuple::new(py, pairs)?.unbind())
}

// ---- encoding ----

/// Takes records into batches of at most about `batch_bytes`; holds the GIL, because it reads Python's objects.
struct Encoder {
    builder: BatchBuilder,
    batch_bytes: usize,
    now_ms: i64,
    out: Vec<u8>,
}

impl Encoder {
    fn new(
        compression: &str,
        level: Option<i32>,
        batch_bytes: usize,
        now_ms: i64,
    ) -> PyResult<Self> {
        let compression: Compression = compression
            .parse()
            .map_err(|error: RecordError| PyValueError::new_err(error.to_string()))?;
        Ok(Self {
            builder: BatchBuilder::new(compression, level),
            batch_bytes,
            now_ms,
            out: Vec::new(),
        })
    }

    /// Takes bytes (a value), a tuple `(key, value[, headers[, timestamp]])`, or a `Record`.
    fn push(&mut self, given: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = given.py();
        if let Ok(record) = given.cast::<PyRecord>() {
            let record = record.get();
            let bytes =
                |b: &Option<Py<PyBytes>>| b.as_ref().map(|b| b.bind(py).as_bytes().to_vec());
            let headers = to_headers(Some(record.headers.bind(py)))?;
            return self.add(
                py,
                bytes(&record.key),
                bytes(&record.value),
                &headers,
                Some(record.timestamp),
            );
        }
        if let Ok(tuple) = given.cast::<PyTuple>() {
            if !(2..=4).contains(&tuple.len()) {
                return Err(PyTypeError::new_err(
                    "a record's tuple is (key, value), (key, value, headers) or (key, value, headers, timestamp)",
                ));
            }
            let item = |at: usize| -> PyResult<Option<Bound<'_, PyAny>>> {
                if at >= tuple.len() {
                    return Ok(None);
                }
                Ok(Some(tuple.get_item(at)?).filter(|item| !item.is_none()))
            };
            let bytes = |at: usize| item(at)?.map(|given| to_bytes(&given)).transpose();
            let headers = to_headers(item(2)?.as_ref())?;
            let timestamp = item(3)?.map(|at| at.extract()).transpose()?;
            return self.add(py, bytes(0)?, bytes(1)?, &headers, timestamp);
        }
        let value = to_bytes(given)?;
        self.add(py, None, Some(value), &[], None)
    }

    fn add(
        &mut self,
        py: Python<'_>,
        key: Option<Vec<u8>>,
        value: Option<Vec<u8>>,
        headers: &[HeaderBytes],
        timestamp: Option<i64>,
    ) -> PyResult<()> {
        let (key, value) = (key.as_deref(), value.as_deref());
        let headers: Vec<_> = headers
            .iter()
            .map(|(k, v)| (&k[..], v.as_deref()))
            .collect();
        let size = BatchBuilder::record_size_bound(key, value, &headers);
        if !self.builder.is_empty() && self.builder.estimated_size() + size > self.batch_bytes {
            self.end_batch(py)?;
        }
        let timestamp = timestamp.filter(|at| *at >= 0).unwrap_or(self.now_ms);
        self.builder
            .append(timestamp, key, value, &headers)
            .map(|_| ())
            .map_err(|error| record_error(py, &error))
    }

    fn end_batch(&mut self, py: Python<'_>) -> PyResult<()> {
        let Self { builder, out, .. } = self;
        py.detach(|| builder.build_into(out))
            .map_err(|error| record_error(py, &error))
    }

    fn finish(mut self, py: Python<'_>) -> PyResult<Vec<u8>> {
        if !self.builder.is_empty() {
            self.end_batch(py)?;
        }
        Ok(self.out)
    }
}

fn system_now_ms() -> i64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| {
            i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
        })
}

/// One batch of all records given.
#[pyfunction]
#[pyo3(signature = (records, compression="none", level=None, producer=None))]
fn build_batch<'py>(
    py: Python<'py>,
    records: &Bound<'py, PyAny>,
    compression: &str,
    level: Option<i32>,
    producer: Option<(i64, i16, i32)>,
) -> PyResult<Bound<'py, PyBytes>> {
    let mut encoder = Encoder::new(compression, level, usize::MAX, system_now_ms())?;
    if let Some((id, epoch, sequence)) = producer {
        encoder.builder.set_producer_state(id, epoch, sequence);
    }
    for record in records.try_iter()? {
        encoder.push(&record?)?;
    }
    let bytes = encoder.finish(py)?;
    if bytes.is_empty() {
        return Err(PyValueError::new_err("a batch needs at least one record"));
    }
    Ok(PyBytes::new(py, &bytes))
}

// ---- decoding ----

/// The records of whole batches from `offset` on, and the offset after the last. Control batches are left out.
fn decode<'py>(py: Python<'py>, bytes: &[u8], offset: i64) -> PyResult<(Bound<'py, PyList>, i64)> {
    let list = PyList::empty(py);
    let mut next = offset;
    let mut scratch = Vec::new();
    for batch in batches(bytes) {
        let batch = batch.map_err(|error| record_error(py, &error))?;
        next = next.max(batch.header.next_offset());
        py.detach(|| batch.verify_crc())
            .map_err(|error| record_error(py, &error))?;
        if !batch.header.is_control() {
            push_records(&list, &batch, &mut scratch, offset)?;
        }
    }
    Ok((list, next))
}

fn push_records(
    list: &Bound<'_, PyList>,
    batch: &Batch<'_>,
    scratch: &mut Vec<u8>,
    offset: i64,
) -> PyResult<()> {
    let py = list.py();
    let records = py
        .detach(|| batch.records_in(scratch, DECOMPRESSED_MAX))
        .map_err(|error| record_error(py, &error))?;
    for record in records {
        let record = record.map_err(|error| record_error(py, &error))?;
        if record.offset < offset {
            continue;
        }
        list.append(PyRecord {
            offset: record.offset,
            timestamp: record.timestamp,
            key: record.key.map(|key| PyBytes::new(py, key).unbind()),
            value: record.value.map(|value| PyBytes::new(py, value).unbind()),
            headers: headers_tuple(py, record.headers())?,
        })?;
    }
    Ok(())
}

/// The records in whole batches, as `fetch` returns them.
#[pyfunction]
#[pyo3(signature = (batches, offset=0))]
fn parse_batches<'py>(
    py: Python<'py>,
    batches: &Bound<'py, PyAny>,
    offset: i64,
) -> PyResult<Bound<'py, PyList>> {
    // Bytes that another thread may change are no slice to Rust: they are taken as they are now.
    Ok(decode(py, &to_bytes(batches)?, offset)?.0)
}

// ---- the log ----

/// A log in one directory.
#[pyclass(name = "Log", frozen, module = "logcore._native")]
struct PyLog {
    log: StandaloneLog,
    readonly: bool,
    compression: String,
    /// What is appended is completed in place, so it is copied here first; kept from call to call.
    scratch: Mutex<Vec<u8>>,
}

/// The largest scratch buffer that is kept.
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
        compression: String,
        config: &Bound<'_, PyDict>,
    ) -> PyResult<Self> {
        // Known before anything is created.
        Encoder::new(&compression, None, 0, 0)?;
        let config = settings(config)?;
        let log = off_gil(py, || {
            if readonly {
                StandaloneLog::open_read_only(&path)
            } else {
                StandaloneLog::open(&path, create, config)
            }
        })?;
        Ok(Self {
            log,
            readonly,
            compression,
            scratch: Mutex::new(Vec::new()),
        })
    }

    fn append_records(&self, py: Python<'_>, records: &Bound<'_, PyAny>) -> PyResult<(i64, i64)> {
        let batch_bytes = self.log.config().max_message_bytes as usize;
        let mut encoder = Encoder::new(&self.compression, None, batch_bytes, system_now_ms())?;
        for record in records.try_iter()? {
            encoder.push(&record?)?;
        }
        let mut bytes = encoder.finish(py)?;
        if bytes.is_empty() {
            return Err(PyValueError::new_err("there are no records to append"));
        }
        let appended = off_gil(py, || self.append_in_segments(&mut bytes))?;
        Ok(appended)
    }

    fn append_batches(&self, py: Python<'_>, batches: &Bound<'_, PyAny>) -> PyResult<(i64, i64)> {
        let buffer = PyBuffer::<u8>::get(batches)?;
        let mut scratch = std::mem::take(&mut *self.scratch.lock());
        scratch.resize(buffer.len_bytes(), 0);
        buffer.copy_to_slice(py, &mut scratch)?;
        let appended = off_gil(py, || self.log.append(&mut scratch));
        if scratch.capacity() <= SCRATCH_KEPT {
            *self.scratch.lock() = scratch;
        }
        appended.map(|appended| (appended.first_offset, appended.last_offset))
    }

    /// Whole batches from the one with `offset` on.
    fn fetch<'py>(
        &self,
        py: Python<'py>,
        offset: i64,
        max_bytes: u64,
    ) -> PyResult<Bound<'py, PyMemoryView>> {
        let bytes = off_gil(py, || self.read(offset, max_bytes))?;
        memoryview(py, bytes)
    }

    /// The records from `offset` on of about `max_bytes` of batches, and the offset to go on from.
    fn read_records<'py>(
        &self,
        py: Python<'py>,
        offset: i64,
        max_bytes: u64,
    ) -> PyResult<(Bound<'py, PyList>, i64)> {
        let bytes = off_gil(py, || self.read(offset, max_bytes))?;
        decode(py, &bytes, offset)
    }

    fn offset_for_time(&self, py: Python<'_>, timestamp: i64) -> PyResult<Option<i64>> {
        let found = off_gil(py, || {
            self.log.refresh()?;
            self.log.offset_for_timestamp(timestamp)
        })?;
        Ok(found.map(|found| found.offset))
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        off_gil(py, || self.log.flush())
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        off_gil(py, || self.log.close())
    }

    #[getter]
    fn start_offset(&self, py: Python<'_>) -> PyResult<i64> {
        off_gil(py, || self.log.refresh())?;
        Ok(self.log.log_start_offset())
    }

    #[getter]
    fn end_offset(&self, py: Python<'_>) -> PyResult<i64> {
        off_gil(py, || self.log.refresh())?;
        Ok(self.log.log_end_offset())
    }

    #[getter]
    fn size_bytes(&self) -> u64 {
        self.log.size_bytes()
    }

    #[getter]
    fn truncated_bytes(&self) -> u64 {
        self.log.recovery().truncated_bytes
    }

    #[getter]
    fn path(&self) -> PathBuf {
        self.log.dir()
    }

    #[getter]
    fn readonly(&self) -> bool {
        self.readonly
    }
}

impl PyLog {
    /// Appends batches, as many at a time as fit into a segment.
    fn append_in_segments(&self, bytes: &mut [u8]) -> Result<(i64, i64), StorageError> {
        let limit = self.log.config().segment_bytes as usize;
        let mut range: Option<(i64, i64)> = None;
        let mut rest = bytes;
        while !rest.is_empty() {
            let mut end = 0;
            for batch in batches(rest) {
                let size = match batch {
                    Ok(batch) => batch.bytes.len(),
                    Err(_) => break,
                };
                if end > 0 && end + size > limit {
                    break;
                }
                end += size;
            }
            // What is not a batch is for the append to refuse.
            let (part, after) = rest.split_at_mut(if end == 0 { rest.len() } else { end });
            let appended = self.log.append(part)?;
            range = Some((
                range.map_or(appended.first_offset, |(first, _)| first),
                appended.last_offset,
            ));
            rest = after;
        }
        Ok(range.unwrap_or((-1, -1)))
    }

    /// Whole batches; a reader beside a writer looks again when it has reached the end it knew.
    fn read(&self, offset: i64, max_bytes: u64) -> Result<Vec<u8>, StorageError> {
        if self.readonly && offset >= self.log.log_end_offset() {
            self.log.refresh()?;
        }
        self.log
            .read(offset, max_bytes, self.log.high_watermark(), true)?
            .read_whole_batches()
    }
}

/// Settings from Kafka's names with underscores: `segment_bytes=...` is `segment.bytes`.
fn settings(given: &Bound<'_, PyDict>) -> PyResult<LogConfig> {
    let py = given.py();
    let mut config = LogConfig::default();
    for (name, value) in given {
        let name: String = name.extract()?;
        let value = match value.cast::<PyBool>() {
            Ok(flag) => flag.is_true().to_string(),
            Err(_) => value.str()?.to_string(),
        };
        match config.set(&name.replace('_', "."), &value) {
            Ok(true) => {}
            Ok(false) => {
                return Err(LogConfigError::new_err(format!(
                    "there is no setting {name}"
                )));
            }
            Err(error) => return Err(storage_error(py, &error)),
        }
    }
    Ok(config)
}
