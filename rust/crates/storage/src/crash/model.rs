//! What a log must hold: every record ever appended, which of them were acknowledged, and which a power loss may not take.

use std::collections::BTreeMap;

/// A record as a consumer sees it. No two records of a history have the same value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rec {
    pub(super) timestamp: i64,
    pub(super) key: Option<Vec<u8>>,
    pub(super) value: Vec<u8>,
    /// The leader's epoch, -1 in a legacy message.
    pub(super) epoch: i32,
}

/// A batch of an idempotent producer that was acknowledged, with the bytes to send it again.
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

/// An append that was not acknowledged. All of its batches, the first few or none may be in the log.
#[derive(Debug, Clone)]
pub(super) struct Attempt {
    pub(super) first_offset: i64,
    pub(super) records: Vec<Rec>,
    /// Its batches that have a producer, with the producer's id.
    pub(super) sent: Vec<(i64, Sent)>,
}

/// Offsets to records, as acknowledged or as read.
pub(super) type Records = BTreeMap<i64, Rec>;

#[derive(Debug, Default)]
pub(super) struct Model {
    /// Acknowledged, from the first ever on, also those that retention has deleted since.
    pub(super) records: Records,
    /// The offset the next record gets.
    pub(super) end: i64,
    /// Everything before was brought to disk, by what the log said.
    pub(super) flushed: i64,
    /// Records before this may be gone: they were deleted.
    pub(super) start: i64,
    /// The start a checkpoint has made last.
    pub(super) start_on_disk: i64,
    pub(super) attempts: Vec<Attempt>,
    pub(super) producers: Vec<Producer>,
}

impl Attempt {
    fn record_at(&self, offset: i64) -> Option<&Rec> {
        let number = usize::try_from(offset.checked_sub(self.first_offset)?).ok()?;
        self.records.get(number)
    }
}

impl Model {
    /// Takes in records that were acknowledged at `first_offset`.
    pub(super) fn acknowledge(&mut self, first_offset: i64, records: Vec<Rec>) {
        assert_eq!(first_offset, self.end, "offsets must be dense");
        for record in records {
            self.records.insert(self.end, record);
            self.end += 1;
        }
    }

    /// Everything from `offset` on was cut off, for good.
    pub(super) fn truncated(&mut self, log_start: i64, offset: i64) {
        for producer in &mut self.producers {
            // What is before the log's start is not read again for it, as after a restart.
            producer.sent.retain(|sent| sent.first_offset >= log_start);
            let kept = producer.sent.partition_point(|s| s.last_offset < offset);
            if let Some(cut) = producer.sent.get(kept) {
                producer.next_sequence = cut.first_sequence;
            }
            producer.sent.truncate(kept);
        }
        self.producers.retain(|producer| !producer.sent.is_empty());
        self.records.retain(|at, _| *at < offset);
        self.end = offset;
        self.flushed = self.flushed.min(offset);
        self.start = self.start.min(offset);
        self.start_on_disk = self.start_on_disk.min(offset);
    }

    /// The log says that everything before `offset` is on disk.
    pub(super) fn flushed(&mut self, offset: i64) {
        assert!(
            offset <= self.end,
            "{offset} is on disk, {} is the end",
            self.end
        );
        self.flushed = self.flushed.max(offset);
    }

    /// Compares what was found in `start..end` with what must be there after a restart that could not take what is
    /// before `certain`, and goes on from it.
    pub(super) fn restarted(&mut self, certain: i64, start: i64, end: i64, found: &Records) {
        assert!(
            start <= self.start,
            "records {}..{start} are gone",
            self.start
        );
        assert!(
            start >= self.start_on_disk,
            "the start {} was on disk, it is {start} now",
            self.start_on_disk
        );
        assert!(
            end >= certain,
            "the log ends at {end}, {certain} was certain"
        );
        // What an earlier power loss took is not among the records any more.
        for offset in self
            .records
            .range(self.start.min(certain)..certain)
            .map(|(o, _)| o)
        {
            assert!(found.contains_key(offset), "record {offset} is lost");
        }
        for (offset, record) in found {
            assert!((start..end).contains(offset), "{offset} in {start}..{end}");
            self.check_record(certain, *offset, record);
        }
        self.forget_what_was_lost(start, end, found);
    }

    /// A record that is there must be the one acknowledged at its offset, or one of an append whose answer was lost or
    /// that was refused: where the power took the former, what the latter left may be all there is.
    pub(super) fn check_record(&self, certain: i64, offset: i64, record: &Rec) {
        let acknowledged = self.records.get(&offset);
        let attempted = self
            .attempts
            .iter()
            .any(|attempt| attempt.record_at(offset) == Some(record));
        assert!(
            acknowledged == Some(record) || (offset >= certain && attempted),
            "offset {offset} has {record:?}, acknowledged was {acknowledged:?}"
        );
    }

    fn forget_what_was_lost(&mut self, start: i64, end: i64, found: &Records) {
        let records = &self.records;
        let survives = |sent: &Sent| {
            let there = found.get(&sent.last_offset);
            there.is_some() && there == records.get(&sent.last_offset)
        };
        for producer in &mut self.producers {
            producer.sent.retain(|sent| sent.first_offset >= start);
            let kept = producer
                .sent
                .iter()
                .take_while(|sent| survives(sent))
                .count();
            // Lost, with a later one of anybody kept: what the log knows of such a producer is not said.
            if producer.sent[kept..]
                .iter()
                .any(|sent| sent.first_offset < end)
            {
                producer.sent.clear();
                continue;
            }
            if let Some(lost) = producer.sent.get(kept) {
                producer.next_sequence = lost.first_sequence;
            }
            producer.sent.truncate(kept);
        }
        self.adopt_attempts(found);
        self.producers.retain(|producer| !producer.sent.is_empty());
        self.records
            .retain(|offset, _| *offset < start || found.contains_key(offset));
        self.records.extend(found.clone());
        self.records.retain(|offset, _| *offset < end);
        self.end = end;
        self.flushed = self.flushed.min(end);
        self.start = self.start.min(end);
    }

    /// Batches that nobody was told of and that are in the log are like acknowledged ones from now on.
    fn adopt_attempts(&mut self, found: &Records) {
        for attempt in std::mem::take(&mut self.attempts) {
            for (id, sent) in &attempt.sent {
                let there = found.get(&sent.last_offset);
                if there.is_none() || there != attempt.record_at(sent.last_offset) {
                    continue;
                }
                if let Some(producer) = self.producers.iter_mut().find(|p| p.id == *id) {
                    producer.next_sequence = sent.first_sequence + sent.count;
                    producer.sent.push(sent.clone());
                }
            }
        }
    }

    /// Batches of producers that were acknowledged.
    pub(super) fn sent(&mut self, sent: Vec<(i64, Sent)>) {
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
