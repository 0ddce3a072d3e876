//! The client's error type, and the numbers that its errors have in Python.
//!
//! Positive codes are the broker's (Apache Kafka's `Errors`). Negative ones are the client's own, with
//! librdkafka's numbers, because scripts for confluent-kafka compare with them.

use logcore_protocol::ErrorCode;
use thiserror::Error;

/// librdkafka's `RD_KAFKA_RESP_ERR__*` numbers of this client's own errors.
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
    /// The consumer reached the end of a partition: an event, no failure.
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
    /// The broker does not serve an API that the client needs.
    pub const UNSUPPORTED_FEATURE: i32 = -165;
    /// A message was dropped by `purge` before it was sent.
    pub const PURGE_QUEUE: i32 = -152;
    /// No offset to read at: `auto.offset.reset` decides.
    pub const AUTO_OFFSET_RESET: i32 = -140;
}

/// Every failure of this crate. Cheap to clone: all records of a batch report the same one.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ClientError {
    /// A connection could not be made, broke, or carried bytes that are no response.
    #[error("{broker}: {what}")]
    Transport { broker: String, what: String },
    /// No known address can be reached.
    #[error(
        "none of the brokers {tried} can be reached ({last}); check bootstrap.servers and that the broker \
         is up"
    )]
    AllBrokersDown { tried: String, last: String },
    /// A host name without an address.
    #[error("{host}: the host name cannot be resolved: {what}")]
    Resolve { host: String, what: String },
    /// No answer within the time allowed.
    #[error("{what}: no answer within {timeout_ms} ms")]
    TimedOut { what: String, timeout_ms: u64 },
    /// A request that fails again and again, reported once; see [`crate::reporter`].
    #[error("{last}: {request} keeps failing and is tried again; check the broker, and any proxy before it")]
    Lasting {
        request: &'static str,
        last: Box<ClientError>,
    },
    /// A response above `receive.message.max.bytes`.
    #[error(
        "{broker}: the response to {request} has {size} bytes, more than receive.message.max.bytes \
         ({limit}); raise it"
    )]
    ResponseTooLarge {
        broker: String,
        request: &'static str,
        size: usize,
        limit: usize,
    },
    /// A batch that does not fit into a response of `receive.message.max.bytes`.
    #[error(
        "{topic}-{partition}: the batch at offset {offset} makes a response of {size} bytes, more than \
         receive.message.max.bytes ({limit}); raise it, or seek past the batch"
    )]
    BatchTooLarge {
        topic: String,
        partition: i32,
        offset: i64,
        size: usize,
        limit: usize,
    },
    /// `queue.buffering.max.messages` or `queue.buffering.max.kbytes` is reached.
    #[error(
        "the producer's queue is full ({messages} messages, {bytes} bytes); call poll() or flush() and try \
         again"
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
    #[error("{what}: the broker answered {}", described(*code))]
    Broker { code: i16, what: String },
    /// `delivery.timeout.ms` passed before the record was acknowledged.
    #[error("not acknowledged within delivery.timeout.ms ({timeout_ms} ms); last failure: {last}")]
    DeliveryTimedOut { timeout_ms: u64, last: String },
    /// A response that does not decode or does not answer all of the request, which is sent again.
    #[error("{broker}: {what}")]
    BadResponse { broker: String, what: String },
    /// Bytes from the broker that do not decode.
    #[error("{what}")]
    BadData { what: String },
    /// The broker does not serve the API in a version that the client knows.
    #[error(
        "{broker} does not serve API {api_key} in a version this client knows ({wanted}); it serves {served}"
    )]
    Unsupported {
        broker: String,
        api_key: i16,
        wanted: String,
        served: String,
    },
    /// The log does not have the next offset, so the partition begins where `auto.offset.reset` says.
    #[error(
        "{topic}-{partition}: offset {offset} is out of range; reading goes on at the log's {goes_on_at}"
    )]
    OffsetReset {
        topic: String,
        partition: i32,
        offset: i64,
        goes_on_at: &'static str,
    },
    /// No committed offset to start from and `auto.offset.reset=error`.
    #[error("{topic}-{partition}: {what}, and auto.offset.reset is \"error\"")]
    NoOffset {
        topic: String,
        partition: i32,
        what: String,
    },
    /// A record for a transactional producer that is in no transaction, or in one that can only be aborted.
    #[error("a transactional producer takes records only in a transaction: {0}")]
    NoTransaction(&'static str),
    /// Dropped by `purge`.
    #[error("purged before it was sent")]
    Purged,
    /// The client was closed.
    #[error("the client is closed")]
    Closed,
    /// The process was forked after the client was made, and has no background thread.
    #[error("this client was made before a fork; make a new one in the child process")]
    Forked,
    /// A setting that cannot be used.
    #[error("{0}")]
    Config(String),
}

