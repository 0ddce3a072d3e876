//! A model of a log's content: all records ever appended, which were acknowledged, and which a power loss may
//! not remove.

mod compaction;
mod transactions;

use std::collections::BTreeMap;

pub(super) use transactions::{Fates, Transactions};

/// What a record is for readers of committed records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    Plain,
    /// In a transaction of this producer.
    Transactional(i64),
    /// Ends this producer's transaction.
    Marker {
        producer: i64,
        committed: bool,
    },
}

/// A record as a consumer sees it. No two records of a history have the same value, except markers and
/// tombstones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rec {
    pub(super) timestamp: i64,
    pub(super) key: Option<Vec<u8>>,
    pub(super) value: Option<Vec<u8>>,
    /// The leader's epoch, -1 in a legacy message.
    pub(super) epoch: i32,
    pub(super) what: What,
}

/// A batch of a producer in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) last: i64,
    pub(super) producer: i64,
    pub(super) first_sequence: i32,
    pub(super) what: What,
}

/// An acknowledged batch of an idempotent producer, with its bytes to send it again.
#[derive(Debug, Clone)]
pub(super) struct Sent {
    pub(super) first_offset: i64,
    pub(super) last_offset: i64,
    pub(super) first_sequence: i32,
    pub(super) count: i32,
    pub(super) bytes: Vec<u8>,
}

/// One idempotent producer.
#[derive(Debug, Clone, Default)]
pub(super) struct Producer {
    pub(super) id: i64,
    pub(super) next_sequence: i32,
    pub(super) sent: Vec<Sent>,
}

/// Records to append, with their batches. After an append without an acknowledgement, all batches, the first
/// few or none may be in the log.
#[derive(Debug, Clone, Default)]
pub(super) struct Attempt {
    pub(super) records: Records,
    pub(super) batches: Batches,
    /// Its batches that have a sequence, with the producer's id.
    pub(super) sent: Vec<(i64, Sent)>,
}

/// Records by offset, as acknowledged or as read.
pub(super) type Records = BTreeMap<i64, Rec>;
/// Batches of producers by first offset.
pub(super) type Batches = BTreeMap<i64, Written>;

/// What was read from a log.
#[derive(Debug, Clone, Default)]
pub(super) struct Found {
    pub(super) records: Records,
    pub(super) batches: Batches,
}

#[derive(Debug, Default)]
pub(super) struct Model {
    /// All acknowledged records, also those that retention has deleted.
    pub(super) records: Records,
    pub(super) batches: Batches,
    /// Batches below the start that a power loss removed, while it kept some before them: it may keep any of
    /// several renamed or unflushed files.
    pub(super) gone: Batches,
    /// The next offset.
    pub(super) end: i64,
    /// The log has reported everything below this offset as flushed.
    pub(super) flushed: i64,
    /// Records below this offset may be gone, because they were deleted.
    pub(super) start: i64,
    /// The log start in the last checkpoint.
    pub(super) start_on_disk: i64,
    /// Below this offset superseded records may be gone, because of a compaction.
    pub(super) compacted: i64,
    /// No truncation goes below this offset, because a compaction has used the records.
    pub(super) settled: i64,
    /// A flipped bit may have removed what was certain.
    pub(super) damaged: bool,
    pub(super) attempts: Vec<Attempt>,
    pub(super) producers: Vec<Producer>,
}

pub(super) fn own<T: Clone>((offset, value): (&i64, &T)) -> (i64, T) {
    (*offset, value.clone())
}

impl Model {
    /// Adds acknowledged batches; the log then ends at `end`.
    pub(super) fn acknowledge(&mut self, attempt: Attempt, end: i64) {
        let first = attempt.records.keys().next();
        assert!(first.is_none_or(|first| *first >= self.end));
        self.records.extend(attempt.records);
        self.batches.extend(attempt.batches);
        self.sent(attempt.sent);
        self.end = end;
    }

