"""The arguments of `logcore configs`, checked as Kafka's tool checks them (ConfigCommandOptions)."""

from __future__ import annotations

import argparse
import re
import socket
from typing import NamedTuple

from cluster.cli._admin_tool import repeated
from cluster.cli._common import CommandError, Once, Parser, properties_file

TOPICS, CLIENTS, USERS, BROKERS = "topics", "clients", "users", "brokers"
BROKER_LOGGERS, IPS, CLIENT_METRICS = "broker-loggers", "ips", "client-metrics"
ENTITY_TYPES = (TOPICS, CLIENTS, USERS, BROKERS, IPS, BROKER_LOGGERS, CLIENT_METRICS)

# Flags that name an entity with its type, in the order in which Kafka's tool looks at them.
NAMED = {
    "topic": TOPICS,
    "client": CLIENTS,
    "user": USERS,
    "broker": BROKERS,
    "broker-logger": BROKER_LOGGERS,
    "ip": IPS,
}
DEFAULTS = {
    "client-defaults": CLIENTS,
    "user-defaults": USERS,
    "broker-defaults": BROKERS,
    "ip-defaults": IPS,
}

DEFAULT = ""
"""The name of an entity that stands for all that have no setting of their own."""

# Commas and equals signs inside square brackets do not separate.
_OUTSIDE_BRACKETS = r"(?=[^\]]*(?:\[|$))"


class Entities(NamedTuple):
    """The types on the command line, and the names in their order. There may be fewer names than types."""

    types: list[str]
    names: list[str]

    @property
    def name(self) -> str | None:
        return self.names[0] if self.names else None


class _DefaultName(argparse.Action):
    """--entity-default is a name of --entity-name, in the order of the command line."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        flag: str | None = None,
    ) -> None:
        namespace.entity_name = [*namespace.entity_name, DEFAULT]


def parser() -> Parser:
    options = Parser("configs", "Describes and alters settings of a topic, broker, client, user or IP.")
    options.add_argument("--bootstrap-server", metavar="HOST:PORT[,...]", help="the broker to connect to")
    options.add_argument("--command-config", metavar="FILE", help="a file with client properties")
    options.add_argument("--alter", action="store_true", help="change settings")
    options.add_argument("--describe", action="store_true", help="list settings")
    options.add_argument(
        "--all", action="store_true", help="with --describe: static settings and defaults, too"
    )
    options.add_argument(
        "--entity-type", action="append", default=[], metavar="TYPE", help=" or ".join(ENTITY_TYPES)
    )
    options.add_argument("--entity-name", action="append", default=[], metavar="NAME")
    options.add_argument(
        "--entity-default", action=_DefaultName, nargs=0, help="the default of clients, users, brokers or ips"
    )
    for flag, kind in NAMED.items():
        options.add_argument(
            f"--{flag}", action=Once, metavar="NAME", help=f"as --entity-type {kind} --entity-name NAME"
        )
    for flag, kind in DEFAULTS.items():
        options.add_argument(
            f"--{flag}", action="store_true", help=f"as --entity-type {kind} --entity-default"
        )
    options.add_argument(
        "--add-config",
        action=Once,
        metavar="K=V[,...]",
        help="settings to add; square brackets keep commas together: k1=v1,k2=[v1,v2]",
    )
    options.add_argument("--add-config-file", action=Once, metavar="FILE", help="a file with settings to add")
    options.add_argument(
        "--delete-config", action="append", metavar="K[,...]", help="names of settings to remove"
    )
    options.add_argument("--force", action="store_true", help="accepted without effect: nothing is asked")
    for flag in ("zookeeper", "zk-tls-config-file", "bootstrap-controller"):
        options.add_argument(f"--{flag}", metavar="X", help="always refused; give --bootstrap-server")
    return options


def wrong(message: str) -> CommandError:
    return CommandError(message, status=2)


def check(options: argparse.Namespace) -> Entities:
    """Refuses what Kafka's tool refuses, and returns the entities."""
    if options.alter == options.describe:
        raise wrong("Command must include exactly one action: --describe, --alter")
    if options.describe and (options.add_config or options.delete_config):
        flag = "add-config" if options.add_config else "delete-config"
        raise wrong(f'Option "[describe]" can\'t be used with option "[{flag}]"')
    for flag in ("zookeeper", "zk_tls_config_file", "bootstrap_controller"):
        if getattr(options, flag) is not None:
            raise wrong(f"--{flag.replace('_', '-')} is not supported; give --bootstrap-server")
    given = [flag for flag in NAMED if getattr(options, flag.replace("-", "_")) is not None]
    defaults = [flag for flag in DEFAULTS if getattr(options, flag.replace("-", "_"))]
    if (options.entity_name or options.entity_type) and (given or defaults):
        raise wrong(
            "--entity-{type,name,default} should not be used in conjunction with specific entity flags"
        )
    entities = Entities(
        [*options.entity_type, *(NAMED[flag] for flag in given), *(DEFAULTS[flag] for flag in defaults)],
        [
            *options.entity_name,
            *(getattr(options, flag.replace("-", "_")) for flag in given),
            *(DEFAULT for _ in defaults),
        ],
    )
    _check_types(entities.types)
    if options.bootstrap_server is None:
        raise wrong("--bootstrap-server must be given")
    _check_names(entities)
    if options.describe and BROKER_LOGGERS in entities.types and not any(entities.names):
        raise wrong(f"an entity name must be specified with --describe of {','.join(entities.types)}")
    if options.alter:
        _check_alter(options, entities)
    return entities