/// A broker's code with its name and meaning.
fn described(code: i16) -> String {
    match ErrorCode(code).known() {
        Some(error) => format!(
            "{} (error {code}): {}",
            error.name,
            error.message.trim_end_matches('.')
        ),
        None => format!("error {code}"),
    }
}

impl ClientError {
    /// The broker's code, or librdkafka's number of a local failure.
    #[must_use]
    pub fn code(&self) -> i32 {
        match self {
            Self::Transport { .. } => local::TRANSPORT,
            Self::AllBrokersDown { .. } => local::ALL_BROKERS_DOWN,
            Self::Resolve { .. } => local::RESOLVE,
            Self::TimedOut { .. } => local::TIMED_OUT,
            Self::QueueFull { .. } => local::QUEUE_FULL,
            Self::Lasting { last, .. } => last.code(),
            Self::ResponseTooLarge { .. } => local::BAD_MSG,
            Self::MessageTooLarge { .. } | Self::BatchTooLarge { .. } => {
                i32::from(ErrorCode::MESSAGE_TOO_LARGE.0)
            }
            Self::UnknownTopic(_) => local::UNKNOWN_TOPIC,
            Self::UnknownPartition { .. } => local::UNKNOWN_PARTITION,
            Self::Broker { code, .. } => i32::from(*code),
            Self::DeliveryTimedOut { .. } => local::MSG_TIMED_OUT,
            Self::BadResponse { .. } | Self::BadData { .. } => local::BAD_MSG,
            Self::Unsupported { .. } => local::UNSUPPORTED_FEATURE,
            Self::NoOffset { .. } | Self::OffsetReset { .. } => local::AUTO_OFFSET_RESET,
            Self::Purged => local::PURGE_QUEUE,
            Self::Closed => local::DESTROY,
            Self::Forked | Self::NoTransaction(_) => local::STATE,
            Self::Config(_) => local::INVALID_ARG,
        }
    }

    /// Whether the broker answered with this code.
    pub(crate) fn is_answer(&self, code: ErrorCode) -> bool {
        matches!(self, Self::Broker { code: answered, .. } if *answered == code.0)
    }

    /// Whether a broker answered, as opposed to a connection that broke.
    pub(crate) fn is_from_broker(&self) -> bool {
        matches!(self, Self::Broker { .. } | Self::BadResponse { .. })
    }

    /// Whether the same operation may succeed later.
    #[must_use]
    pub fn is_retriable(&self) -> bool {
        match self {
            Self::Transport { .. }
            | Self::AllBrokersDown { .. }
            | Self::Resolve { .. }
            | Self::TimedOut { .. }
            | Self::Lasting { .. }
            | Self::BadResponse { .. }
            | Self::OffsetReset { .. }
            | Self::QueueFull { .. } => true,
            Self::Broker { code, .. } => ErrorCode(*code).is_retriable(),
            Self::ResponseTooLarge { .. }
            | Self::BatchTooLarge { .. }
            | Self::MessageTooLarge { .. }
            | Self::UnknownTopic(_)
            | Self::UnknownPartition { .. }
            | Self::DeliveryTimedOut { .. }
            | Self::BadData { .. }
            | Self::Unsupported { .. }
            | Self::NoOffset { .. }
            | Self::NoTransaction(_)
            | Self::Purged
            | Self::Closed
            | Self::Forked
            | Self::Config(_) => false,
        }
    }
}

/// What the functions of this crate return.
pub type Result<T> = std::result::Result<T, ClientError>;

/// A duration in milliseconds, for an error's text.
pub(crate) fn milliseconds(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
