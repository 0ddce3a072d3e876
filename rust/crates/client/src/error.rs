//! The client's one error type and the numbers its errors carry towards Python.
//!
//! Positive codes are the broker's (Apache Kafka's `Errors`); negative ones are made here and use librdkafka's numbers,
//! because scripts written against confluent-kafka compare with them.

use thiserror::Error;

/// librdkafka's `RD_KAFKA_RESP_ERR__*` numbers, as far as this client makes them itself.
pub mod local {
    /// A message or response that does not decode.
    pub const BAD_MSG: i32 = -199;
    /// The client was closed.
    pub const DESTROY: i32 = -197;
    /// Broken or refused connection.
    pub const TRANSPORT: i32 = -195;
    /// A host name that does not resolve.
    pub const RESOLVE: i32 = -193;
    /// A record was not acknowledged within `delivery.timeout.ms`.
    pub const MSG_TIMED_OUT: i32 = -192;
    /// The consumer reached the end of a partition (an event, no failure).
    pub const PARTITION_EOF: i32 = -191;
    /// The topic has no such partition.
    pub const UNKNOWN_PARTITION: i32 = -190;
    /// The topic does not exist.
    pub const UNKNOWN_TOPIC: i32 = -188;
    /// No bootstrap or known broker answers.
    pub const ALL_BROKERS_DOWN: i32 = -187;
    /// A setting or argument is wrong.
    pub const INVALID_ARG: i32 = -186;
    /// An operation took longer than it may.
    pub const TIMED_OUT: i32 = -185;
    /// The producer's queue is full.
    pub const QUEUE_FULL: i32 = -184;
    /// The operation does not fit the client's state.
    pub const STATE: i32 = -172;
    /// The broker lacks an API this client needs.
    pub const UNSUPPORTED_FEATURE: i32 = -165;
    /// A message was dropped by `purge` before it was sent.
    pub const PURGE_QUEUE: i32 = -152;
    /// No committed offset, and `auto.offset.reset` is `error`.
    pub const AUTO_OFFSET_RESET: i32 = -140;
}

/// The broker's error codes this client acts on (Apache Kafka's `Errors`).
pub mod broker {
    pub const OFFSET_OUT_OF_RANGE: i16 = 1;
    pub const CORRUPT_MESSAGE: i16 = 2;
    pub const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
    pub const LEADER_NOT_AVAILABLE: i16 = 5;
    pub const NOT_LEADER_OR_FOLLOWER: i16 = 6;
    pub const REQUEST_TIMED_OUT: i16 = 7;
    pub const BROKER_NOT_AVAILABLE: i16 = 8;
    pub const REPLICA_NOT_AVAILABLE: i16 = 9;
    pub const MESSAGE_TOO_LARGE: i16 = 10;
    pub const NETWORK_EXCEPTION: i16 = 13;
    pub const COORDINATOR_LOAD_IN_PROGRESS: i16 = 14;
    pub const COORDINATOR_NOT_AVAILABLE: i16 = 15;
    pub const NOT_COORDINATOR: i16 = 16;
    pub const NOT_ENOUGH_REPLICAS: i16 = 19;
    pub const NOT_ENOUGH_REPLICAS_AFTER_APPEND: i16 = 20;
    pub const UNSUPPORTED_VERSION: i16 = 35;
    pub const OUT_OF_ORDER_SEQUENCE_NUMBER: i16 = 45;
    pub const DUPLICATE_SEQUENCE_NUMBER: i16 = 46;
    pub const INVALID_PRODUCER_EPOCH: i16 = 47;
    pub const CONCURRENT_TRANSACTIONS: i16 = 51;
    pub const KAFKA_STORAGE_ERROR: i16 = 56;
    pub const UNKNOWN_PRODUCER_ID: i16 = 59;
    pub const FENCED_LEADER_EPOCH: i16 = 74;
    pub const UNKNOWN_LEADER_EPOCH: i16 = 75;
    pub const OFFSET_NOT_AVAILABLE: i16 = 78;
    pub const THROTTLING_QUOTA_EXCEEDED: i16 = 89;

    /// Whether the same request may succeed later (Kafka's `RetriableException`s, as far as they reach a client).
    #[must_use]
    pub fn is_retriable(code: i16) -> bool {
        matches!(
            code,
            CORRUPT_MESSAGE
                | UNKNOWN_TOPIC_OR_PARTITION
                | LEADER_NOT_AVAILABLE
                | NOT_LEADER_OR_FOLLOWER
                | REQUEST_TIMED_OUT
                | BROKER_NOT_AVAILABLE
                | REPLICA_NOT_AVAILABLE
                | NETWORK_EXCEPTION
                | COORDINATOR_LOAD_IN_PROGRESS
                | COORDINATOR_NOT_AVAILABLE
                | NOT_COORDINATOR
                | NOT_ENOUGH_REPLICAS
                | NOT_ENOUGH_REPLICAS_AFTER_APPEND
                | CONCURRENT_TRANSACTIONS
                | KAFKA_STORAGE_ERROR
                | FENCED_LEADER_EPOCH
                | UNKNOWN_LEADER_EPOCH
                | OFFSET_NOT_AVAILABLE
                | THROTTLING_QUOTA_EXCEEDED
        )
    }

