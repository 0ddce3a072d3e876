//! A broker's data plane: sockets, framing, the APIs answered in Rust, the way to Python for all others, log housekeeping.
//!
//! Owns: the threads that serve connections, the registry of partitions and who leads them, long polls, fetch sessions, the
//! log directories while they are open. Does not own: any decision. Which topics there are, who leads and since when comes
//! from outside through [`Server`]; requests this crate does not answer come out of [`Server::take_requests`].
//!
//! | module | what |
//! |---|---|
//! | `server`, `admin`, `config` | the owner's view; what operators ask of logs; settings |
//! | `measurements`, `housekeeping` | what is read at a scrape; the threads that look after logs and memory |
//! | `connections` | listeners; one task for each connection; the slow-request log |
//! | `api` | who answers a request; one file for each API that Rust answers |
//! | `shared` | what every connection reaches |
//! | `partitions` | logs, leaders, replicas, long polls, fetch sessions |
//! | `control` | requests and failures on their way to Python |
//! | `net` | sockets, frames, responses, TLS |
//! | `quotas`, `memory`, `metrics` | how much clients may use; how much memory there may be; what is counted |
//! | `apis`, `log_lines`, `descriptors` | the table of APIs; log lines for Python; limits on open files and mappings |
//!
//! A module uses those below it only (`tools/rust_circles.py` checks that).
//!
//! Crash: what was acknowledged is in the operating system's hands, or on disk if `flush.messages` says so; recovery is the
//! storage crate's. Nothing of this crate is on disk. A fork of the process has none of the threads: there a server refuses.
#![cfg_attr(test, allow(clippy::unwrap_used))] // a test may panic

mod admin;
mod api;
mod apis;
mod codes;
mod config;
mod connections;
mod control;
mod descriptors;
mod error;
mod housekeeping;
mod log_lines;
mod measurements;
mod memory;
mod metrics;
mod net;
mod partitions;
mod quotas;
mod server;
mod shared;

pub use admin::{LogDirDescription, LogDirMove, RecordsDeleted, ReplicaDescription, Space};
pub use apis::{AnsweredBy, Api, Response, WaitsFor, apis};
pub use codes::ErrorCode;
pub use config::{Properties, ServerOptions};
pub use connections::listener::ListenerSpec;
pub use control::failures::Failed;
pub use control::requests::{ConnectionInfo, ControlRequest};
pub use error::{Result, ServerError};
pub use log_lines::{Fields, Level, LogLine};
pub use measurements::{Measurements, PartitionMeasurements};
pub use metrics::{ApiMeasurements, HistogramValues};
pub use net::tls::{ClientAuth, ListenerTls, PrincipalOf, TlsOptions, cipher_suites};
pub use partitions::registry::TopicId;
pub use partitions::replicas::Replica;
pub use quotas::ClientQuota;
pub use server::{Offsets, PartitionSpec, Server};
