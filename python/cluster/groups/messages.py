"""Requests, results and actions of classic groups and offsets. Values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cluster.errors import NONE
from cluster.groups.committed import CommittedOffset
from cluster.model import TopicPartition
from cluster.state_topics import Producer, Respond
from cluster.state_topics import Write as StateWrite

CONSUMER_PROTOCOL = "consumer"
"""The protocol type of consumers."""

Protocols = tuple[tuple[str, bytes], ...]
"""A member's assignors, most preferred first, with its subscription for each."""


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """The broker's settings for groups."""

    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    members_max: int = 2**31 - 1
    initial_delay_ms: int = 3_000
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    metadata_bytes_max: int = 4_096
    members_bytes_max: int = 64 * 1024 * 1024
    """Memory of all members and of groups without offsets. Above it large joins and assignments are refused,
    above twice that all new ones.
    """


@dataclass(frozen=True, slots=True)
class Join:
    """JoinGroup. `known_id_required` is true from version 4 on, `skips_assignment` from version 9 on."""

    group: str
    member: str
    instance: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    known_id_required: bool = False
    skips_assignment: bool = False


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member in the leader's response."""

    id: str
    instance: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinResult:
    """The response to Join."""

    error: int
    member: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class Sync:
    """SyncGroup. The protocol's type and name are checked if they are present (version 5)."""

    group: str
    generation: int
    member: str
    instance: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The response to Sync."""

    error: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class Leaving:
    """A member that leaves, by its id, or that is removed by its instance id alone."""

    member: str
    instance: str | None = None


@dataclass(frozen=True, slots=True)
class LeaveResult:
    """The response to LeaveGroup: the group's error code, and each member's in the request's order."""

    error: int
    members: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Commit:
    """OffsetCommit for existing partitions."""

    group: str
    generation: int
    member: str
    instance: str | None
    offsets: Mapping[TopicPartition, CommittedOffset]
    producer: Producer | None = None
    """For TxnOffsetCommit: the producer whose transaction they are part of."""
    version: int = 0
    """The version of OffsetCommit."""


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The response to Commit: an error code for all partitions, and those that differ."""

    error: int = NONE
    errors: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredMember:
    """A member in a group's record."""

    id: str
    instance: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group's record (GroupMetadataValue)."""

    group: str
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_since_ms: int
    members: tuple[StoredMember, ...]


@dataclass(frozen=True, slots=True)
class SnapshotMember:
    """A member of a classic group."""

    id: str
    instance: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A classic group without its offsets."""

    group: str
    generation: int
    protocol_type: str | None
    protocol: str | None
    members: tuple[SnapshotMember, ...]


@dataclass(frozen=True, slots=True)
class Write(StateWrite):
    """Records of a group. `remove_group` writes a tombstone for the group, an offset of None one for the
    offset.
    """

    group: str
    stored: StoredGroup | None = None
    remove_group: bool = False
    offsets: Mapping[TopicPartition, CommittedOffset | None] = field(default_factory=dict)
    producer: Producer | None = None
    """The producer whose transaction the offsets are part of."""
    records: Sequence[tuple[bytes, bytes | None]] = ()
    """Encoded records of a group of the consumer protocol."""


Action = Respond | Write


@dataclass(frozen=True, slots=True)
class Overview:
    """A group in ListGroups."""

    group: str
    protocol_type: str
    state: str
    type: str = "classic"


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member in DescribeGroups."""

    id: str
    instance: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group in DescribeGroups."""

    state: str
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[MemberView, ...] = ()
