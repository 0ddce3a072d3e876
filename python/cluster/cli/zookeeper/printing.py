"""Formats a node's stat, data and access control list, and events, as zkCli does. Pure functions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kazoo.protocol.states import ZnodeStat

_PERMISSIONS = (("c", 4), ("d", 8), ("r", 1), ("w", 2), ("a", 16))
"""ZooDefs.Perms, in zkCli's order."""
PERMISSION_BITS = dict(_PERMISSIONS)

_RULER = "+-------------------------------------------------+"
_EDGE = "+--------" + _RULER + "----------------+"


class Event(NamedTuple):
    """A WatchedEvent; `zxid` is -1 when it is unknown."""

    state: str
    type: str = "None"
    path: str | None = None
    zxid: int = -1


def event_text(event: Event) -> str:
    path = "null" if event.path is None else event.path
    text = f"WatchedEvent state:{event.state} type:{event.type} path:{path} zxid: {event.zxid}"
    return f"\nWATCHER::\n\n{text}"


def stat_text(stat: ZnodeStat) -> str:
    return "\n".join(
        [
            f"cZxid = {_hexadecimal(stat.czxid)}",
            f"ctime = {_date(stat.ctime)}",
            f"mZxid = {_hexadecimal(stat.mzxid)}",
            f"mtime = {_date(stat.mtime)}",
            f"pZxid = {_hexadecimal(stat.pzxid)}",
            f"cversion = {stat.cversion}",
            f"dataVersion = {stat.version}",
            f"aclVersion = {stat.aversion}",
            f"ephemeralOwner = {_hexadecimal(stat.ephemeralOwner)}",
            f"dataLength = {stat.dataLength}",
            f"numChildren = {stat.numChildren}",
        ]
    )


def _hexadecimal(number: int) -> str:
    return f"{number & 0xFFFFFFFFFFFFFFFF:#x}"


def _date(milliseconds: int) -> str:
    """Java's Date.toString, in the local time zone."""
    return time.strftime("%a %b %d %H:%M:%S %Z %Y", time.localtime(milliseconds // 1000))


def permissions_text(permissions: int) -> str:
    return "".join(letter for letter, bit in _PERMISSIONS if permissions & bit)


def list_text(names: list[str]) -> str:
    return f"[{', '.join(names)}]"


def hex_dump(data: bytes) -> str:
    """Rows of 16 bytes, as in Netty's ByteBufUtil.prettyHexDump; empty for no bytes."""
    if not data:
        return ""
    columns = "".join(f"{each:3x}" for each in range(16))
    rows = [f"         {_RULER}", f"         |{columns} |", _EDGE]
    for start in range(0, len(data), 16):
        part = data[start : start + 16]
        numbers = "".join(f" {each:02x}" for each in part)
        letters = "".join(chr(each) if 0x1F < each < 0x7F else "." for each in part)
        rows.append(f"|{start:08x}|{numbers:<48} |{letters:<16}|")
    return "\n".join([*rows, _EDGE])
