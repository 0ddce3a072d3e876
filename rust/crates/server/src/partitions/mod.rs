//! The partitions of this server: their logs, leaders, replicas, waiting requests and fetch sessions.

pub(crate) mod fetch_session;
pub(crate) mod logs;
pub(crate) mod purgatory;
pub(crate) mod registry;
pub(crate) mod replicas;
