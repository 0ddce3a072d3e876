//! Binding of `logcore-protocol`: Kafka's messages as Python dicts.
//!
//! A message is a dict with a key for each field of its schema. Arrays are lists, uuids 16 bytes, null is
//! `None`. Other bindings convert messages with [`value_to_py`] and [`py_to_value`]. Everything runs in the
//! caller's thread with the GIL. The conversion of a long array releases the GIL now and then, so that the
//! event loop's thread can run.

use bytes::Bytes;
use logcore_protocol::{
    Direction, FieldType, RequestHeader, Schema, Str, Struct, StructSchema, Value, data_schema, decode_with,
    encode_with, field_names, request_schemas, schema, to_json,
};
use pyo3::buffer::PyBuffer;
use pyo3::create_exception;
use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

create_exception!(
    logcore,
    ProtocolError,
    PyValueError,
    "A message that cannot be decoded or encoded, or an API or version that does not exist."
);

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("ProtocolError", module.py().get_type::<ProtocolError>())?;
    module.add_function(wrap_pyfunction!(decode_request, module)?)?;
    module.add_function(wrap_pyfunction!(encode_request, module)?)?;
    module.add_function(wrap_pyfunction!(decode_response, module)?)?;
    module.add_function(wrap_pyfunction!(encode_response, module)?)?;
    module.add_function(wrap_pyfunction!(decode_data, module)?)?;
    module.add_function(wrap_pyfunction!(encode_data, module)?)?;
    module.add_function(wrap_pyfunction!(request_to_json, module)?)?;
    module.add_function(wrap_pyfunction!(response_to_json, module)?)?;
    module.add_function(wrap_pyfunction!(data_to_json, module)?)?;
    module.add_function(wrap_pyfunction!(decode_request_header, module)?)?;
    module.add_function(wrap_pyfunction!(encode_request_header, module)?)?;
    module.add_function(wrap_pyfunction!(decode_response_header, module)?)?;
    module.add_function(wrap_pyfunction!(encode_response_header, module)?)?;
    module.add_function(wrap_pyfunction!(api_keys, module)?)?;
    module.add_function(wrap_pyfunction!(valid_versions, module)?)?;
    module.add_function(wrap_pyfunction!(string_hash, module)?)?;
    Ok(())
}

/// The exception for an error of the codec.
pub(crate) fn protocol_error(error: logcore_protocol::ProtocolError) -> PyErr {
    ProtocolError::new_err(error.to_string())
}

/// The schema of an API.
///
/// Errors: the API is not in the table.
pub(crate) fn api_schema(api_key: i16, direction: Direction) -> PyResult<&'static Schema> {
    schema(api_key, direction)
        .ok_or_else(|| protocol_error(logcore_protocol::ProtocolError::UnknownApi(api_key)))
}

#[pyfunction]
fn decode_request<'py>(
    py: Python<'py>,
    api_key: i16,
    version: i16,
    body: PyBackedBytes,
) -> PyResult<Bound<'py, PyAny>> {
    decode(py, api_schema(api_key, Direction::Request)?, version, body)
}

#[pyfunction]
fn decode_response<'py>(
    py: Python<'py>,
    api_key: i16,
    version: i16,
    body: PyBackedBytes,
) -> PyResult<Bound<'py, PyAny>> {
    decode(py, api_schema(api_key, Direction::Response)?, version, body)
}

#[pyfunction]
fn decode_data<'py>(
    py: Python<'py>,
    name: &str,
    version: i16,
    data: PyBackedBytes,
) -> PyResult<Bound<'py, PyAny>> {
    decode(py, named_schema(name)?, version, data)
}

#[pyfunction]
fn data_to_json(name: &str, version: i16, data: PyBackedBytes) -> PyResult<String> {
    json(named_schema(name)?, version, data)
}

#[pyfunction]
fn request_to_json(api_key: i16, version: i16, body: PyBackedBytes) -> PyResult<String> {
    json(api_schema(api_key, Direction::Request)?, version, body)
}

#[pyfunction]
fn response_to_json(api_key: i16, version: i16, body: PyBackedBytes) -> PyResult<String> {
    json(api_schema(api_key, Direction::Response)?, version, body)
}

fn json(schema: &'static Schema, version: i16, body: PyBackedBytes) -> PyResult<String> {
    to_json(schema, version, &Bytes::from_owner(body)).map_err(protocol_error)
}

/// API key, version, correlation id, client id, and the length of the header.
type RequestHead = (i16, i16, i32, Option<String>, usize);

