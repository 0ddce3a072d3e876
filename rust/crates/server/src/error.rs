//! The errors of the server's own operations: opening, starting, changing.
//!
//! Errors of requests are not here: they are Kafka's error codes ([`crate::ErrorCode`]) in responses, or
//! close a connection.

use std::io;

use logcore_storage::StorageError;

use crate::descriptors::advice;
use logcore_protocol::ErrorCode;

/// Every way an operation of this crate can fail.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// A setting has an invalid value.
    #[error("{name}={value} is not allowed: {reason}")]
    InvalidConfig {
        name: String,
        value: String,
        reason: &'static str,
    },

    /// No usable log directory was named.
    #[error("log.dirs names no directory; name at least one")]
    NoLogDirs,

    /// A log directory or a log failed or refused an operation.
    #[error(transparent)]
    Storage(#[from] StorageError),

    /// Logs were not closed cleanly. The text names them and has the first reason.
    #[error("{0}")]
    NotClosed(String),

    /// The reserve of file descriptors or of mappings is reached.
    #[error(
        "the limits of {files} open files (ulimit -n) and {mappings} mappings (vm.max_map_count) allow no \
         further partition; raise the lower one or delete topics"
    )]
    TooManyPartitions { files: u64, mappings: u64 },

    /// A listener's address cannot be bound.
    #[error("listener {name} cannot listen on {address}: {source}{}", advice(source))]
    Bind {
        name: String,
        address: String,
        source: io::Error,
    },

    /// A listener's TLS settings cannot be used.
    #[error("{0}")]
    Tls(String),

    /// The operating system refused a resource that the server needs.
    #[error("cannot {action}: {source}{}", advice(source))]
    Os { action: &'static str, source: io::Error },

    /// An operation came twice, too early or too late.
    #[error("the server {0}")]
    WrongState(&'static str),

    /// The process is a fork. The threads and the logs stay with the parent.
    #[error(
        "the server belongs to process {owner}, and this process is a fork of it: open another server with \
         its own directories"
    )]
    Forked { owner: u32 },

    /// The partition is not registered.
    #[error("there is no partition {partition} of topic {topic} on this server")]
    UnknownPartition { topic: String, partition: i32 },

    /// The topic is not registered.
    #[error("there is no topic {0} on this server")]
    UnknownTopic(String),

    /// The name belongs to a topic with another id.
    #[error("topic {topic} has the id {found} here, not {expected}: delete the stale topic first")]
    TopicId {
        topic: String,
        found: String,
        expected: String,
    },

    /// Another broker leads the partition.
    #[error("this server does not lead {topic}-{partition}")]
    NotLeader { topic: String, partition: i32 },

    /// There are too few in-sync replicas for acks=all.
    #[error(
        "{topic}-{partition} has fewer in-sync replicas than min.insync.replicas: start the brokers that \
         have it, or lower the setting"
    )]
    NotEnoughReplicas { topic: String, partition: i32 },

    /// A response does not fit its schema.
    #[error(transparent)]
    Protocol(#[from] logcore_protocol::ProtocolError),
}

impl ServerError {
    /// Kafka's error code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Storage(error) => ErrorCode(error.kafka_code()),
            Self::NotClosed(_) => ErrorCode::KAFKA_STORAGE_ERROR,
            Self::TooManyPartitions { .. } => ErrorCode::POLICY_VIOLATION,
            Self::InvalidConfig { .. } | Self::Tls(_) => ErrorCode::INVALID_CONFIG,
            Self::UnknownPartition { .. } | Self::UnknownTopic(_) => ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
            Self::TopicId { .. } => ErrorCode::INCONSISTENT_TOPIC_ID,
            Self::NotLeader { .. } => ErrorCode::NOT_LEADER_OR_FOLLOWER,
            Self::NotEnoughReplicas { .. } => ErrorCode::NOT_ENOUGH_REPLICAS,
            Self::NoLogDirs
            | Self::Bind { .. }
            | Self::Os { .. }
            | Self::WrongState(_)
            | Self::Forked { .. }
            | Self::Protocol(_) => ErrorCode::UNKNOWN_SERVER_ERROR,
        }
    }
}

/// Results of this crate.
pub type Result<T, E = ServerError> = std::result::Result<T, E>;
