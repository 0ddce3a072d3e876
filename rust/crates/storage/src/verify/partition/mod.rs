//! The check of one partition's directory: its names, its segments in order, and the state carried from batch
//! to batch.
//!
//! The walk builds the state that the log has at its end: epochs, producers, open transactions. It stops at
//! the first damage, because a repair that cuts the log there needs the state at the cut. Later batches are
//! still read, checked and counted.

mod epochs;
mod snapshots;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::files::flushed_mark::FLUSHED_FILE;
use crate::files::metadata::{self, PARTITION_METADATA_FILE};
use crate::files::{self, INDEX_SUFFIX, LOG_SUFFIX, SNAPSHOT_SUFFIX, offset_of, segment_file};
use crate::index::transactions::AbortedTxn;
use crate::leader_epochs::runs::EpochRuns;
use crate::producers::ProducerState;

use super::findings::Findings;
use super::target::Partition;
use super::{Finding, Kind, VerifyOptions};

/// How often a live partition with findings is read again.
const LIVE_RETRIES: usize = 2;
pub(super) const REBUILT: &str = "it is rebuilt when it is needed; `logcore repair --apply` does it now";
const CUT_TAIL: &str =
    "the next opening after a crash cuts the log here; `logcore repair --apply` does it and keeps a copy";
const CUT_MIDDLE: &str = "copy the partition from another replica, or cut the log here: \
     `logcore repair --apply --cut-at-corruption`";

pub(super) const GONE: &str = "copy the partition from another replica; what is left can still be read";
const UNCLEAR: &str =
    "nothing, if the log is or was compacted; otherwise copy the partition from another replica";
const LOST_END: &str = "put the missing files back, or keep what is left: \
     `logcore repair --apply --cut-at-corruption`";
const ANOTHER_REPLICA: &str = "copy the partition from another replica";

/// The result of checking one segment.
#[derive(Debug)]
pub(crate) struct SegmentCheck {
    pub(crate) base_offset: i64,
    pub(crate) size: u64,
    pub(crate) offset_index_wrong: bool,
    pub(crate) time_index_wrong: bool,
    /// The right entries of the transaction index: from the batches, and the file's own as far as they are
    /// right.
    pub(crate) aborted: Vec<AbortedTxn>,
    pub(crate) txn_index_wrong: bool,
}

/// Where the log has to be cut to be whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Index of the segment, in the order of offsets.
    pub(crate) segment: usize,
    pub(crate) position: u64,
    /// The log end offset after the cut.
    pub(crate) offset: i64,
    /// The cut loses no whole batch, and nothing below the recovery point.
    pub(crate) is_tail: bool,
    /// Records of intact batches after the cut.
    pub(crate) records: u64,
    /// Bytes of `.log` files after the cut.
    pub(crate) bytes: u64,
    pub(crate) reason: String,
}

/// The result of checking one partition.
#[derive(Debug)]
pub(crate) struct PartitionCheck {
    pub(crate) findings: Findings,
    pub(crate) segments: Vec<SegmentCheck>,
    pub(crate) batches: u64,
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    pub(crate) cut: Option<Cut>,
    /// The log end offset, at the cut if there is one.
    pub(crate) log_end: i64,
    /// The right content of the leader epoch file, when the file is certainly wrong.
    pub(crate) epochs: Option<Vec<(i32, i64)>>,
    /// Producers at `log_end`.
    pub(crate) producers: ProducerState,
    /// Offsets of the wrong snapshots.
    pub(crate) snapshots_wrong: Vec<i64>,
    /// There are producers but no snapshot.
    pub(crate) snapshot_missing: bool,
    pub(crate) topic_id_wrong: bool,
    /// The log ends, without damage, before the offset that its note says was on disk. It cannot be opened
    /// with the note.
    pub(crate) is_short: bool,
}

/// What a walk needs to know of the directory.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) partition: &'a Partition,
    pub(super) options: &'a VerifyOptions,
    /// Called with the number of bytes read; false stops the walk.
    pub(super) advance: &'a dyn Fn(u64) -> bool,
}

