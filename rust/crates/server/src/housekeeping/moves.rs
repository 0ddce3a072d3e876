//! Moving partitions' logs between the log directories while they are served (KIP-113, `ReplicaAlterLogDirsManager`).
//!
//! One thread per server copies, each log a piece at a turn, and sleeps while there is nothing to move. How a log gets to the
//! other disk, and what a crash does to it on the way, is the storage crate's ([`logcore_storage::Move`]); here is which logs
//! move, how fast, and that requests find a log where it is. A move ends when little is left; while producers are too fast for
//! that it goes on. A move that fails becomes a log line; the log stays where it is,
//! and so does its copy, with which the next start or the next request goes on.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use logcore_storage::{LogDir, Move, StorageError};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::error::Result;
use crate::log_lines::{Level, LogLines};
use crate::partitions::logs::Logs;
use crate::partitions::purgatory::HasWaitingRoom;
use crate::shared::Shared;

/// What a log is given at one turn.
const PIECE_BYTES: u64 = 1 << 20;
/// What may be left when the last step is tried, during which nobody appends.
const LAST_BYTES: u64 = 256 << 10;

type Key = (String, i32);

/// The moves that are under way.
#[derive(Default)]
pub(crate) struct Moves {
    state: Mutex<State>,
    changed: Condvar,
    /// Held while a log takes another's place, which is short ([`Move::finish`]): what is on disk and what is registered change
    /// together. Partitions that are created or deleted wait for it, their settings, and moves that begin.
    exchange: Mutex<()>,
}

#[derive(Default)]
struct State {
    moves: BTreeMap<Key, Arc<Move>>,
    stopped: bool,
}

