//! Binding of the tools that verify and repair directories and dump segment files.
//!
//! Findings and actions cross as tuples, all at once; `logcore._tools` makes its classes of them. Batches
//! cross one at a time, their records as tuples. Reading runs without the GIL, which is taken for each call
//! of a progress callback, at most once per [`REPORT_INTERVAL`].

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

/// Time between two checks for Ctrl-C, or two calls of a progress callback.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);
/// The most bytes that one batch may decompress to.
const DECOMPRESSED_MAX: usize = 512 << 20;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<SegmentBatch>()?;
    module.add_class::<SegmentReader>()?;
    module.add_function(wrap_pyfunction!(verify_directory, module)?)?;
    module.add_function(wrap_pyfunction!(repair_directory, module)?)?;
    module.add_function(wrap_pyfunction!(read_producer_snapshot, module)?)?;
    module.add_function(wrap_pyfunction!(read_transaction_index, module)?)?;
    Ok(())
}

// ---- verify and repair ----

/// A `logcore.Finding`'s fields in its order: severity, kind, path, position, offset, what, remedy.
type FindingRow = (
    &'static str,
    &'static str,
    PathBuf,
    Option<u64>,
    Option<i64>,
    String,
    String,
);

fn finding_rows(findings: Vec<verify::Finding>) -> Vec<FindingRow> {
    let row = |found: verify::Finding| {
        (
            found.severity().name(),
            found.kind.name(),
            found.path,
            found.position,
            found.offset,
            found.what,
            found.remedy,
        )
    };
    findings.into_iter().map(row).collect()
}

/// A `logcore.RepairAction`'s fields in its order: action, path, why, position, offset, bytes, records.
type ActionRow = (&'static str, PathBuf, String, Option<u64>, Option<i64>, u64, u64);

fn action_rows(actions: Vec<Action>) -> Vec<ActionRow> {
    let row = |action: Action| {
        let (name, path) = (action.name(), action.path().to_path_buf());
        match action {
            Action::Remove { why, .. } | Action::Rebuild { why, .. } => (name, path, why, None, None, 0, 0),
            Action::Cut {
                position,
                offset,
                bytes,
                records,
                why,
                ..
            } => (name, path, why, Some(position), Some(offset), bytes, records),
        }
    };
    actions.into_iter().map(row).collect()
}

/// Calls a Python callable with the progress, and checks for Ctrl-C. The first exception stops the reading.
struct ProgressReporter {
    callback: Option<Py<PyAny>>,
    reported: Option<Instant>,
    raised: Option<PyErr>,
}

impl ProgressReporter {
    fn new(callback: Option<Py<PyAny>>) -> Self {
        Self {
            callback,
            reported: None,
            raised: None,
        }
    }

    fn report(&mut self, now: Progress) -> bool {
        let done = now.partitions == now.partitions_total;
        if !done
            && self
                .reported
                .is_some_and(|reported| reported.elapsed() < REPORT_INTERVAL)
        {
            return true;
        }
        self.reported = Some(Instant::now());
        let reported = Python::attach(|py| {
            py.check_signals()?;
            if let Some(callback) = &self.callback {
                callback.call1(
                    py,
                    (now.bytes, now.bytes_total, now.partitions, now.partitions_total),
                )?;
            }
            Ok(())
        });
        match reported {
            Ok(()) => true,
            Err(error) => {
                self.raised.get_or_insert(error);
                false
            }
        }
    }

    /// The result, or the exception that a call raised.
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

/// Findings, and the numbers of partitions, segments, batches, records and bytes read.
type VerifiedRow = (Vec<FindingRow>, usize, usize, u64, u64, u64);

#[pyfunction]
#[pyo3(signature = (path, threads=0, progress=None))]
fn verify_directory(
    py: Python<'_>,
    path: PathBuf,
    threads: usize,
    progress: Option<Py<PyAny>>,
) -> PyResult<VerifiedRow> {
    let mut reporter = ProgressReporter::new(progress);
    let result =
        py.detach(|| verify::verify(&path, &verify_options(threads), &mut |now| reporter.report(now)));
    let report = reporter.finish(py, result)?;
    Ok((
        finding_rows(report.findings),
        report.partitions,
        report.segments,
        report.batches,
        report.records,
        report.bytes,
    ))
}

/// Actions, refused actions, whether they were applied, the copies' directory, and the findings.
type RepairedRow = (
    Vec<ActionRow>,
    Vec<ActionRow>,
    bool,
    Option<PathBuf>,
    Vec<FindingRow>,
);

#[pyfunction]
#[pyo3(signature = (path, apply=false, cut_at_corruption=false, backup_dir=None, threads=0, progress=None))]
fn repair_directory(
    py: Python<'_>,
    path: PathBuf,
    apply: bool,
    cut_at_corruption: bool,
    backup_dir: Option<PathBuf>,
    threads: usize,
    progress: Option<Py<PyAny>>,
) -> PyResult<RepairedRow> {
    let options = RepairOptions {
        apply,
        cut_at_corruption,
        backup_dir,
        verify: verify_options(threads),
    };
    let mut reporter = ProgressReporter::new(progress);
    let result = py.detach(|| repair::repair(&path, &options, &mut |now| reporter.report(now)));
    let repair = reporter.finish(py, result)?;
    Ok((
        action_rows(repair.actions),
        action_rows(repair.refused),
        repair.applied,
        repair.backup_dir,
        finding_rows(repair.findings),
    ))
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

    /// The whole batch as in the file.
    #[getter]
    fn bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.inner.bytes)
    }

    /// Fields that only a v2 batch has: record count, base sequence, last sequence, producer id, producer
    /// epoch, leader epoch, base timestamp.
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

    /// The records: offset, timestamp, key, value, headers, and a legacy message's checksum.
    fn records<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        if self.inner.header.is_none() {
            self.legacy_records(py, &list)?;
            return Ok(list);
        }
        let failed = |error: RecordError| record_error(py, &error);
        let batch = Batch::parse(&self.inner.bytes).map_err(failed)?;
        if batch.header.record_count == 0 && batch.payload().is_empty() {
            // The header that the cleaner leaves of a batch; it has no compressed records.
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

    /// Bytes at the end that are not a complete batch.
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
