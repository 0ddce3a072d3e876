//! What all Fetch requests together may have of memory beyond their frames: shared by the connections, held until a response has
//! been sent. Who finds nothing left waits for those before it: who waits to be let in has nothing, and who has room to tell of
//! something waits for its peer alone.
//!
//! Requests of few partitions are not counted, nor are file ranges: they are never in memory.

use std::sync::Arc;

use tokio::sync::{Mutex, MutexGuard, Semaphore};

use crate::memory::{Held, hold};

/// A request with more partitions than this is counted, and takes its time.
pub(super) const MANY: usize = 500;
/// Partitions of all requests that have many, which have about half a KiB each.
const PARTITIONS: usize = 128 << 10;
/// Those that are told of, which have about two KiB each until their response is encoded.
const TOLD: usize = 32 << 10;
/// What all responses in old formats have read, in KiB.
const MESSAGES: usize = 64 << 10;

/// The room there is.
pub(crate) struct FetchRoom {
    partitions: Arc<Semaphore>,
    told: Arc<Semaphore>,
    messages: Arc<Semaphore>,
    turn: Mutex<()>,
}

impl Default for FetchRoom {
    fn default() -> Self {
        Self {
            partitions: Arc::new(Semaphore::new(PARTITIONS)),
            told: Arc::new(Semaphore::new(TOLD)),
            messages: Arc::new(Semaphore::new(MESSAGES)),
            turn: Mutex::default(),
        }
    }
}

impl FetchRoom {
    /// Waits for room for so many partitions.
    pub(super) async fn for_partitions(&self, count: usize) -> Held {
        if count <= MANY {
            return None;
        }
        hold(&self.partitions, count.min(PARTITIONS)).await
    }

    /// Waits for room to tell of so many partitions.
    pub(super) async fn for_telling(&self, count: usize) -> Held {
        if count <= MANY {
            return None;
        }
        hold(&self.told, count.min(TOLD)).await
    }

    /// Waits for room for so many KiB that are to be converted.
    pub(super) async fn for_messages(&self, kib: usize) -> Held {
        hold(&self.messages, kib.min(MESSAGES)).await
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
}
