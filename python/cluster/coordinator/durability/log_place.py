"""Where logs are that are not in ``dataDir``: in ``dataLogDir``, and linked to from where they would be.

Owns the links, and beside each such log a note of whose it is::

    <dataDir>/<name> -> <dataLogDir>/<name>    a log, by an absolute path
    <dataLogDir>/<name>.of                     the note: a line with the absolute path of that link

A copy of a ``dataDir`` leads to the original's logs, and nobody may write to those but the original. So a log is another's as long
as the link in its note is there, and leads to it, also for a server whose ``dataDir`` is the other's ``dataLogDir``; a log without
such a note is of the first that starts with it. :func:`find` says where a log is: where its link leads, unless ``dataLogDir`` has a
log of this name and the link leads to nothing, to another's log, to one whose segments are the beginning of its, or to one that a
server writes to that made no note. Then directories were moved, or both were copied, and a start leads the link there. What is
neither one nor the other is an error. A log that nothing leads to, whose note says that it is this server's, and that goes on
where what it knows ends, is linked to again (:mod:`.log`): ``dataDir`` was restored from a backup. With another ``dataLogDir`` that does not have them, or none, the logs that there are stay in
use where they are, and only new ones are made elsewhere.

A note is written before the link leads to its log, and a link is replaced whole. A crash leaves the old link or the new one, and at
most an empty directory that nobody links to, which is taken, a file that ends in ``.tmp``, or, of what was to be removed, a log that
nobody links to. Of servers that take one log at the same time at most one gets it.

All calls block. Who calls for a server by itself has the lock of its ``dataDir``. A member's directory has none, so its log is asked
first whether somebody writes to it. :func:`find` changes nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..errors import CoordinatorError, DataDirectoryError, DiskFullError
from .snapshot import sync_directory

FULL = (errno.ENOSPC, errno.EDQUOT)
"""A full disk, and a quota that is used up."""
UNUSABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)
"""What is no directory, or none that this process may write to."""
_LOCK = ".lock"
"""In a log: of whoever writes to it. In the ``dataDir`` of a server by itself: of whoever has that."""
_NOTE_SUFFIX = ".of"
_TEMPORARY_SUFFIX = ".tmp"
_NOTE_MODE = 0o644
_COMPARED_BYTES = 1 << 20

_logger = logging.getLogger(__name__)


def find(path: Path, elsewhere: Path | None) -> Path:
    """Where the log of this path is for a server whose logs are made in ``elsewhere``. Raises CoordinatorError:
    DataDirectoryError where it is not there or is another's."""
    with _told(f"the log {path} cannot be used"):
        if not path.is_symlink():
            owner = _other_owner(path, path)
            if owner is not None:
                raise DataDirectoryError(
                    f"the log {path} is that of {owner}, which has it in its dataLogDir: name another dataDir, or, "
                    f"{_if_unused(path, owner)}"
                )
            return path
        return _find(path, path.parent / os.readlink(path), _place_in(elsewhere, path))


def _find(path: Path, there: Path, here: Path | None) -> Path:
    """``there`` is where the link leads, ``here`` where ``dataLogDir`` would have the log."""
    owner = _other_owner(there, path)
    if here is not None and not _is_same(here, there) and _has_log(here, there):
        heres_owner = _other_owner(here, path)
        if heres_owner is not None:
            raise DataDirectoryError(
                f"the log {path} is in {there}, and the one in {here} is that of {heres_owner}: name another dataLogDir, or, "
                f"{_if_unused(here, heres_owner)}"
            )
        if owner is None and there.exists():
            advice = f"if {path.parent} is a copy of another server's, have the link {path} lead to {here}; otherwise"
            if _is_used(there):
                if not _noted(there) and (path.parent / _LOCK).exists():
                    return here  # who writes to the other one has another dataDir: this one's lock is ours
                raise CoordinatorError(
                    f"the log {path} is in {there}, which is in use by another process, and dataLogDir has one, too, {here}: {advice} "
                    "stop that process"
                )
            if not _has_all_of(here, there):
                raise DataDirectoryError(
                    f"the log {path} is in {there}, and dataLogDir has another one, {here}: which of the two is this server's cannot be "
                    f"told; {advice} move the one away that is not to count, and is no other server's"
                )
        return here
    if not there.exists():
        nor_here = f", and {here} has none" if here is not None and here != there else ""
        raise DataDirectoryError(
            f"the log {path} is in {there}, which is not there{nor_here}: mount that disk, restore the directory, or name in dataLogDir "
            "where it is now"
        )
    if owner is not None:
        raise DataDirectoryError(
            f"the log {path} is in {there}, and that is the log of {owner}, of which this is a copy: name in dataLogDir (for an export "
            f"with --log-dir) where the copy of the logs is, or, {_if_unused(there, owner)}"
        )
    return there


