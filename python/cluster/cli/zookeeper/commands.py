"""zkCli's commands on nodes, watches and the session. Each one sends requests and prints what zkCli prints.

Source: org.apache.zookeeper.cli of ZooKeeper 3.9.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cluster.cli.zookeeper import session as zk
from cluster.cli.zookeeper.arguments import Arguments, Options, parse
from cluster.cli.zookeeper.errors import (
    EPHEMERAL_ON_LOCAL_SESSION,
    INVALID_ACL,
    NO_NODE,
    ServerError,
    ShellError,
    integer,
)
from cluster.cli.zookeeper.printing import (
    PERMISSION_BITS,
    hex_dump,
    list_text,
    permissions_text,
    stat_text,
)
from cluster.cli.zookeeper.session import Acl, Session

if TYPE_CHECKING:
    from cluster.cli.zookeeper.console import Console

VERSION = "3.9.4"
"""The version of ZooKeeper whose zkCli this shell follows."""

OPEN_ACL = (Acl(31, "world", "anyone"),)
MAX_TTL_MS = (1 << 40) - 1
DELETE_BATCH = 1000
SYNC_SECONDS = 30.0
WATCH_MODES = {"PERSISTENT": False, "PERSISTENT_RECURSIVE": True}
"""addWatch's modes, and whether each is recursive."""


NO_OPTIONS = Options()


@dataclass(frozen=True)
class Context:
    """The session and the output of a command."""

    session: Session
    console: Console


@dataclass(frozen=True)
class Command:
    """A command."""

    name: str
    usage: str
    """What follows the name in its usage line."""
    run: Callable[[Context, Arguments], None]
    options: Options = NO_OPTIONS
    words: int = 1
    """How many words it needs at least, apart from options."""
    deprecated: str = ""
    """The warning for a second word, which set a watch in old versions."""
    help: str = ""
    """What follows the usage line in the error for too few words."""

    def refuse(self) -> ShellError:
        return ShellError(f"{self.name} {self.usage}{self.help}")

    def parsed(self, words: list[str], console: Console) -> Arguments:
        arguments = parse(words, self.options)
        if arguments.has("?"):
            console.out(LS_HELP)
        if len(arguments.words) < self.words:
            raise self.refuse()
        if self.deprecated and len(arguments.words) > 1:
            console.error(self.deprecated)
            arguments = parse([*words[:1], "-w", *words[2:]], self.options)
            if len(arguments.words) < self.words:
                raise self.refuse()
        return arguments

    def execute(self, context: Context, words: list[str]) -> None:
        """Runs the command with the words after its name."""
        self.run(context, self.parsed(words, context.console))


def flags(letters: str, valued: str = "") -> Options:
    return Options(frozenset(letters), frozenset(valued.split()))


# ---- reading ----


def get(context: Context, arguments: Arguments) -> None:
    data, stat = context.session.get(arguments.words[0], arguments.has("w"))
    shown = b"null" if data is None else data
    if arguments.has("x"):
        context.console.out(hex_dump(shown))
    elif arguments.has("b"):
        context.console.out(base64.b64encode(shown).decode())
    else:
        context.console.out(shown.decode("utf-8", "replace"))
    if arguments.has("s"):
        context.console.out(stat_text(stat))


def ls(context: Context, arguments: Arguments) -> None:
    path, watch = arguments.words[0], arguments.has("w")
    if arguments.has("R"):
        for each in context.session.walk(path, watch):
            context.console.out(each)
        return
    names, stat = context.session.children(path, watch)
    context.console.out(list_text(sorted(names)))
    if arguments.has("s"):
        context.console.out(stat_text(stat))


def stat(context: Context, arguments: Arguments) -> None:
    path = arguments.words[0]
    found = context.session.exists(path, arguments.has("w"))
    if found is None:
        raise ServerError(NO_NODE, path)
    context.console.out(stat_text(found))


def get_acl(context: Context, arguments: Arguments) -> None:
    entries, found = context.session.acl(arguments.words[0])
    for entry in entries:
        context.console.out(f"'{entry.scheme},'{entry.id}\n: {permissions_text(entry.permissions)}")
    if arguments.has("s"):
        context.console.out(stat_text(found))


def get_all_children_number(context: Context, arguments: Arguments) -> None:
    context.console.out(str(context.session.all_children_number(arguments.words[0])))


def get_ephemerals(context: Context, arguments: Arguments) -> None:
    prefix = arguments.words[0] if arguments.words else "/"
    context.console.out(list_text(context.session.ephemerals(prefix)))


