//! Fetched bytes as a buffer: Python looks into what one `pread` filled, without a copy.

use std::ffi::c_int;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

/// Whole batches, filled by one `pread`; Python reads them in place.
#[pyclass(frozen, module = "logcore._native")]
struct FetchedBatches {
    bytes: Vec<u8>,
}

#[pymethods]
impl FetchedBatches {
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let bytes = &slf.get().bytes;
        // SAFETY: Python gives a valid `view`. The bytes never change or move, because the class is frozen and has no
        // method that touches them, and PyBuffer_FillInfo makes the view hold a reference to their owner. The last
        // but one argument says read-only, so the pointer is never written through.
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
