//! `logcore._native`: the extension module. It converts between Python and the pure crates, and has no logic.

mod client;
mod codec;
mod columns;
mod errors;
mod log;
mod measurements;
mod quorum;
mod regexes;
mod server;
mod server_admin;
mod server_errors;
mod tls;
mod tools;
mod typed;

use pyo3::prelude::*;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    codec::register(module)?;
    log::register(module)?;
    server::register(module)?;
    tls::register(module)?;
    measurements::register(module)?;
    client::register(module)?;
    columns::register(module)?;
    typed::register(module)?;
    tools::register(module)?;
    quorum::register(module)?;
    regexes::register(module)?;
    Ok(())
}
