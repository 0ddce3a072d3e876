"""`zoo.cfg`: a coordinator's settings under ZooKeeper's names.

Owns the names, the values that they may have, and the warning for a name without an effect
(``QuorumPeerConfig``). ZooKeeper takes an unknown name for a system property and says nothing. Reads the file
with the SASL users if there is one. Key stores are read when a server starts.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from .admin.prometheus import PrometheusSettings, prometheus_settings
from .admin.server import AdminSettings, admin_settings
from .errors import CoordinatorError
from .ports.clients import NO_PORT
from .ports.listener import is_everywhere
from .ports.tls import SecurePort, TlsSettings, tls_settings
from .settings.authentication import JAAS_FILE, read_authentication
from .settings.ensemble import REQUEST_BYTES_MAX, EnsembleSettings, ensemble_settings, line_of_one
from .settings.server import Settings
from .settings.values import HIDDEN, INT_MAX, INT_MIN, LONG_MAX, PREFIX, Values, is_secret
from .state.acl import Rules
from .state.members import Member, host_and_port, split_client

TICK_TIME_MS = 3000
"""ZooKeeper's default. Its sample file has 2000."""
_EVERYWHERE = "0.0.0.0"
_SNAP_COUNT_LEAST = 2
_AS_IT_IS = {"leaderServes": "yes", "syncEnabled": "true"}
"""Settings whose only possible value here is this one."""

# Settings without an effect that need no warning. Most are about ZooKeeper's own files, threads or purging.
# Local sessions need an ensemble, where `ensemble_settings` warns; a standalone server has none in ZooKeeper
# either.
_WITHOUT_EFFECT = frozenset(
    {
        "localSessionsEnabled",
        "localSessionsUpgradingEnabled",
        "preAllocSize",
        "commitLogCount",
        "autopurge.purgeInterval",
        "snapshot.trust.empty",
        "serverCnxnFactory",
        "ssl.hostnameVerification",
        "ssl.handshakeDetectionTimeoutMillis",
        "fips-mode",
        "nio.numSelectorThreads",
        "nio.numWorkerThreads",
    }
)

# Numbers without an effect. ZooKeeper does not start if they are not numbers
# (``QuorumPeerConfig.parseProperties``).
_INTS = (
    "autopurge.purgeInterval",
    "clientPortListenBacklog",
    "connectToLearnerMasterLimit",
    "multiAddress.reachabilityCheckTimeoutMs",
    "observerMasterPort",
    "quorum.cnxn.threads.size",
)
_LONGS = ("jvm.pause.info-threshold.ms", "jvm.pause.sleep.time.ms", "jvm.pause.warn-threshold.ms")
_NUMBERS = dict.fromkeys(_INTS, INT_MAX) | dict.fromkeys(_LONGS, LONG_MAX)


@dataclass(frozen=True)
class Configuration:
    """The settings of a coordinator, and ``warnings`` about those without an effect.

    A port of :data:`NO_PORT` is none. ``unified``: the plain port takes TLS, too. Without ``ensemble`` the
    server is standalone. ``properties`` has all names and values, and ``path`` is their file.
    ``makes_directories``: missing data directories are made.
    """

    data_dir: Path
    host: str
    port: int
    settings: Settings
    warnings: tuple[str, ...] = ()
    secure: SecurePort | None = None
    unified: TlsSettings | None = None
    admin: AdminSettings | None = None
    metrics: PrometheusSettings | None = None
    ensemble: EnsembleSettings | None = None
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    path: Path | None = None
    makes_directories: bool = True


def parse_configuration(properties: Mapping[str, str], path: Path | None = None) -> Configuration:
    """Returns the configuration of a file's properties. Raises CoordinatorError, which names the setting."""
    return replace(_Parser(properties).configuration(), path=path)


_UNPREFIXED = frozenset(
    {
        JAAS_FILE,
        "jute.maxbuffer",
        "readonlymode.enabled",
        "znode.container.checkIntervalMs",
        "znode.container.maxNeverUsedIntervalMs",
        "znode.container.maxPerMinute",
    }
)
"""The Java properties with an effect whose names do not begin with ``zookeeper.``."""


