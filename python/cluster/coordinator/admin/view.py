"""What a running server shows of itself in four-letter words, commands and metrics.

Reads the server's parts on the event loop.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from ..clock import Clock
from ..connection import Connection, Phase
from ..metrics import ServerMetrics, Sizes, Traffic, namespace_of
from ..replication import Replication
from ..settings.server import Settings
from ..state.machine import Machine
from ..state.quota import UNSET
from ..state.watches import Registry, WatchManager
from .words import Client, Expiry, Seen

T = TypeVar("T")

_QUOTA_GAUGES = (
    "quota_count_limit_per_namespace",
    "quota_bytes_limit_per_namespace",
    "quota_count_usage_per_namespace",
    "quota_bytes_usage_per_namespace",
)


class Observed(Protocol):
    """The part of a server that is read (:class:`cluster.coordinator.server.CoordinatorServer`)."""

    directory: Path
    settings: Settings
    clock: Clock
    metrics: ServerMetrics
    traffic: Traffic
    response_sizes: Sizes
    connections: dict[Connection, None]
    watches: WatchManager[Connection]
    port: int
    secure_port: int
    started_ms: int
    auth_failed: int
    plain_remote: int
    plain_local: int

    @property
    def machine(self) -> Machine:
        """The applied state."""

    @property
    def replication(self) -> Replication:
        """What orders writes and ends sessions."""

    @property
    def is_serving(self) -> bool:
        """Whether clients are answered."""

    @property
    def client_address(self) -> tuple[str, int] | None:
        """The host and the port for clients without TLS."""

    @property
    def handshakes(self) -> int:
        """The number of connections in a TLS handshake."""


def view(server: Observed, on_secure: bool = False) -> Seen:
    """Returns the present state of a server, for a request on its plain or its secure port.

    Expensive parts are functions.
    """
    return Seen(
        mode=server.replication.mode,
        is_serving=server.is_serving or server.replication.is_reading_only,
        is_read_only=server.replication.is_reading_only,
        ensemble=server.replication.ensemble(),
        client_address=server.client_address,
        last_zxid=server.machine.last_zxid,
        # ZooKeeper counts the root twice, because it has two names.
        node_count=len(server.machine.tree) + 1,
        outstanding=sum(connection.outstanding for connection in server.connections),
        traffic=server.traffic,
        plain=[_client(connection) for connection in server.connections if not connection.is_secure],
        secure=[_client(connection) for connection in server.connections if connection.is_secure],
        deadlines=lambda: _deadlines(server, on_secure),
        on_secure=on_secure,
        auth_failed=server.auth_failed,
        plain_remote=server.plain_remote,
        plain_local=server.plain_local,
        handshakes=server.handshakes,
        response_sizes=server.response_sizes,
        metrics=server.metrics,
        quotas=lambda: _quotas(server),
        prometheus=server.settings.prometheus,
        last_snapshot=server.replication.last_snapshot,
        configuration=lambda: _configuration(server),
        data_bytes=server.replication.data_bytes,
        data_watches=lambda: _data_watches(server),
        expiries=lambda: _expiries(server),
        timeouts=lambda: {session.id: session.timeout_ms for session in server.machine.sessions.all()},
        ephemerals=lambda: _ephemerals(server),
        monitor=lambda: _monitor(server),
        reset=lambda whole: _reset(server, whole, on_secure),
    )


def _client(connection: Connection) -> Client:
    return Client(
        connection.address,
        connection.port,
        connection.interest,
        connection.outstanding,
        connection.session_id,
        connection.timeout_ms,
        connection.established_ms,
        connection.traffic,
    )


def _configuration(server: Observed) -> Mapping[str, object]:
    settings = server.settings
    snapshots, logs = server.replication.data_bytes()
    directory = server.directory.absolute()
    return {
        "clientPort": server.port,
        "secureClientPort": server.secure_port,
        "dataDir": directory,
        "dataDirSize": snapshots,
        "dataLogDir": (settings.log_dir or directory).absolute(),
        "dataLogSize": logs,
        "tickTime": settings.tick_time_ms,
        "maxClientCnxns": settings.max_client_connections,
        "minSessionTimeout": settings.least_session_timeout_ms,
        "maxSessionTimeout": settings.most_session_timeout_ms,
        "clientPortListenBacklog": -1,
        "serverId": settings.server_id,
        **server.replication.configuration(),
    }


def _quotas(server: Observed) -> Mapping[str, Mapping[str, int]]:
    """Returns limits and their use, summed by namespace.

    A hard limit replaces the other (``QuotaMetricsUtils``).
    """
    found: dict[str, dict[str, int]] = {name: {} for name in _QUOTA_GAUGES}
    for path, limits, used in server.machine.tree.quotas():
        count = limits.nodes_hard_limit if limits.nodes_hard_limit > UNSET else limits.nodes
        size = limits.size_hard_limit if limits.size_hard_limit > UNSET else limits.size
        for name, value in zip(_QUOTA_GAUGES, (count, size, used.nodes, used.size), strict=True):
            if value > UNSET:
                namespace = namespace_of(path)
                found[name][namespace] = found[name].get(namespace, 0) + value
    return found


def _data_watches(server: Observed) -> Iterator[tuple[str | None, Sequence[int]]]:
    for path, watchers in server.watches.paths(Registry.DATA):
        yield path, [connection.session_id for connection in watchers]


def _expiries(server: Observed) -> list[Expiry[int]]:
    return _at(server, {at: sorted(members) for at, members in server.replication.deadlines()})


def _deadlines(server: Observed, on_secure: bool) -> list[Expiry[Client]]:
    found: dict[int, list[Client]] = {}
    for connection in server.connections:
        if connection.is_secure is on_secure and connection.phase is not Phase.CLOSED:
            found.setdefault(connection.deadline_ms, []).append(_client(connection))
    return _at(server, found)


def _at(server: Observed, found: Mapping[int, Sequence[T]]) -> list[Expiry[T]]:
    """Sorts by time, and converts it from the monotonic clock to the wall clock."""
    to_wall = server.clock.wall_ms() - server.clock.monotonic_ms()
    return [Expiry(at + to_wall, found[at]) for at in sorted(found)]


def _ephemerals(server: Observed) -> Mapping[int, Sequence[str]]:
    tree = server.machine.tree
    return {session: tree.ephemerals(session) for session in sorted(tree.owners())}


def _monitor(server: Observed) -> Mapping[str, int]:
    tree = server.machine.tree
    return {
        "uptime": server.clock.monotonic_ms() - server.started_ms,
        "watch_count": len(server.watches),
        "ephemerals_count": tree.ephemeral_count(),
        "approximate_data_size": tree.data_size(),
        "global_sessions": len(server.machine.sessions),
        "local_sessions": 0,
        "open_file_descriptor_count": len(os.listdir("/proc/self/fd")),
        "max_file_descriptor_count": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        **server.replication.gauges(),
    }


def _reset(server: Observed, whole: bool, on_secure: bool) -> None:
    if whole:
        server.traffic.reset()
        server.response_sizes.reset()
        server.auth_failed = 0
        if not server.settings.prometheus:  # Prometheus needs counters that only grow
            server.metrics.reset()
        return
    for connection in server.connections:
        if connection.is_secure is on_secure:
            connection.traffic.reset()
