"""setquota, listquota and delquota: limits of a subtree, which are nodes below /zookeeper/quota.

Source: Quotas and StatsTrack of ZooKeeper.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from cluster.cli.zookeeper.arguments import Arguments, Options
from cluster.cli.zookeeper.commands import OPEN_ACL, Command, Context
from cluster.cli.zookeeper.errors import NO_NODE, NODE_EXISTS, ServerError, ShellError, integer

ROOT = "/zookeeper/quota"
LIMITS = "zookeeper_limits"
STATS = "zookeeper_stats"

# Each option's limit, and the bits of its value.
_LIMITS = {
    "n": ("count", 32),
    "b": ("bytes", 64),
    "N": ("countHardLimit", 32),
    "B": ("byteHardLimit", 64),
}
_OPTIONS = frozenset(_LIMITS)


class Track:
    """A quota, or the use of it: `count=5,bytes=-1=;byteHardLimit=-1;countHardLimit=-1`; -1 stands for no
    limit.
    """

    def __init__(self, data: bytes | None = None) -> None:
        self.values: dict[str, int] = {}
        text = (data or b"").decode("utf-8", "replace")
        for part in filter(None, re.split("[,;]+", text)):
            # The "=" after bytes' number ends the text for old servers, which know only count and bytes.
            name, equals, number = part.rstrip("=").partition("=")
            if not equals:
                raise ShellError(
                    f"invalid string {text!r} in a quota's node: delete the node and set the quota again"
                )
            self.values[name] = integer(number, bits=64)

    def __str__(self) -> str:
        rest = sorted(self.values.keys() - {"count", "bytes"})
        more = "=" * bool(rest) + "".join(f";{name}={self.values[name]}" for name in rest)
        return f"count={self.values.get('count', -1)},bytes={self.values.get('bytes', -1)}{more}"

    def encode(self) -> bytes:
        return str(self).encode()


def set_quota(context: Context, arguments: Arguments) -> None:
    path = arguments.words[0]
    if path.startswith(ROOT):
        context.console.error(f"cannot set a quota under the path: {ROOT}")
        return
    limits = _limits(context, arguments)
    if limits is None:
        return
    if context.session.exists(path) is None:
        raise ShellError(f"{path} does not exist.")
    _check_children(context, path)
    _check_parents(context, path)
    for node in ("/zookeeper", ROOT) if context.session.exists(ROOT) is None else ():
        _create(context, node, None)
    for node in _downwards(path):
        _create(context, node, None)
    limits_path, stats_path = f"{ROOT}{path}/{LIMITS}", f"{ROOT}{path}/{STATS}"
    fresh = Track()
    fresh.values = {"count": -1, "bytes": -1, "byteHardLimit": -1, "countHardLimit": -1} | limits
    used = Track()
    used.values = {"count": 0, "bytes": 0}
    if not _create(context, limits_path, fresh.encode()):
        fresh = Track(context.session.get(limits_path)[0])
        fresh.values |= limits
        context.session.set(limits_path, fresh.encode())
    _create(context, stats_path, used.encode())
    _warn(context, fresh, Track(context.session.get(stats_path)[0]))


def _limits(context: Context, arguments: Arguments) -> dict[str, int] | None:
    """The limits in the options; None, after a message, for a bad value."""
    limits: dict[str, int] = {}
    for option in arguments.options:
        name, bits = _LIMITS[option]
        try:
            value = integer(arguments.options[option], bits)
        except ShellError:
            context.console.error("NumberFormatException happens when parsing the option value")
            return None
        if bits == 32 and value <= 0:
            context.console.error("the num quota must be greater than zero")
            return None
        if value < 0:
            context.console.error("the bytes quota must be greater than or equal to zero")
            return None
        limits[name] = value
    return limits


def _warn(context: Context, limits: Track, used: Track) -> None:
    """Warns of limits, soft or hard, that are below the present use."""
    for name, hard in (("count", "countHardLimit"), ("bytes", "byteHardLimit")):
        existing = used.values.get(name, -1)
        if any(-1 < limits.values.get(each, -1) < existing for each in (name, hard)):
            context.console.out(
                f"[Warning]: the {name} quota you create is less than the existing {name}:{existing}"
            )


def _check_children(context: Context, path: str) -> None:
    top = ROOT + path
    try:
        for node in context.session.walk(top):
            if node != top and LIMITS in context.session.children(node)[0]:
                raise ShellError(f"{path} has a child {node[len(ROOT) :]} which has a quota")
    except ServerError as error:
        if error.code != NO_NODE:
            raise


def _check_parents(context: Context, path: str) -> None:
    for node in _downwards(path):
        try:
            names, _stat = context.session.children(node)
        except ServerError as error:
            if error.code != NO_NODE:
                raise
            return
        if node != ROOT + path and LIMITS in names:
            raise ShellError(f"{path} has a parent {node[len(ROOT) :]} which has a quota")


def _downwards(path: str) -> Iterator[str]:
    """The nodes below /zookeeper/quota for a path and its ancestors, the highest first."""
    node = ROOT
    for name in path[1:].split("/"):
        node += f"/{name}"
        yield node


def _create(context: Context, path: str, data: bytes | None) -> bool:
    """Creates a node; False if it exists."""
    try:
        context.session.create(path, data, OPEN_ACL)
    except ServerError as error:
        if error.code != NODE_EXISTS:
            raise
        return False
    return True


def list_quota(context: Context, arguments: Arguments) -> None:
    path = arguments.words[0]
    limits_path = f"{ROOT}{path}/{LIMITS}"
    context.console.error(f"absolute path is {limits_path}")
    try:
        limits = Track(context.session.get(limits_path)[0])
        context.console.out(f"Output quota for {path} {limits}")
        used = Track(context.session.get(f"{ROOT}{path}/{STATS}")[0])
        context.console.out(f"Output stat for {path} {used}")
    except ServerError as error:
        if error.code != NO_NODE:
            raise
        context.console.error(f"quota for {path} does not exist.")


def delete_quota(context: Context, arguments: Arguments) -> None:
    path = arguments.words[0]
    top, limits_path = ROOT + path, f"{ROOT}{path}/{LIMITS}"
    if context.session.exists(limits_path) is None:
        context.console.out(f"Quota does not exist for {path}")
        return
    kept = Track(context.session.get(limits_path)[0])
    chosen = [option for option in _LIMITS if arguments.has(option)]
    if chosen:
        kept.values |= {_LIMITS[option][0]: -1 for option in chosen}
        context.session.set(limits_path, kept.encode())
        return
    for name in context.session.children(top)[0]:
        context.session.delete(f"{top}/{name}")
    _trim(context, top)


def _trim(context: Context, path: str) -> None:
    """Deletes a node below /zookeeper/quota, and its ancestors there that have no other children."""
    while path != ROOT and not context.session.children(path)[0]:
        context.session.delete(path)
        path = path.rpartition("/")[0]


COMMANDS = (
    Command("delquota", "[-n|-b|-N|-B] path", delete_quota, Options(flags=_OPTIONS, exclusive=_OPTIONS)),
    Command("listquota", "path", list_quota),
    Command(
        "setquota",
        "-n|-b|-N|-B val path",
        set_quota,
        Options(
            valued=_OPTIONS,
            exclusive=_OPTIONS,
            required="[-n num soft quota, -b bytes soft quota, -N num hard quota, -B bytes hard quota]",
        ),
    ),
)
