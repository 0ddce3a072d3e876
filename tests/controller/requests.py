from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from kazoo.client import KazooClient

from ..broker.wire import Wire
from ..server.wire import batch

WAIT_SECONDS = 30.0

CONFIG = {"cleanup.policy": "compact"}


async def create(wire: Wire, name: str, partitions: int = 2) -> int:
    topic = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "assignments": [],
        "configs": [{"name": key, "value": value} for key, value in CONFIG.items()],
    }
    answer = await wire.ask("CreateTopics", 4, topics=[topic], timeout_ms=60_000, validate_only=False)
    return int(answer["topics"][0]["error_code"])


async def grow(wire: Wire, name: str) -> int:
    topic = {"name": name, "count": 3, "assignments": None}
    answer = await wire.ask("CreatePartitions", 1, topics=[topic], timeout_ms=60_000, validate_only=False)
    return int(answer["results"][0]["error_code"])


async def delete(wire: Wire, name: str) -> int:
    answer = await wire.ask("DeleteTopics", 4, topic_names=[name], timeout_ms=60_000)
    return int(answer["responses"][0]["error_code"])


async def filled(wire: Wire, name: str) -> int:
    code = await create(wire, name)
    return code or await produce(wire, name, 0)


async def produce(wire: Wire, name: str, partition: int) -> int:
    data = [{"name": name, "partition_data": [{"index": partition, "records": keyed()}]}]
    answer = await wire.ask("Produce", 8, transactional_id=None, acks=-1, timeout_ms=30_000, topic_data=data)
    return int(answer["responses"][0]["partition_responses"][0]["error_code"])


async def shown(wire: Wire, name: str) -> dict[int, int]:
    """The partitions of a topic in Metadata, and their errors; none if there is no topic."""
    topics = [{"name": name, "topic_id": bytes(16)}]
    answer = await wire.ask(
        "Metadata",
        9,
        topics=topics,
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    return {item["partition_index"]: item["error_code"] for item in answer["topics"][0]["partitions"]}


def below(client: KazooClient, path: str) -> list[str]:
    """Every znode from `path` on."""
    if client.exists(path) is None:
        return []
    return [path, *(name for child in client.get_children(path) for name in below(client, f"{path}/{child}"))]


def logs(directory: Path, name: str) -> list[str]:
    found = (directory / "kafka-logs").iterdir()
    return sorted(path.name for path in found if path.name.rpartition("-")[0] == name)


def keyed() -> bytes:
    """A batch that a compacted topic accepts."""
    return batch([b"v"], key=b"k")


async def until(true: Callable[[], bool]) -> None:
    """Repeats a call of the coordinator's client in a thread until its result is `wanted`."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not await asyncio.to_thread(true):
            await asyncio.sleep(0.02)


async def until_shown(wire: Wire, name: str, expected: dict[int, int]) -> None:
    """Repeats Metadata, as clients do, until it has these partitions and errors."""
    async with asyncio.timeout(WAIT_SECONDS):
        while await shown(wire, name) != expected:
            await asyncio.sleep(0.02)
