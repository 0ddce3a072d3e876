"""A connection to another broker, for the requests that Python sends: from the controller and to it.

One request is under way at a time, so answers are in order. The connection is opened by the first request and
opened again after a failure. Lives on the event loop. Plaintext only.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any

from logcore import _native

Body = dict[str, Any]
"""A decoded message of the codec: one key for each field."""

_LENGTH = struct.Struct(">i")
_ANSWER_BYTES_MAX = 100 << 20
"""Kafka's socket.request.max.bytes. A longer answer is not one of Kafka's."""


class Peer:
    """A connection to the broker at `host` and `port`."""

    def __init__(self, host: str, port: int, client_id: str, timeout_ms: int) -> None:
        self._host = host
        self._port = port
        self._client_id = client_id
        self._timeout_seconds = timeout_ms / 1000
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._answer: asyncio.Future[bytes] | None = None
        """The answer that is waited for."""
        self._lost = asyncio.Event()
        self._correlation_id = 0
        self._turn = asyncio.Lock()
        """Held by the request under way."""

    async def connect(self) -> None:
        """Opens the connection if there is none. Raises OSError."""
        async with self._turn, asyncio.timeout(self._timeout_seconds):
            await self._connected()

    async def lost(self) -> None:
        """Returns when a connection has ended and none was opened since."""
        await self._lost.wait()

    async def request(self, api_key: int, version: int, body: Body) -> Body:
        """Sends a request and returns the decoded answer.

        Raises OSError (TimeoutError and ConnectionError are such) when the broker cannot be reached, closes
        the connection or does not answer in time, and ValueError for an answer that is not Kafka's.
        """
        encoded = _native.encode_request(api_key, version, body)
        async with self._turn:
            try:
                async with asyncio.timeout(self._timeout_seconds):
                    answer = await self._exchange(api_key, version, encoded)
                correlation_id, start = _native.decode_response_header(api_key, version, answer)
                if correlation_id != self._correlation_id:
                    raise ValueError(f"{self._host}:{self._port} answered another request; is it a broker?")
                return _native.decode_response(api_key, version, answer[start:])
            except BaseException:
                self._drop()
                raise

    async def _connected(self) -> asyncio.StreamWriter:
        if self._writer is None:
            reader, self._writer = await asyncio.open_connection(self._host, self._port)
            self._lost.clear()
            self._reading = asyncio.create_task(self._read(reader, self._writer))
        return self._writer

    async def _exchange(self, api_key: int, version: int, encoded: bytes) -> bytes:
        writer = await self._connected()
        self._correlation_id = (self._correlation_id + 1) & 0x7FFF_FFFF
        self._answer = asyncio.get_running_loop().create_future()
        head = _native.encode_request_header(api_key, version, self._correlation_id, self._client_id)
        writer.write(_LENGTH.pack(len(head) + len(encoded)))
        writer.write(head)
        writer.write(encoded)
        await writer.drain()
        return await self._answer

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Reads answers, and notices the end of the connection also between requests."""
        where = f"{self._host}:{self._port}"
        error: Exception = ConnectionResetError(f"{where} closed the connection instead of answering")
        try:
            while True:
                (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                if not 0 < length <= _ANSWER_BYTES_MAX or self._answer is None or self._answer.done():
                    error = ValueError(
                        f"{where} sent an answer of {length} bytes to nothing; is it a broker?"
                    )
                    return
                answer = await reader.readexactly(length)
                if not self._answer.done():
                    self._answer.set_result(answer)
        except asyncio.IncompleteReadError:
            return
        except OSError as failure:
            error = failure
        finally:
            writer.transport.abort()
            if self._writer is writer:
                self._writer = None
                self._lost.set()
                if self._answer is not None and not self._answer.done():
                    self._answer.set_exception(error)

    def _drop(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None
            self._lost.set()
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        if self._answer is not None and not self._answer.done():
            # Not a cancellation: this would end the task that waits.
            self._answer.set_exception(
                ConnectionAbortedError(f"the connection to {self._host}:{self._port} was closed")
            )
            # Nobody waits for it if the request could not be sent.
            self._answer.exception()
        self._answer = None

    def close(self) -> None:
        """Closes the connection; a request under way fails with OSError."""
        self._drop()
