"""Configuration under librdkafka's property names. Values are parsed and checked before a client starts.

An unknown property and a wrong value each raise a KafkaException that names the property. A property without
effect here is logged as a warning. TLS is refused: without it a program would not be as safe as it says.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ._errors import KafkaError, KafkaException, failed

logger = logging.getLogger("cluster.client")

_I31 = 2**31 - 1
_FOREVER_MS = 100 * 365 * 86_400_000
"""Milliseconds that stand for "no limit": a century."""
_FETCH_OVERHEAD = 512
"""Bytes of a Fetch response beside its records, as librdkafka counts them."""


@dataclass(frozen=True)
class _Property:
    """How a property's value is read. `client` is "p" (producer), "c" (consumer) or "" (all)."""

    kind: str
    client: str = ""
    low: float = 0
    high: float = _I31
    choices: tuple[str, ...] = ()


def _integer(low: float, high: float, client: str = "") -> _Property:
    return _Property("int", client, low, high)


def _choice(*choices: str, client: str = "") -> _Property:
    return _Property("choice", client, choices=choices)


_PROPERTIES: dict[str, _Property] = {
    "bootstrap.servers": _Property("servers"),
    "client.id": _Property("str"),
    "client.rack": _Property("str"),
    "socket.timeout.ms": _integer(10, 300_000),
    "socket.connection.setup.timeout.ms": _integer(1000, _I31),
    "reconnect.backoff.ms": _integer(0, 3_600_000),
    "reconnect.backoff.max.ms": _integer(0, 3_600_000),
    "retry.backoff.ms": _integer(1, 300_000),
    "receive.message.max.bytes": _integer(1000, _I31),
    "topic.metadata.refresh.interval.ms": _integer(-1, 3_600_000),
    "topic.metadata.propagation.max.ms": _integer(0, 3_600_000),
    "allow.auto.create.topics": _Property("bool"),
    "security.protocol": _choice("plaintext", "ssl", "sasl_plaintext", "sasl_ssl"),
    "message.max.bytes": _integer(1000, 1_000_000_000),
    # Producer.
    "acks": _Property("acks", "p"),
    "enable.idempotence": _Property("bool", "p"),
    "linger.ms": _Property("float", "p", 0, 900_000),
    "batch.size": _integer(1, _I31, "p"),
    "batch.num.messages": _integer(1, 1_000_000, "p"),
    "queue.buffering.max.messages": _integer(0, _I31, "p"),
    "queue.buffering.max.kbytes": _integer(1, _I31, "p"),
    "compression.type": _choice("none", "gzip", "snappy", "lz4", "zstd", client="p"),
    "compression.level": _integer(-1, 22, "p"),
    "delivery.timeout.ms": _integer(0, _I31, "p"),
    "request.timeout.ms": _integer(1, 900_000, "p"),
    "retries": _integer(0, _I31, "p"),
    "max.in.flight": _integer(1, 1_000_000),
    "partitioner": _choice(
        "random",
        "consistent",
        "consistent_random",
        "murmur2",
        "murmur2_random",
        "fnv1a",
        "fnv1a_random",
        client="p",
    ),
    "sticky.partitioning.linger.ms": _integer(0, 900_000, "p"),
    "transactional.id": _Property("str", "p"),
    "transaction.timeout.ms": _integer(1000, _I31, "p"),
    # Consumer.
    "group.id": _Property("str", "c"),
    "group.instance.id": _Property("str", "c"),
    "group.protocol": _choice("classic", "consumer", client="c"),
    "group.remote.assignor": _Property("str", "c"),
    "partition.assignment.strategy": _Property("strategy", "c"),
    "session.timeout.ms": _integer(1, 3_600_000, "c"),
    "heartbeat.interval.ms": _integer(1, 3_600_000, "c"),
    "max.poll.interval.ms": _integer(1, 86_400_000, "c"),
    "enable.auto.commit": _Property("bool", "c"),
    "auto.commit.interval.ms": _integer(0, 86_400_000, "c"),
    "enable.auto.offset.store": _Property("bool", "c"),
    "auto.offset.reset": _choice(
        "smallest", "earliest", "beginning", "largest", "latest", "end", "error", client="c"
    ),
    "enable.partition.eof": _Property("bool", "c"),
    "check.crcs": _Property("bool", "c"),
    "isolation.level": _choice("read_uncommitted", "read_committed", client="c"),
    "fetch.min.bytes": _integer(1, 100_000_000, "c"),
    "fetch.max.bytes": _integer(0, 2_147_483_135, "c"),
    "fetch.wait.max.ms": _integer(0, 300_000, "c"),
    "max.partition.fetch.bytes": _integer(1, 1_000_000_000, "c"),
    "queued.max.messages.kbytes": _integer(1, 2_097_151, "c"),
    "fetch.error.backoff.ms": _integer(0, 300_000, "c"),
    # Callbacks, called from poll(), flush(), consume() or close().
    "on_delivery": _Property("callable", "p"),
    "error_cb": _Property("callable"),
    "on_commit": _Property("callable", "c"),
}

