//! The indexes of a segment: by offset and by timestamp, and of aborted transactions.

pub(crate) mod file;
pub(crate) mod sparse;
pub(crate) mod transactions;
