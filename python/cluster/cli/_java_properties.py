"""Translates the properties of Kafka's Java clients to this project's client.

Operators' files and flags have Java's names (`buffer.memory`); the client has librdkafka's
(`queue.buffering.max.kbytes`). This module has the table of names and units. A Java property without an
equivalent is a warning of one line. Other names are passed on to the client, which refuses unknown ones.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from cluster.cli._common import CommandError

Kind = Literal["producer", "consumer", "admin"]

_I31 = 2**31 - 1


class _Number(NamedTuple):
    """A whole number: our name, our lowest and highest value, and how many of Java's units are one of
    ours.
    """

    name: str
    low: int = 0
    high: int = _I31
    unit: int = 1


_NUMBERS = {
    "batch.size": _Number("batch.size", low=1),
    "buffer.memory": _Number("queue.buffering.max.kbytes", low=1, unit=1024),
    "delivery.timeout.ms": _Number("delivery.timeout.ms"),
    "fetch.max.bytes": _Number("fetch.max.bytes", high=2_147_483_135),
    "fetch.max.wait.ms": _Number("fetch.wait.max.ms", high=300_000),
    "fetch.min.bytes": _Number("fetch.min.bytes", low=1, high=100_000_000),
    "linger.ms": _Number("linger.ms", high=900_000),
    "max.partition.fetch.bytes": _Number("max.partition.fetch.bytes", low=1, high=1_000_000_000),
    "max.request.size": _Number("message.max.bytes", low=1000, high=1_000_000_000),
    "metadata.max.age.ms": _Number("topic.metadata.refresh.interval.ms", low=1, high=3_600_000),
    "reconnect.backoff.max.ms": _Number("reconnect.backoff.max.ms", high=3_600_000),
    "reconnect.backoff.ms": _Number("reconnect.backoff.ms", high=3_600_000),
    "retry.backoff.ms": _Number("retry.backoff.ms", low=1, high=300_000),
    "socket.connection.setup.timeout.ms": _Number("socket.connection.setup.timeout.ms", low=1000),
}  # fmt: skip

# The producer's is the time for acknowledgements, the other clients' the time for any request.
_REQUEST_TIMEOUT = {
    "producer": _Number("request.timeout.ms", low=1, high=900_000),
    "consumer": _Number("socket.timeout.ms", low=10, high=300_000),
    "admin": _Number("socket.timeout.ms", low=10, high=300_000),
}

# Properties that the command itself uses, and the kinds of clients that have them.
_COMMANDS = {
    "max.block.ms": ("producer",),
    "max.poll.records": ("consumer",),
    "default.api.timeout.ms": ("consumer", "admin"),
}

_NO_EQUAL = frozenset(
    {
        "auto.include.jmx.reporter",
        "bootstrap.controllers",
        "client.dns.lookup",
        "client.rack",
        "connections.max.idle.ms",
        "enable.metrics.push",
        "exclude.internal.topics",
        "group.remote.assignor",
        "interceptor.classes",
        "key.deserializer",
        "key.serializer",
        "metadata.max.idle.ms",
        "metadata.recovery.strategy",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
        "receive.buffer.bytes",
        "retry.backoff.max.ms",
        "security.providers",
        "send.buffer.bytes",
        "socket.connection.setup.timeout.max.ms",
        "transaction.timeout.ms",
        "value.deserializer",
        "value.serializer",
    }
)
_NO_EQUAL_PREFIXES = ("metrics.context.", "internal.")

_ASSIGNORS = {
    "org.apache.kafka.clients.consumer.RangeAssignor": "range",
    "org.apache.kafka.clients.consumer.RoundRobinAssignor": "roundrobin",
}
_OTHER_ASSIGNORS = frozenset(
    {
        "org.apache.kafka.clients.consumer.StickyAssignor",
        "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
    }
)
_PARTITIONERS = {
    "org.apache.kafka.clients.producer.internals.DefaultPartitioner": "murmur2_random",
    "org.apache.kafka.clients.producer.UniformStickyPartitioner": "random",
    "org.apache.kafka.clients.producer.RoundRobinPartitioner": "random",
}


@dataclass
class Translated:
    """`client`: settings with our client's names. `command`: the numbers that the command itself uses, by
    Java name.
    """

    client: dict[str, str] = field(default_factory=dict)
    command: dict[str, int] = field(default_factory=dict)

    def seconds(self, name: str, default: float) -> float:
        return self.command[name] / 1000 if name in self.command else default


def translate(named: dict[str, str], kind: Kind, command: str) -> Translated:
    """Translates settings with Java's or our names. The warnings begin with the name of the command."""

    def warn(text: str) -> None:
        print(f"logcore {command}: warning: {text}", file=sys.stderr)

    found = Translated()
    codec = named.get("compression.type", "none").strip().lower()
    for name, value in named.items():
        number = _REQUEST_TIMEOUT[kind] if name == "request.timeout.ms" else _NUMBERS.get(name)
        if name in _NO_EQUAL or name.startswith(_NO_EQUAL_PREFIXES):
            warn(f"{name} has no effect here")
        elif name in _COMMANDS:
            if kind in _COMMANDS[name]:
                found.command[name] = _whole(name, value)
            else:
                warn(f"{name} has no effect on a client of this kind ({kind})")
        elif number is not None:
            found.client[number.name] = _number(name, value, number, warn)
        elif name.startswith("compression.") and name.endswith(".level") and name.count(".") == 2:
            # Java has a level for each codec; this client has one, for the codec that is used.
            if name == f"compression.{codec}.level":
                found.client["compression.level"] = str(_whole(name, value))
        elif name in _WORDS:
            found.client.update(_WORDS[name](value, warn))
        else:
            found.client[name] = value
    return found


