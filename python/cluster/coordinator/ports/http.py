"""An HTTP/1.1 server for the admin server and the metrics.

Owns framing (RFC 9112, bodies with a Content-Length), limits and timeouts. A peer that is idle for too long,
or sends too long a head, is disconnected. At the limit of connections a new one replaces the one that has
been waited for longest: for a request, or for it to read its answer. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import logging
import math
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from .listener import Listener, peer_address

HEAD_BYTES_MAX = 16 << 10
CONNECTIONS_MAX = 32
"""The most connections. A new one is closed if all are being answered."""
PARAMETERS_MAX = 100
LINGER_SECONDS = 2.0
"""The time that a peer has to close after its last answer."""
UNREAD_SECONDS = 5.0
"""A peer that leaves its answer unread for this long may be replaced, too."""
_CHUNK = 64 << 10
_TEXT = "text/plain;charset=utf-8"

_logger = logging.getLogger(__name__)


class HttpError(Exception):
    """A request is refused with a status and a sentence, and its connection ends."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass
class Request:
    """A request.

    ``query`` has the first value of each name. The names of ``headers`` are in lower case. ``address`` is the
    peer's, ``certificate`` the client's, in DER. ``read_body`` reads a body of at most so many bytes, or
    raises HttpError.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    address: str
    certificate: bytes | None
    read_body: Callable[[int], Awaitable[bytes]]


@dataclass
class Response:
    """If ``body`` is a path, the answer is that file's content."""

    body: bytes | Path = b""
    content_type: str = _TEXT
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


Answer = Callable[[Request], Awaitable[Response]]


