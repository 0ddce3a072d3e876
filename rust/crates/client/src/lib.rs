//! What a Kafka client does for each record: connections, metadata, the producer's accumulator, the
//! consumer's fetcher.
//!
//! Owns the connections of each client, and one background thread on which everything asynchronous runs.
//! Python owns property names, group membership and administration, which send raw requests through
//! [`cluster::Cluster`]. The crates `records` and `protocol` own the layouts of batches and messages. This
//! crate knows nothing of Python.
//!
//! Any thread may call the public methods; they block at most as long as their argument says. A crash of the
//! process loses records that were not acknowledged. Nothing is on disk.
//!
//! | module | concept |
//! |---|---|
//! | [`runtime`] | the background thread; a forked child is noticed |
//! | [`connection`] | one TCP connection: pipelining, versions |
//! | [`metadata`] | brokers, topics, leaders |
//! | [`connections`] | one connection per broker and purpose |
//! | [`cluster`] | which broker a request goes to; metadata is refreshed |
//! | [`reporter`] | failures that are tried again, and when they are reported |
//! | [`producer`] | records are accumulated, sent, retried in order, reported |
//! | [`consumer`] | records are fetched ahead, decoded, handed out |
//! | [`offsets`] | offsets by time |
//! | [`partitioner`] | which partition a record goes to |
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
pub mod partitioner;
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