_ALIASES = {
    "metadata.broker.list": "bootstrap.servers",
    "request.required.acks": "acks",
    "queue.buffering.max.ms": "linger.ms",
    "compression.codec": "compression.type",
    "message.timeout.ms": "delivery.timeout.ms",
    "message.send.max.retries": "retries",
    "max.in.flight.requests.per.connection": "max.in.flight",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "dr_cb": "on_delivery",
    "dr_msg_cb": "on_delivery",
}

# librdkafka knows these; here they change nothing.
_WITHOUT_EFFECT = frozenset(
    [
        "builtin.features",
        "message.copy.max.bytes",
        "metadata.max.age.ms",
        "topic.metadata.refresh.fast.interval.ms",
        "topic.metadata.refresh.fast.cnt",
        "topic.metadata.refresh.sparse",
        "topic.blacklist",
        "debug",
        "socket.blocking.max.ms",
        "socket.send.buffer.bytes",
        "socket.receive.buffer.bytes",
        "socket.keepalive.enable",
        "socket.nagle.disable",
        "socket.max.fails",
        "broker.address.ttl",
        "broker.address.family",
        "connections.max.idle.ms",
        "reconnect.backoff.jitter.ms",
        "statistics.interval.ms",
        "enabled_events",
        "log_level",
        "log.queue",
        "log.thread.name",
        "enable.random.seed",
        "log.connection.close",
        "internal.termination.signal",
        "api.version.request",
        "api.version.request.timeout.ms",
        "api.version.fallback.ms",
        "broker.version.fallback",
        "client.dns.lookup",
        "retry.backoff.max.ms",
        "metadata.recovery.strategy",
        "metadata.recovery.rebootstrap.trigger.ms",
        "enable.metrics.push",
        "enable.gapless.guarantee",
        "queue.buffering.backpressure.threshold",
        "delivery.report.only.error",
        "produce.offset.report",
        "queuing.strategy",
        "msg_order_cmp",
        "group.protocol.type",
        "coordinator.query.interval.ms",
        "queued.min.messages",
        "fetch.queue.backoff.ms",
        "offset.store.method",
        "offset.store.path",
        "offset.store.sync.interval.ms",
        "auto.commit.enable",
        "consume.callback.max.messages",
        "throttle_cb",
        "stats_cb",
        "log_cb",
        "logger",
        "oauth_cb",
        "ssl_ca_cb",
        "plugin.library.paths",
        "interceptors",
        "opaque",
        "default_topic_conf",
    ]
)
_WITHOUT_EFFECT_PREFIXES = ("ssl.", "sasl.", "enable.sasl.", "enable.ssl.", "https.")

_OFFSET_RESETS = {
    "smallest": "earliest", "earliest": "earliest", "beginning": "earliest",
    "largest": "latest", "latest": "latest", "end": "latest", "error": "error",
}  # fmt: skip
_CLASSIC_ONLY = {
    "session.timeout.ms": "It is defined broker side",
    "heartbeat.interval.ms": "It is defined broker side",
    "partition.assignment.strategy": "Use `group.remote.assignor` instead",
    "group.protocol.type": "The protocol has no types",
}
_STRATEGIES = ("range", "roundrobin", "cooperative-sticky")
_TRUE = frozenset({"true", "t", "1", "yes"})
_FALSE = frozenset({"false", "f", "0", "no"})


@dataclass
class Config:
    """A checked configuration: canonical names with typed values, and the callbacks."""

    values: dict[str, Any] = field(default_factory=dict)
    callbacks: dict[str, Callable[..., Any]] = field(default_factory=dict)

    def get(self, name: str, default: Any = None) -> Any:
        return self.values.get(name, default)


