//! One partition's directory: its names, its segments in their order, and what is carried from batch to batch.
//!
//! The walk keeps the state that a log has at its end (epochs, producers, open transactions). It stops keeping it at the
//! first damage, so that what is left is the state of the log cut there, which is what a repair needs; what comes after is
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

use super::directory::Partition;
use super::findings::Findings;
use super::{Finding, Kind, VerifyOptions};

/// How often a live partition with findings is read again.
const LIVE_RETRIES: usize = 2;
pub(super) const REBUILT: &str = "it is built anew when it is needed; `logcore repair --apply` does it now";
const CUT_TAIL: &str =
    "an opening after an unclean shutdown cuts it here; `logcore repair --apply` does it and keeps a copy";
const CUT_MIDDLE: &str = "take the partition from another replica, or cut the log here: `logcore repair --apply --cut-at-corruption`";

pub(super) const GONE: &str = "take the partition from another replica; what is there can still be read";
const UNCLEAR: &str =
    "nothing, if the log is or was compacted; otherwise take the partition from another replica";
const LOST_END: &str =
    "put back the files there were, or go on with what is left: `logcore repair --apply --cut-at-corruption`";
const ANOTHER_REPLICA: &str = "take the partition from another replica";

/// What is known of a segment after the walk.
#[derive(Debug)]
pub(crate) struct SegmentCheck {
    pub(crate) base_offset: i64,
    pub(crate) size: u64,
    pub(crate) offset_index_wrong: bool,
    pub(crate) time_index_wrong: bool,
    /// What the transaction index has to say: from the batches, and from what it says already as far as that is true.
    pub(crate) aborted: Vec<AbortedTxn>,
    pub(crate) txn_index_wrong: bool,
}

/// Where the log would have to be cut to be whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cut {
    /// The number of the segment in the order of offsets.
    pub(crate) segment: usize,
    pub(crate) position: u64,
    /// The log's end afterwards.
    pub(crate) offset: i64,
    /// Nothing whole and nothing that was known to be on disk is lost.
    pub(crate) is_tail: bool,
    /// Records of intact batches that are behind the cut.
    pub(crate) records: u64,
    /// Bytes of `.log` files that are behind the cut.
    pub(crate) bytes: u64,
    pub(crate) reason: String,
}

/// Everything the walk over a partition found.
#[derive(Debug)]
pub(crate) struct PartitionCheck {
    pub(crate) findings: Findings,
    pub(crate) segments: Vec<SegmentCheck>,
    pub(crate) batches: u64,
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    pub(crate) cut: Option<Cut>,
    /// The offset after the last record, or after the last before the cut.
    pub(crate) log_end: i64,
    /// What the file of leader epochs has to say, where it is certain that it says something else.
    pub(crate) epochs: Option<Vec<(i32, i64)>>,
    /// Producers at `log_end`.
    pub(crate) producers: ProducerState,
    /// Offsets of snapshots that are wrong.
    pub(crate) snapshots_wrong: Vec<i64>,
    /// There is no snapshot at all, but there are producers.
    pub(crate) snapshot_missing: bool,
    pub(crate) topic_id_wrong: bool,
    /// The log ends, with no damage there, before what it noted to be on disk: the note has to go before it can be opened.
    pub(crate) is_short: bool,
}

/// What a walk has to know about the directory.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) partition: &'a Partition,
    pub(super) options: &'a VerifyOptions,
    /// Told how many bytes were read; false says to stop.
    pub(super) advance: &'a dyn Fn(u64) -> bool,
}

pub(super) fn check(
    partition: &Partition,
    options: &VerifyOptions,
    advance: &dyn Fn(u64) -> bool,
) -> PartitionCheck {
    let mut check = walk(partition, options, advance);
    // The cleaner, retention and rolling change a live directory under the walk: what is not found twice is not there.
    for _ in 0..LIVE_RETRIES {
        if !partition.live || check.findings.is_empty() {
            break;
        }
        let before = check.findings;
        check = walk(partition, options, &|_| advance(0));
        check.findings.keep_common(&before);
    }
    check.tell_lost_end(partition);
    check
}

impl PartitionCheck {
    fn tell_lost_end(&mut self, partition: &Partition) {
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
                    "everything before offset {flushed} was on disk, and the log ends at {}: its files were cut or replaced",
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
        // Deleted in the meantime.
        Err(_) if partition.live && !partition.dir.exists() => {}
        Err(error) => walk.findings.error(Kind::Unreadable, &partition.dir, &error, ""),
    }
    walk.into_check()
}

/// The first thing in the log that is not as it must be.
#[derive(Debug)]
struct Damage {
    kind: Kind,
    segment: usize,
    position: u64,
    offset: i64,
    what: String,
}

/// Offsets that are missing in front of a segment.
#[derive(Debug, Clone, Copy)]
struct Gap {
    segment: usize,
    first: i64,
    /// The segment before has no records at all, as when the cleaner removed them.
    after_empty: bool,
}

/// A transaction that is open at this point of the walk.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpenTxn {
    pub(super) first_offset: i64,
    /// Records of it were met; without, the cleaner may have left only its shell.
    pub(super) has_records: bool,
}

