"""Containers, nodes with a TTL and quotas.

If these fail, nodes are deleted too early or never, or a quota's counter is wrong.
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


class Changes:
    """A tree with all rules on; each change is a transaction, a second after the last one."""

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


def test_an_empty_container_expires_once_it_was_used() -> None:
    changes = Changes()
    changes.create("/c", op=Op.CREATE_CONTAINER, flags=CONTAINER)
    assert changes.tree.node("/c").stat().ephemeral_owner == 0
    assert changes.tree.expired(changes.now_ms + 10**9, never_used_ms=0) == []
    assert changes.tree.expired(changes.now_ms + 501, never_used_ms=500) == ["/c"]
    changes.create("/c/x")
    assert changes.tree.expired(changes.now_ms + 501, never_used_ms=500) == []
    changes.delete("/c/x")
    assert changes.tree.expired(changes.now_ms, never_used_ms=0) == ["/c"]


def test_a_node_with_a_ttl_expires_after_its_last_write() -> None:
    changes = Changes()
    changes.create("/t", op=Op.CREATE_TTL, flags=TTL, ttl_ms=5000)
    assert kind_of(changes.tree.node("/t").state.owner) is Kind.TTL
    assert changes.tree.expired(changes.now_ms + 5000, 0) == []
    assert changes.tree.expired(changes.now_ms + 5001, 0) == ["/t"]
    changes.set_data("/t", b"again")
    assert changes.tree.expired(changes.now_ms + 5000, 0) == []
    changes.create("/t/x")
    assert changes.tree.expired(changes.now_ms + 10**9, 0) == []


def test_delete_container_deletes_empty_containers_only() -> None:
    changes = Changes()
    changes.create("/plain")
    changes.create("/c", op=Op.CREATE_CONTAINER)
    changes.create("/c/x")

    def end(path: str | None, anybody: bool = True) -> None:
        changes.tree.delete_container(DeleteContainer(path), changes.context(), Effects(), anybody)

    for path, code in (
        ("/plain", Code.BAD_VERSION),
        ("/c", Code.NOT_EMPTY),
        ("/none", Code.NO_NODE),
        ("/", Code.BAD_ARGUMENTS),
        (None, Code.MARSHALLING_ERROR),
    ):
        with refused(code):
            end(path)
    changes.delete("/c/x")
    end("/c")
    assert changes.tree.find("/c") is None


def test_kinds_of_nodes_survive_a_snapshot() -> None:
    changes = Changes()
    changes.create("/c", op=Op.CREATE_CONTAINER)
    changes.create("/t", op=Op.CREATE_TTL, flags=TTL, ttl_ms=7)
    changes.create(quota.ROOT_OF_QUOTAS + "/t")
    changes.create(quota.limits_of("/t"), b"count=2,bytes=-1")
    changes.create(quota.stats_of("/t"))
    changes.tree = Tree.restore(changes.tree.export())
    assert changes.tree.expired(10**9, never_used_ms=1) == ["/c", "/t"]
    changes.create("/t/x", b"12")
    assert changes.stats("/t") == b"count=2,bytes=2"


def test_quotas_count_their_subtree_and_enforce_hard_limits() -> None:
    changes = Changes()
    changes.create("/a")
    changes.create("/a/old", b"123")
    changes.create(quota.ROOT_OF_QUOTAS + "/a")
    changes.create(quota.limits_of("/a"), b"count=1,bytes=1=;byteHardLimit=10;countHardLimit=4")
    changes.create(quota.stats_of("/a"), b"anything")
    assert changes.stats("/a") == b"count=2,bytes=3"
    before = changes.tree.node(quota.stats_of("/a")).state
    changes.create("/a/b", b"1234567")
    changes.create("/a/c")
    assert changes.stats("/a") == b"count=4,bytes=10"
    after = changes.tree.node(quota.stats_of("/a")).state
    assert before._replace(data=after.data) == after, "counting changed a version or a time"
    with refused(Code.QUOTA_EXCEEDED):
        changes.create("/a/d")
    with refused(Code.QUOTA_EXCEEDED):
        changes.set_data("/a/b", b"12345678")
    changes.set_data("/a/b", b"")
    changes.delete("/a/c")
    changes.create("/a/d", b"1234567")
    assert changes.stats("/a") == b"count=4,bytes=10"
    changes.delete(quota.limits_of("/a"))
    changes.create("/a/e", b"x" * 100)
    assert changes.stats("/a") == b"count=4,bytes=10"


def test_a_failed_transaction_does_not_change_counters() -> None:
    changes = Changes()
    changes.create("/a")
    changes.create(quota.ROOT_OF_QUOTAS + "/a")
    changes.create(quota.limits_of("/a"), b"count=9,bytes=9")
    changes.create(quota.stats_of("/a"))
    before = changes.tree.export()
    effects, context = Effects(), changes.context()
    changes.tree.create(Create("/a/b", b"12", list(OPEN), 0), context, effects)
    changes.tree.set_data(SetData("/a/b", b"1", -1), context, effects)
    changes.tree.delete(Delete("/a/b", -1), context, effects)
    effects.roll_back()
    assert sorted(changes.tree.export()) == sorted(before)


def test_quotas_have_zookeepers_format() -> None:
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
    """Moves the server's clock by 0.1 s, starts its check, and waits for the watches' events."""
    events: queue.Queue[str] = queue.Queue()
    for path in ("/c", "/t"):
        assert client.exists(path, watch=lambda event: events.put(event.path))
    server.clock.now_ms += 101
    server.thread.call(server.server._containers.look)
    return {events.get(timeout=20) for _ in range(2)}
