"""A broker's configuration: `server.properties` with overrides, checked as Kafka checks it.

Owns the rules between settings; the settings themselves are in `settings.py`. The start reads the file once.
The result is immutable, so any thread may use it. A bad value raises ConfigError before anything is opened. A
setting that is unknown or has no effect is a warning (`BrokerConfig.warnings`).
"""

from __future__ import annotations

import math
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from cluster.broker.settings import ConfigError, Setting, Value, as_text, broker_settings, rate_settings
from cluster.broker.tls_settings import ListenerSettings, TlsSettings, tls_settings
from cluster.model import Endpoint
from cluster.properties import read_properties

__all__ = ["BrokerConfig", "ConfigError"]

_ALIASES = {"node.id": "broker.id"}
_MEBIBYTE = 1024 * 1024
_REQUEST_BYTES = 256 * _MEBIBYTE
_RETENTION_TIMES = ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
_HOST = re.compile(r"[0-9a-zA-Z%._:-]*")
"""The valid characters of a host (`Utils.validHostPattern`)."""
_PORT = re.compile("[0-9]{1,5}")
_WILDCARDS = ("", "0.0.0.0", "::")
_SERVED = ("PLAINTEXT", "SSL")
_LISTENER_PREFIX = "listener.name."


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """All settings with their values; `given` has the text of those that are set."""

    given: dict[str, str]
    values: dict[str, Value]
    warnings: tuple[str, ...]
    listeners: tuple[Endpoint, ...]
    advertised: tuple[Endpoint, ...]
    tls: dict[str, TlsSettings]
    """By listener, for those with the security protocol SSL."""

    @classmethod
    def load(cls, path: Path, overrides: Mapping[str, str] | None = None) -> BrokerConfig:
        """Reads a properties file; `overrides` take precedence.

        Raises OSError (cannot be read), PropertiesError (not a properties file) or ConfigError (a bad value).
        """
        return cls.parse(read_properties(path) | dict(overrides or {}))

    @classmethod
    def parse(cls, properties: Mapping[str, str]) -> BrokerConfig:
        """Checks `properties` and adds defaults. ConfigError names the first setting that is not usable."""
        table = broker_settings() | rate_settings()
        given = {_ALIASES.get(name, name): value.strip() for name, value in properties.items()}
        values = {name: setting.default_value() for name, setting in table.items()}
        for name, text in given.items():
            if name in table:
                values[name] = table[name].parse(text)
        listeners = _listeners("listeners", _text(values["listeners"]), values)
        advertised = _advertised(values, listeners)
        tls = {
            endpoint.listener: tls_settings(ListenerSettings(endpoint.listener, given, values, table))
            for endpoint in listeners
            if endpoint.security_protocol == "SSL"
        }
        config = cls(given, values, _warnings(given, table, listeners), listeners, advertised, tls)
        _cross_check(config)
        return config

    def number(self, name: str) -> int:
        """The value of a setting that is a whole number."""
        value = self.values[name]
        assert isinstance(value, int)
        return value

    def flag(self, name: str) -> bool:
        """The value of a boolean setting."""
        return self.values[name] is True

    def text(self, name: str) -> str | None:
        """The value of a text setting; None if it has none."""
        value = self.values[name]
        return value if isinstance(value, str) else None

    @property
    def broker_id(self) -> int:
        """The configured id; -1 if the coordinator is to generate one."""
        return self.number("broker.id")

    @property
    def log_dirs(self) -> list[str]:
        """`log.dirs`, else `log.dir`."""
        chosen = self.text("log.dirs") or self.text("log.dir") or ""
        return [part.strip() for part in chosen.split(",") if part.strip()]

    @property
    def zookeeper_connect(self) -> str:
        """Hosts and optional chroot of the coordinator."""
        return self.text("zookeeper.connect") or ""

    @property
    def zookeeper_connection_timeout_ms(self) -> int:
        """How long to wait for the coordinator at start."""
        value = self.values["zookeeper.connection.timeout.ms"]
        return value if isinstance(value, int) else self.number("zookeeper.session.timeout.ms")

    @property
    def metrics_listener(self) -> tuple[str, int] | None:
        """Host and port of `metrics.listener`; None if it is not set."""
        text = self.text("metrics.listener")
        return _http_address("metrics.listener", text) if text else None

    @property
    def request_bytes(self) -> int:
        """The memory limit of all large requests; the data plane has the same rule."""
        own = self.number("queued.max.request.bytes")
        if "queued.max.request.bytes" in self.given:
            return own if own > 0 else sys.maxsize
        return max(_REQUEST_BYTES, 2 * self.number("socket.request.max.bytes"))

    @property
    def inter_broker_listener(self) -> str:
        """The name of the listener for other brokers, in upper case like all listeners' names."""
        named = self.text("inter.broker.listener.name")
        return named.upper() if named else _text(self.values["security.inter.broker.protocol"])

    def server_settings(self) -> dict[str, str]:
        """The given settings for the data plane, without passwords. The data plane has the same defaults."""
        table = broker_settings() | rate_settings()
        known = [name for name in self.given if name in table and not table[name].sensitive]
        texts = {name: as_text(self.values[name]) for name in known}
        own = {name: text for name, text in self.given.items() if _is_listeners_own(name)}
        texts |= {name: as_text(_as_taken(name, self.values[name])) for name in _TAKEN_OTHERWISE & set(texts)}
        return own | {name: text for name, text in texts.items() if text is not None}

    def topic_default(self, setting: Setting) -> Value:
        """The value of a topic that does not set `setting`: that of the first synonym that is set, else the
        default.
        """
        for name, factor in setting.synonyms:
            value = self.values.get(name)
            if name in self.given and value is not None:
                return self._scaled(value, factor, setting)
        return setting.default_value()

    @staticmethod
    def _scaled(value: Value, factor: int, setting: Setting) -> Value:
        if not isinstance(value, int) or isinstance(value, bool):
            return value
        # For a broker any negative time means "for ever"; for a topic only -1 does.
        return -1 if value < 0 and setting.name == "retention.ms" else value * factor


