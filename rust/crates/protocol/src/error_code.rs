//! The list of Kafka's error codes: number, name, what a client may do, and a sentence for people.
//!
//! Rust and Python take every code from here; Python's exception classes (`cluster.errors`) carry only the
//! names. Source: `org.apache.kafka.common.protocol.Errors` of Kafka 4.2.0, which contains all of 3.9.1. The
//! sentences are our own. `tests/protocol/test_error_codes.py` compares the list with Apache's classes.

use Retry::{Later, Never, Refresh};

/// An error code of Kafka's protocol. [`ErrorCode::NONE`] is success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ErrorCode(pub i16);

/// What a client may do after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// The same request fails again.
    Never,
    /// The same request may succeed later: `RetriableException`.
    Later,
    /// The request may succeed once the client has fetched new metadata: `InvalidMetadataException`.
    Refresh,
}

/// One line of the list.
#[derive(Debug)]
pub struct KafkaError {
    pub code: ErrorCode,
    pub name: &'static str,
    pub retry: Retry,
    pub message: &'static str,
}

impl ErrorCode {
    /// The line of this code. `None` for a number that Kafka 4.2.0 does not have.
    pub fn known(self) -> Option<&'static KafkaError> {
        let index = usize::try_from(self.0.checked_sub(KAFKA_ERRORS[0].code.0)?).ok()?;
        KAFKA_ERRORS.get(index)
    }

    /// Kafka's name, for log lines; "UNKNOWN" for a number that is not in the list.
    pub fn name(self) -> &'static str {
        self.known().map_or("UNKNOWN", |error| error.name)
    }

    pub const fn is_none(self) -> bool {
        self.0 == Self::NONE.0
    }

    /// The code for a request version. Versions without KAFKA_STORAGE_ERROR make the client look for the
    /// leader again.
    pub fn for_version(self, has_storage_error: bool) -> Self {
        match self {
            Self::KAFKA_STORAGE_ERROR if !has_storage_error => Self::NOT_LEADER_OR_FOLLOWER,
            code => code,
        }
    }

    /// Whether the same request may succeed later.
    pub fn is_retriable(self) -> bool {
        self.known().is_some_and(|error| error.retry != Never)
    }

    /// Whether the client's metadata is out of date.
    pub fn needs_metadata(self) -> bool {
        self.known().is_some_and(|error| error.retry == Refresh)
    }
}