def _check_types(types: list[str]) -> None:
    if twice := repeated(types):
        raise wrong(f"Duplicate entity type(s) specified: {','.join(sorted(twice))}")
    for kind in types:
        if kind not in ENTITY_TYPES:
            raise wrong(
                f"Invalid entity type {kind}, the entity type must be one of {', '.join(ENTITY_TYPES)}"
            )
    if not types:
        raise wrong("At least one entity type must be specified")
    if len(types) > 1 and set(types) != {USERS, CLIENTS}:
        raise wrong("Only 'users' and 'clients' entity types may be specified together")


def _check_names(entities: Entities) -> None:
    kind = entities.types[0]
    if len(entities.names) > len(entities.types):
        raise wrong("More entity names specified than entity types")
    for name in filter(None, entities.names):
        if kind in (BROKERS, BROKER_LOGGERS) and not re.fullmatch("[+-]?[0-9]+", name):
            raise wrong(f"The entity name for {kind} must be a valid integer broker id, but it is: {name}")
        if kind == IPS:
            try:
                socket.getaddrinfo(name, None)
            except OSError:
                raise wrong(
                    f"The entity name for {kind} must be a valid IP or resolvable host, but it is: {name}"
                ) from None


def _check_alter(options: argparse.Namespace, entities: Entities) -> None:
    if {USERS, CLIENTS, BROKERS, IPS} & set(entities.types):
        if not entities.names:
            raise wrong(
                "an entity-name or default entity must be specified with --alter of users, clients, brokers "
                "or ips"
            )
    elif not any(entities.names):
        raise wrong(f"an entity name must be specified with --alter of {','.join(entities.types)}")
    if options.add_config is not None and options.add_config_file is not None:
        raise wrong("Only one of --add-config or --add-config-file must be specified")
    if options.add_config is None and options.add_config_file is None and options.delete_config is None:
        raise wrong(
            "At least one of --add-config, --add-config-file, or --delete-config must be specified with "
            "--alter"
        )
    if len(entities.types) != len(entities.names):
        raise wrong("An entity name must be specified for every entity type")


def added(options: argparse.Namespace) -> dict[str, str]:
    """The settings of --add-config or --add-config-file."""
    found = properties_file(options.add_config_file, "--add-config-file")
    if options.add_config is not None:
        found = parse_added(options.add_config)
    for name in found:
        if not re.fullmatch("[a-zA-Z0-9._-]*", name):
            raise wrong(f"Invalid character found for config key: {name}")
    return found


def parse_added(text: str) -> dict[str, str]:
    """Parses `k1=v1,k2=[v1,v2]`. Raises CommandError."""
    entries = re.split("," + _OUTSIDE_BRACKETS, text)
    while entries and not entries[-1]:
        entries.pop()
    found = {}
    for entry in entries:
        pair = re.split(r"\s*=\s*" + _OUTSIDE_BRACKETS, entry)
        if len(pair) != 2:
            raise wrong('Invalid entity config: all configs to be added must be in the format "key=val".')
        found[pair[0].strip()] = re.sub(r"[\[\]]", "", pair[1]).strip()
    return found


def deleted(options: argparse.Namespace) -> list[str]:
    """The names of --delete-config."""
    return [name.strip() for value in options.delete_config or [] for name in value.split(",")]
