"""How much memory members and groups take, and the limit. Knows no group.

Kafka has no such limit. Members whose clients are gone stay until their timeouts, and could fill the memory.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from cluster.groups.messages import Protocols

_MEMBER_BYTES = 1024
"""Measured: memory of a member and its timers, without its names and data."""

_GROUP_BYTES = 2048
"""Measured: memory of a group without members, without its name and offsets."""

_PROTOCOL_BYTES = 192
"""Measured: memory of a member's assignor and its count, without its name and data."""

_SMALL_BYTES = 16 * 1024
"""The subscription and the assignment of a consumer that reads hundreds of topics are smaller."""


@dataclass(slots=True)
class MemoryUse:
    """The memory of members, generated ids and groups without offsets, shared by all groups."""

    bytes_max: int = sys.maxsize
    bytes: int = 0
    refused: int = 0
    """How many requests were refused because they use too much."""

    def fits(self, size: int, before: int = 0, largest: int | None = None) -> bool:
        """`size` bytes in place of `before` fit into the limit, and into twice the limit if they are small.
        `largest`: the size of the largest part, if they belong to several members.
        """
        if size <= before:
            return True
        small = (size if largest is None else largest) <= _SMALL_BYTES
        fits = self.bytes - before + size <= self.bytes_max * (2 if small else 1)
        self.refused += not fits
        return fits


def text_bytes(text: str) -> int:
    """The most memory of a text. Outside ASCII it takes four bytes a character, and the UTF-8 copy that
    Python caches.
    """
    return len(text) if text.isascii() else 8 * len(text)


def protocols_bytes(protocols: Protocols) -> int:
    """Memory of a member's assignors and subscriptions."""
    return sum(_PROTOCOL_BYTES + text_bytes(name) + len(data) for name, data in protocols)


def ids_bytes(*ids: str | None) -> int:
    """Memory of a member that has only these ids."""
    return _MEMBER_BYTES + sum(text_bytes(text) for text in ids if text is not None)


def group_bytes(group_id: str) -> int:
    """Memory of a group without members."""
    return _GROUP_BYTES + text_bytes(group_id)
