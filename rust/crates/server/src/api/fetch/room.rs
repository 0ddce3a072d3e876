//! What all Fetch requests together may have of memory beyond their frames.
//!
//! Requests of many partitions have room while they are worked on: looked up, and told of until the response is encoded. Who has
//! it waits for nobody. One in the purgatory has none, nor has one whose peer does not read: what it has then is not counted, it is
//! about 200 bytes of each partition that there is and little of others.
//!
//! Two kinds of responses are in memory until they are sent and may be long. Those in old formats wait for each other, in
//! turn, and their peers have so much time for them ([`crate::answers`]). Those that tell of much that there is not wait for
//! nobody and nobody waits for them: what finds no room is not answered. What is told of partitions that there are is not
//! counted then, it is a few dozen bytes of each; nor are file ranges, which are never in memory, nor requests of few
//! partitions.

use std::sync::Arc;

use tokio::sync::{Mutex, MutexGuard, Semaphore};

use crate::memory::{Held, hold, try_hold};

/// A request with more partitions than this is counted, and takes its time.
pub(super) const MANY: usize = 500;
/// Partitions of all requests that have many, which have about two KiB each until the response is encoded.
const PARTITIONS: usize = 32 << 10;
/// Bytes that all responses in old formats have read.
const MESSAGES: usize = 64 << 20;
/// Bytes of all responses that tell of much that there is not, and how many are not much.
const UNKNOWN: usize = 64 << 20;
pub(super) const UNKNOWN_FREE: usize = 64 << 10;
const NO_ROOM: &str = "it asks for many partitions that there are not, and others do not read what they are told of such";

/// The room there is.
pub(crate) struct FetchRoom {
    partitions: Arc<Semaphore>,
    messages: Arc<Semaphore>,
    unknown: Arc<Semaphore>,
    turn: Mutex<()>,
}

impl Default for FetchRoom {
    fn default() -> Self {
        Self {
            partitions: Arc::new(Semaphore::new(PARTITIONS)),
            messages: Arc::new(Semaphore::new(MESSAGES)),
            unknown: Arc::new(Semaphore::new(UNKNOWN)),
            turn: Mutex::default(),
        }
    }
}

impl FetchRoom {
    /// Waits for room to work on so many partitions.
    pub(super) async fn for_partitions(&self, count: usize) -> Held {
        if count <= MANY {
            return None;
        }
        hold(&self.partitions, count.min(PARTITIONS)).await
    }

    /// Waits for room for so many bytes that are to be converted.
    pub(super) async fn for_messages(&self, bytes: usize) -> Held {
        hold(&self.messages, bytes.min(MESSAGES)).await
    }

    /// Room for a response with so many bytes of what there is not.
    ///
    /// # Errors
    /// Why its connection is to be closed.
    pub(super) fn for_unknown(&self, bytes: usize) -> Result<Held, String> {
        if bytes <= UNKNOWN_FREE {
            return Ok(None);
        }
        match try_hold(&self.unknown, bytes.min(UNKNOWN)) {
            None => Err(NO_ROOM.to_owned()),
            held => Ok(held),
        }
    }

    /// One at a time is converted.
    pub(super) async fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().await
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;
    use crate::vigil::at_once;

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
}
