//! Recovers a log that was not closed; the limit is reading its bytes and computing their checksums.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use logcore_records::Batch;
use logcore_storage::{Log, LogConfig, StandaloneLog};

use crate::table::Table;
use crate::{Outcome, batch, seconds};

const TOTAL: usize = 1 << 30;

pub(crate) fn run(directory: &Path, rounds: usize, table: &mut Table) -> Outcome {
    let path = directory.join("recovery-0");
    let config = || LogConfig {
        max_message_bytes: 4 << 20,
        ..LogConfig::default()
    };
    let mut bytes = batch(1000, 1040)?;
    let log = StandaloneLog::open(&path, true, config())?;
    let count = TOTAL / bytes.len() - 1;
    for _ in 0..count {
        log.append(&mut bytes)?;
    }
    log.close()?;
    let size = (count * bytes.len()) as f64 / 1e9;
    let segment = path.join("00000000000000000000.log");
    let (mut ours, mut limit) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        let bare = seconds(|| {
            let file = File::open(&segment)?;
            let mut read = vec![0; bytes.len()];
            for number in 0..count {
                file.read_exact_at(&mut read, (number * bytes.len()) as u64)?;
                Batch::parse(&read)?.verify_crc()?;
            }
            Ok(())
        })?;
        let mut opened = None;
        let recovered = seconds(|| {
            opened = Some(Log::open(&path, config(), false, 0)?);
            Ok(())
        })?;
        if let Some(log) = opened {
            assert_eq!(log.log_end_offset(), count as i64 * 1000);
            log.close()?;
        }
        if round > 0 {
            ours.push(size / recovered);
            limit.push(size / bare);
        }
    }
    table.speed(
        "recovery from the page cache, one log",
        "GB/s",
        &ours,
        &limit,
        "≥ 1.5 GB/s",
    );
    fs::remove_dir_all(&path)?;
    Ok(())
}