# ---- writing ----


def create(context: Context, arguments: Arguments) -> None:
    ephemeral, sequential, container = arguments.has("e"), arguments.has("s"), arguments.has("c")
    if container and (ephemeral or sequential):
        raise ShellError("-c cannot be combined with -s or -e. Containers cannot be ephemeral or sequential.")
    ttl = time_to_live(arguments)
    mode = (zk.EPHEMERAL if ephemeral else 0) | (zk.SEQUENTIAL if sequential else 0)
    if container:
        mode = zk.CONTAINER
    elif ttl is not None:
        mode = zk.SEQUENTIAL_TTL if sequential else zk.TTL
    path, *rest = arguments.words
    data = rest[0].encode() if rest else None
    acl = parse_acl(rest[1], context.console) if len(rest) > 1 else OPEN_ACL
    try:
        if not acl:
            raise ServerError(INVALID_ACL, None)
        made = context.session.create(path, data, acl, mode, ttl)
    except ServerError as error:
        if error.code == EPHEMERAL_ON_LOCAL_SESSION:
            context.console.error("Unable to create ephemeral node on a local session")
        elif error.code == INVALID_ACL:
            context.console.error(error.plain)
        raise
    context.console.error(f"Created {made}")


def time_to_live(arguments: Arguments) -> int | None:
    """The TTL in milliseconds, if -t is set."""
    if not arguments.has("t"):
        return None
    try:
        ttl = integer(arguments.options["t"], bits=64)
    except ShellError:
        raise ShellError("-t argument must be a long value") from None
    for option, kind in (("e", "Ephemeral"), ("c", "Container")):
        if arguments.has(option):
            raise ShellError(f"TTLs cannot be used with {kind} znodes")
    if not 0 < ttl <= MAX_TTL_MS:
        raise ShellError(f"ttl must be positive and cannot be larger than: {MAX_TTL_MS}")
    return ttl


def parse_acl(text: str, console: Console) -> tuple[Acl, ...]:
    """Parses entries `scheme:id:permissions` between commas. Bad entries are reported and left out."""
    entries = []
    for part in text.rstrip(",").split(",") if text.strip(",") or not text else ():
        scheme, colon, rest = part.partition(":")
        identity, second, letters = rest.rpartition(":")
        if not colon or not second:
            console.error(f"{part} does not have the form scheme:id:perm")
            continue
        permissions = 0
        for letter in letters:
            if letter in PERMISSION_BITS:
                permissions |= PERMISSION_BITS[letter]
            else:
                console.error(f"Unknown perm type: {letter}")
        entries.append(Acl(permissions, scheme, identity))
    return tuple(entries)


def set_data(context: Context, arguments: Arguments) -> None:
    path, text = arguments.words[:2]
    data = text.encode()
    if arguments.has("b"):
        try:
            # The padding may be missing.
            data = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
        except binascii.Error as error:
            raise ShellError(f"{text!r} is not base64: {error}") from None
    found = context.session.set(path, data, version(arguments))
    if arguments.has("s"):
        context.console.out(stat_text(found))


def version(arguments: Arguments) -> int:
    """The version of -v; without it -1, which stands for any version."""
    text = arguments.options.get("v", "-1")
    try:
        return integer(text)
    except ShellError:
        raise ShellError(f"-v takes a version, a whole number or -1 for any, not {text!r}") from None


def delete(context: Context, arguments: Arguments) -> None:
    if len(arguments.words) > 1:
        context.console.error(
            "'delete path [version]' has been deprecated. Please use 'delete [-v version] path' instead."
        )
    context.session.delete(arguments.words[0], version(arguments))


def delete_all(context: Context, arguments: Arguments) -> None:
    batch = DELETE_BATCH
    if arguments.has("b"):
        try:
            batch = integer(arguments.options["b"])
        except ShellError:
            raise ShellError("-b argument must be an int value") from None
    if not context.session.delete_tree(arguments.words[0], batch):
        context.console.error("Failed to delete some node(s) in the subtree!")


def set_acl(context: Context, arguments: Arguments) -> None:
    path, text = arguments.words[:2]
    acl = parse_acl(text, context.console)
    wanted = version(arguments)
    if arguments.has("R"):
        for each in context.session.walk(path):
            try:
                _set_acl(context, each, acl, wanted)
            except ServerError as error:
                context.console.out(error.plain, end="")
        return
    found = _set_acl(context, path, acl, wanted)
    if arguments.has("s"):
        context.console.out(found)


