//! What crosses to Python: requests, facts about followers, and which logs went offline.

pub(crate) mod facts;
pub(crate) mod failures;
pub(crate) mod requests;
