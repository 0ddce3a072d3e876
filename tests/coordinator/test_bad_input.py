"""Hostile clients.

If these fail, a client can stop the coordinator, fill its memory, take over a session, or see an older state
than before.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kazoo.client import KazooClient

from cluster.coordinator import Settings
from cluster.coordinator.connection import OUTSTANDING_MAX, SLOW_BYTES, TIME_SLICE_MS, Connection
from cluster.coordinator.durability.engine import EngineLog
from cluster.coordinator.errors import Code
from cluster.coordinator.protocol.jute import MAX_BUFFER, Writer
from cluster.coordinator.protocol.requests import Op
from cluster.coordinator.state.acl import OPEN
from cluster.coordinator.unread import Unread

from .conftest import OpenRaw, StartCoordinator
from .support import WAIT_SECONDS, Coordinator, FakeClock, RawClient

HTTP = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
TLS = bytes.fromhex("16030100c8010000c40303")


@pytest.mark.parametrize(
    "garbage",
    [
        HTTP,
        TLS,
        b"\xff" * 64,
        b"\0" * 64,
        struct.pack(">i", MAX_BUFFER + 1),
        struct.pack(">i", -1),
        b"\0\0\0\4abcd",
    ],
    ids=["http", "tls", "ones", "zeros", "long", "negative", "short"],
)
def test_garbage_ends_only_its_own_connection(client: KazooClient, open_raw: OpenRaw, garbage: bytes) -> None:
    raw = open_raw()
    raw.socket.sendall(garbage)
    assert raw.receive() == b""
    assert client.exists("/")


def test_a_frame_longer_than_allowed_is_refused_at_its_length(open_raw: OpenRaw) -> None:
    raw = open_raw()
    raw.connect()
    raw.socket.sendall(struct.pack(">i", 2**31 - 1))
    assert raw.receive() == b""


def test_the_largest_allowed_frame_is_served(client: KazooClient) -> None:
    size = MAX_BUFFER - 200
    client.create("/big", b"x" * size)
    assert len(client.get("/big")[0]) == size


def test_a_malformed_request_is_refused_and_the_next_is_served(open_raw: OpenRaw) -> None:
    raw = open_raw()
    raw.connect()
    too_long = struct.pack(">i", 2**30) + b"/a"
    for op in (Op.GET_DATA, Op.CREATE, Op.SET_WATCHES, Op.MULTI_READ, Op.ADD_WATCH):
        assert raw.request(1, op, too_long)[:3:2] == (1, Code.MARSHALLING_ERROR)
    assert raw.request(-2, Op.PING)[2] == 0


def test_a_request_without_a_header_ends_the_connection_and_not_the_session(open_raw: OpenRaw) -> None:
    raw = open_raw()
    _timeout, session, password = raw.connect()
    raw.send(b"\0\0\0\1\0\0")
    assert raw.receive() == b""
    again = open_raw()
    assert again.connect(session_id=session, password=password)[1] == session


@pytest.mark.parametrize("op", [999, Op.CHECK, Op.CREATE_SESSION, Op.ERROR, 0])
def test_an_unknown_operation_is_answered_and_ends_the_connection(open_raw: OpenRaw, op: int) -> None:
    raw = open_raw()
    raw.connect()
    assert raw.request(7, op, struct.pack(">iii", 4000, 0, 0))[:3] == (7, -1, Code.UNIMPLEMENTED)
    assert raw.receive() == b""


def test_a_wrong_password_gets_no_session_and_ends_the_owners_connection(open_raw: OpenRaw) -> None:
    """ZooKeeper does so too. The owner reconnects with its password."""
    owner = open_raw()
    _timeout, session, password = owner.connect()
    for guess in (bytes(16), b"", password[:-1]):
        thief = open_raw()
        assert thief.connect(session_id=session, password=guess) == (0, 0, bytes(16))
        assert thief.receive() == b""
    assert owner.receive() == b""
    assert open_raw().connect(session_id=session, password=password)[1] == session


def test_a_session_moves_to_its_newest_connection(open_raw: OpenRaw) -> None:
    old = open_raw()
    _timeout, session, password = old.connect()
    new = open_raw()
    assert new.connect(session_id=session, password=password)[1] == session
    assert old.receive() == b""
    assert new.request(-2, Op.PING)[2] == 0


def test_a_client_that_has_seen_a_newer_state_is_refused(open_raw: OpenRaw) -> None:
    raw = open_raw()
    with pytest.raises(ConnectionError):
        raw.connect(last_zxid=1 << 40)


def test_requests_sent_together_with_the_handshake_are_served(open_raw: OpenRaw) -> None:
    raw = open_raw()
    handshake = struct.pack(">iqiqi", 0, 0, 10_000, 0, 16) + bytes(16) + b"\0"
    ping = struct.pack(">ii", -2, Op.PING)
    both = struct.pack(">i", len(handshake)) + handshake + struct.pack(">i", len(ping)) + ping
    for position in range(len(both)):  # the slowest network sends single bytes
        raw.socket.sendall(both[position : position + 1])
    assert len(raw.receive()) == 37
    assert raw.reply()[0] == -2


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ops=st.lists(st.tuples(st.sampled_from([*Op, 55]), st.binary(max_size=60)), max_size=5))
def test_any_requests_leave_the_server_serving(open_raw: OpenRaw, ops: list[tuple[int, bytes]]) -> None:
    raw = open_raw()
    raw.connect()
    for xid, (op, body) in enumerate(ops):
        try:
            raw.send(struct.pack(">ii", xid, op) + body)
        except OSError:
            break
    other = open_raw()
    other.connect()
    assert other.request(-2, Op.PING)[2] == 0


def test_a_client_that_never_reads_does_not_block_others(
    coordinator: Coordinator, open_raw: OpenRaw, client: KazooClient
) -> None:
    client.create("/large", os.urandom(500_000))
    raw = open_raw()
    raw.connect()
    get = struct.pack(">ii", 1, Op.GET_DATA) + struct.pack(">i", 6) + b"/large" + b"\0"
    raw.socket.setblocking(False)
    sent = 0
    try:
        for _ in range(100_000):
            sent += raw.socket.send(struct.pack(">i", len(get)) + get)
    except BlockingIOError:
        pass
    assert client.get("/large")[1].dataLength == 500_000
    # The server stops reading from a client whose replies are not read, so it keeps only a few replies.
    connection = next(
        connection for connection in coordinator.server.connections if connection.buffered_bytes > 0
    )
    assert connection.buffered_bytes < 4_000_000


def framed(*frames: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)


PING = struct.pack(">ii", -2, Op.PING)
SESSION_MS = 10_000


def slow_client(coordinator: Coordinator, client: KazooClient, raw: RawClient, waits_for: str) -> Connection:
    """Makes ``raw`` leave more unread than the socket buffers take: replies, or events of a watch."""
    long = "/" + "w" * 40_000
    client.create("/large", bytes(1_000_000))
    client.create(long)
    _timeout, session, _password = raw.connect(SESSION_MS)
    if waits_for == "replies":
        read = Writer().i32(2).i32(Op.GET_DATA).string("/large").boolean(False).finish()
        write = Writer().i32(1).i32(Op.SET_DATA).string(long).buffer(b"").i32(-1).finish()
        raw.socket.sendall(framed(write, *[read] * UNREAD))
    else:
        assert raw.request(1, Op.ADD_WATCH, Writer().string(long).i32(0).finish())[2] == 0
        for _ in range(UNREAD_EVENTS):
            client.set(long, b"")
    connection = coordinator.server.holder(session)
    assert connection is not None
    coordinator.thread.wait(lambda: connection.unread_bytes > SLOW_BYTES)
    return connection


@pytest.mark.parametrize("waits_for", ["replies", "events"])
def test_a_client_that_is_slow_to_read_keeps_its_session(
    coordinator: Coordinator, open_raw: OpenRaw, client: KazooClient, waits_for: str
) -> None:
    """If this failed, a client on a slow link would lose its session although it reads and pings."""
    raw = open_raw()
    connection = slow_client(coordinator, client, raw, waits_for)
    server, thread = coordinator.server, coordinator.thread
    for _ in range(3):
        heard = thread.call(lambda: connection.traffic.received)
        raw.send(PING)
        thread.wait(lambda heard=heard: connection.traffic.received > heard)
        coordinator.pass_time(SESSION_MS * 3 // 4)
        assert connection.session_id in server.machine.sessions
    pongs = 0
    while pongs < 3:
        pongs += raw.reply()[0] == -2
    assert raw.request(3, Op.EXISTS, Writer().string("/").boolean(False).finish())[2] == 0


@pytest.mark.parametrize("waits_for", ["replies", "events"])
def test_an_expired_clients_connection_is_closed_with_unread_data(
    coordinator: Coordinator, open_raw: OpenRaw, client: KazooClient, waits_for: str
) -> None:
    """If this failed, a suspended host's connections would count for ever and keep it from reconnecting."""
    raw = open_raw()
    connection = slow_client(coordinator, client, raw, waits_for)
    client.exists("/")
    coordinator.pass_time(SESSION_MS - 1)
    assert connection in coordinator.server.connections
    coordinator.pass_time(SESSION_MS)
    coordinator.thread.wait(lambda: connection not in coordinator.server.connections)
    assert not coordinator.server.is_watched()


