"""Apache ZooKeeper's data directory, read and written.

Owns the choice of files, and the checks that they fit together (``FileTxnSnapLog``, ``QuorumPeer``)::

    <dataDir>/version-2/snapshot.<zxid>[.gz]    <dataLogDir>/version-2/log.<zxid>
    <dataDir>/version-2/currentEpoch            decimal, and acceptedEpoch; of an ensemble's member only
    <dataDir>/myid                              of an ensemble's member only

The state is that of the newest whole snapshot and the transactions after it. If transactions are missing
ZooKeeper goes on without them. Here that needs ``lenient``.
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
"""The longest data that ZooKeeper reads from a file, if ``jute.maxbuffer`` is not set."""


class Contradiction(Damaged):
    """The files do not fit together. With ``lenient`` it is only a note."""


def read_directory(
    source: Path,
    log_dir: Path | None = None,
    *,
    lenient: bool = False,
    progress: Progress = lambda *_done: None,
) -> Moved:
    """Returns the state with which a server would start. ``source`` is its ``dataDir``, ``log_dir`` its
    ``dataLogDir`` if it has one.

    The server must not run, except if the directory is a copy whose snapshots were copied before its logs.
    Sessions have the passwords that their clients know. Raises Damaged, Contradiction (without ``lenient``),
    OSError.
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
                f"this is the data of one member, up to zxid {draft.last_zxid:#x}: use that of the member "
                "with the highest zxid; its last transactions may be some that no majority had"
            )
        return draft.finish(self._notes)

    # ---- the snapshot ----

    def _newest(self, snapshots: list[tuple[int, Path]], logs: list[tuple[int, Path]]) -> Snapshot:
        """Returns the newest whole snapshot; without one, the tree before the first transaction."""
        reasons = []
        for zxid, path in reversed(snapshots):
            try:
                return read_snapshot(path, zxid, self._report(f"reading {path.name}", path.stat().st_size))
            except Damaged as error:
                reasons.append(str(error))
                self._notes.append(f"skipped a snapshot: {error}")
                self._unread[path] = zxid
        if snapshots:
            raise Damaged(f"no snapshot in {self._snapshot_dir} can be read: {'; '.join(reasons)}")
        if not logs:
            raise CoordinatorError(
                f"{self._snapshot_dir} has no snapshot of Apache ZooKeeper; name the dataDir of a server's "
                "zoo.cfg"
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
            tell = self._report(f"replaying {path.name}", total, before)
            for logged in read_log(path, number == len(logs), self._notes, tell):
                self._apply(snapshot, logged, f"{path}, byte {logged.position}")
            before += path.stat().st_size

    def _apply(self, snapshot: Snapshot, logged: Logged, place: str) -> None:
        draft, transaction = snapshot.draft, logged.transaction
        last, zxid = draft.last_zxid, transaction.zxid
        if zxid <= last and not self._begun:
            return  # the snapshot has it
        if zxid == last and not transaction.changes:
            return  # a request that ZooKeeper could not decode has the zxid of the one before
        if zxid <= last:
            self._contradiction(f"{place}: transaction {zxid:#x} comes after {last:#x}")
        elif not _follows(last, zxid):
            self._contradiction(f"{place}: transactions between {last:#x} and {zxid:#x} are missing")
        self._begun = True
        draft.apply(transaction)
        if draft.last_zxid >= snapshot.through:
            self._compare_digest(transaction.digest, draft, f"{place}: transaction {zxid:#x}")
        if draft.last_zxid == snapshot.through:
            self._compare_digest(snapshot.digest, draft, f"{place}: transaction {zxid:#x}")

    def _compare_digest(self, expected: int | None, draft: Draft, where: str) -> None:
        """Compares with the last digest of a transaction or the snapshot. An earlier one may be wrong: for a
        create whose flags do not fit its operation ZooKeeper writes the digest of a tree that it does not
        have."""
        if expected is None or expected == draft.digest:
            self._difference = None if expected is not None else self._difference
        elif self._difference is None:
            self._difference = (
                f"{where}: the nodes are not those that the server had: their digest is {draft.digest:#x}, "
                f"and it wrote {expected:#x}"
            )

    def _require_all(self, snapshot: Snapshot) -> None:
        """Refuses a state that the server never had, or that lacks transactions which clients have seen."""
        draft = snapshot.draft
        last = draft.last_zxid
        if self._difference is not None:
            self._contradiction(self._difference)
        newest = max(max(node.czxid, node.mzxid, node.pzxid) for node in draft.nodes.values())
        if max(newest, snapshot.through) > last:
            self._contradiction(
                "the snapshot was written while the server served, and has some of the transactions up to "
                f"{max(newest, snapshot.through):#x}; the logs in {self._log_dir} end at {last:#x}"
            )
            draft.last_zxid = max(newest, snapshot.through)
        for path, zxid in self._unread.items():
            if zxid > last:
                self._contradiction(
                    f"{path} cannot be read, and the logs in {self._log_dir} end at {last:#x}: the "
                    "transactions after that are lost"
                )

    def _enter_epoch(self, draft: Draft) -> None:
        """Takes over an epoch without transactions, too: clients may have seen its zxid."""
        epoch = self._epoch(_CURRENT_EPOCH)
        begun = self._snapshot_dir / f"{_CURRENT_EPOCH}.tmp"
        if begun.exists():
            self._notes.append(
                f"{begun} exists: this member was still getting its data from the leader; use the data of "
                "another member"
            )
        if epoch is None:
            return
        last = draft.last_zxid >> 32
        if epoch < last and (self._epoch(begun.name) or 0) < last:
            self._contradiction(
                f"{self._snapshot_dir / _CURRENT_EPOCH} says {epoch}, and there are transactions of epoch "
                f"{last}"
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
            raise Damaged(f"{path}, byte 0: {text!r} is not an epoch")
        return int(text)

    # ---- helpers ----

    def _contradiction(self, what: str) -> None:
        if not self._lenient:
            raise Contradiction(what)
        self._notes.append(what)

    def _report(self, doing: str, total: int, before: int = 0) -> Callable[[int], None]:
        return lambda done: self._progress(doing, before + done, total)

    def _numbered(self, directory: Path, beginning: str, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
        """Returns files with the zxids of their names, oldest first. Adds a note about similar names."""
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
    """Returns the subdirectory of a data directory that has the files.

    The caller may also name ``version-2`` itself.
    """
    if not directory.is_dir():
        raise CoordinatorError(f"{directory} is not a directory")
    inside = directory / APACHE_VERSIONED
    return inside if inside.is_dir() else directory


def _after(logs: list[tuple[int, Path]], zxid: int) -> Iterator[tuple[int, Path]]:
    """Yields the logs that may have transactions after ``zxid``."""
    for number, log in enumerate(logs, 1):
        if number == len(logs) or logs[number][0] > zxid + 1:
            yield log


def _follows(last: int, zxid: int) -> bool:
    """Whether no transaction can be between the two: each epoch counts from 1."""
    return zxid == last + 1 or (zxid >> 32 > last >> 32 and zxid & _COUNTER == 1)


# ---- writing ----


def write_directory(directory: Path, state: State, progress: Progress = lambda *_told: None) -> list[str]:
    """Writes a data directory on which Apache ZooKeeper starts, standalone or, with a copy for each, as an
    ensemble.

    Returns notes for the operator. ``directory`` is made if missing; it may have only ``myid`` in it. Raises
    CoordinatorError, OSError.
    """
    require_empty(directory)
    nodes = dict(state.nodes)
    limits = f"{ROOT_OF_QUOTAS}/{LIMITS}"
    if limits in nodes:
        raise CoordinatorError(
            f"Apache ZooKeeper does not start if there is a node {limits}; delete it first"
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
    return _notes(state)


def _notes(state: State) -> list[str]:
    notes = []
    with_ttl = [path for path, node in state.nodes if kind_of(node.owner) is Kind.TTL]
    if with_ttl:
        notes.append(
            f"{len(with_ttl)} nodes have a TTL: start Apache ZooKeeper with "
            f"-Dzookeeper.extendedTypesEnabled=true, or it deletes them as it starts: {some(with_ttl)}"
        )
    unknown = [session for session in state.sessions if session.password != session_password(session.id)]
    if unknown:
        notes.append(
            f"{len(unknown)} sessions began here: Apache ZooKeeper does not know their passwords, so their "
            "clients get new sessions, and their ephemeral nodes stay until the old ones time out"
        )
    largest = max((node.size for _path, node in state.nodes), default=0)
    if largest > _READABLE_BYTES_MAX:
        notes.append(
            f"a node has {largest} bytes: start Apache ZooKeeper with -Djute.maxbuffer={largest} or more"
        )
    return notes
