"""What the commands share: a parser whose errors are one line, `key=value` options, files of properties, and how a
client's failures and an unreachable broker are told."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol

if TYPE_CHECKING:
    from cluster.broker import Broker
    from cluster.client import ClusterMetadata

CONNECT_TIMEOUT = 10.0
"""Seconds in which a broker has to answer a command's first question."""
REFUSED_TIMEOUT = 3.0
"""Seconds after which refused connections are believed: long enough for a broker that is starting."""


class CommandError(Exception):
    """Ends a command with one line on standard error and an exit status (1 failed, 2 wrong arguments)."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


class Version(argparse.Action):
    """`--version` of every command. The version is looked up when it is asked for: it loads the extension."""

    def __call__(self, parser: argparse.ArgumentParser, *_rest: object) -> NoReturn:
        from logcore import __version__

        print(f"logcore {__version__}")
        parser.exit()


class Once(argparse.Action):
    """A flag with one value that is given at most once, as Kafka's tools have it (joptsimple's `valueOf`); argparse takes
    the last of several."""

    _given = False

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        flag: str | None = None,
    ) -> None:
        if self._given:
            parser.error(f"{flag} is given more than once")
        self._given = True
        setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
    """argparse with Kafka's manners: no abbreviations, and a wrong flag is one clear line."""

    def __init__(self, command: str, description: str) -> None:
        super().__init__(prog=f"logcore {command}", description=description, allow_abbrev=False)
        self.add_argument("--version", action=Version, nargs=0, help="print the version and leave")

    def error(self, message: str) -> NoReturn:
        raise CommandError(f"{message} (--help lists the options)", status=2)


def directory(text: str) -> Path:
    """A directory's name; argparse tells why it is none. An empty one would be the current directory."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty; name a directory, or . for the current one")
    return Path(text)


def pairs(values: Iterable[str], flag: str, exact: bool = False) -> dict[str, str]:
    """Turns repeated `key=value` arguments of `flag` into a mapping; the last of a repeated key wins.

    `exact` keeps a value's spaces: the key.separator of `key.separator= ` is one.
    """
    found: dict[str, str] = {}
    for value in values:
        key, equals, rest = value.partition("=")
        if not equals or not key.strip():
            raise CommandError(f"{flag} takes key=value, not {value!r}", status=2)
        found[key.strip()] = rest if exact else rest.strip()
    return found


def properties_file(path: str | None, flag: str) -> dict[str, str]:
    """Reads a Java properties file of client settings; an unreadable one is a one-line error."""
    if path is None:
        return {}
    from cluster.properties import PropertiesError, read_properties

    try:
        return read_properties(Path(path))
    except (OSError, PropertiesError) as error:
        raise CommandError(f"{flag}: cannot read {path}: {error}") from None


def client_config(bootstrap: str, *layers: dict[str, str]) -> dict[str, str | int | float | bool]:
    """Merges client settings (later layers win) over the bootstrap address."""
    config: dict[str, str | int | float | bool] = {}
    for layer in layers:
        config.update(layer)
    config["bootstrap.servers"] = bootstrap
    return config


class Client(Protocol):
    """What `connect` needs of a producer, a consumer or an admin client."""

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata: ...


def connect(client: Client, topic: str | None = None, timeout: float = CONNECT_TIMEOUT) -> ClusterMetadata:
    """Asks the cluster what it holds, so that a broker nobody can reach ends the command soon and by name.

    Raises KafkaException after `REFUSED_TIMEOUT` when nothing listens, after `timeout` seconds when nothing answers.
    """
    from cluster.client import KafkaError, KafkaException

    first = min(REFUSED_TIMEOUT, timeout)
    try:
        return client.list_topics(topic, timeout=first)
    except KafkaException as error:
        if error.error != KafkaError._TIMED_OUT:
            raise
    try:
        return client.list_topics(topic, timeout=max(timeout - first, 0.001))
    except KafkaException as error:
        if error.error != KafkaError._TIMED_OUT:
            raise
        reason = f"no answer within {timeout:g} s; check that a Kafka broker listens there and is well"
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, reason)) from None


def metrics_line(broker: Broker) -> str:
    """Where the metrics of a broker that is ready are; nothing when it serves none."""
    return f"  metrics {broker.metrics_address}\n" if broker.metrics_address else ""
