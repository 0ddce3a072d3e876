//! The consumer's data path: assigned partitions in, messages out.
//!
//! Owns positions, and fetched data until the application takes its messages. Python owns group membership
//! and commits. A crash loses only what was fetched ahead.

pub mod decode;
#[cfg(test)]
mod decode_tests;
mod fetcher;
mod state;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use self::decode::Chunk;
pub use self::decode::{FetchedBatch, Message};
pub use self::state::Start;
use self::state::{State, Waiting};
use crate::cluster::Cluster;
use crate::config::{ClientConfig, ConsumerConfig};
use crate::error::{ClientError, Result};
use crate::offsets::PartitionKey;
use crate::reporter::Reporter;
use crate::runtime::Background;

/// An event of a partition.
#[derive(Debug, Clone)]
pub enum Event {
    /// The application has all records, up to this offset (`enable.partition.eof`).
    End(PartitionKey, i64),
    /// Reading failed. It is tried again, unless the partition has no offset to read at.
    Failed(PartitionKey, ClientError),
}

/// What [`Consumer::take`] returns.
#[derive(Debug, Clone)]
pub enum Item {
    Message(Message),
    Event(Event),
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) state: Mutex<State>,
    pub(crate) arrived: Condvar,
    pub(crate) wake: Notify,
    pub(crate) read_committed: bool,
    rotation: AtomicUsize,
}

impl Shared {
    /// Which of `count` partitions to begin with, the next one each time.
    fn rotate(&self, count: usize) -> usize {
        self.rotation.fetch_add(1, Ordering::Relaxed) % count.max(1)
    }

    /// Reports failures. The caller must not hold the state's lock, which is taken to wake a waiting thread.
    fn report(&self, reports: Vec<ClientError>) {
        for report in reports {
            self.cluster.reporter().report(report);
        }
    }
}

/// The batch being handed out.
#[derive(Debug)]
struct Reading {
    at: usize,
    generation: u64,
    chunk: Chunk,
    decoded: VecDeque<Message>,
}

/// How far one partition is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The next offset to be handed out; `None` before the first message.
    pub position: Option<i64>,
    /// Offset and leader epoch to commit.
    pub stored: Option<(i64, i32)>,
    /// -1 before the first answer.
    pub log_start: i64,
    /// -1 before the first answer.
    pub high_watermark: i64,
}

/// See the module.
#[derive(Debug)]
pub struct Consumer {
    shared: Arc<Shared>,
    reading: Mutex<Option<Reading>>,
    background: Arc<Background>,
}