#[pyfunction]
fn decode_request_header(request: PyBackedBytes) -> PyResult<RequestHead> {
    let length = request.len();
    let mut rest = Bytes::from_owner(request);
    let header = RequestHeader::decode(&mut rest).map_err(protocol_error)?;
    let client_id = header.client_id.as_deref().map(str::to_owned);
    let (key, version) = (header.api_key, header.api_version);
    Ok((
        key,
        version,
        header.correlation_id,
        client_id,
        length - rest.len(),
    ))
}

#[pyfunction]
fn encode_request_header<'py>(
    py: Python<'py>,
    api_key: i16,
    version: i16,
    correlation_id: i32,
    client_id: Option<&str>,
) -> PyResult<Bound<'py, PyBytes>> {
    let header = RequestHeader {
        api_key,
        api_version: version,
        correlation_id,
        client_id: client_id.map(Str::from),
    };
    let mut out = Vec::new();
    header.encode(&mut out).map_err(protocol_error)?;
    Ok(PyBytes::new(py, &out))
}

/// The correlation id and the length of the header.
#[pyfunction]
fn decode_response_header(api_key: i16, version: i16, response: PyBackedBytes) -> PyResult<(i32, usize)> {
    let length = response.len();
    let mut rest = Bytes::from_owner(response);
    let correlation_id =
        logcore_protocol::decode_response_header(api_key, version, &mut rest).map_err(protocol_error)?;
    Ok((correlation_id, length - rest.len()))
}

#[pyfunction]
fn encode_response_header(
    py: Python<'_>,
    api_key: i16,
    version: i16,
    correlation_id: i32,
) -> PyResult<Bound<'_, PyBytes>> {
    let mut out = Vec::new();
    logcore_protocol::encode_response_header(api_key, version, correlation_id, &mut out)
        .map_err(protocol_error)?;
    Ok(PyBytes::new(py, &out))
}

#[pyfunction]
fn encode_request<'py>(
    api_key: i16,
    version: i16,
    message: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyBytes>> {
    encode(api_schema(api_key, Direction::Request)?, version, message)
}

#[pyfunction]
fn encode_response<'py>(
    api_key: i16,
    version: i16,
    message: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyBytes>> {
    encode(api_schema(api_key, Direction::Response)?, version, message)
}

#[pyfunction]
fn encode_data<'py>(name: &str, version: i16, message: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyBytes>> {
    encode(named_schema(name)?, version, message)
}

#[pyfunction]
fn api_keys(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let keys = PyDict::new(py);
    for schema in request_schemas() {
        keys.set_item(schema.name, schema.api_key)?;
    }
    Ok(keys)
}

#[pyfunction]
fn valid_versions(api_key: i16) -> PyResult<(i16, i16)> {
    let versions = api_schema(api_key, Direction::Request)?.valid_versions();
    Ok((versions.first, versions.last))
}

/// Java's hash of a string (`String.hashCode`), from its UTF-16. A loop in Python would take milliseconds for
/// a long name.
#[pyfunction]
fn string_hash(utf_16_be: &[u8]) -> i32 {
    let (units, _) = utf_16_be.as_chunks();
    units.iter().fold(0, |hash: i32, unit| {
        let unit = u16::from_be_bytes(*unit);
        hash.wrapping_mul(31).wrapping_add(unit.into())
    })
}

fn named_schema(name: &str) -> PyResult<&'static Schema> {
    data_schema(name)
        .ok_or_else(|| protocol_error(logcore_protocol::ProtocolError::UnknownSchema(name.to_owned())))
}

fn decode<'py>(
    py: Python<'py>,
    schema: &'static Schema,
    version: i16,
    body: PyBackedBytes,
) -> PyResult<Bound<'py, PyAny>> {
    // The values share the caller's buffer, and are dropped when this function returns.
    let value = decode_with(schema, version, &Bytes::from_owner(body)).map_err(protocol_error)?;
    value_to_py(py, &value)
}

fn encode<'py>(
    schema: &'static Schema,
    version: i16,
    message: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyBytes>> {
    let value = py_to_value(schema, version, message)?;
    let mut out = Vec::new();
    encode_with(schema, version, &value, &mut out).map_err(protocol_error)?;
    Ok(PyBytes::new(message.py(), &out))
}

/// Elements of an array that are converted before other threads may have the GIL.
const GIL_ELEMENTS: usize = 256;

/// Releases the GIL for a moment after some elements of an array.
fn yield_gil(py: Python<'_>, index: usize) {
    if index % GIL_ELEMENTS == GIL_ELEMENTS - 1 {
        py.detach(|| ());
    }
}

