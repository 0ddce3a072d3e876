"""A classic member's requests to its group's coordinator: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

Holds no state of the membership; the group's thread calls it, and the application's thread `leave`. Sources:
KIP-345 (static members), KIP-394 (member id required), ConsumerProtocol of the Java client.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from logcore import _native

from ._assignors import ASSIGNORS, Member
from ._coordinator import Coordinator
from ._errors import KafkaError, KafkaException
from ._group import GenerationEnded
from ._types import TopicPartition, group_by_topic

logger = logging.getLogger("cluster.client")

_SUBSCRIPTION_VERSION = 0
"""Every client reads version 0 of the consumer protocol; later fields are for cooperative assignors."""
_COOPERATIVE_VERSION = 2
"""The first version with the generation in which a member got its partitions."""
_HEARTBEAT_TIMEOUT = 10.0
_JOIN_SLACK = 5.0
"""Seconds that the answer to a JoinGroup may take in addition to the rebalance timeout."""


@dataclass(frozen=True)
class Joined:
    """The answer to JoinGroup. Generation -1: it only names the id to join with (KIP-394)."""

    member_id: str
    generation: int = -1
    assignor: str = ""
    members: tuple[Member, ...] = ()
    """Every member with its topics; only the leader gets them."""


class ClassicProtocol:
    """The requests of one consumer to its group."""

    def __init__(self, coordinator: Coordinator, settings: dict[str, Any]) -> None:
        self._coordinator = coordinator
        self._session = settings["session.timeout.ms"] / 1000
        self._max_poll = settings["max.poll.interval.ms"] / 1000
        self._strategies: list[str] = settings.get("partition.assignment.strategy", ["range", "roundrobin"])
        self.instance: str | None = settings.get("group.instance.id")
        self.cooperative: bool = self._strategies == ["cooperative-sticky"]

    def join(
        self, member_id: str | None, topics: list[str], owned: list[TopicPartition], generation: int
    ) -> Joined:
        """JoinGroup; waits until the coordinator has all members.

        A cooperative member keeps the partitions `owned`, which it got in `generation`.
        """
        metadata = self._metadata(topics, owned, generation)
        message = {
            "group_id": self._coordinator.group,
            "session_timeout_ms": int(self._session * 1000),
            "rebalance_timeout_ms": int(self._max_poll * 1000),
            "member_id": member_id or "",
            "group_instance_id": self.instance,
            "protocol_type": "consumer",
            "protocols": [{"name": name, "metadata": metadata} for name in self._strategies],
        }
        joined = self._coordinator.call(
            "JoinGroup", message, timeout=self._max_poll + _JOIN_SLACK, purpose="group", newest=5
        )
        if joined["error_code"] == KafkaError.MEMBER_ID_REQUIRED and member_id is None:
            return Joined(joined["member_id"])
        _check(joined["error_code"])
        leads = joined["leader"] == joined["member_id"]
        members = tuple(_read_member(member) for member in joined["members"]) if leads else ()
        return Joined(joined["member_id"], joined["generation_id"], joined["protocol_name"], members)

    def _metadata(self, topics: list[str], owned: list[TopicPartition], generation: int) -> bytes:
        version = _SUBSCRIPTION_VERSION
        message: dict[str, Any] = {"topics": topics, "user_data": None}
        if self.cooperative:
            version = _COOPERATIVE_VERSION
            found = group_by_topic(owned)
            message |= {
                # Java members before 3.3 read the generation here.
                "user_data": generation.to_bytes(4, "big", signed=True),
                "owned_partitions": [
                    {"topic": topic, "partitions": [one.partition for one in partitions]}
                    for topic, partitions in found.items()
                ],
                "generation_id": generation,
            }
        encoded = _native.encode_data("ConsumerProtocolSubscription", version, message)
        return version.to_bytes(2, "big") + encoded

    def sync(self, joined: Joined, counts: Mapping[str, int]) -> list[TopicPartition]:
        """SyncGroup; returns the partitions this member was assigned.

        A leader assigns `counts` partitions.
        """
        assignment = ASSIGNORS[joined.assignor](list(joined.members), counts) if joined.members else {}
        synced = self._coordinator.call(
            "SyncGroup",
            {
                **self._member(joined.member_id, joined.generation),
                "assignments": [
                    {"member_id": member, "assignment": _write_assignment(partitions)}
                    for member, partitions in assignment.items()
                ],
            },
            timeout=self._max_poll + _JOIN_SLACK,
            purpose="group",
            newest=3,
        )
        _check(synced["error_code"])
        return read_assignment(synced["assignment"])

    def heartbeat(self, member_id: str | None, generation: int) -> None:
        """Heartbeat. Raises GenerationEnded when the member must join again."""
        response = self._coordinator.call(
            "Heartbeat",
            self._member(member_id or "", generation),
            timeout=min(_HEARTBEAT_TIMEOUT, self._session),
            purpose="group",
            newest=3,
        )
        _check(response["error_code"])

    def leave(self, member_id: str, timeout: float) -> None:
        """LeaveGroup, so that the other members need not wait for this one's session to end.

        A static member does not leave: it is expected back.
        """
        if self.instance is not None:
            return
        # Version 3 and later name several members; every broker understands the single one of version 2.
        message = {"group_id": self._coordinator.group, "member_id": member_id}
        try:
            self._coordinator.call("LeaveGroup", message, timeout=timeout, newest=2)
        except KafkaException as error:
            logger.info("leaving group %s failed: %s", self._coordinator.group, error.error.str())

    def _member(self, member_id: str, generation: int) -> dict[str, Any]:
        return {
            "group_id": self._coordinator.group,
            "generation_id": generation,
            "member_id": member_id,
            "group_instance_id": self.instance,
        }


def _check(code: int) -> None:
    """Raises what an error code of JoinGroup, SyncGroup or Heartbeat means."""
    match code:
        case KafkaError.NO_ERROR:
            return
        case KafkaError.REBALANCE_IN_PROGRESS:
            raise GenerationEnded(lost=False, error=KafkaError(code))
        case KafkaError.UNKNOWN_MEMBER_ID:
            raise GenerationEnded(lost=True, forget_member=True, error=KafkaError(code))
        case KafkaError.ILLEGAL_GENERATION:
            raise GenerationEnded(lost=True, error=KafkaError(code))
        case KafkaError.FENCED_INSTANCE_ID:
            raise GenerationEnded(lost=True, forget_member=True, fatal=True, error=KafkaError(code))
    raise KafkaException(KafkaError(code))


def _read_member(member: dict[str, Any]) -> Member:
    data = member["metadata"]
    version = min(int.from_bytes(data[:2], "big"), 3)
    decoded = _native.decode_data("ConsumerProtocolSubscription", version, data[2:])
    owned = tuple(
        (topic["topic"], partition)
        for topic in decoded.get("owned_partitions", [])
        for partition in topic["partitions"]
    )
    generation = decoded.get("generation_id", -1)
    user_data = decoded["user_data"] or b""
    if generation < 0 and len(user_data) == 4:
        generation = int.from_bytes(user_data, "big", signed=True)
    return Member(
        member["member_id"], frozenset(decoded["topics"]), member.get("group_instance_id"), owned, generation
    )


def read_assignment(data: bytes) -> list[TopicPartition]:
    """The partitions in a member's assignment; none for an empty one."""
    if not data:
        return []
    version = min(int.from_bytes(data[:2], "big"), 3)
    decoded = _native.decode_data("ConsumerProtocolAssignment", version, data[2:])
    return [
        TopicPartition(topic["topic"], partition)
        for topic in decoded["assigned_partitions"]
        for partition in topic["partitions"]
    ]


def _write_assignment(partitions: list[tuple[str, int]]) -> bytes:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    message = {
        "assigned_partitions": [{"topic": topic, "partitions": found} for topic, found in topics.items()],
        "user_data": None,
    }
    encoded = _native.encode_data("ConsumerProtocolAssignment", _SUBSCRIPTION_VERSION, message)
    return _SUBSCRIPTION_VERSION.to_bytes(2, "big") + encoded
