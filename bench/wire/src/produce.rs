//! Load: each connection keeps several Produce requests in flight, and checks each response.
//!
//! Each connection has a thread with a blocking socket. With `--threads`, so many threads share all
//! connections.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use crate::args::{Args, Count};
use crate::connections::{self, Source};
use crate::descriptors;
use crate::error::BenchError;
use crate::frames::Frames;
use crate::load::{Load, Requests, duration};
use crate::messages;
use crate::report::Report;

/// The flags of `produce`.
pub(crate) struct Options {
    pub(crate) load: Load,
    pub(crate) in_flight: Count,
    /// 0 means one thread for each connection.
    pub(crate) threads: u32,
}

impl Options {
    pub(crate) fn take(args: &mut Args) -> Result<Self, BenchError> {
        let options = Self {
            load: Load::take(args)?,
            in_flight: args.optional("in-flight", Count::MIN.saturating_add(4))?,
            threads: args.optional("threads", 0)?,
        };
        args.finish()?;
        if options.threads > 0 && options.load.acks == 0 {
            return Err(BenchError::Usage(
                "--acks 0 has no answers to wait for with --threads".to_owned(),
            ));
        }
        Ok(options)
    }
}

/// Runs one connection. Returns the number of requests that were answered or, with acks=0, sent.
fn drive(
    mut stream: &TcpStream,
    connection: usize,
    mut requests: Requests,
    options: &Options,
    end: Instant,
) -> Result<u64, BenchError> {
    let mut frames = Frames::new(stream);
    let (mut sent, mut answered) = (0u64, 0u64);
    loop {
        let going = Instant::now() < end;
        let in_flight = sent - answered;
        if going && in_flight < u64::from(options.in_flight.get()) {
            stream
                .write_all(requests.get(connection, sent))
                .map_err(BenchError::io("sending a produce request"))?;
            sent += 1;
            if options.load.acks == 0 {
                answered += 1;
            }
        } else if in_flight > 0 {
            messages::check_produce_response(frames.expect()?, answered as i32)?;
            answered += 1;
        } else {
            return Ok(answered);
        }
    }
}

/// Runs each connection in a thread of its own. Returns the number of answered requests.
fn run_threads(options: &Options, streams: &[TcpStream], requests: &Requests) -> Result<u64, BenchError> {
    let time = duration(options.load.seconds)?;
    let start = Barrier::new(streams.len());
    thread::scope(|scope| {
        let threads: Vec<_> = streams
            .iter()
            .enumerate()
            .map(|(connection, stream)| {
                let (start, requests) = (&start, requests.clone());
                scope.spawn(move || {
                    start.wait();
                    drive(stream, connection, requests, options, Instant::now() + time)
                })
            })
            .collect();
        let mut answered = 0;
        for thread in threads {
            answered += thread.join().map_err(|_| BenchError::Panicked)??;
        }
        Ok(answered)
    })
}

/// Runs the load and reports its speed.
pub(crate) fn run(options: &Options) -> Result<Report, BenchError> {
    descriptors::allow(options.load.connections.get())?;
    let (requests, records) = options.load.requests()?;
    let streams = options.load.connect()?;
    let begun = Instant::now();
    let answered = if options.threads == 0 {
        run_threads(options, &streams, &requests)?
    } else {
        let end = begun + duration(options.load.seconds)?;
        let in_flight = options.in_flight.get();
        let groups = connections::split(streams, options.threads, &requests)?;
        connections::run(groups, |_, group| group.keep_busy(in_flight, end))?
    };
    let seconds = begun.elapsed().as_secs_f64();
    let report = requests.report(Report::new("produce"), &options.load, records, answered, seconds);
    Ok(report
        .with("in_flight", options.in_flight)
        .with("threads", options.threads))
}
