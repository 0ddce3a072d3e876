"""A bare client: one connection, with or without TLS, and the codec's dicts."""

from __future__ import annotations

import asyncio
import ssl
import struct
from types import TracebackType
from typing import Any, Self

from logcore._native import (
    api_keys,
    decode_response,
    decode_response_header,
    encode_request,
    encode_request_header,
)

KEYS = api_keys()


def frame_of(name: str, version: int, correlation: int = 1, **message: Any) -> bytes:
    """A request as it goes onto the wire."""
    frame = encode_request_header(KEYS[name], version, correlation, "test")
    frame += encode_request(KEYS[name], version, message)
    return struct.pack(">i", len(frame)) + frame


class Wire:
    """One connection. Requests go one after the other."""

    def __init__(self, address: str, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._correlation = 0

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def ask(self, name: str, version: int, **message: Any) -> dict[str, Any]:
        """Sends a request and returns the response."""
        key = KEYS[name]
        self._correlation += 1
        self._writer.write(frame_of(name, version, self._correlation, **message))
        [length] = struct.unpack(">i", await self._reader.readexactly(4))
        answer = await self._reader.readexactly(length)
        correlation, position = decode_response_header(key, version, answer)
        assert correlation == self._correlation
        return decode_response(key, version, answer[position:])
