//! The binding of the `client` crate: conversion for the producer, the consumer and raw requests.
//!
//! Only `cluster.client` uses it, and registers its two error classes here at import. Calls that may block
//! release the GIL, and look for signals ten times a second.

mod consumer;
mod message;
mod network;
mod producer;
mod settings;
mod transactions;

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::Int32Array;
use logcore_client::ClientError;
use logcore_client::partitioner::Partitioner;
use logcore_client::runtime::{note_fork, slice_until};
use logcore_columns::ProduceRows;
use pyo3::exceptions::{PyBufferError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3_arrow::PyArray;

use crate::errors::columns_error;
use crate::log::table;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<message::Message>()?;
    module.add_class::<producer::ProducerCore>()?;
    module.add_class::<transactions::TransactionCore>()?;
    module.add_class::<consumer::ConsumerCore>()?;
    module.add_class::<network::Network>()?;
    module.add_function(wrap_pyfunction!(client_set_error_types, module)?)?;
    module.add_function(wrap_pyfunction!(client_after_fork, module)?)?;
    module.add_function(wrap_pyfunction!(client_partition, module)?)?;
    module.add_function(wrap_pyfunction!(client_partitions_of_rows, module)?)?;
    Ok(())
}

/// `KafkaError` and `KafkaException`.
static ERROR_TYPES: PyOnceLock<(Py<PyAny>, Py<PyAny>)> = PyOnceLock::new();

/// The interval at which a blocked call checks for signals.
pub(crate) const SIGNAL_SLICE: Duration = Duration::from_millis(100);

#[pyfunction]
fn client_set_error_types(py: Python<'_>, error: Py<PyAny>, exception: Py<PyAny>) {
    // A second import of the module registers the same classes.
    let _ = ERROR_TYPES.set(py, (error, exception));
}

#[pyfunction]
fn client_after_fork() {
    note_fork();
}

/// The partition of a key among `count`; `None` when the partitioner chooses at random.
#[pyfunction]
fn client_partition(partitioner: &str, key: Option<&[u8]>, count: i32) -> PyResult<Option<i32>> {
    match Partitioner::from_name(partitioner) {
        Some(partitioner) => Ok(partitioner.partition(key, count)),
        None => Err(no_partitioner(partitioner)),
    }
}

fn no_partitioner(name: &str) -> PyErr {
    PyValueError::new_err(format!("no partitioner is named {name:?}"))
}

/// The partition of each row of a table among `count`: what its column `partition` says, or what the
/// partitioner chooses for its key, or `otherwise`.
#[pyfunction]
fn client_partitions_of_rows(
    py: Python<'_>,
    rows: &Bound<'_, PyAny>,
    partitioner: &str,
    count: i32,
    otherwise: i32,
) -> PyResult<PyArray> {
    let Some(partitioner) = Partitioner::from_name(partitioner) else {
        return Err(no_partitioner(partitioner));
    };
    let (batches, _) = table::import(rows, ProduceRows::check)?;
    let mut partitions = Vec::new();
    for batch in &batches {
        let rows = ProduceRows::new(batch).map_err(|error| columns_error(py, &error))?;
        partitions.extend((0..rows.len()).map(|row| {
            rows.partition(row)
                .or_else(|| partitioner.partition(rows.key(row), count))
                .unwrap_or(otherwise)
        }));
    }
    Ok(PyArray::from_array_ref(Arc::new(Int32Array::from(partitions))))
}

/// The `KafkaError` for a failure of the client crate.
pub(crate) fn kafka_error(py: Python<'_>, error: &ClientError) -> PyResult<Py<PyAny>> {
    let Some((class, _)) = ERROR_TYPES.get(py) else {
        return Err(PyRuntimeError::new_err(error.to_string()));
    };
    // (code, reason, fatal, retriable)
    class.call1(py, (error.code(), error.to_string(), false, error.is_retriable()))
}

/// The exception for a failure of the client crate; a full queue is a `BufferError`, as in confluent-kafka.
pub(crate) fn exception(py: Python<'_>, error: &ClientError) -> PyErr {
    match error {
        ClientError::QueueFull { .. } => PyBufferError::new_err(error.to_string()),
        ClientError::Closed | ClientError::Forked => PyRuntimeError::new_err(error.to_string()),
        ClientError::Transport { .. }
        | ClientError::AllBrokersDown { .. }
        | ClientError::Resolve { .. }
        | ClientError::TimedOut { .. }
        | ClientError::Lasting { .. }
        | ClientError::ResponseTooLarge { .. }
        | ClientError::BatchTooLarge { .. }
        | ClientError::MessageTooLarge { .. }
        | ClientError::UnknownTopic(_)
        | ClientError::UnknownPartition { .. }
        | ClientError::Broker { .. }
        | ClientError::DeliveryTimedOut { .. }
        | ClientError::BadResponse { .. }
        | ClientError::BadData { .. }
        | ClientError::OffsetReset { .. }
        | ClientError::Unsupported { .. }
        | ClientError::NoOffset { .. }
        | ClientError::NoTransaction(_)
        | ClientError::Purged
        | ClientError::Config(_) => kafka_exception(py, error).unwrap_or_else(|failure| failure),
    }
}

fn kafka_exception(py: Python<'_>, error: &ClientError) -> PyResult<PyErr> {
    let error = kafka_error(py, error)?;
    let Some((_, class)) = ERROR_TYPES.get(py) else {
        return Err(PyRuntimeError::new_err("cluster.client is not imported"));
    };
    Ok(PyErr::from_value(class.call1(py, (error,))?.into_bound(py)))
}

/// The time after `seconds`. `None`, negative numbers and those above a century mean no limit.
pub(crate) fn deadline(seconds: Option<f64>) -> Option<Instant> {
    let seconds = seconds.filter(|seconds| *seconds >= 0.0)?;
    let timeout = Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|timeout| timeout.as_secs() < 3_153_600_000)?;
    Instant::now().checked_add(timeout)
}

/// Whether a deadline has passed.
pub(crate) fn is_past(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

/// The next slice of a wait until `deadline`.
pub(crate) fn slice(deadline: Option<Instant>) -> Duration {
    slice_until(deadline, SIGNAL_SLICE)
}
