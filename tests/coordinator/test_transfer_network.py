"""Reading a running ensemble over the network.

If these fail, an import misses nodes or mixes times without a note, or a foreign server confuses it.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

import pytest

from cluster.coordinator import CoordinatorError, Settings
from cluster.coordinator.protocol.jute import Acl, Id, Writer, frame
from cluster.coordinator.protocol.requests import Op
from cluster.coordinator.state.acl import OPEN, digest_identity
from cluster.coordinator.state.machine import State
from cluster.coordinator.state.tree import NodeState
from cluster.coordinator.transfer import (
    Address,
    Credentials,
    parse_addresses,
    read_ensemble,
)
from cluster.coordinator.transfer import ensemble as live

from .conftest import StartCoordinator
from .support import WAIT_SECONDS, RawClient

SUPER = b"super:secret"


def create(
    client: RawClient, path: str, data: bytes | None = b"", flags: int = 0, acl: tuple[Acl, ...] = OPEN
) -> None:
    body = Writer().string(path).buffer(data).acls(acl).i32(flags).finish()
    assert client.request(1, Op.CREATE, body)[2] == 0


def filled(server_port: int) -> RawClient:
    client = RawClient(server_port)
    client.connect()
    for number in range(40):
        create(client, f"/{number}")
        for below in range(number % 7):
            create(client, f"/{number}/{below}-{'x' * 200}", bytes([below]), flags=2)
    create(client, "/null", None)
    create(client, "/ephemeral", flags=1)
    assert (
        client.request(1, Op.DELETE, Writer().string("/3/0-" + "x" * 200 + "0000000000").i32(-1).finish())[2]
        == 0
    )
    return client


def without_ephemerals(state: State, last_zxid: int) -> dict[str, NodeState]:
    nodes = {path: node for path, node in state.nodes if node.owner == 0}
    nodes["/"] = nodes["/"]._replace(pzxid=last_zxid)
    return nodes


def test_a_running_servers_nodes_are_read(start_coordinator: StartCoordinator) -> None:
    server = start_coordinator()
    client = filled(server.port)
    steps: list[tuple[str, int, int]] = []
    moved = read_ensemble(
        [Address("127.0.0.1", 1), Address("127.0.0.1", server.port)],
        progress=lambda *step: steps.append(step),
    )
    assert steps
    truth = server.thread.call(server.server.machine.export)
    assert dict(moved.state.nodes) == without_ephemerals(truth, moved.state.last_zxid)
    assert moved.state.last_zxid == truth.last_zxid
    assert moved.state.sessions == []
    assert any("/ephemeral" in note for note in moved.notes)
    assert any("containers" in note for note in moved.notes)
    assert len(server.server.machine.sessions) == 1, "the reader's session is still open"
    client.close()


def test_nodes_that_change_meanwhile_are_read_again(
    start_coordinator: StartCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_coordinator()
    client = filled(server.port)
    settle = live._Walk._settle

    def disturbed(walk: live._Walk) -> list[str]:
        create(client, "/7/new")
        create(client, "/7/new/below", b"b")
        for path in ("/38/0-" + "x" * 200 + "0000000000", "/14"):
            assert client.request(1, Op.DELETE, Writer().string(path).i32(-1).finish())[2] == 0
        create(client, "/14", b"again")
        read_only = Writer().string("/21").acls([Acl(1, Id("world", "anyone"))]).i32(-1).finish()
        assert client.request(1, Op.SET_ACL, read_only)[2] == 0
        assert client.request(1, Op.SET_DATA, Writer().string("/20").buffer(b"set").i32(-1).finish())[2] == 0
        return settle(walk)

    monkeypatch.setattr(live._Walk, "_settle", disturbed)
    moved = read_ensemble([Address("127.0.0.1", server.port)])
    truth = server.thread.call(server.server.machine.export)
    assert dict(moved.state.nodes) == without_ephemerals(truth, moved.state.last_zxid)
    assert not any("at different times" in note for note in moved.notes)
    client.close()


def test_a_server_that_changes_all_the_time_gives_a_note(
    start_coordinator: StartCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_coordinator()
    client = filled(server.port)
    read = live._Walk._read

    def disturbed(walk: live._Walk, paths: list[str]) -> None:
        read(walk, paths)
        assert client.request(1, Op.SET_DATA, Writer().string("/7").buffer(b"set").i32(-1).finish())[2] == 0

    monkeypatch.setattr(live._Walk, "_read", disturbed)
    moved = read_ensemble([Address("127.0.0.1", server.port)])
    assert any("at different times, and 1 of them may have changed since: /7" in note for note in moved.notes)
    client.close()


def test_unreadable_nodes_stop_the_import(start_coordinator: StartCoordinator) -> None:
    server = start_coordinator(settings=Settings(super_digest=digest_identity(SUPER).id))
    client = RawClient(server.port)
    client.connect()
    address = [Address("127.0.0.1", server.port)]
    ann = digest_identity(b"ann:secret")
    create(client, "/shown", acl=(Acl(31, ann), Acl(1, Id("world", "anyone"))))
    with pytest.raises(CoordinatorError, match="password hashes in the ACLs of 1 nodes: /shown"):
        read_ensemble(address)
    create(client, "/hidden", acl=(Acl(31, ann),))
    with pytest.raises(CoordinatorError, match="refuses to read 1 nodes: /hidden"):
        read_ensemble(address)
    with pytest.raises(CoordinatorError, match="refuses the credentials of scheme none"):
        read_ensemble(address, [Credentials("none", b"x")])
    for credentials in (Credentials("digest", SUPER), Credentials("digest", b"ann:secret")):
        moved = read_ensemble(address, [credentials])
        assert dict(moved.state.nodes)["/shown"].acl == (Acl(31, ann), Acl(1, Id("world", "anyone")))
        assert dict(moved.state.nodes)["/hidden"].acl == (Acl(31, ann),)
    client.close()


def answering(chunks: list[bytes]) -> tuple[int, threading.Thread]:
    """The port of a server that sends these chunks to its first client, one per request, and closes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener, listener.accept()[0] as client:
            for chunk in chunks:
                client.recv(65536)
                client.sendall(chunk)
            with contextlib.suppress(OSError):  # the client closes the connection after a bad answer
                client.shutdown(socket.SHUT_WR)
                while client.recv(65536):
                    pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return listener.getsockname()[1], thread


