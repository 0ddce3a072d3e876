"""One member of an ensemble that agrees on one log of commands: Raft, over TCP, on disk.

What a command means is up to the application::

    quorum = Quorum(data_dir=..., server_id=1, servers=[QuorumServer(1, "a", 2888, 3888), ...], ...)
    quorum.start()
    loop.add_reader(quorum.wake_fd, lambda: apply(quorum.take(1 << 18)))
    ticket = quorum.propose([b"a command"])
"""

from typing import NamedTuple

from logcore._native import (
    FIRST_STATE,
    MemberFiles,
    Quorum,
    QuorumError,
    QuorumFullError,
    QuorumStoppedError,
    SnapshotSink,
    SnapshotSource,
)

__all__ = [
    "FIRST_STATE",
    "MemberFiles",
    "Quorum",
    "QuorumError",
    "QuorumFullError",
    "QuorumServer",
    "QuorumStoppedError",
    "SnapshotSink",
    "SnapshotSource",
]


class QuorumServer(NamedTuple):
    """One server of an ensemble: a line `server.N` of its configuration."""

    server_id: int
    """1 to 65535."""
    host: str
    quorum_port: int
    election_port: int
    client: str = ""
    """The clients' address: "[host:]port", or ""."""
    observer: bool = False
    """It receives the log and never votes."""
