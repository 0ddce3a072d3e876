//! The outcome of records, as the caller gets it.

use std::sync::Arc;
use std::time::Instant;

use crate::error::ClientError;

/// A record whose outcome is to be reported.
#[derive(Debug)]
pub struct Tracked<T> {
    /// Position in its batch.
    pub index: u32,
    /// Create time in milliseconds since the epoch.
    pub timestamp: i64,
    /// What the caller attached.
    pub context: T,
}

/// The outcome of the tracked records of one batch, or of some of them.
#[derive(Debug)]
pub struct Report<T> {
    pub topic: Arc<str>,
    pub partition: i32,
    /// Offset of the batch's first record; negative when unknown.
    pub base_offset: i64,
    /// The broker's append time in milliseconds, -1 when the records keep their own.
    pub append_time: i64,
    /// Why the records were not written; `None` when they were.
    pub error: Option<ClientError>,
    /// When the batch was begun.
    pub begun: Instant,
    pub records: std::vec::IntoIter<Tracked<T>>,
}
