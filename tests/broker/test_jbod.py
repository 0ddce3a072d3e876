"""A broker with several log directories, and the progress of a long start.

If one failed, a disk that is not mounted would stop the start, an empty partition would replace one on that
disk, or the progress of a recovery would be unknown.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import threading
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from cluster.broker import Broker, BrokerConfig, BrokerStartError, BrokerStopError, _broker
from cluster.coordinator import CoordinatorServer

from .test_cluster import ALL, cluster, produce, run, values
from .test_cluster import create as create_replicated
from .wire import Wire

NO_LEADER = -1


async def settings(stack: AsyncExitStack, directory: Path) -> dict[str, str]:
    server = CoordinatorServer(directory / "coordinator", "127.0.0.1", 0)
    port = await server.start()
    stack.push_async_callback(server.stop)
    return {
        "broker.id": "3",
        "zookeeper.connect": f"127.0.0.1:{port}",
        "log.dirs": f"{directory / 'one'},{directory / 'two'}",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "num.recovery.threads.per.data.dir": "2",
    }


async def create(wire: Wire, name: str, partitions: int) -> None:
    topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": []}
    answer = await wire.ask("CreateTopics", 4, topics=[topic], timeout_ms=30_000)
    assert answer["topics"][0]["error_code"] == 0


async def leaders(wire: Wire, topic: str) -> dict[int, int]:
    answer = await wire.ask("Metadata", 8, topics=[{"name": topic}])
    return {one["partition_index"]: one["leader_id"] for one in answer["topics"][0]["partitions"]}


def test_a_missing_directory(tmp_path: Path) -> None:
    async def run() -> None:
        async with AsyncExitStack() as stack:
            config = BrokerConfig.parse(await settings(stack, tmp_path))
            broker = Broker(config)
            await broker.start()
            async with Wire(broker.bootstrap) as wire:
                await create(wire, "t", 4)
            await broker.stop()
            lost = {int(path.name.removeprefix("t-")) for path in (tmp_path / "one").glob("t-*")}
            assert len(lost) == 2
            # Nothing can be created below a file, as on a missing disk.
            shutil.rmtree(tmp_path / "one")
            (tmp_path / "one").write_text("")

            broker = Broker(config)
            await broker.start()
            stack.push_async_callback(broker.stop)
            async with Wire(broker.bootstrap) as wire:
                expected = {number: NO_LEADER if number in lost else 3 for number in range(4)}
                assert await leaders(wire, "t") == expected
                await create(wire, "u", 3)
                assert await leaders(wire, "u") == {0: 3, 1: 3, 2: 3}
            assert len(list((tmp_path / "two").glob("u-*"))) == 3

    asyncio.run(run())


def test_no_directory_left_and_two_copies(tmp_path: Path) -> None:
    async def run() -> None:
        async with AsyncExitStack() as stack:
            given = await settings(stack, tmp_path)
            (tmp_path / "file").write_text("")
            none = given | {"log.dirs": str(tmp_path / "file")}
            with pytest.raises(BrokerStartError, match=r"file.*repair the directory, or set log.dirs"):
                await Broker(BrokerConfig.parse(none)).start()
            for name in ("one", "two"):
                (tmp_path / name / "t-0").mkdir(parents=True)
            with pytest.raises(BrokerStartError, match=r"duplicate log directories for t-0 .*one.*two"):
                await Broker(BrokerConfig.parse(given)).start()

    asyncio.run(run())


def test_a_start_reports_its_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opens, reported = Broker._open, threading.Event()

    def notes(record: logging.LogRecord) -> bool:
        if record.getMessage().startswith("loading logs: "):
            reported.set()
        return True

    def slow(broker: Broker, *asked: Any) -> Any:
        """Runs until the progress was reported."""
        opened = opens(broker, *asked)
        reported.wait(60)
        return opened

    async def run() -> None:
        async with AsyncExitStack() as stack:
            config = BrokerConfig.parse(await settings(stack, tmp_path))
            broker = Broker(config)
            await broker.start()
            async with Wire(broker.bootstrap) as wire:
                await create(wire, "t", 3)
            assert broker.loading is not None
            assert broker.loading.logs_total == 0
            await broker.stop()
            for name in ("one", "two"):
                (tmp_path / name / ".kafka_cleanshutdown").unlink()
            torn = next(tmp_path.glob("*/t-0")) / "00000000000000000000.log"
            torn.write_bytes(bytes(1000))

            monkeypatch.setattr(_broker, "_PROGRESS_SECONDS", 0.0001)
            monkeypatch.setattr(Broker, "_open", slow)
            broker = Broker(config)
            _broker.log.addFilter(notes)
            stack.callback(_broker.log.removeFilter, notes)
            with caplog.at_level(logging.INFO):
                await broker.start()
            stack.push_async_callback(broker.stop)
            assert reported.is_set()
            loading = broker.loading
            assert loading is not None
            assert (loading.logs_done, loading.logs_total) == (3, 3)
            # Bytes that are not a batch are read, and not counted as checked.
            assert (loading.bytes_checked, loading.bytes_total) == (0, 1000)

    asyncio.run(run())


def test_a_dead_directory_of_one_of_three_brokers_costs_its_own_replicas_only(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, ()) as made:
            for number in ALL:
                dirs = [made.directory(number) / name for name in ("one", "two")]
                await made.start(number, log_dirs=",".join(map(str, dirs)))
            await create_replicated(made, "t", partitions=6)
            await produce(made, "t", values("a"))
            led = [number for number in range(6) if made.leader("t", number) == 0]
            [dead] = {path.parent for path in made.directory(0).glob(f"*/t-{led[0]}")}
            lost = {int(path.name.removeprefix("t-")) for path in dead.glob("t-*")}
            kept = set(range(6)) - lost
            assert lost
            assert kept
            dead.rename(dead.with_name("gone"))
            # A checkpoint is written into the directory, which fails.
            server = made.brokers[0]._server
            assert server is not None
            await asyncio.to_thread(server.delete_records, [("t", led[0], 0)])
            await made.until(lambda: all(made.leader("t", number) not in (-1, 0) for number in lost))
            await made.until(lambda: all(made.isr("t", number) == {1, 2} for number in lost))
            assert {made.leader("t", number) for number in set(led) - lost} <= {0}
            assert all(made.isr("t", number) == set(ALL) for number in kept)
            await produce(made, "t", values("b"))
            for number in kept:
                ends = {made.brokers[broker]._server.offsets("t", number)[2] for broker in ALL}  # type: ignore[union-attr]
                assert len(ends) == 1, "the other directory is in sync"
            with pytest.raises(BrokerStopError, match="logs were not closed cleanly"):
                await made.stop(0)

    run(main)
