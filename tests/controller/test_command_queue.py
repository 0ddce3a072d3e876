"""Commands wait in a queue no longer than their requests, and one on many topics lets others run in between.

If one failed, clients that do not wait for their responses could fill the broker's memory, or every other
command would wait until a large one is done.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from cluster.broker.replicas import MetadataCache, ReplicaManager, TopicConfigs
from cluster.controller import (
    Controller,
    NewTopic,
    Outcomes,
    TopicDefaults,
    TopicToDelete,
    ZooKeeper,
    outcome_of,
    znodes,
)
from cluster.errors import RequestTimedOut
from cluster.model import BrokerId, BrokerInfo, Milliseconds, TopicInfo

from .cutting_proxy import coordinator

MANY = 1600
WAIT_SECONDS = 60.0


class NoLogs:
    """A data plane without logs."""

    def create_partition(self, *_args: object) -> None:
        return

    def partitions_left(self) -> int:
        return 1_000_000

    def stop_partition(self, *_args: object) -> None:
        return

    def set_brokers(self, *_args: object) -> None:
        return

    def update_topic_config(self, topic: str, config: dict[str, str]) -> None:
        return

    def know_topic(self, topic: str, id: bytes, partitions: int, offline: list[int]) -> None:
        return

    def forget_topic(self, topic: str) -> None:
        return


class NoReplication:
    """Nobody decides about in-sync replicas."""

    def leads(self, *_args: object) -> None:
        return

    def follows(self, *_args: object) -> None:
        return

    def isr(self, _partition: object) -> None:
        return None

    def on_give_up(self, _callback: object) -> None:
        return


@asynccontextmanager
async def controlling(directory: Path) -> AsyncIterator[tuple[Controller, MetadataCache]]:
    async with coordinator(directory) as (cutter, _):
        zk = await ZooKeeper.connect(f"127.0.0.1:{cutter.port}", Milliseconds(30_000), Milliseconds(30_000))
        await zk.ensure(znodes.PERSISTENT_PATHS)
        await zk.create(
            znodes.broker_path(0), znodes.encode_broker(BrokerInfo(BrokerId(0), ()), 0), ephemeral=True
        )
        metadata = MetadataCache("cluster")
        defaults = TopicDefaults(1, 1, lambda config: None)
        logs, broker = NoLogs(), BrokerId(0)

        async def nothing_failed() -> None:
            raise AssertionError

        configs, nothing = TopicConfigs(zk), NoReplication()
        replicas = ReplicaManager(logs, metadata, configs, broker, "PLAINTEXT", nothing_failed, nothing)
        controller = Controller(zk, lambda _: replicas, broker, "PLAINTEXT", defaults, logs.partitions_left)
        try:
            await controller.start()
            yield controller, metadata
        finally:
            await controller.stop()
            await zk.close()


class Settings(dict[str, str | None]):
    """A part of a request whose release can be observed."""


def many(prefix: str = "t") -> list[NewTopic]:
    return [NewTopic(f"{prefix}{number}") for number in range(MANY)]


async def published(metadata: MetadataCache, name: str) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while metadata.topic(name) is None:
            await asyncio.sleep(0.01)


def test_a_command_answered_before_it_began_is_dropped_with_its_memory(tmp_path: Path) -> None:
    async def flood(controller: Controller) -> list[weakref.ref[Settings]]:
        seen = []
        for number in range(200):
            # Some fit into one slice, some do not.
            settings = Settings(a="b")
            seen.append(weakref.ref(settings))
            news = [NewTopic(f"flood-{number}", config=settings), *(many() if number % 50 == 0 else ())]
            error = await outcome_of(controller.topics.create(news), 1)
            assert isinstance(error, RequestTimedOut)
            del news, settings
            outcomes: Outcomes = []
            deletion = controller.topics.delete([TopicToDelete("kept")], outcomes)
            assert isinstance(await outcome_of(deletion, 1), RequestTimedOut)
        return seen

    async def main() -> None:
        async with controlling(tmp_path) as (controller, metadata):
            await controller.topics.create_one(NewTopic("kept"))
            begun, held = asyncio.Event(), asyncio.Event()
            holding = asyncio.create_task(controller.queue.command(held.wait, begun.set))
            await begun.wait()
            before = len(controller.queue)
            seen = await flood(controller)
            assert (
                len(controller.queue) <= before + 2
            )  # The topic that stays: its watch, its brokers' answers.
            await asyncio.sleep(0)
            gc.collect()
            assert sum(item() is not None for item in seen) == 0
            held.set()
            await holding
            await controller.topics.create_one(NewTopic("last"))
            assert set(metadata.names()) == {"kept", "last"}

    asyncio.run(main())


def test_a_command_that_has_begun_continues_after_its_response(tmp_path: Path) -> None:
    async def main() -> None:
        async with controlling(tmp_path) as (controller, metadata):
            work = asyncio.create_task(controller.topics.create(many()))
            await published(metadata, "t0")
            assert metadata.topic(f"t{MANY - 1}") is None
            work.cancel()
            await published(metadata, f"t{MANY - 1}")

    asyncio.run(main())


def test_a_command_of_many_topics_lets_others_run(tmp_path: Path) -> None:
    async def main() -> None:
        async with controlling(tmp_path) as (controller, metadata):
            first = asyncio.create_task(controller.topics.create(many("a")))
            second = asyncio.create_task(controller.topics.create(many("b")))
            await published(metadata, "a0")
            await controller.topics.create_one(NewTopic("mine"))
            assert len(list(metadata.names())) < MANY / 2
            made = [*await first, *await second]
            assert all(isinstance(topic, TopicInfo) for topic in made)
            assert len(made) == 2 * MANY
            outcomes: Outcomes = []
            deletion = controller.topics.delete([TopicToDelete(f"a{n}") for n in range(MANY)], outcomes)
            deleting = asyncio.create_task(deletion)
            while not outcomes:
                await asyncio.sleep(0.01)
            await controller.topics.create_one(NewTopic("mine-too"))
            assert len(outcomes) < MANY / 2
            deleting.cancel()

    asyncio.run(main())


def test_a_check_does_not_wait_in_the_queue(tmp_path: Path) -> None:
    async def main() -> None:
        async with controlling(tmp_path) as (controller, _):
            begun, held = asyncio.Event(), asyncio.Event()
            holding = asyncio.create_task(controller.queue.command(held.wait, begun.set))
            await begun.wait()
            async with asyncio.timeout(WAIT_SECONDS):
                [checked] = await controller.topics.create([NewTopic("t")], validate_only=True)
            assert isinstance(checked, TopicInfo)
            held.set()
            await holding

    asyncio.run(main())
