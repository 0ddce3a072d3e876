//! Lookups in the index and by time, and fetches beside `sendfile` from known positions.

use std::fs::{self, File};
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::Instant;

use logcore_storage::{LogConfig, LogSlice, StandaloneLog};
use rustix::net::sockopt;

use crate::table::Table;
use crate::{Outcome, batch, seconds};

const BATCHES: usize = 256;
const RECORDS: usize = 1000;
const LOOKUPS: usize = 2_000_000;
/// Fetches of 1 MiB per round.
const FETCHES: usize = 2000;

pub(crate) fn run(directory: &Path, rounds: usize, table: &mut Table) -> Outcome {
    let path = directory.join("fetch-0");
    let config = LogConfig {
        max_message_bytes: 4 << 20,
        ..LogConfig::default()
    };
    let log = StandaloneLog::open(&path, true, config)?;
    let mut bytes = batch(RECORDS, 1040)?;
    for _ in 0..BATCHES {
        log.append(&mut bytes)?;
    }
    lookups(&log, rounds, table);
    fetches(&log, rounds, table)?;
    log.close()?;
    fs::remove_dir_all(&path)?;
    Ok(())
}

/// Pseudo-random numbers, the same in each run.
fn noise(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn lookups(log: &StandaloneLog, rounds: usize, table: &mut Table) {
    let end = log.log_end_offset() as u64;
    // The limit: the same binary search in a vector with as many entries.
    let entries: Vec<(i64, u64)> = (1..BATCHES as u64)
        .map(|number| (((number + 1) * RECORDS as u64) as i64 - 1, number))
        .collect();
    let in_vector = |offset: i64| {
        let after = entries.partition_point(|(last, _)| *last <= offset);
        after.checked_sub(1).map_or(0, |before| entries[before].1)
    };
    let in_log = |offset: i64| log.index_position(offset).map_or(0, |(_, at)| at);
    let (mut times, mut limit) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        limit.push(nanoseconds(end, in_vector));
        times.push(nanoseconds(end, in_log));
    }
    table.time("lookup of an offset in the index", "ns", &times, &limit, "≤ 200");
}

/// Nanoseconds per search for the offsets before `end`.
fn nanoseconds(end: u64, search: impl Fn(i64) -> u64) -> f64 {
    let (mut state, mut found) = (0x9e37_79b9_7f4a_7c15, 0u64);
    let begun = Instant::now();
    for _ in 0..LOOKUPS {
        let offset = (noise(&mut state) % end) as i64;
        found = found.wrapping_add(search(offset));
    }
    std::hint::black_box(found);
    begun.elapsed().as_secs_f64() / LOOKUPS as f64 * 1e9
}

fn fetches(log: &StandaloneLog, rounds: usize, table: &mut Table) -> Outcome {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let sender = TcpStream::connect(listener.local_addr()?)?;
    let (mut receiver, _) = listener.accept()?;
    // Kafka's default for the broker's connections.
    sockopt::set_socket_send_buffer_size(&sender, 102_400)?;
    let reader = thread::spawn(move || {
        let mut bytes = vec![0; 256 << 10];
        while receiver.read(&mut bytes).is_ok_and(|read| read > 0) {}
    });
    let offsets: Vec<i64> = (0..FETCHES)
        .map(|number| (number % (BATCHES - 1) * RECORDS + RECORDS / 2) as i64)
        .collect();
    let end = log.high_watermark();
    let found: Vec<LogSlice> = offsets
        .iter()
        .map(|offset| log.read(*offset, 1 << 20, end, true))
        .collect::<Result<_, _>>()?;
    let size: u64 = found.iter().map(|slice| slice.len).sum();
    let (mut ours, mut limit) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        let bare = seconds(|| {
            found
                .iter()
                .try_for_each(|slice| send(&sender, &slice.file, slice.position, slice.len))
        })?;
        let fetched = seconds(|| {
            offsets.iter().try_for_each(|offset| {
                let slice = log.read(*offset, 1 << 20, end, true)?;
                send(&sender, &slice.file, slice.position, slice.len)
            })
        })?;
        if round > 0 {
            ours.push(size as f64 / fetched / 1e6);
            limit.push(size as f64 / bare / 1e6);
        }
    }
    table.speed("fetch of 1 MiB by sendfile", "MB/s", &ours, &limit, "≥ 0.95");
    drop(sender);
    reader.join().map_err(|_| "the thread that reads panicked".into())
}

fn send(socket: &TcpStream, file: &File, mut position: u64, mut left: u64) -> Outcome {
    while left > 0 {
        let sent = rustix::fs::sendfile(socket, file, Some(&mut position), left as usize)?;
        if sent == 0 {
            return Err("the file was cut".into());
        }
        left -= sent as u64;
    }
    Ok(())
}
