//! One partition's directory: its names, its segments in their order, and what is carried from batch to batch.
//!
//! The walk keeps the state that a log has at its end (epochs, producers, open transactions). It stops keeping it at the
//! first damage, so that what is left is the state of the log cut there, which is what a repair needs; what comes after is
//! still read, checked and counted.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::checkpoints::{LEADER_EPOCH_FILE, LOG_START_FILE, read_epochs};
use crate::error::StorageError;
use crate::files::{
    self, CLEANED_SUFFIX, DELETED_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX, SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX, SWAP_SUFFIX, offset_of, segment_file,
};
use crate::leader_epochs::rises;
use crate::lock::LOCK_FILE;
use crate::metadata::{self, CLEAN_SHUTDOWN_FILE, PARTITION_METADATA_FILE};
use crate::producer_snapshot;
use crate::producer_state::ProducerState;
use crate::txn_index::AbortedTxn;

use super::directory::{CLEANER_FILE, Partition};
use super::findings::Findings;
use super::{Finding, Kind, VerifyOptions};

/// How often a live partition with findings is read again.
const LIVE_RETRIES: usize = 2;
pub(super) const REBUILT: &str =
    "it is built anew when it is needed; `logcore repair --apply` does it now";
const CUT_TAIL: &str = "an opening after an unclean shutdown cuts it here; `logcore repair --apply` does it and keeps a copy";
const CUT_MIDDLE: &str = "take the partition from another replica, or cut the log here: `logcore repair --apply --cut-at-corruption`";

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
    /// Leader epochs of the batches: the epoch and its first offset.
    pub(crate) epochs: Vec<(i32, i64)>,
    pub(crate) epochs_wrong: bool,
    /// Producers at `log_end`.
    pub(crate) producers: ProducerState,
    /// Offsets of snapshots that are wrong.
    pub(crate) snapshots_wrong: Vec<i64>,
    pub(crate) topic_id_wrong: bool,
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
    check
}

