//! Binding of `logcore.Appender`: durable appends in a thread of their own, for an event loop.
//!
//! The event loop's thread encodes the records and passes them on. The appender's thread appends and flushes
//! them without the GIL, and makes a descriptor readable when it has. A crash loses only records whose
//! `finish` did not return.

use std::mem;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use logcore_columns::LogSource;
use logcore_storage::StorageError;
use logcore_storage::watch::{Signal, Watch};
use parking_lot::{Condvar, Mutex};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use super::encode::{Encoder, system_now_ms};
use super::handle::Handle;
use super::{PyLog, off_gil};
use crate::errors::storage_error;

/// Appends to a log and flushes it in a thread, one call's records at a time. The log's directory notes what
/// is on disk from the first append until the log is closed, so that damage to it stops the next start.
#[pyclass(frozen, module = "logcore._native")]
pub(super) struct Appender {
    log: Py<PyLog>,
    shared: Arc<Shared>,
    done: Watch,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What the caller and the thread share.
struct Shared {
    handle: Arc<Handle>,
    work: Mutex<Work>,
    closed: AtomicBool,
    /// Wakes the thread.
    wanted: Condvar,
    /// Wakes the caller.
    done: Signal,
}

enum Work {
    Idle,
    Wanted(Vec<u8>),
    Running,
    Done(Result<(), StorageError>),
    /// The thread panicked.
    Broken,
}

impl Shared {
    /// Runs in the thread until the appender is closed and the last append is done.
    fn run(&self) {
        loop {
            let mut work = self.work.lock();
            let bytes = loop {
                match mem::replace(&mut *work, Work::Running) {
                    Work::Wanted(bytes) => break bytes,
                    other => *work = other,
                }
                if self.closed.load(Ordering::Relaxed) {
                    return;
                }
                self.wanted.wait(&mut work);
            };
            drop(work);
            let done = self.append(bytes);
            *self.work.lock() = done;
            self.done.notify();
        }
    }

    fn append(&self, mut bytes: Vec<u8>) -> Work {
        let append = || {
            // Also retries a note that failed, for want of disk space for example.
            self.handle.note_flushes()?;
            self.handle.append_in_segments(&mut bytes)?;
            self.handle.flush()
        };
        catch_unwind(AssertUnwindSafe(append)).map_or(Work::Broken, Work::Done)
    }
}

#[pymethods]
impl Appender {
    #[new]
    fn new(py: Python<'_>, log: Bound<'_, PyLog>) -> PyResult<Self> {
        let handle = log.get().handle();
        let shared = Arc::new(Shared {
            handle,
            work: Mutex::new(Work::Idle),
            closed: AtomicBool::new(false),
            wanted: Condvar::new(),
            done: Signal::default(),
        });
        let done = off_gil(py, || {
            shared.handle.check_process()?;
            shared.done.watch(&shared.handle.log().dir())
        })?;
        let of_thread = shared.clone();
        let thread = thread::Builder::new()
            .name("log-appender".to_owned())
            .spawn(move || of_thread.run())?;
        Ok(Self {
            log: log.unbind(),
            shared,
            done,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Passes records to the thread.
    fn begin(&self, py: Python<'_>, records: &Bound<'_, PyAny>) -> PyResult<()> {
        let log = self.log.get();
        self.check_open(py)?;
        let mut encoder = Encoder::new(
            log.compression,
            None,
            self.shared.handle.batch_bytes(),
            system_now_ms(),
        );
        for record in records.try_iter()? {
            encoder.push(&record?)?;
        }
        let bytes = encoder.finish(py)?;
        if bytes.is_empty() {
            return Err(PyValueError::new_err("there are no records to append"));
        }
        let mut work = self.shared.work.lock();
        match *work {
            Work::Idle => {}
            Work::Broken => return Err(broken()),
            _ => {
                return Err(PyRuntimeError::new_err(
                    "the records of the last begin() are not on disk yet: call finish() first",
                ));
            }
        }
        *work = Work::Wanted(bytes);
        drop(work);
        self.shared.wanted.notify_one();
        Ok(())
    }

    /// True once, when the records of the last `begin` are on disk. Call it when the descriptor is readable.
    fn finish(&self, py: Python<'_>) -> PyResult<bool> {
        self.done.clear();
        self.check_open(py)?;
        let mut work = self.shared.work.lock();
        match mem::replace(&mut *work, Work::Idle) {
            Work::Done(outcome) => outcome.map(|()| true).map_err(|error| storage_error(py, &error)),
            other => {
                let is_broken = matches!(other, Work::Broken);
                *work = other;
                if is_broken { Err(broken()) } else { Ok(false) }
            }
        }
    }

    /// A descriptor that is readable when `finish` has a result.
    fn fileno(&self) -> RawFd {
        self.done.raw_fd()
    }

    /// Waits for the thread's append and ends the thread. Does nothing in a forked child, which has no such
    /// thread.
    fn close(&self, py: Python<'_>) {
        self.end();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread.filter(|_| self.shared.handle.check_process().is_ok()) {
            // The thread catches its panics.
            let _ended = py.detach(|| thread.join());
        }
    }
}

impl Appender {
    fn check_open(&self, py: Python<'_>) -> PyResult<()> {
        let handle = &self.shared.handle;
        off_gil(py, || {
            handle.check_process()?;
            if self.shared.closed.load(Ordering::Relaxed) {
                return Err(StorageError::Closed {
                    dir: handle.log().dir(),
                });
            }
            Ok(())
        })
    }

    fn end(&self) {
        let work = self.shared.work.lock();
        self.shared.closed.store(true, Ordering::Relaxed);
        drop(work);
        self.shared.wanted.notify_one();
    }
}

impl Drop for Appender {
    fn drop(&mut self) {
        self.end();
    }
}

fn broken() -> PyErr {
    PyRuntimeError::new_err("the appender's thread panicked; its message is on standard error")
}
