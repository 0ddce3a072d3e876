//! Regular expressions of consumer groups' subscriptions (KIP-848), in time linear in the names' length.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use regex::bytes::{Regex, RegexBuilder};

/// The most memory of a compiled expression. A larger one is refused.
const SIZE_MAX: usize = 1 << 20;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(matching_names, module)?)
}

/// The names that the expression matches as a whole. As in RE2, classes such as `\w` are ASCII.
#[pyfunction]
fn matching_names(py: Python<'_>, expression: &str, names: Vec<String>) -> PyResult<Vec<String>> {
    py.detach(|| {
        // By itself first: `a)|(b` must not become valid inside the parentheses.
        compile(expression)?;
        let whole = compile(&format!(r"\A(?:{expression})\z"))?;
        Ok(names
            .into_iter()
            .filter(|name| whole.is_match(name.as_bytes()))
            .collect())
    })
    .map_err(|error: regex::Error| PyValueError::new_err(error.to_string()))
}

fn compile(expression: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(expression)
        .unicode(false)
        .size_limit(SIZE_MAX)
        .dfa_size_limit(SIZE_MAX)
        .build()
}
