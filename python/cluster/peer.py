"""A connection to another broker, for the requests that Python sends: from the controller and to it.

One request is under way at a time, so answers are in order. The connection is opened by the first request and
opened again after a failure. Lives on the event loop. Plaintext only.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any

from logcore import _native

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
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._correlation_id = 0
        self._turn = asyncio.Lock()

    async def request(self, api_key: int, version: int, body: dict[str, Any]) -> dict[str, Any]:
        """Sends a request and returns the decoded answer.

        Raises OSError (TimeoutError and ConnectionError are such) when the broker cannot be reached, closes
        the connection or does not answer in time, and ValueError for an answer that is not Kafka's.
        """
        encoded = _native.encode_request(api_key, version, body)
        async with self._turn:
            try:
                async with asyncio.timeout(self._timeout_seconds):
                    return await self._exchange(api_key, version, encoded)
            except asyncio.IncompleteReadError:
                self._drop()
                raise ConnectionResetError(
                    f"{self._host}:{self._port} closed the connection instead of answering"
                ) from None
            except BaseException:
                self._drop()
                raise

    async def _exchange(self, api_key: int, version: int, encoded: bytes) -> dict[str, Any]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._streams
        self._correlation_id = (self._correlation_id + 1) & 0x7FFF_FFFF
        head = _native.encode_request_header(api_key, version, self._correlation_id, self._client_id)
        writer.write(_LENGTH.pack(len(head) + len(encoded)))
        writer.write(head)
        writer.write(encoded)
        await writer.drain()
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if not 0 < length <= _ANSWER_BYTES_MAX:
            raise ValueError(f"{self._host}:{self._port} sent an answer of {length} bytes; is it a broker?")
        answer = await reader.readexactly(length)
        correlation_id, start = _native.decode_response_header(api_key, version, answer)
        if correlation_id != self._correlation_id:
            raise ValueError(f"{self._host}:{self._port} answered another request; is it a broker?")
        return _native.decode_response(api_key, version, answer[start:])

    def _drop(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None

    def close(self) -> None:
        """Closes the connection; a request under way fails."""
        self._drop()
