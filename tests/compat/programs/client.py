"""What the matrix asks of each client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from tests.compat.programs.records import Found


class Client(Protocol):
    """One client's ordinary programs: its public API, at its defaults but for what the arguments say."""

    def produce(self, server: str, topic: str, codec: str, acks: str, count: int) -> None:
        """Sends the first `count` records, and closes the producer once the client calls all of them delivered."""

    def consume(self, server: str, topic: str, group: str, count: int) -> Iterator[Found]:
        """A new group's member that subscribes and reads from the start: at least `count` records."""
