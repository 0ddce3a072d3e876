//! The extension's `Watch`: waiting for a log to grow, for `Log.follow` and `Log.follow_async`.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use logcore_columns::LogSource;
use logcore_storage::StorageError;
use logcore_storage::watch::{self, LOOK_AGAIN};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::handle::Handle;
use super::settings::isolation;
use super::{PyLog, off_gil};

/// Notifies of a log's growth from its creation on.
#[pyclass(frozen, module = "logcore._native")]
pub(super) struct Watch {
    handle: Arc<Handle>,
    watch: watch::Watch,
}

#[pymethods]
impl Watch {
    #[new]
    fn new(py: Python<'_>, log: &Bound<'_, PyLog>) -> PyResult<Self> {
        let handle = log.get().handle();
        let watch = off_gil(py, || handle.watch())?;
        Ok(Self { handle, watch })
    }

    /// Waits until offsets above `offset` are readable. False after `timeout` seconds.
    #[pyo3(signature = (offset, timeout=None, isolation_level="read_uncommitted"))]
    fn wait(
        &self,
        py: Python<'_>,
        offset: i64,
        timeout: Option<f64>,
        isolation_level: &str,
    ) -> PyResult<bool> {
        let deadline = timeout.map(deadline).transpose()?;
        loop {
            self.watch.clear();
            if self.has_more(py, offset, isolation_level)? {
                return Ok(true);
            }
            let left = match deadline {
                Some(deadline) => deadline.saturating_duration_since(Instant::now()),
                None => LOOK_AGAIN,
            };
            if left.is_zero() {
                return Ok(false);
            }
            py.detach(|| self.watch.wait(left.min(LOOK_AGAIN)))?;
            py.check_signals()?;
        }
    }

    /// Whether offsets above `offset` are readable now.
    #[pyo3(signature = (offset, isolation_level="read_uncommitted"))]
    fn has_more(&self, py: Python<'_>, offset: i64, isolation_level: &str) -> PyResult<bool> {
        let isolation = isolation(isolation_level)?;
        off_gil(py, || {
            // The parent's appends do not notify a forked child.
            self.handle.check_process()?;
            let log = self.handle.log();
            log.refresh()?;
            let (log_start, log_end) = (log.log_start_offset(), log.high_watermark());
            if offset < log_start || offset > log_end {
                return Err(StorageError::OffsetOutOfRange {
                    requested: offset,
                    log_start,
                    log_end,
                });
            }
            Ok(log.readable_end(isolation)? > offset)
        })
    }

    /// Makes the descriptor unreadable until the next growth. Read the log after this, not before.
    fn clear(&self) {
        self.watch.clear();
    }

    /// A descriptor that is readable when the log may have grown.
    fn fileno(&self) -> RawFd {
        self.watch.raw_fd()
    }
}

/// The time `seconds` from now, bounded to what the clock can hold.
fn deadline(seconds: f64) -> PyResult<Instant> {
    const LONG: Duration = Duration::from_secs(100 * 365 * 86_400);
    if seconds.is_nan() {
        return Err(PyValueError::new_err("a timeout is a number of seconds, not nan"));
    }
    let timeout = Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(LONG);
    Ok(Instant::now() + timeout.min(LONG))
}
