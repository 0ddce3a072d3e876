"""Bad input at the members' quorum and election ports: garbage, too many connections, false messages after a
valid hello.

If these fail, malformed messages at such a port can end a member's service, take its memory, or cost clients
their sessions. A well-formed message after a valid hello is believed: these ports trust their network.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence

import pytest
from kazoo.client import KazooClient

from tests.coordinator.support import WAIT_SECONDS
from tests.coordinator.test_bad_input import HTTP, TLS

from .bystanders import Bystander, bystanders, many_descriptors, unharmed
from .members import OURS, Ensemble, Member, ensemble

pytestmark = [pytest.mark.compat, pytest.mark.timeout(180)]

SEED = 21
ROLES = ("leader", "follower", "observer")
MIB = 1 << 20
OTHER_WORK = 48
"""MiB that a member may take meanwhile for its other work."""
# ``rust/crates/quorum/src/transport/messages.rs``
HELLO, WELCOME, REFUSED = 1, 2, 3
APPEND, VOTE, PRE_VOTE, TRANSFER, SNAPSHOT, PROPOSE, READ_INDEX, RENEW_SESSIONS = range(10, 18)
IDENTIFY, BIND, JOIN, IDENTITY, FAILED = 30, 31, 32, 40, 29
KINDS = (0, *range(1, 4), *range(10, 18), *range(20, 27), 29, 30, 31, 32, 40, 41, 99, 255)
# ``rust/crates/quorum/src/transport/frame.rs``
FRAME_MAX = 72 * MIB
HANDSHAKES, MEMBERS = 64, 256
REQUESTS_MIB = 128
LIAR = 9 << 48
"""The member id in the false messages; no member has it."""
TERM_0 = struct.pack(">QQB", 0, 0, 1)
"""The front of a leader's message, for term 0, which never had a leader."""
U32_MAX = 0xFFFFFFFF


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """Three voters and an observer."""
    directory = tmp_path_factory.mktemp("bad-members")
    with many_descriptors(), ensemble(OURS, directory, 4, observers=1) as running:
        yield running


@pytest.fixture(scope="module")
def others(four: Ensemble) -> Iterator[list[Bystander]]:
    with bystanders(four.members) as started:
        yield started


def ports(member: Member) -> tuple[int, int]:
    return member.addresses.quorum, member.addresses.election


def frame(kind: int, body: bytes = b"", request: int = 0) -> bytes:
    return struct.pack(">IBI", 5 + len(body), kind, request) + body


def hello(ensemble_id: bytes, to: int, version: int = 1) -> bytes:
    return frame(HELLO, b"LCQ1" + struct.pack(">BB16sQQ", version, 0, ensemble_id, LIAR, to))


def dial(member: Member, port: int) -> socket.socket:
    return socket.create_connection((member.addresses.host, port), WAIT_SECONDS)


@contextlib.contextmanager
def dialled(member: Member, wanted: Sequence[int]) -> Iterator[list[socket.socket]]:
    """Opens a connection to each of the ports."""
    found: list[socket.socket] = []
    try:
        for port in wanted:
            found.append(dial(member, port))
        yield found
    finally:
        for each in found:
            each.close()


def rest(connection: socket.socket) -> bytes:
    """The bytes received until the member ends the connection, which it must do."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def receive(connection: socket.socket) -> tuple[int, bytes]:
    """The next frame's kind and body; kind 0 if the member has ended the connection."""
    with contextlib.suppress(ConnectionError):
        front = connection.recv(9, socket.MSG_WAITALL)
        if len(front) == 9:
            length, kind, _request = struct.unpack(">IBI", front)
            return kind, connection.recv(length - 5, socket.MSG_WAITALL) if length > 5 else b""
    return 0, b""


def identity(member: Member) -> tuple[int, bytes]:
    """The member's id and its ensemble's, which it tells everyone who names the right server."""
    with dialled(member, [member.addresses.quorum]) as (connection,):
        connection.sendall(hello(bytes(16), member.number + 1) + frame(IDENTIFY))
        assert receive(connection)[0] == WELCOME
        kind, body = receive(connection)
        assert kind == IDENTITY
        number, ensemble_id = struct.unpack_from(">Q16s", body)
        return number, ensemble_id


def greeting(member: Member) -> bytes:
    """A hello that the member accepts as another member's."""
    number, ensemble_id = identity(member)
    return hello(ensemble_id, number)


def is_welcome(member: Member, port: int, greets: bytes) -> bool:
    with dialled(member, [port]) as (connection,):
        connection.sendall(greets)
        return receive(connection)[0] == WELCOME


def wait_until_welcome(member: Member, port: int, greets: bytes) -> None:
    """Polls until the port accepts a hello: the member notices closed connections one after another."""
    end = time.monotonic() + WAIT_SECONDS
    while not is_welcome(member, port, greets):
        assert time.monotonic() < end, "the port still refuses connections"
        assert not member.ends_within(0.02)


