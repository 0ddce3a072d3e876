//! Load: one record at a time to one partition while brokers stop, and the longest time without an answer.
//!
//! A request that fails is repeated at once at the partition's new leader, until it is acknowledged. So the
//! gap is the cluster's, without the pauses of a client library. At the end the partition is read, and each
//! acknowledged record must be at its offset.

use std::collections::{BTreeMap, HashSet};
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use logcore_records::{BatchBuilder, Compression, batches};

use crate::args::{Args, Size};
use crate::error::BenchError;
use crate::frames::Frames;
use crate::latency::with_percentiles;
use crate::load::connect;
use crate::messages;
use crate::metadata::{Address, Asking};
use crate::report::Report;
use crate::target::PATIENCE;

/// The number of answers after which the run counts as going.
const GOING: usize = 200;
/// Between two questions for the new leader.
const PAUSE: Duration = Duration::from_millis(5);
/// The run fails after so long without an answer.
const STALLED: Duration = Duration::from_secs(120);
const ALL_IN_SYNC: i16 = -1;
const FETCH_BYTES: i32 = 4 << 20;
/// The bytes of a record's number, at the start of its value.
const NUMBER_BYTES: usize = 8;

/// The flags of `gap`.
pub(crate) struct Options {
    host: String,
    bootstrap: u16,
    topic: String,
    partition: i32,
    record_size: Size,
}

impl Options {
    pub(crate) fn take(args: &mut Args) -> Result<Self, BenchError> {
        let options = Self {
            host: args.optional("host", "127.0.0.1".to_owned())?,
            bootstrap: args.required("bootstrap")?,
            topic: args.required("topic")?,
            partition: args.optional("partition", 0)?,
            record_size: args.optional("record-size", Size(100))?,
        };
        args.finish()?;
        if options.record_size.0 < NUMBER_BYTES {
            return Err(BenchError::Usage(format!(
                "--record-size must be at least {NUMBER_BYTES}"
            )));
        }
        Ok(options)
    }
}

/// A producer that looks for the leader again after each failure.
struct Producer<'a> {
    options: &'a Options,
    /// All brokers of the cluster. The first one is asked next.
    brokers: Vec<Address>,
    leader: Option<Frames<TcpStream>>,
    value: Vec<u8>,
}

impl<'a> Producer<'a> {
    fn new(options: &'a Options) -> Result<Self, BenchError> {
        let mut asking = Asking::connect(&(options.host.clone(), options.bootstrap), PATIENCE)?;
        let cluster = asking.ask(&[&options.topic])?;
        Ok(Self {
            options,
            brokers: cluster.brokers.into_iter().map(|(_, address)| address).collect(),
            leader: None,
            value: vec![b'x'; options.record_size.0],
        })
    }

    /// Asks one broker for the leader, each time another one, and connects to it.
    fn find_leader(&mut self) -> Result<TcpStream, BenchError> {
        self.brokers.rotate_left(1);
        let topic = &self.options.topic;
        let cluster = Asking::connect(&self.brokers[0], PATIENCE)?.ask(&[topic])?;
        let leader = cluster.leader(topic, self.options.partition);
        let (host, port) = leader.ok_or_else(|| BenchError::Protocol("no leader".to_owned()))?;
        let stream = connect(host, *port)?;
        let limited = stream.set_read_timeout(Some(STALLED));
        limited.map_err(BenchError::io("setting a timeout"))?;
        Ok(stream)
    }

    /// Sends a record and returns its offset. `None` when there is no leader now.
    fn send(&mut self, number: u64) -> Result<Option<i64>, BenchError> {
        if self.leader.is_none() {
            self.leader = self.find_leader().ok().map(Frames::new);
        }
        let Some(leader) = &mut self.leader else {
            return Ok(None);
        };
        self.value[..NUMBER_BYTES].copy_from_slice(&number.to_be_bytes());
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let mut builder = BatchBuilder::with_capacity(Compression::None, None, self.value.len() + 128);
        builder.append(
            now.map_or(0, |time| time.as_millis() as i64),
            None,
            Some(&self.value),
            &[],
        )?;
        let (topic, partition) = (&self.options.topic, self.options.partition);
        let (mut request, _) = messages::produce_request(topic, partition, ALL_IN_SYNC, &builder.build()?);
        messages::set_correlation_id(&mut request, number as i32);
        let sent = leader.get_ref().write_all(&request);
        sent.map_err(BenchError::io("sending a produce request"))?;
        messages::check_produce_response(leader.expect()?, number as i32).map(Some)
    }

