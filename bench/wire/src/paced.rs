//! Load: Produce requests at a fixed rate. Each latency is measured from the scheduled time.
//!
//! A request that waits for earlier slow ones was delayed by the broker, too. So the time starts when the
//! request is due, not when the socket takes it.

use std::num::NonZeroU64;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::args::{Args, Count};
use crate::connections::{self, Connections};
use crate::descriptors;
use crate::error::BenchError;
use crate::latency::with_percentiles;
use crate::load::{Load, Requests, duration};
use crate::report::Report;

/// The warm-up's share of the time. It fills caches and is not measured.
const WARM_UP_SHARE: f64 = 0.1;
/// Linux may wake a thread so much later than asked. Its default is 50 µs.
const TIMER_SLACK_NS: NonZeroU64 = NonZeroU64::MIN;

/// The flags of `paced`.
pub(crate) struct Options {
    pub(crate) load: Load,
    /// Requests a second, over all connections.
    pub(crate) rate: f64,
    pub(crate) threads: Count,
}

impl Options {
    pub(crate) fn take(args: &mut Args) -> Result<Self, BenchError> {
        let options = Self {
            load: Load::take(args)?,
            rate: args.required("rate")?,
            threads: args.optional("threads", Count::MIN)?,
        };
        args.finish()?;
        if options.load.acks == 0 {
            return Err(BenchError::Usage(
                "--acks 0 has no round trip to measure".to_owned(),
            ));
        }
        if !(options.rate > 0.0 && options.rate.is_finite()) {
            return Err(BenchError::Usage(format!(
                "--rate {} is not a rate",
                options.rate
            )));
        }
        Ok(options)
    }
}

/// The due times of one thread's requests: every `interval` from `start` on, `count` of them.
struct Schedule {
    start: Instant,
    interval: f64,
    count: u64,
}

impl Schedule {
    /// The schedule of the thread `index`. Together the threads keep the rate, with even intervals.
    fn new(start: Instant, options: &Options, index: usize, threads: usize) -> Self {
        let total = (options.rate * options.load.seconds).ceil().max(1.0) as u64;
        let (index, threads) = (index as u64, threads as u64);
        Self {
            start: start + Duration::from_secs_f64(index as f64 / options.rate),
            interval: threads as f64 / options.rate,
            count: (total + threads - 1 - index) / threads,
        }
    }

    fn due(&self, number: u64) -> Option<Instant> {
        let after = Duration::from_secs_f64(number as f64 * self.interval);
        (number < self.count).then(|| self.start + after)
    }
}

/// Sends each request when it is due, to one connection after another, and reads all responses. Returns the
/// latencies in nanoseconds of the requests due since `counted_from`.
fn drive(
    connections: &mut Connections<Requests>,
    schedule: &Schedule,
    counted_from: Instant,
) -> Result<Vec<u64>, BenchError> {
    rustix::thread::set_current_timer_slack(Some(TIMER_SLACK_NS))
        .map_err(|error| BenchError::io("setting the timer's slack")(error.into()))?;
    let mut latencies = Vec::new();
    let mut number = 0;
    while schedule.due(number).is_some() || !connections.is_idle() {
        let now = Instant::now();
        while let Some(due) = schedule.due(number).filter(|due| *due <= now) {
            connections.issue(number as usize % connections.len(), due)?;
            number += 1;
        }
        connections.wait(schedule.due(number))?;
        let now = Instant::now();
        let counted = connections.completed().filter(|due| *due >= counted_from);
        latencies.extend(counted.map(|due| now.duration_since(due).as_nanos() as u64));
    }
    Ok(latencies)
}

/// Runs the load and reports percentiles in microseconds, and the rate.
pub(crate) fn run(options: &Options) -> Result<Report, BenchError> {
    descriptors::allow(options.load.connections.get())?;
    let time = duration(options.load.seconds)?;
    let (requests, records) = options.load.requests()?;
    let groups = connections::split(options.load.connect()?, options.threads.get(), &requests)?;
    let threads = groups.len();
    let all = Mutex::new(Vec::new());
    let begun = Instant::now();
    let counted_from = begun + time.mul_f64(WARM_UP_SHARE);
    let answered = connections::run(groups, |index, group| {
        let schedule = Schedule::new(begun, options, index, threads);
        let latencies = drive(group, &schedule, counted_from)?;
        all.lock().map_err(|_| BenchError::Panicked)?.extend(latencies);
        Ok(())
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    let nanoseconds = all.into_inner().map_err(|_| BenchError::Panicked)?;
    let report = with_percentiles(Report::new("paced"), nanoseconds);
    let report = requests.report(report, &options.load, records, answered, seconds);
    Ok(report.with_figure("rate", options.rate).with("threads", threads))
}

#[cfg(test)]
mod tests {
    //! If these failed, requests would be sent at another rate than the flag sets.
    use super::*;

    fn options(words: &str) -> Result<Options, BenchError> {
        let words = words.split_whitespace().map(str::to_owned).collect();
        Args::parse(words).and_then(|mut args| Options::take(&mut args))
    }

    #[test]
    fn threads_keep_the_rate_together() {
        let options = options("--port 1 --topic t --rate 1000 --seconds 0.0105").unwrap();
        let start = Instant::now();
        let schedules: Vec<_> = (0..3)
            .map(|index| Schedule::new(start, &options, index, 3))
            .collect();
        let mut due: Vec<_> = schedules
            .iter()
            .flat_map(|schedule| (0..).map_while(|number| schedule.due(number)))
            .map(|due| due.duration_since(start).as_micros())
            .collect();
        due.sort_unstable();
        let wanted: Vec<_> = (0..11u128).map(|number| number * 1000).collect();
        assert_eq!(due.len(), wanted.len());
        for (due, wanted) in due.iter().zip(wanted) {
            assert!(due.abs_diff(wanted) <= 1, "{due} instead of {wanted}");
        }
    }

    #[test]
    fn a_rate_is_a_number_above_zero() {
        for rate in ["0", "-1", "NaN", "inf"] {
            assert!(options(&format!("--port 1 --topic t --rate {rate}")).is_err());
        }
        assert!(options("--port 1 --topic t --rate 10 --acks 0").is_err());
        assert!(options("--port 1 --topic t").is_err());
    }
}
