//! Load: reads a partition from offset 0 to its high watermark, again and again.

use std::io::Write;
use std::net::TcpStream;
use std::thread;
use std::time::Instant;

use logcore_records::batches;

use crate::args::{Args, Count, Size};
use crate::error::BenchError;
use crate::frames::Frames;
use crate::load::{connect, duration};
use crate::messages;
use crate::report::Report;

/// The flags of `fetch`.
pub(crate) struct Options {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) topic: String,
    pub(crate) partition: i32,
    pub(crate) connections: Count,
    pub(crate) max_bytes: Size,
    pub(crate) seconds: f64,
}

impl Options {
    pub(crate) fn take(args: &mut Args) -> Result<Self, BenchError> {
        let options = Self {
            host: args.optional("host", "127.0.0.1".to_owned())?,
            port: args.required("port")?,
            topic: args.required("topic")?,
            partition: args.optional("partition", 0)?,
            connections: args.optional("connections", Count::MIN)?,
            max_bytes: args.optional("max-bytes", Size(4 << 20))?,
            seconds: args.optional("seconds", 5.0)?,
        };
        args.finish()?;
        Ok(options)
    }
}

/// The counts of one connection.
#[derive(Default)]
struct Read {
    /// The bytes of records, with incomplete batches at the ends of responses.
    bytes: u64,
    requests: u64,
    /// The number of times that the high watermark was reached.
    rounds: u64,
}

/// The offset after the last whole batch in `records`, `None` when there is none.
fn next_offset(records: &[u8]) -> Result<Option<i64>, BenchError> {
    let mut next = None;
    for batch in batches(records) {
        next = Some(batch?.header.next_offset());
    }
    Ok(next)
}

fn drive(stream: TcpStream, options: &Options, end: Instant) -> Result<Read, BenchError> {
    let max_bytes = i32::try_from(options.max_bytes.0).unwrap_or(i32::MAX);
    let (mut request, offset_at) = messages::fetch_request(&options.topic, options.partition, max_bytes);
    let mut writer = &stream;
    let mut frames = Frames::new(&stream);
    let mut offset = 0i64;
    let mut read = Read::default();
    while Instant::now() < end {
        let correlation_id = read.requests as i32;
        messages::set_correlation_id(&mut request, correlation_id);
        request[offset_at.clone()].copy_from_slice(&offset.to_be_bytes());
        writer
            .write_all(&request)
            .map_err(BenchError::io("sending a fetch request"))?;
        let fetched = messages::read_fetch_response(frames.expect()?, correlation_id)?;
        read.bytes += fetched.records.len() as u64;
        read.requests += 1;
        match next_offset(fetched.records)? {
            Some(next) if next > offset => offset = next,
            _ => {
                return Err(BenchError::Protocol(format!(
                    "no whole batch at offset {offset} with the high watermark {}; is the partition empty?",
                    fetched.high_watermark
                )));
            }
        }
        if offset >= fetched.high_watermark {
            offset = 0;
            read.rounds += 1;
        }
    }
    Ok(read)
}

/// Runs the load and reports its speed.
pub(crate) fn run(options: &Options) -> Result<Report, BenchError> {
    let time = duration(options.seconds)?;
    let mut streams = Vec::new();
    for _ in 0..options.connections.get() {
        streams.push(connect(&options.host, options.port)?);
    }
    let begun = Instant::now();
    let total = thread::scope(|scope| {
        let threads: Vec<_> = streams
            .into_iter()
            .map(|stream| scope.spawn(move || drive(stream, options, begun + time)))
            .collect();
        let mut total = Read::default();
        for thread in threads {
            let read = thread.join().map_err(|_| BenchError::Panicked)??;
            total.bytes += read.bytes;
            total.requests += read.requests;
            total.rounds += read.rounds;
        }
        Ok::<Read, BenchError>(total)
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    Ok(Report::new("fetch")
        .with_figure("gb_per_s", total.bytes as f64 / seconds / 1e9)
        .with_figure("requests_per_s", total.requests as f64 / seconds)
        .with("bytes", total.bytes)
        .with("requests", total.requests)
        .with("rounds", total.rounds)
        .with("max_bytes", options.max_bytes.0)
        .with("connections", options.connections)
        .with_figure("seconds", seconds))
}