pub(super) fn check(
    partition: &Partition,
    options: &VerifyOptions,
    advance: &dyn Fn(u64) -> bool,
) -> PartitionCheck {
    let mut check = walk(partition, options, advance);
    // The cleaner, retention and rolling change a live directory during the walk. Only what is found twice
    // counts.
    for _ in 0..LIVE_RETRIES {
        if !partition.live || check.findings.is_empty() {
            break;
        }
        let before = check.findings;
        check = walk(partition, options, &|_| advance(0));
        check.findings.keep_common(&before);
    }
    check.report_lost_end(partition);
    check
}

impl PartitionCheck {
    fn report_lost_end(&mut self, partition: &Partition) {
        let Some(flushed) = partition.flushed() else {
            return;
        };
        self.is_short = self.cut.is_none() && self.log_end < flushed;
        if self.is_short {
            self.findings.push(Finding {
                kind: Kind::MissingOffsets,
                path: partition.dir.join(FLUSHED_FILE),
                position: None,
                offset: Some(self.log_end),
                what: format!(
                    "everything before offset {flushed} was on disk, but the log ends at {}: its files were \
                        cut or replaced",
                    self.log_end
                ),
                remedy: LOST_END.to_owned(),
            });
        }
    }
}

fn walk(partition: &Partition, options: &VerifyOptions, advance: &dyn Fn(u64) -> bool) -> PartitionCheck {
    let mut walk = Walk::new(Context {
        partition,
        options,
        advance,
    });
    match files::file_names(&partition.dir) {
        Ok(names) => walk.run(&names),
        // The partition was deleted meanwhile.
        Err(_) if partition.live && !partition.dir.exists() => {}
        Err(error) => walk.findings.error(Kind::Unreadable, &partition.dir, &error, ""),
    }
    walk.into_check()
}

/// A fault in the log's batches.
#[derive(Debug)]
struct Damage {
    kind: Kind,
    segment: usize,
    position: u64,
    offset: i64,
    what: String,
}

/// Offsets that are missing before a segment.
#[derive(Debug, Clone, Copy)]
struct Gap {
    segment: usize,
    first: i64,
    /// The segment before it has no records, as after cleaning.
    after_empty: bool,
}

/// A transaction that is open at this point of the walk.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpenTxn {
    pub(super) first_offset: i64,
    /// Some of its records are left. Without, the cleaner may have kept only an empty batch.
    pub(super) has_records: bool,
}

/// The walk over one partition, with the state it carries from batch to batch.
pub(super) struct Walk<'a> {
    pub(super) context: Context<'a>,
    pub(super) dir: &'a Path,
    pub(super) findings: Findings,
    pub(super) bases: Vec<i64>,
    pub(super) segments: Vec<SegmentCheck>,
    pub(super) batches: u64,
    pub(super) records: u64,
    pub(super) bytes: u64,
    /// The offset after the last record of an intact batch.
    pub(super) next_offset: i64,
    pub(super) producers: ProducerState,
    pub(super) transactions: HashMap<i64, OpenTxn>,
    pub(super) scratch: Vec<u8>,
    pub(super) stopped: bool,
    /// No offset is missing so far, so nothing was compacted.
    pub(super) dense: bool,
    /// Offsets are missing inside a segment. Only compaction does that; a loss takes whole files.
    pub(super) sparse: bool,
    /// A segment was not read to its end.
    pub(super) unread: bool,
    gaps: Vec<Gap>,
    damage: Option<Damage>,
    after_batches: u64,
    after_records: u64,
    epochs: EpochRuns,
    epochs_wanted: Option<Vec<(i32, i64)>>,
    /// Offsets of the snapshots that are still to be read, the next one last.
    snapshots: Vec<i64>,
    snapshots_wrong: Vec<i64>,
    snapshot_missing: bool,
    topic_id_wrong: bool,
}

impl<'a> Walk<'a> {
    fn new(context: Context<'a>) -> Self {
        Self {
            context,
            dir: &context.partition.dir,
            findings: Findings::default(),
            bases: Vec::new(),
            segments: Vec::new(),
            batches: 0,
            records: 0,
            bytes: 0,
            next_offset: 0,
            producers: ProducerState::default(),
            transactions: HashMap::new(),
            scratch: Vec::new(),
            stopped: false,
            dense: true,
            sparse: false,
            unread: false,
            gaps: Vec::new(),
            damage: None,
            after_batches: 0,
            after_records: 0,
            epochs: EpochRuns::default(),
            epochs_wanted: None,
            snapshots: Vec::new(),
            snapshots_wrong: Vec::new(),
            snapshot_missing: false,
            topic_id_wrong: false,
        }
    }

