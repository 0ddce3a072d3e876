//! The extension's `Record`, and Python's keys, values and headers.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString, PyTuple, PyType};

/// A record to append, or one that was read.
#[pyclass(name = "Record", frozen, get_all, module = "logcore")]
pub(crate) struct PyRecord {
    pub(super) offset: i64,
    pub(super) timestamp: i64,
    pub(super) key: Option<Py<PyBytes>>,
    pub(super) value: Option<Py<PyBytes>>,
    pub(super) headers: Py<PyTuple>,
}

#[pymethods]
impl PyRecord {
    #[classattr]
    fn __match_args__() -> (
        &'static str,
        &'static str,
        &'static str,
        &'static str,
        &'static str,
    ) {
        ("offset", "timestamp", "key", "value", "headers")
    }

    #[new]
    #[pyo3(signature = (value=None, key=None, headers=None, timestamp=-1, offset=-1))]
    fn new(
        py: Python<'_>,
        value: Option<Bound<'_, PyAny>>,
        key: Option<Bound<'_, PyAny>>,
        headers: Option<Bound<'_, PyAny>>,
        timestamp: i64,
        offset: i64,
    ) -> PyResult<Self> {
        let bytes = |given: Option<Bound<'_, PyAny>>| -> PyResult<Option<Py<PyBytes>>> {
            Ok(BytesArg::optional(given.as_ref())?.map(|given| given.into_bytes(py)))
        };
        let headers = to_headers(headers.as_ref())?;
        Ok(Self {
            offset,
            timestamp,
            key: bytes(key)?,
            value: bytes(value)?,
            headers: headers_tuple(py, header_slices(&headers)?.into_iter())?,
        })
    }

    fn as_tuple<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        (
            self.offset,
            self.timestamp,
            self.key.as_ref().map(|key| key.clone_ref(py)),
            self.value.as_ref().map(|value| value.clone_ref(py)),
            self.headers.clone_ref(py),
        )
            .into_pyobject(py)
    }

    fn __eq__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<bool> {
        let Ok(other) = other.cast::<Self>() else {
            return Ok(false);
        };
        self.as_tuple(py)?.eq(other.get().as_tuple(py)?)
    }

    /// For `pickle` and `copy`.
    #[expect(clippy::type_complexity, reason = "what __new__ takes")]
    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> (
        Bound<'py, PyType>,
        (Option<Py<PyBytes>>, Option<Py<PyBytes>>, Py<PyTuple>, i64, i64),
    ) {
        let parts = (
            self.value.as_ref().map(|value| value.clone_ref(py)),
            self.key.as_ref().map(|key| key.clone_ref(py)),
            self.headers.clone_ref(py),
            self.timestamp,
            self.offset,
        );
        (py.get_type::<Self>(), parts)
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
        self.as_tuple(py)?.hash()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let repr = |bytes: &Option<Py<PyBytes>>| match bytes {
            Some(bytes) => bytes.bind(py).repr().map(|text| text.to_string()),
            None => Ok("None".to_owned()),
        };
        Ok(format!(
            "Record(offset={}, timestamp={}, key={}, value={}, headers={})",
            self.offset,
            self.timestamp,
            repr(&self.key)?,
            repr(&self.value)?,
            self.headers.bind(py).repr()?
        ))
    }
}

/// A key or value from Python. `bytes` are read in place. Other buffers are copied, because another thread
/// might change them.
pub(crate) enum BytesArg<'py> {
    Bytes(Bound<'py, PyBytes>),
    Copied(Vec<u8>),
}

impl<'py> BytesArg<'py> {
    pub(crate) fn new(given: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = given.cast::<PyBytes>() {
            return Ok(Self::Bytes(bytes.clone()));
        }
        if given.is_instance_of::<PyRecord>() {
            return Err(PyTypeError::new_err(
                "keys and values are bytes or None, not Record; a Record is appended by \
                 append_records([record])",
            ));
        }
        match PyBuffer::<u8>::get(given) {
            Ok(buffer) => Ok(Self::Copied(buffer.to_vec(given.py())?)),
            Err(_) => Err(PyTypeError::new_err(format!(
                "keys and values are bytes or None, not {}",
                given.get_type().name()?
            ))),
        }
    }

    /// [`BytesArg::new`] for an argument that may be None.
    pub(super) fn optional(given: Option<&Bound<'py, PyAny>>) -> PyResult<Option<Self>> {
        given.map(Self::new).transpose()
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes.as_bytes(),
            Self::Copied(bytes) => bytes,
        }
    }

    fn into_bytes(self, py: Python<'py>) -> Py<PyBytes> {
        match self {
            Self::Bytes(bytes) => bytes.unbind(),
            Self::Copied(bytes) => PyBytes::new(py, &bytes).unbind(),
        }
    }
}

pub(super) type HeaderArg<'py> = (Bound<'py, PyString>, Option<BytesArg<'py>>);

/// Headers from a mapping, or from a sequence of pairs of a name and bytes or None.
pub(super) fn to_headers<'py>(given: Option<&Bound<'py, PyAny>>) -> PyResult<Vec<HeaderArg<'py>>> {
    let Some(given) = given else {
        return Ok(Vec::new());
    };
    if let Ok(tuple) = given.cast::<PyTuple>()
        && tuple.is_empty()
    {
        return Ok(Vec::new());
    }
    let pairs = match given.cast::<PyDict>() {
        Ok(mapping) => mapping.items().into_any(),
        Err(_) => given.clone(),
    };
    let mut headers = Vec::new();
    for pair in pairs.try_iter()? {
        let (name, value): (Bound<'py, PyString>, Option<Bound<'py, PyAny>>) = pair?.extract()?;
        headers.push((name, BytesArg::optional(value.as_ref())?));
    }
    Ok(headers)
}

/// A header's name and value.
type HeaderSlices<'a> = (&'a [u8], Option<&'a [u8]>);

/// Headers in the encoder's form.
pub(super) fn header_slices<'a>(headers: &'a [HeaderArg<'_>]) -> PyResult<Vec<HeaderSlices<'a>>> {
    headers
        .iter()
        .map(|(name, value)| {
            let value = value.as_ref().map(BytesArg::as_slice);
            Ok((name.to_str()?.as_bytes(), value))
        })
        .collect()
}

pub(super) fn headers_tuple<'a>(
    py: Python<'_>,
    headers: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>,
) -> PyResult<Py<PyTuple>> {
    let pairs: Vec<_> = headers
        .map(|(name, value)| {
            let name = PyString::new(py, &String::from_utf8_lossy(name));
            (name, value.map(|value| PyBytes::new(py, value)))
        })
        .collect();
    Ok(PyTuple::new(py, pairs)?.unbind())
}
