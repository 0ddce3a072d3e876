//! Kafka's error codes, as far as this crate answers them.
//!
//! Source: `org.apache.kafka.common.protocol.Errors`. Only numbers live here; what an error means to a client is the client's.

/// An error code of Kafka's protocol. [`ErrorCode::NONE`] is success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ErrorCode(pub i16);

macro_rules! codes {
    ($($name:ident = $code:literal),+ $(,)?) => {
        impl ErrorCode {
            $(#[allow(missing_docs)] pub const $name: Self = Self($code);)+

            /// The name Kafka gives this code, for log lines.
            pub const fn name(self) -> &'static str {
                match self.0 {
                    $($code => stringify!($name),)+
                    _ => "UNKNOWN",
                }
            }
        }
    };
}

codes! {
    UNKNOWN_SERVER_ERROR = -1,
    NONE = 0,
    OFFSET_OUT_OF_RANGE = 1,
    CORRUPT_MESSAGE = 2,
    UNKNOWN_TOPIC_OR_PARTITION = 3,
    LEADER_NOT_AVAILABLE = 5,
    NOT_LEADER_OR_FOLLOWER = 6,
    REQUEST_TIMED_OUT = 7,
    REPLICA_NOT_AVAILABLE = 9,
    MESSAGE_TOO_LARGE = 10,
    INVALID_TOPIC_EXCEPTION = 17,
    RECORD_LIST_TOO_LARGE = 18,
    NOT_ENOUGH_REPLICAS = 19,
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20,
    INVALID_REQUIRED_ACKS = 21,
    INVALID_TIMESTAMP = 32,
    UNSUPPORTED_VERSION = 35,
    INVALID_REQUEST = 42,
    POLICY_VIOLATION = 44,
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45,
    INVALID_PRODUCER_EPOCH = 47,
    INVALID_TXN_STATE = 48,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53,
    KAFKA_STORAGE_ERROR = 56,
    LOG_DIR_NOT_FOUND = 57,
    UNKNOWN_PRODUCER_ID = 59,
    FETCH_SESSION_ID_NOT_FOUND = 70,
    INVALID_FETCH_SESSION_EPOCH = 71,
    FENCED_LEADER_EPOCH = 74,
    UNKNOWN_LEADER_EPOCH = 75,
    UNSUPPORTED_COMPRESSION_TYPE = 76,
    OFFSET_NOT_AVAILABLE = 78,
    INVALID_RECORD = 87,
    UNKNOWN_TOPIC_ID = 100,
    INCONSISTENT_TOPIC_ID = 103,
    FETCH_SESSION_TOPIC_ID_ERROR = 106,
}

impl ErrorCode {
    /// Whether this is success.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// The code for a client that knows, or does not, that a disk can fail: one that does not looks for the leader anew.
    pub(crate) fn told(self, knows_disks: bool) -> Self {
        match self {
            Self::KAFKA_STORAGE_ERROR if !knows_disks => Self::NOT_LEADER_OR_FOLLOWER,
            code => code,
        }
    }
}
