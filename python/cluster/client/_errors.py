"""`KafkaError` and `KafkaException`: a failure with its number, name and sentence.

Owns librdkafka's negative numbers, for failures on the client's side, and its names for the broker's errors.
The broker's sentences come from `cluster.errors`. Registers both classes with the extension, which raises
them.
"""

from __future__ import annotations

import logging
import os
from typing import Any, ClassVar

from cluster.errors import all_errors
from logcore import _native

logger = logging.getLogger("cluster.client")

_LOCAL: dict[int, tuple[str, str]] = {
    -199: ("_BAD_MSG", "the message or response does not decode"),
    -198: ("_BAD_COMPRESSION", "the compressed data is damaged"),
    -197: ("_DESTROY", "the client was closed"),
    -196: ("_FAIL", "talking to the broker failed"),
    -195: ("_TRANSPORT", "the connection to the broker failed"),
    -194: ("_CRIT_SYS_RESOURCE", "the operating system is out of something"),
    -193: ("_RESOLVE", "the host name cannot be resolved"),
    -192: ("_MSG_TIMED_OUT", "the message was not delivered in time"),
    -191: ("_PARTITION_EOF", "the end of the partition is reached"),
    -190: ("_UNKNOWN_PARTITION", "there is no such partition"),
    -189: ("_FS", "a file operation failed"),
    -188: ("_UNKNOWN_TOPIC", "there is no such topic"),
    -187: ("_ALL_BROKERS_DOWN", "no broker can be reached"),
    -186: ("_INVALID_ARG", "an argument or setting is wrong"),
    -185: ("_TIMED_OUT", "the time allowed has passed"),
    -184: ("_QUEUE_FULL", "the queue is full"),
    -183: ("_ISR_INSUFF", "too few replicas are in sync"),
    -182: ("_NODE_UPDATE", "the broker's address changed"),
    -181: ("_SSL", "TLS failed"),
    -180: ("_WAIT_COORD", "the coordinator is not known yet"),
    -179: ("_UNKNOWN_GROUP", "there is no such group"),
    -178: ("_IN_PROGRESS", "the operation is under way"),
    -177: ("_PREV_IN_PROGRESS", "an earlier operation is under way"),
    -176: ("_EXISTING_SUBSCRIPTION", "there is a subscription already"),
    -175: ("_ASSIGN_PARTITIONS", "partitions are to be assigned"),
    -174: ("_REVOKE_PARTITIONS", "partitions are to be revoked"),
    -173: ("_CONFLICT", "conflicting use"),
    -172: ("_STATE", "not possible in this state"),
    -171: ("_UNKNOWN_PROTOCOL", "the protocol is not known"),
    -170: ("_NOT_IMPLEMENTED", "not implemented"),
    -169: ("_AUTHENTICATION", "authentication failed"),
    -168: ("_NO_OFFSET", "no offset is stored"),
    -167: ("_OUTDATED", "out of date"),
    -166: ("_TIMED_OUT_QUEUE", "the time allowed passed in the queue"),
    -165: ("_UNSUPPORTED_FEATURE", "the broker lacks what this needs"),
    -164: ("_WAIT_CACHE", "waiting for the cache"),
    -163: ("_INTR", "interrupted"),
    -162: ("_KEY_SERIALIZATION", "the key cannot be serialized"),
    -161: ("_VALUE_SERIALIZATION", "the value cannot be serialized"),
    -160: ("_KEY_DESERIALIZATION", "the key cannot be deserialized"),
    -159: ("_VALUE_DESERIALIZATION", "the value cannot be deserialized"),
    -158: ("_PARTIAL", "the response is not complete"),
    -157: ("_READ_ONLY", "the object cannot be changed"),
    -156: ("_NOENT", "there is no such thing"),
    -155: ("_UNDERFLOW", "the data is too short"),
    -154: ("_INVALID_TYPE", "the type is wrong"),
    -153: ("_RETRY", "to be tried again"),
    -152: ("_PURGE_QUEUE", "purged before it was sent"),
    -151: ("_PURGE_INFLIGHT", "purged in flight"),
    -150: ("_FATAL", "the client cannot go on"),
    -149: ("_INCONSISTENT", "inconsistent state"),
    -148: ("_GAPLESS_GUARANTEE", "going on would leave a gap"),
    -147: ("_MAX_POLL_EXCEEDED", "poll was not called within max.poll.interval.ms"),
    -146: ("_UNKNOWN_BROKER", "there is no such broker"),
    -145: ("_NOT_CONFIGURED", "not configured"),
    -144: ("_FENCED", "a newer instance has replaced this one"),
    -143: ("_APPLICATION", "the application reported an error"),
    -142: ("_ASSIGNMENT_LOST", "the group took the partitions away"),
    -141: ("_NOOP", "nothing was done"),
    -140: ("_AUTO_OFFSET_RESET", "there is no offset to start from"),
    -139: ("_LOG_TRUNCATION", "the log was cut"),
    -138: ("_INVALID_DIFFERENT_RECORD", "another record of the batch was invalid"),
    -137: ("_DESTROY_BROKER", "the broker's connection was given up"),
}

