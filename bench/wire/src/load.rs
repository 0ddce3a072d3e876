//! Parts of all loads: the flags, the connections, the batch and its requests.

use std::net::TcpStream;
use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use logcore_records::{BatchBuilder, Compression};

use crate::args::{Args, Count, Size};
use crate::connections::Source;
use crate::error::BenchError;
use crate::messages;
use crate::report::Report;
use crate::target::Target;

/// The flags of every load that sends batches over several connections.
pub(crate) struct Load {
    pub(crate) target: Target,
    pub(crate) topic: String,
    pub(crate) partitions: Count,
    pub(crate) connections: Count,
    pub(crate) record_size: Size,
    /// The size before compression.
    pub(crate) batch_size: Size,
    pub(crate) codec: Compression,
    pub(crate) acks: i16,
    pub(crate) seconds: f64,
}

impl Load {
    pub(crate) fn take(args: &mut Args) -> Result<Self, BenchError> {
        Ok(Self {
            target: Target::take(args)?,
            topic: args.required("topic")?,
            partitions: args.optional("partitions", Count::MIN)?,
            connections: args.optional("connections", Count::MIN)?,
            record_size: args.optional("record-size", Size(100))?,
            batch_size: args.optional("batch-size", Size(16 << 10))?,
            codec: args.optional("codec", Compression::None)?,
            acks: args.optional("acks", 1)?,
            seconds: args.optional("seconds", 5.0)?,
        })
    }

    /// Opens the connections one after another, each to the leader of its partitions.
    pub(crate) fn connect(&self) -> Result<Vec<TcpStream>, BenchError> {
        let partitions: Vec<_> = (0..self.partitions.get() as i32).collect();
        let leaders = self.target.leaders(&self.topic, &partitions)?;
        let open = |connection| {
            let partitions = self.partitions_of(connection);
            let (host, port) = &leaders[partitions[0] as usize];
            if partitions
                .iter()
                .any(|other| leaders[*other as usize] != (host.clone(), *port))
            {
                return Err(BenchError::Usage(format!(
                    "partitions {partitions:?} of topic {} have several leaders and one connection; give as \
                     many --connections as --partitions",
                    self.topic
                )));
            }
            connect(host, *port)
        };
        (0..self.connections.get()).map(open).collect()
    }

    /// The partitions that a connection sends to; see [`partition_of`].
    fn partitions_of(&self, connection: u32) -> Vec<i32> {
        let (connections, partitions) = (self.connections.get().into(), self.partitions.get().into());
        let mut partitions: Vec<_> = (0..partitions)
            .map(|number| partition_of(connection.into(), number, connections, partitions))
            .collect();
        partitions.sort_unstable();
        partitions.dedup();
        partitions
    }

    /// The requests of this load, and the number of records in each.
    pub(crate) fn requests(&self) -> Result<(Requests, u64), BenchError> {
        let (batch, records) = make_batch(self.record_size.0, self.batch_size.0, self.codec)?;
        let (bytes, partition_at) = messages::produce_request(&self.topic, 0, self.acks, &batch);
        let requests = Requests {
            bytes,
            partition_at,
            batch_bytes: batch.len(),
            partitions: u64::from(self.partitions.get()),
            connections: u64::from(self.connections.get()),
        };
        Ok((requests, records))
    }
}

/// The partition of a connection's request `number`. A connection sends to its partitions in turn.
/// Connections share no partition if the number of partitions is a multiple of the number of connections.
fn partition_of(connection: u64, number: u64, connections: u64, partitions: u64) -> i32 {
    ((connection + number * connections) % partitions) as i32
}

/// One encoded request. Each request of a load differs only in its correlation id and partition.
#[derive(Clone)]
pub(crate) struct Requests {
    bytes: Vec<u8>,
    partition_at: Range<usize>,
    pub(crate) batch_bytes: usize,
    partitions: u64,
    connections: u64,
}

impl Source for Requests {
    fn get(&mut self, connection: usize, number: u64) -> &[u8] {
        let partition = partition_of(connection as u64, number, self.connections, self.partitions);
        messages::set_correlation_id(&mut self.bytes, number as i32);
        self.bytes[self.partition_at.clone()].copy_from_slice(&partition.to_be_bytes());
        &self.bytes
    }

    fn check(frame: &[u8], number: u64) -> Result<(), BenchError> {
        messages::check_produce_response(frame, number as i32).map(|_| ())
    }
}

impl Requests {
    /// Adds the figures of the answered requests to a report.
    pub(crate) fn report(
        &self,
        report: Report,
        load: &Load,
        records: u64,
        answered: u64,
        seconds: f64,
    ) -> Report {
        let per_second = answered as f64 / seconds;
        let payload = records as f64 * load.record_size.0 as f64;
        report
            .with_figure("mb_per_s", per_second * self.batch_bytes as f64 / 1e6)
            .with_figure("payload_mb_per_s", per_second * payload / 1e6)
            .with_figure("records_per_s", per_second * records as f64)
            .with_figure("requests_per_s", per_second)
            .with("requests", answered)
            .with("records", answered * records)
            .with("bytes", answered * self.batch_bytes as u64)
            .with("batch_bytes", self.batch_bytes)
            .with("records_per_batch", records)
            .with("connections", load.connections)
            .with("partitions", load.partitions)
            .with("acks", load.acks)
            .with_figure("seconds", seconds)
    }
}

/// The duration of a run.
pub(crate) fn duration(seconds: f64) -> Result<Duration, BenchError> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|error| BenchError::Usage(format!("--seconds {seconds}: {error}")))
}

/// Connects without Nagle's algorithm, which would delay small requests.
pub(crate) fn connect(host: &str, port: u16) -> Result<TcpStream, BenchError> {
    let stream =
        TcpStream::connect((host, port)).map_err(BenchError::io(format!("connecting to {host}:{port}")))?;
    stream
        .set_nodelay(true)
        .map_err(BenchError::io("setting TCP_NODELAY"))?;
    Ok(stream)
}

/// The words of compressible values.
const WORDS: [&[u8]; 8] = [
    b"carrier ",
    b"origin ",
    b"departure delay ",
    b"ATL ",
    b"SFO ",
    b"cancelled ",
    b"-12 ",
    b"none ",
];

/// One batch of as many records of `record_size` bytes as fit into `batch_size` before compression, at least
/// one. Returns the number of records, too. Without a codec the values are random, so that no program can
/// compress them. With a codec they are words and numbers, which compress to about a third.
pub(crate) fn make_batch(
    record_size: usize,
    batch_size: usize,
    codec: Compression,
) -> Result<(Vec<u8>, u64), BenchError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_ms = now.map_or(0, |time| time.as_millis() as i64);
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move || {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut value = vec![0; record_size];
    let mut builder = BatchBuilder::with_capacity(codec, None, batch_size);
    let bound = BatchBuilder::record_size_bound(None, Some(&value), &[]);
    loop {
        if codec == Compression::None {
            value.fill_with(|| random() as u8);
        } else {
            value.clear();
            while value.len() < record_size {
                value.extend_from_slice(WORDS[(random() >> 32) as usize % WORDS.len()]);
                value.extend_from_slice((random() >> 54).to_string().as_bytes());
            }
            value.truncate(record_size);
        }
        builder.append(now_ms, None, Some(&value), &[])?;
        if builder.estimated_size() + bound > batch_size {
            let records = builder.len() as u64;
            return Ok((builder.build()?, records));
        }
    }
}
