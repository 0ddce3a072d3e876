//! Fetched batches as a Python buffer, without a copy.

use std::ffi::c_int;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

/// Batches read by one `pread`. Python reads them in place.
#[pyclass(frozen, module = "logcore._native")]
struct FetchedBatches {
    bytes: Vec<u8>,
}

#[pymethods]
impl FetchedBatches {
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let bytes = &slf.get().bytes;
        // SAFETY: Python gives a valid `view`. The bytes never change or move: the class is frozen and no
        // method changes them, and PyBuffer_FillInfo makes the view hold a reference to their owner. The last
        // argument but one says read-only, so nothing writes through the pointer.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                bytes.as_ptr().cast_mut().cast(),
                bytes.len() as ffi::Py_ssize_t,
                1,
                flags,
            )
        };
        if filled == 0 {
            Ok(())
        } else {
            Err(PyErr::fetch(slf.py()))
        }
    }
}

pub(super) fn memoryview(py: Python<'_>, bytes: Vec<u8>) -> PyResult<Bound<'_, PyMemoryView>> {
    PyMemoryView::from(Bound::new(py, FetchedBatches { bytes })?.as_any())
}
