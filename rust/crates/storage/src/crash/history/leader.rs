//! The leader of a follower's log, and the steps of the follower: fetching, changing to another leader,
//! truncating, learning the high watermark.

use logcore_records::set_offsets_in_place;

use super::History;
use super::draw::Append;
use crate::crash::faulty_disk::trace;
use crate::crash::model::{Attempt, Batches, Producer, Transactions};
use crate::error::Result;
use crate::slice::Appended;

/// A batch in the leader's log.
#[derive(Debug, Clone)]
struct Led {
    base: i64,
    end: i64,
    bytes: Vec<u8>,
    attempt: Attempt,
}

/// The leader's log. It is always whole.
#[derive(Debug, Default)]
pub(super) struct Leader {
    batches: Vec<Led>,
    end: i64,
    epoch: i32,
    /// The first offset of each epoch that has records, and of the leader's own.
    epochs: Vec<(i32, i64)>,
    /// The follower has only records of the leader.
    agreed: bool,
}

/// What is known of a follower's high watermark.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Watermark {
    /// The highest value so far: every leader has all records below it.
    highest: i64,
    /// A checkpoint has at least this value.
    on_disk: i64,
}

impl Leader {
    /// The high watermark of an empty log.
    pub(super) fn first() -> Self {
        let mut leader = Self::default();
        leader.lead_epoch(0);
        leader
    }

    /// Truncates the log to `offset`.
    fn cut(&mut self, offset: i64) {
        self.batches.retain(|batch| batch.end <= offset);
        self.end = offset;
        self.epochs.retain(|(_, start)| *start < offset);
    }

    /// Leads in `epoch` from the log end on.
    pub(super) fn lead_epoch(&mut self, epoch: i32) {
        self.epoch = epoch;
        self.agreed = false;
        self.epochs.retain(|(_, start)| *start < self.end);
        self.epochs.push((epoch, self.end));
    }

    /// The largest epoch that is at most `epoch` and its end offset, as in OffsetForLeaderEpoch.
    fn epoch_end(&self, epoch: i32) -> (i32, i64) {
        if epoch >= self.epoch {
            return (self.epoch, self.end);
        }
        let after = self.epochs.partition_point(|(known, _)| *known <= epoch);
        let end = self.epochs.get(after).map_or(self.end, |(_, start)| *start);
        let floor = after.checked_sub(1).map_or(epoch, |at| self.epochs[at].0);
        (floor, end)
    }

    fn all_batches(&self) -> Batches {
        let batches = self.batches.iter();
        batches.flat_map(|b| b.attempt.batches.clone()).collect()
    }

    /// The producers of the batches here.
    fn producers(&self) -> Vec<Producer> {
        let mut producers: Vec<Producer> = Vec::new();
        for (id, sent) in self.batches.iter().flat_map(|b| &b.attempt.sent) {
            let next_sequence = sent.first_sequence + sent.count;
            match producers.iter_mut().find(|producer| producer.id == *id) {
                Some(producer) => producer.next_sequence = next_sequence,
                None => producers.push(Producer {
                    id: *id,
                    next_sequence,
                    sent: Vec::new(),
                }),
            }
        }
        producers
    }
}

impl History {
    fn leader(&mut self) -> &mut Leader {
        self.leader.as_mut().unwrap()
    }

    /// Appends some of the leader's batches to the follower, after truncating it to the leader's log.
    pub(super) fn fetch(&mut self) {
        if !self.leader().agreed && !self.agree() {
            return;
        }
        for _ in 0..self.random.between(0, 3) {
            self.lead();
        }
        let end = self.log().log_end_offset();
        assert!(self.disk.is_dead() || end == self.model.end);
        let count = self.random.between(1, 4);
        let leader = self.leader.as_ref().unwrap();
        let coming = leader.batches.iter().filter(|batch| batch.base >= end);
        let mut coming: Vec<Led> = coming.take(count).cloned().collect();
        let mut bytes: Vec<u8> = coming.iter().flat_map(|b| b.bytes.clone()).collect();
        if coming.len() > 1 && self.random.one_in(3) {
            // The last one is cut off, as at the end of a Fetch response.
            let last = coming.pop().map_or(0, |last| last.bytes.len());
            bytes.truncate(bytes.len() - self.random.between(1, last));
        }
        let result = self.log().append_as_follower(&bytes, self.now_ms);
        self.fetched(coming, &result);
    }

    fn fetched(&mut self, coming: Vec<Led>, result: &Result<Appended>) {
        if let Ok(appended) = result {
            let end = coming.last().map_or(self.model.end, |last| last.end);
            assert_eq!(appended.last_offset + 1, end);
            self.tally.fetched += 1;
        } else if let Err(error) = result {
            trace(format_args!("fetch: {error}"));
            self.check_refused("fetch", error);
        }
        // A failed append may have appended the batches that fitted into a segment.
        let alive = !self.disk.is_dead();
        let end = self.log().log_end_offset();
        for led in coming {
            if (result.is_ok() || alive) && led.end <= end {
                self.model.acknowledge(led.attempt, led.end);
            } else {
                assert!(result.is_err());
                self.model.attempts.push(led.attempt);
            }
        }
        if result.is_ok() {
            self.count_unflushed();
        }
    }

