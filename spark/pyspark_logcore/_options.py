"""The options of the source. They are parsed and checked once, when Spark makes the data source."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from pyspark_logcore._limits import Limit, parse_ending, parse_starting

# Spelled as in Spark's documentation. Spark passes them on in upper or lower case.
_KNOWN = (
    "path",
    "subscribe",
    "topic",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "failOnDataLoss",
    # Settings of Spark's JVM consumer. They have no effect here, but a job may have them.
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
)
_BOOTSTRAP = "kafka.bootstrap.servers"
_CHOICES = ("subscribe", "topic", "subscribePattern", "assign")

# The source sets these itself, as Spark's Kafka source does.
_REFUSED_CLIENT = frozenset(
    {
        "auto.offset.reset",
        "key.deserializer",
        "value.deserializer",
        "enable.auto.commit",
        "interceptor.classes",
    }
)


@dataclass(frozen=True)
class TopicChoice:
    """Which partitions are read: topics by name or by pattern, or single partitions. Without any of these,
    every topic.
    """

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def everything(self) -> bool:
        return not (self.topics or self.pattern or self.assigned)

    def wants(self, topic: str, partition: int) -> bool:
        """Whether this partition is among the chosen ones."""
        if self.assigned:
            return partition in self.assigned.get(topic, ())
        if self.topics:
            return topic in self.topics
        return self.pattern is None or re.fullmatch(self.pattern, topic) is not None

    def required(self) -> list[tuple[str, int | None]]:
        """What must exist: (topic, partition), or (topic, None) for at least one partition of a topic."""
        if self.assigned:
            return [(topic, partition) for topic, parts in self.assigned.items() for partition in parts]
        return [(topic, None) for topic in self.topics]


@dataclass(frozen=True)
class SourceOptions:
    """The user's options. The records are at `path`, or at the brokers that `client` names; one of the two is
    set.
    """

    path: str | None
    client: Mapping[str, str]
    choice: TopicChoice
    starting: Limit
    ending: Limit
    latest_when_too_late: bool
    min_partitions: int | None
    max_records: int | None
    include_headers: bool
    fail_on_data_loss: bool


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Parses and checks options as Spark passes them, with names in any case.

    Raises a ValueError that names the option, when one is unknown, contradicts another or has a bad value.
    """
    options = {name.lower(): value for name, value in given.items()}
    _refuse_unknown(options)
    path = None if (given_path := options.get("path")) is None else _local_path(given_path)
    client = {name[len("kafka.") :]: value for name, value in options.items() if name.startswith("kafka.")}
    if path is not None and client:
        raise ValueError("set a path to read files, or kafka.* options to read from brokers, not both")
    if path is None and not client.get("bootstrap.servers", "").strip():
        raise ValueError(f"set a log directory, with load(path), or brokers, with option {_BOOTSTRAP!r}")
    for name in sorted(_REFUSED_CLIENT & client.keys()):
        raise ValueError(f"option 'kafka.{name}' is not supported: the source sets it itself")
    choice = _parse_choice(options)
    if path is None and choice.everything:
        raise ValueError(f"reading from brokers needs one of the options {', '.join(_CHOICES)}")
    if client:
        # Imported here: reading files does not need the clients.
        from pyspark_logcore._client_options import client_settings

        client = client_settings(client)
    return SourceOptions(
        path=path,
        client=client,
        choice=choice,
        starting=parse_starting(options),
        ending=parse_ending(options),
        latest_when_too_late=_one_of(options, "startingOffsetsByTimestampStrategy", ("error", "latest"))
        == "latest",
        min_partitions=_positive(options, "minPartitions"),
        max_records=_positive(options, "maxRecordsPerPartition"),
        include_headers=_boolean(options, "includeHeaders", False),
        fail_on_data_loss=_boolean(options, "failOnDataLoss", True),
    )


def _local_path(text: str) -> str:
    """A path, also from a URL as Spark writes it: file:///var/lib/logcore."""
    scheme, colon, _ = text.partition(":")
    if not colon or "/" in scheme:
        return text
    if scheme.lower() != "file":
        # A directory's name may have a colon.
        if text.startswith(f"{scheme}://"):
            raise ValueError(
                f"option 'path': {text} is not in a local file system; use a directory or file:///..."
            )
        return text
    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost"):
        raise ValueError(f"option 'path': {text} names a host; write file:/// with three slashes")
    return unquote(parts.path)


def _refuse_unknown(options: Mapping[str, str]) -> None:
    known = {name.lower() for name in _KNOWN}
    unknown = sorted(name for name in options if name not in known and not name.startswith("kafka."))
    if unknown:
        raise ValueError(
            f"unknown option {', '.join(map(repr, unknown))}; the options are {', '.join(_KNOWN)}, kafka.*"
        )


def _parse_choice(options: Mapping[str, str]) -> TopicChoice:
    chosen = [name for name in _CHOICES if name.lower() in options]
    if not chosen:
        return TopicChoice()
    if len(chosen) > 1:
        raise ValueError(
            f"only one of the options {', '.join(_CHOICES)} can be set, not {' and '.join(chosen)}"
        )
    name, text = chosen[0], options[chosen[0].lower()].strip()
    if name == "assign":
        return TopicChoice(assigned=_parse_assign(text))
    if name == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise ValueError(f"option 'subscribePattern' is not a regular expression: {error}") from None
        if not text:
            raise ValueError("option 'subscribePattern' is empty")
        return TopicChoice(pattern=text)
    topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not topics:
        raise ValueError(f"option {name!r} names no topic")
    return TopicChoice(topics=topics)


def _parse_assign(text: str) -> dict[str, tuple[int, ...]]:
    expected = 'like {"topic":[0,1]}'
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"option 'assign' must be JSON {expected}: {error}") from None
    if not isinstance(value, dict) or not value:
        raise ValueError(f"option 'assign' must be JSON {expected}, not {text}")
    assigned: dict[str, tuple[int, ...]] = {}
    for topic, partitions in value.items():
        if not isinstance(partitions, list) or not all(
            type(number) is int and number >= 0 for number in partitions
        ):
            raise ValueError(f"option 'assign' must be JSON {expected}, not {text}")
        assigned[topic] = tuple(dict.fromkeys(partitions))
    return assigned


def _one_of(options: Mapping[str, str], name: str, values: tuple[str, ...]) -> str:
    value = options.get(name.lower(), values[0]).strip().lower()
    if value not in values:
        raise ValueError(f"option {name!r} must be one of {', '.join(values)}, not {value!r}")
    return value


def _boolean(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name.lower())
    if text is None:
        return default
    return _one_of(options, name, ("true", "false")) == "true"


def _positive(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) == 0:
        raise ValueError(f"option {name!r} must be a positive number, not {text!r}")
    return int(text)
