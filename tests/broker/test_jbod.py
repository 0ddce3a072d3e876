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

from cluster.broker import Broker, BrokerConfig, BrokerStartError, _broker
from cluster.coordinator import CoordinatorServer

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
