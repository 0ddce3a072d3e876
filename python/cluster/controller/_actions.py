"""Carries out the state machine's actions: writes znodes, opens logs in threads, publishes the view.

Owns no decision. Actions run one after the other. Calls to the coordinator are repeated after a lost
connection (`ZooKeeper.repeating`), so each write accepts that it was done before. The caller handles a lost
session. A failure of one log (its disk, another topic's id) is reported and affects no other log.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from cluster.controller import state as machine
from cluster.controller import znodes
from cluster.controller.metadata import MetadataCache
from cluster.controller.state import Action, ControllerState
from cluster.controller.zookeeper import (
    BadVersionError,
    Check,
    Create,
    Delete,
    NodeExistsError,
    NoNodeError,
    Operation,
    ZooKeeper,
)
from cluster.errors import UnknownTopicOrPartition
from cluster.model import NO_LEADER, BrokerId, PartitionState, TopicInfo, TopicPartition

log = logging.getLogger(__name__)

_OPERATIONS_AT_ONCE = 300
"""Operations of one transaction. Its request stays far below the coordinator's limit of 1 MiB."""

_NAMES_SHOWN = 20
"""Partitions that one log line names."""

Replica = tuple[int, str | None, Sequence[str]]
"""The id of a broker that holds a partition, its rack, and the names of its listeners."""


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """One partition of this broker, as the data plane needs it."""

    topic: str
    topic_id: bytes
    partition: int
    leader_epoch: int
    leader_id: int
    """The partition is served here if this is the broker's own id."""
    config: dict[str, str]
    """The topic's own settings."""
    new: bool = True
    """New to the cluster. While a log directory is offline, only new partitions are created."""
    replicas: Sequence[Replica] = ()
    """All replicas. If it is empty, the leader is the only one."""
    isr: Sequence[int] = ()
    """The ids of the replicas that are in sync."""


