//! What all Fetch requests together may have of memory beyond their frames.
//!
//! Requests of many partitions have room while they are worked on: looked up, and told of until the response is encoded. Who has
//! it waits for nobody. One in the purgatory has none of it but a place there, and is answered at once where there is none left. So
//! has one that waits for its messages to be made, which keeps what it looked at.
//!
//! Three kinds of responses have rooms of their own until they are sent. Those in old formats wait for each other, in
//! turn, and their peers have so much time for them ([`crate::memory::answers`]). Those that tell of much that there is not wait for
//! nobody and nobody waits for them: what finds no room is not answered. Nor is that of others which tell of many partitions, about 150
//! bytes of each: file ranges are never in memory, but where they are is. Those that are not read have their time while there is
//! little of that left.

use std::sync::Arc;

use tokio::sync::{Mutex, MutexGuard, Semaphore};

use crate::memory::frames::{Held, Tide, hold, try_hold};

/// A request with more partitions than this is counted, and takes its time.
pub(crate) const MANY: usize = 500;
/// Partitions of all requests that have many, which have about two KiB each until the response is encoded.
const PARTITIONS: usize = 32 << 10;
const PARTITION: usize = 2 << 10;
/// Partitions of all requests in the purgatory, and what each has there of memory.
const WAITING: usize = 512 << 10;
const WAITING_EACH: usize = 128;
/// Partitions of all requests that wait to be converted, and what each has then of memory.
const LINE: usize = 192 << 10;
pub(crate) const LINE_EACH: usize = 320;
/// A request with no more partitions than this waits without being counted.
const WAITING_FREE: usize = 32;
/// Bytes that all responses in old formats have read.
const MESSAGES: usize = 64 << 20;
/// Bytes of all responses that tell of much that there is not, and how many are not much.
const UNKNOWN: usize = 64 << 20;
pub(crate) const UNKNOWN_FREE: usize = 64 << 10;
/// Bytes of all other responses that tell of many partitions, and what is not counted of each response.
const TOLD: usize = 64 << 20;
const TOLD_FREE: usize = 16 << 10;
const NOT_TOLD: &str = "it asks for many partitions, and others do not read what they are told of many: it may ask again, or for fewer at a time";
const NO_ROOM: &str =
    "it asks for many partitions that there are not, and others do not read what they are told of such";

/// The room there is.
pub(crate) struct FetchRoom {
    partitions: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    line: Arc<Semaphore>,
    messages: Arc<Semaphore>,
    unknown: Arc<Semaphore>,
    told: Arc<Semaphore>,
    turn: Mutex<()>,
    tide: Tide,
}

impl Default for FetchRoom {
    fn default() -> Self {
        Self {
            partitions: Arc::new(Semaphore::new(PARTITIONS)),
            waiting: Arc::new(Semaphore::new(WAITING)),
            line: Arc::new(Semaphore::new(LINE)),
            messages: Arc::new(Semaphore::new(MESSAGES)),
            unknown: Arc::new(Semaphore::new(UNKNOWN)),
            told: Arc::new(Semaphore::new(TOLD)),
            turn: Mutex::default(),
            tide: Tide::default(),
        }
    }
}

impl FetchRoom {
    /// Waits for room to work on so many partitions.
    pub(crate) async fn for_partitions(&self, count: usize) -> Held {
        if count <= MANY {
            return None;
        }
        self.risen(hold(&self.partitions, count.min(PARTITIONS)).await)
    }

    /// A place in the purgatory for a request of so many partitions.
    ///
    /// # Errors
    /// Why there is none, and it is to be answered at once.
    pub(crate) fn for_waiting(&self, count: usize) -> Result<Held, String> {
        let held = self.if_left(&self.waiting, count, WAITING_FREE, WAITING);
        held.ok_or_else(|| {
            format!(
                "a Fetch of {count} partitions does not wait for records, because those that wait have {WAITING} together: consumers \
                 that ask for fewer each, or of more brokers, would"
            )
        })
    }

    /// A place among those that wait to be converted, for a request of so many partitions.
    ///
    /// # Errors
    /// Why there is none, and it is to be answered without messages.
    pub(crate) fn for_line(&self, count: usize) -> Result<Held, String> {
        let held = self.if_left(&self.line, count, WAITING_FREE, LINE);
        held.ok_or_else(|| {
            format!(
                "a Fetch of {count} partitions in an old format gets no messages yet, because those that wait for theirs have {LINE} \
                 together: clients that read what they are told, ask for fewer each, or know batches, would"
            )
        })
    }

