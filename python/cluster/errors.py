"""One exception class per error code of the Kafka protocol: number, name, text, and whether to try again.

Owns: the table of codes, as in Apache Kafka 3.9's `Errors` enum (numbers, names and which are retriable are
Kafka's, the sentences ours). Owns no behaviour: handlers read `.code`, clients raise the classes. Imported by
every room, imports none; any thread may use it. A class is named as the code is, in camel case:
UNKNOWN_TOPIC_OR_PARTITION is `UnknownTopicOrPartition`.

    KafkaProtocolError
    ├── UnknownServerError (-1), OffsetOutOfRange (1), ... the errors that trying again does not mend
    └── RetriableError
        └── CorruptMessage (2), UnknownTopicOrPartition (3), ...
"""

from __future__ import annotations

import re
from typing import ClassVar

NONE = 0
"""The code that means no error."""

_BY_CODE: dict[int, type[KafkaProtocolError]] = {}

_DETAIL_MAX = 8_000
"""Characters: with four bytes each they fit in the 32,767 that a string of the protocol may have."""


class KafkaProtocolError(Exception):
    """An error that has a code in the Kafka protocol.

    `code` is Kafka's number, `name` Kafka's name in capitals, `message` a sentence, `retriable` whether the
    same request may succeed later. `str()` gives the detail passed to the constructor, or else `message`; a detail that
    would not fit in an answer, because a name from the request is in it, is cut.
    """

    code: ClassVar[int] = -1
    name: ClassVar[str] = "UNKNOWN_SERVER_ERROR"
    message: ClassVar[str] = ""
    retriable: ClassVar[bool] = False

    def __init_subclass__(cls, *, code: int | None = None) -> None:
        super().__init_subclass__()
        if code is not None:
            cls.code = code
            cls.name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).upper()
            cls.message = cls.__doc__ or cls.name
            _BY_CODE[code] = cls

    def __init__(self, detail: str | None = None) -> None:
        text = detail if detail is not None else self.message
        super().__init__(text if len(text) <= _DETAIL_MAX else f"{text[:_DETAIL_MAX]} ... (cut)")


class RetriableError(KafkaProtocolError):
    """The base of the errors after which the same request may succeed."""

    retriable = True


def for_code(code: int) -> type[KafkaProtocolError]:
    """The class of `code`; a number this table does not know gives `UnknownServerError`, 0 a ValueError."""
    if code == NONE:
        raise ValueError("code 0 means no error")
    return _BY_CODE.get(code, UnknownServerError)


def all_errors() -> tuple[type[KafkaProtocolError], ...]:
    """Every class, in the order of the codes."""
    return tuple(_BY_CODE[code] for code in sorted(_BY_CODE))


class UnknownServerError(KafkaProtocolError, code=-1):
    """The broker failed while it worked on the request; its log says why."""


class OffsetOutOfRange(KafkaProtocolError, code=1):
    """The offset lies outside what the partition holds."""


class CorruptMessage(RetriableError, code=2):
    """The batch is damaged: wrong checksum, wrong size, or a missing key on a compacted topic."""


class UnknownTopicOrPartition(RetriableError, code=3):
    """This broker has no such topic or partition."""


class InvalidFetchSize(KafkaProtocolError, code=4):
    """The fetch size makes no sense."""


class LeaderNotAvailable(RetriableError, code=5):
    """The partition has no leader at this moment."""


class NotLeaderOrFollower(RetriableError, code=6):
    """This broker does not lead the partition, or holds no replica of it."""


class RequestTimedOut(RetriableError, code=7):
    """The request ran out of time."""


class BrokerNotAvailable(KafkaProtocolError, code=8):
    """The broker cannot be reached."""


class ReplicaNotAvailable(RetriableError, code=9):
    """The replica is not here."""


class MessageTooLarge(KafkaProtocolError, code=10):
    """The message is larger than the broker accepts."""


class StaleControllerEpoch(KafkaProtocolError, code=11):
    """A newer controller exists; this one's epoch is old."""


class OffsetMetadataTooLarge(KafkaProtocolError, code=12):
    """The metadata string beside the offset is too long."""


