"""Quotas: limits on the znodes and bytes below a path.

Owns the paths of limits and counters, and their texts (ZooKeeper's ``Quotas`` and ``StatsTrack``)::

    /zookeeper/quota<path>/zookeeper_limits   count, bytes (above these only the log warns),
                                              countHardLimit, byteHardLimit
    /zookeeper/quota<path>/zookeeper_stats    count, bytes: the present numbers

Both are ``key=number``, with commas or semicolons between. :mod:`.tree` does the counting. Pure.
"""

from __future__ import annotations

import re
from typing import NamedTuple

ROOT_OF_QUOTAS = "/zookeeper/quota"
BELOW_ROOT = ROOT_OF_QUOTAS + "/"
LIMITS = "zookeeper_limits"
STATS = "zookeeper_stats"
UNSET = -1

# A number of 64 bits has at most 19 digits after leading zeros.
_NUMBER = re.compile(r"[+-]?0*[0-9]{1,19}")
_LONG_MAX = (1 << 63) - 1


class Track(NamedTuple):
    """Limits or counters; :data:`UNSET` for one that is not set. Sizes are bytes of znodes' data."""

    nodes: int = UNSET
    size: int = UNSET
    nodes_hard_limit: int = UNSET
    size_hard_limit: int = UNSET

    def encode(self) -> bytes:
        """Encodes as ZooKeeper does: hard limits, if any, after an ``=``, in the order of their names."""
        text = f"count={self.nodes},bytes={self.size}"
        hard = [
            f";{name}={value}"
            for name, value in (
                ("byteHardLimit", self.size_hard_limit),
                ("countHardLimit", self.nodes_hard_limit),
            )
            if value != UNSET
        ]
        return (text + ("=" + "".join(hard) if hard else "")).encode()

    def plus(self, nodes: int, size: int) -> Track:
        """Returns the sums, wrapped as Java's long."""
        return self._replace(nodes=_long(self.nodes + nodes), size=_long(self.size + size))


def _long(value: int) -> int:
    """Wraps a value as Java's long."""
    return (value + _LONG_MAX + 1) % (1 << 64) - _LONG_MAX - 1


def decode_track(data: bytes | None) -> Track:
    """Decodes limits or counters. Raises ValueError if the data is neither."""
    values: dict[str, int] = {}
    for part in re.split("[,;]+", (data or b"").decode("utf-8", "replace")):
        name, equals, value = part.rstrip("=").partition("=")
        if not equals or _NUMBER.fullmatch(value) is None:
            raise ValueError(f"{part[:40]!r} in a quota is not key=number with 64 bits")
        sign = -1 if value.startswith("-") else 1
        values[name] = sign * int(value.lstrip("+-0") or "0")
        if not -_LONG_MAX - 1 <= values[name] <= _LONG_MAX:
            raise ValueError(f"{part[:40]!r} in a quota is not a number of 64 bits")
    return Track(
        values.get("count", UNSET),
        values.get("bytes", UNSET),
        values.get("countHardLimit", UNSET),
        values.get("byteHardLimit", UNSET),
    )


def path_of(node: str) -> str | None:
    """Returns the path whose limits ``node`` has, or None."""
    if not node.startswith(BELOW_ROOT) or not node.endswith("/" + LIMITS):
        return None
    return node[len(ROOT_OF_QUOTAS) : -len(LIMITS) - 1] or None


def limits_of(path: str) -> str:
    return f"{ROOT_OF_QUOTAS}{path}/{LIMITS}"


def stats_of(path: str) -> str:
    return f"{ROOT_OF_QUOTAS}{path}/{STATS}"


def limits_any(limits: Track, added_nodes: int, added_size: int) -> bool:
    """Whether there is a limit, hard or not, on nodes or bytes that are added."""
    of_nodes = max(limits.nodes, limits.nodes_hard_limit) > UNSET
    of_size = max(limits.size, limits.size_hard_limit) > UNSET
    return (added_nodes != 0 and of_nodes) or (added_size != 0 and of_size)


def exceeded(limits: Track, used: Track, added_nodes: int, added_size: int) -> bool:
    """Whether so much more exceeds a hard limit."""
    if added_nodes and UNSET < limits.nodes_hard_limit < used.nodes + added_nodes:
        return True
    return added_size != 0 and UNSET < limits.size_hard_limit < used.size + added_size
