//! Verification: reads a whole directory and reports what is wrong with it as data ([`verify`]).
//!
//! Takes no lock, writes no file and maps none, so it may run while a process writes the directory. A tail
//! that is being written, and files that go away meanwhile, are no findings. Each partition's files are read
//! once, from the start, by one thread; several partitions are read at a time. The caller's thread waits and
//! gets the progress.
//!
//! Checked, by [`Kind`]:
//!
//! - each batch's header, checksum, records and offsets;
//! - that each segment starts where the one before it ends;
//! - each index entry against the batches, and each transaction index entry against the markers;
//! - the leader epoch file against the batches' epochs;
//! - producer snapshots against their checksum and the batches before them;
//! - the small files of a partition and of a log directory;
//! - names that do not belong there.
//!
//! | module | what it checks |
//! |---|---|
//! | `partition` | one partition |
//! | `segment` | one `.log` file and its indexes |
//! | `directory` | what lies beside the partitions |
//!
//! Bounds: one batch is in memory at a time, decompressed to at most [`VerifyOptions::decompressed_max`]
//! bytes. Each file's findings of one kind are listed up to a limit; the rest are counted.

mod directory;
mod findings;
mod indexes;
mod partition;
mod resync;
mod segment;
mod target;
#[cfg(test)]
pub(crate) mod tests;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

use crate::error::{Result, StorageError};

use findings::Findings;

pub(crate) use partition::{PartitionCheck, SegmentCheck};
pub(crate) use target::{Partition, Target};

/// More threads would only wait for the same disk.
const THREADS_MAX: usize = 8;
/// The most bytes a batch may decompress to. A consumer has the same limit.
const DECOMPRESSED_MAX: usize = 512 << 20;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Records, or files needed to read them, are lost or wrong.
    Damage,
    /// A file that can be rebuilt from the others. Or a gap in the offsets that compaction may have made.
    Hint,
    /// A file that belongs to nothing.
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
    /// Bytes at the log's end that are not a whole batch.
    TornTail,
    /// Bytes in the middle of a log, or below the recovery point, that are not a whole, intact batch.
    CorruptBatch,
    /// An intact batch whose records cannot be read, or contradict its header.
    BadRecords,
    /// An offset that does not follow the previous one.
    OffsetOrder,
    /// A segment does not start where the one before it ends, in a log that was not compacted.
    MissingOffsets,
    /// The same in a log that seems to be compacted: compaction may have removed the offsets.
    OffsetGap,
    /// A leader epoch that is lower than the previous one, or negative.
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
    /// A checkpoint of a log directory.
    Checkpoint,
    /// A log's offset in `cleaner-offset-checkpoint`.
    CleanerCheckpoint,
    /// Output of an interrupted step, which the next opening finishes or removes.
    Unfinished,
    /// A name that does not belong there.
    StrayName,
    /// The operating system could not read it.
    Unreadable,
    /// A batch that decompresses to more than the limit, so its records were not checked.
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
    /// Byte position in the file.
    pub position: Option<u64>,
    /// The log's offset at that position.
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
    /// Threads that read; 0 means one a core, up to eight.
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

/// How much was read so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of `.log` files that were read, and their total at the start.
    pub bytes: u64,
    pub bytes_total: u64,
    /// Partitions that are done, and their total.
    pub partitions: usize,
    pub partitions_total: usize,
}

/// The result of a verification.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Sorted by path and position.
    pub findings: Vec<Finding>,
    pub partitions: usize,
    pub segments: usize,
    pub batches: u64,
    /// Records of intact batches, including markers.
    pub records: u64,
    pub bytes: u64,
    /// The caller stopped it: not everything was read.
    pub stopped: bool,
}

impl Report {
    /// True when there is a finding of [`Severity::Damage`].
    pub fn is_damaged(&self) -> bool {
        self.findings
            .iter()
            .any(|finding| finding.severity() == Severity::Damage)
    }
}

/// Reads a partition's directory, or a log directory with its partitions, and reports what is wrong.
///
/// Calls `progress` regularly in the caller's thread; false stops the reading.
///
/// Errors: [`StorageError::NotFound`] when there is neither a partition nor a log directory at `path`.
/// [`StorageError::Io`] when the directory cannot be listed. Everything else is a finding.
pub fn verify(
    path: &Path,
    options: &VerifyOptions,
    progress: &mut dyn FnMut(Progress) -> bool,
) -> Result<Report> {
    Ok(verify_target(&Target::find(path)?, options, progress))
}

/// [`verify`] of a target that was found before.
pub(crate) fn verify_target(
    target: &Target,
    options: &VerifyOptions,
    progress: &mut dyn FnMut(Progress) -> bool,
) -> Report {
    let (checks, stopped) = check_partitions(&target.partitions, options, progress);
    report(target, checks, stopped)
}

/// The findings in the partitions and beside them.
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

/// Checks all partitions, several at a time. An entry is `None` when the caller stopped before it.
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
    // The largest partitions first, so that no thread works alone on one at the end.
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
                    // The receiver lives until every sender is dropped, so this cannot fail.
                    let _sent = sender.send(Event::Bytes(bytes));
                    !stop.load(Ordering::Relaxed)
                };
                while !stop.load(Ordering::Relaxed)
                    && let Some(number) = order.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let check = partition::check(&partitions[*number], options, &advance);
                    let _sent = sender.send(Event::Done(*number, Box::new(check)));
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

/// Opens a file for reading; `None` when there is none.
fn open_if_exists(path: &Path) -> Result<Option<std::fs::File>> {
    match std::fs::File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StorageError::io("open", path)(error)),
    }
}
