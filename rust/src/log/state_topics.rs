//! Batches of the state topics of coordinators, with what `parse_batches` leaves out: producers and markers.

use logcore_records::{EndTxnMarker, end_txn_marker};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::decode::{DECOMPRESSED_MAX, Entry, entries};
use super::encode::{Encoder, system_now_ms};
use super::record::BytesArg;
use crate::errors::record_error;
use logcore_records::{Compression, legacy};

/// Builds one batch without compression. With a `producer` (id and epoch) it is part of its transaction.
#[pyfunction]
pub(super) fn build_state_batch<'py>(
    py: Python<'py>,
    records: &Bound<'py, PyAny>,
    producer: Option<(i64, i16)>,
) -> PyResult<Bound<'py, PyBytes>> {
    let mut encoder = Encoder::new(Compression::None, None, usize::MAX, system_now_ms());
    if let Some((id, epoch)) = producer {
        encoder.set_transaction(id, epoch);
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

/// Builds the control batch that ends a producer's transaction.
#[pyfunction]
pub(super) fn build_end_marker<'py>(
    py: Python<'py>,
    producer: (i64, i16),
    committed: bool,
    coordinator_epoch: i32,
    timestamp_ms: i64,
) -> PyResult<Bound<'py, PyBytes>> {
    let marker = EndTxnMarker {
        committed,
        coordinator_epoch,
    };
    let built = end_txn_marker(producer.0, producer.1, marker, timestamp_ms);
    Ok(PyBytes::new(
        py,
        &built.map_err(|error| record_error(py, &error))?,
    ))
}

/// The records of whole batches from `offset` on, in order, and the transaction markers between them. Each is
/// key, value, producer (id and epoch; `None` outside transactions), and whether a marker commits (`None` for
/// a record).
#[pyfunction]
pub(super) fn parse_state_batches<'py>(
    py: Python<'py>,
    batches: &Bound<'py, PyAny>,
    offset: i64,
) -> PyResult<Bound<'py, PyList>> {
    let batches = BytesArg::new(batches)?;
    let list = PyList::empty(py);
    let mut scratch = Vec::new();
    for entry in entries(batches.as_slice()) {
        match entry.map_err(|error| record_error(py, &error))? {
            Entry::Batch(batch) => {
                py.detach(|| batch.verify_crc())
                    .map_err(|error| record_error(py, &error))?;
                let header = &batch.header;
                let producer = header
                    .is_transactional()
                    .then_some((header.producer_id, header.producer_epoch));
                if header.is_control() {
                    let marker = EndTxnMarker::of(&batch).map_err(|error| record_error(py, &error))?;
                    if let Some(marker) = marker.filter(|_| header.base_offset >= offset) {
                        list.append((py.None(), py.None(), producer, marker.committed))?;
                    }
                    continue;
                }
                let records = batch
                    .records_in(&mut scratch, DECOMPRESSED_MAX)
                    .map_err(|error| record_error(py, &error))?;
                for record in records {
                    let record = record.map_err(|error| record_error(py, &error))?;
                    if record.offset >= offset {
                        let key = record.key.map(|key| PyBytes::new(py, key));
                        let value = record.value.map(|value| PyBytes::new(py, value));
                        list.append((key, value, producer, py.None()))?;
                    }
                }
            }
            Entry::Legacy { bytes, .. } => {
                let mut failed = None;
                let walked = legacy::for_each(bytes, DECOMPRESSED_MAX, |message| {
                    if failed.is_none() && message.offset >= offset {
                        let key = message.key.map(|key| PyBytes::new(py, key));
                        let value = message.value.map(|value| PyBytes::new(py, value));
                        failed = list.append((key, value, py.None(), py.None())).err();
                    }
                    Ok(())
                });
                walked.map_err(|error| record_error(py, &error))?;
                if let Some(error) = failed {
                    return Err(error);
                }
            }
        }
    }
    Ok(list)
}
