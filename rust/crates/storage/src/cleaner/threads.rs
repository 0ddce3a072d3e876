//! The cleaner threads of a broker (`LogCleaner`, `CleanerThread`).
//!
//! Each thread looks for compacted logs that are due in all directories, cleans the one with the largest
//! dirty part, writes the new first dirty offset to its directory's checkpoint, and repeats. It pauses when
//! no log is due. Stopping wakes pausing and throttled threads, and ends a cleaning at the next batch. Events
//! are reported to the owner.
//!
//! A log whose cleaning failed is not cleaned again until it is opened again; the log keeps the reason
//! ([`crate::Log::uncleanable`]). A full disk is no such failure.
//!
//! After a crash between a swap and the checkpoint, the log is cleaned again from the checkpoint's offset.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::pass::{CleanerStats, Run, clean};
use super::throttle::Throttle;
use super::{CleanError, CleanerConfig};
use crate::clock::system_now_ms;
use crate::error::{Result, StorageError};
use crate::log::cleaning::gate::{Running, Stop};
use crate::log::cleaning::plan::Plan;
use crate::log_dir::{LogDir, Partition};

/// An event of a cleaner thread.
#[derive(Debug)]
pub enum CleanerEvent {
    /// A log was cleaned.
    Cleaned {
        topic: String,
        partition: i32,
        stats: CleanerStats,
    },
    /// A log could not be cleaned. `for_good`: it is not tried again.
    Failed {
        topic: String,
        partition: i32,
        reason: String,
        for_good: bool,
    },
    /// The checkpoint could not be written. After a restart logs are cleaned from an earlier offset.
    CheckpointFailed { error: StorageError },
}

type Report = Box<dyn Fn(CleanerEvent) + Send + Sync>;

/// Threads that compact the logs of some directories until this is stopped or dropped.
pub struct Cleaner {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    dirs: Vec<Arc<LogDir>>,
    config: CleanerConfig,
    throttle: Throttle,
    report: Report,
    /// One thread at a time chooses a log.
    choosing: Mutex<()>,
    idle: Mutex<Idle>,
    changed: Condvar,
    stopping: AtomicBool,
}

#[derive(Default)]
struct Idle {
    /// The number of calls of [`Cleaner::wake`].
    wakes: u64,
    /// Running cleanings.
    running: Vec<Arc<Stop>>,
}

impl Cleaner {
    /// Starts `log.cleaner.threads` threads; none when `log.cleaner.enable` is false.
    ///
    /// Errors: [`StorageError::InvalidConfig`]; the system's, when a thread cannot be started.
    pub fn start(
        dirs: Vec<Arc<LogDir>>,
        config: CleanerConfig,
        report: impl Fn(CleanerEvent) + Send + Sync + 'static,
    ) -> Result<Self> {
        config.check()?;
        let count = if config.enabled { config.threads } else { 0 };
        let cleaner = Self {
            shared: Arc::new(Shared {
                dirs,
                throttle: Throttle::new(config.io_max_bytes_per_second),
                config,
                report: Box::new(report),
                choosing: Mutex::new(()),
                idle: Mutex::default(),
                changed: Condvar::new(),
                stopping: AtomicBool::new(false),
            }),
            threads: Mutex::default(),
        };
        for number in 0..count {
            let shared = Arc::clone(&cleaner.shared);
            let thread = std::thread::Builder::new()
                .name(format!("logcore-cleaner-{number}"))
                .spawn(move || shared.run())
                .map_err(StorageError::io("start a thread for", "the log cleaner"))?;
            cleaner.threads.lock().push(thread);
        }
        Ok(cleaner)
    }

    /// Makes pausing threads look for a log at once.
    pub fn wake(&self) {
        self.shared.idle.lock().wakes += 1;
        self.shared.changed.notify_all();
    }

    /// Ends all threads; a running cleaning ends at the next batch. Calling it again does nothing.
    pub fn stop(&self) {
        {
            let idle = self.shared.idle.lock();
            self.shared.stopping.store(true, Ordering::Release);
            idle.running.iter().for_each(|running| running.set());
        }
        self.shared.changed.notify_all();
        for thread in self.threads.lock().drain(..) {
            // The thread printed its panic.
            let _ = thread.join();
        }
    }
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn run(&self) {
        loop {
            let wakes = self.idle.lock().wakes;
            if !self.clean_dirtiest() && !self.wait_for_work(wakes) {
                return;
            }
            if self.stopping.load(Ordering::Acquire) {
                return;
            }
        }
    }

