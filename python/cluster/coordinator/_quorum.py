"""A member's log on the consensus of :mod:`logcore`: the only module of the coordinator that knows it.

Owns the conversion of its errors. Calls are those of :class:`.quorum.Quorum`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import logcore

from .ensemble_settings import EnsembleSettings
from .errors import CoordinatorError
from .quorum import Event, QuorumFullError, QuorumStoppedError, SnapshotSink
from .snapshot import NAME_PREFIX

DIRECTORY = "quorum"
"""Below ``dataDir``."""

T = TypeVar("T")


class EngineQuorum:
    """A :class:`.quorum.Quorum` on the log engine."""

    def __init__(self, native: Any, module: Any) -> None:
        self._native = native
        self._full, self._stopped, self._any = (
            module.QuorumFullError,
            module.QuorumStoppedError,
            module.QuorumError,
        )

    @property
    def wake_fd(self) -> int:
        return int(self._native.wake_fd)

    def _call(self, function: Callable[..., T], *arguments: object) -> T:
        try:
            return function(*arguments)
        except self._full as error:
            raise QuorumFullError(str(error)) from error
        except self._stopped as error:
            raise QuorumStoppedError(str(error)) from error

    def start(self) -> None:
        """Raises CoordinatorError."""
        try:
            self._native.start()
        except self._any as error:
            raise CoordinatorError(str(error)) from error

    def propose(self, commands: Sequence[bytes]) -> int:
        return int(self._call(self._native.propose, commands))

    def take(self, max_bytes: int) -> list[Event]:
        return list(self._native.take(max_bytes))

    def applied(self, index: int) -> None:
        self._call(self._native.applied, index)

    def read_barrier(self) -> int:
        return int(self._call(self._native.read_barrier))

    def touch(self, sessions: bytes) -> int:
        return int(self._call(self._native.touch, sessions))

    def status(self) -> dict[str, object]:
        return dict(self._call(self._native.status))

    def snapshot_begin(self, index: int) -> SnapshotSink:
        return _Sink(self, self._call(self._native.snapshot_begin, index))

    def stop(self) -> None:
        """Raises CoordinatorError when the disk hangs."""
        try:
            self._native.stop()
        except self._any as error:
            raise CoordinatorError(str(error)) from error


class _Sink:
    def __init__(self, quorum: EngineQuorum, native: Any) -> None:
        self._quorum = quorum
        self._native = native

    def write(self, data: bytes) -> bool:
        return bool(self._quorum._call(self._native.write, data))

    def finish(self) -> None:
        self._quorum._call(self._native.finish)

    def abort(self) -> None:
        self._native.abort()


def open_quorum(data_dir: Path, settings: EnsembleSettings, tick_ms: int) -> EngineQuorum:
    """Opens a member's files below its ``dataDir``, made if missing; blocks. Raises CoordinatorError."""
    alone = next(data_dir.glob(f"{NAME_PREFIX}*"), None)
    if alone is not None or any(data_dir.glob("log.*")):
        raise CoordinatorError(
            f"{data_dir} has the data of a server by itself, which does not become an ensemble's: name an empty dataDir, or "
            "leave the lines server.N out to run it by itself"
        )
    module = importlib.import_module("logcore.quorum")
    try:
        native = module.Quorum(
            data_dir=str(data_dir / DIRECTORY),
            server_id=settings.server_id,
            servers=[tuple(member) for member in settings.members],
            tick_ms=tick_ms,
            init_limit=settings.init_limit,
            sync_limit=settings.sync_limit,
            listen_on_all=settings.listen_on_all,
        )
    except (logcore.LogError, module.QuorumError, ValueError, OSError) as error:
        raise CoordinatorError(f"this member of the ensemble cannot start: {error}") from error
    return EngineQuorum(native, module)