    /// The leader appends a batch.
    fn lead(&mut self) {
        let gap = i64::from(self.random.one_in(8)) * self.random.between(1, 5) as i64;
        let leader = self.leader.as_ref().unwrap();
        let (base, epoch) = (leader.end + gap, leader.epoch);
        let mut producers = leader.producers();
        let open = Transactions::of(&leader.all_batches(), 0).open;
        let mut append = Append::at(base, epoch);
        if !open.is_empty() && self.random.one_in(3) {
            let open: Vec<i64> = open.into_values().collect();
            let producer = *self.random.pick(&open);
            self.draw_marker(&mut append, producer);
            self.tally.transactions += 1;
        } else {
            self.draw_batch(&mut append, &mut producers);
        }
        if append.bytes.len() as u64 > self.config.segment_bytes {
            return;
        }
        set_offsets_in_place(&mut append.bytes, base, epoch);
        let led = Led {
            base,
            end: append.end,
            bytes: append.bytes,
            attempt: append.attempt,
        };
        let leader = self.leader();
        leader.end = led.end;
        leader.batches.push(led);
    }

    /// Another broker leads. Its log equals the old leader's up to an offset at or above the high watermark.
    pub(super) fn change_leader(&mut self) {
        let least = self.watermark.highest;
        let leader = self.leader.as_ref().unwrap();
        let mut ends: Vec<i64> = leader.batches.iter().map(|batch| batch.end).collect();
        ends.push(leader.end);
        ends.retain(|end| *end >= least);
        let at = *self.random.pick(&ends);
        let epoch = leader.epoch + self.random.between(1, 2) as i32;
        let leader = self.leader();
        leader.cut(at);
        leader.lead_epoch(epoch);
        trace(format_args!("epoch {epoch} begins at {at}"));
        for _ in 0..self.random.below(3) {
            self.lead();
        }
    }

    /// After a restart the follower may have records that the leader does not have.
    pub(super) fn disagree(&mut self) {
        if let Some(leader) = &mut self.leader {
            leader.agreed = false;
        }
    }

    /// Truncates the log where it differs from the leader's, epoch by epoch. False when that failed.
    fn agree(&mut self) -> bool {
        while let Some(latest) = self.log().latest_epoch() {
            let (epoch, end) = self.leader().epoch_end(latest);
            let point = self.log().truncation_point(epoch, end);
            trace(format_args!("epoch {latest}: {point:?}"));
            if !self.cut_at(point.offset) {
                return false;
            }
            if point.complete {
                break;
            }
        }
        let leader = self.leader.as_mut().unwrap();
        leader.agreed = true;
        assert!(
            self.model.end <= leader.end || self.model.records.is_empty(),
            "the log ends at {}, its leader's at {}",
            self.model.end,
            leader.end
        );
        let start = self.log().log_start_offset();
        let leader = self.leader.as_ref().unwrap();
        for (offset, record) in self.model.records.range(start..) {
            let led = leader.batches.iter().find(|led| led.end > *offset);
            let led = led.and_then(|led| led.attempt.records.get(offset));
            assert!(led == Some(record), "{offset} has {record:?}, the leader {led:?}");
        }
        self.tally.followed += 1;
        true
    }

    /// The leader sends the high watermark.
    pub(super) fn learn_watermark(&mut self) {
        let ends: Vec<i64> = {
            let leader = self.leader.as_ref().unwrap();
            let batches = leader.batches.iter().map(|batch| batch.end);
            batches.filter(|end| *end <= self.model.end).collect()
        };
        if !self.leader().agreed || ends.is_empty() {
            return;
        }
        let offset = *self.random.pick(&ends);
        let before = self.log().high_watermark();
        let after = self.log().set_high_watermark(offset);
        assert_eq!(after, before.max(offset));
        self.watermark.highest = self.watermark.highest.max(after);
    }

    /// A checkpoint or a clean close has written the high watermark.
    pub(super) fn watermark_is_on_disk(&mut self) {
        self.watermark.on_disk = self.log().high_watermark();
    }

    /// The log is truncated to `offset`, or was about to be.
    pub(super) fn lower_watermark(&mut self, offset: i64) {
        self.watermark.on_disk = self.watermark.on_disk.min(offset);
    }

    /// Checks the high watermark of a log that was opened again.
    pub(super) fn compare_watermark(&mut self, high_watermark: i64, start: i64, end: i64) {
        let Watermark { highest, on_disk } = self.watermark;
        let (least, most) = if self.leader.is_some() {
            (on_disk.max(start).min(end), highest.max(start).min(end))
        } else {
            (end, end)
        };
        assert!(
            (least..=most).contains(&high_watermark),
            "the high watermark is {high_watermark}, not in {least}..={most}"
        );
        self.lower_watermark(end);
    }
}
