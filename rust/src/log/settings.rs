//! A log's settings as Python gives them.

use logcore_storage::{IsolationLevel, LogConfig};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict};

use crate::errors::{LogConfigError, storage_error};

/// Settings from Kafka's names with underscores: `segment_bytes=...` is `segment.bytes`. They are Kafka's unless given, but
/// for its `retention.ms` of a week: no program is to lose records that it did not ask to have deleted.
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

/// [`settings`] on top of others.
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