class Logs(Protocol):
    """The part of the data plane that the controller commands. Its methods may block and run in threads."""

    def create_partition(self, spec: PartitionSpec) -> None:
        """Opens or creates a partition's log, or gives an open one its new leader, epoch and replicas."""

    def partitions_left(self) -> int:
        """How many more logs can be created before the limit of open files or of mappings is near."""

    def delete_topic(self, topic: str) -> None:
        """Closes and deletes the logs of a topic.

        Without any it raises an error whose `code` is UNKNOWN_TOPIC_OR_PARTITION.
        """

    def update_topic_config(self, topic: str, config: dict[str, str]) -> None:
        """Applies settings to the logs of a topic."""

    def know_topic(self, topic: str, id: bytes, partitions: int, offline: list[int]) -> None:
        """Sets the number of the topic's partitions and this broker's offline ones. Does not block."""

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted. Does not block."""


class Executor:
    """Runs actions. `guard` makes every transaction fail once another controller has been elected."""

    def __init__(self, zk: ZooKeeper, logs: Logs, metadata: MetadataCache, state: ControllerState) -> None:
        self._zk = zk
        self._logs = logs
        self._metadata = metadata
        self._state = state
        self._offline: dict[str, set[int]] = {}
        self.guard = Check(znodes.CONTROLLER_EPOCH, -1)

    async def run(self, actions: Sequence[Action]) -> None:
        """Runs `actions` in order."""
        for action in actions:
            await self._one(action)

    async def _one(self, action: Action) -> None:
        match action:
            case machine.WriteTopic(topic):
                await self._zk.set(
                    znodes.topic_path(topic.name), znodes.encode_topic(topic.id, topic.assignment)
                )
            case machine.CreateStates(name, states):
                await self._create_states(name, states)
            case machine.UpdateState(partition, new_state, expected):
                await self._update_state(partition, new_state, expected)
            case machine.OpenPartitions(topic, partitions, new):
                await asyncio.to_thread(self._open, topic, partitions, new)
            case machine.TakeOffline(topic, failed):
                self._offline[topic.name] = self._offline.get(topic.name, set()) | failed
                names = _names(topic.name, sorted(failed))
                log.error(
                    "these partitions went offline; repair their disk and start the broker again: %s",
                    names,
                )
            case machine.Configure(topic):
                await asyncio.to_thread(self._configure, topic)
            case machine.Publish(topic):
                self._logs.know_topic(
                    topic.name,
                    topic.id,
                    1 + max(topic.assignment, default=-1),
                    sorted(self._offline.get(topic.name, ())),
                )
                self._metadata.publish(replace(topic, partitions=self._shown(topic)))
            case machine.Withdraw(name):
                self._metadata.withdraw(name)
                self._logs.forget_topic(name)
            case machine.CloseTopic(topic):
                await asyncio.to_thread(self._close, topic)
            case machine.DeleteLogs(name):
                await asyncio.to_thread(self._delete_logs, name)
            case machine.RemoveTopic(name):
                await self._remove(name)
            case machine.DropDeletion(name):
                await self._zk.delete(znodes.delete_topic_path(name))

    async def _create_states(self, topic: str, states: Mapping[int, PartitionState]) -> None:
        operations: list[Operation] = []
        if 0 in states and len(states) < _OPERATIONS_AT_ONCE // 2:
            # A new topic: one round trip for everything below it.
            operations.append(Create(znodes.partitions_path(topic), b""))
        else:
            await self._zk.ensure([znodes.partitions_path(topic)])
        for number, state in states.items():
            operations.append(Create(znodes.partition_path(topic, number), b""))
            operations.append(Create(znodes.state_path(topic, number), znodes.encode_state(state)))
        chunks = [
            operations[start : start + _OPERATIONS_AT_ONCE]
            for start in range(0, len(operations), _OPERATIONS_AT_ONCE)
        ]
        try:
            await asyncio.gather(*(self._zk.transaction([self.guard, *chunk]) for chunk in chunks))
        except NodeExistsError:
            # A crash or a lost connection left some of them; write the rest one by one.
            await asyncio.gather(
                *(self._create_state(topic, number, state) for number, state in states.items())
            )

    async def _create_state(self, topic: str, number: int, state: PartitionState) -> None:
        await self._zk.ensure([znodes.partition_path(topic, number)])
        try:
            await self._zk.create(znodes.state_path(topic, number), znodes.encode_state(state))
        except NodeExistsError:
            version = await self._zk.set(znodes.state_path(topic, number), znodes.encode_state(state))
            self._state.states_written(topic, {number: version})

    async def _update_state(self, partition: TopicPartition, state: PartitionState, expected: int) -> None:
        path, data = znodes.state_path(*partition), znodes.encode_state(state)
        try:
            version = await self._zk.set(path, data, expected)
        except BadVersionError:
            found = await self._zk.find(path)
            if found is None or found[0] != data:
                raise
            version = found[1].version
        self._state.states_written(partition.topic, {partition.partition: version})

    async def _remove(self, topic: str) -> None:
        await self._zk.delete(znodes.topic_config_path(topic))
        while numbers := await self._zk.children(znodes.partitions_path(topic)):
            operations: list[Operation] = []
            for number in numbers:
                path = f"{znodes.partitions_path(topic)}/{number}"
                operations += [Delete(f"{path}/{name}") for name in await self._zk.children(path)]
                operations.append(Delete(path))
            with contextlib.suppress(NoNodeError):
                for start in range(0, len(operations), _OPERATIONS_AT_ONCE):
                    await self._zk.transaction([self.guard, *operations[start : start + _OPERATIONS_AT_ONCE]])
        await self._zk.delete_tree(znodes.topic_path(topic))
        await self._zk.delete(znodes.delete_topic_path(topic))

    def _shown(self, topic: TopicInfo) -> dict[int, PartitionState]:
        """The partitions as clients see them: without a leader if the log is offline, as in Kafka.

        The znode keeps the leader, so the next start tries again.
        """
        offline = self._offline.get(topic.name, ())
        return {
            number: replace(state, leader=NO_LEADER) if number in offline else state
            for number, state in topic.partitions.items()
        }

    def _open(self, topic: TopicInfo, partitions: Sequence[int], new: frozenset[int]) -> None:
        failed: dict[int, Exception] = {}
        for number in partitions:
            state = topic.partitions[number]
            try:
                spec = PartitionSpec(
                    topic=topic.name,
                    topic_id=topic.id,
                    partition=number,
                    leader_epoch=state.leader_epoch,
                    leader_id=state.leader,
                    config=dict(topic.config),
                    new=number in new,
                    replicas=self._replicas(topic.assignment[number].replicas),
                    isr=list(state.isr),
                )
                self._logs.create_partition(spec)
            except Exception as error:
                failed[number] = error
        self._offline[topic.name] = self._offline.get(topic.name, set()) - set(partitions) | set(failed)
        if failed:
            first = next(iter(failed))
            names = _names(topic.name, list(failed))
            log.error("these partitions are offline: %s (the first: %s)", names, failed[first])

    def _replicas(self, ids: Sequence[BrokerId]) -> list[Replica]:
        """The replicas with the racks and listeners of those that are registered."""

        def replica(broker: BrokerId) -> Replica:
            info = self._metadata.brokers.get(broker)
            if info is None:
                return broker, None, ()
            return broker, info.rack, [endpoint.listener for endpoint in info.endpoints]

        return [replica(broker) for broker in ids]

    def _configure(self, topic: TopicInfo) -> None:
        try:
            self._logs.update_topic_config(topic.name, dict(topic.config))
        except Exception:
            log.exception("the settings of topic %s could not be applied", topic.name)

    def _close(self, topic: TopicInfo) -> None:
        offline = self._offline.pop(topic.name, set())
        for number, state in topic.partitions.items():
            if state.leader != self._state.local or number in offline:
                continue
            try:
                spec = PartitionSpec(
                    topic=topic.name,
                    topic_id=topic.id,
                    partition=number,
                    leader_epoch=state.leader_epoch,
                    leader_id=NO_LEADER,
                    config=dict(topic.config),
                    new=False,
                )
                self._logs.create_partition(spec)
            except Exception as error:
                log.error("the log of %s-%d could not be closed: %s", topic.name, number, error)
        log.warning(
            "the znode %s of topic %s is gone or unreadable, without a request to delete the topic: its logs "
            "are kept and not served; they are served again when the znode is there with the same topic id",
            znodes.topic_path(topic.name),
            topic.name,
        )

    def _delete_logs(self, topic: str) -> None:
        self._offline.pop(topic, None)
        try:
            self._logs.delete_topic(topic)
        except Exception as error:
            if getattr(error, "code", None) != UnknownTopicOrPartition.code:
                log.exception("the logs of topic %s could not be deleted", topic)


def _names(topic: str, partitions: Sequence[int]) -> str:
    """Partitions as a log line names them."""
    names = ", ".join(f"{topic}-{number}" for number in partitions[:_NAMES_SHOWN])
    more = len(partitions) - _NAMES_SHOWN
    return f"{names} and {more} more" if more > 0 else names
