//! Errors of the `server` crate as Python exceptions: the tree under `logcore._native.ServerError`.

use logcore_protocol::ErrorCode;
use logcore_server::ServerError as CoreError;
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

use crate::codec::protocol_error;

create_exception!(
    logcore,
    ServerError,
    PyException,
    "The server refused an operation. `code` is Kafka's error code."
);
create_exception!(
    logcore,
    ServerConfigError,
    ServerError,
    "A setting has an invalid value."
);
create_exception!(
    logcore,
    ListenerError,
    ServerError,
    "The server cannot listen on an address."
);
create_exception!(
    logcore,
    LogDirError,
    ServerError,
    "A log directory cannot be used, or a log in it failed."
);

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("ServerError", py.get_type::<ServerError>())?;
    module.add("ServerConfigError", py.get_type::<ServerConfigError>())?;
    module.add("ListenerError", py.get_type::<ListenerError>())?;
    module.add("LogDirError", py.get_type::<LogDirError>())
}

/// The exception for an error of the crate, with Kafka's code. Every variant is named, so that a new one must
/// get a class.
pub(crate) fn server_error(py: Python<'_>, error: CoreError) -> PyErr {
    let (code, text) = (error.code(), error.to_string());
    let raised = match error {
        CoreError::InvalidConfig { .. } | CoreError::Tls(_) => ServerConfigError::new_err(text),
        CoreError::Bind { .. } => ListenerError::new_err(text),
        CoreError::Storage(error) => match ErrorCode(error.kafka_code()) {
            ErrorCode::INVALID_CONFIG => ServerConfigError::new_err(text),
            ErrorCode::KAFKA_STORAGE_ERROR | ErrorCode::INCONSISTENT_CLUSTER_ID => LogDirError::new_err(text),
            _ => ServerError::new_err(text),
        },
        CoreError::NoLogDirs | CoreError::NotClosed(_) => LogDirError::new_err(text),
        CoreError::Protocol(error) => return protocol_error(error),
        CoreError::Os { .. }
        | CoreError::TooManyPartitions { .. }
        | CoreError::WrongState(_)
        | CoreError::Forked { .. }
        | CoreError::UnknownPartition { .. }
        | CoreError::UnknownTopic(_)
        | CoreError::TopicId { .. }
        | CoreError::NotLeader { .. }
        | CoreError::NotEnoughReplicas { .. } => ServerError::new_err(text),
    };
    match raised.value(py).setattr("code", code.0) {
        Ok(()) => raised,
        Err(error) => error,
    }
}