def _text(value: Value) -> str:
    return value if isinstance(value, str) else ""


_TAKEN_OTHERWISE = {
    "inter.broker.listener.name",
    "log.cleaner.io.buffer.load.factor",
    "log.cleaner.io.max.bytes.per.second",
    "replica.alter.log.dirs.io.max.bytes.per.second",
    *_RETENTION_TIMES,
}
"""Settings that the data plane takes fewer values of than Kafka."""


def _as_taken(name: str, value: Value) -> Value:
    """A value in the data plane's range with the same meaning as Kafka's value.

    Listener names are upper case, a load factor is at most 1, a rate of 0 passes nothing, a negative or
    infinite rate passes everything, and a negative retention time keeps records for ever.
    """
    if name == "inter.broker.listener.name" and isinstance(value, str):
        return value.upper()
    if name == "log.cleaner.io.buffer.load.factor" and isinstance(value, float):
        return min(value, 1.0)
    if name == "log.cleaner.io.max.bytes.per.second" and isinstance(value, float):
        rate = sys.float_info.max if value < 0 else min(value, sys.float_info.max)
        return rate or math.ulp(0.0)
    if name == "replica.alter.log.dirs.io.max.bytes.per.second":
        return value or 1
    if name in _RETENTION_TIMES and isinstance(value, int):
        return max(value, -1)
    return value


def _is_listeners_own(name: str) -> bool:
    """It is a limit of one listener. Tables cannot name it; the data plane checks it."""
    limits = (".max.connections", ".max.connection.creation.rate")
    return name.startswith(_LISTENER_PREFIX) and name.endswith(limits)


