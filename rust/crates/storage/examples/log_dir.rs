//! Drives a broker's log directory by commands. Tests in other languages use it for what no client can do:
//! writing transaction markers, appending old message formats as a follower, compacting at a chosen moment.
//!
//! `log_dir DIR NAME=VALUE...` opens the directory of broker 0 with these topic settings. It reads one
//! command a line until `close` or the end of the input. Without `close` the directory stays as a crash
//! leaves it. Each command is answered by one line: `ok` and its results. The first command that fails ends
//! the program.
//!
//! ```text
//! append TOPIC FILE       appends FILE's batches as a client's to the leader   ok FIRST LAST DUPLICATE
//! coordinate TOPIC FILE   the same as the transaction coordinator              ok FIRST LAST DUPLICATE
//! follow TOPIC FILE       the same as a follower, with the offsets they have   ok FIRST LAST DUPLICATE
//! roll TOPIC              begins a new segment                                 ok
//! compact TOPIC           compacts everything that may be compacted            ok READ WRITTEN
//! checkpoint              writes the checkpoints                               ok
//! close                   closes cleanly and ends the program                  ok
//! ```
//!
//! All commands use partition 0.

use std::io::{BufRead, Write, stdin, stdout};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use logcore_storage::{Appended, LogConfig, LogDir, Partition};

const BROKER_ID: i32 = 0;
const USAGE: &str = "usage: log_dir DIR NAME=VALUE...";

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("log_dir: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().ok_or(USAGE)?;
    let mut config = LogConfig::default();
    for argument in arguments {
        let (name, value) = argument.split_once('=').ok_or(USAGE)?;
        if !config.set(name, value)? {
            return Err(format!("there is no setting {name}").into());
        }
    }
    let dir = LogDir::open(Path::new(&dir), BROKER_ID, None, &|_| config.clone())?;
    if let Some((log, error)) = dir.failures().first() {
        return Err(format!("{} could not be loaded: {error}", log.display()).into());
    }
    for line in stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        let answer = execute(&dir, &words)?;
        writeln!(stdout(), "ok{answer}")?;
        if words == ["close"] {
            break;
        }
    }
    Ok(())
}

fn execute(dir: &LogDir, words: &[&str]) -> Result<String, Failure> {
    match *words {
        ["append", topic, file] => {
            let log = &partition(dir, topic)?.log;
            let epoch = log.latest_epoch().unwrap_or(0);
            let appended = log.append_as_leader(&mut std::fs::read(file)?, epoch, now_ms())?;
            Ok(described(&appended))
        }
        ["coordinate", topic, file] => {
            let log = &partition(dir, topic)?.log;
            let epoch = log.latest_epoch().unwrap_or(0);
            let appended = log.append_as_coordinator(&mut std::fs::read(file)?, epoch, now_ms())?;
            Ok(described(&appended))
        }
        ["follow", topic, file] => {
            let log = &partition(dir, topic)?.log;
            let appended = log.append_as_follower(&std::fs::read(file)?, now_ms())?;
            log.set_high_watermark(log.log_end_offset());
            Ok(described(&appended))
        }
        ["roll", topic] => {
            partition(dir, topic)?.log.roll(now_ms())?;
            Ok(String::new())
        }
        ["compact", topic] => {
            let stats = partition(dir, topic)?.log.compact_now(now_ms())?;
            Ok(format!(" {} {}", stats.records_read, stats.records_written))
        }
        ["checkpoint"] => {
            dir.checkpoint()?;
            Ok(String::new())
        }
        ["close"] => {
            dir.close()?;
            Ok(String::new())
        }
        _ => Err(format!("no such command: {}", words.join(" ")).into()),
    }
}

fn partition(dir: &LogDir, topic: &str) -> Result<Arc<Partition>, Failure> {
    let found = dir.get(topic, 0);
    found.ok_or_else(|| format!("there is no {topic}-0").into())
}

fn described(appended: &Appended) -> String {
    let Appended {
        first_offset,
        last_offset,
        duplicate,
        ..
    } = appended;
    format!(" {first_offset} {last_offset} {duplicate}")
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as i64)
}
