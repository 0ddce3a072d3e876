"""The options of the source. They are parsed and checked once, when Spark makes the data source."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from pyspark_logcore._limits import Limit, parse_ending, parse_starting, refuse_ending
from pyspark_logcore._typed import OPTIONS, TypedOptions, parse_typed

# Spelled as in Spark's documentation. Spark passes them on in upper or lower case.
_KNOWN = (
    "path",
    "paths",
    "access",
    "isolation.level",
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
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "commitGroup",
    *OPTIONS,
    # Settings of Spark's JVM consumer. They have no effect here, but a job may have them.
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
)
_BOOTSTRAP = "kafka.bootstrap.servers"
_ISOLATION = ("read_uncommitted", "read_committed")
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
class Trigger:
    """How much a micro-batch of a stream reads, in offsets of all partitions together."""

    most: int | None
    most_bytes: int | None
    """About so many bytes as they are stored."""
    least: int | None
    """Fewer new offsets wait for more, until `delay` seconds have passed since the last micro-batch."""
    delay: float

    @property
    def has_limits(self) -> bool:
        return (self.most, self.most_bytes, self.least) != (None, None, None)


@dataclass(frozen=True)
class SourceOptions:
    """The user's options. The records are in the log directories `paths`, at the brokers that `client` names,
    or at both.
    """

    paths: tuple[str, ...]
    client: Mapping[str, str]
    access: str
    """Where tasks read: "files", "brokers", or "auto" for files, and brokers where they do not suffice."""
    isolation: str
    choice: TopicChoice
    limits: Mapping[str, str]
    """The options of the start and the end, which batches and streams treat differently."""
    latest_when_too_late: bool
    min_partitions: int | None
    max_records: int | None
    include_headers: bool
    fail_on_data_loss: bool
    trigger: Trigger
    commit_group: str | None
    typed: TypedOptions | None

    def starting(self, *, stream: bool) -> Limit:
        """Where the read starts. Raises ValueError that names a bad option."""
        if stream:
            refuse_ending(self.limits)
        return parse_starting(self.limits, stream=stream)

    def ending(self) -> Limit:
        """Where a batch read ends. Raises ValueError that names a bad option."""
        return parse_ending(self.limits)


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Parses and checks options as Spark passes them, with names in any case.

    Raises a ValueError that names the option, when one is unknown, contradicts another or has a bad value.
    """
    options = {name.lower(): value for name, value in given.items()}
    _refuse_unknown(options)
    paths = _paths(options)
    client = {name[len("kafka.") :]: value for name, value in options.items() if name.startswith("kafka.")}
    brokers = bool(client.get("bootstrap.servers", "").strip())
    if client and not brokers:
        raise ValueError(f"set the brokers' addresses, with option {_BOOTSTRAP!r}, or no option kafka.*")
    for name in sorted(_REFUSED_CLIENT & client.keys()):
        raise ValueError(f"option 'kafka.{name}' is not supported: the source sets it itself")
    choice = _parse_choice(options)
    if not paths and choice.everything:
        raise ValueError(f"reading from brokers needs one of the options {', '.join(_CHOICES)}")
    isolation = options.get("isolation.level", client.get("isolation.level", _ISOLATION[0])).strip().lower()
    if isolation not in _ISOLATION:
        raise ValueError(
            f"option 'isolation.level' must be one of {', '.join(_ISOLATION)}, not {isolation!r}"
        )
    if client:
        # Imported here: reading files does not need the clients.
        from pyspark_logcore._client_options import CONSUMER, client_settings

        client = {**client_settings(client, CONSUMER), "isolation.level": isolation}
    group = options.get("commitgroup")
    if group is not None and not client:
        raise ValueError(f"option 'commitGroup' needs brokers that keep the group: set {_BOOTSTRAP!r}")
    return SourceOptions(
        paths=paths,
        client=client,
        access=_access(options, paths, brokers),
        isolation=isolation,
        choice=choice,
        limits={name: text for name, text in options.items() if name.startswith(("starting", "ending"))},
        latest_when_too_late=_one_of(options, "startingOffsetsByTimestampStrategy", ("error", "latest"))
        == "latest",
        min_partitions=positive(options, "minPartitions"),
        max_records=positive(options, "maxRecordsPerPartition"),
        include_headers=boolean(options, "includeHeaders", False),
        fail_on_data_loss=boolean(options, "failOnDataLoss", True),
        trigger=_trigger(options),
        commit_group=group,
        typed=parse_typed(options, choice.topics),
    )


def _access(options: Mapping[str, str], paths: tuple[str, ...], brokers: bool) -> str:
    access = _one_of(options, "access", ("auto", "files", "brokers"))
    if not paths and not brokers:
        raise ValueError(f"set a log directory, with load(path), or brokers, with option {_BOOTSTRAP!r}")
    if access == "files" and not paths:
        raise ValueError("option 'access' is files, but no path is set")
    if access == "brokers" and not brokers:
        raise ValueError(f"option 'access' is brokers, but {_BOOTSTRAP!r} is not set")
    if access == "auto" and not (paths and brokers):
        return "files" if paths else "brokers"
    return access


def _trigger(options: Mapping[str, str]) -> Trigger:
    most, least = positive(options, "maxOffsetsPerTrigger"), positive(options, "minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise ValueError(f"option 'minOffsetsPerTrigger' ({least}) is above 'maxOffsetsPerTrigger' ({most})")
    most_bytes = positive(options, "maxBytesPerTrigger")
    return Trigger(most, most_bytes, least, _seconds(options, "maxTriggerDelay", 15 * 60))


def _paths(options: Mapping[str, str]) -> tuple[str, ...]:
    """The log directories: `path`, or those of `load([...])`, which Spark passes as a JSON list."""
    given = options.get("paths")
    if given is None:
        return () if "path" not in options else (local_path(options["path"]),)
    expected = "option 'paths' must be a JSON list of directories"
    try:
        found = json.loads(given)
    except ValueError as error:
        raise ValueError(f"{expected}: {error}") from None
    if not isinstance(found, list) or not found or not all(isinstance(path, str) for path in found):
        raise ValueError(f"{expected}, not {given}")
    if "path" in options:
        raise ValueError("set the option 'path' or 'paths', not both")
    return tuple(dict.fromkeys(map(local_path, found)))


def local_path(text: str) -> str:
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
    if any(name.startswith("option.") for name in options):
        raise ValueError(
            "a table of Spark's catalog cannot have the format logcore: when it is read, Spark hands its "
            "options to no Python data source; use CREATE TEMPORARY VIEW … USING logcore OPTIONS (…)"
        )
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


def boolean(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name.lower())
    if text is None:
        return default
    return _one_of(options, name, ("true", "false")) == "true"


def positive(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) == 0:
        raise ValueError(f"option {name!r} must be a positive number, not {text!r}")
    return int(text)


_UNITS = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
}


def _seconds(options: Mapping[str, str], name: str, default: float) -> float:
    """A time as Spark writes it, such as 15m; without a unit, milliseconds."""
    text = options.get(name.lower())
    if text is None:
        return default
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    if found is None or (found[2] and found[2] not in _UNITS):
        raise ValueError(f"option {name!r} must be a time such as 15m or 90s, not {text!r}")
    return int(found[1]) * _UNITS[found[2] or "ms"]