    fn run(&mut self, names: &[String]) {
        let with = |suffix| names.iter().filter_map(move |name| offset_of(name, suffix));
        self.bases = with(LOG_SUFFIX).collect();
        self.snapshots = with(SNAPSHOT_SUFFIX).collect();
        self.snapshots.reverse();
        self.next_offset = self.bases.first().copied().unwrap_or(0);
        self.check_names(names);
        if self.bases.is_empty() {
            let dir = self.dir;
            let indexes = names.iter().filter_map(|name| offset_of(name, INDEX_SUFFIX));
            indexes.for_each(|base| self.report_emptied(dir, base));
        }
        self.check_topic_id();
        let has_snapshots = !self.snapshots.is_empty();
        self.start_from_snapshot();
        for number in 0..self.bases.len() {
            self.begin_segment(number);
            self.segment(number);
            if self.stopped {
                return;
            }
        }
        self.check_snapshots(self.next_offset);
        self.check_late_snapshots();
        if !has_snapshots {
            self.check_no_snapshot();
        }
        self.report_gaps();
        self.check_epochs();
        self.report_damage();
    }

    pub(super) fn live(&self) -> bool {
        self.context.partition.live
    }

    /// No damage so far.
    pub(super) fn intact(&self) -> bool {
        self.damage.is_none()
    }

    // ---- names ----

    fn check_names(&mut self, names: &[String]) {
        let live = self.live();
        for name in names {
            let path = self.dir.join(name);
            if files::is_unfinished(name) {
                if !live {
                    self.findings.file(
                        Kind::Unfinished,
                        &path,
                        "an interrupted step left it",
                        "the next opening finishes or removes it",
                    );
                }
                continue;
            }
            let base = files::base_of(name);
            if let Some(base) = base {
                let owned =
                    name.ends_with(SNAPSHOT_SUFFIX) || self.bases.binary_search(&base).is_ok() || live;
                if !owned {
                    self.findings.file(
                        Kind::StrayName,
                        &path,
                        "there is no .log file with this offset",
                        "the next opening removes it",
                    );
                }
            } else if !files::is_of_partition(name) {
                self.findings.file(
                    Kind::StrayName,
                    &path,
                    "no file of a Kafka partition has this name",
                    "nothing reads it; remove it if you do not need it",
                );
            }
        }
    }

    fn check_topic_id(&mut self) {
        let path = self.dir.join(PARTITION_METADATA_FILE);
        if let Err(error) = metadata::read_topic_id(self.dir) {
            self.topic_id_wrong = true;
            let remedy = "remove the file; the broker then writes it again with the cluster's topic id";
            self.findings.error(Kind::TopicId, &path, &error, remedy);
        } else if path.exists() && matches!(metadata::read_topic_id(self.dir), Ok(None)) {
            self.topic_id_wrong = true;
            let remedy = "the broker writes it again with the cluster's topic id";
            self.findings
                .file(Kind::TopicId, &path, "it has no topic id", remedy);
        }
    }

    // ---- damage ----

    /// Records a fault in the bytes or offsets at a position of a segment.
    pub(super) fn damage(&mut self, kind: Kind, segment: usize, position: u64, what: String) {
        let damage = Damage {
            kind,
            segment,
            position,
            offset: self.next_offset,
            what,
        };
        if self.damage.is_none() {
            self.damage = Some(damage);
        } else {
            self.report(&damage, CUT_MIDDLE);
        }
    }

    fn report(&mut self, damage: &Damage, remedy: &str) {
        self.findings.push(Finding {
            kind: damage.kind,
            path: segment_file(self.dir, self.bases[damage.segment], LOG_SUFFIX),
            position: Some(damage.position),
            offset: Some(damage.offset),
            what: damage.what.clone(),
            remedy: remedy.to_owned(),
        });
    }

    /// Counts an intact batch after the first damage.
    pub(super) fn behind_damage(&mut self, records: u64) {
        self.after_batches += 1;
        self.after_records += records;
    }

