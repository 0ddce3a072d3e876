//! How many batches are decompressed at once, and to how much.
//!
//! A batch is unpacked where its topic's settings force it, and may be a thousand times as large then. It gets its turn first
//! ([`Unpacking::turn`]): a few at once, and none may take more than [`SMALL`]. One that does not fit is done again in a lane of
//! its own, one after the other: so what producers send in earnest does not wait for bombs. What is compressed anew is in
//! memory twice, so all turns together have twice what they may decompress to, which is half a gigabyte for the lane.
//!
//! Called from connection tasks, which wait without a thread. What is decompressed nowhere asks nobody.

use std::num::NonZero;

use tokio::sync::{Semaphore, SemaphorePermit};

use logcore_storage::DECOMPRESSED_MAX;

/// What a batch may decompress to in an ordinary turn: 16 times the largest that `max.message.bytes` allows unless it is set.
const SMALL: usize = 16 << 20;
/// There are so many turns at once where there are as many processors.
const TURNS_MAX: usize = 16;

/// The turns there are.
pub(crate) struct Unpacking {
    turns: Semaphore,
    lane: Semaphore,
}

/// One batch's turn, until it is dropped.
pub(crate) struct Turn<'a> {
    /// What it may decompress to, in bytes.
    pub(crate) decompressed_max: usize,
    /// Nobody closes the semaphores, so there is one.
    _permit: Option<SemaphorePermit<'a>>,
}

impl Default for Unpacking {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        Self {
            turns: Semaphore::new(cores.min(TURNS_MAX)),
            lane: Semaphore::new(1),
        }
    }
}

impl Unpacking {
    /// Waits for the turn of a batch that has so many bytes now.
    pub(crate) async fn turn(&self, bytes: usize) -> Turn<'_> {
        if bytes > SMALL {
            return self.lane().await;
        }
        Turn {
            decompressed_max: SMALL,
            _permit: self.turns.acquire().await.ok(),
        }
    }

    /// Waits for the turn of one that was too large for an ordinary one, which must be over.
    async fn lane(&self) -> Turn<'_> {
        Turn {
            decompressed_max: DECOMPRESSED_MAX,
            _permit: self.lane.acquire().await.ok(),
        }
    }

    /// A turn with more room, if there is one.
    pub(crate) async fn larger<'a>(&'a self, turn: Turn<'a>) -> Option<Turn<'a>> {
        let is_largest = turn.decompressed_max == DECOMPRESSED_MAX;
        drop(turn);
        if is_largest {
            return None;
        }
        Some(self.lane().await)
    }
}