impl Moves {
    /// No log takes another's place until this is dropped. Whoever changes partitions holds it.
    pub(crate) fn hold(&self) -> MutexGuard<'_, ()> {
        self.exchange.lock()
    }

    /// Goes on with the moves that were under way when the directories were closed. Called before anything is served, because
    /// the copies are cut to what the logs have.
    pub(crate) fn resume(&self, logs: &Logs, lines: &LogLines) {
        for to in logs.dirs() {
            for future in to.futures() {
                let (topic, partition) = (&*future.topic, future.partition);
                let Some(from) = logs.holder(topic, partition) else {
                    lines.warning(format!(
                        "{} is a copy of a log that no directory has; it is kept, remove it when it is not needed",
                        future.log.dir().display()
                    ));
                    continue;
                };
                if let Err(error) = self.begin(&from, to, topic, partition) {
                    tell_failure(lines, topic, partition, &error);
                }
            }
        }
    }

    /// Begins a move, unless the log is moving. The caller makes sure that it is moving nowhere else.
    ///
    /// # Errors
    /// As [`Move::begin`].
    pub(crate) fn begin(
        &self,
        from: &Arc<LogDir>,
        to: &Arc<LogDir>,
        topic: &str,
        partition: i32,
    ) -> Result<(), StorageError> {
        let key = (topic.to_owned(), partition);
        let is_moving = self.state.lock().moves.contains_key(&key);
        if !is_moving {
            let begun = Arc::new(Move::begin(from, to, topic, partition)?);
            self.state.lock().moves.insert(key, begun);
            self.changed.notify_all();
        }
        Ok(())
    }

    /// Ends a partition's move, if there is one. What was copied stays.
    pub(crate) fn forget(&self, topic: &str, partition: i32) {
        let key = (topic.to_owned(), partition);
        self.state.lock().moves.remove(&key);
    }

    /// Ends the thread at its next piece. What is under way goes on at the next start.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        state.moves.clear();
        self.changed.notify_all();
    }

    /// Moves logs until [`Moves::stop`].
    pub(crate) fn run(&self, shared: &Shared) {
        let mut last = None;
        while let Some((key, one)) = self.next(last.as_ref()) {
            let began = Instant::now();
            match self.turn(shared, &key, &one) {
                Ok(bytes) => self.pace(shared, bytes, began),
                Err(error) => self.give_up(shared, &key, &one, &error),
            }
            last = Some(key);
        }
    }

    /// The one that follows `last`, round and round; waits for one. `None`: it is over.
    fn next(&self, last: Option<&Key>) -> Option<(Key, Arc<Move>)> {
        let mut state = self.state.lock();
        while !state.stopped && state.moves.is_empty() {
            self.changed.wait(&mut state);
        }
        if state.stopped {
            return None;
        }
        let after = last.and_then(|last| state.moves.range(last.clone()..).find(|(key, _)| *key > last));
        let (key, one) = after.or_else(|| state.moves.iter().next())?;
        Some((key.clone(), Arc::clone(one)))
    }

    /// Copies a piece, and ends the move when little is left; returns how many bytes were copied.
    fn turn(&self, shared: &Shared, key: &Key, one: &Arc<Move>) -> Result<u64, StorageError> {
        // At a low rate the pieces are small, so that one is not awaited for minutes.
        let rate = shared
            .dynamic
            .read()
            .move_bytes_per_second
            .map_or(PIECE_BYTES, NonZeroU64::get);
        let copied = one.copy(PIECE_BYTES.min(rate))?;
        if one.bytes_left()? <= LAST_BYTES.min(rate) {
            self.finish(shared, key, one)?;
        }
        Ok(copied)
    }

    /// Ends the move, unless producers were faster: then it goes on.
    fn finish(&self, shared: &Shared, key: &Key, one: &Arc<Move>) -> Result<(), StorageError> {
        // Before anybody waits for what is locked below.
        one.prepare()?;
        let _exchange = self.exchange.lock();
        let is_same = |found: &Arc<Move>| Arc::ptr_eq(found, one);
        if !self.state.lock().moves.get(key).is_some_and(is_same) {
            return Ok(());
        }
        let (topic, partition) = (&*key.0, key.1);
        let finished = one.finish(|moved| {
            if let Some(place) = shared.registry.find(topic, partition) {
                shared
                    .registry
                    .insert(Arc::new(place.with_log(Arc::clone(&moved.log))));
                place.waiting_room().wake_all();
            }
        })?;
        let Some(moved) = finished else {
            return Ok(());
        };
        self.state.lock().moves.remove(key);
        let place = moved.partition.log.dir();
        shared
            .lines
            .info(format!("{topic}-{partition} was moved to {}", place.display()));
        if let Some(error) = moved.left_behind {
            shared.lines.error(format!(
                "{topic}-{partition} was moved to {}, and could not be removed where it was: {error}",
                place.display()
            ));
        }
        Ok(())
    }

    /// Waits as long as `replica.alter.log.dirs.io.max.bytes.per.second` asks for, whatever it is meanwhile, or until it is
    /// over.
    fn pace(&self, shared: &Shared, bytes: u64, began: Instant) {
        let mut state = self.state.lock();
        while !state.stopped {
            let Some(rate) = shared.dynamic.read().move_bytes_per_second else {
                return;
            };
            let needed = Duration::try_from_secs_f64(bytes as f64 / rate.get() as f64);
            let until = began + needed.unwrap_or(Duration::MAX).min(Duration::from_secs(3600));
            if self.changed.wait_until(&mut state, until).timed_out() {
                return;
            }
        }
    }

    /// There may be another rate.
    pub(crate) fn look_again(&self) {
        let _state = self.state.lock();
        self.changed.notify_all();
    }

    fn give_up(&self, shared: &Shared, key: &Key, one: &Arc<Move>, error: &StorageError) {
        let mut state = self.state.lock();
        if state.moves.get(key).is_some_and(|found| Arc::ptr_eq(found, one)) {
            state.moves.remove(key);
            drop(state);
            tell_failure(&shared.lines, &key.0, key.1, error);
        }
    }
}

fn tell_failure(lines: &LogLines, topic: &str, partition: i32, error: &StorageError) {
    lines.push(
        Level::Error,
        format!("{topic}-{partition} is not moved and stays where it is: {error}"),
    );
}
