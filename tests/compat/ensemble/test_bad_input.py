"""What comes to the clients' ports of an ensemble's members: malformed requests, absurd lengths, clients that read nothing, crowds.

If these fail, somebody who reaches the port of one member ends its service or another's, takes its memory, or costs clients that
have nothing to do with it their sessions. For one server: :mod:`tests.coordinator.test_bad_input`.
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
"""The address of whoever misbehaves; the limit of connections is each address's own."""
SETTINGS = {"maxClientCnxns": str(PER_ADDRESS)}
MIB = 1 << 20
ANYTHING = 48
"""MiB that a member may take for what the others and it itself do meanwhile: a snapshot, say, and memory that is kept for reuse."""
LOG_TAIL = 32
"""MiB of the log's newest entries that a member keeps in memory (``store.rs``)."""
PING_XID = -2
MANY = 600_000
"""Requests, of which the sockets alone do not take as many."""
ABSURD = struct.pack(">i", 2**31 - 1)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """Three that vote and an observer."""
    directory = tmp_path_factory.mktemp("bad-input")
    with many_descriptors(), ensemble(OURS, directory, 4, SETTINGS, observers=1) as running:
        yield running


@pytest.fixture(scope="module")
def others(four: Ensemble) -> Iterator[list[Bystander]]:
    with bystanders(four.members) as started:
        yield started


class Stranger(RawClient):
    """A client with an address of its own."""

    def __init__(self, member: Member) -> None:
        place = (member.addresses.host, member.addresses.clients)
        self.socket = socket.create_connection(place, WAIT_SECONDS, source_address=(STRANGE, 0))

    @property
    def port(self) -> int:
        return int(self.socket.getsockname()[1])

    def is_there(self, member: Member) -> bool:
        """Whether the member has this connection."""
        told = member.word("cons", WAIT_SECONDS)
        assert told, f"member {member.number} does not answer"
        return f"{STRANGE}:{self.port}[" in told


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


def say(member: Member, data: bytes) -> bytes:
    """What comes back until the member ends the connection, which it must."""
    with strangers([member]) as (stranger,):
        with contextlib.suppress(ConnectionError):
            stranger.socket.sendall(data)
            return stranger.read_all()
        return b""


def connect(password: bytes, length: int | None = None) -> bytes:
    said = len(password) if length is None else length
    body = struct.pack(">iqiqi", 0, 0, 10_000, 0, said) + password + b"\0"
    return struct.pack(">i", len(body)) + body


def malformed(chance: random.Random) -> Iterator[tuple[int, bytes]]:
    """Every operation, and some that there are not, with bodies that are hardly ever one's."""
    for op in (*Op, 55, 999, -999):
        yield op, b""
        yield op, ABSURD
        yield op, struct.pack(">i", -7)
        yield op, struct.pack(">i", 2) + b"/a" + ABSURD * 3
        yield op, struct.pack(">i", 4) + b"/\xff\xfe\0" + bytes(20)
        yield op, chance.randbytes(chance.randrange(1, 200))
        yield op, chance.randbytes(100_000)


def survives(stranger: Stranger, request: bytes) -> bool:
    """Whether the connection is served behind a request; it is answered or ended."""
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
def test_malformed_requests(four: Ensemble, others: list[Bystander], role: str) -> None:
    member, chance = four.member_as(role), random.Random(SEED)
    garbage = [HTTP, TLS, b"\xff" * 64, b"\0" * 64, b"\0\0\0\4abcd", connect(b"x" * 3, 16)]
    lengths = [struct.pack(">i", length) for length in (-1, -(2**31), MAX_BUFFER + 1, 2**31 - 1)]
    with unharmed(four, others, ANYTHING):
        for data in (*garbage, *lengths, connect(b"", 2**31 - 1), connect(b"", -2)):
            assert say(member, data) == b""
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
def test_frames_that_are_begun_and_never_ended(four: Ensemble, others: list[Bystander], role: str) -> None:
    member = four.member_as(role)
    count = PER_ADDRESS // 2
    # A buffer that grows has an eighth in reserve.
    mebibytes = count * MAX_BUFFER * 9 / 8 / MIB + ANYTHING
    with unharmed(four, others, mebibytes), strangers([member] * count) as begun:
        for each in begun:
            each.socket.sendall(struct.pack(">i", MAX_BUFFER) + bytes(MAX_BUFFER - 1))
        with strangers([member]) as (one_more,):
            assert one_more.connect()[1] != 0


