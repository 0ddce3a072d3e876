//! Measures the log engine against the machine's limits, in one process.
//!
//! Each scenario takes turns with its limit: the least work that any program would need for it. They
//! alternate in every round, because a machine's speed drifts. Prints a table of medians and ratios with
//! their ranges.
//!
//! usage: logcore-bench-log [--rounds N] [--only PART] [--directory DIR] [--commit ID] [--json FILE]
//!
//! PART is large, small, fetch, recovery or many. The files are in a new directory in DIR, by default
//! /dev/shm. FILE gets the rows for `bench/table.py`. `--memory DIR` is internal: see `many`.

mod fetch;
mod many;
mod recovery;
mod table;
mod writes;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use logcore_records::{BatchBuilder, Compression};
use table::Table;

/// The result of a part of the benchmark. An error ends the run.
type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// A directory that is deleted at the end.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Options {
    rounds: usize,
    directory: PathBuf,
    commit: String,
    only: Option<String>,
    json: Option<PathBuf>,
    memory: Option<PathBuf>,
}

type Part = fn(&Path, usize, &mut Table) -> Outcome;

const PARTS: [(&str, Part); 5] = [
    ("large", writes::large),
    ("small", writes::small),
    ("fetch", fetch::run),
    ("recovery", recovery::run),
    ("many", many::run),
];

fn options() -> Outcome<Options> {
    let shm = Path::new("/dev/shm");
    let mut options = Options {
        rounds: 9,
        directory: if shm.is_dir() {
            shm.to_path_buf()
        } else {
            std::env::temp_dir()
        },
        commit: "an unversioned tree".to_owned(),
        only: None,
        json: None,
        memory: None,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(flag) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{flag} needs a value"))?;
        match flag.as_str() {
            "--rounds" => options.rounds = value.parse::<usize>()?.max(1),
            "--directory" => options.directory = value.into(),
            "--commit" => options.commit = value,
            "--json" => options.json = Some(value.into()),
            "--memory" => options.memory = Some(value.into()),
            "--only" if PARTS.iter().any(|(name, _)| *name == value) => options.only = Some(value),
            _ => {
                return Err(format!(
                    "{flag} {value} is not known: see the first lines of bench/log/src/main.rs"
                )
                .into());
            }
        }
    }
    Ok(options)
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as i64)
}

/// Seconds that `work` takes.
fn seconds(work: impl FnOnce() -> Outcome) -> Outcome<f64> {
    let begun = Instant::now();
    work()?;
    Ok(begun.elapsed().as_secs_f64())
}

/// An uncompressed batch of `count` records with values of `size` bytes.
fn batch(count: usize, size: usize) -> Outcome<Vec<u8>> {
    let value = vec![b'v'; size];
    let mut builder = BatchBuilder::with_capacity(Compression::None, None, count * (size + 16));
    for _ in 0..count {
        builder.append(now_ms(), None, Some(&value), &[])?;
    }
    Ok(builder.build()?)
}

fn main() -> Outcome {
    let options = options()?;
    if let Some(directory) = &options.memory {
        return many::memory(directory);
    }
    let scratch = Scratch(
        options
            .directory
            .join(format!("logcore-bench-log-{}", std::process::id())),
    );
    std::fs::create_dir_all(&scratch.0)?;
    let mut table = Table::new(options.rounds);
    for (name, part) in PARTS {
        if options.only.as_deref().is_none_or(|only| only == name) {
            part(&scratch.0, options.rounds, &mut table)?;
        }
    }
    println!("# The log engine beside the machine's limits\n");
    println!(
        "`bench/log` at {}: {}. {}",
        options.commit,
        machine(),
        table.text()
    );
    if let Some(path) = &options.json {
        std::fs::write(path, table.json())?;
    }
    Ok(())
}

/// The processor and its number of cores.
fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find(|line| line.starts_with("model name"))
        .and_then(|line| line.split(':').nth(1))
        .unwrap_or("unknown processor")
        .trim();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{model}, {cores} cores, files on tmpfs unless --directory says otherwise")
}