/// A value as Python objects: dicts, lists, `bytes`, `str`, `int`, `float`, `bool`, `None`.
pub(crate) fn value_to_py<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    to_object(py, keys(py), value)
}

/// A dict as a message of this schema. Missing keys get the defaults. The version is only used in error
/// messages.
pub(crate) fn py_to_value(
    schema: &'static Schema,
    version: i16,
    message: &Bound<'_, PyAny>,
) -> PyResult<Value> {
    let keys = keys(message.py());
    from_dict(keys, schema.root, message)
        .map(Value::Struct)
        .map_err(|fault| match fault.problem {
            Problem::Raised(error) => error,
            Problem::Wrong(text) => {
                let path: String = fault.path.into_iter().rev().collect();
                let path = if path.is_empty() {
                    "the message"
                } else {
                    path.trim_start_matches('.')
                };
                ProtocolError::new_err(format!(
                    "{schema} version {version}: cannot encode {path}: {text}"
                ))
            }
        })
}

/// Every field name as an interned string, by `Field::name_id`, so that dict lookups compare pointers.
fn keys(py: Python<'_>) -> &[Py<PyString>] {
    static KEYS: PyOnceLock<Vec<Py<PyString>>> = PyOnceLock::new();
    KEYS.get_or_init(py, || {
        field_names()
            .iter()
            .map(|name| PyString::intern(py, name).unbind())
            .collect()
    })
}

fn to_object<'py>(py: Python<'py>, keys: &[Py<PyString>], value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Null => py.None().into_bound(py),
        Value::Bool(value) => value.into_pyobject(py)?.to_owned().into_any(),
        Value::I8(value) => value.into_pyobject(py)?.into_any(),
        Value::I16(value) => value.into_pyobject(py)?.into_any(),
        Value::I32(value) => value.into_pyobject(py)?.into_any(),
        Value::I64(value) => value.into_pyobject(py)?.into_any(),
        Value::U16(value) => value.into_pyobject(py)?.into_any(),
        Value::U32(value) => value.into_pyobject(py)?.into_any(),
        Value::F64(value) => value.into_pyobject(py)?.into_any(),
        Value::Uuid(value) => PyBytes::new(py, value).into_any(),
        Value::Str(value) => PyString::new(py, value).into_any(),
        Value::Bytes(value) => PyBytes::new(py, value).into_any(),
        Value::Array(values) => {
            let items: Vec<_> = values
                .iter()
                .enumerate()
                .map(|(index, value)| {
                    yield_gil(py, index);
                    to_object(py, keys, value)
                })
                .collect::<PyResult<_>>()?;
            PyList::new(py, items)?.into_any()
        }
        Value::Struct(value) => {
            let dict = PyDict::new(py);
            for (field, value) in value.schema().fields.iter().zip(value.fields()) {
                dict.set_item(&keys[field.name_id], to_object(py, keys, value)?)?;
            }
            dict.into_any()
        }
        Value::Gap(length) => {
            return Err(ProtocolError::new_err(format!(
                "a gap of {length} bytes has no Python value"
            )));
        }
    })
}

/// A value that does not fit its field, with the fields around it, innermost first.
struct Fault {
    path: Vec<String>,
    problem: Problem,
}

enum Problem {
    Wrong(String),
    /// An exception of the caller's own objects.
    Raised(PyErr),
}

impl From<PyErr> for Fault {
    fn from(error: PyErr) -> Self {
        Self {
            path: Vec::new(),
            problem: Problem::Raised(error),
        }
    }
}

impl Fault {
    fn wrong(text: String) -> Self {
        Self {
            path: Vec::new(),
            problem: Problem::Wrong(text),
        }
    }

    fn expected(kind: &str, found: &Bound<'_, PyAny>) -> Self {
        match found.get_type().name() {
            Ok(name) => Self::wrong(format!("expected {kind}, found {name}")),
            Err(error) => error.into(),
        }
    }

    fn below(mut self, segment: String) -> Self {
        self.path.push(segment);
        self
    }
}

