//! The client's moving parts: connections, metadata, the producer's accumulator and the consumer's fetcher.
//!
//! Owns: bytes between an application and its cluster, and one background thread per client instance with all that is
//! asynchronous. Does not own: property names, group membership, administration (Python, over [`cluster::Cluster`]'s
//! raw requests), nor record batches and the protocol's layout (crates `records` and `protocol`). Knows nothing of
//! Python. Public methods may be called from any thread and block at most as long as their argument says. A crash of
//! the process loses records that were not acknowledged, and nothing on any disk.
//!
//! | module | concept |
//! |---|---|
//! | [`runtime`] | the background thread, and noticing a fork |
//! | [`connection`] | one TCP connection: pipelining, versions |
//! | [`metadata`] | brokers, topics, leaders |
//! | [`connections`] | one connection per broker and purpose |
//! | [`cluster`] | which broker a request goes to, refreshing metadata |
//! | [`reporter`] | failures that are tried again, and when the application hears of them |
//! | [`producer`] | accumulate, send, retry in order, report |
//! | [`consumer`] | fetch ahead, decode, hand out |
//! | [`offsets`] | offsets by time |
//! | [`config`], [`error`], [`api`] | settings, errors, API versions |

pub mod api;
pub mod cluster;
pub mod config;
pub mod connection;
pub mod connections;
pub mod consumer;
pub mod error;
pub mod metadata;
pub mod offsets;
pub mod producer;
pub mod reporter;
pub mod runtime;

pub use cluster::{Cluster, Target};
pub use config::{ClientConfig, ConsumerConfig, OffsetReset, ProducerConfig};
pub use connections::Purpose;
pub use consumer::Consumer;
pub use error::{ClientError, Result};
pub use producer::Producer;
pub use reporter::Reporter;
pub use runtime::Background;