def _warnings(
    given: Mapping[str, str], table: Mapping[str, Setting], listeners: tuple[Endpoint, ...]
) -> tuple[str, ...]:
    prefixes = [f"{_LISTENER_PREFIX}{endpoint.listener.lower()}." for endpoint in listeners]
    unknown, without_effect = [], []
    for name, text in sorted(given.items()):
        prefix = next((each for each in prefixes if name.startswith(each)), "")
        setting = table.get(name.removeprefix(prefix))
        if setting is None:
            if not _is_listeners_own(name):
                unknown.append(name)
        elif (not setting.has_effect or (prefix and not _may_be_listeners(name))) and text != setting.default:
            without_effect.append(name)
    lines = []
    if unknown:
        lines.append(f"unknown settings, ignored: {', '.join(unknown)}")
    if without_effect:
        lines.append(f"settings of Kafka that have no effect here: {', '.join(without_effect)}")
    return tuple(lines)


def _may_be_listeners(name: str) -> bool:
    """The setting can be set for one listener here."""
    return ".ssl." in name or _is_listeners_own(name)


def _protocols(values: Mapping[str, Value]) -> dict[str, str]:
    name = "listener.security.protocol.map"
    text = _text(values[name])
    pairs = {}
    for part in filter(None, (word.strip() for word in text.split(","))):
        listener, colon, protocol = part.partition(":")
        protocol = protocol.strip().upper()
        if not colon or protocol not in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"):
            raise ConfigError(name, text, "LISTENER:PROTOCOL pairs are needed, separated by commas")
        pairs[listener.strip().upper()] = protocol
    return pairs


def _listeners(name: str, text: str, values: Mapping[str, Value]) -> tuple[Endpoint, ...]:
    protocols = _protocols(values)
    endpoints = []
    for part in filter(None, (word.strip() for word in text.split(","))):
        listener, separator, address = part.partition("://")
        host, colon, port = address.rpartition(":")
        host = host.strip("[]")
        if not separator or not colon or not _PORT.fullmatch(port) or int(port) > 65535:
            raise ConfigError(name, text, "NAME://HOST:PORT is needed, several separated by commas")
        protocol = protocols.get(listener.upper())
        if protocol is None:
            raise ConfigError(name, text, f"listener.security.protocol.map has no protocol for {listener}")
        if protocol not in _SERVED:
            raise ConfigError(
                name, text, f"this broker serves the security protocols PLAINTEXT and SSL, not {protocol}"
            )
        endpoints.append(Endpoint(listener.upper(), host, int(port), protocol))
    if not endpoints:
        raise ConfigError(name, text, "at least one listener is needed")
    if len({endpoint.listener for endpoint in endpoints}) < len(endpoints):
        raise ConfigError(name, text, "each listener needs its own name")
    if name == "listeners":
        hosts: dict[int, list[str]] = {}
        for endpoint in endpoints:
            hosts.setdefault(endpoint.port, []).append(endpoint.host)
        if not all(port == 0 or len(at) == 1 or _one_of_each_version(at) for port, at in hosts.items()):
            raise ConfigError(
                name,
                text,
                "each listener needs its own port; two may share one if one has an IPv4 and the other an "
                "IPv6 address",
            )
    return tuple(endpoints)


def _one_of_each_version(hosts: Sequence[str]) -> bool:
    """They are one IPv4 and one IPv6 address, not names (`CoreUtils.listenerListToEndPoints`)."""
    try:
        versions = [ip_address(host).version for host in hosts]
    except ValueError:
        return False
    return sorted(versions) == [4, 6]


def _http_address(name: str, text: str) -> tuple[str, int]:
    scheme, separator, address = text.rpartition("://")
    host, colon, port = address.removesuffix("/").removesuffix("/metrics").rpartition(":")
    if scheme != ("http" if separator else "") or not colon or not _PORT.fullmatch(port) or int(port) > 65535:
        raise ConfigError(name, text, "http://HOST:PORT or HOST:PORT is needed")
    return host.strip("[]"), int(port)


