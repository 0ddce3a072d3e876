//! Comparing everything that a log answers with the model.

use logcore_records::{BatchBuilder, Compression};

use super::History;
use crate::crash::faulty_disk::trace;
use crate::crash::model::{Fates, Found, Rec, Transactions};
use crate::crash::reader::{committed_of, read_from, read_one};
use crate::log::Log;

impl History {
    /// Compares everything that the log answers with the model.
    pub(super) fn compare(&mut self) {
        let opened = self.opened.take().unwrap();
        let log = opened.log();
        let (start, end) = (log.log_start_offset(), log.log_end_offset());
        trace(format_args!("opened with {start}..{end}: {:?}", log.recovery()));
        self.compare_watermark(log.high_watermark(), start, end);
        assert!(log.recovery_point() <= end);
        let max_bytes = *self.random.pick(&[1, 700, 1 << 20]);
        let found = read_from(log, start, end, max_bytes)
            .unwrap_or_else(|(_, damage)| panic!("damage without a cause: {damage}"));
        self.model
            .restarted(self.certain.min(self.model.end), start, end, &found);
        self.certain = i64::MAX;
        self.model.damaged = false;
        self.half_compacted = false;
        self.epoch = self.epoch.max(log.latest_epoch().unwrap_or(0));
        self.compare_stable(log);
        self.compare_committed(log, &found);
        for _ in 0..3 {
            self.compare_lookups(log);
        }
        self.compare_producers(log);
        self.opened = Some(opened);
    }

    pub(super) fn compare_lookups(&mut self, log: &Log) {
        let start = log.log_start_offset();
        let visible: Vec<(i64, Rec)> = self
            .model
            .records
            .range(start..)
            .map(|(offset, record)| (*offset, record.clone()))
            .collect();
        if visible.is_empty() {
            assert_eq!(log.offset_for_timestamp(0).unwrap(), None);
            return;
        }
        let (offset, record) = self.random.pick(&visible).clone();
        assert_eq!(read_one(log, offset).unwrap(), record);
        // Deleted records may come back without their epoch when no checkpoint was written since.
        if record.epoch >= 0 && offset >= self.model.start {
            assert_eq!(log.epoch_of(offset), Some(record.epoch), "epoch of {offset}");
        }
        let target = record.timestamp + self.random.between(0, 2) as i64 - 1;
        let at = log.offset_for_timestamp(target).unwrap();
        let at = at.map(|at| (at.offset, at.timestamp));
        let newest = log.max_timestamp().unwrap().map(|at| at.offset);
        let newest_ms = visible.iter().map(|(_, r)| r.timestamp).max().unwrap();
        if self.time_flipped {
            let is_there = |at| visible.iter().any(|(offset, r)| (*offset, r.timestamp) == at);
            assert!(at.is_none_or(|at| at.1 >= target && is_there(at)), "{at:?}");
            assert!(newest.is_some_and(|at| is_there((at, newest_ms))));
            return;
        }
        let first = |least: i64| visible.iter().find(|(_, r)| r.timestamp >= least);
        assert_eq!(
            at,
            first(target).map(|(offset, r)| (*offset, r.timestamp)),
            "the first record at {target}"
        );
        let expected = first(newest_ms).map(|(offset, _)| *offset);
        assert_eq!(newest, expected, "the newest record");
    }

    /// A batch that is sent again must be known, and one after a gap be refused.
    fn compare_producers(&mut self, log: &Log) {
        for producer in &self.model.producers {
            let last = producer.sent.last().unwrap();
            let again = log
                .append_as_leader(&mut last.bytes.clone(), self.epoch, self.now_ms)
                .unwrap();
            assert_eq!(
                (again.duplicate, again.first_offset, again.last_offset),
                (true, last.first_offset, last.last_offset),
                "producer {} sends {} again",
                producer.id,
                last.first_sequence
            );
            let mut skipping = batch(self.now_ms, producer.id, producer.next_sequence + 1);
            let error = log
                .append_as_leader(&mut skipping, self.epoch, self.now_ms)
                .unwrap_err();
            assert_eq!(error.kafka_code(), 45, "{error}");
        }
    }

    /// Readers of committed records must get as far as the transactions allow.
    pub(super) fn compare_stable(&self, log: &Log) {
        let (start, high_watermark) = (log.log_start_offset(), log.high_watermark());
        let stable = log.last_stable_offset();
        // The log may not know an open transaction that began below its start, or batches that are missing
        // between batches that came back.
        let (batches, ever) = (&self.model.batches, &self.model.ever());
        let stables = [(ever, 0), (batches, 0), (batches, start)]
            .map(|(batches, from)| Transactions::of(batches, from).stable(start, high_watermark));
        let [least, .., most] = {
            let mut sorted = stables;
            sorted.sort_unstable();
            sorted
        };
        assert!(
            (least..=most).contains(&stable),
            "the log is stable up to {stable}, not in {least}..={most}"
        );
    }

    /// Readers of committed records must get those of committed transactions and no others.
    fn compare_committed(&mut self, log: &Log, found: &Found) {
        let (start, end) = (log.log_start_offset(), log.log_end_offset());
        let stable = log.last_stable_offset();
        let reported = log.aborted_transactions(start, stable).unwrap();
        self.tally.aborted += reported.len();
        let committed = Fates::of(found.records.iter()).committed;
        let from = self.model.patchy_before().min(stable);
        let read = committed_of(found, stable, reported);
        assert!(
            read.range(from..).eq(committed.range(from..stable)),
            "the committed records in {from}..{stable}: {read:?}, not {committed:?}"
        );
        if self.config.cleanup_compact {
            // Damage may have removed data of an aborted transaction, with or without its entry.
            return;
        }
        let all = log.aborted_transactions(start, end).unwrap();
        // Only where both agree: the log may have lost transactions from below its start.
        let ever = Transactions::of(&self.model.ever(), 0).decided;
        for decided in Transactions::of(&self.model.batches, start).decided {
            let known = all.iter().find(|a| a.last_offset == decided.marker);
            if decided.committed {
                assert_eq!(known, None, "{decided:?}");
            } else if ever.contains(&decided) {
                assert_eq!(known, Some(&decided.as_aborted()), "{all:?}");
            } else {
                assert!(known.is_some(), "{decided:?} is not in {all:?}");
            }
        }
    }
}

/// A batch with one record, for a producer.
fn batch(timestamp: i64, producer_id: i64, sequence: i32) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Compression::None, None);
    builder.set_producer_state(producer_id, 0, sequence);
    builder.append(timestamp, Some(b"k"), Some(b"v"), &[]).unwrap();
    builder.build().unwrap()
}