@pytest.mark.parametrize("role", ROLES)
def test_a_crowd(four: Ensemble, others: list[Bystander], role: str) -> None:
    member = four.member_as(role)
    with (
        unharmed(four, others, ANYTHING, descriptors=PER_ADDRESS + 10),
        strangers([member] * 10 * PER_ADDRESS) as crowd,
    ):
        for each in crowd[PER_ADDRESS:]:
            with contextlib.suppress(ConnectionError):
                assert each.receive() == b""
        for other in others:
            other.goes_on(1)
        late = KazooClient(member.hosts)
        late.start(WAIT_SECONDS)
        late.stop()
        late.close()


def test_who_never_reads_its_watches_is_cut_off(four: Ensemble, others: list[Bystander]) -> None:
    """On each member at the same time; an event has its node's name in it, which is a long one."""
    path = "/" + "w" * 40_000
    batch, events = 100, 3_000
    writer = KazooClient(four.hosts, timeout=20.0)
    writer.start(WAIT_SECONDS)
    try:
        with (
            unharmed(four, others, UNSENT_BYTES_MAX * 9 / 8 / MIB + LOG_TAIL + ANYTHING),
            strangers(four.members) as deaf,
        ):
            writer.create(path, b"")
            sync = Writer().string("/").finish()
            for each in deaf:
                assert each.connect(60_000)[1] != 0
                assert each.request(1, Op.SYNC, sync)[2] == 0
                assert each.request(2, Op.ADD_WATCH, Writer().string(path).i32(0).finish())[2] == 0
            there = list(zip(deaf, four.members, strict=True))
            told = 0
            while there:
                assert told < events, f"after {told} events of {len(path)} bytes {len(there)} are still there"
                for answer in [writer.set_async(path, b"") for _ in range(batch)]:
                    answer.get(timeout=WAIT_SECONDS)
                told += batch
                there = [(each, member) for each, member in there if each.is_there(member)]
            print(f"cut off after {told} events")
            assert told * len(path) > UNSENT_BYTES_MAX / 2, "they had hardly anything to read"
            for each in deaf:
                with contextlib.suppress(ConnectionError):
                    assert len(each.read_all()) < told * len(path)
    finally:
        writer.stop()
        writer.close()


def send_without_reading(stranger: Stranger, request: bytes, count: int) -> int:
    """How many the member took before it read no more."""
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
def test_who_asks_and_asks_and_reads_nothing(four: Ensemble, others: list[Bystander], role: str) -> None:
    member = four.member_as(role)
    large = f"/large-{role}"
    create_large(member, large)
    get = Writer().i32(1).i32(Op.GET_DATA).string(large).boolean(False).finish()
    put = Writer().i32(1).i32(Op.SET_DATA).string(large).buffer(b"x" * 100).i32(-1).finish()
    with unharmed(four, others, ANYTHING), strangers([member] * 4) as deaf:
        for each in deaf:
            assert each.connect(20_000)[1] != 0
        asked = [send_without_reading(each, get, MANY) for each in deaf[:2]]
        written = [send_without_reading(each, put, 5_000) for each in deaf[2:]]
        print(f"{asked} reads of 500,000 bytes and {written} writes were sent")
        assert min(asked) >= 1000
        assert max(asked) < MANY, "all that was asked was taken, and nothing of the answers"


SESSION_MS = 2_000
SLOW_PIECE = 64 << 10
SLOW_SECONDS = 0.02
"""What a slow client takes, and how often: 20 MB in six seconds, three times its session's timeout."""
REPLIES = 40


@pytest.mark.parametrize("role", ROLES)
def test_who_is_slow_to_read_is_served_and_who_is_silent_is_not(
    four: Ensemble, others: list[Bystander], role: str
) -> None:
    member = four.member_as(role)
    large = f"/slow-{role}"
    create_large(member, large)
    put = Writer().i32(1).i32(Op.CREATE).string(f"{large}/own").buffer(b"").acls(OPEN).i32(EPHEMERAL).finish()
    get = Writer().i32(2).i32(Op.GET_DATA).string(large).boolean(False).finish()
    ping = struct.pack(">ii", PING_XID, Op.PING)
    pause = threading.Event()
    with unharmed(four, others, ANYTHING), strangers([member] * 2) as (slow, silent):
        silent.connect(SESSION_MS)
        silent.socket.sendall(framed(*[get] * REPLIES))
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_PIECE)
        assert slow.connect(SESSION_MS)[0] == SESSION_MS
        slow.socket.sendall(framed(put, *[get] * REPLIES))
        took = pieces = 0
        while took < REPLIES * 500_000:
            part = slow.socket.recv(SLOW_PIECE)
            assert part, f"ended after {took} bytes"
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
        while silent.is_there(member):
            assert time.monotonic() < end, "its session is over, and its connection is not"
