//! Binding of TLS: a listener's TLS, its key stores, and the names in certificates.

use std::sync::Arc;

use logcore_keystores::{Certificate, Pkcs12};
use logcore_server::{ClientAuth, ListenerTls, PrincipalOf, TlsOptions, cipher_suites};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::server_errors::server_error;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(tls_cipher_suites, module)?)?;
    module.add_function(wrap_pyfunction!(open_pkcs12, module)?)?;
    module.add_function(wrap_pyfunction!(decrypt_key, module)?)?;
    module.add_function(wrap_pyfunction!(key_with_public_key, module)?)?;
    module.add_function(wrap_pyfunction!(certificate_subject, module)?)?;
    module.add_function(wrap_pyfunction!(certificate_validity, module)?)?;
    module.add_function(wrap_pyfunction!(certificate_is_authority, module)?)?;
    module.add_class::<PyListenerTls>()
}

#[pyfunction]
fn tls_cipher_suites() -> Vec<String> {
    cipher_suites()
}

type Ders<'py> = Vec<Bound<'py, PyBytes>>;

#[pyfunction]
fn open_pkcs12<'py>(
    py: Python<'py>,
    file: &[u8],
    password: &str,
) -> PyResult<Option<(Ders<'py>, Ders<'py>)>> {
    let opened = py.detach(|| Pkcs12::open(file, password));
    let bytes = |ders: Vec<Vec<u8>>| ders.iter().map(|der| PyBytes::new(py, der)).collect();
    let opened = unless_wrong_password(opened)?;
    Ok(opened.map(|store| (bytes(store.keys), bytes(store.certificates))))
}

#[pyfunction]
fn decrypt_key<'py>(py: Python<'py>, key: &[u8], password: &str) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let key = py.detach(|| logcore_keystores::decrypt_key(key, password));
    Ok(unless_wrong_password(key)?.map(|key| PyBytes::new(py, &key)))
}

#[pyfunction]
fn key_with_public_key<'py>(
    py: Python<'py>,
    key: &[u8],
    certificate: &[u8],
) -> PyResult<Bound<'py, PyBytes>> {
    let key = logcore_keystores::with_public_key(key, certificate).map_err(invalid)?;
    Ok(PyBytes::new(py, &key))
}

#[pyfunction]
fn certificate_subject(certificate: &[u8]) -> PyResult<String> {
    let parsed = Certificate::parse(certificate).map_err(invalid)?;
    parsed.subject().map_err(invalid)
}

#[pyfunction]
fn certificate_validity(certificate: &[u8]) -> PyResult<(i64, i64)> {
    Ok(Certificate::parse(certificate).map_err(invalid)?.validity())
}

#[pyfunction]
fn certificate_is_authority(certificate: &[u8]) -> PyResult<bool> {
    let parsed = Certificate::parse(certificate).map_err(invalid)?;
    parsed.is_authority().map_err(invalid)
}

fn unless_wrong_password<T>(opened: logcore_keystores::Result<T>) -> PyResult<Option<T>> {
    match opened {
        Ok(opened) => Ok(Some(opened)),
        Err(logcore_keystores::Error::Password) => Ok(None),
        Err(error) => Err(invalid(error)),
    }
}

fn invalid(error: logcore_keystores::Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}

#[pyclass(frozen, name = "ListenerTls", module = "logcore._native")]
pub(crate) struct PyListenerTls(pub(crate) ListenerTls);

#[pymethods]
impl PyListenerTls {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "one for each setting")]
    #[pyo3(signature = (
        *, certificates, key, authorities, trusted, client_auth, protocols, cipher_suites, principal,
    ))]
    fn new(
        py: Python<'_>,
        certificates: Vec<Vec<u8>>,
        key: Vec<u8>,
        authorities: Vec<Vec<u8>>,
        trusted: Vec<Vec<u8>>,
        client_auth: &str,
        protocols: Vec<String>,
        cipher_suites: Vec<String>,
        principal: Py<PyAny>,
    ) -> PyResult<Self> {
        let options = TlsOptions {
            certificates,
            key,
            authorities,
            trusted,
            client_auth: self::client_auth(client_auth)?,
            protocols,
            cipher_suites,
            principal: principal_of(principal),
        };
        let tls = ListenerTls::new(options);
        tls.map(Self).map_err(|error| server_error(py, error))
    }
}

fn client_auth(word: &str) -> PyResult<ClientAuth> {
    match word {
        "none" => Ok(ClientAuth::None),
        "requested" => Ok(ClientAuth::Requested),
        "required" => Ok(ClientAuth::Required),
        _ => Err(PyValueError::new_err(format!(
            "client_auth is none, requested or required, not {word}"
        ))),
    }
}

/// Calls Python for the principal of a certificate. An exception refuses the connection.
fn principal_of(function: Py<PyAny>) -> PrincipalOf {
    Arc::new(move |certificate| {
        let asked = Python::try_attach(|py| {
            let name = function.call1(py, (PyBytes::new(py, certificate),));
            let name = name.and_then(|name| name.extract::<String>(py));
            name.map_err(|error| error.value(py).to_string())
        });
        asked.unwrap_or_else(|| Err("the interpreter is ending".to_owned()))
    })
}
