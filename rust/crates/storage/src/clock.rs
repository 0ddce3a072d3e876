//! The system's clock in milliseconds since the epoch, read only where a time is needed.

use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) fn system_now_ms() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// The time of an append. Most appends do not need it, so the clock is read on demand.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Now {
    /// Milliseconds since the epoch.
    Ms(i64),
    /// The system's time.
    System,
}

impl Now {
    pub(crate) fn ms(self) -> i64 {
        match self {
            Self::Ms(ms) => ms,
            Self::System => system_now_ms(),
        }
    }
}
