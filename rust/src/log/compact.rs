//! Binding of compaction, which may take long: Ctrl-C ends it between two batches.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use logcore_columns::LogSource;
use logcore_storage::{StorageError, cleaner};
use pyo3::prelude::*;

use super::handle::Handle;
use crate::errors::storage_error;

/// Between two looks for Ctrl-C.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What a compaction did.
#[pyclass(frozen, get_all, eq, module = "logcore")]
#[derive(PartialEq)]
pub(super) struct CleanerStats {
    first_dirty_offset: i64,
    clean_until_offset: i64,
    bytes_read: u64,
    bytes_written: u64,
    records_read: u64,
    records_written: u64,
    segments_before: usize,
    segments_after: usize,
    elapsed: Duration,
}

#[pymethods]
impl CleanerStats {
    fn __repr__(&self) -> String {
        format!(
            "CleanerStats(first_dirty_offset={}, clean_until_offset={}, bytes_read={}, bytes_written={}, \
             records_read={}, records_written={}, segments_before={}, segments_after={}, elapsed={:.3}s)",
            self.first_dirty_offset,
            self.clean_until_offset,
            self.bytes_read,
            self.bytes_written,
            self.records_read,
            self.records_written,
            self.segments_before,
            self.segments_after,
            self.elapsed.as_secs_f64(),
        )
    }
}

impl From<cleaner::CleanerStats> for CleanerStats {
    fn from(stats: cleaner::CleanerStats) -> Self {
        Self {
            first_dirty_offset: stats.first_dirty_offset,
            clean_until_offset: stats.clean_until_offset,
            bytes_read: stats.bytes_read,
            bytes_written: stats.bytes_written,
            records_read: stats.records_read,
            records_written: stats.records_written,
            segments_before: stats.segments_before,
            segments_after: stats.segments_after,
            elapsed: stats.elapsed,
        }
    }
}

/// Compacts a log in a thread of its own, while this one looks for Ctrl-C.
pub(super) fn compact(py: Python<'_>, handle: &Handle) -> PyResult<CleanerStats> {
    let stop = AtomicBool::new(false);
    let (result, interrupted) = py.detach(|| {
        thread::scope(|scope| {
            let (done, is_done) = channel::<()>();
            let worker = scope.spawn(|| {
                // Dropped at the end, whatever that is.
                let _done = done;
                handle.compact_until(&stop)
            });
            let mut interrupted = None;
            while is_done.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                if interrupted.is_none()
                    && let Err(error) = Python::attach(|py| py.check_signals())
                {
                    stop.store(true, Ordering::Release);
                    drop(handle.log().pause_cleaning());
                    interrupted = Some(error);
                }
            }
            (worker.join(), interrupted)
        })
    });
    if let Some(error) = interrupted {
        return Err(error);
    }
    let stats: Result<cleaner::CleanerStats, StorageError> = match result {
        Ok(stats) => stats,
        Err(panic) => std::panic::resume_unwind(panic),
    };
    stats
        .map(CleanerStats::from)
        .map_err(|error| storage_error(py, &error))
}
