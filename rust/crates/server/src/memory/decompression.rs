//! Permits to decompress batches: their number, and the memory of each.
//!
//! A batch up to [`SHORT`] bytes is checked on the network thread without a permit. A longer one, and one
//! that is encoded again for its topic's codec, waits for a permit with [`MEDIUM`] bytes of memory; there are
//! as many as processors. A batch that needs more memory is tried again with the one permit of 256 MiB. So
//! ordinary batches do not wait for huge ones.
//!
//! A batch that is encoded again is in memory twice, so it may take twice its permit's bytes. Checking takes
//! none of them except for raw snappy and large zstd windows ([`logcore_records::Limits`]).
//!
//! Called from connection tasks. Waiting for a permit blocks no thread.

use logcore_storage::DECOMPRESSED_MAX;

use crate::memory::Budgets;
use crate::memory::budget::Permit;

/// A longer compressed batch waits for a permit. Decompressing this much takes some 0.2 ms.
pub(crate) const SHORT: usize = 32 << 10;
/// Memory to decompress a short batch. Raw snappy grows by at most 22 times.
pub(crate) const SHORT_BUFFER: usize = 1 << 20;
/// Memory of an ordinary permit: 16 times the default of `max.message.bytes`.
const MEDIUM: usize = 16 << 20;

pub(crate) struct DecompressionPermit {
    /// The memory to decompress one batch with, in bytes.
    pub(crate) buffer_max: usize,
    _permit: Permit,
}

impl Budgets {
    /// Waits for a permit for a batch of this many compressed bytes.
    pub(crate) async fn decompression(&self, bytes: usize) -> DecompressionPermit {
        if bytes > MEDIUM {
            return self.large_decompression().await;
        }
        DecompressionPermit {
            buffer_max: MEDIUM,
            _permit: self.decompressions.acquire(1).await,
        }
    }

    /// The caller must have given back any other permit.
    async fn large_decompression(&self) -> DecompressionPermit {
        DecompressionPermit {
            buffer_max: DECOMPRESSED_MAX,
            _permit: self.large_decompression.acquire(1).await,
        }
    }

    /// Replaces a permit by one with more memory. `None` if there is no larger one.
    pub(crate) async fn larger_decompression(
        &self,
        permit: DecompressionPermit,
    ) -> Option<DecompressionPermit> {
        let is_largest = permit.buffer_max == DECOMPRESSED_MAX;
        drop(permit);
        if is_largest {
            return None;
        }
        Some(self.large_decompression().await)
    }
}
