//! Whole batches into Python's records.

use logcore_records::{Batch, batches};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::record::{Given, PyRecord, headers_tuple};
use crate::errors::record_error;

/// How much one batch may decompress to.
const DECOMPRESSED_MAX: usize = 512 << 20;

/// The records of whole batches from `offset` on, and the offset after the last. Control batches are left out.
pub(super) fn decode<'py>(
    py: Python<'py>,
    bytes: &[u8],
    offset: i64,
) -> PyResult<(Bound<'py, PyList>, i64)> {
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
pub(super) fn parse_batches<'py>(
    py: Python<'py>,
    batches: &Bound<'py, PyAny>,
    offset: i64,
) -> PyResult<Bound<'py, PyList>> {
    Ok(decode(py, Given::new(batches)?.as_slice(), offset)?.0)
}