class NetworkException(RetriableError, code=13):
    """The connection broke before the answer came."""


class CoordinatorLoadInProgress(RetriableError, code=14):
    """The group's coordinator is still reading its state from the log."""


class CoordinatorNotAvailable(RetriableError, code=15):
    """The coordinator is not available at this moment."""


class NotCoordinator(RetriableError, code=16):
    """Another broker coordinates this group or transaction."""


class InvalidTopicException(KafkaProtocolError, code=17):
    """The topic's name is not allowed, or the operation is not allowed on this topic."""


class RecordListTooLarge(KafkaProtocolError, code=18):
    """The batch is larger than a segment of the partition."""


class NotEnoughReplicas(RetriableError, code=19):
    """Fewer replicas are in sync than the topic demands."""


class NotEnoughReplicasAfterAppend(RetriableError, code=20):
    """The batch was written, but to fewer replicas in sync than the topic demands."""


class InvalidRequiredAcks(KafkaProtocolError, code=21):
    """Acks must be 0, 1 or -1."""


class IllegalGeneration(KafkaProtocolError, code=22):
    """The generation is not the group's current one."""


class InconsistentGroupProtocol(KafkaProtocolError, code=23):
    """The member has no protocol in common with the group."""


class InvalidGroupId(KafkaProtocolError, code=24):
    """The group's name is not allowed."""


class UnknownMemberId(KafkaProtocolError, code=25):
    """The group has no such member."""


class InvalidSessionTimeout(KafkaProtocolError, code=26):
    """The session timeout lies outside what the broker allows."""


class RebalanceInProgress(KafkaProtocolError, code=27):
    """The group is rebalancing: join again."""


class InvalidCommitOffsetSize(KafkaProtocolError, code=28):
    """The offsets to commit take more room than is allowed."""


class TopicAuthorizationFailed(KafkaProtocolError, code=29):
    """Not allowed on this topic."""


class GroupAuthorizationFailed(KafkaProtocolError, code=30):
    """Not allowed on this group."""


class ClusterAuthorizationFailed(KafkaProtocolError, code=31):
    """Not allowed on this cluster."""


class InvalidTimestamp(KafkaProtocolError, code=32):
    """The record's timestamp lies too far from the broker's clock."""


class UnsupportedSaslMechanism(KafkaProtocolError, code=33):
    """The broker does not offer this SASL mechanism."""


class IllegalSaslState(KafkaProtocolError, code=34):
    """The request does not fit this stage of the SASL exchange."""


class UnsupportedVersion(KafkaProtocolError, code=35):
    """This version of the request is not served."""


class TopicAlreadyExists(KafkaProtocolError, code=36):
    """A topic of this name exists already."""


class InvalidPartitions(KafkaProtocolError, code=37):
    """The number of partitions is not allowed."""


class InvalidReplicationFactor(KafkaProtocolError, code=38):
    """The replication factor is below 1 or above the number of brokers."""


class InvalidReplicaAssignment(KafkaProtocolError, code=39):
    """The replica assignment is not allowed."""


class InvalidConfig(KafkaProtocolError, code=40):
    """A setting is not allowed."""


class NotController(RetriableError, code=41):
    """This broker is not the controller."""


class InvalidRequest(KafkaProtocolError, code=42):
    """The request contradicts itself."""


class UnsupportedForMessageFormat(KafkaProtocolError, code=43):
    """The partition's message format cannot serve this request."""


class PolicyViolation(KafkaProtocolError, code=44):
    """The request breaks the broker's policy."""


class OutOfOrderSequenceNumber(KafkaProtocolError, code=45):
    """A batch is missing between this one and the producer's last."""


class DuplicateSequenceNumber(KafkaProtocolError, code=46):
    """This batch was already written."""


class InvalidProducerEpoch(KafkaProtocolError, code=47):
    """A newer instance of this producer has taken over."""


class InvalidTxnState(KafkaProtocolError, code=48):
    """The operation does not fit the transaction's state."""


class InvalidProducerIdMapping(KafkaProtocolError, code=49):
    """The producer id does not belong to this transactional id."""


class InvalidTransactionTimeout(KafkaProtocolError, code=50):
    """The transaction timeout is above what the broker allows."""


