"""Shared by the tools that administer a cluster: the connection, Kafka's errors as one line, JSON files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cluster.cli._common import CONNECT_TIMEOUT, CommandError, Parser, client_config, connect, properties_file
from cluster.cli._java_properties import translate

if TYPE_CHECKING:
    from cluster.client import AdminClient, KafkaError

REQUEST_TIMEOUT = 60.0

Value = TypeVar("Value", bound=Hashable)


@contextmanager
def administer(
    command: str, bootstrap: str, properties: str | None = None, flag: str = "--command-config"
) -> Iterator[AdminClient]:
    """An admin client that has reached a broker. Its failures end the command with one line."""
    settings = translate(properties_file(properties, flag), "admin", command)
    config = client_config(bootstrap, settings.client)

    from cluster.client import AdminClient, KafkaException

    try:
        with AdminClient(config) as admin:
            connect(admin, timeout=settings.seconds("default.api.timeout.ms", CONNECT_TIMEOUT))
            yield admin
    except KafkaException as error:
        raise CommandError(f"{bootstrap}: {reason(error.error)}") from None


def repeated(values: Iterable[Value]) -> list[Value]:
    """The values that occur more than once, each once."""
    return [value for value, times in Counter(values).items() if times > 1]


def reason(error: KafkaError) -> str:
    """What the broker said, or else the meaning of its error code."""
    return error.str().removeprefix("Broker: ")


def java_exception(error: KafkaError) -> str:
    """The Java class of a broker's error, as Kafka's tools print it."""
    from cluster.errors import for_code

    words = for_code(error.code()).name.split("_")
    if words[-1] in ("EXCEPTION", "ERROR", "FAILED") and len(words) > 2:
        words.pop()
    return f"org.apache.kafka.common.errors.{''.join(word.capitalize() for word in words)}Exception"


def add_connection(options: Parser, properties_flag: str = "--command-config") -> None:
    """The flags of the connection. `need` refuses a command without the first one."""
    options.add_argument(
        "--bootstrap-server", metavar="HOST:PORT[,...]", help="the broker to connect to (required)"
    )
    options.add_argument(properties_flag, metavar="FILE", help="a file with client properties")


def need(value: object, flag: str) -> None:
    """Refuses a command without a flag that it needs."""
    if value in (None, False):
        raise CommandError(f'Missing required argument "[{flag}]" (--help lists the options)', status=2)


def json_file(path: str, flag: str) -> Any:
    """The contents of a JSON file. Raises CommandError."""
    try:
        return json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise CommandError(f"--{flag}: {path} cannot be read as JSON: {error}") from None


def compact_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def integers(text: str, flag: str) -> list[int]:
    """A list with commas, as 0,1,2. Empty parts are left out."""
    try:
        return [int(part) for part in text.split(",") if part]
    except ValueError:
        raise CommandError(f"--{flag} takes numbers with commas, not {text!r}", status=2) from None
