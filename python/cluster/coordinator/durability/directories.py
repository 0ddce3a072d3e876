"""A coordinator's ``dataDir`` and ``dataLogDir``: what is in them, and whether the two belong together.

Owns the names in both::

    <dataDir>/.lock                  held while a standalone server uses the directory
    <dataDir>/snapshot.<zxid>        of a standalone server (:mod:`.log`)
    <dataLogDir>/log.<zxid>/         its logs
    <dataDir>/quorum/                of a member of an ensemble (:mod:`cluster.coordinator.ensemble.engine`)
    <dataLogDir>/quorum/log/         its log; <dataDir>/quorum/log is a link to it
    <dataDir>/standalone.<zxid>/     files of a standalone server, after an ensemble took them over
    <dataDir>/standalone.tmp/        the same, half moved
    <dataDir>/data.id                32 hexadecimal digits, and the same in <dataLogDir>/data.id

    <dataLogDir>/data.id.tmp         the id of a first start that has not ended

Without ``dataLogDir``, or if it is a link to ``dataDir``, everything is in ``dataDir``, and there is no
``data.id``. The first start with a ``dataLogDir`` writes a new id in three steps: as ``data.id.tmp`` to the
``dataLogDir``, as ``data.id`` to ``dataDir``, then it renames the ``dataLogDir``'s. A start finds::

    dataDir   dataLogDir
    X         X            a pair
    -         -            a first start, also after a crash in the first step; directories from before
                           there were ids look the same
    X         tmp X        a crash before the rename: the next start renames
    X         -            refused: the disk with the logs is not mounted
    -         X            refused if there are logs: they are another server's, or dataDir is lost
    X         Y            refused: directories of two servers

ZooKeeper has no such check: it starts without the transactions, or with another server's.

All calls block. No crash leaves two directories that the next start refuses.
"""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path
from typing import NamedTuple

from ..errors import CoordinatorError, DataDirectoryError, directory_error
from .snapshot import SNAPSHOT_PREFIX, sync_directory

ID_FILE = "data.id"
BEGUN_ID_FILE = f"{ID_FILE}.tmp"
_ID = re.compile(r"[0-9a-f]{32}")
LOCK_FILE = ".lock"
MEMBER_DIRECTORY = "quorum"
MEMBER_LOG = "log"
"""The log engine gives a member's log this name."""
KEPT_PREFIX = "standalone."
MOVING = KEPT_PREFIX + "tmp"
LOG_PREFIX = "log."
_STANDALONE_FILE = re.compile(r"(?:snapshot|log)\.([0-9a-fA-F]{16})")

# The names in Apache ZooKeeper's directories (``FileTxnSnapLog``, ``FileSnap``, ``FileTxnLog``).
APACHE_VERSIONED = "version-2"
"""The subdirectory of ``dataDir`` and of ``dataLogDir`` that has the data."""
APACHE_SNAPSHOT = re.compile(r"snapshot\.([0-9a-fA-F]{1,16})(?:\.gz|\.snappy)?")
"""The group is the zxid at which the snapshot was begun."""
APACHE_LOG = re.compile(r"log\.([0-9a-fA-F]{1,16})")
"""The group is the zxid of the first transaction."""


def has_apache_data(versioned: Path) -> bool:
    """Whether a directory has a snapshot or a log of Apache ZooKeeper's.

    Raises OSError if it cannot be read.
    """
    try:
        names = os.listdir(versioned)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return any(APACHE_SNAPSHOT.fullmatch(name) or APACHE_LOG.fullmatch(name) for name in names)


