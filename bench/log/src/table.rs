//! The table of a run.

use std::fmt::Write;

/// Rows as they are measured: what, unit, logcore, limit, of the limit, goal.
pub(crate) struct Table {
    rounds: usize,
    rows: Vec<[String; 6]>,
}

const COLUMNS: [&str; 6] = ["what", "unit", "ours", "limit", "ratio", "goal"];

/// Median, least and most.
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

    /// A speed, with that of its limit in the same round; the ratio is taken round by round.
    pub(crate) fn speed(&mut self, what: &str, unit: &str, ours: &[f64], limit: &[f64], goal: &str) {
        let ratios: Vec<f64> = ours.iter().zip(limit).map(|(o, l)| o / l).collect();
        self.add([what, unit], ours, limit, &ratios, goal);
    }

    /// The time something takes, with that of its limit in the same round.
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

    /// A figure without a limit.
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

    /// The rows for `bench/table.py`. No cell has anything in it that JSON would want escaped.
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
