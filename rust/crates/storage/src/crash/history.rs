//! One history: a log that lives through several processes, each with its faults, drawn from a seed.
//!
//! A life is: open (a fault may strike during recovery, again and again), compare everything with the model, work,
//! end. A process ends by closing the log, by a fault, or by being killed; then only the process is gone, or the power was
//! lost, and then a bit may flip on the disk too.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use logcore_records::{BatchBuilder, Compression, TimestampType, legacy};

use super::faulty_disk::{Fault, FaultyDisk, KINDS, tell};
use super::flip::{Flipped, flip_a_bit};
use super::model::{Attempt, Model, Producer, Rec, Sent};
use super::reader::{read_from, read_one};
use crate::config::LogConfig;
use crate::error::{Result, StorageError};
use crate::log::Log;
use crate::log_dir::{LogDir, Partition};
use crate::standalone::StandaloneLog;
use crate::support::random::Random;

pub(super) const PARTITION_DIR: &str = "t-0";

/// What has happened in histories, by kind.
#[derive(Debug, Default, Clone)]
pub(super) struct Tally {
    pub(super) crashes: [usize; KINDS.len()],
    pub(super) errors: [usize; KINDS.len()],
    pub(super) refused: usize,
    pub(super) power_losses: usize,
    pub(super) process_ends: usize,
    pub(super) crashes_while_opening: usize,
    pub(super) closed: usize,
    pub(super) appended: usize,
    pub(super) flips_in_hints: usize,
    pub(super) flips_cut: usize,
    pub(super) flips_reported: usize,
    pub(super) deletions: usize,
    pub(super) truncated: usize,
}

impl Tally {
    pub(super) fn add(&mut self, other: &Self) {
        for kind in 0..KINDS.len() {
            self.crashes[kind] += other.crashes[kind];
            self.errors[kind] += other.errors[kind];
        }
        self.refused += other.refused;
        self.power_losses += other.power_losses;
        self.process_ends += other.process_ends;
        self.crashes_while_opening += other.crashes_while_opening;
        self.closed += other.closed;
        self.appended += other.appended;
        self.flips_in_hints += other.flips_in_hints;
        self.flips_cut += other.flips_cut;
        self.flips_reported += other.flips_reported;
        self.deletions += other.deletions;
        self.truncated += other.truncated;
    }
}

/// An open log, in a broker's directory or by itself.
enum Opened {
    Broker(Box<LogDir>, Arc<Partition>),
    Alone(Box<StandaloneLog>),
}

impl Opened {
    fn log(&self) -> &Log {
        match self {
            Self::Broker(_, partition) => &partition.log,
            Self::Alone(log) => log,
        }
    }

    fn close(&self) -> Result<()> {
        match self {
            Self::Broker(logs, _) => logs.close(),
            Self::Alone(log) => log.close(),
        }
    }
}

pub(super) struct History {
    random: Random,
    base: PathBuf,
    roots: usize,
    disk: FaultyDisk,
    broker: bool,
    config: LogConfig,
    model: Model,
    opened: Option<Opened>,
    now_ms: i64,
    epoch: i32,
    records: u64,
    producers: i64,
    /// What the restarts since the last comparison could not take.
    certain: i64,
    /// A deletion of the partition that was not acknowledged.
    deleting: bool,
    /// A truncation met a full disk, which takes the log offline: its records are cut, its indexes not built yet.
    cut_short: bool,
    tally: Tally,
}

/// Runs the history of a seed in `base`, an empty directory. Panics if anything that must hold does not.
pub(super) fn run(seed: u64, base: &Path) -> Tally {
    let mut history = History::begin(seed, base);
    let lives = history.random.between(2, 6);
    if (0..lives).all(|_| history.live()) {
        history.live_in_peace();
    }
    history.count_faults();
    history.tally
}

impl History {
    fn begin(seed: u64, base: &Path) -> Self {
        let mut random = Random::new(seed);
        let root = base.join("0");
        fs::create_dir(&root).unwrap();
        let broker = !random.one_in(4);
        let config = config(&mut random);
        let mut model = Model::default();
        if random.one_in(6) {
            write_legacy_segment(&root, &mut random, &mut model);
        }
        Self {
            disk: FaultyDisk::new(&root, random.next()),
            random,
            base: base.to_path_buf(),
            roots: 1,
            broker,
            config,
            model,
            opened: None,
            now_ms: 1_000_000,
            epoch: 0,
            records: 0,
            producers: 0,
            certain: i64::MAX,
            deleting: false,
            cut_short: false,
            tally: Tally::default(),
        }
    }

