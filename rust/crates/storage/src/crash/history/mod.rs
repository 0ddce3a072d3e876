//! One history: a log that lives through several processes with faults, drawn from a seed.
//!
//! Each process opens the log (a fault may strike during recovery, again and again), compares everything with
//! the model, works, and ends. It ends by closing the log, by a fault, or by being killed. After a kill only
//! the process is gone, or the power was lost and a bit on the disk may have flipped, too.
//!
//! Some logs are a leader's, others a follower's. Some are compacted, some have transactions.
//!
//! | module | what a history does |
//! |---|---|
//! | `opening` | opens the log, and decides which errors are allowed |
//! | `compare` | compares everything that a log answers with the model |
//! | `steps` | appends, flushes, rolls, truncates, compacts, deletes |
//! | `leader` | follows another log |
//! | `draw` | random batches and settings |
//! | `damage` | what must follow from a flipped bit |

mod compare;
mod damage;
mod draw;
mod leader;
mod opening;
mod steps;
mod tally;

use std::fs;
use std::path::{Path, PathBuf};

use super::faulty_disk::{Fault, FaultyDisk, trace};
use super::flip::{Flipped, What, flip_a_bit};
use super::model::Model;
use super::reader::read_from;
use crate::config::LogConfig;
use crate::files::TIME_INDEX_SUFFIX;
use crate::log::Log;
use crate::support::random::Random;
use draw::write_legacy_segment;
use leader::{Leader, Watermark};
use opening::Opened;
pub(super) use tally::Tally;

pub(super) const PARTITION_DIR: &str = "t-0";

pub(super) struct History {
    random: Random,
    base: PathBuf,
    roots: usize,
    disk: FaultyDisk,
    broker: bool,
    config: LogConfig,
    /// Some producers write transactions.
    transactional: bool,
    /// The leader that this log follows; `None` for a leader's log.
    leader: Option<Leader>,
    watermark: Watermark,
    model: Model,
    opened: Option<Opened>,
    now_ms: i64,
    epoch: i32,
    records: u64,
    producers: i64,
    /// The restarts since the last comparison cannot have lost anything below this offset.
    certain: i64,
    /// A deletion of the partition was not acknowledged.
    deleting: bool,
    /// A truncation met a full disk and took the log offline: its records are cut, its indexes not rebuilt.
    cut_short: bool,
    /// A compaction was interrupted since the last comparison.
    half_compacted: bool,
    /// A bit in a time index flipped, which may name another record with the same timestamp since.
    time_flipped: bool,
    tally: Tally,
}

/// Runs the history of a seed in the empty directory `base`. Panics when something is wrong.
pub(super) fn run(seed: u64, base: &Path) -> Tally {
    let mut history = History::begin(seed, base);
    let processes = history.random.between(2, 6);
    if (0..processes).all(|_| history.run_process()) {
        history.run_without_faults();
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
        let follows = broker && random.one_in(3);
        let config = draw::config(&mut random, follows);
        let mut model = Model::default();
        if !follows && random.one_in(6) {
            write_legacy_segment(&root, &mut random, &mut model);
        }
        Self {
            disk: FaultyDisk::new(&root, random.next()),
            transactional: random.one_in(2),
            leader: follows.then(Leader::first),
            watermark: Watermark::default(),
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
            half_compacted: false,
            time_flipped: false,
            tally: Tally::default(),
        }
    }

    /// One process. False when the history ends, because damage was reported as it must be.
    fn run_process(&mut self) -> bool {
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
                self.check_flipped(&flipped);
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
        self.maybe_close();
        match self.end_process() {
            Some(flipped) => {
                self.check_flipped(&flipped);
                false
            }
            None => true,
        }
    }

    /// The last process has no faults: everything can be read, appended to, closed, and opened again.
    fn run_without_faults(&mut self) {
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

    fn maybe_close(&mut self) {
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
                    self.watermark_is_on_disk();
                }
            }
            Err(error) => self.check_refused("close", &error),
        }
    }

    /// Ends the process, perhaps with the power, perhaps with a flipped bit. Returns a bit that must have an
    /// effect.
    fn end_process(&mut self) -> Option<Flipped> {
        self.disk.kill();
        self.cut_short = false;
        self.disagree();
        self.opened = None;
        self.certain = self.certain.min(self.model.end);
        if self.random.one_in(3) {
            trace(format_args!("the process ends"));
            self.tally.process_ends += 1;
            self.disk.restart_process();
            return None;
        }
        self.tally.power_losses += 1;
        self.certain = self.certain.min(self.model.flushed);
        trace(format_args!("the power is lost, {} is certain", self.certain));
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
        trace(format_args!("{flipped:?}"));
        let flipped = flipped?;
        match flipped.what {
            What::Hint => {
                self.tally.flips_in_hints += 1;
                self.time_flipped |= flipped.file.ends_with(TIME_INDEX_SUFFIX);
            }
            What::Covered { certain: false } => {
                self.tally.flips_cut += 1;
                self.model.damaged = true;
                self.certain = self.certain.min(flipped.offset);
                self.model.flushed = self.model.flushed.min(flipped.offset);
            }
            _ => return Some(flipped),
        }
        None
    }

    /// A reader of what a dead process left, before recovery, must get nothing wrong.
    fn read_beside(&self, root: &Path) {
        let Ok(log) = Log::open_read_only(&root.join(PARTITION_DIR)) else {
            return;
        };
        let (start, end) = (log.log_start_offset(), log.log_end_offset());
        let (Ok(found) | Err((found, _))) = read_from(&log, start, end, 1 << 20);
        for (offset, record) in found.records {
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
}
