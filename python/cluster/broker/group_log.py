"""The log of the group coordinator: __consumer_offsets on this broker.

Appends run on the event loop: one small batch is one write to the page cache. Reads run in threads, piece by
piece. After a crash the log's recovery cuts off a torn last batch; its commit was never answered.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from typing import TYPE_CHECKING

import logcore
from cluster.broker.replicas import MetadataCache
from cluster.controller.names import GROUP_METADATA_TOPIC
from cluster.errors import NONE, NotLeaderOrFollower, RequestTimedOut, for_code
from cluster.groups.records import Record, partition_of

if TYPE_CHECKING:
    from logcore._native import Server

_READ_BYTES = 1 << 20
_BATCH_START = struct.Struct(">qi")
_INT32 = struct.Struct(">i")


class OffsetsLog:
    """The log of committed offsets and groups."""

    def __init__(self, server: Server, metadata: MetadataCache, timeout_ms: int) -> None:
        """`timeout_ms`: how long a record may take to all in-sync replicas."""
        self._server = server
        self._timeout_ms = timeout_ms
        self._metadata = metadata
        self._appends = 0
        self._waiting: dict[int, asyncio.Future[None]] = {}
        """By the append's number."""

    def partition_of(self, group: str) -> int | None:
        """The group's partition; None before the topic exists."""
        topic = self._metadata.topic(GROUP_METADATA_TOPIC)
        return None if topic is None else partition_of(group, len(topic.assignment))

    def append(self, group: str, records: Sequence[Record], now_ms: int) -> Awaitable[None] | None:
        """Appends one batch to the group's partition. Returns None once every in-sync replica has it, or what
        waits for that. Both raise KafkaProtocolError.
        """
        from logcore._native import ServerError

        number = self.partition_of(group)
        if number is None:
            raise NotLeaderOrFollower
        batch = logcore.build_batch([(key, value, None, now_ms) for key, value in records])
        self._appends += 1
        try:
            replicated = self._server.append_and_report(
                GROUP_METADATA_TOPIC, number, batch, self._appends, self._timeout_ms
            )
        except ServerError as error:
            raise for_code(error.code or -1)(str(error)) from error
        if replicated:
            return None
        waiting = self._waiting[self._appends] = asyncio.get_running_loop().create_future()
        return waiting

    def replicated(self, reports: Iterable[tuple[int, int]]) -> None:
        """Takes the data plane's reports about appends: number and error code."""
        for number, code in reports:
            waiting = self._waiting.pop(number)
            if waiting.done():
                # The handler was cancelled.
                continue
            if code == NONE:
                waiting.set_result(None)
            elif code == RequestTimedOut.code:
                text = "the in-sync replicas did not copy the group's record in time"
                waiting.set_exception(RequestTimedOut(text))
            else:
                waiting.set_exception(for_code(code)())

    async def read(self, partition: int) -> AsyncIterator[Sequence[tuple[bytes | None, bytes | None]]]:
        """Every record of a partition that this broker leads, in pieces. Raises KafkaProtocolError."""
        from logcore._native import ServerError

        try:
            offset, _, end = self._server.offsets(GROUP_METADATA_TOPIC, partition)
            while offset < end:
                found, offset = await asyncio.to_thread(self._piece, partition, offset, end)
                yield found
        except ServerError as error:
            raise for_code(error.code or -1)(str(error)) from error

    def _piece(
        self, number: int, offset: int, end: int
    ) -> tuple[list[tuple[bytes | None, bytes | None]], int]:
        data = self._server.read(GROUP_METADATA_TOPIC, number, offset, _READ_BYTES, to_end=True)
        found: list[tuple[bytes | None, bytes | None]] = [
            (record.key, record.value) for record in logcore.parse_batches(data, offset)
        ]
        return found, _offset_after(data, end)


def _offset_after(batches: bytes, default: int) -> int:
    """The offset after the last of whole batches: base offset (int64 at 0) and last offset delta (int32 at
    23).
    """
    position, following = 0, default
    while position < len(batches):
        base, length = _BATCH_START.unpack_from(batches, position)
        following = base + _INT32.unpack_from(batches, position + 23)[0] + 1
        position += _BATCH_START.size + length
    return following
