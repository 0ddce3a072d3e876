"""Bad input at the members' client ports: malformed requests, absurd lengths, clients that never read, too
many clients.

If these fail, a client of one member can end that member's service or another's, take its memory, or cost
other clients their sessions. :mod:`tests.coordinator.test_bad_input` has the same for one server.
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

from cluster.coordinator.connection import UNSENT_BYTES_MAX
from cluster.coordinator.protocol.jute import MAX_BUFFER, Writer
from cluster.coordinator.protocol.requests import EPHEMERAL, Op
from cluster.coordinator.state.acl import OPEN
from tests.coordinator.support import WAIT_SECONDS, RawClient
from tests.coordinator.test_bad_input import HTTP, TLS, framed

from .bystanders import Bystander, bystanders, many_descriptors, unharmed
from .members import OURS, Ensemble, Member, ensemble

pytestmark = [pytest.mark.compat, pytest.mark.timeout(180)]

SEED = 20
ROLES = ("leader", "follower", "observer")
PER_ADDRESS = 100
STRANGE = "127.0.0.9"
"""The address of the misbehaving clients, because the connection limit is per address."""
SETTINGS = {"maxClientCnxns": str(PER_ADDRESS)}
MIB = 1 << 20
OTHER_WORK = 48
"""MiB that a member may take meanwhile for its other work: a snapshot, or memory it keeps for reuse."""
LOG_TAIL = 32
"""MiB of the log's newest entries that a member keeps in memory (``raft/store/tail.rs``)."""
PING_XID = -2
MANY = 600_000
"""More requests than fit into the socket buffers."""
ABSURD = struct.pack(">i", 2**31 - 1)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """Three voters and an observer."""
    directory = tmp_path_factory.mktemp("bad-input")
    with many_descriptors(), ensemble(OURS, directory, 4, SETTINGS, observers=1) as running:
        yield running


@pytest.fixture(scope="module")
def others(four: Ensemble) -> Iterator[list[Bystander]]:
    with bystanders(four.members) as started:
        yield started


class Stranger(RawClient):
    """A misbehaving client. It connects from :data:`STRANGE`."""

    def __init__(self, member: Member) -> None:
        address = (member.addresses.host, member.addresses.clients)
        self.socket = socket.create_connection(address, WAIT_SECONDS, source_address=(STRANGE, 0))

    @property
    def port(self) -> int:
        return int(self.socket.getsockname()[1])

    def is_connected(self, member: Member) -> bool:
        """Whether the member still has this connection."""
        connections = member.word("cons", WAIT_SECONDS)
        assert connections, f"member {member.number} does not answer"
        return f"{STRANGE}:{self.port}[" in connections


@contextlib.contextmanager
def strangers(members: Sequence[Member]) -> Iterator[list[Stranger]]:
    found: list[Stranger] = []
    try:
        for member in members:
            found.append(Stranger(member))
        yield found
    finally:
        for each in found:
            each.close()


def send_raw(member: Member, data: bytes) -> bytes:
    """Sends the bytes and returns the answer. The member must then end the connection."""
    with strangers([member]) as (stranger,):
        with contextlib.suppress(ConnectionError):
            stranger.socket.sendall(data)
            return stranger.read_all()
        return b""


def connect(password: bytes, length: int | None = None) -> bytes:
    claimed = len(password) if length is None else length
    body = struct.pack(">iqiqi", 0, 0, 10_000, 0, claimed) + password + b"\0"
    return struct.pack(">i", len(body)) + body


def malformed(chance: random.Random) -> Iterator[tuple[int, bytes]]:
    """Every operation and some unknown ones, each with bodies that are almost never valid."""
    for op in (*Op, 55, 999, -999):
        yield op, b""
        yield op, ABSURD
        yield op, struct.pack(">i", -7)
        yield op, struct.pack(">i", 2) + b"/a" + ABSURD * 3
        yield op, struct.pack(">i", 4) + b"/\xff\xfe\0" + bytes(20)
        yield op, chance.randbytes(chance.randrange(1, 200))
        yield op, chance.randbytes(100_000)


