//! Shared by the fuzz tests of several crates: random numbers from a seed, mutated inputs, and memory
//! measurement.
//!
//! `LOGCORE_SEED=n` runs one seed. `LOGCORE_FUZZ_MINUTES=n` runs new seeds for that time (`make fuzz`).
#![allow(dead_code)]

pub(crate) mod allocation;
pub(crate) mod mutate;
pub(crate) mod random;

use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use random::Random;

fn number_in(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().expect("a whole number is needed"))
}

/// The seeds of a run: `count` from 0 on, the one from `LOGCORE_SEED`, or new ones until a time.
struct Seeds {
    first: u64,
    end: u64,
    deadline: Option<Instant>,
}

impl Seeds {
    fn of_this_run(count: u64) -> Self {
        let (mut first, mut end, mut deadline) = (0, count, None);
        if let Some(seed) = number_in("LOGCORE_SEED") {
            (first, end) = (seed, seed + 1);
        } else if let Some(minutes) = number_in("LOGCORE_FUZZ_MINUTES") {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            // Far from the seeds of a normal run and of the previous one.
            (first, end) = (now.as_micros() as u64, u64::MAX);
            deadline = Some(Instant::now() + Duration::from_secs(60 * minutes));
        }
        Self { first, end, deadline }
    }

    /// Calls `round` for every `step`th seed from number `start` on. Prints the seed of a round that panics.
    fn run(&self, start: usize, step: usize, mut round: impl FnMut(&mut Random)) {
        for seed in (self.first..self.end).skip(start).step_by(step) {
            if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return;
            }
            let mut random = Random::new(seed);
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| round(&mut random))) {
                eprintln!("run this again with LOGCORE_SEED={seed}");
                resume_unwind(panic);
            }
        }
    }
}

/// Runs `round` with the numbers of each of `count` seeds. Prints the seed of a round that panics.
pub(crate) fn for_each_seed(count: u64, round: impl FnMut(&mut Random)) {
    Seeds::of_this_run(count).run(0, 1, round);
}

/// As [`for_each_seed`], on all cores. Rounds share nothing.
pub(crate) fn for_each_seed_on_all_cores(count: u64, round: impl Fn(&mut Random) + Sync) {
    let (seeds, round) = (&Seeds::of_this_run(count), &round);
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        for core in 0..cores {
            scope.spawn(move || seeds.run(core, cores, round));
        }
    });
}
