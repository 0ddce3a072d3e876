//! What all Produce requests of many partitions together may have of memory beyond their frames.
//!
//! What is known of each partition is had until the answer is made, also while the request waits for its turn to unpack, or for
//! replicas: then its frame's memory is others' ([`crate::memory::frames`]). A partition may be six bytes of a frame. So a request takes
//! its place before it appends anything. Nobody waits for one, as who has it may wait for a replica, which asks for what was
//! appended: without a place nothing is appended, and the client tries again. Called from connection tasks; a crash leaves
//! nothing.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::memory::frames::{FREE, Held, Tide, try_hold};

/// Bytes of all requests that have many partitions.
const WHOLE: usize = 64 << 20;

/// The room there is.
pub(crate) struct ProduceRoom {
    parts: Arc<Semaphore>,
    tide: Tide,
}

impl Default for ProduceRoom {
    fn default() -> Self {
        Self {
            parts: Arc::new(Semaphore::new(WHOLE)),
            tide: Tide::default(),
        }
    }
}

impl ProduceRoom {
    /// The place of a request that keeps so many bytes until it is answered; one of few partitions needs none.
    ///
    /// # Errors
    /// Why there is none, and nothing is to be appended.
    pub(crate) fn enter(&self, bytes: usize, partitions: usize) -> Result<Held, String> {
        if bytes <= FREE {
            return Ok(None);
        }
        match try_hold(&self.parts, bytes.min(WHOLE)) {
            Some(held) => {
                self.tide.risen(self.had());
                Ok(Some(held))
            }
            None => Err(format!(
                "a Produce of {} partitions is not carried out, because others of many that wait have {WHOLE} bytes together: producers \
                 that send to fewer at a time would be served",
                partitions
            )),
        }
    }

    /// As [`Tide::has_ebbed`].
    pub(crate) fn has_ebbed(&self) -> bool {
        self.tide.has_ebbed(self.had())
    }

    fn had(&self) -> usize {
        WHOLE - self.parts.available_permits()
    }
}
