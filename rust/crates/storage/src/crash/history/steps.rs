//! The steps of a process on an open log.

use super::History;
use super::draw::Append;
use super::opening::Opened;
use crate::crash::faulty_disk::trace;
use crate::crash::model::Transactions;
use crate::crash::reader::read_from;
use crate::error::{Result, StorageError};
use crate::log::Log;
use crate::slice::Appended;

impl History {
    pub(super) fn step(&mut self) {
        self.now_ms += self.random.below(30) as i64;
        if self.disk.is_full() && self.random.one_in(4) {
            self.disk.free_space();
        }
        let what = self.random.below(40);
        trace(format_args!("step {what}, the log ends at {}", self.model.end));
        match what {
            0..=18 => self.append(),
            19..=21 if self.transactional && self.leader.is_none() => self.decide(),
            19..=21 if self.leader.is_some() => self.learn_watermark(),
            19..=21 => self.append(),
            22..=23 => self.flush(),
            24..=25 => {
                let rolled = self.log().roll(self.now_ms);
                self.succeeded("roll", rolled);
            }
            26..=27 => self.retain(),
            28..=29 => {
                self.checkpoint();
            }
            30 => self.advance_start(),
            31 if self.leader.is_some() => self.change_leader(),
            31 => self.epoch += 1,
            32 if self.random.one_in(2) => self.delete(),
            32 if self.leader.is_none() => self.truncate(),
            32..=33 if self.config.cleanup_compact => self.compact(),
            32..=34 => self.read_somewhere(),
            _ => self.arm(),
        }
        if let Some(opened) = &self.opened
            && !self.disk.is_dead()
            && !self.deleting
        {
            let recovery_point = opened.log().recovery_point();
            self.model.flushed(recovery_point);
        }
    }

    /// True when an operation succeeded.
    pub(super) fn succeeded<T>(&mut self, operation: &str, result: Result<T>) -> bool {
        match result {
            Ok(_) => true,
            Err(error) => {
                trace(format_args!("{operation}: {error}"));
                self.check_refused(operation, &error);
                false
            }
        }
    }

    pub(super) fn append(&mut self) {
        if self.leader.is_some() {
            return self.fetch();
        }
        let first_offset = self.log().log_end_offset();
        assert!(self.disk.is_dead() || first_offset == self.model.end);
        let mut append = self.draw_append(first_offset);
        let (epoch, now_ms) = (self.epoch, self.now_ms);
        let result = self.log().append_as_leader(&mut append.bytes, epoch, now_ms);
        self.appended(append, result);
    }

    /// The coordinator ends a transaction.
    fn decide(&mut self) {
        let open = Transactions::of(&self.model.batches, 0).open;
        let open: Vec<i64> = open.into_values().collect();
        if open.is_empty() {
            return;
        }
        let producer = *self.random.pick(&open);
        let mut append = Append::at(self.log().log_end_offset(), self.epoch);
        self.draw_marker(&mut append, producer);
        let (epoch, now_ms) = (self.epoch, self.now_ms);
        let result = self.log().append_as_coordinator(&mut append.bytes, epoch, now_ms);
        self.tally.transactions += usize::from(result.is_ok());
        self.appended(append, result);
    }

    fn appended(&mut self, append: Append, result: Result<Appended>) {
        match result {
            Ok(appended) => {
                assert_eq!(
                    (appended.first_offset, appended.duplicate),
                    (self.model.end, false)
                );
                self.tally.appended += 1;
                self.model.acknowledge(append.attempt, append.end);
                self.count_unflushed();
            }
            Err(StorageError::AppendTooLarge { .. }) => {}
            Err(error) => {
                self.succeeded("append", Err::<(), _>(error));
                self.model.attempts.push(append.attempt);
            }
        }
    }

    /// Fewer acknowledged records than `flush.messages` may be lost.
    pub(super) fn count_unflushed(&mut self) {
        let unflushed = self.config.flush_messages - 1;
        self.model.flushed(self.model.end - unflushed);
    }

    fn flush(&mut self) {
        let flushed = self.log().flush();
        if self.succeeded("flush", flushed) {
            self.model.flushed(self.model.end);
        }
    }

    /// False when the checkpoint could not be written.
    fn checkpoint(&mut self) -> bool {
        let Some(Opened::Broker(logs, partition)) = &self.opened else {
            return true;
        };
        let (result, start) = (logs.checkpoint(), partition.log.log_start_offset());
        let written = self.succeeded("checkpoint", result);
        if written {
            self.model.start_on_disk = start;
            self.watermark_is_on_disk();
        }
        written
    }

    fn advance_start(&mut self) {
        let (start, end) = (self.log().log_start_offset(), self.log().high_watermark());
        let target = start + self.random.between(0, (end - start) as usize) as i64;
        let moved = self.log().advance_log_start_offset(target);
        self.succeeded("advance", moved);
        self.model.start = self.model.start.max(self.log().log_start_offset());
    }

    /// Truncates the log at a batch. Offsets that a compaction has used stay, because all replicas have them.
    fn truncate(&mut self) {
        let log = self.log();
        let (start, end) = (log.log_start_offset(), log.log_end_offset());
        let least = start.max(self.model.settled).min(end);
        let somewhere = least + self.random.between(0, (end - least) as usize) as i64;
        let Ok(slice) = self.log().read(somewhere, 1, i64::MAX, true) else {
            return;
        };
        let target = slice.base_offset.max(least);
        if self.cut_at(target) {
            self.tally.truncated += 1;
        }
    }

