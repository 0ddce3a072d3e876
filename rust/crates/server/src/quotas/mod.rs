//! The quotas of clients and of replication, and the limits on connections.

mod clients;
mod connections;
mod meter;
mod rate;
mod replication;

pub use self::clients::ClientQuota;
pub(crate) use self::clients::{ANONYMOUS, ClientQuotas};
pub(crate) use self::connections::{ConnectionQuotas, Refusal, Slot};
pub(crate) use self::meter::{Meter, Spent};
pub(crate) use self::replication::{ReplicationQuota, ReplicationQuotas, is_throttled};
