"""Data directories of ours, begun with a state and read without a server.

A directory that is begun has one snapshot, which is there whole or not at all; a server starts on it and
continues at its zxid, and so does an ensemble of which it is a member. What is read may be the directory of either.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import logcore
from logcore import quorum as engine

from ..durability import log_place
from ..durability.directories import MEMBER_DIRECTORY, MEMBER_LOG, has_member, is_there, require_whole
from ..durability.log import TransactionLog
from ..durability.snapshot import sync_directory, write_snapshot
from ..ensemble.agreed import Agreed
from ..ensemble.snapshot import read
from ..errors import CoordinatorError, JuteError
from ..state.machine import State
from ..state.members import Member
from .common import Moved

_MAY_BE_THERE = frozenset({".lock", "myid"})
_READ_BYTES = 1 << 20


def require_empty(directory: Path) -> None:
    """Raises CoordinatorError when a directory has anything in it but a member's ``myid``, or is none."""
    try:
        there = sorted({path.name for path in directory.iterdir()} - _MAY_BE_THERE)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise CoordinatorError(f"{directory} is a file; name a directory") from None
    if there:
        raise CoordinatorError(
            f"{directory} is not empty, it has {there[0]} in it; name another directory, or move away what is there"
        )


def begin_directory(directory: Path, state: State) -> Path:
    """Makes a coordinator's data directory with a state, and returns its snapshot. Raises CoordinatorError when there is
    data or a server, OSError."""
    require_empty(directory)
    log = TransactionLog(directory)
    try:
        require_empty(directory)
        path = write_snapshot(directory, state)
    finally:
        log.close()
    sync_directory(directory.absolute().parent)
    return path


def load_directory(directory: Path, log_dir: Path | None = None) -> State:
    """The state of :func:`read_own`."""
    return read_own(directory, log_dir).state


def read_own(directory: Path, log_dir: Path | None = None) -> Moved:
    """The state a coordinator would start with whose ``dataDir`` is ``directory``, and ``dataLogDir`` is ``log_dir`` if it has one, a
    member of an ensemble as if all that it has were agreed on. Changes nothing that was answered: opening a log that was not closed
    cuts a torn tail, and makes its indexes and marks anew. Raises CoordinatorError when it is none, is damaged, or is in use."""
    if has_member(directory):
        return _read_member(directory / MEMBER_DIRECTORY, log_dir and log_dir / MEMBER_DIRECTORY)
    if not is_there(directory):
        raise CoordinatorError(
            f"{directory} is no data directory of a coordinator: it has neither snapshots nor logs"
        )
    require_whole(directory)
    log = TransactionLog(directory, log_dir=log_dir)
    try:
        return Moved(log.read().export(), [])
    finally:
        log.close()


def _read_member(directory: Path, log_dir: Path | None) -> Moved:
    log = log_place.find(directory / MEMBER_LOG, log_dir)
    with _with_log(directory, log) as whole:
        try:
            files = engine.MemberFiles(whole)
            try:
                agreed = _agreed(files)
            finally:
                files.close()
        except (logcore.LogError, engine.QuorumError, OSError, JuteError, ValueError) as error:
            told = str(error).replace(str(whole / MEMBER_LOG), str(log)).replace(str(whole), str(directory))
            raise CoordinatorError(f"the data of a member of an ensemble cannot be read: {told}") from error
    machine = agreed.machine
    state = State(
        machine.last_zxid,
        max(agreed.last_ids.values(), default=0),
        machine.sessions.all(),
        machine.tree.export(),
    )
    note = (
        f"this is one member's data, up to zxid {state.last_zxid:#x}: of all members' take those with the highest; the last "
        "transactions may be some that no majority had"
    )
    return Moved(state, [note])


@contextmanager
def _with_log(directory: Path, log: Path) -> Iterator[Path]:
    """A directory with a member's files, and its log where that is: the member's own, or one of links to what is in it."""
    own = directory / MEMBER_LOG
    if not own.is_symlink() or (own.exists() and own.samefile(log)):
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="logcore-") as made:
        links = Path(made)
        for path in directory.iterdir():
            (links / path.name).symlink_to((log if path.name == MEMBER_LOG else path).absolute())
        yield links


def _content(source: engine.SnapshotSource) -> bytes:
    return b"".join(iter(lambda: source.read(_READ_BYTES), b""))


def _agreed(files: engine.MemberFiles) -> Agreed:
    source = files.snapshot()
    agreed = Agreed() if source is None else read(_content(source))
    while entries := files.entries(_READ_BYTES):
        for index, term, time_ms, commands, members in entries:
            agreed.begin(index, term, time_ms)
            for _mine, _ticket, command in commands:
                agreed.apply(command)
            if members is not None:
                agreed.apply_members([Member(*each) for each in members])
    return agreed
