"""The logs of state topics on this broker.

Appends run on the event loop: one small batch is one write to the page cache. Reads run in threads, piece by
piece. After a crash the log's recovery cuts off a torn last batch; its write was never answered.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from cluster.errors import NONE, RequestTimedOut, for_code
from cluster.state_topics.messages import Batch, Entry, Marker, Producer
from logcore._native import build_state_batch, parse_state_batches, string_hash

if TYPE_CHECKING:
    from logcore._native import Server

_READ_BYTES = 1 << 20
_BATCH_START = struct.Struct(">qi")
_INT32 = struct.Struct(">i")


def partition_of(key: str, partitions: int) -> int:
    """The partition of a state topic for a group or a transactional id: Java's hash of it."""
    found = string_hash(key.encode("utf-16-be", "surrogatepass"))
    # Kafka's Utils.abs: the lowest number becomes 0.
    return (0 if found == -(1 << 31) else abs(found)) % partitions


class StateTopicLog:
    """The logs of the state topics' partitions that this broker leads."""

    def __init__(self, server: Server, partitions: Callable[[str], int | None]) -> None:
        """`partitions`: how many partitions a topic has; None if there is none."""
        self._server = server
        self.partitions = partitions
        self._appends = 0
        self._waiting: dict[int, asyncio.Future[None]] = {}
        """By the append's number."""

    def append(
        self, topic: str, partition: int, batch: Batch, now_ms: int, timeout_ms: int
    ) -> Awaitable[None] | None:
        """Appends one batch. Returns None once every in-sync replica has it, or what waits for that. Both
        raise KafkaProtocolError.
        """
        records = [(key, value, None, now_ms) for key, value in batch.records]
        return self.append_encoded(topic, partition, build_state_batch(records, batch.producer), timeout_ms)

    def append_encoded(
        self, topic: str, partition: int, batch: bytes, timeout_ms: int
    ) -> Awaitable[None] | None:
        """As :meth:`append`, for a batch that is encoded, in a partition of any topic."""
        from logcore._native import ServerError

        self._appends += 1
        try:
            replicated = self._server.append_and_report(topic, partition, batch, self._appends, timeout_ms)
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
                waiting.set_exception(RequestTimedOut("the in-sync replicas did not copy the record in time"))
            else:
                waiting.set_exception(for_code(code)())

    async def read(self, topic: str, partition: int) -> AsyncIterator[Sequence[Entry | Marker]]:
        """Every record of a partition that this broker leads, in pieces. Raises KafkaProtocolError."""
        from logcore._native import ServerError

        try:
            offset, _, end = self._server.offsets(topic, partition)
            while offset < end:
                found, offset = await asyncio.to_thread(self._piece, topic, partition, offset, end)
                yield found
        except ServerError as error:
            raise for_code(error.code or -1)(str(error)) from error

    def _piece(self, topic: str, partition: int, offset: int, end: int) -> tuple[list[Entry | Marker], int]:
        data = self._server.read(topic, partition, offset, _READ_BYTES, to_end=True)
        return [_entry(*parts) for parts in parse_state_batches(data, offset)], _offset_after(data, end)


def _entry(
    key: bytes | None, value: bytes | None, producer: tuple[int, int] | None, committed: bool | None
) -> Entry | Marker:
    """A record of a batch, or the transaction marker."""
    if producer is None:
        return Entry(key, value)
    return (
        Entry(key, value, Producer(*producer))
        if committed is None
        else Marker(Producer(*producer), committed)
    )


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
