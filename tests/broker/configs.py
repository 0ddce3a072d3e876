"""Requests about settings to a broker with its coordinator in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from cluster.broker import Broker, start_embedded
from cluster.controller import ZooKeeper, znodes
from cluster.controller.zookeeper import Create
from cluster.errors import for_code

from .wire import Wire

TOPIC, BROKER, LOGGER, METRICS = 2, 4, 8, 16
SET, DELETE, APPEND, SUBTRACT = range(4)


async def notify(zk: ZooKeeper, notice: bytes) -> None:
    """Writes a notice, as another program does after it changed settings."""
    await zk.transaction([Create(znodes.CONFIG_CHANGE_PREFIX, notice, sequential=True)])


@asynccontextmanager
async def embedded(data: Path, **overrides: str) -> AsyncIterator[Broker]:
    settings = {name.replace("_", "."): value for name, value in overrides.items()}
    async with AsyncExitStack() as stack:
        yield await start_embedded(stack, data, port=0, overrides=settings)


@asynccontextmanager
async def served(data: Path, **overrides: str) -> AsyncIterator[tuple[Wire, ZooKeeper]]:
    """A broker with a topic `t`: a connection to it, and its session with the coordinator."""
    async with embedded(data, **overrides) as broker, Wire(broker.bootstrap) as wire:
        topic = {"name": "t", "num_partitions": 1, "replication_factor": 1}
        await wire.ask("CreateTopics", 4, topics=[topic], timeout_ms=30_000)
        assert broker._zk is not None
        yield wire, broker._zk


def outcome(answer: dict[str, Any]) -> str:
    code = answer["error_code"]
    assert code or answer["error_message"] in (None, "")
    return f"{for_code(code).name}: {answer['error_message']}" if code else "ok"


async def alter(
    wire: Wire, kind: int, name: str, *ops: tuple[str, int, str | None], check: bool = False
) -> str:
    configs = [{"name": key, "config_operation": op, "value": value} for key, op, value in ops]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    answer = await wire.ask("IncrementalAlterConfigs", 0, resources=[resource], validate_only=check)
    return outcome(answer["responses"][0])


async def replace(wire: Wire, kind: int, name: str, **config: str | None) -> str:
    configs = [{"name": key.replace("_", "."), "value": value} for key, value in config.items()]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    answer = await wire.ask("AlterConfigs", 1, resources=[resource], validate_only=False)
    return outcome(answer["responses"][0])


async def describe(wire: Wire, kind: int, name: str, *keys: str) -> dict[str, dict[str, Any]]:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": list(keys) or None}
    answer = await wire.ask("DescribeConfigs", 3, resources=[resource], include_synonyms=True)
    assert outcome(answer["results"][0]) == "ok"
    return {entry["name"]: entry for entry in answer["results"][0]["configs"]}


async def described(wire: Wire, kind: int, name: str, key: str) -> tuple[str, int]:
    """Value and source of one setting."""
    found = (await describe(wire, kind, name, key))[key]
    return found["value"], found["config_source"]


async def stored(zk: ZooKeeper, entity: str) -> dict[str, str]:
    found = await zk.find(znodes.config_path(entity))
    return json.loads(found[0])["config"] if found else {}


async def notices(zk: ZooKeeper) -> list[str]:
    names = sorted(await zk.children(znodes.CONFIG_CHANGES))
    return [json.loads((await zk.get(f"{znodes.CONFIG_CHANGES}/{name}"))[0])["entity_path"] for name in names]


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(work(), 60)

    asyncio.run(bounded())


async def quotas(wire: Wire, *components: tuple[str, int, str | None], strict: bool = False) -> list[str]:
    parts = [{"entity_type": kind, "match_type": how, "match": name} for kind, how, name in components]
    answer = await wire.ask("DescribeClientQuotas", 0, components=parts, strict=strict)
    assert outcome(answer) == "ok"
    return sorted(
        " ".join(
            [f"{part['entity_type']}={part['entity_name']}" for part in entry["entity"]]
            + [f"{value['key']}:{value['value']:g}" for value in entry["values"]]
        )
        for entry in answer["entries"]
    )


async def limit(
    wire: Wire, entity: dict[str, str | None], check: bool = False, **values: float | None
) -> str:
    parts = [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()]
    ops = [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in values.items()]
    answer = await wire.ask(
        "AlterClientQuotas", 0, entries=[{"entity": parts, "ops": ops}], validate_only=check
    )
    assert answer["entries"][0]["entity"] == parts
    return outcome(answer["entries"][0])
