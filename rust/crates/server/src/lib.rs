//! A broker's data plane: sockets, framing, the APIs answered in Rust, the way to Python for all others, log housekeeping.
//!
//! Owns: the threads that serve connections, the registry of partitions and who leads them, long polls, fetch sessions, the
//! log directories while they are open. Does not own: any decision. Which topics there are, who leads and since when comes
//! from outside through [`Server`]; requests this crate does not answer come out of [`Server::take_requests`].
//!
//! | room | what |
//! |---|---|
//! | `server`, `shared` | the owner's view; what every part reaches |
//! | `listener`, `connection`, `descriptors` | accepting within limits; one task per connection |
//! | `connection_quotas`, `quotas` | how many connections and how fast; how much clients may use |
//! | `frame`, `memory`, `decoded`, `dispatch` | bytes in, within what requests may have; who answers |
//! | `response`, `outgoing` | bytes out, answers to what came together in one piece |
//! | `vigil` | staying awake for a quick client's next request |
//! | `transport`, `tls` | what a connection needs of its socket: plain TCP with `sendfile`; TLS |
//! | `api` | one file per API |
//! | `registry`, `purgatory`, `fetch_session` | partitions and leaders; long polls; KIP-227 |
//! | `control`, `lines` | requests and log lines on their way to Python |
//! | `metrics`, `measurements`, `slow` | what is counted, how it is read, what took long |
//! | `logs`, `housekeeping`, `moves`, `config` | directories, their upkeep, logs on their way between them, settings |
//! | `admin` | what operators ask of logs: records deleted, directories and producers told, logs moved |
//!
//! Crash: what was acknowledged is in the operating system's hands, or on disk if `flush.messages` says so; recovery is the
//! storage crate's. Nothing of this crate is on disk. A fork of the process has none of the threads: there a server refuses.
#![cfg_attr(test, allow(clippy::unwrap_used))] // a test may panic

mod admin;
mod answers;
mod api;
mod codes;
mod config;
mod connection;
mod connection_quotas;
mod control;
mod decoded;
mod descriptors;
mod dispatch;
mod error;
mod failures;
mod fetch_session;
mod frame;
mod housekeeping;
mod lines;
mod listener;
mod logs;
mod measurements;
mod memory;
mod metrics;
mod moves;
mod outgoing;
mod purgatory;
mod quotas;
mod registry;
mod replicas;
mod response;
mod server;
mod shared;
mod slow;
mod tls;
mod transport;
mod unpacking;
mod vigil;

pub use admin::{LogDirDescription, LogDirMove, RecordsDeleted, ReplicaDescription, Space};
pub use codes::ErrorCode;
pub use config::Properties;
pub use control::{ConnectionInfo, ControlRequest};
pub use error::{Result, ServerError};
pub use failures::Failed;
pub use lines::{Fields, Level, LogLine};
pub use listener::ListenerSpec;
pub use measurements::{Measurements, PartitionMeasurements};
pub use metrics::{ApiMeasurements, HistogramValues};
pub use quotas::ClientQuota;
pub use registry::TopicId;
pub use replicas::Replica;
pub use server::{Offsets, PartitionSpec, Server, ServerOptions};
pub use tls::{ClientAuth, ListenerTls, PrincipalOf, TlsOptions, cipher_suites};
