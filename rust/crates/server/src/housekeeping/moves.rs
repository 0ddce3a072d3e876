//! Moving partitions' logs between the log directories while they are served (KIP-113,
//! `ReplicaAlterLogDirsManager`).
//!
//! One thread copies, a piece of each log in turn, and sleeps while there is nothing to move. The storage
//! crate copies a log and handles crashes ([`logcore_storage::Move`]). This module chooses which logs move
//! and how fast, and replaces a moved log for requests. A move ends when little is left to copy; while
//! producers are too fast, it goes on. A failed move becomes a log line. The log and its copy stay where they
//! are, and the next start or request continues with the copy.

use std::collections::BTreeMap;
use std::sync::Arc;

use logcore_storage::{LogDir, Move, Partition, StorageError};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::error::Result;
use crate::log_lines::{Level, LogLines};
use crate::partitions::logs::Logs;
use crate::partitions::purgatory::HasWaiters;
use crate::quotas::ReplicationQuota;
use crate::shared::Shared;

/// The bytes that are copied of a log before the next one's turn.
const PIECE_BYTES: u64 = 1 << 20;
/// The most bytes that may be left for the last step, during which appends wait.
const LAST_BYTES: u64 = 256 << 10;

type Key = (String, i32);

#[derive(Default)]
pub(crate) struct Moves {
    state: Mutex<State>,
    changed: Condvar,
    /// Locked for the short time in which a copy replaces its log ([`Move::finish`]), because disk and
    /// registry change together. The creation and deletion of partitions, changes of settings, and new moves
    /// wait for it.
    exchange: Mutex<()>,
    /// Locked while a piece is copied.
    copying: Mutex<()>,
}

#[derive(Default)]
struct State {
    moves: BTreeMap<Key, Arc<Move>>,
    stopped: bool,
}

