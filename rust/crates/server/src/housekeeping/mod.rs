//! The background threads of a server.
//!
//! The housekeeping thread runs rounds: flush intervals, retention, delayed removal of files, checkpoints,
//! expired rates of quotas, and returning free memory to the operating system. Twice in each
//! `replica.lag.time.max.ms` it looks for followers that fell behind. Beside it are the storage crate's
//! cleaner and the thread that moves logs ([`moves`]). An I/O error becomes a log line. So does a
//! panic, and the next round is tried. After a crash in the middle of a round, the storage crate recovers.

pub(crate) mod moves;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use logcore_storage::{Cleaner, CleanerConfig, CleanerEvent, Retention};
use parking_lot::{Condvar, Mutex};

use crate::error::{Result, ServerError};
use crate::housekeeping::moves::Moves;
use crate::log_lines::LogLines;
use crate::shared::{Shared, now_ms};

/// The longest pause between two rounds. Kafka writes its high watermarks as often.
const ROUND_MAX: Duration = Duration::from_secs(5);
/// The delay of the first retention, if its interval is longer (`log.initial.task.delay.ms`).
const FIRST_RETENTION: Duration = Duration::from_secs(30);

/// The shortest pause between two looks at the followers.
const LAG_PAUSE_MIN: Duration = Duration::from_millis(10);

/// Longer intervals are cut to this: the clock cannot count much more.
const FAR: Duration = Duration::from_secs(1 << 32);

#[derive(Default)]
struct Stop {
    stopped: Mutex<bool>,
    changed: Condvar,
}

pub(crate) struct Housekeeping {
    stop: Arc<Stop>,
    thread: JoinHandle<()>,
    cleaner: Cleaner,
    cleaner_config: CleanerConfig,
    moves: Arc<Moves>,
    mover: JoinHandle<()>,
}

impl Housekeeping {
    pub(crate) fn start(shared: Arc<Shared>, moves: Arc<Moves>) -> Result<Self> {
        let cleaner_config = shared.dynamic.read().cleaner.clone();
        let cleaner = start_cleaner(&shared, &cleaner_config)?;
        let mover = {
            let (shared, moves) = (Arc::clone(&shared), Arc::clone(&moves));
            spawn("logcore-moves", "start the thread that moves logs", move || {
                move_logs(&shared, &moves);
            })?
        };
        let stop = Arc::new(Stop::default());
        let seen = Arc::clone(&stop);
        let thread = spawn(
            "logcore-housekeeping",
            "start the housekeeping thread",
            move || run(&shared, &seen),
        )
        // The other thread must not outlive the failed start.
        .inspect_err(|_| moves.stop())?;
        Ok(Self {
            stop,
            thread,
            cleaner,
            cleaner_config,
            moves,
            mover,
        })
    }