def settle(paths: Iterable[Path], elsewhere: Path | None) -> None:
    """Has the logs of these paths for a server that starts: each link leads to where :func:`find` has the log, which is noted to be
    its. Raises CoordinatorError, of what :func:`find` does before anything is changed."""
    for path, place in [(path, find(path, elsewhere)) for path in paths]:
        if path.is_symlink():
            with _told(f"the log {path} cannot be used"):
                _take(path, place)


def _take(path: Path, place: Path) -> None:
    leads_there, before = _is_same(path, place), _noted(place)
    if leads_there and before == _name(path):
        return
    _require_unused(place)
    is_noted = True
    try:
        _note(place, path, before)
    except CoordinatorError:
        raise
    except OSError as error:
        is_noted = False
        # Logs that were linked to by hand may be where nothing else can be written.
        _logger.warning(
            "beside the log %s it cannot be noted whose it is, so a copy of %s could write to it: %s",
            place,
            path.parent,
            error.strerror,
        )
    if not leads_there:
        _logger.warning("the log %s was in %s; it is in %s now", path, os.readlink(path), place)
        temporary = path.with_name(path.name + _TEMPORARY_SUFFIX)
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(place, target_is_directory=True)
        temporary.replace(path)
        sync_directory(path.parent)
    if is_noted:
        _require_first(place, path, before)


def prepare(path: Path, elsewhere: Path | None) -> None:
    """Makes a directory in ``elsewhere`` for a log that is about to be made at ``path``; of one that is linked to already,
    :func:`settle`. Raises CoordinatorError: DataDirectoryError where it cannot be made, DiskFullError for want of room."""
    settle([path], elsewhere)
    if path.is_symlink():
        return
    with _told(f"a log cannot be made for {path}"):
        place = _place_in(elsewhere, path)
    if place is None:
        return
    if path.exists():
        _logger.warning(
            "the log %s stays where it is; to have it in %s, move it there while the server is stopped and leave a link to it",
            path,
            place,
        )
        return
    with _told(f"a log cannot be made in {place}"):
        place.mkdir(parents=True, exist_ok=True)
        before = _noted(place)
        owner = _other_owner(place, path)
        if owner is not None:
            raise DataDirectoryError(
                f"{place} has a log that {path.parent} does not know, that of {owner}: name another dataLogDir, or, "
                f"{_if_unused(place, owner)}"
            )
        if any(place.iterdir()):
            raise DataDirectoryError(
                f"{place} has a log that {path.parent} does not know: move it away, or name another dataLogDir"
            )
        _note(place, path, before)
        path.symlink_to(place, target_is_directory=True)
        sync_directory(path.parent)
        try:
            _require_first(place, path, before)
        except CoordinatorError:
            path.unlink()
            raise


def is_unlinked(path: Path, place: Path) -> bool:
    """Whether a log that has something is noted to be that of a link that is not there."""
    with _told(f"the log {place} cannot be used"):
        return (
            not path.is_symlink()
            and not path.exists()
            and _noted(place) == _name(path)
            and bool(_segments(place))
        )


