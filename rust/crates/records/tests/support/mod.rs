//! What the fuzz tests of several crates share: numbers from a seed, inputs changed by them, and the memory a call takes.
//!
//! `LOGCORE_SEED=n` runs the inputs of one seed alone, `LOGCORE_FUZZ_MINUTES=n` new ones for so long (`make fuzz`).
#![allow(dead_code)]

pub(crate) mod allocation;
pub(crate) mod mutate;
pub(crate) mod random;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use random::Random;

fn number_in(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().expect("a whole number is needed"))
}

/// Runs `round` with the numbers of each of `count` seeds; prints the seed of one that panics.
pub(crate) fn for_each_seed(count: u64, mut round: impl FnMut(&mut Random)) {
    let (mut first, mut end, mut deadline) = (0, count, None);
    if let Some(seed) = number_in("LOGCORE_SEED") {
        (first, end) = (seed, seed + 1);
    } else if let Some(minutes) = number_in("LOGCORE_FUZZ_MINUTES") {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        // Far from those that every run begins with, and from the last run's.
        (first, end) = (now.as_micros() as u64, u64::MAX);
        deadline = Some(Instant::now() + Duration::from_secs(60 * minutes));
    }
    for seed in first..end {
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return;
        }
        let mut random = Random::new(seed);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| round(&mut random))) {
            eprintln!("run this again with LOGCORE_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
