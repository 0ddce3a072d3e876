"""A raw client of ZooKeeper's protocol for bench/coordinator.py: encoded requests, any number in flight, many
sessions on one thread. It measures the server: for each request it does one addition and one slice of bytes.

A request is ``int length, int xid, int type, body``, a reply ``int length, int xid, long zxid, int error,
body`` (``zookeeper.jute``). The error of every reply is checked.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Sequence

CREATE, DELETE, EXISTS, GET_DATA, SET_DATA, CLOSE = 1, 2, 3, 4, 5, -11
SESSION_TIMEOUT_MS = 600_000
_NOTIFICATION = -1
_HEAD = struct.Struct(">iiqi")
_REQUEST = struct.Struct(">iii")
_WORLD_ANYONE = struct.pack(">iii5si6s", 1, 31, 5, b"world", 6, b"anyone")
_CHUNK = 1 << 18


class SessionFailed(Exception):
    """A server closed a connection or refused a request."""


def _text(path: str) -> bytes:
    encoded = path.encode()
    return struct.pack(">i", len(encoded)) + encoded


def request(kind: int, body: bytes, xid: int = 1) -> bytes:
    return _REQUEST.pack(8 + len(body), xid, kind) + body


def create(path: str, data: bytes) -> bytes:
    """Encodes a create of a persistent node with the open ACL."""
    body = _text(path) + struct.pack(">i", len(data)) + data + _WORLD_ANYONE + bytes(4)
    return request(CREATE, body)


def set_data(path: str, data: bytes) -> bytes:
    return request(SET_DATA, _text(path) + struct.pack(">i", len(data)) + data + struct.pack(">i", -1))


def get_data(path: str, watch: bool = False) -> bytes:
    return request(GET_DATA, _text(path) + bytes([watch]))


def delete(path: str) -> bytes:
    return request(DELETE, _text(path) + struct.pack(">i", -1))


class Session:
    """One session on one connection."""

    def __init__(self, port: int, patience: float = 30) -> None:
        """Opens a session. Each answer may take `patience` seconds.

        Raises:
            SessionFailed, OSError: the server refused it.
        """
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=patience)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._patience = patience
        self._received = b""
        hello = struct.pack(">iqiqi16s?", 0, 0, SESSION_TIMEOUT_MS, 0, 16, bytes(16), False)
        try:
            self._socket.sendall(struct.pack(">i", len(hello)) + hello)
            answer = self._frame()
        except BaseException:
            self._socket.close()
            raise
        if len(answer) < 16 or struct.unpack_from(">q", answer, 8)[0] == 0:
            self._socket.close()
            raise SessionFailed(f"the server on port {port} opened no session")
        self._requests: Sequence[bytes] = ()
        self._sent = self.answered = 0
        self._unsent = b""

    def _frame(self) -> bytes:
        while len(self._received) < 4 or len(self._received) < 4 + self._length():
            self._receive()
        length = self._length()
        frame, self._received = self._received[4 : 4 + length], self._received[4 + length :]
        return frame

    def _length(self) -> int:
        return int.from_bytes(self._received[:4], "big", signed=True)

    def _receive(self) -> None:
        received = self._socket.recv(_CHUNK)
        if not received:
            raise SessionFailed("the server closed a connection")
        self._received += received

    def ask(self, message: bytes) -> bytes:
        """Returns the reply to a request, with its header.

        Raises:
            SessionFailed: the reply is an error.
        """
        self._socket.sendall(message)
        answer = self._frame()
        if error := _HEAD.unpack_from(b"\0\0\0\0" + answer)[3]:
            raise SessionFailed(f"the server answered error {error}")
        return answer

    def event(self) -> bytes:
        """Returns the next frame of the server."""
        return self._frame()

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        """Ends the session, and waits for the server's answer."""
        try:
            self._socket.sendall(request(CLOSE, b""))
            self._frame()
        finally:
            self._socket.close()

    # ---- many requests in flight ----

    def begin(self, requests: Sequence[bytes], in_flight: int) -> None:
        """Sends the first requests. `advance` sends the others."""
        self._socket.setblocking(False)
        self._requests, self._sent, self.answered = requests, 0, 0
        self._send_more(in_flight)

    def _send_more(self, count: int) -> None:
        following = self._requests[self._sent : self._sent + count]
        self._sent += len(following)
        self._unsent += b"".join(following)
        if self._unsent:
            try:
                sent = self._socket.send(self._unsent)
            except BlockingIOError:
                return
            self._unsent = self._unsent[sent:]

    @property
    def interest(self) -> int:
        """The events for a selector."""
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)

    @property
    def is_done(self) -> bool:
        return self.answered == len(self._requests)

    def flush(self) -> None:
        self._send_more(0)

    def advance(self) -> None:
        """Reads replies, and sends as many new requests."""
        self._receive()
        received, at, before = self._received, 0, self.answered
        end = len(received) - 20
        while at <= end:
            length, xid, _zxid, error = _HEAD.unpack_from(received, at)
            if at + 4 + length > len(received):
                break
            at += 4 + length
            if xid != _NOTIFICATION:
                self.answered += 1
                if error:
                    raise SessionFailed(f"the server answered error {error}")
        self._received = received[at:]
        self._send_more(self.answered - before)

    def finish(self) -> None:
        self._socket.settimeout(self._patience)