impl Consumer {
    /// Starts the consumer's thread, which connects when it has something to ask.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn new(client: ClientConfig, config: ConsumerConfig) -> Result<Self> {
        let background = Arc::new(Background::start("logcore-consumer")?);
        let shared = Arc::new_cyclic(|shared: &std::sync::Weak<Shared>| {
            let consumer = shared.clone();
            let reporter = Reporter::new(move || {
                if let Some(consumer) = consumer.upgrade() {
                    // The lock orders this against a thread that is about to wait.
                    drop(consumer.state.lock());
                    consumer.arrived.notify_all();
                }
            });
            let cluster = Arc::new(Cluster::new(client, Arc::new(reporter)));
            Shared {
                cluster,
                read_committed: config.read_committed,
                state: Mutex::new(State::new(config)),
                arrived: Condvar::new(),
                wake: Notify::new(),
                rotation: AtomicUsize::new(0),
            }
        });
        background.spawn(Arc::clone(&shared.cluster).keep_fresh());
        background.spawn(fetcher::run(Arc::clone(&shared)));
        Ok(Self {
            shared,
            reading: Mutex::new(None),
            background,
        })
    }

    /// Adds partitions. One that is assigned already starts anew.
    pub fn assign(&self, partitions: Vec<(PartitionKey, Start)>) {
        for ((topic, _), _) in &partitions {
            self.shared.cluster.track(topic);
        }
        self.shared.state.lock().assign(partitions);
        self.shared.wake.notify_one();
    }

    /// Removes partitions.
    pub fn unassign(&self, partitions: &[PartitionKey]) {
        let mut state = self.shared.state.lock();
        state.unassign(partitions);
        self.track_assigned(&state);
    }

    /// Removes all partitions.
    pub fn unassign_all(&self) {
        let mut state = self.shared.state.lock();
        state.clear();
        self.track_assigned(&state);
    }

    /// Has the metadata of the assigned topics refreshed, and of no others.
    fn track_assigned(&self, state: &State) {
        let topics = state
            .partitions
            .iter()
            .map(|partition| Arc::clone(&partition.key.0));
        self.shared.cluster.track_only(topics);
    }

    /// Moves a partition; `false` when it is not assigned.
    pub fn seek(&self, key: &PartitionKey, start: Start) -> bool {
        let found = self.shared.state.lock().seek(key, start);
        self.shared.wake.notify_one();
        found
    }

    /// Stops or resumes a partition; `false` when it is not assigned.
    pub fn set_paused(&self, key: &PartitionKey, paused: bool) -> bool {
        let found = self.shared.state.lock().set_paused(key, paused);
        self.shared.wake.notify_one();
        found
    }

    /// How far a partition is read; `None` when it is not assigned.
    #[must_use]
    pub fn progress(&self, key: &PartitionKey) -> Option<Progress> {
        self.shared.state.lock().find(key).map(|partition| Progress {
            position: partition.position,
            stored: partition.stored,
            log_start: partition.log_start,
            high_watermark: partition.high_watermark,
        })
    }

    /// Sets the offset to commit; `false` when the partition is not assigned.
    pub fn store(&self, key: &PartitionKey, offset: i64, leader_epoch: i32) -> bool {
        let mut state = self.shared.state.lock();
        let Some(partition) = state.find_mut(key) else {
            return false;
        };
        partition.stored = Some((offset, leader_epoch));
        true
    }

    /// Every assigned partition with an offset to commit.
    #[must_use]
    pub fn stored(&self) -> Vec<(PartitionKey, i64, i32)> {
        let state = self.shared.state.lock();
        let partitions = state.partitions.iter();
        let stored = partitions.filter_map(|partition| {
            partition
                .stored
                .map(|(offset, epoch)| (partition.key.clone(), offset, epoch))
        });
        stored.collect()
    }

    /// Up to `max` items. Waits at most `slice` for the first, or for a report of the cluster's reporter.
    #[must_use]
    pub fn take(&self, max: usize, slice: Duration) -> Vec<Item> {
        let items = self.take_now(max);
        if !items.is_empty() || slice.is_zero() {
            return items;
        }
        {
            let mut state = self.shared.state.lock();
            let idle = self.shared.cluster.reporter().is_empty()
                && state
                    .partitions
                    .iter()
                    .all(|partition| partition.waiting.is_empty() || partition.paused);
            if idle && !state.closed {
                self.shared.arrived.wait_for(&mut state, slice);
            }
        }
        self.take_now(max)
    }

    /// Takes back items that the application did not get: their partitions go on at the first of them.
    pub fn give_back(&self, items: Vec<Item>) {
        let mut state = self.shared.state.lock();
        for item in items.into_iter().rev() {
            state.give_back(item);
        }
        drop(state);
        self.shared.wake.notify_one();
    }

    /// Wakes a thread that waits in [`Consumer::take`].
    pub fn interrupt(&self) {
        drop(self.shared.state.lock());
        self.shared.arrived.notify_all();
    }

    fn take_now(&self, max: usize) -> Vec<Item> {
        let mut items = Vec::new();
        let mut reading = self.reading.lock();
        while items.len() < max {
            match reading.as_mut() {
                Some(open) => {
                    let drained = self.hand_out(open, max - items.len(), &mut items);
                    if drained && !Self::decode_more(open, &mut items) {
                        *reading = None;
                    }
                }
                None => {
                    let mut state = self.shared.state.lock();
                    let Some((at, generation, waiting)) = state.next_waiting() else {
                        break;
                    };
                    drop(state);
                    match waiting {
                        Waiting::Event(event) => items.push(Item::Event(event)),
                        Waiting::Data(chunk) => {
                            // The partition is below its budget again.
                            self.shared.wake.notify_one();
                            *reading = Some(Reading {
                                at,
                                generation,
                                chunk,
                                decoded: VecDeque::new(),
                            });
                        }
                    }
                }
            }
        }
        items
    }

    /// Moves decoded messages out; `true` when none are left or they have become stale.
    fn hand_out(&self, open: &mut Reading, max: usize, items: &mut Vec<Item>) -> bool {
        if open.decoded.is_empty() {
            return true;
        }
        let mut state = self.shared.state.lock();
        let store = state.config.auto_store;
        let partition = state.partitions.get_mut(open.at);
        let Some(partition) = partition.filter(|partition| partition.generation == open.generation) else {
            open.decoded.clear();
            // The rest is stale, too.
            open.chunk.discard();
            return true;
        };
        let count = max.min(open.decoded.len());
        if let Some(last) = open.decoded.get(count - 1) {
            partition.consumed(last.offset, last.batch.leader_epoch, store);
        }
        drop(state);
        items.extend(open.decoded.drain(..count).map(Item::Message));
        open.decoded.is_empty()
    }

    /// Decodes the next batch; `false` when the chunk is used up.
    fn decode_more(open: &mut Reading, items: &mut Vec<Item>) -> bool {
        match open.chunk.next_batch() {
            Some(Ok(messages)) => {
                open.decoded = messages;
                true
            }
            Some(Err(error)) => {
                let key = (std::sync::Arc::clone(&open.chunk.topic), open.chunk.partition);
                items.push(Item::Event(Event::Failed(key, error)));
                // The batches behind a damaged one are good; the application may seek back.
                true
            }
            None => false,
        }
    }

    /// The cluster behind this consumer.
    #[must_use]
    pub fn cluster(&self) -> &Arc<Cluster> {
        &self.shared.cluster
    }

    /// The background thread, for requests beside fetching.
    #[must_use]
    pub fn background(&self) -> &Arc<Background> {
        &self.background
    }

    /// Whether only committed records are read.
    #[must_use]
    pub fn read_committed(&self) -> bool {
        self.shared.read_committed
    }

    /// Stops the thread.
    pub fn close(&self) {
        {
            let mut state = self.shared.state.lock();
            state.closed = true;
            state.clear();
        }
        self.shared.arrived.notify_all();
        self.background.stop();
    }
}