    /// Restarts the cleaner if its settings changed: it ends after the current batch (as `LogCleaner`). It
    /// cannot be turned on or off.
    pub(crate) fn update_cleaner(&mut self, shared: &Shared, config: &CleanerConfig) -> Result<()> {
        let config = CleanerConfig {
            enabled: self.cleaner_config.enabled,
            ..config.clone()
        };
        if config == self.cleaner_config {
            return Ok(());
        }
        self.cleaner.stop();
        match start_cleaner(shared, &config) {
            Ok(cleaner) => (self.cleaner, self.cleaner_config) = (cleaner, config),
            Err(error) => {
                self.cleaner = start_cleaner(shared, &self.cleaner_config)?;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Ends the threads: a compaction after its batch, a move after its piece, a round at its end.
    pub(crate) fn stop(self) {
        self.cleaner.stop();
        self.moves.stop();
        // It catches its panics.
        let _ = self.mover.join();
        *self.stop.stopped.lock() = true;
        self.stop.changed.notify_all();
        // It catches the panics of its rounds.
        let _ = self.thread.join();
    }
}

fn start_cleaner(shared: &Shared, config: &CleanerConfig) -> Result<Cleaner> {
    let lines = Arc::clone(&shared.lines);
    let dirs = shared.logs.dirs().to_vec();
    Ok(Cleaner::start(dirs, config.clone(), move |event| {
        log_event(&lines, event);
    })?)
}

fn spawn(name: &str, action: &'static str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map_err(|source| ServerError::Os { action, source })
}

fn move_logs(shared: &Shared, moves: &Moves) {
    if catch_unwind(AssertUnwindSafe(|| moves.run(shared))).is_err() {
        shared.lines.error(
            "moving logs panicked, which is a defect of the server; no log is moved until it is restarted",
        );
    }
}

fn log_event(lines: &LogLines, event: CleanerEvent) {
    match event {
        CleanerEvent::Cleaned {
            topic,
            partition,
            stats,
        } => lines.info(format!(
            "compacted {topic}-{partition} from offset {} to {} in {:.1} s: {} of {} records and {} of {} \
             bytes stay",
            stats.first_dirty_offset,
            stats.clean_until_offset,
            stats.elapsed.as_secs_f64(),
            stats.records_written,
            stats.records_read,
            stats.bytes_written,
            stats.bytes_read,
        )),
        CleanerEvent::Failed {
            topic,
            partition,
            reason,
            for_good: true,
        } => lines.error(format!(
            "{topic}-{partition} is not compacted until the broker is restarted: {reason}"
        )),
        CleanerEvent::Failed {
            topic,
            partition,
            reason,
            for_good: false,
        } => lines.warning(format!(
            "compacting {topic}-{partition} failed and will be tried again: {reason}"
        )),
        CleanerEvent::CheckpointFailed { error } => {
            lines.error(format!("the cleaner's checkpoint could not be written: {error}"))
        }
    }
}

fn run(shared: &Shared, stop: &Stop) {
    let config = &shared.config;
    let pause = [config.retention_check_interval, config.checkpoint_interval]
        .into_iter()
        .chain(config.flush_check_interval)
        .fold(ROUND_MAX, Duration::min);
    // As often as Kafka shrinks ISRs.
    let lag_pause = (config.replica.lag_max / 2).clamp(LAG_PAUSE_MIN, FAR);
    let mut lag_at = Instant::now() + lag_pause;
    let mut retention_at = Instant::now() + config.retention_check_interval.min(FIRST_RETENTION);
    let mut round_at = Instant::now() + pause;
    let mut stopped = stop.stopped.lock();
    loop {
        let next = round_at.min(lag_at);
        while !*stopped {
            if stop.changed.wait_until(&mut stopped, next).timed_out() {
                break;
            }
        }
        if *stopped {
            return;
        }
        drop(stopped);
        let begun = Instant::now();
        if begun >= lag_at {
            check_followers(shared);
            lag_at = begun + lag_pause;
        }
        if begun < round_at {
            stopped = stop.stopped.lock();
            continue;
        }
        let retention = if begun >= retention_at {
            retention_at = begun + config.retention_check_interval.min(FAR);
            Retention::Due
        } else {
            Retention::NotDue
        };
        let round = AssertUnwindSafe(|| {
            shared.logs.maintain(now_ms(), retention, &shared.lines);
            shared.report_failures();
            shared.quotas.forget();
            let buffers = shared.frames.has_fallen();
            if shared.budgets.have_fallen() || buffers {
                return_memory();
            }
        });
        if catch_unwind(round).is_err() {
            shared.lines.error(
                "housekeeping panicked, which is a defect of the server; the next round will be tried",
            );
        }
        round_at = Instant::now() + pause;
        stopped = stop.stopped.lock();
    }
}

/// Reports followers that fell behind, for which high watermarks then wait no longer.
fn check_followers(shared: &Shared) {
    let check = AssertUnwindSafe(|| {
        shared.report_fallen_behind();
        shared.raise_high_watermarks();
    });
    if catch_unwind(check).is_err() {
        shared.lines.error(
            "checking the followers panicked, which is a defect of the server; it will be tried again",
        );
    }
}

/// Makes glibc's allocator return free memory. By itself it keeps all memory below any block in use, for each
/// thread. Other allocators return memory themselves.
fn return_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the function takes the allocator's locks and changes no block in use.
    unsafe {
        libc::malloc_trim(0);
    }
}