/// The walk over one partition, and what it carries from batch to batch.
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
    /// No offset is missing so far: nothing was compacted.
    pub(super) dense: bool,
    /// Offsets are missing inside a segment, which only compaction does: files are lost whole.
    pub(super) sparse: bool,
    /// A segment was not read to its end.
    pub(super) unread: bool,
    gaps: Vec<Gap>,
    damage: Option<Damage>,
    after_batches: u64,
    after_records: u64,
    epochs: EpochRuns,
    epochs_wanted: Option<Vec<(i32, i64)>>,
    /// Offsets of snapshots not reached yet, the next last.
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
            indexes.for_each(|base| self.tell_emptied(dir, base));
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
        self.tell_gaps();
        self.check_epochs();
        self.tell_damage();
    }

    pub(super) fn live(&self) -> bool {
        self.context.partition.live
    }

    /// Nothing wrong with the batches so far.
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
                        "left by a step that was interrupted",
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
                        "there is no .log file of this offset",
                        "the next opening removes it",
                    );
                }
            } else if !files::is_of_partition(name) {
                self.findings.file(
                    Kind::StrayName,
                    &path,
                    "no file of a Kafka partition has this name",
                    "nothing reads it; remove it if it is not yours",
                );
            }
        }
    }

    fn check_topic_id(&mut self) {
        let path = self.dir.join(PARTITION_METADATA_FILE);
        if let Err(error) = metadata::read_topic_id(self.dir) {
            self.topic_id_wrong = true;
            let remedy = "without the file, the broker writes it again from what the cluster says";
            self.findings.error(Kind::TopicId, &path, &error, remedy);
        } else if path.exists() && matches!(metadata::read_topic_id(self.dir), Ok(None)) {
            self.topic_id_wrong = true;
            let remedy = "the broker writes it again from what the cluster says";
            self.findings
                .file(Kind::TopicId, &path, "there is no topic id in it", remedy);
        }
    }

    // ---- damage ----

    /// Notes what is wrong with the bytes or offsets at a place of a segment.
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
            self.tell(&damage, CUT_MIDDLE);
        }
    }

    fn tell(&mut self, damage: &Damage, remedy: &str) {
        self.findings.push(Finding {
            kind: damage.kind,
            path: segment_file(self.dir, self.bases[damage.segment], LOG_SUFFIX),
            position: Some(damage.position),
            offset: Some(damage.offset),
            what: damage.what.clone(),
            remedy: remedy.to_owned(),
        });
    }

    /// An intact batch behind the first damage.
    pub(super) fn behind_damage(&mut self, records: u64) {
        self.after_batches += 1;
        self.after_records += records;
    }

    /// The first damage, now that it is known what is behind it. What is being written is none.
    fn tell_damage(&mut self) {
        let Some(mut damage) = self.damage.take() else {
            return;
        };
        let is_torn = damage.kind == Kind::CorruptBatch && self.after_batches == 0;
        if is_torn && self.live() && damage.segment + 1 == self.bases.len() {
            return;
        }
        if is_torn && damage.offset >= self.context.partition.recovery_point {
            damage.kind = Kind::TornTail;
            self.tell(&damage, CUT_TAIL);
        } else {
            if self.after_records > 0 {
                let records = self.after_records;
                damage.what += &format!("; {records} records behind it are intact");
            }
            self.tell(&damage, CUT_MIDDLE);
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

    /// Segments lie end to end: what is missing between two is noted.
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

    /// A log that is not compacted lost what is missing. What the cleaner has been over may lack anything; of what else
    /// looks compacted (by the cleaner of the leader, or before the files came here) it is said once, unless a cleaner may
    /// be at work.
    fn tell_gaps(&mut self) {
        let mut gaps = std::mem::take(&mut self.gaps);
        if gaps.is_empty() {
            return;
        }
        let cleaned_to = self.context.partition.cleaned_to();
        gaps.retain(|gap| gap.first >= cleaned_to);
        let (unclear, lost): (Vec<_>, Vec<_>) =
            gaps.into_iter().partition(|gap| self.sparse || gap.after_empty);
        for gap in lost {
            let what = format!("{}: one or more segments are gone", self.missing(gap));
            self.tell_gap(Kind::MissingOffsets, gap, what, GONE);
        }
        if let Some(gap) = unclear.first().filter(|_| !self.live()) {
            let mut what = format!("{}, by compaction if it was not by loss", self.missing(*gap));
            if unclear.len() > 1 {
                what += &format!("; there are {} more such gaps", unclear.len() - 1);
            }
            self.tell_gap(Kind::OffsetGap, *gap, what, UNCLEAR);
        }
    }

    fn missing(&self, gap: Gap) -> String {
        let (first, last) = (gap.first, self.bases[gap.segment] - 1);
        if first == last {
            return format!("offset {first} is missing before it");
        }
        format!("offsets {first} to {last} are missing before it")
    }

    fn tell_gap(&mut self, kind: Kind, gap: Gap, what: String, remedy: &str) {
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

/// The index files of a segment.
pub(super) fn index_path(dir: &Path, base_offset: i64) -> PathBuf {
    segment_file(dir, base_offset, INDEX_SUFFIX)
}