class Directories(NamedTuple):
    """``data`` is the ``dataDir``, ``logs`` the ``dataLogDir``. They are equal if none is set, or if it is
    a link to ``data``."""

    data: Path
    logs: Path

    @classmethod
    def of(cls, data_dir: Path, log_dir: Path | None = None) -> Directories:
        if log_dir is None or os.path.realpath(log_dir) == os.path.realpath(data_dir):
            return cls(data_dir, data_dir)
        return cls(data_dir, log_dir)

    @property
    def are_separate(self) -> bool:
        return self.data != self.logs

    @property
    def quorum(self) -> Path:
        return self.data / MEMBER_DIRECTORY

    @property
    def member_log(self) -> Path:
        return self.logs / MEMBER_DIRECTORY / MEMBER_LOG

    # ---- what is there ----

    def has_standalone_data(self) -> bool:
        """Whether there are snapshots or logs of a standalone server."""
        return bool(standalone_files(self.data) or standalone_files(self.logs))

    def has_member_data(self) -> bool:
        """Whether there are files of a member.

        If there is data of a standalone server, a member's directory counts only once it has data, too. A
        member that was never part of an ensemble would have begun with the other data.
        """
        if not self.has_standalone_data():
            return self.quorum.exists()
        segments = (path for path in self.member_log.glob("*.log") if path.stat().st_size)
        snapshots = (self.quorum / "snapshots").glob("*.snapshot")
        known = (self.quorum / "vote", self.quorum / "purged", *snapshots, *segments)
        return any(path.exists() for path in known)

    def require_standalone(self) -> None:
        """Raises CoordinatorError if a standalone server cannot use the directory: a member has the
        directory, or took part of the data."""
        if self.has_member_data():
            raise CoordinatorError(
                f"{self.data} has the data of a member of an ensemble, and this server is configured as a "
                "standalone one: add the ensemble's lines server.N (for an ensemble of one, "
                "standaloneEnabled=false too), or name another dataDir; to run alone with this data, use "
                f"`logcore coordinator export {self.data}` and then `logcore coordinator import`"
            )
        self.require_whole()

    def require_whole(self) -> None:
        """Raises CoordinatorError if a member was moving the data away when it ended, and the member is
        gone."""
        moving = [path for path in {self.data / MOVING, self.logs / MOVING} if path.exists()]
        if moving:
            raise CoordinatorError(
                f"{moving[0]} has some of the data of {moving[0].parent}: a member of an ensemble ended "
                "while it moved the data there, and the member is gone; move the files back, or remove them"
            )

    # ---- whether the two belong together ----

    def require_pair(self) -> None:
        """Raises DataDirectoryError if ``dataDir`` and ``dataLogDir`` do not belong to one server.

        Changes nothing.
        """
        with directory_error(f"{self.data} and {self.logs} cannot be used"):
            if self.are_separate:
                self._require_separate()
            elif (self.data / ID_FILE).exists():
                raise DataDirectoryError(
                    f"the logs of {self.data} are in another directory: name it in dataLogDir (for an "
                    f"export, with --log-dir); or move the logs from there to {self.data} and remove "
                    f"{self.data / ID_FILE}"
                )

    def _require_separate(self) -> None:
        data_id, log_id = _read_id(self.data), _read_id(self.logs)
        if data_id is not None and data_id == log_id:
            return
        if data_id is not None and log_id is None and data_id == _begun_id(self.logs):
            return  # a crash before the rename
        for path in (*_logs(self.data), self.quorum / MEMBER_LOG):
            if path.exists() and not path.is_symlink():
                raise DataDirectoryError(
                    f"{self.data} has a log, {path.relative_to(self.data)}, and dataLogDir is {self.logs}: "
                    "move every log from dataDir to the same name in dataLogDir, or leave dataLogDir out"
                )
        if _is_data_directory(self.logs):
            raise DataDirectoryError(
                f"the dataLogDir {self.logs} is the dataDir of another server: name a directory of its own"
            )
        if data_id is not None and log_id is None:
            raise DataDirectoryError(
                f"the dataLogDir {self.logs} is not the one that {self.data} was used with, for it has no "
                f"file {ID_FILE}: mount the disk that has the logs, or name their directory"
            )
        if data_id is None and log_id is not None and self._has_logs():
            raise DataDirectoryError(
                f"the dataLogDir {self.logs} has a server's logs, and {self.data} may be another server's, "
                f"for it has no file {ID_FILE}: name the dataDir of the same server, or restore it from a "
                f"backup; if this is the one, copy {self.logs / ID_FILE} to it"
            )
        if data_id is not None and data_id != log_id:
            raise DataDirectoryError(
                f"{self.data} and the dataLogDir {self.logs} are of different servers, their files {ID_FILE} "
                "are not the same: name the two directories of one server, or restore both from one backup"
            )

    def pair(self) -> None:
        """Writes the id to both directories at the first start with a ``dataLogDir``.

        Raises DataDirectoryError.
        """
        self.require_pair()
        if not self.are_separate:
            return
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataDirectoryError.of(self.logs, error) from error
        with directory_error(f"{self.data} and {self.logs} cannot be used"):
            data_id, log_id = _read_id(self.data), _read_id(self.logs)
            identity = data_id or log_id or secrets.token_hex(16)
            if data_id is None and log_id is None:
                _begin_id(self.logs, identity)
            if data_id is None:
                _begin_id(self.data, identity)
                _finish_id(self.data)
            if log_id is None:
                _finish_id(self.logs)

    def link_member_log(self) -> None:
        """Makes ``<dataDir>/quorum/log`` a link to a member's log in ``dataLogDir``.

        Raises DataDirectoryError.
        """
        if not self.are_separate:
            return
        link, target = self.quorum / MEMBER_LOG, self.member_log.absolute()
        with directory_error(f"{link} cannot be made"):
            target.mkdir(parents=True, exist_ok=True)
            if link.is_symlink() and os.readlink(link) == str(target):
                return
            temporary = link.with_name(link.name + ".tmp")
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(target, target_is_directory=True)
            temporary.replace(link)
            sync_directory(self.quorum)

    def _has_logs(self) -> bool:
        return bool(_logs(self.logs)) or any(self.member_log.glob("*.log"))