class HttpServer:
    """Answers each request with ``answer``. An exception in it is logged, and the client gets status 500."""

    def __init__(
        self,
        answer: Answer,
        idle_seconds: float,
        *,
        context: ssl.SSLContext | None = None,
        accepts_plain: bool = False,
    ) -> None:
        self._answer = answer
        self._idle = idle_seconds
        self._serving: set[_Peer] = set()
        self._listener = Listener(
            self._protocol,
            self._may_enter,
            lambda address, error: _logger.debug("%s: %s", address, error),
            context=None if context is None else lambda: context,
            accepts_plain=accepts_plain,
            timeout_seconds=idle_seconds,
        )

    async def start(self, host: str, port: int) -> int:
        """Listens, and returns the port. Raises OSError."""
        return await self._listener.start(host, port)

    async def stop(self) -> None:
        """Disconnects all peers. Returns when the port is free."""
        self._listener.close()
        for peer in self._serving:
            peer.end()
        if self._serving:
            await asyncio.wait([peer.task for peer in self._serving])
        await self._listener.wait_closed()

    def _protocol(self, _secure: bool) -> asyncio.BaseProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(HEAD_BYTES_MAX), self._serve)

    def _may_enter(self, _address: str, _of_it: int, entering: int) -> bool:
        return entering + len(self._serving) < CONNECTIONS_MAX or self._replace_one()

    def _replace_one(self) -> bool:
        """Ends the connection that has been waited for longest. Returns False if none is waited for."""
        first = min(self._serving, key=lambda peer: peer.waited_since, default=None)
        waited_since = first.waited_since if first is not None else math.inf
        if self._listener.entering_since < waited_since:
            self._listener.drop_first()
            return True
        if first is None or waited_since > asyncio.get_running_loop().time():
            return False
        first.end()
        return True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = _Peer(reader, writer)
        self._serving.add(peer)
        try:
            while await self._exchange(peer):
                peer.wait_for()
            peer.wait_for()
            await self._hang_up(peer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the peer left or was idle for too long, or the server stops
        except Exception:
            _logger.exception("an HTTP connection failed")
        finally:
            writer.transport.abort()
            self._serving.discard(peer)

    async def _hang_up(self, peer: _Peer) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while await peer.reader.read(_CHUNK):
                    pass  # unread data would reset the connection, and the peer could lose its answer
        peer.writer.close()
        async with asyncio.timeout(self._idle):
            await peer.writer.wait_closed()

    async def _exchange(self, peer: _Peer) -> bool:
        """Serves one request. Returns whether there may be another."""
        try:
            async with asyncio.timeout(self._idle):
                head = await peer.reader.readuntil(b"\r\n\r\n")
            request, length, keeps = self._parse(head, peer)
        except asyncio.LimitOverrunError:
            return await self._refuse(peer, HttpError(431, f"the head is longer than {HEAD_BYTES_MAX} bytes"))
        except HttpError as error:
            return await self._refuse(peer, error)
        if length == 0:
            peer.stop_waiting()
        try:
            response = await self._answer(request)
        except HttpError as error:
            response = _sentence(error)
        except Exception:
            _logger.exception("%s %s failed", request.method, request.path)
            response = Response(b"the request failed; the server's log says why\n", status=500)
        keeps = keeps and length == 0  # a body may be unread
        await self._send(peer, response, keeps, request.method != "HEAD")
        return keeps

    async def _refuse(self, peer: _Peer, error: HttpError) -> bool:
        await self._send(peer, _sentence(error), False, True)
        return False

    def _parse(self, head: bytes, peer: _Peer) -> tuple[Request, int, bool]:
        """Returns the request, the length of its body, and whether its connection may stay."""
        first, *lines = head.decode("latin-1")[:-4].split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or words[2] not in ("HTTP/1.0", "HTTP/1.1"):
            raise HttpError(400, "this is not an HTTP/1.1 request")
        headers = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon or name != name.strip():
                raise HttpError(400, f"{line[:100]!r} is not a header")
            headers[name.lower()] = value.strip()
        if "transfer-encoding" in headers:
            raise HttpError(411, "a body needs a Content-Length")
        text = headers.get("content-length", "0")
        if not text.isascii() or not text.isdigit() or len(text) > 15:
            raise HttpError(400, f"{text[:100]!r} is not a Content-Length")
        try:
            target = urlsplit(words[1])
            query = parse_qs(target.query, keep_blank_values=True, max_num_fields=PARAMETERS_MAX)
        except ValueError as error:
            raise HttpError(400, f"{words[1][:100]!r} is not a target: {error}") from None
        body = _Body(int(text), headers.get("expect", "").lower() == "100-continue", self._idle, peer)
        address = peer.writer.get_extra_info("peername")
        tls = peer.writer.get_extra_info("ssl_object")
        request = Request(
            words[0],
            unquote(target.path),
            {name: values[0] for name, values in query.items()},
            headers,
            peer_address(address) if address else "",
            tls.getpeercert(True) if tls is not None else None,
            body.read,
        )
        wish = headers.get("connection", "").lower()
        return request, int(text), wish == "keep-alive" or (words[2] == "HTTP/1.1" and wish != "close")

    async def _send(self, peer: _Peer, response: Response, keeps: bool, with_body: bool) -> None:
        peer.stop_waiting()
        body, writer = response.body, peer.writer
        length = body.stat().st_size if isinstance(body, Path) else len(body)
        lines = {
            "Content-Type": response.content_type,
            "Content-Length": str(length),
            "Connection": "keep-alive" if keeps else "close",
            **response.headers,
        }
        reason = http.HTTPStatus(response.status).phrase
        text = f"HTTP/1.1 {response.status} {reason}\r\n"
        text += "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        writer.write(text.encode("latin-1") + b"\r\n")
        if with_body and isinstance(body, Path):
            await self._send_file(peer, body, length)
        elif with_body and isinstance(body, bytes):
            for start in range(0, length, _CHUNK):
                writer.write(body[start : start + _CHUNK])
                await self._drain(peer)
        await self._drain(peer)
        if not keeps and writer.can_write_eof():
            writer.write_eof()

    async def _send_file(self, peer: _Peer, path: Path, length: int) -> None:
        loop = asyncio.get_running_loop()
        with path.open("rb") as file:
            while length > 0:
                chunk = await loop.run_in_executor(None, file.read, min(length, _CHUNK))
                if not chunk:
                    raise OSError(f"{path} has become shorter")
                length -= len(chunk)
                peer.writer.write(chunk)
                await self._drain(peer)

    async def _drain(self, peer: _Peer) -> None:
        peer.wait_for(UNREAD_SECONDS)
        async with asyncio.timeout(self._idle):
            await peer.writer.drain()
        peer.stop_waiting()


def _sentence(error: HttpError) -> Response:
    return Response(f"{error}\n".encode(), status=error.status)


class _Peer:
    """A connection, and the task that serves it. ``waited_since`` is the loop's time since which the peer is
    waited for; infinite while its request is being answered."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self.reader = reader
        self.writer = writer
        self.waited_since = math.inf
        self.wait_for()

    def stop_waiting(self) -> None:
        """The peer has sent its request, which is now answered."""
        self.waited_since = math.inf

    def wait_for(self, delay_seconds: float = 0.0) -> None:
        """The peer has to send or to read something. The wait counts after a delay."""
        self.waited_since = asyncio.get_running_loop().time() + delay_seconds

    def end(self) -> None:
        """Disconnects the peer. Its task ends in the next turns of the loop."""
        self.waited_since = math.inf
        self.writer.transport.abort()
        self.task.cancel()


@dataclass
class _Body:
    """A body that is not read yet."""

    length: int
    expects: bool
    idle_seconds: float
    peer: _Peer

    async def read(self, most: int) -> bytes:
        if self.length > most:
            raise HttpError(413, f"the body has {self.length} bytes, and at most {most} are allowed")
        if self.expects:
            self.peer.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = bytearray()
        while len(body) < self.length:
            async with asyncio.timeout(self.idle_seconds):
                part = await self.peer.reader.read(min(self.length - len(body), _CHUNK))
            if not part:
                raise HttpError(400, f"the body ended after {len(body)} of {self.length} bytes")
            body += part
            self.peer.wait_for()
        self.peer.stop_waiting()
        return bytes(body)