impl Moves {
    /// No copy replaces its log until this is dropped. Changes of partitions need it.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        self.exchange.lock()
    }

    /// Resumes the moves that were under way when the directories were closed. To be called before any
    /// request is served, because copies are cut to the end of their logs.
    pub(crate) fn resume(&self, logs: &Logs, lines: &LogLines) {
        for to in logs.dirs() {
            for future in to.futures() {
                let (topic, partition) = (&*future.topic, future.partition);
                let Some(from) = logs.holder(topic, partition) else {
                    lines.warning(format!(
                        "{} is a copy of a log that no directory has; it is kept, remove it when it is not \
                         needed",
                        future.log.dir().display()
                    ));
                    continue;
                };
                if let Err(error) = self.begin(&from, to, topic, partition) {
                    log_failure(lines, topic, partition, &error);
                }
            }
        }
    }

    /// Begins a move, unless the log is moving already. The caller has ended moves to other directories.
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

    /// Ends a partition's move, if there is one. The copy stays.
    pub(crate) fn forget(&self, topic: &str, partition: i32) {
        let key = (topic.to_owned(), partition);
        self.state.lock().moves.remove(&key);
    }

    /// Calls `truncate`, which truncates a partition's log, with the log's directory. No move copies
    /// meanwhile. The partition's own move then begins again, which cuts off what the log does not have any
    /// more (`ReplicaAlterLogDirsManager.markPartitionsForTruncation`). May wait for the disk.
    ///
    /// # Errors
    /// Those of `truncate`; [`StorageError::NotFound`] if there is no such log.
    pub(crate) fn around_truncation<T>(
        &self,
        shared: &Shared,
        topic: &str,
        partition: i32,
        truncate: impl FnOnce(&LogDir, &Partition) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        let _exchange = self.lock();
        let key = (topic.to_owned(), partition);
        let found = shared.logs.holder(topic, partition);
        let found = found.and_then(|dir| Some((dir.get(topic, partition)?, dir)));
        let Some((stored, from)) = found else {
            return Err(StorageError::NotFound {
                path: format!("{topic}-{partition}").into(),
            });
        };
        let _copying = self.copying.lock();
        let interrupted = self.state.lock().moves.remove(&key);
        let result = truncate(&from, &stored);
        if interrupted.is_some() {
            drop(interrupted);
            let mut dirs = shared.logs.dirs().iter();
            let to = dirs.find(|dir| dir.future(topic, partition).is_some());
            if let Some(Err(error)) = to.map(|to| self.begin(&from, to, topic, partition)) {
                log_failure(&shared.lines, topic, partition, &error);
            }
        }
        result
    }

    /// Ends the thread after its current piece. The next start resumes the moves.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        state.moves.clear();
        self.changed.notify_all();
    }

    pub(crate) fn run(&self, shared: &Shared) {
        let mut last = None;
        let quota = &shared.replication_quotas.moves;
        while let Some((key, one)) = self.next(last.as_ref()) {
            match self.turn(shared, &key, &one) {
                Ok(bytes) => {
                    quota.record(bytes);
                    self.wait_for_rate(quota);
                }
                Err(error) => self.abandon(shared, &key, &one, &error),
            }
            last = Some(key);
        }
    }

    /// The move after `last`, in rotation. Waits for one. `None` after [`Moves::stop`].
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

    /// Copies a piece, and finishes the move if little is left. Returns the number of copied bytes.
    fn turn(&self, shared: &Shared, key: &Key, one: &Arc<Move>) -> Result<u64, StorageError> {
        // At a low rate the pieces are small, so that no wait takes minutes.
        let bound = shared.replication_quotas.moves.bound();
        let rate = bound.map_or(PIECE_BYTES, |bound| bound.max(1));
        let copied = {
            let _copying = self.copying.lock();
            if !self.is_current(key, one) {
                return Ok(0);
            }
            one.copy(PIECE_BYTES.min(rate))?
        };
        if one.bytes_left()? <= LAST_BYTES.min(rate) {
            self.finish(shared, key, one)?;
        }
        Ok(copied)
    }

    /// Finishes the move, unless producers were faster. Then it goes on.
    fn finish(&self, shared: &Shared, key: &Key, one: &Arc<Move>) -> Result<(), StorageError> {
        // This takes long, so it comes before the lock.
        one.prepare()?;
        let _exchange = self.exchange.lock();
        if !self.is_current(key, one) {
            return Ok(());
        }
        let (topic, partition) = (&*key.0, key.1);
        let finished = one.finish(|moved| {
            if let Some(partition) = shared.registry.find(topic, partition) {
                shared
                    .registry
                    .insert(Arc::new(partition.with_log(Arc::clone(&moved.log))));
                partition.waiters().wake_all();
            }
        })?;
        let Some(moved) = finished else {
            return Ok(());
        };
        self.state.lock().moves.remove(key);
        let path = moved.partition.log.dir();
        shared
            .lines
            .info(format!("{topic}-{partition} was moved to {}", path.display()));
        if let Some(error) = moved.left_behind {
            shared.lines.error(format!(
                "{topic}-{partition} was moved to {}, but could not be removed from its old directory: \
                 {error}",
                path.display()
            ));
        }
        Ok(())
    }

    fn is_current(&self, key: &Key, one: &Arc<Move>) -> bool {
        let is_same = |found: &Arc<Move>| Arc::ptr_eq(found, one);
        self.state.lock().moves.get(key).is_some_and(is_same)
    }

    /// Waits while the rate is above `replica.alter.log.dirs.io.max.bytes.per.second`. Follows changes of the
    /// setting.
    fn wait_for_rate(&self, quota: &ReplicationQuota) {
        let mut state = self.state.lock();
        while !state.stopped
            && let Some(wait) = quota.exceeded_for()
        {
            self.changed.wait_for(&mut state, wait);
        }
    }

    pub(crate) fn rate_changed(&self) {
        let _state = self.state.lock();
        self.changed.notify_all();
    }

    fn abandon(&self, shared: &Shared, key: &Key, one: &Arc<Move>, error: &StorageError) {
        let mut state = self.state.lock();
        if state.moves.get(key).is_some_and(|found| Arc::ptr_eq(found, one)) {
            state.moves.remove(key);
            drop(state);
            log_failure(&shared.lines, &key.0, key.1, error);
        }
    }
}

fn log_failure(lines: &LogLines, topic: &str, partition: i32, error: &StorageError) {
    lines.push(
        Level::Error,
        format!("{topic}-{partition} is not moved and stays in its directory: {error}"),
    );
}