def test_a_connection_closed_for_garbage_does_not_wait_for_its_reader(
    coordinator: Coordinator, open_raw: OpenRaw, client: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this failed, a client that sends garbage and does not read would keep its connection."""
    monkeypatch.setattr("cluster.coordinator.connection.LINGER_SECONDS", 0.05)
    raw = open_raw()
    connection = slow_client(coordinator, client, raw, "events")
    raw.socket.sendall(struct.pack(">i", -1))
    coordinator.thread.wait(lambda: connection not in coordinator.server.connections)


@pytest.mark.parametrize("asks", ["reads", "credentials"])
def test_few_requests_are_taken_from_a_client_that_does_not_read(
    coordinator: Coordinator, open_raw: OpenRaw, client: KazooClient, asks: str
) -> None:
    raw = open_raw()
    connection = slow_client(coordinator, client, raw, "events")
    before = coordinator.thread.call(lambda: connection.traffic.received)
    read = Writer().i32(2).i32(Op.EXISTS).string("/").boolean(False).finish()
    frame = read if asks == "reads" else struct.pack(">ii", -4, Op.AUTH) + auth(b"ann:pass")
    sender = threading.Thread(target=raw.socket.sendall, args=(framed(*[frame] * 3_000),))
    sender.start()
    coordinator.thread.wait(lambda: not connection.interest & 1)
    assert connection.traffic.received - before <= OUTSTANDING_MAX
    # Everything is answered once the client reads.
    replies = 0
    while replies < 3_000:
        xid, _zxid, code, _body = raw.reply()
        assert code == 0
        replies += xid != -1
    sender.join(WAIT_SECONDS)


def test_unread_data_of_all_clients_together_is_limited(
    coordinator: Coordinator, open_raw: OpenRaw, client: KazooClient
) -> None:
    client.create("/large", os.urandom(500_000))
    unread = coordinator.server.unread
    silent: list[RawClient] = []
    get = struct.pack(">ii", 1, Op.GET_DATA) + struct.pack(">i", 6) + b"/large" + b"\0"

    def left() -> list[int]:
        return coordinator.thread.call(
            lambda: [each.unread_bytes for each in coordinator.server.connections if each.unread_bytes]
        )

    for _ in range(12):
        raw = open_raw()
        raw.connect()
        # More than the socket buffers take.
        raw.socket.sendall((struct.pack(">i", len(get)) + get) * 40)
        silent.append(raw)
        # The server answers another client after the requests above.
        assert client.get("/large")[1].dataLength == 500_000
        if len(silent) == 1:
            unread.most = 5 * sum(left())
        assert 0 < sum(left()) <= unread.most
    assert len(left()) < len(silent)


def test_the_client_with_the_most_unread_data_is_cut_off_first() -> None:
    class Fake:
        address = "here"

        def __init__(self) -> None:
            self.unread_bytes = 0
            self.is_cut_off = False

        def abort(self) -> None:
            self.is_cut_off = True

    unread = Unread(100)
    fakes = [Fake() for _ in range(4)]

    def report(number: int, left: int) -> None:
        fakes[number].unread_bytes = left
        unread.report(fakes[number], left)

    for number, left in enumerate((30, 40, 20)):
        report(number, left)
    # This client has read since its last report.
    fakes[1].unread_bytes = 5
    report(3, 30)
    assert not any(fake.is_cut_off for fake in fakes)
    report(3, 46)
    assert [fake.is_cut_off for fake in fakes] == [False, False, False, True]
    report(3, 0)
    report(0, 0)
    report(2, 75)
    assert not fakes[2].is_cut_off


def test_the_size_of_an_answer_is_limited(client: KazooClient, open_raw: OpenRaw) -> None:
    """If this failed, one small request that reads a large node many times would take all memory."""
    client.create("/large", bytes(900_000))
    for count, is_answered in ((15, True), (20, False)):
        raw = open_raw()
        raw.connect()
        reads = Writer()
        for _ in range(count):
            reads.i32(Op.GET_DATA).boolean(False).i32(-1).string("/large").boolean(False)
        body = reads.i32(-1).boolean(True).i32(-1).finish()
        raw.send(Writer().i32(1).i32(Op.MULTI_READ).finish() + body)
        assert (len(raw.receive()) > 15 * 900_000) == is_answered
    assert client.exists("/large")


class RushingClock(FakeClock):
    """A clock on which every step takes more than a time slice."""

    def monotonic_ms(self) -> int:
        self.now_ms += TIME_SLICE_MS + 1
        return self.now_ms


@contextlib.contextmanager
def loop_steps_of(method: str, server: Coordinator, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The numbers of the event loop's steps in which connections call the method."""
    call = getattr(Connection, method)
    called: list[int] = []
    steps, is_over = 0, False

    def noted(connection: Connection, *arguments: object) -> None:
        called.append(steps)
        call(connection, *arguments)

    async def count_steps() -> None:
        nonlocal steps
        while not is_over:
            steps += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(Connection, method, noted)
    counting = asyncio.run_coroutine_threadsafe(count_steps(), server.thread.loop)
    try:
        yield called
    finally:
        is_over = True
        counting.result(WAIT_SECONDS)


def test_many_requests_of_one_client_do_not_delay_others(
    start_coordinator: StartCoordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this failed, other clients would wait until all requests of one client are answered."""
    server = start_coordinator(tmp_path / "rushing", clock=RushingClock())
    raw = RawClient(server.port)
    raw.connect(timeout_ms=40_000)
    frame = Writer().i32(1).i32(Op.GET_ALL_CHILDREN_NUMBER).string("/").finish()
    with loop_steps_of("_handle", server, monkeypatch) as handled:
        raw.socket.sendall((struct.pack(">i", len(frame)) + frame) * 50)
        for _ in range(50):
            assert raw.reply()[2] == 0
    raw.close()
    assert len(set(handled)) == 50, "two requests were handled in one step"


class StalledLog(EngineLog):
    """A log that appends the write of /stalled only when the test calls ``go_on``."""

    go_on: ClassVar[Callable[[], None] | None] = None

    def append(self, records: Sequence[bytes], done: Callable[[Exception | None], None]) -> None:
        append = super().append
        if b"/stalled" in records[0]:
            StalledLog.go_on = lambda: append(records, done)
        else:
            append(records, done)


def test_large_reads_behind_a_stalled_write_are_not_taken(
    start_coordinator: StartCoordinator, tmp_path: Path
) -> None:
    """If this failed, the server would keep 1,000 requests of a megabyte of a client whose write waits."""
    server = start_coordinator(tmp_path / "stalled", open_log=StalledLog)
    raw = RawClient(server.port)
    raw.connect()
    write = Writer().i32(1).i32(Op.CREATE).finish() + create("/stalled")
    read = Writer().i32(2).i32(Op.EXISTS).string("/" + "x" * 1_000_000).boolean(False).finish()
    frames = b"".join(struct.pack(">i", len(frame)) + frame for frame in (write, *[read] * 20))
    sender = threading.Thread(target=raw.socket.sendall, args=(frames,))
    sender.start()
    [connection] = server.server.connections
    server.thread.wait(lambda: StalledLog.go_on is not None and not connection.interest & 1)
    assert server.thread.call(lambda: connection.outstanding) < 7
    assert server.thread.call(lambda: connection.buffered_bytes) < 2_000_000
    assert StalledLog.go_on is not None
    server.thread.call(StalledLog.go_on)
    assert raw.reply()[2] == 0
    for _ in range(20):
        assert raw.reply()[2] == Code.NO_NODE
    sender.join(WAIT_SECONDS)
    raw.close()


def send_behind_a_stalled_write(
    server: Coordinator, raw: RawClient, frames: list[bytes], outstanding: int
) -> None:
    """Sends a write that stalls, then the frames, and waits until ``outstanding`` requests are taken."""
    StalledLog.go_on = None
    write = Writer().i32(1).i32(Op.CREATE).finish() + create("/stalled")
    raw.socket.sendall(b"".join(struct.pack(">i", len(frame)) + frame for frame in (write, *frames)))
    connections = server.server.connections
    server.thread.wait(
        lambda: StalledLog.go_on is not None and sum(each.outstanding for each in connections) == outstanding
    )


def test_reads_behind_a_write_do_not_delay_others(
    start_coordinator: StartCoordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this failed, other clients would wait for all the reads that one client has sent after a write."""
    server = start_coordinator(tmp_path / "stalled", open_log=StalledLog, clock=RushingClock())
    raw = RawClient(server.port)
    raw.connect(timeout_ms=40_000)
    read = Writer().i32(2).i32(Op.EXISTS).string("/none").boolean(False).finish()
    send_behind_a_stalled_write(server, raw, [read] * 50, 51)
    assert StalledLog.go_on is not None
    with loop_steps_of("_answered", server, monkeypatch) as answered:
        server.thread.call(StalledLog.go_on)
        assert [raw.reply()[2] for _ in range(51)] == [0, *[Code.NO_NODE] * 50]
    assert len(set(answered)) == len(answered) == 51
    closed = raw.request(3, Op.CLOSE_SESSION)
    assert closed[2] == 0, "the connection ended before the last answer"
    raw.close()


def test_a_write_is_answered_before_an_event_of_a_later_write(
    start_coordinator: StartCoordinator, tmp_path: Path
) -> None:
    """If this failed, a client whose time slice is over would see zxids go back."""
    server = start_coordinator(tmp_path / "stalled", open_log=StalledLog, clock=RushingClock())
    raw, other = RawClient(server.port), RawClient(server.port)
    raw.connect(timeout_ms=40_000)
    other.connect(timeout_ms=40_000)
    watch = Writer().string("/watched").boolean(True).finish()
    assert raw.request(1, Op.EXISTS, watch)[2] == Code.NO_NODE
    writes = [Writer().i32(2).i32(Op.CREATE).finish() + create(path) for path in ("/b", "/c")]
    send_behind_a_stalled_write(server, raw, writes, 3)
    # These three are appended together when the stalled one is, so their outcomes come in one step.
    other.send(Writer().i32(1).i32(Op.CREATE).finish() + create("/watched"))
    server.thread.wait(lambda: sum(each.outstanding for each in server.server.connections) == 4)
    assert StalledLog.go_on is not None
    server.thread.call(StalledLog.go_on)
    received = [raw.reply() for _ in range(4)]
    zxids = [zxid for _xid, zxid, _code, _body in received]
    assert zxids == sorted(zxids), received
    assert received[-1][0] == -1, "the watch has not fired"
    raw.close()
    other.close()


def test_no_request_is_taken_behind_a_slow_read(start_coordinator: StartCoordinator, tmp_path: Path) -> None:
    """If this failed, one small packet that counts all nodes 1,000 times would delay every other client."""
    server = start_coordinator(tmp_path / "stalled", open_log=StalledLog)
    raw = RawClient(server.port)
    raw.connect()
    count = Writer().i32(2).i32(Op.GET_ALL_CHILDREN_NUMBER).string("/").finish()
    write = Writer().i32(3).i32(Op.CREATE).finish() + create("/behind")
    send_behind_a_stalled_write(server, raw, [count, count, write, count], 2)
    [connection] = server.server.connections
    assert StalledLog.go_on is not None
    server.thread.call(StalledLog.go_on)
    assert [raw.reply()[2] for _ in range(5)] == [0] * 5
    assert server.thread.call(lambda: connection.outstanding) == 0
    raw.close()


def reads_and_writes_unread(raw: RawClient, written: Callable[[], object]) -> None:
    """Writes, reads, writes and reads; takes the replies only once ``written`` has seen the second write.

    Each read must return the write before it.
    """
    raw.connect()
    assert raw.request(1, Op.CREATE, create("/n", b"0"))[2] == 0
    assert raw.request(2, Op.CREATE, create("/large", bytes(1_000_000)))[2] == 0
    large = Writer().i32(3).i32(Op.GET_DATA).string("/large").boolean(False).finish()
    read = Writer().i32(4).i32(Op.GET_DATA).string("/n").boolean(False).finish()
    frames: list[bytes] = []
    for data in (b"1", b"2"):
        frames.append(Writer().i32(5).i32(Op.SET_DATA).string("/n").buffer(data).i32(-1).finish())
        frames += [*[large] * UNREAD, read]
    raw.socket.sendall(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))
    written()
    found: list[bytes] = []
    newest = 0
    for frame in frames:
        xid, zxid, code, body = raw.reply()
        assert (xid, code) == (struct.unpack_from(">i", frame)[0], 0)
        assert zxid >= newest, "a zxid of the session went back"
        newest = zxid
        if frame is read:
            found.append(body[4:5])
    assert found == [b"1", b"2"]


UNREAD = 25
"""Replies of a megabyte: more than the socket buffers take, less than the limit for a cut-off."""
UNREAD_EVENTS = 400
"""Events of 40 kB: more than the socket buffers take, less than the limit for a cut-off."""


def test_reads_do_not_see_later_writes_of_the_same_client(client: KazooClient, open_raw: OpenRaw) -> None:
    """If this failed, a client that reads slowly would see data that it wrote after its read."""
    raw = open_raw()

    def written() -> None:
        while client.get("/n")[1].version < 2:
            pass

    reads_and_writes_unread(raw, written)


def auth(credentials: bytes) -> bytes:
    return Writer().i32(0).string("digest").buffer(credentials).finish()


def create(path: str, data: bytes = b"") -> bytes:
    return Writer().string(path).buffer(data).acls(OPEN).i32(0).finish()


def test_the_size_of_a_clients_identities_is_limited(client: KazooClient, open_raw: OpenRaw) -> None:
    """If this failed, a client with huge identities could make a write too large for the log."""
    raw = open_raw()
    raw.connect()
    assert raw.request(-4, Op.AUTH, auth(b"x" * 60_000))[2] == 0
    assert raw.request(1, Op.CREATE, create("/named", b"x" * (MAX_BUFFER - 200)))[2] == 0
    assert raw.request(-4, Op.AUTH, auth(b"y" * 60_000))[2] == Code.AUTH_FAILED
    assert raw.receive() == b""
    assert client.exists("/named")


def test_a_request_of_a_larger_allowed_size_is_logged(
    start_coordinator: StartCoordinator, tmp_path: Path
) -> None:
    size = 5_000_000
    server = start_coordinator(tmp_path / "large", settings=Settings(max_buffer=size))
    raw = RawClient(server.port)
    raw.connect()
    assert raw.request(1, Op.CREATE, create("/large", b"x" * (size - 100)))[2] == 0
    assert raw.request(2, Op.EXISTS, Writer().string("/large").boolean(False).finish())[2] == 0
    raw.close()


def test_many_large_writes_at_once_are_logged(client: KazooClient) -> None:
    data = b"x" * (MAX_BUFFER - 200)
    pending = [client.create_async(f"/many{number}", data) for number in range(20)]
    assert [answer.get(timeout=WAIT_SECONDS) for answer in pending] == [
        f"/many{number}" for number in range(20)
    ]


def test_the_connections_of_an_address_are_limited(
    start_coordinator: StartCoordinator, tmp_path: Path
) -> None:
    server = start_coordinator(tmp_path / "few", settings=Settings(max_client_connections=2))
    first, second, third = (RawClient(server.port) for _ in range(3))
    assert first.connect()[1] != 0
    assert second.connect()[1] != 0
    assert third.receive() == b""
    first.close()
    while server.thread.call(lambda: len(server.server.connections)) > 1:
        pass
    second.send(Writer().i32(-2).i32(Op.PING).finish())
    assert second.reply()[0] == -2
    again = RawClient(server.port)
    assert again.connect()[1] != 0
    for raw in (second, third, again):
        raw.close()
