//! What crosses to Python: requests, and which logs went offline.

pub(crate) mod failures;
pub(crate) mod requests;