def survives(stranger: Stranger, request: bytes) -> bool:
    """Whether the connection still answers after the request. The member must answer or end it."""
    ping = struct.pack(">ii", PING_XID, Op.PING)
    try:
        stranger.send(request)
        stranger.send(ping)
    except OSError:
        return False
    while answer := stranger.receive():
        if struct.unpack_from(">i", answer)[0] == PING_XID:
            return True
    return False


@pytest.mark.parametrize("role", ROLES)
def test_malformed_requests_harm_nobody_else(four: Ensemble, others: list[Bystander], role: str) -> None:
    member, chance = four.member_as(role), random.Random(SEED)
    garbage = [HTTP, TLS, b"\xff" * 64, b"\0" * 64, b"\0\0\0\4abcd", connect(b"x" * 3, 16)]
    lengths = [struct.pack(">i", length) for length in (-1, -(2**31), MAX_BUFFER + 1, 2**31 - 1)]
    with unharmed(four, others, OTHER_WORK):
        for data in (*garbage, *lengths, connect(b"", 2**31 - 1), connect(b"", -2)):
            assert send_raw(member, data) == b""
        opened: list[Stranger] = []
        served = ended = 0
        try:
            for op, body in malformed(chance):
                if not opened:
                    opened.append(Stranger(member))
                    assert opened[0].connect()[1] != 0
                if survives(opened[0], struct.pack(">ii", 1, op) + body):
                    served += 1
                else:
                    ended += 1
                    opened.pop().close()
        finally:
            for each in opened:
                each.close()
        assert served > 50
        assert ended > 50


@pytest.mark.parametrize("role", ROLES)
def test_incomplete_frames_take_bounded_memory(four: Ensemble, others: list[Bystander], role: str) -> None:
    member = four.member_as(role)
    count = PER_ADDRESS // 2
    # A growing buffer allocates an eighth more than it needs.
    mebibytes = count * MAX_BUFFER * 9 / 8 / MIB + OTHER_WORK
    with unharmed(four, others, mebibytes), strangers([member] * count) as begun:
        for each in begun:
            each.socket.sendall(struct.pack(">i", MAX_BUFFER) + bytes(MAX_BUFFER - 1))
        with strangers([member]) as (one_more,):
            assert one_more.connect()[1] != 0


@pytest.mark.parametrize("role", ROLES)
def test_connections_above_the_limit_are_closed(four: Ensemble, others: list[Bystander], role: str) -> None:
    member = four.member_as(role)
    with (
        unharmed(four, others, OTHER_WORK, descriptors=PER_ADDRESS + 10),
        strangers([member] * 10 * PER_ADDRESS) as clients,
    ):
        for each in clients[PER_ADDRESS:]:
            with contextlib.suppress(ConnectionError):
                assert each.receive() == b""
        for other in others:
            other.goes_on(1)
        late = KazooClient(member.hosts)
        late.start(WAIT_SECONDS)
        late.stop()
        late.close()


def test_a_client_that_never_reads_its_events_is_cut_off(four: Ensemble, others: list[Bystander]) -> None:
    """One such client on each member. The node's name is long because each event has it."""
    path = "/" + "w" * 40_000
    batch, events = 100, 3_000
    writer = KazooClient(four.hosts, timeout=20.0)
    writer.start(WAIT_SECONDS)
    try:
        with (
            unharmed(four, others, UNSENT_BYTES_MAX * 9 / 8 / MIB + LOG_TAIL + OTHER_WORK),
            strangers(four.members) as silent,
        ):
            writer.create(path, b"")
            sync = Writer().string("/").finish()
            for each in silent:
                assert each.connect(60_000)[1] != 0
                assert each.request(1, Op.SYNC, sync)[2] == 0
                assert each.request(2, Op.ADD_WATCH, Writer().string(path).i32(0).finish())[2] == 0
            connected = list(zip(silent, four.members, strict=True))
            sent = 0
            while connected:
                assert sent < events, f"{len(connected)} clients are not cut off after {sent} events"
                for answer in [writer.set_async(path, b"") for _ in range(batch)]:
                    answer.get(timeout=WAIT_SECONDS)
                sent += batch
                connected = [(each, member) for each, member in connected if each.is_connected(member)]
            print(f"cut off after {sent} events")
            assert sent * len(path) > UNSENT_BYTES_MAX / 2, "cut off far below the limit"
            for each in silent:
                with contextlib.suppress(ConnectionError):
                    assert len(each.read_all()) < sent * len(path)
    finally:
        writer.stop()
        writer.close()


