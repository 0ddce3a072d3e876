//! Load: Produce requests at a rate that is not the broker's to choose, and how long each took from when it was due.
//!
//! A request that waits because those before it are slow has waited all the same: the clock starts when the schedule says,
//! not when the socket had room. So nothing a slow broker delays is left out of its figures.

use std::num::NonZeroU64;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::args::{Args, Count};
use crate::crowd::{self, Crowd};
use crate::descriptors;
use crate::error::BenchError;
use crate::latency::with_percentiles;
use crate::load::{Load, duration};
use crate::report::Report;

/// The first part of the time is not counted: caches and the peer's first look at the partitions.
const WARM_UP_SHARE: f64 = 0.1;
/// How late Linux may wake a thread beside what was asked (50 µs unless it is told).
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

/// When the requests of one thread are due: every `interval` from `start` on, `count` of them.
struct Schedule {
    start: Instant,
    interval: f64,
    count: u64,
}

impl Schedule {
    /// That of the thread `index` of so many: together they keep the rate, evenly.
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

/// What came of the requests that count.
#[derive(Default)]
struct Answers {
    nanoseconds: Vec<u64>,
}

/// Sends each request when it is due, to one connection after another, and hears all answers.
fn drive(crowd: &mut Crowd, schedule: &Schedule, counted_from: Instant) -> Result<Answers, BenchError> {
    rustix::thread::set_current_timer_slack(Some(TIMER_SLACK_NS))
        .map_err(|error| BenchError::io("setting the timer's slack")(error.into()))?;
    let mut answers = Answers::default();
    let mut number = 0;
    while schedule.due(number).is_some() || !crowd.is_idle() {
        let now = Instant::now();
        while let Some(due) = schedule.due(number).filter(|due| *due <= now) {
            crowd.issue(number as usize % crowd.len(), due)?;
            number += 1;
        }
        crowd.wait(schedule.due(number))?;
        let now = Instant::now();
        let counted = crowd.news().filter(|due| *due >= counted_from);
        let times = counted.map(|due| now.duration_since(due).as_nanos() as u64);
        answers.nanoseconds.extend(times);
    }
    Ok(answers)
}

/// Runs the load and reports the times in microseconds and the rate that was kept.
pub(crate) fn run(options: &Options) -> Result<Report, BenchError> {
    descriptors::allow(options.load.connections.get())?;
    let time = duration(options.load.seconds)?;
    let (requests, records) = options.load.requests()?;
    let crowds = crowd::split(options.load.connect()?, options.threads.get(), &requests)?;
    let threads = crowds.len();
    let all = Mutex::new(Answers::default());
    let begun = Instant::now();
    let counted_from = begun + time.mul_f64(WARM_UP_SHARE);
    let answered = crowd::run(crowds, |index, crowd| {
        let schedule = Schedule::new(begun, options, index, threads);
        let answers = drive(crowd, &schedule, counted_from)?;
        let mut all = all.lock().map_err(|_| BenchError::Panicked)?;
        all.nanoseconds.extend(answers.nanoseconds);
        Ok(())
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    let nanoseconds = all.into_inner().map_err(|_| BenchError::Panicked)?.nanoseconds;
    let report = with_percentiles(Report::new("paced"), nanoseconds);
    let report = requests.report(report, &options.load, records, answered, seconds);
    Ok(report.with_figure("rate", options.rate).with("threads", threads))
}

#[cfg(test)]
mod tests {
    //! If these fail, the load is not the one that was asked for, or starts its clock too late.
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
