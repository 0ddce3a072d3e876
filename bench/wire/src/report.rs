//! One line of JSON: the figures of a run.

use std::fmt::{Display, Write};

/// Figures in the order they were added.
pub(crate) struct Report {
    line: String,
}

impl Report {
    pub(crate) fn new(command: &str) -> Self {
        Self {
            line: format!("{{\"command\": \"{command}\""),
        }
    }

    /// Adds a whole number or a truth value.
    pub(crate) fn with(mut self, name: &str, value: impl Display) -> Self {
        // Writing to a String cannot fail.
        let _ = write!(self.line, ", \"{name}\": {value}");
        self
    }

    /// Adds a figure with three decimals; what is not finite becomes null, as JSON has no word for it.
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

    /// Prints the line; standard output that was closed is the reader's wish.
    pub(crate) fn print(&self) {
        use std::io::Write as _;
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{}", self.line());
        let _ = out.flush();
    }
}
