"""config and reconfig: print the ensemble's configuration, and change it (ZooKeeperAdmin)."""

from __future__ import annotations

import re
from pathlib import Path

from cluster.cli.zookeeper.arguments import Arguments, Options
from cluster.cli.zookeeper.commands import Command, Context, flags
from cluster.cli.zookeeper.errors import ShellError, integer
from cluster.cli.zookeeper.printing import stat_text
from cluster.properties import PropertiesError, parse_properties, read_properties

MIXED = (
    "Can't use -file or -members together with -add or -remove"
    " (mixing incremental and non-incremental modes is not allowed)"
)
CONFLICTING = "Can't use -file and -members together (conflicting non-incremental modes)"

_SERVER = re.compile(
    r"(?P<addresses>.+?:\d+:\d+)(:(?P<role>participant|observer))?(;((?P<host>.+):)?(?P<port>\d+))?"
)
_SERVER_ID = re.compile("[0-9]{1,19}")


def config(context: Context, arguments: Arguments) -> None:
    data, found = context.session.config(arguments.has("w"))
    text = "null" if data is None else data.decode("utf-8", "replace")
    context.console.out(client_addresses(text) if arguments.has("c") else text)
    if arguments.has("s"):
        context.console.out(stat_text(found))


def client_addresses(text: str) -> str:
    """A configuration's version and its servers' client addresses, in the order of its lines. Raises
    ShellError.
    """
    try:
        properties = parse_properties(text)
    except PropertiesError as error:
        raise ShellError(f"The configuration cannot be read: {error}") from None
    version, addresses = "", []
    for key, value in properties.items():
        if key == "version":
            version = value.strip()
        elif key.startswith("server."):
            found = _SERVER.fullmatch(value.strip())
            if found is not None:
                addresses.append(f"{found['host'] or '0.0.0.0'}:{found['port']}" if found["port"] else "")
    return f"{version} {','.join(addresses)}"


def reconfig(context: Context, arguments: Arguments) -> None:
    whole = arguments.has("file") or arguments.has("members")
    parts = arguments.has("add") or arguments.has("remove")
    if not whole and not parts:
        raise RECONFIG.refuse()
    version = -1
    if arguments.has("v"):
        try:
            version = integer(arguments.options["v"], bits=64, radix=16)
        except ShellError:
            raise ShellError("-v must be followed by a long (configuration version)") from None
    if whole and parts:
        raise ShellError(MIXED)
    if arguments.has("file") and arguments.has("members"):
        raise ShellError(CONFLICTING)
    joining, leaving, members = (_lower(arguments, option) for option in ("add", "remove", "members"))
    if arguments.has("file"):
        members = members_of(arguments.options["file"])
    data, found = context.session.reconfigure(joining, leaving, members, version)
    text = (data or b"").decode("utf-8", "replace")
    context.console.out(f"Committed new configuration:\n{text}")
    if arguments.has("s"):
        context.console.out(stat_text(found))


def _lower(arguments: Arguments, option: str) -> str | None:
    return arguments.options[option].lower() if arguments.has(option) else None


def members_of(name: str) -> str:
    """The members of a dynamic configuration file, in ZooKeeper's format. Raises ShellError."""
    try:
        properties = read_properties(Path(name))
    except OSError as error:
        raise ShellError(f"Error processing {name}{name} ({error.strerror})") from None
    except PropertiesError as error:
        raise ShellError(f"Error processing {name}: {error}") from None
    servers: dict[int, str] = {}
    rest: list[str] = []
    version = "0"
    for key, value in properties.items():
        kind, _dot, number = key.partition(".")
        found = _SERVER.fullmatch(value.strip().lower())
        if key == "version":
            version = value.strip()
        elif kind in ("group", "weight"):
            rest.append(f"{key}={value.strip()}")
        elif kind == "server" and _SERVER_ID.fullmatch(number) and found is not None:
            servers[int(number)] = _server(found)
        else:
            raise ShellError(
                f"Error processing {name}: {key}={value} is not a line of a dynamic configuration; those are"
                " server.ID=host:port:port[:role][;[host:]port], group.N, weight.N and version"
            )
    lines = [f"server.{number}={servers[number]}" for number in sorted(servers)]
    return "\n".join([*lines, *sorted(rest), f"version={version}"])


def _server(found: re.Match[str]) -> str:
    text = f"{found['addresses']}:{found['role'] or 'participant'}"
    return f"{text};{found['host'] or '0.0.0.0'}:{found['port']}" if found["port"] else text


RECONFIG = Command(
    "reconfig",
    "[-s] [-v version] [[-file path] | [-members serverID=host:port1:port2;port3[,...]*]] | "
    "[-add serverId=host:port1:port2;port3[,...]]* [-remove serverId[,...]*]",
    reconfig,
    Options(frozenset("s"), frozenset({"v", "file", "members", "add", "remove"})),
    words=0,
)

COMMANDS = (Command("config", "[-c] [-w] [-s]", config, flags("cws"), words=0), RECONFIG)
