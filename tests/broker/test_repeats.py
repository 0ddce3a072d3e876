"""Requests that name the same thing repeatedly.

If one failed, a client could get a response of gigabytes for a request of some kilobytes, or a request for
everything once would not be answered whole.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from cluster.broker.context import Context
from cluster.broker.handlers import HANDLERS
from cluster.broker.handlers._repeats import REPEATED_MAX
from cluster.errors import InvalidRequest
from logcore._native import encode_response

from .test_embedded import create, embedded
from .test_handlers import FakeRequest
from .wire import Wire

INVALID_REQUEST = InvalidRequest.code
METADATA_BYTES = 50_000
METADATA = "m" * 4000
OTHERS = 50


def handled(context: object, key: int, version: int, **body: Any) -> dict[str, Any]:
    request = FakeRequest(key, version, body)
    return asyncio.run(HANDLERS[key].handle(cast(Context, context), request))


async def join(wire: Wire, group: str) -> None:
    """A stable group with a large member."""
    protocols = [{"name": "range", "metadata": bytes(METADATA_BYTES)}]
    timeouts = {"session_timeout_ms": 60_000, "rebalance_timeout_ms": 60_000}
    joined = await wire.ask(
        "JoinGroup",
        1,
        group_id=group,
        member_id="",
        protocol_type="consumer",
        protocols=protocols,
        **timeouts,
    )
    member = {"group_id": group, "member_id": joined["member_id"], "generation_id": joined["generation_id"]}
    assert (await wire.ask("SyncGroup", 0, assignments=[], **member))["error_code"] == 0


def test_a_repeated_group_is_described_up_to_a_bound(tmp_path: Path) -> None:
    others = [f"g{number}" for number in range(OTHERS)]
    names = ["g0"] * 10_000 + others

    async def run() -> list[dict[str, Any]]:
        async with embedded(tmp_path / "data") as broker, Wire(broker.bootstrap) as wire:
            await wire.ask("FindCoordinator", 1, key="g", key_type=0)
            for name in others:
                await join(wire, name)
            return list((await wire.ask("DescribeGroups", 1, groups=names))["groups"])

    groups = asyncio.run(run())
    assert [group["group_id"] for group in groups] == names
    assert groups[0]["members"][0]["member_metadata"] == bytes(METADATA_BYTES)
    said = REPEATED_MAX // METADATA_BYTES + 1
    assert groups[:said] == groups[:1] * said
    refused = [group for group in groups[:10_001] if group["error_code"] == INVALID_REQUEST]
    assert 10_001 - said - 2 < len(refused) <= 10_001 - said
    assert not any(group["members"] for group in refused)
    # A group that is named once is always described whole.
    assert [len(group["members"]) for group in groups[10_001:]] == [1] * (OTHERS - 1)


def test_an_offset_is_fetched_once_and_a_groups_offsets_up_to_a_bound(tmp_path: Path) -> None:
    async def run() -> None:
        async with embedded(tmp_path / "data") as broker, Wire(broker.bootstrap) as wire:
            assert await create(wire, "t", OTHERS) == "ok"
            await wire.ask("FindCoordinator", 1, key="g", key_type=0)
            partitions = [
                {"partition_index": number, "committed_offset": number, "committed_metadata": METADATA}
                for number in range(OTHERS)
            ]
            for group in ("g", "h"):
                topics = [{"name": "t", "partitions": partitions}]
                await wire.ask("OffsetCommit", 2, group_id=group, topics=topics)
            twice = [{"name": "t", "partition_indexes": [1] * 10_000}] * 3
            twice += [{"name": "u", "partition_indexes": []}, {"name": "t", "partition_indexes": [0]}]
            old = await wire.ask("OffsetFetch", 1, group_id="g", topics=twice)
            [topic] = old["topics"]
            assert [entry["partition_index"] for entry in topic["partitions"]] == [1, 0]
            assert {entry["metadata"] for entry in topic["partitions"]} == {METADATA}

            everything = {"group_id": "g", "topics": None}
            some = {"group_id": "g", "topics": twice[-1:]}
            other = {"group_id": "h", "topics": None}
            groups = [everything, some] + [everything] * 2000 + [some, other]
            answer = await wire.ask("OffsetFetch", 8, groups=groups)
            assert [group["group_id"] for group in answer["groups"]] == ["g"] * 2003 + ["h"]
            found = [
                len(group["topics"][0]["partitions"]) if group["topics"] else 0 for group in answer["groups"]
            ]
            said = found.index(0)
            assert found[:2] == [OTHERS, 1]
            assert found[2:said] == [OTHERS] * (said - 2)
            assert 2 < said < 10
            assert {group["error_code"] for group in answer["groups"][said:2003]} == {INVALID_REQUEST}
            assert found[said:2003] == [0] * (2003 - said)
            assert (found[2003], answer["groups"][2003]["error_code"]) == (OTHERS, 0)

    asyncio.run(run())


def test_a_partitions_producers_are_looked_up_once() -> None:
    asked = []

    def describe_producers(topic: str, partition: int) -> tuple[int, list[tuple[int, ...]]]:
        asked.append((topic, partition))
        return 0, [(number, 0, 0, 0, 0, 0) for number in range(500)]

    context = SimpleNamespace(
        has_partition=lambda topic, partition: topic == "t" and partition < 2,
        metadata=SimpleNamespace(topic={"t": "a topic"}.get),
        logs=SimpleNamespace(describe_producers=describe_producers),
    )
    topics = [
        {"name": "t", "partition_indexes": [0, 2, *[0] * 5000, 1]},
        {"name": "t", "partition_indexes": [0]},
        {"name": "u", "partition_indexes": [0, 0]},
        {"name": "no name", "partition_indexes": [0]},
    ]
    answer = handled(context, 61, 0, topics=topics)
    assert asked == [("t", 0), ("t", 1)]
    first, second, nobodys, unnamed = (topic["partitions"] for topic in answer["topics"])
    assert [entry["partition_index"] for entry in first] == topics[0]["partition_indexes"]
    said = [entry for entry in first if entry["active_producers"]]
    # The first of each, and one mebibyte of repeats.
    assert 3 < len(said) < 3 + REPEATED_MAX / (500 * 40)
    assert (first[-1]["error_code"], len(first[-1]["active_producers"])) == (0, 500)
    assert (first[-2]["error_code"], second[0]["error_code"]) == (INVALID_REQUEST, INVALID_REQUEST)
    assert "repeatedly" in second[0]["error_message"]
    assert [entry["error_code"] for entry in (first[1], *nobodys, *unnamed)] == [3, 3, 3, 17]
    assert "other than" in unnamed[0]["error_message"]
    assert len(encode_response(61, 0, answer)) < 2 * REPEATED_MAX


def test_a_coordinator_is_found_once() -> None:
    asked: list[str] = []

    async def ensure_state_topic(name: str) -> None:
        asked.append(name)

    context = SimpleNamespace(
        auto_topics=SimpleNamespace(ensure_state_topic=ensure_state_topic),
        metadata=SimpleNamespace(topic=lambda name: None),
    )
    keys = ["g"] * 1000 + ["h", "g"]
    answer = handled(context, 10, 4, coordinator_keys=keys, key_type=0)
    assert [found["key"] for found in answer["coordinators"]] == keys
    assert len(asked) == 2
    assert len({id(found) for found in answer["coordinators"]}) == 2


def test_repeated_topics_are_processed_once_and_share_a_result(tmp_path: Path) -> None:
    async def run() -> None:
        async with embedded(tmp_path / "data") as broker, Wire(broker.bootstrap) as wire:
            assert await create(wire, "t") == "ok"
            names = ["t"] * 10_000 + ["u"] + [""] * 10_000
            gone = await wire.ask("DeleteTopics", 5, topic_names=names, timeout_ms=30_000)
            assert [topic["name"] for topic in gone["responses"]] == names
            codes = [topic["error_code"] for topic in gone["responses"]]
            assert codes == [0] * 10_000 + [3] * 10_001
            # Each takes one byte of the request, and has no text of this broker.
            assert {topic["error_message"] for topic in gone["responses"][10_001:]} == {None}

    asyncio.run(run())
    names = ["t"] * 1000 + ["u"]
    request = FakeRequest(19, 4, {"topics": [{"name": name} for name in names]})
    answer = HANDLERS[19].failure(request, INVALID_REQUEST)
    assert [topic["name"] for topic in answer["topics"]] == names
    assert len({id(topic) for topic in answer["topics"]}) == 2


def test_a_resource_that_appears_twice_is_refused_once() -> None:
    twice = {"resource_type": 9, "resource_name": "t", "configs": []}
    once = twice | {"resource_type": 10}
    answer = handled(None, 33, 0, resources=[twice] * 1000 + [once, twice], validate_only=False)
    responses = answer["responses"]
    assert [entry["resource_type"] for entry in responses] == [9] * 1000 + [10, 9]
    assert len({id(entry) for entry in responses}) == 2
    assert responses[0]["error_message"] == "Each resource must appear at most once."
    assert responses[1000]["error_message"] == "Unknown resource type 10"


def test_an_entity_whose_quotas_are_altered_twice_is_answered_once(tmp_path: Path) -> None:
    async def run() -> None:
        async with embedded(tmp_path / "data") as broker, Wire(broker.bootstrap) as wire:
            user = {"entity_type": "user", "entity_name": "u"}
            client = {"entity_type": "client-id", "entity_name": None}
            bad = {"key": "no_such_quota", "value": 1.0, "remove": False}
            good = bad | {"key": "producer_byte_rate"}
            entries = [
                {"entity": [user, client], "ops": [bad]},
                {"entity": [user], "ops": [good]},
                {"entity": [client, user], "ops": [good]},
                {"entity": [user], "ops": [bad]},
            ]
            answer = await wire.ask("AlterClientQuotas", 0, entries=entries, validate_only=False)
            assert [entry["error_code"] for entry in answer["entries"]] == [0, INVALID_REQUEST]
            kept = await wire.ask("DescribeClientQuotas", 0, components=[], strict=False)
            assert len(kept["entries"]) == 2

    asyncio.run(run())


def test_topics_that_are_checked_together_have_their_own_settings(tmp_path: Path) -> None:
    async def run() -> None:
        async with embedded(tmp_path / "data") as broker, Wire(broker.bootstrap) as wire:
            own = [{"name": "retention.ms", "value": "5"}]
            topics = [
                {
                    "name": f"t{number}",
                    "num_partitions": 1,
                    "replication_factor": 1,
                    "configs": own[: number % 2],
                }
                for number in range(4)
            ]
            answer = await wire.ask("CreateTopics", 5, topics=topics, timeout_ms=30_000, validate_only=True)
            values = [
                next(entry["value"] for entry in topic["configs"] if entry["name"] == "retention.ms")
                for topic in answer["topics"]
            ]
            assert values == ["604800000", "5"] * 2

    asyncio.run(run())
