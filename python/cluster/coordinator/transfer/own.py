"""Data directories of this coordinator: made from a state, and read without a server.

A directory that is made has one snapshot, whole or not at all. A standalone server starts on it, and goes on
at its zxid; so does an ensemble, if one of its members has the directory. The directory of either can be
read. All calls block.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import logcore
from logcore import quorum as engine

from ..durability.directories import LOCK_FILE, MEMBER_LOG, Directories
from ..durability.log import TransactionLog
from ..durability.snapshot import sync_directory, write_snapshot
from ..ensemble.agreed import Agreed
from ..ensemble.snapshot import read
from ..errors import CoordinatorError, JuteError
from ..state.machine import State
from ..state.members import Member
from .common import Moved

_MAY_BE_THERE = frozenset({LOCK_FILE, "myid"})
_READ_BYTES = 1 << 20


def require_empty(directory: Path) -> None:
    """Raises CoordinatorError if a directory has anything but a member's ``myid`` in it, or is a file."""
    try:
        there = sorted({path.name for path in directory.iterdir()} - _MAY_BE_THERE)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise CoordinatorError(f"{directory} is a file; name a directory") from None
    if there:
        raise CoordinatorError(
            f"{directory} is not empty, it has {there[0]} in it; name another directory, or move away what "
            "is there"
        )


def begin_directory(directory: Path, state: State) -> Path:
    """Makes a coordinator's data directory from a state, and returns its snapshot.

    Raises CoordinatorError if the directory has data or a server, OSError.
    """
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
    """Returns the state of :func:`read_own`."""
    return read_own(directory, log_dir).state


def read_own(directory: Path, log_dir: Path | None = None) -> Moved:
    """Returns the state with which a coordinator would start on a ``dataDir``, and a ``dataLogDir`` if it has
    one.

    Of a member of an ensemble it is the state as if every entry in its log were agreed on. The only change on
    disk is the engine's: a log that was not closed loses its torn tail and gets new indexes. Raises
    CoordinatorError if there is no data, or if the data is damaged or in use.
    """
    directories = Directories.of(directory, log_dir)
    directories.require_pair()
    if directories.has_member_data():
        return _read_member(directories)
    if not directories.has_standalone_data():
        raise CoordinatorError(
            f"{directory} is not the data directory of a coordinator: it has neither snapshots nor logs"
        )
    directories.require_whole()
    log = TransactionLog(directory, log_dir=log_dir)
    try:
        return Moved(log.read().export(), [])
    finally:
        log.close()


def _read_member(directories: Directories) -> Moved:
    with _with_log(directories) as whole:
        try:
            files = engine.MemberFiles(whole)
            try:
                agreed = _agreed(files)
            finally:
                files.close()
        except (logcore.LogError, engine.QuorumError, OSError, JuteError, ValueError) as error:
            text = str(error).replace(str(whole / MEMBER_LOG), str(directories.member_log))
            text = text.replace(str(whole), str(directories.quorum))
            raise CoordinatorError(f"the data of a member of an ensemble cannot be read: {text}") from error
    machine = agreed.machine
    state = State(
        machine.last_zxid,
        max(agreed.last_ids.values(), default=0),
        machine.sessions.all(),
        machine.tree.export(),
    )
    note = (
        f"this is the data of one member, up to zxid {state.last_zxid:#x}: use that of the member with the "
        "highest zxid; its last transactions may be some that no majority had"
    )
    return Moved(state, [note])


@contextmanager
def _with_log(directories: Directories) -> Iterator[Path]:
    """Yields a directory with a member's files and its log: the member's own, or one of links where the
    log is elsewhere."""
    if not directories.are_separate:
        yield directories.quorum
        return
    with tempfile.TemporaryDirectory(prefix="logcore-") as made:
        links = Path(made)
        for path in directories.quorum.iterdir():
            if path.name != MEMBER_LOG:
                (links / path.name).symlink_to(path.absolute())
        (links / MEMBER_LOG).symlink_to(directories.member_log.absolute())
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
