//! Permits to decompress batches: how many at once, and with how much memory.
//!
//! A batch up to [`SHORT`] bytes is checked without a permit, on the network thread. A longer one, and one that is encoded anew for
//! its topic's codec, waits for a permit of [`MEDIUM`] bytes of memory; there are as many as processors. A batch that needs more
//! memory is tried again with a permit of 256 MiB, of which there is one. So ordinary batches do not wait for huge ones. A batch
//! that is encoded anew is in memory twice, so it may need twice the bytes of its permit. Checking needs none of this memory, but for
//! raw snappy and large zstd windows ([`logcore_records::Limits`]).
//!
//! Called from connection tasks. A task that waits for a permit blocks no thread.

use std::num::NonZero;

use tokio::sync::{Semaphore, SemaphorePermit};

use logcore_storage::DECOMPRESSED_MAX;

/// A compressed batch of more bytes waits for a permit. Decompressing so much takes some 0.2 ms.
pub(crate) const SHORT: usize = 32 << 10;
/// Memory to decompress a short batch with. Raw snappy needs at most 22 times the batch.
pub(crate) const SHORT_BUFFER: usize = 1 << 20;
/// Memory of an ordinary permit: 16 times the default of `max.message.bytes`.
const MEDIUM: usize = 16 << 20;
/// The most ordinary permits.
const PERMITS_MAX: usize = 16;

pub(crate) struct Unpacking {
    permits: Semaphore,
    large: Semaphore,
}

/// A permit, until it is dropped.
pub(crate) struct DecompressionPermit<'a> {
    /// The memory to decompress one batch with, in bytes.
    pub(crate) buffer_max: usize,
    /// The semaphores are never closed, so there is one.
    _permit: Option<SemaphorePermit<'a>>,
}

impl Default for Unpacking {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        Self {
            permits: Semaphore::new(cores.min(PERMITS_MAX)),
            large: Semaphore::new(1),
        }
    }
}

impl Unpacking {
    /// Waits for a permit for a batch of so many compressed bytes.
    pub(crate) async fn acquire(&self, bytes: usize) -> DecompressionPermit<'_> {
        if bytes > MEDIUM {
            return self.acquire_large().await;
        }
        DecompressionPermit {
            buffer_max: MEDIUM,
            _permit: self.permits.acquire().await.ok(),
        }
    }

    /// The caller must have given back any other permit.
    async fn acquire_large(&self) -> DecompressionPermit<'_> {
        DecompressionPermit {
            buffer_max: DECOMPRESSED_MAX,
            _permit: self.large.acquire().await.ok(),
        }
    }

    /// Replaces a permit by one with more memory; `None` when there is none.
    pub(crate) async fn acquire_larger<'a>(
        &'a self,
        permit: DecompressionPermit<'a>,
    ) -> Option<DecompressionPermit<'a>> {
        let is_largest = permit.buffer_max == DECOMPRESSED_MAX;
        drop(permit);
        if is_largest {
            return None;
        }
        Some(self.acquire_large().await)
    }
}
