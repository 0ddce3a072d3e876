//! Reading all of a directory and saying what is wrong with it, as data: [`verify`].
//!
//! Owns nothing and changes nothing: no lock is taken, no file written, nothing mapped. So it may run beside whoever
//! writes the directory; what is then being written at a log's tail, or goes away in the meantime, is no fault. A
//! partition's files are read once, front to back, in one thread; several partitions at a time. The caller's thread waits
//! and is told how far the reading is.
//!
//! What is checked, by [`Kind`]: every batch's header, checksum, records and offsets; that each segment goes on where the
//! one before ends; every index entry against the batches; transaction index entries against the markers; leader epochs against the batches' epochs; producer snapshots
//! against their checksum and the batches before them; the small files of a partition and of a log directory; and names
//! that belong to nobody. `partition` walks over one partition, `segment` over one `.log` file and its indexes,
//! `directory` over what stands beside the partitions.
//!
//! Bounds: one batch is in memory at a time, decompressed to at most [`VerifyOptions::decompressed_max`] bytes, and
//! a file's findings of one kind are told one by one up to a limit.

mod directory;
mod findings;
mod indexes;
mod partition;
mod resync;
mod segment;
#[cfg(test)]
pub(crate) mod tests;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

use crate::error::{Result, StorageError};

use findings::Findings;

pub(crate) use directory::{Partition, Target};
pub(crate) use partition::{PartitionCheck, SegmentCheck};

/// Threads that read partitions; more would only wait for the same disk.
const THREADS_MAX: usize = 8;
/// How much a batch may decompress to; what a reader of records takes, too.
const DECOMPRESSED_MAX: usize = 512 << 20;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Records, or what says how to read them, are lost or wrong.
    Damage,
    /// A file that is made again from the others, or what may be in order and cannot be judged: offsets that compaction may
    /// have removed.
    Hint,
    /// Nobody's file.
    Stray,
}

impl Severity {
    /// `damage`, `hint` or `stray`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Damage => "damage",
            Self::Hint => "hint",
            Self::Stray => "stray",
        }
    }
}

/// What a finding is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Bytes that are no whole batch, with nothing whole behind them.
    TornTail,
    /// Bytes that are no whole, intact batch, in the middle of a log or in what was already known to be on disk.
    CorruptBatch,
    /// An intact batch whose records cannot be read, or contradict its header.
    BadRecords,
    /// An offset that does not follow the one before.
    OffsetOrder,
    /// A segment does not go on where the one before ends, in a log that was not compacted.
    MissingOffsets,
    /// The same in a log that seems to have been compacted, which may have removed them.
    OffsetGap,
    /// A leader epoch lower than the one before, or none at all.
    EpochOrder,
    OffsetIndex,
    TimeIndex,
    TxnIndex,
    LeaderEpochs,
    ProducerSnapshot,
    /// `partition.metadata`.
    TopicId,
    /// `meta.properties`.
    MetaProperties,
    /// One of a log directory's checkpoints.
    Checkpoint,
    /// What `cleaner-offset-checkpoint` says of a log.
    CleanerCheckpoint,
    /// Output of a step that was interrupted, which the next opening finishes or removes.
    Unfinished,
    /// A name that belongs to nobody.
    StrayName,
    /// The operating system did not give the bytes.
    Unreadable,
    /// A batch that decompresses to more than is allowed here, and was not looked into.
    NotChecked,
}

impl Kind {
    /// The name in reports: `torn-tail`, `corrupt-batch` …
    pub fn name(self) -> &'static str {
        match self {
            Self::TornTail => "torn-tail",
            Self::CorruptBatch => "corrupt-batch",
            Self::BadRecords => "bad-records",
            Self::OffsetOrder => "offset-order",
            Self::MissingOffsets => "missing-offsets",
            Self::OffsetGap => "offset-gap",
            Self::EpochOrder => "epoch-order",
            Self::OffsetIndex => "offset-index",
            Self::TimeIndex => "time-index",
            Self::TxnIndex => "transaction-index",
            Self::LeaderEpochs => "leader-epochs",
            Self::ProducerSnapshot => "producer-snapshot",
            Self::TopicId => "topic-id",
            Self::MetaProperties => "meta-properties",
            Self::Checkpoint => "checkpoint",
            Self::CleanerCheckpoint => "cleaner-checkpoint",
            Self::Unfinished => "unfinished",
            Self::StrayName => "stray-name",
            Self::Unreadable => "unreadable",
            Self::NotChecked => "not-checked",
        }
    }

    /// How bad it is.
    pub fn severity(self) -> Severity {
        match self {
            Self::TornTail
            | Self::CorruptBatch
            | Self::BadRecords
            | Self::OffsetOrder
            | Self::MissingOffsets
            | Self::EpochOrder
            | Self::TxnIndex
            | Self::LeaderEpochs
            | Self::MetaProperties
            | Self::Checkpoint
            | Self::NotChecked
            | Self::Unreadable => Severity::Damage,
            Self::OffsetIndex
            | Self::TimeIndex
            | Self::ProducerSnapshot
            | Self::TopicId
            | Self::OffsetGap
            | Self::CleanerCheckpoint => Severity::Hint,
            Self::Unfinished | Self::StrayName => Severity::Stray,
        }
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub kind: Kind,
    /// The file, or the directory.
    pub path: PathBuf,
    /// Where in the file, in bytes.
    pub position: Option<u64>,
    /// The log's offset there.
    pub offset: Option<i64>,
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

impl Finding {
    /// How bad it is.
    pub fn severity(&self) -> Severity {
        self.kind.severity()
    }
}

/// How to verify.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerifyOptions {
    /// Threads that read; 0 is as many as there are cores, up to eight.
    pub threads: usize,
    /// The most bytes a batch may decompress to.
    pub decompressed_max: usize,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        Self {
            threads: 0,
            decompressed_max: DECOMPRESSED_MAX,
        }
    }
}

