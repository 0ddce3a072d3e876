//! What crosses to Python: requests, facts about followers, replicated appends, and which logs went offline.

pub(crate) mod facts;
pub(crate) mod failures;
pub(crate) mod replicated;
pub(crate) mod requests;
pub(crate) mod verifications;
