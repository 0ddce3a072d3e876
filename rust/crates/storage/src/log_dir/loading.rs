//! Loading the logs of a directory in several threads, with progress.
//!
//! Runs during the opening. A log that cannot be loaded, because data that was on disk is damaged, is
//! reported and left as it is. The other logs are loaded.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::{Found, Logs, Partition};
use crate::config::LogConfig;
use crate::error::{Result, StorageError};
use crate::files::metadata;
use crate::files::partition_dir::{Key, Kind, check_not_moved};
use crate::log::loader::{LastKnown, LoadProgress, Recovery, bytes_to_check};
use crate::log::{DirState, Log};

/// The most threads to load and close logs, unless [`Opening::threads`] is set. Both wait for the disk more
/// than they compute.
const THREADS_MAX: usize = 8;

/// How a directory is opened.
pub struct Opening<'a> {
    /// The settings of a topic's logs.
    pub config_for: &'a (dyn Fn(&str) -> LogConfig + Sync),
    /// The logs have other replicas: their high watermarks begin at the checkpoint, and only
    /// [`Log::set_high_watermark`] moves them.
    pub replicated: bool,
    /// Called after each log, by any of several threads.
    pub on_log: &'a (dyn Fn(&Progress<'_>) + Sync),
    /// Every directory with a partition's name is one, as for a broker. Otherwise a directory without a
    /// partition's file is foreign and left alone.
    pub takes_all: bool,
    /// `num.recovery.threads.per.data.dir`; `None` for two per core, at most 8. Kafka's default of one leaves
    /// the disk idle.
    pub threads: Option<NonZeroUsize>,
    /// The progress, for another thread.
    pub progress: Arc<LoadProgress>,
}

impl<'a> Opening<'a> {
    /// The options for a directory that no broker serves.
    pub fn new(config_for: &'a (dyn Fn(&str) -> LogConfig + Sync)) -> Self {
        Self {
            config_for,
            replicated: false,
            on_log: &|_| (),
            takes_all: false,
            threads: None,
            progress: Arc::default(),
        }
    }
}

impl std::fmt::Debug for Opening<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opening")
            .field("replicated", &self.replicated)
            .finish_non_exhaustive()
    }
}

/// The progress after one more log was loaded or failed to load.
#[derive(Debug)]
pub struct Progress<'a> {
    /// The directory of that log.
    pub dir: &'a Path,
    pub outcome: Result<&'a Recovery, &'a StorageError>,
    pub logs_done: usize,
    pub logs_total: usize,
    /// Bytes of all logs that were read and checked so far.
    pub bytes_checked: u64,
}

/// The result of loading.
pub(super) struct Loaded {
    pub(super) partitions: Logs,
    pub(super) futures: Logs,
    pub(super) failures: Vec<(PathBuf, StorageError)>,
    pub(super) bytes_checked: u64,
}

/// Runs `work` for each item in several threads, or in as many as can be started.
pub(super) fn for_each<'a, T: Sync>(
    all: &'a [T],
    threads: Option<NonZeroUsize>,
    work: impl Fn(&'a T) + Sync,
) {
    let next = AtomicUsize::new(0);
    let some = || {
        while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            work(one);
        }
    };
    let threads = match threads {
        Some(threads) => threads.get(),
        None => {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            THREADS_MAX.min(cores * 2)
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(all.len()) {
            let thread = std::thread::Builder::new().name("logcore-logs".to_owned());
            if thread.spawn_scoped(scope, some).is_err() {
                break;
            }
        }
        some();
    });
}

pub(super) fn load_all(
    found: Vec<Found>,
    known: &(dyn Fn(&Key) -> LastKnown + Sync),
    opening: &Opening<'_>,
    dir_state: &DirState,
) -> Loaded {
    let to_check = |one: &Found| match known(&one.key) {
        known if known.clean_shutdown => 0,
        known => bytes_to_check(&one.dir, known.recovery_point),
    };
    let bytes = found.iter().map(to_check).sum();
    opening.progress.expect(found.len() as u64, bytes);
    let (done, checked) = (AtomicUsize::new(0), AtomicU64::new(0));
    let results = Mutex::new(Vec::with_capacity(found.len()));
    for_each(&found, opening.threads, |one| {
        let config = (opening.config_for)(&one.key.0);
        let result = load_one(one, known(&one.key), config, dir_state);
        opening.progress.finish_log();
        let outcome = result.as_ref().map(|partition| partition.log.recovery());
        let bytes = outcome.map_or(0, |recovery| recovery.bytes_checked);
        (opening.on_log)(&Progress {
            dir: &one.dir,
            outcome,
            logs_done: done.fetch_add(1, Ordering::AcqRel) + 1,
            logs_total: found.len(),
            bytes_checked: checked.fetch_add(bytes, Ordering::AcqRel) + bytes,
        });
        results.lock().push((one, result));
    });
    let mut loaded = Loaded {
        partitions: Logs::new(),
        futures: Logs::new(),
        failures: Vec::new(),
        bytes_checked: checked.into_inner(),
    };
    for (one, result) in results.into_inner() {
        loaded.add(one, result);
    }
    loaded.failures.sort_by(|(one, _), (other, _)| one.cmp(other));
    loaded
}

impl Loaded {
    fn add(&mut self, one: &Found, result: Result<Partition>) {
        let logs = match one.kind {
            Kind::Future => &mut self.futures,
            Kind::Current | Kind::Deleted | Kind::Stray => &mut self.partitions,
        };
        match result {
            Ok(partition) if !logs.contains_key(&one.key) => {
                logs.insert(one.key.clone(), Arc::new(partition));
            }
            // The operator must decide which of the two is right.
            Ok(_) => self.failures.push((
                one.dir.clone(),
                StorageError::AlreadyExists {
                    path: one.dir.clone(),
                },
            )),
            Err(error) => self.failures.push((one.dir.clone(), error)),
        }
    }
}

fn load_one(one: &Found, known: LastKnown, config: LogConfig, dir_state: &DirState) -> Result<Partition> {
    check_not_moved(&one.dir)?;
    let log = Log::open_in(&one.dir, config, known, dir_state)?;
    if one.kind == Kind::Future && !known.clean_shutdown {
        // After a power loss any file above the recovery point may be missing, and a follower does not copy
        // the middle again.
        log.truncate_to(log.recovery_point())?;
    }
    Ok(Partition {
        topic: one.key.0.clone(),
        partition: one.key.1,
        topic_id: metadata::read_topic_id(&one.dir)?,
        log: Arc::new(log),
    })
}
