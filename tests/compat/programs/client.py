"""The interface of each client in the matrix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from tests.compat.programs.records import Found


class Client(Protocol):
    """One client's usual programs: its public API, with defaults except for the arguments."""

    def produce(self, server: str, topic: str, codec: str, acks: str, count: int) -> None:
        """Sends the first `count` records, and closes the producer once the client reports all of them as
        delivered.
        """

    def consume(self, server: str, topic: str, group: str, count: int) -> Iterator[Found]:
        """A new group's member that subscribes and reads from the start, until it has at least `count`
        records.
        """
