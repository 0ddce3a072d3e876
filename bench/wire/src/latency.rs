//! Load: round trips of Produce requests with one record, one after another.

use std::io::Write;
use std::time::Instant;

use logcore_records::Compression;

use crate::args::{Args, Size};
use crate::error::BenchError;
use crate::frames::Frames;
use crate::load::{connect, duration, make_batch};
use crate::messages;
use crate::report::Report;
use crate::target::Target;

/// The number of round trips before the measurement, which fill caches.
const WARM_UP: usize = 200;

/// The flags of `latency`.
pub(crate) struct Options {
    pub(crate) target: Target,
    pub(crate) topic: String,
    pub(crate) partition: i32,
    pub(crate) record_size: Size,
    pub(crate) acks: i16,
    pub(crate) seconds: f64,
}

impl Options {
    pub(crate) fn take(args: &mut Args) -> Result<Self, BenchError> {
        let options = Self {
            target: Target::take(args)?,
            topic: args.required("topic")?,
            partition: args.optional("partition", 0)?,
            record_size: args.optional("record-size", Size(100))?,
            acks: args.optional("acks", 1)?,
            seconds: args.optional("seconds", 5.0)?,
        };
        args.finish()?;
        if options.acks == 0 {
            return Err(BenchError::Usage(
                "--acks 0 has no round trip to measure".to_owned(),
            ));
        }
        Ok(options)
    }
}

/// The nearest-rank percentile: the least value that `share` of the sorted values do not exceed.
fn percentile(sorted: &[u64], share: f64) -> u64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted
        .get(rank.clamp(1, sorted.len().max(1)) - 1)
        .copied()
        .unwrap_or(0)
}

/// Adds percentiles of the times in microseconds.
pub(crate) fn with_percentiles(report: Report, mut nanoseconds: Vec<u64>) -> Report {
    nanoseconds.sort_unstable();
    let microseconds = |share| percentile(&nanoseconds, share) as f64 / 1e3;
    let sum: u64 = nanoseconds.iter().sum();
    report
        .with_figure("p50_us", microseconds(0.5))
        .with_figure("p99_us", microseconds(0.99))
        .with_figure("p999_us", microseconds(0.999))
        .with_figure("max_us", microseconds(1.0))
        .with_figure("mean_us", sum as f64 / 1e3 / nanoseconds.len() as f64)
        .with("counted", nanoseconds.len())
}

/// Runs the round trips and reports percentiles in microseconds.
pub(crate) fn run(options: &Options) -> Result<Report, BenchError> {
    let time = duration(options.seconds)?;
    let (batch, _) = make_batch(options.record_size.0, 1, Compression::None)?;
    let (mut request, _) = messages::produce_request(&options.topic, options.partition, options.acks, &batch);
    let leaders = options.target.leaders(&options.topic, &[options.partition])?;
    let (host, port) = &leaders[0];
    let stream = connect(host, *port)?;
    let mut writer = &stream;
    let mut frames = Frames::new(&stream);
    let mut nanoseconds = Vec::with_capacity(1 << 20);
    let mut begun = Instant::now();
    let mut sent = 0usize;
    while sent <= WARM_UP || begun.elapsed() < time {
        if sent == WARM_UP {
            begun = Instant::now();
        }
        messages::set_correlation_id(&mut request, sent as i32);
        let start = Instant::now();
        writer
            .write_all(&request)
            .map_err(BenchError::io("sending a produce request"))?;
        messages::check_produce_response(frames.expect()?, sent as i32)?;
        if sent >= WARM_UP {
            nanoseconds.push(start.elapsed().as_nanos() as u64);
        }
        sent += 1;
    }
    let requests = nanoseconds.len();
    Ok(with_percentiles(Report::new("latency"), nanoseconds)
        .with("requests", requests)
        .with("bytes", requests * batch.len())
        .with("record_bytes", options.record_size.0)
        .with("acks", options.acks))
}

#[cfg(test)]
mod tests {
    //! If this failed, latency figures would have the wrong percentiles.
    use super::percentile;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let values: Vec<u64> = (1..=1000).collect();
        assert_eq!(percentile(&values, 0.5), 500);
        assert_eq!(percentile(&values, 0.99), 990);
        assert_eq!(percentile(&values, 0.999), 999);
        assert_eq!(percentile(&values, 1.0), 1000);
        assert_eq!(percentile(&[7], 0.5), 7);
        assert_eq!(percentile(&[], 0.5), 0);
    }
}