    /// Truncates the log to `target`; false when that failed. After a failure the cut records may be there or
    /// not.
    pub(super) fn cut_at(&mut self, target: i64) -> bool {
        let (start, end) = (self.log().log_start_offset(), self.log().log_end_offset());
        // Batches are cut whole.
        let front = match self.log().read(target, 1, i64::MAX, true) {
            Ok(slice) if target < end => slice.base_offset.min(target),
            Ok(_) => target,
            Err(_) => return false,
        };
        let result = match &self.opened {
            Some(Opened::Broker(logs, _)) => logs.truncate_to("t", 0, target),
            Some(Opened::Alone(log)) => log.truncate_to(target),
            None => return false,
        };
        self.cut_short = result.as_ref().is_err_and(|error| error.is_disk_full());
        self.lower_watermark(front);
        match result {
            Ok(cut) => {
                assert_eq!(cut, front.min(end), "cut at {target}");
                if cut < end {
                    self.model.truncated(start, cut);
                }
                true
            }
            Err(error) => {
                self.succeeded("truncate", Err::<(), _>(error));
                // The checkpoints may have been lowered already.
                self.certain = self.certain.min(front);
                let model = &mut self.model;
                model.may_come_back(front);
                model.flushed = model.flushed.min(front);
                model.start_on_disk = model.start_on_disk.min(front);
                false
            }
        }
    }

    /// Compacts the log. It may remove only what the model allows.
    fn compact(&mut self) {
        if self.random.one_in(2) {
            let rolled = self.log().roll(self.now_ms);
            if !self.succeeded("roll", rolled) {
                return;
            }
        }
        if self.random.one_in(3) {
            // From the start again: tombstones and markers that were cleaned before may be due now.
            self.log()
                .cleaning()
                .set_first_dirty(self.log().log_start_offset());
        }
        // A marker is removed `delete.retention.ms` after its first cleaning, long after the recovery point
        // has passed it. Without this flush, a producer snapshot from before the marker would keep its
        // transaction open for ever.
        let flushed = self.log().flush();
        if !self.succeeded("flush", flushed) || !self.checkpoint() {
            return;
        }
        let stable = self.log().last_stable_offset();
        self.model.compacted = self.model.compacted.max(stable);
        self.model.settled = self.model.settled.max(self.log().high_watermark());
        let result = self.log().compact_now(self.now_ms);
        self.tally.compacted += usize::from(self.succeeded("compact", result));
        self.apply_compaction();
    }

    /// Reads what a compaction has left, unless a fault prevents that.
    fn apply_compaction(&mut self) {
        self.half_compacted = true;
        if !self.is_log_intact(self.log()) || self.disk.is_armed() {
            return;
        }
        let (start, end) = (self.log().log_start_offset(), self.log().log_end_offset());
        let found = read_from(self.log(), start, end, 1 << 20);
        let found = found.unwrap_or_else(|(_, damage)| panic!("damage without a cause: {damage}"));
        self.model.compacted(start, &found);
        self.half_compacted = false;
    }

    /// Runs maintenance with retention: only old or surplus segments may be deleted.
    fn retain(&mut self) {
        let before = self.log().log_start_offset();
        let result = self.log().maintain(self.now_ms);
        self.succeeded("maintain", result);
        let start = self.log().log_start_offset();
        // After an interrupted compaction it is unknown what is left.
        let kept = if self.half_compacted {
            before.max(self.model.compacted).min(start)
        } else {
            before
        };
        for (offset, record) in self.model.records.range(kept..start) {
            let age = self.now_ms - record.timestamp;
            let expired = self.config.retention_ms >= 0 && age > self.config.retention_ms;
            assert!(
                expired || self.config.retention_bytes >= 0,
                "record {offset}, {age} ms old, was deleted"
            );
        }
        self.model.start = self.model.start.max(start);
    }

    fn read_somewhere(&mut self) {
        let opened = self.opened.take().unwrap();
        if self.is_log_intact(opened.log()) && !self.disk.is_armed() && !self.half_compacted {
            self.compare_lookups(opened.log());
            self.compare_stable(opened.log());
        }
        self.opened = Some(opened);
    }

    /// The log's state in memory equals the model: no fault has struck since the last comparison.
    fn is_log_intact(&self, log: &Log) -> bool {
        log.failure().is_none() && !self.disk.is_dead()
    }

    fn delete(&mut self) {
        let Some(Opened::Broker(logs, _)) = &self.opened else {
            return;
        };
        self.deleting = true;
        let deleted = logs.delete("t", 0);
        if !self.succeeded("delete", deleted) {
            return;
        }
        self.deleting = false;
        self.forget_everything();
        let Some(Opened::Broker(logs, _)) = &self.opened else {
            return;
        };
        match logs.create("t", 0, [8; 16], self.config.clone()) {
            Ok(partition) => {
                if let Some(Opened::Broker(_, current)) = &mut self.opened {
                    *current = partition;
                }
            }
            Err(error) => {
                // The next opening deletes or uses a half-deleted partition.
                self.deleting = true;
                self.succeeded("create", Err::<(), _>(error));
            }
        }
    }
}
