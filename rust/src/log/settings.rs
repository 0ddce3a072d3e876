//! A log's settings from Python.

use logcore_storage::{IsolationLevel, LogConfig};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict};

use crate::errors::{LogConfigError, storage_error};

/// Settings by Kafka's names with underscores: `segment_bytes=...` is `segment.bytes`. The defaults are
/// Kafka's except `retention.ms`, which is -1: a program must not lose records without asking for it.
pub(super) fn settings(given: &Bound<'_, PyDict>) -> PyResult<LogConfig> {
    let config = LogConfig {
        retention_ms: -1,
        ..LogConfig::default()
    };
    apply(config, given)
}

/// A reader's `isolation_level`.
pub(crate) fn isolation(level: &str) -> PyResult<IsolationLevel> {
    match level {
        "read_uncommitted" => Ok(IsolationLevel::ReadUncommitted),
        "read_committed" => Ok(IsolationLevel::ReadCommitted),
        _ => Err(PyValueError::new_err(format!(
            "isolation_level is {level:?}; read_uncommitted or read_committed is needed"
        ))),
    }
}

/// Changes `config` by the settings given, as in [`settings`].
pub(super) fn apply(mut config: LogConfig, given: &Bound<'_, PyDict>) -> PyResult<LogConfig> {
    let py = given.py();
    for (name, value) in given {
        let name: String = name.extract()?;
        let value = match value.cast::<PyBool>() {
            Ok(flag) => flag.is_true().to_string(),
            Err(_) => value.str()?.to_string(),
        };
        match config.set(&name.replace('_', "."), &value) {
            Ok(true) => {}
            Ok(false) => {
                return Err(LogConfigError::new_err(format!("there is no setting {name}")));
            }
            Err(error) => return Err(storage_error(py, &error)),
        }
    }
    config.check().map_err(|error| storage_error(py, &error))?;
    Ok(config)
}
