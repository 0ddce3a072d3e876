//! Sockets and what is read from and written to them: frames, responses, TLS.

pub(crate) mod busy_poll;
pub(crate) mod frame;
pub(crate) mod response;
pub(crate) mod tls;
pub(crate) mod transport;
