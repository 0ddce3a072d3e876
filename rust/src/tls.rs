//! Binding of TLS: what a listener of the server serves it with, and the question whom a certificate names.

use std::sync::Arc;

use logcore_server::{ClientAuth, ListenerTls, PrincipalOf, TlsOptions, cipher_suites};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::server::raise;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(tls_cipher_suites, module)?)?;
    module.add_class::<PyListenerTls>()
}

#[pyfunction]
fn tls_cipher_suites() -> Vec<String> {
    cipher_suites()
}

#[pyclass(frozen, name = "ListenerTls", module = "logcore._native")]
pub(crate) struct PyListenerTls(pub(crate) ListenerTls);

#[pymethods]
impl PyListenerTls {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "one for each setting")]
    #[pyo3(signature = (*, certificates, key, authorities, trusted, client_auth, protocols, cipher_suites, principal))]
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
        tls.map(Self).map_err(|error| raise(py, error))
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

/// Asks Python, whose exception is the reason why a certificate names nobody.
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
