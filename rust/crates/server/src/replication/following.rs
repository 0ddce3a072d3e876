//! One partition that this server follows: what to ask its leader, and what an answer does to its log.
//!
//! A [`Following`] is for one epoch of the leader. Its fetcher's thread asks and applies answers, which may
//! wait for the disk. Python's threads end it; then nothing more is written ([`Following::end`] waits for an
//! answer that is being applied). So a log that this server leads is never written by a fetcher.
//!
//! What is asked comes from the log itself, so there is no second position that could differ from it.
//! Source: `AbstractFetcherThread`, `ReplicaFetcherThread`.
//!
//! A crash during an append or a truncation: the storage crate's rules.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use logcore_protocol::ErrorCode;
use logcore_storage::{Log, StorageError};
use parking_lot::Mutex;

use super::messages::{Answer, Question};
use super::session::{Asked, Key};
use crate::descriptors::advice_for;
use crate::housekeeping::moves::Moves;
use crate::log_lines::Level;
use crate::partitions::purgatory::HasWaiters;
use crate::partitions::registry::{Partition, TopicId, TopicRef};
use crate::shared::{Shared, now_ms};

/// The first pause after a failure. It doubles up to `replica.fetch.backoff.ms`: right after a change of
/// leaders, the new leader often needs only some milliseconds.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// Failures of a change of leaders pass. They are logged if they last so long.
const LASTS: Duration = Duration::from_secs(10);

const UNKNOWN_LAG: i64 = -1;

/// What all fetchers need.
pub(super) struct Context {
    pub(super) shared: Arc<Shared>,
    pub(super) moves: Arc<Moves>,
}

impl Context {
    /// The pause before something is tried for the next time, after so many failures in a row.
    pub(super) fn pause(&self, failures: u32) -> Duration {
        let doubled = FIRST_PAUSE * 2_u32.pow(failures.saturating_sub(1).min(10));
        doubled.min(self.shared.config.replica.backoff)
    }
}

/// Failures in a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failing {
    since: Instant,
    pub(super) times: u32,
}

impl Failing {
    /// Notes one more.
    pub(super) fn again(failing: Option<Self>) -> Self {
        let first = Self {
            since: Instant::now(),
            times: 0,
        };
        let before = failing.unwrap_or(first);
        Self {
            times: before.times.saturating_add(1),
            ..before
        }
    }

    pub(super) fn lasts(&self) -> bool {
        self.since.elapsed() >= LASTS
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Phase {
    /// Its log was not compared with the leader's yet.
    Begins,
    Fetches,
    /// It needs a new leader's epoch.
    Failed,
    /// It is not followed any more.
    Ended,
}

struct State {
    phase: Phase,
    failing: Option<Failing>,
    retry_at: Option<Instant>,
}

/// See the module.
pub(super) struct Following {
    pub(super) topic: Arc<str>,
    pub(super) index: i32,
    pub(super) leader_id: i32,
    pub(super) epoch: i32,
    topic_id: TopicId,
    partition: Arc<Partition>,
    state: Mutex<State>,
    /// By how many records it is behind the leader's high watermark.
    lag: AtomicI64,
    has_failed: AtomicBool,
}

/// Whether a partition is to be asked for.
pub(super) enum Due {
    Now(Asked),
    At(Instant),
    /// It ended or failed.
    Never,
}

/// What an answer needs next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Applied {
    Done,
    /// The leader does not have the offset: where do its log begin and end?
    OutOfRange,
}

enum Fault {
    /// It is tried again, and logged if it lasts.
    Passing(ErrorCode),
    /// It is tried again, and logged at once.
    Refused(String),
    /// The partition is not fetched until its leader's epoch changes.
    Ends(Level, String),
}

impl Following {
    pub(super) fn new(partition: Arc<Partition>, leader_id: i32, epoch: i32) -> Self {
        Self {
            topic: Arc::clone(&partition.topic),
            index: partition.index,
            leader_id,
            epoch,
            topic_id: partition.topic_id,
            partition,
            state: Mutex::new(State {
                phase: Phase::Begins,
                failing: None,
                retry_at: None,
            }),
            lag: AtomicI64::new(UNKNOWN_LAG),
            has_failed: AtomicBool::new(false),
        }
    }

    /// As requests name it.
    pub(super) fn key(&self) -> Key {
        let topic = if self.topic_id == TopicId::default() {
            TopicRef::Name(Arc::clone(&self.topic))
        } else {
            TopicRef::Id(self.topic_id)
        };
        (topic, self.index)
    }

    pub(super) fn question(&self) -> Question<'_> {
        (&self.topic, self.index, self.epoch)
    }

