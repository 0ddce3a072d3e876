//! Checks producer snapshots against the batches.

use std::collections::HashMap;

use super::{OpenTxn, REBUILT, Walk};
use crate::files::{SNAPSHOT_SUFFIX, segment_file};
use crate::producers::ProducerState;
use crate::producers::snapshot;
use crate::verify::Kind;

const FORGOTTEN: &str = "`logcore repair --apply` writes one from the batches; without it, the next opening \
    forgets the producers";

impl Walk<'_> {
    /// Reads the producers that were known before the first segment.
    pub(super) fn start_from_snapshot(&mut self) {
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

    /// Reads the snapshot that was just taken off the list. The newest one of a live log may be half written:
    /// Apache Kafka writes it in place.
    fn read_snapshot(&mut self, offset: i64) -> Option<ProducerState> {
        let path = segment_file(self.dir, offset, SNAPSHOT_SUFFIX);
        match snapshot::read(&path) {
            Ok(state) => state,
            Err(_) if self.live() && self.snapshots.is_empty() => None,
            Err(error) => {
                self.snapshots_wrong.push(offset);
                self.findings
                    .error(Kind::ProducerSnapshot, &path, &error, REBUILT);
                None
            }
        }
    }

    /// Compares the snapshots up to `offset` with the producers of the batches before them.
    pub(in crate::verify) fn check_snapshots(&mut self, offset: i64) {
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
                self.findings.file(Kind::ProducerSnapshot, &path, what, REBUILT);
            }
        }
    }

    /// Describes how a snapshot contradicts the batches before it. Not compared: producers that only one of
    /// them has, because producers expire; batches before the first segment; and batches that compaction
    /// removed.
    fn difference(&self, snapshot: &ProducerState) -> Option<String> {
        let replayed: HashMap<_, _> = self.producers.sorted().into_iter().collect();
        let first = self.bases.first().copied().unwrap_or(0);
        for (producer_id, said) in snapshot.sorted() {
            let (Some(found), Some(last)) = (replayed.get(&producer_id), said.batches.back()) else {
                continue;
            };
            let there = found.batches.back();
            let reached = there.map_or(-1, |batch| batch.last_offset);
            if last.last_offset < first || (!self.dense && reached < last.last_offset) {
                continue;
            }
            let sequence = there.map_or(-1, |batch| batch.last_sequence);
            if (found.epoch, reached, sequence) != (said.epoch, last.last_offset, last.last_sequence) {
                return Some(format!(
                    "producer {producer_id} ended with epoch {}, sequence {} at offset {} by the snapshot, \
                     but with epoch {}, sequence {sequence} at offset {reached} by the batches",
                    said.epoch, last.last_sequence, last.last_offset, found.epoch
                ));
            }
            if self.dense && found.transaction_start != said.transaction_start {
                return Some(format!(
                    "producer {producer_id} has a transaction open since {} by the snapshot, but since {} by \
                        the batches",
                    since(said.transaction_start),
                    since(found.transaction_start)
                ));
            }
        }
        None
    }

    /// Reports a missing snapshot: the next opening of a closed log takes its producers from snapshots alone.
    pub(super) fn check_no_snapshot(&mut self) {
        let partition = self.context.partition;
        let known = self.producers.sorted().len();
        if partition.clean && !partition.live && self.intact() && known > 0 {
            self.snapshot_missing = true;
            let path = segment_file(self.dir, self.next_offset, SNAPSHOT_SUFFIX);
            let what = format!("there is no snapshot, but the batches are of {known} producers");
            self.findings.file(Kind::ProducerSnapshot, &path, what, FORGOTTEN);
        }
    }

    /// Reports snapshots after the log's end.
    pub(super) fn check_late_snapshots(&mut self) {
        while let Some(offset) = self.snapshots.pop() {
            if self.intact() && !self.live() {
                self.snapshots_wrong.push(offset);
                let what = format!(
                    "it is of offset {offset}, but the log ends at {}",
                    self.next_offset
                );
                let path = segment_file(self.dir, offset, SNAPSHOT_SUFFIX);
                let remedy = "the next opening removes it";
                self.findings.file(Kind::ProducerSnapshot, &path, what, remedy);
            }
        }
    }
}

fn since(start: Option<i64>) -> String {
    start.map_or_else(|| "never".to_owned(), |start| format!("offset {start}"))
}
