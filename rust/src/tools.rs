//! Binding of the tools: verifying and repairing directories, and looking into a segment's files.
//!
//! Findings and actions cross as plain objects, all at once; batches one at a time, their records as tuples. Reading
//! runs without the GIL; it is taken for each call of a progress callback, at most every [`TELL_EVERY`].

use std::path::PathBuf;
use std::time::{Duration, Instant};

use logcore_records::{Batch, RecordError, legacy};
use logcore_storage::StorageError;
use logcore_storage::repair::{self, Action, RepairOptions};
use logcore_storage::segment_file::{self, BatchInFile, SegmentFile};
use logcore_storage::verify::{self, Progress, VerifyOptions};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

use crate::errors::{record_error, storage_error};

/// Between two looks for Ctrl-C, or two calls of a progress callback.
const TELL_EVERY: Duration = Duration::from_millis(100);
/// How much one batch may decompress to.
const DECOMPRESSED_MAX: usize = 512 << 20;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Finding>()?;
    module.add_class::<Verified>()?;
    module.add_class::<RepairAction>()?;
    module.add_class::<Repaired>()?;
    module.add_class::<SegmentBatch>()?;
    module.add_class::<SegmentReader>()?;
    module.add_function(wrap_pyfunction!(verify_directory, module)?)?;
    module.add_function(wrap_pyfunction!(repair_directory, module)?)?;
    module.add_function(wrap_pyfunction!(read_producer_snapshot, module)?)?;
    module.add_function(wrap_pyfunction!(read_transaction_index, module)?)?;
    Ok(())
}

// ---- verify and repair ----

/// One thing that is wrong with a directory.
#[pyclass(frozen, get_all, module = "logcore")]
struct Finding {
    severity: &'static str,
    kind: &'static str,
    path: PathBuf,
    position: Option<u64>,
    offset: Option<i64>,
    what: String,
    remedy: String,
}

impl From<verify::Finding> for Finding {
    fn from(finding: verify::Finding) -> Self {
        Self {
            severity: finding.severity().name(),
            kind: finding.kind.name(),
            path: finding.path,
            position: finding.position,
            offset: finding.offset,
            what: finding.what,
            remedy: finding.remedy,
        }
    }
}

#[pymethods]
impl Finding {
    fn __repr__(&self) -> String {
        format!(
            "Finding(severity={:?}, kind={:?}, path={:?}, what={:?})",
            self.severity,
            self.kind,
            self.path.display().to_string(),
            self.what
        )
    }
}

/// What was read of a directory, and what was found.
#[pyclass(frozen, get_all, module = "logcore")]
struct Verified {
    findings: Py<PyList>,
    partitions: usize,
    segments: usize,
    batches: u64,
    records: u64,
    bytes: u64,
    damaged: bool,
}

/// One step of a repair.
#[pyclass(frozen, get_all, module = "logcore")]
struct RepairAction {
    action: &'static str,
    path: PathBuf,
    why: String,
    position: Option<u64>,
    offset: Option<i64>,
    bytes: u64,
    records: u64,
}

impl From<Action> for RepairAction {
    fn from(action: Action) -> Self {
        let (name, path) = (action.name(), action.path().to_path_buf());
        let plain = |why| Self {
            action: name,
            path: path.clone(),
            why,
            position: None,
            offset: None,
            bytes: 0,
            records: 0,
        };
        match action {
            Action::Remove { why, .. } | Action::Rebuild { why, .. } => plain(why),
            Action::Cut {
                position,
                offset,
                bytes,
                records,
                why,
                ..
            } => Self {
                position: Some(position),
                offset: Some(offset),
                bytes,
                records,
                ..plain(why)
            },
        }
    }
}

#[pymethods]
impl RepairAction {
    fn __repr__(&self) -> String {
        format!(
            "RepairAction(action={:?}, path={:?}, why={:?})",
            self.action,
            self.path.display().to_string(),
            self.why
        )
    }
}

/// What a repair did, or would do.
#[pyclass(frozen, get_all, module = "logcore")]
struct Repaired {
    actions: Py<PyList>,
    refused: Py<PyList>,
    applied: bool,
    aside: Option<PathBuf>,
    findings: Py<PyList>,
    damaged: bool,
}

fn findings_list(py: Python<'_>, findings: Vec<verify::Finding>) -> PyResult<Py<PyList>> {
    let findings: Vec<Py<Finding>> = findings
        .into_iter()
        .map(|finding| Py::new(py, Finding::from(finding)))
        .collect::<PyResult<_>>()?;
    Ok(PyList::new(py, findings)?.unbind())
}

fn actions_list(py: Python<'_>, actions: Vec<Action>) -> PyResult<Py<PyList>> {
    let actions: Vec<Py<RepairAction>> = actions
        .into_iter()
        .map(|action| Py::new(py, RepairAction::from(action)))
        .collect::<PyResult<_>>()?;
    Ok(PyList::new(py, actions)?.unbind())
}

