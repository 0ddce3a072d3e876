"""Clients that speak the raw protocol to members of an ensemble and record every request, answer and
notification.

A run uses one event loop and one clock. A client keeps its session as Apache's client does:

- It pings, and drops a connection after two thirds of the session timeout without an answer.
- It reconnects to the next server with its session and the last zxid it saw, and sets its watches again.

A request without an answer when its connection breaks is recorded as unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.coordinator.protocol.jute import Acl, Id, Reader, Writer
from tests.coordinator.histories.history import (
    CHILDREN_CHANGED,
    DELETED,
    NO_NODE,
    OK,
    AddWatch,
    Check,
    CloseSession,
    Contact,
    Create,
    Delete,
    Exists,
    GetChildren,
    GetData,
    History,
    Multi,
    Notification,
    Operation,
    Request,
    SetData,
    SetWatches,
    Stat,
    Sync,
)

OPEN = [Acl(31, Id("world", "anyone"))]
CREATE2, DELETE, EXISTS, GET_DATA, SET_DATA, SYNC, PING, GET_CHILDREN2, CHECK, MULTI = (
    15,
    2,
    3,
    4,
    5,
    9,
    11,
    12,
    13,
    14,
)
SET_WATCHES2, ADD_WATCH, CLOSE_SESSION, ERROR = 105, 106, -11, -1
PING_XID, NOTIFICATION_XID = -2, -1
SESSION_ENDED = (-112, -118)
CONNECT_SECONDS = 1.0
_STAT = struct.Struct(">qqqqiiiqiiq")


class Recorder:
    """The history and the clock of one run."""

    def __init__(self, root: str) -> None:
        self.history = History(root)
        self.on_operation: Callable[[], None] = lambda: None
        """Called after an operation is added to the history."""
        self._last = 0

    def now(self) -> int:
        """Nanoseconds, greater than every value returned before."""
        self._last = max(self._last + 1, time.monotonic_ns())
        return self._last


class LostError(Exception):
    """The connection broke or the session ended before the answer came."""


@dataclass
class _Sent:
    xid: int
    request: Request
    invoked: int
    answer: asyncio.Future[Operation]


class Client:
    """One client of a run, with one session and one connection at a time."""

    def __init__(
        self, recorder: Recorder, number: int, servers: Sequence[tuple[str, int]], timeout_ms: int
    ) -> None:
        self.recorder, self.number, self._servers, self._asked_ms = recorder, number, servers, timeout_ms
        self.server = number % len(servers)
        self.session = 0
        self.timeout_ms = timeout_ms
        self.lost = asyncio.Event()
        self.lost.set()
        self.changed = asyncio.Condition()
        """Notified when a notification comes and when the connection is lost."""
        self.last_zxid = 0
        self.alive_until = 0
        """The time at which it must treat its session as lost, unless an answer comes before."""
        self.gap_at = 0
        """The first time since it was set to 0 at which the session had to be treated as lost; 0 for none."""
        self._password = bytes(16)
        self._xid = 0
        self._sent: deque[_Sent] = deque()
        self._pings: deque[int] = deque()
        self._tasks: list[asyncio.Task[None]] = []
        self._writer: asyncio.StreamWriter | None = None
        self._forget()

    def _forget(self) -> None:
        self._data: set[str] = set()
        self._exist: set[str] = set()
        self._child: set[str] = set()
        self._persistent: set[str] = set()
        self._recursive: set[str] = set()

    # ---- the connection ----

    async def connect(self, seconds: float) -> None:
        """Connects with its session, or a new one if that has expired. Raises LostError after ``seconds``."""
        end = time.monotonic() + seconds
        await self.drop()
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
                async with asyncio.timeout(max(0.05, min(CONNECT_SECONDS, end - time.monotonic()))):
                    if await self._connect_once():
                        break
                    continue
            if time.monotonic() > end:
                raise LostError(f"no server accepted client {self.number}")
            self.server = (self.server + 1) % len(self._servers)
            # A client's pause before it tries its next server.
            await asyncio.sleep(0.02)
        watches = (self._data, self._exist, self._child, self._persistent, self._recursive)
        if any(watches):
            await self.do(SetWatches(self.last_zxid, *(tuple(sorted(each)) for each in watches)))

    async def _connect_once(self) -> bool:
        """Returns False if the session had expired; the next attempt opens a new one."""
        began = self.recorder.now()
        reader, writer = await asyncio.open_connection(*self._servers[self.server])
        try:
            body = struct.pack(
                ">iqiqi", 0, self.last_zxid if self.session else 0, self._asked_ms, self.session, 16
            )
            writer.write(_framed(body + self._password + b"\0"))
            answer = await _frame(reader)
        except BaseException:
            writer.close()
            raise
        _version, timeout, session, _length = struct.unpack_from(">iiqi", answer)
        if timeout <= 0:
            writer.close()
            self._contact("expired")
            self._begin_anew()
            return False
        self.session, self.timeout_ms, self._password = session, timeout, answer[20:36]
        self._contact("connected")
        self._writer = writer
        self.lost = asyncio.Event()
        self._alive(began)
        self._tasks = [asyncio.create_task(self._read(reader)), asyncio.create_task(self._keep_alive())]
        return True

    def _begin_anew(self) -> None:
        self.session, self._password, self.last_zxid = 0, bytes(16), 0
        self._forget()

    def _contact(self, kind: str) -> None:
        recorder = self.recorder
        recorder.history.contacts.append(
            Contact(self.number, self.session, self.server, recorder.now(), kind, self.timeout_ms)
        )

    async def drop(self) -> None:
        """Closes the connection and keeps the session."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._lose()

    async def _lose(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        self._writer = None
        self._contact("lost")
        self._pings.clear()
        while self._sent:
            sent = self._sent.popleft()
            self._record(sent)
            sent.answer.set_exception(LostError(str(sent.request)))
            sent.answer.exception()
        self.lost.set()
        async with self.changed:
            self.changed.notify_all()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                await self._received(await _frame(reader))
        except (OSError, asyncio.IncompleteReadError):
            await self._lose()

    async def _keep_alive(self) -> None:
        while self._writer is not None:
            if self.recorder.now() > self.alive_until:
                await self._lose()
                return
            self._pings.append(self.recorder.now())
            self._writer.write(_framed(struct.pack(">ii", PING_XID, PING)))
            # The client's ping interval: a third of the session timeout.
            await asyncio.sleep(self.timeout_ms / 3000)

    def _alive(self, asked: int) -> None:
        """Notes an answer to a request that was sent at ``asked``."""
        if self.alive_until and self.recorder.now() > self.alive_until and not self.gap_at:
            self.gap_at = self.alive_until
        self.alive_until = max(self.alive_until, asked + self.timeout_ms * 2_000_000 // 3)

    async def _received(self, frame: bytes) -> None:
        xid, zxid, error = struct.unpack_from(">iqi", frame)
        reader = Reader(frame[16:])
        if xid == PING_XID:
            self._alive(self._pings.popleft())
            return
        self.last_zxid = max(self.last_zxid, zxid)
        if xid == NOTIFICATION_XID:
            kind, _state, path = reader.i32(), reader.i32(), reader.text()
            recorder = self.recorder
            recorder.history.notifications.append(
                Notification(self.number, self.session, recorder.now(), zxid, kind, path)
            )
            self._used_up(kind, path)
            async with self.changed:
                self.changed.notify_all()
            return
        sent = self._sent.popleft()
        assert xid == sent.xid, f"an answer to xid {xid}; the oldest outstanding request has xid {sent.xid}"
        self._alive(sent.invoked)
        if error in SESSION_ENDED:
            self._record(sent)
            sent.answer.set_exception(LostError(str(sent.request)))
            sent.answer.exception()
            return
        result = _decode(sent.request, reader) if error == OK else None
        operation = self._record(sent, self.recorder.now(), zxid, error, result)
        self._watches(sent.request, error)
        if not sent.answer.cancelled():
            sent.answer.set_result(operation)

    def _record(
        self, sent: _Sent, completed: int | None = None, zxid: int = 0, error: int = OK, result: Any = None
    ) -> Operation:
        operation = Operation(
            self.number,
            self.session,
            sent.xid,
            self.server,
            sent.request,
            sent.invoked,
            completed,
            zxid,
            error,
            result,
        )
        self.recorder.history.operations.append(operation)
        self.recorder.on_operation()
        return operation

    # ---- the watches to set again ----

    def _watches(self, request: Request, error: int) -> None:
        match request:
            case Exists(watch=True) if error == NO_NODE:
                self._exist.add(request.path)
            case Exists(watch=True) | GetData(watch=True) if error == OK:
                self._data.add(request.path)
            case GetChildren(watch=True) if error == OK:
                self._child.add(request.path)
            case AddWatch() if error == OK:
                (self._recursive if request.recursive else self._persistent).add(request.path)

    def _used_up(self, kind: int, path: str) -> None:
        if kind != CHILDREN_CHANGED:
            self._data.discard(path)
            self._exist.discard(path)
        if kind in (CHILDREN_CHANGED, DELETED):
            self._child.discard(path)

    # ---- requests ----

    def send(self, request: Request) -> asyncio.Future[Operation]:
        """Sends it. The future gets the answer, or LostError if none can come."""
        answer: asyncio.Future[Operation] = asyncio.get_running_loop().create_future()
        if self._writer is None:
            answer.set_exception(LostError("not connected"))
            answer.exception()
            return answer
        self._xid += 1
        op, body = _encode(request)
        self._sent.append(_Sent(self._xid, request, self.recorder.now(), answer))
        self._writer.write(_framed(struct.pack(">ii", self._xid, op) + body))
        return answer

    @property
    def xid(self) -> int:
        """The xid of the last request sent."""
        return self._xid

    async def do(self, request: Request) -> Operation:
        return await self.send(request)

    async def close(self) -> None:
        """Ends its session. It must be connected."""
        await self.do(CloseSession())
        await self.drop()
        self._begin_anew()


def _framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


async def _frame(reader: asyncio.StreamReader) -> bytes:
    (length,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(length)


def _encode(request: Request | Check) -> tuple[int, bytes]:
    writer = Writer()
    match request:
        case Create(path, data, ephemeral, sequential):
            return CREATE2, writer.string(path).buffer(data).acls(OPEN).i32(
                ephemeral + 2 * sequential
            ).finish()
        case SetData(path, data, version):
            return SET_DATA, writer.string(path).buffer(data).i32(version).finish()
        case Delete(path, version):
            return DELETE, writer.string(path).i32(version).finish()
        case Check(path, version):
            return CHECK, writer.string(path).i32(version).finish()
        case Multi(operations):
            for each in operations:
                op, body = _encode(each)
                writer.i32(op).boolean(False).i32(-1)
                writer.out += body
            return MULTI, writer.i32(-1).boolean(True).i32(-1).finish()
        case GetData(path, watch):
            return GET_DATA, writer.string(path).boolean(watch).finish()
        case Exists(path, watch):
            return EXISTS, writer.string(path).boolean(watch).finish()
        case GetChildren(path, watch):
            return GET_CHILDREN2, writer.string(path).boolean(watch).finish()
        case Sync(path):
            return SYNC, writer.string(path).finish()
        case AddWatch(path, recursive):
            return ADD_WATCH, writer.string(path).i32(recursive).finish()
        case SetWatches():
            writer.i64(request.relative_zxid)
            for paths in request[1:]:
                writer.strings(paths)
            return SET_WATCHES2, writer.finish()
        case CloseSession():
            return CLOSE_SESSION, b""


def _decode(request: Request | Check, reader: Reader) -> Any:
    match request:
        case Create():
            return reader.text(), _stat(reader)
        case SetData() | Exists():
            return _stat(reader)
        case GetData():
            return reader.buffer(), _stat(reader)
        case GetChildren():
            return tuple(sorted(each or "" for each in reader.strings() or [])), _stat(reader)
        case Multi():
            return tuple(_results(request, reader))
        case _:
            return None


def _results(request: Multi, reader: Reader) -> list[Any]:
    results: list[Any] = []
    while True:
        op, done, _error = reader.i32(), reader.boolean(), reader.i32()
        if done:
            return results
        results.append(reader.i32() if op == ERROR else _decode(request.operations[len(results)], reader))


def _stat(reader: Reader) -> Stat:
    return Stat(*_STAT.unpack(reader.take(_STAT.size)))
