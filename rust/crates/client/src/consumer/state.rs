//! The assigned partitions and the progress of each: fetched, handed out, stored for commit.
//!
//! Pure; one lock around it. A seek, a pause or a new assignment makes fetched data stale: the partition gets
//! a new generation, and answers to older requests are dropped.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use logcore_protocol::ErrorCode;

use super::decode::Chunk;
use super::{Event, Item};
use crate::config::{ConsumerConfig, OffsetReset};
use crate::error::ClientError;
use crate::offsets::{EARLIEST, LATEST, PartitionKey};
use crate::reporter::Lasting;

/// Where an assigned partition shall begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// At this offset.
    Offset(i64),
    /// At the log's first offset.
    Beginning,
    /// At the log's end.
    End,
    /// Where `auto.offset.reset` says, because there is no committed offset.
    Reset,
    /// Nowhere yet: the caller looks the committed offset up and seeks there.
    Unknown,
}

/// What a partition needs from the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// ListOffsets with this timestamp.
    Locating(i64),
    /// Fetch from here.
    Fetching(i64),
    /// Nothing: it waits for a seek.
    Stopped,
}

/// Fetched and waiting for the application.
#[derive(Debug)]
pub(crate) enum Waiting {
    Data(Chunk),
    Event(Event),
}

#[derive(Debug)]
pub(crate) struct PartitionState {
    pub(crate) key: PartitionKey,
    pub(crate) generation: u64,
    pub(crate) phase: Phase,
    /// The next offset the application will get; `None` before the first message after an assignment or seek.
    pub(crate) position: Option<i64>,
    /// Where the next message would come from, for a refetch before anything was handed out.
    resume_at: Phase,
    pub(crate) stored: Option<(i64, i32)>,
    pub(crate) paused: bool,
    /// A request for it is under way.
    pub(crate) busy: bool,
    /// The last answer had no records: the next one may wait at the broker.
    pub(crate) at_end: bool,
    /// A response with this partition was too long: it is fetched without others until one fits.
    pub(crate) fetch_alone: bool,
    pub(crate) not_before: Option<Instant>,
    /// The follower that the leader named to read from, and until when.
    preferred: Option<(i32, Instant)>,
    pub(crate) waiting: VecDeque<Waiting>,
    pub(crate) buffered: usize,
    pub(crate) high_watermark: i64,
    pub(crate) log_start: i64,
    /// The end that was last reported to the application.
    pub(crate) eof_reported: Option<i64>,
    lasting: Lasting,
    /// How often its offset was out of range since the last successful Fetch.
    resets: u32,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) config: ConsumerConfig,
    pub(crate) partitions: Vec<PartitionState>,
    index: HashMap<PartitionKey, usize>,
    next_generation: u64,
    /// Where the search for the next data begins, so that the partitions take turns.
    cursor: usize,
    pub(crate) closed: bool,
}

impl State {
    pub(crate) fn new(config: ConsumerConfig) -> Self {
        Self {
            config,
            partitions: Vec::new(),
            index: HashMap::new(),
            next_generation: 1,
            cursor: 0,
            closed: false,
        }
    }

    fn generation(&mut self) -> u64 {
        self.next_generation += 1;
        self.next_generation
    }

    /// Adds partitions; one that is there already starts anew.
    pub(crate) fn assign(&mut self, partitions: Vec<(PartitionKey, Start)>) {
        for (key, start) in partitions {
            self.unassign(std::slice::from_ref(&key));
            let generation = self.generation();
            let mut partition = PartitionState {
                key: key.clone(),
                generation,
                phase: Phase::Stopped,
                position: None,
                resume_at: Phase::Stopped,
                stored: None,
                paused: false,
                busy: false,
                at_end: false,
                fetch_alone: false,
                not_before: None,
                preferred: None,
                waiting: VecDeque::new(),
                buffered: 0,
                high_watermark: -1,
                log_start: -1,
                eof_reported: None,
                lasting: Lasting::default(),
                resets: 0,
            };
            partition.start(start, self.config.offset_reset);
            self.index.insert(key, self.partitions.len());
            self.partitions.push(partition);
        }
    }