    // ---- lives ----

    /// One process. False when the history ends, because damage was reported as it must be.
    fn live(&mut self) -> bool {
        loop {
            if self.random.one_in(3) {
                self.arm();
            }
            match self.open() {
                Ok(opened) => {
                    self.opened = Some(opened);
                    break;
                }
                Err(error) => self.check_refused("open", &error),
            }
            self.tally.crashes_while_opening += usize::from(self.disk.is_dead());
            if let Some(flipped) = self.end_process() {
                self.check_damage(&flipped);
                return false;
            }
        }
        self.disk.disarm();
        self.compare();
        for _ in 0..self.random.between(1, 25) {
            if self.must_end() {
                break;
            }
            self.step();
        }
        self.close_perhaps();
        match self.end_process() {
            Some(flipped) => {
                self.check_damage(&flipped);
                false
            }
            None => true,
        }
    }

    /// The last life has no faults: what is there can be read and appended to, closed, and opened again.
    fn live_in_peace(&mut self) {
        for _ in 0..2 {
            self.opened = Some(self.open().unwrap());
            self.compare();
            self.append();
            self.opened.as_ref().unwrap().close().unwrap();
            self.model.flushed(self.model.end);
            self.certain = self.model.end;
            self.opened = None;
        }
    }

    /// True when this process cannot go on.
    fn must_end(&self) -> bool {
        let offline = self.log().failure().is_some();
        assert!(
            !offline || self.disk.is_dead() || self.disk.has_failed() || self.cut_short,
            "offline without a failure: {:?}",
            self.log().failure()
        );
        self.opened.is_none() || offline || self.disk.is_dead() || self.deleting
    }

    fn close_perhaps(&mut self) {
        if self.disk.is_dead() || self.deleting || self.random.one_in(3) {
            return;
        }
        if self.random.one_in(3) {
            self.arm();
        }
        let offline = self.log().failure().is_some();
        match self.opened.as_ref().unwrap().close() {
            Ok(()) => {
                assert!(!offline, "an offline log was closed cleanly");
                self.model.flushed(self.model.end);
                self.tally.closed += 1;
                if self.broker {
                    self.model.start_on_disk = self.log().log_start_offset();
                }
            }
            Err(error) => self.check_refused("close", &error),
        }
    }

    /// The process is gone, perhaps with the power, perhaps with a bit of what was on the disk. Returns that bit when the
    /// log has to report it.
    fn end_process(&mut self) -> Option<Flipped> {
        self.disk.kill();
        self.cut_short = false;
        self.opened = None;
        self.certain = self.certain.min(self.model.end);
        if self.random.one_in(3) {
            tell(format_args!("the process ends"));
            self.tally.process_ends += 1;
            self.disk.restart_process();
            return None;
        }
        self.tally.power_losses += 1;
        self.certain = self.certain.min(self.model.flushed);
        tell(format_args!(
            "the power is lost, {} is certain",
            self.certain
        ));
        let root = self.base.join(self.roots.to_string());
        self.roots += 1;
        fs::create_dir(&root).unwrap();
        self.disk.lose_power(&mut self.random, &root);
        if self.random.one_in(4) {
            self.read_beside(&root);
        }
        let flipped = if self.random.one_in(5) {
            flip_a_bit(&mut self.random, &root, self.broker)
        } else {
            None
        };
        self.replace_disk(&root);
        tell(format_args!("{flipped:?}"));
        match flipped? {
            flipped if flipped.in_hint => self.tally.flips_in_hints += 1,
            flipped if flipped.must_be_reported => return Some(flipped),
            flipped => {
                self.tally.flips_cut += 1;
                self.certain = self.certain.min(flipped.offset);
                self.model.flushed = self.model.flushed.min(flipped.offset);
            }
        }
        None
    }

    /// Somebody who reads what a dead process left, before it is recovered, gets nothing that is wrong.
    fn read_beside(&self, root: &Path) {
        let Ok(log) = Log::open_read_only(&root.join(PARTITION_DIR)) else {
            return;
        };
        let (Ok(found) | Err((found, _))) = read_from(&log, log.log_start_offset(), 1 << 20);
        for (offset, record) in found {
            if offset >= self.model.start {
                self.model.check_record(self.certain, offset, &record);
            }
        }
    }