    /// Whether the error says that the cached leader or topic is out of date.
    #[must_use]
    pub fn needs_metadata(code: i16) -> bool {
        matches!(
            code,
            UNKNOWN_TOPIC_OR_PARTITION
                | LEADER_NOT_AVAILABLE
                | NOT_LEADER_OR_FOLLOWER
                | REPLICA_NOT_AVAILABLE
                | NETWORK_EXCEPTION
                | KAFKA_STORAGE_ERROR
                | FENCED_LEADER_EPOCH
                | UNKNOWN_LEADER_EPOCH
        )
    }
}

/// Everything that can go wrong in this crate. Cheap to clone: one failure is told to every record it struck.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ClientError {
    /// A connection could not be made, broke, or carried bytes that are no response.
    #[error("{broker}: {what}")]
    Transport { broker: String, what: String },
    /// Every address known was tried in vain.
    #[error(
        "none of the brokers {tried} can be reached ({last}); check bootstrap.servers and that the broker is up"
    )]
    AllBrokersDown { tried: String, last: String },
    /// A name that no address was found for.
    #[error("{host}: the host name cannot be resolved: {what}")]
    Resolve { host: String, what: String },
    /// No answer within the time allowed.
    #[error("{what}: no answer within {timeout_ms} ms")]
    TimedOut { what: String, timeout_ms: u64 },
    /// `queue.buffering.max.messages` or `queue.buffering.max.kbytes` is reached.
    #[error(
        "the producer's queue is full ({messages} messages, {bytes} bytes); call poll() or flush() and try again"
    )]
    QueueFull { messages: usize, bytes: usize },
    /// A record above `message.max.bytes`.
    #[error("a record of {size} bytes is larger than message.max.bytes ({limit})")]
    MessageTooLarge { size: usize, limit: usize },
    /// The cluster says that there is no such topic.
    #[error("topic {0:?} does not exist on the cluster")]
    UnknownTopic(String),
    /// The topic has fewer partitions.
    #[error("topic {topic:?} has no partition {partition}")]
    UnknownPartition { topic: String, partition: i32 },
    /// The broker answered with an error code.
    #[error("{what}: the broker answered with error {code}")]
    Broker { code: i16, what: String },
    /// `delivery.timeout.ms` passed before the record was acknowledged.
    #[error("not acknowledged within delivery.timeout.ms ({timeout_ms} ms); last failure: {last}")]
    DeliveryTimedOut { timeout_ms: u64, last: String },
    /// Bytes from the broker that do not decode.
    #[error("{what}")]
    BadData { what: String },
    /// The broker does not serve the API, or none of the versions this client speaks.
    #[error(
        "{broker} does not serve API {api_key} in a version this client speaks ({wanted}); it serves {served}"
    )]
    Unsupported {
        broker: String,
        api_key: i16,
        wanted: String,
        served: String,
    },
    /// No committed offset to start from and `auto.offset.reset=error`.
    #[error("{topic}-{partition}: {what}, and auto.offset.reset is \"error\"")]
    NoOffset {
        topic: String,
        partition: i32,
        what: String,
    },
    /// Dropped by `purge`.
    #[error("purged before it was sent")]
    Purged,
    /// The client was closed.
    #[error("the client is closed")]
    Closed,
    /// The process forked after the client was made; its background thread did not come along.
    #[error("this client was made before a fork; make a new one in the child process")]
    Forked,
    /// A setting that cannot be used.
    #[error("{0}")]
    Config(String),
}

impl ClientError {
    /// The number scripts compare with: the broker's code, or librdkafka's local one.
    #[must_use]
    pub fn code(&self) -> i32 {
        match self {
            Self::Transport { .. } => local::TRANSPORT,
            Self::AllBrokersDown { .. } => local::ALL_BROKERS_DOWN,
            Self::Resolve { .. } => local::RESOLVE,
            Self::TimedOut { .. } => local::TIMED_OUT,
            Self::QueueFull { .. } => local::QUEUE_FULL,
            Self::MessageTooLarge { .. } => i32::from(broker::MESSAGE_TOO_LARGE),
            Self::UnknownTopic(_) => local::UNKNOWN_TOPIC,
            Self::UnknownPartition { .. } => local::UNKNOWN_PARTITION,
            Self::Broker { code, .. } => i32::from(*code),
            Self::DeliveryTimedOut { .. } => local::MSG_TIMED_OUT,
            Self::BadData { .. } => local::BAD_MSG,
            Self::Unsupported { .. } => local::UNSUPPORTED_FEATURE,
            Self::NoOffset { .. } => local::AUTO_OFFSET_RESET,
            Self::Purged => local::PURGE_QUEUE,
            Self::Closed => local::DESTROY,
            Self::Forked => local::STATE,
            Self::Config(_) => local::INVALID_ARG,
        }
    }

    /// Whether the same operation may succeed later without anybody changing anything.
    #[must_use]
    pub fn is_retriable(&self) -> bool {
        match self {
            Self::Transport { .. }
            | Self::AllBrokersDown { .. }
            | Self::Resolve { .. }
            | Self::TimedOut { .. }
            | Self::QueueFull { .. } => true,
            Self::Broker { code, .. } => broker::is_retriable(*code),
            Self::MessageTooLarge { .. }
            | Self::UnknownTopic(_)
            | Self::UnknownPartition { .. }
            | Self::DeliveryTimedOut { .. }
            | Self::BadData { .. }
            | Self::Unsupported { .. }
            | Self::NoOffset { .. }
            | Self::Purged
            | Self::Closed
            | Self::Forked
            | Self::Config(_) => false,
        }
    }
}

/// What the functions of this crate return.
pub type Result<T> = std::result::Result<T, ClientError>;