    /// Removes partitions, and the data fetched of them.
    pub(crate) fn unassign(&mut self, keys: &[PartitionKey]) {
        for key in keys {
            if let Some(at) = self.index.remove(key) {
                self.partitions.swap_remove(at);
                if let Some(moved) = self.partitions.get(at) {
                    self.index.insert(moved.key.clone(), at);
                }
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        self.partitions.clear();
        self.index.clear();
    }

    pub(crate) fn find(&self, key: &PartitionKey) -> Option<&PartitionState> {
        self.partitions.get(*self.index.get(key)?)
    }

    pub(crate) fn find_mut(&mut self, key: &PartitionKey) -> Option<&mut PartitionState> {
        self.partitions.get_mut(*self.index.get(key)?)
    }

    /// The partition, if it still has the generation of the request.
    pub(crate) fn current(&mut self, key: &PartitionKey, generation: u64) -> Option<&mut PartitionState> {
        self.find_mut(key)
            .filter(|partition| partition.generation == generation)
    }

    /// Moves a partition; `false` when it is not assigned.
    pub(crate) fn seek(&mut self, key: &PartitionKey, start: Start) -> bool {
        let generation = self.generation();
        let reset = self.config.offset_reset;
        let Some(partition) = self.find_mut(key) else {
            return false;
        };
        partition.forget(generation);
        partition.position = None;
        partition.start(start, reset);
        true
    }

    /// Stops or resumes handing out; what was fetched ahead is dropped and fetched again later.
    pub(crate) fn set_paused(&mut self, key: &PartitionKey, paused: bool) -> bool {
        let generation = self.generation();
        let Some(partition) = self.find_mut(key) else {
            return false;
        };
        if partition.paused != paused {
            partition.paused = paused;
            if paused {
                partition.rewind(generation);
            }
        }
        true
    }

    /// The next fetched data or event of any partition, taking turns.
    pub(crate) fn next_waiting(&mut self) -> Option<(usize, u64, Waiting)> {
        let count = self.partitions.len();
        for step in 0..count {
            let at = (self.cursor + step) % count;
            let partition = &mut self.partitions[at];
            if partition.paused {
                continue;
            }
            if let Some(waiting) = partition.waiting.pop_front() {
                if let Waiting::Data(chunk) = &waiting {
                    partition.buffered = partition.buffered.saturating_sub(chunk.len());
                }
                self.cursor = at + 1;
                return Some((at, partition.generation, waiting));
            }
        }
        None
    }

    /// Takes back what was handed out last. Records and ends of partitions are fetched again.
    pub(crate) fn give_back(&mut self, item: Item) {
        let generation = self.generation();
        let store = self.config.auto_store;
        match item {
            Item::Message(message) => {
                let key = (Arc::clone(&message.batch.topic), message.batch.partition);
                if let Some(partition) = self.find_mut(&key) {
                    partition.position = Some(message.offset);
                    if store {
                        partition.stored = Some((message.offset, -1));
                    }
                    partition.rewind(generation);
                }
            }
            Item::Event(Event::End(key, _)) => {
                if let Some(partition) = self.find_mut(&key) {
                    partition.eof_reported = None;
                }
            }
            Item::Event(Event::Failed(key, error)) => {
                if let Some(partition) = self.find_mut(&key) {
                    let event = Event::Failed(key, error);
                    partition.waiting.push_front(Waiting::Event(event));
                }
            }
        }
    }

    /// The bytes one partition may be ahead of the application.
    pub(crate) fn partition_budget(&self) -> usize {
        let share = self.config.queued_bytes_max / self.partitions.len().max(1);
        share.max(usize::try_from(self.config.partition_bytes_max).unwrap_or(1))
    }
}

impl PartitionState {
    fn start(&mut self, start: Start, reset: OffsetReset) {
        match start {
            Start::Offset(offset) => {
                self.phase = Phase::Fetching(offset);
                self.resume_at = self.phase;
            }
            Start::Beginning => self.phase = Phase::Locating(EARLIEST),
            Start::End => self.phase = Phase::Locating(LATEST),
            Start::Reset => self.reset(reset, "no offset is committed"),
            Start::Unknown => self.phase = Phase::Stopped,
        }
    }

    /// Reads from a follower until `until`, then asks the leader again.
    pub(crate) fn prefer(&mut self, broker: i32, until: Instant) {
        self.preferred = Some((broker, until));
    }

    /// Reads from the leader again. Returns whether it read from a follower.
    pub(crate) fn prefer_leader(&mut self) -> bool {
        self.preferred.take().is_some()
    }

    /// The follower to read from.
    pub(crate) fn preferred(&self, now: Instant) -> Option<i32> {
        let (broker, until) = self.preferred?;
        (now < until).then_some(broker)
    }

    /// Applies `auto.offset.reset`, because of `why`.
    pub(crate) fn reset(&mut self, reset: OffsetReset, why: &str) {
        self.phase = match reset {
            OffsetReset::Earliest => Phase::Locating(EARLIEST),
            OffsetReset::Latest => Phase::Locating(LATEST),
            OffsetReset::Error => {
                let error = ClientError::NoOffset {
                    topic: self.key.0.to_string(),
                    partition: self.key.1,
                    what: why.to_owned(),
                };
                self.waiting
                    .push_back(Waiting::Event(Event::Failed(self.key.clone(), error)));
                Phase::Stopped
            }
        };
    }

    /// ListOffsets found the offset to start at.
    pub(crate) fn located(&mut self, offset: i64) {
        self.phase = Phase::Fetching(offset);
        self.resume_at = self.phase;
    }

    /// The log has no offset `offset`: applies `auto.offset.reset`. Returns what is to be reported.
    pub(crate) fn out_of_range(
        &mut self,
        offset: i64,
        config: &ConsumerConfig,
        now: Instant,
    ) -> Option<ClientError> {
        let why = format!("offset {offset} is out of range");
        self.reset(config.offset_reset, &why);
        let goes_on_at = match config.offset_reset {
            OffsetReset::Earliest => "beginning",
            OffsetReset::Latest => "end",
            OffsetReset::Error => return None,
        };
        let (topic, partition) = (self.key.0.to_string(), self.key.1);
        self.resets += 1;
        if self.resets == 1 {
            return Some(ClientError::OffsetReset {
                topic,
                partition,
                offset,
                goes_on_at,
            });
        }
        // The offset that ListOffsets found is out of range, too.
        self.not_before = Some(now + config.error_backoff);
        let code = ErrorCode::OFFSET_OUT_OF_RANGE.0;
        let what = format!("{topic}-{partition}: Fetch at offset {offset}");
        self.lasting
            .tried_again("Fetch", &ClientError::Broker { code, what }, now)
    }

    /// Drops what was fetched, and what is known of its failures.
    fn forget(&mut self, generation: u64) {
        self.drop_fetched(generation);
        self.waiting.clear();
        self.not_before = None;
        self.lasting = Lasting::default();
        self.resets = 0;
    }

    /// Drops what was fetched. Failures that the application has not got stay: a partition that has failed
    /// for good would not fail again.
    fn drop_fetched(&mut self, generation: u64) {
        self.generation = generation;
        self.waiting
            .retain(|waiting| matches!(waiting, Waiting::Event(Event::Failed(..))));
        self.buffered = 0;
        self.busy = false;
        self.at_end = false;
        self.eof_reported = None;
        self.fetch_alone = false;
    }

    /// Goes back to the next offset the application will get.
    fn rewind(&mut self, generation: u64) {
        self.drop_fetched(generation);
        if let Phase::Fetching(_) = self.phase {
            self.phase = self.position.map_or(self.resume_at, Phase::Fetching);
        }
    }

    /// A message was handed out.
    #[inline]
    pub(crate) fn consumed(&mut self, offset: i64, leader_epoch: i32, store: bool) {
        self.position = Some(offset + 1);
        if store {
            self.stored = Some((offset + 1, leader_epoch));
        }
    }

    /// Notes a failure. One for the application to see becomes an event of the partition; one that is tried
    /// again is returned for the reporter, once it lasts.
    pub(crate) fn failed(
        &mut self,
        request: &'static str,
        error: ClientError,
        now: Instant,
    ) -> Option<ClientError> {
        self.failed_since(now, request, error, now)
    }

    /// [`PartitionState::failed`], of an operation that was tried since `since`.
    pub(crate) fn failed_since(
        &mut self,
        since: Instant,
        request: &'static str,
        error: ClientError,
        now: Instant,
    ) -> Option<ClientError> {
        if error.is_retriable() && !error.is_answer(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION) {
            return self.lasting.tried_again_since(since, request, &error, now);
        }
        if self.lasting.failed_since(since, &error, now) {
            self.waiting
                .push_back(Waiting::Event(Event::Failed(self.key.clone(), error)));
        }
        None
    }

    /// Notes that records or none were fetched without a failure.
    pub(crate) fn passed(&mut self) {
        self.lasting.passed();
        self.resets = 0;
        self.fetch_alone = false;
    }
}

#[cfg(test)]
mod tests {
    //! If these fail, a partition stops and the application never gets the reason.
    use std::time::Duration;

    use super::*;
    use crate::error::local;

    fn state(start: Start) -> (State, PartitionKey) {
        let key: PartitionKey = (Arc::from("t"), 0);
        let mut state = State::new(ConsumerConfig {
            offset_reset: OffsetReset::Error,
            ..ConsumerConfig::default()
        });
        state.assign(vec![(key.clone(), start)]);
        (state, key)
    }

    /// The codes of the failures that wait for the application.
    fn failures(state: &mut State) -> Vec<i32> {
        let waiting = std::iter::from_fn(|| state.next_waiting());
        let codes = waiting.map(|(_, _, waiting)| match waiting {
            Waiting::Event(Event::Failed(_, error)) => error.code(),
            other => panic!("{other:?}"),
        });
        codes.collect()
    }

    #[test]
    fn a_failure_that_waits_survives_a_pause() {
        let (mut state, key) = state(Start::Reset);
        state.set_paused(&key, true);
        assert_eq!(failures(&mut state), [], "a paused partition hands nothing out");
        state.set_paused(&key, false);
        assert_eq!(failures(&mut state), [local::AUTO_OFFSET_RESET]);
        state.set_paused(&key, true);
        state.set_paused(&key, false);
        assert_eq!(failures(&mut state), [], "it is handed out once");
    }

    #[test]
    fn an_offset_that_stays_out_of_range_is_asked_for_slowly_and_reported() {
        let (mut state, key) = state(Start::Offset(3));
        let config = ConsumerConfig {
            offset_reset: OffsetReset::Earliest,
            ..ConsumerConfig::default()
        };
        let partition = state.find_mut(&key).expect("assigned");
        let start = Instant::now();
        let skipped = partition.out_of_range(3, &config, start).expect("a report");
        assert_eq!(skipped.code(), local::AUTO_OFFSET_RESET, "{skipped}");
        assert_eq!(
            (partition.phase, partition.not_before),
            (Phase::Locating(EARLIEST), None)
        );
        partition.located(0);
        assert_eq!(partition.out_of_range(0, &config, start), None);
        assert_eq!(partition.not_before, Some(start + config.error_backoff));
        let later = start + Duration::from_secs(10);
        let lasting = partition.out_of_range(0, &config, later).expect("a report");
        assert_eq!(lasting.code(), i32::from(ErrorCode::OFFSET_OUT_OF_RANGE.0));
        assert_eq!(
            partition.out_of_range(0, &config, later),
            None,
            "it is reported once"
        );
        partition.passed();
        assert!(partition.out_of_range(9, &config, later).is_some());
    }

    #[test]
    fn a_pause_drops_events_that_come_again_and_a_seek_drops_all() {
        let (mut state, key) = state(Start::Offset(3));
        let partition = state.find_mut(&key).expect("assigned");
        let end = Event::End(key.clone(), 3);
        partition.waiting.push_back(Waiting::Event(end));
        partition.eof_reported = Some(3);
        partition.reset(OffsetReset::Error, "offset 3 is out of range");
        state.set_paused(&key, true);
        state.set_paused(&key, false);
        let partition = state.find(&key).expect("assigned");
        assert_eq!((partition.waiting.len(), partition.eof_reported), (1, None));
        state.seek(&key, Start::Offset(0));
        assert_eq!(failures(&mut state), []);
    }
}
