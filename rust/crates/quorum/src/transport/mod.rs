//! Members that reach each other over TCP.
//!
//! | module | concept |
//! |---|---|
//! | `frame` | the frames of a connection |
//! | `messages` | the requests and responses in frames |
//! | [`handshake`] | the first frame each way: who connects to whom, and for what |
//! | [`links`] | connections to the other members |
//! | [`server`] | connections from the other members |
//!
//! A member opens one connection to another for each [`handshake::Stream`] that it needs, and keeps it. A
//! snapshot has a connection of its own, so that nothing waits behind it. Responses come on the same
//! connection, in any order.
//!
//! Both ends notice a peer that vanished. The sender closes a connection on which a request timed out and
//! nothing else was received meanwhile. The receiver closes a connection that is idle, or on which a frame
//! stands still.
//!
//! The ports trust their network, as ZooKeeper's do without TLS.

mod frame;
pub mod handshake;
pub mod links;
mod messages;
pub mod server;
