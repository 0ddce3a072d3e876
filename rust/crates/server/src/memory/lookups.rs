//! What large ListOffsets requests together may have of memory while they search.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::codes::ErrorCode;
use crate::memory::frames::{Held, try_hold};

/// Bytes of all large requests that search, and how many are not large.
const SEARCHING: usize = 32 << 20;
const SEARCHING_FREE: usize = 64 << 10;

/// What large requests have while they search: what is left of them is about as large as their frames were.
pub(crate) struct Lookups(Arc<Semaphore>);

impl Default for Lookups {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(SEARCHING)))
    }
}

impl Lookups {
    /// Room for a request whose body had so many bytes; an error if there is none now.
    pub(crate) fn room(&self, bytes: usize) -> Result<Held, ErrorCode> {
        if bytes <= SEARCHING_FREE {
            return Ok(None);
        }
        match try_hold(&self.0, bytes) {
            None => Err(ErrorCode::REQUEST_TIMED_OUT),
            held => Ok(held),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // If this failed, a few requests that look far would keep the memory of frames, or memory without bounds.
    #[test]
    fn large_requests_that_search_have_room_or_none() {
        let lookups = Lookups::default();
        let all = lookups.room(SEARCHING).unwrap();
        assert!(all.is_some());
        let refused = lookups.room(SEARCHING_FREE + 1).unwrap_err();
        assert_eq!(refused, ErrorCode::REQUEST_TIMED_OUT);
        assert!(lookups.room(SEARCHING_FREE).unwrap().is_none());
        drop(all);
        assert!(lookups.room(SEARCHING_FREE + 1).unwrap().is_some());
    }
}
