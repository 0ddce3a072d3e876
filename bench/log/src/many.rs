//! A directory of many partitions: opening it after a clean shutdown, and its memory.
//!
//! The limit of opening is listing the directories and opening each log's file. Memory is measured in a new
//! process.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use logcore_storage::{LogConfig, LogDir};

use crate::table::Table;
use crate::{Outcome, batch, now_ms, seconds};

const PARTITIONS: i32 = 2000;

pub(crate) fn run(directory: &Path, rounds: usize, table: &mut Table) -> Outcome {
    let path = directory.join("many");
    let open = || LogDir::open(&path, 0, None, &|_| LogConfig::default());
    let dir = open()?;
    let bytes = batch(10, 100)?;
    for partition in 0..PARTITIONS {
        let created = dir.create("many", partition, [1; 16], LogConfig::default())?;
        created.log.append_as_leader(&mut bytes.clone(), 0, now_ms())?;
    }
    dir.close()?;
    drop(dir);
    let (mut times, mut limit) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        limit.push(seconds(|| bare(&path))?);
        let mut opened = None;
        times.push(seconds(|| {
            opened = Some(open()?);
            Ok(())
        })?);
        if let Some(dir) = opened {
            assert_eq!(dir.partitions().len(), PARTITIONS as usize);
            dir.close()?;
        }
    }
    table.time("opening 2,000 closed partitions", "s", &times, &limit, "≤ 0.5");
    let (mut opened, mut written) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let child = Command::new(std::env::current_exe()?)
            .arg("--memory")
            .arg(&path)
            .output()?;
        let text = String::from_utf8_lossy(&child.stdout).into_owned();
        let (first, second) = text
            .trim()
            .split_once(' ')
            .ok_or_else(|| format!("no figures of memory: {}", String::from_utf8_lossy(&child.stderr)))?;
        opened.push(first.parse()?);
        written.push(second.parse()?);
    }
    table.figure("memory of 2,000 open partitions", "MB", &opened, "≤ 60");
    table.figure(
        "memory of 2,000 open partitions after appends to each",
        "MB",
        &written,
        "≤ 60",
    );
    fs::remove_dir_all(&path)?;
    Ok(())
}

/// Lists the directories and opens each log's file, the least that opening needs.
fn bare(path: &Path) -> Outcome {
    let mut files = Vec::new();
    for partition in fs::read_dir(path)? {
        let partition = partition?;
        if !partition.file_type()?.is_dir() {
            continue;
        }
        for file in fs::read_dir(partition.path())? {
            let file = file?.path();
            if file.extension().is_some_and(|extension| extension == "log") {
                let opened = File::open(file)?;
                let size = opened.metadata()?.len();
                files.push((opened, size));
            }
        }
    }
    assert_eq!(files.len(), PARTITIONS as usize);
    Ok(())
}

/// Prints how many MB of memory the open partitions take, before and after appends to each.
pub(crate) fn memory(path: &Path) -> Outcome {
    // The second of two appends makes an entry in each index, whose pages count, too.
    let bytes = batch(10, 1000)?;
    let before = resident_mb()?;
    let dir = LogDir::open(path, 0, None, &|_| LogConfig::default())?;
    let opened = resident_mb()? - before;
    for partition in dir.partitions() {
        for _ in 0..2 {
            let mut bytes = bytes.clone();
            partition.log.append_as_leader(&mut bytes, 0, now_ms())?;
        }
    }
    println!("{opened} {}", resident_mb()? - before);
    dir.close()?;
    Ok(())
}

fn resident_mb() -> Outcome<f64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .ok_or("no VmRSS in /proc/self/status")?;
    let kilobytes: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kilobytes / 1000.0)
}
