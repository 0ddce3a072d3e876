//! `Message`: a record consumed or delivered, or an event of a partition, in confluent-kafka's shape.
//!
//! Key, value and headers of a consumed message stay in the fetched batch until they are asked for.

use std::borrow::Cow;

use logcore_client::consumer;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyList, PyString, PyTuple};

/// The parts of a record that its delivery report needs.
#[derive(Debug)]
pub(crate) struct Context {
    /// `None`: the producer's own callback.
    pub(crate) callback: Option<Py<PyAny>>,
    pub(crate) key: Option<Py<PyAny>>,
    pub(crate) value: Option<Py<PyAny>>,
    pub(crate) headers: Option<Py<PyAny>>,
}

/// `TIMESTAMP_NOT_AVAILABLE`, `TIMESTAMP_CREATE_TIME`, `TIMESTAMP_LOG_APPEND_TIME` of confluent-kafka.
const NOT_AVAILABLE: i32 = 0;
const CREATE_TIME: i32 = 1;
const LOG_APPEND_TIME: i32 = 2;
/// `OFFSET_INVALID`.
pub(crate) const OFFSET_INVALID: i64 = -1001;

/// A key, value or list of headers.
#[derive(Debug, Default)]
enum Part {
    #[default]
    Absent,
    /// In the fetched batch.
    Fetched,
    /// An object of the application.
    Object(Py<PyAny>),
}

impl From<Option<Py<PyAny>>> for Part {
    fn from(object: Option<Py<PyAny>>) -> Self {
        object.map_or(Self::Absent, Self::Object)
    }
}

/// The message of a delivery report.
pub(crate) struct Delivered {
    pub(crate) topic: Py<PyString>,
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    /// Milliseconds.
    pub(crate) timestamp: i64,
    pub(crate) append_time: bool,
    pub(crate) key: Option<Py<PyAny>>,
    pub(crate) value: Option<Py<PyAny>>,
    pub(crate) headers: Option<Py<PyAny>>,
    pub(crate) error: Option<Py<PyAny>>,
    /// Seconds from `produce` to the report.
    pub(crate) latency: f64,
}

/// A consumed or produced record, or an event of a partition.
#[pyclass(module = "cluster.client", subclass)]
#[derive(Debug)]
pub(crate) struct Message {
    topic: Option<Py<PyString>>,
    partition: i32,
    offset: i64,
    timestamp: (i32, i64),
    leader_epoch: Option<i32>,
    latency: Option<f64>,
    key: Part,
    value: Part,
    headers: Part,
    error: Option<Py<PyAny>>,
    fetched: Option<consumer::Message>,
}

impl Message {
    /// A consumed message; `topic` is its topic's name, shared among the messages of a batch.
    pub(crate) fn consumed(message: consumer::Message, topic: Py<PyString>) -> Self {
        let kind = match (message.timestamp, message.batch.append_time) {
            (-1, _) => NOT_AVAILABLE,
            (_, true) => LOG_APPEND_TIME,
            (_, false) => CREATE_TIME,
        };
        Self {
            topic: Some(topic),
            partition: message.batch.partition,
            offset: message.offset,
            timestamp: (kind, message.timestamp),
            leader_epoch: Some(message.batch.leader_epoch).filter(|epoch| *epoch >= 0),
            latency: None,
            key: Part::Fetched,
            value: Part::Fetched,
            headers: Part::Fetched,
            error: None,
            fetched: Some(message),
        }
    }

    /// A message that carries an event of a partition.
    pub(crate) fn event(py: Python<'_>, topic: &str, partition: i32, offset: i64, error: Py<PyAny>) -> Self {
        Self {
            topic: Some(PyString::new(py, topic).unbind()),
            partition,
            offset,
            timestamp: (NOT_AVAILABLE, 0),
            leader_epoch: None,
            latency: None,
            key: Part::Absent,
            value: Part::Absent,
            headers: Part::Absent,
            error: Some(error),
            fetched: None,
        }
    }

    /// A produced record's message.
    pub(crate) fn delivered(report: Delivered) -> Self {
        Self {
            topic: Some(report.topic),
            partition: report.partition,
            offset: report.offset,
            timestamp: (
                if report.append_time {
                    LOG_APPEND_TIME
                } else {
                    CREATE_TIME
                },
                report.timestamp,
            ),
            leader_epoch: None,
            latency: Some(report.latency),
            key: report.key.into(),
            value: report.value.into(),
            headers: report.headers.into(),
            error: report.error,
            fetched: None,
        }
    }

