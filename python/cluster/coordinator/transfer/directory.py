"""Apache ZooKeeper's data directory, read and written.

Owns which files count and whether they fit together (``FileTxnSnapLog``, ``QuorumPeer``)::

    <dataDir>/version-2/snapshot.<zxid>[.gz]    <dataLogDir>/version-2/log.<zxid>
    <dataDir>/version-2/currentEpoch            decimal; acceptedEpoch as well: of an ensemble's member only
    <dataDir>/myid                              of an ensemble's member only

The newest snapshot that is whole is taken, and the transactions after it. ZooKeeper goes on where transactions are
missing; here it takes ``lenient`` to.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from ..durability.directories import APACHE_LOG, APACHE_SNAPSHOT, APACHE_VERSIONED
from ..durability.snapshot import sync_directory
from ..errors import CoordinatorError
from ..state.machine import State
from ..state.quota import LIMITS, ROOT_OF_QUOTAS
from ..state.tree import Kind, kind_of
from .common import Damaged, Moved, Progress, session_password, some
from .draft import Draft
from .logs import Logged, read_log
from .own import require_empty
from .snapshots import Snapshot, read_snapshot, write_snapshot

_CURRENT_EPOCH = "currentEpoch"
_EPOCH_FILES = (_CURRENT_EPOCH, "acceptedEpoch")
_ZXID_MAX = (1 << 63) - 1
_COUNTER = 0xFFFF_FFFF
_READABLE_BYTES_MAX = 2 * 0xFFFFF
"""The longest data ZooKeeper reads from a file unless ``jute.maxbuffer`` is set."""


class Contradiction(Damaged):
    """Files that do not fit together; ``lenient`` goes on."""


def read_directory(
    source: Path,
    log_dir: Path | None = None,
    *,
    lenient: bool = False,
    progress: Progress = lambda *_told: None,
) -> Moved:
    """What a server would start with whose ``dataDir`` is ``source`` and ``dataLogDir`` is ``log_dir``, by default the same.

    The server does not run, or the directory is a copy of which snapshots were copied before logs. Sessions have the
    passwords their clients know. Raises Damaged, Contradiction (unless ``lenient``), OSError.
    """
    return _Reading(source, log_dir or source, lenient, progress).read()


class _Reading:
    def __init__(self, source: Path, log_dir: Path, lenient: bool, progress: Progress) -> None:
        self._source = source
        self._snapshot_dir, self._log_dir = _versioned(source), _versioned(log_dir)
        self._lenient = lenient
        self._progress = progress
        self._notes: list[str] = []
        self._unread: dict[Path, int] = {}
        self._begun = False
        self._difference: str | None = None

    def read(self) -> Moved:
        snapshots = self._numbered(self._snapshot_dir, "snapshot.", APACHE_SNAPSHOT)
        logs = self._numbered(self._log_dir, "log.", APACHE_LOG)
        snapshot = self._newest(snapshots, logs)
        draft = snapshot.draft
        if snapshot.through == draft.last_zxid:
            self._compare_digest(snapshot.digest, draft, "the snapshot")
        self._replay(snapshot, list(_after(logs, draft.last_zxid)))
        self._require_all(snapshot)
        self._enter_epoch(draft)
        if not logs:
            self._notes.append(
                f"{self._log_dir} has no transaction log; a server with a dataLogDir has its logs there"
            )
        if (self._source / "myid").exists():
            self._notes.append(
                f"this is one member's data, up to zxid {draft.last_zxid:#x}: of all members' take those with the highest; the "
                "last transactions may be some that no majority had"
            )
        return draft.finish(self._notes)

    # ---- the snapshot ----

    def _newest(self, snapshots: list[tuple[int, Path]], logs: list[tuple[int, Path]]) -> Snapshot:
        """The newest snapshot that is whole; without any, the tree before the first transaction."""
        reasons = []
        for zxid, path in reversed(snapshots):
            try:
                return read_snapshot(path, zxid, self._tell(f"reading {path.name}", path.stat().st_size))
            except Damaged as error:
                reasons.append(str(error))
                self._notes.append(f"skipped a snapshot: {error}")
                self._unread[path] = zxid
        if snapshots:
            raise Damaged(f"no snapshot in {self._snapshot_dir} can be read: {'; '.join(reasons)}")
        if not logs:
            raise CoordinatorError(
                f"{self._snapshot_dir} has no snapshot of Apache ZooKeeper; name the dataDir of a server's zoo.cfg"
            )
        if logs[0][0] != 1:
            self._contradiction(
                f"{self._snapshot_dir} has no snapshot, and its logs begin at {logs[0][0]:#x}"
            )
        draft = Draft(0)
        draft.add_special_nodes()
        return Snapshot(draft, 0, None)

    # ---- the logs ----

    def _replay(self, snapshot: Snapshot, logs: list[tuple[int, Path]]) -> None:
        total = sum(path.stat().st_size for _first, path in logs)
        before = 0
        for number, (_first, path) in enumerate(logs, 1):
            tell = self._tell(f"replaying {path.name}", total, before)
            for logged in read_log(path, number == len(logs), self._notes, tell):
                self._apply(snapshot, logged, f"{path}, byte {logged.position}")
            before += path.stat().st_size

    def _apply(self, snapshot: Snapshot, logged: Logged, place: str) -> None:
        draft, transaction = snapshot.draft, logged.transaction
        last, zxid = draft.last_zxid, transaction.zxid
        if zxid <= last and not self._begun:
            return  # the snapshot holds it
        if zxid == last and not transaction.changes:
            return  # a request that could not be read has the zxid of the one before
        if zxid <= last:
            self._contradiction(f"{place}: transaction {zxid:#x} comes behind {last:#x}")
        elif not _follows(last, zxid):
            self._contradiction(f"{place}: transactions between {last:#x} and {zxid:#x} are missing")
        self._begun = True
        draft.apply(transaction)
        if draft.last_zxid >= snapshot.through:
            self._compare_digest(transaction.digest, draft, f"{place}: transaction {zxid:#x}")
        if draft.last_zxid == snapshot.through:
            self._compare_digest(snapshot.digest, draft, f"{place}: transaction {zxid:#x}")

    def _compare_digest(self, expected: int | None, draft: Draft, where: str) -> None:
        """The last that is told decides: for a create whose flags are of another kind than its operation ZooKeeper notes the
        digest of a tree it does not have."""
        if expected is None or expected == draft.digest:
            self._difference = None if expected is not None else self._difference
        elif self._difference is None:
            self._difference = (
                f"{where}: the nodes are not those the server had then: their digest is {draft.digest:#x}, it noted "
                f"{expected:#x}"
            )

    def _require_all(self, snapshot: Snapshot) -> None:
        """Refuses a state that is not the server's, or lacks transactions somebody has seen."""
        draft = snapshot.draft
        last = draft.last_zxid
        if self._difference is not None:
            self._contradiction(self._difference)
        newest = max(max(node.czxid, node.mzxid, node.pzxid) for node in draft.nodes.values())
        if max(newest, snapshot.through) > last:
            self._contradiction(
                f"the snapshot was written while the server served, and holds some of the transactions up to "
                f"{max(newest, snapshot.through):#x}; the logs in {self._log_dir} end at {last:#x}"
            )
            draft.last_zxid = max(newest, snapshot.through)
        for path, zxid in self._unread.items():
            if zxid > last:
                self._contradiction(
                    f"{path} cannot be read, and the logs in {self._log_dir} end at {last:#x}: what came after is lost"
                )

    def _enter_epoch(self, draft: Draft) -> None:
        """An epoch that began without a transaction counts as well: clients may have seen its zxid."""
        epoch = self._epoch(_CURRENT_EPOCH)
        begun = self._snapshot_dir / f"{_CURRENT_EPOCH}.tmp"
        if begun.exists():
            self._notes.append(
                f"{begun} is there: this member was still getting its data from the leader; rather "
                "take another member's"
            )
        if epoch is None:
            return
        last = draft.last_zxid >> 32
        if epoch < last and (self._epoch(begun.name) or 0) < last:
            self._contradiction(
                f"{self._snapshot_dir / _CURRENT_EPOCH} says {epoch}, and there are transactions of epoch {last}"
            )
        if epoch > last:
            draft.last_zxid = epoch << 32

    def _epoch(self, name: str) -> int | None:
        path = self._snapshot_dir / name
        try:
            text = path.read_bytes()[:32].strip()
        except FileNotFoundError:
            return None
        if not text.isdigit() or int(text) > _ZXID_MAX >> 32:
            raise Damaged(f"{path}, byte 0: {text!r} is no epoch")
        return int(text)

    # ---- what all need ----

    def _contradiction(self, what: str) -> None:
        if not self._lenient:
            raise Contradiction(what)
        self._notes.append(what)

    def _tell(self, doing: str, total: int, before: int = 0) -> Callable[[int], None]:
        return lambda done: self._progress(doing, before + done, total)

    def _numbered(self, directory: Path, beginning: str, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
        """Files by the zxid of their names, oldest first. Names that only begin alike are told."""
        found, strange = [], []
        for path in directory.iterdir():
            match = pattern.fullmatch(path.name)
            if match is not None and int(match[1], 16) <= _ZXID_MAX and path.is_file():
                found.append((int(match[1], 16), path))
            elif path.name.startswith(beginning):
                strange.append(path.name)
        if strange:
            self._notes.append(f"not read in {directory}: {some(strange)}")
        return sorted(found)


def _versioned(directory: Path) -> Path:
    """Where a data directory's files are; ``version-2`` itself may be named too."""
    if not directory.is_dir():
        raise CoordinatorError(f"{directory} is no directory")
    inside = directory / APACHE_VERSIONED
    return inside if inside.is_dir() else directory


def _after(logs: list[tuple[int, Path]], zxid: int) -> Iterator[tuple[int, Path]]:
    """Logs that may have transactions after ``zxid``."""
    for number, log in enumerate(logs, 1):
        if number == len(logs) or logs[number][0] > zxid + 1:
            yield log


def _follows(last: int, zxid: int) -> bool:
    """Whether nothing has to be between: each epoch counts from 1."""
    return zxid == last + 1 or (zxid >> 32 > last >> 32 and zxid & _COUNTER == 1)


# ---- writing ----


def write_directory(directory: Path, state: State, progress: Progress = lambda *_told: None) -> list[str]:
    """Writes a data directory Apache ZooKeeper starts on, by itself or, copied to each, as every member of an ensemble;
    returns what whoever starts it has to know.

    ``directory`` is made if missing, or has nothing in it but ``myid``. Raises CoordinatorError, OSError.
    """
    require_empty(directory)
    nodes = dict(state.nodes)
    limits = f"{ROOT_OF_QUOTAS}/{LIMITS}"
    if limits in nodes:
        raise CoordinatorError(
            f"Apache ZooKeeper does not start where there is {limits}; delete this node first"
        )
    versioned = directory / APACHE_VERSIONED
    versioned.mkdir(parents=True)
    for name in _EPOCH_FILES:
        with (versioned / name).open("w", encoding="ascii") as file:
            file.write(str(state.last_zxid >> 32))
            file.flush()
            os.fsync(file.fileno())
    write_snapshot(versioned, state, progress)
    sync_directory(directory)
    return _to_know(state)


def _to_know(state: State) -> list[str]:
    notes = []
    with_ttl = [path for path, node in state.nodes if kind_of(node.owner) is Kind.TTL]
    if with_ttl:
        notes.append(
            f"{len(with_ttl)} nodes have a TTL: start Apache ZooKeeper with -Dzookeeper.extendedTypesEnabled=true, or it deletes them "
            f"as it starts: {some(with_ttl)}"
        )
    unknown = [session for session in state.sessions if session.password != session_password(session.id)]
    if unknown:
        notes.append(
            f"{len(unknown)} sessions began here: Apache ZooKeeper does not know their passwords, so their clients begin new ones, "
            "and their ephemeral nodes stay until they time out"
        )
    largest = max((node.size for _path, node in state.nodes), default=0)
    if largest > _READABLE_BYTES_MAX:
        notes.append(
            f"a node has {largest} bytes: start Apache ZooKeeper with -Djute.maxbuffer={largest} or more"
        )
    return notes