fn walk(
    partition: &Partition,
    options: &VerifyOptions,
    advance: &dyn Fn(u64) -> bool,
) -> PartitionCheck {
    let mut walk = Walk::new(Context {
        partition,
        options,
        advance,
    });
    match files::file_names(&partition.dir) {
        Ok(names) => walk.run(&names),
        // Deleted in the meantime.
        Err(_) if partition.live && !partition.dir.exists() => {}
        Err(error) => walk
            .findings
            .error(Kind::Unreadable, &partition.dir, &error, ""),
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

/// Batches of one leader epoch, one after another.
#[derive(Debug, Clone, Copy)]
struct EpochRun {
    epoch: i32,
    first: i64,
    last: i64,
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
    damage: Option<Damage>,
    after_batches: u64,
    after_records: u64,
    epochs: Vec<EpochRun>,
    epochs_wrong: bool,
    /// Offsets of snapshots not reached yet, the next last.
    snapshots: Vec<i64>,
    snapshots_wrong: Vec<i64>,
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
            damage: None,
            after_batches: 0,
            after_records: 0,
            epochs: Vec::new(),
            epochs_wrong: false,
            snapshots: Vec::new(),
            snapshots_wrong: Vec::new(),
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
        self.check_topic_id();
        self.start_from_snapshot();
        for number in 0..self.bases.len() {
            self.segment(number);
            if self.stopped {
                return;
            }
        }
        self.check_snapshots(self.next_offset);
        self.check_late_snapshots();
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
            let unfinished = [DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX, ".tmp"]
                .iter()
                .any(|suffix| name.ends_with(suffix));
            if unfinished {
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
            let base = SEGMENT_SUFFIXES
                .iter()
                .find_map(|suffix| offset_of(name, suffix));
            if let Some(base) = base {
                let owned = name.ends_with(SNAPSHOT_SUFFIX)
                    || self.bases.binary_search(&base).is_ok()
                    || live;
                if !owned {
                    self.findings.file(
                        Kind::StrayName,
                        &path,
                        "there is no .log file of this offset",
                        "the next opening removes it",
                    );
                }
            } else if !is_known_name(name) {
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

    // ---- leader epochs ----

    /// Takes in the epoch of a batch, and tells of one that goes backwards.
    pub(super) fn epoch(&mut self, segment: usize, position: u64, epoch: i32, offset: i64) {
        if epoch < 0 {
            return;
        }
        match self.epochs.last_mut() {
            Some(run) if run.epoch == epoch => run.last = offset,
            Some(run) if run.epoch > epoch => {
                let last = run.epoch;
                self.findings.push(Finding {
                    kind: Kind::EpochOrder,
                    path: segment_file(self.dir, self.bases[segment], LOG_SUFFIX),
                    position: Some(position),
                    offset: Some(offset),
                    what: format!("leader epoch {epoch} follows leader epoch {last}"),
                    remedy: "take the partition from another replica".to_owned(),
                });
            }
            _ => self.epochs.push(EpochRun {
                epoch,
                first: offset,
                last: offset,
            }),
        }
    }

    /// Compares the epochs' file, as it is now, with the batches.
    fn check_epochs(&mut self) {
        const REMEDY: &str =
            "`logcore repair --apply` makes it again from the epochs of the batches";
        let path = self.dir.join(LEADER_EPOCH_FILE);
        let what = match read_epochs(&path) {
            Ok(entries) if !rises(&entries) => Some("the epochs do not rise".to_owned()),
            Ok(entries) => self.contradiction(&entries),
            Err(error @ StorageError::Corrupt { .. }) => {
                self.epochs_wrong = true;
                self.findings
                    .error(Kind::LeaderEpochs, &path, &error, REMEDY);
                None
            }
            Err(error) => {
                self.findings
                    .error(Kind::LeaderEpochs, &path, &error, REMEDY);
                None
            }
        };
        if let Some(what) = what {
            self.epochs_wrong = true;
            self.findings.file(Kind::LeaderEpochs, &path, what, REMEDY);
        }
    }

    fn contradiction(&self, entries: &[(i32, i64)]) -> Option<String> {
        let said = |offset: i64, epoch: i32| {
            let after = entries.partition_point(|(_, start)| *start <= offset);
            match after.checked_sub(1) {
                Some(index) => entries[index].0,
                // Forgotten, because the log's start has passed it.
                None => entries.first().map_or(-1, |(first, _)| epoch.min(*first)),
            }
        };
        for run in &self.epochs {
            for offset in [run.first, run.last] {
                let found = said(offset, run.epoch);
                if found < 0 {
                    return Some("there is no epoch, but the batches have some".to_owned());
                }
                if found != run.epoch {
                    return Some(format!(
                        "offset {offset} is said to be of epoch {found}, the batch there is of epoch {}",
                        run.epoch
                    ));
                }
            }
        }
        let (epoch, start) = entries.last()?;
        let too_late = self.intact() && !self.live() && *start > self.next_offset;
        too_late.then(|| {
            format!(
                "epoch {epoch} is said to begin at offset {start}, but the log ends at {}",
                self.next_offset
            )
        })
    }

    // ---- producer snapshots ----

    /// What producers there were before the first segment.
    fn start_from_snapshot(&mut self) {
        let Some(first) = self.bases.first().copied() else {
            return;
        };
        while let Some(offset) = self.snapshots.last().copied().filter(|o| *o <= first) {
            self.snapshots.pop();
            if let Some(state) = self.read_snapshot(offset) {
                self.producers = state;
            }
        }
        for (producer_id, entry) in self.producers.sorted() {
            if let Some(first_offset) = entry.transaction_start {
                let open = OpenTxn {
                    first_offset,
                    has_records: true,
                };
                self.transactions.insert(producer_id, open);
            }
        }
    }

    fn read_snapshot(&mut self, offset: i64) -> Option<ProducerState> {
        let path = segment_file(self.dir, offset, SNAPSHOT_SUFFIX);
        match producer_snapshot::read(&path) {
            Ok(state) => state,
            Err(error) => {
                self.snapshots_wrong.push(offset);
                self.findings
                    .error(Kind::ProducerSnapshot, &path, &error, REBUILT);
                None
            }
        }
    }

    /// Compares the snapshots up to `offset` with the producers of the batches before it.
    pub(super) fn check_snapshots(&mut self, offset: i64) {
        while let Some(next) = self.snapshots.last().copied().filter(|o| *o <= offset) {
            self.snapshots.pop();
            let Some(state) = self.read_snapshot(next) else {
                continue;
            };
            if !self.intact() {
                continue;
            }
            if let Some(what) = self.difference(&state) {
                self.snapshots_wrong.push(next);
                let path = segment_file(self.dir, next, SNAPSHOT_SUFFIX);
                self.findings
                    .file(Kind::ProducerSnapshot, &path, what, REBUILT);
            }
        }
    }

    /// How a snapshot contradicts the producers that the batches before it make. Producers that expired are in one of
    /// them only, what is older than the first segment cannot be told, and of a compacted log only what it still has.
    fn difference(&self, snapshot: &ProducerState) -> Option<String> {
        let replayed: HashMap<_, _> = self.producers.sorted().into_iter().collect();
        let first = self.bases.first().copied().unwrap_or(0);
        for (producer_id, said) in snapshot.sorted() {
            let (Some(found), Some(last)) = (replayed.get(&producer_id), said.batches.back())
            else {
                continue;
            };
            let there = found.batches.back();
            let reached = there.map_or(-1, |batch| batch.last_offset);
            if last.last_offset < first || (!self.dense && reached < last.last_offset) {
                continue;
            }
            let sequence = there.map_or(-1, |batch| batch.last_sequence);
            if (found.epoch, reached, sequence)
                != (said.epoch, last.last_offset, last.last_sequence)
            {
                return Some(format!(
                    "producer {producer_id} is said to have ended with epoch {}, sequence {} at offset {}, the batches say epoch {}, sequence {sequence} at offset {reached}",
                    said.epoch, last.last_sequence, last.last_offset, found.epoch
                ));
            }
            if self.dense && found.transaction_start != said.transaction_start {
                return Some(format!(
                    "producer {producer_id} is said to have its transaction open since {}, the batches say {}",
                    since(said.transaction_start),
                    since(found.transaction_start)
                ));
            }
        }
        None
    }

    /// Snapshots after the log's end.
    fn check_late_snapshots(&mut self) {
        while let Some(offset) = self.snapshots.pop() {
            if self.intact() && !self.live() {
                self.snapshots_wrong.push(offset);
                let what = format!(
                    "it is of offset {offset}, but the log ends at {}",
                    self.next_offset
                );
                let path = segment_file(self.dir, offset, SNAPSHOT_SUFFIX);
                let remedy = "the next opening removes it";
                self.findings
                    .file(Kind::ProducerSnapshot, &path, what, remedy);
            }
        }
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
            epochs: self
                .epochs
                .iter()
                .map(|run| (run.epoch, run.first))
                .collect(),
            epochs_wrong: self.epochs_wrong,
            producers: self.producers,
            snapshots_wrong: self.snapshots_wrong,
            topic_id_wrong: self.topic_id_wrong,
        }
    }
}

fn since(start: Option<i64>) -> String {
    start.map_or_else(|| "never".to_owned(), |start| format!("offset {start}"))
}

/// Files of a partition that are not a segment's. The last three are Kafka's in KRaft mode.
fn is_known_name(name: &str) -> bool {
    let snapshot_of_metadata = name
        .strip_suffix(".checkpoint")
        .is_some_and(|rest| rest.len() == 31 && rest.as_bytes()[20] == b'-');
    snapshot_of_metadata
        || [
            LEADER_EPOCH_FILE,
            PARTITION_METADATA_FILE,
            CLEAN_SHUTDOWN_FILE,
            LOCK_FILE,
            // Of a log that is by itself.
            LOG_START_FILE,
            CLEANER_FILE,
            "quorum-state",
            "quorum-state.tmp",
        ]
        .contains(&name)
}

/// The index files of a segment.
pub(super) fn index_path(dir: &Path, base_offset: i64) -> PathBuf {
    segment_file(dir, base_offset, INDEX_SUFFIX)
}
