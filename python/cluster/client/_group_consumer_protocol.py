"""A member's requests of the consumer protocol to its group's coordinator: ConsumerGroupHeartbeat.

`Known` decides what a heartbeat says; it is pure. The group's thread calls `heartbeat`, the application's
thread `leave`. Sources: KIP-848, KIP-1082 (the member makes its id), ConsumerHeartbeatRequestManager.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ._coordinator import Coordinator
from ._errors import KafkaError, KafkaException, failed
from ._group import GenerationEnded

logger = logging.getLogger("cluster.client")

JOIN_EPOCH = 0
_LEAVE_EPOCH = -1
_LEAVE_STATIC_EPOCH = -2
"""A static member leaves for a while: its partitions wait for it until its session ends."""
_HEARTBEAT_TIMEOUT = 10.0
_REMOVED = frozenset({KafkaError.FENCED_MEMBER_EPOCH, KafkaError.UNKNOWN_MEMBER_ID})
"""The group has removed the member, which joins again."""
_UNSUPPORTED = frozenset({KafkaError.UNSUPPORTED_VERSION, KafkaError._UNSUPPORTED_FEATURE})

Partitions = Mapping[bytes, tuple[int, ...]]
"""Partitions by the ids of their topics."""


@dataclass(frozen=True)
class Answer:
    """A heartbeat's answer. `interval`: seconds until the next one. `assignment`: None is no change."""

    epoch: int
    interval: float
    assignment: Partitions | None


@dataclass
class Known:
    """What the coordinator knows of the member. A heartbeat says only what differs from it (null elsewhere).

    After a failure the coordinator may know anything, so the next heartbeat says everything.
    """

    _fields: dict[str, Any] = field(default_factory=dict)

    def news(self, epoch: int, says: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a heartbeat; a member that joins says everything."""
        if epoch == JOIN_EPOCH:
            self.forget()
        return {name: value for name, value in says.items() if self._fields.get(name) != value}

    def learn(self, says: Mapping[str, Any]) -> None:
        """The coordinator has answered a heartbeat that said these fields."""
        self._fields.update(says)

    def forget(self, *names: str) -> None:
        """The next heartbeat says these fields; without names, all."""
        for name in names or list(self._fields):
            self._fields.pop(name, None)


class ConsumerProtocol:
    """The requests of one consumer to its group."""

    def __init__(self, coordinator: Coordinator, settings: Mapping[str, Any]) -> None:
        self._coordinator = coordinator
        self._instance: str | None = settings.get("group.instance.id")
        self._always = {
            "rebalance_timeout_ms": settings["max.poll.interval.ms"],
            "server_assignor": settings.get("group.remote.assignor") or None,
            "rack_id": settings.get("client.rack") or None,
        }
        self._known = Known()

    def heartbeat(self, member_id: str, epoch: int, topics: list[str], owned: Partitions) -> Answer:
        """ConsumerGroupHeartbeat; epoch 0 joins. Raises GenerationEnded when the member must join again, with
        `fatal` when it must not, and KafkaException for a failure that may pass.
        """
        says = {
            **self._always,
            "subscribed_topic_names": topics,
            "topic_partitions": [
                {"topic_id": topic, "partitions": list(numbers)} for topic, numbers in owned.items()
            ],
        }
        message = {**self._member(member_id, epoch), **self._known.news(epoch, says)}
        try:
            response = self._coordinator.call(
                "ConsumerGroupHeartbeat", message, timeout=_HEARTBEAT_TIMEOUT, purpose="group"
            )
            _check(response, epoch)
        except KafkaException as failure:
            self._known.forget()
            error = failure.error
            if error.retriable() or error == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise
            raise GenerationEnded(lost=True, fatal=True, error=_explained(error)) from None
        except GenerationEnded:
            self._known.forget()
            raise
        self._known.learn(says)
        assignment = response["assignment"]
        given: Partitions | None = None
        if assignment is not None:
            topic_partitions = assignment["topic_partitions"]
            given = {found["topic_id"]: tuple(found["partitions"]) for found in topic_partitions}
        return Answer(response["member_epoch"], response["heartbeat_interval_ms"] / 1000, given)

    def acknowledge(self) -> None:
        """The next heartbeat says which partitions the member has, changed or not."""
        self._known.forget("topic_partitions")

    def leave(self, member_id: str, timeout: float) -> None:
        """Leaves the group. A static member keeps its partitions until its session ends."""
        epoch = _LEAVE_EPOCH if self._instance is None else _LEAVE_STATIC_EPOCH
        message = self._member(member_id, epoch)
        try:
            self._coordinator.call("ConsumerGroupHeartbeat", message, timeout=timeout, purpose="group")
        except KafkaException as error:
            logger.info("leaving group %s failed: %s", self._coordinator.group, error.error.str())

    def _member(self, member_id: str, epoch: int) -> dict[str, Any]:
        # Null, and -1 for the timeout, mean that nothing has changed.
        return {
            "group_id": self._coordinator.group,
            "member_id": member_id,
            "member_epoch": epoch,
            "instance_id": self._instance,
            "rack_id": None,
            "rebalance_timeout_ms": -1,
            "subscribed_topic_names": None,
            "subscribed_topic_regex": None,
            "server_assignor": None,
            "topic_partitions": None,
        }


def _check(response: Mapping[str, Any], epoch: int) -> None:
    code = response["error_code"]
    # A member that joins gets GROUP_ID_NOT_FOUND if its group is of another kind and cannot be converted.
    gone = code == KafkaError.GROUP_ID_NOT_FOUND and epoch != JOIN_EPOCH
    if code in _REMOVED or gone:
        raise GenerationEnded(lost=True, error=KafkaError(code))
    if code:
        error = KafkaError(code)
        reason = response["error_message"]
        raise failed(code, f"{error.str()}: {reason}" if reason else None)


def _explained(error: KafkaError) -> KafkaError:
    if error.code() not in _UNSUPPORTED:
        return error
    text = "the broker does not serve group.protocol=consumer (KIP-848); set group.protocol=classic"
    return KafkaError(error.code(), f"{text}: {error.str()}")
