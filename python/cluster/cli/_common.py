"""Shared by the commands: a parser with one-line errors, `key=value` options, properties files, and the
messages for a client's failures and an unreachable broker.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

if TYPE_CHECKING:
    from cluster.broker import Broker
    from cluster.client import ClusterMetadata

CONNECT_TIMEOUT = 10.0
"""Seconds in which a broker must answer a command's first request."""
REFUSED_TIMEOUT = 3.0
"""Seconds for which refused connections are tried again, for a broker that is starting."""


class CommandError(Exception):
    """Ends a command with one line on standard error and an exit status (1 failed, 2 wrong arguments)."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


class Version(argparse.Action):
    """`--version` of every command. It loads the extension only when it is used."""

    def __call__(self, parser: argparse.ArgumentParser, *_rest: object) -> NoReturn:
        from logcore import __version__

        print(f"logcore {__version__}")
        parser.exit()


class Once(argparse.Action):
    """A flag with a value that may be given once, as in Kafka's tools (joptsimple's `valueOf`). argparse
    would take the last of several values.
    """

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
    """argparse as Kafka's tools behave: no abbreviated flags, and an error is one line."""

    def __init__(self, command: str, description: str) -> None:
        super().__init__(prog=f"logcore {command}", description=description, allow_abbrev=False)
        self.add_argument("--version", action=Version, nargs=0, help="print the version and exit")

    def error(self, message: str) -> NoReturn:
        raise CommandError(f"{message} (--help lists the options)", status=2)


def either(options: argparse.Namespace, old: str, new: str) -> Any:
    """The value of a flag that has two names (KIP-1147); both at once are refused, as Kafka's tools do."""
    values = [getattr(options, flag.strip("-").replace("-", "_").replace(".", "_")) for flag in (old, new)]
    if all(values):
        raise CommandError(f"{old} and {new} cannot be used together", status=2)
    return values[0] or values[1]


def directory(text: str) -> Path:
    """A directory's name, as an argparse type. An empty name would be the current directory, so it is
    refused.
    """
    if not text:
        raise argparse.ArgumentTypeError("it is empty; name a directory, or . for the current one")
    return Path(text)


def pairs(values: Iterable[str], flag: str, exact: bool = False) -> dict[str, str]:
    """Parses the `key=value` arguments of a repeatable flag. The last value of a repeated key counts.

    `exact` keeps the spaces of values: in `key.separator= ` the separator is a space.
    """
    found: dict[str, str] = {}
    for value in values:
        key, equals, rest = value.partition("=")
        if not equals or not key.strip():
            raise CommandError(f"{flag} takes key=value, not {value!r}", status=2)
        found[key.strip()] = rest if exact else rest.strip()
    return found


def properties_file(path: str | None, flag: str) -> dict[str, str]:
    """Reads a Java properties file with client settings. Raises CommandError."""
    if path is None:
        return {}
    from cluster.properties import PropertiesError, read_properties

    try:
        return read_properties(Path(path))
    except (OSError, PropertiesError) as error:
        raise CommandError(f"{flag}: {path} cannot be read: {error}") from None


def client_config(bootstrap: str, *layers: dict[str, str]) -> dict[str, str | int | float | bool]:
    """Merges layers of client settings, of which later ones count, and sets the bootstrap address."""
    config: dict[str, str | int | float | bool] = {}
    for layer in layers:
        config.update(layer)
    config["bootstrap.servers"] = bootstrap
    return config


class Client(Protocol):
    """A producer, a consumer or an admin client, for `connect`."""

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata: ...


def connect(client: Client, topic: str | None = None, timeout: float = CONNECT_TIMEOUT) -> ClusterMetadata:
    """Requests the cluster's metadata, so that a command fails early if no broker can be reached.

    Raises KafkaException after `REFUSED_TIMEOUT` when connections are refused, after `timeout` seconds
    without an answer.
    """
    from cluster.client import KafkaError, KafkaException

    first = min(REFUSED_TIMEOUT, timeout)
    with _unlogged_failures():
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
            reason = f"no answer within {timeout:g} s; check that a Kafka broker runs and listens there"
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, reason)) from None


@contextmanager
def _unlogged_failures() -> Iterator[None]:
    """Keeps the client from logging a failure to connect. The command ends with the same failure as its
    error.
    """

    def drop(_record: logging.LogRecord) -> bool:
        return False

    logger = logging.getLogger("cluster.client")
    logger.addFilter(drop)
    try:
        yield
    finally:
        logger.removeFilter(drop)


def metrics_line(broker: Broker) -> str:
    """The line with the address of a broker's metrics; empty when it serves none."""
    return f"  metrics {broker.metrics_address}\n" if broker.metrics_address else ""
