//! The table of a run's results.

use std::fmt::Write;

/// Rows of: what, unit, logcore, limit, ratio to the limit, goal.
pub(crate) struct Table {
    rounds: usize,
    rows: Vec<[String; 6]>,
}

const COLUMNS: [&str; 6] = ["what", "unit", "ours", "limit", "ratio", "goal"];

/// Median, smallest and largest value.
fn spread(values: &[f64]) -> (f64, f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN);
    let first = sorted.first().copied().unwrap_or(f64::NAN);
    let last = sorted.last().copied().unwrap_or(f64::NAN);
    (middle, first, last)
}

fn cell(values: &[f64]) -> String {
    if values.is_empty() {
        return String::new();
    }
    let (middle, least, most) = spread(values);
    let digits = match middle.abs() {
        100.0.. => 0,
        10.0.. => 1,
        _ => 2,
    };
    format!("{middle:.digits$} ({least:.digits$}–{most:.digits$})")
}

impl Table {
    pub(crate) fn new(rounds: usize) -> Self {
        Self {
            rounds,
            rows: Vec::new(),
        }
    }

    /// A speed and its limit's. The ratio is the median of the rounds' ratios.
    pub(crate) fn speed(&mut self, what: &str, unit: &str, ours: &[f64], limit: &[f64], goal: &str) {
        let ratios: Vec<f64> = ours.iter().zip(limit).map(|(o, l)| o / l).collect();
        self.add([what, unit], ours, limit, &ratios, goal);
    }

    /// A duration and its limit's. The ratio is the median of the rounds' ratios.
    pub(crate) fn time(&mut self, what: &str, unit: &str, ours: &[f64], limit: &[f64], goal: &str) {
        let ratios: Vec<f64> = ours.iter().zip(limit).map(|(o, l)| l / o).collect();
        self.add([what, unit], ours, limit, &ratios, goal);
    }

    fn add(&mut self, [what, unit]: [&str; 2], ours: &[f64], limit: &[f64], ratios: &[f64], goal: &str) {
        self.rows.push([
            what.to_owned(),
            unit.to_owned(),
            cell(ours),
            cell(limit),
            cell(ratios),
            goal.to_owned(),
        ]);
    }

    /// A value without a limit.
    pub(crate) fn figure(&mut self, what: &str, unit: &str, ours: &[f64], goal: &str) {
        self.speed(what, unit, ours, &[], goal);
    }

    pub(crate) fn text(&self) -> String {
        let mut text = format!(
            "Medians (minimum–maximum) of {} rounds; the limit is measured in the same round.\n\n\
             | what | unit | logcore | limit | of the limit | goal |\n|---|---|---|---|---|---|\n",
            self.rounds
        );
        for row in &self.rows {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "| {} |", row.join(" | "));
        }
        text
    }

    /// The rows for `bench/table.py`. No cell has characters that JSON escapes.
    pub(crate) fn json(&self) -> String {
        let rows: Vec<String> = self
            .rows
            .iter()
            .map(|row| {
                let cells: Vec<String> = COLUMNS
                    .iter()
                    .zip(row)
                    .map(|(column, cell)| format!("\"{column}\": \"{cell}\""))
                    .collect();
                format!("  {{{}}}", cells.join(", "))
            })
            .collect();
        format!("[\n{}\n]\n", rows.join(",\n"))
    }
}