    fn replace_disk(&mut self, root: &Path) {
        self.count_faults();
        let before = self.disk.root().to_path_buf();
        self.disk = FaultyDisk::new(root, self.random.next());
        fs::remove_dir_all(before).unwrap();
    }

    fn count_faults(&mut self) {
        let (crashes, errors, refused) = self.disk.counts();
        let counts = Tally {
            crashes,
            errors,
            refused,
            ..Tally::default()
        };
        self.tally.add(&counts);
    }

    fn arm(&mut self) {
        let fault = *self.random.pick(&[
            Fault::Crash,
            Fault::Crash,
            Fault::Crash,
            Fault::Error,
            Fault::Full,
        ]);
        self.disk.arm(fault);
    }

    // ---- opening ----

    fn open(&mut self) -> Result<Opened> {
        let root = self.disk.root().to_path_buf();
        if !self.broker {
            return Ok(Opened::Alone(Box::new(StandaloneLog::open(
                &root.join(PARTITION_DIR),
                true,
                self.config.clone(),
            )?)));
        }
        let config = self.config.clone();
        let logs = LogDir::open(&root, 1, Some("cluster"), &move |_: &str| config.clone())?;
        if let Some((_, error)) = logs.failures().first() {
            return Err(copy(error));
        }
        let partition = match logs.get("t", 0) {
            Some(partition) => partition,
            None => {
                if std::mem::take(&mut self.deleting) {
                    self.forget_everything();
                }
                logs.create("t", 0, [7; 16], self.config.clone())?
            }
        };
        self.deleting = false;
        Ok(Opened::Broker(Box::new(logs), partition))
    }

    fn forget_everything(&mut self) {
        self.model = Model::default();
        self.certain = 0;
        self.tally.deletions += 1;
    }

    /// An operation may fail only because of a fault.
    fn check_refused(&mut self, operation: &str, error: &StorageError) {
        let expected = self.disk.is_dead()
            || self.disk.has_failed()
            || self.cut_short
            || (error.is_disk_full() && self.disk.is_full());
        assert!(expected, "{operation}: {error}");
        assert_eq!(error.kafka_code(), 56, "{operation}: {error}");
    }

    fn log(&self) -> &Log {
        self.opened.as_ref().unwrap().log()
    }

    // ---- comparing ----

    /// Compares all that can be asked of the log with the model.
    fn compare(&mut self) {
        let opened = self.opened.take().unwrap();
        let log = opened.log();
        let (start, end) = (log.log_start_offset(), log.log_end_offset());
        tell(format_args!(
            "opened with {start}..{end}: {:?}",
            log.recovery()
        ));
        assert_eq!((log.high_watermark(), log.last_stable_offset()), (end, end));
        assert!(log.recovery_point() <= end);
        let max_bytes = *self.random.pick(&[1, 700, 1 << 20]);
        let found = read_from(log, start, max_bytes)
            .unwrap_or_else(|(_, damage)| panic!("damage nobody has made: {damage}"));
        self.model
            .restarted(self.certain.min(self.model.end), start, end, &found);
        self.certain = i64::MAX;
        self.epoch = self.epoch.max(log.latest_epoch().unwrap_or(0));
        for _ in 0..3 {
            self.compare_lookups(log);
        }
        self.compare_producers(log);
        self.opened = Some(opened);
    }

    fn compare_lookups(&mut self, log: &Log) {
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
        // Deleted records that come back, because no checkpoint was made since, may have lost their epoch.
        if record.epoch >= 0 && offset >= self.model.start {
            assert_eq!(
                log.epoch_of(offset),
                Some(record.epoch),
                "epoch of {offset}"
            );
        }
        let target = record.timestamp + self.random.between(0, 2) as i64 - 1;
        let expected = visible.iter().find(|(_, r)| r.timestamp >= target);
        let at = log.offset_for_timestamp(target).unwrap();
        assert_eq!(
            at.map(|at| (at.offset, at.timestamp)),
            expected.map(|(offset, r)| (*offset, r.timestamp)),
            "the first record at {target}"
        );
        if log.first_segment_offset() < start {
            // As Kafka does, the newest record is asked of whole segments.
            return;
        }
        let newest = visible.iter().map(|(_, r)| r.timestamp).max().unwrap();
        let expected = visible.iter().find(|(_, r)| r.timestamp == newest);
        let at = log.max_timestamp().unwrap();
        assert_eq!(
            at.map(|at| at.offset),
            expected.map(|(offset, _)| *offset),
            "the newest record"
        );
    }

