"""What import and export share."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection
from typing import NamedTuple

from ..errors import CoordinatorError
from ..state.machine import State

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much is done, and the total: bytes of files, or nodes, whose total
may be unknown (0)."""

_SHOWN = 5
_PASSWORD_SEED = 0xB3415C00
_48_BITS = (1 << 48) - 1


class Damaged(CoordinatorError):
    """A file is damaged. The text names the file and the byte."""


class Moved(NamedTuple):
    """A state, and notes about it for the operator: sentences."""

    state: State
    notes: list[str]


def decode_text(raw: bytes) -> str:
    """Decodes a string of jute. Java writes a character outside the basic plane as two surrogates of three
    bytes each. Bytes that are not text read as U+FFFD."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        pass
    try:
        units = raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace")
    return units.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def session_password(session_id: int) -> bytes:
    """Returns Apache ZooKeeper's password for a session, which it does not store: 16 bytes of
    ``java.util.Random`` (``SessionTrackerImpl``, ``ZooKeeperServer.generatePasswd``)."""
    seed = (session_id ^ _PASSWORD_SEED ^ 0x5DEECE66D) & _48_BITS
    password = b""
    for _ in range(4):
        seed = (seed * 0x5DEECE66D + 0xB) & _48_BITS
        password += struct.pack("<I", (seed >> 16) & 0xFFFF_FFFF)
    return password


def some(names: Collection[str]) -> str:
    """Returns the first names, and the number of the others."""
    first = sorted(names)[:_SHOWN]
    rest = len(names) - len(first)
    return ", ".join(first) + (f" and {rest} more" if rest else "")