def parse(given: Iterable[Mapping[str, Any]], client: str, overrides: Mapping[str, Any]) -> Config:
    """Checks a client's constructor arguments (dicts, then keywords). `client` is "p", "c" or "" (admin)."""
    merged: dict[str, Any] = {}
    for layer in (*given, overrides):
        if not isinstance(layer, Mapping):
            raise TypeError(f"expected a configuration dict, not {type(layer).__name__}")
        for name, value in layer.items():
            if name == "default.topic.config" and isinstance(value, Mapping):
                merged.update(value)
            else:
                merged[name] = value
    config = Config()
    for name, value in merged.items():
        _take(config, name, value, client)
    _refuse_unsafe(config)
    if config.values.get("group.protocol") == "consumer":
        _refuse_classic_only(merged)
    return config


def _take(config: Config, name: str, value: Any, client: str) -> None:
    canonical = _ALIASES.get(name, name)
    known = _PROPERTIES.get(canonical)
    if known is None:
        if name in _WITHOUT_EFFECT or name.startswith(_WITHOUT_EFFECT_PREFIXES):
            logger.warning("configuration property %s has no effect in this client", name)
            return
        raise failed(KafkaError._INVALID_ARG, f'No such configuration property: "{name}"')
    if value is None:
        return
    if known.client and client and known.client != client:
        kind = {"p": "producer", "c": "consumer"}
        logger.warning("%s is a %s property and has no effect here", name, kind[known.client])
        return
    if known.kind == "callable":
        if not callable(value):
            raise TypeError(f"{name} must be callable")
        config.callbacks[canonical] = value
        return
    config.values[canonical] = _READERS[known.kind](known, name, value)


def _invalid(name: str, value: Any, expected: str) -> KafkaException:
    return failed(
        KafkaError._INVALID_ARG,
        f'Invalid value {value!r} for configuration property "{name}": expected {expected}',
    )


def _number(known: _Property, name: str, value: Any, kind: type[int] | type[float]) -> int | float:
    try:
        number = kind(str(value).strip()) if not isinstance(value, bool) else None
    except ValueError:
        number = None
    if number is None:
        raise _invalid(name, value, "a number")
    if not known.low <= number <= known.high:
        raise failed(
            KafkaError._INVALID_ARG,
            f'Configuration property "{name}" value {value} is outside allowed range '
            f"{known.low}..{known.high}",
        )
    return number


