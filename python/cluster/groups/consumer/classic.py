"""Members of the classic protocol in consumer groups, and groups that change their protocol. Pure.

A classic group becomes a consumer group when a member of the consumer protocol joins it (upgrade). Its
members stay, with their partitions, and keep using JoinGroup, SyncGroup and Heartbeat. A consumer group
becomes classic when its last member of the consumer protocol is gone (downgrade). Source:
ConsumerGroup.fromClassicGroup, ClassicGroup.fromConsumerGroup.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cluster.errors import GroupIdNotFound, InconsistentGroupProtocol
from cluster.groups.assignors import EMPTY, Assignment
from cluster.groups.consumer.group import ConsumerGroup, Draft, Kind
from cluster.groups.consumer.messages import ClusterTopics
from cluster.groups.consumer.values import ClassicMember, Current, MemberState, Subscription
from cluster.groups.messages import CONSUMER_PROTOCOL, Protocols, Snapshot, SnapshotMember
from cluster.model import TopicId
from logcore._native import decode_data, encode_data

_VERSION_MAX = 3
"""The last version of ConsumerProtocolSubscription and ConsumerProtocolAssignment."""


@dataclass(frozen=True, slots=True)
class ReadSubscription:
    """A classic member's subscription, decoded."""

    topics: frozenset[str]
    owned: Assignment
    rack: str | None


def read_subscription(data: bytes, topics: ClusterTopics) -> ReadSubscription:
    """Decodes ConsumerProtocolSubscription. Raises InconsistentGroupProtocol if it is damaged."""
    try:
        version = min(_version(data), _VERSION_MAX)
        fields = decode_data("ConsumerProtocolSubscription", version, data[2:])
    except ValueError as error:
        raise InconsistentGroupProtocol("The embedded consumer protocol is malformed.") from error
    owned = fields["owned_partitions"] if version >= 1 else []
    return ReadSubscription(frozenset(fields["topics"]), _assignment(owned, topics), fields["rack_id"])


def _version(data: bytes) -> int:
    if len(data) < 2:
        raise ValueError("no version")
    return max(int.from_bytes(data[:2], "big", signed=True), 0)


def _assignment(items: list[dict[str, object]], topics: ClusterTopics) -> Assignment:
    """An assignment by topic ids. Topics that do not exist are left out."""
    found: dict[TopicId, frozenset[int]] = {}
    for item in items:
        topic = topics.topic(item["topic"])  # type: ignore[arg-type]
        if topic is not None and item["partitions"]:
            found[topic.id] = found.get(topic.id, frozenset()) | frozenset(item["partitions"])  # type: ignore[call-overload]
    return found


def encode_assignment(assignment: Assignment, subscription: bytes, topics: ClusterTopics) -> bytes:
    """A classic member's assignment, in the version of its subscription."""
    version = min(_version(subscription), _VERSION_MAX)
    named = {topics.name_of(topic): numbers for topic, numbers in assignment.items()}
    items = [
        {"topic": name, "partitions": sorted(numbers)} for name, numbers in named.items() if name is not None
    ]
    fields = {"assigned_partitions": items, "user_data": None}
    return version.to_bytes(2, "big") + encode_data("ConsumerProtocolAssignment", version, fields)


def upgrade(draft: Draft, snapshot: Snapshot, topics: ClusterTopics) -> None:
    """Makes the group of a draft from a classic one. Each member has its last assignment, which is its target
    too. Raises GroupIdNotFound if a member's data is damaged.
    """
    targets: dict[str, Assignment] = {}
    try:
        for member in snapshot.members:
            read = read_subscription(_metadata(member.protocols, snapshot.protocol), topics)
            subscription = Subscription(
                instance=member.instance,
                rack=read.rack,
                client_id=member.client_id,
                client_host=member.client_host,
                topics=read.topics,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                classic=ClassicMember(member.session_timeout_ms, member.protocols),
            )
            targets[member.id] = _read_assignment(member.assignment, topics)
            draft.set(Kind.SUBSCRIPTION, member.id, subscription)
    except (ValueError, InconsistentGroupProtocol) as error:
        raise GroupIdNotFound(
            f"Cannot upgrade the classic group {snapshot.group} to consumer group because the embedded "
            "consumer protocol is malformed."
        ) from error
    draft.set(Kind.EPOCH, "", snapshot.generation)
    for member_id, target in targets.items():
        draft.set(Kind.TARGET, member_id, target)
    draft.set(Kind.TARGET_EPOCH, "", snapshot.generation)
    for member_id, target in targets.items():
        current = Current(snapshot.generation, snapshot.generation, MemberState.STABLE, target)
        draft.set(Kind.CURRENT, member_id, current)


def _metadata(protocols: Protocols, protocol: str | None) -> bytes:
    return dict(protocols).get(protocol or "", protocols[0][1])


def _read_assignment(data: bytes, topics: ClusterTopics) -> Assignment:
    if not data:
        return EMPTY
    fields = decode_data("ConsumerProtocolAssignment", min(_version(data), _VERSION_MAX), data[2:])
    return _assignment(fields["assigned_partitions"], topics)


def _has(current: Current) -> Assignment:
    """All partitions that a member has, also those that it must give up."""
    topics = current.assigned.keys() | current.revoking.keys()
    nothing: frozenset[int] = frozenset()
    return {
        topic: current.assigned.get(topic, nothing) | current.revoking.get(topic, nothing) for topic in topics
    }


def downgraded(group: ConsumerGroup, leaving: Iterable[str], topics: ClusterTopics) -> Snapshot:
    """The group as a classic one, without the members that leave. All others use the classic protocol.

    Each member's assignment is what it has. Kafka takes its target, which another member may still have to
    give up: after a second upgrade, before the members joined again, two members would read those partitions.
    """
    gone = set(leaving)
    members = []
    for member, subscription in group.members.items():
        if member in gone:
            continue
        classic = subscription.classic
        assert classic is not None
        members.append(
            SnapshotMember(
                member,
                subscription.instance,
                subscription.client_id,
                subscription.client_host,
                subscription.rebalance_timeout_ms,
                classic.session_timeout_ms,
                classic.protocols,
                encode_assignment(_has(group.current(member)), classic.protocols[0][1], topics),
            )
        )
    return Snapshot(group.id, group.epoch, CONSUMER_PROTOCOL, None, tuple(members))