def link(path: Path, place: Path) -> None:
    """Links to a log that is :func:`is_unlinked`. Raises CoordinatorError."""
    with _told(f"the log {place} cannot be used"):
        _logger.warning(
            "the log %s is this server's, and nothing led to it: it is used from %s again", place, path.parent
        )
        path.symlink_to(place.absolute(), target_is_directory=True)
        sync_directory(path.parent)


def moved(path: Path) -> None:
    """Notes that the link to a log is here now, unless the log is another's."""
    if path.is_symlink() and path.exists():
        with contextlib.suppress(OSError):  # without it the first that starts with the log has it
            before = _noted(path)
            if _other_owner(path, path) is None:
                _note(path, path, before)


def remove(path: Path) -> None:
    """Removes a log, wherever it is, and its note; what cannot be removed stays."""
    place = path.resolve()
    if not path.is_symlink():
        shutil.rmtree(place, ignore_errors=True)
        return
    path.unlink(missing_ok=True)
    shutil.rmtree(place, ignore_errors=True)
    with contextlib.suppress(OSError):
        note = _note_of(place)
        for each in (note, *note.parent.glob(f"{note.name}.*{_TEMPORARY_SUFFIX}")):
            each.unlink(missing_ok=True)


# ---- whose it is ----


def _name(path: Path) -> bytes:
    """What a note says of a link."""
    return os.fsencode(path.parent.resolve() / path.name)


def _note_of(place: Path) -> Path:
    place = place.resolve()
    return place.with_name(place.name + _NOTE_SUFFIX)


def _noted(place: Path) -> bytes:
    """What the note says; nothing if there is none."""
    try:
        return _text(_note_of(place))
    except (FileNotFoundError, NotADirectoryError):
        return b""


def _text(note: Path) -> bytes:
    return note.read_bytes().removesuffix(b"\n")


def _note(place: Path, path: Path, before: bytes) -> None:
    """Notes, on disk, that a log is that of a link. ``before`` is what the note said when the log was nobody's: DataDirectoryError if
    another server has noted it since. Raises OSError."""
    note = _note_of(place)
    made = _write(note, _name(path) + b"\n")
    old = made.with_name(f"{made.stem}-old{_TEMPORARY_SUFFIX}")
    try:
        with contextlib.suppress(FileNotFoundError):
            note.rename(old)
            if _text(old) not in (before, _name(path)):
                with contextlib.suppress(OSError):
                    _name_once(old, note)
                raise _taken(place, _text(old))
        if not _name_once(made, note) and _noted(place) != _name(path):
            raise _taken(place, _noted(place))
    finally:
        made.unlink(missing_ok=True)
        old.unlink(missing_ok=True)
    sync_directory(note.parent)


def _require_first(place: Path, path: Path, before: bytes) -> None:
    """Of two servers that took a log at the same time at most one has it. Each has noted that it is its and made its link, in this order,
    and the second may have found the first's note and no link yet. Raises DataDirectoryError."""
    if _noted(place) != _name(path):
        raise _taken(place, _noted(place))
    owner = _owner(before, place, path)
    if owner is not None:
        _write(_note_of(place), before + b"\n").replace(_note_of(place))
        raise _taken(place, before)


def _taken(place: Path, noted: bytes) -> DataDirectoryError:
    return DataDirectoryError(
        f"the log {place} was taken by another server at the same time, for {os.fsdecode(noted)}: name another dataLogDir"
    )


def _write(note: Path, text: bytes) -> Path:
    """A file beside the note, by a name that no other one has, with what it is to say. Raises OSError."""
    descriptor, name = tempfile.mkstemp(_TEMPORARY_SUFFIX, f"{note.name}.", note.parent)
    made = Path(name)
    try:
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, _NOTE_MODE)
            file.write(text)
            file.flush()
            os.fsync(descriptor)
    except BaseException:
        made.unlink(missing_ok=True)
        raise
    return made


