"""__consumer_offsets on this broker: what the group coordinator writes and reads again.

Owns no decision. Appends go to the data plane at once, from the loop: one small batch, one write to the page
cache. Reading happens in threads, piece by piece. After a crash the log's own recovery has cut a torn last
batch, whose commit was then never answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import logcore
from cluster.controller import MetadataCache
from cluster.controller.names import GROUP_METADATA_TOPIC
from cluster.errors import NotLeaderOrFollower, for_code
from cluster.groups.records import Record, partition_of
from cluster.model import BrokerId

if TYPE_CHECKING:
    from logcore._native import Server

_READ_BYTES = 1 << 20


class OffsetsLog:
    """The log of committed offsets and groups."""

    def __init__(self, server: Server, metadata: MetadataCache, broker: BrokerId) -> None:
        self._server = server
        self._metadata = metadata
        self._broker = broker

    def _led(self) -> list[int]:
        topic = self._metadata.topic(GROUP_METADATA_TOPIC)
        if topic is None:
            return []
        return sorted(number for number, state in topic.partitions.items() if state.leader == self._broker)

    def _partition(self, group: str) -> int | None:
        topic = self._metadata.topic(GROUP_METADATA_TOPIC)
        if topic is None or not topic.partitions:
            return None
        number = partition_of(group, len(topic.partitions))
        return number if topic.partitions[number].leader == self._broker else None

    def owns(self, group: str) -> bool:
        """Whether the group's partition is led here."""
        return self._partition(group) is not None

    def append(self, group: str, records: Sequence[Record], now_ms: int) -> None:
        """Appends one batch to the group's partition; raises KafkaProtocolError."""
        from logcore._native import ServerError

        number = self._partition(group)
        if number is None:
            raise NotLeaderOrFollower
        batch = logcore.build_batch([(key, value) for key, value in records], timestamp=now_ms)
        try:
            self._server.append(GROUP_METADATA_TOPIC, number, batch)
        except ServerError as error:
            raise for_code(error.code or -1)(str(error)) from error

    async def read(self) -> AsyncIterator[Sequence[tuple[bytes | None, bytes | None]]]:
        """Every record of the partitions led here, in pieces."""
        for number in self._led():
            offset, end, _ = self._server.offsets(GROUP_METADATA_TOPIC, number)
            while offset < end:
                found, offset = await asyncio.to_thread(self._piece, number, offset, end)
                yield found

    def _piece(
        self, number: int, offset: int, end: int
    ) -> tuple[list[tuple[bytes | None, bytes | None]], int]:
        data = self._server.read(GROUP_METADATA_TOPIC, number, offset, _READ_BYTES)
        found: list[tuple[bytes | None, bytes | None]] = []
        following = end
        for batch in logcore.batches(data):
            following = batch.last_offset + 1
            if not batch.is_control:
                found += [(record.key, record.value) for record in batch if record.offset >= offset]
        return found, following
