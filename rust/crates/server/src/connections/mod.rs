//! Accepting connections, and serving each: one task reads its requests and sends the responses.

mod connection;
pub(crate) mod listener;
mod outgoing;
mod slow_requests;