def _name_once(made: Path, note: Path) -> bool:
    """Whether a file could be given a name that nothing had. Raises OSError."""
    try:
        note.hardlink_to(made)
    except FileExistsError:
        return False
    except OSError:  # not every file system has them
        try:
            with note.open("xb") as file:
                file.write(made.read_bytes())
                file.flush()
                os.fsync(file.fileno())
        except FileExistsError:
            return False
    return True


def _other_owner(place: Path, path: Path) -> Path | None:
    """The link to a log that is another's. Raises OSError."""
    return _owner(_noted(place), place, path)


def _owner(noted: bytes, place: Path, path: Path) -> Path | None:
    """The link of :func:`_other_owner` by what a note says."""
    if not noted.startswith(b"/") or b"\0" in noted:
        return None
    link = Path(os.fsdecode(noted))
    try:
        if link.name == path.name and link.parent.samefile(path.parent):
            return None
        return link if link.samefile(place) else None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return link  # which may be there: this process may not look


def _if_unused(place: Path, owner: Path) -> str:
    """What to do if the owner of a log is no more."""
    try:
        owner.stat()
    except OSError as error:
        return f"if that server is no more, where this process cannot look ({error.strerror}), remove {_note_of(place)}"
    return f"if {owner.parent} is not used any more, remove its link"


def _require_unused(place: Path) -> None:
    """Raises CoordinatorError when somebody writes to a log."""
    if _is_used(place):
        raise CoordinatorError(
            f"the log {place} is in use by another process; stop that one or name another directory"
        )


def _is_used(place: Path) -> bool:
    """Whether somebody writes to a log."""
    try:
        lock = os.open(place / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False  # nobody has opened it, or nobody can
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


# ---- what is where ----


def _place_in(elsewhere: Path | None, path: Path) -> Path | None:
    """Where a log is that is not where its path is; None if it is there."""
    if elsewhere is None or _is_same(elsewhere, path.parent):
        return None
    return elsewhere.absolute() / path.name


def _is_same(one: Path, other: Path) -> bool:
    """Whether both are there, and one directory."""
    return one.exists() and other.exists() and one.samefile(other)


def _has_log(here: Path, there: Path) -> bool:
    """Whether there is a log ``here``. An empty one is one that nobody opened, if that ``there`` is, too."""
    return here.is_dir() and (any(here.iterdir()) or (there.is_dir() and not any(there.iterdir())))


def _has_all_of(one: Path, other: Path) -> bool:
    """Whether a log has the same records as another one, or goes on behind its last. What opening a log makes anew, which is all but
    its segments, is not compared."""
    names = _segments(one)
    if names != _segments(other):
        return False
    return all(_begins_with(one / name, other / name, is_longer=name == names[-1]) for name in names)


def _segments(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir() if path.suffix == ".log")


def _begins_with(one: Path, other: Path, *, is_longer: bool) -> bool:
    """Whether a file has the same bytes as another one, or, if it may be longer, more of them behind those."""
    if not (one.is_file() and other.is_file()):
        return False
    size, least = one.stat().st_size, other.stat().st_size
    if size < least or (size > least and not is_longer):
        return False
    with one.open("rb") as first, other.open("rb") as second:
        while part := second.read(_COMPARED_BYTES):
            if first.read(len(part)) != part:
                return False
    return True


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """What the operating system refuses is a CoordinatorError."""
    try:
        yield
    except CoordinatorError:
        raise
    except OSError as error:
        kind = DiskFullError if error.errno in FULL else DataDirectoryError
        raise kind(f"{what}: {_reason(error)}") from error


def _reason(error: OSError) -> str:
    if isinstance(error, FileExistsError) and error.filename is not None and os.path.islink(error.filename):
        return f"{error.filename} is a link to {os.readlink(error.filename)}, which is not there"
    return error.strerror or str(error)