    /// Reports the first damage, now that the records after it are counted. A tail that is being written is
    /// none.
    fn report_damage(&mut self) {
        let Some(mut damage) = self.damage.take() else {
            return;
        };
        let is_torn = damage.kind == Kind::CorruptBatch && self.after_batches == 0;
        if is_torn && self.live() && damage.segment + 1 == self.bases.len() {
            return;
        }
        if is_torn && damage.offset >= self.context.partition.recovery_point {
            damage.kind = Kind::TornTail;
            self.report(&damage, CUT_TAIL);
        } else {
            if self.after_records > 0 {
                let records = self.after_records;
                damage.what += &format!("; {records} records after it are intact");
            }
            self.report(&damage, CUT_MIDDLE);
        }
        self.damage = Some(damage);
    }

    fn cut(&self) -> Option<Cut> {
        let damage = self.damage.as_ref()?;
        let sizes = self.segments.iter().skip(damage.segment).map(|s| s.size);
        Some(Cut {
            segment: damage.segment,
            position: damage.position,
            offset: damage.offset,
            is_tail: damage.kind == Kind::TornTail,
            records: self.after_records,
            bytes: sizes.sum::<u64>().saturating_sub(damage.position),
            reason: damage.what.clone(),
        })
    }

    // ---- between segments ----

    /// Notes a gap: each segment should start where the one before it ends.
    fn begin_segment(&mut self, number: usize) {
        let base = self.bases[number];
        let first = self.next_offset;
        self.next_offset = first.max(base);
        if self.intact() && !self.unread && first < base {
            self.dense = false;
            let after_empty = self.segments.last().is_some_and(|before| before.size == 0);
            self.gaps.push(Gap {
                segment: number,
                first,
                after_empty,
            });
        }
        self.unread = false;
    }

    /// Reports gaps. The cleaner may have removed any offset that it has passed. Other gaps are a loss,
    /// unless the log looks compacted: its leader's cleaner, or another broker, may have done it. Those gaps
    /// are one finding, and none while a process uses the log, because a cleaner may be at work.
    fn report_gaps(&mut self) {
        let mut gaps = std::mem::take(&mut self.gaps);
        if gaps.is_empty() {
            return;
        }
        let cleaned_to = self.context.partition.cleaned_to();
        gaps.retain(|gap| gap.first >= cleaned_to);
        let (unclear, lost): (Vec<_>, Vec<_>) =
            gaps.into_iter().partition(|gap| self.sparse || gap.after_empty);
        for gap in lost {
            let what = format!("{}: one or more segments are lost", self.missing(gap));
            self.report_gap(Kind::MissingOffsets, gap, what, GONE);
        }
        if let Some(gap) = unclear.first().filter(|_| !self.live()) {
            let mut what = format!("{}, by compaction or by loss", self.missing(*gap));
            if unclear.len() > 1 {
                what += &format!("; there are {} more such gaps", unclear.len() - 1);
            }
            self.report_gap(Kind::OffsetGap, *gap, what, UNCLEAR);
        }
    }

    fn missing(&self, gap: Gap) -> String {
        let (first, last) = (gap.first, self.bases[gap.segment] - 1);
        if first == last {
            return format!("offset {first} is missing before it");
        }
        format!("offsets {first} to {last} are missing before it")
    }

    fn report_gap(&mut self, kind: Kind, gap: Gap, what: String, remedy: &str) {
        self.findings.push(Finding {
            kind,
            path: segment_file(self.dir, self.bases[gap.segment], LOG_SUFFIX),
            position: None,
            offset: Some(gap.first),
            what,
            remedy: remedy.to_owned(),
        });
    }

    fn into_check(self) -> PartitionCheck {
        let cut = self.cut();
        PartitionCheck {
            log_end: cut.as_ref().map_or(self.next_offset, |cut| cut.offset),
            cut,
            findings: self.findings,
            segments: self.segments,
            batches: self.batches,
            records: self.records,
            bytes: self.bytes,
            epochs: self.epochs_wanted,
            producers: self.producers,
            snapshots_wrong: self.snapshots_wrong,
            snapshot_missing: self.snapshot_missing,
            topic_id_wrong: self.topic_id_wrong,
            is_short: false,
        }
    }
}

/// The path of a segment's `.index` file.
pub(super) fn index_path(dir: &Path, base_offset: i64) -> PathBuf {
    segment_file(dir, base_offset, INDEX_SUFFIX)
}
