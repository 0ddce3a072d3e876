"""Carries out the state machine's actions: writes znodes, and puts requests into the channels to the brokers.

Owns no decision. Actions run one after the other. Calls to the coordinator are repeated after a lost
connection (`ZooKeeper.repeating`), so each write accepts that it was done before. The caller handles a lost
session.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence

from cluster.controller import actions as machine
from cluster.controller import znodes
from cluster.controller.actions import Action
from cluster.controller.channel import Channels
from cluster.controller.requests import published, withdrawal
from cluster.controller.state import ControllerState
from cluster.controller.zookeeper import (
    BadVersionError,
    Check,
    Create,
    Delete,
    NodeExistsError,
    NoNodeError,
    Operation,
    SetData,
    ZooKeeper,
)
from cluster.model import BrokerId, PartitionState, TopicInfo, TopicPartition

_OPERATIONS_AT_ONCE = 300
"""Operations of one transaction. Its request stays far below the coordinator's limit of 1 MiB."""


class Executor:
    """Runs actions. `guard` makes every transaction fail once another controller has been elected."""

    def __init__(self, zk: ZooKeeper, channels: Channels, state: ControllerState) -> None:
        self._zk = zk
        self._channels = channels
        self._state = state
        self.guard = Check(znodes.CONTROLLER_EPOCH, -1)
        self._together = False

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Inside, requests are collected, and sent at the end."""
        self._together = True
        try:
            yield
        finally:
            self._together = False
            self._channels.flush()

    async def run(self, actions: Sequence[Action]) -> None:
        """Runs `actions` in order, and then sends the requests that they gave.

        Raises BadVersionError if another controller was elected, or another program wrote a partition's
        state.
        """
        try:
            for action in actions:
                await self._one(action)
        finally:
            if not self._together:
                self._channels.flush()

    async def _one(self, action: Action) -> None:
        match action:
            case machine.WriteTopic(topic):
                await self._write_topic(topic)
            case machine.CreateStates(name, states):
                await self._create_states(name, states)
            case machine.UpdateStates(name, states):
                await self._update_states(name, states)
            case machine.Lead(topic, partitions, new, to):
                self._lead(topic, partitions, new, to)
            case machine.Publish(topic, partitions, to):
                self._publish(topic, partitions, to)
            case machine.PublishBrokers():
                for _, pending in self._channels.all_pending():
                    pending.brokers_changed()
            case machine.Withdraw(topic, deleted):
                gone = withdrawal(topic, deleted)
                for _, pending in self._channels.all_pending():
                    pending.withdraw(topic.name, gone)
            case machine.StopReplicas(topic, broker, partitions, delete, lives_on):
                pending_of = self._channels.pending(broker)
                if pending_of is not None:
                    for number in partitions:
                        pending_of.stop(topic, number, delete, lives_on)
            case machine.RemoveTopic(name):
                await self._remove(name)
                self._state.topic_removed(name)
            case machine.DropReassignments(partitions_of):
                await self._drop_reassignments(partitions_of)
            case machine.DropDeletion(name):
                await self.delete(znodes.delete_topic_path(name))

    async def _write_topic(self, topic: TopicInfo) -> None:
        """Writes the topic's znode. The znode says what is left to do, so requests are on their way first."""
        if not self._together:
            self._channels.flush()
        data = znodes.encode_topic(topic.id, topic.assignment)
        await self._zk.transaction([self.guard, SetData(znodes.topic_path(topic.name), data)])

    async def _drop_reassignments(
        self, partitions: Mapping[TopicPartition, tuple[BrokerId, ...] | None]
    ) -> None:
        found = await self._zk.find(znodes.REASSIGN_PARTITIONS)
        if found is None:
            return
        try:
            asked = znodes.decode_reassignments(found[0])
        except znodes.ZnodeError:
            # Another program has overwritten the znode. The controller ignores it, and has logged why.
            return
        left = {
            partition: replicas
            for partition, replicas in asked.items()
            if partition not in partitions or partitions[partition] not in (None, replicas)
        }
        change = (
            SetData(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignments(left))
            if left
            else Delete(znodes.REASSIGN_PARTITIONS)
        )
        with contextlib.suppress(NoNodeError):
            await self._zk.transaction([self.guard, change])

    def _lead(
        self,
        topic: TopicInfo,
        partitions: Sequence[int],
        new: frozenset[int],
        to: frozenset[BrokerId] | None,
    ) -> None:
        for number in partitions:
            for broker in topic.assignment[number].replicas:
                pending = self._channels.pending(broker) if to is None or broker in to else None
                if pending is not None:
                    pending.lead(topic, number, number in new or broker in topic.assignment[number].adding)

    def _publish(self, topic: TopicInfo, partitions: Sequence[int], to: frozenset[BrokerId] | None) -> None:
        offline = {
            number: [
                broker
                for broker in topic.assignment[number].replicas
                if not self._state.is_online(topic.name, number, broker)
            ]
            for number in partitions
        }
        # Every broker gets the same, so it is made once.
        entries = published(topic, offline)
        for broker, pending in self._channels.all_pending():
            if to is None or broker in to:
                pending.publish(topic.name, entries)

    async def _create_states(self, topic: str, states: Mapping[int, PartitionState]) -> None:
        operations: list[Operation] = []
        if 0 in states and len(states) < _OPERATIONS_AT_ONCE // 2:
            # A new topic: one round trip for everything below it.
            operations.append(Create(znodes.partitions_path(topic), b""))
        else:
            await self._create(znodes.partitions_path(topic))
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
        await self._create(znodes.partition_path(topic, number))
        path, data = znodes.state_path(topic, number), znodes.encode_state(state)
        try:
            await self._zk.transaction([self.guard, Create(path, data)])
        except NodeExistsError:
            found = await self._zk.find(path)
            if found is not None and found[0] == data:
                # An earlier attempt wrote it, and its answer was lost.
                self._state.states_written(topic, {number: found[1].version})
                return
            raise BadVersionError(f"{path} was written by another program") from None

    async def _create(self, path: str) -> None:
        with contextlib.suppress(NodeExistsError):
            await self._zk.transaction([self.guard, Create(path, b"")])

    async def _update_states(self, topic: str, states: Mapping[int, PartitionState]) -> None:
        """Writes the states, many in one transaction; one by one where a transaction fails."""
        numbers = list(states)
        chunks = [
            numbers[start : start + _OPERATIONS_AT_ONCE]
            for start in range(0, len(numbers), _OPERATIONS_AT_ONCE)
        ]

        async def write(chunk: Sequence[int]) -> None:
            sets = [
                SetData(
                    znodes.state_path(topic, number),
                    znodes.encode_state(states[number]),
                    states[number].zk_version,
                )
                for number in chunk
            ]
            try:
                await self._zk.transaction([self.guard, *sets])
            except BadVersionError:
                await asyncio.gather(*(self._update_state(topic, number, states[number]) for number in chunk))
                return
            written = {number: states[number].zk_version + 1 for number in chunk}
            self._state.states_written(topic, written)

        await asyncio.gather(*map(write, chunks))

    async def _update_state(self, topic: str, number: int, state: PartitionState) -> None:
        path, data = znodes.state_path(topic, number), znodes.encode_state(state)
        found = await self._zk.find(path)
        if found is not None and found[0] == data and found[1].version == state.zk_version + 1:
            # An earlier attempt wrote it, and its answer was lost.
            self._state.states_written(topic, {number: found[1].version})
            return
        await self._zk.transaction([self.guard, SetData(path, data, state.zk_version)])
        self._state.states_written(topic, {number: state.zk_version + 1})

    async def _remove(self, topic: str) -> None:
        await self.delete(znodes.topic_config_path(topic))
        while numbers := await self._zk.children(znodes.partitions_path(topic)):
            operations: list[Operation] = []
            for number in numbers:
                path = f"{znodes.partitions_path(topic)}/{number}"
                operations += [Delete(f"{path}/{name}") for name in await self._zk.children(path)]
                operations.append(Delete(path))
            with contextlib.suppress(NoNodeError):
                for start in range(0, len(operations), _OPERATIONS_AT_ONCE):
                    await self._zk.transaction([self.guard, *operations[start : start + _OPERATIONS_AT_ONCE]])
        await self._delete_tree(znodes.topic_path(topic))
        await self.delete(znodes.delete_topic_path(topic))

    async def _delete_tree(self, path: str) -> None:
        for name in await self._zk.children(path):
            await self._delete_tree(f"{path}/{name}")
        await self.delete(path)

    async def delete(self, path: str) -> None:
        """Deletes a node if it exists and this is still the controller."""
        with contextlib.suppress(NoNodeError):
            await self._zk.transaction([self.guard, Delete(path)])
