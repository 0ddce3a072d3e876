//! The figures of a run, as one line of JSON.

use std::fmt::{Display, Write};

/// Figures in the order they were added.
#[derive(Debug)]
pub(crate) struct Report {
    line: String,
}

impl Report {
    pub(crate) fn new(command: &str) -> Self {
        Self {
            line: format!("{{\"command\": \"{command}\""),
        }
    }

    /// Adds an integer or a boolean.
    pub(crate) fn with(mut self, name: &str, value: impl Display) -> Self {
        // Writing to a String cannot fail.
        let _ = write!(self.line, ", \"{name}\": {value}");
        self
    }

    /// Adds a number with three decimals. JSON has no infinity and no NaN, so these become null.
    pub(crate) fn with_figure(self, name: &str, value: f64) -> Self {
        if value.is_finite() {
            self.with(name, format_args!("{value:.3}"))
        } else {
            self.with(name, "null")
        }
    }

    pub(crate) fn line(&self) -> String {
        format!("{}}}", self.line)
    }

    /// Prints the line. A closed standard output is not an error.
    pub(crate) fn print(&self) {
        use std::io::Write as _;
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{}", self.line());
        let _ = out.flush();
    }
}
