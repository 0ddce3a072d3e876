"""Three brokers in one process, on one coordinator: topics with three replicas, failover, growth.

If one failed, a record that was acknowledged by all in-sync replicas would be lost with its leader, or a
cluster would need an operator to go on.
"""

from __future__ import annotations

import asyncio
import filecmp
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from cluster.broker import Broker, BrokerConfig
from cluster.client import AdminClient, Consumer, NewTopic, Producer
from cluster.coordinator import CoordinatorServer
from cluster.model import TopicInfo
from cluster.state_topics import partition_of

WAIT_SECONDS = 60.0
ALL = (0, 1, 2)

pytestmark = pytest.mark.timeout(180)


class Cluster:
    """Brokers on one coordinator."""

    def __init__(self, stack: AsyncExitStack, directory: Path, port: int) -> None:
        self.brokers: dict[int, Broker] = {}
        self._stack = stack
        self._directory = directory
        self._port = port
        self._ports: dict[int, int] = {}
        self._changed = asyncio.Event()

    def directory(self, number: int) -> Path:
        return self._directory / f"broker-{number}"

    async def start(self, number: int, **settings: str) -> Broker:
        """Starts a broker, at the same address as before."""
        given = {
            "broker.id": str(number),
            "listeners": f"PLAINTEXT://127.0.0.1:{self._ports.get(number, 0)}",
            "log.dirs": str(self.directory(number)),
            "zookeeper.connect": f"127.0.0.1:{self._port}",
            "replica.lag.time.max.ms": "3000",
            "offsets.topic.num.partitions": "3",
            "group.initial.rebalance.delay.ms": "0",
            "controlled.shutdown.retry.backoff.ms": "100",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        broker = Broker(BrokerConfig.parse(given))
        await broker.start()
        self._notice_changes(broker)
        self.brokers[number] = broker
        self._ports[number] = broker.endpoints[0].port
        return broker

    async def stop(self, number: int) -> None:
        await self.brokers.pop(number).stop()

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def topic(self, number: int, name: str) -> TopicInfo | None:
        metadata = self.brokers[number]._parts.metadata
        return None if metadata is None else metadata.topic(name)

    def _notice_changes(self, broker: Broker) -> None:
        """Sets `_changed` after each request of a controller to the broker."""
        replicas = broker._replicas
        assert replicas is not None

        def noticed(carry_out: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
            async def carry_out_and_tell(body: Any) -> Any:
                answer = await carry_out(body)
                self._changed.set()
                return answer

            return carry_out_and_tell

        for name in ("leader_and_isr", "update_metadata", "stop_replica"):
            setattr(replicas, name, noticed(getattr(replicas, name)))

    async def until(self, holds: Callable[[], bool]) -> None:
        """Returns when `holds` is true, which only a request of a controller can make it."""
        async with asyncio.timeout(WAIT_SECONDS):
            while not holds():
                self._changed.clear()
                # A request that a broker began during its start is not noticed.
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), 1.0)

    def leader(self, name: str, partition: int = 0) -> int:
        """The leader that every broker knows; -1 if they differ."""
        leaders = set()
        for number in self.brokers:
            topic = self.topic(number, name)
            leaders.add(-1 if topic is None else int(topic.partitions[partition].leader))
        return leaders.pop() if len(leaders) == 1 else -1

    def isr(self, name: str, partition: int = 0) -> set[int]:
        """The in-sync replicas that every broker knows; empty if they differ."""
        known = set()
        for number in self.brokers:
            topic = self.topic(number, name)
            known.add(frozenset() if topic is None else frozenset(map(int, topic.partitions[partition].isr)))
        return set(known.pop()) if len(known) == 1 else set()


@asynccontextmanager
async def cluster(directory: Path, brokers: tuple[int, ...] = ALL) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        coordinator = CoordinatorServer(directory / "coordinator", "127.0.0.1", 0)
        port = await coordinator.start()
        stack.push_async_callback(coordinator.stop)
        made = Cluster(stack, directory, port)
        try:
            for number in brokers:
                await made.start(number)
            yield made
        finally:
            for number in list(made.brokers):
                await made.stop(number)


async def create(made: Cluster, name: str, partitions: int = 1, replicas: int = 3, **config: str) -> None:
    def run() -> None:
        admin = AdminClient({"bootstrap.servers": made.bootstrap})
        topic = NewTopic(
            name, partitions, replicas, config={k.replace("_", "."): v for k, v in config.items()}
        )
        admin.create_topics([topic])[name].result(WAIT_SECONDS)
        admin.close()

    await asyncio.to_thread(run)
    await made.until(lambda: len(made.isr(name)) == replicas)