fn from_dict(
    keys: &[Py<PyString>],
    schema: &'static StructSchema,
    object: &Bound<'_, PyAny>,
) -> Result<Struct, Fault> {
    let dict = object
        .cast::<PyDict>()
        .map_err(|_| Fault::expected("dict", object))?;
    let mut used = 0;
    let mut fields = Vec::with_capacity(schema.fields.len());
    for field in &schema.fields {
        let Some(item) = dict.get_item(&keys[field.name_id])? else {
            fields.push(field.default.clone());
            continue;
        };
        used += 1;
        let value =
            from_object(keys, &field.kind, &item).map_err(|fault| fault.below(format!(".{}", field.name)))?;
        fields.push(value);
    }
    if used != dict.len() {
        return Err(unknown_key(schema, dict)?);
    }
    Ok(Struct::from_fields(schema, fields))
}

/// The error for a dict with a key that the schema lacks.
#[cold]
fn unknown_key(schema: &StructSchema, dict: &Bound<'_, PyDict>) -> PyResult<Fault> {
    for key in dict.keys() {
        let known = key
            .extract::<&str>()
            .is_ok_and(|name| schema.field_index(name).is_some());
        if !known {
            return Ok(Fault::wrong(format!("there is no field {}", key.repr()?)));
        }
    }
    Ok(Fault::wrong("the dict changed while it was read".to_owned()))
}

fn from_object(keys: &[Py<PyString>], kind: &FieldType, object: &Bound<'_, PyAny>) -> Result<Value, Fault> {
    if object.is_none() {
        return Ok(Value::Null);
    }
    Ok(match kind {
        FieldType::Bool => Value::Bool(number(kind, object)?),
        FieldType::Int8 => Value::I8(number(kind, object)?),
        FieldType::Int16 => Value::I16(number(kind, object)?),
        FieldType::Int32 => Value::I32(number(kind, object)?),
        FieldType::Int64 => Value::I64(number(kind, object)?),
        FieldType::Uint16 => Value::U16(number(kind, object)?),
        FieldType::Uint32 => Value::U32(number(kind, object)?),
        FieldType::Float64 => Value::F64(number(kind, object)?),
        FieldType::Uuid => {
            let bytes = bytes(object)?;
            let uuid = bytes.as_ref().try_into();
            Value::Uuid(
                uuid.map_err(|_| Fault::wrong(format!("a uuid is 16 bytes, found {} bytes", bytes.len())))?,
            )
        }
        FieldType::String => match object.cast::<PyString>() {
            Ok(text) => Value::Str(Str::from(&*text.to_cow()?)),
            Err(_) => return Err(Fault::expected("str", object)),
        },
        FieldType::Bytes | FieldType::Records => Value::Bytes(bytes(object)?),
        FieldType::Array(element) => Value::Array(array(keys, element, object)?),
        FieldType::Struct(schema) => Value::Struct(from_dict(keys, schema, object)?),
    })
}

fn number<'py, T>(kind: &FieldType, object: &Bound<'py, PyAny>) -> Result<T, Fault>
where
    T: for<'a> FromPyObject<'a, 'py>,
{
    object.extract::<T>().map_err(|error| {
        let error: PyErr = error.into();
        match (
            error.is_instance_of::<PyOverflowError>(object.py()),
            object.repr(),
        ) {
            (true, Ok(text)) => Fault::wrong(format!("{text} does not fit in {}", kind.name())),
            _ => Fault::expected(kind.name(), object),
        }
    })
}

/// Copies the bytes, so that other threads may use the value.
fn bytes(object: &Bound<'_, PyAny>) -> Result<Bytes, Fault> {
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return Ok(Bytes::copy_from_slice(bytes.as_bytes()));
    }
    match PyBuffer::<u8>::get(object) {
        Ok(buffer) => Ok(Bytes::from(buffer.to_vec(object.py())?)),
        Err(_) => Err(Fault::expected("bytes", object)),
    }
}

fn array(keys: &[Py<PyString>], element: &FieldType, object: &Bound<'_, PyAny>) -> Result<Vec<Value>, Fault> {
    let convert = |(index, item): (usize, Bound<'_, PyAny>)| {
        yield_gil(item.py(), index);
        from_object(keys, element, &item).map_err(|fault| fault.below(format!("[{index}]")))
    };
    if let Ok(list) = object.cast::<PyList>() {
        return list.iter().enumerate().map(convert).collect();
    }
    if let Ok(tuple) = object.cast::<PyTuple>() {
        return tuple.iter().enumerate().map(convert).collect();
    }
    let textual = object.is_instance_of::<PyString>() || object.is_instance_of::<PyBytes>();
    if textual || object.is_instance_of::<PyDict>() {
        return Err(Fault::expected("list", object));
    }
    let items = object.try_iter().map_err(|_| Fault::expected("list", object))?;
    items
        .enumerate()
        .map(|(index, item)| convert((index, item?)))
        .collect()
}
