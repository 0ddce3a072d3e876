"""Asks the controller for the ISRs that the state machine wishes for, one request at a time.

Lives on the event loop. While the controller does not answer, the wishes stay and are asked again. Not
persistent. Source: DefaultAlterPartitionManager.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from cluster.errors import NONE, KafkaProtocolError, for_code
from cluster.model import BrokerId, LeaderEpoch, TopicId, TopicPartition
from cluster.peer import Body
from cluster.replication.state import Answer, GiveUp, Led, ReplicationState, Report, SetIsr

log = logging.getLogger(__name__)

ALTER_PARTITION = 56
_VERSION = 3
"""The version of inter.broker.protocol.version 3.9."""

_WARN_SECONDS = 60.0

_PAUSE_SECONDS = 0.05
"""Between two attempts at a request (`DefaultAlterPartitionManager`)."""


class ToController(Protocol):
    """Requests to the controller, wherever it is."""

    async def request(self, api_key: int, version: int, body: Body) -> Body:
        """Sends a request. Raises OSError, ValueError or KafkaProtocolError."""


class DataPlane(Protocol):
    """The part of the data plane that counts replicas."""

    def set_isr(
        self,
        topic: str,
        partition: int,
        leader_epoch: int,
        isr: list[int],
        pending: list[int],
        partition_epoch: int,
    ) -> bool:
        """Sets the ISR of a partition. Does not block.

        Returns False if the partition is not led here in this epoch, or a pending replica fell behind the
        high watermark again.
        """


class Replication:
    """The in-sync replicas of the partitions that `local` leads."""

    def __init__(
        self,
        local: BrokerId,
        data_plane: DataPlane,
        controller: ToController,
        broker_epoch: Callable[[], int],
    ) -> None:
        self._local = local
        self._data_plane = data_plane
        self._controller = controller
        self._broker_epoch = broker_epoch
        self._state = ReplicationState()
        self.shrinks = self.expands = self.failures = 0
        """Partitions whose ISR became smaller or larger, and changes that the controller refused."""
        self._woken = asyncio.Event()
        self._warn_after = 0.0
        self._task: asyncio.Task[None] | None = None
        self._give_up: Callable[[TopicPartition], None] | None = None

    def on_give_up(self, callback: Callable[[TopicPartition], None]) -> None:
        """Sets the function that learns of led partitions that another replica must lead."""
        self._give_up = callback

    def start(self) -> None:
        """Starts the task that asks the controller."""
        self._task = asyncio.create_task(self._run(), name="in-sync replicas")

    async def stop(self) -> None:
        """Ends the task."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def leads(
        self,
        partition: TopicPartition,
        topic_id: TopicId,
        leader_epoch: int,
        isr: Iterable[int],
        partition_epoch: int,
    ) -> None:
        """The controller made this broker the partition's leader."""
        members = tuple(map(BrokerId, isr))
        self._state.leads(partition, topic_id, LeaderEpoch(leader_epoch), members, partition_epoch)
        # The data plane reports a follower once. What it reported before this call is reported again.
        self._carry_out([SetIsr(partition, LeaderEpoch(leader_epoch), members, (), partition_epoch)])

    def follows(self, partition: TopicPartition) -> None:
        """This broker does not lead the partition, or no longer has it."""
        self._state.follows(partition)

    def reported(self, reports: Iterable[tuple[str, int, int, int, str]]) -> None:
        """Reports of the data plane: topic, partition, leader's epoch, replica, "caught_up", "fell_behind" or
        "lacks_space".
        """
        found = [
            Report(TopicPartition(topic, number), epoch, BrokerId(broker), kind)
            for topic, number, epoch, broker, kind in reports
        ]
        self._carry_out(self._state.reported(found))
        self._woken.set()

    def isr(self, partition: TopicPartition) -> tuple[tuple[BrokerId, ...], int] | None:
        """The ISR of a partition that is led here, and its version."""
        led = self._state.led.get(partition)
        return None if led is None else (led.isr, led.partition_epoch)

    def _carry_out(self, actions: Iterable[SetIsr | GiveUp]) -> None:
        for action in actions:
            if isinstance(action, GiveUp):
                if self._give_up is not None:
                    self._give_up(action.partition)
                continue
            is_set = self._data_plane.set_isr(
                *action.partition,
                action.leader_epoch,
                list(action.isr),
                list(action.pending),
                action.partition_epoch,
            )
            if not is_set:
                self._state.not_set(action)

    async def _run(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            while asked := self._state.wishes():
                try:
                    is_answered = await self._ask(asked)
                except Exception:
                    log.exception("a change of in-sync replicas failed and is asked for again")
                    self._state.unanswered(asked)
                    is_answered = False
                if not is_answered:
                    await asyncio.sleep(_PAUSE_SECONDS)

    async def _ask(self, asked: Mapping[TopicPartition, Led]) -> bool:
        """Asks for ISRs. Returns False if some must be asked for again."""
        try:
            answer = await self._controller.request(ALTER_PARTITION, _VERSION, self._body(asked))
            if answer["error_code"] != NONE:
                raise for_code(answer["error_code"])()
        except (OSError, ValueError, KafkaProtocolError) as error:
            self._warn("the controller did not change in-sync replicas and is asked again: %s", error)
            self._state.unanswered(asked)
            return False
        except BaseException:
            self._state.unanswered(asked)
            raise
        names = {led.topic_id: partition.topic for partition, led in asked.items()}
        answers = {
            TopicPartition(names[TopicId(topic["topic_id"])], item["partition_index"]): Answer(
                item["error_code"],
                item["leader_epoch"],
                tuple(map(BrokerId, item["isr"])),
                item["partition_epoch"],
            )
            for topic in answer["topics"]
            if topic["topic_id"] in names
            for item in topic["partitions"]
        }
        for partition, led in asked.items():
            granted = answers.get(partition)
            if granted is not None and granted.code == NONE and set(granted.isr) != set(led.isr):
                log.info("in-sync replicas of %s: %s, before %s", partition, [*granted.isr], [*led.isr])
                self.shrinks += len(granted.isr) < len(led.isr)
                self.expands += len(granted.isr) > len(led.isr)
            self.failures += granted is None or granted.code != NONE
        self._carry_out(self._state.answered(asked, answers))
        remaining = self._state.still_wished(asked)
        for partition in remaining:
            refused = (
                for_code(answers[partition].code)() if partition in answers else "it is not in the answer"
            )
            self._warn("the in-sync replicas of %s are asked for again: %s", partition, refused)
        return not remaining

    def _warn(self, text: str, *arguments: object) -> None:
        """Logs a failure that is tried again, at most once a minute."""
        now = asyncio.get_running_loop().time()
        if now >= self._warn_after:
            self._warn_after = now + _WARN_SECONDS
            log.warning(text, *arguments)

    def _body(self, asked: Mapping[TopicPartition, Led]) -> Body:
        topics: dict[TopicId, list[Body]] = {}
        for partition, led in asked.items():
            topics.setdefault(led.topic_id, []).append(
                {
                    "partition_index": partition.partition,
                    "leader_epoch": led.leader_epoch,
                    "new_isr_with_epochs": [
                        {"broker_id": broker, "broker_epoch": -1} for broker in led.wished or ()
                    ],
                    "leader_recovery_state": 0,
                    "partition_epoch": led.partition_epoch,
                }
            )
        return {
            "broker_id": self._local,
            "broker_epoch": self._broker_epoch(),
            "topics": [
                {"topic_id": topic_id, "partitions": partitions} for topic_id, partitions in topics.items()
            ],
        }
