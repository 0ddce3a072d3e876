//! The quotas of clients, and the limits on connections.

mod clients;
mod connections;
mod meter;
mod rate;

pub use self::clients::ClientQuota;
pub(crate) use self::clients::{ANONYMOUS, ClientQuotas};
pub(crate) use self::connections::{ConnectionQuotas, Refusal, Slot};
pub(crate) use self::meter::{Meter, Spent};