CONNECTED = frame([struct.pack(">iiqi", 0, 30_000, 5, 16) + bytes(17)])
SYNCED = frame([struct.pack(">iqi", 1, 9, 0) + b"\0\0\0\x01/"])


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([], "closed the connection: it does not serve"),
        ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], "announces an answer of 1213486160 bytes; is it ZooKeeper"),
        ([struct.pack(">i", 100 << 20)], "closed the connection"),
        ([frame([struct.pack(">iiqi", 0, 0, 0, 16) + bytes(17)])], "refuses a session"),
        ([frame([b"\0"])], "no server answers"),
        ([CONNECTED, frame([b"short"])], "5 bytes, which are not an answer"),
        ([CONNECTED, frame([struct.pack(">iqi", 1, 9, -6)])], "answers UNIMPLEMENTED"),
        ([CONNECTED, SYNCED, frame([struct.pack(">iqi", 2, 9, -101)]) * 3], "has no root"),
        ([CONNECTED, SYNCED, frame([struct.pack(">iqi", 2, 9, -9999)]) * 3], "answers an error"),
        (
            [CONNECTED, SYNCED, frame([struct.pack(">iqi", 2, 9, 0) + b"\0\0\0\x7f"]) * 3],
            "was being read, then: 127 bytes needed",
        ),
    ],
)
def test_a_server_that_is_not_zookeeper_is_a_clear_error(chunks: list[bytes], expected: str) -> None:
    port, thread = answering(chunks)
    with pytest.raises(CoordinatorError, match=expected):
        read_ensemble([Address("127.0.0.1", port)])
    thread.join(WAIT_SECONDS)
    assert not thread.is_alive()


def test_addresses_are_parsed() -> None:
    assert parse_addresses("zk1:2181, [::1]:2182") == [Address("zk1", 2181), Address("::1", 2182)]
    for wrong in ("", "zk1", "zk1:", "zk1:99999", "zk1:2181/chroot", "zk1:2181,", ":1", "a b:c"):
        with pytest.raises(ValueError, match="host:port"):
            parse_addresses(wrong)
