"""The settings of a coordinator, with ZooKeeper's names and defaults.

Owns :class:`Settings`, an immutable value. :mod:`cluster.coordinator.configuration` reads it from files.
Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..protocol.jute import MAX_BUFFER
from ..state.acl import Rules
from .authentication import NO_USERS, Authentication

_SNAPSHOT_SOONEST, _SNAPSHOT_LATEST = 10_000, 100_000
"""A start applies the first number of transactions in less than half a second.

The second is ZooKeeper's ``snapCount``.
"""
_SNAPSHOT_NODES_PER_TRANSACTION = 4
"""In a tree of 40,000 to 400,000 nodes a snapshot writes so many for each transaction since the last one.
That takes 5 of a write's 35 microseconds. A larger tree has a snapshot after :data:`_SNAPSHOT_LATEST`
transactions."""


@dataclass(frozen=True)
class Settings:
    """Times are in milliseconds, sizes in bytes.

    A session timeout of -1 is 2 (min) or 20 (max) ticks; a lower minimum is none.
    """

    tick_time_ms: int = 2000
    min_session_timeout_ms: int = -1
    max_session_timeout_ms: int = -1
    max_client_connections: int = 60
    """The most connections from one address; 0 or less is no limit (``maxClientCnxns``)."""
    max_connections: int = 0
    """The most connections; 0 or less is no limit (``maxCnxns``)."""
    max_buffer: int = MAX_BUFFER
    """The largest request (``jute.maxbuffer``)."""
    snapshot_transactions: int | None = None
    """Transactions between snapshots (``snapCount``); if None, :meth:`transactions_until_snapshot`
    decides."""
    log_dir: Path | None = None
    """The directory of the logs (``dataLogDir``). None if the snapshots' directory has them too."""
    snapshots_retained: int = 3
    """The number of snapshots that stay, with the logs since the oldest (``autopurge.snapRetainCount``)."""
    server_id: int = 0
    rules: Rules = Rules.NONE
    reconfig_enabled: bool = False
    read_only_mode: bool = False
    """Whether a member without a majority serves reads to clients that accept a read-only server
    (``readonlymode.enabled``)."""
    super_digest: str = ""
    """The super user's digest identity, ``user:hash``."""
    container_check_interval_ms: int = 60_000
    """The time between two looks for expired containers and nodes with a TTL
    (``znode.container.checkIntervalMs``)."""
    container_max_per_minute: int = 10_000
    container_max_never_used_ms: int = 0
    """The life of a container that never had a child; 0 is for ever."""
    handshake_timeout_ms: int = 10_000
    """The time that a connection has to get a session (``zookeeper.nio.sessionlessCnxnTimeout``)."""

    max_handshakes: int = 250
    """The most connections in a TLS handshake; 0 or less is no limit
    (``netty.server.outstandingHandshake.limit``)."""
    authentication: Authentication = NO_USERS
    prometheus: bool = False
    """Whether ``mntr`` has the Prometheus provider's names and numbers."""

    words_whitelist: frozenset[str] = frozenset()
    """The four-letter words that are answered besides ``srvr``; ``*`` is all (``4lw.commands.whitelist``)."""

    @property
    def least_session_timeout_ms(self) -> int:
        return self.min_session_timeout_ms if self.min_session_timeout_ms != -1 else 2 * self.tick_time_ms

    @property
    def most_session_timeout_ms(self) -> int:
        return self.max_session_timeout_ms if self.max_session_timeout_ms != -1 else 20 * self.tick_time_ms

    def session_timeout_ms(self, requested_ms: int) -> int:
        """Returns a client's timeout: the requested one, within the bounds, of which the upper one wins."""
        return min(max(requested_ms, self.least_session_timeout_ms, 0), self.most_session_timeout_ms)

    @property
    def fewest_until_snapshot(self) -> int:
        """No snapshot is due after fewer transactions, however small the tree is."""
        return _SNAPSHOT_SOONEST if self.snapshot_transactions is None else self.snapshot_transactions

    def transactions_until_snapshot(self, nodes: int, data_bytes: int) -> int:
        """Returns after how many transactions a snapshot of such a tree is due.

        Without a setting, a smaller tree has snapshots sooner: to write one takes less than to apply the
        transactions.
        """
        if self.snapshot_transactions is not None:
            return self.snapshot_transactions
        written = max(nodes, data_bytes >> 10) // _SNAPSHOT_NODES_PER_TRANSACTION
        return min(_SNAPSHOT_LATEST, max(_SNAPSHOT_SOONEST, written))