@pytest.mark.parametrize("role", ROLES)
def test_garbage_harms_nobody(four: Ensemble, others: list[Bystander], role: str) -> None:
    member, chance = four.member_as(role), random.Random(SEED)
    greets = greeting(member)
    number, ensemble_id = identity(member)
    garbage = [
        *(HTTP, TLS, b"\0" * 64, b"\xff" * 64, b"\0\0", b"\0\0\0\5", greets[:-1], greets[:20]),
        *(struct.pack(">IBI", length, HELLO, 0) for length in (0, 4, 518, FRAME_MAX, U32_MAX)),
        *(frame(kind) for kind in KINDS),
        *(frame(kind, b"LCQ1" + chance.randbytes(34)) for kind in KINDS),
        *(chance.randbytes(100) for _ in range(20)),
        hello(ensemble_id, number, version=2),
        hello(bytes(16), number),
        hello(ensemble_id, number + 1),
        hello(ensemble_id, 77),
        # A connection without the ensemble's id may send few kinds of requests, and only short ones.
        hello(bytes(16), member.number + 1) + frame(READ_INDEX),
        hello(bytes(16), member.number + 1) + frame(JOIN, bytes(5000)),
    ]
    with unharmed(four, others, OTHER_WORK):
        for port in ports(member):
            for at in range(0, len(garbage), HANDSHAKES // 2):
                some = garbage[at : at + HANDSHAKES // 2]
                with dialled(member, [port] * len(some)) as connections:
                    for connection, data in zip(connections, some, strict=True):
                        with contextlib.suppress(ConnectionError):
                            connection.sendall(data)
                    for connection in connections:
                        rest(connection)
            assert is_welcome(member, port, greets)


def lies(chance: random.Random) -> Iterator[bytes]:
    """Invalid or impossible messages, to be sent after a valid hello."""
    for kind in KINDS:
        for body in (b"", b"\xff" * 24, bytes(3), chance.randbytes(40), chance.randbytes(4000)):
            yield frame(kind, body)
    yield struct.pack(">IBI", U32_MAX, APPEND, 0)
    yield struct.pack(">IBI", FRAME_MAX + 6, APPEND, 0)
    yield struct.pack(">IBI", 3, APPEND, 0)
    yield frame(APPEND, bytes(100))[:50]
    yield frame(APPEND, TERM_0 + b"\0\0" + struct.pack(">I", U32_MAX))
    yield frame(APPEND, TERM_0 + b"\0\0" + struct.pack(">II", 1, U32_MAX))
    yield frame(APPEND, TERM_0 + b"\0\0" + struct.pack(">II", 2, 18) + entry(0, 0) + entry(0, 7))
    yield frame(APPEND, TERM_0 + b"\1" + struct.pack(">QQ", U32_MAX, (1 << 64) - 1) + b"\0" + bytes(4))
    for kind in (VOTE, PRE_VOTE):
        # Members do not vote while they hear from a leader.
        yield frame(
            kind, struct.pack(">QQB", 1000, LIAR, 0) + b"\1" + struct.pack(">QQ", 999, U32_MAX) + b"\0"
        )
    yield frame(TRANSFER, TERM_0 + struct.pack(">Q", LIAR) + b"\0")
    yield frame(RENEW_SESSIONS, struct.pack(">H", 9) + b"abc")
    yield frame(PROPOSE, struct.pack(">QqI", 1, 0, U32_MAX))
    yield frame(PROPOSE, struct.pack(">QqIQQI", 1, 0, 1, LIAR, 0, U32_MAX))
    yield frame(PROPOSE, struct.pack(">QqI", U32_MAX, 0, 0))
    yield frame(JOIN, struct.pack(">QHBB", LIAR, 9, 0, 255))
    yield frame(JOIN, struct.pack(">QHBBBB", LIAR, 8, 0, 0, 0, 0))
    for length in (0, 20, 100_000):
        yield frame(SNAPSHOT, TERM_0 + struct.pack(">Q", length)) + chance.randbytes(length)
    yield frame(SNAPSHOT, TERM_0 + struct.pack(">Q", 1 << 63)) + bytes(100_000)
    yield frame(SNAPSHOT, TERM_0 + struct.pack(">Q", 60)) + b"LCQSNAP1" + b"\xff" * 52
    yield frame(READ_INDEX) * 500
    yield frame(IDENTIFY) * 5_000


def entry(term: int, index: int) -> bytes:
    """A blank entry; after the first, with its length in front."""
    blank = struct.pack(">BBQQ", 1, 0, term, index)
    return blank if index == 0 else struct.pack(">I", len(blank)) + blank


@pytest.mark.parametrize("role", ROLES)
def test_false_messages_harm_nobody(four: Ensemble, others: list[Bystander], role: str) -> None:
    member = four.member_as(role)
    greets = greeting(member)
    with unharmed(four, others, OTHER_WORK):
        for port in ports(member):
            for lie in lies(random.Random(SEED)):
                with dialled(member, [port]) as (connection,):
                    with contextlib.suppress(OSError):
                        connection.sendall(greets + lie)
                        connection.shutdown(socket.SHUT_WR)
                    assert rest(connection).startswith(frame(WELCOME)), lie[:100]
    assert not list((member.data / "quorum" / "snapshots").glob("*.part"))


@pytest.mark.parametrize("role", ROLES)
def test_too_many_connections_harm_nobody(four: Ensemble, others: list[Bystander], role: str) -> None:
    """Thousands of connections that send nothing, or only a hello, or that never read their answers."""
    member = four.member_as(role)
    greets = greeting(member)
    both = ports(member)
    with unharmed(four, others, OTHER_WORK, descriptors=10):
        with dialled(member, both * 1_000) as silent:
            for each in others:
                each.goes_on(1)
            for connection in silent:
                assert rest(connection) == b""
        with contextlib.ExitStack() as greeted:
            answers = []
            for port in both * (MEMBERS + 50):
                connection = greeted.enter_context(dial(member, port))
                connection.sendall(greets)
                answers.append(receive(connection)[0])
            assert answers.count(WELCOME) <= 2 * MEMBERS
            assert answers.count(REFUSED) >= 2 * 50
            for each in others:
                each.goes_on(1)
        for port in both:
            wait_until_welcome(member, port, greets)
        with dialled(member, both) as deaf:
            for connection in deaf:
                # Sends until the member stops reading, which it does once its answers wait.
                connection.settimeout(2.0)
                with contextlib.suppress(ConnectionError, TimeoutError):
                    connection.sendall(greets + frame(IDENTIFY) * 500_000)
            for each in others:
                each.goes_on(1)
        for port in both:
            wait_until_welcome(member, port, greets)


@pytest.mark.parametrize("role", ROLES)
def test_incomplete_large_frames_take_bounded_memory(
    four: Ensemble, others: list[Bystander], role: str
) -> None:
    member = four.member_as(role)
    greets = greeting(member)
    begun, sent = 12, 36 * MIB
    assert begun * sent > 2 * (REQUESTS_MIB + OTHER_WORK) * MIB
    with unharmed(four, others, REQUESTS_MIB + OTHER_WORK):
        with dialled(member, [member.addresses.quorum] * begun) as connections:
            senders = [threading.Thread(target=_send, args=(each, greets, sent)) for each in connections]
            for sender in senders:
                sender.start()
            for each in others:
                each.goes_on(1)
            for sender in senders:
                sender.join(2 * WAIT_SECONDS)
                assert not sender.is_alive()
            for connection in connections:
                rest(connection)
        client = KazooClient(four.hosts, timeout=20.0)
        client.start(WAIT_SECONDS)
        large = f"/large-{role}"
        client.create(large, b"")
        written = [client.set_async(large, bytes(1_000_000)) for _ in range(5)]
        assert [each.get(timeout=WAIT_SECONDS).version for each in written] == [1, 2, 3, 4, 5]
        client.stop()
        client.close()


def _send(connection: socket.socket, greets: bytes, count: int) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(greets + struct.pack(">IBI", 5 + FRAME_MAX, APPEND, 0))
        for _ in range(count // MIB):
            connection.sendall(bytes(MIB))


class Impostor(threading.Thread):
    """Listens on a dead member's port, welcomes every connection and sends invalid answers."""

    def __init__(self, member: Member, port: int) -> None:
        super().__init__()
        self.asked = threading.Event()
        self._listening = socket.create_server((member.addresses.host, port))
        self._lies = [
            b"\xff" * 64,
            frame(FAILED, b"\xff" * 100),
            struct.pack(">IBI", FRAME_MAX, 20, 0),
            frame(IDENTITY),
        ]
        self._open: list[socket.socket] = []

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _from = self._listening.accept()
                connection.settimeout(WAIT_SECONDS)
                self._open.append(connection)
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            kind, _body = receive(connection)
            if kind == HELLO:
                lie = self._lies[len(self._open) % len(self._lies)]
                connection.sendall(frame(WELCOME) + lie)
                if len(self._open) > len(self._lies):
                    self.asked.set()

    def close(self) -> None:
        # close does not wake a waiting accept; shutdown does.
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for each in self._open:
            each.close()


def test_an_impostor_on_a_dead_members_ports_harms_nobody(four: Ensemble) -> None:
    gone = next(member for member in four.followers() if member.mode() == "follower")
    running = [member for member in four.members if member is not gone]
    with bystanders(running) as others:
        gone.kill()
        impostors = [Impostor(gone, port) for port in ports(gone)]
        try:
            for each in impostors:
                each.start()
            for other in others:
                other.goes_on(3)
            assert impostors[1].asked.wait(WAIT_SECONDS), "the members did not try each invalid answer"
            for other in others:
                other.goes_on(3)
        finally:
            for each in impostors:
                each.close()
                each.join(WAIT_SECONDS)
        gone.start()
        four.wait_until_serving([gone])
        for other in others:
            other.goes_on(3)