async def produce(made: Cluster, name: str, values: list[str]) -> None:
    """Produces with acks=all; every record must be acknowledged."""
    failures: list[object] = []

    def run() -> None:
        producer = Producer({"bootstrap.servers": made.bootstrap, "acks": "all", "enable.idempotence": True})
        for value in values:
            producer.produce(name, value, key="k", on_delivery=lambda error, _: failures.append(error))
        producer.flush(WAIT_SECONDS)
        producer.close()

    await asyncio.to_thread(run)
    assert failures == [None] * len(values)


async def consume(made: Cluster, name: str, count: int, group: str = "g") -> list[str]:
    def run() -> list[str]:
        consumer = Consumer(
            {"bootstrap.servers": made.bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
        )
        consumer.subscribe([name])
        found: list[str] = []
        while len(found) < count:
            message = consumer.poll(WAIT_SECONDS)
            assert message is not None
            assert message.error() is None, message.error()
            found.append((message.value() or b"").decode())
        consumer.commit(asynchronous=False)
        consumer.close()
        return found

    return await asyncio.to_thread(run)


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(work(), 150)

    asyncio.run(bounded())


def values(prefix: str, count: int = 100) -> list[str]:
    return [f"{prefix}-{number}" for number in range(count)]


def test_three_brokers_are_one_cluster(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as made:
            await create(made, "t", partitions=3)
            assert {made.leader("t", number) for number in range(3)} == set(ALL)
            await produce(made, "t", values("a"))
            assert sorted(await consume(made, "t", 100)) == sorted(values("a"))
            for number in ALL:
                await made.stop(number)
            # Each broker's segments are equal.
            for partition in range(3):
                files = [
                    made.directory(number) / f"t-{partition}" / "00000000000000000000.log" for number in ALL
                ]
                assert all(filecmp.cmp(files[0], other, shallow=False) for other in files[1:])

    run(main)


def test_a_stopped_leader_hands_over_and_comes_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as made:
            await create(made, "t")
            await produce(made, "t", values("a"))
            leader = made.leader("t")
            await made.stop(leader)
            await made.until(lambda: made.leader("t") not in (-1, leader))
            await produce(made, "t", values("b"))
            await made.start(leader)
            await made.until(lambda: made.isr("t") == set(ALL))
            assert await consume(made, "t", 200) == values("a") + values("b")

    run(main)


def test_the_controller_may_go_and_its_work_is_done_by_another(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as made:
            await create(made, "t")
            controller = next(
                number
                for number, broker in made.brokers.items()
                if broker._controller is not None and broker._controller.active
            )
            await made.stop(controller)
            await create(made, "u", replicas=2)
            await produce(made, "u", values("a"))
            await produce(made, "t", values("b"))
            await made.start(controller)
            await made.until(lambda: made.isr("t") == set(ALL))
            assert await consume(made, "t", 100) == values("b")
            assert await consume(made, "u", 100, "h") == values("a")

    run(main)


def test_a_group_lives_through_the_move_of_its_coordinator(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as made:
            await create(made, "t")
            await create(made, "__consumer_offsets", partitions=3, cleanup_policy="compact")
            await produce(made, "t", values("a"))
            assert await consume(made, "t", 100) == values("a")
            home = made.leader("__consumer_offsets", partition_of("g", 3))
            await made.stop(home)
            await produce(made, "t", values("b"))
            # The committed offset is where the next leader of the group's partition begins.
            assert await consume(made, "t", 100) == values("b")

    run(main)


def test_a_topic_deleted_while_a_broker_is_down_is_gone_when_it_comes_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as made:
            await create(made, "t")
            await made.stop(2)
            await made.until(lambda: made.isr("t") == {0, 1})

            def delete() -> None:
                admin = AdminClient({"bootstrap.servers": made.bootstrap})
                admin.delete_topics(["t"])["t"].result(WAIT_SECONDS)
                admin.close()

            await asyncio.to_thread(delete)
            assert (made.directory(2) / "t-0").exists()
            await made.start(2)
            await made.until(lambda: not (made.directory(2) / "t-0").exists())
            assert made.topic(2, "t") is None

    run(main)
