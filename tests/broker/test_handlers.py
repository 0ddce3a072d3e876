"""The common behaviour of all handlers.

If one failed, ApiVersions would advertise an API that is not served, or an error in one handler would close
the connection.
"""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster.broker import BrokerConfig, handlers
from cluster.broker.context import Context
from cluster.broker.dynamic.live import LiveConfig
from cluster.broker.handlers import APIS, HANDLERS
from cluster.errors import UnknownServerError
from logcore._native import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)

EXAMPLES: dict[int, dict[str, Any]] = {
    3: {"topics": [{"name": "t"}]},
    8: {
        "group_id": "g",
        "topics": [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 1}]}],
    },
    15: {"groups": ["g"]},
    19: {"topics": [{"name": "t", "num_partitions": 1, "replication_factor": 1}], "timeout_ms": 1},
    21: {"topics": [{"name": "t", "partitions": [{"partition_index": 0, "offset": 1}]}], "timeout_ms": 1},
    27: {
        "markers": [
            {
                "producer_id": 1,
                "producer_epoch": 0,
                "transaction_result": True,
                "coordinator_epoch": 0,
                "topics": [{"name": "t", "partition_indexes": [0]}],
            }
        ]
    },
    28: {
        "transactional_id": "x",
        "group_id": "g",
        "topics": [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 1}]}],
    },
    32: {"resources": [{"resource_type": 2, "resource_name": "t"}]},
    33: {"resources": [{"resource_type": 2, "resource_name": "t"}]},
    34: {"dirs": [{"path": "/d", "topics": [{"name": "t", "partitions": [0]}]}]},
    37: {"topics": [{"name": "t", "count": 2}], "timeout_ms": 1},
    42: {"groups_names": ["g"]},
    43: {"topic_partitions": [{"topic": "t", "partitions": [0]}]},
    44: {"resources": [{"resource_type": 2, "resource_name": "t"}]},
    49: {"entries": [{"entity": [{"entity_type": "user", "entity_name": "u"}]}]},
    61: {"topics": [{"name": "t", "partition_indexes": [0]}]},
    65: {"transactional_ids": ["x"]},
    69: {"group_ids": ["g"]},
}


def example(key: int, version: int) -> dict[str, Any]:
    topics = [{"name": "t", "partition_indexes": [0]}]
    if key == 9:
        return (
            {"groups": [{"group_id": "g", "topics": topics}]}
            if version >= 8
            else {"group_id": "g", "topics": topics}
        )
    if key == 10:
        return {"coordinator_keys": ["g"]} if version >= 4 else {"key": "g"}
    if key == 20:
        return {"topics": [{"name": "t"}]} if version >= 6 else {"topic_names": ["t"]}
    if key == 24:
        topics = [{"name": "t", "partitions": [0]}]
        if version >= 4:
            return {"transactions": [{"transactional_id": "x", "topics": topics}]}
        return {"v3_and_below_transactional_id": "x", "v3_and_below_topics": topics}
    return EXAMPLES.get(key, {})


@dataclass
class FakeRequest:
    api_key: int
    api_version: int
    body: dict[str, Any]
    client_id: str | None = None
    connection_id: str = "c"
    principal: str = "ANONYMOUS"
    client_host: str = "127.0.0.1"
    listener: str = "PLAINTEXT"
    large: bool = False
    answers: list[dict[str, Any]] = field(default_factory=list)

    def respond(self, body: dict[str, Any], release_gil: bool = False) -> None:
        self.answers.append(body)

    def close(self) -> None:
        raise AssertionError("the connection was closed")


def test_each_api_of_the_table_has_a_handler_in_rust_or_python() -> None:
    """If this failed, an API without an answer would be advertised, or a handler would never be called."""
    assert {api.key for api in APIS.values() if not api.native} == HANDLERS.keys()
    modules = [name for name in vars(handlers) if inspect.ismodule(vars(handlers)[name])]
    assert len([name for name in modules if hasattr(vars(handlers)[name], "API")]) == len(HANDLERS)
    for handler in HANDLERS.values():
        assert inspect.iscoroutinefunction(handler.handle)
        assert list(inspect.signature(handler.handle).parameters) == ["context", "request"]
        assert list(inspect.signature(handler.failure).parameters) == ["request", "code"]


def test_the_versions_that_clients_probe_for_are_served() -> None:
    # Without one of these, librdkafka takes the broker for an old version.
    for name, version in [
        ("JoinGroup", 0),
        ("SyncGroup", 0),
        ("Heartbeat", 0),
        ("LeaveGroup", 0),
        ("FindCoordinator", 0),
        ("OffsetCommit", 1),
        ("OffsetCommit", 2),
        ("OffsetFetch", 1),
        ("Metadata", 0),
        ("DescribeGroups", 0),
    ]:
        assert APIS[name].first <= version <= APIS[name].last, name


@pytest.mark.parametrize(
    ("key", "version"),
    [
        (api.key, version)
        for api in APIS.values()
        if not api.native
        for version in range(api.first, api.last + 1)
    ],
)
def test_a_failure_can_be_encoded_in_every_version(key: int, version: int) -> None:
    body = decode_request(key, version, encode_request(key, version, example(key, version)))
    answer = HANDLERS[key].failure(FakeRequest(key, version, body), UnknownServerError.code)
    decoded = decode_response(key, version, encode_response(key, version, answer))
    assert "-1" in str(decoded)


def test_other_requests_are_served_during_a_large_description() -> None:
    """A description of everything blocked the event loop for half a minute."""
    live = LiveConfig(BrokerConfig.parse({"zookeeper.connect": "127.0.0.1:1", "log.dirs": "/d"}))
    context = cast(Context, SimpleNamespace(broker_id=0, dynamic=SimpleNamespace(live=live)))
    resources = [{"resource_type": 4, "resource_name": "0", "configuration_keys": ["broker.id"]}] * 20
    body = decode_request(32, 4, encode_request(32, 4, {"resources": resources}))

    async def run() -> int:
        turns = 0

        def other() -> None:
            nonlocal turns
            turns += 1
            loop.call_soon(other)

        loop = asyncio.get_running_loop()
        loop.call_soon(other)
        answer = await HANDLERS[32].handle(context, FakeRequest(32, 4, body))
        assert len(answer["results"]) == 20
        return turns

    assert asyncio.run(run()) >= 20
