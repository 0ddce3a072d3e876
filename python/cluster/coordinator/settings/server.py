"""What an administrator decides about a coordinator, with ZooKeeper's names and defaults.

Owns :class:`Settings`, one immutable value; reading files is :mod:`.configuration`'s. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..protocol.jute import MAX_BUFFER
from ..state.acl import Rules
from .authentication import NOBODY, Authentication

_SNAPSHOT_SOONEST, _SNAPSHOT_LATEST = 10_000, 100_000
"""Transactions that a start applies in less than half a second, and ZooKeeper's ``snapCount``."""
_SNAPSHOT_NODES_PER_TRANSACTION = 4
"""So many are written for each transaction in the long run, of a tree of 40,000 to 400,000: some 5 microseconds of the 35 that a
write takes where many come at once. Of a larger tree it is more, for there :data:`_SNAPSHOT_LATEST` counts."""


@dataclass(frozen=True)
class Settings:
    """Times in milliseconds, sizes in bytes. A session timeout of -1 is 2 (min) or 20 (max) ticks; less than that is no minimum."""

    tick_time_ms: int = 2000
    min_session_timeout_ms: int = -1
    max_session_timeout_ms: int = -1
    max_client_connections: int = 60
    """Connections from one address; 0 or less is any number (``maxClientCnxns``)."""
    max_connections: int = 0
    """All connections; 0 or less is any number (``maxCnxns``)."""
    max_buffer: int = MAX_BUFFER
    """The largest request (``jute.maxbuffer``)."""
    snapshot_transactions: int | None = None
    """Transactions between snapshots (``snapCount``); without it :meth:`transactions_until_snapshot` says."""
    log_dir: Path | None = None
    """Where new logs are made, if not beside the snapshots (``dataLogDir``)."""
    snapshots_retained: int = 3
    """Snapshots that are kept, with what is logged since the oldest (``autopurge.snapRetainCount``)."""
    server_id: int = 0
    rules: Rules = Rules.NONE
    reconfig_enabled: bool = False
    read_only_mode: bool = False
    """Whether a member without a majority serves reads to clients that said they may be read-only (``readonlymode.enabled``)."""
    super_digest: str = ""
    """The digest identity, ``user:hash``, of who may do everything."""
    container_check_interval_ms: int = 60_000
    """How often containers and nodes with a TTL are looked through (``znode.container.checkIntervalMs``)."""
    container_max_per_minute: int = 10_000
    container_max_never_used_ms: int = 0
    """How long a container stays that never had a child; 0 is for ever."""
    handshake_timeout_ms: int = 10_000
    """How long a connection may stay without a session (``zookeeper.nio.sessionlessCnxnTimeout``)."""

    max_handshakes: int = 250
    """Connections in TLS's handshake at once; 0 or less is any number (``netty.server.outstandingHandshake.limit``)."""
    authentication: Authentication = NOBODY
    prometheus: bool = False
    """Whether ``mntr`` tells what the Prometheus provider does, under its names."""

    words_whitelist: frozenset[str] = frozenset()
    """Four-letter words that are answered besides ``srvr``; ``*`` is all (``4lw.commands.whitelist``)."""

    @property
    def least_session_timeout_ms(self) -> int:
        return self.min_session_timeout_ms if self.min_session_timeout_ms != -1 else 2 * self.tick_time_ms

    @property
    def most_session_timeout_ms(self) -> int:
        return self.max_session_timeout_ms if self.max_session_timeout_ms != -1 else 20 * self.tick_time_ms

    def session_timeout_ms(self, requested_ms: int) -> int:
        """The timeout a client gets: what it asks for, within bounds; the upper one wins."""
        return min(max(requested_ms, self.least_session_timeout_ms, 0), self.most_session_timeout_ms)

    @property
    def fewest_until_snapshot(self) -> int:
        """No snapshot is due after fewer transactions, whatever the tree."""
        return _SNAPSHOT_SOONEST if self.snapshot_transactions is None else self.snapshot_transactions

    def transactions_until_snapshot(self, nodes: int, data_bytes: int) -> int:
        """After how many a snapshot of such a tree is due: what was decided; else a smaller one is written sooner, for it takes less
        than the start after a crash would take to apply them."""
        if self.snapshot_transactions is not None:
            return self.snapshot_transactions
        written = max(nodes, data_bytes >> 10) // _SNAPSHOT_NODES_PER_TRANSACTION
        return min(_SNAPSHOT_LATEST, max(_SNAPSHOT_SOONEST, written))