    /// Waits for the end of the backoff, or for a call of [`Cleaner::wake`] since `wakes`; false when the
    /// thread must end.
    fn wait_for_work(&self, wakes: u64) -> bool {
        let until = Instant::now().checked_add(Duration::from_millis(self.config.backoff_ms));
        let mut idle = self.idle.lock();
        while !self.stopping.load(Ordering::Acquire) && idle.wakes == wakes {
            match until {
                Some(until) if self.changed.wait_until(&mut idle, until).timed_out() => break,
                Some(_) => {}
                None => self.changed.wait(&mut idle),
            }
        }
        !self.stopping.load(Ordering::Acquire)
    }

    /// Cleans one log; false when none was cleaned.
    fn clean_dirtiest(&self) -> bool {
        let now_ms = system_now_ms();
        let choosing = self.choosing.lock();
        let mut due = self.due(now_ms);
        due.sort_by(|one, other| other.2.ratio().total_cmp(&one.2.ratio()));
        for (dir, partition, _) in due {
            let Some(running) = partition.log.cleaning().try_begin() else {
                continue;
            };
            drop(choosing);
            return self.clean_one(&dir, &partition, running, now_ms);
        }
        false
    }

    /// The logs that are due.
    fn due(&self, now_ms: i64) -> Vec<(Arc<LogDir>, Arc<Partition>, Plan)> {
        let mut due = Vec::new();
        for dir in &self.dirs {
            for partition in dir.partitions() {
                let log = &partition.log;
                let config = log.config();
                let able = config.cleanup_compact && log.uncleanable().is_none() && log.failure().is_none();
                if !able {
                    continue;
                }
                match log.plan_cleaning(now_ms) {
                    Ok(plan) => {
                        if plan.reset {
                            log.cleaning().set_first_dirty(plan.first_dirty);
                        }
                        if plan.is_due(&config) {
                            due.push((Arc::clone(dir), partition, plan));
                        }
                    }
                    Err(error) => {
                        self.failed(&partition, &error);
                    }
                }
            }
        }
        due
    }

    /// True when the thread should look for the next log at once.
    fn clean_one(&self, dir: &LogDir, partition: &Partition, running: Running<'_>, now_ms: i64) -> bool {
        let log = &partition.log;
        let stop = Arc::clone(&running.stop);
        if !self.register(&stop) {
            return false;
        }
        let cleaned = catch_unwind(AssertUnwindSafe(|| {
            // Another thread may have cleaned it since.
            let plan = log.plan_cleaning(now_ms)?;
            let run = Run::new(&self.config, &self.throttle, &stop, now_ms);
            let stats = clean(log, &plan, run)?;
            log.cleaning().set_first_dirty(stats.clean_until_offset);
            Ok(stats)
        }));
        // First: a thread that deletes or closes the log waits for this with a lock that the checkpoint
        // needs.
        drop(running);
        self.idle
            .lock()
            .running
            .retain(|other| !Arc::ptr_eq(other, &stop));
        match cleaned {
            Ok(Ok(stats)) => {
                (self.report)(CleanerEvent::Cleaned {
                    topic: partition.topic.clone(),
                    partition: partition.partition,
                    stats,
                });
                match dir.checkpoint_cleaner() {
                    Ok(()) | Err(StorageError::Closed { .. }) => {}
                    Err(error) => (self.report)(CleanerEvent::CheckpointFailed { error }),
                }
                true
            }
            Ok(Err(CleanError::Aborted)) => true,
            Ok(Err(CleanError::Storage(error))) => self.failed(partition, &error),
            Err(_panic) => {
                self.give_up(
                    partition,
                    "cleaning it panicked, which is a defect of the cleaner",
                );
                true
            }
        }
    }

    /// Lets [`Cleaner::stop`] end a cleaning; false after a stop.
    fn register(&self, stop: &Arc<Stop>) -> bool {
        let mut idle = self.idle.lock();
        if self.stopping.load(Ordering::Acquire) {
            return false;
        }
        idle.running.push(Arc::clone(stop));
        true
    }

    /// True when the log was given up and the thread should look for another. For space and descriptors it
    /// waits.
    fn failed(&self, partition: &Partition, error: &StorageError) -> bool {
        if !error.is_disk_full() && !error.is_out_of_files() {
            self.give_up(partition, &error.to_string());
            return true;
        }
        (self.report)(CleanerEvent::Failed {
            topic: partition.topic.clone(),
            partition: partition.partition,
            reason: error.to_string(),
            for_good: false,
        });
        false
    }

    fn give_up(&self, partition: &Partition, reason: &str) {
        partition.log.cleaning().set_uncleanable(reason.to_owned());
        (self.report)(CleanerEvent::Failed {
            topic: partition.topic.clone(),
            partition: partition.partition,
            reason: reason.to_owned(),
            for_good: true,
        });
    }
}