    /// Waits for room for so many bytes that are to be converted.
    pub(crate) async fn for_messages(&self, bytes: usize) -> Held {
        self.risen(hold(&self.messages, bytes.min(MESSAGES)).await)
    }

    /// Room for a response with so many bytes of what there is not.
    ///
    /// # Errors
    /// Why its connection is to be closed.
    pub(crate) fn for_unknown(&self, bytes: usize) -> Result<Held, String> {
        let held = self.if_left(&self.unknown, bytes, UNKNOWN_FREE, UNKNOWN);
        held.ok_or_else(|| NO_ROOM.to_owned())
    }

    /// Room for a response that takes so many bytes until it is sent.
    ///
    /// # Errors
    /// Why its connection is to be closed.
    pub(crate) fn for_told(&self, bytes: usize) -> Result<Held, String> {
        let held = self.if_left(&self.told, bytes, TOLD_FREE, TOLD);
        held.ok_or_else(|| NOT_TOLD.to_owned())
    }

    /// So much of a room, for which nobody waits: what is little needs none, what is more than the room has all of it. Nothing,
    /// if there is not so much left.
    fn if_left(&self, room: &Arc<Semaphore>, wanted: usize, little: usize, whole: usize) -> Option<Held> {
        if wanted <= little {
            return Some(None);
        }
        self.risen(try_hold(room, wanted.min(whole))).map(Some)
    }

    /// One at a time is converted.
    pub(crate) async fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// As [`Tide::has_ebbed`].
    pub(crate) fn has_ebbed(&self) -> bool {
        self.tide.has_ebbed(self.had())
    }

    fn risen(&self, held: Held) -> Held {
        self.tide.risen(self.had());
        held
    }

    /// About how many bytes all of it are that is had.
    fn had(&self) -> usize {
        let had = |room: &Semaphore, whole: usize| whole - room.available_permits();
        had(&self.partitions, PARTITIONS) * PARTITION
            + had(&self.waiting, WAITING) * WAITING_EACH
            + had(&self.line, LINE) * LINE_EACH
            + had(&self.messages, MESSAGES)
            + had(&self.unknown, UNKNOWN)
            + had(&self.told, TOLD)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;
    use crate::net::busy_poll::at_once;

    // If this failed, requests of many partitions would fill the memory, or small ones would wait for them.
    #[tokio::test]
    async fn one_of_many_partitions_waits_for_another() {
        let room = FetchRoom::default();
        let all = room.for_partitions(usize::MAX).await;
        assert!(all.is_some());
        assert!(room.for_partitions(MANY).await.is_none());
        let mut next = pin!(room.for_partitions(MANY + 1));
        assert!(at_once(next.as_mut()).await.is_none());
        drop(all);
        assert!(next.await.is_some());
    }

    // If this failed, requests that wait would fill the memory, or those of few partitions would be answered without an end, or
    // what they had would stay with the process.
    #[test]
    fn those_that_wait_share_the_purgatory() {
        let room = FetchRoom::default();
        let all = room.for_waiting(usize::MAX).unwrap();
        assert!(room.for_waiting(WAITING_FREE + 1).is_err());
        assert!(room.for_waiting(WAITING_FREE).unwrap().is_none());
        assert!(!room.has_ebbed());
        drop(all);
        assert!(room.has_ebbed() && !room.has_ebbed());
        assert!(room.for_waiting(WAITING_FREE + 1).unwrap().is_some());
    }

    // If this failed, who asks for what there is not would fill the memory with answers that nobody reads, or would have to be
    // waited for.
    #[tokio::test]
    async fn what_there_is_not_is_told_within_bounds() {
        let room = FetchRoom::default();
        let all = room.for_unknown(usize::MAX).unwrap();
        assert!(room.for_unknown(UNKNOWN_FREE + 1).is_err());
        assert!(room.for_unknown(UNKNOWN_FREE).unwrap().is_none());
        assert!(room.for_partitions(MANY + 1).await.is_some());
        drop(all);
        assert!(room.for_unknown(UNKNOWN_FREE + 1).unwrap().is_some());
    }

    // If this failed, what is told of many partitions to those who do not read it would fill the memory.
    #[test]
    fn what_is_told_of_many_partitions_has_bounds() {
        let room = FetchRoom::default();
        let all = room.for_told(usize::MAX).unwrap();
        assert!(room.for_told(TOLD_FREE + 1).is_err());
        assert!(room.for_told(TOLD_FREE).unwrap().is_none());
        assert!(room.for_unknown(UNKNOWN_FREE + 1).is_ok());
        drop(all);
        assert!(room.has_ebbed());
        assert!(room.for_told(TOLD_FREE + 1).unwrap().is_some());
    }
}