/// Tells a Python callable how far the reading is, and notices Ctrl-C; the first exception stops the reading.
struct Teller {
    callback: Option<Py<PyAny>>,
    told: Option<Instant>,
    raised: Option<PyErr>,
}

impl Teller {
    fn new(callback: Option<Py<PyAny>>) -> Self {
        Self {
            callback,
            told: None,
            raised: None,
        }
    }

    fn tell(&mut self, now: Progress) -> bool {
        let done = now.partitions == now.partitions_total;
        if !done && self.told.is_some_and(|told| told.elapsed() < TELL_EVERY) {
            return true;
        }
        self.told = Some(Instant::now());
        let told = Python::attach(|py| {
            py.check_signals()?;
            if let Some(callback) = &self.callback {
                callback.call1(
                    py,
                    (now.bytes, now.bytes_total, now.partitions, now.partitions_total),
                )?;
            }
            Ok(())
        });
        match told {
            Ok(()) => true,
            Err(error) => {
                self.raised.get_or_insert(error);
                false
            }
        }
    }

    /// The outcome, if nothing was raised meanwhile.
    fn finish<T>(self, py: Python<'_>, result: Result<T, StorageError>) -> PyResult<T> {
        match self.raised {
            Some(error) => Err(error),
            None => result.map_err(|error| storage_error(py, &error)),
        }
    }
}

fn verify_options(threads: usize) -> VerifyOptions {
    VerifyOptions {
        threads,
        ..VerifyOptions::default()
    }
}

#[pyfunction]
#[pyo3(signature = (path, threads=0, progress=None))]
fn verify_directory(
    py: Python<'_>,
    path: PathBuf,
    threads: usize,
    progress: Option<Py<PyAny>>,
) -> PyResult<Verified> {
    let mut teller = Teller::new(progress);
    let result = py.detach(|| verify::verify(&path, &verify_options(threads), &mut |now| teller.tell(now)));
    let report = teller.finish(py, result)?;
    Ok(Verified {
        damaged: report.is_damaged(),
        partitions: report.partitions,
        segments: report.segments,
        batches: report.batches,
        records: report.records,
        bytes: report.bytes,
        findings: findings_list(py, report.findings)?,
    })
}

#[pyfunction]
#[pyo3(signature = (path, apply=false, cut_at_corruption=false, aside=None, threads=0, progress=None))]
fn repair_directory(
    py: Python<'_>,
    path: PathBuf,
    apply: bool,
    cut_at_corruption: bool,
    aside: Option<PathBuf>,
    threads: usize,
    progress: Option<Py<PyAny>>,
) -> PyResult<Repaired> {
    let options = RepairOptions {
        apply,
        cut_at_corruption,
        aside,
        verify: verify_options(threads),
    };
    let mut teller = Teller::new(progress);
    let result = py.detach(|| repair::repair(&path, &options, &mut |now| teller.tell(now)));
    let repair = teller.finish(py, result)?;
    let damage = verify::Severity::Damage;
    Ok(Repaired {
        damaged: repair.findings.iter().any(|f| f.severity() == damage),
        actions: actions_list(py, repair.actions)?,
        refused: actions_list(py, repair.refused)?,
        applied: repair.applied,
        aside: repair.aside,
        findings: findings_list(py, repair.findings)?,
    })
}

// ---- a segment's files ----

/// One batch, or legacy message, of a `.log` file.
#[pyclass(frozen, module = "logcore._native")]
struct SegmentBatch {
    inner: BatchInFile,
}

#[pymethods]
impl SegmentBatch {
    #[getter]
    fn position(&self) -> u64 {
        self.inner.position
    }

    #[getter]
    fn size(&self) -> usize {
        self.inner.bytes.len()
    }

    #[getter]
    fn magic(&self) -> i8 {
        self.inner.magic
    }

    #[getter]
    fn base_offset(&self) -> i64 {
        self.inner.base_offset
    }

    #[getter]
    fn last_offset(&self) -> i64 {
        self.inner.last_offset
    }

    #[getter]
    fn max_timestamp(&self) -> i64 {
        self.inner.max_timestamp
    }

    #[getter]
    fn attributes(&self) -> i16 {
        self.inner.attributes
    }

    #[getter]
    fn crc(&self) -> u32 {
        self.inner.crc
    }

    #[getter]
    fn valid(&self) -> bool {
        self.inner.valid
    }

