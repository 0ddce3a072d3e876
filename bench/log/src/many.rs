//! A directory of many partitions: opened after a clean shutdown, and what they hold in memory.

use std::fs;
use std::path::Path;

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
        created
            .log
            .append_as_leader(&mut bytes.clone(), 0, now_ms())?;
    }
    dir.close()?;
    drop(dir);
    let (mut times, mut memory) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let before = resident_mb()?;
        let mut opened = None;
        times.push(seconds(|| {
            opened = Some(open()?);
            Ok(())
        })?);
        memory.push(resident_mb()? - before);
        if let Some(dir) = opened {
            assert_eq!(dir.partitions().len(), PARTITIONS as usize);
            dir.close()?;
        }
    }
    table.figure("opening 2,000 closed partitions", "s", &times, "≤ 0.5");
    // Later rounds find memory that the first gave back to the allocator, but not to the system.
    memory.truncate(1);
    table.figure("memory of 2,000 open partitions", "MB", &memory, "≤ 60");
    fs::remove_dir_all(&path)?;
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
