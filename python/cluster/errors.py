"""One exception class per error code of the Kafka protocol: number, name, text, and whether to try again.

Owns the classes, so that type checkers and editors see their names. Numbers, texts and what is retriable come
from the one list of codes, in Rust (`rust/crates/protocol/src/error_code.rs`). Handlers read `.code`, clients
raise the classes. Every package may import this module; any thread may use it. A class has its code's name in
camel case: UNKNOWN_TOPIC_OR_PARTITION is `UnknownTopicOrPartition`.

    KafkaProtocolError
    ├── UnknownServerError (-1), OffsetOutOfRange (1), ... trying again does not help
    └── RetriableError
        └── CorruptMessage (2), UnknownTopicOrPartition (3), ...
"""

from __future__ import annotations

import re
from typing import ClassVar

from logcore import _native

NONE = 0
"""The code that means no error."""

_LISTED = {name: (code, message) for code, name, _, message in _native.kafka_errors()}

_BY_CODE: dict[int, type[KafkaProtocolError]] = {}

_DETAIL_MAX = 8_000
"""Characters. With four bytes each they fit in the 32,767 bytes that a string of the protocol may have."""


class KafkaProtocolError(Exception):
    """An error that has a code in the Kafka protocol.

    `code` is Kafka's number, `name` Kafka's name in capitals, `message` a sentence. `retriable` says whether
    the same request may succeed later. `str()` gives the detail passed to the constructor, or else
    `message`. A detail that contains a long name is cut, so that it fits in the response.
    """

    code: ClassVar[int] = -1
    name: ClassVar[str] = "UNKNOWN_SERVER_ERROR"
    message: ClassVar[str] = ""
    retriable: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).upper()
        if name in _LISTED:
            cls.name = name
            cls.code, cls.message = _LISTED[name]
            cls.__doc__ = cls.message
            _BY_CODE[cls.code] = cls

    def __init__(self, detail: str | None = None) -> None:
        text = detail if detail is not None else self.message
        super().__init__(text if len(text) <= _DETAIL_MAX else f"{text[:_DETAIL_MAX]} ... (cut)")


class RetriableError(KafkaProtocolError):
    """The base of the errors after which the same request may succeed."""

    retriable = True


def for_code(code: int) -> type[KafkaProtocolError]:
    """The class of `code`. A number that is not in the list gives `UnknownServerError`, 0 a ValueError."""
    if code == NONE:
        raise ValueError("code 0 means no error")
    return _BY_CODE.get(code, UnknownServerError)


def all_errors() -> tuple[type[KafkaProtocolError], ...]:
    """Every class, in the order of the codes."""
    return tuple(_BY_CODE[code] for code in sorted(_BY_CODE))


class UnknownServerError(KafkaProtocolError): ...


class OffsetOutOfRange(KafkaProtocolError): ...


class CorruptMessage(RetriableError): ...


class UnknownTopicOrPartition(RetriableError): ...


class InvalidFetchSize(KafkaProtocolError): ...


class LeaderNotAvailable(RetriableError): ...


class NotLeaderOrFollower(RetriableError): ...


class RequestTimedOut(RetriableError): ...


class BrokerNotAvailable(KafkaProtocolError): ...


class ReplicaNotAvailable(RetriableError): ...


class MessageTooLarge(KafkaProtocolError): ...


class StaleControllerEpoch(KafkaProtocolError): ...


class OffsetMetadataTooLarge(KafkaProtocolError): ...


class NetworkException(RetriableError): ...


class CoordinatorLoadInProgress(RetriableError): ...


class CoordinatorNotAvailable(RetriableError): ...


class NotCoordinator(RetriableError): ...


class InvalidTopicException(KafkaProtocolError): ...


class RecordListTooLarge(KafkaProtocolError): ...


class NotEnoughReplicas(RetriableError): ...


class NotEnoughReplicasAfterAppend(RetriableError): ...


class InvalidRequiredAcks(KafkaProtocolError): ...


class IllegalGeneration(KafkaProtocolError): ...


class InconsistentGroupProtocol(KafkaProtocolError): ...


class InvalidGroupId(KafkaProtocolError): ...


class UnknownMemberId(KafkaProtocolError): ...


class InvalidSessionTimeout(KafkaProtocolError): ...


class RebalanceInProgress(KafkaProtocolError): ...


class InvalidCommitOffsetSize(KafkaProtocolError): ...


class TopicAuthorizationFailed(KafkaProtocolError): ...


class GroupAuthorizationFailed(KafkaProtocolError): ...


class ClusterAuthorizationFailed(KafkaProtocolError): ...


class InvalidTimestamp(KafkaProtocolError): ...


class UnsupportedSaslMechanism(KafkaProtocolError): ...


class IllegalSaslState(KafkaProtocolError): ...


class UnsupportedVersion(KafkaProtocolError): ...


class TopicAlreadyExists(KafkaProtocolError): ...


class InvalidPartitions(KafkaProtocolError): ...


class InvalidReplicationFactor(KafkaProtocolError): ...


class InvalidReplicaAssignment(KafkaProtocolError): ...


class InvalidConfig(KafkaProtocolError): ...


class NotController(RetriableError): ...


class InvalidRequest(KafkaProtocolError): ...


class UnsupportedForMessageFormat(KafkaProtocolError): ...


class PolicyViolation(KafkaProtocolError): ...


class OutOfOrderSequenceNumber(KafkaProtocolError): ...