    #[getter]
    fn compression(&self, py: Python<'_>) -> PyResult<&'static str> {
        let codec = self.inner.compression();
        codec
            .map(|codec| codec.name())
            .map_err(|error| record_error(py, &error))
    }

    /// All of it, as it stands in the file.
    #[getter]
    fn bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.inner.bytes)
    }

    /// What only a v2 batch has: records, base sequence, last sequence, producer id, producer epoch, leader epoch, base
    /// timestamp.
    #[getter]
    fn header(&self) -> Option<(i32, i32, i32, i64, i16, i32, i64)> {
        let header = self.inner.header.as_ref()?;
        Some((
            header.record_count,
            header.base_sequence,
            header.last_sequence(),
            header.producer_id,
            header.producer_epoch,
            header.partition_leader_epoch,
            header.base_timestamp,
        ))
    }

    /// The records: offset, timestamp, key, value, headers, and the checksum of a legacy message.
    fn records<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        if self.inner.header.is_none() {
            self.legacy_records(py, &list)?;
            return Ok(list);
        }
        let failed = |error: RecordError| record_error(py, &error);
        let batch = Batch::parse(&self.inner.bytes).map_err(failed)?;
        if batch.header.record_count == 0 && batch.payload().is_empty() {
            // The shell the cleaner leaves of a batch; nothing is compressed in it.
            return Ok(list);
        }
        let records = py.detach(|| batch.records(DECOMPRESSED_MAX)).map_err(failed)?;
        for record in &records {
            let record = record.map_err(failed)?;
            let headers = record
                .headers()
                .map(|(name, value)| {
                    let name = PyString::new(py, &String::from_utf8_lossy(name));
                    (name, value.map(|value| PyBytes::new(py, value)))
                })
                .collect::<Vec<_>>();
            list.append((
                record.offset,
                record.timestamp,
                record.key.map(|key| PyBytes::new(py, key)),
                record.value.map(|value| PyBytes::new(py, value)),
                PyTuple::new(py, headers)?,
                None::<u32>,
            ))?;
        }
        Ok(list)
    }
}

impl SegmentBatch {
    fn legacy_records(&self, py: Python<'_>, list: &Bound<'_, PyList>) -> PyResult<()> {
        let mut raised = None;
        let walked = legacy::for_each(&self.inner.bytes, DECOMPRESSED_MAX, |message| {
            let appended = list.append((
                message.offset,
                message.timestamp,
                message.key.map(|key| PyBytes::new(py, key)),
                message.value.map(|value| PyBytes::new(py, value)),
                PyTuple::empty(py),
                Some(message.crc),
            ));
            if let Err(error) = appended {
                raised.get_or_insert(error);
            }
            Ok(())
        });
        match raised {
            Some(error) => Err(error),
            None => walked.map_err(|error| record_error(py, &error)),
        }
    }
}

/// An iterator over the batches of a `.log` file.
#[pyclass(frozen, module = "logcore._native")]
struct SegmentReader {
    inner: Mutex<SegmentFile>,
}

#[pymethods]
impl SegmentReader {
    #[new]
    #[pyo3(signature = (path, position=0, limit=None))]
    fn new(py: Python<'_>, path: PathBuf, position: u64, limit: Option<u64>) -> PyResult<Self> {
        let file = py.detach(|| SegmentFile::open(&path, position, limit));
        let inner = file.map_err(|error| storage_error(py, &error))?;
        Ok(Self {
            inner: Mutex::new(inner),
        })
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<SegmentBatch>> {
        let next = py.detach(|| self.inner.lock().next_batch());
        next.map(|batch| batch.map(|inner| SegmentBatch { inner }))
            .map_err(|error| storage_error(py, &error))
    }

    /// Bytes that no batch was read from.
    #[getter]
    fn remaining(&self, py: Python<'_>) -> u64 {
        py.detach(|| self.inner.lock().remaining())
    }
}

type LastBatch = (i32, i32, i64, i32, i64);
type Producer = (i64, i16, i32, i64, i64, Option<LastBatch>);

#[pyfunction]
fn read_producer_snapshot(py: Python<'_>, path: PathBuf) -> PyResult<Vec<Producer>> {
    let producers = py
        .detach(|| segment_file::read_producers(&path))
        .map_err(|error| storage_error(py, &error))?;
    Ok(producers
        .into_iter()
        .map(|producer| {
            let last = producer.last_batch.map(|last| {
                (
                    last.first_sequence,
                    last.last_sequence,
                    last.last_offset,
                    last.offset_delta,
                    last.timestamp,
                )
            });
            (
                producer.producer_id,
                producer.producer_epoch,
                producer.coordinator_epoch,
                producer.transaction_first_offset,
                producer.last_timestamp,
                last,
            )
        })
        .collect())
}

#[pyfunction]
fn read_transaction_index(py: Python<'_>, path: PathBuf) -> PyResult<Vec<(i64, i64, i64, i64)>> {
    let aborted = py
        .detach(|| segment_file::read_aborted(&path))
        .map_err(|error| storage_error(py, &error))?;
    Ok(aborted
        .into_iter()
        .map(|entry| {
            (
                entry.producer_id,
                entry.first_offset,
                entry.last_offset,
                entry.last_stable_offset,
            )
        })
        .collect())
}