def send_without_reading(stranger: Stranger, request: bytes, count: int) -> int:
    """How many requests the member took before it stopped reading."""
    data = (struct.pack(">i", len(request)) + request) * count
    stranger.socket.settimeout(2.0)
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < len(data):
            sent += stranger.socket.send(data[sent : sent + 65536])
    return sent * count // len(data)


def create_large(member: Member, path: str) -> None:
    client = KazooClient(member.hosts, timeout=20.0)
    client.start(WAIT_SECONDS)
    client.create(path, bytes(500_000))
    client.stop()
    client.close()


@pytest.mark.parametrize("role", ROLES)
def test_requests_are_not_read_while_answers_wait(four: Ensemble, others: list[Bystander], role: str) -> None:
    member = four.member_as(role)
    large = f"/large-{role}"
    create_large(member, large)
    get = Writer().i32(1).i32(Op.GET_DATA).string(large).boolean(False).finish()
    put = Writer().i32(1).i32(Op.SET_DATA).string(large).buffer(b"x" * 100).i32(-1).finish()
    with unharmed(four, others, OTHER_WORK), strangers([member] * 4) as silent:
        for each in silent:
            assert each.connect(20_000)[1] != 0
        reads = [send_without_reading(each, get, MANY) for each in silent[:2]]
        writes = [send_without_reading(each, put, 5_000) for each in silent[2:]]
        print(f"{reads} reads of 500,000 bytes and {writes} writes were sent")
        assert min(reads) >= 1000
        assert max(reads) < MANY, "the member read every request although no answer was taken"


SESSION_MS = 2_000
SLOW_PIECE = 64 << 10
SLOW_SECONDS = 0.02
"""The bytes and the pause of a slow client's reads: 20 MB in six seconds, three times its session timeout."""
REPLIES = 40


@pytest.mark.parametrize("role", ROLES)
def test_a_slow_reader_keeps_its_session_and_a_silent_client_loses_its_own(
    four: Ensemble, others: list[Bystander], role: str
) -> None:
    member = four.member_as(role)
    large = f"/slow-{role}"
    create_large(member, large)
    put = Writer().i32(1).i32(Op.CREATE).string(f"{large}/own").buffer(b"").acls(OPEN).i32(EPHEMERAL).finish()
    get = Writer().i32(2).i32(Op.GET_DATA).string(large).boolean(False).finish()
    ping = struct.pack(">ii", PING_XID, Op.PING)
    pause = threading.Event()
    with unharmed(four, others, OTHER_WORK), strangers([member] * 2) as (slow, silent):
        silent.connect(SESSION_MS)
        silent.socket.sendall(framed(*[get] * REPLIES))
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_PIECE)
        assert slow.connect(SESSION_MS)[0] == SESSION_MS
        slow.socket.sendall(framed(put, *[get] * REPLIES))
        took = pieces = 0
        while took < REPLIES * 500_000:
            part = slow.socket.recv(SLOW_PIECE)
            assert part, f"the member ended the connection after {took} bytes"
            took, pieces = took + len(part), pieces + 1
            if pieces % 20 == 0:
                slow.send(ping)
            pause.wait(SLOW_SECONDS * len(part) / SLOW_PIECE)
        late = KazooClient(member.hosts)
        late.start(WAIT_SECONDS)
        assert late.exists(f"{large}/own")
        late.stop()
        late.close()
        end = time.monotonic() + WAIT_SECONDS
        while silent.is_connected(member):
            assert time.monotonic() < end, "the expired session's connection is still open"
