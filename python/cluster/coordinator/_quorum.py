"""A member's log on the consensus of :mod:`logcore`: the only module of the coordinator that knows it.

Owns the conversion of its errors. Calls are those of :class:`.quorum.Quorum`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ParamSpec, TypeVar

import logcore
from logcore import quorum as engine

from .ensemble_settings import EnsembleSettings
from .errors import CoordinatorError
from .quorum import Event, QuorumFullError, QuorumStoppedError, SnapshotSink
from .snapshot import NAME_PREFIX

DIRECTORY = "quorum"
"""Below ``dataDir``."""

T = TypeVar("T")
P = ParamSpec("P")


class EngineQuorum:
    """A :class:`.quorum.Quorum` on the log engine."""

    def __init__(self, native: engine.Quorum) -> None:
        self._native = native

    @property
    def wake_fd(self) -> int:
        return self._native.wake_fd

    def start(self) -> None:
        """Raises CoordinatorError."""
        try:
            self._native.start()
        except engine.QuorumError as error:
            raise CoordinatorError(str(error)) from error

    def propose(self, commands: Sequence[bytes]) -> int:
        return _call(self._native.propose, commands)

    def take(self, max_bytes: int) -> list[Event]:
        return self._native.take(max_bytes)

    def applied(self, index: int) -> None:
        _call(self._native.applied, index)

    def read_barrier(self) -> int:
        return _call(self._native.read_barrier)

    def touch(self, sessions: bytes) -> int:
        return _call(self._native.touch, sessions)

    def status(self) -> dict[str, object]:
        return _call(self._native.status)

    def snapshot_begin(self, index: int) -> SnapshotSink:
        return _Sink(_call(self._native.snapshot_begin, index))

    def stop(self) -> None:
        """Raises CoordinatorError when the disk hangs."""
        try:
            self._native.stop()
        except engine.QuorumError as error:
            raise CoordinatorError(str(error)) from error


class _Sink:
    def __init__(self, native: engine.SnapshotSink) -> None:
        self._native = native

    def write(self, data: bytes) -> bool:
        return _call(self._native.write, data)

    def finish(self) -> None:
        _call(self._native.finish)

    def abort(self) -> None:
        self._native.abort()


def _call(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    try:
        return function(*arguments, **named)
    except engine.QuorumFullError as error:
        raise QuorumFullError(str(error)) from error
    except engine.QuorumStoppedError as error:
        raise QuorumStoppedError(str(error)) from error


def open_quorum(data_dir: Path, settings: EnsembleSettings, tick_ms: int) -> EngineQuorum:
    """Opens a member's files below its ``dataDir``, made if missing; blocks. Raises CoordinatorError."""
    alone = next(data_dir.glob(f"{NAME_PREFIX}*"), None)
    if alone is not None or any(data_dir.glob("log.*")):
        raise CoordinatorError(
            f"{data_dir} has the data of a server by itself, which does not become an ensemble's: name an empty dataDir, or "
            "leave the lines server.N out to run it by itself"
        )
    try:
        native = engine.Quorum(
            data_dir=str(data_dir / DIRECTORY),
            server_id=settings.server_id,
            servers=settings.members,
            tick_ms=tick_ms,
            init_limit=settings.init_limit,
            sync_limit=settings.sync_limit,
            listen_on_all=settings.listen_on_all,
        )
    except (logcore.LogError, engine.QuorumError, ValueError, OSError) as error:
        raise CoordinatorError(f"this member of the ensemble cannot start: {error}") from error
    return EngineQuorum(native)
