//! Errors of the storage and records crates as Python exceptions (`logcore.LogError` and its subclasses), and
//! Kafka's error codes.
//!
//! There is no catch-all arm: a new variant in the crates does not compile until it has a class here. Each
//! exception has Kafka's error code as `code`. Errors of other crates are beside their bindings.

use logcore_columns::ColumnsError;
use logcore_protocol::{ErrorCode, KAFKA_ERRORS, KafkaError, Retry};
use logcore_records::RecordError;
use logcore_storage::StorageError;
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyTypeError, PyValueError};
use pyo3::prelude::*;

create_exception!(
    logcore,
    LogError,
    PyException,
    "A log refused or failed. `code` is Kafka's error code."
);

macro_rules! log_errors {
    ($($name:ident: $doc:literal;)+) => {
        $(create_exception!(logcore, $name, LogError, $doc);)+

        pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
            let py = module.py();
            module.add_function(wrap_pyfunction!(kafka_errors, module)?)?;
            module.add("LogError", py.get_type::<LogError>())?;
            $(module.add(stringify!($name), py.get_type::<$name>())?;)+
            // The defaults, for exceptions that Python code raises.
            py.get_type::<LogIOError>().setattr("errno", py.None())?;
            let code = ErrorCode::UNKNOWN_SERVER_ERROR.0;
            py.get_type::<LogError>().setattr("code", code)
        }
    };
}

log_errors! {
    CorruptLogError: "The files of a log are damaged.";
    OffsetOutOfRangeError: "The offset is before the log's start or after its end.";
    LockedError: "Another process, or another opening in this one, writes the log.";
    LogNotFoundError: "There is no log at this path.";
    LogExistsError: "The log or topic exists already.";
    LogClosedError: "The log was closed, or opened by the process that this one was forked from.";
    ReadOnlyError: "The log was opened read-only.";
    OfflineError: "A write or fsync failed before; open the log again.";
    LogIOError: "The operating system refused. The text has the path and reason, `errno` the number.";
    InvalidRecordError: "Batches or records that are damaged or not allowed.";
    RecordTooLargeError: "A batch larger than `max_message_bytes`, or an append larger than a segment.";
    ProducerStateError: "An idempotent producer's batch that is out of order, or of a replaced producer.";
    LogConfigError: "A setting that does not exist, or has a value that is not allowed.";
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
        | E::Undecodable { .. }
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

/// The exception for damaged records in a log, or records that cannot be encoded.
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

/// ValueError or TypeError for a wrong argument, a `LogError` for everything else.
pub(crate) fn columns_error(py: Python<'_>, error: &ColumnsError) -> PyErr {
    let text = error.to_string();
    let (exception, code) = match error {
        ColumnsError::UnknownColumn { .. }
        | ColumnsError::NoColumns
        | ColumnsError::DuplicateColumn { .. }
        | ColumnsError::BadRange { .. }
        | ColumnsError::BadTimes { .. }
        | ColumnsError::NoParts
        | ColumnsError::NothingToAppend
        | ColumnsError::BadRow { .. }
        | ColumnsError::Typed { .. } => return PyValueError::new_err(text),
        ColumnsError::ColumnType { .. } => return PyTypeError::new_err(text),
        ColumnsError::Encode(error) => return record_error(py, error),
        ColumnsError::Storage(error) => return storage_error(py, error),
        ColumnsError::RecordTooLarge { .. }
        | ColumnsError::TimestampTooLarge { .. }
        | ColumnsError::Arrow(_) => return LogError::new_err(text),
        ColumnsError::OutOfRange { .. } => (
            OffsetOutOfRangeError::new_err(text),
            ErrorCode::OFFSET_OUT_OF_RANGE,
        ),
        ColumnsError::CorruptSegment { .. }
        | ColumnsError::CutOff { .. }
        | ColumnsError::CorruptFetch { .. } => (CorruptLogError::new_err(text), ErrorCode::CORRUPT_MESSAGE),
    };
    match exception.value(py).setattr("code", code.0) {
        Ok(()) => exception,
        Err(other) => other,
    }
}