/// How far the reading is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of `.log` files read, and how many there were at the start.
    pub bytes: u64,
    pub bytes_total: u64,
    /// Partitions done, and how many there are.
    pub partitions: usize,
    pub partitions_total: usize,
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// In order of paths, and of positions in a file.
    pub findings: Vec<Finding>,
    pub partitions: usize,
    pub segments: usize,
    pub batches: u64,
    /// Records of intact batches, markers too.
    pub records: u64,
    pub bytes: u64,
    /// The caller asked to stop: not everything was read.
    pub stopped: bool,
}

impl Report {
    /// True when something is lost or wrong, and not only a hint or a stray file.
    pub fn is_damaged(&self) -> bool {
        self.findings
            .iter()
            .any(|finding| finding.severity() == Severity::Damage)
    }
}

/// Reads all of a partition's directory, or of a log directory with its partitions, and tells what is wrong.
///
/// `progress` is called now and then in the caller's thread; false stops the reading.
///
/// Errors: [`StorageError::NotFound`] when there is neither a partition nor a log directory at `path`, and what the disk
/// says when the directory cannot be listed. Everything else is a finding.
pub fn verify(
    path: &Path,
    options: &VerifyOptions,
    progress: &mut dyn FnMut(Progress) -> bool,
) -> Result<Report> {
    Ok(verify_target(&Target::find(path)?, options, progress))
}

/// [`verify`] for what was found at a path.
pub(crate) fn verify_target(
    target: &Target,
    options: &VerifyOptions,
    progress: &mut dyn FnMut(Progress) -> bool,
) -> Report {
    let (checks, stopped) = check_partitions(&target.partitions, options, progress);
    report(target, checks, stopped)
}

/// What was found in the partitions, and beside them.
pub(crate) fn report(target: &Target, checks: Vec<Option<PartitionCheck>>, stopped: bool) -> Report {
    let mut report = Report {
        partitions: target.partitions.len(),
        stopped,
        ..Report::default()
    };
    let mut findings = Findings::default();
    target.check_beside(&checks, &mut findings);
    for check in checks.into_iter().flatten() {
        report.segments += check.segments.len();
        report.batches += check.batches;
        report.records += check.records;
        report.bytes += check.bytes;
        findings.append(check.findings);
    }
    report.findings = findings.into_sorted();
    report
}

enum Event {
    Bytes(u64),
    Done(usize, Box<PartitionCheck>),
}

/// Checks all partitions, several at a time. A place is empty when the caller stopped before it was reached.
pub(crate) fn check_partitions(
    partitions: &[Partition],
    options: &VerifyOptions,
    progress: &mut dyn FnMut(Progress) -> bool,
) -> (Vec<Option<PartitionCheck>>, bool) {
    let mut state = Progress {
        bytes_total: partitions.iter().map(|p| p.bytes).sum(),
        partitions_total: partitions.len(),
        ..Progress::default()
    };
    // The largest first, so that none of them is left alone at the end.
    let mut order: Vec<usize> = (0..partitions.len()).collect();
    order.sort_by_key(|number| std::cmp::Reverse(partitions[*number].bytes));
    let mut checks: Vec<Option<PartitionCheck>> = partitions.iter().map(|_| None).collect();
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(!progress(state)));
    let (sender, events) = mpsc::sync_channel(64);
    std::thread::scope(|scope| {
        for _ in 0..thread_count(options).min(partitions.len()) {
            let (sender, order, next, stop) = (sender.clone(), &order, &next, &stop);
            scope.spawn(move || {
                let advance = |bytes| {
                    // The caller reads until every sender is gone, so this cannot fail while it matters.
                    let _told = sender.send(Event::Bytes(bytes));
                    !stop.load(Ordering::Relaxed)
                };
                while !stop.load(Ordering::Relaxed)
                    && let Some(number) = order.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let check = partition::check(&partitions[*number], options, &advance);
                    let _told = sender.send(Event::Done(*number, Box::new(check)));
                }
            });
        }
        drop(sender);
        for event in events {
            match event {
                Event::Bytes(bytes) => state.bytes += bytes,
                Event::Done(number, check) => {
                    state.partitions += 1;
                    checks[number] = Some(*check);
                }
            }
            if !progress(state) {
                stop.store(true, Ordering::Relaxed);
            }
        }
    });
    (checks, stop.into_inner())
}

fn thread_count(options: &VerifyOptions) -> usize {
    if options.threads > 0 {
        return options.threads.min(64);
    }
    std::thread::available_parallelism().map_or(1, |cores| cores.get().min(THREADS_MAX))
}

/// Opens a file for reading; `None` when it is not there.
fn open_if_exists(path: &Path) -> Result<Option<std::fs::File>> {
    match std::fs::File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StorageError::io("open", path)(error)),
    }
}