class DuplicateSequenceNumber(KafkaProtocolError): ...


class InvalidProducerEpoch(KafkaProtocolError): ...


class InvalidTxnState(KafkaProtocolError): ...


class InvalidProducerIdMapping(KafkaProtocolError): ...


class InvalidTransactionTimeout(KafkaProtocolError): ...


class ConcurrentTransactions(RetriableError): ...


class TransactionCoordinatorFenced(KafkaProtocolError): ...


class TransactionalIdAuthorizationFailed(KafkaProtocolError): ...


class SecurityDisabled(KafkaProtocolError): ...


class OperationNotAttempted(KafkaProtocolError): ...


class KafkaStorageError(RetriableError): ...


class LogDirNotFound(KafkaProtocolError): ...


class SaslAuthenticationFailed(KafkaProtocolError): ...


class UnknownProducerId(KafkaProtocolError): ...


class ReassignmentInProgress(KafkaProtocolError): ...


class DelegationTokenAuthDisabled(KafkaProtocolError): ...


class DelegationTokenNotFound(KafkaProtocolError): ...


class DelegationTokenOwnerMismatch(KafkaProtocolError): ...


class DelegationTokenRequestNotAllowed(KafkaProtocolError): ...


class DelegationTokenAuthorizationFailed(KafkaProtocolError): ...


class DelegationTokenExpired(KafkaProtocolError): ...


class InvalidPrincipalType(KafkaProtocolError): ...


class NonEmptyGroup(KafkaProtocolError): ...


class GroupIdNotFound(KafkaProtocolError): ...


class FetchSessionIdNotFound(RetriableError): ...


class InvalidFetchSessionEpoch(RetriableError): ...


class ListenerNotFound(RetriableError): ...


class TopicDeletionDisabled(KafkaProtocolError): ...


class FencedLeaderEpoch(RetriableError): ...


class UnknownLeaderEpoch(RetriableError): ...


class UnsupportedCompressionType(KafkaProtocolError): ...


class StaleBrokerEpoch(KafkaProtocolError): ...


class OffsetNotAvailable(RetriableError): ...


class MemberIdRequired(KafkaProtocolError): ...


class PreferredLeaderNotAvailable(RetriableError): ...


class GroupMaxSizeReached(KafkaProtocolError): ...


class FencedInstanceId(KafkaProtocolError): ...


class EligibleLeadersNotAvailable(RetriableError): ...


class ElectionNotNeeded(RetriableError): ...


class NoReassignmentInProgress(KafkaProtocolError): ...


class GroupSubscribedToTopic(KafkaProtocolError): ...


class InvalidRecord(KafkaProtocolError): ...


class UnstableOffsetCommit(RetriableError): ...


class ThrottlingQuotaExceeded(RetriableError): ...


class ProducerFenced(KafkaProtocolError): ...


class ResourceNotFound(KafkaProtocolError): ...


class DuplicateResource(KafkaProtocolError): ...


class UnacceptableCredential(KafkaProtocolError): ...


class InconsistentVoterSet(KafkaProtocolError): ...


class InvalidUpdateVersion(KafkaProtocolError): ...


class FeatureUpdateFailed(KafkaProtocolError): ...


class PrincipalDeserializationFailure(KafkaProtocolError): ...


class SnapshotNotFound(KafkaProtocolError): ...


class PositionOutOfRange(KafkaProtocolError): ...


class UnknownTopicId(RetriableError): ...


class DuplicateBrokerRegistration(KafkaProtocolError): ...


class BrokerIdNotRegistered(KafkaProtocolError): ...


class InconsistentTopicId(RetriableError): ...


class InconsistentClusterId(KafkaProtocolError): ...


class TransactionalIdNotFound(KafkaProtocolError): ...


class FetchSessionTopicIdError(RetriableError): ...


class IneligibleReplica(KafkaProtocolError): ...


class NewLeaderElected(KafkaProtocolError): ...


class OffsetMovedToTieredStorage(KafkaProtocolError): ...


class FencedMemberEpoch(KafkaProtocolError): ...


class UnreleasedInstanceId(KafkaProtocolError): ...


class UnsupportedAssignor(KafkaProtocolError): ...


class StaleMemberEpoch(KafkaProtocolError): ...


class MismatchedEndpointType(KafkaProtocolError): ...


class UnsupportedEndpointType(KafkaProtocolError): ...


class UnknownControllerId(KafkaProtocolError): ...


class UnknownSubscriptionId(KafkaProtocolError): ...


class TelemetryTooLarge(KafkaProtocolError): ...


class InvalidRegistration(KafkaProtocolError): ...


class TransactionAbortable(KafkaProtocolError): ...


class InvalidRecordState(KafkaProtocolError): ...


class ShareSessionNotFound(RetriableError): ...


class InvalidShareSessionEpoch(RetriableError): ...


class FencedStateEpoch(KafkaProtocolError): ...


class InvalidVoterKey(KafkaProtocolError): ...


class DuplicateVoter(KafkaProtocolError): ...


class VoterNotFound(KafkaProtocolError): ...


class InvalidRegularExpression(KafkaProtocolError): ...


class RebootstrapRequired(KafkaProtocolError): ...


class StreamsInvalidTopology(KafkaProtocolError): ...


class StreamsInvalidTopologyEpoch(KafkaProtocolError): ...


class StreamsTopologyFenced(KafkaProtocolError): ...


class ShareSessionLimitReached(RetriableError): ...