    /// Everything from `offset` on was truncated for good.
    pub(super) fn truncated(&mut self, log_start: i64, offset: i64) {
        for producer in &mut self.producers {
            // As after a restart, nothing below the log start is read again for the producers.
            producer.sent.retain(|sent| sent.first_offset >= log_start);
            let kept = producer.sent.partition_point(|s| s.last_offset < offset);
            if let Some(cut) = producer.sent.get(kept) {
                producer.next_sequence = cut.first_sequence;
                producer.sent.truncate(kept);
                // The batch that became the last may have been compacted away before.
                let last = producer.sent.last();
                if last.is_some_and(|last| last.last_offset < self.compacted) {
                    producer.sent.clear();
                }
            }
        }
        self.producers.retain(|producer| !producer.sent.is_empty());
        self.records.retain(|at, _| *at < offset);
        self.batches.retain(|at, _| *at < offset);
        self.gone.retain(|at, _| *at < offset);
        self.end = offset;
        self.flushed = self.flushed.min(offset);
        self.start = self.start.min(offset);
        self.start_on_disk = self.start_on_disk.min(offset);
    }

    /// The log has reported everything below `offset` as flushed.
    pub(super) fn flushed(&mut self, offset: i64) {
        assert!(offset <= self.end, "{offset} is on disk, {} is the end", self.end);
        self.flushed = self.flushed.max(offset);
    }

    /// Compares what was found in `start..end` with what must be there after a restart that cannot have lost
    /// anything below `certain`. Goes on from what was found.
    pub(super) fn restarted(&mut self, certain: i64, start: i64, end: i64, found: &Found) {
        assert!(start <= self.start, "records {}..{start} are gone", self.start);
        assert!(
            start >= self.start_on_disk,
            "the start {} was on disk, it is {start} now",
            self.start_on_disk
        );
        // Records that an earlier power loss removed are gone from the model, too.
        self.check_kept(self.start, certain, found);
        for (offset, record) in &found.records {
            assert!((start..end).contains(offset), "{offset} in {start}..{end}");
            self.check_record(certain, *offset, record);
        }
        if self.compacted > 0 {
            self.check_last_batches(certain, found);
        }
        self.remove_lost(start, end, found);
    }

    /// A compaction keeps the last batch of each producer, if need be without records.
    fn check_last_batches(&self, certain: i64, found: &Found) {
        for producer in &self.producers {
            let last = producer.sent.last();
            let last = last.filter(|s| s.first_offset >= self.start && s.last_offset < certain);
            if let Some(last) = last {
                let there = found.batches.get(&last.first_offset);
                assert!(
                    there.is_some_and(|there| there.first_sequence == last.first_sequence),
                    "producer {}'s batch at {} is lost",
                    producer.id,
                    last.first_offset
                );
            }
        }
    }

    /// A record must be the acknowledged one at its offset, or one of an append that was refused or whose
    /// response was lost: a power loss may remove the former and keep the latter.
    pub(super) fn check_record(&self, certain: i64, offset: i64, record: &Rec) {
        let acknowledged = self.records.get(&offset);
        let attempted = self
            .attempts
            .iter()
            .any(|attempt| attempt.records.get(&offset) == Some(record));
        assert!(
            acknowledged == Some(record) || (offset >= certain && attempted),
            "offset {offset} has {record:?}, acknowledged was {acknowledged:?}"
        );
    }

    /// A compaction has removed what it may; goes on from what is left.
    pub(super) fn compacted(&mut self, start: i64, found: &Found) {
        self.check_kept(start, self.end, found);
        for (offset, record) in &found.records {
            self.check_record(self.end, *offset, record);
        }
        self.check_last_batches(self.end, found);
        self.continue_from(start, found);
    }

    fn continue_from(&mut self, start: i64, found: &Found) {
        self.records.retain(|offset, _| *offset < start);
        self.records.extend(found.records.clone());
        self.batches.retain(|_, batch| batch.last < start);
        self.batches.extend(found.batches.clone());
    }