def open_sessions(ports: Sequence[int], count: int) -> list[Session]:
    """Opens sessions, equally many on each port."""
    return [Session(ports[number % len(ports)]) for number in range(count)]


def close_sessions(sessions: Iterable[Session]) -> None:
    for session in sessions:
        session.close()


def run(sessions: Sequence[Session], shares: Sequence[Sequence[bytes]], in_flight: int) -> float:
    """Runs each session's share of requests. Returns the seconds until all are answered.

    Raises:
        SessionFailed: a request was refused, or a connection closed.
        TimeoutError: there was no reply for 60 s.
    """
    with selectors.DefaultSelector() as selector:
        began = time.perf_counter()
        for session, share in zip(sessions, shares, strict=True):
            session.begin(share, in_flight)
            if not session.is_done:
                selector.register(session, session.interest)
        for session, key, events in _ready(selector):
            if events & selectors.EVENT_READ:
                session.advance()
            else:
                session.flush()
            if session.is_done:
                selector.unregister(session)
            elif session.interest != key.events:
                selector.modify(session, session.interest)
        seconds = time.perf_counter() - began
    for session in sessions:
        session.finish()
    return seconds


def _ready(selector: selectors.BaseSelector) -> Iterator[tuple[Session, selectors.SelectorKey, int]]:
    """Yields sessions that can be read or written, while any is registered.

    Raises TimeoutError after 60 s without one.
    """
    while selector.get_map():
        ready = selector.select(60)
        if not ready:
            raise TimeoutError("the server sent nothing for 60 s")
        for key, events in ready:
            session = key.fileobj
            assert isinstance(session, Session)
            yield session, key, events


def latencies(session: Session, requests: Sequence[bytes]) -> list[float]:
    """Runs requests one after the other. Returns the sorted seconds of each."""
    taken = []
    for message in requests:
        began = time.perf_counter()
        session.ask(message)
        taken.append(time.perf_counter() - began)
    return sorted(taken)


def until_all_have_the_event(watchers: Sequence[Session], setter: Session, message: bytes) -> float:
    """Returns the seconds from a request until each watcher has its event."""
    with selectors.DefaultSelector() as selector:
        for watcher in watchers:
            selector.register(watcher, selectors.EVENT_READ)
        began = time.perf_counter()
        setter.ask(message)
        for watcher, _key, _events in _ready(selector):
            watcher.event()
            selector.unregister(watcher)
        return time.perf_counter() - began
