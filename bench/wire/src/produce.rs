//! Load: each connection sends one encoded Produce request again and again, several in flight, and checks each answer.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use logcore_records::{BatchBuilder, Compression};

use crate::args::{Args, Count, Size};
use crate::error::BenchError;
use crate::frames::Frames;
use crate::messages;
use crate::report::Report;

/// The flags of `produce`.
pub(crate) struct Options {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) topic: String,
    pub(crate) partitions: Count,
    pub(crate) connections: Count,
    pub(crate) in_flight: Count,
    pub(crate) record_size: Size,
    pub(crate) batch_size: Size,
    pub(crate) acks: i16,
    pub(crate) seconds: f64,
}

impl Options {
    pub(crate) fn take(args: &mut Args) -> Result<Self, BenchError> {
        let options = Self {
            host: args.optional("host", "127.0.0.1".to_owned())?,
            port: args.required("port")?,
            topic: args.required("topic")?,
            partitions: args.optional("partitions", Count::MIN)?,
            connections: args.optional("connections", Count::MIN)?,
            in_flight: args.optional("in-flight", Count::MIN.saturating_add(4))?,
            record_size: args.optional("record-size", Size(100))?,
            batch_size: args.optional("batch-size", Size(16 << 10))?,
            acks: args.optional("acks", 1)?,
            seconds: args.optional("seconds", 5.0)?,
        };
        args.finish()?;
        Ok(options)
    }
}

/// The time a run lasts, from a flag.
pub(crate) fn duration(seconds: f64) -> Result<Duration, BenchError> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|error| BenchError::Usage(format!("--seconds {seconds}: {error}")))
}

/// Connects without Nagle's algorithm, which would hold small requests back.
pub(crate) fn connect(host: &str, port: u16) -> Result<TcpStream, BenchError> {
    let stream = TcpStream::connect((host, port))
        .map_err(BenchError::io(format!("connecting to {host}:{port}")))?;
    stream
        .set_nodelay(true)
        .map_err(BenchError::io("setting TCP_NODELAY"))?;
    Ok(stream)
}

/// One uncompressed batch of as many records of `record_size` bytes as `batch_size` takes (one at least), and their
/// number. The values are noise, so that nothing on the way can gain from their content.
pub(crate) fn make_batch(
    record_size: usize,
    batch_size: usize,
) -> Result<(Vec<u8>, u64), BenchError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_ms = now.map_or(0, |time| time.as_millis() as i64);
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut value = vec![0; record_size];
    let mut builder = BatchBuilder::with_capacity(Compression::None, None, batch_size);
    let bound = BatchBuilder::record_size_bound(None, Some(&value), &[]);
    loop {
        for byte in &mut value {
            // xorshift64
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte = state as u8;
        }
        builder.append(now_ms, None, Some(&value), &[])?;
        if builder.estimated_size() + bound > batch_size {
            let records = builder.len() as u64;
            return Ok((builder.build()?, records));
        }
    }
}

/// One connection's work: the requests that were answered (or, with acks 0, sent).
fn drive(
    mut stream: &TcpStream,
    request: &mut [u8],
    options: &Options,
    end: Instant,
) -> Result<u64, BenchError> {
    let mut frames = Frames::new(stream);
    let (mut sent, mut answered) = (0u64, 0u64);
    loop {
        let going = Instant::now() < end;
        let in_flight = sent - answered;
        if going && in_flight < u64::from(options.in_flight.get()) {
            messages::set_correlation_id(request, sent as i32);
            stream
                .write_all(request)
                .map_err(BenchError::io("sending a produce request"))?;
            sent += 1;
            if options.acks == 0 {
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

/// Runs the load and reports what was acknowledged.
pub(crate) fn run(options: &Options) -> Result<Report, BenchError> {
    let time = duration(options.seconds)?;
    let (batch, records) = make_batch(options.record_size.0, options.batch_size.0)?;
    let mut connections = Vec::new();
    for index in 0..options.connections.get() {
        let partition = (index % options.partitions.get()) as i32;
        let stream = connect(&options.host, options.port)?;
        let request = messages::produce_request(&options.topic, partition, options.acks, &batch);
        connections.push((stream, request));
    }
    let start = Barrier::new(connections.len());
    let begun = Instant::now();
    let requests = thread::scope(|scope| {
        let threads: Vec<_> = connections
            .iter_mut()
            .map(|(stream, request)| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    drive(stream, request, options, Instant::now() + time)
                })
            })
            .collect();
        let mut requests = 0;
        for thread in threads {
            requests += thread.join().map_err(|_| BenchError::Panicked)??;
        }
        Ok::<u64, BenchError>(requests)
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    let per_second = requests as f64 / seconds;
    let payload = records as f64 * options.record_size.0 as f64;
    Ok(Report::new("produce")
        .with_figure("mb_per_s", per_second * batch.len() as f64 / 1e6)
        .with_figure("payload_mb_per_s", per_second * payload / 1e6)
        .with_figure("records_per_s", per_second * records as f64)
        .with_figure("requests_per_s", per_second)
        .with("requests", requests)
        .with("records", requests * records)
        .with("batch_bytes", batch.len())
        .with("records_per_batch", records)
        .with("connections", options.connections)
        .with("in_flight", options.in_flight)
        .with("acks", options.acks)
        .with_figure("seconds", seconds))
}