def _read_int(known: _Property, name: str, value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return int(_number(known, name, value, int))


def _read_float(known: _Property, name: str, value: Any) -> float:
    return float(_number(known, name, value, float))


def _read_bool(_known: _Property, name: str, value: Any) -> bool:
    text = str(value).strip().lower()
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise _invalid(name, value, "true or false")


def _read_choice(known: _Property, name: str, value: Any) -> str:
    text = str(value).strip().lower()
    if text not in known.choices:
        raise _invalid(name, value, "one of " + ", ".join(known.choices))
    return _OFFSET_RESETS.get(text, text) if name == "auto.offset.reset" else text


def _read_acks(_known: _Property, name: str, value: Any) -> int:
    text = str(value).strip().lower()
    acks = {"all": -1, "-1": -1, "0": 0, "1": 1}.get(text)
    if acks is None:
        raise _invalid(name, value, "0, 1 or all")
    return acks


def _read_strategy(_known: _Property, name: str, value: Any) -> list[str]:
    names = [part.strip() for part in str(value).split(",") if part.strip()]
    unknown = [part for part in names if part not in _STRATEGIES]
    if unknown or not names:
        raise _invalid(name, value, "a list of " + ", ".join(_STRATEGIES))
    if "cooperative-sticky" in names and len(names) > 1:
        raise _invalid(
            name, value, "cooperative-sticky alone, or the others: their members rebalance differently"
        )
    return names


def _read_servers(_known: _Property, name: str, value: Any) -> list[tuple[str, int]]:
    servers = []
    for part in str(value).split(","):
        address = part.strip()
        if not address:
            continue
        if "://" in address:
            scheme, _, address = address.partition("://")
            if scheme.lower() != "plaintext":
                raise _invalid(name, value, "PLAINTEXT addresses")
        servers.append(_read_server(name, address))
    if not servers:
        raise _invalid(name, value, "host:port, or several with commas between them")
    return servers


def _read_server(name: str, address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        host, port = address, "9092"
    elif ":" in host and not host.startswith("["):
        raise _invalid(name, address, "[host]:port for an IPv6 address")
    if not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 65536 or not host:
        raise _invalid(name, address, "host:port")
    return host.strip("[]"), int(port)


_READERS: dict[str, Callable[[_Property, str, Any], Any]] = {
    "int": _read_int,
    "float": _read_float,
    "bool": _read_bool,
    "str": lambda _known, _name, value: str(value),
    "choice": _read_choice,
    "acks": _read_acks,
    "strategy": _read_strategy,
    "servers": _read_servers,
}


def _refuse_unsafe(config: Config) -> None:
    """Refuses what this client does not have and must not ignore."""
    values = config.values
    if values.get("security.protocol", "plaintext") != "plaintext":
        raise failed(KafkaError._NOT_IMPLEMENTED, "security.protocol: only plaintext is supported so far")


def _refuse_classic_only(given: Mapping[str, Any]) -> None:
    """Refuses properties of the classic protocol. The names are those that the application wrote."""
    for name, why in _CLASSIC_ONLY.items():
        if given.get(name) is not None:
            text = f"`{name}` is not supported for `group.protocol=consumer`. {why}"
            raise failed(KafkaError._INVALID_ARG, text)


def finish_common(config: Config) -> None:
    """Replaces -1, which means "never", by a century."""
    if config.values.get("topic.metadata.refresh.interval.ms") == -1:
        config.values["topic.metadata.refresh.interval.ms"] = _FOREVER_MS


def finish_producer(config: Config) -> None:
    """Checks what depends on several properties. Idempotence is on unless a setting makes it impossible."""
    values = config.values
    finish_common(config)
    if values.get("delivery.timeout.ms") == 0:
        values["delivery.timeout.ms"] = _FOREVER_MS
    reasons = []
    if values.get("acks", -1) != -1:
        reasons.append("acks is not all")
    if values.get("retries", 1) == 0:
        reasons.append("retries is 0")
    if values.get("max.in.flight", 5) > 5:
        reasons.append("max.in.flight.requests.per.connection is above 5")
    if values.get("enable.idempotence", False) and reasons:
        raise failed(KafkaError._INVALID_ARG, f"enable.idempotence is not possible: {' and '.join(reasons)}")
    values["enable.idempotence"] = values.get("enable.idempotence", True) and not reasons
    if not values.get("transactional.id"):
        values.pop("transactional.id", None)
    else:
        _finish_transactional(values, reasons)
    if values.get("queue.buffering.max.messages") == 0:
        values["queue.buffering.max.messages"] = _I31
    if values.get("compression.level") == -1:
        del values["compression.level"]


def _finish_transactional(values: dict[str, Any], reasons: list[str]) -> None:
    """No record and no request may outlast the transaction that it belongs to."""
    if not values["enable.idempotence"]:
        why = " and ".join(reasons) or "enable.idempotence is false"
        raise failed(KafkaError._INVALID_ARG, f"`transactional.id` requires `enable.idempotence=true`: {why}")
    longest = values.setdefault("transaction.timeout.ms", 60_000)
    if values.setdefault("delivery.timeout.ms", min(300_000, longest)) > longest:
        text = "`delivery.timeout.ms` must be set <= `transaction.timeout.ms`"
        raise failed(KafkaError._INVALID_ARG, text)
    values.setdefault("socket.timeout.ms", max(min(60_000, longest - 100), 900))


def finish_consumer(config: Config) -> None:
    """Checks what depends on several properties."""
    values = config.values
    finish_common(config)
    if not values.get("group.id"):
        raise ValueError("Failed to create consumer: group.id must be set")
    values.setdefault("allow.auto.create.topics", False)
    values.setdefault("max.poll.interval.ms", 300_000)
    if values.setdefault("group.protocol", "classic") == "classic":
        _finish_classic(values)
    # A response may hold one partition's whole allowance.
    values.setdefault("fetch.max.bytes", max(52_428_800, values.get("max.partition.fetch.bytes", 0)))
    longest = values["fetch.max.bytes"] + _FETCH_OVERHEAD
    if values.setdefault("receive.message.max.bytes", max(100_000_000, longest)) < longest:
        text = f"`receive.message.max.bytes` must be >= `fetch.max.bytes` + {_FETCH_OVERHEAD}"
        raise failed(KafkaError._INVALID_ARG, text)


def _finish_classic(values: dict[str, Any]) -> None:
    values.setdefault("session.timeout.ms", 45_000)
    # librdkafka's default is 3 s; a shorter session needs a shorter one.
    values.setdefault("heartbeat.interval.ms", min(3_000, max(1, values["session.timeout.ms"] // 3)))
    if values["max.poll.interval.ms"] < values["session.timeout.ms"]:
        raise failed(KafkaError._INVALID_ARG, "`max.poll.interval.ms` must be >= `session.timeout.ms`")
