//! `Log.compact`. It may take long, so Ctrl-C ends it between two batches.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use logcore_columns::LogSource;
use logcore_storage::{StorageError, cleaner};
use pyo3::prelude::*;

use super::handle::Handle;
use crate::errors::storage_error;

/// Time between two checks for Ctrl-C.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

/// The fields of `logcore.CleanerStats`, in its order.
pub(super) type StatsRow = (i64, i64, u64, u64, u64, u64, usize, usize, Duration);

fn row(stats: &cleaner::CleanerStats) -> StatsRow {
    (
        stats.first_dirty_offset,
        stats.clean_until_offset,
        stats.bytes_read,
        stats.bytes_written,
        stats.records_read,
        stats.records_written,
        stats.segments_before,
        stats.segments_after,
        stats.elapsed,
    )
}

/// Compacts a log in a new thread while the calling thread checks for Ctrl-C.
pub(super) fn compact(py: Python<'_>, handle: &Handle) -> PyResult<StatsRow> {
    let stop = AtomicBool::new(false);
    let (result, interrupted) = py.detach(|| {
        thread::scope(|scope| {
            let (done, is_done) = channel::<()>();
            let worker = scope.spawn(|| {
                // Dropped when the thread ends, also by a panic.
                let _done = done;
                handle.compact_until(&stop)
            });
            let mut interrupted = None;
            while is_done.recv_timeout(SIGNAL_INTERVAL) == Err(RecvTimeoutError::Timeout) {
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
        .map(|stats| row(&stats))
        .map_err(|error| storage_error(py, &error))
}
