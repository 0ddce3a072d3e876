"""Containers, nodes with a TTL, and quotas.

If these fail, expired nodes stay, other nodes are deleted, or a counter is wrong.
"""

from __future__ import annotations

import queue
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from cluster.coordinator import Settings
from cluster.coordinator.errors import Code, ZooKeeperError
from cluster.coordinator.protocol.jute import Writer
from cluster.coordinator.protocol.requests import CONTAINER, TTL, Create, Delete, DeleteContainer, Op, SetData
from cluster.coordinator.state import quota
from cluster.coordinator.state.acl import OPEN, Rules
from cluster.coordinator.state.tree import Context, Effects, Kind, Tree, kind_of

from .conftest import Connect, StartCoordinator
from .support import Coordinator, RawClient

BOTH = Rules.EXTENDED_TYPES | Rules.ENFORCE_QUOTA


class Garden:
    """A tree with all rules. Its transactions are a second apart."""

    def __init__(self) -> None:
        self.tree = Tree()
        self.zxid = 0

    @property
    def now_ms(self) -> int:
        return self.zxid * 1000

    def context(self) -> Context:
        self.zxid += 1
        return Context(self.zxid, self.now_ms, 1, (), BOTH)

    def create(
        self, path: str, data: bytes = b"", flags: int = 0, op: Op = Op.CREATE, ttl_ms: int = -1
    ) -> str:
        request = Create(path, data, list(OPEN), flags, op, ttl_ms)
        return self.tree.create(request, self.context(), Effects())

    def delete(self, path: str) -> None:
        self.tree.delete(Delete(path, -1), self.context(), Effects())

    def set_data(self, path: str, data: bytes) -> None:
        self.tree.set_data(SetData(path, data, -1), self.context(), Effects())

    def stats(self, path: str) -> bytes | None:
        return self.tree.node(quota.stats_of(path)).state.data


def refused(code: Code) -> pytest.RaisesExc[ZooKeeperError]:
    return pytest.raises(ZooKeeperError, match=code.name)


def test_a_container_expires_once_it_was_used_and_is_empty() -> None:
    garden = Garden()
    garden.create("/c", op=Op.CREATE_CONTAINER, flags=CONTAINER)
    assert garden.tree.node("/c").stat().ephemeral_owner == 0
    assert garden.tree.expired(garden.now_ms + 10**9, never_used_ms=0) == []
    assert garden.tree.expired(garden.now_ms + 501, never_used_ms=500) == ["/c"]
    garden.create("/c/x")
    assert garden.tree.expired(garden.now_ms + 501, never_used_ms=500) == []
    garden.delete("/c/x")
    assert garden.tree.expired(garden.now_ms, never_used_ms=0) == ["/c"]


def test_a_node_with_a_ttl_expires_when_it_was_not_written_for_that_time() -> None:
    garden = Garden()
    garden.create("/t", op=Op.CREATE_TTL, flags=TTL, ttl_ms=5000)
    assert kind_of(garden.tree.node("/t").state.owner) is Kind.TTL
    assert garden.tree.expired(garden.now_ms + 5000, 0) == []
    assert garden.tree.expired(garden.now_ms + 5001, 0) == ["/t"]
    garden.set_data("/t", b"again")
    assert garden.tree.expired(garden.now_ms + 5000, 0) == []
    garden.create("/t/x")
    assert garden.tree.expired(garden.now_ms + 10**9, 0) == []


def test_delete_container_deletes_only_containers_and_nodes_with_a_ttl() -> None:
    garden = Garden()
    garden.create("/plain")
    garden.create("/c", op=Op.CREATE_CONTAINER)
    garden.create("/c/x")

    def end(path: str | None, by_client: bool = True) -> None:
        garden.tree.delete_container(DeleteContainer(path), garden.context(), Effects(), by_client)

    for path, code in (
        ("/plain", Code.BAD_VERSION),
        ("/c", Code.NOT_EMPTY),
        ("/none", Code.NO_NODE),
        ("/", Code.BAD_ARGUMENTS),
        (None, Code.MARSHALLING_ERROR),
    ):
        with refused(code):
            end(path)
    garden.delete("/c/x")
    end("/c")
    assert garden.tree.find("/c") is None


def test_kinds_outlive_a_snapshot() -> None:
    garden = Garden()
    garden.create("/c", op=Op.CREATE_CONTAINER)
    garden.create("/t", op=Op.CREATE_TTL, flags=TTL, ttl_ms=7)
    garden.create(quota.ROOT_OF_QUOTAS + "/t")
    garden.create(quota.limits_of("/t"), b"count=2,bytes=-1")
    garden.create(quota.stats_of("/t"))
    garden.tree = Tree.restore(garden.tree.export())
    assert garden.tree.expired(10**9, never_used_ms=1) == ["/c", "/t"]
    garden.create("/t/x", b"12")
    assert garden.stats("/t") == b"count=2,bytes=2"


