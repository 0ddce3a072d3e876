//! A load generator that speaks Kafka's protocol, and minimal servers that show the limits of the machine.
//!
//! `produce`, `paced`, `fetch` and `latency` send load to a broker. `bare-broker` and `bare-sendfile` do the
//! least work that answers this load, so a broker's figures beside theirs show the cost of the broker.
//! `commits`, `heartbeats` and `members` are consumers without a client library.
//! `write-loop` measures the disk or the page cache alone.
//!
//! Each command prints one line of JSON on standard output. A MB is 10^6 bytes, a GB 10^9. The topics must
//! exist. Most commands use blocking sockets and one thread a connection, unlike the servers they measure.
//! `produce --threads`, `paced` and the groups need many connections or a schedule, so they use epoll.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod args;
mod assignor;
mod bare_broker;
mod bare_sendfile;
#[cfg(test)]
mod cluster_tests;
mod connections;
mod cursor;
mod descriptors;
mod error;
mod fetch;
mod frames;
mod gap;
mod group_load;
mod group_messages;
#[cfg(test)]
mod group_tests;
mod latency;
mod load;
mod member;
mod members;
mod membership;
mod messages;
mod metadata;
mod paced;
mod produce;
mod report;
mod target;
#[cfg(test)]
mod tests;
mod wait_for_leaders;
mod write_loop;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use args::Args;
use error::BenchError;
use group_load::Kind;

const USAGE: &str = "\
usage: logcore-bench-wire COMMAND [--flag value]...

  produce       --port P --topic T [--host 127.0.0.1] [--partitions 1] [--connections 1] [--in-flight 5]
                [--record-size 100] [--batch-size 16KiB] [--codec none] [--acks 1] [--seconds 5] [--threads 0]
  paced         --port P --topic T --rate R [--host 127.0.0.1] [--partitions 1] [--connections 1]
                [--record-size 100] [--batch-size 16KiB] [--codec none] [--acks 1] [--seconds 5] [--threads 1]
  fetch         --port P --topic T [--host 127.0.0.1] [--partition 0] [--connections 1] [--max-bytes 4MiB]
                [--seconds 5]
  latency       --port P --topic T [--host 127.0.0.1] [--partition 0] [--record-size 100] [--acks 1]
                [--seconds 5]
  commits       --port P --topic T [--host 127.0.0.1] [--partitions 1] [--groups 50] [--in-flight 1]
                [--protocol eager] [--threads 1] [--seconds 5]
  heartbeats    --port P --topic T [--host 127.0.0.1] [--partitions 50] [--groups 10] [--members 50]
                [--in-flight 1] [--protocol eager] [--threads 1] [--seconds 5]
  members       --port P --topic T --partitions N [--host 127.0.0.1] [--members 500] [--roll 20]
                [--protocol eager] [--heartbeat-ms 500] [--session-ms 10000]
  gap           --bootstrap P --topic T [--host 127.0.0.1] [--partition 0] [--record-size 100]
                runs until its standard input ends
  wait-for-leaders --ports P,... --topic T --partitions N [--host 127.0.0.1] [--topics 0] [--not-broker ID]
                [--in-sync 0] [--timeout 120]
  bare-broker   --dir D [--port 0]      answers produce, paced and latency; runs until it is killed
  bare-sendfile --file F [--port 0]     answers fetch from a file of batches; runs until it is killed
  write-loop    --dir D [--block 1MiB] [--total 1GiB] [--file-size 1GiB]

`produce` keeps --in-flight requests open on each connection. It uses one thread for each connection or, with
--threads N, N threads for all. `paced` sends R requests a second, also to a slow broker, and measures each
from its scheduled time. With more partitions than connections, each connection sends to its share of the
partitions in turn. With --bootstrap P in place of --port P, produce,
paced and latency ask the broker at P for the leaders and send to them. `gap` sends one record after
another with acks=all, finds each new leader, and reports the longest time without an answer.
`commits` has one member in each group, which commits all partitions of T at once. `heartbeats` has groups
of several members. `members` forms one group, loses a member, and replaces --roll members one after another;
--protocol is eager, cooperative or consumer (KIP-848).
`wait-for-leaders` waits until each partition of T, or of T-0, T-1, … with --topics, has a leader other than
--not-broker in the Metadata of every port. --codec is none, gzip, snappy, lz4 or zstd. Batches are
compressed before the run, and --batch-size is the size before compression. Sizes are bytes, or end in
KiB, MiB or GiB.";

/// Standard input has ended.
static STOP: AtomicBool = AtomicBool::new(false);

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let command = words.next().unwrap_or_default();
    match run(&command, words.collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(BenchError::Usage(text)) => {
            eprintln!("logcore-bench-wire: {text}\n\n{USAGE}");
            ExitCode::from(2)
        }
        Err(error) => {
            eprintln!("logcore-bench-wire {command}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &str, words: Vec<String>) -> Result<(), BenchError> {
    if matches!(command, "--help" | "-h" | "help") {
        println!("{USAGE}");
        return Ok(());
    }
    let mut args = Args::parse(words)?;
    match command {
        "produce" => produce::run(&produce::Options::take(&mut args)?)?.print(),
        "paced" => paced::run(&paced::Options::take(&mut args)?)?.print(),
        "fetch" => fetch::run(&fetch::Options::take(&mut args)?)?.print(),
        "latency" => latency::run(&latency::Options::take(&mut args)?)?.print(),
        "commits" => group_load::run(&group_load::Options::take(&mut args, Kind::Commits)?)?.print(),
        "heartbeats" => group_load::run(&group_load::Options::take(&mut args, Kind::Heartbeats)?)?.print(),
        "members" => members::run(&members::Options::take(&mut args)?)?.print(),
        "gap" => {
            let options = gap::Options::take(&mut args)?;
            thread::spawn(|| {
                let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
                STOP.store(true, Ordering::Relaxed);
            });
            gap::run(&options, &STOP, || println!("producing"))?.print();
        }
        "wait-for-leaders" => {
            wait_for_leaders::run(&wait_for_leaders::Options::take(&mut args)?)?.print();
        }
        "bare-broker" => bare_broker::run(&bare_broker::Options::take(&mut args)?)?,
        "bare-sendfile" => bare_sendfile::run(&bare_sendfile::Options::take(&mut args)?)?,
        "write-loop" => write_loop::run(&write_loop::Options::take(&mut args)?)?.print(),
        "" => return Err(BenchError::Usage("a command is missing".to_owned())),
        other => {
            return Err(BenchError::Usage(format!(
                "\"{other}\" is not a command of this program"
            )));
        }
    }
    Ok(())
}
