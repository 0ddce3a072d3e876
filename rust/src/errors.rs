//! Errors of the storage and records crates as Python exceptions: the tree under `logcore.LogError`.
//!
//! Every variant is named: there is no catch-all arm, so a new error in the crate does not compile until it has a class
//! here. Each exception carries Kafka's error code as `code`. (The other rooms' errors are beside their bindings.)

use logcore_protocol::{ErrorCode, KAFKA_ERRORS, KafkaError, Retry};
use logcore_records::RecordError;
use logcore_storage::StorageError;
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(
    logcore,
    LogError,
    PyException,
    "A log refused or failed; `code` is Kafka's error code for it."
);
create_exception!(
    logcore,
    CorruptLogError,
    LogError,
    "Files of a log hold bytes they cannot hold."
);
create_exception!(
    logcore,
    OffsetOutOfRangeError,
    LogError,
    "An offset before the log's start or after its end."
);
create_exception!(
    logcore,
    LockedError,
    LogError,
    "Another process, or another opening in this one, writes the log."
);
create_exception!(
    logcore,
    LogNotFoundError,
    LogError,
    "There is no log at this path."
);
create_exception!(
    logcore,
    LogExistsError,
    LogError,
    "What was to be created is there already."
);
create_exception!(
    logcore,
    LogClosedError,
    LogError,
    "The log was closed, or opened by the process this one was forked from."
);
create_exception!(
    logcore,
    ReadOnlyError,
    LogError,
    "The log was opened for reading only."
);
create_exception!(
    logcore,
    OfflineError,
    LogError,
    "A write or fsync failed before; the log has to be opened anew."
);
create_exception!(
    logcore,
    LogIOError,
    LogError,
    "The operating system refused; the text has the path and the reason, `errno` its number or None."
);
create_exception!(
    logcore,
    InvalidRecordError,
    LogError,
    "Batches or records that are damaged or not allowed."
);
create_exception!(
    logcore,
    RecordTooLargeError,
    LogError,
    "A batch larger than `max_message_bytes`, or an append larger than a segment."
);
create_exception!(
    logcore,
    ProducerStateError,
    LogError,
    "A batch of an idempotent producer out of its order, or of one that was replaced."
);
create_exception!(
    logcore,
    LogConfigError,
    LogError,
    "A setting that does not exist or has a value it cannot have."
);

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add_function(wrap_pyfunction!(kafka_errors, module)?)?;
    module.add("LogError", py.get_type::<LogError>())?;
    module.add("CorruptLogError", py.get_type::<CorruptLogError>())?;
    module.add("OffsetOutOfRangeError", py.get_type::<OffsetOutOfRangeError>())?;
    module.add("LockedError", py.get_type::<LockedError>())?;
    module.add("LogNotFoundError", py.get_type::<LogNotFoundError>())?;
    module.add("LogExistsError", py.get_type::<LogExistsError>())?;
    module.add("LogClosedError", py.get_type::<LogClosedError>())?;
    module.add("ReadOnlyError", py.get_type::<ReadOnlyError>())?;
    module.add("OfflineError", py.get_type::<OfflineError>())?;
    module.add("LogIOError", py.get_type::<LogIOError>())?;
    module.add("InvalidRecordError", py.get_type::<InvalidRecordError>())?;
    module.add("RecordTooLargeError", py.get_type::<RecordTooLargeError>())?;
    module.add("ProducerStateError", py.get_type::<ProducerStateError>())?;
    module.add("LogConfigError", py.get_type::<LogConfigError>())?;
    // What instances carry; those raised by hand have it too.
    py.get_type::<LogIOError>().setattr("errno", py.None())?;
    py.get_type::<LogError>()
        .setattr("code", ErrorCode::UNKNOWN_SERVER_ERROR.0)
}

/// Kafka's errors in the order of their codes: code, name, when the request may succeed, sentence.
#[pyfunction]
fn kafka_errors() -> Vec<(i16, &'static str, &'static str, &'static str)> {
    let row = |error: &KafkaError| {
        let retry = match error.retry {
            Retry::Never => "never",
            Retry::Later => "later",
            Retry::Refresh => "refresh",
        };
        (error.code.0, error.name, retry, error.message)
    };
    KAFKA_ERRORS.iter().map(row).collect()
}

/// The exception for an error of the storage crate.
pub(crate) fn storage_error(py: Python<'_>, error: &StorageError) -> PyErr {
    use StorageError as E;
    let text = error.to_string();
    let exception = match error {
        E::CorruptBatch { .. }
        | E::InvalidRecord { .. }
        | E::InvalidRecords(_)
        | E::UnsupportedFormat { .. } => InvalidRecordError::new_err(text),
        E::RecordTooLarge { .. } | E::DecompressedTooLarge { .. } | E::AppendTooLarge { .. } => {
            RecordTooLargeError::new_err(text)
        }
        E::OutOfOrderSequence { .. }
        | E::InvalidProducerEpoch { .. }
        | E::UnknownProducer { .. }
        | E::InvalidTxnState { .. }
        | E::TransactionCoordinatorFenced { .. }
        | E::FencedLeaderEpoch { .. } => ProducerStateError::new_err(text),
        E::OffsetOutOfRange { .. } | E::UnexpectedAppendOffset { .. } => OffsetOutOfRangeError::new_err(text),
        E::InvalidConfig { .. } => LogConfigError::new_err(text),
        E::Io { source, .. } => {
            let refused = LogIOError::new_err(text);
            with(py, refused, "errno", source.raw_os_error())
        }
        E::Corrupt { .. } | E::Mismatch { .. } | E::Duplicate { .. } => CorruptLogError::new_err(text),
        E::Offline { .. } => OfflineError::new_err(text),
        E::Closed { .. } | E::Forked { .. } | E::Truncated { .. } => LogClosedError::new_err(text),
        E::ReadOnly { .. } => ReadOnlyError::new_err(text),
        E::Locked { .. } => LockedError::new_err(text),
        E::AlreadyExists { .. } => LogExistsError::new_err(text),
        E::NotFound { .. } | E::WrongDirectory { .. } => LogNotFoundError::new_err(text),
    };
    with_code(py, exception, ErrorCode(error.kafka_code()))
}

/// The exception for bytes in a log that are not the records they should be, or records that cannot be encoded.
pub(crate) fn record_error(py: Python<'_>, error: &RecordError) -> PyErr {
    let text = error.to_string();
    if error.is_corruption() {
        with_code(py, CorruptLogError::new_err(text), ErrorCode::CORRUPT_MESSAGE)
    } else {
        with_code(py, InvalidRecordError::new_err(text), ErrorCode::INVALID_RECORD)
    }
}

/// The exception for files that do not fit together.
pub(crate) fn corrupt_error(py: Python<'_>, text: String) -> PyErr {
    with_code(py, CorruptLogError::new_err(text), ErrorCode::KAFKA_STORAGE_ERROR)
}

fn with_code(py: Python<'_>, exception: PyErr, code: ErrorCode) -> PyErr {
    with(py, exception, "code", code.0)
}

fn with<'py>(py: Python<'py>, exception: PyErr, name: &str, value: impl IntoPyObject<'py>) -> PyErr {
    match exception.value(py).setattr(name, value) {
        Ok(()) => exception,
        Err(other) => other,
    }
}
