"""`zoo.cfg`: a coordinator's settings under ZooKeeper's names.

Owns which names there are, what their values may be, and what becomes of those that are somebody else's
(``QuorumPeerConfig``). ZooKeeper takes a name it does not know for a system property and says nothing; here
every name that has no effect is told in one warning. A name may have the prefix ``zookeeper.`` that ZooKeeper's
system properties have. Pure but for paths' existence.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from .acl import Rules
from .errors import CoordinatorError
from .settings import Settings

T = TypeVar("T")

TICK_TIME_MS = 3000
"""What ZooKeeper takes when ``tickTime`` is not set; its sample file has 2000."""
_INT_MAX = 2**31 - 1
_PREFIX = "zookeeper."
_MEMBER = re.compile(r"server\.(.*)")
_EVERYWHERE = "0.0.0.0"

# Settings of ensembles, of the JVM and of files' formats: they change nothing that one of our servers does.
_WITHOUT_EFFECT = frozenset(
    {
        "initLimit",
        "syncLimit",
        "connectToLearnerMasterLimit",
        "electionAlg",
        "cnxTimeout",
        "quorumListenOnAllIPs",
        "standaloneEnabled",
        "peerType",
        "syncEnabled",
        "localSessionsEnabled",
        "localSessionsUpgradingEnabled",
        "leaderServes",
        "globalOutstandingLimit",
        "preAllocSize",
        "commitLogCount",
        "autopurge.purgeInterval",
        "datadir.autocreate",
        "snapshot.trust.empty",
        "serverCnxnFactory",
        "admin.enableServer",
        "nio.numSelectorThreads",
        "nio.numWorkerThreads",
    }
)


@dataclass(frozen=True)
class Configuration:
    """Where a coordinator keeps its data and listens, its settings, and what of the file had no effect."""

    data_dir: Path
    host: str
    port: int
    settings: Settings
    warnings: tuple[str, ...] = ()


def parse_configuration(properties: Mapping[str, str]) -> Configuration:
    """The configuration of a file's properties. Raises CoordinatorError, which names the setting."""
    return _Parser(properties).configuration()


class _Parser:
    def __init__(self, properties: Mapping[str, str]) -> None:
        self._values = {name.removeprefix(_PREFIX).strip(): text.strip() for name, text in properties.items()}
        self._used: set[str] = set()
        self._warnings: list[str] = []

    def configuration(self) -> Configuration:
        members = [name for name in self._values if _MEMBER.fullmatch(name)]
        self._used.update(members)
        if len(members) > 1:
            raise CoordinatorError(
                f"the file names {len(members)} servers ({', '.join(sorted(members))}), and this version runs one by "
                "itself: leave its server.N lines out to run it so"
            )
        data_dir = self._text("dataDir")
        if not data_dir:
            raise CoordinatorError("dataDir is not set: name the directory for the coordinator's data")
        if "clientPort" not in self._values:
            raise CoordinatorError(
                "clientPort is not set: name the port clients connect to, as in clientPort=2181"
            )
        settings = self._settings()
        if settings.least_session_timeout_ms > settings.most_session_timeout_ms:
            raise CoordinatorError(
                f"minSessionTimeout ({settings.least_session_timeout_ms} ms) is larger than maxSessionTimeout "
                f"({settings.most_session_timeout_ms} ms)"
            )
        port = self._number("clientPort", 0, 0, 65535)
        host = self._text("clientPortAddress") or _EVERYWHERE
        log_dir = self._text("dataLogDir")
        if log_dir and os.path.abspath(log_dir) != os.path.abspath(data_dir):
            self._warnings.append(f"dataLogDir={log_dir}: logs are kept in dataDir, {data_dir}")
        self._tell_unused()
        return Configuration(Path(data_dir), host, port, settings, tuple(self._warnings))

    def _settings(self) -> Settings:
        defaults = Settings()
        tick_time_ms = self._number("tickTime", TICK_TIME_MS, 1)
        retained = self._number("autopurge.snapRetainCount", defaults.snapshots_retained)
        if retained < defaults.snapshots_retained:
            self._warnings.append(
                f"autopurge.snapRetainCount={retained}: {defaults.snapshots_retained} snapshots are kept at least"
            )
        rules = Rules.NONE
        for name, rule in (
            ("extendedTypesEnabled", Rules.EXTENDED_TYPES),
            ("enforceQuota", Rules.ENFORCE_QUOTA),
        ):
            if self._boolean(name, False):
                rules |= rule
        if self._text("skipACL") == "yes":
            rules |= Rules.SKIP_ACL
        words = (word.strip() for word in self._text("4lw.commands.whitelist").split(","))
        return replace(
            defaults,
            tick_time_ms=tick_time_ms,
            min_session_timeout_ms=self._number("minSessionTimeout", -1, -1),
            max_session_timeout_ms=self._number("maxSessionTimeout", -1, -1),
            max_client_connections=self._number("maxClientCnxns", defaults.max_client_connections),
            max_connections=self._number("maxCnxns", defaults.max_connections),
            max_buffer=self._number("jute.maxbuffer", defaults.max_buffer, 1024),
            snapshot_transactions=self._number("snapCount", defaults.snapshot_transactions, 2),
            snapshots_retained=max(retained, defaults.snapshots_retained),
            rules=rules,
            reconfig_enabled=self._boolean("reconfigEnabled", False),
            super_digest=self._text("DigestAuthenticationProvider.superDigest"),
            container_check_interval_ms=self._number(
                "znode.container.checkIntervalMs", defaults.container_check_interval_ms, 1
            ),
            container_max_per_minute=self._number(
                "znode.container.maxPerMinute", defaults.container_max_per_minute, 1
            ),
            container_max_never_used_ms=self._number("znode.container.maxNeverUsedIntervalMs", 0),
            handshake_timeout_ms=self._number("nio.sessionlessCnxnTimeout", defaults.handshake_timeout_ms, 1),
            words_whitelist=frozenset(word for word in words if word),
        )

    def _tell_unused(self) -> None:
        for name in sorted(self._values.keys() - self._used - _WITHOUT_EFFECT):
            self._warnings.append(f"{name}={self._values[name]}: this setting has no effect here")

    def _text(self, name: str) -> str:
        self._used.add(name)
        return self._values.get(name, "")

    def _number(self, name: str, default: int, least: int = 0, most: int = _INT_MAX) -> int:
        def within(text: str) -> int:
            value = int(text) if re.fullmatch(r"[+-]?[0-9]+", text) else least - 1
            if not least <= value <= most:
                raise ValueError(f"a whole number from {least} to {most}")
            return value

        return self._read(name, default, within)

    def _boolean(self, name: str, default: bool) -> bool:
        def either(text: str) -> bool:
            if text.lower() not in ("true", "false"):
                raise ValueError("true or false")
            return text.lower() == "true"

        return self._read(name, default, either)

    def _read(self, name: str, default: T, read: Callable[[str], T]) -> T:
        text = self._text(name)
        if name not in self._values:
            return default
        try:
            return read(text)
        except ValueError as error:
            raise CoordinatorError(f"{name} is {text!r}, and has to be {error}") from None