    fn remove_lost(&mut self, start: i64, end: i64, found: &Found) {
        let survives = |id: i64, sent: &Sent| {
            let there = found.batches.get(&sent.first_offset);
            there.is_some_and(|there| {
                (there.last, there.producer, there.first_sequence)
                    == (sent.last_offset, id, sent.first_sequence)
            })
        };
        for producer in &mut self.producers {
            let id = producer.id;
            producer.sent.retain(|sent| sent.first_offset >= start);
            // A compaction removes batches that have later ones, and never a producer's last.
            let compacted = self.compacted;
            let last = producer.sent.iter().rposition(|sent| survives(id, sent));
            let mut kept = last.map_or(0, |last| last + 1);
            let lost = |sent: &Sent| !survives(id, sent) && sent.first_offset >= compacted;
            if let Some(first_lost) = producer.sent[..kept].iter().position(lost) {
                kept = first_lost;
            }
            // It was lost while a later batch was kept, so the log's state of the producer is undefined.
            if producer.sent[kept..].iter().any(|sent| sent.first_offset < end) {
                producer.sent.clear();
                continue;
            }
            if let Some(lost) = producer.sent.get(kept) {
                producer.next_sequence = lost.first_sequence;
            }
            producer.sent.truncate(kept);
            producer.sent.retain(|sent| survives(id, sent));
        }
        self.adopt_attempts(found);
        for producer in &mut self.producers {
            // Batches that came back later are in the log's state of the producer, and not in the model.
            let last = producer.sent.last().map(|sent| sent.last_offset);
            let unknown = |batch: &Written| {
                let is_marker = matches!(batch.what, What::Marker { .. });
                batch.producer == producer.id && !is_marker && Some(batch.last) > last
            };
            if found.batches.values().any(unknown) {
                producer.sent.clear();
            }
        }
        self.producers.retain(|producer| !producer.sent.is_empty());
        let deleted = self.batches.range(start..self.start.max(start)).map(own);
        self.gone
            .extend(deleted.filter(|(at, _)| !found.batches.contains_key(at)));
        self.continue_from(start, found);
        self.records.retain(|offset, _| *offset < end);
        self.batches.retain(|offset, _| *offset < end);
        self.gone.retain(|offset, _| *offset < end);
        self.end = end;
        self.flushed = self.flushed.min(end);
        self.start = self.start.min(end);
    }

    /// Unacknowledged batches that are in the log count as acknowledged from now on.
    fn adopt_attempts(&mut self, found: &Found) {
        let flushed = self.flushed;
        for attempt in &mut self.attempts {
            for (id, sent) in &std::mem::take(&mut attempt.sent) {
                let there = found.records.get(&sent.last_offset);
                if there.is_none() || there != attempt.records.get(&sent.last_offset) {
                    continue;
                }
                if let Some(producer) = self.producers.iter_mut().find(|p| p.id == *id)
                    && producer
                        .sent
                        .last()
                        .is_none_or(|last| last.last_offset < sent.first_offset)
                {
                    producer.next_sequence = sent.first_sequence + sent.count;
                    producer.sent.push(sent.clone());
                }
            }
        }
        // Flushed offsets cannot change any more.
        self.attempts.retain(|attempt| {
            let last = attempt.records.keys().next_back();
            last.is_some_and(|last| *last >= flushed)
        });
    }

    /// A truncation to `offset` failed: after a power loss the records may be there, even if they were gone
    /// before.
    pub(super) fn may_come_back(&mut self, offset: i64) {
        let mut attempt = Attempt {
            records: self.records.range(offset..).map(own).collect(),
            batches: self.batches.range(offset..).map(own).collect(),
            sent: Vec::new(),
        };
        for producer in &self.producers {
            let sent = producer.sent.iter().filter(|s| s.first_offset >= offset);
            attempt.sent.extend(sent.map(|s| (producer.id, s.clone())));
        }
        self.attempts.push(attempt);
    }

    /// All batches ever, except those that a compaction removed: the content of the snapshots.
    pub(super) fn ever(&self) -> Batches {
        let mut ever = self.batches.clone();
        ever.extend(self.gone.iter().map(own));
        ever
    }

    /// Below this offset, deleted batches came back without others of the same transactions.
    pub(super) fn patchy_before(&self) -> i64 {
        self.gone.values().map(|batch| batch.last + 1).max().unwrap_or(0)
    }

    /// Adds acknowledged batches of producers.
    fn sent(&mut self, sent: Vec<(i64, Sent)>) {
        for (id, sent) in sent {
            let number = self.producers.iter().position(|p| p.id == id);
            let number = number.unwrap_or_else(|| {
                self.producers.push(Producer {
                    id,
                    ..Producer::default()
                });
                self.producers.len() - 1
            });
            let producer = &mut self.producers[number];
            producer.next_sequence = sent.first_sequence + sent.count;
            producer.sent.push(sent);
        }
    }
}