def standalone_files(directory: Path) -> list[Path]:
    """The snapshots and logs of a standalone server."""
    return [path for path in directory.glob("*.*") if _STANDALONE_FILE.fullmatch(path.name)]


def _logs(directory: Path) -> list[Path]:
    return [path for path in standalone_files(directory) if path.name.startswith(LOG_PREFIX)]


def _is_data_directory(directory: Path) -> bool:
    """Whether a server uses the directory as its ``dataDir``."""
    quorum = directory / MEMBER_DIRECTORY
    of_a_member = quorum.is_dir() and any(path.name != MEMBER_LOG for path in quorum.iterdir())
    of_one_alone = (directory / LOCK_FILE).exists() or any(directory.glob(f"{SNAPSHOT_PREFIX}{'?' * 16}"))
    return of_a_member or of_one_alone


def _read_id(directory: Path) -> str | None:
    """The id, or None if there is none. Raises DataDirectoryError if the file has something else, OSError."""
    try:
        text = (directory / ID_FILE).read_text("ascii", "replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not _ID.fullmatch(text):
        raise DataDirectoryError(
            f"{directory / ID_FILE} does not have the 32 hexadecimal digits that a server writes: restore it "
            f"from a backup; or, if you know that dataDir and dataLogDir are of one server, remove {ID_FILE} "
            "from both"
        )
    return text


def _begun_id(directory: Path) -> str | None:
    """The id that :func:`_begin_id` wrote, if :func:`_finish_id` has not moved it."""
    try:
        text = (directory / BEGUN_ID_FILE).read_text("ascii", "replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return text if _ID.fullmatch(text) else None


def _begin_id(directory: Path, identity: str) -> None:
    """Writes the id to disk under a temporary name. Raises OSError."""
    with (directory / BEGUN_ID_FILE).open("w") as file:
        file.write(f"{identity}\n")
        file.flush()
        os.fsync(file.fileno())
    sync_directory(directory)


def _finish_id(directory: Path) -> None:
    """Gives the id its name. Raises OSError."""
    (directory / BEGUN_ID_FILE).replace(directory / ID_FILE)
    sync_directory(directory)