def system_properties(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns ZooKeeper's settings among the ``-Dname=value`` in ``JVMFLAGS`` and ``SERVER_JVMFLAGS``, as
    `zkServer.sh` uses them.

    These have names with ``zookeeper.``, or are among those that ZooKeeper reads without it. A line in
    `zoo.cfg` takes precedence. Raises CoordinatorError for an unclosed quotation mark.
    """
    found: dict[str, str] = {}
    for variable in ("SERVER_JVMFLAGS", "JVMFLAGS"):
        try:
            words = shlex.split(environment.get(variable, ""))
        except ValueError as error:
            raise CoordinatorError(f"the environment variable {variable} cannot be parsed: {error}") from None
        for word in words:
            name, _equals, value = word.removeprefix("-D").partition("=")
            if word.startswith("-D") and (name.startswith(PREFIX) or name in _UNPREFIXED):
                found[name.removeprefix(PREFIX)] = value
    return found


class _Parser:
    def __init__(self, properties: Mapping[str, str]) -> None:
        values = self._all = Values(properties)
        self._values, self._used = values.texts, values.used
        self._text, self._boolean = values.text, values.boolean
        self._number, self._system_number = values.number, values.system_number
        self._warnings: list[str] = []

    def configuration(self) -> Configuration:
        data_dir = self._text("dataDir")
        if not data_dir:
            raise CoordinatorError("dataDir is not set: name the directory for the coordinator's data")
        ensemble = ensemble_settings(self._all, Path(data_dir), self._warnings)
        secure = self._secure_port()
        client = self._client_address(
            ensemble.own if ensemble is not None else line_of_one(self._all, Path(data_dir))
        )
        has_port = client is not None
        unifies = self._boolean("client.portUnification", False)
        unified = self._tls() if unifies and has_port else None
        if client is None and secure is None:
            raise CoordinatorError(
                "clientPort is not set: name the port clients connect to, as in clientPort=2181"
            )
        metrics = prometheus_settings(self._all)
        settings = replace(
            self._settings(secure is not None or unified is not None),
            prometheus=metrics is not None,
            server_id=ensemble.server_id if ensemble is not None else 0,
        )
        if self._boolean("readonlymode.enabled", False):
            # With this word a read-only client looks for a server that takes writes (``FourLetterCommands``).
            whitelist = settings.words_whitelist | {"isro"}
            settings = replace(settings, read_only_mode=True, words_whitelist=whitelist)
        if ensemble is not None and not ensemble.standalone:
            settings = replace(settings, rules=settings.rules | Rules.ONE_VOTER)
        if settings.least_session_timeout_ms > settings.most_session_timeout_ms:
            raise CoordinatorError(
                f"minSessionTimeout ({settings.least_session_timeout_ms} ms) is larger than "
                f"maxSessionTimeout ({settings.most_session_timeout_ms} ms)"
            )
        least = Settings().snapshots_retained
        if ensemble is not None and settings.snapshots_retained > least:
            self._warnings.append(
                f"autopurge.snapRetainCount={settings.snapshots_retained}: a member of an ensemble keeps "
                f"{least} snapshots, besides those that an administrator asked for"
            )
        if ensemble is not None and settings.max_buffer > REQUEST_BYTES_MAX:
            raise CoordinatorError(
                f"jute.maxbuffer is {settings.max_buffer}, and has to be at most {REQUEST_BYTES_MAX} in an "
                "ensemble"
            )
        host, port = client or (_EVERYWHERE, NO_PORT)
        log_dir = self._text("dataLogDir")
        if log_dir and os.path.abspath(log_dir) != os.path.abspath(data_dir):
            settings = replace(settings, log_dir=Path(log_dir))
        admin = admin_settings(self._all)
        makes_directories = self._boolean("datadir.autocreate", True)
        self._all.choice("electionAlg", "3", ("3",))  # the only one that ZooKeeper still has
        self._warn_of_unused()
        return Configuration(
            Path(data_dir),
            host,
            port,
            settings,
            tuple(self._warnings),
            secure,
            unified,
            admin,
            metrics,
            ensemble,
            dict(self._values),
            makes_directories=makes_directories,
        )

    def _client_address(self, own: Member | None) -> tuple[str, int] | None:
        """Returns the address for clients without TLS. The server's own line ``server.N`` names it, or else
        ``clientPort``."""
        host = self._text("clientPortAddress") or _EVERYWHERE
        port = self._number("clientPort", NO_PORT, 0, 65535)
        line = own.client if own is not None else ""
        if own is None or not line:
            return (host, port) if port != NO_PORT else None
        own_address = split_client(line)
        if port not in (NO_PORT, own_address[1]) or (host != own_address[0] and not is_everywhere(host)):
            raise CoordinatorError(
                f"clientPort and clientPortAddress are {host_and_port(host, port)}, and the line "
                f"server.{own.server_id} of this server has {line} for clients: leave one of them out"
            )
        return own_address

    def _secure_port(self) -> SecurePort | None:
        host = self._text("secureClientPortAddress")
        if "secureClientPort" not in self._values:
            if host:
                raise CoordinatorError(
                    "secureClientPortAddress is set, and secureClientPort is not: set it, too"
                )
            return None
        port = self._number("secureClientPort", 0, 0, 65535)
        return SecurePort(host or _EVERYWHERE, port, self._tls())

    def _tls(self) -> TlsSettings:
        """Returns the TLS settings of the client ports.

        Without ``ssl.authProvider`` ZooKeeper reads the stores for each connection
        (``NettyServerCnxnFactory.initSSL``).
        """
        reloads = self._boolean("client.certReload", "ssl.authProvider" not in self._values)
        return replace(tls_settings(self._all), reloads=reloads)

    def _settings(self, has_tls: bool) -> Settings:
        defaults = Settings()
        tick_time_ms = self._number("tickTime", TICK_TIME_MS, 1)
        retained = self._number("autopurge.snapRetainCount", defaults.snapshots_retained, INT_MIN)
        if retained < defaults.snapshots_retained:
            self._warnings.append(
                f"autopurge.snapRetainCount={retained}: at least {defaults.snapshots_retained} snapshots are "
                "kept"
            )
        authentication, rules = read_authentication(self._all, has_tls)
        has_digest = authentication.digest_algorithm is not None
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
            min_session_timeout_ms=self._number("minSessionTimeout", -1, INT_MIN),
            max_session_timeout_ms=self._number("maxSessionTimeout", -1, -1),
            max_client_connections=self._number("maxClientCnxns", defaults.max_client_connections, INT_MIN),
            max_connections=self._system_number("maxCnxns", defaults.max_connections, INT_MIN),
            max_buffer=self._system_number("jute.maxbuffer", defaults.max_buffer, 1024),
            snapshot_transactions=self._snap_count(),
            snapshots_retained=max(retained, defaults.snapshots_retained),
            rules=rules,
            reconfig_enabled=self._boolean("reconfigEnabled", False),
            super_digest=self._text("DigestAuthenticationProvider.superDigest") if has_digest else "",
            container_check_interval_ms=self._system_number(
                "znode.container.checkIntervalMs", defaults.container_check_interval_ms, 1
            ),
            container_max_per_minute=self._system_number(
                "znode.container.maxPerMinute", defaults.container_max_per_minute, 1
            ),
            container_max_never_used_ms=self._system_number("znode.container.maxNeverUsedIntervalMs", 0),
            handshake_timeout_ms=self._system_number(
                "nio.sessionlessCnxnTimeout", defaults.handshake_timeout_ms, 1
            ),
            max_handshakes=self._system_number(
                "netty.server.outstandingHandshake.limit", defaults.max_handshakes, INT_MIN
            ),
            authentication=authentication,
            words_whitelist=frozenset(word for word in words if word),
        )

    def _snap_count(self) -> int | None:
        if "snapCount" not in self._values:
            return None
        wanted = self._system_number("snapCount", 0, INT_MIN)
        if wanted < _SNAP_COUNT_LEAST:
            self._warnings.append(f"snapCount={wanted}: the least is {_SNAP_COUNT_LEAST}, which is used")
        return max(wanted, _SNAP_COUNT_LEAST)

    def _warn_of_unused(self) -> None:
        unused = self._values.keys() - self._used
        for name in sorted(unused & _NUMBERS.keys()):
            self._number(name, 0, -_NUMBERS[name] - 1, _NUMBERS[name])
        for name in sorted(unused - _WITHOUT_EFFECT):
            if self._values[name].lower() == _AS_IT_IS.get(name):
                continue
            shown = HIDDEN if is_secret(name) else self._values[name]
            self._warnings.append(f"{name}={shown}: this setting has no effect")