class ConcurrentTransactions(RetriableError, code=51):
    """Another operation on this transaction is under way."""


class TransactionCoordinatorFenced(KafkaProtocolError, code=52):
    """The transaction's coordinator has been replaced."""


class TransactionalIdAuthorizationFailed(KafkaProtocolError, code=53):
    """Not allowed on this transactional id."""


class SecurityDisabled(KafkaProtocolError, code=54):
    """Security is switched off on this broker."""


class OperationNotAttempted(KafkaProtocolError, code=55):
    """Not attempted, since an earlier part of the request failed."""


class KafkaStorageError(RetriableError, code=56):
    """The log directory's disk has failed."""


class LogDirNotFound(KafkaProtocolError, code=57):
    """The broker has no such log directory."""


class SaslAuthenticationFailed(KafkaProtocolError, code=58):
    """Authentication failed."""


class UnknownProducerId(KafkaProtocolError, code=59):
    """The producer's state is no longer known to the partition."""


class ReassignmentInProgress(KafkaProtocolError, code=60):
    """The partition is being moved between brokers."""


class DelegationTokenAuthDisabled(KafkaProtocolError, code=61):
    """Delegation tokens are switched off."""


class DelegationTokenNotFound(KafkaProtocolError, code=62):
    """There is no such delegation token."""


class DelegationTokenOwnerMismatch(KafkaProtocolError, code=63):
    """The delegation token belongs to somebody else."""


class DelegationTokenRequestNotAllowed(KafkaProtocolError, code=64):
    """A delegation token cannot be asked for on this connection."""


class DelegationTokenAuthorizationFailed(KafkaProtocolError, code=65):
    """Not allowed on this delegation token."""


class DelegationTokenExpired(KafkaProtocolError, code=66):
    """The delegation token has expired."""


class InvalidPrincipalType(KafkaProtocolError, code=67):
    """This type of principal is not supported."""


class NonEmptyGroup(KafkaProtocolError, code=68):
    """The group still has members."""


class GroupIdNotFound(KafkaProtocolError, code=69):
    """There is no such group."""


class FetchSessionIdNotFound(RetriableError, code=70):
    """The broker no longer knows this fetch session."""


class InvalidFetchSessionEpoch(RetriableError, code=71):
    """The fetch session's epoch is not the expected one."""


class ListenerNotFound(RetriableError, code=72):
    """The leader has no listener of the name this request came in by."""


class TopicDeletionDisabled(KafkaProtocolError, code=73):
    """Deleting topics is switched off."""


class FencedLeaderEpoch(RetriableError, code=74):
    """The leader epoch is older than the broker's."""


class UnknownLeaderEpoch(RetriableError, code=75):
    """The leader epoch is newer than the broker's."""


class UnsupportedCompressionType(KafkaProtocolError, code=76):
    """The client's version cannot read the compression this partition uses."""


class StaleBrokerEpoch(KafkaProtocolError, code=77):
    """The broker has registered anew since."""


class OffsetNotAvailable(RetriableError, code=78):
    """The new leader does not know its high watermark yet."""


class MemberIdRequired(KafkaProtocolError, code=79):
    """Join again with the member id given here."""


class PreferredLeaderNotAvailable(RetriableError, code=80):
    """The preferred leader is not available."""


class GroupMaxSizeReached(KafkaProtocolError, code=81):
    """The group has as many members as it may."""


class FencedInstanceId(KafkaProtocolError, code=82):
    """Another member has taken over this static identity."""


class EligibleLeadersNotAvailable(RetriableError, code=83):
    """No replica is fit to lead."""


class ElectionNotNeeded(RetriableError, code=84):
    """The partition needs no election."""


class NoReassignmentInProgress(KafkaProtocolError, code=85):
    """The partition is not being moved."""


class GroupSubscribedToTopic(KafkaProtocolError, code=86):
    """The group is subscribed to this topic."""


class InvalidRecord(KafkaProtocolError, code=87):
    """A record of the batch is not valid."""


class UnstableOffsetCommit(RetriableError, code=88):
    """The offsets belong to a transaction that is not decided yet."""


