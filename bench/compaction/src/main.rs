//! Compaction alone: writes a log to compact, or compacts one with the storage crate's cleaner.
//!
//! `KafkaCleaner.java` compacts one with Apache Kafka's `Cleaner`. `run.py` runs both on copies of one log
//! and prints the table. The speed counts the log's bytes once, although they are read twice: to map keys and
//! to copy.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use logcore_records::{BatchBuilder, Compression};
use logcore_storage::{Log, LogConfig};

const USAGE: &str = "\
usage: logcore-bench-compaction write DIR MIB KEYS CODEC     a log of MIB MiB with KEYS different keys
       logcore-bench-compaction run DIR                      compacts it and says how long that took";

/// The records that fill a producer's batch of 16 KiB.
const RECORDS_PER_BATCH: usize = 120;
const VALUE_BYTES: usize = 100;
const SEGMENT_BYTES: u64 = 128 << 20;

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["write", dir, mib, keys, codec] => write(Path::new(dir), mib, keys, codec),
        ["run", dir] => run(Path::new(dir)),
        _ => Err(USAGE.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("logcore-bench-compaction: {error}");
            ExitCode::FAILURE
        }
    }
}

fn config() -> LogConfig {
    LogConfig {
        segment_bytes: SEGMENT_BYTES,
        cleanup_compact: true,
        cleanup_delete: false,
        retention_ms: -1,
        ..LogConfig::default()
    }
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as i64)
}

/// Pseudo-random numbers, the same in each run (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

fn write(dir: &Path, mib: &str, keys: &str, codec: &str) -> Result<(), Failure> {
    let (mib, keys): (u64, u64) = (mib.parse()?, keys.parse()?);
    let log = Log::open(dir, config(), false, 0)?;
    let mut numbers = Numbers(1);
    let mut builder = BatchBuilder::new(codec.parse::<Compression>()?, None);
    let mut value = [0; VALUE_BYTES];
    while log.size_bytes() < mib << 20 {
        for _ in 0..RECORDS_PER_BATCH {
            let key = format!("key-{:012}", numbers.next() % keys);
            // Half of a value is repeated text, so that it compresses.
            value[..50].fill(b'v');
            for chunk in value[50..].chunks_mut(8) {
                chunk.copy_from_slice(&numbers.next().to_be_bytes()[..chunk.len()]);
            }
            builder.append(now_ms(), Some(key.as_bytes()), Some(&value), &[])?;
        }
        log.append_as_leader(&mut builder.build()?, 0, now_ms())?;
    }
    log.roll(now_ms())?;
    builder.append(now_ms(), Some(b"active"), Some(b"segment"), &[])?;
    log.append_as_leader(&mut builder.build()?, 0, now_ms())?;
    log.close()?;
    Ok(())
}

fn run(dir: &Path) -> Result<(), Failure> {
    let log = Log::open(dir, config(), true, 0)?;
    let bytes = log.size_bytes();
    let began = Instant::now();
    let stats = log.compact_now(now_ms())?;
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{{\"cleaner\": \"logcore\", \"bytes\": {bytes}, \"left\": {}, \
         \"seconds\": {seconds:.3}, \"mb_per_second\": {:.1}}}",
        stats.bytes_written,
        bytes as f64 / 1e6 / seconds
    );
    Ok(())
}