def _set_acl(context: Context, path: str, acl: tuple[Acl, ...], wanted: int) -> str:
    if not acl:
        raise ServerError(INVALID_ACL, None)
    return stat_text(context.session.set_acl(path, acl, wanted))


# ---- watches ----


def add_watch(context: Context, arguments: Arguments) -> None:
    mode = arguments.options.get("m", "PERSISTENT_RECURSIVE").upper()
    if len(arguments.words) != 1 or mode not in WATCH_MODES:
        raise ADD_WATCH.refuse()
    context.session.add_watch(arguments.words[0], WATCH_MODES[mode])


def remove_watches(context: Context, arguments: Arguments) -> None:
    letters = {"c": 1, "d": 2, "p": 4, "r": 5}
    watcher_type = next((number for letter, number in letters.items() if arguments.has(letter)), 3)
    context.session.remove_watches(arguments.words[0], watcher_type, arguments.has("l"))


# ---- the session ----


def add_auth(context: Context, arguments: Arguments) -> None:
    scheme, *rest = arguments.words
    context.session.add_auth(scheme, rest[0] if rest else None)


def close(context: Context, _given: Arguments) -> None:
    context.session.close()


def sync(context: Context, arguments: Arguments) -> None:
    try:
        code = context.session.sync(arguments.words[0], SYNC_SECONDS)
    except TimeoutError:
        raise ShellError("null") from None
    context.console.out("Sync is OK" if code == 0 else f"Sync has failed. rc={code}")


def who_am_i(context: Context, _given: Arguments) -> None:
    context.console.out("Auth scheme: User")
    for scheme, user in context.session.who_am_i():
        context.console.out(f"{scheme}: {user}")


def show_version(context: Context, arguments: Arguments) -> None:
    if arguments.words:
        raise SHOW_VERSION.refuse()
    from logcore import __version__

    context.console.out(f"ZooKeeper CLI version: {VERSION}, logcore {__version__}")


GET_OPTIONS = """
 -b   Output data in base64 format
 -s   Print znode stats additionally
 -w   Watch for changes on the znode
 -x   Output data in hexdump format"""

LS_HELP = """usage: ls [options] path
 -?   help
 -R   recurse
 -s   stat
 -w   watch"""

SET_OPTIONS = """
 -b         Supply data in base64 format
 -s         Print znode stats additionally
 -v <arg>   Set with an expected version"""

ADD_WATCH = Command(
    "addWatch",
    "[-m mode] path # optional mode is one of [PERSISTENT, PERSISTENT_RECURSIVE]"
    " - default is PERSISTENT_RECURSIVE",
    add_watch,
    flags("", "m"),
)
SHOW_VERSION = Command("version", "", show_version, words=0)


def _deprecated(name: str, instead: str) -> str:
    return f"'{name} path [watch]' has been deprecated. Please use '{instead}' instead."


COMMANDS = (
    ADD_WATCH,
    Command("addauth", "scheme auth", add_auth),
    Command("close", "", close, words=0),
    Command("create", "[-s] [-e] [-c] [-t ttl] path [data] [acl]", create, flags("sec", "t")),
    Command("delete", "[-v version] path", delete, flags("", "v")),
    Command("deleteall", "path [-b batch size]", delete_all, flags("", "b")),
    Command(
        "get",
        "[-s] [-w] [-b] [-x] path",
        get,
        flags("swbx"),
        deprecated=_deprecated("get", "get [-s] [-w] path"),
        help=GET_OPTIONS,
    ),
    Command("getAcl", "[-s] path", get_acl, flags("s")),
    Command("getAllChildrenNumber", "path", get_all_children_number),
    Command("getEphemerals", "path", get_ephemerals, words=0),
    Command("ls", "[-s] [-w] [-R] path", ls, flags("swR?"), deprecated=_deprecated("ls", "ls [-w] path")),
    Command("removewatches", "path [-c|-d|-a] [-l]", remove_watches, flags("cdpral")),
    Command("set", "path data [-s] [-v version] [-b]", set_data, flags("sb", "v"), words=2, help=SET_OPTIONS),
    Command("setAcl", "[-s] [-v version] [-R] path acl", set_acl, flags("sR", "v"), words=2),
    Command("stat", "[-w] path", stat, flags("w"), deprecated=_deprecated("stat", "stat [-w] path")),
    Command("sync", "path", sync),
    SHOW_VERSION,
    Command("whoami", "", who_am_i, words=0),
)