    /// The Python object of a message that this crate makes.
    ///
    /// Messages are not tracked by the garbage collector, which would look at each one in a long list.
    /// Nothing is lost: pyo3 does not traverse a message's fields, so no cycle through one is ever found.
    pub(crate) fn into_object(self, py: Python<'_>) -> PyResult<Py<Self>> {
        let object = Py::new(py, self)?;
        // SAFETY: the object is valid and of a collectable type, as all of pyo3's are. Untracking it twice is
        // allowed, which is what its deallocation does.
        unsafe { pyo3::ffi::PyObject_GC_UnTrack(object.as_ptr().cast()) };
        Ok(object)
    }

    /// The Python objects that `__eq__` compares.
    fn objects(&self, py: Python<'_>) -> PyResult<Py<PyTuple>> {
        let (topic, headers) = (self.topic(py), self.headers(py)?);
        let objects = (topic, self.key(py), self.value(py), headers, self.error(py));
        Ok(objects.into_pyobject(py)?.unbind())
    }

    fn part(
        &self,
        py: Python<'_>,
        part: &Part,
        read: impl Fn(&consumer::Message) -> Option<&[u8]>,
    ) -> Option<Py<PyAny>> {
        match part {
            Part::Absent => None,
            Part::Object(object) => Some(object.clone_ref(py)),
            Part::Fetched => {
                let bytes = self.fetched.as_ref().and_then(read)?;
                Some(PyBytes::new(py, bytes).into_any().unbind())
            }
        }
    }
}

#[pymethods]
impl Message {
    #[new]
    #[pyo3(
        signature = (topic=None, partition=-1, offset=OFFSET_INVALID, key=None, value=None, headers=None,
                     error=None, timestamp=None, latency=None, leader_epoch=None),
        text_signature = "(topic=None, partition=-1, offset=-1001, key=None, value=None, headers=None, \
                          error=None, timestamp=None, latency=None, leader_epoch=None)"
    )]
    #[allow(clippy::too_many_arguments)] // confluent-kafka's constructor
    fn new(
        topic: Option<Py<PyString>>,
        partition: i32,
        offset: i64,
        key: Option<Py<PyAny>>,
        value: Option<Py<PyAny>>,
        headers: Option<Py<PyAny>>,
        error: Option<Py<PyAny>>,
        timestamp: Option<(i32, i64)>,
        latency: Option<f64>,
        leader_epoch: Option<i32>,
    ) -> Self {
        Self {
            topic,
            partition,
            offset,
            timestamp: timestamp.unwrap_or((NOT_AVAILABLE, 0)),
            leader_epoch,
            latency,
            key: key.into(),
            value: value.into(),
            headers: headers.into(),
            error,
            fetched: None,
        }
    }

    /// The topic's name.
    fn topic(&self, py: Python<'_>) -> Option<Py<PyString>> {
        self.topic.as_ref().map(|topic| topic.clone_ref(py))
    }

    /// The partition's number.
    fn partition(&self) -> i32 {
        self.partition
    }

    /// The offset; negative for a message that was not written.
    fn offset(&self) -> i64 {
        self.offset
    }

    /// The key, or None.
    fn key(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.part(py, &self.key, consumer::Message::key)
    }

    /// The value; None is a tombstone.
    fn value(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.part(py, &self.value, consumer::Message::value)
    }

    /// A list of (name, value) pairs, or None. Values are bytes or None.
    fn headers(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        match &self.headers {
            Part::Absent => Ok(None),
            Part::Object(object) => Ok(Some(object.clone_ref(py))),
            Part::Fetched => {
                let list = PyList::empty(py);
                for (name, value) in self.fetched.iter().flat_map(consumer::Message::headers) {
                    let value = value.map(|value| PyBytes::new(py, value));
                    list.append((String::from_utf8_lossy(name), value))?;
                }
                Ok((!list.is_empty()).then(|| list.into_any().unbind()))
            }
        }
    }

    /// A TIMESTAMP_* constant, and milliseconds since the epoch.
    fn timestamp(&self) -> (i32, i64) {
        self.timestamp
    }

    /// The KafkaError of an event or of a failed delivery, or None.
    fn error(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.error.as_ref().map(|error| error.clone_ref(py))
    }

    /// The leader's epoch when the record was written, or None.
    fn leader_epoch(&self) -> Option<i32> {
        self.leader_epoch
    }

    /// Seconds from produce() to the report; None for a consumed message.
    fn latency(&self) -> Option<f64> {
        self.latency
    }

    fn set_key(&mut self, key: Option<Py<PyAny>>) {
        self.key = key.into();
    }

    fn set_value(&mut self, value: Option<Py<PyAny>>) {
        self.value = value.into();
    }

    fn set_headers(&mut self, headers: Option<Py<PyAny>>) {
        self.headers = headers.into();
    }

    fn set_topic(&mut self, topic: Py<PyString>) {
        self.topic = Some(topic);
    }

    fn set_error(&mut self, error: Option<Py<PyAny>>) {
        self.error = error;
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        match &self.value {
            Part::Absent => Ok(0),
            Part::Object(value) => value.bind(py).len(),
            Part::Fetched => {
                let value = self.fetched.as_ref().and_then(consumer::Message::value);
                Ok(value.map_or(0, <[u8]>::len))
            }
        }
    }

    /// Messages are equal when all their fields except the latency are.
    fn __eq__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let Ok(other) = other.cast::<Self>() else {
            return Ok(py.NotImplemented());
        };
        let other = other.borrow();
        let same = (self.partition, self.offset, self.timestamp, self.leader_epoch)
            == (other.partition, other.offset, other.timestamp, other.leader_epoch);
        let equal = same && self.objects(py)?.bind(py).eq(other.objects(py)?)?;
        Ok(PyBool::new(py, equal).to_owned().into_any().unbind())
    }

    /// For pickle and copy.
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        let py = slf.py();
        let message = slf.borrow();
        let topic = message.topic(py);
        let arguments = (
            topic,
            message.partition,
            message.offset,
            message.key(py),
            message.value(py),
            message.headers(py)?,
            message.error(py),
            message.timestamp,
            message.latency,
            message.leader_epoch,
        );
        // A subclass has attributes of its own.
        let state = slf.as_any().getattr_opt("__dict__")?;
        (slf.get_type(), arguments, state).into_pyobject(py)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let topic = self
            .topic
            .as_ref()
            .map_or_else(|| "None".to_owned(), |topic| topic.to_string());
        let error = self
            .error
            .as_ref()
            .map_or_else(String::new, |error| format!(", error={}", error.bind(py)));
        format!(
            "Message(topic={topic}, partition={}, offset={}{error})",
            self.partition, self.offset
        )
    }
}

