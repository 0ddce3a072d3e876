//! Appends; the limit is writing the same bytes to a file.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;

use logcore_storage::{LogConfig, StandaloneLog};

use crate::table::Table;
use crate::{Outcome, batch, seconds};

/// Bytes of large batches per round.
const LARGE_BYTES: usize = 256 << 20;
/// One-record batches per round.
const SMALL_COUNT: usize = 200_000;

struct Load<'a> {
    what: &'a str,
    goal: &'a str,
    batch: Vec<u8>,
    count: usize,
}

pub(crate) fn large(directory: &Path, rounds: usize, table: &mut Table) -> Outcome {
    let batch = batch(1000, 1040)?;
    let load = Load {
        what: "append of 1 MiB batches",
        goal: "≥ 0.85",
        count: LARGE_BYTES / batch.len(),
        batch,
    };
    measure(directory, rounds, table, &load)
}

pub(crate) fn small(directory: &Path, rounds: usize, table: &mut Table) -> Outcome {
    let load = Load {
        what: "append of batches of one record of 100 B",
        goal: "≥ 0.7",
        count: SMALL_COUNT,
        batch: batch(1, 100)?,
    };
    measure(directory, rounds, table, &load)
}

fn measure(directory: &Path, rounds: usize, table: &mut Table, load: &Load<'_>) -> Outcome {
    let (mut ours, mut limit) = (Vec::new(), Vec::new());
    // The first round is not counted: it allocates the memory that the others reuse.
    for round in 0..=rounds {
        let bare = bare(&directory.join("bare"), load)?;
        let log = appended(&directory.join("log-0"), load)?;
        if round > 0 {
            let size = (load.batch.len() * load.count) as f64 / 1e6;
            ours.push(size / log);
            limit.push(size / bare);
        }
    }
    table.speed(load.what, "MB/s", &ours, &limit, load.goal);
    Ok(())
}

fn bare(path: &Path, load: &Load<'_>) -> Outcome<f64> {
    let mut file: File = OpenOptions::new().create_new(true).append(true).open(path)?;
    let time = seconds(|| {
        for _ in 0..load.count {
            file.write_all(&load.batch)?;
        }
        Ok(())
    })?;
    fs::remove_file(path)?;
    Ok(time)
}

fn appended(path: &Path, load: &Load<'_>) -> Outcome<f64> {
    let config = LogConfig {
        max_message_bytes: 4 << 20,
        ..LogConfig::default()
    };
    let log = StandaloneLog::open(path, true, config)?;
    // An append sets offsets in the bytes, so each one gets a fresh copy of the batch.
    let mut bytes = load.batch.clone();
    let time = seconds(|| {
        for _ in 0..load.count {
            log.append(&mut bytes)?;
        }
        Ok(())
    })?;
    log.close()?;
    fs::remove_dir_all(path)?;
    Ok(time)
}
