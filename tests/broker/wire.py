"""A bare client: one connection, requests and responses as the codec's dicts."""

from __future__ import annotations

import asyncio
import struct
from types import TracebackType
from typing import Any, Self

from logcore._native import api_keys, decode_response, encode_request

KEYS = api_keys()
FLEXIBLE_FROM = {
    "Metadata": 9,
    "CreateTopics": 5,
    "DeleteTopics": 4,
    "JoinGroup": 6,
    "SyncGroup": 4,
    "OffsetFetch": 6,
    "DescribeConfigs": 4,
    "AlterConfigs": 2,
    "IncrementalAlterConfigs": 1,
    "DescribeClientQuotas": 1,
    "AlterClientQuotas": 1,
    "DescribeUserScramCredentials": 0,
    "DescribeCluster": 0,
}
"""The first version whose headers have tagged fields."""


class Wire:
    """One connection; requests one after the other."""

    def __init__(self, address: str) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._correlation = 0

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def ask(self, name: str, version: int, **message: Any) -> dict[str, Any]:
        """Sends a request, and returns the response."""
        tags = b"\0" if version >= FLEXIBLE_FROM.get(name, 99) else b""
        self._correlation += 1
        head = struct.pack(">hhih", KEYS[name], version, self._correlation, 4) + b"test" + tags
        frame = head + encode_request(KEYS[name], version, message)
        self._writer.write(struct.pack(">i", len(frame)) + frame)
        [length] = struct.unpack(">i", await self._reader.readexactly(4))
        answer = await self._reader.readexactly(length)
        assert struct.unpack_from(">i", answer) == (self._correlation,)
        return decode_response(KEYS[name], version, answer[4 + len(tags) :])