# librdkafka's names where they differ from Kafka's own.
_RENAMED = {
    -1: "UNKNOWN",
    2: "INVALID_MSG",
    3: "UNKNOWN_TOPIC_OR_PART",
    4: "INVALID_MSG_SIZE",
    6: "NOT_LEADER_FOR_PARTITION",
    10: "MSG_SIZE_TOO_LARGE",
    11: "STALE_CTRL_EPOCH",
    17: "TOPIC_EXCEPTION",
}


def _table() -> dict[int, tuple[str, str, bool]]:
    """Number -> name, sentence, whether trying again may help."""
    table = {code: (name, f"Local: {text}", False) for code, (name, text) in _LOCAL.items()}
    table[0] = ("NO_ERROR", "Success", False)
    for error in all_errors():
        name = _RENAMED.get(error.code, error.name)
        table[error.code] = (name, f"Broker: {error.message.rstrip('.')}", error.retriable)
    return table


_TABLE = _table()


_str = str
"""Inside `KafkaError`, `str` is a method."""


class KafkaError:
    """One failure, as a value: `code()`, `name()`, `str()`; compares equal to its code.

    Every code is a constant of this class: `KafkaError._PARTITION_EOF`, `KafkaError.UNKNOWN_TOPIC_OR_PART` …
    """

    __slots__ = ("_code", "_fatal", "_reason", "_retriable", "_txn_requires_abort")

    def __init__(
        self,
        error: int,
        reason: _str | None = None,
        fatal: bool = False,
        retriable: bool | None = None,
        txn_requires_abort: bool = False,
    ) -> None:
        self._code = error
        self._reason = reason
        self._fatal = fatal
        self._retriable = _TABLE.get(error, ("", "", False))[2] if retriable is None else retriable
        self._txn_requires_abort = txn_requires_abort

    def code(self) -> int:
        """The number: Kafka's, or a negative one of the client's own."""
        return self._code

    def name(self) -> _str:
        """The number's name, as the constant is called."""
        return _TABLE.get(self._code, (f"ERR_{self._code}?", "", False))[0]

    def str(self) -> _str:
        """A sentence for people."""
        if self._reason is not None:
            return self._reason
        return _TABLE.get(self._code, ("", f"Err-{self._code}?", False))[1]

    def fatal(self) -> bool:
        """Whether the client cannot go on."""
        return self._fatal

    def retriable(self) -> bool:
        """Whether the same operation may succeed later."""
        return self._retriable

    def txn_requires_abort(self) -> bool:
        """Whether the current transaction must be aborted."""
        return self._txn_requires_abort

    def __repr__(self) -> _str:
        fatal = "FATAL," if self._fatal else ""
        return f'KafkaError{{{fatal}code={self.name()},val={self._code},str="{self.str()}"}}'

    __str__ = __repr__

    def __hash__(self) -> int:
        return hash(self._code)

    def _other(self, other: object) -> int | None:
        if isinstance(other, KafkaError):
            return other._code
        return other if isinstance(other, int) else None

    def __eq__(self, other: object) -> bool:
        return self._code == self._other(other)

    def __lt__(self, other: object) -> bool:
        code = self._other(other)
        return NotImplemented if code is None else self._code < code

    def __bool__(self) -> bool:
        return True

    def __getstate__(self) -> tuple[Any, ...]:
        return (self._code, self._reason, self._fatal, self._retriable, self._txn_requires_abort)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._code, self._reason, self._fatal, self._retriable, self._txn_requires_abort = state

    # Declared for type checkers and editors; the table sets them.
    UNKNOWN: ClassVar[int]
    NO_ERROR: ClassVar[int]
    OFFSET_OUT_OF_RANGE: ClassVar[int]
    INVALID_MSG: ClassVar[int]
    UNKNOWN_TOPIC_OR_PART: ClassVar[int]
    INVALID_MSG_SIZE: ClassVar[int]
    LEADER_NOT_AVAILABLE: ClassVar[int]
    NOT_LEADER_FOR_PARTITION: ClassVar[int]
    REQUEST_TIMED_OUT: ClassVar[int]
    BROKER_NOT_AVAILABLE: ClassVar[int]
    REPLICA_NOT_AVAILABLE: ClassVar[int]
    MSG_SIZE_TOO_LARGE: ClassVar[int]
    STALE_CTRL_EPOCH: ClassVar[int]
    OFFSET_METADATA_TOO_LARGE: ClassVar[int]
    NETWORK_EXCEPTION: ClassVar[int]
    COORDINATOR_LOAD_IN_PROGRESS: ClassVar[int]
    COORDINATOR_NOT_AVAILABLE: ClassVar[int]
    NOT_COORDINATOR: ClassVar[int]
    TOPIC_EXCEPTION: ClassVar[int]
    RECORD_LIST_TOO_LARGE: ClassVar[int]
    NOT_ENOUGH_REPLICAS: ClassVar[int]
    NOT_ENOUGH_REPLICAS_AFTER_APPEND: ClassVar[int]
    INVALID_REQUIRED_ACKS: ClassVar[int]
    ILLEGAL_GENERATION: ClassVar[int]
    INCONSISTENT_GROUP_PROTOCOL: ClassVar[int]
    INVALID_GROUP_ID: ClassVar[int]
    UNKNOWN_MEMBER_ID: ClassVar[int]
    INVALID_SESSION_TIMEOUT: ClassVar[int]
    REBALANCE_IN_PROGRESS: ClassVar[int]
    INVALID_COMMIT_OFFSET_SIZE: ClassVar[int]
    TOPIC_AUTHORIZATION_FAILED: ClassVar[int]
    GROUP_AUTHORIZATION_FAILED: ClassVar[int]
    CLUSTER_AUTHORIZATION_FAILED: ClassVar[int]
    INVALID_TIMESTAMP: ClassVar[int]
    UNSUPPORTED_SASL_MECHANISM: ClassVar[int]
    ILLEGAL_SASL_STATE: ClassVar[int]
    UNSUPPORTED_VERSION: ClassVar[int]
    TOPIC_ALREADY_EXISTS: ClassVar[int]
    INVALID_PARTITIONS: ClassVar[int]
    INVALID_REPLICATION_FACTOR: ClassVar[int]
    INVALID_REPLICA_ASSIGNMENT: ClassVar[int]
    INVALID_CONFIG: ClassVar[int]
    NOT_CONTROLLER: ClassVar[int]
    INVALID_REQUEST: ClassVar[int]
    UNSUPPORTED_FOR_MESSAGE_FORMAT: ClassVar[int]
    POLICY_VIOLATION: ClassVar[int]
    OUT_OF_ORDER_SEQUENCE_NUMBER: ClassVar[int]
    DUPLICATE_SEQUENCE_NUMBER: ClassVar[int]
    INVALID_PRODUCER_EPOCH: ClassVar[int]
    INVALID_TXN_STATE: ClassVar[int]
    INVALID_PRODUCER_ID_MAPPING: ClassVar[int]
    INVALID_TRANSACTION_TIMEOUT: ClassVar[int]
    CONCURRENT_TRANSACTIONS: ClassVar[int]
    TRANSACTION_COORDINATOR_FENCED: ClassVar[int]
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED: ClassVar[int]
    SECURITY_DISABLED: ClassVar[int]
    OPERATION_NOT_ATTEMPTED: ClassVar[int]
    KAFKA_STORAGE_ERROR: ClassVar[int]
    LOG_DIR_NOT_FOUND: ClassVar[int]
    SASL_AUTHENTICATION_FAILED: ClassVar[int]
    UNKNOWN_PRODUCER_ID: ClassVar[int]
    REASSIGNMENT_IN_PROGRESS: ClassVar[int]
    DELEGATION_TOKEN_AUTH_DISABLED: ClassVar[int]
    DELEGATION_TOKEN_NOT_FOUND: ClassVar[int]
    DELEGATION_TOKEN_OWNER_MISMATCH: ClassVar[int]
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: ClassVar[int]
    DELEGATION_TOKEN_AUTHORIZATION_FAILED: ClassVar[int]
    DELEGATION_TOKEN_EXPIRED: ClassVar[int]
    INVALID_PRINCIPAL_TYPE: ClassVar[int]
    NON_EMPTY_GROUP: ClassVar[int]
    GROUP_ID_NOT_FOUND: ClassVar[int]
    FETCH_SESSION_ID_NOT_FOUND: ClassVar[int]
    INVALID_FETCH_SESSION_EPOCH: ClassVar[int]
    LISTENER_NOT_FOUND: ClassVar[int]
    TOPIC_DELETION_DISABLED: ClassVar[int]
    FENCED_LEADER_EPOCH: ClassVar[int]
    UNKNOWN_LEADER_EPOCH: ClassVar[int]
    UNSUPPORTED_COMPRESSION_TYPE: ClassVar[int]
    STALE_BROKER_EPOCH: ClassVar[int]
    OFFSET_NOT_AVAILABLE: ClassVar[int]
    MEMBER_ID_REQUIRED: ClassVar[int]
    PREFERRED_LEADER_NOT_AVAILABLE: ClassVar[int]
    GROUP_MAX_SIZE_REACHED: ClassVar[int]
    FENCED_INSTANCE_ID: ClassVar[int]
    ELIGIBLE_LEADERS_NOT_AVAILABLE: ClassVar[int]
    ELECTION_NOT_NEEDED: ClassVar[int]
    NO_REASSIGNMENT_IN_PROGRESS: ClassVar[int]
    GROUP_SUBSCRIBED_TO_TOPIC: ClassVar[int]
    INVALID_RECORD: ClassVar[int]
    UNSTABLE_OFFSET_COMMIT: ClassVar[int]
    THROTTLING_QUOTA_EXCEEDED: ClassVar[int]
    PRODUCER_FENCED: ClassVar[int]
    RESOURCE_NOT_FOUND: ClassVar[int]
    DUPLICATE_RESOURCE: ClassVar[int]
    UNACCEPTABLE_CREDENTIAL: ClassVar[int]
    INCONSISTENT_VOTER_SET: ClassVar[int]
    INVALID_UPDATE_VERSION: ClassVar[int]
    FEATURE_UPDATE_FAILED: ClassVar[int]
    PRINCIPAL_DESERIALIZATION_FAILURE: ClassVar[int]
    SNAPSHOT_NOT_FOUND: ClassVar[int]
    POSITION_OUT_OF_RANGE: ClassVar[int]
    UNKNOWN_TOPIC_ID: ClassVar[int]
    DUPLICATE_BROKER_REGISTRATION: ClassVar[int]
    BROKER_ID_NOT_REGISTERED: ClassVar[int]
    INCONSISTENT_TOPIC_ID: ClassVar[int]
    INCONSISTENT_CLUSTER_ID: ClassVar[int]
    TRANSACTIONAL_ID_NOT_FOUND: ClassVar[int]
    FETCH_SESSION_TOPIC_ID_ERROR: ClassVar[int]
    INELIGIBLE_REPLICA: ClassVar[int]
    NEW_LEADER_ELECTED: ClassVar[int]
    OFFSET_MOVED_TO_TIERED_STORAGE: ClassVar[int]
    FENCED_MEMBER_EPOCH: ClassVar[int]
    UNRELEASED_INSTANCE_ID: ClassVar[int]
    UNSUPPORTED_ASSIGNOR: ClassVar[int]
    STALE_MEMBER_EPOCH: ClassVar[int]
    MISMATCHED_ENDPOINT_TYPE: ClassVar[int]
    UNSUPPORTED_ENDPOINT_TYPE: ClassVar[int]
    UNKNOWN_CONTROLLER_ID: ClassVar[int]
    UNKNOWN_SUBSCRIPTION_ID: ClassVar[int]
    TELEMETRY_TOO_LARGE: ClassVar[int]
    INVALID_REGISTRATION: ClassVar[int]
    TRANSACTION_ABORTABLE: ClassVar[int]
    INVALID_RECORD_STATE: ClassVar[int]
    SHARE_SESSION_NOT_FOUND: ClassVar[int]
    INVALID_SHARE_SESSION_EPOCH: ClassVar[int]
    FENCED_STATE_EPOCH: ClassVar[int]
    INVALID_VOTER_KEY: ClassVar[int]
    DUPLICATE_VOTER: ClassVar[int]
    VOTER_NOT_FOUND: ClassVar[int]
    INVALID_REGULAR_EXPRESSION: ClassVar[int]
    REBOOTSTRAP_REQUIRED: ClassVar[int]
    STREAMS_INVALID_TOPOLOGY: ClassVar[int]
    STREAMS_INVALID_TOPOLOGY_EPOCH: ClassVar[int]
    STREAMS_TOPOLOGY_FENCED: ClassVar[int]
    SHARE_SESSION_LIMIT_REACHED: ClassVar[int]
    _BAD_MSG: ClassVar[int]
    _BAD_COMPRESSION: ClassVar[int]
    _DESTROY: ClassVar[int]
    _FAIL: ClassVar[int]
    _TRANSPORT: ClassVar[int]
    _CRIT_SYS_RESOURCE: ClassVar[int]
    _RESOLVE: ClassVar[int]
    _MSG_TIMED_OUT: ClassVar[int]
    _PARTITION_EOF: ClassVar[int]
    _UNKNOWN_PARTITION: ClassVar[int]
    _FS: ClassVar[int]
    _UNKNOWN_TOPIC: ClassVar[int]
    _ALL_BROKERS_DOWN: ClassVar[int]
    _INVALID_ARG: ClassVar[int]
    _TIMED_OUT: ClassVar[int]
    _QUEUE_FULL: ClassVar[int]
    _ISR_INSUFF: ClassVar[int]
    _NODE_UPDATE: ClassVar[int]
    _SSL: ClassVar[int]
    _WAIT_COORD: ClassVar[int]
    _UNKNOWN_GROUP: ClassVar[int]
    _IN_PROGRESS: ClassVar[int]
    _PREV_IN_PROGRESS: ClassVar[int]
    _EXISTING_SUBSCRIPTION: ClassVar[int]
    _ASSIGN_PARTITIONS: ClassVar[int]
    _REVOKE_PARTITIONS: ClassVar[int]
    _CONFLICT: ClassVar[int]
    _STATE: ClassVar[int]
    _UNKNOWN_PROTOCOL: ClassVar[int]
    _NOT_IMPLEMENTED: ClassVar[int]
    _AUTHENTICATION: ClassVar[int]
    _NO_OFFSET: ClassVar[int]
    _OUTDATED: ClassVar[int]
    _TIMED_OUT_QUEUE: ClassVar[int]
    _UNSUPPORTED_FEATURE: ClassVar[int]
    _WAIT_CACHE: ClassVar[int]
    _INTR: ClassVar[int]
    _KEY_SERIALIZATION: ClassVar[int]
    _VALUE_SERIALIZATION: ClassVar[int]
    _KEY_DESERIALIZATION: ClassVar[int]
    _VALUE_DESERIALIZATION: ClassVar[int]
    _PARTIAL: ClassVar[int]
    _READ_ONLY: ClassVar[int]
    _NOENT: ClassVar[int]
    _UNDERFLOW: ClassVar[int]
    _INVALID_TYPE: ClassVar[int]
    _RETRY: ClassVar[int]
    _PURGE_QUEUE: ClassVar[int]
    _PURGE_INFLIGHT: ClassVar[int]
    _FATAL: ClassVar[int]
    _INCONSISTENT: ClassVar[int]
    _GAPLESS_GUARANTEE: ClassVar[int]
    _MAX_POLL_EXCEEDED: ClassVar[int]
    _UNKNOWN_BROKER: ClassVar[int]
    _NOT_CONFIGURED: ClassVar[int]
    _FENCED: ClassVar[int]
    _APPLICATION: ClassVar[int]
    _ASSIGNMENT_LOST: ClassVar[int]
    _NOOP: ClassVar[int]
    _AUTO_OFFSET_RESET: ClassVar[int]
    _LOG_TRUNCATION: ClassVar[int]
    _INVALID_DIFFERENT_RECORD: ClassVar[int]
    _DESTROY_BROKER: ClassVar[int]


for _code, _entry in _TABLE.items():
    setattr(KafkaError, _entry[0], _code)


class KafkaException(Exception):
    """A failure raised; `args[0]` is its `KafkaError`."""

    @property
    def error(self) -> KafkaError:
        """The failure as a value."""
        error = self.args[0]
        assert isinstance(error, KafkaError)
        return error


def failed(code: int, reason: str | None = None) -> KafkaException:
    """The exception for a code and, if there is more to say than the code does, a reason."""
    return KafkaException(KafkaError(code, reason))


def failure_of(answer: dict[str, Any]) -> KafkaException | None:
    """The failure that a part of a response reports; None for error code 0."""
    code = answer["error_code"]
    return failed(code, answer.get("error_message") or None) if code else None


def log_error(error: KafkaError) -> None:
    """Logs a failure of a client that has no error_cb."""
    logger.warning("%s", error.str())


_native.client_set_error_types(KafkaError, KafkaException)
# Background threads do not survive fork(): the child's clients must raise instead of waiting for ever.
os.register_at_fork(after_in_child=_native.client_after_fork)
