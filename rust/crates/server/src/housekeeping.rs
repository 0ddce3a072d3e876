//! The thread that looks after the logs: flush intervals, retention, delayed removal of files, checkpoints.
//!
//! One thread per server, asleep between its rounds. An I/O error becomes a log line; a panic becomes one too and the next
//! round is tried. A crash in the middle of a round leaves what the storage crate's recovery expects.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::{Result, ServerError};
use crate::shared::{Shared, now_ms};

/// The longest pause between two rounds; Kafka writes its high watermarks as often.
const ROUND_MAX: Duration = Duration::from_secs(5);

#[derive(Default)]
struct Stop {
    stopped: Mutex<bool>,
    changed: Condvar,
}

/// The thread.
pub(crate) struct Housekeeping {
    stop: Arc<Stop>,
    thread: JoinHandle<()>,
}

impl Housekeeping {
    pub(crate) fn start(shared: Arc<Shared>) -> Result<Self> {
        let stop = Arc::new(Stop::default());
        let seen = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("logcore-housekeeping".to_owned())
            .spawn(move || run(&shared, &seen))
            .map_err(|source| ServerError::Os {
                action: "start the housekeeping thread",
                source,
            })?;
        Ok(Self { stop, thread })
    }

    /// Ends the thread after the round it is in.
    pub(crate) fn stop(self) {
        *self.stop.stopped.lock() = true;
        self.stop.changed.notify_all();
        // It catches the panics of its rounds, so it has nothing to report here.
        let _ = self.thread.join();
    }
}

fn run(shared: &Shared, stop: &Stop) {
    let config = &shared.config;
    let pause = [config.retention_check_interval, config.checkpoint_interval]
        .into_iter()
        .chain(config.flush_check_interval)
        .fold(ROUND_MAX, Duration::min);
    let mut stopped = stop.stopped.lock();
    loop {
        let next = Instant::now() + pause;
        while !*stopped {
            if stop.changed.wait_until(&mut stopped, next).timed_out() {
                break;
            }
        }
        if *stopped {
            return;
        }
        drop(stopped);
        let round = AssertUnwindSafe(|| shared.logs.maintain(now_ms(), &shared.lines));
        if catch_unwind(round).is_err() {
            shared.lines.error("housekeeping panicked, which is a defect of the server; the next round will be tried");
        }
        stopped = stop.stopped.lock();
    }
}
