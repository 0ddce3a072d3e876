//! How much clients may use, how many connections there may be, and how fast connections may come.

mod clients;
mod connections;
mod meter;
mod rate;

pub use self::clients::ClientQuota;
pub(crate) use self::clients::{ANONYMOUS, ClientQuotas};
pub(crate) use self::connections::{ConnectionQuotas, Refusal, Seat};
pub(crate) use self::meter::{Meter, Spent};
