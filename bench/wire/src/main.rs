//! A load generator on the wire, and the bare limits of the machine to hold its figures against.
//!
//! `produce`, `paced`, `fetch` and `latency` load any broker that speaks Kafka's protocol. `bare-broker` and `bare-sendfile`
//! are the least that could answer them: what a broker reaches of their figures is what it adds in cost.
//! `write-loop` is the disk (or page cache) with nothing in front.
//!
//! Each command prints one line of JSON on standard output. MB are 10^6 and GB 10^9 bytes. The topics must exist.
//! It uses threads and blocking sockets, one thread a connection, so that it is nobody's model of a server. Only what
//! needs thousands of connections or a schedule (`produce --threads`, `paced`) drives many from one thread, with epoll.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod args;
mod bare_broker;
mod bare_sendfile;
mod crowd;
mod cursor;
mod descriptors;
mod error;
mod fetch;
mod frames;
mod latency;
mod load;
mod messages;
mod paced;
mod produce;
mod report;
#[cfg(test)]
mod tests;
mod write_loop;

use std::process::ExitCode;

use args::Args;
use error::BenchError;

const USAGE: &str = "\
usage: logcore-bench-wire COMMAND [--flag value]...

  produce       --port P --topic T [--host 127.0.0.1] [--partitions 1] [--connections 1] [--in-flight 5]
                [--record-size 100] [--batch-size 16KiB] [--codec none] [--acks 1] [--seconds 5] [--threads 0]
  paced         --port P --topic T --rate R [--host 127.0.0.1] [--partitions 1] [--connections 1]
                [--record-size 100] [--batch-size 16KiB] [--codec none] [--acks 1] [--seconds 5] [--threads 1]
  fetch         --port P --topic T [--host 127.0.0.1] [--partition 0] [--connections 1] [--max-bytes 4MiB]
                [--seconds 5]
  latency       --port P --topic T [--host 127.0.0.1] [--partition 0] [--record-size 100] [--acks 1] [--seconds 5]
  bare-broker   --dir D [--port 0]      answers produce, paced and latency; runs until it is killed
  bare-sendfile --file F [--port 0]     answers fetch from a file of batches; runs until it is killed
  write-loop    --dir D [--block 1MiB] [--total 1GiB] [--file-size 1GiB]

`produce` keeps --in-flight requests of each connection under way, from a thread a connection or, with --threads N, from
N for all. `paced` sends R requests a second, whatever the broker does, and measures from when each was due. With more
partitions than connections, each connection sends to its share of them in turn.
--codec is none, gzip, snappy, lz4 or zstd; batches are compressed before the time begins, and --batch-size is that of the records.
Sizes are bytes, or end in KiB, MiB or GiB.";

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
        "bare-broker" => bare_broker::run(&bare_broker::Options::take(&mut args)?)?,
        "bare-sendfile" => bare_sendfile::run(&bare_sendfile::Options::take(&mut args)?)?,
        "write-loop" => write_loop::run(&write_loop::Options::take(&mut args)?)?.print(),
        "" => return Err(BenchError::Usage("a command is missing".to_owned())),
        other => {
            return Err(BenchError::Usage(format!(
                "\"{other}\" is not one of its commands"
            )));
        }
    }
    Ok(())
}
