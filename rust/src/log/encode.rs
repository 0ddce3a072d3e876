//! Encodes Python's records into batches. It holds the GIL, because it reads Python objects; compression runs
//! without it.

use logcore_records::{BatchBuilder, Compression, RecordError};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use super::record::{BytesArg, PyRecord, header_slices, to_headers};
use crate::errors::record_error;

/// Building an uncompressed batch up to this size takes less time than releasing and taking the GIL.
const QUICK_BATCH_BYTES: usize = 16 << 10;

/// Kafka's timestamp of a record without one. Such a record gets the current time.
const NO_TIMESTAMP: i64 = -1;

/// Encodes records into batches of at most `batch_bytes`. A larger record gets a batch of its own.
pub(super) struct Encoder {
    builder: BatchBuilder,
    batch_bytes: usize,
    now_ms: i64,
    out: Vec<u8>,
}

impl Encoder {
    pub(super) fn new(compression: Compression, level: Option<i32>, batch_bytes: usize, now_ms: i64) -> Self {
        Self {
            builder: BatchBuilder::new(compression, level),
            batch_bytes,
            now_ms,
            out: Vec::new(),
        }
    }

    /// An encoder for a single record, with the buffers of an earlier one.
    pub(super) fn again(builder: BatchBuilder, mut out: Vec<u8>, now_ms: i64) -> Self {
        out.clear();
        Self {
            builder,
            batch_bytes: usize::MAX,
            now_ms,
            out,
        }
    }

    /// Adds bytes (a value), a tuple `(key, value[, headers[, timestamp]])`, or a `Record`.
    pub(super) fn push(&mut self, given: &Bound<'_, PyAny>) -> PyResult<()> {
        if let Ok(record) = given.cast::<PyRecord>() {
            return self.push_record(given.py(), record.get());
        }
        if let Ok(tuple) = given.cast::<PyTuple>() {
            return self.push_tuple(tuple);
        }
        let value = BytesArg::new(given)?;
        self.add(given.py(), None, Some(value.as_slice()), &[], None)
    }

    fn push_record(&mut self, py: Python<'_>, record: &PyRecord) -> PyResult<()> {
        let headers = to_headers(Some(record.headers.bind(py)))?;
        let key = record.key.as_ref().map(|key| key.bind(py).as_bytes());
        let value = record.value.as_ref().map(|value| value.bind(py).as_bytes());
        let headers = header_slices(&headers)?;
        self.add(py, key, value, &headers, Some(record.timestamp))
    }

    fn push_tuple(&mut self, tuple: &Bound<'_, PyTuple>) -> PyResult<()> {
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
        let timestamp = item(3)?.map(|at| at.extract()).transpose()?;
        self.push_parts(
            tuple.py(),
            item(0)?.as_ref(),
            item(1)?.as_ref(),
            item(2)?.as_ref(),
            timestamp,
        )
    }

    /// Adds one record given as key, value, headers and timestamp.
    pub(super) fn push_parts<'py>(
        &mut self,
        py: Python<'py>,
        key: Option<&Bound<'py, PyAny>>,
        value: Option<&Bound<'py, PyAny>>,
        headers: Option<&Bound<'py, PyAny>>,
        timestamp: Option<i64>,
    ) -> PyResult<()> {
        let (key, value) = (BytesArg::optional(key)?, BytesArg::optional(value)?);
        let headers = to_headers(headers)?;
        self.add(
            py,
            key.as_ref().map(BytesArg::as_slice),
            value.as_ref().map(BytesArg::as_slice),
            &header_slices(&headers)?,
            timestamp,
        )
    }

    fn add(
        &mut self,
        py: Python<'_>,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(&[u8], Option<&[u8]>)],
        timestamp: Option<i64>,
    ) -> PyResult<()> {
        let size = BatchBuilder::record_size_bound(key, value, headers);
        if !self.builder.is_empty() && self.builder.estimated_size() + size > self.batch_bytes {
            self.end_batch(py)?;
        }
        let timestamp = match timestamp {
            None | Some(NO_TIMESTAMP) => self.now_ms,
            Some(at) if at < NO_TIMESTAMP => {
                return Err(PyValueError::new_err(format!(
                    "timestamp {at} is before 1970; it is in milliseconds since then, None or -1 for the \
                     present"
                )));
            }
            Some(at) => at,
        };
        self.builder
            .append(timestamp, key, value, headers)
            .map(|_| ())
            .map_err(|error| record_error(py, &error))
    }

    /// Makes the batch a part of this producer's transaction.
    pub(super) fn set_transaction(&mut self, producer_id: i64, producer_epoch: i16) {
        self.builder.set_producer_state(producer_id, producer_epoch, -1);
        self.builder.set_transactional(true);
    }

    fn end_batch(&mut self, py: Python<'_>) -> PyResult<()> {
        let Self {
            builder,
            out,
            batch_bytes,
            ..
        } = self;
        let quick =
            builder.compression() == Compression::None && builder.estimated_size() <= QUICK_BATCH_BYTES;
        let built = if quick {
            builder.build_within(*batch_bytes, out)
        } else {
            py.detach(|| builder.build_within(*batch_bytes, out))
        };
        built.map_err(|error| record_error(py, &error))
    }

    /// Builds the only batch. Also returns the builder for [`Encoder::again`].
    pub(super) fn finish_one(mut self, py: Python<'_>) -> PyResult<(BatchBuilder, Vec<u8>)> {
        self.end_batch(py)?;
        Ok((self.builder, self.out))
    }

    /// Builds the batches; empty without records.
    pub(super) fn finish(mut self, py: Python<'_>) -> PyResult<Vec<u8>> {
        if self.builder.is_empty() {
            return Ok(self.out);
        }
        if self.out.is_empty() && self.builder.compression() == Compression::None {
            // A single batch is the builder's own buffer, without a copy.
            return self.builder.build().map_err(|error| record_error(py, &error));
        }
        self.end_batch(py)?;
        Ok(self.out)
    }
}

/// The codec with this name.
pub(super) fn codec(name: &str) -> PyResult<Compression> {
    name.parse()
        .map_err(|error: RecordError| PyValueError::new_err(error.to_string()))
}

/// The level for [`BatchBuilder`], or `None` if the codec has no levels.
pub(super) fn codec_level(codec: Compression, level: Option<i32>) -> PyResult<Option<i32>> {
    /// gzip's default level, `java.util.zip.Deflater.DEFAULT_COMPRESSION`.
    const GZIP_DEFAULT: i32 = -1;
    let (Some(given), Some(levels)) = (level, codec.levels()) else {
        return Ok(level);
    };
    if codec == Compression::Gzip && given == GZIP_DEFAULT {
        return Ok(None);
    }
    if levels.contains(&given) {
        return Ok(level);
    }
    let or_default = match codec {
        Compression::Gzip => ", or -1 for its default",
        _ => "",
    };
    Err(PyValueError::new_err(format!(
        "level {given} is none of {codec}'s, which are {} to {}{or_default}",
        levels.start(),
        levels.end()
    )))
}

pub(super) fn system_now_ms() -> i64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// Builds one batch of all records.
#[pyfunction]
#[pyo3(signature = (records, compression="none", level=None, producer=None))]
pub(super) fn build_batch<'py>(
    py: Python<'py>,
    records: &Bound<'py, PyAny>,
    compression: &str,
    level: Option<i32>,
    producer: Option<(i64, i16, i32)>,
) -> PyResult<Bound<'py, PyBytes>> {
    let codec = codec(compression)?;
    let level = codec_level(codec, level)?;
    let mut encoder = Encoder::new(codec, level, usize::MAX, system_now_ms());
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
