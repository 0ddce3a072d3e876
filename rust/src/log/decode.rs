//! Decodes batches into Python's records.

use logcore_columns::{Aborted, AbortedTransaction};
use logcore_records::{Batch, LOG_OVERHEAD, RecordError, batches, legacy};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use super::record::{BytesArg, PyRecord, headers_tuple};
use crate::errors::record_error;

/// Aborted transactions in Python: producer id, first offset, last offset (None if not known).
pub(crate) type AbortedList = Vec<(i64, i64, Option<i64>)>;

pub(crate) fn aborted_transactions(list: AbortedList) -> Vec<AbortedTransaction> {
    list.into_iter()
        .map(|(producer_id, first_offset, last_offset)| AbortedTransaction {
            producer_id,
            first_offset,
            last_offset: last_offset.unwrap_or(i64::MAX),
        })
        .collect()
}

/// The most bytes that one batch may decompress to.
pub(super) const DECOMPRESSED_MAX: usize = 512 << 20;

/// The records of the batches in `bytes` from `offset` on, without control records and aborted records, and
/// the offset after the last.
pub(super) fn decode<'py>(
    py: Python<'py>,
    bytes: &[u8],
    offset: i64,
    mut aborted: Aborted,
) -> PyResult<(Bound<'py, PyList>, i64)> {
    let list = PyList::empty(py);
    let mut next = offset;
    let mut scratch = Vec::new();
    for entry in entries(bytes) {
        match entry.map_err(|error| record_error(py, &error))? {
            Entry::Batch(batch) => {
                next = next.max(batch.header.next_offset());
                py.detach(|| batch.verify_crc())
                    .map_err(|error| record_error(py, &error))?;
                if batch.header.is_control() {
                    aborted.end_at_marker(&batch.header);
                } else if !aborted.contains(&batch.header) {
                    push_records(&list, &batch, &mut scratch, offset)?;
                }
            }
            Entry::Legacy { bytes, last_offset } => {
                next = next.max(last_offset.saturating_add(1));
                push_messages(&list, bytes, offset)?;
            }
        }
    }
    Ok((list, next))
}

/// The offset after the last batch in `bytes`, or `offset` if that is larger.
pub(super) fn next_offset(py: Python<'_>, bytes: &[u8], offset: i64) -> PyResult<i64> {
    let mut next = offset;
    for entry in entries(bytes) {
        let after = match entry.map_err(|error| record_error(py, &error))? {
            Entry::Batch(batch) => batch.header.next_offset(),
            Entry::Legacy { last_offset, .. } => last_offset.saturating_add(1),
        };
        next = next.max(after);
    }
    Ok(next)
}

/// A batch, or a legacy message, which may be a wrapper.
pub(super) enum Entry<'a> {
    Batch(Batch<'a>),
    Legacy { bytes: &'a [u8], last_offset: i64 },
}

/// Iterates over the complete batches in `bytes`. Ends after the first error.
pub(super) fn entries(bytes: &[u8]) -> impl Iterator<Item = Result<Entry<'_>, RecordError>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let entry = next_entry(&mut rest);
        if let Some(Err(_)) = entry {
            rest = &[];
        }
        entry
    })
}

fn next_entry<'a>(rest: &mut &'a [u8]) -> Option<Result<Entry<'a>, RecordError>> {
    if !legacy::is_legacy(rest) {
        let batch = batches(rest).next()?;
        if let Ok(batch) = &batch {
            *rest = &rest[batch.bytes.len()..];
        }
        return Some(batch.map(Entry::Batch));
    }
    // Every format begins with an offset (8 bytes) and a length (4). A wrapper has its last message's offset.
    let (offset, length) = (rest.first_chunk::<8>()?, rest.get(8..12)?.first_chunk()?);
    let length = i32::from_be_bytes(*length);
    let Ok(size) = usize::try_from(length) else {
        return Some(Err(RecordError::InvalidLength {
            what: "message",
            length: i64::from(length),
            minimum: 0,
        }));
    };
    let (bytes, after) = rest.split_at_checked(LOG_OVERHEAD + size)?;
    *rest = after;
    Some(Ok(Entry::Legacy {
        bytes,
        last_offset: i64::from_be_bytes(*offset),
    }))
}

fn push_messages(list: &Bound<'_, PyList>, bytes: &[u8], offset: i64) -> PyResult<()> {
    let py = list.py();
    let mut failed = None;
    let walked = legacy::for_each(bytes, DECOMPRESSED_MAX, |message| {
        if failed.is_none() && message.offset >= offset {
            let pushed = list.append(PyRecord {
                offset: message.offset,
                timestamp: message.timestamp,
                key: message.key.map(|key| PyBytes::new(py, key).unbind()),
                value: message.value.map(|value| PyBytes::new(py, value).unbind()),
                headers: PyTuple::empty(py).unbind(),
            });
            failed = pushed.err();
        }
        Ok(())
    });
    walked.map_err(|error| record_error(py, &error))?;
    failed.map_or(Ok(()), Err)
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

/// The records of complete batches, as `fetch` returns them.
#[pyfunction]
#[pyo3(signature = (batches, offset=0, *, aborted=Vec::new()))]
pub(super) fn parse_batches<'py>(
    py: Python<'py>,
    batches: &Bound<'py, PyAny>,
    offset: i64,
    aborted: AbortedList,
) -> PyResult<Bound<'py, PyList>> {
    let aborted = Aborted::new(&aborted_transactions(aborted));
    Ok(decode(py, BytesArg::new(batches)?.as_slice(), offset, aborted)?.0)
}
