//! The partitions of this server: their logs, who leads them, who waits for their records.

pub(crate) mod fetch_session;
pub(crate) mod logs;
pub(crate) mod purgatory;
pub(crate) mod registry;
pub(crate) mod replicas;