    /// `None` before the leader's first answer.
    pub(super) fn lag(&self) -> Option<i64> {
        Some(self.lag.load(Ordering::Relaxed)).filter(|lag| *lag >= 0)
    }

    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// Nothing is written to its log from now on. Waits for an answer that is being applied.
    pub(super) fn end(&self) {
        self.state.lock().phase = Phase::Ended;
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.state.lock().phase, Phase::Failed | Phase::Ended)
    }

    /// What to ask the leader. A log without epochs is first truncated to its high watermark, because nothing
    /// else is known to be the leader's.
    pub(super) fn ask(&self, context: &Context, now: Instant) -> Due {
        let mut state = self.state.lock();
        if let Some(at) = state.retry_at.filter(|at| *at > now) {
            return Due::At(at);
        }
        let partition = self.current(context);
        let log = &partition.log;
        match state.phase {
            Phase::Failed | Phase::Ended => return Due::Never,
            Phase::Fetches => {}
            Phase::Begins => {
                if log.latest_epoch().is_none() && log.high_watermark() < log.log_end_offset() {
                    let to = log.high_watermark();
                    if let Err(fault) = self.truncate(context, to, "it has no leader epochs") {
                        return self.failed(context, &mut state, fault);
                    }
                }
                state.phase = Phase::Fetches;
            }
        }
        // As in Kafka, a replica without lag is not held back.
        let exceeded_for = || context.shared.replication_quotas.follower.exceeded_for();
        if partition.is_throttled_follower()
            && self.lag() != Some(0)
            && let Some(wait) = exceeded_for()
        {
            return Due::At(now + wait.min(context.shared.config.replica.backoff));
        }
        Due::Now(self.asked(&self.current(context).log))
    }

    fn asked(&self, log: &Log) -> Asked {
        Asked {
            offset: log.log_end_offset(),
            last_epoch: log.latest_epoch().unwrap_or(-1),
            leader_epoch: self.epoch,
            log_start: log.log_start_offset(),
        }
    }

    /// The partition with its log, which may have moved to another directory.
    fn current(&self, context: &Context) -> Arc<Partition> {
        let moved = context.shared.registry.moved(&self.partition);
        moved.unwrap_or_else(|| Arc::clone(&self.partition))
    }

    /// Whether the log is still as it was when `asked` was asked.
    fn is_as_asked(&self, context: &Context, state: &State, asked: &Asked) -> bool {
        let now = self.asked(&self.current(context).log);
        state.phase == Phase::Fetches && (now.offset, now.last_epoch) == (asked.offset, asked.last_epoch)
    }

    /// Takes the leader's answer. May wait for the disk.
    pub(super) fn apply(&self, context: &Context, asked: &Asked, answer: &Answer) -> Applied {
        let mut state = self.state.lock();
        if !self.is_as_asked(context, &state, asked) {
            return Applied::Done;
        }
        let taken = match answer.code {
            ErrorCode::OFFSET_OUT_OF_RANGE => return Applied::OutOfRange,
            ErrorCode::NONE => match answer.diverging {
                Some((epoch, end)) => self.take_divergence(context, epoch, end),
                None => self.take_records(context, answer),
            },
            code => Err(self.fault_of_code(code)),
        };
        match taken {
            Ok(()) => (state.failing, state.retry_at) = (None, None),
            Err(fault) => {
                self.failed(context, &mut state, fault);
            }
        }
        Applied::Done
    }

    fn take_records(&self, context: &Context, answer: &Answer) -> Result<(), Fault> {
        let partition = self.current(context);
        if !answer.records.is_empty() {
            let appended = self.append(context, &partition, &answer.records);
            let bytes = appended.map_err(|error| self.fault_of(context, &partition, &error))?;
            context.shared.metrics.replication_bytes_in.add(bytes);
            if partition.is_throttled_follower() {
                context.shared.replication_quotas.follower.record(bytes);
            }
        }
        let partition = self.current(context);
        let log = &partition.log;
        let before = log.high_watermark();
        let high_watermark = log.set_high_watermark(answer.high_watermark);
        // The leader's log may begin above what this one has in common with it. The next fetch finds out.
        let start = answer.log_start.min(high_watermark);
        if start > log.log_start_offset() {
            let moved = context.shared.registry.append(&partition, |log| {
                log.advance_log_start_offset(start.min(log.high_watermark()))
            });
            moved.map_err(|error| self.fault_of(context, &partition, &error))?;
        }
        if high_watermark > before {
            partition.waiters().wake_all();
        }
        let lag = answer.high_watermark - log.log_end_offset();
        self.lag.store(lag.max(0), Ordering::Relaxed);
        Ok(())
    }

    /// Returns the number of bytes.
    fn append(&self, context: &Context, partition: &Partition, records: &[u8]) -> Result<u64, StorageError> {
        let append = || {
            let append = |log: &Log| log.append_as_follower(records, now_ms());
            context.shared.registry.append(partition, append)
        };
        let appended = match append() {
            // The leader's log begins within its first batch, because records were deleted there.
            Err(StorageError::UnexpectedAppendOffset {
                first_offset,
                last_offset,
                log_end,
            }) if partition.log.log_start_offset() == log_end && last_offset >= log_end => {
                self.begin_at(context, first_offset)?;
                append()?
            }
            appended => appended?,
        };
        Ok(appended.bytes)
    }

    /// The logs differ after some offset: this one is cut there, or at the last point that may be common.
    /// Then the leader is asked again.
    fn take_divergence(&self, context: &Context, epoch: i32, end: i64) -> Result<(), Fault> {
        let log = &self.current(context).log;
        let before = self.asked(log);
        let to = match end {
            0.. => log.truncation_point(epoch, end).offset,
            _ => log.high_watermark(),
        };
        let leader = self.leader_id;
        let why = format!("broker {leader}, which leads it, has epoch {epoch} up to offset {end}");
        self.truncate(context, to, &why)?;
        if self.asked(&self.current(context).log) == before {
            return Err(Fault::Refused(format!(
                "its leader, broker {leader}, says that epoch {epoch} ends at offset {end} and refuses the \
                 records after it, but this log has no others; restart the leader"
            )));
        }
        Ok(())
    }

    fn truncate(&self, context: &Context, to: i64, why: &str) -> Result<(), Fault> {
        let log = &self.current(context).log;
        let (end, high_watermark) = (log.log_end_offset(), log.high_watermark());
        let (topic, index) = (&*self.topic, self.index);
        let truncated = context
            .moves
            .around_truncation(&context.shared, topic, index, |dir, stored| {
                dir.truncate_log_to(stored, to)
            });
        let now = truncated.map_err(|error| self.fault_of(context, &self.current(context), &error))?;
        if now < end {
            let (level, loss) = if now < high_watermark {
                (Level::Warning, ", below its high watermark")
            } else {
                (Level::Info, "")
            };
            let text = format!("{topic}-{index} is truncated from offset {end} to {now}{loss}: {why}");
            context
                .shared
                .lines
                .push_with(level, text, self.partition.fields());
        }
        Ok(())
    }

    /// Deletes all records. The log begins and goes on at `offset`.
    fn begin_at(&self, context: &Context, offset: i64) -> Result<(), StorageError> {
        let (topic, index) = (&*self.topic, self.index);
        context
            .moves
            .around_truncation(&context.shared, topic, index, |dir, stored| {
                dir.truncate_log_fully_and_start_at(stored, offset)
            })
    }

    /// Takes the end of the leader's log after [`Applied::OutOfRange`]. Returns whether its start is needed.
    pub(super) fn take_leader_end(
        &self,
        context: &Context,
        asked: &Asked,
        end: Result<i64, ErrorCode>,
    ) -> bool {
        self.take_leader_offset(context, asked, end, |end| {
            if end >= asked.offset {
                return Ok(true);
            }
            let why = format!("the log of its leader, broker {}, ends there", self.leader_id);
            self.truncate(context, end, &why)?;
            Ok(false)
        })
    }

    /// Takes the start of the leader's log, after its end.
    pub(super) fn take_leader_start(&self, context: &Context, asked: &Asked, start: Result<i64, ErrorCode>) {
        self.take_leader_offset(context, asked, start, |start| {
            if start <= asked.offset {
                // It has the offset now, or its epochs contradict its log.
                return Err(Fault::Passing(ErrorCode::OFFSET_OUT_OF_RANGE));
            }
            let (topic, index, leader) = (&self.topic, self.index, self.leader_id);
            let begun = self.begin_at(context, start);
            begun.map_err(|error| self.fault_of(context, &self.current(context), &error))?;
            context.shared.lines.push_with(
                Level::Warning,
                format!(
                    "{topic}-{index} begins anew at offset {start}: it ended at {}, and the log of its \
                     leader, broker {leader}, has nothing before {start} any more",
                    asked.offset
                ),
                self.partition.fields(),
            );
            Ok(false)
        });
    }

    fn take_leader_offset(
        &self,
        context: &Context,
        asked: &Asked,
        offset: Result<i64, ErrorCode>,
        take: impl FnOnce(i64) -> Result<bool, Fault>,
    ) -> bool {
        let mut state = self.state.lock();
        if !self.is_as_asked(context, &state, asked) {
            return false;
        }
        let taken = match offset {
            Ok(offset @ 0..) => take(offset),
            Ok(_) => Err(Fault::Passing(ErrorCode::OFFSET_OUT_OF_RANGE)),
            Err(code) => Err(self.fault_of_code(code)),
        };
        taken.unwrap_or_else(|fault| {
            self.failed(context, &mut state, fault);
            false
        })
    }

    /// A defect of this server: the code that handled an answer panicked.
    pub(super) fn panicked(&self, context: &Context) {
        let text =
            "handling its leader's answer panicked, which is a defect of the server; restart the broker";
        let fault = Fault::Ends(Level::Error, text.to_owned());
        self.failed(context, &mut self.state.lock(), fault);
    }

    fn fault_of_code(&self, code: ErrorCode) -> Fault {
        match code {
            ErrorCode::FENCED_LEADER_EPOCH => Fault::Ends(
                Level::Info,
                format!(
                    "its leader, broker {}, knows a newer epoch than {}; fetching goes on with the \
                     controller's next request",
                    self.leader_id, self.epoch
                ),
            ),
            code => Fault::Passing(code),
        }
    }

    fn fault_of(&self, context: &Context, partition: &Partition, error: &StorageError) -> Fault {
        if error.is_disk_full() || error.is_out_of_files() {
            return Fault::Refused(format!("{error}{}; it is tried again", advice_for(error)));
        }
        match error {
            StorageError::Closed { .. } => Fault::Passing(ErrorCode::KAFKA_STORAGE_ERROR),
            StorageError::CorruptBatch { .. }
            | StorageError::Undecodable { .. }
            | StorageError::InvalidRecord { .. }
            | StorageError::InvalidRecords(_) => Fault::Refused(format!(
                "the records from offset {} on that its leader, broker {}, sent are not appended: {error}; \
                 they are fetched again. If this lasts, the leader's log is damaged: verify it",
                partition.log.log_end_offset(),
                self.leader_id
            )),
            error if error.is_storage_failure() => {
                let what = format_args!("replication of {partition} failed");
                context.shared.storage_error(what, Some(partition), error);
                Fault::Ends(Level::Error, format!("its log failed: {error}"))
            }
            error => Fault::Ends(
                Level::Error,
                format!(
                    "the records of its leader, broker {}, cannot be appended: {error}; repair this, then \
                     restart the broker",
                    self.leader_id
                ),
            ),
        }
    }

    fn failed(&self, context: &Context, state: &mut State, fault: Fault) -> Due {
        let name = format!("{}-{}", self.topic, self.index);
        let failing = Failing::again(state.failing);
        let lines = &context.shared.lines;
        let fields = || self.partition.fields();
        match fault {
            Fault::Ends(level, reason) => {
                state.phase = Phase::Failed;
                self.has_failed.store(true, Ordering::Relaxed);
                let key = format!("replica {} fails {level:?}", self.leader_id);
                let text = format!("{name} is not fetched any more: {reason}");
                lines.push_limited_with(level, &key, text, fields);
                return Due::Never;
            }
            Fault::Refused(reason) => {
                let key = format!("replica {name} refused");
                lines.push_limited_with(Level::Error, &key, format!("{name}: {reason}"), fields);
            }
            Fault::Passing(code) if failing.lasts() => {
                let key = format!("replica {} {}", self.leader_id, code.0);
                let text = format!("{name} cannot be fetched: {}", self.explain(code));
                lines.push_limited_with(Level::Warning, &key, text, fields);
            }
            Fault::Passing(_) => {}
        }
        let at = Instant::now() + context.pause(failing.times);
        (state.failing, state.retry_at) = (Some(failing), Some(at));
        Due::At(at)
    }

    /// What a leader's error means that lasts, and what to do.
    fn explain(&self, code: ErrorCode) -> String {
        let (leader, epoch) = (self.leader_id, self.epoch);
        match code {
            ErrorCode::NOT_LEADER_OR_FOLLOWER | ErrorCode::UNKNOWN_LEADER_EPOCH => format!(
                "broker {leader} does not know that it leads it in epoch {epoch} ({}); check that it hears \
                 from the controller",
                code.name()
            ),
            ErrorCode::UNKNOWN_TOPIC_OR_PARTITION
            | ErrorCode::UNKNOWN_TOPIC_ID
            | ErrorCode::INCONSISTENT_TOPIC_ID => format!(
                "broker {leader} does not have the topic ({}), which passes while a topic is created or \
                 deleted; check that it hears from the controller",
                code.name()
            ),
            ErrorCode::KAFKA_STORAGE_ERROR => {
                format!("the log of its leader, broker {leader}, is offline; repair its disk")
            }
            ErrorCode::CORRUPT_MESSAGE => {
                format!("the log of its leader, broker {leader}, is damaged; verify it")
            }
            ErrorCode::OFFSET_OUT_OF_RANGE => format!(
                "its leader, broker {leader}, has the offset but refuses it, so its leader epochs contradict \
                 its log; verify it"
            ),
            code => format!(
                "its leader, broker {leader}, answers {}; see its log",
                code.name()
            ),
        }
    }
}
