//! Crashes at every step: histories of a log on a disk with faults, compared with a model.
//!
//! Every change to a disk goes through [`crate::files::disk`]. A [`faulty_disk::FaultyDisk`] sees each change
//! before it is made, and may end the process there, tear the write, fail it, or be full. From these changes
//! a [`disk_model::DiskModel`] makes the directory that a power loss would leave. A [`history`] runs a log
//! through several processes with such faults. A [`model::Model`] has the records that must be there after
//! each.
//!
//! The number of a history is its seed. `LOGCORE_HISTORIES` is how many are run, `LOGCORE_SEED=n` runs one,
//! and `LOGCORE_FUZZ_MINUTES` runs new ones for that time (`make fuzz`).

mod disk_model;
mod faulty_disk;
mod flip;
mod history;
mod model;
mod moves;
mod reader;
mod regressions;

use std::panic::catch_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use faulty_disk::KINDS;
use history::Tally;

use crate::testing::scratch;

/// Histories of a normal run.
const HISTORIES: u64 = 10_000;
/// Enough histories to meet every fault.
const HISTORIES_ENOUGH: u64 = 5_000;

/// One failure is often followed by many like it.
const FAILURES_MAX: usize = 8;

fn number_in(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().expect("a whole number is needed"))
}

/// Which histories are run, and until when.
struct Run {
    next: AtomicU64,
    end: u64,
    deadline: Option<Instant>,
}

impl Run {
    fn from_environment() -> Self {
        let (first, count) = match number_in("LOGCORE_SEED") {
            Some(seed) => (seed, 1),
            None => (0, number_in("LOGCORE_HISTORIES").unwrap_or(HISTORIES)),
        };
        let run = Self {
            next: AtomicU64::new(first),
            end: first + count,
            deadline: None,
        };
        let Some(minutes) = number_in("LOGCORE_FUZZ_MINUTES") else {
            return run;
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        Self {
            // Far from the seeds of a normal run and of the last fuzz run.
            next: AtomicU64::new(now.as_micros() as u64),
            end: u64::MAX,
            deadline: Some(Instant::now() + Duration::from_secs(60 * minutes)),
        }
    }

    fn next(&self) -> Option<u64> {
        let seed = self.next.fetch_add(1, Ordering::Relaxed);
        let in_time = self.deadline.is_none_or(|end| Instant::now() < end);
        (seed < self.end && in_time).then_some(seed)
    }
}

/// The results of all histories so far.
#[derive(Default)]
struct Outcome {
    tally: Tally,
    count: u64,
    failed: Vec<u64>,
}

/// Runs histories until there are no more, or enough have failed.
fn run_histories(run: &Run, outcome: &Mutex<Outcome>) {
    while let Some(seed) = run.next() {
        let dir = scratch();
        let result = catch_unwind(|| history::run(seed, dir.path()));
        let mut outcome = outcome.lock();
        outcome.count += 1;
        match result {
            Ok(tally) => outcome.tally.add(&tally),
            Err(_) => {
                eprintln!("run this history again with LOGCORE_SEED={seed}");
                outcome.failed.push(seed);
            }
        }
        if outcome.failed.len() >= FAILURES_MAX {
            return;
        }
    }
}

// Broken if it failed: some order of appends, crashes, power losses, full disks, failed writes and flipped
// bits loses or changes records that were on disk, serves a damaged one, or forgets a producer's batches.
#[test]
fn no_fault_costs_what_was_certain() {
    let run = Run::from_environment();
    let outcome = Mutex::new(Outcome::default());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| run_histories(&run, &outcome));
        }
    });
    let Outcome { tally, count, failed } = outcome.into_inner();
    println!("{count} histories: {tally:?}");
    assert!(
        failed.is_empty(),
        "run again with LOGCORE_SEED, one of {failed:?}"
    );
    if count >= HISTORIES_ENOUGH {
        check_that_all_was_met(&tally);
    }
}

/// Histories that meet no faults prove nothing.
fn check_that_all_was_met(tally: &Tally) {
    for (kind, name) in KINDS.iter().enumerate() {
        assert!(tally.crashes[kind] > 0, "no crash in {name}");
        assert!(tally.errors[kind] > 0, "no error in {name}");
    }
    let counts = [
        ("writes refused by a full disk", tally.refused),
        ("power losses", tally.power_losses),
        ("process ends", tally.process_ends),
        ("crashes while opening", tally.crashes_while_opening),
        ("clean closes", tally.closed),
        ("bits flipped in hints", tally.flips_in_hints),
        ("bits flipped in a tail that is cut", tally.flips_cut),
        ("bits flipped that were reported", tally.flips_reported),
        ("bits flipped where no checksum is", tally.flips_uncovered),
        ("deletions", tally.deletions),
        ("truncations", tally.truncated),
        ("transactions", tally.transactions),
        ("aborted transactions", tally.aborted),
        ("fetches", tally.fetched),
        ("leaders followed", tally.followed),
        ("compactions", tally.compacted),
    ];
    for (what, count) in counts {
        assert!(count > 20, "only {count} {what}");
    }
}
