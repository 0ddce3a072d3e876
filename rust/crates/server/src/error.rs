//! What can go wrong when a server is opened, started or told to do something.
//!
//! Errors of single requests are not here: they are Kafka error codes on the wire ([`crate::ErrorCode`]) or close a connection.

use std::io;

use logcore_storage::StorageError;

use crate::codes::ErrorCode;
use crate::descriptors::advice;

/// Every way an operation of this crate can fail.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// A setting with a value that cannot be.
    #[error("{name}={value} is not allowed: {reason}")]
    InvalidConfig {
        name: String,
        value: String,
        reason: &'static str,
    },

    /// No usable log directory was named.
    #[error("log.dirs names no directory; name at least one")]
    NoLogDirs,

    /// A log directory or a log in it cannot be used, or refused what was asked of it.
    #[error(transparent)]
    Storage(#[from] StorageError),

    /// Logs that could not be closed cleanly, or could not be opened before: which, and why the first.
    #[error("{0}")]
    NotClosed(String),

    /// New logs would take the file descriptors, or the mappings, that connections and open logs need.
    #[error(
        "the limits of {files} open files (ulimit -n) and {mappings} mappings (vm.max_map_count) leave no room for another partition; raise the lower or delete topics"
    )]
    NoRoom { files: u64, mappings: u64 },

    /// A listener's address cannot be bound.
    #[error("listener {name} cannot listen on {address}: {source}{}", advice(source))]
    Bind {
        name: String,
        address: String,
        source: io::Error,
    },

    /// What a listener is to serve TLS with cannot be used.
    #[error("{0}")]
    Tls(String),

    /// The operating system refused something the server cannot do without.
    #[error("cannot {action}: {source}{}", advice(source))]
    Os { action: &'static str, source: io::Error },

    /// Something done twice, too early or too late.
    #[error("the server {0}")]
    WrongState(&'static str),

    /// The process was forked: the threads stayed with the parent, and so must the logs.
    #[error(
        "the server belongs to process {owner}, of which this one is a fork: open another server, on directories of its own"
    )]
    Forked { owner: u32 },

    /// A topic or partition that is not registered.
    #[error("there is no partition {partition} of topic {topic} on this server")]
    UnknownPartition { topic: String, partition: i32 },

    /// A topic that is not registered.
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

    /// Too few replicas are in sync for acks=all.
    #[error(
        "{topic}-{partition} has fewer replicas in sync than min.insync.replicas: start the brokers that hold it, or set that lower"
    )]
    NotEnoughReplicas { topic: String, partition: i32 },

    /// A response that does not fit its schema.
    #[error(transparent)]
    Protocol(#[from] logcore_protocol::ProtocolError),
}

impl ServerError {
    /// The error code Kafka has for this.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Storage(error) => ErrorCode(error.kafka_code()),
            Self::NotClosed(_) => ErrorCode::KAFKA_STORAGE_ERROR,
            Self::NoRoom { .. } => ErrorCode::POLICY_VIOLATION,
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