def _whole(name: str, value: str) -> int:
    try:
        return int(value.strip())
    except ValueError:
        raise CommandError(f"{name} takes a whole number, not {value!r}", status=2) from None


def _number(name: str, value: str, number: _Number, warn: Callable[[str], None]) -> str:
    wanted = -(-_whole(name, value) // number.unit)
    taken = min(max(wanted, number.low), number.high)
    if taken != wanted:
        warn(f"{name}={value} is taken as {taken * number.unit}, the nearest value of this client")
    return str(taken)


def _assignors(value: str, warn: Callable[[str], None]) -> dict[str, str]:
    """Assignors by class. Those that this client lacks are left out, unless none would be left."""
    wanted = [name.strip() for name in value.split(",") if name.strip()]
    kept = [_ASSIGNORS.get(name, name) for name in wanted if name not in _OTHER_ASSIGNORS]
    if not kept:
        raise CommandError(
            f"partition.assignment.strategy: none of {value} is supported; supported are "
            f"{', '.join(_ASSIGNORS)}",
            status=2,
        )
    if len(kept) < len(wanted):
        warn(f"partition.assignment.strategy is taken as {','.join(kept)}: the others are not supported")
    return {"partition.assignment.strategy": ",".join(kept)}


def _partitioner(value: str, _warn: Callable[[str], None]) -> dict[str, str]:
    if value.strip() in ("", "null"):
        return {}
    if value.strip() not in _PARTITIONERS:
        raise CommandError(
            f"partitioner.class {value}: Java classes cannot be loaded here; supported are "
            f"{', '.join(_PARTITIONERS)}",
            status=2,
        )
    return {"partitioner": _PARTITIONERS[value.strip()]}


def _ignore_keys(value: str, _warn: Callable[[str], None]) -> dict[str, str]:
    return {"partitioner": "random"} if value.strip().lower() == "true" else {}


def _offset_reset(value: str, _warn: Callable[[str], None]) -> dict[str, str]:
    return {"auto.offset.reset": "error" if value.strip().lower() == "none" else value}


_WORDS: dict[str, Callable[[str, Callable[[str], None]], dict[str, str]]] = {
    "auto.offset.reset": _offset_reset,
    "partition.assignment.strategy": _assignors,
    "partitioner.class": _partitioner,
    "partitioner.ignore.keys": _ignore_keys,
}
