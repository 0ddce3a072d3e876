"""What the clients of a run did and saw. A record is known by its producer and its number there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

UNKNOWN_OFFSET = -1


class Sent(NamedTuple):
    """A producer's records are sent in the order of their numbers."""

    producer: str
    number: int
    key: str
    at: float


class Acked(NamedTuple):
    """``offset``: :data:`UNKNOWN_OFFSET` if the client does not know it."""

    producer: str
    number: int
    partition: int
    offset: int
    at: float


class Failed(NamedTuple):
    producer: str
    number: int
    error: str
    at: float


class Read(NamedTuple):
    """``value``: the producer and the number, as :func:`value_of` writes them."""

    partition: int
    offset: int
    key: str
    value: str
    at: float


def value_of(producer: str, number: int) -> str:
    return f"{producer} {number}"


@dataclass
class History:
    """Client threads append to the lists; times are those of one monotonic clock."""

    sent: list[Sent] = field(default_factory=list)
    acked: list[Acked] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    reads: dict[str, list[Read]] = field(default_factory=dict)
    """What each consumer read that reads each partition from its beginning."""
    group_reads: dict[str, list[Read]] = field(default_factory=dict)
    """What each member of a group read. Partitions move between members, and some records are read again."""
    final: list[Read] = field(default_factory=list)
    """What a new consumer reads when every fault has healed."""
    replicas: dict[int, dict[int, str]] = field(default_factory=dict)
    """For each partition, each broker's log at the end, as a digest."""
    notes: list[tuple[float, str]] = field(default_factory=list)
    """The faults, and other events that explain the history."""

    def write(self, path: Path) -> None:
        """Writes one event a line, in the order of time."""
        named: list[tuple[str, Sequence[Sent | Acked | Failed | Read]]] = [
            ("sent", self.sent),
            ("acked", self.acked),
            ("failed", self.failed),
            *[(f"read by {name}", reads) for name, reads in self.reads.items()],
            *[(f"read by {name} of the group", reads) for name, reads in self.group_reads.items()],
            ("final", self.final),
        ]
        lines = [(each.at, {"event": name, **each._asdict()}) for name, all_of in named for each in all_of]
        lines += [(at, {"event": "note", "text": text, "at": at}) for at, text in self.notes]
        lines.sort(key=lambda line: line[0])
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            for _at, line in lines:
                file.write(json.dumps(line) + "\n")
            file.write(json.dumps({"event": "replicas", **asdict(self)["replicas"]}) + "\n")