    /// A batch sent again is known, one that skips another is refused.
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
            let mut skipping = batch(
                &[self.now_ms],
                producer.id,
                producer.next_sequence + 1,
                Compression::None,
            );
            let error = log
                .append_as_leader(&mut skipping, self.epoch, self.now_ms)
                .unwrap_err();
            assert_eq!(error.kafka_code(), 45, "{error}");
        }
    }

    /// Damage to what was on disk for certain is reported, and what is served is right.
    fn check_damage(&mut self, flipped: &Flipped) {
        let opened = match self.open() {
            Ok(opened) => opened,
            Err(error) => {
                assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");
                self.tally.flips_reported += 1;
                return;
            }
        };
        let log = opened.log();
        let start = log.log_start_offset();
        let certain = self.certain.min(self.model.end);
        match read_from(log, start, 1 << 20) {
            // It is in records that were deleted.
            Ok(found) => {
                self.model
                    .restarted(certain, start, log.log_end_offset(), &found);
            }
            Err((found, _)) => {
                for (offset, record) in found {
                    self.model.check_record(certain, offset, &record);
                }
                self.tally.flips_reported += 1;
            }
        }
        // What is behind it, as far as it can be had.
        let behind = flipped.last_offset + 1;
        if (start..log.log_end_offset()).contains(&behind) {
            let (Ok(found) | Err((found, _))) = read_from(log, behind, 1 << 20);
            for (offset, record) in found {
                self.model.check_record(certain, offset, &record);
            }
        }
    }

    // ---- working ----

    fn step(&mut self) {
        self.now_ms += self.random.below(30) as i64;
        if self.disk.is_full() && self.random.one_in(4) {
            self.disk.free_space();
        }
        let what = self.random.below(40);
        tell(format_args!(
            "step {what}, the log ends at {}",
            self.model.end
        ));
        match what {
            0..=21 => self.append(),
            22..=23 => self.flush(),
            24..=25 => {
                let rolled = self.log().roll(self.now_ms);
                self.settle("roll", rolled);
            }
            26..=27 => self.retain(),
            28..=29 => self.checkpoint(),
            30 => self.advance_start(),
            31 => self.epoch += 1,
            32 if self.random.one_in(2) => self.delete(),
            32 => self.truncate(),
            33..=34 => self.read_somewhere(),
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

    /// True when an operation was done.
    fn settle<T>(&mut self, operation: &str, result: Result<T>) -> bool {
        match result {
            Ok(_) => true,
            Err(error) => {
                tell(format_args!("{operation}: {error}"));
                self.check_refused(operation, &error);
                false
            }
        }
    }

    fn append(&mut self) {
        let first_offset = self.log().log_end_offset();
        assert!(self.disk.is_dead() || first_offset == self.model.end);
        let mut append = self.draw_append(first_offset);
        let result = self
            .log()
            .append_as_leader(&mut append.bytes, self.epoch, self.now_ms);
        let attempt = append.attempt;
        match result {
            Ok(appended) => {
                assert_eq!(
                    (appended.first_offset, appended.duplicate),
                    (first_offset, false)
                );
                self.tally.appended += 1;
                self.model.acknowledge(first_offset, attempt.records);
                self.model.sent(attempt.sent);
                if self.config.flush_messages == 1 {
                    self.model.flushed(self.model.end);
                }
            }
            Err(StorageError::AppendTooLarge { .. }) => {}
            Err(error) => {
                self.settle("append", Err::<(), _>(error));
                self.model.attempts.push(attempt);
            }
        }
    }

    fn flush(&mut self) {
        let flushed = self.log().flush();
        if self.settle("flush", flushed) {
            self.model.flushed(self.model.end);
        }
    }

    fn checkpoint(&mut self) {
        let Some(Opened::Broker(logs, partition)) = &self.opened else {
            return;
        };
        let (result, start) = (logs.checkpoint(), partition.log.log_start_offset());
        if self.settle("checkpoint", result) {
            self.model.start_on_disk = start;
        }
    }

    fn advance_start(&mut self) {
        let (start, end) = (self.log().log_start_offset(), self.model.end);
        let target = start + self.random.between(0, (end - start) as usize) as i64;
        let moved = self.log().advance_log_start_offset(target);
        self.settle("advance", moved);
        self.model.start = self.model.start.max(self.log().log_start_offset());
    }

    /// Cuts the log at a batch. When that is interrupted, what was to go may be there or not.
    fn truncate(&mut self) {
        let log = self.log();
        let (start, end) = (log.log_start_offset(), log.log_end_offset());
        let somewhere = start + self.random.between(0, (end - start) as usize) as i64;
        let Ok(slice) = self.log().read(somewhere, 1, i64::MAX, true) else {
            return;
        };
        let target = slice.base_offset.max(start);
        let result = match &self.opened {
            Some(Opened::Broker(logs, _)) => logs.truncate_to("t", 0, target),
            Some(Opened::Alone(log)) => log.truncate_to(target),
            None => return,
        };
        self.cut_short = result.as_ref().is_err_and(|error| error.is_disk_full());
        let cut = result.as_ref().ok().copied();
        if self.settle("truncate", result) {
            assert!(cut == Some(slice.base_offset), "{cut:?} at {target}");
            self.model.truncated(start, slice.base_offset);
            self.tally.truncated += 1;
        } else {
            self.certain = self.certain.min(slice.base_offset);
            // The checkpoints may have been lowered already.
            let model = &mut self.model;
            model.flushed = model.flushed.min(slice.base_offset);
            model.start_on_disk = model.start_on_disk.min(slice.base_offset);
        }
    }

    /// Maintenance, with the retention that belongs to it: only what is too old or too much may go.
    fn retain(&mut self) {
        let before = self.log().log_start_offset();
        let result = self.log().maintain(self.now_ms);
        self.settle("maintain", result);
        let start = self.log().log_start_offset();
        for (offset, record) in self.model.records.range(before..start) {
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
        if self.log_is_well(opened.log()) && !self.disk.is_armed() {
            self.compare_lookups(opened.log());
        }
        self.opened = Some(opened);
    }

    /// The log's memory is as the model's: no fault has struck since the model was compared.
    fn log_is_well(&self, log: &Log) -> bool {
        log.failure().is_none() && !self.disk.is_dead()
    }

    fn delete(&mut self) {
        let Some(Opened::Broker(logs, _)) = &self.opened else {
            return;
        };
        self.deleting = true;
        let deleted = logs.delete("t", 0);
        if !self.settle("delete", deleted) {
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
                // Half a partition is deleted, or used, by the next opening.
                self.deleting = true;
                self.settle("create", Err::<(), _>(error));
            }
        }
    }

    // ---- drawing ----

    fn draw_append(&mut self, first_offset: i64) -> Append {
        let mut append = Append {
            bytes: Vec::new(),
            attempt: Attempt {
                first_offset,
                records: Vec::new(),
                sent: Vec::new(),
            },
        };
        if self.random.one_in(12) {
            self.draw_legacy(&mut append);
            return append;
        }
        let mut drawn = self.model.producers.clone();
        if drawn.len() < 3 {
            self.producers += 1;
            drawn.push(Producer {
                id: self.producers,
                ..Producer::default()
            });
        }
        for _ in 0..self.random.between(1, 3) {
            let producer = (self.random.one_in(2)).then(|| self.random.below(drawn.len()));
            self.draw_batch(&mut append, producer.map(|number| &mut drawn[number]));
        }
        append
    }

    fn draw_record(&mut self, value_max: usize) -> Rec {
        self.records += 1;
        let mut value = self.records.to_be_bytes().to_vec();
        let more = self.random.below(value_max);
        value.extend(self.random.bytes(more));
        let key = self.random.one_in(2).then(|| self.random.bytes(5));
        Rec {
            timestamp: self.now_ms + self.random.below(40) as i64 - 20,
            key,
            value,
            epoch: self.epoch,
        }
    }

    fn draw_batch(&mut self, append: &mut Append, producer: Option<&mut Producer>) {
        let codec = if self.random.one_in(8) {
            *self.random.pick(&Compression::ALL)
        } else {
            Compression::None
        };
        let mut builder = BatchBuilder::new(codec, None);
        if let Some(producer) = &producer {
            builder.set_producer_state(producer.id, 0, producer.next_sequence);
        }
        let first = append.attempt.records.len();
        for _ in 0..self.random.between(1, 4) {
            let mut record = self.draw_record(80);
            builder
                .append(
                    record.timestamp,
                    record.key.as_deref(),
                    Some(&record.value),
                    &[],
                )
                .unwrap();
            if self.config.timestamp_type == TimestampType::LogAppendTime {
                record.timestamp = self.now_ms;
            }
            append.attempt.records.push(record);
        }
        let bytes = builder.build().unwrap();
        append.bytes.extend(&bytes);
        if let Some(producer) = producer {
            let count = (append.attempt.records.len() - first) as i32;
            let first_offset = append.attempt.first_offset + first as i64;
            let sent = Sent {
                first_offset,
                last_offset: first_offset + i64::from(count) - 1,
                first_sequence: producer.next_sequence,
                count,
                bytes,
            };
            producer.next_sequence += count;
            append.attempt.sent.push((producer.id, sent));
        }
    }

    /// A message set v1, converted as a broker does with what an old producer sends.
    fn draw_legacy(&mut self, append: &mut Append) {
        let mut set = Vec::new();
        for number in 0..self.random.between(1, 3) {
            let mut record = self.draw_record(40);
            set.extend(legacy_message(number as i64, &record));
            if self.config.timestamp_type == TimestampType::LogAppendTime {
                record.timestamp = self.now_ms;
            }
            append.attempt.records.push(record);
        }
        append.bytes = legacy::to_v2(&set, 1 << 20).unwrap();
    }
}

/// Batches to append, and what the model must know of them.
struct Append {
    bytes: Vec<u8>,
    attempt: Attempt,
}

fn config(random: &mut Random) -> LogConfig {
    LogConfig {
        segment_bytes: random.between(500, 3000) as u64,
        segment_ms: *random.pick(&[i64::MAX, i64::MAX, 100]),
        index_interval_bytes: random.between(0, 300) as u32,
        segment_index_bytes: *random.pick(&[24, 60, 400, 4096]),
        timestamp_type: if random.one_in(6) {
            TimestampType::LogAppendTime
        } else {
            TimestampType::CreateTime
        },
        retention_ms: *random.pick(&[-1, -1, 200, 1000]),
        retention_bytes: *random.pick(&[-1, -1, -1, 1500]),
        flush_messages: *random.pick(&[1, 3, i64::MAX, i64::MAX]),
        flush_ms: *random.pick(&[i64::MAX, 50]),
        file_delete_delay_ms: *random.pick(&[0, 100, 60_000]),
        producer_id_expiration_ms: i64::MAX,
        flush_on_roll: random.one_in(3),
        ..LogConfig::default()
    }
}

/// A batch with one record of each time, for a producer.
fn batch(times: &[i64], producer_id: i64, sequence: i32, codec: Compression) -> Vec<u8> {
    let mut builder = BatchBuilder::new(codec, None);
    builder.set_producer_state(producer_id, 0, sequence);
    for time in times {
        builder.append(*time, None, Some(b"v"), &[]).unwrap();
    }
    builder.build().unwrap()
}

/// A message v1, from the layout.
fn legacy_message(offset: i64, record: &Rec) -> Vec<u8> {
    let mut body = vec![1, 0];
    body.extend(record.timestamp.to_be_bytes());
    for field in [record.key.as_deref(), Some(record.value.as_slice())] {
        body.extend(field.map_or(-1, |f| f.len() as i32).to_be_bytes());
        body.extend(field.unwrap_or_default());
    }
    let mut out = offset.to_be_bytes().to_vec();
    out.extend((body.len() as i32 + 4).to_be_bytes());
    out.extend(crc32fast::hash(&body).to_be_bytes());
    out.extend(body);
    out
}

/// A log that an old Kafka has written.
fn write_legacy_segment(root: &Path, random: &mut Random, model: &mut Model) {
    let dir = root.join(PARTITION_DIR);
    fs::create_dir(&dir).unwrap();
    let mut bytes = Vec::new();
    let mut records = Vec::new();
    for number in 0..random.between(1, 12) {
        let record = Rec {
            timestamp: 999_000 + number as i64,
            key: None,
            value: format!("legacy {number}").into_bytes(),
            epoch: -1,
        };
        bytes.extend(legacy_message(number as i64, &record));
        records.push(record);
    }
    fs::write(dir.join("00000000000000000000.log"), bytes).unwrap();
    model.acknowledge(0, records);
    model.flushed(model.end);
}

/// An error that is kept by another owner, as far as the histories look at it.
fn copy(error: &StorageError) -> StorageError {
    match error {
        StorageError::Io {
            action,
            path,
            source,
        } => {
            let source = match source.raw_os_error() {
                Some(code) => std::io::Error::from_raw_os_error(code),
                None => std::io::Error::other(source.to_string()),
            };
            StorageError::io(action, path)(source)
        }
        StorageError::Corrupt {
            path,
            position,
            reason,
        } => StorageError::Corrupt {
            path: path.clone(),
            position: *position,
            reason: reason.clone(),
        },
        other => panic!("unexpected: {other}"),
    }
}
