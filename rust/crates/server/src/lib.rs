//! A broker's data plane: sockets, frames, the APIs that Rust answers, the queue to Python for all others,
//! and the upkeep of logs.
//!
//! Owns: the threads that serve connections, the registry of partitions and their leaders, long polls, fetch
//! sessions, and the log directories while they are open. Does not own decisions: topics, leaders and epochs
//! come from Python through [`Server`]. Python takes the requests that Rust does not answer with
//! [`Server::take_requests`].
//!
//! | module | what |
//! |---|---|
//! | `server`, `admin`, `config` | the interface to the owner; operations for operators; settings |
//! | `measurements`, `housekeeping` | all numbers for a scrape; the background threads |
//! | `connections` | listeners; one task for each connection; the slow-request log |
//! | `api` | the dispatch of requests; one file for each API that Rust answers |
//! | `replication` | fetchers: copying the partitions that other brokers lead |
//! | `shared` | the parts that all connections share |
//! | `partitions` | logs, leaders, replicas, long polls, fetch sessions |
//! | `control` | requests and failures on their way to Python |
//! | `net` | sockets, frames, responses, TLS |
//! | `quotas`, `memory`, `metrics` | quotas and limits on connections; budgets of memory; counters |
//! | `apis`, `log_lines`, `descriptors` | the table of APIs; log lines for Python; reserves of open files |
//!
//! A module uses only those below it (`tools/rust_circles.py` checks that).
//!
//! Crash: acknowledged records are in the page cache, or on disk with `flush.messages`. The storage crate
//! recovers the logs. Everything else in this crate is in memory only. A fork of the process has none of the
//! threads, so its calls are refused.
#![cfg_attr(test, allow(clippy::unwrap_used))] // a test may panic

mod admin;
mod api;
mod apis;
mod config;
mod connections;
mod control;
mod descriptors;
mod error;
mod features;
mod housekeeping;
mod log_lines;
mod measurements;
mod memory;
mod metrics;
mod net;
mod partitions;
mod quotas;
mod replication;
mod server;
mod shared;

pub use admin::{LogDirDescription, LogDirMove, RecordsDeleted, ReplicaDescription, Space};
pub use apis::{AnsweredBy, Api, Response, WaitsFor, apis};
pub use config::{Properties, ServerOptions};
pub use connections::listener::ListenerSpec;
pub use control::facts::{ReplicaFact, ReplicaFactKind};
pub use control::failures::Failed;
pub use control::requests::{ConnectionInfo, ControlRequest};
pub use control::verifications::VerificationQuestion;
pub use error::{Result, ServerError};
pub use features::Features;
pub use log_lines::{Fields, Level, LogLine};
pub use logcore_protocol::ErrorCode;
pub use measurements::{Measurements, PartitionMeasurements};
pub use metrics::{ApiMeasurements, HistogramValues};
pub use net::tls::{ClientAuth, ListenerTls, PrincipalOf, TlsOptions, cipher_suites};
pub use partitions::registry::TopicId;
pub use partitions::replicas::Replica;
pub use quotas::ClientQuota;
pub use replication::BrokerAddress;
pub use server::{Offsets, PartitionSpec, Server};