def _advertised(values: Mapping[str, Value], listeners: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
    """The endpoints in metadata. A wildcard listener advertises this host's name. Port 0 is replaced once it
    is bound.
    """
    name = "advertised.listeners"
    if values[name] is None:
        return tuple(
            Endpoint(item.listener, socket.getfqdn(), item.port, item.security_protocol)
            if item.host in _WILDCARDS
            else item
            for item in listeners
        )
    text = _text(values[name])
    advertised = _listeners(name, text, values)
    names = {endpoint.listener for endpoint in listeners}
    for endpoint in advertised:
        if endpoint.listener not in names:
            raise ConfigError(name, text, f"{endpoint.listener} is not one of the listeners")
        if endpoint.host in _WILDCARDS:
            raise ConfigError(name, text, "an address that clients can reach is needed, not a wildcard")
    return advertised


def _cross_check(config: BrokerConfig) -> None:
    if config.values["process.roles"]:
        raise ConfigError(
            "process.roles", config.given["process.roles"], "this broker runs in ZooKeeper mode only"
        )
    if not config.zookeeper_connect:
        raise ConfigError(
            "zookeeper.connect", "", "the address of the coordinator is needed, as in localhost:2181"
        )
    if not config.log_dirs:
        raise ConfigError("log.dirs", "", "at least one directory is needed")
    generated = config.flag("broker.id.generation.enable")
    most = config.number("reserved.broker.max.id")
    if config.broker_id < (-1 if generated else 0):
        raise ConfigError(
            "broker.id", config.broker_id, "a number of at least 0 is needed, or -1 to have one chosen"
        )
    if generated and config.broker_id > most:
        raise ConfigError(
            "broker.id", config.broker_id, f"at most reserved.broker.max.id, {most}, while ids are generated"
        )
    if config.number("group.min.session.timeout.ms") > config.number("group.max.session.timeout.ms"):
        value = config.number("group.min.session.timeout.ms")
        raise ConfigError("group.min.session.timeout.ms", value, "at most group.max.session.timeout.ms")
    lag, most_lag = "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"
    if config.number(lag) > config.number(most_lag):
        raise ConfigError(
            lag, config.number(lag), f"at most {most_lag}, {config.number(most_lag)}, is needed"
        )
    _check_cleaner(config)
    _check_listener_names(config)
    if config.text("metrics.listener"):
        _ = config.metrics_listener
    for name in _RETENTION_TIMES:
        if config.values[name] == 0:
            raise ConfigError(name, 0, "a number of at least 1 is needed, or -1 for no limit")
    _check_overrides(config)


def _check_overrides(config: BrokerConfig) -> None:
    """Checks the hosts' syntax; the data plane resolves them and checks the rest."""
    name = "max.connections.per.ip.overrides"
    text = config.text(name) or ""
    for pair in text.split(","):
        if not _HOST.fullmatch(pair.rpartition(":")[0].strip()):
            raise ConfigError(
                name, text, "HOST:COUNT pairs are needed, with names or addresses without brackets"
            )


def _check_cleaner(config: BrokerConfig) -> None:
    bytes_name, threads_name = "log.cleaner.dedupe.buffer.size", "log.cleaner.threads"
    buffers, threads = config.number(bytes_name), config.number(threads_name)
    if threads == 0:
        raise ConfigError(threads_name, threads, "at least 1 is needed; log.cleaner.enable=false has none")
    if buffers // threads <= _MEBIBYTE:
        raise ConfigError(
            bytes_name, buffers, f"more than {_MEBIBYTE} for each of {threads_name}, {threads}, is needed"
        )


def _check_listener_names(config: BrokerConfig) -> None:
    names = [endpoint.listener for endpoint in config.advertised]
    if "inter.broker.listener.name" in config.given and "security.inter.broker.protocol" in config.given:
        value = config.given["inter.broker.listener.name"]
        raise ConfigError(
            "inter.broker.listener.name", value, "only one of it and security.inter.broker.protocol"
        )
    if config.inter_broker_listener not in names:
        raise ConfigError(
            "inter.broker.listener.name",
            config.inter_broker_listener,
            f"one of the listeners is needed: {', '.join(names)}; security.inter.broker.protocol or this "
            "names it",
        )
