"""What the ways in and out share."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection
from typing import NamedTuple

from ..errors import CoordinatorError
from ..state.machine import State

Progress = Callable[[str, int, int], None]
"""Is told what is being done, how much is, and of how much: bytes of files, or nodes of an unknown number, 0."""

_SHOWN = 5
_PASSWORD_SEED = 0xB3415C00
_48_BITS = (1 << 48) - 1


class Damaged(CoordinatorError):
    """A file is not what it has to be; the text names it and the byte."""


class Moved(NamedTuple):
    """A state, and what whoever moves has to know of it: sentences."""

    state: State
    notes: list[str]


def decode_text(raw: bytes) -> str:
    """A string of jute. Java writes characters beyond the basic plane as two surrogates of three bytes each; what is
    no text reads as U+FFFD."""
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
    """The password Apache ZooKeeper gives a session, which it stores nowhere: 16 bytes of ``java.util.Random``
    (``SessionTrackerImpl``, ``ZooKeeperServer.generatePasswd``)."""
    seed = (session_id ^ _PASSWORD_SEED ^ 0x5DEECE66D) & _48_BITS
    password = b""
    for _ in range(4):
        seed = (seed * 0x5DEECE66D + 0xB) & _48_BITS
        password += struct.pack("<I", (seed >> 16) & 0xFFFF_FFFF)
    return password


def some(names: Collection[str]) -> str:
    """The first names of many, and how many more there are."""
    first = sorted(names)[:_SHOWN]
    rest = len(names) - len(first)
    return ", ".join(first) + (f" and {rest} more" if rest else "")