def test_quotas_count_nodes_below_and_enforce_hard_limits() -> None:
    garden = Garden()
    garden.create("/a")
    garden.create("/a/old", b"123")
    garden.create(quota.ROOT_OF_QUOTAS + "/a")
    garden.create(quota.limits_of("/a"), b"count=1,bytes=1=;byteHardLimit=10;countHardLimit=4")
    garden.create(quota.stats_of("/a"), b"anything")
    assert garden.stats("/a") == b"count=2,bytes=3"
    before = garden.tree.node(quota.stats_of("/a")).state
    garden.create("/a/b", b"1234567")
    garden.create("/a/c")
    assert garden.stats("/a") == b"count=4,bytes=10"
    after = garden.tree.node(quota.stats_of("/a")).state
    assert before._replace(data=after.data) == after, "counting changes no versions and times"
    with refused(Code.QUOTA_EXCEEDED):
        garden.create("/a/d")
    with refused(Code.QUOTA_EXCEEDED):
        garden.set_data("/a/b", b"12345678")
    garden.set_data("/a/b", b"")
    garden.delete("/a/c")
    garden.create("/a/d", b"1234567")
    assert garden.stats("/a") == b"count=4,bytes=10"
    garden.delete(quota.limits_of("/a"))
    garden.create("/a/e", b"x" * 100)
    assert garden.stats("/a") == b"count=4,bytes=10"


def test_a_transaction_that_fails_leaves_counters_as_they_were() -> None:
    garden = Garden()
    garden.create("/a")
    garden.create(quota.ROOT_OF_QUOTAS + "/a")
    garden.create(quota.limits_of("/a"), b"count=9,bytes=9")
    garden.create(quota.stats_of("/a"))
    before = garden.tree.export()
    effects, context = Effects(), garden.context()
    garden.tree.create(Create("/a/b", b"12", list(OPEN), 0), context, effects)
    garden.tree.set_data(SetData("/a/b", b"1", -1), context, effects)
    garden.tree.delete(Delete("/a/b", -1), context, effects)
    effects.roll_back()
    assert sorted(garden.tree.export()) == sorted(before)


def test_texts_of_quotas_are_as_zookeepers() -> None:
    text = b"count=5,bytes=-1=;byteHardLimit=20;countHardLimit=3"
    assert quota.decode_track(text) == quota.Track(5, -1, 3, 20)
    assert quota.Track(5, -1, 3, 20).encode() == text
    assert quota.Track(1, 2).encode() == b"count=1,bytes=2"
    for bad in (b"", None, b"count", b"count=x", b"count=1;;bytes=z"):
        with pytest.raises(ValueError, match="quota"):
            quota.decode_track(bad)


def test_the_server_deletes_expired_nodes(
    start_coordinator: StartCoordinator, connect: Connect, tmp_path: Path
) -> None:
    settings = Settings(max_client_connections=0, rules=BOTH)
    server = start_coordinator(tmp_path / "kinds", settings=settings)
    raw = RawClient(server.port)
    raw.connect()
    for path, op, flags, ttl in (
        ("/c", Op.CREATE_CONTAINER, 4, b""),
        ("/t", Op.CREATE_TTL, 5, bytes(7) + b"\x64"),
    ):
        body = Writer().string(path).buffer(b"").acls(OPEN).i32(flags).finish() + ttl
        assert raw.request(1, op, body)[2] == 0
    raw.close()
    client = connect(server)
    client.create("/c/x")
    client.delete("/c/x")
    gone = _watch_until_gone(client, server)
    assert gone == {"/c", "/t"}
    client.stop()
    server.stop()
    again = connect(start_coordinator(tmp_path / "kinds", settings=settings))
    for path in ("/c", "/t"):
        with pytest.raises(NoNodeError):
            again.get(path)


def _watch_until_gone(client: KazooClient, server: Coordinator) -> set[str]:
    """Moves the server's clock by a tenth of a second, has it look for expired nodes, and waits for the
    events."""
    shown: queue.Queue[str] = queue.Queue()
    for path in ("/c", "/t"):
        assert client.exists(path, watch=lambda event: shown.put(event.path))
    server.clock.now_ms += 101
    server.thread.call(server.server._containers.look)
    return {shown.get(timeout=20) for _ in range(2)}
