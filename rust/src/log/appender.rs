//! Binding of appends that an event loop does not wait for: a thread brings them to disk and says when it has. Where a disk is
//! quicker than a thread is woken, few bytes may be brought there at once.

use std::mem;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use logcore_columns::LogSource;
use logcore_storage::StorageError;
use logcore_storage::disk_pace::{Begun, DiskPace};
use logcore_storage::watch::{Signal, Watch};
use parking_lot::{Condvar, Mutex};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use super::encode::{Encoder, system_now_ms};
use super::handle::Handle;
use super::{PyLog, off_gil};
use crate::errors::storage_error;

/// What is appended at once has at most so many bytes.
const AT_ONCE_BYTES: usize = 16 << 10;

/// Appends to a log and flushes it, in a thread of its own, one call's records at a time. The log's directory has a note of what is
/// on disk from then on, as long as it is open: damage to that stops the next start.
#[pyclass(frozen, module = "logcore._native")]
pub(super) struct Appender {
    log: Py<PyLog>,
    shared: Arc<Shared>,
    done: Watch,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    handle: Arc<Handle>,
    work: Mutex<Work>,
    pace: Mutex<DiskPace>,
    closed: AtomicBool,
    more: Condvar,
    done: Signal,
}

enum Work {
    Idle,
    Wanted(Vec<u8>),
    Running,
    Done(Result<(), StorageError>),
    /// The thread ended by a defect of ours.
    Broken,
}

impl Shared {
    /// What the thread does, until the appender is closed and what was begun is done.
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
                self.more.wait(&mut work);
            };
            drop(work);
            let done = self.append(bytes);
            *self.work.lock() = done;
            self.done.notify();
        }
    }

    /// Brings records to disk; what came of it.
    fn append(&self, mut bytes: Vec<u8>) -> Work {
        let mut begun = None;
        let append = || {
            // The first time, or once there is room for it, which says nothing of the next.
            self.handle.note_flushes()?;
            begun = Some(Begun::now());
            self.handle.append_in_segments(&mut bytes)?;
            self.handle.log().flush()
        };
        let outcome = catch_unwind(AssertUnwindSafe(append));
        let mut pace = self.pace.lock();
        match (&outcome, begun) {
            (Ok(Ok(())), Some(begun)) => pace.took(&begun),
            // What failed at once says nothing of the next.
            _ => *pace = DiskPace::default(),
        }
        drop(pace);
        outcome.map_or(Work::Broken, Work::Done)
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
            pace: Mutex::default(),
            closed: AtomicBool::new(false),
            more: Condvar::new(),
            done: Signal::default(),
        });
        let done = off_gil(py, || shared.done.watch(&shared.handle.log().dir()))?;
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

    /// Hands records over. With `may_finish` those that a quick disk has taken by then need no finishing: it returns True.
    #[pyo3(signature = (records, may_finish = false))]
    fn begin(&self, py: Python<'_>, records: &Bound<'_, PyAny>, may_finish: bool) -> PyResult<bool> {
        let log = self.log.get();
        off_gil(py, || self.shared.handle.check_process())?;
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
        let at_once = may_finish && bytes.len() <= AT_ONCE_BYTES && self.shared.pace.lock().is_quick();
        let mut work = self.shared.work.lock();
        match *work {
            Work::Idle => {}
            Work::Broken => return Err(broken()),
            _ => {
                return Err(PyRuntimeError::new_err(
                    "the records before these are not on disk: wait for them",
                ));
            }
        }
        if !at_once {
            *work = Work::Wanted(bytes);
            drop(work);
            self.shared.more.notify_one();
            return Ok(false);
        }
        *work = Work::Running;
        drop(work);
        let done = py.detach(|| self.shared.append(bytes));
        *self.shared.work.lock() = done;
        self.taken(py)
    }

    /// Whether the records that were handed over are on disk; asked when the descriptor is readable.
    fn finish(&self, py: Python<'_>) -> PyResult<bool> {
        self.done.clear();
        self.check_open(py)?;
        self.taken(py)
    }

    /// A descriptor that is readable when there is something to finish.
    fn fileno(&self) -> RawFd {
        self.done.raw_fd()
    }

    /// Ends the thread once it has done what it does.
    fn close(&self, py: Python<'_>) {
        self.end();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread.filter(|_| self.shared.handle.check_process().is_ok()) {
            // It catches its panics.
            let _ended = py.detach(|| thread.join());
        }
    }
}

impl Appender {
    /// What came of the records before, once; false while that is not known.
    fn taken(&self, py: Python<'_>) -> PyResult<bool> {
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

    fn check_open(&self, py: Python<'_>) -> PyResult<()> {
        if !self.shared.closed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let dir = self.shared.handle.log().dir();
        Err(storage_error(py, &StorageError::Closed { dir }))
    }

    fn end(&self) {
        let work = self.shared.work.lock();
        self.shared.closed.store(true, Ordering::Relaxed);
        drop(work);
        self.shared.more.notify_one();
    }
}

impl Drop for Appender {
    fn drop(&mut self) {
        self.end();
    }
}

fn broken() -> PyErr {
    PyRuntimeError::new_err("the thread that appends failed; its message is on standard error")
}
