"""HTTP/1.1 for the admin server and the metrics: requests in, answers out.

Owns framing (RFC 9112, bodies with a Content-Length), limits and timeouts; what is answered is somebody else's. Who is
silent for the idle time, or sends more than a head may have, is cut off. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from .listener import Listener

HEAD_BYTES_MAX = 16 << 10
CONNECTIONS_MAX = 32
"""At once; whoever comes beyond is closed."""
PARAMETERS_MAX = 100
LINGER_SECONDS = 2.0
"""How long a peer may take to hang up after its last answer."""
_CHUNK = 64 << 10
_TEXT = "text/plain;charset=utf-8"

_logger = logging.getLogger(__name__)


class HttpError(Exception):
    """A request that is answered with a status and a sentence, and ends its connection."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass
class Request:
    """``query`` has the first value of each name; names of ``headers`` are in lower case; ``address`` is the peer's;
    ``certificate`` is the client's, in DER. ``read_body`` reads the body, of at most so many bytes, or raises HttpError."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    address: str
    certificate: bytes | None
    read_body: Callable[[int], Awaitable[bytes]]


@dataclass
class Response:
    """A ``body`` that is a path is that file's content."""

    body: bytes | Path = b""
    content_type: str = _TEXT
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


Answer = Callable[[Request], Awaitable[Response]]


class HttpServer:
    """Serves what ``answer`` makes of each request; an exception of it is told in the log, and 500 to its client."""

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
        self._serving: dict[asyncio.StreamWriter, asyncio.Task[object] | None] = {}
        self._listener = Listener(
            self._protocol,
            lambda _address, _of_it, entering: entering + len(self._serving) < CONNECTIONS_MAX,
            lambda address, error: _logger.debug("%s: %s", address, error),
            context=context,
            accepts_plain=accepts_plain,
            patience_seconds=idle_seconds,
        )

    async def start(self, host: str, port: int) -> int:
        """Listens, and returns the port. Raises OSError."""
        return await self._listener.start(host, port)

    async def stop(self) -> None:
        """Cuts everybody off; returns when the port is free."""
        self._listener.close()
        for writer, task in list(self._serving.items()):
            writer.transport.abort()
            if task is not None:
                task.cancel()
        waiting = [task for task in self._serving.values() if task is not None]
        if waiting:
            await asyncio.wait(waiting)
        await self._listener.wait_closed()

    def _protocol(self, _secure: bool) -> asyncio.BaseProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(HEAD_BYTES_MAX), self._serve)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving[writer] = asyncio.current_task()
        try:
            while await self._exchange(reader, writer):
                pass
            await self._hang_up(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # it left, was silent for too long, or the server stops
        except Exception:
            _logger.exception("an HTTP connection failed")
        finally:
            writer.transport.abort()
            del self._serving[writer]

    async def _hang_up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while await reader.read(_CHUNK):
                    pass  # what it still sends would otherwise cost it the answer
        writer.close()
        async with asyncio.timeout(self._idle):
            await writer.wait_closed()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; whether there may be another."""
        try:
            async with asyncio.timeout(self._idle):
                head = await reader.readuntil(b"\r\n\r\n")
            request, length, keeps = self._parse(head, reader, writer)
        except asyncio.LimitOverrunError:
            return await self._refuse(writer, HttpError(431, f"a head may have {HEAD_BYTES_MAX} bytes"))
        except HttpError as error:
            return await self._refuse(writer, error)
        try:
            response = await self._answer(request)
        except HttpError as error:
            response = _sentence(error)
        except Exception:
            _logger.exception("%s %s failed", request.method, request.path)
            response = Response(b"the request failed; the server's log says why\n", status=500)
        keeps = keeps and length == 0  # a body that nobody may have read is left behind
        await self._send(writer, response, keeps, request.method != "HEAD")
        return keeps

    async def _refuse(self, writer: asyncio.StreamWriter, error: HttpError) -> bool:
        await self._send(writer, _sentence(error), False, True)
        return False

    def _parse(
        self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[Request, int, bool]:
        """The request, the length of its body, and whether its connection may stay."""
        first, *lines = head.decode("latin-1")[:-4].split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or words[2] not in ("HTTP/1.0", "HTTP/1.1"):
            raise HttpError(400, "this is no HTTP/1.1 request")
        headers = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon or name != name.strip():
                raise HttpError(400, f"{line[:100]!r} is no header")
            headers[name.lower()] = value.strip()
        if "transfer-encoding" in headers:
            raise HttpError(411, "a body needs a Content-Length")
        text = headers.get("content-length", "0")
        if not text.isascii() or not text.isdigit() or len(text) > 15:
            raise HttpError(400, f"{text[:100]!r} is no Content-Length")
        try:
            target = urlsplit(words[1])
            query = parse_qs(target.query, keep_blank_values=True, max_num_fields=PARAMETERS_MAX)
        except ValueError as error:
            raise HttpError(400, f"{words[1][:100]!r} is no target: {error}") from None
        body = _Body(
            int(text), headers.get("expect", "").lower() == "100-continue", self._idle, reader, writer
        )
        peer = writer.get_extra_info("peername")
        tls = writer.get_extra_info("ssl_object")
        request = Request(
            words[0],
            unquote(target.path),
            {name: values[0] for name, values in query.items()},
            headers,
            str(peer[0]) if peer else "",
            tls.getpeercert(True) if tls is not None else None,
            body.read,
        )
        wish = headers.get("connection", "").lower()
        return request, int(text), wish == "keep-alive" or (words[2] == "HTTP/1.1" and wish != "close")

    async def _send(
        self, writer: asyncio.StreamWriter, response: Response, keeps: bool, with_body: bool
    ) -> None:
        body = response.body
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
            await self._send_file(writer, body, length)
        elif with_body and isinstance(body, bytes):
            for start in range(0, length, _CHUNK):
                writer.write(body[start : start + _CHUNK])
                await self._drain(writer)
        await self._drain(writer)
        if not keeps and writer.can_write_eof():
            writer.write_eof()

    async def _send_file(self, writer: asyncio.StreamWriter, path: Path, length: int) -> None:
        loop = asyncio.get_running_loop()
        with path.open("rb") as file:
            while length > 0:
                chunk = await loop.run_in_executor(None, file.read, min(length, _CHUNK))
                if not chunk:
                    raise OSError(f"{path} has become shorter")
                length -= len(chunk)
                writer.write(chunk)
                await self._drain(writer)

    async def _drain(self, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(self._idle):
            await writer.drain()


def _sentence(error: HttpError) -> Response:
    return Response(f"{error}\n".encode(), status=error.status)


@dataclass
class _Body:
    """The body of a request that has not been read."""

    length: int
    expects: bool
    idle_seconds: float
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def read(self, most: int) -> bytes:
        if self.length > most:
            raise HttpError(413, f"a body of {self.length} bytes; at most {most} are taken")
        if self.expects:
            self.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = bytearray()
        while len(body) < self.length:
            async with asyncio.timeout(self.idle_seconds):
                part = await self.reader.read(min(self.length - len(body), _CHUNK))
            if not part:
                raise HttpError(400, f"the body ended after {len(body)} of {self.length} bytes")
            body += part
        return bytes(body)