    /// Reads the whole partition: each record's offset and number.
    fn read(&mut self) -> Result<Vec<(i64, u64)>, BenchError> {
        let (mut request, offset_at) =
            messages::fetch_request(&self.options.topic, self.options.partition, FETCH_BYTES);
        let mut leader = self.find_leader();
        for _ in 1..self.brokers.len() {
            // The broker that was asked may be the one that has ended.
            leader = leader.or_else(|_| self.find_leader());
        }
        let mut frames = Frames::new(leader?);
        let (mut found, mut offset) = (Vec::new(), 0i64);
        loop {
            request[offset_at.clone()].copy_from_slice(&offset.to_be_bytes());
            let sent = frames.get_ref().write_all(&request);
            sent.map_err(BenchError::io("sending a fetch request"))?;
            let fetched = messages::read_fetch_response(frames.expect()?, 0)?;
            for batch in batches(fetched.records) {
                let batch = batch?;
                for record in batch.records(batch.bytes.len())?.iter() {
                    let record = record?;
                    let number = record.value.and_then(|value| value.first_chunk());
                    let number = number.ok_or_else(|| {
                        BenchError::Protocol(format!("another program's record at offset {}", record.offset))
                    })?;
                    found.push((record.offset, u64::from_be_bytes(*number)));
                }
                offset = batch.header.next_offset();
            }
            if offset >= fetched.high_watermark {
                return Ok(found);
            }
        }
    }
}

/// Produces until `stop` is set, calls `going` after the first answers, and reports the longest gap.
pub(crate) fn run(options: &Options, stop: &AtomicBool, going: impl Fn()) -> Result<Report, BenchError> {
    let mut producer = Producer::new(options)?;
    let mut offsets: Vec<i64> = Vec::new();
    let mut gaps: Vec<u64> = Vec::new();
    let (mut refused, mut broken) = (BTreeMap::<i16, u64>::new(), 0u64);
    let mut last = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        match producer.send(offsets.len() as u64) {
            Ok(Some(offset)) => {
                if !offsets.is_empty() {
                    gaps.push(last.elapsed().as_nanos() as u64);
                }
                last = Instant::now();
                offsets.push(offset);
                if offsets.len() == GOING {
                    going();
                }
                continue;
            }
            Ok(None) => {}
            Err(BenchError::Broker { code, .. }) => *refused.entry(code).or_default() += 1,
            Err(_) => broken += 1,
        }
        producer.leader = None;
        if last.elapsed() > STALLED {
            return Err(BenchError::Stalled { open: 1 });
        }
        thread::sleep(PAUSE);
    }
    gaps.push(last.elapsed().as_nanos() as u64);
    let longest = gaps.iter().max().copied().unwrap_or(0);
    let found = producer.read()?;
    let distinct = found
        .iter()
        .map(|(_, number)| number)
        .collect::<HashSet<_>>()
        .len();
    let at: HashSet<_> = found.iter().copied().collect();
    let lost = (0..)
        .zip(&offsets)
        .filter(|&(number, &offset)| !at.contains(&(offset, number)));
    let codes: Vec<_> = refused
        .iter()
        .map(|(code, count)| format!("\"{code}\": {count}"))
        .collect();
    Ok(with_percentiles(Report::new("gap"), gaps)
        .with_figure("longest_gap_ms", longest as f64 / 1e6)
        .with("acknowledged", offsets.len())
        .with("lost", lost.count())
        .with("duplicates", found.len() - distinct)
        .with("refused", format_args!("{{{}}}", codes.join(", ")))
        .with("broken_connections", broken))
}