macro_rules! kafka_errors {
    ($($name:ident = $code:literal, $retry:ident, $message:literal;)+) => {
        /// Every error in the order of the numbers, which have no gaps.
        pub static KAFKA_ERRORS: &[KafkaError] = &[
            $(KafkaError {
                code: ErrorCode($code),
                name: stringify!($name),
                retry: $retry,
                message: $message,
            }),+
        ];

        impl ErrorCode {
            $(#[doc = $message] pub const $name: Self = Self($code);)+
        }
    };
}

kafka_errors! {
    UNKNOWN_SERVER_ERROR = -1, Never, "The broker failed while it processed the request; its log says why.";
    NONE = 0, Never, "No error.";
    OFFSET_OUT_OF_RANGE = 1, Never, "The offset is not in the range of offsets that the partition holds.";
    CORRUPT_MESSAGE = 2, Later, "The batch is damaged: bad checksum or size, or no key on a compacted topic.";
    UNKNOWN_TOPIC_OR_PARTITION = 3, Refresh, "This broker has no such topic or partition.";
    INVALID_FETCH_SIZE = 4, Never, "The fetch size is not valid.";
    LEADER_NOT_AVAILABLE = 5, Refresh, "The partition has no leader at the moment.";
    NOT_LEADER_OR_FOLLOWER = 6, Refresh, "The broker does not lead the partition, or has no replica of it.";
    REQUEST_TIMED_OUT = 7, Later, "The request timed out.";
    BROKER_NOT_AVAILABLE = 8, Never, "The broker is not available.";
    REPLICA_NOT_AVAILABLE = 9, Refresh, "The broker does not have the replica.";
    MESSAGE_TOO_LARGE = 10, Never, "The message is larger than the broker accepts.";
    STALE_CONTROLLER_EPOCH = 11, Never, "The controller's epoch is older than the current controller's.";
    OFFSET_METADATA_TOO_LARGE = 12, Never, "The metadata string committed with the offset is too long.";
    NETWORK_EXCEPTION = 13, Refresh, "The connection broke before the response came.";
    COORDINATOR_LOAD_IN_PROGRESS = 14, Later, "The coordinator is still reading its state from the log.";
    COORDINATOR_NOT_AVAILABLE = 15, Later, "The coordinator is not available at the moment.";
    NOT_COORDINATOR = 16, Later, "Another broker is the coordinator of this group or transaction.";
    INVALID_TOPIC_EXCEPTION = 17, Never, "The topic's name is not valid, or the topic is internal.";
    RECORD_LIST_TOO_LARGE = 18, Never, "The batch is larger than a segment of the partition.";
    NOT_ENOUGH_REPLICAS = 19, Later, "Fewer replicas are in sync than min.insync.replicas.";
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, Later, "Written, but fewer replicas are in sync than required.";
    INVALID_REQUIRED_ACKS = 21, Never, "Acks must be 0, 1 or -1.";
    ILLEGAL_GENERATION = 22, Never, "The generation is not the group's current generation.";
    INCONSISTENT_GROUP_PROTOCOL = 23, Never, "The member has no protocol in common with the group.";
    INVALID_GROUP_ID = 24, Never, "The group id is not valid.";
    UNKNOWN_MEMBER_ID = 25, Never, "The group has no such member.";
    INVALID_SESSION_TIMEOUT = 26, Never, "The session timeout is outside the range that the broker allows.";
    REBALANCE_IN_PROGRESS = 27, Never, "The group is rebalancing: join again.";
    INVALID_COMMIT_OFFSET_SIZE = 28, Never, "The offsets to commit are too large for one batch.";
    TOPIC_AUTHORIZATION_FAILED = 29, Never, "Not authorized to access the topic.";
    GROUP_AUTHORIZATION_FAILED = 30, Never, "Not authorized to access the group.";
    CLUSTER_AUTHORIZATION_FAILED = 31, Never, "Not authorized to access the cluster.";
    INVALID_TIMESTAMP = 32, Never, "The record's timestamp is too far from the broker's clock.";
    UNSUPPORTED_SASL_MECHANISM = 33, Never, "The broker does not support this SASL mechanism.";
    ILLEGAL_SASL_STATE = 34, Never, "The request is not allowed at this stage of the SASL exchange.";
    UNSUPPORTED_VERSION = 35, Never, "The broker does not support this version of the request.";
    TOPIC_ALREADY_EXISTS = 36, Never, "A topic with this name already exists.";
    INVALID_PARTITIONS = 37, Never, "The number of partitions is not valid.";
    INVALID_REPLICATION_FACTOR = 38, Never, "The replication factor is below 1 or larger than the cluster.";
    INVALID_REPLICA_ASSIGNMENT = 39, Never, "The replica assignment is not valid.";
    INVALID_CONFIG = 40, Never, "A setting has a value that is not valid.";
    NOT_CONTROLLER = 41, Later, "This broker is not the controller.";
    INVALID_REQUEST = 42, Never, "The request contradicts itself.";
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, Never, "The partition's message format does not allow it.";
    POLICY_VIOLATION = 44, Never, "The request breaks the broker's policy.";
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, Never, "A batch is missing between this one and the producer's last.";
    DUPLICATE_SEQUENCE_NUMBER = 46, Never, "The batch was already written.";
    INVALID_PRODUCER_EPOCH = 47, Never, "A newer instance of this producer has replaced it.";
    INVALID_TXN_STATE = 48, Never, "The transaction's state does not allow the operation.";
    INVALID_PRODUCER_ID_MAPPING = 49, Never, "The producer id does not belong to this transactional id.";
    INVALID_TRANSACTION_TIMEOUT = 50, Never, "The transaction timeout is above the broker's limit.";
    CONCURRENT_TRANSACTIONS = 51, Later, "Another operation on this transaction is in progress.";
    TRANSACTION_COORDINATOR_FENCED = 52, Never, "A newer transaction coordinator exists.";
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, Never, "Not authorized to use the transactional id.";
    SECURITY_DISABLED = 54, Never, "Security is disabled on the broker.";
    OPERATION_NOT_ATTEMPTED = 55, Never, "Not attempted, because an earlier part of the request failed.";
    KAFKA_STORAGE_ERROR = 56, Refresh, "The disk of the log directory failed.";
    LOG_DIR_NOT_FOUND = 57, Never, "The broker has no such log directory.";
    SASL_AUTHENTICATION_FAILED = 58, Never, "Authentication failed.";
    UNKNOWN_PRODUCER_ID = 59, Never, "The partition no longer has the state of this producer.";
    REASSIGNMENT_IN_PROGRESS = 60, Never, "A reassignment of the partition is in progress.";
    DELEGATION_TOKEN_AUTH_DISABLED = 61, Never, "Delegation tokens are disabled on the broker.";
    DELEGATION_TOKEN_NOT_FOUND = 62, Never, "There is no such delegation token.";
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, Never, "The delegation token belongs to another principal.";
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, Never, "Token requests are not allowed on this connection.";
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, Never, "Not authorized to use the delegation token.";
    DELEGATION_TOKEN_EXPIRED = 66, Never, "The delegation token has expired.";
    INVALID_PRINCIPAL_TYPE = 67, Never, "The broker does not support this type of principal.";
    NON_EMPTY_GROUP = 68, Never, "The group still has members.";
    GROUP_ID_NOT_FOUND = 69, Never, "There is no group with this id.";
    FETCH_SESSION_ID_NOT_FOUND = 70, Later, "The broker no longer has this fetch session.";
    INVALID_FETCH_SESSION_EPOCH = 71, Later, "The epoch of the fetch session is not the expected one.";
    LISTENER_NOT_FOUND = 72, Refresh, "The leader has no listener with the name that the request used.";
    TOPIC_DELETION_DISABLED = 73, Never, "Topic deletion is disabled on the broker.";
    FENCED_LEADER_EPOCH = 74, Refresh, "The leader epoch is older than the broker's.";
    UNKNOWN_LEADER_EPOCH = 75, Later, "The leader epoch is newer than the broker's.";
    UNSUPPORTED_COMPRESSION_TYPE = 76, Never, "The request's version is too old for the batch's compression.";
    STALE_BROKER_EPOCH = 77, Never, "The broker has registered again since the request was sent.";
    OFFSET_NOT_AVAILABLE = 78, Later, "The new leader does not know its high watermark yet.";
    MEMBER_ID_REQUIRED = 79, Never, "The member must join again with the member id in the response.";
    PREFERRED_LEADER_NOT_AVAILABLE = 80, Refresh, "The preferred leader is not available.";
    GROUP_MAX_SIZE_REACHED = 81, Never, "The group has reached its maximum size.";
    FENCED_INSTANCE_ID = 82, Never, "Another member has registered with this static instance id.";
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, Refresh, "No replica is eligible to lead.";
    ELECTION_NOT_NEEDED = 84, Refresh, "The partition needs no election.";
    NO_REASSIGNMENT_IN_PROGRESS = 85, Never, "No reassignment of the partition is in progress.";
    GROUP_SUBSCRIBED_TO_TOPIC = 86, Never, "The group is subscribed to this topic.";
    INVALID_RECORD = 87, Never, "A record of the batch is not valid.";
    UNSTABLE_OFFSET_COMMIT = 88, Later, "The offsets belong to a transaction that has not ended yet.";
    THROTTLING_QUOTA_EXCEEDED = 89, Later, "A quota is exceeded.";
    PRODUCER_FENCED = 90, Never, "A newer producer with the same transactional id exists.";
    RESOURCE_NOT_FOUND = 91, Never, "The resource that the request names does not exist.";
    DUPLICATE_RESOURCE = 92, Never, "The request names the same resource twice.";
    UNACCEPTABLE_CREDENTIAL = 93, Never, "The credential does not meet the broker's rules.";
    INCONSISTENT_VOTER_SET = 94, Never, "The sender or the receiver is not one of the expected voters.";
    INVALID_UPDATE_VERSION = 95, Never, "The version of the feature update is not valid.";
    FEATURE_UPDATE_FAILED = 96, Never, "The features could not be updated.";
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, Never, "The forwarded principal cannot be decoded.";
    SNAPSHOT_NOT_FOUND = 98, Never, "There is no snapshot with this id.";
    POSITION_OUT_OF_RANGE = 99, Never, "The position is outside the snapshot.";
    UNKNOWN_TOPIC_ID = 100, Refresh, "This broker has no topic with this id.";
    DUPLICATE_BROKER_REGISTRATION = 101, Never, "Another live broker uses this broker id.";
    BROKER_ID_NOT_REGISTERED = 102, Never, "No broker with this id is registered.";
    INCONSISTENT_TOPIC_ID = 103, Refresh, "The topic id differs from the id in the log.";
    INCONSISTENT_CLUSTER_ID = 104, Never, "The cluster id is not the id of this cluster.";
    TRANSACTIONAL_ID_NOT_FOUND = 105, Never, "There is no such transactional id.";
    FETCH_SESSION_TOPIC_ID_ERROR = 106, Later, "The fetch session mixes topics with ids and topics without.";
    INELIGIBLE_REPLICA = 107, Never, "A replica of the new ISR is not eligible.";
    NEW_LEADER_ELECTED = 108, Never, "A new leader was elected before the request was processed.";
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, Never, "The offset has moved to tiered storage.";
    FENCED_MEMBER_EPOCH = 110, Never, "The member's epoch is fenced: the member must join again.";
    UNRELEASED_INSTANCE_ID = 111, Never, "Another member still uses this static instance id.";
    UNSUPPORTED_ASSIGNOR = 112, Never, "The assignor is not supported.";
    STALE_MEMBER_EPOCH = 113, Never, "The member's epoch is old: wait for the next heartbeat response.";
    MISMATCHED_ENDPOINT_TYPE = 114, Never, "The request was sent to the wrong type of endpoint.";
    UNSUPPORTED_ENDPOINT_TYPE = 115, Never, "The broker does not support this type of endpoint.";
    UNKNOWN_CONTROLLER_ID = 116, Never, "There is no controller with this id.";
    UNKNOWN_SUBSCRIPTION_ID = 117, Never, "The telemetry subscription id is unknown or outdated.";
    TELEMETRY_TOO_LARGE = 118, Never, "The telemetry is larger than the broker accepts.";
    INVALID_REGISTRATION = 119, Never, "The broker's registration is not valid.";
    TRANSACTION_ABORTABLE = 120, Never, "The transaction failed: abort it.";
    INVALID_RECORD_STATE = 121, Never, "The state of the record does not allow the operation.";
    SHARE_SESSION_NOT_FOUND = 122, Later, "There is no share session with this id.";
    INVALID_SHARE_SESSION_EPOCH = 123, Later, "The epoch of the share session is not the expected one.";
    FENCED_STATE_EPOCH = 124, Never, "The state epoch of the share group is not the expected one.";
    INVALID_VOTER_KEY = 125, Never, "The voter's key is not the key of the replica.";
    DUPLICATE_VOTER = 126, Never, "The voter is already in the set.";
    VOTER_NOT_FOUND = 127, Never, "The voter is not in the set.";
    INVALID_REGULAR_EXPRESSION = 128, Never, "The subscription's regular expression is not valid.";
    REBOOTSTRAP_REQUIRED = 129, Never, "The client must start again from its bootstrap servers.";
    STREAMS_INVALID_TOPOLOGY = 130, Never, "The streams topology is not valid.";
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, Never, "The streams topology's epoch is not valid.";
    STREAMS_TOPOLOGY_FENCED = 132, Never, "The member's streams topology is older than the group's.";
    SHARE_SESSION_LIMIT_REACHED = 133, Later, "The broker has as many share sessions as it allows.";
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this failed, a code would be looked up in the line of another.
    #[test]
    fn each_code_is_found_by_its_number() {
        for error in KAFKA_ERRORS {
            assert_eq!(error.code.known().map(|known| known.name), Some(error.name));
        }
        for unknown in [i16::MIN, -2, 134, i16::MAX] {
            assert!(ErrorCode(unknown).known().is_none(), "{unknown}");
            assert_eq!(ErrorCode(unknown).name(), "UNKNOWN");
            assert!(!ErrorCode(unknown).is_retriable());
        }
    }
}