/// The bytes of a key, value or header value: of bytes, str or any buffer. None is null.
pub(crate) fn payload<'a>(
    what: &str,
    object: Option<&'a Bound<'_, PyAny>>,
) -> PyResult<Option<Cow<'a, [u8]>>> {
    let Some(object) = object else {
        return Ok(None);
    };
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return Ok(Some(Cow::Borrowed(bytes.as_bytes())));
    }
    if let Ok(text) = object.cast::<PyString>() {
        return Ok(Some(Cow::Borrowed(text.to_str()?.as_bytes())));
    }
    if object.is_none() {
        return Ok(None);
    }
    match PyBuffer::<u8>::get(object) {
        Ok(buffer) => Ok(Some(Cow::Owned(buffer.to_vec(object.py())?))),
        Err(_) => {
            let kind = object.get_type().name()?;
            Err(PyTypeError::new_err(format!(
                "{what} must be bytes, str or a buffer, not {kind}"
            )))
        }
    }
}

/// A header's name and value.
pub(crate) type OwnedHeader = (String, Option<Vec<u8>>);

/// Headers from a dict or a list of pairs.
pub(crate) fn headers(object: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<OwnedHeader>> {
    let Some(object) = object.filter(|object| !object.is_none()) else {
        return Ok(Vec::new());
    };
    let mut headers = Vec::new();
    if let Ok(dict) = object.cast::<PyDict>() {
        for (name, value) in dict {
            headers.push(header(&name, &value)?);
        }
        return Ok(headers);
    }
    for item in object.try_iter()? {
        let item = item?;
        let pair = item
            .cast::<PyTuple>()
            .ok()
            .filter(|pair| pair.len() == 2)
            .ok_or_else(|| {
                PyTypeError::new_err("headers must be a dict or a list of (name, value) tuples")
            })?;
        headers.push(header(&pair.get_item(0)?, &pair.get_item(1)?)?);
    }
    Ok(headers)
}

fn header(name: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<OwnedHeader> {
    Ok((
        name.extract()?,
        payload("a header's value", Some(value))?.map(Cow::into_owned),
    ))
}