class ThrottlingQuotaExceeded(RetriableError, code=89):
    """A quota is exhausted."""


class ProducerFenced(KafkaProtocolError, code=90):
    """A newer producer with the same transactional id exists."""


class ResourceNotFound(KafkaProtocolError, code=91):
    """What the request names does not exist."""


class DuplicateResource(KafkaProtocolError, code=92):
    """The request names the same thing twice."""


class UnacceptableCredential(KafkaProtocolError, code=93):
    """The credential is not acceptable."""


class InconsistentVoterSet(KafkaProtocolError, code=94):
    """Sender or receiver is not one of the expected voters."""


class InvalidUpdateVersion(KafkaProtocolError, code=95):
    """The feature update has a wrong version."""


class FeatureUpdateFailed(KafkaProtocolError, code=96):
    """The features could not be updated."""


class PrincipalDeserializationFailure(KafkaProtocolError, code=97):
    """The forwarded principal cannot be read."""


class SnapshotNotFound(KafkaProtocolError, code=98):
    """There is no such snapshot."""


class PositionOutOfRange(KafkaProtocolError, code=99):
    """The position lies outside the snapshot."""


class UnknownTopicId(RetriableError, code=100):
    """This broker has no topic with this id."""


class DuplicateBrokerRegistration(KafkaProtocolError, code=101):
    """Another live broker uses this broker id."""


class BrokerIdNotRegistered(KafkaProtocolError, code=102):
    """No broker with this id is registered."""


class InconsistentTopicId(RetriableError, code=103):
    """The topic id differs from the one in the log."""


class InconsistentClusterId(KafkaProtocolError, code=104):
    """The cluster id is not this cluster's."""


class TransactionalIdNotFound(KafkaProtocolError, code=105):
    """There is no such transactional id."""


class FetchSessionTopicIdError(RetriableError, code=106):
    """The fetch session mixes topics with and without ids."""


class IneligibleReplica(KafkaProtocolError, code=107):
    """A replica of the new in-sync set is not eligible."""


class NewLeaderElected(KafkaProtocolError, code=108):
    """A new leader was elected meanwhile."""


class OffsetMovedToTieredStorage(KafkaProtocolError, code=109):
    """The offset has moved to tiered storage."""


class FencedMemberEpoch(KafkaProtocolError, code=110):
    """The member's epoch has been fenced: join again."""


class UnreleasedInstanceId(KafkaProtocolError, code=111):
    """The static identity is still in use."""


class UnsupportedAssignor(KafkaProtocolError, code=112):
    """The assignor is not supported."""


class StaleMemberEpoch(KafkaProtocolError, code=113):
    """The member's epoch is old: wait for the next heartbeat's answer."""


class MismatchedEndpointType(KafkaProtocolError, code=114):
    """The request went to the wrong kind of endpoint."""


class UnsupportedEndpointType(KafkaProtocolError, code=115):
    """This kind of endpoint is not supported."""


class UnknownControllerId(KafkaProtocolError, code=116):
    """There is no controller of this id."""


class UnknownSubscriptionId(KafkaProtocolError, code=117):
    """The telemetry subscription is unknown or outdated."""


class TelemetryTooLarge(KafkaProtocolError, code=118):
    """The telemetry is larger than the broker accepts."""


class InvalidRegistration(KafkaProtocolError, code=119):
    """The broker's registration is not valid."""


class TransactionAbortable(KafkaProtocolError, code=120):
    """The transaction cannot go on: abort it."""


class InvalidRecordState(KafkaProtocolError, code=121):
    """The record is not in a state that allows this."""


class ShareSessionNotFound(RetriableError, code=122):
    """There is no such share session."""


class InvalidShareSessionEpoch(RetriableError, code=123):
    """The share session's epoch is not the expected one."""


class FencedStateEpoch(KafkaProtocolError, code=124):
    """The share group's state epoch does not match."""


class InvalidVoterKey(KafkaProtocolError, code=125):
    """The voter's key does not match the replica's."""


class DuplicateVoter(KafkaProtocolError, code=126):
    """The voter is in the set already."""


class VoterNotFound(KafkaProtocolError, code=127):
    """The voter is not in the set."""
